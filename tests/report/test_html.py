import base64
import hashlib
import pathlib
import random
import re
import zipfile

import pytest
from support.pages import page_of
from support.sessions import (
    HOSTILE,
    MS,
    RECORDED,
    T0,
    US,
    block,
    crowd,
    eventful,
    kernel,
    sample,
    session,
    sync,
    training,
)

from gpusense._records.counters import BlockCounters
from gpusense._records.records import Aggregate, Counters, GpuAllocation, UnseenInterval
from gpusense._records.work import WorkTable
from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import findings
from gpusense.analysis.operation import operations
from gpusense.report.divisions import Divisions
from gpusense.report.html import page as html
from gpusense.report.html.charts import thin
from gpusense.report.tracks import end_of, label
from gpusense.session import Session, load


def drawn(page):
    """(group, row, name, start, length, path) of every event of the tracks."""
    data = page.data["timeline"]
    columns = [page.column(name) for name in ("start", "length", "name", "path")]
    ends = [*(row["at"] for row in data["rows"]), len(columns[0])][1:]
    for row, end in zip(data["rows"], ends, strict=True):
        for at in range(row["at"], end) if row["group"] else ():
            start, length, name, path = (column[at] for column in columns)
            yield row["group"], row["name"], data["names"][name], start, length, data["paths"][path]


@pytest.mark.parametrize("make", [lambda: training(4), eventful], ids=["training", "two processes"])
def test_every_record_is_on_the_timeline_with_its_nanoseconds(make):
    run = make()
    apart = GpuAllocation, BlockCounters  # an instant, and what is told of a block that is there
    run.records = [record for record in run.records if type(record) not in apart]
    page = page_of(run)
    expected = sorted((record.start_ns - T0, end_of(record) - record.start_ns) for record in run.records)
    got = sorted((start, length) for _, row, _, start, length, _ in drawn(page) if row != "idle: why")
    # Idle rows stand apart from records; every row but the first of a track has no name.
    assert got == expected
    assert page.data["timeline"]["start_ns"] == str(T0)
    assert page.data["timeline"]["events"] == len(run.records)
    assert page.data["timeline"]["note"] == ""


def test_waits_say_from_which_line():
    line = "train.py:31 step"
    run = session(sync(0, MS, source_line=line), sync(2 * MS, 3 * MS), kernel("k", 0, MS), end=4 * MS)
    page = page_of(run)
    names = [name for _, row, name, *_ in drawn(page) if "synchronize" in name]
    assert names == [f"stream_synchronize at {line}", "stream_synchronize"]
    (table,) = [table for table in page.data["tables"] if table["title"] == "Waits by line"]
    assert [row[0] for row in table["rows"]] == [line, "(not known)"]


def test_no_two_events_of_a_row_overlap():
    page = page_of(training(3))
    last = {}
    rows = page.data["timeline"]["rows"]
    starts, lengths = page.column("start"), page.column("length")
    for number, row in enumerate(rows):
        end = rows[number + 1]["at"] if number + 1 < len(rows) else len(starts)
        for at in range(row["at"], end):
            assert starts[at] >= last.get(number, 0)
            last[number] = starts[at] + lengths[at]


def test_the_numbers_are_those_of_the_analysis_and_the_parts_of_the_bar_fill_it():
    run = training(12)
    data = page_of(run).data
    assert [finding["title"] for finding in data["findings"]] == [finding.title for finding in findings(run)]
    (whole,) = [phase for phase in data["phases"] if phase["name"] == "whole"]
    named = [*whole["operations"], *data["host"]]
    table = {(label(row.name), row.device, row.direction): row for row in operations(run)}
    assert len(named) == len(table)
    for row in named:
        same = table[row["name"], row["device"], row["direction"]]
        assert (row["count"], row["total_ns"], row["median_ns"]) == (same.count, same.total_ns, same.median_ns)
        assert row["share"] == pytest.approx(row["total_ns"] / run.duration_ns)
    for phase in data["phases"]:
        for bar in phase["breakdown"]:
            assert sum(ns for _, ns in bar["parts"]) == bar["window"]
        for at, row in enumerate(phase["operations"][:12]):
            bins = phase["histograms"][str(at)]
            assert (sum(bins["counts"]), bins["low"], bins["high"]) == (row["count"], row["min_ns"], row["max_ns"])
        tiles = {tile["label"]: tile for tile in phase["tiles"]}
        kernels = sum(row["count"] for row in phase["operations"] if row["kind"] == "kernel")
        assert tiles["Kernels"]["value"] == f"{kernels:,}"
    assert [bar["window"] for bar in whole["breakdown"]] == [run.duration_ns]
    assert sum(row["count"] for row in whole["operations"] if row["kind"] == "kernel") == len(run.kernels)
    assert [phase["name"] for phase in data["phases"] if phase["judged"]] == ["steady"]


