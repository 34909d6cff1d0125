"""The answer at the end of a run, the full report, and the JSON that holds everything the others show."""

import io
import json
import re
import shlex
from textwrap import wrap

import pytest
from support.sessions import (
    H100,
    HOSTILE,
    MS,
    T0,
    US,
    block,
    compute,
    copy,
    eventful,
    kernel,
    sample,
    session,
    sync,
    training,
)

from gpusense._records.records import BLOCKS, NO_GPU, NOT_USED, Aggregate, Counters, Syscall, UnseenInterval
from gpusense._runtime.text import percent_text
from gpusense._tracing.summary import print_summary
from gpusense.analysis.energy import energy
from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import ranked
from gpusense.analysis.operation import Operation
from gpusense.report import text, unused
from gpusense.report.html.data import page_data
from gpusense.report.json import to_dict
from gpusense.report.json import write as write_json
from gpusense.report.series import device_series
from gpusense.report.style import PLAIN, Style, style_of
from gpusense.session import Session, load, merge, save


@pytest.fixture(scope="module")
def trained():
    made = training()
    made.meta["overhead"] = {"drain_cpu_ns": 3 * MS}
    return made


# ---- the answer


def test_what_gpusense_used_is_that_of_all_its_threads_and_beside_the_run():
    made = training()
    made.meta["overhead"] = {"drain_cpu_ns": 3 * MS, "thread_cpu_ns": 5 * MS, "thread_s": 0.5, "threshold_ns": 100_000}
    window = (made.meta["end_ns"] - made.meta["start_ns"]) / 1e6
    assert list(text.full(made))[-1] == f"gpusense used 8.00 ms of CPU ({percent_text(8 / window)} of the run)"
    end = made.meta["end_ns"]
    made.meta |= {"start_ns": T0 - 310 * MS, "program_start_ns": T0, "program_end_ns": end, "end_ns": end + 70 * MS}
    last = " ".join(line.strip() for line in list(text.full(made))[-2:])
    assert last.startswith(f"gpusense used 8.00 ms of CPU ({percent_text(8 / window)} of the run); ")
    assert last.endswith("beside the run it took 310 ms before the program's first line and 70.0 ms after its last")


def test_the_page_says_the_cost_in_words():
    made = training()
    made.meta["overhead"] = {
        "drain_cpu_ns": 3 * MS, "thread_s": 0.5, "budget": 0.02, "observed": 0.145, "stays": "<b>", "odd_name": 7,
        "left": float("nan"), "share": 10**400,
    }  # fmt: skip
    rows = dict(page_data(made).facts["seen"]["overhead"])
    assert rows["CPU time of reading records"] == "3.00 ms"
    assert rows["its thread was awake for"] == "500 ms"
    assert (rows["overhead budget"], rows["share of the time observed"]) == ("2.0 %", "14 %")
    assert (rows["CUPTI stayed in the process"], rows["odd name"]) == ("<b>", "7")


def test_the_answer_has_its_parts(trained):
    lines = text.summary(trained, Style(100), "my run.gpusense")
    assert len(lines) <= 22
    assert lines[0].startswith("gpusense: NVIDIA H100 80GB HBM3 · ")
    steps = r"19 steps of 1\d\.\d ms \(median, ± \d+ µs\), after 49\.\d ms of start-up; GPU 0 busy 91 % of the steps"
    assert re.fullmatch(steps, lines[1])
    assert lines[2].startswith("verdict: ")
    whole = "\n".join(lines)
    for part in ("  because: ", "  try: ", "% of steps", "records: 2,161 listed", "gpusense used 3.00 ms of CPU"):
        assert part in whole, part
    assert lines[-1] == "next: gpusense report 'my run.gpusense' --html -o report.html"
    assert "gpusense run -o" in text.summary(trained)[-1]
    piped = "\n".join(text.summary(trained, style_of(io.StringIO(), {"COLUMNS": "60"})))
    for part in ("copies, of the steps: ", "GPU 0 idle, of the ", "flash_bwd_kernel"):
        assert part in piped
    trained.meta["run"] = {"command": "python /srv/jobs/train.py --fast"}
    assert text.summary(trained)[0].startswith("gpusense: train.py · NVIDIA H100")
    trained.meta["run"] = {"command": "python -m jobs", "label": "the slow one"}
    assert text.summary(trained)[0].startswith("gpusense: the slow one · NVIDIA H100")
    del trained.meta["run"]


