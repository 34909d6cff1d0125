"""Everything recorded in one run, in memory: what analyses, reports and exporters read; nothing else reaches them."""

from typing import TYPE_CHECKING, Any

from .._records.metrics import GpuMetrics
from .._records.records import (
    KINDS,
    Aggregate,
    BlockRecord,
    ComputeBlock,
    Counters,
    DeviceBusy,
    DeviceInfo,
    GpuAllocation,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Record,
    Syscall,
    UnseenInterval,
)
from .._records.work import WITH_ROWS, WorkTable, table_of
from .._runtime.text import count_text

if TYPE_CHECKING:
    from .. import TraceSummary


class Session:
    """All records of one run. ``records`` are the listed ones; ``aggregates`` sum up the others; nothing is in both.

    ``work`` has a row for each of both that occupied a device or made the host wait: see
    :class:`~gpusense._records.work.WorkTable`. What is listed is chosen by a threshold; the rows are all there.

    ``meta`` has at least ``version`` (of gpusense), ``pid``, ``start_ns``, ``end_ns`` (None while running),
    ``threshold_ns``, ``trace_all``, ``backends`` (name → version text), ``rank`` and ``world_size`` (None outside a
    launcher), ``mode`` ("live" or "file"), ``overhead`` (drain CPU nanoseconds and the like), ``capture`` (how capture
    was done: callbacks, library, cuda_live_ns), ``damage`` (list of sentences with offsets, from a damaged file).
    """

    __slots__ = (
        *("_work", "aggregates", "busy", "counters", "devices", "each_block", "meta", "metrics", "records", "unseen"),
    )

    def __init__(
        self,
        *,
        meta: dict[str, Any] | None = None,
        devices: tuple[DeviceInfo, ...] = (),
        records: list[Record] | None = None,
        aggregates: list[Aggregate] | None = None,
        metrics: list[GpuMetrics] | None = None,
        busy: list[DeviceBusy] | None = None,
        unseen: list[UnseenInterval] | None = None,
        counters: Counters | None = None,
        work: WorkTable | None = None,
        each_block: dict[int, dict[str, list[int]]] | None = None,
    ) -> None:
        self.meta: dict[str, Any] = meta if meta is not None else {}
        self.devices = devices
        self.records: list[Record] = records if records is not None else []
        self.aggregates: list[Aggregate] = aggregates if aggregates is not None else []
        self.metrics: list[GpuMetrics] = metrics if metrics is not None else []
        self.busy: list[DeviceBusy] = busy if busy is not None else []
        self.unseen: list[UnseenInterval] = unseen if unseen is not None else []
        self.counters = counters if counters is not None else Counters()
        self._work = work
        #: Block id → kind of work → how many, nanoseconds, bytes; where ``load`` was asked for it.
        self.each_block = each_block

    def __repr__(self) -> str:
        kept, counted = len(self.records), sum(one.count for one in self.aggregates)
        return f"<Session {self.meta.get('mode', 'merged')}: {count_text(kept, 'record')}, {counted:,} summed>"

    @property
    def work(self) -> WorkTable:
        """All work as columns. Of sessions of older files it is what their records say; ``work.summed`` is the rest."""
        if self._work is None:
            self._work = table_of(self.records)
            self._work.summed = sum(row.count for row in self.aggregates if row.kind in WITH_ROWS)
        return self._work

    def take_work(self, work: WorkTable) -> None:
        """``work`` is that of the session."""
        self._work = work

    @property
    def has_work(self) -> bool:
        """Whether the table of work came with the session, and is not made of its records."""
        return self._work is not None

    @property
    def kernels(self) -> list[GpuKernel]:
        """Kernels that were kept one by one."""
        return [record for record in self.records if type(record) is GpuKernel]

    @property
    def transfers(self) -> list[GpuMemoryTransfer]:
        """Copies that were kept one by one."""
        return [record for record in self.records if type(record) is GpuMemoryTransfer]

    @property
    def memsets(self) -> list[GpuMemset]:
        """Memsets that were kept one by one."""
        return [record for record in self.records if type(record) is GpuMemset]

    @property
    def syncs(self) -> list[GpuSync]:
        """Waits of the host that were kept; none unless kind "sync" was on."""
        return [record for record in self.records if type(record) is GpuSync]

    @property
    def allocations(self) -> list[GpuAllocation]:
        """Allocations and releases; none unless kind "allocation" was on."""
        return [record for record in self.records if type(record) is GpuAllocation]

    @property
    def compute_blocks(self) -> list[ComputeBlock]:
        """Compute blocks that were kept one by one."""
        return [record for record in self.records if type(record) is ComputeBlock]

    @property
    def blocks(self) -> list[BlockRecord]:
        """Finished ``trace()`` blocks."""
        return [record for record in self.records if type(record) is BlockRecord]

    @property
    def syscalls(self) -> list[Syscall]:
        """System calls, where an external tracer gave them."""
        return [record for record in self.records if type(record) is Syscall]

    @property
    def duration_ns(self) -> int | None:
        """From start to end; None while it runs."""
        start, end = self.meta.get("start_ns"), self.meta.get("end_ns")
        return end - start if start is not None and end is not None else None

    def summary(self) -> "TraceSummary":
        """Statistics of every block by path, with the GPU work launched inside: as a tracer answers of its own."""
        from .. import TraceSummary

        return TraceSummary.of(self)


def fold(session: Session, threshold_ns: int) -> None:
    """Moves what is shorter than ``threshold_ns`` from the records of ``session`` into its aggregates, exactly."""
    from .._aggregation.groups import GroupKey, aggregate, key_of, row_of

    kept: list[Record] = []
    short: dict[GroupKey, list[Record]] = {}
    for record in session.records:
        if type(record) in (BlockRecord, GpuAllocation) or record.end_ns - record.start_ns >= threshold_ns:
            kept.append(record)
            continue
        key = key_of(record, KINDS[type(record)], record.path)
        short.setdefault(key, []).append(record)
    for key, members in short.items():
        size = sum(getattr(record, "bytes", 0) for record in members)
        session.aggregates.append(aggregate(key, row_of([record.end_ns - record.start_ns for record in members], size)))
    moved = len(session.records) - len(kept)
    session.records[:] = kept
    counters = session.counters
    session.counters = counters._replace(kept=counters.kept - moved, aggregated=counters.aggregated + moved)
    session.meta["threshold_ns"] = max(threshold_ns, session.meta.get("threshold_ns") or 0)
