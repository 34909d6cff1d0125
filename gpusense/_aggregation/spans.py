"""Intervals in spans, of which none overlaps the next: what divides them, what they have in common. Pure.

Nothing here looks at each interval in Python where it can be avoided: spans that only take turns are compared where
they do so, few intervals are looked up among many, and the rest is sorted, starts and ends each for themselves.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import compress, islice
from operator import gt, itemgetter, le, sub
from sys import byteorder
from typing import NamedTuple

_FEW_TURNS = 4  # that spans take, and one more for so many intervals: else sorting costs less than looking
_INTERVALS_A_TURN = 16
_LOOKS = 3  # at this many times as many intervals looking up the fewer among the others costs less than sorting all


class Span(NamedTuple):
    """Intervals that follow each other: sorted, none overlaps the next."""

    start: int
    end: int
    busy: int
    starts: Sequence[int]
    ends: Sequence[int]


START, END = itemgetter(0), itemgetter(1)


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


def split(span: Span, at: int) -> tuple[Span | None, tuple[int, int] | None, Span | None]:
    """Of a span that begins before ``at`` and ends after it: what lies before, the interval across, what lies after."""
    starts, ends = span.starts, span.ends
    before = after = bisect_left(starts, at)
    across = None
    rest = span.busy
    if ends[after - 1] > at:
        before -= 1
        across = starts[before], ends[before]
        rest -= across[1] - across[0]
    if before < len(starts) - after:  # the lengths of the fewer tell those of the others
        early = _part(starts[:before], ends[:before]) if before else None
        rest -= early.busy if early else 0
        return early, across, Span(starts[after], ends[-1], rest, starts[after:], ends[after:])
    late = _part(starts[after:], ends[after:]) if after < len(starts) else None
    rest -= late.busy if late else 0
    early = Span(starts[0], ends[before - 1], rest, starts[:before], ends[:before]) if before else None
    return early, across, late


def one(start: int, end: int) -> Span:
    return Span(start, end, end - start, (start,), (end,))


def _part(starts: Sequence[int], ends: Sequence[int]) -> Span:
    return Span(starts[0], ends[-1], _lengths(starts, ends), starts, ends)


def _lengths(starts: Sequence[int], ends: Sequence[int]) -> int:
    """All lengths together."""
    if isinstance(starts, memoryview) and isinstance(ends, memoryview) and starts.itemsize == 8:
        # As one long number, 64 bits for each: the sum of its digits of that size is what is left by the largest.
        return (int.from_bytes(ends, byteorder) - int.from_bytes(starts, byteorder)) % (2**64 - 1)
    return sum(map(sub, ends, starts))


def disjoint(spans: list[Span]) -> list[Span]:
    """Spans that cover the same, none of whose intervals overlaps one of another."""
    spans.sort(key=START)
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
            found += cluster if _take_turns(cluster) else [_together(cluster)]
        at = last
    return found


def _take_turns(spans: list[Span]) -> bool:
    """Whether none of their intervals overlaps another; False, too, where that takes too many looks."""
    turns = _FEW_TURNS + sum(len(span.starts) for span in spans) // _INTERVALS_A_TURN
    queue = [(span.start, number, 0) for number, span in enumerate(spans)]  # the next interval of each
    heapify(queue)
    reach = 0
    while queue:
        turns -= 1
        start, number, at = queue[0]
        if start < reach or turns < 0:
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


def busy(spans: list[Span]) -> int:
    return sum(span.busy for span in spans)


def either(kernels: list[Span], transfers: list[Span]) -> int:
    """Length of the union of both; see :func:`_overlap`."""
    if kernels and transfers:
        of_kernels, of_transfers = (sum(len(span.starts) for span in side) for side in (kernels, transfers))
        few, many = (kernels, transfers) if of_kernels < of_transfers else (transfers, kernels)
        if min(of_kernels, of_transfers) * _LOOKS > max(of_kernels, of_transfers):
            return _together(kernels + transfers).busy
        return busy(kernels) + busy(transfers) - _overlap(few, many)
    return busy(kernels) + busy(transfers)


def pieces(span: Span, size: int) -> list[Span]:
    """A span in parts of so many intervals."""
    starts, ends = span.starts, span.ends
    return [_part(starts[at : at + size], ends[at : at + size]) for at in range(0, len(starts), size)]


def beyond(span: Span, at: int) -> list[Span]:
    """What of a span lies after ``at``."""
    if span.start >= at:
        return [span]
    if span.end <= at:
        return []
    _, across, late = split(span, at)
    return ([one(at, across[1])] if across else []) + ([late] if late else [])