def test_advice_is_whole_on_any_screen_and_into_a_pipe_nothing_is_cut(trained):
    """A narrow screen had three lines of it, and the end of a sentence was a row of dots."""
    (fix,) = {ranked(Facts(trained))[0].fix}
    assert len(fix) > 60
    for width in (40, 60, 100):
        lines = text.summary(trained, Style(width))
        at = next(place for place, line in enumerate(lines) if line.startswith("  try: "))
        assert " ".join(line.strip() for line in lines[at:]).startswith(f"try: {fix}")
    long = kernel("k" * 119, 0, MS)
    for lines in (list(text.full(session(long, end=2 * MS))), text.summary(session(long, end=2 * MS))):
        assert any(line.endswith(long.name) for line in lines)


def test_a_machine_without_a_gpu_gets_a_short_answer():
    alone = Session(meta={"start_ns": T0, "end_ns": T0 + MS, "overhead": {"thread_cpu_ns": 81_000}})
    lines = text.summary(alone)
    assert len(lines) <= 5
    whole = "\n".join(lines)
    assert "confidence" not in whole
    assert not re.search(r"\b0 (ns|%)", whole)
    assert "records" not in whole


def test_of_a_program_without_a_gpu_a_line_and_its_blocks_are_told():
    """Six lines said nothing, with a confidence and shares of a program of 8 ms."""
    meta = {"capture": {"state": "unavailable", "reason": NO_GPU}, "run": {"command": "hello.py"}}
    alone = session(end=8 * MS, **meta)
    assert text.summary(alone) == [f"gpusense: hello.py · 8.00 ms · no GPU work: {NO_GPU}; see gpusense doctor"]
    working = session(block(("step",), 0, 7 * MS), block(("step", "load"), 0, 5 * MS), end=8 * MS, **meta)
    head, heads, *rows = text.summary(working, Style(60), "x")
    assert head == "gpusense: hello.py · 8.00 ms · no GPU work: no NVIDIA GPU or"
    assert [row.split()[-1] for row in rows[1:3]] == ["step", "load"]
    assert rows[-1] == "next: gpusense report x --html -o report.html"
    said = "\n".join([head, heads, *rows])
    assert not re.search(r"confidence|%|\b0 ns|try:", said)
    idle = session(end=8 * MS, capture={"state": "armed", "reason": "CUDA is not live", "cuda_live_ns": None})
    assert text.summary(idle) == [f"gpusense: 8.00 ms · no GPU work: {NOT_USED}"]
    assert [unused.answer(one, PLAIN) for one in (alone, idle, working)] == [
        text.summary(alone),
        text.summary(idle),
        [],
    ]


def _telling(name, value):
    one = session(end=8 * MS, capture={"state": "unavailable", "reason": NO_GPU}, run={"command": "hello.py"})
    if name in Session.__slots__:
        setattr(one, name, value)
    else:
        one.meta[name] = value
    return one


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("notes", ["one"]),
        ("missing", ["a rank"]),
        ("damage", ["at 7"]),
        ("complete", False),
        ("ended_by", "SIGKILL"),
        ("hang", [{"text": "It waits for rank 1"}]),
        ("only_devices", []),
        ("imported_from", "nsys"),
        ("sources", {"wgpu": {"timed": 0}}),
        ("capture", {"state": "armed", "cuda_live_ns": 9}),
        ("capture", {"state": "unavailable", "reason": "CUPTI is held by another"}),
        ("capture", {"state": BLOCKS, "reason": NO_GPU}),
        ("capture", {"state": "unavailable", "reason": NO_GPU, "hardware_events": False}),
        ("program_end_ns", 1),
        ("records", [kernel("k", 0, MS)]),
        ("aggregates", [Aggregate(("a",), "kernel", "k", "cuda", 0, 7, 1, 9, 9, 9, 81)]),
        ("unseen", [UnseenInterval(T0, None, "disabled")]),
        ("counters", Counters(sink_errors=1)),
    ],
)
def test_the_short_answer_leaves_all_else_to_the_summary(name, value):
    """Which has something else to say of each of these."""
    one = _telling(name, value)
    assert unused.answer(one, PLAIN) == []
    assert text.summary(one) != text.summary(_telling("exit_code", 0)) or name == "program_end_ns"


