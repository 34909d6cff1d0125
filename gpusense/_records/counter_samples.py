"""Samples of hardware counters as columns: a :class:`~counters.CounterSample` a row, at about forty bytes.

A device is sampled a thousand times a second. A record for each would take half a kilobyte; here each field that the
device counts is an array. A value that is missing in a row is NaN.
"""

import math
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import overload

from . import json_codec
from .counters import CounterSample

#: Fields that a sample may have: shares and clocks are averages over its time, the others are amounts of it.
FIELDS = tuple(CounterSample._fields[3:])
AVERAGES = frozenset(field for field in FIELDS if field.endswith(("_percent", "_mhz")))

#: Of a device in memory: beyond it neighbours become one sample, so that the whole run stays, more coarsely.
MOST_ROWS = 300_000
COARSEST_NS = 2_000_000_000
ROWS = 1 << 16  # in a payload
_HEAD = struct.Struct("<II")  # bytes of the JSON that follows, without padding; rows
_LONGEST = (1 << 32) - 1  # nanoseconds that a payload can say from one sample to the next


class CounterColumns:
    """Samples of one device with the same fields, by their start. Used by one thread at a time."""

    __slots__ = ("device", "end", "fields", "start", "values")

    def __init__(self, device: int, fields: Sequence[str]) -> None:
        self.device = device
        self.fields = tuple(fields)
        self.start, self.end = array("q"), array("q")  # nanoseconds, the session's clock
        self.values = tuple(array("f") for _ in self.fields)

    def __len__(self) -> int:
        return len(self.start)

    def __iter__(self) -> Iterator[CounterSample]:
        return map(self.sample, range(len(self.start)))

    def sample(self, row: int) -> CounterSample:
        """One row as a record."""
        found = {field: column[row] for field, column in zip(self.fields, self.values, strict=True)}
        known = {field: None if value != value else value for field, value in found.items()}
        return CounterSample(self.device, self.start[row], self.end[row], **known)

    def column(self, field: str) -> "array[float] | None":
        """All values of a field; None where the device does not count it."""
        return self.values[self.fields.index(field)] if field in self.fields else None

    def extend(self, more: "CounterColumns") -> None:
        """Adds rows of the same device and fields that begin no earlier than the last one here."""
        self.start.extend(more.start)
        self.end.extend(more.end)
        for mine, theirs in zip(self.values, more.values, strict=True):
            mine.extend(theirs)

    def of_device(self, device: int) -> "CounterColumns":
        """The same rows under another number of their device."""
        found = CounterColumns(device, self.fields)
        found.start, found.end, found.values = self.start, self.end, self.values
        return found

    def between(self, first: int, last: int) -> "CounterColumns":
        """Rows ``first`` to ``last``, that one not included."""
        found = CounterColumns(self.device, self.fields)
        found.start, found.end = self.start[first:last], self.end[first:last]
        found.values = tuple(column[first:last] for column in self.values)
        return found

    def ordered(self) -> "CounterColumns":
        """By their start, those left out that begin before the end of one: a device is sampled once at a time, so they
        are the same ones from another file."""
        order, last = list[int](), -(1 << 63)
        for row in sorted(range(len(self.start)), key=self.start.__getitem__):
            if self.start[row] >= last:
                order.append(row)
                last = self.end[row]
        found = CounterColumns(self.device, self.fields)
        found.start, found.end = (array("q", map(column.__getitem__, order)) for column in (self.start, self.end))
        found.values = tuple(array("f", map(column.__getitem__, order)) for column in self.values)
        return found

    def coarser(self) -> "CounterColumns":
        """With each two that follow one another without a gap as one, of :data:`COARSEST_NS` at most."""
        found = CounterColumns(self.device, self.fields)
        row, last = 0, len(self.start) - 1
        while row <= last:
            joined = row < last and self.start[row + 1] == self.end[row]
            other = row + 1 if joined and self.end[row + 1] - self.start[row] <= COARSEST_NS else row
            found.start.append(self.start[row])
            found.end.append(self.end[other])
            whole = max(1, self.end[other] - self.start[row])
            share = (self.end[row] - self.start[row]) / whole if other != row else 1.0
            for field, column, mine in zip(self.fields, self.values, found.values, strict=True):
                if other == row:
                    mine.append(column[row])
                elif field in AVERAGES:
                    mine.append(column[row] * share + column[other] * (1 - share))
                else:
                    mine.append(column[row] + column[other])
            row = other + 1
        return found


