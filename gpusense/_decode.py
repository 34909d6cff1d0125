"""CUPTI activity buffers to columns. Pure: bytes in, values out; never ctypes.

Nothing here calls back into a library or trusts a byte: on any input it ends, and never raises. A record that CUPTI
could not time, or whose times cannot be, is left out and counted. Columns are copies, good after the buffer was given
back; :func:`record` reads the buffer again and needs it (or a copy) alive.
"""

import itertools
import sys
from array import array
from collections.abc import Mapping
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

from . import _layouts as layouts
from ._batch import LATEST_NS, LONGEST_NS, Batch, Packed
from ._decode_record import record, unpack

__all__ = ["LATEST_NS", "LONGEST_NS", "Batch", "Tally", "batches", "name_pointers", "numbers", "record", "unpack"]


class Tally(NamedTuple):
    """What one call walked over. ``offset`` is where the next call goes on; the buffer's size when it is done."""

    seen: int  # records of the kinds that become records of a session, the invalid ones included
    other: int  # valid helper records: correlation, API, overhead, counters, devices, contexts
    invalid: int
    unknown_kinds: int  # 1: a kind of unknown size ended the walk, what followed it is lost
    truncated: int  # 1: the last record did not fit
    offset: int


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

#: Kinds whose records always have a device, a context and a stream.
_ALWAYS_NUMBERED = frozenset({layouts.CONCURRENT_KERNEL, layouts.MEMCPY, layouts.MEMCPY2, layouts.MEMSET})

_NAME_FIELDS = ("name", "source")  # fields that hold the address of a C string

_ROOM = 256  # bytes of a buffer that are looked at for each record that is wanted; hardly any record is larger


def batches(
    buffer: memoryview, strides: Mapping[int, int], *, offset: int = 0, limit: int | None = None
) -> tuple[list[Batch], Tally]:
    """The records from ``offset`` on, at most ``limit`` of them, one batch a kind, and what became of them.

    ``strides`` maps record kinds to the size that the library used. To keep the GIL only briefly, call with a
    limit and go on at ``tally.offset`` until it equals the buffer's size.
    """
    rest = buffer[offset:]
    piece = _Piece(rest if limit is None else rest[: limit * _ROOM])
    places, at, unknown, truncated = _walk(piece, strides, limit)
    if not places and piece.size < len(rest):  # a giant
        piece = _Piece(rest)
        places, at, unknown, truncated = _walk(piece, strides, limit)
    if piece.size < len(rest):
        truncated = 0
    found: list[Batch] = []
    seen = other = invalid = 0
    for kind, place in places.items():
        count = valid = place.count(strides[kind])
        if kind in COLUMNS:
            batch = _batch(kind, strides[kind], count, piece, place, offset).judged()
            valid = batch.count
            if valid:
                found.append(batch)
            invalid += count - valid
        if kind in layouts.WORK_KINDS:
            seen += count
        else:
            other += valid
    return found, Tally(seen, other, invalid, unknown, truncated, len(buffer) if unknown or truncated else offset + at)