@pytest.mark.parametrize("records", [(), (kernel("k", 0, MS),)])
def test_a_cut_file_says_what_could_not_be_read_and_nothing_of_cuda(records):
    """What the beginning of the file says of CUDA is of the program's beginning."""
    damage = ["the file is cut inside the chunk DEVICES at offset 472"]
    armed = {"state": "armed", "reason": "CUDA is not live in this process yet", "cuda_live_ns": None}
    cut = session(*records, block(("step",), 0, MS), end=2 * MS, capture=armed, damage=damage, complete=False)
    said = " ".join(" ".join([*text.summary(cut), *text.full(cut)]).split())
    rest = "what was readable is shown" if records else "what was readable holds no GPU work"
    assert f"verdict: The session file is damaged in 1 place: {rest}. because: The file is cut" in said
    assert "CUDA" not in said
    killed = session(end=2 * MS, capture=armed, complete=False)
    assert "the program was killed or still runs" in " ".join(text.summary(killed))
    assert "CUDA" not in " ".join(text.summary(killed))


def test_what_a_process_notes_stands_below_the_title_also_of_a_merged_session():
    why = "written because block “request” took 41.0 ms; its p99 is 3.00 ms, over 900 passes"
    ranks = [
        session(kernel("k", 0, MS), end=2 * MS, rank=rank, **({"notes": [why]} if rank else {})) for rank in (0, 1)
    ]
    assert text.summary(ranks[1], Style(200))[1] == f"W{why[1:]}."
    both = merge(ranks)
    assert text.summary(both, Style(200))[1] == f"Rank 1: {why}."
    full = list(text.full(both, Style(200)))
    notes = full[full.index("Notes") :]
    assert f"  Rank 1: {why}." in notes
    assert sum("wall clock" in line for line in full) == sum("wall clock" in line for line in notes) == 1
    many = session(kernel("k", 0, MS), end=2 * MS, notes=["a", "b", "c", "d", "e"])
    assert text.summary(many)[1:5] == ["A.", "B.", "C.", "2 more notes; see Notes in the full report."]


def test_no_line_ends_between_a_number_and_its_unit():
    said = "GPU 0 is idle for 53 % of each step (10.5 ms of 19.9 ms), and copies 1.50 GB at 14.0 GB/s, 12 µs each."
    for width in range(24, 60):
        lines = Style(width).wrapped(said)
        assert " ".join(line.strip() for line in lines) == said
        assert max(map(len, lines)) <= width
        assert not [line for line in lines if re.match(r"\s+(%|ms|GB|GB/s|µs)\b|\s+%", line)]
    for short in (said, f"  {said[:40]} ", " ", ""):  # as lines that are divided are cut
        assert Style(120).wrapped(short) == wrap(short, 120)


def test_one_kernel_again_and_again_is_launches_and_no_steps():
    run = session(*(kernel("k", at * MS, at * MS + 900 * US, grid=(4, 1, 1)) for at in range(50)), end=60 * MS)
    _, said, *lines = text.summary(run)
    assert said.startswith("50 launches of 1.00 ms; ")
    assert said.endswith("GPU 0 busy 90 % of the launches")
    assert any(line.startswith("% of launches") for line in map(str.strip, lines))


