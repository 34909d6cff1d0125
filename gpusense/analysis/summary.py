"""Blocks and totals of a session as programs get them: a row a path; what is unknown has a reason."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from .._records.records import Counters, Path
from .._runtime import tables
from .._runtime.text import time_text
from ..session import Session
from .blocks import why_unknown
from .facts import Facts
from .memory import by_block

OVERHEAD_PER_BLOCK_NS = 3_000  # two boundaries with their markers, measured in benchmarks/bench_block.py


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
    gpu_ns: int | None  # kernels launched inside, children included; None where none could be seen
    kernel_count: int | None
    transfer_ns: int | None
    transfer_bytes: int | None
    bandwidth_mb_per_s: float | None
    wait_ns: int | None
    cpu_ns: int | None  # wall time of the host without waits
    overhead_ns: int | None  # what gpusense's own calls cost at the ends of these blocks
    memory_allocated_bytes: int | None
    memory_peak_bytes: int | None
    memory_source: str | None
    utilization_percent: float | None  # kernel time over wall time, at most 100
    attributes: dict[str, Any] | None
    reasons: tuple[tuple[str, str], ...] = ()
    own_ns: int | None = None  # wall time without blocks inside
    median_ns: float | None = None  # of single passes; None where too many were only summed
    p95_ns: int | None = None
    device_ns: int | None = None  # the device's streams were in the passes that it timed; None where it timed none
    device_count: int = 0  # how many that were
    device_at_most: int = 0  # and of how many of them it is a bound, because a stream was idle at an end
    open_count: int = 0  # passes that did not end: they count as far as is known, and times are at least what they seem


class TraceSummary(NamedTuple):
    """What a tracer recorded: a row a block path, and totals."""

    operations: tuple[BlockOperation, ...]
    wall_ns: int | None
    gpu_busy_ns: int | None  # None where no work of a device could be seen, and so for the next three
    gpu_ns: int | None
    transfer_ns: int | None
    transfer_bytes: int | None
    counters: Counters
    reason: str = ""
    observed_share: float | None = None  # of the time under an overhead budget; nothing is scaled up for the rest

    @classmethod
    def of(cls, session: Session) -> "TraceSummary":
        """Statistics of blocks and totals of a session."""
        root = session.once(Facts).blocks
        times, seen = root.times, root.gpu_seen
        rows = sorted(session.once(block_operations), key=lambda row: -row.total_ns)
        return cls(
            operations=tuple(rows),
            wall_ns=_length(session),
            gpu_busy_ns=sum(row.busy_ns for row in session.busy) if seen else None,
            gpu_ns=times.kernel_ns,
            transfer_ns=times.transfer_ns,
            transfer_bytes=times.transfer_bytes,
            counters=session.counters,
            reason=session.meta.get("reason", ""),
            observed_share=share_of_time(session, "observed"),
        )

    def later(self, session: Session) -> "TraceSummary":
        """The same of a session in which nothing but time has passed since."""
        return self._replace(wall_ns=_length(session), observed_share=share_of_time(session, "observed"))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("\n".join([*tables.lines(self.operations), self._totals()]))

    def _repr_html_(self) -> str:
        return self.as_html()

    def as_html(self) -> str:
        """The blocks as a table, and the totals in a line."""
        return f"{tables.table(self.operations)}<p>{tables.escape(self._totals())}</p>"

    def _totals(self) -> str:
        parts = (
            ("run", self.wall_ns),
            ("GPU busy", self.gpu_busy_ns),
            ("kernels", self.gpu_ns),
            ("copies", self.transfer_ns),
        )
        known = [f"{name} {time_text(spent)}" for name, spent in parts if spent is not None]
        return ", ".join(known + [self.reason] * bool(self.reason))

    def operation(self, name: str) -> BlockOperation | None:
        """The row of the block named ``name``; None if there was none."""
        for row in self.operations:
            if row.name == name:
                return row
        return None


def block_operations(session: Session) -> list[BlockOperation]:
    """The row of each path that was passed: parents first, and of those beside each other the longest."""
    return list(_rows(session))


def _rows(session: Session) -> Iterator[BlockOperation]:
    nodes = [(node, node.times) for _, node in session.once(Facts).blocks.walk()]
    memory = by_block(session, {node.path for node, times in nodes if times.passes})
    no_memory = "allocation records are off: configure(kinds=('allocation',))"
    if "allocation" in (session.meta.get("kinds") or ()):
        no_memory = "no allocation was seen, or so many that some were only summed"
    why = cache(partial(why_unknown, session))
    for node, times in nodes:
        if not times.passes:
            continue
        allocated, peak = memory[node.path] if memory is not None else (None, None)
        reasons = {mine: why(field) for mine, field in _FIELDS.items() if getattr(times, field) is None}
        if memory is None:
            reasons["memory_peak_bytes"] = no_memory
        yield BlockOperation(
            name=node.name,
            path=node.path,
            count=times.passes,
            total_ns=times.total_ns or 0,
            avg_ns=times.avg_ns or 0.0,
            min_ns=times.min_ns or 0,
            max_ns=times.max_ns or 0,
            std_ns=times.std_ns or 0.0,
            gpu_ns=times.kernel_ns,
            kernel_count=times.kernels,
            transfer_ns=times.transfer_ns,
            transfer_bytes=times.transfer_bytes,
            bandwidth_mb_per_s=(times.transfer_bytes or 0) * 1e3 / times.transfer_ns if times.transfer_ns else None,
            wait_ns=times.wait_ns,
            cpu_ns=times.host_ns,
            overhead_ns=times.passes * OVERHEAD_PER_BLOCK_NS,
            memory_allocated_bytes=allocated,
            memory_peak_bytes=peak,
            memory_source="CUPTI allocation records" if memory is not None else None,
            utilization_percent=_utilization(times.kernel_ns, times.total_ns or 0),
            attributes=node.attributes,
            reasons=tuple(reasons.items()),
            own_ns=times.own_ns,
            median_ns=times.median_ns,
            p95_ns=times.p95_ns,
            device_ns=times.device_ns,
            device_count=times.device_passes,
            device_at_most=times.device_at_most,
            open_count=times.open_passes,
        )


#: Fields that may be unknown for a reason, by what the analysis calls them.
_FIELDS = {
    "gpu_ns": "kernel_ns",
    "kernel_count": "kernels",
    "utilization_percent": "kernel_ns",
    "transfer_ns": "transfer_ns",
    "transfer_bytes": "transfer_bytes",
    "wait_ns": "wait_ns",
    "cpu_ns": "host_ns",
    "median_ns": "median_ns",
    "p95_ns": "p95_ns",
    "device_ns": "device_ns",
}


def _utilization(kernel_ns: int | None, total_ns: int) -> float | None:
    return min(100.0, 100.0 * kernel_ns / total_ns) if kernel_ns is not None and total_ns else None


def _length(session: Session) -> int | None:
    return session.once(Facts).window_ns if session.duration_ns is not None else None


def share_of_time(session: Session, name: str) -> float | None:
    """A number from what the session says of the overhead; a file may hold anything there."""
    found = (session.meta.get("overhead") or {}).get(name)
    return found if isinstance(found, (int, float)) else None
