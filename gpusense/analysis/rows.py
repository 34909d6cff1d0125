"""Rows of the table of work that an analysis looks at, in order. Pure.

Most analyses look at long stretches of rows: those of one device, without the host's waits, in one phase. Their columns
are taken a stretch at a time, and no row is looked at by itself.
"""

import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, compress, starmap
from typing import Any, overload

from .._records import lanes

_LOWEST = 0 if sys.byteorder == "little" else -1  # byte of a number
_PART = 4096  # values that are looked at together
#: So many numbers are looked for again to find a loop, so far, so often; it has so many steps; so many at once else.
_ALIKE, _FAR, _LOOKS, _OFTEN, _PLAIN = 64, 65_536, 3, 8, 1024
_RISES = 16  # stretches with fewer rows, on average, are no stretches


class Rows(Sequence[int]):
    """``mask`` has a byte for each row of the table: 1 where it is one of them, else 0."""

    def __init__(self, mask: bytes) -> None:
        self._mask = mask

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> "array[int]": ...

    def __getitem__(self, at: Any) -> Any:
        return self._numbers[at]

    def __iter__(self) -> Iterator[int]:
        if self._stretches is None:
            return compress(range(len(self._mask)), self._mask)
        return chain.from_iterable(starmap(range, self._stretches))

    @cached_property
    def _numbers(self) -> "array[int]":
        return array("I", self)

    @cached_property
    def _count(self) -> int:
        return self._mask.count(1)

    @cached_property
    def _stretches(self) -> list[tuple[int, int]] | None:
        """Rows that follow each other: first, and behind the last; None where there are too many to use them."""
        mask = self._mask
        if self._count == len(mask):
            return [(0, len(mask))]
        number = int.from_bytes(mask, "little")
        changes = (number ^ number << 8).to_bytes(len(mask) + 1, "little")
        if changes.count(1) > 2 * len(mask) // _RISES:
            return None
        return list(zip(*[iter(lanes.places(changes))] * 2, strict=True))

    @property
    def number_of_stretches(self) -> int:
        """How many there are of rows that follow each other."""
        mask = int.from_bytes(self._mask, "little")
        return (mask & ~(mask << 8)).bit_count()

    @property
    def first(self) -> int | None:
        """None where there is none."""
        return self._mask.index(1) if self._count else None

    def of(self, column: "array[int]") -> "array[int]":
        """A column's values of these rows; not to be changed."""
        if self._stretches is None:
            return array(column.typecode, compress(column, self._mask))
        return lanes.joined(column, self._stretches)

    def lengths(self, starts: "array[int]", ends: "array[int]") -> "array[int]":
        """From the start to the end of each of these rows."""
        stretches = self._stretches
        if stretches is None or len(stretches) != 1:
            return lanes.lengths(self.of(starts), self.of(ends))
        part = slice(*stretches[0])
        return lanes.lengths(memoryview(starts)[part], memoryview(ends)[part])

    def firsts(self, column: "array[int]") -> list[tuple[int, int]]:
        """Each number of a column with the first row that has it, in the order of these."""
        values, found = self.of(column), dict[int, int]()
        for at in range(0, len(values), _PART):
            part = values[at : at + _PART]
            for place, number in sorted((part.index(number), number) for number in set(part).difference(found)):
                found[number] = at + place
        rows = range(len(values)) if self._count == len(self._mask) else self._numbers
        return [(number, rows[place]) for number, place in found.items()]

    def where(self, mask: bytes) -> "Rows":
        """Those whose byte is 1."""
        if 0 not in mask or not self._count:
            return self
        if self._count == len(self._mask):
            return Rows(mask)
        both = int.from_bytes(self._mask, "little") & int.from_bytes(mask, "little")
        return Rows(both.to_bytes(len(mask), "little"))

    def chained(self) -> "Rows":
        """Those that follow one of them, or that one of them follows."""
        mask = int.from_bytes(self._mask, "little")
        first = mask & mask >> 8
        return Rows((first | first << 8).to_bytes(len(self._mask), "little"))

    def within(self, spans: Iterable[tuple[int, int]]) -> "Rows":
        """Those with numbers from one to before another; spans in order, none of which overlaps another."""
        mask, parts, at = self._mask, list[bytes](), 0
        for first, last in spans:
            parts += (bytes(first - at), mask[first:last])
            at = last
        return Rows(b"".join((*parts, bytes(len(mask) - at))))


def marked(column: "array[int]", flags: Sequence[int]) -> bytes:
    """A byte for each row: what ``flags`` has, 0 or 1, for its kind or path, of which ``column`` has the numbers."""
    if len({*flags}) == 1:
        return bytes((flags[0],)) * len(column)
    table = bytes(flags)
    if len(table) > 256:
        return bytes(map(table.__getitem__, column))
    size = column.itemsize
    return column.tobytes()[_LOWEST % size :: size].translate(table.ljust(256, b"\0"))


def sums(numbers: "array[int]", values: "array[int]", count: int) -> list[int]:
    """Of the values with each number together, of numbers below ``count``."""
    found = [0] * count
    for number, mine in grouped(numbers, values).items():
        found[number] = sum(mine)
    return found


def grouped(numbers: "array[int]", values: "array[int]") -> "dict[int, array[int]]":
    """The values with each number, numbers in the order of their first; the first of each comes first."""
    found: defaultdict[int, array[int]] = defaultdict(partial(array, "q"))
    for first, period, times in _repeats(numbers):
        last = first + period * times
        if times > 1:  # a column of all steps of a loop at a time
            for place in range(first, first + period):
                found[numbers[place]].extend(values[place:last:period])
        else:
            for number, value in zip(numbers[first:last], values[first:last], strict=True):
                found[number].append(value)
    return found


def _repeats(numbers: "array[int]") -> Iterator[tuple[int, int, int]]:
    """Numbers in pieces: where each begins, so many numbers, that come so often one after the other."""
    data, width, at, plain = numbers.tobytes(), numbers.itemsize, 0, _PLAIN
    while at < len(numbers):
        period, times = _repeat(data, width, at * width)
        if times >= _OFTEN:
            plain = _PLAIN
        else:  # look again the later, the more often that was in vain
            period, times = min(plain, len(numbers) - at), 1
            plain = min(2 * plain, _FAR)
        yield at, period, times
        at += period * times


def _repeat(data: bytes, width: int, begin: int) -> tuple[int, int]:
    """How many numbers repeat themselves from there on, and how often they come. One loop may lie in another."""
    wanted, best = data[begin : begin + _ALIKE * width], (0, 0)
    look = begin + width
    for _ in range(_LOOKS):
        at = data.find(wanted, look, begin + _FAR * width)
        if at < 0 or (at - begin) % width:
            break
        same, distance = _same(data, begin, at), at - begin
        times = 1 + same // distance
        if times >= _OFTEN:
            best = max(best, (times * distance, distance))
        look = at + same - len(wanted) + width
    size, distance = best
    return (distance // width, size // distance) if distance else (0, 0)


def _same(data: bytes, one: int, other: int) -> int:
    """How many bytes from there on are the same."""
    found, size, most, grows = 0, 4096, len(data) - other, True
    while size and found < most:
        size = min(size, most - found)
        grows &= data[one + found : one + found + size] == data[other + found : other + found + size]
        if grows:
            found, size = found + size, 2 * size
        else:
            size //= 2
            if data[one + found : one + found + size] == data[other + found : other + found + size]:
                found += size
    return found
