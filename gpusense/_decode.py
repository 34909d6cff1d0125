"""CUPTI activity buffers to columns. Pure: bytes in, values out; never ctypes.

Nothing here calls back into a library or trusts a byte: on any input it ends, and never raises. A record that CUPTI
could not time, or whose times cannot be, is left out and counted. Columns are copies, good after the buffer was given
back; :func:`record` reads the buffer again and needs it (or a copy) alive.
"""

import itertools
from collections.abc import Mapping, Sequence
from itertools import compress
from operator import sub
from typing import NamedTuple

from . import _layouts as layouts
from ._decode_record import record, unpack

__all__ = ["Batch", "Tally", "batches", "name_pointers", "record", "unpack"]

#: Nothing on a device lasts thirty days; CUPTI's broken time stamps differ by decades.
LONGEST_NS = 30 * 24 * 3600 * 10**9
#: Times beyond a signed 64-bit nanosecond clock are garbage.
LATEST_NS = 2**63 - 1


class Batch(NamedTuple):
    """Records of one kind as columns of equal length, in no particular order.

    ``key`` says what was done: name pointer for kernels, copy kind, memset value, synchronisation type, operation of an
    allocation, external id, API function id, overhead kind, counter kind. Where the kind has no such field, ``device``,
    ``context`` and ``stream`` hold None, ``bytes`` and ``thread`` 0. Kinds without times have ``start`` = ``end`` = 0,
    instants have ``end`` = ``start``.
    """

    kind: int
    stride: int
    offsets: Sequence[int]  # bytes from the start of the buffer
    start: list[int]
    end: list[int]
    duration: list[int]
    correlation: list[int]  # 32 bits, as in the record; 0 is unknown
    device: list[int] | list[None]
    context: list[int] | list[None]
    stream: list[int] | list[None]
    key: list[int]
    bytes: list[int]
    thread: list[int]


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
    places, end, unknown, truncated = _walk(buffer, strides, offset, limit)
    data = bytes(buffer[offset:end]) if any(place.scattered for place in places.values()) else b""
    found: list[Batch] = []
    seen = other = invalid = 0
    for kind, place in places.items():
        offsets = place.offsets()
        count = len(offsets)
        if kind in COLUMNS:
            stride = strides[kind]
            batch = _valid(_batch(kind, stride, offsets, place.part(buffer, data, offset, stride)))
            if batch.offsets:
                found.append(batch)
            invalid += count - len(batch.offsets)
            other += 0 if kind in layouts.WORK_KINDS else len(batch.offsets)
        else:
            other += count
        seen += count if kind in layouts.WORK_KINDS else 0
    return found, Tally(seen, other, invalid, unknown, truncated, end)


