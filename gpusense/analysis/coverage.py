"""How much of the device its kernels could fill, from launch sizes alone: no hardware counters."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from .._records.device_identity import device_of
from .._records.occupancy import Limits, blocks_per_sm
from .._records.records import Dim3, GpuKernel
from ..session import Session
from .busy import window

_Launch = tuple["int | None", "Dim3 | None", "Dim3 | None", "int | None", "int | None", "int | None"]
_LAUNCH = "device", "grid", "block", "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes"
_launch: Callable[[GpuKernel], _Launch] = attrgetter(*_LAUNCH)
_span: Callable[[GpuKernel], tuple[int, int]] = attrgetter("start_ns", "end_ns")


class Coverage(NamedTuple):
    """Estimate for one device; see :func:`coverage` for what it is and is not."""

    device: int | None
    estimated_sm_coverage: float  # 0…1 of the window
    while_busy: float  # 0…1 of the time in which the considered kernels ran
    considered_ns: int  # summed duration of the kernels whose launch size was known
    kernel_ns: int  # summed duration of all kernels, counted ones included
    small_kernels: int  # considered kernels that could not fill the device even once


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
    shares: dict[_Launch, float | None] = {}
    known = [kernel for kernel in session.kernels if kernel.backend == "cuda"]
    if not any(kernel.grid is not None for kernel in known):
        return []
    for kernel in known:
        launch = _launch(kernel)
        if launch not in shares:
            device, grid, block, registers, static, dynamic = launch
            shares[launch] = _share(session, device, grid, block, registers, (static or 0) + (dynamic or 0))
        start, end = _span(kernel)
        length = end - start
        if length <= 0:
            continue
        device = launch[0]
        kernel_ns[device] = kernel_ns.get(device, 0) + length
        share = shares[launch]
        if not share:
            continue
        edges.setdefault(device, []).extend(((start, share), (end, -share)))
        sums = considered.setdefault(device, [0, 0])
        sums[0] += length
        sums[1] += share < 1
    for row in session.aggregates:
        if row.kind == "kernel" and row.backend == "cuda":
            kernel_ns[row.device] = kernel_ns.get(row.device, 0) + row.total_ns
    length = whole[1] - whole[0]
    rows = []
    for number, of in edges.items():
        covered, busy = _weigh(of)
        spent, small = considered[number]
        rows.append(
            Coverage(number, covered / length, covered / busy if busy else 0.0, spent, kernel_ns[number], small)
        )
    return rows


def _share(
    session: Session, number: int | None, grid: Dim3 | None, block: Dim3 | None, registers: int | None, shared: int
) -> float | None:
    """How many times a launch fills the device; None where too little is known."""
    device = device_of(session.devices, "cuda", number)
    limits = Limits.of(device) if device is not None else None
    if limits is None or device is None or not device.sm_count or grid is None or block is None:
        return None
    resident = blocks_per_sm(limits, block[0] * block[1] * block[2], registers or 0, shared)
    if not resident:  # it ran, so a limit is not known
        return None
    return grid[0] * grid[1] * grid[2] / (device.sm_count * resident)


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
