"""Counting what is not kept: groups of equal operations, and unions of busy time. Pure."""

from bisect import bisect_left
from itertools import accumulate
from operator import le, mul, sub

from ._records import Aggregate, DeviceBusy, Path

#: (path, kind, name, backend, device, stream, direction)
GroupKey = tuple[Path, str, str, str, int | None, int | None, str | None]

MAX_GROUPS = 50_000
OTHER = "(other)"


#: count, total, min, max, sum of squares, bytes
Row = list[int]


def row_of(durations: list[int], size: int = 0) -> Row:
    """What a non-empty list of durations comes to."""
    squares = sum(map(mul, durations, durations))
    return [len(durations), sum(durations), min(durations), max(durations), squares, size]


def merge_row(into: Row, row: Row) -> None:
    into[0] += row[0]
    into[1] += row[1]
    if row[2] < into[2]:
        into[2] = row[2]
    if row[3] > into[3]:
        into[3] = row[3]
    into[4] += row[4]
    into[5] += row[5]


class Groups:
    """Count, total, extremes and sum of squares by group; exact integers; bounded number of groups."""

    __slots__ = ("_rows", "count")

    def __init__(self) -> None:
        self._rows: dict[GroupKey, list[int]] = {}
        self.count = 0

    def add(self, key: GroupKey, durations: list[int], size: int = 0) -> None:
        """Counts one operation for each duration; ``size``: their bytes together."""
        self.add_row(key, row_of(durations, size))

    def add_row(self, key: GroupKey, row: Row) -> None:
        """Counts what a row sums up."""
        mine = self._rows.get(key)
        if mine is None:
            if len(self._rows) >= MAX_GROUPS:
                key = (key[0][:1], key[1], OTHER, key[3], key[4], None, None)
            mine = self._rows.setdefault(key, [0, 0, row[2], row[3], 0, 0])
        merge_row(mine, row)
        self.count += row[0]

    def rows(self) -> list[Aggregate]:
        return [
            Aggregate(*key[:6], row[0], row[1], row[2], row[3], row[4], row[5], key[6])
            for key, row in list(self._rows.items())
        ]


#: Records arrive at most this much later than work that ended before it; intervals older than that are summed up.
LATENESS_NS = 2_000_000_000
FOLD_AT = 65_536  # intervals held before older ones are summed up


class IntervalUnion:
    """Total length of a union of intervals that arrive roughly in order, in bounded memory.

    Exact as long as none arrives more than :data:`LATENESS_NS` after one that ended later; beyond that it counts only
    where it reaches past what is summed up already.
    """

    __slots__ = ("_ends", "_folded", "_frontier", "_sorted", "_starts", "first", "last")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._sorted = True
        self._folded = 0
        self._frontier = -1  # everything before is summed up
        self.first: int | None = None
        self.last: int | None = None

    def add(self, starts: list[int], ends: list[int]) -> None:
        """Intervals as two columns of equal length."""
        if not starts:
            return
        held = self._starts
        if self._sorted:
            follows = not held or starts[0] >= held[-1]
            self._sorted = follows and all(map(le, starts, starts[1:]))
        held.extend(starts)
        self._ends.extend(ends)
        low, high = min(starts), max(ends)
        if self.first is None or low < self.first:
            self.first = low
        if self.last is None or high > self.last:
            self.last = high
        if len(held) > FOLD_AT:
            self._fold()

    def _sort(self) -> None:
        if not self._sorted:
            pairs = sorted(zip(self._starts, self._ends, strict=True))
            self._starts[:] = [start for start, _ in pairs]
            self._ends[:] = [end for _, end in pairs]
            self._sorted = True

    def _fold(self) -> None:
        """Sums up what began long before the newest end; all of it but the newest where that is not enough."""
        self._sort()
        assert self.last is not None
        count = bisect_left(self._starts, self.last - LATENESS_NS)
        if count < len(self._starts) // 2:
            count = len(self._starts) // 2
        starts, ends = self._starts[:count], self._ends[:count]
        self._folded += union_ns(starts, ends, self._frontier)
        self._frontier = max(self._frontier, *ends)
        del self._starts[:count], self._ends[:count]

    def total_ns(self) -> int:
        self._sort()
        return self._folded + union_ns(self._starts, self._ends, self._frontier)


def union_ns(starts: list[int], ends: list[int], frontier: int = -1) -> int:
    """Length of the union of intervals sorted by start, of what lies after ``frontier``."""
    if not starts:
        return 0
    if starts[0] >= frontier and all(map(le, ends, starts[1:])):
        return sum(ends) - sum(starts)
    reach = list(accumulate(ends, max, initial=frontier))
    return sum(map(sub, reach[1:], map(max, starts, reach)))


class Busy:
    """Busy time of every device: union over kernels, over copies, over both."""

    __slots__ = ("_devices",)

    def __init__(self) -> None:
        self._devices: dict[tuple[str, int | None], tuple[IntervalUnion, IntervalUnion, IntervalUnion]] = {}

    def add(self, backend: str, device: int | None, kernels: bool, starts: list[int], ends: list[int]) -> None:
        unions = self._devices.get((backend, device))
        if unions is None:
            unions = self._devices[backend, device] = (IntervalUnion(), IntervalUnion(), IntervalUnion())
        unions[0 if kernels else 1].add(starts, ends)
        unions[2].add(starts, ends)

    def rows(self) -> list[DeviceBusy]:
        return [
            DeviceBusy(
                device,
                kernels.total_ns(),
                transfers.total_ns(),
                everything.total_ns(),
                everything.first,
                everything.last,
                backend,
            )
            for (backend, device), (kernels, transfers, everything) in list(self._devices.items())
        ]
