"""One walk over the work of a device: when it was busy with what, and each gap in which it was empty. Pure.

Time on a device counts once, however much runs beside each other. Of several kinds of work at once the first of these
has the time: computing, communicating, copying. So the parts of any stretch between two edges add up to it exactly.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from operator import sub
from typing import NamedTuple

from .._records import lanes
from .rows import Rows, marked

COMPUTE, COLLECTIVE, COPY = 0, 1, 2
#: Unions that are kept, and the classes of each: of one class alone, and those that say how much hid behind what.
_UNIONS = {
    "compute": frozenset({COMPUTE}),
    "collective": frozenset({COLLECTIVE}),
    "copy": frozenset({COPY}),
    "kernel": frozenset({COMPUTE, COLLECTIVE}),
    "compute_copy": frozenset({COMPUTE, COPY}),
    "busy": frozenset({COMPUTE, COLLECTIVE, COPY}),
}


class Gaps(NamedTuple):
    """Intervals in which a device had nothing to do between two pieces of work, in order: columns of equal length."""

    start: "array[int]"  # nanoseconds
    end: "array[int]"
    before: "array[int]"  # row of the work that ended last
    after: "array[int]"  # row of the work that ended the gap

    def between(self, start_ns: int, end_ns: int) -> range:
        """Those that begin in an interval."""
        return range(bisect_left(self.start, start_ns), bisect_left(self.start, end_ns))


class Parts(NamedTuple):
    """Nanoseconds of an interval on one device. Each is a union: work beside other work of its kind counts once."""

    length: int
    compute: int  # kernels but those that communicate
    collective: int
    copy: int  # copies and memsets
    kernel: int  # both kinds of kernels
    compute_copy: int
    busy: int  # anything

    @property
    def collective_alone(self) -> int:
        return self.kernel - self.compute

    @property
    def copy_alone(self) -> int:
        return self.busy - self.kernel

    @property
    def empty(self) -> int:
        return self.length - self.busy

    @property
    def copy_hidden(self) -> int:
        """Of copying, what computing hid."""
        return self.copy + self.compute - self.compute_copy

    @property
    def collective_hidden(self) -> int:
        return self.collective + self.compute - self.kernel

    @property
    def share(self) -> float:
        return self.busy / self.length if self.length else 0.0


class Sweep:
    """What :func:`sweep` found. ``edges`` divide the time; segment ``i`` lies between edges ``i`` and ``i + 1``."""

    def __init__(self, edges: Sequence[int], sums: "list[list[int]]") -> None:
        self.edges = edges
        self._sums = sums  # by union: up to each edge
        self.gaps = Gaps(array("q"), array("q"), array("I"), array("I"))
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.streams: dict[int | None, int] = {}  # busy nanoseconds of each, over everything

    @cached_property
    def gap_lengths(self) -> "array[int]":
        """Nanoseconds of each gap."""
        return lanes.lengths(self.gaps.start, self.gaps.end)

    def parts(self, first: int = 0, last: int | None = None) -> Parts:
        """Of the segments from ``first`` to the one before ``last``."""
        last = len(self.edges) - 1 if last is None else last
        return Parts(self.edges[last] - self.edges[first], *(one[last] - one[first] for one in self._sums))

    def between(self, start_ns: int, end_ns: int) -> Parts:
        """Of the segments that lie between two edges."""
        return self.parts(bisect_left(self.edges, start_ns), bisect_right(self.edges, end_ns) - 1)


class Columns(NamedTuple):
    """What is walked over: ``rows`` of a device, columns of all work in the order of starts, and of each kind of work
    its class and its stream."""

    rows: Rows
    starts: "array[int]"
    ends: "array[int]"
    kinds: "array[int]"
    classes: Sequence[int]
    streams: Sequence["int | None"]

    @property
    def classes_used(self) -> set[int]:
        """The classes of work that there are."""
        return {self.classes[kind] for kind in set(self.rows.of(self.kinds))}

    def where(self, wanted: Sequence[bool]) -> "_Covered":
        """When any of the kinds that are wanted ran."""
        return _Covered(self, self.rows.where(marked(self.kinds, wanted)))


def sweep(work: Columns, edges: Sequence[int]) -> Sweep:
    """``edges``, at least two, ascend. Of work that goes beyond the first or the last what lies inside counts."""
    kinds = set(work.rows.of(work.kinds))
    covered = _Covered(work, work.rows)
    found = Sweep(edges, _unions(work, covered, kinds, edges))
    _gaps(covered, edges[0], edges[-1], found)
    _streams(work, kinds, edges, found)
    return found


class _Covered:
    """The time that some rows cover: all from the first start on but the gaps between them."""

    def __init__(self, work: Columns, rows: Rows) -> None:
        self.rows = rows
        self.starts = rows.of(work.starts)
        self.until, self._by = _reached(self.starts, rows.of(work.ends))
        empty = lanes.less(memoryview(self.until)[:-1], memoryview(self.starts)[1:])
        self._before, self._after = Rows(empty), Rows(b"\0" + empty)  # rows before a gap, and behind one
        self.gap_starts, self.gap_ends = self._before.of(self.until), self._after.of(self.starts)

    @property
    def in_turn(self) -> bool:
        """Whether none began before all others before it had ended, as on most devices: they have one stream."""
        return self._by is None

    def between(self) -> "tuple[array[int], array[int]]":
        """The row that ended last before each gap, and the one that ended the gap."""
        numbers = array("I", self.rows)
        last = numbers if self._by is None else array("I", map(numbers.__getitem__, self._by))
        return self._before.of(last), self._after.of(numbers)

    def up_to(self, edges: Sequence[int]) -> list[int]:
        """How much of the time from the first edge to each."""
        if not self.starts:
            return [0] * len(edges)
        begin, end = self.starts[0], self.until[-1]
        lengths = memoryview(lanes.lengths(self.gap_starts, self.gap_ends))
        found, empty, at = [], 0, 0
        for edge in edges:
            moment = min(max(edge, begin), end)
            before, at = at, bisect_left(self.gap_starts, moment, at)
            empty += sum(lengths[before:at])
            beyond = max(0, self.gap_ends[at - 1] - moment) if at else 0
            found.append(moment - begin - empty + beyond)
        return [one - found[0] for one in found]


def _reached(starts: "array[int]", ends: "array[int]") -> "tuple[array[int], array[int] | None]":
    """Up to when all work lasts that began before or with each row, and which of the rows does; None: always itself."""
    overlaps = lanes.places(lanes.less(memoryview(starts)[1:], memoryview(ends)[:-1]))
    if not overlaps:
        return ends, None
    until, by, at, count = ends[:], array("I", range(len(ends))), 0, len(ends)
    for place in overlaps:
        if place >= at:
            last, at = ends[place], place + 1
            while at < count and ends[at] < last:
                until[at], by[at] = last, place
                at += 1
    return until, by


def _unions(work: Columns, covered: _Covered, kinds: set[int], edges: Sequence[int]) -> list[list[int]]:
    """Up to each edge the length of each union. Those of the same classes of work are made once."""
    used = frozenset(work.classes[kind] for kind in kinds)
    made: dict[frozenset[int], list[int]] = {frozenset(): [0] * len(edges), used: covered.up_to(edges)}
    for classes in _UNIONS.values():
        those, others = used & classes, used - classes
        if those not in made and covered.in_turn and others in made:
            made[those] = list(map(sub, made[used], made[others]))
        elif those not in made:
            made[those] = work.where([one in those for one in work.classes]).up_to(edges)
    return [made[used & classes] for classes in _UNIONS.values()]


def _gaps(covered: _Covered, low: int, high: int, into: Sweep) -> None:
    """The gaps between ``low`` and ``high``."""
    starts, until = covered.starts, covered.until
    first = bisect_left(until, low)
    if first == len(starts) or starts[first] > high:
        return
    begin, end = bisect_left(covered.gap_starts, low), len(covered.gap_ends)
    if until[-1] > high:
        end = bisect_left(covered.gap_ends, high)
    columns = covered.gap_starts, covered.gap_ends, *covered.between()
    into.gaps = Gaps(*(lanes.joined(column, [(begin, end)]) for column in columns))
    into.first_ns = max(starts[first], low)
    into.last_ns = min(high, covered.gap_starts[end] if end < len(covered.gap_starts) else until[-1])


def _streams(work: Columns, kinds: set[int], edges: Sequence[int], into: Sweep) -> None:
    streams = {work.streams[kind] for kind in kinds}
    for stream in streams if len(streams) > 1 else ():
        mine = work.where([other == stream for other in work.streams])
        into.streams[stream] = mine.up_to((edges[0], edges[-1]))[-1]
    if len(streams) == 1:
        into.streams[next(iter(streams))] = into.parts().busy
