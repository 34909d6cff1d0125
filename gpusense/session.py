"""Session: everything recorded in one run, in memory. The file format stands in ``_sessionfile.py``.

What a :class:`Session` holds is what every analysis, report and exporter reads; nothing else reaches them.
"""

from typing import Any

from ._metrics import GpuMetrics
from ._records import (
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
    UnseenStretch,
)


class Session:
    """All records of one run. ``records`` are the kept ones; ``aggregates`` count the others; nothing is in both.

    ``meta`` has at least ``version`` (of gpusense), ``pid``, ``start_ns``, ``end_ns`` (None while running),
    ``threshold_ns``, ``trace_all``, ``backends`` (name → version text), ``rank`` and ``world_size`` (None outside a
    launcher), ``mode`` ("live" or "file"), ``overhead`` (drain CPU nanoseconds and the like), ``capture`` (how capture
    was done: callbacks, library, cuda_live_ns), ``damage`` (list of sentences with offsets, from a damaged file).
    """

    __slots__ = ("aggregates", "busy", "counters", "devices", "meta", "metrics", "records", "unseen")

    def __init__(
        self,
        *,
        meta: dict[str, Any] | None = None,
        devices: tuple[DeviceInfo, ...] = (),
        records: list[Record] | None = None,
        aggregates: list[Aggregate] | None = None,
        metrics: list[GpuMetrics] | None = None,
        busy: list[DeviceBusy] | None = None,
        unseen: list[UnseenStretch] | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.meta: dict[str, Any] = meta if meta is not None else {}
        self.devices = devices
        self.records: list[Record] = records if records is not None else []
        self.aggregates: list[Aggregate] = aggregates if aggregates is not None else []
        self.metrics: list[GpuMetrics] = metrics if metrics is not None else []
        self.busy: list[DeviceBusy] = busy if busy is not None else []
        self.unseen: list[UnseenStretch] = unseen if unseen is not None else []
        self.counters = counters if counters is not None else Counters()

    @property
    def kernels(self) -> list[GpuKernel]:
        return [record for record in self.records if type(record) is GpuKernel]

    @property
    def transfers(self) -> list[GpuMemoryTransfer]:
        return [record for record in self.records if type(record) is GpuMemoryTransfer]

    @property
    def memsets(self) -> list[GpuMemset]:
        return [record for record in self.records if type(record) is GpuMemset]

    @property
    def syncs(self) -> list[GpuSync]:
        return [record for record in self.records if type(record) is GpuSync]

    @property
    def allocations(self) -> list[GpuAllocation]:
        return [record for record in self.records if type(record) is GpuAllocation]

    @property
    def compute_blocks(self) -> list[ComputeBlock]:
        return [record for record in self.records if type(record) is ComputeBlock]

    @property
    def blocks(self) -> list[BlockRecord]:
        return [record for record in self.records if type(record) is BlockRecord]

    @property
    def syscalls(self) -> list[Syscall]:
        return [record for record in self.records if type(record) is Syscall]

    @property
    def duration_ns(self) -> int | None:
        start, end = self.meta.get("start_ns"), self.meta.get("end_ns")
        return end - start if start is not None and end is not None else None
