"""What blocks and tracers answer when asked: summaries as NamedTuples; :mod:`._summary_text` prints them."""

from itertools import chain
from typing import Any, NamedTuple

from .._records.records import KINDS, Aggregate, BlockRecord, Path, standard_deviation
from .summary_text import block_text, bottleneck_lines, share_of_time, table_lines, write


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
        Launched(kind, name, row[0], row[1], row[2], row[3], standard_deviation(row[0], row[1], row[4]), row[5])
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


def summarise(session: Any) -> TraceSummary:
    """Block statistics and totals of a session."""
    from ..analysis.memory import by_block

    walls = _walls(session)
    launched = _launched(session, set(walls))
    sync = "sync" in (session.meta.get("kinds") or ())
    memory = by_block(session, set(walls))
    no_memory = "allocation records are off: configure(kinds=('allocation',))"
    if "allocation" in (session.meta.get("kinds") or ()):
        no_memory = "no allocation was seen, or so many that some were only summed"
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
        observed_share=share_of_time(session, "observed"),
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


def _launched(session: Any, paths: set[Path]) -> dict[Path, tuple[int, int, int, int, int]]:
    """Path → kernel ns, kernels, transfer ns, transfer bytes, wait ns; a path's own and all below it."""
    own: dict[Path, list[int]] = {}
    for item in chain(session.records, session.aggregates):
        kind = _kind(item)
        if kind not in ("kernel", "transfer", "sync"):
            continue
        row = own.setdefault(item.path, [0, 0, 0, 0, 0])
        if kind == "kernel":
            row[0] += _total(item)
            row[1] += item.count if type(item) is Aggregate else 1
        elif kind == "transfer":
            row[2] += _total(item)
            row[3] += item.bytes
        elif item.name != "stream_wait_event":
            row[4] += _total(item)
    sums: dict[Path, list[int]] = {}
    for path, row in own.items():
        for depth in range(1, len(path) + 1):
            part = path[:depth]
            if part in paths:
                known = sums.get(part)
                sums[part] = row if known is None else [one + other for one, other in zip(known, row, strict=True)]
    return {path: (row[0], row[1], row[2], row[3], row[4]) for path, row in sums.items()}


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
    write(table_lines(session, summarise(session)), file)


def print_bottlenecks(session: Any, top_n: int = 5, file: Any = None) -> None:
    """The longest operations on ``file`` (standard output)."""
    write(bottleneck_lines(bottlenecks(session, top_n)), file)


def export_json(session: Any, path: Any = None) -> str | None:
    """The session in the shape of ``gpusense report --json``: as text, or written to ``path`` piece by piece."""
    from ..report import json as renderer

    pieces = renderer.pieces(session, indent=2)
    if path is None:
        return "".join(pieces)
    with open(path, "w", encoding="utf-8") as target:
        target.writelines(pieces)
    return None