def test_the_command_to_go_on_with_is_whole_on_a_narrow_screen(trained):
    """Its end was cut off, and what was copied wrote to another file, or to none."""
    path = "/home/somebody/a long folder/" + "deeper/" * 20 + "run.gpusense"
    for style in (Style(40), Style(80, True)):
        last = text.summary(trained, style, path)[-1]
        command = last.removeprefix("\x1b[2m").removesuffix("\x1b[0m").removeprefix("next: ")
        assert shlex.split(command) == ["gpusense", "report", path, "--html", "-o", "report.html"]
        assert max(map(len, text.summary(trained, style._replace(color=False), path)[:-1])) <= style.width


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
        lines = text.summary(one, style, "x", more=["spans: sent"])
        assert len(lines) <= 26 or width < 80
        for line in [*lines, *text.full(one, style)]:
            assert len(line) <= width or line == lines[-1]
            assert line.isprintable() or line == ""
            line.encode("ascii" if encoding == "no-such-encoding" else encoding)
        assert all(len(line) <= width for line in text.summary(one, style))


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
    rows = {line.split()[-1]: line.split() for line in lines}
    assert any(line.strip().startswith("% of run") for line in lines)
    assert rows["long"][:2] == ["40", "%"]  # 8 of 20 ms
    assert rows["long"][2:7] == ["8.00", "ms", "2", "4.00", "ms"]
    assert rows["tiny"][2:7] == ["2.00", "ms", "1,000", "2.00", "µs"]
    assert "copies, of the run: host to device 10 %, 10.0 MB in 1 copy at 5.00 GB/s" in "\n".join(lines)
    assert "records: 3 listed, 1,000 short ones summed, 7 records dropped by the driver" in lines


#: "1 calls"; 1.1 calls and 11 calls are right, and "1 is", "1 was".
ONE_OF_MANY = re.compile(r"(?<![\d.,])1 (?:[a-z-]+ )?(?!(?:is|was|has|less|its|this|across)\b)[a-z]+[^s\W]s\b")


def test_one_is_not_many():
    lines = ("sync", "sync_lines", "allocation")
    alone = [
        kernel("only", 0, 9 * MS, path=("step",), block_id=1),
        copy("cpu_to_gpu", 10_000, 9 * MS, 9 * MS + 10, path=("step",)),
        sync(0, 9 * MS, source_line="train.py:3 step"),
        block(("step",), 0, 10 * MS),
    ]
    counters = Counters(
        seen=3, kept=3, dropped=1, missed=1, invalid=1, unknown_kinds=1, lost_markers=1, ambiguous=1, bytes_dropped=1
    )
    counted = [Aggregate((), "kernel", "tiny", "cuda", 0, 7, 1, 2, 2, 2, 4)]
    runs = [
        session(*alone, counters=counters, end=20 * MS, kinds=lines, damage=["once"]),
        session(*alone[1:2], counters=Counters(1, 1), end=20 * MS),
        session(*alone, aggregates=counted, end=20 * MS),
    ]
    for run in runs:
        out = io.StringIO()
        print_summary(run, out)
        said = "\n".join([*text.summary(run), *text.full(run), repr(run), out.getvalue()])
        assert ONE_OF_MANY.findall(said) == []
        page = page_data(run).facts
        shown = [page["findings"], page["phases"], page["timeline"]["note"], page["tables"]]
        assert ONE_OF_MANY.findall(json.dumps(shown)) == []
    assert ONE_OF_MANY.findall("1 calls, 1 more calls, 2 calls") == ["1 calls", "1 more calls"]


def test_a_device_that_was_only_sampled_is_named():
    """Samples of a GPU on which this process did nothing: the page said that there was no device."""
    watched = Session(meta={"start_ns": T0, "end_ns": T0 + MS}, metrics=[sample(at * US) for at in range(3)])
    assert page_data(watched).facts["subtitle"].startswith(H100.name)
    assert text.summary(watched)[0].startswith(f"gpusense: {H100.name} · ")
    assert page_data(Session()).facts["subtitle"].startswith("no device · ")


def test_two_sampled_devices_of_one_index_are_kept_apart():
    """The power of one and of the other made one curve, which jumped with each sample."""
    hosts = [H100._replace(uuid=f"GPU-host-{number}", cuda_index=None) for number in range(2)]
    watched = [
        sample(at * MS, device=host, watts=watts, used=int(watts), why=("thermal",) if watts == 700 else ())
        for at in range(0, 2001, 100)
        for host, watts in zip(hosts, (100.0, 700.0), strict=True)
    ]
    run = Session(meta={"start_ns": T0, "end_ns": T0 + 2000 * MS}, metrics=watched)
    power = {one.device: {watt for _, watt in one.points} for one in device_series(run) if one.name == "Power"}
    assert power == {f"{H100.name} (GPU-host-0)": {100.0}, f"{H100.name} (GPU-host-1)": {700.0}}
    assert [round(row.joules) for row in energy(run)] == [200, 1400]
    assert [finding.title for finding in ranked(Facts(run)) if finding.kind == "throttled"] == [
        f"{H100.name} (GPU-host-1) ran at reduced clocks in 100 % of the samples."
    ]
    assert {chart["device"] for chart in page_data(run).facts["series"]} == set(power)
    alone = Session(meta=run.meta, metrics=watched[::2])
    assert "Power" in {one.name for one in device_series(alone)}


