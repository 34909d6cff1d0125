"""What blocks and tracers answer when asked: summaries as NamedTuples, and their printed forms."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._records import Aggregate, BlockRecord, Path
from ._words import count_text


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
    gpu_ns: int | None = None  # kernels; None where nothing tells of kernels, and so for transfers and memsets
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
        return block_text(self)


class BlockOperation(NamedTuple):
    """Statistics of all blocks with one path; times in nanoseconds, None is unknown and ``reasons`` tells why."""

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
    wall = end - block.start_ns if end is not None else None
    if not block.block_id or totals is None:
        return BlockSummary(str(block.name), reason="the block was never entered, or was not sampled")
    rows = [
        Launched(kind, name, row[0], row[1], row[2], row[3], _std(row), row[5])
        for (kind, name), row in totals.rows.items()
    ]
    rows.sort(key=lambda row: -row.total_ns)
    status = recorder.status()
    running = status.get("state") == "running"
    captured = running or bool(totals.rows)
    reason = "" if captured else f"no GPU work is captured: {status.get('reason') or status.get('state')}"
    if captured and not complete:
        reason = "not everything launched inside had finished and been read in time"
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


def _std(row: list[int]) -> float:
    count, total, squares = row[0], row[1], row[4]
    variance = (squares * count - total * total) / (count * count) if count else 0
    return float(variance**0.5) if variance > 0 else 0.0


def block_text(summary: BlockSummary) -> str:
    """A few lines for people."""
    if summary.kernel_count is None and not summary.operations:
        return _harmless(f"{summary.name}: {summary.reason}")
    parts = [f"{nanoseconds(summary.wall_ns)} wall"]
    if summary.kernel_count is not None:
        parts.append(f"{nanoseconds(summary.gpu_ns)} in {count_text(summary.kernel_count, 'kernel')}")
    if summary.transfer_count is not None:
        size = (summary.transfer_bytes or 0) / 1e6
        copies = count_text(summary.transfer_count, "transfer")
        parts.append(f"{copies} ({size:.2f} MB in {nanoseconds(summary.transfer_ns)})")
    if summary.wait_ns:
        parts.append(f"{nanoseconds(summary.wait_ns)} waiting")
    lines = [f"{summary.name}: {', '.join(parts)}"]
    lines += [
        f"  {nanoseconds(row.total_ns):>10}  {row.count:>7} x  {row.kind:<8}  {row.name}"
        for row in summary.operations[:10]
    ]
    if summary.ambiguous:
        lines.append(f"  {summary.ambiguous} more may belong here or to a block of another thread or task")
    if summary.reason:
        lines.append(f"  {summary.reason}")
    return "\n".join(map(_harmless, lines))


def _harmless(line: str) -> str:
    """``line`` with what a name could do to a terminal or a table made visible."""
    return line if line.isprintable() else "".join(c if c.isprintable() else "�" for c in line)


def nanoseconds(value: float | None) -> str:
    """``1.23 ms``; a question mark for unknown."""
    if value is None:
        return "?"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} ns"


def summarise(session: Any) -> TraceSummary:
    """Block statistics and totals of a session."""
    walls = _walls(session)
    launched = _launched(session, set(walls))
    sync = "sync" in (session.meta.get("kinds") or ())
    memory = _memory(session, set(walls))
    no_memory = "allocation records are off: configure(kinds=('allocation',))"
    if "allocation" in (session.meta.get("kinds") or ()):
        no_memory = "no allocation was seen, or so many that some were only counted"
    rows = []
    for path, (count, total, low, high, squares, attributes) in walls.items():
        gpu, kernels, transfer, size, wait = launched.get(path, (0, 0, 0, 0, 0))
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
                std_ns=_std([count, total, low, high, squares]),
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
    everything = [*session.records, *session.aggregates]
    return TraceSummary(
        operations=tuple(rows),
        wall_ns=session.duration_ns,
        gpu_busy_ns=sum(row.busy_ns for row in session.busy),
        gpu_ns=sum(_total(item) for item in everything if _kind(item) == "kernel"),
        transfer_ns=sum(_total(item) for item in everything if _kind(item) == "transfer"),
        transfer_bytes=sum(item.bytes for item in everything if _kind(item) == "transfer"),
        counters=session.counters,
        reason=session.meta.get("reason", ""),
        observed_share=(session.meta.get("overhead") or {}).get("observed"),
    )


def _kind(item: Any) -> str:
    from ._records import KINDS

    return item.kind if type(item) is Aggregate else KINDS[type(item)]


def _total(item: Any) -> int:
    return int(item.total_ns if type(item) is Aggregate else item.end_ns - item.start_ns)


def _walls(session: Any) -> dict[Path, list[Any]]:
    """Path → [count, total, min, max, sum of squares, attributes] of finished blocks."""
    walls: dict[Path, list[Any]] = {}
    for item in [*session.records, *session.aggregates]:
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


def _launched(session: Any, paths: set[Path]) -> dict[Path, tuple[int, int, int, int, int]]:
    """Path → kernel ns, kernels, transfer ns, transfer bytes, wait ns; a path's own and all below it."""
    sums: dict[Path, list[int]] = {}
    for item in [*session.records, *session.aggregates]:
        kind = _kind(item)
        if kind not in ("kernel", "transfer", "sync"):
            continue
        count = item.count if type(item) is Aggregate else 1
        for depth in range(1, len(item.path) + 1):
            path = item.path[:depth]
            if path not in paths:
                continue
            row = sums.setdefault(path, [0, 0, 0, 0, 0])
            if kind == "kernel":
                row[0] += _total(item)
                row[1] += count
            elif kind == "transfer":
                row[2] += _total(item)
                row[3] += item.bytes
            elif item.name != "stream_wait_event":
                row[4] += _total(item)
    return {path: (row[0], row[1], row[2], row[3], row[4]) for path, row in sums.items()}


