"""What the process did on the device, as totals and histograms: kept records as they pass, the rest from the tracer's
aggregates; imports no OpenTelemetry."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..._records.records import KINDS, GpuKernel, GpuMemoryTransfer, Record
from ._attributes import text
from ._histograms import DURATION_BOUNDS, MAX_PENDING, SIZE_BOUNDS, Family

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
