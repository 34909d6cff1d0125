"""Copies by direction, kind of memory and pair of devices, against what the link can do."""

from collections.abc import Sequence
from typing import NamedTuple

from .._records.metrics import Pcie
from .._records.records import Aggregate, GpuMemoryTransfer
from ..session import Session
from .calls import timed_by_host
from .sampled import SampledCard, sampled

#: Gigatransfers a second and lane, and the payload share of the line code (PCI Express Base Specification: 8b/10b
#: up to generation 2, 128b/130b to 5, 242 of 256 bytes of a flit in 6).
_PCIE = {
    1: (2.5, 8 / 10),
    2: (5, 8 / 10),
    3: (8, 128 / 130),
    4: (16, 128 / 130),
    5: (32, 128 / 130),
    6: (64, 242 / 256),
}

#: Below this size a copy is dominated by its fixed cost; peaks are read from larger ones.
SMALL_BYTES = 65_536
#: From this size a single copy shows the link's speed.
PEAK_BYTES = 1_048_576
_HOST_DIRECTIONS = ("cpu_to_gpu", "gpu_to_cpu")


class TransferGroup(NamedTuple):
    """All copies of one direction, kind of memory and pair of devices."""

    direction: str
    device: int | None
    backend: str
    source: str | None  # "pageable", "pinned", "device", …; None where copies were only counted
    destination: str | None
    source_device: int | None
    destination_device: int | None
    count: int  # type: ignore[assignment]
    bytes: int
    total_ns: int
    small: int  # copies below 64 KiB; counted ones go by their average
    small_ns: int
    peak_bytes_per_s: float | None  # fastest single copy of at least 1 MiB
    link_bytes_per_s: float | None  # theoretical, of the PCIe link; None where unknown or not over PCIe

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        return self.bytes * 1e9 / self.total_ns if self.total_ns else None

    @property
    def pageable(self) -> bool:
        return "pageable" in (self.source, self.destination)

    @property
    def pinned(self) -> bool:
        return "pinned" in (self.source, self.destination)


def pcie_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """Theoretical payload rate of one direction: lanes × GT/s × line code ÷ 8; None where unknown."""
    if generation not in _PCIE or not width:
        return None
    rate, code = _PCIE[generation]
    return width * rate * 1e9 * code / 8


def link_peak(cards: Sequence[SampledCard], device: int | None) -> float | None:
    """Rate of the device's PCIe link from the monitor's samples; of the only card where the device is not known.

    The fastest generation seen, since links slow down while idle; else the maximum the device and slot allow.
    """
    mine = [card for card in cards if (card.number == device if device is not None else len(cards) == 1)]
    rates = [rate for card in mine for sample in card.samples if (rate := _rate(sample.pcie)) is not None]
    return max(rates, default=None)


def _rate(pcie: Pcie) -> float | None:
    return pcie_bytes_per_s(pcie.max_generation or pcie.generation, pcie.width or pcie.max_width)


class _Sums:
    __slots__ = ("bytes", "count", "peak", "small", "small_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.bytes = self.total_ns = self.small = self.small_ns = 0
        self.peak: float | None = None

    def add(self, count: int, size: int, spent: int) -> None:
        self.count += count
        self.bytes += size
        self.total_ns += spent
        if size < SMALL_BYTES * count:
            self.small += count
            self.small_ns += spent


_Key = tuple[str, "int | None", str, "str | None", "str | None", "int | None", "int | None"]


def transfers(session: Session) -> list[TransferGroup]:
    """Groups by falling time. Only copies timed by the device."""
    groups: dict[_Key, _Sums] = {}
    for record in session.records:
        if type(record) is GpuMemoryTransfer and record.timing == "device":
            sums = groups.setdefault(_key(record), _Sums())
            spent = max(0, (record.end_ns or 0) - record.start_ns)
            sums.add(1, record.bytes, spent)
            if record.bytes >= PEAK_BYTES and spent:
                sums.peak = max(sums.peak or 0.0, record.bytes * 1e9 / spent)
    for aggregate in session.aggregates:
        if aggregate.kind == "transfer" and aggregate.count and not timed_by_host(aggregate):
            groups.setdefault(_counted_key(aggregate), _Sums()).add(
                aggregate.count, aggregate.bytes, aggregate.total_ns
            )
    rows, cards = [], sampled(session)
    for key, sums in groups.items():
        link = link_peak(cards, key[1]) if key[0] in _HOST_DIRECTIONS else None
        rows.append(
            TransferGroup(*key, sums.count, sums.bytes, sums.total_ns, sums.small, sums.small_ns, sums.peak, link)
        )
    return sorted(rows, key=lambda row: -row.total_ns)


def _key(record: GpuMemoryTransfer) -> _Key:
    pair = (record.source_device, record.destination_device)
    return (record.direction, record.device, record.backend, record.source, record.destination, *pair)


def _counted_key(row: Aggregate) -> _Key:
    return (row.direction or row.name, row.device, row.backend, None, None, None, None)