def name_pointers(buffer: memoryview, strides: Mapping[int, int]) -> set[int]:
    """Addresses of all C strings that the records of ``buffer`` refer to."""
    places = _walk(buffer, strides, 0, None)[0]
    quads = buffer[: len(buffer) & ~7].cast("Q")
    pointers: set[int] = set()
    for kind, place in places.items():
        stride = strides[kind]
        for field in _pointer_fields(kind, stride):
            for run in place.runs:
                pointers.update(quads[(run.start + field) // 8 : run.stop // 8 : stride // 8].tolist())
            pointers.update([quads[(at + field) // 8] for at in place.singles])
    pointers.discard(0)
    return pointers


def _pointer_fields(kind: int, stride: int) -> list[int]:
    layout = layouts.LAYOUTS.get(kind)
    if layout is None:
        return []
    return [field.offset for field in layout.fields if field.name in _NAME_FIELDS and field.end <= stride]


# --- the walk: where the records of each kind begin -----------------------------------------------------------------


class _Place:
    """Where the records of one kind lie: long runs and single ones."""

    __slots__ = ("runs", "singles")

    def __init__(self) -> None:
        self.runs: list[range] = []
        self.singles: list[int] = []

    @property
    def scattered(self) -> bool:
        return len(self.runs) + len(self.singles) > 1

    def offsets(self) -> Sequence[int]:
        if not self.singles and len(self.runs) == 1:
            return self.runs[0]
        return [*itertools.chain.from_iterable(self.runs), *self.singles]

    def part(self, buffer: memoryview, data: bytes, origin: int, stride: int) -> memoryview:
        """All records back to back, in the order of :meth:`offsets`; ``data`` holds the buffer from ``origin`` on."""
        if not self.scattered:
            run = self.runs[0] if self.runs else range(self.singles[0], self.singles[0] + stride)
            return buffer[run.start : run.stop]
        pieces = [data[run.start - origin : run.stop - origin] for run in self.runs]
        pieces += [data[at - origin : at - origin + stride] for at in self.singles]
        return memoryview(b"".join(pieces))


def _walk(
    buffer: memoryview, strides: Mapping[int, int], offset: int, limit: int | None
) -> tuple[dict[int, _Place], int, int, int]:
    """Places by kind, where the walk ended, and 1 for an unknown kind, 1 for a record cut off at the end.

    A kind without a usable stride ends the buffer: nothing says where the next record begins.
    """
    size = len(buffer)
    words = buffer[: size & ~7].cast("I")
    steps = {k: s for k, s in strides.items() if s % 8 == 0 and s >= layouts.minimum_stride(k)}
    places: dict[int, _Place] = {}
    at, left, singles = offset, size if limit is None else limit, 0
    while at < len(words) * 4 and left > 0:
        kind = words[at >> 2]
        step = steps.get(kind)
        if step is None:
            return places, size, 1, 0
        length = _run(words, at >> 2, step >> 2, left)
        if not length:
            return places, size, 0, 1
        places.setdefault(kind, _Place()).runs.append(range(at, at + length * step, step))
        at += length * step
        left -= length
        singles = 0 if length >= _LONG else min(2 * singles + 2, 64, left)
        if singles:
            at, stepped = _single_steps(words, at, steps, places, singles)
            left -= stepped
    if at < len(words) * 4:
        return places, at, 0, 0
    return places, size, 0, int(at < size)


_LONG = 32  # from this length on a run is cheaper to find as one than to step through


def _run(words: memoryview, at: int, step: int, limit: int) -> int:
    """How many whole records of the kind at ``at`` follow each other, looking at ever longer windows."""
    kind = words[at]
    size = len(words)
    length, window = 0, 16
    while True:
        fit = min(window, limit - length, (size - at) // step)
        if fit <= 0:
            return length
        kinds: list[int] = words[at : at + fit * step : step].tolist()
        # Each record of the kind says where the next begins, so the first that differs ends the run for certain.
        if kinds.count(kind) != fit:
            return length + next(compress(itertools.count(), map(kind.__ne__, kinds)))
        length += fit
        at += fit * step
        window = min(window * 2, 256)


def _single_steps(
    words: memoryview, at: int, steps: Mapping[int, int], places: dict[int, _Place], limit: int
) -> tuple[int, int]:
    """Steps over up to ``limit`` records of kinds already in ``places``; where it stopped, after how many."""
    limit = min(limit, (len(words) * 4 - at) // max(steps.values()))  # all fit, whatever their kinds
    add = {kind: place.singles.append for kind, place in places.items()}
    for stepped in range(limit):
        kind = words[at >> 2]
        try:
            add[kind](at)
        except KeyError:
            return at, stepped
        at += steps[kind]
    return at, limit


# --- columns --------------------------------------------------------------------------------------------------------


def _batch(kind: int, stride: int, offsets: Sequence[int], part: memoryview) -> Batch:
    """All columns of the records that ``part`` holds back to back."""
    count = len(offsets)
    columns = COLUMNS[kind]
    layout = layouts.LAYOUTS[kind]
    views: dict[str, memoryview] = {"Q": part.cast("Q"), "I": part.cast("I"), "H": part.cast("H"), "B": part}

    def column(name: str) -> list[int] | None:
        field = layout.field(name) if name else None
        if field is None or field.end > stride:
            return None
        width = field.end - field.offset
        values: list[int] = views[field.code][field.offset // width :: stride // width].tolist()
        return values

    def number(name: str) -> list[int] | list[None]:
        values = column(name)
        if values is None:
            return [None] * count
        if kind not in _ALWAYS_NUMBERED and layouts.NOT_APPLICABLE in values:
            return [None if v == layouts.NOT_APPLICABLE else v for v in values]  # type: ignore[return-value]
        return values

    zeros = [0] * count
    start = column(columns.start) or zeros
    end = column(columns.end) or start
    return Batch(
        kind,
        stride,
        offsets,
        start,
        end,
        list(map(sub, end, start)) if end is not start else zeros,
        column(columns.correlation) or zeros,
        number(columns.device),
        number(columns.context),
        number(columns.stream),
        column(columns.key) or zeros,
        column(columns.bytes) or zeros,
        column(columns.thread) or zeros,
    )


def _valid(batch: Batch) -> Batch:
    """``batch`` without the records whose times cannot be. Kinds without times pass."""
    if not COLUMNS[batch.kind].start:
        return batch
    start, duration = batch.start, batch.duration
    # end = 0 shows as a negative duration, since start is not 0.
    if min(start) > 0 and max(start) <= LATEST_NS and min(duration) >= 0 and max(duration) <= LONGEST_NS:
        return batch
    good = [0 < s <= LATEST_NS and 0 <= d <= LONGEST_NS for s, d in zip(start, duration, strict=True)]
    columns: tuple[list[int], ...] = batch[2:]  # type: ignore[assignment]  # None where the kind has no such field
    kept = [list(compress(column, good)) for column in columns]
    return Batch(batch.kind, batch.stride, *kept)
