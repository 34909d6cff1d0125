"""Where the records of each kind lie in a buffer, and single fields of all of them as bytes. Pure.

Columns are taken out of a copy: that takes a third of the time of taking them out of the buffer, because the copy comes
through the cache in one go and because arrays are sliced twice as fast as memoryviews.
"""

import sys
from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

from . import _layouts as layouts

SPARE_BYTES = 1 << 20  # a larger copy is not kept for the next time


class Place(NamedTuple):
    """The stretches in which records of one kind follow each other, in words of a piece."""

    begins: list[int]
    ends: list[int]

    def count(self, stride: int) -> int:
        return (sum(self.ends) - sum(self.begins)) * 4 // stride


class Piece:
    """A copy of some bytes, as items of any width. Its memory is used again when it is closed."""

    __slots__ = ("_arrays", "_filled", "size")

    def __init__(self, data: memoryview) -> None:
        try:
            self._arrays = _spare.pop()
        except IndexError:
            self._arrays = {"Q": array("Q")}
        self.size = len(data) & ~7
        self._filled = {"Q"}
        self._fill("Q", data[: self.size].cast("B"))

    def _fill(self, code: str, data: memoryview) -> "array[int]":
        items = self._arrays.get(code)
        if items is None or len(items) * items.itemsize < self.size:
            items = self._arrays[code] = array(code, bytes(self.size))
        with memoryview(items).cast("B") as place:
            place[: self.size] = data
        return items

    def items(self, code: str) -> "array[int]":
        """At least as many as there are; what lies behind is of no meaning."""
        if code in self._filled:
            return self._arrays[code]
        self._filled.add(code)
        return self._fill(code, memoryview(self._arrays["Q"]).cast("B")[: self.size])

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
    steps = {k: s >> 2 for k, s in strides.items() if s % 8 == 0 and s >= layouts.minimum_stride(k)}
    places: dict[int, Place] = {}
    known: dict[int, tuple[int, Callable[[int], None], Callable[[int], None]]] = {}
    at, left = 0, limit
    while at < total and left > 0:
        kind = words[at]
        if kind not in known:
            if kind not in steps:
                return places, at << 2, 1, 0
            if at + steps[kind] > total:
                return places, at << 2, 0, 1
            place = places[kind] = Place([], [])
            known[kind] = steps[kind], place.begins.append, place.ends.append
        step, begin, end = known[kind]
        first = at
        at += step
        near = first + _NEAR * step
        if near > total:
            near = total
        while at < near and words[at] == kind:
            at += step
        if at >= near:
            at = _end_of_run(words, at, step, min(total, first + left * step), kind)
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


def _end_of_run(words: "array[int]", at: int, step: int, stop: int, kind: int) -> int:
    """Where the records of a kind end that follow each other from ``at`` on and begin before ``stop``.

    A few looks tell where that may be; then all are looked at. Each record of the kind says where the next begins, so
    the first that is of another ends the run for certain.
    """
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
    wanted = kind.to_bytes(4, sys.byteorder)
    if kinds != wanted * low:
        low = next(i for i in range(low) if kinds[i * 4 : i * 4 + 4] != wanted)
    return at + low * step


_WORTH_A_LOOK = 16  # records; shorter runs are cheaper to copy than to look at one by one


class Fields:
    """The records of one kind: any field of all of them, in the order of the piece."""

    __slots__ = ("_own", "_piece", "_runs", "_stride")

    def __init__(self, piece: Piece, place: Place, stride: int) -> None:
        self._stride = stride
        self._piece = piece
        self._own: Piece | None = None
        begins, ends = place
        if len(begins) > 1 and place.count(stride) < len(begins) * _WORTH_A_LOOK:
            words = piece.items("I")
            joined = b"".join([words[begin:end] for begin, end in zip(begins, ends, strict=True)])
            self._piece = self._own = Piece(memoryview(joined))
            begins, ends = [0], [len(joined) >> 2]
        self._runs = [(begin * 4, end * 4) for begin, end in zip(begins, ends, strict=True)]

    def column(self, code: str, offset: int) -> bytes:
        """The field at ``offset``, of the width of ``code``."""
        items = self._piece.items(code)
        width = items.itemsize
        step = self._stride // width
        if len(self._runs) == 1:
            begin, end = self._runs[0]
            return items[(begin + offset) // width : end // width : step].tobytes()
        return b"".join([items[(begin + offset) // width : end // width : step] for begin, end in self._runs])

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
