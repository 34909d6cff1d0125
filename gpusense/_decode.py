"""CUPTI activity buffers to columns. Pure: bytes in, values out; never ctypes.

Nothing here calls back into a library or trusts a byte: on any input it ends, and never raises. A record that CUPTI
could not time, or whose times cannot be, is left out and counted. Columns are copies, good after the buffer was given
back; :func:`record` reads the buffer again and needs it (or a copy) alive.
"""

import itertools
from collections.abc import Mapping, Sequence
from itertools import compress, islice
from operator import le, sub
from typing import Any, NamedTuple

from . import _layouts as layouts
from ._decode_record import record, unpack

__all__ = ["Batch", "Tally", "batches", "name_pointers", "numbers", "pick", "record", "unpack"]

#: Nothing on a device lasts thirty days; CUPTI's broken time stamps differ by decades.
LONGEST_NS = 30 * 24 * 3600 * 10**9
#: Times beyond a signed 64-bit nanosecond clock are garbage.
LATEST_NS = 2**63 - 1


class Batch(NamedTuple):
    """Records of one kind as columns of equal length, in the order of the buffer.

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
    earliest: int = 0  # no start is before
    latest: int = 0  # no end is after
    longest: int = 0  # no duration is longer
    sequential: bool = False  # none begins before the one before it has ended


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
    found: list[Batch] = []
    seen = other = invalid = 0
    for kind, place in places.items():
        offsets = place.offsets()
        count = len(offsets)
        if kind in COLUMNS:
            stride = strides[kind]
            batch = _valid(_batch(kind, stride, offsets, place.parts(buffer, stride)))
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
            for _, run in place.runs:
                pointers.update(quads[(run.start + field) // 8 : run.stop // 8 : stride // 8].tolist())
            pointers.update([quads[(at + field) // 8] for at in place.singles])
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


class _Place:
    """Where the records of one kind lie, in the order of the buffer: long runs, and single ones between them."""

    __slots__ = ("runs", "singles")

    def __init__(self) -> None:
        self.runs: list[tuple[int, range]] = []  # (how many of ``singles`` lie before it, offsets)
        self.singles: list[int] = []

    def offsets(self) -> Sequence[int]:
        if not self.singles and len(self.runs) == 1:
            return self.runs[0][1]
        found: list[int] = []
        done = 0
        for before, run in self.runs:
            found += self.singles[done:before]
            found += run
            done = before
        return found + self.singles[done:]

    def parts(self, buffer: memoryview, stride: int) -> list[memoryview]:
        """All records in the order of :meth:`offsets`: long runs where they lie, what is between them copied."""
        found: list[memoryview] = []
        done = 0
        for before, run in self.runs:
            if before > done:
                found.append(_gathered(buffer, self.singles[done:before], stride))
            found.append(buffer[run.start : run.stop])
            done = before
        if done < len(self.singles):
            found.append(_gathered(buffer, self.singles[done:], stride))
        if len(found) == 1 or sum(map(len, found)) >= len(found) * stride * _WORTH_A_VIEW:
            return found
        return [memoryview(b"".join(found))]


_WORTH_A_VIEW = 16  # records; shorter runs are cheaper to copy than to look at one by one


def _gathered(buffer: memoryview, singles: list[int], stride: int) -> memoryview:
    origin = singles[0]
    data = bytes(buffer[origin : singles[-1] + stride])
    return memoryview(b"".join([data[at - origin : at - origin + stride] for at in singles]))


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
        place = places.setdefault(kind, _Place())
        place.runs.append((len(place.singles), range(at, at + length * step, step)))
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
    wanted = words[at : at + 1].tobytes()
    size = len(words)
    length, window = 0, 16
    while True:
        fit = min(window, limit - length, (size - at) // step)
        if fit <= 0:
            return length
        kinds = words[at : at + fit * step : step]
        # Each record of the kind says where the next begins, so the first that differs ends the run for certain.
        if kinds.tobytes() != wanted * fit:
            return length + next(compress(itertools.count(), map(kind.__ne__, kinds.tolist())))
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


def _batch(kind: int, stride: int, offsets: Sequence[int], parts: list[memoryview]) -> Batch:
    """All columns of the records that ``parts`` hold back to back."""
    count = len(offsets)
    columns = COLUMNS[kind]
    layout = layouts.LAYOUTS[kind]
    casts: dict[str, list[memoryview]] = {}

    def column(name: str, often_uniform: bool = False) -> list[int] | None:
        field = layout.field(name) if name else None
        if field is None or field.end > stride:
            return None
        views = casts.get(field.code)
        if views is None:
            views = casts[field.code] = [part.cast(field.code) for part in parts]  # type: ignore[call-overload]
        width = views[0].itemsize
        first, step = field.offset // width, stride // width
        if often_uniform:  # a copy and a comparison cost a third of making numbers
            pieces = [view[first::step].tobytes() for view in views]
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if data == data[:width] * count:
                return [views[0][first]] * count
        values: list[int] = views[0][first::step].tolist()
        for view in views[1:]:
            values += view[first::step].tolist()
        return values

    def number(name: str) -> list[int] | list[None]:
        values = column(name, often_uniform=True)
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
    start, end, duration = batch.start, batch.end, batch.duration
    shortest, longest = min(duration), max(duration)
    # As the work of one stream comes: one pass, whose answer is needed later, instead of two.
    sequential = shortest >= 0 and all(map(le, end, islice(start, 1, None)))
    earliest, latest = (start[0], end[-1]) if sequential else (min(start), max(end))
    # end = 0 shows as a negative duration, since start is not 0.
    if earliest > 0 and latest <= LATEST_NS and shortest >= 0 and longest <= LONGEST_NS:
        return batch._replace(earliest=earliest, latest=latest, longest=longest, sequential=sequential)
    good = [s > 0 and s + d <= LATEST_NS and 0 <= d <= LONGEST_NS for s, d in zip(start, duration, strict=True)]
    kept = pick(batch, [i for i, fine in enumerate(good) if fine])
    if not kept.offsets:
        return kept
    return kept._replace(earliest=min(kept.start), latest=max(kept.end), longest=max(kept.duration))


def pick(batch: Batch, indices: Sequence[int]) -> Batch:
    """The records at ``indices``, which ascend; the bounds stay bounds."""
    columns: Any = zip(Batch._fields[2:13], batch[2:13], strict=True)
    picked: dict[str, Any] = {name: [column[i] for i in indices] for name, column in columns}
    return batch._replace(**picked)
