"""Counting what is not kept: groups of equal operations, and unions of busy time. Pure."""

from collections.abc import Iterable
from operator import mul

from ._records import Aggregate, DeviceBusy, Path

#: (path, kind, name, backend, device, stream, direction)
GroupKey = tuple[Path, str, str, str, int | None, int | None, str | None]

MAX_GROUPS = 50_000
OTHER = "(other)"


class Groups:
    """Count, total, extremes and sum of squares by group; exact integers; bounded number of groups."""

    __slots__ = ("_rows", "count")

    def __init__(self) -> None:
        self._rows: dict[GroupKey, list[int]] = {}
        self.count = 0

    def add(self, key: GroupKey, durations: list[int], size: int = 0) -> None:
        """Counts one operation for each duration; ``size``: their bytes together."""
        row = self._row(key, durations[0])
        row[0] += len(durations)
        row[1] += sum(durations)
        low, high = min(durations), max(durations)
        if low < row[2]:
            row[2] = low
        if high > row[3]:
            row[3] = high
        row[4] += sum(map(mul, durations, durations))
        row[5] += size
        self.count += len(durations)

    def add_summed(self, key: GroupKey, row: list[int]) -> None:
        """Adds what another group counted already: [count, total, min, max, sum of squares, bytes]."""
        mine = self._row(key, row[2])
        mine[0] += row[0]
        mine[1] += row[1]
        mine[2] = min(mine[2], row[2])
        mine[3] = max(mine[3], row[3])
        mine[4] += row[4]
        mine[5] += row[5]
        self.count += row[0]

    def _row(self, key: GroupKey, first: int) -> list[int]:
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_GROUPS:
                key = (key[0][:1], key[1], OTHER, key[3], key[4], None, None)
                row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = [0, 0, first, first, 0, 0]
        return row

    def rows(self) -> list[Aggregate]:
        return [
            Aggregate(path, kind, name, backend, device, stream, *numbers, direction)
            for (path, kind, name, backend, device, stream, direction), numbers in list(self._rows.items())
        ]


class IntervalUnion:
    """Total length of a union of intervals that arrive roughly in order, in bounded memory.

    Intervals are merged as they come; those that ended long before the newest are folded into the total. One that
    arrives later still and lies before the fold counts only where it reaches beyond it.
    """

    __slots__ = ("_folded", "_frontier", "_open", "first", "last")

    KEEP = 4096

    def __init__(self) -> None:
        self._open: list[tuple[int, int]] = []  # merged, sorted
        self._folded = 0
        self._frontier = -1  # everything before is folded
        self.first: int | None = None
        self.last: int | None = None

    def add(self, intervals: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(intervals)
        if not ordered:
            return
        if self.first is None or ordered[0][0] < self.first:
            self.first = ordered[0][0]
        if self._open and self._open[-1][1] >= ordered[0][0]:
            ordered = sorted(self._open + ordered)
            self._open = []
        merged = self._open
        low, high = ordered[0]
        for start, end in ordered:
            if start <= high:
                if end > high:
                    high = end
            else:
                merged.append((low, high))
                low, high = start, end
        merged.append((low, high))
        self._open = merged
        if self.last is None or merged[-1][1] > self.last:
            self.last = merged[-1][1]
        if len(merged) > 2 * self.KEEP:
            self._fold(len(merged) - self.KEEP)

    def _fold(self, count: int) -> None:
        frontier = self._frontier
        for start, end in self._open[:count]:
            if end > frontier:
                self._folded += end - max(start, frontier)
                frontier = end
        self._frontier = frontier
        del self._open[:count]

    def total_ns(self) -> int:
        total, frontier = self._folded, self._frontier
        for start, end in self._open:
            if end > frontier:
                total += end - max(start, frontier)
                frontier = end
        return total


class Busy:
    """Busy time of every device: union over kernels, over copies, over both."""

    __slots__ = ("_devices",)

    def __init__(self) -> None:
        self._devices: dict[tuple[str, int | None], tuple[IntervalUnion, IntervalUnion, IntervalUnion]] = {}

    def add(self, backend: str, device: int | None, kernels: bool, intervals: list[tuple[int, int]]) -> None:
        unions = self._devices.get((backend, device))
        if unions is None:
            unions = self._devices[backend, device] = (IntervalUnion(), IntervalUnion(), IntervalUnion())
        unions[0 if kernels else 1].add(intervals)
        unions[2].add(intervals)

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