def test_nothing_was_seen():
    empty = Session(meta={"start_ns": T0, "end_ns": T0 + 41 * 10**9, "capture": {"cuda_live_ns": 41 * 10**9}})
    empty.unseen.append(UnseenInterval(T0, None, "CUPTI is held by another profiler"))
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
    for title in (
        "Phases",
        "Devices",
        "Operations on the device, steps",
        "Operations on the device, whole run",
        "Copies",
        "Blocks",
    ):
        assert title in lines
    head = next(line for line in lines if "stddev" in line)
    assert head.split() == ["%", "of", "steps", "total", "calls", "avg", "med", "min", "max", "stddev", "bytes", "name"]
    assert "\x1b" not in "\n".join(lines)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_narrow_screen_shows_names_before_figures(trained, width):
    lines = list(text.full(trained, Style(width)))
    assert max(map(len, lines)) <= width
    at = lines.index("Operations on the device, steps")
    table = lines[at + 1 : lines.index("", at)]
    names = [row[table[0].index("name") :].rstrip("…") for row in table[1:]]
    full = list(text.full(trained, Style(300)))
    whole = full[full.index("Operations on the device, steps") + 1 :]
    wanted = [row[whole[0].index("name") :] for row in whole[1 : len(table)]]
    assert all(
        len(name) >= min(20, len(want)) and want.startswith(name) for name, want in zip(names, wanted, strict=True)
    )
    assert table[0].split()[:5] == ["%", "of", "steps", "total", "calls"]
    parts = " ".join(" ".join(lines[lines.index("Devices") :]).split())
    assert all(words in parts for words in ("computing", "idle: waiting for the host", "idle: no work"))


def test_a_median_only_where_it_is_known():
    known = session(kernel("k", 0, 10), kernel("k", 20, 50), kernel("k", 60, 160))
    row = next(line for line in text.full(known) if line.endswith("[0] k"))
    assert row.split()[7:9] == ["30", "ns"]
    assert row.split()[:2] == ["88", "%"]  # 140 of the 160 ns from the first work to the last
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


def test_operations_of_the_host_are_found_without_comparing_each_with_each(monkeypatch):
    compared = []
    monkeypatch.setattr(Operation, "__eq__", lambda one, other: compared.append(1) or one is other, raising=False)
    records = [kernel(f"kernel_{place}", place * 100, place * 100 + 10) for place in range(200)]
    lines = list(text.full(session(*records, compute("tokenize", 0, 50), sync(10, 90, name="wait"))))
    at = lines.index("Waits and other work of the host")
    assert {"[0] wait: wait", "compute: tokenize"} == {line.split("  ")[-1].strip() for line in lines[at + 2 : at + 4]}
    assert len(compared) < 200


def test_findings_that_many_devices_have_alike_are_told_once_or_a_few_times_and_counted():
    ranks = []
    for number in range(12):
        card = H100._replace(uuid=f"GPU-{number}", pci_bus_id=None)
        hot = [sample(at * MS, device=card, why=("sw_thermal_slowdown",)) for at in range(20)]
        run = session(
            *(kernel("k", at * MS, at * MS + 200 * US, path=("step",), block_id=1) for at in range(20)),
            block(("step",), 0, 20 * MS),
            end=20 * MS, devices=(card,), metrics=hot, rank=number, world_size=12,
        )  # fmt: skip
        ranks.append(run)
    run = merge(ranks)
    kinds = [finding.kind for finding in ranked(Facts(run))]
    assert (kinds.count("starved"), kinds.count("throttled")) == (1, 12)
    lines = list(text.full(run))
    assert sum("is idle" in line and line.startswith(("verdict", "also: GPU")) for line in lines) == 1
    assert any("The same on 11 other devices or ranks: 79 %, 79 %" in line for line in lines)
    assert sum("at reduced clocks" in line and line.startswith("also: GPU") for line in lines) == 5
    assert any(line.startswith("also: 7 more findings like “GPU ") for line in lines)


