"""Every command on ten times as much as any table inside holds: it ends, with about ten times the work, in little
memory. (``export`` is tested with the other tests of the exporter, a reader of ``monitor`` who stands still with
those of ``monitor``.)

The tables are made small, so that ten times as much is soon written; their real sizes do not matter to how the work
grows. What is measured is the processor time of this process, which other programs do not lengthen. What the process
may take of the system's memory meanwhile is limited.
"""

import functools
import gc
import json
import sys
import time
from contextlib import contextmanager

import pytest
from support.cupti import STRIDES, T0, kernel
from support.devices import SECOND, sample

from gpusense import testing
from gpusense._aggregation import groups, placement, sums
from gpusense._attribution import attributor
from gpusense._attribution.boundaries import CLOSE, OPEN
from gpusense._decode import names, record
from gpusense._records.metrics import ProcessUsage
from gpusense._records.records import BlockRecord, UnseenInterval
from gpusense._runtime import package
from gpusense.analysis import significance
from gpusense.cli import _runs, import_, main, vendor
from gpusense.cli.importers import strace
from gpusense.report import chrome, compare, json_stream, perfetto
from gpusense.report.html import data, events, page
from gpusense.session import Session, _replay, save
from gpusense.session import _format as file
from gpusense.session._writer import Writer

pytestmark = pytest.mark.usefixtures("settled")

SIZE = 60
TABLES = (
    (attributor, "MAX_EVENTS", SIZE),
    (attributor, "MAX_BLOCKS", SIZE),
    (groups, "MAX_GROUPS", SIZE),
    (sums, "MAX_NAMES", SIZE),
    (sums, "MAX_LINES", SIZE),
    (placement, "MAX_CONTEXTS", SIZE),
    (names, "MAX_NAMES", SIZE),
    (names, "MAX_SETS", 4),
    (record, "MAX_LAUNCHES", SIZE),
    (_replay, "MAX_PATHS", SIZE),
    (chrome, "_MOST_KNOWN", SIZE),
    (perfetto, "_MOST_KNOWN", SIZE),
    (json_stream, "_MOST_KNOWN", SIZE),
    (page, "EVENT_LIMIT", SIZE),
    (data, "_TABLE_LIMIT", SIZE),
    (data, "_UNSEEN_LIMIT", SIZE),
    (data, "_FLAME_LIMIT", SIZE),
    (events, "_ROW_LIMIT", SIZE),
    (events, "_DEPTH_LIMIT", 8),
    (events, "_GAP_LIMIT", SIZE),
    (compare, "_PAGE_ROWS", SIZE),
    (compare, "_PAGE_NAMES", SIZE),
    (significance, "_EXACT", 6),
    (strace, "DETAIL_LIMIT", SIZE),
    (import_, "_AT_ONCE", SIZE),
    (import_, "_LONGEST_LINE", 100_000),
)
#: Of address space, beyond what the process has: a thread's stack is 8 MiB of it.
MOST_BYTES = 256 << 20


@pytest.fixture
def small(monkeypatch):
    for module, name, size in TABLES:
        assert getattr(module, name) >= size
        monkeypatch.setattr(module, name, size)


def boundary(op, block, parent, at, thread, placed):
    return [op, block, parent, thread, T0 + at, T0 + at, f"block {block}", 0, *placed]


def side_by_side(count, at):
    """Blocks one after the other, each on a thread of its own."""
    for block in range(1, count + 1):
        for op in (OPEN, CLOSE):
            yield boundary(op, block, None, 10 * block + 1 - op, 4096 * block, at(block))


def nested(count, at):
    """Blocks inside each other, on one thread."""
    for block in range(1, count + 1):
        yield boundary(OPEN, block, block - 1 or None, 10 * block, 4096, at(block))
    for block in range(count, 0, -1):
        yield boundary(CLOSE, block, None, 10 * (2 * count - block) + 5, 4096, at(count))


SHAPES = {
    "placed side by side": (side_by_side, lambda block: (None, block)),
    "side by side without a place": (side_by_side, lambda block: (0,)),
    "placed inside each other": (nested, lambda block: (None, block)),
    "inside each other without a place": (nested, lambda block: (0,)),
}