class CounterTable:
    """All samples of a run; iterating gives a :class:`CounterSample` for each, device by device."""

    __slots__ = ("_parts", "most")

    def __init__(self, most: int | None = None) -> None:
        """``most``: rows of a device; beyond it they become coarser. None: all stay as they are."""
        self.most = most
        self._parts: dict[tuple[int, tuple[str, ...]], CounterColumns] = {}

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def __iter__(self) -> Iterator[CounterSample]:
        for part in self.parts():
            yield from part

    def __repr__(self) -> str:
        return f"<{len(self)} samples of devices {', '.join(map(str, self.devices))}>"

    @overload
    def __getitem__(self, place: int) -> CounterSample: ...
    @overload
    def __getitem__(self, place: slice) -> list[CounterSample]: ...
    def __getitem__(self, place: int | slice) -> CounterSample | list[CounterSample]:
        rows = range(len(self))[place]
        return [self._row(row) for row in rows] if isinstance(rows, range) else self._row(rows)

    def _row(self, row: int) -> CounterSample:
        for part in self.parts():
            if row < len(part):
                return part.sample(row)
            row -= len(part)
        raise IndexError(row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CounterTable) and [*map(repr, self)] == [*map(repr, other)]

    __hash__ = None  # type: ignore[assignment]

    def parts(self) -> list[CounterColumns]:
        """The columns: for each device one, or several where the fields have changed."""
        return [self._parts[key] for key in sorted(self._parts)]

    @property
    def devices(self) -> list[int]:
        """Those that were sampled."""
        return sorted({device for device, _ in self._parts})

    def add(self, columns: CounterColumns) -> None:
        """Adds rows, which as a rule follow those of their device that are there."""
        key = columns.device, columns.fields
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = CounterColumns(*key)
        follows = not len(known) or not len(columns) or columns.start[0] >= known.end[-1]
        known.extend(columns)
        if not follows:  # of two processes one after the other, or of one twice
            known = self._parts[key] = known.ordered()
        if self.most is not None and len(known) > self.most:
            self._parts[key] = known.coarser()

    def since(self, start_ns: int, until_ns: int | None = None) -> "CounterTable":
        """Those that begin at ``start_ns`` or later, and before ``until_ns`` where that is given."""
        found = CounterTable(self.most)
        for part in self.parts():
            first = bisect_left(part.start, start_ns)
            last = len(part) if until_ns is None else bisect_left(part.start, until_ns)
            if first < last:
                found.add(part.between(first, last))
        return found


def packed(columns: CounterColumns) -> Iterator[list[bytes]]:
    """Payloads that hold the rows, in parts: each says all that its rows need."""
    first = 0
    while first < len(columns):
        last = _fits(columns, first)
        begin = columns.start[first]
        gaps, spans, before = array("I"), array("I"), begin
        for start, end in zip(columns.start[first:last], columns.end[first:last], strict=True):
            gaps.append(start - before)
            spans.append(min(end - start, _LONGEST))
            before = end
        text = json_codec.dumps({"device": columns.device, "fields": list(columns.fields), "start_ns": begin}).encode(
            "ascii"
        )
        values = [column[first:last].tobytes() for column in columns.values]
        head = [_HEAD.pack(len(text), last - first), text, bytes(-(_HEAD.size + len(text)) % 8)]
        yield [*head, gaps.tobytes(), spans.tobytes(), *values]
        first = last


def _fits(columns: CounterColumns, first: int) -> int:
    """Behind the last row that one payload can say together with ``first``."""
    before = columns.start[first]
    for row in range(first, min(first + ROWS, len(columns))):
        if not 0 <= columns.start[row] - before <= _LONGEST:
            return row
        before = columns.end[row]
    return min(first + ROWS, len(columns))


def unpacked(payload: bytes) -> CounterColumns:
    """The rows of a payload, fields that this version does not know left out. ``ValueError`` where it is none."""
    if len(payload) < _HEAD.size:
        raise ValueError(f"samples in {len(payload)} bytes")
    length, count = _HEAD.unpack_from(payload)
    at = _HEAD.size + length
    head = json_codec.loads(payload[_HEAD.size : at])
    at += -at % 8
    if type(head) is not dict or {type(head.get(name)) for name in ("device", "start_ns")} != {int}:
        raise ValueError("samples without device and time")
    fields = head.get("fields")
    if type(fields) is not list or not all(type(field) is str for field in fields):
        raise ValueError("samples without fields")
    if len(payload) - at != 4 * count * (2 + len(fields)):
        raise ValueError(f"{count} samples in {len(payload) - at} bytes")
    if abs(head["start_ns"]) >= json_codec.MAX_INT:
        raise ValueError("samples at no time")
    parts = [payload[at + 4 * count * number : at + 4 * count * (number + 1)] for number in range(2 + len(fields))]
    found = CounterColumns(head["device"], [field for field in fields if field in FIELDS])
    gaps, spans = (array("I", part) for part in parts[:2])
    now = head["start_ns"]
    for gap, span in zip(gaps, spans, strict=True):
        found.start.append(now + gap)
        now += gap + span
        found.end.append(now)
    values = [array("f", part) for field, part in zip(fields, parts[2:], strict=True) if field in FIELDS]
    found.values = tuple(array("f", map(_number, column)) for column in values)
    return found


def _number(value: float) -> float:
    return value if math.isfinite(value) else math.nan
