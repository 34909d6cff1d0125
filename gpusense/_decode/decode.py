"""CUPTI activity buffers to columns. Pure: bytes in, values out; never ctypes.

Nothing here calls back into a library or trusts a byte: on any input it ends, and never raises. A record that CUPTI
could not time, or whose times cannot be, is left out and counted. Columns are copies, good after the buffer was given
back; :func:`record` reads the buffer again and needs it (or a copy) alive.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from . import layouts
from .batch import LATEST_NS, LONGEST_NS, Batch
from .columns import COLUMNS, batch_of
from .launches import Launches
from .record import record, unpack
from .walk import Fields, Piece, walk

__all__ = ["LATEST_NS", "LONGEST_NS", "Batch", "Tally", "batches", "name_pointers", "numbers", "record", "unpack"]


class Tally(NamedTuple):
    """What one call walked over. ``offset`` is where the next call goes on; the buffer's size when it is done."""

    seen: int  # records of the kinds that become records of a session, the invalid ones included
    other: int  # valid helper records: correlation, API, overhead, counters, devices, contexts
    invalid: int
    unknown_kinds: int  # 1: a kind of unknown size ended the walk, what followed it is lost
    truncated: int  # 1: the last record did not fit
    offset: int


_NAME_FIELDS = ("name", "source")  # fields that hold the address of a C string


def batches(
    buffer: memoryview,
    strides: Mapping[int, int],
    *,
    offset: int = 0,
    limit: int | None = None,
    launches: Launches | None = None,
    pause: Callable[[], None] | None = None,
) -> tuple[list[Batch], Tally]:
    """The records from ``offset`` on, at most ``limit`` of them, one batch a kind, and what became of them.

    ``strides`` maps record kinds to the size that the library used. To keep the GIL only briefly, call with a
    limit and go on at ``tally.offset`` until it equals the buffer's size; ``pause`` is called halfway. ``launches``
    gets the ids of all work.
    """
    room = len(buffer) if limit is None else max(limit * max(strides.values(), default=0), 8)
    piece = Piece(buffer[offset : offset + room])
    places, at, unknown, truncated = walk(piece, strides, len(buffer) if limit is None else limit)
    if pause is not None:
        pause()
    end = offset + at
    if len(buffer) - end < 8:
        truncated |= end < len(buffer)
    found: list[Batch] = []
    seen = other = invalid = 0
    for kind, place in places.items():
        stride = strides[kind]
        count = valid = place.count(stride)
        if kind in COLUMNS:
            every = batch_of(kind, stride, piece, place, offset)
            if launches is not None and kind in layouts.WORK_KINDS:
                launches.add(every.ids())
            batch = every.judged()
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


def name_pointers(buffer: memoryview, strides: Mapping[int, int], launches: Launches | None = None) -> set[int]:
    """Addresses of all C strings that the records of ``buffer`` refer to. ``launches``: as for :func:`batches`."""
    pointers: set[int] = set()
    piece = Piece(buffer)
    for kind, place in walk(piece, strides, len(buffer))[0].items():
        offsets = _pointer_fields(kind, strides[kind])
        ids = _id_field(kind, strides[kind]) if launches is not None else None
        if offsets or ids is not None:
            fields = Fields(piece, place, strides[kind])
            for offset in offsets:
                pointers.update(memoryview(fields.column("Q", offset)).cast("Q").tolist())
            if ids is not None and launches is not None:
                launches.add(memoryview(fields.column("I", ids)).cast("I").tolist())
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


def _id_field(kind: int, stride: int) -> int | None:
    """Where the correlation id of a record of work lies."""
    field = layouts.LAYOUTS[kind].field("correlation") if kind in layouts.WORK_KINDS else None
    return field.offset if field is not None and field.end <= stride else None
