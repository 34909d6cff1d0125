"""One walk over the work of a device: when it was busy with what, and each gap in which it was empty. Pure.

Time on a device counts once, however much runs beside each other. Of several kinds of work at once the first of these
has the time: computing, communicating, copying. So the parts of any stretch between two edges add up to it exactly.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
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
    found = Sweep(edges, _unions(work, edges))
    _gaps(work, edges[0], edges[-1], found)
    _streams(work, edges, found)
    return found


def _unions(work: Columns, edges: Sequence[int]) -> list[list[int]]:
    """Up to each edge the length of each union. Those of the same classes of work are made once."""
    used = frozenset(work.classes[kind] for kind in set(map(work.kinds.__getitem__, work.rows)))
    made: dict[frozenset[int], list[int]] = {frozenset(): [0] * len(edges)}
    for classes in _UNIONS.values():
        those = used & classes
        if those not in made:
            mine = [one in those for one in work.classes]
            made[those] = _union(work, None if those == used else mine, edges)
    return [made[frozenset(used & classes)] for classes in _UNIONS.values()]


def _union(work: Columns, mine: "Sequence[bool] | None", edges: Sequence[int]) -> list[int]:
    """Up to each edge how long any of the kinds that are ``mine`` ran; None: of all."""
    rows = work.rows if mine is None else array("I", (row for row in work.rows if mine[work.kinds[row]]))
    starts, ends = _of(work.starts, rows), _of(work.ends, rows)
    until, spent, totals, first = edges[0], 0, [0], 0
    for edge in edges[1:]:
        last = bisect_left(starts, edge, first)
        for start, end in zip(starts[first:last], ends[first:last], strict=True):
            if end > until:
                spent += end - (until if until > start else start)  # noqa: FURB136 - a call of max() takes as long as all else
                until = end
        totals.append(spent - max(0, until - edge))
        first = last
    return totals


def _of(column: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
    """The values of some rows."""
    return column if len(rows) == len(column) else array("q", map(column.__getitem__, rows))


def _gaps(work: Columns, low: int, high: int, into: Sweep) -> None:
    """The gaps between ``low`` and ``high``."""
    columns = zip(work.rows, _of(work.starts, work.rows), _of(work.ends, work.rows), strict=True)
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
        into.streams[stream] = _union(work, [other == stream for other in work.streams], ends)[-1]
    if len(streams) == 1:
        into.streams[next(iter(streams))] = into.parts().busy
