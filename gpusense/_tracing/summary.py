"""What blocks and tracers answer when asked: summaries as NamedTuples, and as lines for people."""

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from .._records.records import KINDS, Aggregate, BlockRecord, Path, standard_deviation
from .._runtime.text import UNKNOWN, count_text, encodable, printable, size_text, time_text

_MOST_BLOCKS, _MOST_FAILURES = 200, 5


class Launched(NamedTuple):
    """One operation launched inside a block, its children included."""

    kind: str
    name: str
    count: int  # type: ignore[assignment]
    total_ns: int
    min_ns: int
    max_ns: int
    std_ns: float
    bytes: int = 0

    @property
    def avg_ns(self) -> float:
        return self.total_ns / self.count if self.count else 0.0


class BlockSummary(NamedTuple):
    """What one block launched. GPU times are sums over operations (concurrent ones count each)."""

    name: str
    path: Path = ()
    wall_ns: int | None = None
    gpu_ns: int | None = None  # kernels; None where no source reports kernels, and so for transfers and memsets
    kernel_count: int | None = None
    transfer_ns: int | None = None
    transfer_count: int | None = None
    transfer_bytes: int | None = None
    memset_count: int | None = None
    wait_ns: int | None = None  # the host waited for the device; None unless sync records are on
    compute_ns: int | None = None  # compute blocks inside
    operations: tuple[Launched, ...] = ()
    attributes: dict[str, Any] | None = None
    complete: bool = False
    reason: str = ""  # why something is unknown or incomplete
    ambiguous: int = 0  # operations that may belong here or to a block of another thread or task
    inherited: int = 0  # of threads without blocks of their own (autograd)

    def __str__(self) -> str:
        return _block_text(self)


class BlockOperation(NamedTuple):
    """Statistics of all blocks with one path; times in nanoseconds, None is unknown and ``reasons`` says why."""

    name: str
    path: Path
    count: int  # type: ignore[assignment]
    total_ns: int
    avg_ns: float
    min_ns: int
    max_ns: int
    std_ns: float
    gpu_ns: int  # kernels launched inside, children included
    kernel_count: int
    transfer_ns: int
    transfer_bytes: int
    bandwidth_mb_per_s: float | None
    wait_ns: int | None
    cpu_ns: int | None  # wall time without waits
    overhead_ns: int | None  # what gpusense's own calls cost at the ends of these blocks
    memory_allocated_bytes: int | None
    memory_peak_bytes: int | None
    memory_source: str | None
    utilization_percent: float | None  # kernel time over wall time, at most 100
    attributes: dict[str, Any] | None
    reasons: tuple[tuple[str, str], ...] = ()


class TraceSummary(NamedTuple):
    """What a tracer recorded: a row a block path, and totals."""

    operations: tuple[BlockOperation, ...]
    wall_ns: int | None
    gpu_busy_ns: int
    gpu_ns: int
    transfer_ns: int
    transfer_bytes: int
    counters: Any
    reason: str = ""
    observed_share: float | None = None  # of the time under an overhead budget; nothing is scaled up for the rest

    def operation(self, name: str) -> BlockOperation | None:
        """The row of the block named ``name``; None if there was none."""
        for row in self.operations:
            if row.name == name:
                return row
        return None


class Bottleneck(NamedTuple):
    """One operation by its share of the time of its side (device, or its own kind on the host)."""

    name: str
    kind: str
    total_ns: int
    count: int  # type: ignore[assignment]
    avg_ns: float
    share: float
    suggestion: str


OVERHEAD_PER_BLOCK_NS = 3_000  # two boundaries with their markers, measured in benchmarks/bench_block.py


def block_summary(block: Any, recorder: Any, complete: bool) -> BlockSummary:
    """Built from the running totals of the pipeline; in file mode from the file."""
    totals = recorder.block_totals(block)
    end = block.end_ns
    of = recorder.clock.of_wall  # which may have been set while the block was open
    wall = max(0, of(end) - of(block.start_ns)) if end is not None else None
    if not block.block_id or totals is None:
        return BlockSummary(str(block.name), reason="the block was never entered, or was not sampled")
    rows = [
        Launched(kind, name, row[0], row[1], row[2], row[3], standard_deviation(row[0], row[1], row[4]), row[5])
        for (kind, name), row in totals.rows.items()
    ]
    rows.sort(key=lambda row: -row.total_ns)
    status = recorder.status()
    running = status.get("state") == "running"
    captured = running or bool(totals.rows)
    reason = "" if captured else f"no GPU work is captured: {status.get('reason') or status.get('state')}"
    if captured and not complete:
        why = f": {recorder.unread}" if recorder.unread else ""
        reason = f"not everything launched inside had finished and been read in time{why}"
    lacking = recorder.lacking(block) if captured and complete else ""
    if lacking:
        complete, reason = False, lacking
    if totals.late and captured:
        complete = False
        reason = "the block was asked for when it was open already: what it launched first may be missing"

    def add(kind: str, field: str) -> int | None:
        found = [getattr(row, field) for row in rows if row.kind == kind]
        return sum(found) if found or running else None

    return BlockSummary(
        name=block.name,
        path=block.path,
        wall_ns=wall,
        gpu_ns=add("kernel", "total_ns"),
        kernel_count=add("kernel", "count"),
        transfer_ns=add("transfer", "total_ns"),
        transfer_count=add("transfer", "count"),
        transfer_bytes=add("transfer", "bytes"),
        memset_count=add("memset", "count"),
        wait_ns=add("sync", "total_ns") if "sync" in recorder.settings.kinds else None,
        compute_ns=sum(row.total_ns for row in rows if row.kind == "compute"),
        operations=tuple(rows),
        attributes=block.attributes,
        complete=complete and captured,
        reason=reason,
        ambiguous=totals.ambiguous,
        inherited=totals.inherited,
    )


