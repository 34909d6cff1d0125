"""Busy time of devices: lengths of unions of intervals that arrive roughly in order, in bounded memory. Pure.

Sums are made of small portions, one after the other as work arrives: whoever else wants the GIL waits for the whole of
one. Intervals come and stay in *spans*, in which none overlaps the next. Nothing here looks at each interval in Python
where it can be avoided: spans that only alternate are compared where they do so, few intervals are looked up among
many, and the rest is sorted, starts and ends each for themselves.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain, compress, islice
from operator import gt, itemgetter, le, sub
from sys import byteorder
from typing import NamedTuple

from .._records.device_identity import card
from .._records.records import DeviceBusy

HELD = 65_536  # weight of what a device holds before the oldest of it is summed up
PORTION = 768  # of it at a time
MOST = 3 * PORTION  # with what overlaps it
_OF_A_SPAN = 32  # what a span weighs beside its intervals
_HALVINGS = 6  # of the time of a portion that would be too large
_FEW_CHANGES = 4  # from one span to another, and one more for so many intervals: else sorting costs less than looking
_INTERVALS_A_CHANGE = 16
_LOOKS = 3  # at this many times as many intervals looking up the fewer among the others costs less than sorting all


class Span(NamedTuple):
    """Intervals that follow each other: sorted, none overlaps the next."""

    start: int
    end: int
    busy: int
    starts: Sequence[int]
    ends: Sequence[int]


_START, _END = itemgetter(0), itemgetter(1)


def span_of(starts: Sequence[int], ends: Sequence[int], total: int | None = None, sequential: bool = False) -> Span:
    """The span of some intervals, in any order, at least one. ``total``: their lengths together, if known;
    ``sequential``: it is known that none begins before the one before it has ended."""
    if not sequential and not all(map(le, ends, islice(starts, 1, None))):
        starts, ends = _merged(starts, ends)
    elif total is not None:
        return Span(starts[0], ends[-1], total, starts, ends)
    return _part(starts, ends)


def _merged(starts: Sequence[int], ends: Sequence[int]) -> tuple[list[int], list[int]]:
    """Intervals without overlaps that cover the same, as two columns."""
    # Nothing is going on where as many have ended as have begun: between an end and the start that is next in number.
    starts, ends = sorted(starts), sorted(ends)
    idle = list(map(gt, islice(starts, 1, None), ends))
    return [starts[0], *compress(islice(starts, 1, None), idle)], [*compress(ends, idle), ends[-1]]


def _split(span: Span, at: int) -> tuple[Span | None, tuple[int, int] | None, Span | None]:
    """Of a span that begins before ``at`` and ends after it: what lies before, the interval across, what lies after."""
    starts, ends = span.starts, span.ends
    before = after = bisect_left(starts, at)
    across = None
    rest = span.busy
    if ends[after - 1] > at:
        before -= 1
        across = starts[before], ends[before]
        rest -= across[1] - across[0]
    if before < len(starts) - after:  # the lengths of the fewer say those of the others
        early = _part(starts[:before], ends[:before]) if before else None
        rest -= early.busy if early else 0
        return early, across, Span(starts[after], ends[-1], rest, starts[after:], ends[after:])
    late = _part(starts[after:], ends[after:]) if after < len(starts) else None
    rest -= late.busy if late else 0
    early = Span(starts[0], ends[before - 1], rest, starts[:before], ends[:before]) if before else None
    return early, across, late


def _single(start: int, end: int) -> Span:
    return Span(start, end, end - start, (start,), (end,))


def _part(starts: Sequence[int], ends: Sequence[int]) -> Span:
    return Span(starts[0], ends[-1], _lengths(starts, ends), starts, ends)


def _lengths(starts: Sequence[int], ends: Sequence[int]) -> int:
    """All lengths together."""
    if isinstance(starts, memoryview) and isinstance(ends, memoryview) and starts.itemsize == 8:
        # As one long number, 64 bits for each: the sum of its digits of that size is what is left by the largest.
        return (int.from_bytes(ends, byteorder) - int.from_bytes(starts, byteorder)) % (2**64 - 1)
    return sum(map(sub, ends, starts))


def _disjoint(spans: list[Span]) -> list[Span]:
    """Spans that cover the same, none of whose intervals overlaps one of another."""
    spans.sort(key=_START)
    found: list[Span] = []
    at = 0
    while at < len(spans):
        reach, last = spans[at].end, at + 1
        while last < len(spans) and spans[last].start < reach:
            reach = max(reach, spans[last].end)
            last += 1
        if last - at == 1:
            found.append(spans[at])
        else:
            cluster = spans[at:last]
            found += cluster if _alternate(cluster) else [_together(cluster)]
        at = last
    return found


def _alternate(spans: list[Span]) -> bool:
    """Whether none of their intervals overlaps another; False, too, where that takes too many looks."""
    changes = _FEW_CHANGES + sum(len(span.starts) for span in spans) // _INTERVALS_A_CHANGE
    queue = [(span.start, number, 0) for number, span in enumerate(spans)]  # the next interval of each
    heapify(queue)
    reach = 0
    while queue:
        changes -= 1
        start, number, at = queue[0]
        if start < reach or changes < 0:
            return False
        _, reach, _, starts, ends = spans[number]
        if len(queue) == 1:
            return True
        at = bisect_left(starts, min(queue[1:3])[0], at + 1)
        if at < len(starts):
            reach = ends[at - 1]
            heapreplace(queue, (starts[at], number, at))
        else:
            heappop(queue)
    return True


def _together(spans: list[Span]) -> Span:
    starts: list[int] = []
    ends: list[int] = []
    for span in spans:
        starts += _listed(span.starts)
        ends += _listed(span.ends)
    return _part(*_merged(starts, ends))


def _listed(column: Sequence[int]) -> Sequence[int]:
    return column.tolist() if isinstance(column, memoryview) else column


def _overlap(few: list[Span], many: list[Span]) -> int:
    """For how long intervals of both are on. Spans of one side do not overlap, and come by their starts."""
    return sum(_common(one, other) for one in few for other in many if other.start < one.end and other.end > one.start)


def _common(few: Span, many: Span) -> int:
    """As :func:`_overlap`, of two."""
    starts, ends = many.starts, many.ends
    total, at, count = 0, 0, len(starts)
    for start, end in zip(few.starts, few.ends, strict=True):
        at = bisect_right(ends, start, at)  # the first that is not over by then
        if at == count:
            break
        begun = starts[at]
        while begun < end:
            over = ends[at]
            total += min(end, over) - max(start, begun)
            if over > end or at + 1 == count:
                break
            at += 1
            begun = starts[at]
    return total


def _covered(spans: list[Span]) -> int:
    return sum(span.busy for span in spans)


def _either(kernels: list[Span], transfers: list[Span]) -> int:
    """Length of the union of both; see :func:`_overlap`."""
    if kernels and transfers:
        of_kernels, of_transfers = (sum(len(span.starts) for span in side) for side in (kernels, transfers))
        few, many = (kernels, transfers) if of_kernels < of_transfers else (transfers, kernels)
        if min(of_kernels, of_transfers) * _LOOKS > max(of_kernels, of_transfers):
            return _together(kernels + transfers).busy
        return _covered(kernels) + _covered(transfers) - _overlap(few, many)
    return _covered(kernels) + _covered(transfers)


def _pieces(span: Span, size: int) -> list[Span]:
    """A span in parts of so many intervals."""
    starts, ends = span.starts, span.ends
    return [_part(starts[at : at + size], ends[at : at + size]) for at in range(0, len(starts), size)]


def _beyond(span: Span, at: int) -> list[Span]:
    """What of a span lies after ``at``."""
    if span.start >= at:
        return [span]
    if span.end <= at:
        return []
    _, across, late = _split(span, at)
    return ([_single(at, across[1])] if across else []) + ([late] if late else [])


class _Side:
    """Spans of kernels, or of copies and memsets, of one device."""

    __slots__ = ("folded", "frontier", "spans", "weight")

    def __init__(self) -> None:
        self.spans: list[Span] = []  # by their ends
        self.weight = 0
        self.folded = 0
        self.frontier = -1  # everything before is summed up

    def copy(self) -> "_Side":
        made = _Side()
        made.spans, made.weight, made.folded, made.frontier = self.spans[:], self.weight, self.folded, self.frontier
        return made

    def add(self, span: Span) -> None:
        if span.start < self.frontier:
            if span.end > self.frontier:
                for part in _beyond(span, self.frontier):
                    self.add(part)
            return
        spans = self.spans
        if spans and span.end < spans[-1].end:
            spans.insert(bisect_right(spans, span.end, key=_END), span)
        else:
            spans.append(span)
        self.weight += len(span.starts) + _OF_A_SPAN

    def take(self, at: int) -> list[Span]:
        """What lies before ``at``, and is none of the side's spans any more."""
        count = bisect_right(self.spans, at, key=_END)
        taken, self.spans = self.spans[:count], self.spans[count:]
        self.weight -= _weight(taken)
        across = [span for span in self.spans if span.start < at]
        if across:
            self._divide(across, at, taken)
        if taken:
            self.frontier = max(self.frontier, max(map(_END, taken)))
        return taken

    def _divide(self, across: list[Span], at: int, taken: list[Span]) -> None:
        """Adds to ``taken`` what of ``across`` lies before ``at``; only the rest stays."""
        self.spans = [span for span in self.spans if span.start >= at]
        first = reach = at
        rest: list[Span] = []
        for span in across:
            early, middle, late = _split(span, at)
            if early is not None:
                taken.append(early)
            if middle is not None:
                first, reach = min(first, middle[0]), max(reach, middle[1])
            if late is not None:
                rest.append(late)
        if reach > at:  # one for all: they are on together
            taken.append(_single(first, at))
            rest.append(_single(at, reach))
        self.weight += _weight(rest) - _weight(across)
        self.spans += rest
        self.spans.sort(key=_END)


