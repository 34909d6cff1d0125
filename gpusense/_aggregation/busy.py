"""Busy time of devices: lengths of unions of intervals that arrive roughly in order, in bounded memory. Pure.

Sums are made of small portions, one after the other as work arrives: whoever else wants the GIL waits for the whole of
one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain

from .._records.records import DeviceBusy
from .spans import END, START, Span, beyond, busy, disjoint, either, one, pieces, span_of, split

HELD = 65_536  # weight of what a device holds before the oldest of it is summed up
PORTION = 768  # of it at a time
MOST = 3 * PORTION  # with what overlaps it
_OF_A_SPAN = 32  # what a span weighs beside its intervals
_HALVINGS = 6  # of the time of a portion that would be too large


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
                for part in beyond(span, self.frontier):
                    self.add(part)
            return
        spans = self.spans
        if spans and span.end < spans[-1].end:
            spans.insert(bisect_right(spans, span.end, key=END), span)
        else:
            spans.append(span)
        self.weight += len(span.starts) + _OF_A_SPAN

    def take(self, at: int) -> list[Span]:
        """What lies before ``at``, and is none of the side's spans any more."""
        count = bisect_right(self.spans, at, key=END)
        taken, self.spans = self.spans[:count], self.spans[count:]
        self.weight -= _weight(taken)
        across = [span for span in self.spans if span.start < at]
        if across:
            self._divide(across, at, taken)
        if taken:
            self.frontier = max(self.frontier, max(map(END, taken)))
        return taken

    def _divide(self, across: list[Span], at: int, taken: list[Span]) -> None:
        """Adds to ``taken`` what of ``across`` lies before ``at``; only the rest stays."""
        self.spans = [span for span in self.spans if span.start >= at]
        first = reach = at
        rest: list[Span] = []
        for span in across:
            early, middle, late = split(span, at)
            if early is not None:
                taken.append(early)
            if middle is not None:
                first, reach = min(first, middle[0]), max(reach, middle[1])
            if late is not None:
                rest.append(late)
        if reach > at:  # one for all: they are on together
            taken.append(one(first, at))
            rest.append(one(at, reach))
        self.weight += _weight(rest) - _weight(across)
        self.spans += rest
        self.spans.sort(key=END)


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
        for part in pieces(span, MOST) if len(span.starts) > MOST else (span,):
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
            spans = disjoint(side.take(at))
            side.folded += busy(spans)
            if any(span.start < frontier for span in spans):  # the other was summed up further
                spans = [part for span in spans for part in beyond(span, frontier)]
            sides.append(spans)
        self._both += either(*sides)

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
            first = min(map(START, begun))
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
    ordered = sorted(spans, key=START)[: few + 1]
    ends = [span.starts[few] for span in ordered if len(span.starts) > few] + [span.start for span in ordered[few:]]
    return max(min(ends, default=ordered[-1].end), ordered[0].start + 1)


def _before(spans: list[Span], at: int) -> int:
    """Weight of what lies before ``at`` of spans that begin before."""
    inside = sum(len(span.starts) if span.end <= at else bisect_left(span.starts, at) for span in spans)
    return inside + _OF_A_SPAN * len(spans)


def _weight(spans: list[Span]) -> int:
    return sum(len(span.starts) for span in spans) + _OF_A_SPAN * len(spans)


class Busy:
    """Busy time of every device."""

    __slots__ = ("_devices",)

    def __init__(self) -> None:
        self._devices: dict[tuple[str, int | None], DeviceTime] = {}

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
        time = self._devices.get((backend, device))
        if time is None:
            time = self._devices[backend, device] = DeviceTime()
        time.add(kernels, span_of(starts, ends, total, sequential))

    def rows(self) -> list[DeviceBusy]:
        return [
            DeviceBusy(device, *time.total_ns(), time.first, time.last, backend)
            for (backend, device), time in list(self._devices.items())
        ]