def summarise(session: Any) -> TraceSummary:
    """Block statistics and totals of a session."""
    from ..analysis.memory import by_block

    walls = _walls(session)
    launched = _launched(session)
    sync = "sync" in (session.meta.get("kinds") or ())
    memory = by_block(session, set(walls))
    no_memory = "allocation records are off: configure(kinds=('allocation',))"
    if "allocation" in (session.meta.get("kinds") or ()):
        no_memory = "no allocation was seen, or so many that some were only summed"
    rows = []
    for path, (count, total, low, high, squares, attributes) in walls.items():
        gpu, kernels, transfer, size, wait = launched.get(path, _Launched())
        allocated, peak = memory.get(path, (None, None)) if memory is not None else (None, None)
        reasons = [] if sync else [("wait_ns", "sync records are off: configure(kinds=('sync',))")]
        if memory is None:
            reasons.append(("memory_peak_bytes", no_memory))
        rows.append(
            BlockOperation(
                name=path[-1],
                path=path,
                count=count,
                total_ns=total,
                avg_ns=total / count,
                min_ns=low,
                max_ns=high,
                std_ns=standard_deviation(count, total, squares),
                gpu_ns=gpu,
                kernel_count=kernels,
                transfer_ns=transfer,
                transfer_bytes=size,
                bandwidth_mb_per_s=size * 1e3 / transfer if transfer else None,
                wait_ns=wait if sync else None,
                cpu_ns=max(0, total - wait) if sync else None,
                overhead_ns=count * OVERHEAD_PER_BLOCK_NS,
                memory_allocated_bytes=allocated,
                memory_peak_bytes=peak,
                memory_source="CUPTI allocation records" if memory is not None else None,
                utilization_percent=min(100.0, 100.0 * gpu / total) if total else None,
                attributes=attributes,
                reasons=tuple(reasons),
            )
        )
    rows.sort(key=lambda row: -row.total_ns)
    work: dict[str, list[int]] = {kind: [0, 0] for kind in ("kernel", "transfer")}
    for item in chain(session.records, session.aggregates):
        sums = work.get(_kind(item))
        if sums is not None:
            sums[0] += _total(item)
            sums[1] += getattr(item, "bytes", 0)
    return TraceSummary(
        operations=tuple(rows),
        wall_ns=session.duration_ns,
        gpu_busy_ns=sum(row.busy_ns for row in session.busy),
        gpu_ns=work["kernel"][0],
        transfer_ns=work["transfer"][0],
        transfer_bytes=work["transfer"][1],
        counters=session.counters,
        reason=session.meta.get("reason", ""),
        observed_share=_share_of_time(session, "observed"),
    )


def _kind(item: Any) -> str:
    return item.kind if type(item) is Aggregate else KINDS[type(item)]


def _total(item: Any) -> int:
    return int(item.total_ns if type(item) is Aggregate else item.end_ns - item.start_ns)


def _walls(session: Any) -> dict[Path, list[Any]]:
    """Path → [count, total, min, max, sum of squares, attributes] of finished blocks."""
    walls: dict[Path, list[Any]] = {}
    for item in chain(session.records, session.aggregates):
        if type(item) is BlockRecord:
            duration = item.end_ns - item.start_ns
            row, path = [1, duration, duration, duration, duration * duration, item.attributes], item.path
        elif type(item) is Aggregate and item.kind == "block":
            row = [item.count, item.total_ns, item.min_ns, item.max_ns, item.sum_squares_ns2, None]
            path = (*item.path, item.name)
        else:
            continue
        mine = walls.get(path)
        if mine is None:
            walls[path] = row
            continue
        mine[0] += row[0]
        mine[1] += row[1]
        mine[2] = min(mine[2], row[2])
        mine[3] = max(mine[3], row[3])
        mine[4] += row[4]
        mine[5] = row[5] if row[5] is not None else mine[5]
    return walls


class _Launched(NamedTuple):
    """Of one path, with all below it."""

    kernel_ns: int = 0
    kernels: int = 0
    transfer_ns: int = 0
    transfer_bytes: int = 0
    wait_ns: int = 0


