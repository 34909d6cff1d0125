"""Where the records of each kind lie in a buffer, and single fields of all of them as bytes. Pure.

Columns are taken out of a copy: that takes a third of the time of taking them out of the buffer, because the copy comes
through the cache in one go and because arrays are sliced twice as fast as memoryviews.
"""

import sys
from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

from . import layouts

SPARE_BYTES = 1 << 20  # a larger copy is not kept for the next time


class Place(NamedTuple):
    """The stretches in which records of one kind follow each other, in words of a piece."""

    begins: list[int]
    ends: list[int]

    def count(self, stride: int) -> int:
        return (sum(self.ends) - sum(self.begins)) * 4 // stride


class Piece:
    """A copy of some bytes, as items of any width. Its memory is used again when it is closed."""

    __slots__ = ("_arrays", "_filled", "data", "size")

    def __init__(self, data: memoryview) -> None:
        self._begin(len(data) & ~7)
        self.data = self._fill("I", data[: self.size].cast("B"))

    def _begin(self, size: int) -> None:
        try:
            self._arrays = _spare.pop()
        except IndexError:
            self._arrays = {}
        self._filled: set[str] = set()
        self.size = size

    def _room(self, code: str) -> memoryview:
        """Where items of a width lie, as bytes; they are about to be put there."""
        items = self._arrays.get(code)
        if items is None or len(items) * items.itemsize < self.size:
            items = self._arrays[code] = array(code, bytes(self.size))
        self._filled.add(code)
        return memoryview(items).cast("B")[: self.size]

    def _fill(self, code: str, data: memoryview) -> memoryview:
        room = self._room(code)
        room[:] = data
        return room

    def items(self, code: str) -> "array[int]":
        """At least as many as there are; what lies behind is of no meaning."""
        if code not in self._filled:
            self._fill(code, self.data)
        return self._arrays[code]

    def gathered(self, place: Place) -> "Piece":
        """Another, of the records of one kind alone."""
        made = Piece.__new__(Piece)
        made._begin((sum(place.ends) - sum(place.begins)) * 4)
        made.data = made._room("Q")
        words, room, at = self.data.cast("I"), made.data.cast("I"), 0
        for begin, end in zip(place.begins, place.ends, strict=True):
            first, at = at, at + end - begin
            room[first:at] = words[begin:end]
        return made

    def close(self) -> None:
        if len(_spare) < 2 and self.size <= SPARE_BYTES:
            _spare.append(self._arrays)
        self._arrays = {}


#: New memory would be given to the process page by page each time; that costs as much as decoding.
_spare: "list[dict[str, array[int]]]" = []

_NEAR = 16  # records looked at one by one; further ones of the same kind are cheaper to look at together


def walk(piece: Piece, strides: Mapping[int, int], limit: int) -> tuple[dict[int, Place], int, int, int]:
    """Places by kind, where the walk ended, and 1 for an unknown kind, 1 for a record cut off at the end.

    At most ``limit`` records are walked over. A kind without a usable stride ends the walk: nothing says where the next
    record begins.
    """
    words, total = piece.items("I"), piece.size >> 2
    places: dict[int, Place] = {}
    known: dict[int, tuple[int, Callable[[int], None], Callable[[int], None]]] = {}
    guesses: dict[int, int] = {}  # how far the last run of each kind went on: programs do the same again and again
    at, left = 0, limit
    while at < total and left > 0:
        kind = words[at]
        if kind not in known:
            stride = strides.get(kind, 0)
            if not stride or stride % 8 or stride < layouts.minimum_stride(kind):
                return places, at << 2, 1, 0
            if at + (stride >> 2) > total:
                return places, at << 2, 0, 1
            place = places[kind] = Place([], [])
            known[kind] = stride >> 2, place.begins.append, place.ends.append
        step, begin, end = known[kind]
        first = at
        at += step
        near = first + _NEAR * step
        if near > total:
            near = total
        while at < near and words[at] == kind:
            at += step
        if at >= near:
            at = _end_of_run(words, at, step, min(total, first + left * step), kind, guesses.get(kind, 0))
            guesses[kind] = at - near
        left -= (at - first) // step
        if left < 0:
            at += left * step
        begin(first)
        end(at)
    if at > total:
        return places, _without_last(places[kind], at - step) << 2, 0, 1
    return places, at << 2, 0, 0


def _without_last(place: Place, began: int) -> int:
    """Takes away the record that began there, which does not fit."""
    place.ends[-1] = began
    if place.begins[-1] == began:
        del place.begins[-1], place.ends[-1]
    return began


def _end_of_run(words: "array[int]", at: int, step: int, stop: int, kind: int, guess: int) -> int:
    """Where the records of a kind end that follow each other from ``at`` on and begin before ``stop``. ``guess``: how
    many words further that may be.

    A few looks tell where that may be; then all are looked at. Each record of the kind says where the next begins, so
    the first that is of another ends the run for certain.
    """
    wanted = kind.to_bytes(4, sys.byteorder)
    alike = wanted * (guess // step)
    if alike and guess < stop - at and words[at + guess] != kind and words[at : at + guess : step].tobytes() == alike:
        return at + guess
    count = (stop - at + step - 1) // step
    low, high = 0, 1  # so many are of the kind; how far the next look is
    while high <= count and words[at + (high - 1) * step] == kind:
        low, high = high, high * 2
    high = min(high, count + 1) - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if words[at + (middle - 1) * step] == kind:
            low = middle
        else:
            high = middle - 1
    kinds = words[at : at + low * step : step].tobytes()
    if kinds != wanted * low:
        low = next(i for i in range(low) if kinds[i * 4 : i * 4 + 4] != wanted)
    return at + low * step


_SLICED = 24  # as many runs are cheaper to slice, one by one for each column of words, than to copy


class Fields:
    """The records of one kind: any field of all of them, in the order of the piece."""

    __slots__ = ("_gathered", "_piece", "_place", "_stride")

    def __init__(self, piece: Piece, place: Place, stride: int) -> None:
        self._piece, self._place, self._stride = piece, place, stride
        self._gathered: Piece | None = None  # wherever the records are in several runs

    def column(self, code: str, offset: int) -> bytes:
        """The field at ``offset``, of the width of ``code``."""
        begins, ends = self._place
        if len(begins) == 1:
            return self._slice(self._piece, code, offset, begins[0], ends[0]).tobytes()
        if code == "I" and len(begins) <= _SLICED:
            words, first, step = self._piece.items(code), offset >> 2, self._stride >> 2
            return b"".join([words[begin + first : end : step] for begin, end in zip(begins, ends, strict=True)])
        if self._gathered is None:
            self._gathered = self._piece.gathered(self._place)
        return self._slice(self._gathered, code, offset, 0, self._gathered.size >> 2).tobytes()

    def _slice(self, piece: Piece, code: str, offset: int, begin: int, end: int) -> "array[int]":
        items = piece.items(code)
        width = items.itemsize
        return items[(begin * 4 + offset) // width : end * 4 // width : self._stride // width]

    def close(self) -> None:
        if self._gathered is not None:
            self._gathered.close()
