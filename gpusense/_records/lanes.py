"""Arithmetic on whole columns of times, a part of one as a long number with 64 bits for each value. Pure.

A difference or a comparison of two such numbers is that of every pair of values, in a fifth of the time that looking at
each takes. The highest bit of each *lane* is set beforehand and is gone where it was borrowed; values that use that bit
themselves, as negative ones do, are looked at one by one.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from itertools import compress, count, pairwise
from operator import lt, sub
from typing import Union

_PART = 4096  # values at a time: their long numbers stay in the processor's cache
_HIGHEST = 7 if sys.byteorder == "little" else 0  # byte of a lane with its highest bit
#: A column that falls more often than once in so many values is not worth being taken apart where it does.
_RISES = 16


#: Also a part of a column, of which no copy is made.
Column = Union["array[int]", memoryview]


def lengths(starts: Column, ends: Column) -> "array[int]":
    """``ends`` less ``starts``, each."""
    made = array("q")
    for at in range(0, len(starts), _PART):
        first, last = starts[at : at + _PART], ends[at : at + _PART]
        low, high, top = _number(first), _number(last), _top(len(first))
        found = (high | top) - low
        if (low | high) & top or ~found & top:
            made.extend(map(sub, last, first))
        else:
            made.frombytes((found ^ top).to_bytes(8 * len(first), sys.byteorder))
    return made


def less(left: Column, right: Column) -> bytes:
    """A byte for each pair, 1 where the left is less than the right, else 0."""
    parts = []
    for at in range(0, len(left), _PART):
        one, other = left[at : at + _PART], right[at : at + _PART]
        low, high, top = _number(one), _number(other), _top(len(one))
        parts.append(bytes(map(lt, one, other)) if (low | high) & top else _borrowed(low, high, top, len(one)))
    return b"".join(parts)


def above(values: "array[int]", limit: int) -> bytes:
    """A byte for each value, 1 where it is more than ``limit``, which is not negative, else 0."""
    parts = []
    for at in range(0, len(values), _PART):
        part = values[at : at + _PART]
        number, top = _number(part), _top(len(part))
        if number & top:
            parts.append(bytes(map(limit.__lt__, part)))
        else:
            parts.append(_borrowed((top >> 63) * limit, number, top, len(part)))
    return b"".join(parts)


def _borrowed(low: int, high: int, top: int, size: int) -> bytes:
    """A byte for each lane, 1 where ``low`` is less than ``high``."""
    found = ((low | top) - high) & top ^ top
    return found.to_bytes(8 * size, sys.byteorder)[_HIGHEST::8].translate(_ONES)


#: 1 where anything is set.
_ONES = bytes((0, *(1,) * 255))


def _number(values: Column) -> int:
    return int.from_bytes(values.tobytes(), sys.byteorder)


@lru_cache(maxsize=64)
def _top(size: int) -> int:
    """The highest bit of each of so many lanes."""
    return int.from_bytes((1 << 63).to_bytes(8, sys.byteorder) * size, sys.byteorder)


def places(mask: bytes) -> "array[int]":
    """Where the ones are among zeros."""
    number = mask.count(1)
    if number * _RISES > len(mask):
        return array("I", compress(count(), mask))
    found, at = array("I"), -1
    for _ in range(number):
        at = mask.index(1, at + 1)
        found.append(at)
    return found


def in_order(values: "array[int]") -> "list[tuple[int, int]] | None":
    """Pieces of a column, first and behind the last, that are the column in order if they are put one after the other;
    equal values stay as they are. None where there would be very many."""
    view = memoryview(values)
    falls = less(view[1:], view[:-1])
    if falls.count(1) * _RISES > len(values):
        return None
    runs = list(pairwise((0, *(at + 1 for at in places(falls)), len(values))))
    return _merged(values, runs) if len(runs) > 1 else runs


def _merged(values: "array[int]", runs: list[tuple[int, int]]) -> "list[tuple[int, int]] | None":
    """As :func:`in_order`, of pieces that are in order each."""
    most = len(values) // _RISES
    queue = [(values[first], first, last) for first, last in runs]  # by the first value, and by where it is
    heapify(queue)
    found: list[tuple[int, int]] = []
    while len(queue) > 1:
        _, first, last = queue[0]
        after = min(queue[1:3])
        cut = bisect_right if first < after[1] else bisect_left
        until = cut(values, after[0], first, last)
        _put(found, first, until)
        if until < last:
            heapreplace(queue, (values[until], until, last))
        else:
            heappop(queue)
        if len(found) > most:
            return None
    _put(found, *queue[0][1:])
    return found


def _put(pieces: list[tuple[int, int]], first: int, last: int) -> None:
    """Adds a piece, to the one before it where it follows."""
    if pieces and pieces[-1][1] == first:
        first = pieces.pop()[0]
    pieces.append((first, last))


def joined(column: "array[int]", pieces: Sequence[tuple[int, int]]) -> "array[int]":
    """Pieces of a column, one after the other."""
    if len(pieces) == 1:
        first, last = pieces[0]
        return column if last - first == len(column) else column[first:last]
    made = array(column.typecode)
    for first, last in pieces:
        made.extend(column[first:last])
    return made
