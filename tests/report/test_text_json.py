"""The answer at the end of a run, the full report, and the JSON that holds everything the others show."""

import io
import json

import pytest
from sessions import H100, HOSTILE, MS, T0, block, copy, kernel, session, training

from gpusense._records import Aggregate, Counters, UnseenStretch
from gpusense.report import text
from gpusense.report.json import to_dict
from gpusense.report.json import write as write_json
from gpusense.report.style import PLAIN, Style, style_of
from gpusense.session import Session, load, save


@pytest.fixture(scope="module")
def trained():
    made = training()
    made.meta["overhead"] = {"drain_cpu_ns": 3 * MS}
    return made


# ---- the answer


def test_the_answer_has_its_parts(trained):
    lines = text.summary(trained, PLAIN, "my run.gpusense")
    assert len(lines) <= 15
    assert lines[0].startswith("gpusense: NVIDIA H100 80GB HBM3 · ")
    assert "GPU busy " in lines[0]
    whole = "\n".join(lines)
    for part in (
        "time %",
        "copies: ",
        "verdict: ",
        "  because ",
        "  try: ",
        "records: seen ",
        "overhead of gpusense: ",
    ):
        assert part in whole, part
    assert lines[-1] == "next: gpusense report 'my run.gpusense' --html -o report.html"
    assert "gpusense run -o" in text.summary(trained)[-1]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 300])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii", "no-such-encoding"])
def test_it_fits_every_width_and_encoding(trained, width, encoding):
    hostile = session(
        *[kernel(name, place * MS, place * MS + MS, path=(name,)) for place, name in enumerate(HOSTILE)],
        block("\x1b[31mred", 0, MS),
        damage=["x" * 999] * 50,
        overhead={"drain_cpu_ns": 1, "odd_ns": "text"},
    )
    for one in (trained, hostile, Session()):
        style = Style(width, False, encoding)
        lines = text.summary(one, style, "x", "spans: sent")
        assert len(lines) <= 15
        for line in [*lines, *text.full(one, style)]:
            assert len(line) <= width
            assert line.isprintable() or line == ""
            line.encode("ascii" if encoding == "no-such-encoding" else encoding)


def test_numbers_recomputed():
    one = session(
        kernel("long", 0, 6 * MS),
        kernel("long", 10 * MS, 12 * MS),
        copy("cpu_to_gpu", 10_000_000, 6 * MS, 8 * MS),
        aggregates=[Aggregate((), "kernel", "tiny", "cuda", 0, 7, 1000, 2 * MS, 1000, 4000, 4 * 10**9)],
        counters=Counters(seen=1003, kept=3, aggregated=1000, dropped=7),
        end=20 * MS,
    )
    lines = text.summary(one)
    rows = {line.split()[-1]: line.split() for line in lines[2:4]}
    assert rows["long"][:2] == ["67", "%"]
    assert rows["long"][2:7] == ["8.00", "ms", "2", "4.00", "ms"]
    assert rows["tiny"][2:7] == ["2.00", "ms", "1,000", "2.00", "µs"]
    assert "cpu_to_gpu 10.0 MB in 1 at 5.00 GB/s" in "\n".join(lines)
    assert "records: seen 1,003 = kept 3 + counted 1,000, dropped 7" in lines


def test_nothing_was_seen():
    empty = Session(meta={"start_ns": T0, "end_ns": T0 + 41 * 10**9, "capture": {"cuda_live_ns": 41 * 10**9}})
    empty.unseen.append(UnseenStretch(T0, None, "CUPTI is held by another profiler"))
    whole = "\n".join(text.summary(empty, Style(200)))
    assert "no GPU work was seen: CUPTI is held by another profiler" in whole
    assert "gpusense doctor" in whole


def test_a_killed_run_and_damage_are_named(trained):
    killed = Session(
        meta={**trained.meta, "complete": False, "damage": ["first fault", "second"]}, records=trained.records
    )
    line = next(line for line in text.summary(killed, Style(300)) if line.startswith("records: "))
    assert "damage: first fault and 1 more" in line
    assert "killed" in line


# ---- the full report


