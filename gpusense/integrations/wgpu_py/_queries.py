"""The queries of one device: lent out by twos, and where their values are once they are resolved."""

from typing import Any, NamedTuple

from ._batch import Lent
from ._host import Handle, Host, Run

QUERIES = 4096  # the most one set may have; two a pass
#: wgpu looks through the whole set for each render pass that has some of its queries: 3 µs for the largest.
A_SET = 512
RESOLVE_ALIGNMENT = 256


class Places(NamedTuple):
    """What to resolve, and where in the stamps of eight bytes the begins and ends are then, in order."""

    runs: list[Run]
    begins: list[slice]
    ends: list[slice]


class Queries:
    """``lent`` are numbered through all sets. ``one_set``: Metal allows few sets a process."""

    def __init__(self, host: Host, device: Any, keep: Any, one_set: bool) -> None:
        self.size = QUERIES if one_set else A_SET
        self.sets: list[Handle] = []
        self.all: list[Lent] = []
        self._arrays: list[Any] = []  # that the pointers point into
        kinds = host.write_kinds()
        for first in range(0, QUERIES, self.size):
            query_set = host.query_set(device, self.size, keep)
            self.sets.append(query_set)
            made = {name: host.writes(name, query_set, self.size // 2) for name in set(kinds.values())}
            compute, render = made[kinds["compute"]], made[kinds["render"]]
            kept, plain = host.plain_passes(compute[1])
            self._arrays.append((compute[0], render[0], kept))
            self.all += zip(range(first, first + self.size, 2), compute[1], render[1], plain, strict=True)

    def place(self, lent: Lent) -> tuple[Handle, int]:
        """The set and the index in it of the first of the two."""
        return self.sets[lent[0] // self.size], lent[0] % self.size

    def places(self, lent: list[Lent]) -> tuple[list[int] | None, Places]:
        """Where the values of ``lent`` will be, and the order they are then in, None for that of ``lent``."""
        ranges, order = self._in_turn(lent), None
        if ranges is None:
            numbers = [queries[0] for queries in lent]
            order = sorted(range(len(lent)), key=numbers.__getitem__)
            numbers.sort()
            ranges = self._joined(numbers)
        found, offset = Places([], [], []), 0
        for first, stamps in ranges:
            at = offset >> 3
            found.runs.append((self.sets[first // self.size]._internal, first % self.size, stamps, offset))
            found.begins.append(slice(at, at + stamps, 2))
            found.ends.append(slice(at + 1, at + stamps, 2))
            offset = aligned(offset + 8 * stamps)
        return order, found

    def _in_turn(self, lent: list[Lent]) -> list[tuple[int, int]] | None:
        """First query and count of each range where they were lent one after the other, as in most batches."""
        ranges, at, half = [], 0, self.size // 2
        while at < len(lent):
            number = lent[at][0] >> 1
            count = min(len(lent) - at, half - number % half)
            if lent[at : at + count] != self.all[number : number + count]:
                return None
            ranges.append((2 * number, 2 * count))
            at += count
        return ranges

    def _joined(self, numbers: list[int]) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        first = last = -2
        for number in numbers:
            if number != last + 2 or number % self.size == 0:
                if last >= 0:
                    ranges.append((first, last + 2 - first))
                first = number
            last = number
        return [*ranges, (first, last + 2 - first)]


def aligned(offset: int) -> int:
    """The next offset that queries may be resolved to."""
    return (offset + RESOLVE_ALIGNMENT - 1) & ~(RESOLVE_ALIGNMENT - 1)


def taken(stamps: list[int], places: list[slice]) -> list[int]:
    """The stamps at ``places``."""
    if len(places) == 1:
        return stamps[places[0]]
    found: list[int] = []
    for place in places:
        found += stamps[place]
    return found