class DeviceTime:
    """When one device was busy: with kernels, with copies and memsets, with either; in bounded memory.

    Exact as long as nothing arrives after what ended later and weighs more than :data:`HELD`: two seconds' work, of
    30,000 records each. What comes later counts only where it reaches past what is summed up already.
    """

    __slots__ = ("_both", "_kernels", "_transfers", "first", "last")

    def __init__(self) -> None:
        self._kernels, self._transfers = _Side(), _Side()
        self._both = 0
        self.first: int | None = None
        self.last: int | None = None

    def add(self, kernels: bool, span: Span) -> None:
        side = self._kernels if kernels else self._transfers
        for part in _pieces(span, MOST) if len(span.starts) > MOST else (span,):
            side.add(part)
        if self.first is None or span.start < self.first:
            self.first = span.start
        if self.last is None or span.end > self.last:
            self.last = span.end
        while self._kernels.weight + self._transfers.weight > HELD:
            self._fold()

    def _fold(self) -> None:
        """Sums up what was first, about a portion. What crosses the end of that is divided there."""
        kernels, transfers = self._kernels, self._transfers
        at = self._portion()
        frontier = max(kernels.frontier, transfers.frontier)
        sides = []
        for side in (kernels, transfers):
            spans = _disjoint(side.take(at))
            side.folded += _covered(spans)
            if any(span.start < frontier for span in spans):  # the other was summed up further
                spans = [part for span in spans for part in _beyond(span, frontier)]
            sides.append(spans)
        self._both += _either(*sides)

    def _portion(self) -> int:
        """Up to when what is held is about a portion: to the end of the first to end, if not too much begins before."""
        kernels, transfers = self._kernels, self._transfers
        weight = 0
        for span in kernels.spans if kernels.weight >= transfers.weight else transfers.spans:
            weight += len(span.starts) + _OF_A_SPAN
            if weight >= PORTION:
                break
        at = span.end
        begun = [span for span in chain(kernels.spans, transfers.spans) if span.start < at]
        for _ in range(_HALVINGS):
            if not begun or _before(begun, at) <= MOST:
                return at
            first = min(map(_START, begun))
            at = first + (at - first + 1) // 2
            begun = [span for span in begun if span.start < at]
        return at if _before(begun, at) <= MOST else _first_few(begun)

    def total_ns(self) -> tuple[int, int, int]:
        """Time with kernels, time with copies and memsets, time with either."""
        copy = DeviceTime()
        copy._kernels, copy._transfers, copy._both = self._kernels.copy(), self._transfers.copy(), self._both
        while copy._kernels.spans or copy._transfers.spans:
            copy._fold()
        kernels, transfers = copy._kernels.folded, copy._transfers.folded
        return kernels, transfers, max(copy._both, kernels, transfers)  # of what came late one may have counted more


