"""CUPTI activity buffers to columns: finds the records of each kind, and makes a batch of them. Pure; never ctypes.

Nothing here calls back into a library or trusts a byte: on any input it ends, and never raises. A record that CUPTI
could not time, or whose times cannot be, is left out and counted. Columns are copies, good after the buffer was given
back; single records are read from the buffer again by :mod:`.record`.
"""

import sys
from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

from . import layouts
from .batch import Batch, Runs
from .columns import COLUMNS, Fields, Piece, batch_of
from .correlation_ids import Launches

_NAME_FIELDS = ("name", "source")  # fields that hold the address of a C string
_TIME_FIELDS = ("start", "end", "timestamp")
_NEAR = 16  # records looked at one by one; further ones of the same kind are cheaper to look at together


class Tally(NamedTuple):
    """What one call walked over. ``offset`` is where the next call goes on; the buffer's size when it is done."""

    seen: int  # records of the kinds that become records of a session, the invalid ones included
    other: int  # valid helper records: correlation, API, overhead, counters, devices, contexts
    invalid: int
    unknown_kinds: int  # 1: a kind of unknown size ended the walk, what followed it is lost
    truncated: int  # 1: the last record did not fit
    offset: int


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
    piece = Piece(buffer[offset : offset + room], offset)
    every, at, unknown, truncated = walk(piece, strides, len(buffer) if limit is None else limit)
    if pause is not None:
        pause()
    end = offset + at
    if len(buffer) - end < 8:
        truncated |= end < len(buffer)
    found: list[Batch] = []
    seen = other = invalid = 0
    for kind, runs in every.items():
        stride = strides[kind]
        count = valid = runs.count(stride)
        if kind in COLUMNS:
            whole = batch_of(kind, stride, piece, runs)
            if launches is not None and kind in layouts.WORK_KINDS:
                launches.add(whole.ids())
            batch = whole.judged()
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
    for kind, runs in walk(piece, strides, len(buffer))[0].items():
        offsets = _pointer_fields(kind, strides[kind])
        ids = nodes = None
        if launches is not None:
            ids, nodes = (_work_field(kind, strides[kind], name) for name in ("correlation", "graph_node"))
        if offsets or ids is not None:
            fields = Fields(piece, runs, strides[kind])
            for offset in offsets:
                pointers.update(memoryview(fields.column("Q", offset)).cast("Q").tolist())
            if ids is not None and launches is not None:
                launches.add(memoryview(fields.column("I", ids)).cast("I").tolist())
            if nodes is not None and launches is not None:
                launches.graphs |= any(memoryview(fields.column("Q", nodes)).cast("Q"))
            fields.close()
    piece.close()
    pointers.discard(0)
    return pointers


def restamped(buffer: memoryview, strides: Mapping[int, int], of: Callable[[int], int]) -> memoryview:
    """A copy in which every time of a record, but 0, is ``of`` it."""
    copy = memoryview(bytearray(buffer))
    piece = Piece(buffer)
    for kind, runs in walk(piece, strides, len(buffer))[0].items():
        layout, stride = layouts.LAYOUTS.get(kind), strides[kind]
        places = [f.offset for f in layout.fields if f.name in _TIME_FIELDS and f.end <= stride] if layout else []
        for begin, end in zip(runs.begins, runs.ends, strict=True):
            for record in range(begin << 2, end << 2, stride):
                for at in places:
                    time = int.from_bytes(copy[record + at : record + at + 8], sys.byteorder)
                    if time:
                        copy[record + at : record + at + 8] = (of(time) % (1 << 64)).to_bytes(8, sys.byteorder)
    piece.close()
    return copy


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


def _work_field(kind: int, stride: int, name: str) -> int | None:
    """Where a field of a record of work lies."""
    field = layouts.LAYOUTS[kind].field(name) if kind in layouts.WORK_KINDS else None
    return field.offset if field is not None and field.end <= stride else None


def walk(piece: Piece, strides: Mapping[int, int], limit: int) -> tuple[dict[int, Runs], int, int, int]:
    """The runs of each kind, where the walk ended, and 1 for an unknown kind, 1 for a record cut off at the end.

    At most ``limit`` records are walked over. A kind without a usable stride ends the walk: nothing says where the next
    record begins.
    """
    words, total = piece.items("I"), piece.size >> 2
    found: dict[int, Runs] = {}
    known: dict[int, tuple[int, Callable[[int], None], Callable[[int], None]]] = {}
    guesses: dict[int, int] = {}  # how far the last run of each kind went on: programs do the same again and again
    at, left = 0, limit
    while at < total and left > 0:
        kind = words[at]
        if kind not in known:
            stride = strides.get(kind, 0)
            if not stride or stride % 8 or stride < layouts.minimum_stride(kind):
                return found, at << 2, 1, 0
            if at + (stride >> 2) > total:
                return found, at << 2, 0, 1
            runs = found[kind] = Runs(piece.origin, [], [])
            known[kind] = stride >> 2, runs.begins.append, runs.ends.append
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
        return found, _without_last(found[kind], at - step) << 2, 0, 1
    return found, at << 2, 0, 0


def _without_last(runs: Runs, began: int) -> int:
    """Takes away the record that began there, which does not fit."""
    runs.ends[-1] = began
    if runs.begins[-1] == began:
        del runs.begins[-1], runs.ends[-1]
    return began


def _end_of_run(words: "array[int]", at: int, step: int, stop: int, kind: int, guess: int) -> int:
    """Where the records of a kind end that follow each other from ``at`` on and begin before ``stop``. ``guess``: how
    many words further that may be.

    A few looks say where that may be; then all are looked at. Each record of the kind says where the next begins, so
    the first that is of another ends the run for certain.
    """
    wanted = kind.to_bytes(4, sys.byteorder)
    same = wanted * (guess // step)
    if same and guess < stop - at and words[at + guess] != kind and words[at : at + guess : step].tobytes() == same:
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
