"""Device memory over time, from allocation records: peaks, and which blocks held what at the peak."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from .._records import GpuAllocation, Path
from ..session import Session


class BlockMemory(NamedTuple):
    path: Path
    peak_bytes: int  # most that allocations made in this very block held at one time
    at_peak_bytes: int  # what they held when the device's total was highest
    held_bytes: int  # not released by the end


class DeviceMemory(NamedTuple):
    """Live bytes of one device, as its allocation records tell it."""

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
    """What allocations are told apart by: the address, which in a merged session each process has for itself."""
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
