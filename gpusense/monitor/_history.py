"""The last samples of every device, and what can be asked about them: the newest, statistics, energy, idleness.

In statistics each pair of neighbouring samples covers the time between them with a straight line. Time that nobody
watched (a gap longer than ``longest_gap_ns``, a suspended machine, a sample without the value) is left out and shows in
``covered_seconds``.
"""

import collections
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .._records import device_identity
from .._records.metrics import GROUPS, GpuMetrics, without_values
from .._records.records import DeviceInfo
from .._runtime import threads
from ._sampler import SECOND, Clock

_LONGEST_S = 1e9  # asked for; longer ones are as long
_STRONGEST_WATTS = 20_000.0  # beyond which a step of an energy counter is none of energy
_SCOPES = {"module": " of the whole module", "package": " of the package only"}

Point = tuple[int, float]  # monotonic nanoseconds, value


class Statistic(NamedTuple):
    """One number of a device over an interval, in the unit that its field's name ends with. Mean and percentiles are
    weighted by time.
    """

    mean: float
    min: float
    max: float
    p50: float
    p95: float
    p99: float
    samples: int  # that had the value
    covered_seconds: float  # of the interval, between samples close enough to each other


class Window(NamedTuple):
    """Statistics and energy of one device between two moments, as :meth:`Monitor.window` gives them.

    ``statistics`` has the fields that had values at all. ``energy_joules`` is None with a reason where the device gives
    neither an energy counter nor its power.
    """

    device: DeviceInfo
    start_ns: int  # wall clock, as ``time.time_ns()``
    end_ns: int
    samples: int
    covered_seconds: float  # of the interval, between samples close enough to each other
    statistics: dict[str, Statistic]  # "utilization.gpu_percent" → …, only fields that had values
    energy_joules: float | None = None
    energy_method: str | None = None  # the device's counter, or integrated power
    energy_reason: str | None = None  # why there is no energy
    own_energy_joules: float | None = None  # energy × the share of device-busy time that is this process's own
    own_energy_method: str | None = None


class History:
    """Up to ``room`` samples a device, taken each ``interval_ns``. Every method may be called from any thread."""

    def __init__(self, room: int, interval_ns: int, clock: Clock) -> None:
        self.interval_ns = interval_ns
        self._clock = clock
        self._room = room
        self._lock = threads.rlock()
        self._samples: dict[tuple[int, str], collections.deque[GpuMetrics]] = {}
        self._taken = 0
        self._stopped = False  # no more samples will come

    def latest(self) -> tuple[GpuMetrics, ...]:
        """The newest sample of every device that has one.

        A device whose sample is old, because its driver does not return, is "degraded" and without values.
        """
        now = self._clock.monotonic_ns()
        with self._lock:
            newest = [samples[-1] for _, samples in sorted(self._samples.items()) if samples]
        patience = max(5 * self.interval_ns, 2 * SECOND)
        return tuple(
            sample
            if self._stopped or now - sample.monotonic_ns <= patience
            else without_values(sample, "degraded", f"stale: no sample for {(now - sample.monotonic_ns) / 1e9:.1f} s")
            for sample in newest
        )

    def history(self, seconds: float | None = None, device: int | DeviceInfo | None = None) -> tuple[GpuMetrics, ...]:
        """Samples of the last ``seconds`` (all kept ones by default), oldest first, of every device or of one."""
        start = None if seconds is None else self._clock.monotonic_ns() - _nanoseconds(seconds)
        with self._lock:
            every = [list(samples) for key, samples in self._samples.items() if _is_meant(key, device)]
        if start is not None:
            every = [samples[bisect_left(samples, start, key=_taken_ns) :] for samples in every]
        if len(every) == 1:
            return tuple(every[0])
        kept = [sample for samples in every for sample in samples]
        return tuple(sorted(kept, key=lambda sample: (sample.monotonic_ns, sample.device.index)))

    def window(
        self,
        start_ns: int | None = None,
        end_ns: int | None = None,
        *,
        seconds: float | None = None,
        device: int | DeviceInfo | None = None,
        own_busy_share: float | None = None,
    ) -> tuple[Window, ...]:
        """Statistics and energy of every device between two wall-clock times (``time.time_ns()``), or of the last
        ``seconds``; all history by default.

        ``own_busy_share`` (0…1): the share of the device's busy time that is this process's own kernels; the window
        then carries that share of the energy, labelled as an estimate.
        """
        now, recently = self._clock.time_ns(), None
        if seconds is not None:  # by the clock that nobody sets
            start_ns = end_ns = None
            recently = self._clock.monotonic_ns() - _nanoseconds(seconds)
        with self._lock:
            kept = {
                key: list(samples)
                for key, samples in sorted(self._samples.items())
                if samples and _is_meant(key, device)
            }
        longest = max(3 * self.interval_ns, SECOND // 2)
        found = []
        for samples in kept.values():
            first_ns = samples[0].time_ns if seconds is None else now - _nanoseconds(seconds)
            recent = [one for one in samples if recently is None or one.monotonic_ns >= recently]
            one = window(recent, samples[-1].device, start_ns, end_ns, longest, own_busy_share)
            found.append(
                one._replace(
                    start_ns=first_ns if start_ns is None else start_ns, end_ns=now if end_ns is None else end_ns
                )
            )
        return tuple(found)

    def idle_for(self, seconds: float, below: float = 5.0, device: int | DeviceInfo | None = None) -> bool:
        """True where every watched device (or one) was at or below ``below`` percent for all of the last ``seconds``.

        What is unknown is not idle: no samples, a history too short, a device that gives no utilization. A sleeping
        device is idle.
        """
        length = _nanoseconds(seconds)
        start = self._clock.monotonic_ns() - length
        with self._lock:
            watched = [list(samples) for key, samples in self._samples.items() if _is_meant(key, device)]
        if not watched:
            return False
        slack = 2 * self.interval_ns
        for samples in watched:
            recent = [sample for sample in samples if sample.monotonic_ns >= start]
            if not recent or (samples[0].monotonic_ns > start + slack):
                return False
            if recent[-1].monotonic_ns < start + length - max(slack, SECOND):
                return False
            if not all(_is_idle(sample, below) for sample in recent):
                return False
        return True

    def _remember(self, sample: GpuMetrics) -> None:
        """Takes one sample, under the lock."""
        key = device_identity.key(sample.device)
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = collections.deque(maxlen=self._room)
        samples.append(sample)
        self._taken += 1


def _is_meant(key: tuple[int, str], device: int | DeviceInfo | None) -> bool:
    """Whether what has ``key`` is the device that was asked for: by its index, by itself, or any."""
    if isinstance(device, DeviceInfo):
        return key == device_identity.key(device)
    return device is None or device == key[0]


def _taken_ns(sample: GpuMetrics) -> int:
    return sample.monotonic_ns


def _is_idle(sample: GpuMetrics, below: float) -> bool:
    busy = sample.utilization.gpu_percent
    return sample.state == "sleeping" or (busy is not None and busy <= below)


def _nanoseconds(seconds: float) -> int:
    """Raises TypeError for what is no number, ValueError for NaN."""
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"seconds must be a number, not {seconds!r}")
    return int(max(-_LONGEST_S, min(seconds, _LONGEST_S)) * SECOND)


