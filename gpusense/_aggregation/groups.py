"""Counting what is not kept, by groups of equal operations. Pure."""

from math import hypot
from operator import mul
from typing import Any

from .._records.records import Aggregate, Path

#: (path, kind, name, backend, device, stream, direction, source_line, owner, timing, full_name)
GroupKey = tuple[Path, str, str, str, int | None, int | None, str | None, str | None, Path | None, str, str | None]

MAX_GROUPS = 50_000
OTHER = "(other)"


#: count, total, min, max, sum of squares, bytes
Row = list[int]


#: Up to this, a sum of squares that is rounded from its root is exact: the root is wrong by less than one unit in its
#: last place (so Python's documentation of ``hypot``), its square by less than 1.3 in 2**51.
_EXACT_FROM_ROOT = 2**48
_SHORT = 100  # so many are sorted sooner than looked at twice


def row_of(durations: list[int], size: int = 0) -> Row:
    """What a non-empty list of durations comes to."""
    count = len(durations)
    if count <= _SHORT:
        ordered = sorted(durations)
        least, most = ordered[0], ordered[-1]
    else:
        least, most = min(durations), max(durations)
    longest = max(most, -least)  # a damaged file may hold a record that ends before it begins
    return [count, sum(durations), least, most, _sum_of_squares(durations, count * longest * longest), size]


def _sum_of_squares(durations: list[int], bound: int) -> int:
    """``bound``: it is not more than that."""
    if bound > _EXACT_FROM_ROOT:
        return sum(map(mul, durations, durations))
    root = hypot(*durations)  # makes no number of each square, and so takes a fifth of the time
    return round(root * root)


def merge_row(into: Row, row: Row) -> None:
    into[0] += row[0]
    into[1] += row[1]
    if row[2] < into[2]:
        into[2] = row[2]
    if row[3] > into[3]:
        into[3] = row[3]
    into[4] += row[4]
    into[5] += row[5]


def key_of(item: Any, kind: str, path: Path) -> GroupKey:
    """The group of a record of ``kind``."""
    return (
        path,
        kind,
        item.name,
        getattr(item, "backend", "cpu"),
        getattr(item, "device", None),
        getattr(item, "stream", None),
        getattr(item, "direction", None),
        getattr(item, "source_line", None),
        getattr(item, "owner", None),
        getattr(item, "timing", "device"),
        getattr(item, "full_name", None),
    )


def aggregate(key: GroupKey, row: Row) -> Aggregate:
    return Aggregate(*key[:6], row[0], row[1], row[2], row[3], row[4], row[5], *key[6:])


class Groups:
    """Count, total, extremes and sum of squares by group; exact integers; bounded number of groups."""

    __slots__ = ("_rows", "count")

    def __init__(self) -> None:
        self._rows: dict[GroupKey, list[int]] = {}
        self.count = 0

    def add(self, key: GroupKey, durations: list[int], size: int = 0) -> None:
        """Counts one operation for each duration; ``size``: their bytes together."""
        self.add_row(key, row_of(durations, size))

    def add_row(self, key: GroupKey, row: Row) -> None:
        """Counts what a row sums up."""
        mine = self._rows.get(key)
        if mine is None:
            if len(self._rows) >= MAX_GROUPS:
                key = (key[0][:1], key[1], OTHER, key[3], key[4], None, None, None, None, key[9], None)
                if len(self._rows) >= 2 * MAX_GROUPS and key not in self._rows:  # each root block has a name of its own
                    key = ((OTHER,), *key[1:])
            mine = self._rows.setdefault(key, [0, 0, row[2], row[3], 0, 0])
        merge_row(mine, row)
        self.count += row[0]

    def rows(self) -> list[Aggregate]:
        return [aggregate(key, row) for key, row in list(self._rows.items())]