def _first_few(spans: list[Span]) -> int:
    """When the first few of many spans have had a few intervals each."""
    few = PORTION // _OF_A_SPAN + 1
    ordered = sorted(spans, key=_START)[: few + 1]
    ends = [span.starts[few] for span in ordered if len(span.starts) > few] + [span.start for span in ordered[few:]]
    return max(min(ends, default=ordered[-1].end), ordered[0].start + 1)


def _before(spans: list[Span], at: int) -> int:
    """Weight of what lies before ``at`` of spans that begin before."""
    inside = sum(len(span.starts) if span.end <= at else bisect_left(span.starts, at) for span in spans)
    return inside + _OF_A_SPAN * len(spans)


def _weight(spans: list[Span]) -> int:
    return sum(len(span.starts) for span in spans) + _OF_A_SPAN * len(spans)


class Busy:
    """Busy time of every device: the work of all backends that reach one card is one union."""

    __slots__ = ("_backends", "_devices")

    def __init__(self) -> None:
        self._devices: dict[tuple[str, int | None], DeviceTime] = {}
        self._backends: dict[tuple[str, int | None], str] = {}  # CUDA where it is among them

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
        key = card(backend, device)
        time = self._devices.get(key)
        if time is None:
            time = self._devices[key] = DeviceTime()
            self._backends[key] = backend
        elif backend == "cuda":
            self._backends[key] = backend
        time.add(kernels, span_of(starts, ends, total, sequential))

    def rows(self) -> list[DeviceBusy]:
        return [
            DeviceBusy(key[1], *time.total_ns(), time.first, time.last, self._backends[key])
            for key, time in list(self._devices.items())
        ]
