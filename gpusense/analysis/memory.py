"""Device memory over time, from allocation records: peaks, which blocks held what, and what was alive at a time."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from .._records.records import BlockRecord, GpuAllocation, Path
from ..session import Session


class BlockMemory(NamedTuple):
    """What the allocations of one block held, without those of blocks inside it."""

    path: Path
    peak_bytes: int  # most that allocations made in this very block held at one time
    at_peak_bytes: int  # what they held when the device's total was highest
    held_bytes: int  # not released by the end


class DeviceMemory(NamedTuple):
    """Live bytes of one device, by its allocation records."""

    device: int | None
    backend: str
    allocations: int
    releases: int
    peak_bytes: int
    peak_ns: int  # when
    held_bytes: int
    unknown_releases: int  # of memory allocated before capture
    blocks: tuple[BlockMemory, ...]  # by what they held at the peak


def place_of(session: Session) -> Callable[[GpuAllocation], Any]:
    """What an allocation is known by: the address, which in a merged session each process has for itself."""
    if len(session.meta.get("processes") or ()) < 2:
        return attrgetter("address")
    return lambda record: (record.path[:1], record.address)


class _Live:
    def __init__(self, place: Callable[[GpuAllocation], Any]) -> None:
        self.place = place
        self.at: dict[Any, tuple[int, Path]] = {}
        self.by_path: dict[Path, int] = {}
        self.peak_by_path: dict[Path, int] = {}
        self.records: list[GpuAllocation] = []
        self.until_peak = 0  # how many of them led to it
        self.total = self.peak = self.peak_ns = self.allocations = self.releases = self.unknown = 0

    def change(self, record: GpuAllocation) -> None:
        place = self.place(record)
        self.records.append(record)
        if record.name == "alloc":
            self.allocations += 1
            self._release(place)  # the address was reused: its release was not seen
            self.at[place] = (record.bytes, record.path)
            self._add(record.path, record.bytes)
            if self.total > self.peak:
                self.peak, self.peak_ns, self.until_peak = self.total, record.start_ns, len(self.records)
        else:
            self.releases += 1
            if not self._release(place):
                self.unknown += 1

    def at_peak(self) -> dict[Path, int]:
        """What each block held then: all once more up to there, since a copy at each new peak takes far longer."""
        again = _Live(self.place)
        for record in self.records[: self.until_peak]:
            again.change(record)
        return again.by_path

    def _release(self, place: Any) -> bool:
        held = self.at.pop(place, None)
        if held is None:
            return False
        self._add(held[1], -held[0])
        return True

    def _add(self, path: Path, size: int) -> None:
        self.total += size
        now = self.by_path[path] = self.by_path.get(path, 0) + size
        if now > self.peak_by_path.get(path, 0):
            self.peak_by_path[path] = now


def memory(session: Session) -> list[DeviceMemory]:
    """One row a device with allocation records; empty where allocations were not captured."""
    live: dict[tuple[str, int | None], _Live] = {}
    place = place_of(session)
    for record in sorted(session.allocations, key=lambda record: record.start_ns):
        state = live.get((record.backend, record.device))
        if state is None:
            state = live[record.backend, record.device] = _Live(place)
        state.change(record)
    return [_row(backend, device, state) for (backend, device), state in live.items()]


def _row(backend: str, device: int | None, state: _Live) -> DeviceMemory:
    at_peak = state.at_peak()
    blocks = [
        BlockMemory(path, peak, at_peak.get(path, 0), state.by_path.get(path, 0))
        for path, peak in state.peak_by_path.items()
    ]
    return DeviceMemory(
        device=device,
        backend=backend,
        allocations=state.allocations,
        releases=state.releases,
        peak_bytes=state.peak,
        peak_ns=state.peak_ns,
        held_bytes=state.total,
        unknown_releases=state.unknown,
        blocks=tuple(sorted(blocks, key=lambda block: (-block.at_peak_bytes, -block.peak_bytes))),
    )


def by_block(session: Session, paths: set[Path]) -> dict[Path, tuple[int, int]] | None:
    """Path → bytes allocated inside, and the highest number of live bytes allocated inside; None without records."""
    if not session.allocations or any(row.kind == "allocation" for row in session.aggregates):
        return None  # where some were only counted, what is alive is not known
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


def alive(session: Session, at_ns: int) -> list[Alive]:
    """What was allocated and not released at a time, by the block that allocated it, most bytes first."""
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


#: Names of the exceptions that frameworks raise where device memory is short.
OUT_OF_MEMORY = ("OutOfMemoryError", "CudaOutOfMemoryError", "CUDAOutOfMemoryError")


def out_of_memory(session: Session) -> list[BlockRecord]:
    """The innermost blocks that an out-of-memory error left; :func:`alive` says what was in the way."""
    failed = [item for item in session.blocks if item.error in OUT_OF_MEMORY]
    outer = {item.parent_id for item in failed}
    return [item for item in failed if item.block_id not in outer]