def write(path, count, shape):
    """Boundaries, and a kernel for each block, with a name, stream and context of its own."""
    make, places = SHAPES[shape]
    writer = Writer(str(path))
    writer.json(file.META, {"start_ns": T0, "threshold_ns": 0, "mode": "file", "trace_all": True})
    writer.layout(1, STRIDES, marker=[])
    writer.names({0x1000 * number: b"kernel %d" % number for number in range(1, count + 1)})
    writer.rows(file.BOUNDARY, list(make(count, places)))
    for first in range(1, count + 1, 20):
        records = [
            kernel(T0 + 10 * at + 2, T0 + 10 * at + 4, at + 1, name=0x1000 * at, stream=at, context=at)
            for at in range(first, min(first + 20, count + 1))
        ]
        writer.buffer(memoryview(b"".join(records)), thread=4096 * first, layout=1)
    writer.rows(file.UNSEEN, [UnseenInterval(T0 + at, T0 + at + 1, f"reason {at}") for at in range(count)])
    writer.close(end_ns=T0 + 30 * count)


COMMANDS = {
    "report": ("report", "{path}"),
    "json": ("report", "--json", "-o", "{out}", "{path}"),
    "html": ("report", "--html", "-o", "{out}", "{path}"),
    "perfetto": ("report", "--perfetto", "-o", "{out}", "{path}"),
    "chrome": ("report", "--chrome", "-o", "{out}", "{path}"),
    "flamegraph": ("report", "--flamegraph", "-o", "{out}", "{path}"),
    "speedscope": ("report", "--speedscope", "-o", "{out}", "{path}"),
    "several": ("report", "{path}", "{path}"),
    "diff": ("diff", "{path}", "{path}"),
}


@contextmanager
def limited():
    """Little memory; and the processor time is what is measured, in the list that this gives."""
    spent, began = [], time.process_time()
    if sys.platform.startswith("linux"):
        import resource

        with open("/proc/self/statm") as statm:
            has = int(statm.read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (has + MOST_BYTES, before[1]))
    try:
        yield spent
    finally:
        if sys.platform.startswith("linux"):
            resource.setrlimit(resource.RLIMIT_AS, before)
        spent.append(time.process_time() - began)


def grows_evenly(once, ten, most=40):
    """Whether ``ten()`` takes less than ``most`` times as long as ``once()``; a busy machine may be asked again."""
    best = [1e9, 1e9]
    for _ in range(3):
        for which, action in enumerate((once, ten)):
            gc.collect()
            with limited() as spent:
                action()
            best[which] = min(best[which], *spent)
        if best[1] < most * max(best[0], 0.01):
            return
    raise AssertionError(best)


def command(words, code=0):
    assert main(words) == code


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """``sessions(shape, times)``: the path of a file with so many times what tables hold."""

    @functools.cache
    def path(shape, times):
        made = tmp_path_factory.mktemp("session") / f"{times}.gpusense"
        write(made, times * SIZE, shape)
        return made

    return path


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COMMANDS)
def test_ten_times_as_much_takes_about_ten_times_as_long(small, sessions, capsys, name, shape):
    def run(times):
        path = sessions(shape, times)
        command([word.format(path=path, out=path.with_suffix(".out")) for word in COMMANDS[name]])

    # Where blocks lie inside each other each path is as long as they are deep.
    grows_evenly(lambda: run(1), lambda: run(10), 40 if "inside" not in shape else 150)


# --- commands that read something else --------------------------------------------------------------------------------

CALL = "{thread}  1700000000.{at:09d} ioctl({detail}) = 0 <0.000001>"


def strace_file(folder, count, *, threads=1, detail="4"):
    lines = [CALL.format(thread=7 + at % threads, at=1000 * at, detail=detail) for at in range(count)]
    path = folder / f"{count}.strace"
    path.write_text("\n".join(lines))
    return str(path)


def imports(folder, times):
    """Calls in parts (``_AT_ONCE``), of many threads, with long details (``DETAIL_LIMIT``)."""
    return strace_file(folder, times * SIZE, threads=times * SIZE, detail="x" * times * SIZE), ()


def imports_what_has_no_end(folder, times):
    """One line (``_LONGEST_LINE``) with texts that nobody closes, and what looks like an end again and again."""
    path = folder / f"{times}.strace"
    text = '"' + '\\"' * 2_000 * times + " = 0 <" * 2_000 * times
    path.write_text(f"{CALL.format(thread=7, at=0, detail=4)}\n7  1700000000.1 write({text}")
    return str(path), ()


def imports_into(blocks, folder, times):
    """Calls in very many blocks of one thread."""
    count, start = times * 5 * SIZE, 1_700_000_000 * SECOND
    records = [BlockRecord("b", at, None, ("b",), *blocks(at, start, count), 5) for at in range(1, count + 1)]
    meta = {"start_ns": start, "end_ns": start + SECOND, "threads": [{"thread": 5, "native_id": 7, "name": "main"}]}
    path = folder / f"{times}.gpusense"
    save(Session(records=records, meta=meta), path)
    return strace_file(folder, count), ("--into", str(path))


