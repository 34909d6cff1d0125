"""The queries of one device: lent out by twos, and where their values are once they are resolved."""

from typing import Any, NamedTuple

from ._batch import Lent
from ._host import Handle, Host, Run

QUERIES = 4096  # the most one set may have; two a pass
#: wgpu looks through the whole set for each render pass that has some of its queries: 3 µs for the largest.
A_SET = 512
#: In all sets of a device: 512 KiB on the GPU, and some 8 MiB here once they have all been lent at a time.
MOST = 65536
RESOLVE_ALIGNMENT = 256


class Places(NamedTuple):
    """What to resolve, and where in the stamps of eight bytes the begins and ends are then, in order."""

    runs: list[Run]
    begins: list[slice]
    ends: list[slice]


class Queries:
    """``lent`` are numbered through all sets, of which there is none until :meth:`more`. ``one_set``: Metal allows few
    sets a process."""

    def __init__(self, host: Host, device: Any, keep: Any, one_set: bool) -> None:
        self.size, self._most = (QUERIES, QUERIES) if one_set else (A_SET, MOST)
        self.sets: list[Handle] = []
        self.all: list[Lent] = []
        self._host, self._device, self._keep = host, device, keep
        self._arrays: list[Any] = []  # that the pointers point into
        self._kinds = host.write_kinds()

    def more(self) -> list[Lent]:
        """Another set's; empty when there are as many as there may be. Raises what making it raises."""
        first, host, kinds = self.size * len(self.sets), self._host, self._kinds
        if first >= self._most:
            return []
        query_set = host.query_set(self._device, self.size, self._keep)
        made = {name: host.writes(name, query_set, self.size // 2) for name in set(kinds.values())}
        compute, render = made[kinds["compute"]], made[kinds["render"]]
        kept, plain = host.plain_passes(compute[1])
        lent = list(zip(range(first, first + self.size, 2), compute[1], render[1], plain, strict=True))
        self._arrays.append((compute[0], render[0], kept))
        self.sets.append(query_set)
        self.all += lent
        return lent

    def no_more(self) -> None:
        """Another set could not be made, and is not asked for again."""
        self._most = 0

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


def own_places(owned: list[tuple[Any, int, int]]) -> Places:
    """Where the values of the program's own queries will be: set, begin and end of each pass. Neighbours of one set are
    resolved together, and nothing between them that no pass wrote."""
    sets = {id(query_set): query_set for query_set, _, _ in owned}
    indices: dict[int, set[int]] = {number: set() for number in sets}
    for query_set, begin, end in owned:
        indices[id(query_set)].update((begin, end))
    found, at, offset = Places([], [], []), {}, 0
    for number, query_set in sets.items():
        last = first = -2
        for index in sorted(indices[number]):
            if index != last + 1:
                first, offset = index, aligned(offset)
                found.runs.append((query_set._internal, first, 0, offset))
            at[number, index] = offset >> 3
            found.runs[-1] = (query_set._internal, first, index + 1 - first, found.runs[-1][3])
            last, offset = index, offset + 8
    for query_set, begin, end in owned:
        for index, places in ((begin, found.begins), (end, found.ends)):
            place = at[id(query_set), index]
            places.append(slice(place, place + 1))
    return found


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
