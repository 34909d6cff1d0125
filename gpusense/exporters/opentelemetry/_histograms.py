"""What the process did on the device, as totals and histograms with a bounded number of series: kept records as they
pass, the rest from the tracer's aggregates; imports no OpenTelemetry.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..._records.records import KINDS, GpuKernel, GpuMemoryTransfer, Record
from ._attributes import text

#: Seconds: 1–2–5 steps from one microsecond to ten seconds.
DURATION_BOUNDS = (*(float(f"{step}e{power}") for power in range(-6, 1) for step in (1, 2, 5)), 10.0)
#: Bytes: factors of four from 256 B to 16 GiB.
SIZE_BOUNDS = tuple(float(256 * 4**power) for power in range(14))
OTHER = "other"
MAX_PENDING = 1024


class Example(NamedTuple):
    """A measurement that has a span. ``noted_ns``: when that was known; ``time_ns``: when it was made."""

    value: float
    time_ns: int
    trace_id: int
    span_id: int
    noted_ns: int


class Histogram:
    __slots__ = ("bounds", "count", "counts", "examples", "max", "min", "start_ns", "sum")

    def __init__(self, bounds: tuple[float, ...], start_ns: int) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0
        self.min = float("inf")
        self.max = float("-inf")
        self.start_ns = start_ns
        self.examples: dict[int, Example] = {}  # by bucket, the last of each

    def point_at(self, example: Example) -> None:
        self.examples[bisect_left(self.bounds, example.value)] = example

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
        self.examples |= other.examples

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
        self._of(device, name).add(value, count, total)

    def point_at(self, device: Any, name: str, example: Example) -> None:
        """Of a measurement that was added."""
        self._of(device, name).point_at(example)

    def _of(self, device: Any, name: str) -> Histogram:
        key = (device, name)
        histogram = self._own.get(key) or self._pending.get(key)
        if histogram is None:
            if len(self._pending) >= MAX_PENDING:
                return self._rest(device)
            histogram = self._pending[key] = Histogram(self._bounds, self._since_ns)
        return histogram

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


#: (kind, name, backend, device) → [count, total ns, bytes]
Tally = dict[tuple[str, str, str, Any], list[int]]
MAX_KEYS = 50_000


class Total(NamedTuple):
    kind: str
    device: Any
    count: int  # type: ignore[assignment]
    total_ns: int
    bytes: int


class Work:
    """Used by the worker alone. Sums and counts are exact; the bucket of a record below the tracer's threshold is the
    one of its operation's mean in that interval, because one by one they are never seen.
    """

    def __init__(self, top: int, now_ns: int) -> None:
        self.kernel_duration = Family(DURATION_BOUNDS, top, now_ns)
        self.transfer_duration = Family(DURATION_BOUNDS, top, now_ns)
        self.transfer_size = Family(SIZE_BOUNDS, top, now_ns)
        self._passed: Tally = {}
        self._unkept: Tally = {}
        self._totals: dict[tuple[str, Any], list[int]] = {}
        self.received = 0
        self._epoch: Any = None

    def baseline(self, session: Any) -> None:
        """Takes what the tracer has already as not ours to count."""
        for row in session.aggregates:
            _add(self._unkept, (row.kind, row.name, row.backend, row.device), row.count, row.total_ns, row.bytes)
        self.received = session.counters.kept
        self._epoch = session.meta.get("start_ns")
        _tally(self._passed, session.records)

    def add(self, records: Iterable[Record]) -> None:
        """Counts kept records; their times must be integers."""
        for record in records:
            self.received += 1
            kind = type(record)
            if kind is not GpuKernel and kind is not GpuMemoryTransfer:
                continue
            duration = record.end_ns - record.start_ns
            size = getattr(record, "bytes", 0)
            size = size if type(size) is int else 0
            key = (KINDS[kind], record.name, record.backend, record.device)  # type: ignore[union-attr]
            row = self._passed.get(key)
            if row is None:
                if len(self._passed) >= MAX_KEYS:
                    continue
                row = self._passed[key] = [0, 0, 0]
            row[0] += 1
            row[1] += duration
            row[2] += size
            self._count(key, 1, duration, size)

    def point_at(self, record: Record, trace_id: int, span_id: int, now_ns: int) -> None:
        """The span of a record that was added."""
        name, seconds = text(record.name, 120), (record.end_ns - record.start_ns) / 1e9
        example = Example(seconds, record.end_ns, trace_id, span_id, now_ns)
        if type(record) is GpuKernel:
            self.kernel_duration.point_at(record.device, name, example)
        elif type(record) is GpuMemoryTransfer:
            self.transfer_duration.point_at(record.device, name, example)
            size = float(record.bytes) if type(record.bytes) is int else 0.0  # as it was added
            self.transfer_size.point_at(record.device, name, example._replace(value=size))

    def absorb(self, session: Any) -> None:
        """Counts what the tracer only counted since the last call."""
        if session.meta.get("start_ns") != self._epoch:  # another tracer, or one that was reset
            self._epoch = session.meta.get("start_ns")
            self._passed, self._unkept, self.received = {}, {}, session.counters.kept
        found: Tally = {}
        for row in session.aggregates:
            if row.kind in ("kernel", "transfer"):
                _add(found, (row.kind, row.name, row.backend, row.device), row.count, row.total_ns, row.bytes)
        if session.counters.kept < self.received:
            self._without_demoted(found, session.records)
        for key, (count, total, size) in found.items():
            before = self._unkept.get(key, (0, 0, 0))
            gained = count - before[0]
            if gained > 0:
                self._unkept[key] = [count, total, size]
                self._count(key, gained, max(total - before[1], 0), max(size - before[2], 0))

    def totals(self) -> list[Total]:
        return [Total(kind, device, *row) for (kind, device), row in list(self._totals.items())]

    def _without_demoted(self, found: Tally, kept: Iterable[Record]) -> None:
        """Takes out of ``found`` what passed here already: the tracer's memory is bounded, and records that leave it
        are counted among the aggregates from then on.
        """
        still: Tally = {}
        _tally(still, kept)
        for key, row in found.items():
            passed, here = self._passed.get(key), still.get(key, (0, 0, 0))
            if passed is not None:
                for column in range(3):
                    row[column] -= max(passed[column] - here[column], 0)

    def _count(self, key: tuple[str, str, str, Any], count: int, total_ns: int, size: int) -> None:
        kind, name, _backend, device = key
        row = self._totals.get((kind, device))
        if row is None:
            if len(self._totals) >= MAX_PENDING:
                return
            row = self._totals[kind, device] = [0, 0, 0]
        row[0] += count
        row[1] += total_ns
        row[2] += size
        seconds = total_ns / 1e9
        shown = text(name, 120)
        if kind == "kernel":
            self.kernel_duration.add(device, shown, seconds / count, count, seconds)
        else:
            self.transfer_duration.add(device, shown, seconds / count, count, seconds)
            self.transfer_size.add(device, shown, size / count, count, size)


def _tally(tally: Tally, records: Iterable[Record]) -> None:
    for record in records:
        if type(record) is GpuKernel or type(record) is GpuMemoryTransfer:
            key = (KINDS[type(record)], record.name, record.backend, record.device)
            _add(tally, key, 1, record.end_ns - record.start_ns, getattr(record, "bytes", 0))


def _add(tally: Tally, key: tuple[str, str, str, Any], count: int, total_ns: int, size: Any) -> None:
    row = tally.setdefault(key, [0, 0, 0])
    row[0] += count
    row[1] += total_ns
    row[2] += size if type(size) is int else 0