def inside(at, start, count):
    return start + at, start + 10**6 * count - at


def overlapping(at, start, count):
    return start + 100 * at, start + 100 * (at + count)


@pytest.mark.parametrize(
    "make",
    [
        imports,
        imports_what_has_no_end,
        functools.partial(imports_into, inside),
        functools.partial(imports_into, overlapping),
    ],
)
def test_import_of_ten_times_as_much(small, tmp_path, capsys, make):
    def words(times):
        path, more = make(tmp_path, times)
        return ["import", "strace", path, "-o", str(tmp_path / "out"), *more]

    once, ten = words(1), words(10)
    grows_evenly(lambda: command(once), lambda: command(ten))


def test_top_and_monitor_of_ten_times_as_many_devices_processes_and_moments(small, tmp_path, capsys):
    """Rows of a screen; ``HISTORY_S``: a session of ten minutes."""

    def run(verb, times):
        source = testing.ScriptedSource(times * SIZE)
        users = tuple(ProcessUsage(pid, name=f"process {pid}") for pid in range(times * SIZE))
        source.set(0, {"processes": users})
        with testing.fake_gpus(source):
            command([verb, "--once"])

    grows_evenly(lambda: run("top", 1), lambda: run("top", 10))
    grows_evenly(lambda: run("monitor", 1), lambda: run("monitor", 10))
    for times in (1, 10):
        writer = Writer(tmp_path / f"{times}.gpusense")
        writer.json(file.META, {"start_ns": 0, "end_ns": times * SIZE * SECOND})
        writer.rows(file.METRICS, [sample(one % times, one * SECOND) for one in range(times * SIZE)])
        writer.close()
    once, ten = (["top", "--replay", str(tmp_path / f"{times}.gpusense")] for times in (1, 10))
    grows_evenly(lambda: command(once), lambda: command(ten))


def test_vendor_of_ten_times_as_many_files(small, tmp_path, capsys, monkeypatch):
    """As many as the package has, and as many that were added to the copy."""
    monkeypatch.setattr(vendor, "_license", lambda: b"")

    def run(times):
        source, copy = tmp_path / f"source {times}", tmp_path / f"copy {times}"
        monkeypatch.setattr(package, "FOLDER", str(source))
        command(["vendor", str(copy)])
        for number in range(times * SIZE):
            (copy / f"added {number}").touch()
        command(["vendor", "--check", str(copy)], 1)
        for number in range(times * SIZE):
            (copy / f"added {number}").unlink()

    for times in (1, 10):
        (tmp_path / f"source {times}").mkdir()
        for number in range(times * SIZE):
            (tmp_path / f"source {times}" / f"module_{number}.py").write_text(f"{number}")
    grows_evenly(lambda: run(1), lambda: run(10))


@pytest.mark.parametrize("form", ["--json", "--html", "--markdown"])
def test_diff_of_ten_times_as_many_rows(small, sessions, tmp_path, capsys, form):
    def run(times):
        paths = [str(sessions("placed side by side", more)) for more in (1, times)]
        command(["diff", form, *paths, "-o", str(tmp_path / "out")])

    grows_evenly(lambda: run(1), lambda: run(10))


def test_diff_of_ten_times_as_many_runs(small, tmp_path, capsys):
    """More than are counted out (``_EXACT``)."""
    path = tmp_path / "a.gpusense"
    write(path, 5, "placed side by side")
    for number in range(60):
        (tmp_path / f"{number}.run").hardlink_to(path)

    def run(count):
        runs = [str(tmp_path / f"{number}.run") for number in range(count)]
        command(["diff", "--before", *runs[: count // 2], "--after", *runs[count // 2 :]])

    grows_evenly(lambda: run(6), lambda: run(60))


def test_list_of_ten_times_as_many_runs_as_are_kept(small, tmp_path, capsys, monkeypatch):
    """``MOST_RUNS``; with what others may have left there."""
    for times in (1, 10):
        for number in range(times * _runs.MOST_RUNS):
            folder = tmp_path / str(times) / "gpusense" / "runs" / f"20240101-0000{number:02d}-{number}"
            folder.mkdir(parents=True)
            (folder / "main.gpusense").touch()
            about = {
                "start_s": ["soon", 1e300, None, 5][number % 4],
                "command": [["a"], "b" * 10_000, None][number % 3],
            }
            (folder / _runs.run.FILE).write_text(json.dumps({"about": about}))

    def run(times):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(times)))
        command(["list"])
        assert capsys.readouterr().out.count("\n") == 2 * times * _runs.MOST_RUNS

    grows_evenly(lambda: run(1), lambda: run(10))