def test_the_phases_and_steps_are_a_band_over_the_timeline():
    run = training(12)
    page = page_of(run)
    drawn = page.data["timeline"]
    (program,) = Facts(run).programs
    assert [row[2:] for row in drawn["phases"]] == [[one.start_ns - T0, one.end_ns - T0] for one in program.phases]
    starts, lengths = page.column("start"), page.column("length")
    spans = zip(program.steps.starts, program.steps.ends, strict=True)
    steps = range(drawn["rows"][1]["at"])
    assert (drawn["rows"][0]["name"], drawn["names"][page.column("name")[0]]) == ("steps", "step")
    assert [(starts[at], lengths[at]) for at in steps] == [(start - T0, end - start) for start, end in spans]
    assert [row[1] for row in drawn["phases"]][:2] == ["start-up", "steps"]


def test_the_flame_graph_adds_up():
    run = training(3)
    rows = page_of(run).data["flame"]["rows"]
    below = [0] * len(rows)
    for parent, _, spent, _ in rows[1:]:
        below[parent] += spent
    device = sum(record.duration_ns for record in [*run.kernels, *run.transfers, *run.memsets])
    assert rows[0][2] == device
    for at, (_, _, spent, kind) in enumerate(rows):
        assert kind != "block" or below[at] == spent


def test_hostile_names_stay_text():
    records = [kernel(name, at * US, at * US + 900, full_name=name, path=(name,)) for at, name in enumerate(HOSTILE)]
    records += [block((name,), at * US, at * US + 990, number=at) for at, name in enumerate(HOSTILE)]
    run = session(*records, end=20 * US, backends={HOSTILE[0]: HOSTILE[1]}, damage=[HOSTILE[0]])
    run.unseen.append(UnseenInterval(T0, T0 + 5, HOSTILE[0]))
    page = page_of(run, title=HOSTILE[0])
    assert [tag for tag, _ in page.elements].count("script") == 3  # data, events, the code
    assert not [attrs for tag, attrs in page.elements if tag == "img" or any(key.startswith("on") for key in attrs)]
    assert HOSTILE[0] in {name for *_, name, _, _, _ in drawn(page)}
    assert "<" not in page.scripts["data"]
    assert len(max((row["name"] for row in page.data["phases"][0]["operations"]), key=len)) <= 4096


