"""Sets of half-open nanosecond intervals, as sorted lists of disjoint ``(start, end)`` pairs."""

from collections.abc import Iterable

Interval = tuple[int, int]


def union(spans: Iterable[Interval]) -> list[Interval]:
    """The disjoint intervals that cover the same time; empty and reversed spans cover none."""
    merged: list[Interval] = []
    start = end = None
    for low, high in sorted(spans):
        if high <= low:
            continue
        if end is None or start is None:
            start, end = low, high
        elif low <= end:
            end = max(end, high)
        else:
            merged.append((start, end))
            start, end = low, high
    if start is not None and end is not None:
        merged.append((start, end))
    return merged


def total(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def intersect(left: list[Interval], right: list[Interval]) -> list[Interval]:
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
    if not left:
        return []
    return intersect(left, complement(right, left[0][0], left[-1][1]))
