"""Sets of half-open nanosecond intervals, as sorted lists of disjoint ``(start, end)`` pairs."""

from collections.abc import Iterable
from itertools import chain

Interval = tuple[int, int]


def union(spans: Iterable[Interval]) -> list[Interval]:
    """The disjoint intervals that cover the same time; empty and reversed spans cover none."""
    ordered = sorted(spans)
    at = next((place for place, (low, high) in enumerate(ordered) if high > low), None)
    if at is None:
        return []
    merged: list[Interval] = []
    start, end = ordered[at]
    for low, high in ordered[at + 1 :]:
        if low > end:
            if high > low:
                merged.append((start, end))
                start, end = low, high
        elif high > end:
            end = high
    merged.append((start, end))
    return merged


def joined(*parts: list[Interval]) -> list[Interval]:
    """The union of sets that are in order and disjoint each."""
    known = [part for part in parts if part]
    return known[0] if len(known) == 1 else union(chain.from_iterable(known))


def total(intervals: Iterable[Interval]) -> int:
    """The length of disjoint intervals together."""
    return sum(end - start for start, end in intervals)


def intersect(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """The time that two sets, in order and disjoint each, have in common."""
    common: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low < high:
            common.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return common


def apart(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """Those of ``left`` that have no time in common with ``right``."""
    found: list[Interval] = []
    j = 0
    for start, end in left:
        while j < len(right) and right[j][1] <= start:
            j += 1
        if j == len(right) or right[j][0] >= end:
            found.append((start, end))
    return found


def complement(intervals: list[Interval], start: int, end: int) -> list[Interval]:
    """The time of ``start … end`` outside ``intervals``."""
    gaps: list[Interval] = []
    at = start
    for low, high in intervals:
        if low >= end:
            break
        if low > at:
            gaps.append((at, low))
        at = max(at, high)
    if at < end:
        gaps.append((at, end))
    return gaps


def subtract(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """The time of ``left`` that is not in ``right``."""
    if not left:
        return []
    return intersect(left, complement(right, left[0][0], left[-1][1]))
