"""Durations and sizes counted into buckets as they pass, with a bounded number of series; imports no OpenTelemetry."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

#: Seconds: 1–2–5 steps from one microsecond to ten seconds.
DURATION_BOUNDS = (*(float(f"{step}e{power}") for power in range(-6, 1) for step in (1, 2, 5)), 10.0)
#: Bytes: factors of four from 256 B to 16 GiB.
SIZE_BOUNDS = tuple(float(256 * 4**power) for power in range(14))
OTHER = "other"
MAX_PENDING = 1024


class Histogram:
    __slots__ = ("bounds", "count", "counts", "max", "min", "start_ns", "sum")

    def __init__(self, bounds: tuple[float, ...], start_ns: int) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0
        self.min = float("inf")
        self.max = float("-inf")
        self.start_ns = start_ns

    def add(self, value: float, count: int = 1, total: float | None = None) -> None:
        """``count`` measurements of ``value`` each; ``total`` where their sum is known better than that."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.count += count
        self.sum += value * count if total is None else total
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    def merge(self, other: "Histogram") -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.sum += other.sum
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)

    def copy(self) -> "Histogram":
        twin = Histogram(self.bounds, self.start_ns)
        twin.merge(self)
        return twin


class Series(NamedTuple):
    device: Any
    name: str
    histogram: Histogram


class Family:
    """Histograms by (device, name): the ``top`` names of a device by time have their own, the rest share "other".

    A name is admitted when values are read, by what it gathered since the last reading, and keeps its series for good,
    so that no series ever goes backwards.
    """

    def __init__(self, bounds: tuple[float, ...], top: int, now_ns: int) -> None:
        self._bounds = bounds
        self._top = top
        self._since_ns = now_ns
        self._pending: dict[tuple[Any, str], Histogram] = {}
        self._own: dict[tuple[Any, str], Histogram] = {}
        self._other: dict[Any, Histogram] = {}
        self._start_ns = now_ns

    def add(self, device: Any, name: str, value: float, count: int = 1, total: float | None = None) -> None:
        key = (device, name)
        histogram = self._own.get(key) or self._pending.get(key)
        if histogram is None:
            if len(self._pending) < MAX_PENDING:
                histogram = self._pending[key] = Histogram(self._bounds, self._since_ns)
            else:
                histogram = self._rest(device)
        histogram.add(value, count, total)

    def read(self, now_ns: int) -> list[Series]:
        """Every series, cumulative since its start."""
        taken: dict[Any, int] = {}
        for device, _name in self._own:
            taken[device] = taken.get(device, 0) + 1
        for key, histogram in sorted(self._pending.items(), key=lambda item: item[1].sum, reverse=True):
            device = key[0]
            if taken.get(device, 0) < self._top:
                taken[device] = taken.get(device, 0) + 1
                self._own[key] = histogram
            else:
                self._rest(device).merge(histogram)
        self._pending = {}
        self._since_ns = now_ns
        return list(self._series())

    def _rest(self, device: Any) -> Histogram:
        return self._other.setdefault(device, Histogram(self._bounds, self._start_ns))

    def _series(self) -> Iterator[Series]:
        for (device, name), histogram in self._own.items():
            yield Series(device, name, histogram)
        for device, histogram in self._other.items():
            yield Series(device, OTHER, histogram)


class Deltas:
    """What each series gained since the last call, for readers that want deltas."""

    def __init__(self) -> None:
        self._last: dict[Any, tuple[Histogram, int]] = {}

    def of(self, series: Iterable[Series], now_ns: int) -> list[Series]:
        changed = []
        for device, name, histogram in series:
            key = (device, name)
            before, since_ns = self._last.get(key, (None, histogram.start_ns))
            gained = histogram.copy()
            if before is not None:
                gained.counts = [now - then for now, then in zip(histogram.counts, before.counts, strict=True)]
                gained.count -= before.count
                gained.sum -= before.sum
            gained.start_ns = since_ns
            self._last[key] = (histogram.copy(), now_ns)
            if gained.count:
                changed.append(Series(device, name, gained))
        return changed
