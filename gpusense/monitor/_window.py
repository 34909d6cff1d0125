"""Statistics over a stretch of samples: time-weighted mean, extremes, percentiles, energy. Pure.

Each pair of neighbouring samples covers the time between them with a straight line. Time that nobody watched (a gap
longer than ``longest_gap_ns``, a suspended machine, a sample without the value) is left out and shows in
``covered_seconds``.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .._records.metrics import GROUPS, GpuMetrics
from .._records.records import DeviceInfo

Point = tuple[int, float]  # monotonic nanoseconds, value


class Statistic(NamedTuple):
    """One number over a stretch of time. Percentiles are weighted by time as the mean is."""

    mean: float
    min: float
    max: float
    p50: float
    p95: float
    p99: float
    samples: int
    covered_seconds: float


class Window(NamedTuple):
    """One device between two moments."""

    device: DeviceInfo
    start_ns: int  # wall clock
    end_ns: int
    samples: int
    covered_seconds: float
    statistics: dict[str, Statistic]  # "utilization.gpu_percent" → …, only fields that had values
    energy_joules: float | None = None
    energy_method: str | None = None
    energy_reason: str | None = None  # why there is no energy
    own_energy_joules: float | None = None  # energy × the share of device-busy time that is this process's own
    own_energy_method: str | None = None


def window(
    samples: Sequence[GpuMetrics],
    device: DeviceInfo,
    start_ns: int | None,
    end_ns: int | None,
    longest_gap_ns: int,
    own_busy_share: float | None = None,
) -> Window:
    """The statistics of one device's ``samples`` between two wall-clock times, in the order they were taken.

    None: no bound, whatever the wall clock said in between.
    """
    inside = [
        sample
        for sample in samples
        if (start_ns is None or start_ns <= sample.time_ns) and (end_ns is None or sample.time_ns <= end_ns)
    ]
    if start_ns is None:
        start_ns = inside[0].time_ns if inside else end_ns or 0
    if end_ns is None:
        end_ns = inside[-1].time_ns if inside else start_ns
    statistics = {}
    for field, series in _series(inside):
        found = statistic(series, longest_gap_ns)
        if found is not None:
            statistics[field] = found
    energy, method, reason = energy_joules(inside, longest_gap_ns)
    own = None if energy is None or own_busy_share is None else energy * min(max(own_busy_share, 0.0), 1.0)
    return Window(
        device,
        start_ns,
        end_ns,
        len(inside),
        sum(b - a for a, b in _pairs([sample.monotonic_ns for sample in inside], longest_gap_ns)) / 1e9,
        statistics,
        energy,
        method,
        reason,
        own,
        None if own is None else "estimate: the device's energy × this process's share of its busy time",
    )


def statistic(points: Sequence[Point], longest_gap_ns: int) -> Statistic | None:
    """Time-weighted statistics of one series; a single sample counts as itself with no time covered."""
    if not points:
        return None
    weights = [0.0] * len(points)
    area = covered = 0.0
    for i in range(1, len(points)):
        step = points[i][0] - points[i - 1][0]
        if 0 < step <= longest_gap_ns:
            area += step * (points[i][1] + points[i - 1][1]) / 2
            covered += step
            weights[i - 1] += step / 2
            weights[i] += step / 2
    values = [value for _, value in points]
    if not covered:
        weights = [1.0] * len(points)
    mean = area / covered if covered else sum(values) / len(values)
    mean = min(max(mean, min(values)), max(values))  # rounding must not leave the range
    at = _weighted(values, weights)
    return Statistic(mean, min(values), max(values), at(0.5), at(0.95), at(0.99), len(points), covered / 1e9)


def energy_joules(samples: Sequence[GpuMetrics], longest_gap_ns: int) -> tuple[float | None, str | None, str | None]:
    """(joules, how they were found, why there are none).

    The device's own counter where it was read twice in the stretch, with power integrated before its first and after
    its last reading; else power integrated throughout.
    """
    powers = [(s.monotonic_ns, s.power.draw_watts) for s in samples if s.power.draw_watts is not None]
    readings = _counter_readings(samples)
    if len(readings) >= 2:
        (first, low), (last, high) = readings[0], readings[-1]
        edges = integral([p for p in powers if p[0] <= first], longest_gap_ns)
        edges += integral([p for p in powers if p[0] >= last], longest_gap_ns)
        note = " of the whole module" if any(s.power.scope == "module" for s in samples) else ""
        return high - low + edges, f"counter{note}, {(last - first) / 1e9:.1f} s; the edges integrated from power", None
    if len(powers) < 2:
        reasons = [s.reason("power.draw_watts") for s in samples]
        return None, None, next((why for why in reasons if why), "stale: fewer than two samples")
    spans = {s.power.draw_window_s for s in samples if s.power.draw_watts is not None}
    kind = "instantaneous power" if spans == {0.0} else "power averaged by the driver"
    return integral(powers, longest_gap_ns), f"integrated from {kind}", None


def integral(points: Sequence[Point], longest_gap_ns: int) -> float:
    """Value × seconds under the straight lines between neighbouring points."""
    total = 0.0
    for (t0, v0), (t1, v1) in itertools.pairwise(points):
        if 0 < t1 - t0 <= longest_gap_ns:
            total += (t1 - t0) * (v0 + v1) / 2e9
    return total


def _counter_readings(samples: Iterable[GpuMetrics]) -> list[Point]:
    """Distinct readings of the energy counter; begins anew where it was reset."""
    readings: list[Point] = []
    for sample in samples:
        joules, when = sample.power.energy_joules, sample.power.energy_monotonic_ns
        if joules is None or when is None or when < sample.monotonic_ns - 60_000_000_000:
            continue
        if readings and joules < readings[-1][1]:
            readings = []
        if not readings or when > readings[-1][0]:
            readings.append((when, joules))
    if readings and samples:
        first = next(iter(samples)).monotonic_ns
        readings = [reading for reading in readings if reading[0] >= first]
    return readings


def _series(samples: Sequence[GpuMetrics]) -> Iterable[tuple[str, list[Point]]]:
    for group, empty in GROUPS.items():
        for place, name in enumerate(empty._fields):
            if name.endswith("_ns"):
                continue
            points = [(s.monotonic_ns, float(v)) for s in samples if _is_number(v := getattr(s, group)[place])]
            if points:
                yield f"{group}.{name}", points


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _pairs(times: Sequence[int], longest_gap_ns: int) -> Iterable[tuple[int, int]]:
    return [(a, b) for a, b in itertools.pairwise(times) if 0 < b - a <= longest_gap_ns]


def _weighted(values: Sequence[float], weights: Sequence[float]) -> Callable[[float], float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    total = sum(weights)

    def at(share: float) -> float:
        reached = 0.0
        for i in order:
            reached += weights[i]
            if reached >= share * total and weights[i]:
                return values[i]
        return values[order[-1]]

    return at