def test_the_full_report_has_its_sections(trained):
    lines = list(text.full(trained, Style(240)))
    for title in ("Devices", "Operations on the device", "Copies", "Blocks"):
        assert title in lines
    head = next(line for line in lines if "stddev" in line)
    assert head.split() == ["time", "%", "total", "calls", "avg", "med", "min", "max", "stddev", "bytes", "name"]
    assert "\x1b" not in "\n".join(lines)


def test_a_median_only_where_it_is_known():
    known = session(kernel("k", 0, 10), kernel("k", 20, 50), kernel("k", 60, 160))
    row = next(line for line in text.full(known) if line.endswith("[0] k"))
    assert row.split()[7:9] == ["30", "ns"]
    counted = session(aggregates=[Aggregate((), "kernel", "k", "cuda", 0, 7, 3, 60, 10, 30, 1400)])
    row = next(line for line in text.full(counted) if line.endswith("[0] k"))
    assert row.split()[:9] == ["100", "%", "60", "ns", "3", "20", "ns", "–", "10"]


def test_many_operations_and_deep_blocks_are_thinned_and_counted():
    path = tuple(f"level {depth}" for depth in range(200))
    records = [kernel(f"kernel_{place}", place * 100, place * 100 + 10, path=path) for place in range(120)]
    lines = list(text.full(session(*records)))
    assert any("and 70 more operations" in line for line in lines)
    assert any("more block" in line for line in lines)
    assert len(lines) < 200


def test_writing_to_a_file(trained, tmp_path):
    text.write(trained, tmp_path / "report.txt")
    assert "Operations on the device" in (tmp_path / "report.txt").read_text(encoding="utf-8")


# ---- where it goes


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "color"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
        (None, {"TERM": "xterm"}, False),
    ],
)
def test_colour_only_where_it_is_welcome(trained, stream, environ, color):
    style = style_of(stream, environ)
    assert style.color is color
    assert any("\x1b[" in line for line in text.summary(trained, style)) is color


def test_width_is_asked_bounded_and_never_needed():
    assert style_of(io.StringIO(), {"COLUMNS": "77"}).width == 77
    assert style_of(io.StringIO(), {"COLUMNS": "5"}).width == 40
    assert style_of(io.StringIO(), {"COLUMNS": "wide"}).width == 100
    closed = io.StringIO()
    closed.close()
    assert style_of(closed, {}) == PLAIN


# ---- JSON


def test_the_json_holds_the_session(trained):
    report = json.loads(json.dumps(to_dict(trained), allow_nan=False))
    assert report["schema"] == "gpusense.report/1"
    for part in ("meta", "devices", "busy", "idle", "operations", "transfers", "blocks", "records", "aggregates"):
        assert part in report
    assert report["counters"]["seen"] == trained.counters.seen
    assert len(report["records"]) + len(report["blocks"]) == len(trained.records)
    assert len(report["metrics"]) == len(trained.metrics)
    first = report["records"][0]
    assert first["duration_ns"] == first["end_ns"] - first["start_ns"]
    assert report["verdict"] == report["findings"][0]
    kernels = [record for record in report["records"] if record["kind"] == "kernel"]
    for row in report["operations"]:
        if row["kind"] == "kernel":
            durations = [record["duration_ns"] for record in kernels if record["name"] == row["name"]]
            assert (row["count"], row["total_ns"]) == (len(durations), sum(durations))
            assert (row["min_ns"], row["max_ns"]) == (min(durations), max(durations))


def test_hostile_names_are_strict_json(tmp_path):
    odd = [*HOSTILE, b"\xff\xfe".decode("utf-8", "surrogateescape")]
    made = session(*[kernel(name, place, place + 1) for place, name in enumerate(odd)], devices=(H100,))
    save(made, tmp_path / "s.gpusense")
    write_json(load(tmp_path / "s.gpusense"), tmp_path / "s.json")
    report = json.loads((tmp_path / "s.json").read_bytes().decode("utf-8", "strict"))
    names = [record["name"] for record in report["records"]]
    assert names[: len(HOSTILE) - 2] == list(HOSTILE[: len(HOSTILE) - 2])
    assert names[-1] == "\ufffd\ufffd"
    "".join(names).encode("utf-8")


def test_an_empty_session_has_every_part():
    report = to_dict(Session())
    assert report["records"] == report["blocks"] == report["operations"] == report["busy"] == []
    assert report["duration_ns"] is None
    assert report["verdict"]["kind"] == "nothing_seen"
