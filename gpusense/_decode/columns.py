"""The records of one kind as columns: which fields fill which, and how they are taken out of the buffer. Pure.

Columns are taken out of a copy: that takes a third of the time of taking them out of the buffer, because the copy comes
through the cache in one go and because arrays are sliced twice as fast as memoryviews.
"""

import struct
import sys
from array import array
from functools import lru_cache
from typing import NamedTuple

from . import layouts
from .batch import SHAPE, Batch, Packed, Runs

SPARE_BYTES = 1 << 20  # a larger copy is not kept for the next time


class Piece:
    """A copy of some bytes, as items of any width. Its memory is used again when it is closed."""

    __slots__ = ("_arrays", "_filled", "data", "origin", "size")

    def __init__(self, data: memoryview, origin: int = 0) -> None:
        self.origin = origin  # bytes from the start of the buffer
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

    def gathered(self, runs: Runs) -> "Piece":
        """Another, of the records of one kind alone."""
        made = Piece.__new__(Piece)
        made._begin((sum(runs.ends) - sum(runs.begins)) * 4)
        made.data = made._room("Q")
        words, room, at = self.data.cast("I"), made.data.cast("I"), 0
        for begin, end in zip(runs.begins, runs.ends, strict=True):
            first, at = at, at + end - begin
            room[first:at] = words[begin:end]
        return made

    def close(self) -> None:
        if len(_spare) < 2 and self.size <= SPARE_BYTES:
            _spare.append(self._arrays)
        self._arrays = {}


#: New memory would be given to the process page by page each time; that costs as much as decoding.
_spare: "list[dict[str, array[int]]]" = []


_SLICED = 24  # as many runs are cheaper to slice, one by one for each column of words, than to copy