def test_what_blocks_did_on_the_gpu_is_unknown_where_nothing_could_tell():
    def row(**meta):
        lines = list(text.full(session(block(("step",), 0, MS), end=MS, **meta)))
        place = lines.index("Blocks")
        return lines[place + 1].split(), lines[place + 2].split(), lines[place + 3].strip()

    heads, _, why = row(capture={"state": "unavailable", "reason": "no driver"})
    assert heads == ["total", "own", "calls", "avg", "p50", "p95", "max", "stddev", "block"]
    assert why == "GPU, kernels, copies, bytes: not known, because no driver"
    heads, cells, why = row(capture={"state": "stopped"})
    assert heads[-4:] == ["kernels", "copies", "bytes", "block"]
    assert cells[-8:] == ["0", "ns", "0", "0", "ns", "0", "B", "step"]
    assert why.startswith("waits, host: not known, because waits were not recorded")


def test_many_intervals_without_capture_are_cut_and_counted():
    off = [UnseenInterval(T0 + i * US, T0 + i * US + 500, "overhead budget") for i in range(180)]
    made = session(kernel("k", 0, 10), end=MS, unseen=off)
    assert any("and 130 more intervals" in line for line in text.full(made))
    assert page_data(made).facts["seen"]["more_unseen"] == 80
    assert page_data(made).facts["seen"]["unseen"][1] == [US, "500 ns", "overhead budget"]
    made = session(kernel("k", 0, 10), end=MS, unseen=[UnseenInterval(T0 + 400 * US, None, "paused")])
    assert "  600 µs, to the end: paused" in text.full(made)
    assert page_data(made).facts["seen"]["unseen"] == [[400 * US, "600 µs, to the end", "paused"]]


def test_writing_to_a_file(trained, tmp_path):
    text.write(trained, tmp_path / "report.txt")
    assert "Operations on the device, steps" in (tmp_path / "report.txt").read_text(encoding="utf-8")


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
    assert report["window_ns"] is None
    assert set(map(len, report["analysis"].values())) == {0}


def test_the_analyses_are_plain_rows_with_the_figures_checked_by_hand():
    analysis = json.loads(json.dumps(to_dict(eventful()), allow_nan=False))["analysis"]
    empty = [topic for topic, rows in analysis.items() if not rows]
    assert not empty
    first, second = analysis["overlap"]
    assert (first["copy_ns"], first["copy_hidden_ns"], first["copy_exposed_ns"]) == (10 * MS, 0, 10 * MS)
    assert second["collective_exposed_ns"] == 10 * (MS - US)
    assert [row["kernels"] for row in analysis["launches"]] == [30, 30]
    assert analysis["launches"][0]["short_share"] == 0
    (memory,) = analysis["memory"]
    assert (memory["peak_bytes"], memory["held_bytes"], memory["releases"]) == (20_000, 20_000, 0)
    assert memory["blocks"][0] == {
        "path": ["rank 0", "step"], "peak_bytes": 10_000, "at_peak_bytes": 10_000, "held_bytes": 10_000
    }  # fmt: skip
    (energy,) = analysis["energy"]
    assert energy["joules"] == pytest.approx(300 * 0.1)
    step = next(row for row in energy["blocks"] if row["path"] == ["rank 0", "step"])
    assert step["joules"] == pytest.approx(300 * (10 * 5 + 3) / 1000)
    assert step["joules_per_pass"] == pytest.approx(step["joules"] / 10)
    point = analysis["roofline"][0]
    assert (point["name"], point["intensity"], point["bound"]) == ("gemm", 1000, "compute")
    assert point["share"] == pytest.approx(point["flops_per_s"] / point["attainable_flops_per_s"])
    assert {row["name"]: row["excess_ns"] for row in analysis["first_calls"]} == {"scan": 3 * MS}
    assert [(row["path"], row["passes"], row["excess_ns"]) for row in analysis["warm_ups"]] == [
        (["rank 0", "step"], 1, 3 * MS),
        (["rank 1", "step"], 1, 3 * MS),
    ]
    pair = next(row for row in analysis["backends"] if row["name"] == "gemm")
    assert [side["device"] for side in pair["sides"]] == [0, 1]
    assert pair["ratio"] == pytest.approx(1.2)
    (late,) = analysis["anomalies"]
    assert (late["name"], late["device"], late["excess_ns"], len(late["samples"])) == ("gemm", 1, 2 * MS, 10)
    (job,) = analysis["ranks"]
    assert (job["collectives"], job["clock_error_ns"]) == (10, 0)
    assert [row["last_arrivals"] for row in job["ranks"]] == [0, 10]
    assert [row["waited_ns"] for row in job["ranks"]] == [10 * US, 0]
    assert job["straggler"] == 1


