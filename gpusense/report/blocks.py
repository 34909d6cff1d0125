"""The table of blocks, for a screen and for the page: one row a path, indented below the block it ran in."""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from .._records.records import Path
from .._runtime.text import UNKNOWN, count_text, one_line, percent_text, rate_text, size_text, time_text
from ..analysis.blocks import BlockNode, BlockTimes, times_blocks, why_unknown
from ..analysis.counters import BlockShares, block_shares
from ..analysis.operation import called, kernel_backends
from ..session import Session

_MOST_OWNERS = 5
_DEEPEST = 20  # beyond it nothing is indented further
_PAGE_ROWS = 500
_PATH = 1_000  # longest on the page


class _Column(NamedTuple):
    head: str
    field: str  # of :class:`~gpusense.analysis.blocks.BlockTimes`
    wide: int


_COLUMNS = (
    _Column("total", "total_ns", 9),
    _Column("own", "own_ns", 9),
    _Column("calls", "passes", 9),
    _Column("avg", "avg_ns", 9),
    _Column("p50", "median_ns", 9),
    _Column("p95", "p95_ns", 9),
    _Column("max", "max_ns", 9),
    _Column("stddev", "std_ns", 9),
    _Column("device", "device_ns", 10),
    _Column("GPU", "kernel_ns", 9),
    _Column("kernels", "kernels", 9),
    _Column("copies", "transfer_ns", 9),
    _Column("bytes", "transfer_bytes", 9),
    _Column("waits", "wait_ns", 9),
    _Column("host", "host_ns", 9),
)
#: What would be more, had all passes been recorded; and if a pass had gone on that did not end.
_SUMS = frozenset({"total_ns", "own_ns", "passes"})
_GROWS = frozenset({"total_ns", "own_ns", "avg_ns", "median_ns", "p95_ns", "max_ns", "host_ns"})
#: On the page alone: what the hardware counted, as :class:`~gpusense.analysis.counters.BlockShares` has it.
_COUNTED = (
    _Column("SM", "sm_active_percent", 7),
    _Column("tensor", "tensor_percent", 7),
    _Column("DRAM", "dram_bytes_per_s", 9),
    _Column("of peak", "dram_percent", 8),
)
#: What each column of the page is of, and what it says where its head does not.
_OF = {
    **dict.fromkeys(
        ("total_ns", "own_ns", "passes", "avg_ns", "median_ns", "p95_ns", "max_ns", "std_ns"), "time it was open"
    ),
    "device_ns": "between its ends",
    **dict.fromkeys(("kernel_ns", "kernels", "transfer_ns", "transfer_bytes"), "work of the device it launched"),
    **dict.fromkeys(("wait_ns", "host_ns"), "of that time, the host"),
    **dict.fromkeys((column.field for column in _COUNTED), "counted meanwhile"),
}
_HINTS = {
    "total_ns": "from opening to closing, all calls together, with the blocks inside",
    "own_ns": "without the blocks inside",
    "passes": "how many times it was opened and closed",
    "avg_ns": "of one call",
    "median_ns": "half of the calls took no longer",
    "p95_ns": "95 % of the calls took no longer",
    "max_ns": "the longest call",
    "std_ns": "standard deviation of one call",
    "device_ns": "the device's streams were in it, whoever's work they did; ≤: a stream was idle at one of its ends",
    "kernel_ns": "each piece of it for itself; it may run later, and beside other work",
    "kernels": "how many were launched in it",
    "transfer_ns": "each copy for itself",
    "transfer_bytes": "moved by these copies",
    "wait_ns": "the host waited for the device",
    "host_ns": "the rest: the host worked, or waited for something else",
    "sm_active_percent": "multiprocessors with work, while the device did this block's",
    "tensor_percent": "cycles in which the tensor cores worked",
    "dram_bytes_per_s": "read and written in the device's memory",
    "dram_percent": "of what the memory can move at most",
}
#: What a narrow screen goes without, first to last, so that so much of a name is shown; or of who captured a graph.
_LEFT_OUT, _NAME = (
    ("stddev", "bytes", "host", "p50", "copies", "waits", "max", "p95", "kernels", "own", "GPU", "avg", "device"),
    24,
)
_CAPTURED = 42


def lines(session: Session, root: BlockNode, width: int, most: int, why: bool = True) -> Iterator[str]:
    """At most ``most`` blocks; then ``why`` some columns are missing. Nothing where there are no blocks."""
    nodes = list(root.walk())
    if not nodes:
        return
    times = [(depth, node, node.times) for depth, node in nodes[:most]]
    known, unknown = _known(session, [row for _, _, row in times])
    shown = _fitting(known, width - (_CAPTURED if any(node.owners for _, node, _ in times) else _NAME))
    yield "".join(column.head.rjust(column.wide) for column in shown) + "  block"
    for depth, node, row in times:
        indent = "  " * min(depth, _DEEPEST)
        cells = (_cell(column, row, session).rjust(column.wide) for column in shown)
        yield f"{''.join(cells)}  {indent}{one_line(node.name)}"
        yield from _owners(node, shown, indent)
    if len(nodes) > most:
        yield f"… and {count_text(len(nodes) - most, 'more block')}"
    yield from _left_out(session, root)
    yield from _reasons(session, unknown) if why else ()


