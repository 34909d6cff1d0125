"""CUPTI activity buffers to columns. Pure: bytes in, values out; never ctypes.

Nothing here calls back into a library or trusts a byte: on any input it ends, and never raises. A record that CUPTI
could not time, or whose times cannot be, is left out and counted. Columns are copies, good after the buffer was given
back; :func:`record` reads the buffer again and needs it (or a copy) alive.
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from . import _layouts as layouts
from ._batch import LATEST_NS, LONGEST_NS, Batch, Packed
from ._decode_record import record, unpack
from ._walk import Fields, Piece, Place, walk

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


def batches(
    buffer: memoryview, strides: Mapping[int, int], *, offset: int = 0, limit: int | None = None
) -> tuple[list[Batch], Tally]:
    """The records from ``offset`` on, at most ``limit`` of them, one batch a kind, and what became of them.

    ``strides`` maps record kinds to the size that the library used. To keep the GIL only briefly, call with a
    limit and go on at ``tally.offset`` until it equals the buffer's size.
    """
    room = len(buffer) if limit is None else max(limit * max(strides.values(), default=0), 8)
    piece = Piece(buffer[offset : offset + room])
    places, at, unknown, truncated = walk(piece, strides, limit)
    end = offset + at
    if len(buffer) - end < 8:
        truncated |= end < len(buffer)
    found: list[Batch] = []
    seen = other = invalid = 0
    for kind, place in places.items():
        stride = strides[kind]
        count = valid = place.count(stride)
        if kind in COLUMNS:
            fields = Fields(piece, place, stride)
            batch = _batch(kind, stride, count, fields, place, offset).judged()
            fields.close()
            valid = batch.count
            if valid:
                found.append(batch)
            invalid += count - valid
        if kind in layouts.WORK_KINDS:
            seen += count
        else:
            other += valid
    piece.close()
    return found, Tally(seen, other, invalid, unknown, truncated, len(buffer) if unknown or truncated else end)


def name_pointers(buffer: memoryview, strides: Mapping[int, int]) -> set[int]:
    """Addresses of all C strings that the records of ``buffer`` refer to."""
    pointers: set[int] = set()
    piece = Piece(buffer)
    for kind, place in walk(piece, strides, None)[0].items():
        offsets = _pointer_fields(kind, strides[kind])
        if offsets:
            fields = Fields(piece, place, strides[kind])
            for offset in offsets:
                pointers.update(memoryview(fields.column("Q", offset)).cast("Q").tolist())
            fields.close()
    piece.close()
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


def _batch(kind: int, stride: int, count: int, fields: Fields, place: Place, origin: int) -> Batch:
    """All columns of the records at ``place``; ``origin``: of the piece in the buffer."""
    plan = _plan(kind, stride)
    column = fields.column
    same = dict(plan.absent)
    packed: dict[str, Packed] = {}
    none = None if kind in _ALWAYS_NUMBERED else layouts.NOT_APPLICABLE

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
