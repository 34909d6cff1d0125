"""Device metrics and memory over time, thinned to what a chart can show: highest and lowest of every bucket stay."""

import math
from collections.abc import Callable
from typing import Any

from .._metrics import GpuMetrics
from ..analysis.words import clean
from ..session import Session

_POINTS = 1_200

#: Label, unit, how to read it from a sample, upper end of the axis where it has one.
_CHARTS: tuple[tuple[str, str, Callable[[GpuMetrics], "float | None"], "float | None"], ...] = (
    ("GPU utilization", "%", lambda sample: sample.utilization.gpu_percent, 100),
    ("SM active", "%", lambda sample: sample.utilization.sm_active_percent, 100),
    ("Memory used", "B", lambda sample: sample.memory.used_bytes, None),
    ("Power", "W", lambda sample: sample.power.draw_watts, None),
    ("SM clock", "MHz", lambda sample: sample.clocks.sm_mhz, None),
    ("Temperature", "°C", lambda sample: sample.thermal.gpu_celsius, None),
    ("PCIe to the GPU", "B/s", lambda sample: sample.pcie.rx_bytes_per_s, None),
    ("PCIe to the host", "B/s", lambda sample: sample.pcie.tx_bytes_per_s, None),
)


def series(session: Session, start_ns: int, span: int) -> list[dict[str, Any]]:
    """Charts with at least two known points, by device."""
    by_device: dict[int, list[GpuMetrics]] = {}
    for sample in session.metrics:
        by_device.setdefault(sample.device.index, []).append(sample)
    charts = []
    for index, samples in sorted(by_device.items()):
        samples.sort(key=lambda sample: sample.time_ns)
        for label, unit, read, top in _CHARTS:
            points = [(sample.time_ns - start_ns, value) for sample in samples if _known(value := read(sample))]
            if len(points) >= 2 and any(value for _, value in points):
                charts.append(_chart(f"GPU {index}", label, unit, points, top))
    charts += _allocated(session, start_ns)
    return charts


def _known(value: "float | None") -> bool:
    return value is not None and math.isfinite(value)


def _allocated(session: Session, start_ns: int) -> list[dict[str, Any]]:
    live: dict[int | None, dict[int, int]] = {}
    points: dict[int | None, list[tuple[int, float]]] = {}
    totals: dict[int | None, int] = {}
    for record in sorted(session.allocations, key=lambda record: record.start_ns):
        held = live.setdefault(record.device, {})
        change = -held.pop(record.address, 0)
        if record.name == "alloc":
            held[record.address] = record.bytes
            change += record.bytes
        totals[record.device] = totals.get(record.device, 0) + change
        points.setdefault(record.device, []).append((record.start_ns - start_ns, totals[record.device]))
    return [
        _chart("GPU" if device is None else f"GPU {device}", "Allocated by this process", "B", of, None, step=True)
        for device, of in points.items()
        if len(of) >= 2
    ]


def _chart(
    device: str, label: str, unit: str, points: list[tuple[int, Any]], top: float | None, step: bool = False
) -> dict[str, Any]:
    kept = thin(points, _POINTS)
    return {
        "device": clean(device),
        "label": label,
        "unit": unit,
        "top": top,
        "step": step,
        "of": len(points),
        "t": [time for time, _ in kept],
        "v": [value for _, value in kept],
    }


def thin(points: list[tuple[int, Any]], limit: int) -> list[tuple[int, Any]]:
    """At most about ``limit`` points in order: first and last, and of every bucket the lowest and the highest."""
    if len(points) <= limit:
        return points
    buckets = max(1, limit // 2)
    kept = [points[0]]
    for number in range(buckets):
        low, high = number * len(points) // buckets, (number + 1) * len(points) // buckets
        part = range(low, high)
        places = {min(part, key=lambda at: points[at][1]), max(part, key=lambda at: points[at][1])}
        kept += [points[at] for at in sorted(places)]
    kept.append(points[-1])
    return kept