def test_coverage_is_that_of_the_launch_sizes():
    run = session(
        kernel("k", 0, MS, grid=(132, 1, 1), block=(1024, 1, 1), registers_per_thread=32), kernel("?", MS, 2 * MS)
    )
    (row,) = to_dict(run)["analysis"]["coverage"]
    assert row["while_busy"] == pytest.approx(0.5)  # two blocks of 1024 threads fit a multiprocessor
    assert (row["considered_ns"], row["kernel_ns"], row["small_kernels"]) == (MS, 2 * MS, 1)


def test_the_block_tree_holds_what_each_block_launched():
    counted = Aggregate(("outer", "inner"), "kernel", "tiny", "cuda", 0, 7, 4, 400, 100, 100, 4 * 10**4)
    run = session(
        block(("outer",), 0, MS),
        kernel("k", 0, 1000, path=("outer",)),
        copy("cpu_to_gpu", 64, 2000, 2500),
        aggregates=[counted],
        end=MS,
    )
    root, outer, inner = to_dict(run)["analysis"]["block_tree"]
    assert (root["path"], root["gpu_ns"], root["own_transfer_ns"], root["own_bytes"]) == ([], 1900, 500, 64)
    assert (outer["path"], outer["passes"], outer["wall_ns"], outer["kernels"]) == (["outer"], 1, MS, 5)
    assert (outer["gpu_ns"], outer["own_gpu_ns"], outer["own_kernels"]) == (1400, 1000, 1)
    assert (inner["path"], inner["passes"], inner["wall_ns"]) == (["outer", "inner"], 0, None)
    assert inner["operations"] == [{"kind": "kernel", "name": "tiny", "count": 4, "total_ns": 400}]


def test_replayed_time_is_shown_by_the_block_that_captured_it():
    rows = [
        Aggregate(("step", "replay"), "kernel", "k", "cuda", 0, 7, 4, total, 100, 100, 4 * 10**4, owner=owner)
        for owner, total in ((("build", "forward"), 4 * MS), (None, 2 * MS), *((("b", str(i)), MS) for i in range(6)))
    ]
    run = session(block(("step",), 0, MS), block(("step", "replay"), 0, MS, number=2), aggregates=rows, end=MS)
    report = to_dict(run)
    replay = report["analysis"]["block_tree"][2]
    assert replay["owners"][0] == {"path": ["build", "forward"], "kernels": 4, "gpu_ns": 4 * MS}
    assert len(replay["owners"]) == 7
    assert [row["owner"] for row in report["aggregates"]][:2] == [["build", "forward"], None]
    lines = list(text.full(run))
    at = next(i for i, line in enumerate(lines) if line.endswith("    replay"))
    assert lines[at + 1].split() == ["4.00", "ms", "4", "replayed,", "captured", "in", "build", "›", "forward"]
    assert lines[at + 6].split() == ["…", "and", "from", "2", "more", "blocks"]
    heads = next(line for line in lines if line.endswith("bytes  block"))
    assert lines[at + 1].index("ms") + 2 == heads.index("GPU") + 3  # in the column of GPU time


def test_what_is_unknown_is_null_with_its_reason():
    run = session(kernel("k", 0, MS), metrics=[sample(0, watts=300.0)])
    report = to_dict(run)
    (energy,) = report["analysis"]["energy"]
    assert (energy["joules"], energy["reason"]) == (None, "fewer than two samples")
    assert (report["duration_ns"], report["window_ns"]) == (None, MS)


