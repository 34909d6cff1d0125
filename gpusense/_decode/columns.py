"""Which fields of CUPTI's records fill which column of a batch, and the batch of the records of one kind. Pure."""

import struct
import sys
from functools import lru_cache
from typing import NamedTuple

from . import layouts
from .batch import Batch, Packed
from .walk import Fields, Piece, Place


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

FEW = 12  # so many records are cheaper to read one by one

_NUMBERS = ("device", "context", "stream")  # columns that hold None where the kind has no such field


class _Plan(NamedTuple):
    """Where the columns of a kind lie in records of one size: name, code and offset of each."""

    packed: list[tuple[str, str, int]]
    numbers: list[tuple[str, str, int]]  # that often are all the same
    pair: int | None  # where device and context lie side by side: these are not among the numbers
    absent: dict[str, int | None]
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
    return _Plan(packed, numbers, pair, absent, *_reader(present))


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


def batch_of(kind: int, stride: int, piece: Piece, place: Place, origin: int) -> Batch:
    """The records of one kind; ``origin``: of the piece in the buffer."""
    count = place.count(stride)
    return (_few if count <= FEW else _many)(kind, stride, count, piece, place, origin)


def _none(kind: int) -> int | None:
    """The number that stands for None in the records of a kind."""
    return None if kind in _ALWAYS_NUMBERED else layouts.NOT_APPLICABLE


def _few(kind: int, stride: int, count: int, piece: Piece, place: Place, origin: int) -> Batch:
    plan, none = _plan(kind, stride), _none(kind)
    data, read = piece.data, plan.reader.unpack_from
    runs = zip(place.begins, place.ends, strict=True)
    columns = list(
        zip(*[read(data, at) for begin, end in runs for at in range(begin * 4, end * 4, stride)], strict=True)
    )
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
    if "end" not in lists and "start" in lists:
        lists["end"] = lists["start"]
        same.pop("end", None)
    return Batch(kind, stride, count, place, origin, same, {}, lists)


def _many(kind: int, stride: int, count: int, piece: Piece, place: Place, origin: int) -> Batch:
    plan, none = _plan(kind, stride), _none(kind)
    fields = Fields(piece, place, stride)
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
    return Batch(kind, stride, count, place, origin, same, packed)