def _launched(session: Any) -> dict[Path, _Launched]:
    from ..analysis.blocks import HOST_TRANSFER, block_tree

    nodes = [block_tree(session)]
    for node in nodes:
        nodes += node.children.values()
    found: dict[Path, _Launched] = {}
    for node in reversed(nodes):  # children before parents
        copies = [row for (kind, _), row in node.operations.items() if kind in ("transfer", HOST_TRANSFER)]
        _, streams_ns, _ = node.operations.get(("sync", "stream_wait_event"), (0, 0, 0))  # the host did not wait
        own = (
            node.own_kernel_ns,
            node.own_kernels,
            sum(spent for _, spent, _ in copies),
            sum(size for _, _, size in copies),
            node.own_sync_ns - streams_ns,
        )
        below = (found[child.path] for child in node.children.values())
        found[node.path] = _Launched(*map(sum, zip(own, *below, strict=True)))
    return found


_SUGGESTIONS = {
    "kernel": "look at this kernel first: fuse it, batch it, or use a library version",
    "transfer": "keep the data on the device, copy from pinned memory, or overlap the copy with kernels",
    "sync": "the host waits here: remove .item()/.cpu() in the loop or wait later",
    "memset": "reuse buffers instead of clearing them",
    "compute": "CPU work on the timeline: move it off the critical path",
}


def bottlenecks(session: Any, top_n: int = 5) -> list[Bottleneck]:
    """The operations that took the most time, longest first."""
    from ..analysis.operation import operations

    rows = sorted(operations(session), key=lambda row: -row.total_ns)[: max(0, top_n)]
    return [
        Bottleneck(row.name, row.kind, row.total_ns, row.count, row.avg_ns, row.share, _SUGGESTIONS.get(row.kind, ""))
        for row in rows
    ]


def print_summary(session: Any, file: Any = None) -> None:
    """A table of the blocks on ``file`` (standard output)."""
    _write(_table_lines(session, summarise(session)), file)


def print_bottlenecks(session: Any, top_n: int = 5, file: Any = None) -> None:
    """The longest operations on ``file`` (standard output)."""
    _write(_bottleneck_lines(bottlenecks(session, top_n)), file)


def export_json(session: Any, path: Any = None) -> str | None:
    """The session in the shape of ``gpusense report --json``: as text, or written to ``path`` piece by piece."""
    from ..report import json as renderer

    pieces = renderer.pieces(session, indent=2)
    if path is None:
        return "".join(pieces)
    with open(path, "w", encoding="utf-8") as target:
        target.writelines(pieces)
    return None


# --- lines for people -------------------------------------------------------------------------------------------------


def _block_text(summary: BlockSummary) -> str:
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


def _table_lines(session: Any, summary: TraceSummary) -> list[str]:
    """A table of the blocks, totals, and what is not in them."""
    from ..analysis.memory import alive, out_of_memory
    from ..analysis.unwritten import absent_text, listed_text, untimed, untimed_text

    seen = _gpu_work_was_seen(session, summary)
    lines = [f"{'block':<32}{'calls':>8}{'total':>11}{'avg':>11}{'min':>11}{'max':>11}{'GPU':>11}{'kernels':>9}"]
    for depth, row in _as_tree(summary.operations)[:_MOST_BLOCKS]:
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
    budget, cost, stays = (_share_of_time(session, name) for name in ("budget", "share", "left"))
    if budget is not None and budget < min(cost or 0, stays or 0):
        lines.append(
            f"the overhead budget of {budget:.1%} is not kept: CUPTI makes launches longer by about "
            f"{stays:.1%} of the time even while capture is paused; detach() takes it out"
        )
    return lines


def _share_of_time(session: Any, name: str) -> float | None:
    """A number from what the session says of the overhead; a file may hold anything there."""
    found = (session.meta.get("overhead") or {}).get(name)
    return found if isinstance(found, (int, float)) else None


def _as_tree(rows: Sequence[BlockOperation]) -> list[tuple[int, BlockOperation]]:
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


def _gpu_work_was_seen(session: Any, summary: TraceSummary) -> bool:
    """False where there was no source, so that no number of it is known."""
    state = (session.meta.get("capture") or {}).get("state", "unavailable")
    return bool(summary.gpu_ns or summary.gpu_busy_ns) or state not in ("unavailable", "armed")


def _bottleneck_lines(rows: Sequence[Bottleneck]) -> list[str]:
    """One a line, numbered."""
    lines = [
        f"{i}. {row.name} ({row.kind}): {time_text(row.total_ns)} in {count_text(row.count, 'call')}, {row.share:.0%}"
        for i, row in enumerate(rows, 1)
    ]
    return lines or ["nothing was recorded"]


def _write(lines: list[str], file: Any) -> None:
    """The lines on ``file``, or on standard output."""
    stream = file if file is not None else sys.stdout
    text = "\n".join(map(printable, lines)) + "\n"
    stream.write(encodable(text, getattr(stream, "encoding", None) or "utf-8"))
