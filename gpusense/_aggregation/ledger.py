"""What became of finished work: records kept one by one, sums of the others, busy time of the devices. Pure.

Nothing is lost: what is not kept, or no longer, is in the sums.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .._decode import layouts
from .._decode.batch import Batch
from .._decode.record import DIRECTIONS
from .._records.records import KINDS, Aggregate, DeviceBusy, Record
from .busy import Busy
from .groups import GroupKey, Groups, key_of
from .sums import Sums


class Ledger:
    """``emit`` gets each list of kept records. At most ``max_records`` of them stay; the oldest are then summed."""

    def __init__(self, max_records: int, emit: Callable[[list[Record]], None] | None) -> None:
        self.kept: deque[Record] = deque()
        self.stored = 0  # records in ``kept``
        self.counted = 0  # records in sums
        self._max_records = max_records
        self._emit = emit
        self._out: list[Record] = []
        self._groups = Groups()
        self.sums = Sums(self._groups, operation_name)
        self._busy = Busy()
        #: Since the last :meth:`settle`: durations and bytes by group, and intervals by device and kind.
        self._demoted: dict[GroupKey, tuple[list[int], list[int]]] = {}
        self._occupied: dict[tuple[str, int | None, bool], tuple[list[int], list[int]]] = {}

    # --- one by one -------------------------------------------------------------------------------------------------

    def limit(self, max_records: int) -> None:
        self._max_records = max_records
        while len(self.kept) > max_records:
            self._evict()

    def store(self, items: Sequence[Record]) -> None:
        """Keeps records one by one."""
        self.stored += len(items)
        self._out += items
        self.kept += items
        while len(self.kept) > self._max_records:
            self._evict()

    def _evict(self) -> None:
        self.stored -= 1
        self.demote(self.kept.popleft())

    def demote(self, item: Any) -> None:
        """Counts a record instead of keeping it."""
        self.count_like(item, [item.end_ns - item.start_ns], getattr(item, "bytes", 0))

    def count_like(self, item: Any, durations: list[int], size: int = 0) -> None:
        """Counts an operation like ``item`` for each duration; ``size``: their bytes together."""
        kind = KINDS[type(item)]
        key = key_of(item, kind, item.path[:-1] if kind == "block" else item.path)
        self.counted += len(durations)
        row = self._demoted.get(key) or self._demoted.setdefault(key, ([], []))
        row[0].extend(durations)
        row[1].append(size)

    def settle(self) -> None:
        """Sums up what was counted one by one: a list of records costs little more than one of them."""
        demoted, self._demoted = self._demoted, {}
        for key, (durations, sizes) in demoted.items():
            self._groups.add(key, durations, sum(sizes))
        occupied, self._occupied = self._occupied, {}
        for (backend, device, kernel), (starts, ends) in occupied.items():
            self._busy.add(backend, device, kernel, starts, ends)

    def hand_on(self) -> None:
        """Gives what was stored since the last call to ``emit``, and sums up what was only counted."""
        self.settle()
        if self._out:
            out, self._out = self._out, []
            if self._emit is not None:
                self._emit(out)

    # --- summed up --------------------------------------------------------------------------------------------------

    def count_migrations(self, batch: Batch) -> None:
        """Counters of unified memory: pages and bytes that moved, and faults."""
        for counter, value, duration, device in zip(batch.key, batch.bytes, batch.duration, batch.device, strict=True):
            name = layouts.UNIFIED_MEMORY_COUNTERS.get(counter, f"counter_{counter}")
            fault = counter in layouts.UNIFIED_MEMORY_FAULTS
            row = [value if fault else 1, duration, duration, duration, duration * duration, 0 if fault else value]
            self._groups.add_row(
                ((), "unified_memory", name, "cuda", device, None, None, None, None, "device", None), row
            )

    def aggregates(self) -> list[Aggregate]:
        self.sums.fold()
        self.settle()
        return self._groups.rows()

    # --- busy time --------------------------------------------------------------------------------------------------

    def occupy(self, kernels: bool, batch: Batch) -> None:
        """The times of a batch of kernels, or of copies and memsets."""
        if batch.uniform("device"):
            self._busy.add("cuda", batch.device[0], kernels, *batch.times(), batch.total, batch.sequential)
            return
        for device in set(batch.device):
            chosen = [i for i, other in enumerate(batch.device) if other == device]
            self._busy.add("cuda", device, kernels, [batch.start[i] for i in chosen], [batch.end[i] for i in chosen])

    def occupy_times(self, backend: str, device: int | None, kernels: bool, starts: list[int], ends: list[int]) -> None:
        """The times of finished records."""
        key = (backend, device, kernels)
        mine = self._occupied.get(key) or self._occupied.setdefault(key, ([], []))
        mine[0].extend(starts)
        mine[1].extend(ends)

    def busy(self) -> list[DeviceBusy]:
        self.settle()
        return self._busy.rows()


def operation_name(kind: str, key: int) -> tuple[str, str | None]:
    """Name of an operation that is no kernel, and a copy's direction."""
    if kind == "transfer":
        return DIRECTIONS[key], DIRECTIONS[key]
    if kind == "sync":
        return layouts.SYNC_TYPES.get(key, f"synchronize_{key}"), None
    if kind == "launch":
        return layouts.LAUNCH_CALLS[key], None
    if kind == "allocation":
        return {layouts.ALLOCATION: "alloc", layouts.RELEASE: "free"}.get(key, "unknown"), None
    return kind, None
