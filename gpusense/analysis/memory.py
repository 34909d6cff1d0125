"""Device memory over time, from allocation records: peaks, and which blocks held what at the peak."""

from typing import NamedTuple

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


class _Live:
    def __init__(self) -> None:
        self.at: dict[int, tuple[int, Path]] = {}
        self.by_path: dict[Path, int] = {}
        self.peak_by_path: dict[Path, int] = {}
        self.at_peak: dict[Path, int] = {}
        self.total = self.peak = self.peak_ns = self.allocations = self.releases = self.unknown = 0

    def change(self, record: GpuAllocation) -> None:
        if record.name == "alloc":
            self.allocations += 1
            self._release(record.address)  # the address was reused: its release was not seen
            self.at[record.address] = (record.bytes, record.path)
            self._add(record.path, record.bytes)
            if self.total > self.peak:
                self.peak, self.peak_ns, self.at_peak = self.total, record.start_ns, dict(self.by_path)
        else:
            self.releases += 1
            if not self._release(record.address):
                self.unknown += 1

    def _release(self, address: int) -> bool:
        held = self.at.pop(address, None)
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
    for record in sorted(session.allocations, key=lambda record: record.start_ns):
        live.setdefault((record.backend, record.device), _Live()).change(record)
    return [
        DeviceMemory(
            device=device,
            backend=backend,
            allocations=state.allocations,
            releases=state.releases,
            peak_bytes=state.peak,
            peak_ns=state.peak_ns,
            held_bytes=state.total,
            unknown_releases=state.unknown,
            blocks=tuple(
                BlockMemory(path, peak, state.at_peak.get(path, 0), state.by_path.get(path, 0))
                for path, peak in sorted(
                    state.peak_by_path.items(), key=lambda item: (-state.at_peak.get(item[0], 0), -item[1])
                )
            ),
        )
        for (backend, device), state in live.items()
    ]
