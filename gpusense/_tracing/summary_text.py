"""The printed forms of what blocks and tracers answer: lines for people."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._records.records import Path
from .._runtime.text import UNKNOWN, count_text, encodable, printable, size_text, time_text

if TYPE_CHECKING:
    from .summary import BlockOperation, BlockSummary, Bottleneck, TraceSummary

_MOST_BLOCKS, _MOST_FAILURES = 200, 5


def block_text(summary: "BlockSummary") -> str:
    """A few lines for people."""
    if summary.kernel_count is None and not summary.operations:
        return printable(f"{summary.name}: {summary.reason}")
    parts = [f"{time_text(summary.wall_ns)} wall"]
    if summary.kernel_count is not None:
        parts.append(f"{time_text(summary.gpu_ns)} in {count_text(summary.kernel_count, 'kernel')}")
    if summary.transfer_count is not None:
        copies, size = count_text(summary.transfer_count, "transfer"), size_text(summary.transfer_bytes or 0)
        parts.append(f"{copies} ({size} in {time_text(summary.transfer_ns)})")
    if summary.wait_ns:
        parts.append(f"{time_text(summary.wait_ns)} waiting")
    lines = [f"{summary.name}: {', '.join(parts)}"]
    lines += [
        f"  {time_text(row.total_ns):>10}  {row.count:>7} x  {row.kind:<8}  {row.name}"
        for row in summary.operations[:10]
    ]
    if summary.ambiguous:
        lines.append(f"  {summary.ambiguous} more may belong here or to a block of another thread or task")
    if summary.reason:
        lines.append(f"  {summary.reason}")
    return "\n".join(map(printable, lines))


def table_lines(session: Any, summary: "TraceSummary") -> list[str]:
    """A table of the blocks, totals, and what is not in them."""
    from ..analysis.memory import alive, out_of_memory
    from ..analysis.unwritten import absent_text, listed_text, untimed, untimed_text

    seen = _gpu_work_was_seen(session, summary)
    lines = [f"{'block':<32}{'calls':>8}{'total':>11}{'avg':>11}{'min':>11}{'max':>11}{'GPU':>11}{'kernels':>9}"]
    for depth, row in as_tree(summary.operations)[:_MOST_BLOCKS]:
        label = "  " * depth + row.name
        gpu_ns = row.gpu_ns if seen else None
        times = "".join(f"{time_text(t):>11}" for t in (row.total_ns, row.avg_ns, row.min_ns, row.max_ns, gpu_ns))
        lines.append(f"{label[:31]:<32}{row.count:>8}{times}{row.kernel_count if seen else UNKNOWN:>9}")
    more = len(summary.operations) - _MOST_BLOCKS
    if more > 0:
        lines.append(f"… and {count_text(more, 'more block')}, which summary() has as well")
    if not summary.operations:
        lines.append("(no block was recorded)" + (f": {summary.reason}" if summary.reason else ""))
    counters = summary.counters
    busy = time_text(summary.gpu_busy_ns if seen else None)
    lines.append(f"GPU busy {busy}; records: {listed_text(counters)}, {counters.dropped + counters.missed:,} lost")
    absent = absent_text(counters)
    if absent:
        lines.append(f"not recorded: {absent}; the session's counters say why")
    if untimed(session):
        lines.append(f"{untimed_text(session)}: {next(iter(untimed(session)))}")
    lines += _waited(session)
    failed = out_of_memory(session) if session.allocations else []
    for block in failed[:_MOST_FAILURES]:
        lines.append(f"{_place(block.path)} ended for lack of memory, when these were alive:")
        left = alive(session, block.end_ns)
        lines += [f"  {size_text(row.bytes):>10} in {row.allocations} from {_place(row.path)}" for row in left[:5]]
    if len(failed) > _MOST_FAILURES:
        lines.append(f"and {count_text(len(failed) - _MOST_FAILURES, 'more block')} ended so")
    if summary.observed_share is not None and summary.observed_share < 1:
        lines.append(
            f"observed {summary.observed_share:.0%} of the time (overhead budget); the rest is not in the sums"
        )
    budget, cost, stays = (share_of_time(session, name) for name in ("budget", "share", "left"))
    if budget is not None and budget < min(cost or 0, stays or 0):
        lines.append(
            f"the overhead budget of {budget:.1%} is not kept: CUPTI makes launches longer by about "
            f"{stays:.1%} of the time even while capture is paused; detach() takes it out"
        )
    return lines


def share_of_time(session: Any, name: str) -> float | None:
    """A number from what the session says of the overhead; a file may hold anything there."""
    found = (session.meta.get("overhead") or {}).get(name)
    return found if isinstance(found, (int, float)) else None


def as_tree(rows: "Sequence[BlockOperation]") -> "list[tuple[int, BlockOperation]]":
    """Each row with its depth, below that of the block it ran in; beside each other they stay in order."""
    known = {row.path for row in rows}
    below: dict[tuple[str, ...], list[Any]] = {}
    for row in rows:
        parent = row.path[:-1]
        while parent and parent not in known:
            parent = parent[:-1]
        below.setdefault(parent, []).append(row)
    found = []
    left = [(0, row) for row in reversed(below.get((), ()))]
    while left:
        depth, row = left.pop()
        found.append((depth, row))
        left += [(depth + 1, child) for child in reversed(below.get(row.path, ()))]
    return found


def _waited(session: Any) -> list[str]:
    """Where lines of waits were asked for: the lines from which most was waited, or why they are not known."""
    from ..analysis.waits import lines_missing, waits

    if "sync_lines" not in (session.meta.get("kinds") or ()):
        return []
    reason = lines_missing(session)
    return [f"lines of waits are not known: {reason}"] * bool(reason) + [
        f"waited {time_text(row.total_ns)} in {count_text(row.count, 'call')} at {row.source_line}"
        for row in waits(session)[:5]
        if row.source_line
    ]


def _place(path: Path) -> str:
    return "/".join(path) or "outside every block"


def _gpu_work_was_seen(session: Any, summary: "TraceSummary") -> bool:
    """False where there was no source, so that no number of it is known."""
    state = (session.meta.get("capture") or {}).get("state", "unavailable")
    return bool(summary.gpu_ns or summary.gpu_busy_ns) or state not in ("unavailable", "armed")


def bottleneck_lines(rows: "Sequence[Bottleneck]") -> list[str]:
    """One a line, numbered."""
    lines = [
        f"{i}. {row.name} ({row.kind}): {time_text(row.total_ns)} in {count_text(row.count, 'call')}, {row.share:.0%}"
        for i, row in enumerate(rows, 1)
    ]
    return lines or ["nothing was recorded"]


def write(lines: list[str], file: Any) -> None:
    """The lines on ``file``, or on standard output."""
    stream = file if file is not None else sys.stdout
    text = "\n".join(map(printable, lines)) + "\n"
    stream.write(encodable(text, getattr(stream, "encoding", None) or "utf-8"))