def name_pointers(buffer: memoryview, strides: Mapping[int, int]) -> set[int]:
    """Addresses of all C strings that the records of ``buffer`` refer to."""
    piece = _Piece(buffer)
    pointers: set[int] = set()
    for kind, place in _walk(piece, strides, None)[0].items():
        fields, stride = _pointer_fields(kind, strides[kind]), strides[kind]
        if fields:
            source, places = _gathered(piece, place, stride)
            quads = source.items("Q")
            for field in fields:
                for begin, end in places:
                    pointers.update(quads[(begin + field) // 8 : end // 8 : stride // 8])
    pointers.discard(0)
    return pointers


def numbers(buffer: memoryview, batch: Batch, name: str) -> list[int] | None:
    """An eight-byte field that no column holds, of each record; None where the records of this size have none."""
    field = layouts.LAYOUTS[batch.kind].field(name)
    if field is None or field.end > batch.stride:
        return None
    quads, first = buffer[: len(buffer) & ~7].cast("Q"), field.offset
    return [quads[(at + first) >> 3] for at in batch.offsets]


def _pointer_fields(kind: int, stride: int) -> list[int]:
    layout = layouts.LAYOUTS.get(kind)
    if layout is None:
        return []
    return [field.offset for field in layout.fields if field.name in _NAME_FIELDS and field.end <= stride]


# --- the walk: where the records of each kind begin -----------------------------------------------------------------


class _Piece:
    """A copy of some bytes of a buffer as items of any width: a column is taken out of a copy in a third of the time."""

    __slots__ = ("_items", "size")

    def __init__(self, data: "memoryview | bytes") -> None:
        self.size = len(data)
        quads = array("Q")
        quads.frombytes(data[: len(data) & ~7])
        self._items = {"Q": quads}

    def items(self, code: str) -> "array[int]":
        found = self._items.get(code)
        if found is None:
            found = self._items[code] = array(code)
            found.frombytes(memoryview(self._items["Q"]).cast("B"))
        return found


class _Place(NamedTuple):
    """Where the records of one kind lie: stretches of a piece, in words."""

    begins: list[int]
    ends: list[int]

    def count(self, stride: int) -> int:
        return (sum(self.ends) - sum(self.begins)) * 4 // stride


def _walk(piece: _Piece, strides: Mapping[int, int], limit: int | None) -> tuple[dict[int, _Place], int, int, int]:
    """Places by kind, where the walk ended, and 1 for an unknown kind, 1 for a record cut off at the end.

    A kind without a usable stride ends the walk: nothing says where the next record begins.
    """
    words = piece.items("I")
    steps = {k: s >> 2 for k, s in strides.items() if s % 8 == 0 and s >= layouts.minimum_stride(k)}
    places: dict[int, _Place] = {}
    at, left, total = 0, piece.size if limit is None else limit, len(words)
    while at < total and left > 0:
        kind = words[at]
        if kind not in steps:
            return places, at << 2, 1, 0
        first, step = at, steps[kind]
        at += step
        if at > total:
            return places, first << 2, 0, 1
        near = first + (_NEAR if left > _NEAR else left) * step
        if near > total:
            near = total - (total - first) % step
        while at < near and words[at] == kind:
            at += step
        if at == near:
            at = _end_of_run(words, at, step, first + min((total - first) // step, left) * step, kind)
        left -= (at - first) // step
        if kind not in places:
            places[kind] = _Place([], [])
        begins, ends = places[kind]
        begins.append(first)
        ends.append(at)
    return places, at << 2, 0, int(at == total and at << 2 < piece.size)


_NEAR = 16  # records looked at one by one; further ones of the same kind are cheaper to look at together


def _end_of_run(words: "array[int]", at: int, step: int, stop: int, kind: int) -> int:
    """Where the records of a kind that follow each other from ``at`` on end, looking at ever longer windows."""
    wanted = kind.to_bytes(4, sys.byteorder)
    window = 32
    while at < stop:
        count = min(window, (stop - at) // step)
        kinds = words[at : at + count * step : step]
        # Each record of the kind says where the next begins, so the first that differs ends the run for certain.
        if kinds.tobytes() != wanted * count:
            return at + step * next(compress(itertools.count(), map(kind.__ne__, kinds)))
        at += count * step
        window = min(window * 2, 512)
    return at


_WORTH_A_LOOK = 16  # records; shorter runs are cheaper to copy than to look at one by one


def _gathered(piece: _Piece, place: _Place, stride: int) -> tuple[_Piece, list[tuple[int, int]]]:
    """A piece in which all records of a place lie in few runs, and where they begin and end, in bytes."""
    begins, ends = place
    if len(begins) == 1 or place.count(stride) >= len(begins) * _WORTH_A_LOOK:
        return piece, [(begin * 4, end * 4) for begin, end in zip(begins, ends, strict=True)]
    words = piece.items("I")
    made = _Piece(b"".join([words[begin:end] for begin, end in zip(begins, ends, strict=True)]))
    return made, [(0, made.size)]


# --- columns --------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """Where the columns of a kind lie in records of one size."""

    packed: list[tuple[str, str, int]]  # name, code, offset
    numbers: list[tuple[str, str, int]]  # that often are all the same
    pair: int | None  # where device and context lie side by side
    absent: dict[str, int | None]


@lru_cache(maxsize=256)
def _plan(kind: int, stride: int) -> _Plan:
    layout = layouts.LAYOUTS[kind]
    packed: list[tuple[str, str, int]] = []
    numbers: dict[str, tuple[str, str, int]] = {}
    absent: dict[str, int | None] = {}
    for column, name in COLUMNS[kind]._asdict().items():
        field = layout.field(name) if name else None
        number = column in ("device", "context", "stream")
        if field is None or field.end > stride:
            absent[column] = None if number else 0
        elif number:
            numbers[column] = column, field.code, field.offset
        else:
            packed.append((column, field.code, field.offset))
    pair = None
    if "device" in numbers and "context" in numbers and numbers["context"][2] == numbers["device"][2] + 4:
        pair = numbers["device"][2]
        if pair % 8:
            pair = None
        else:
            del numbers["device"], numbers["context"]
    if "start" in absent or "end" in absent:
        absent["duration"] = 0
    return _Plan(packed, list(numbers.values()), pair, absent)


def _batch(kind: int, stride: int, count: int, piece: _Piece, place: _Place, origin: int) -> Batch:
    """All columns of the records at ``place``; ``origin``: of the piece in the buffer."""
    plan = _plan(kind, stride)
    source, runs = _gathered(piece, place, stride)
    same = dict(plan.absent)
    packed: dict[str, Packed] = {}
    none = None if kind in _ALWAYS_NUMBERED else layouts.NOT_APPLICABLE

    def column(code: str, offset: int) -> bytes:
        items = source.items(code)
        width = items.itemsize
        step = stride // width
        if len(runs) == 1:
            begin, end = runs[0]
            return items[(begin + offset) // width : end // width : step].tobytes()
        return b"".join([items[(begin + offset) // width : end // width : step] for begin, end in runs])

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
    return Batch(kind, stride, count, place, origin, same, packed)
