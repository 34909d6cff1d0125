"""How much of the device its kernels could fill, from launch sizes alone: no hardware counters."""

from typing import NamedTuple

from .._occupancy import Limits, blocks_per_sm
from .._records import DeviceInfo, GpuKernel
from ..session import Session
from .busy import window


class Coverage(NamedTuple):
    """Estimate for one device; see :func:`coverage` for what it is and is not."""

    device: int | None
    estimated_sm_coverage: float  # 0…1 of the window
    while_busy: float  # 0…1 of the time in which the considered kernels ran
    considered_ns: int  # summed duration of the kernels whose launch size was known
    kernel_ns: int  # summed duration of all kernels, counted ones included
    small_kernels: int  # considered kernels that could not fill the device even once


def device_of(session: Session, number: int | None) -> DeviceInfo | None:
    """The device a record's ``device`` number means: by CUDA ordinal, else by index; the only one where it is None."""
    if number is None:
        return session.devices[0] if len(session.devices) == 1 else None
    for device in session.devices:
        if device.cuda_index == number:
            return device
    return next((device for device in session.devices if device.cuda_index is None and device.index == number), None)


def coverage(session: Session) -> list[Coverage]:
    """Time-weighted min(1, Σ blocks / (multiprocessors × blocks per multiprocessor)) over concurrent kernels.

    An upper bound of how much of the device had work: it knows how many blocks were launched, not how long each
    lived. 30 % says that the launches are too small; 100 % does not say that the device was used well.
    """
    whole = window(session)
    if whole is None:
        return []
    edges: dict[int | None, list[tuple[int, float]]] = {}
    considered: dict[int | None, list[int]] = {}
    kernel_ns: dict[int | None, int] = {}
    for kernel in session.kernels:
        if kernel.backend != "cuda":
            continue
        length = max(0, kernel.end_ns - kernel.start_ns)
        kernel_ns[kernel.device] = kernel_ns.get(kernel.device, 0) + length
        share = _share(session, kernel)
        if share is None or not length:
            continue
        edges.setdefault(kernel.device, []).extend(((kernel.start_ns, share), (kernel.end_ns, -share)))
        sums = considered.setdefault(kernel.device, [0, 0])
        sums[0] += length
        sums[1] += share < 1
    for row in session.aggregates:
        if row.kind == "kernel" and row.backend == "cuda":
            kernel_ns[row.device] = kernel_ns.get(row.device, 0) + row.total_ns
    length = whole[1] - whole[0]
    rows = []
    for device, of in edges.items():
        covered, busy = _weigh(of)
        spent, small = considered[device]
        rows.append(
            Coverage(device, covered / length, covered / busy if busy else 0.0, spent, kernel_ns[device], small)
        )
    return rows


def _share(session: Session, kernel: GpuKernel) -> float | None:
    device = device_of(session, kernel.device)
    limits = Limits.of(device) if device is not None else None
    if limits is None or device is None or not device.sm_count or kernel.grid is None or kernel.block is None:
        return None
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    shared = kernel.static_shared_bytes or 0, kernel.dynamic_shared_bytes or 0
    resident = blocks_per_sm(limits, threads, kernel.registers_per_thread or 0, *shared)
    if not resident:  # it ran, so a limit is not known
        return None
    return kernel.grid[0] * kernel.grid[1] * kernel.grid[2] / (device.sm_count * resident)


def _weigh(edges: list[tuple[int, float]]) -> tuple[float, int]:
    """Integral of min(1, running sum), and the time in which anything ran."""
    edges.sort()
    covered, busy, at, running, open_count = 0.0, 0, edges[0][0], 0.0, 0
    for time, share in edges:
        if open_count:
            covered += min(1.0, running) * (time - at)
            busy += time - at
        at = time
        running += share
        open_count += 1 if share > 0 else -1
    return covered, busy
