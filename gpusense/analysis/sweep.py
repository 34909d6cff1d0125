"""One walk over the work of a device: when it was busy with what, and each gap in which it was empty. Pure.

Time on a device counts once, however much runs beside each other. Of several kinds of work at once the first of these
has the time: computing, communicating, copying. So the parts of any stretch between two edges add up to it exactly.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import le, lt, sub
from typing import NamedTuple

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

    __slots__ = ("_sums", "edges", "first_ns", "gaps", "last_ns", "streams")

    def __init__(self, edges: Sequence[int], sums: "list[list[int]]") -> None:
        self.edges = edges
        self._sums = sums  # by union: up to each edge
        self.gaps = Gaps(array("q"), array("q"), array("I"), array("I"))
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.streams: dict[int | None, int] = {}  # busy nanoseconds of each, over everything

    def parts(self, first: int = 0, last: int | None = None) -> Parts:
        """Of the segments from ``first`` to the one before ``last``."""
        last = len(self.edges) - 1 if last is None else last
        return Parts(self.edges[last] - self.edges[first], *(one[last] - one[first] for one in self._sums))

    def between(self, start_ns: int, end_ns: int) -> Parts:
        """Of the segments that lie between two edges."""
        return self.parts(bisect_left(self.edges, start_ns), bisect_right(self.edges, end_ns) - 1)


class Columns(NamedTuple):
    """What is walked over: ``rows`` of a device in the order of their starts, columns of all work, and of each kind of
    work its class and its stream."""

    rows: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    kinds: Sequence[int]
    classes: Sequence[int]
    streams: Sequence["int | None"]


def sweep(work: Columns, edges: Sequence[int]) -> Sweep:
    """``edges``, at least two, ascend. Of work that goes beyond the first or the last what lies inside counts."""
    starts, ends = _of(work.starts, work.rows), _of(work.ends, work.rows)
    in_turn = all(map(le, ends, memoryview(starts)[1:]))  # as on most devices: one stream, and nothing at once
    found = Sweep(edges, _unions(work, edges, in_turn))
    if in_turn and starts and edges[0] <= starts[0] and ends[-1] <= edges[-1]:
        _gaps_in_turn(work.rows, starts, ends, found)
    else:
        _gaps(zip(work.rows, starts, ends, strict=True), edges[0], edges[-1], found)
    _streams(work, edges, found)
    return found


def _unions(work: Columns, edges: Sequence[int], in_turn: bool) -> list[list[int]]:
    """Up to each edge the length of each union. Those of the same classes of work are made once."""
    used = frozenset(work.classes[kind] for kind in set(map(work.kinds.__getitem__, work.rows)))
    made: dict[frozenset[int], list[int]] = {frozenset(): [0] * len(edges)}
    for classes in _UNIONS.values():
        those = used & classes
        if those not in made:
            mine = bytes(one in those for one in work.classes)
            made[those] = _union(work, None if those == used else mine, edges, in_turn)
    return [made[frozenset(used & classes)] for classes in _UNIONS.values()]


def _union(work: Columns, mine: "bytes | None", edges: Sequence[int], in_turn: bool) -> list[int]:
    """Up to each edge how long any of the kinds that are ``mine`` ran; None: of all."""
    rows = work.rows
    if mine is not None:
        rows = array("I", compress(rows, map(mine.__getitem__, map(work.kinds.__getitem__, rows))))
    starts, ends = _of(work.starts, rows), _of(work.ends, rows)
    until, spent, totals, first = edges[0], 0, [0], 0
    for edge in edges[1:]:
        last = bisect_left(starts, edge, first)
        if in_turn and last > first and starts[first] >= until:
            spent += sum(map(sub, ends[first:last], starts[first:last]))
            until = max(until, ends[last - 1])
        else:
            for start, end in zip(starts[first:last], ends[first:last], strict=True):
                if end > until:
                    spent += end - (until if until > start else start)  # noqa: FURB136 - max() takes as long as all else
                    until = end
        totals.append(spent - max(0, until - edge))
        first = last
    return totals


def _gaps_in_turn(rows: Sequence[int], starts: "array[int]", ends: "array[int]", into: Sweep) -> None:
    """As :func:`_gaps`, where nothing ran at once."""
    empty = bytes(map(lt, ends, memoryview(starts)[1:]))
    for column, values in zip(into.gaps, (ends, memoryview(starts)[1:], rows, rows[1:]), strict=True):
        column.extend(compress(values, empty))
    into.first_ns, into.last_ns = starts[0], ends[-1]


def _of(column: Sequence[int], rows: Sequence[int]) -> "array[int]":
    """The values of some rows."""
    if len(rows) == len(column) and isinstance(column, array):
        return column
    return array("q", map(column.__getitem__, rows))


def _gaps(columns: Iterable[tuple[int, int, int]], low: int, high: int, into: Sweep) -> None:
    """The gaps between ``low`` and ``high`` among rows with their starts and ends."""
    begin, stop, before, after = (column.append for column in into.gaps)
    newest, last = low, -1
    for row, start, end in columns:
        if start > newest:
            if start >= high:
                break
            if last >= 0:
                begin(newest)
                stop(start)
                before(last)
                after(row)
        if end >= newest:
            if last < 0:
                into.first_ns = max(start, low)
            newest, last = end, row
    into.last_ns = min(newest, high) if last >= 0 else None


def _streams(work: Columns, edges: Sequence[int], into: Sweep) -> None:
    kinds = set(map(work.kinds.__getitem__, work.rows))
    streams = {work.streams[kind] for kind in kinds}
    ends = [edges[0], edges[-1]]
    for stream in streams if len(streams) > 1 else ():
        into.streams[stream] = _union(work, bytes(other == stream for other in work.streams), ends, False)[-1]
    if len(streams) == 1:
        into.streams[next(iter(streams))] = into.parts().busy
