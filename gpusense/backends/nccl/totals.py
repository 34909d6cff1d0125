"""Sums of collectives by function and communicator: what metrics are read from, with no record kept. Pure."""

from collections.abc import Iterable

from ..._records.metrics import CollectiveTotals
from ..._records.records import GpuCollective, bus_factor

#: Bandwidth is that of the stretch of so long that is under way, and of the one before it.
STRETCH_NS = 10_000_000_000
#: Functions of communicators that are kept apart; those that ended longest ago are forgotten.
MOST = 2_000

#: What tells sums apart.
Key = tuple[str, str | None, int | None]


class _Sum:
    __slots__ = ("before", "before_ns", "bytes", "calls", "first", "now", "now_ns", "since_ns", "time_ns", "timed")

    def __init__(self, first: GpuCollective, now_ns: int) -> None:
        self.first = first._replace(channels=())  # whose names all the others have, too
        self.calls = self.timed = self.time_ns = 0
        self.bytes: int | None = None
        self.since_ns = now_ns  # the stretch that is under way; of it and of the one before, bytes of a bus and time
        self.now = self.before = 0.0
        self.now_ns = self.before_ns = 0

    def turn(self, now_ns: int) -> None:
        """A new stretch, where it is time for one."""
        if now_ns - self.since_ns >= STRETCH_NS:
            recent = now_ns - self.since_ns < 2 * STRETCH_NS
            self.before, self.before_ns = (self.now, self.now_ns) if recent else (0.0, 0)
            self.now, self.now_ns, self.since_ns = 0.0, 0, now_ns


class Totals:
    """Adds records up. Used by one thread at a time, but for :meth:`rows`, which any may ask."""

    def __init__(self) -> None:
        self._sums: dict[Key, _Sum] = {}

    def add(self, records: Iterable[GpuCollective], now_ns: int) -> None:
        """``now_ns``: of a clock that is not set."""
        for record in records:
            key = key_of(record)
            one = self._sums.pop(key, None) or _Sum(record, now_ns)
            self._sums[key] = one  # the newest last
            one.turn(now_ns)
            one.calls += 1
            size, length = record.bytes, record.duration_ns
            if size is not None:
                one.bytes = (one.bytes or 0) + size
            if length is not None:
                one.timed += 1
                one.time_ns += length
                if size is not None and record.ranks:
                    one.now += size * bus_factor(record.name, record.ranks)
                    one.now_ns += length
        while len(self._sums) > MOST:
            del self._sums[next(iter(self._sums))]

    def rows(self, now_ns: int, waits: Iterable[tuple[GpuCollective, int]]) -> list[CollectiveTotals]:
        """All sums. ``waits``: what the device is in and has not ended, each with how long that has been so."""
        sums = dict(self._sums)
        longest: dict[Key, int] = {}
        for record, waiting_ns in waits:
            key = key_of(record)
            sums.setdefault(key, _Sum(record, now_ns))
            longest[key] = max(waiting_ns, longest.get(key, 0))
        return [_row(one, now_ns, longest.get(key)) for key, one in sums.items()]


def key_of(record: GpuCollective) -> Key:
    return record.name, record.communicator, record.rank


def _row(one: _Sum, now_ns: int, waiting_ns: int | None) -> CollectiveTotals:
    first = one.first
    recent = now_ns - one.since_ns < 2 * STRETCH_NS
    length_ns = one.now_ns + one.before_ns if recent else 0
    return CollectiveTotals(
        first.name,
        first.communicator,
        first.communicator_name,
        first.rank,
        first.ranks,
        one.calls,
        one.bytes,
        one.timed,
        one.time_ns,
        (one.now + one.before) * 1e9 / length_ns if length_ns else None,
        waiting_ns,
    )
