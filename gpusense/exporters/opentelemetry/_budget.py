"""What a window of records becomes under a span budget: the slowest one by one, the rest folded; pure, no clock of its
own.
"""

import heapq
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..._records.records import Record


class Group:
    """Records of one (parent, kind, name, device, stream) folded into count, sums and the interval they cover."""

    __slots__ = ("bytes", "count", "end_ns", "first", "max_ns", "min_ns", "parent", "start_ns", "total_ns")

    def __init__(self, parent: Any, first: Record) -> None:
        self.parent = parent
        self.first = first
        self.count = 0
        self.total_ns = 0
        self.min_ns = first.end_ns - first.start_ns
        self.max_ns = 0
        self.start_ns = first.start_ns
        self.end_ns = first.end_ns
        self.bytes = 0

    def add(self, record: Record) -> None:
        duration = record.end_ns - record.start_ns
        self.count += 1
        self.total_ns += duration
        self.min_ns = min(self.min_ns, duration)
        self.max_ns = max(self.max_ns, duration)
        self.start_ns = min(self.start_ns, record.start_ns)
        self.end_ns = max(self.end_ns, record.end_ns)
        size = getattr(record, "bytes", 0)
        self.bytes += size if type(size) is int else 0


class Placed(NamedTuple):
    """A record with the parent its span will have."""

    record: Record
    parent: Any
    key: Any  # hashable identity of the parent
    inside: Any = None  # of a block: what was launched in it


class Selection(NamedTuple):
    individual: list[Placed]
    groups: list[Group]
    threshold_ns: int | None  # the shortest duration that still got its own span; None where nothing was folded
    refused: int  # records whose group did not fit the budget either


def select(placed: list[Placed], budget: int | None) -> Selection:
    """All of ``placed`` where they fit; otherwise half the budget for the slowest, the other half for groups.

    Order of the individual ones is kept. Where there are more groups than half the budget, the groups with the most
    time stay and the records of the others are counted as refused.
    """
    if budget is None or len(placed) <= budget:
        return Selection(placed, [], None, 0)
    slots = budget // 2
    slowest = heapq.nlargest(slots, range(len(placed)), key=lambda index: _duration(placed[index].record))
    chosen = set(slowest)
    threshold = _duration(placed[slowest[-1]].record) if slowest else None
    groups = _fold(item for index, item in enumerate(placed) if index not in chosen)
    groups.sort(key=lambda group: group.total_ns, reverse=True)
    fitting = groups[: budget - slots]
    refused = sum(group.count for group in groups[budget - slots :])
    return Selection([placed[index] for index in sorted(chosen)], fitting, threshold, refused)


def longest(placed: list[Placed], budget: int | None) -> tuple[list[Placed], int]:
    """The ``budget`` longest of ``placed`` and how many are left out; blocks have children and are never folded."""
    if budget is None or len(placed) <= budget:
        return placed, 0
    return heapq.nlargest(budget, placed, key=lambda item: _duration(item.record)), len(placed) - budget


def _fold(items: Iterable[Placed]) -> list[Group]:
    groups: dict[Any, Group] = {}
    for item in items:
        record = item.record
        key = (item.key, type(record), record.name, getattr(record, "device", None), getattr(record, "stream", None))
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(item.parent, record)
        group.add(record)
    return list(groups.values())


def _duration(record: Record) -> int:
    return record.end_ns - record.start_ns


class Allowance:
    """Spans that may go now: refilled at ``rate`` a second up to ``burst``, full at the start. No rate: no limit."""

    def __init__(self, rate: float | None, burst: float, now_s: float) -> None:
        self.rate = rate
        self._burst = burst
        self._tokens = burst
        self._last = now_s

    def available(self, now_s: float) -> int | None:
        if self.rate is None:
            return None
        self._tokens = min(self._burst, self._tokens + self.rate * max(now_s - self._last, 0.0))
        self._last = now_s
        return int(self._tokens)

    def spend(self, count: int) -> None:
        self._tokens = max(self._tokens - count, 0.0)
