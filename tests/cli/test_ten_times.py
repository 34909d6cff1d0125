"""Every command on sessions with ten times as much as any table inside holds: it ends, with about ten times the work.

The tables are made small, so that ten times as much is soon written; their real sizes do not matter to how the work
grows. What is measured is the processor time of this process, which other programs do not lengthen.
"""

import gc
import time

import pytest
from support.cupti import STRIDES, T0, kernel

from gpusense._aggregation import groups, placement, sums
from gpusense._attribution import attributor
from gpusense._attribution.boundaries import CLOSE, OPEN
from gpusense._decode import names, record
from gpusense._records.records import UnseenInterval
from gpusense.cli import main
from gpusense.report import chrome, json_stream, perfetto
from gpusense.report.html import data, events, page
from gpusense.session import _format as file
from gpusense.session import _replay
from gpusense.session._writer import Writer

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
)


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


def cost(command, path):
    words = [word.format(path=path, out=path.with_suffix(".out")) for word in COMMANDS[command]]
    gc.collect()
    began = time.process_time()
    main(words)
    return time.process_time() - began


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("command", COMMANDS)
def test_ten_times_as_much_takes_about_ten_times_as_long(small, tmp_path, capsys, command, shape):
    costs = []
    for times in (1, 10):
        path = tmp_path / f"{times}.gpusense"
        write(path, times * SIZE, shape)
        costs.append(min(cost(command, path) for _ in range(2)))
    once, ten = costs
    # Where blocks lie inside each other each path is as long as they are deep.
    most = 40 if "inside" not in shape else 150
    assert ten < most * max(once, 0.01), (once, ten)
