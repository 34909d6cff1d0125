"""Counting what is not kept: groups of equal operations, and unions of busy time. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from math import hypot
from operator import itemgetter, le, mul, sub
from typing import NamedTuple

from ._records import Aggregate, DeviceBusy, Path

#: (path, kind, name, backend, device, stream, direction, source_line, owner)
GroupKey = tuple[Path, str, str, str, int | None, int | None, str | None, str | None, Path | None]

MAX_GROUPS = 50_000
OTHER = "(other)"


#: count, total, min, max, sum of squares, bytes
Row = list[int]


#: Up to this, a sum of squares that is rounded from its root is exact: the root is wrong by less than one unit in its
#: last place (so Python's documentation of ``hypot``), its square by less than 1.3 in 2**51.
_EXACT_FROM_ROOT = 2**48
_SHORT = 100  # so many are sorted sooner than looked at twice


def row_of(durations: list[int], size: int = 0) -> Row:
    """What a non-empty list of durations comes to."""
    count = len(durations)
    if count <= _SHORT:
        ordered = sorted(durations)
        least, most = ordered[0], ordered[-1]
    else:
        least, most = min(durations), max(durations)
    return [count, sum(durations), least, most, _sum_of_squares(durations, count * most * most), size]


def _sum_of_squares(durations: list[int], bound: int) -> int:
    """``bound``: it is not more than that."""
    if bound > _EXACT_FROM_ROOT:
        return sum(map(mul, durations, durations))
    root = hypot(*durations)  # makes no number of each square, and so takes a fifth of the time
    return round(root * root)


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
                key = (key[0][:1], key[1], OTHER, key[3], key[4], None, None, None, None)
                if len(self._rows) >= 2 * MAX_GROUPS and key not in self._rows:  # each root block has a name of its own
                    key = ((OTHER,), *key[1:])
            mine = self._rows.setdefault(key, [0, 0, row[2], row[3], 0, 0])
        merge_row(mine, row)
        self.count += row[0]

    def rows(self) -> list[Aggregate]:
        return [
            Aggregate(*key[:6], row[0], row[1], row[2], row[3], row[4], row[5], *key[6:])
            for key, row in list(self._rows.items())
        ]


#: Records arrive at most this much later than work that ended before it; intervals older than that are summed up.
LATENESS_NS = 2_000_000_000
FOLD_AT = 65_536  # intervals held before older ones are summed up


class Span(NamedTuple):
    """Intervals that follow each other: sorted, none overlaps the next."""

    start: int
    end: int
    busy: int
    starts: Sequence[int]
    ends: Sequence[int]


_START = itemgetter(0)


def span_of(starts: Sequence[int], ends: Sequence[int], total: int | None = None, sequential: bool = False) -> Span:
    """The span of some intervals, in any order, at least one. ``total``: their lengths together, if known;
    ``sequential``: it is known that none begins before the one before it has ended."""
    if not sequential and not all(map(le, ends, islice(starts, 1, None))):
        starts, ends = _merged(zip(starts, ends, strict=True))
    elif total is not None:
        return Span(starts[0], ends[-1], total, starts, ends)
    return Span(starts[0], ends[-1], sum(map(sub, ends, starts)), starts, ends)


def _merged(intervals: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Intervals without overlaps that cover the same, as two columns."""
    starts: list[int] = []
    ends: list[int] = []
    reach = -1
    for start, end in sorted(intervals):
        if start > reach or not starts:
            starts.append(start)
            ends.append(end)
            reach = end
        elif end > reach:
            ends[-1] = reach = end
    return starts, ends


class IntervalUnion:
    """Total length of a union of intervals that arrive roughly in order, in bounded memory.

    Exact as long as none arrives more than :data:`LATENESS_NS` after one that ended later; beyond that it counts only
    where it reaches past what is summed up already. The work of one stream is a span as it comes, and spans that
    overlap no other need no look at their intervals.
    """

    __slots__ = ("_folded", "_frontier", "_held", "_spans", "first", "last")

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._held = 0
        self._folded = 0
        self._frontier = -1  # everything before is summed up
        self.first: int | None = None
        self.last: int | None = None

    def add(self, span: Span) -> None:
        self._spans.append(span)
        self._held += len(span.starts)
        if self.first is None or span.start < self.first:
            self.first = span.start
        if self.last is None or span.end > self.last:
            self.last = span.end
        if self._held > FOLD_AT or len(self._spans) > FOLD_AT // 16:
            self._fold()

    def _fold(self) -> None:
        """Sums up what began long before the newest end; half of it where that is not enough."""
        assert self.last is not None
        held = sorted(self._spans, key=_START)
        count = max(bisect_left(held, self.last - LATENESS_NS, key=_START), (len(held) + 1) // 2)
        old, self._spans = held[:count], held[count:]
        self._folded += _length(old, self._frontier)
        self._frontier = max(self._frontier, max(span.end for span in old))
        self._held = sum(len(span.starts) for span in self._spans)

    def total_ns(self) -> int:
        return self._folded + _length(sorted(self._spans, key=_START), self._frontier)


def _length(ordered: list[Span], frontier: int) -> int:
    """Length of the union of spans sorted by start, of what lies after ``frontier``."""
    total = at = 0
    while at < len(ordered):
        span = ordered[at]
        reach, last = span.end, at + 1
        while last < len(ordered) and ordered[last].start < reach:
            reach = max(reach, ordered[last].end)
            last += 1
        if span.start >= frontier:
            total += _together(ordered[at:last])
        else:
            clipped = [
                (max(start, frontier), end)
                for one in ordered[at:last]
                for start, end in zip(one.starts, one.ends, strict=True)
                if end > frontier
            ]
            starts, ends = _merged(clipped)
            total += sum(map(sub, ends, starts))
        at = last
    return total


def _together(cluster: list[Span]) -> int:
    """Length of the union of spans that overlap: the longest, and what the others have beside it."""
    if len(cluster) == 1:
        return cluster[0].busy
    longest = max(cluster, key=lambda span: len(span.starts))
    starts, ends = longest.starts, longest.ends
    others = [pair for span in cluster if span is not longest for pair in zip(span.starts, span.ends, strict=True)]
    if len(others) > len(starts):
        starts, ends = _merged([*others, *zip(starts, ends, strict=True)])
        return sum(map(sub, ends, starts))
    total = longest.busy
    for start, end in zip(*_merged(others), strict=True):
        total += end - start
        i = bisect_right(ends, start)  # the first that is not over by then
        while i < len(starts) and starts[i] < end:
            total -= min(end, ends[i]) - max(start, starts[i])
            i += 1
    return total


class Busy:
    """Busy time of every device: union over kernels, over copies, over both."""

    __slots__ = ("_devices",)

    def __init__(self) -> None:
        self._devices: dict[tuple[str, int | None], tuple[IntervalUnion, IntervalUnion, IntervalUnion]] = {}

    def add(
        self,
        backend: str,
        device: int | None,
        kernels: bool,
        starts: Sequence[int],
        ends: Sequence[int],
        total: int | None = None,
        sequential: bool = False,
    ) -> None:
        """Intervals as two columns of equal length, at least one; see :func:`span_of`."""
        unions = self._devices.get((backend, device))
        if unions is None:
            unions = self._devices[backend, device] = (IntervalUnion(), IntervalUnion(), IntervalUnion())
        span = span_of(starts, ends, total, sequential)
        unions[0 if kernels else 1].add(span)
        unions[2].add(span)

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