class Fields:
    """The records of one kind: any field of all of them, in the order of the piece."""

    __slots__ = ("_gathered", "_piece", "_runs", "_stride")

    def __init__(self, piece: Piece, runs: Runs, stride: int) -> None:
        self._piece, self._runs, self._stride = piece, runs, stride
        self._gathered: Piece | None = None  # wherever the records are in several runs

    def column(self, code: str, offset: int) -> bytes:
        """The field at ``offset``, of the width of ``code``."""
        _, begins, ends = self._runs
        if len(begins) == 1:
            return self._slice(self._piece, code, offset, begins[0], ends[0]).tobytes()
        if code == "I" and len(begins) <= _SLICED:
            words, first, step = self._piece.items(code), offset >> 2, self._stride >> 2
            return b"".join([words[begin + first : end : step] for begin, end in zip(begins, ends, strict=True)])
        if self._gathered is None:
            self._gathered = self._piece.gathered(self._runs)
        return self._slice(self._gathered, code, offset, 0, self._gathered.size >> 2).tobytes()

    def _slice(self, piece: Piece, code: str, offset: int, begin: int, end: int) -> "array[int]":
        items = piece.items(code)
        width = items.itemsize
        return items[(begin * 4 + offset) // width : end * 4 // width : self._stride // width]

    def close(self) -> None:
        if self._gathered is not None:
            self._gathered.close()


class Columns(NamedTuple):
    """Which field of a layout fills which column; "" where the kind has none."""

    start: str = "start"
    end: str = "end"
    correlation: str = "correlation"
    device: str = "device"
    context: str = "context"
    stream: str = "stream"
    key: str = ""
    bytes: str = ""
    thread: str = ""


_API = Columns(device="", context="", stream="", key="cbid", thread="thread")
_KERNEL = Columns(key="name")
_COPY = Columns(key="copy_kind", bytes="bytes")

COLUMNS: dict[int, Columns] = {
    layouts.KERNEL: _KERNEL,
    layouts.CONCURRENT_KERNEL: _KERNEL,
    layouts.MEMCPY: _COPY,
    layouts.MEMCPY2: _COPY,
    layouts.MEMSET: Columns(key="value", bytes="bytes"),
    layouts.SYNCHRONIZATION: Columns(device="", key="type"),
    layouts.MEMORY2: Columns("time", "time", key="operation", bytes="bytes"),
    layouts.EXTERNAL_CORRELATION: Columns("", "", device="", context="", stream="", key="external_id"),
    layouts.DRIVER: _API,
    layouts.RUNTIME: _API,
    layouts.OVERHEAD: Columns(correlation="", device="", context="", stream="", key="overhead_kind", thread="thread"),
    layouts.UNIFIED_MEMORY_COUNTER: Columns(
        "start", "", "", device="source_device", context="", key="counter", bytes="value"
    ),
    layouts.DEVICE: Columns("", "", "", device="id", context="", stream="", key="id"),
    layouts.CONTEXT: Columns("", "", "", stream="null_stream", key="parent"),
}

_LAUNCH = (0, 48, 56, 64, 72, 80)
#: Words of eight bytes, by their offsets, in which several fields lie side by side that say how a record was launched:
#: of a kernel its registers, stream, grid, block and memory, of a copy its kind and those of both memories. One look at
#: a word costs what a look at one field does.
SHAPES: dict[int, tuple[int, ...]] = {
    layouts.KERNEL: _LAUNCH,
    layouts.CONCURRENT_KERNEL: _LAUNCH,
    layouts.MEMCPY: (0,),
    layouts.MEMCPY2: (0,),
}

#: Kinds whose records always have a device, a context and a stream.
_ALWAYS_NUMBERED = frozenset({layouts.CONCURRENT_KERNEL, layouts.MEMCPY, layouts.MEMCPY2, layouts.MEMSET})

FEW = 12  # so many records are cheaper to read one by one

_WORD = struct.Struct("<Q")
_NUMBERS = ("device", "context", "stream")  # columns that hold None where the kind has no such field


class _Plan(NamedTuple):
    """Where the columns of a kind lie in records of one size: name, code and offset of each."""

    packed: list[tuple[str, str, int]]
    numbers: list[tuple[str, str, int]]  # that often are all the same
    pair: int | None  # where device and context lie side by side: these are not among the numbers
    absent: dict[str, int | None]
    words: list[tuple[str, int]]  # of its shape, and their offsets
    reader: struct.Struct  # of all fields
    places: list[tuple[str, int]]  # of the columns in what it reads


@lru_cache(maxsize=256)
def _plan(kind: int, stride: int) -> _Plan:
    present: list[tuple[str, str, int]] = []
    absent: dict[str, int | None] = {}
    for column, name in COLUMNS[kind]._asdict().items():
        field = layouts.LAYOUTS[kind].field(name) if name else None
        if field is None or field.end > stride:
            absent[column] = None if column in _NUMBERS else 0
        else:
            present.append((column, field.code, field.offset))
    if "start" in absent or "end" in absent:
        absent["duration"] = 0
    packed = [place for place in present if place[0] not in _NUMBERS]
    numbers = [place for place in present if place[0] in _NUMBERS]
    offsets = {column: offset for column, _, offset in numbers}
    pair = offsets.get("device")
    if pair is None or pair % 8 or offsets.get("context") != pair + 4:
        pair = None
    else:
        numbers = [place for place in numbers if place[0] == "stream"]
    words = list(zip(SHAPE, SHAPES.get(kind, ()), strict=False))
    absent.update(dict.fromkeys(SHAPE[len(words) :], 0))
    return _Plan(packed, numbers, pair, absent, words, *_reader(present))


def _reader(places: list[tuple[str, str, int]]) -> tuple[struct.Struct, list[tuple[str, int]]]:
    found: list[tuple[str, int]] = []
    text, end, number = "<", 0, -1
    for name, code, offset in sorted(places, key=lambda place: place[2]):
        if offset >= end:  # else two columns have the same field
            text += f"{offset - end}x{code}"
            end = offset + struct.calcsize(code)
            number += 1
        found.append((name, number))
    return struct.Struct(text), found


def batch_of(kind: int, stride: int, piece: Piece, runs: Runs) -> Batch:
    """The records of one kind."""
    return (_few if runs.count(stride) <= FEW else _many)(kind, stride, piece, runs)


def _none(kind: int) -> int | None:
    """The number that stands for None in the records of a kind."""
    return None if kind in _ALWAYS_NUMBERED else layouts.NOT_APPLICABLE


def _few(kind: int, stride: int, piece: Piece, runs: Runs) -> Batch:
    plan, none, count = _plan(kind, stride), _none(kind), runs.count(stride)
    data, read = piece.data, plan.reader.unpack_from
    places = [at for begin, end in zip(*runs[1:], strict=True) for at in range(begin * 4, end * 4, stride)]
    columns = list(zip(*[read(data, at) for at in places], strict=True))
    lists: dict[str, list[int] | list[None]] = {}
    same = dict(plan.absent)
    for name, number in plan.places:
        values = columns[number]
        if name in _NUMBERS:
            if values.count(values[0]) == count:
                same[name] = None if values[0] == none else values[0]
                continue
            lists[name] = [None if value == none else value for value in values]
        else:
            lists[name] = list(values)
    for name, offset in plan.words:
        lists[name] = [_WORD.unpack_from(data, at + offset)[0] for at in places]
    if "end" not in lists and "start" in lists:
        lists["end"] = lists["start"]
        same.pop("end", None)
    return Batch(kind, stride, count, runs, same, {}, lists)


def _many(kind: int, stride: int, piece: Piece, runs: Runs) -> Batch:
    plan, none, count = _plan(kind, stride), _none(kind), runs.count(stride)
    fields = Fields(piece, runs, stride)
    column = fields.column
    same = dict(plan.absent)
    packed: dict[str, Packed] = {}

    def number(name: str, code: str, data: bytes) -> None:
        one = data[: len(data) // count]
        if data == one * count:  # cheap, and most are
            repeated(name, one)
        else:
            packed[name] = Packed(data, code, none)

    def repeated(name: str, one: bytes) -> None:
        value = int.from_bytes(one, sys.byteorder)
        same[name] = None if value == none else value

    for name, code, offset in plan.packed:
        packed[name] = Packed(column(code, offset), code)
    for name, offset in plan.words:
        packed[name] = Packed(column("Q", offset), "Q")
    for name, code, offset in plan.numbers:
        number(name, code, column(code, offset))
    if plan.pair is not None:
        both = column("Q", plan.pair)
        if both == both[:8] * count:
            repeated("device", both[:4])
            repeated("context", both[4:8])
        else:
            halves = memoryview(both).cast("I")
            number("device", "I", halves[::2].tobytes())
            number("context", "I", halves[1::2].tobytes())
    if "end" in same and "start" in packed:
        packed["end"] = packed["start"]
        del same["end"]
    fields.close()
    return Batch(kind, stride, count, runs, same, packed)