def test_the_policy_names_exactly_this_script_and_this_style():
    page = page_of(training(2))
    (policy,) = [
        attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    for key, text in (("script-src", page.scripts["code"]), ("style-src", page.scripts["style"])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{key} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_nothing_is_fetched():
    page = page_of(training(2))
    assert not [attrs for _, attrs in page.elements if "src" in attrs or "href" in attrs]
    assert not re.search(
        r"https?://|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", page.scripts["code"] + page.scripts["style"]
    )


@pytest.mark.parametrize("count", [0, 1])
def test_zero_records_and_one(count):
    run = session(*[kernel("only", 0, 5 * US)][:count], end=MS)
    page = page_of(run)
    assert len(list(drawn(page))) - sum(row["name"] == "idle: why" for row in page.data["timeline"]["rows"]) == count
    assert page.data["findings"][0]["kind"] == ("nothing_to_gain" if count else "nothing_seen")
    (nothing,) = page_of(Session()).data["phases"]
    assert nothing["tiles"][0]["value"] == "–"


def test_a_session_without_end_and_records_without_end():
    page = page_of(session(kernel("a", 0, 10), kernel("b", 50, 20), block(("x",), 5, 90)))
    assert page.data["window_ns"] == 90
    assert min(page.column("length")) == 0
    (whole,) = [phase for phase in page.data["phases"] if phase["name"] == "whole"]
    assert whole["tiles"][0]["note"] == "no end recorded"


def test_times_beyond_all_bounds_leave_the_others_on_the_page():
    far = [block((f"far {at}",), 0, 0, number=at + 2)._replace(start_ns=at, end_ns=at + 5) for at in (2**70, -(2**70))]
    page = page_of(session(block(("b",), 5, 9), *far, end=20))
    assert ("b", 5, 4) in [(name, start, length) for _, _, name, start, length, _ in drawn(page)]


def test_a_damaged_session_says_so_first():
    run = session(kernel("a", 0, 10), end=100, damage=["chunk 4 at byte 812: checksum differs"])
    first = page_of(run).data["findings"][0]
    assert first["kind"] == "damaged"
    assert "byte 812" in first["evidence"][0]


def test_beyond_the_limit_short_events_are_joined_and_the_page_says_how():
    run = crowd(6_000)
    page = page_of(run, event_limit=1_000)
    note = page.data["timeline"]["note"]
    shown = joined = 0
    first = next(row["at"] for row in page.data["timeline"]["rows"] if row["group"])  # behind the steps
    names = page.column("name")[first:]
    for name, path in zip(names, page.column("path")[first:], strict=True):
        if name == 0:
            joined += path
        elif not page.data["timeline"]["colours"][name].startswith("gap-"):
            shown += 1
    assert shown + joined == 6_000
    assert 400 <= shown <= 600
    assert f"6,000 records: {joined:,} shorter than" in note
    # Joined events never reach into the next event of their row.
    starts, lengths = page.column("start"), page.column("length")
    rows = page.data["timeline"]["rows"]
    for number, row in enumerate(rows):
        end = rows[number + 1]["at"] if number + 1 < len(rows) else len(starts)
        for at in range(row["at"] + 1, end):
            assert starts[at] >= starts[at - 1] + lengths[at - 1]
    longest = sorted((record.duration_ns for record in run.records), reverse=True)[:shown]
    alone = [length for length, name in zip(lengths[first:], names, strict=True) if name]
    assert set(longest) <= set(alone)


def test_work_that_is_only_summed_is_named_as_not_drawn_and_counted_at_the_foot():
    counters = Counters(seen=15, kept=1, aggregated=9, invalid=2, pre_session=3, lost_markers=7)
    summed = Aggregate((), "kernel", "tiny", "cuda", 0, None, 9, 9 * US, US, US, 9 * US * US)
    data = page_of(session(kernel("a", 0, MS), end=2 * MS, counters=counters, aggregates=[summed])).data
    note = "9 operations below 100 µs are not drawn: the session has their sums, and not when each ran."
    assert data["timeline"]["note"] == note
    assert data["seen"]["records"] == "1 listed, 9 short ones summed, 2 invalid, 3 from before"
    assert data["seen"]["counters"] == [["lost markers", 7]]


def test_work_that_is_counted_is_drawn_as_what_is_listed():
    run = load(RECORDED)
    assert run.counters.aggregated
    page = page_of(run)
    work, zero = run.work, int(page.data["timeline"]["start_ns"])
    expected = sorted(
        (label(work.kinds[kind].name), start - zero, end - start)
        for kind, start, end in zip(work.kind, work.start, work.end, strict=True)
    )
    names = {name for name, _, _ in expected}
    assert sorted((name, start, length) for _, _, name, start, length, _ in drawn(page) if name in names) == expected
    assert page.data["timeline"]["note"] == ""


@pytest.mark.parametrize("streams", [1, 4])
def test_every_gap_of_a_device_is_on_the_timeline_and_a_record_costs_few_bytes(streams):
    run = crowd(5_000, streams=streams)
    page = page_of(run)
    expected = [(gap.start_ns - T0, gap.end_ns - gap.start_ns) for gap in Divisions(Facts(run)).gaps(("cuda", 0))]
    assert [(start, length) for _, row, _, start, length, _ in drawn(page) if row == "idle: why"] == expected
    assert len(expected) > 80
    assert len(page.scripts["events"]) <= 12 * 5_000


def test_what_a_long_run_has_only_sums_of_is_where_it_was():
    run = crowd(600)
    work = WorkTable(400)
    for record in run.records:
        work.add(record)
    run.take_work(work)
    (hole,) = work.holes
    timeline = page_of(run).data["timeline"]
    assert timeline["holes"] == [[hole.start_ns - T0, hole.end_ns - T0, hole.rows]]
    assert timeline["events"] == len(work) == 600 - hole.rows
    assert f"{hole.rows} operations of a long run are known only as sums" in timeline["note"]


def test_metrics_that_are_unknown_are_absent_and_not_zero():
    run = session(
        kernel("a", 0, MS), end=2 * MS,
        metrics=[sample(at, watts=float("nan"), used=at, gpu=None) for at in range(0, 2 * MS, MS // 2)],
    )  # fmt: skip
    labels = {chart["label"] for chart in page_of(run).data["series"]}
    assert labels == {"Memory used"}


def test_thinning_keeps_the_extremes_of_every_interval():
    rng = random.Random(7)
    points = [(at, rng.random()) for at in range(50_000)]
    kept = thin(points, 1_000)
    assert len(kept) <= 1_002
    assert kept == sorted(kept)
    assert max(points, key=lambda point: point[1]) in kept
    assert min(points, key=lambda point: point[1]) in kept
    assert thin(points[:900], 1_000) == points[:900]


def test_a_path_appears_only_once_complete(tmp_path):
    target = tmp_path / "report.html"
    html.write(training(2), target)
    assert target.read_text(encoding="utf-8").endswith("</html>\n")

    class Broken(Session):
        __slots__ = ()

        @property
        def aggregates(self):
            raise RuntimeError("broken")

        @aggregates.setter
        def aggregates(self, value):
            pass

    with pytest.raises(RuntimeError):
        html.write(Broken(), tmp_path / "other.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_nesting_deeper_than_any_screen_leaves_the_devices_on_the_page():
    path = tuple(f"level{depth}" for depth in range(3_000))
    blocks = [block(path[: depth + 1], depth, 10_000 - depth, number=depth) for depth in range(3_000)]
    page = page_of(session(*blocks, kernel("k", 3_000, 5_000, path=path), end=10_000))
    assert "2,968 rows of the timeline not drawn" in page.data["timeline"]["note"]
    assert "stream 7" in {row["name"] for row in page.data["timeline"]["rows"]}
    assert [2_000, "rest"] in [row[2:] for row in page.data["flame"]["rows"]]


def test_more_host_rows_than_any_page_shows_leave_the_devices_on_it():
    """A server with many requests open at once has a row for each."""
    blocks = [block(("request",), at, at + 1_000, number=at + 1) for at in range(500)]
    devices = [kernel("k", 10 * stream, 500, stream=stream) for stream in range(150)]
    page = page_of(session(*blocks, *devices[:3], end=2_000))
    assert {"stream 0", "stream 1", "stream 2"} <= {row["name"] for row in page.data["timeline"]["rows"]}
    assert "263 rows of the timeline not drawn" in page.data["timeline"]["note"]
    rows = page_of(session(*blocks, *devices, end=2_000)).data["timeline"]["rows"]
    assert [row["group"] for row in rows].count("Host") == 120
    assert len([row for row in rows if row["name"].startswith("stream")]) == 120


def test_the_page_comes_out_of_a_zip_and_out_of_another_package(run_python, tmp_path):
    archive = tmp_path / "vendor.zip"
    package = pathlib.Path(html.__file__).parents[2]
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("host/__init__.py", "")
        for path in package.rglob("*"):
            if path.suffix in (".py", ".css", ".js"):
                file.write(path, f"host/_vendor_gpusense/{path.relative_to(package)}")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import io; from host._vendor_gpusense.report.html import page\n"
        "from host._vendor_gpusense.session import Session\n"
        "out = io.StringIO(); page.write(Session(), out); assert 'Nothing was recorded' in out.getvalue()\n"
        "assert 'gpusense' not in sys.modules"
    )
    done = run_python(code, str(archive))
    assert done.returncode == 0, done.stderr