def _memory(session: Any, paths: set[Path]) -> dict[Path, tuple[int, int]] | None:
    """Path → bytes allocated inside, and the highest number of live bytes allocated inside; None without records."""
    if not session.allocations or any(row.kind == "allocation" for row in session.aggregates):
        return None  # where some were only counted, what is alive is not known
    from .analysis.memory import place_of

    place = place_of(session)
    live: dict[Any, tuple[Path, int]] = {}
    allocated: dict[Path, int] = {}
    held: dict[Path, int] = {}
    peak: dict[Path, int] = {}
    for item in sorted(session.allocations, key=lambda record: record.start_ns):
        if item.name == "alloc":
            live[place(item)] = (item.path, item.bytes)
            path, change = item.path, item.bytes
        else:
            path, size = live.pop(place(item), ((), 0))
            change = -size
        for depth in range(1, len(path) + 1):
            part = path[:depth]
            allocated[part] = allocated.get(part, 0) + max(change, 0)
            held[part] = held.get(part, 0) + change
            peak[part] = max(peak.get(part, 0), held[part])
    return {path: (allocated.get(path, 0), peak.get(path, 0)) for path in paths}


class Alive(NamedTuple):
    """Device memory allocated in blocks of one path and not released yet."""

    path: Path
    allocations: int
    bytes: int


def alive(session: Any, at_ns: int) -> list[Alive]:
    """What was allocated and not released at a time, by the block that allocated it, most bytes first."""
    from .analysis.memory import place_of

    place = place_of(session)
    live: dict[Any, Any] = {}
    for item in sorted(session.allocations, key=lambda record: record.start_ns):
        if item.start_ns > at_ns:
            break
        if item.name == "alloc":
            live[place(item)] = item
        else:
            live.pop(place(item), None)
    sums: dict[Path, list[int]] = {}
    for item in live.values():
        row = sums.setdefault(item.path, [0, 0])
        row[0] += 1
        row[1] += item.bytes
    return sorted((Alive(path, *row) for path, row in sums.items()), key=lambda row: -row.bytes)


def _place(path: Path) -> str:
    return "/".join(path) or "outside every block"


#: Names of the exceptions that frameworks raise where device memory is short.
OUT_OF_MEMORY = ("OutOfMemoryError", "CudaOutOfMemoryError", "CUDAOutOfMemoryError")


def out_of_memory(session: Any) -> list[tuple[BlockRecord, list[Alive]]]:
    """The innermost blocks that an out-of-memory error left, each with what was alive then."""
    failed = [item for item in session.blocks if item.error in OUT_OF_MEMORY]
    outer = {item.parent_id for item in failed}
    return [(item, alive(session, item.end_ns)) for item in failed if item.block_id not in outer]


_SUGGESTIONS = {
    "kernel": "look at this kernel first: fuse it, batch it, or use a library version",
    "transfer": "keep the data on the device, copy from pinned memory, or overlap the copy with kernels",
    "sync": "the host waits here: remove .item()/.cpu() in the loop or wait later",
    "memset": "reuse buffers instead of clearing them",
    "compute": "CPU work on the timeline: move it off the critical path",
}


