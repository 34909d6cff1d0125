"""How near work came to what the device can do, from work sizes its author gave: no counters, nothing guessed.

A kernel or block takes part if its attributes have ``flops`` (floating-point operations) and ``bytes`` (of device
memory moved). Attainable rate = min(peak, intensity × bandwidth), intensity = flops ÷ bytes (Williams, Waterman and
Patterson, CACM 52(4), 2009).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from .._records.device_identity import device_of
from .._records.records import BlockRecord, DeviceInfo, GpuKernel
from ..session import Session
from .blocks import BlockNode, block_tree

#: Single-precision lanes a multiprocessor, by compute capability (CUDA C++ Programming Guide, arithmetic throughput).
_LANES = {
    (5, 0): 128,
    (5, 2): 128,
    (6, 0): 64,
    (6, 1): 128,
    (7, 0): 64,
    (7, 5): 64,
    (8, 0): 64,
    (8, 6): 128,
    (8, 7): 128,
    (8, 9): 128,
    (9, 0): 128,
    (10, 0): 128,
    (12, 0): 128,
}


class Peaks(NamedTuple):
    """What a device can reach at most; None where it is not known."""

    flops_per_s: float | None  # single precision, without tensor cores
    bytes_per_s: float | None


class Point(NamedTuple):
    """One kernel name or block path against the device's roof."""

    kind: str  # "kernel" or "block"
    name: str
    flops: float
    bytes: float
    device_ns: int
    intensity: float | None  # flops a byte
    flops_per_s: float
    bytes_per_s: float
    attainable_flops_per_s: float | None  # None where a peak is not known
    bound: str | None  # "memory" or "compute"

    @property
    def share(self) -> float | None:
        """Of what is attainable. Above 1 the work used units that the peak does not count, such as tensor cores."""
        return self.flops_per_s / self.attainable_flops_per_s if self.attainable_flops_per_s else None


def peaks(device: DeviceInfo) -> Peaks:
    """Peak rates from clocks and widths: multiprocessors × lanes × 2 (a multiply-add) × clock, and 2 (both edges of
    the memory clock) × clock × bus width ÷ 8. None where a part is not known."""
    lanes = _LANES.get(device.compute_capability or (0, 0))
    flops = bandwidth = None
    if lanes and device.sm_count and device.clock_max_mhz:
        flops = device.sm_count * lanes * 2 * device.clock_max_mhz * 1e6
    if device.memory_clock_max_mhz and device.memory_bus_width_bits:
        bandwidth = 2 * device.memory_clock_max_mhz * 1e6 * device.memory_bus_width_bits / 8
    return Peaks(flops, bandwidth)


def roofline(session: Session) -> list[Point]:
    """Points for every kernel name and block path with sizes, longest first."""
    kernels: dict[tuple[str, int | None], list[float]] = {}
    blocks: dict[tuple[str, ...], list[float]] = {}
    for record in session.records:
        kind = type(record)
        if kind not in (GpuKernel, BlockRecord):
            continue
        sizes = _sizes(record.attributes)
        if sizes is None:
            continue
        if isinstance(record, GpuKernel):
            spent = max(0, record.end_ns - record.start_ns)
            sums = kernels.setdefault((record.name, record.device), [0.0, 0.0, 0.0])
        else:
            spent = 0
            sums = blocks.setdefault(record.path, [0.0, 0.0, 0.0])
        for at, value in enumerate((*sizes, spent)):
            sums[at] += value
    device_ns = {node.path: node.gpu_ns for node in _walk(block_tree(session))} if blocks else {}
    points = [_point(session, "kernel", name, device, *sums) for (name, device), sums in kernels.items()]
    points += [
        _point(session, "block", " › ".join(path), None, sums[0], sums[1], device_ns.get(path, 0))
        for path, sums in blocks.items()
    ]
    return sorted((point for point in points if point.device_ns), key=lambda point: -point.device_ns)


def _sizes(attributes: dict[str, Any] | None) -> tuple[float, float] | None:
    if not isinstance(attributes, dict):
        return None
    flops, size = attributes.get("flops"), attributes.get("bytes")
    if isinstance(flops, (int, float)) and isinstance(size, (int, float)) and flops >= 0 and size >= 0:
        return float(flops), float(size)
    return None


def _point(
    session: Session, kind: str, name: str, device: int | None, flops: float, size: float, spent: float
) -> Point:
    found = device_of(session.devices, "cuda", device)
    top = peaks(found) if found is not None else Peaks(None, None)
    intensity = flops / size if size else None
    attainable = bound = None
    if top.flops_per_s is not None and top.bytes_per_s is not None:
        slope = intensity * top.bytes_per_s if intensity is not None else top.flops_per_s
        attainable, bound = min(top.flops_per_s, slope), "memory" if slope < top.flops_per_s else "compute"
    seconds = spent / 1e9
    rates = (flops / seconds, size / seconds) if seconds else (0.0, 0.0)
    return Point(kind, name, flops, size, int(spent), intensity, *rates, attainable, bound)


def _walk(root: BlockNode) -> Iterator[BlockNode]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()
