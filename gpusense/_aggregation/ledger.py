"""What became of finished work: records kept one by one, sums of the others, busy time of the devices. Pure.

Nothing is lost: what is not kept, or no longer, is in the sums.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any

from .._decode import layouts
from .._decode.batch import Batch
from .._records.records import KINDS, Aggregate, BlockRecord, DeviceBusy, Path, Record
from .busy import Busy
from .groups import GroupKey, Groups, key_of
from .sums import Piles, Spot

#: For each record of a batch the path of the block that captured it, where it is a node of a replayed graph.
Owners = list[Path | None]

WITH_BYTES = frozenset({"transfer", "memset", "allocation"})


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
        self.piles = Piles(self._groups, operation_name)
        self._busy = Busy()
        #: Since the last :meth:`settle`: durations and bytes by group, and intervals by device and kind.
        self._demoted: dict[GroupKey, tuple[list[int], list[int]]] = {}
        self._occupied: dict[tuple[str, int | None, bool], tuple[list[int], list[int]]] = {}

    # --- one by one -------------------------------------------------------------------------------------------------

    def limit(self, max_records: int) -> None:
        self._max_records = max_records
        while len(self.kept) > max_records:
            self._evict()

    def store(self, item: Record) -> None:
        self.stored += 1
        self._out.append(item)
        self.kept.append(item)
        if len(self.kept) > self._max_records:
            self._evict()

    def store_all(self, items: list[Record]) -> None:
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
        durations, sizes = self._counted_like(item)
        self.counted += 1
        durations.append(item.end_ns - item.start_ns)
        sizes.append(getattr(item, "bytes", 0))

    def demote_all(self, item: Any, durations: list[int]) -> None:
        """Counts an operation without bytes like ``item`` for each duration."""
        self.counted += len(durations)
        self._counted_like(item)[0].extend(durations)

    def _counted_like(self, item: Any) -> tuple[list[int], list[int]]:
        """Durations and bytes of the group of a record."""
        kind = KINDS[type(item)]
        path = item.path[:-1] if type(item) is BlockRecord else item.path
        key = key_of(item, kind, path)
        return self._demoted.get(key) or self._demoted.setdefault(key, ([], []))

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

    def count(
        self,
        spot: Spot,
        keys: list[int],
        durations: list[int],
        sizes: list[int] | None,
        groups: Mapping[int, list[int]] | None = None,
    ) -> None:
        """Counts records of one spot. ``groups``: the durations by key, where they are known."""
        self.piles.make_room(len(durations))
        piles = self.piles.at(spot)
        if groups is not None:
            for key, members in groups.items():
                piles[key] += members
        else:
            for key, duration in zip(keys, durations, strict=True):
                piles[key].append(duration)
        if sizes is not None:
            self.piles.add_bytes(spot, keys, sizes)

    def spots(self, batch: Batch, contexts: Mapping[int, int], owners: Owners | None) -> list[Any]:
        """Device, stream and owner of each record; ``contexts``: the device of those that name their context only."""
        devices: list[int] | list[int | None] | list[None] = batch.device
        if None in devices:
            pairs = zip(devices, batch.context, strict=True)
            devices = [
                contexts.get(context) if device is None and context is not None else device for device, context in pairs
            ]
        return list(zip(devices, batch.stream, owners or repeat(None), strict=False))

    def count_apart(
        self,
        path: Path,
        kind: str,
        spots: Iterable[Any],
        keys: list[int],
        durations: list[int],
        sizes: list[int] | None,
    ) -> None:
        """Counts records of one block that differ in device, stream or owner."""
        if sizes is None:
            self.piles.make_room(len(keys))
            piles: dict[Any, defaultdict[int, list[int]]] = {}
            for spot, key, duration in zip(spots, keys, durations, strict=False):
                if spot not in piles:
                    piles[spot] = self.piles.at((path, kind, *spot))
                piles[spot][key].append(duration)
            return
        rows: defaultdict[Any, tuple[list[int], list[int], list[int]]] = defaultdict(lambda: ([], [], []))
        for spot, key, duration, size in zip(spots, keys, durations, sizes, strict=False):
            row = rows[spot]
            row[0].append(key)
            row[1].append(duration)
            row[2].append(size)
        for spot, row in rows.items():
            self.count((path, kind, *spot), *row)

    def count_migrations(self, batch: Batch) -> None:
        """Counters of unified memory: pages and bytes that moved, and faults."""
        for counter, value, duration, device in zip(batch.key, batch.bytes, batch.duration, batch.device, strict=True):
            name = layouts.UNIFIED_MEMORY_COUNTERS.get(counter, f"counter_{counter}")
            fault = counter in layouts.UNIFIED_MEMORY_FAULTS
            row = [value if fault else 1, duration, duration, duration, duration * duration, 0 if fault else value]
            self._groups.add_row(((), "unified_memory", name, "cuda", device, None, None, None, None, "device"), row)

    def aggregates(self) -> list[Aggregate]:
        self.piles.fold()
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

    def occupy_once(self, backend: str, device: int | None, kernel: bool, start_ns: int, end_ns: int) -> None:
        key = (backend, device, kernel)
        starts, ends = self._occupied.get(key) or self._occupied.setdefault(key, ([], []))
        starts.append(start_ns)
        ends.append(end_ns)

    def occupy_all(self, backend: str, device: int | None, kernels: bool, starts: list[int], ends: list[int]) -> None:
        """The times of many; see :meth:`Busy.add`."""
        self._busy.add(backend, device, kernels, starts, ends)

    def busy(self) -> list[DeviceBusy]:
        self.settle()
        return self._busy.rows()


def grouped(keys: list[int], durations: list[int]) -> defaultdict[int, list[int]]:
    """Durations by key."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for key, duration in zip(keys, durations, strict=True):
        groups[key].append(duration)
    return groups


def operation_name(kind: str, key: int) -> tuple[str, str | None]:
    """Name of an operation that is no kernel, and a copy's direction."""
    if kind == "transfer":
        direction = layouts.COPY_DIRECTIONS.get(key) or ("gpu_to_gpu" if key == layouts.COPY_PEER else "on_device")
        return direction, direction
    if kind == "sync":
        return layouts.SYNC_TYPES.get(key, f"synchronize_{key}"), None
    if kind == "launch":
        return layouts.LAUNCH_CALLS[key], None
    if kind == "allocation":
        return {layouts.ALLOCATION: "alloc", layouts.RELEASE: "free"}.get(key, "unknown"), None
    return kind, None