def bottlenecks(session: Any, top_n: int = 5) -> list[Bottleneck]:
    """The operations that took the most time, longest first."""
    from .analysis import operations

    rows = sorted(operations(session), key=lambda row: -row.total_ns)[: max(0, top_n)]
    return [
        Bottleneck(row.name, row.kind, row.total_ns, row.count, row.avg_ns, row.share, _SUGGESTIONS.get(row.kind, ""))
        for row in rows
    ]


def print_summary(session: Any, file: Any = None) -> None:
    """A table of the blocks on ``file`` (standard output)."""
    from .analysis.unwritten import absent_text, untimed, untimed_text

    summary = summarise(session)
    seen = _gpu_work_was_seen(session, summary)
    lines = [f"{'block':<32}{'calls':>8}{'total':>11}{'avg':>11}{'min':>11}{'max':>11}{'GPU':>11}{'kernels':>9}"]
    for depth, row in as_tree(summary.operations):
        label = "  " * depth + row.name
        gpu_ns = row.gpu_ns if seen else None
        times = "".join(f"{nanoseconds(t):>11}" for t in (row.total_ns, row.avg_ns, row.min_ns, row.max_ns, gpu_ns))
        lines.append(f"{label[:31]:<32}{row.count:>8}{times}{row.kernel_count if seen else '?':>9}")
    if not summary.operations:
        lines.append("(no block was recorded)" + (f": {summary.reason}" if summary.reason else ""))
    counters = summary.counters
    busy = nanoseconds(summary.gpu_busy_ns if seen else None)
    lines.append(
        f"GPU busy {busy}; {count_text(counters.seen, 'record')} seen, {counters.kept} kept, "
        f"{counters.aggregated} counted, {counters.dropped + counters.missed} lost"
    )
    absent = absent_text(counters)
    if absent:
        lines.append(f"not recorded: {absent}; the session's counters say why")
    if untimed(session):
        lines.append(f"{untimed_text(session)}: {next(iter(untimed(session)))}")
    lines += _waited(session)
    for block, left in out_of_memory(session) if session.allocations else ():
        lines.append(f"{_place(block.path)} ended for lack of memory, when these were alive:")
        lines += [f"  {row.bytes / 1e6:10.2f} MB in {row.allocations} from {_place(row.path)}" for row in left[:5]]
    if summary.observed_share is not None and summary.observed_share < 1:
        lines.append(
            f"observed {summary.observed_share:.0%} of the time (overhead budget); the rest is not in the sums"
        )
    _write(lines, file)


def as_tree(rows: Sequence[BlockOperation]) -> list[tuple[int, BlockOperation]]:
    """Each row with its depth, below that of the block it ran in; beside each other they stay in order."""
    known = {row.path for row in rows}
    below: dict[tuple[str, ...], list[BlockOperation]] = {}
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
    from .analysis.waits import lines_missing, waits

    if "sync_lines" not in (session.meta.get("kinds") or ()):
        return []
    reason = lines_missing(session)
    return [f"lines of waits are not known: {reason}"] * bool(reason) + [
        f"waited {nanoseconds(row.total_ns)} in {count_text(row.count, 'call')} at {row.source_line}"
        for row in waits(session)[:5]
        if row.source_line
    ]


def _gpu_work_was_seen(session: Any, summary: TraceSummary) -> bool:
    """False where there was no source, so that no number of it is known."""
    state = (session.meta.get("capture") or {}).get("state", "unavailable")
    return bool(summary.gpu_ns or summary.gpu_busy_ns) or state not in ("unavailable", "armed")


def print_bottlenecks(session: Any, top_n: int = 5, file: Any = None) -> None:
    """The longest operations on ``file`` (standard output)."""
    rows = bottlenecks(session, top_n)
    lines = [
        f"{i}. {row.name} ({row.kind}): {nanoseconds(row.total_ns)} in {count_text(row.count, 'call')}, {row.share:.0%}"
        for i, row in enumerate(rows, 1)
    ]
    _write(lines or ["nothing was recorded"], file)


def _write(lines: list[str], file: Any) -> None:
    stream = file if file is not None else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = "\n".join(map(_harmless, lines)) + "\n"
    stream.write(text.encode(encoding, "replace").decode(encoding, "replace"))


def export_json(session: Any, path: Any = None) -> str | None:
    """The session in the shape of ``gpusense report --json``: as text, or written to ``path`` piece by piece."""
    from .report import json as renderer

    pieces = renderer.pieces(session, indent=2)
    if path is None:
        return "".join(pieces)
    with open(path, "w", encoding="utf-8") as target:
        target.writelines(pieces)
    return None