def window(
    samples: Sequence[GpuMetrics],
    device: DeviceInfo,
    start_ns: int | None,
    end_ns: int | None,
    longest_gap_ns: int,
    own_busy_share: float | None = None,
) -> Window:
    """The statistics of one device's ``samples``, in the order they were taken, between two wall-clock times; None: no
    bound."""
    inside = _between(samples, start_ns, end_ns, longest_gap_ns)
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


def _between(
    samples: Sequence[GpuMetrics], start_ns: int | None, end_ns: int | None, longest_gap_ns: int
) -> Sequence[GpuMetrics]:
    """The samples from one wall-clock time to another, all that were taken in between whatever that clock did.

    A time that the clock told twice, because it was set back, is the last such moment; the start lies before the end.
    """
    end = len(samples)
    if end_ns is not None:
        end = _last_crossing(samples, end_ns + 1, end, longest_gap_ns)
    start = 0 if start_ns is None else _last_crossing(samples, start_ns, end, longest_gap_ns)
    return samples[start:end]


def _last_crossing(samples: Sequence[GpuMetrics], time_ns: int, end: int, longest_gap_ns: int) -> int:
    """How many of the first ``end`` samples lie before the last moment at which the wall clock came to ``time_ns``."""
    for place in range(end, 0, -1):
        before = samples[place - 1]
        if before.time_ns >= time_ns:
            continue
        # Up to the next sample the clock went on by as much as the monotonic one, or was set.
        came_to = before.time_ns + longest_gap_ns
        if place < len(samples):
            after = samples[place]
            came_to = max(after.time_ns, before.time_ns + after.monotonic_ns - before.monotonic_ns)
        if came_to >= time_ns:
            return place
    return end if end and samples[end - 1].time_ns < time_ns else 0


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

    The device's own counter where it was read twice in the interval, with power integrated before its first and after
    its last reading; else power integrated throughout.
    """
    powers = [(s.monotonic_ns, s.power.draw_watts) for s in samples if s.power.draw_watts is not None]
    readings = _counter_readings(samples)
    if len(readings) >= 2:
        (first, low), (last, high) = readings[0], readings[-1]
        edges = integral([p for p in powers if p[0] <= first], longest_gap_ns)
        edges += integral([p for p in powers if p[0] >= last], longest_gap_ns)
        scopes = {s.power.scope for s in samples}
        note = next((words for scope, words in _SCOPES.items() if scope in scopes), "")
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
    """Distinct readings of the energy counter; begins anew where it was reset or jumped."""
    readings: list[Point] = []
    for sample in samples:
        joules, when = sample.power.energy_joules, sample.power.energy_monotonic_ns
        if joules is None or when is None or when < sample.monotonic_ns - 60_000_000_000:
            continue
        if (
            readings
            and not 0 <= joules - readings[-1][1] <= _STRONGEST_WATTS * max(when - readings[-1][0], SECOND) / 1e9
        ):
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