def tables(session: Session, root: BlockNode, place: "Callable[[Path], int | None]") -> list[dict[str, Any]]:
    """The same for the page, with numbers to sort by: one, or none where there are no blocks.

    ``place``: where on the timeline the passes of a path are.
    """
    nodes = list(root.walk())
    times = [(depth, node.times) for depth, node in nodes[:_PAGE_ROWS]]
    known, unknown = _known(session, [row for _, row in times])
    counted = _counted(session)
    rows = [(row, counted.get(row.path)) for _, row in times]
    heads = [
        column for column in _COUNTED if any(getattr(counts, column.field, None) is not None for _, counts in rows)
    ]
    groups = [(head, len(list(same))) for head, same in groupby(_OF[column.field] for column in (*known, *heads))]
    table = {
        "title": "Blocks",
        "note": "; ".join(("own: without blocks inside", *_left_out(session, root), *_reasons(session, unknown))),
        "heads": ("Block", *(column.head for column in (*known, *heads))),
        "hints": ("", *(_HINTS.get(column.field, "") for column in (*known, *heads))),
        "groups": (("", 1), *groups),
        "depths": [min(depth, _DEEPEST) for depth, _ in times],
        "paths": [one_line(" › ".join(row.path), _PATH) for _, row in times],
        "rows": [
            (
                one_line(row.path[-1]),
                *(_cell(column, row, session) for column in known),
                *(_counted_cell(column, counts) for column in heads),
            )
            for row, counts in rows
        ],
        "values": [
            [
                *(getattr(row, column.field) for column in known),
                *(getattr(counts, column.field, None) for column in heads),
            ]
            for row, counts in rows
        ],
        "places": [place(row.path) for _, row in times],
        "more": max(0, len(nodes) - _PAGE_ROWS),
    }
    return [table] if nodes else []


def _counted(session: Session) -> dict[Path, BlockShares]:
    """By path: of the device on which the block took longest."""
    found: dict[Path, BlockShares] = {}
    for row in session.once(block_shares):
        if row.path not in found or row.device_ns > found[row.path].device_ns:
            found[row.path] = row
    return found


def _counted_cell(column: _Column, row: BlockShares | None) -> str:
    value = getattr(row, column.field, None)
    if value is None or row is None:
        return UNKNOWN
    text = rate_text(value) if column.field == "dram_bytes_per_s" else percent_text(value / 100)
    return f"{text} shared" if row.shared else text


def _known(session: Session, rows: list[BlockTimes]) -> tuple[list[_Column], list[_Column]]:
    """The columns that have a figure, and those that have none in any row."""
    backends = kernel_backends(session)
    ran = {"kernel": "kernels", "pass": "passes"}.get(called(backends), "work")
    columns = [column._replace(head=ran) if column.field == "kernels" else column for column in _COLUMNS]
    known = [column for column in columns if any(getattr(row, column.field) is not None for row in rows)]
    asked = times_blocks(session)
    return known, [column for column in columns if column not in known and (asked or column.field != "device_ns")]


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    """What there is room for."""
    shown = list(columns)
    for head in _LEFT_OUT:
        if sum(column.wide for column in shown) + 4 <= width:  # with the indents of section and name
            break
        shown = [column for column in shown if head not in (column.head, column.field)]
    return shown


def _left_out(session: Session, root: BlockNode) -> Iterator[str]:
    """Why figures are bounds: passes that are not recorded, or did not end."""
    if count := _unrecorded(session):
        yield f"≥: {count_text(count, 'block')} or more could not be recorded"
    if count := sum(node.open_passes for _, node in root.walk()):
        has, counts = ("has", "counts") if count == 1 else ("have", "count")
        yield f"≥: {count_text(count, 'block')} {has} no end, and {counts} as far as is known"


def _unrecorded(session: Session) -> int:
    return session.counters.failed_blocks + session.counters.shed_blocks


def _cell(column: _Column, row: BlockTimes, session: Session) -> str:
    value = getattr(row, column.field)
    if value is None or (column.field == "passes" and not value) or (column.field == "std_ns" and row.open_passes):
        return UNKNOWN
    at_least = (row.open_passes and column.field in _GROWS) or (column.field in _SUMS and _unrecorded(session))
    sign = "≥" if at_least else "≤" if column.field == "device_ns" and row.device_at_most else ""
    if column.field in ("passes", "kernels"):
        return f"{sign}{value:,}"
    return sign + (size_text(value) if column.field == "transfer_bytes" else time_text(value))


def _owners(node: BlockNode, shown: list[_Column], indent: str) -> Iterator[str]:
    """Of the GPU time of a block what it replayed from CUDA graphs, by the block that captured it."""
    rows = sorted(node.owners.items(), key=lambda row: -row[1][1])
    empty = "".join(" " * column.wide for column in shown)
    for path, (kernels, spent) in rows[:_MOST_OWNERS]:
        cells = {"kernel_ns": time_text(spent), "kernels": f"{kernels:,}"}
        told = "".join(cells.get(column.field, "").rjust(column.wide) for column in shown)
        yield f"{told}  {indent}  replayed, captured in {one_line(' › '.join(path), 80)}"
    if len(rows) > _MOST_OWNERS:
        yield f"{empty}  {indent}  … and from {count_text(len(rows) - _MOST_OWNERS, 'more block')}"


def _reasons(session: Session, columns: list[_Column]) -> Iterator[str]:
    """ "GPU, kernels: not known, because no CUDA device or driver is there"."""
    by_reason: dict[str, list[str]] = {}
    for column in columns:
        if reason := why_unknown(session, column.field):
            by_reason.setdefault(reason, []).append(column.head)
    for reason, heads in by_reason.items():
        yield f"{', '.join(heads)}: not known, because {one_line(reason, 200)}"