def test_the_line_that_is_waited_at_stands_in_every_text():
    syncs = [sync(i * MS, i * MS + 30 * MS // 40, source_line="train.py:31 step") for i in range(40)]
    run = session(*syncs, kernel("k", 0, MS), end=50 * MS)
    assert "waited 30.0 ms in 40 calls at train.py:31 step" in text.summary(run)
    whole = list(text.full(run))
    place = whole.index("Waits by line")
    assert re.search(r"train\.py:31 step\s+40\s+30\.0 ms\s+750 µs\s+750 µs", whole[place + 2])
    run.meta["kinds"] = ["sync_lines", "sync"]
    printed = io.StringIO()
    print_summary(run, printed)
    assert "waited 30.0 ms in 40 calls at train.py:31 step" in printed.getvalue()


def test_why_lines_are_not_known_is_said_where_they_were_asked_for():
    run = session(kernel("k", 0, MS), sync(0, MS))
    run.meta["kinds"] = ["sync_lines", "sync"]
    run.meta["capture"] = {"sync_lines": {"running": False, "reason": "another profiler holds CUPTI", "noted": 0}}
    sentence = "The lines that wait are not known: another profiler holds CUPTI."
    assert sentence in text.summary(run)
    assert f"  {sentence}" in list(text.full(run))
    printed = io.StringIO()
    print_summary(run, printed)
    assert sentence in printed.getvalue()


def test_the_answer_tells_what_the_host_did_where_that_was_recorded():
    calls = [
        Syscall(name, T0 + at, T0 + at + US) for at, name in enumerate(["read"] * 3 + [f"call{i}" for i in range(5)])
    ]
    host = [compute("tokenize", 0, MS), *calls, block(("step",), 0, MS)]
    for run in (session(*host, end=MS), session(*host, kernel("k", 0, MS), end=MS)):
        said = " ".join(" ".join(text.summary(run, Style(300))).split())
        assert "CPU work: tokenize 1.00 ms in 1 call " in said
        assert "system calls: read 3.00 µs in 3 calls · call0 1.00 µs in 1 call · " in said
        assert " · 2 more " in said
    killed = session(block(("step",), 0, MS), end=MS)
    killed.meta["complete"] = False
    assert "  step" in "\n".join(text.summary(killed, Style(300)))


def test_counters_by_block_say_how_they_were_sampled_and_what_is_not_shown():
    from gpusense.cli import demo

    found = load(demo.RECORDED)
    shown = "\n".join(text.full(found))
    section = shown[shown.index("Counters by block") :].partition("\n\n")[0]
    rows = [line.strip() for line in section.splitlines()]
    assert rows[1].split()[:3] == ["Block", "Device", "Sampled"]
    active = re.search(r"multiprocessors active ([0-9.]+ %)", " ".join(shown.split()))
    assert rows[2].startswith("(all steps)")
    assert active[1] in rows[2]
    assert rows[3].startswith("(all work)")
    assert "(all steps): the time of the steps, as in the headline" in " ".join(rows)
    assert "Shared with" not in rows[1], "nobody shared the device"
    assert any(row.startswith("step › forward") and "82.0 ms of 105 ms" in row for row in rows)
    assert not any(row.startswith(("step › load", "step › optimizer")) for row in rows)
    said = " ".join(rows)
    assert "GPU 0: 727 samples of 1.00 ms, from 432 ms to 1.17 s after the start; their times may be off by" in said
    assert "12 of 739 samples are missing, 12.0 ms, all of it 943 ms after the start" in said
    assert "not shown: step › optimizer. Passes hold too few samples of 1.00 ms" in said
    (table,) = [one for one in page_data(found).facts["tables"] if one["title"] == "Counters by block"]
    assert " ".join(table["remarks"]) in said
    report = to_dict(found)["analysis"]
    assert [row["gaps"] for row in report["counter_sampling"]] == [1]
    assert {"/".join(row["path"]) for row in report["counters"] if row["reason"]} == {"step/load", "step/optimizer"}
