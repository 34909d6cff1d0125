"""Native Perfetto traces (``.pftrace``): exact nanoseconds, one track a stream, written as a stream of packets.

Layout: ``TrackDescriptor`` and ``TrackEvent`` of https://perfetto.dev/docs/reference/synthetic-track-event. A trace is
a sequence of packets, so a file that was cut off opens up to the cut.
"""

import os
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import IO, Any, NamedTuple

from .._records.device_identity import card
from .._records.json_codec import plain
from .._records.records import BlockRecord, GpuKernel, GpuMemoryTransfer
from .._runtime.text import one_line
from ..analysis.busy import window
from ..analysis.processes import processes_of
from ..analysis.program import Program
from ..analysis.ranks import job_of, name_of
from ..session import Session
from . import identity
from .divisions import GAPS, Gap, divisions_of, phase_text
from .files import output
from .protobuf import double, fixed64, message, number, text, varint
from .series import device_series
from .tracks import Track, end_of, label, spread, tracks

# Field numbers of TracePacket, TrackEvent, InternedData and DebugAnnotation.
_PACKET = 1
_CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 6, 8, 10, 11, 12, 13, 60
_TYPE, _NAME_ID, _TRACK, _COUNTER, _FLOWS, _NOTE = 9, 10, 11, 44, 47, 4
_INTERNED_NAME, _INTERNED_NOTE, _INTERNED_TEXT = 2, 3, 29
_NOTE_NAME, _NOTE_INT, _NOTE_DOUBLE, _NOTE_TEXT_ID = 1, 4, 5, 17
_BEGIN, _END, _COUNT = 1, 2, 4
_CLEARED, _NEEDS_STATE, _EXPLICIT = 1, 2, 3
_REALTIME, _BOOTTIME = 1, 6
_FLOWS_OF_COLLECTIVES = 1 << 48  # beyond those of launches
_PIECE = 1 << 20

_SEQUENCE_BYTES = number(_SEQUENCE, 1)
_STATE_BYTES = _SEQUENCE_BYTES + number(_FLAGS, _NEEDS_STATE)
_END_BYTES = number(_TYPE, _END)
_TIMESTAMP_KEY = varint(_TIMESTAMP << 3)
#: Wall-clock times of our century take nine bytes.
_NINE_BYTES = (1 << 56, 1 << 63)
_MOST_KNOWN = 100_000


def write(session: Session, target: "str | os.PathLike[str] | IO[bytes]") -> None:
    """Writes the trace to a path or an open binary file."""
    with output(target, binary=True) as file:
        piece = bytearray()
        for packet in packets(session):
            piece += packet
            if len(piece) >= _PIECE:
                file.write(piece)
                piece = bytearray()
        file.write(piece)


def packets(session: Session) -> Iterator[bytes]:
    """The trace, one or a few packets at a time."""
    whole = window(session)
    start = whole[0] if whole else session.meta.get("start_ns") or 0
    writer = _Writer(start)
    yield writer.head()
    groups: dict[str, int] = {}
    divisions, waiting = divisions_of(session), set()
    of_host: list[Track] = []
    of_devices: list[Track] = []
    for track in tracks(session):
        (of_host if track.device is None else of_devices).append(track)
    pids = {one.get("root"): one.get("pid") for one in processes_of(session)} | {"Host": session.meta.get("pid")}
    for program in divisions.programs:
        yield writer.group(groups, "Phases", None)
        yield from writer.phases(program, groups["Phases"])
    for track in of_host:
        yield writer.group(groups, track.group, pids.get(track.group), identity.program(session.meta))
    # Devices first: writing a kernel numbers its flow, which the block it came from then names as its origin.
    for track in of_devices:
        yield writer.group(groups, track.group, None)
        yield from writer.track(track, groups[track.group])
        if track.device is not None and card(*track.device) not in waiting:
            waiting.add(card(*track.device))
            yield from writer.gaps(divisions.gaps(track.device), groups[track.group])
    for track in of_host:
        yield from writer.track(track, groups[track.group])
    yield from _collectives(session, writer, groups)
    for one in device_series(session, held=True):
        yield writer.group(groups, one.group, None)
        yield from writer.counter(groups[one.group], one.name, one.unit, one.points)


class _Part(NamedTuple):
    """One rank's part of a collective, on its own clock."""

    start_ns: int
    end_ns: int
    name: str
    flow: int  # of all parts of the collective
    waited_ns: int


def _collectives(session: Session, writer: "_Writer", groups: dict[str, int]) -> Iterator[bytes]:
    """In the group of each rank a track of its collectives on the device, each connected with those of the others."""
    these = session.once(job_of)
    if these.told is None or len(these.sessions) < 2:
        return
    parts: list[list[_Part]] = [[] for _ in these.sessions]
    for flow, each in enumerate(these.told.joined, _FLOWS_OF_COLLECTIVES):
        name = f"{each.key.name} {each.key.sequence}"
        for part in each.parts:
            shift = these.told.offsets_ns[part.process] or 0
            end = each.last.start_ns if part.end_ns is None else part.end_ns
            waited = each.waited_ns(part)
            parts[part.process].append(_Part(part.start_ns + shift, end + shift, name, flow, waited))
    for one, number_of, mine in zip(these.sessions, these.numbers, parts, strict=True):
        group = name_of(one, number_of)
        yield writer.group(groups, group, one.meta.get("pid"))
        for lane in spread(sorted(mine)):
            yield from writer.parts(lane, groups[group])


class _Frame(NamedTuple):
    """An event, and what stands before and after the nine bytes of the time in its packet."""

    head: bytes
    tail: bytes
    event: bytes


def _frame(event: bytes, more: int = 0) -> _Frame:
    """For a packet whose event goes on for ``more`` bytes. Few events differ in more than their time."""
    tail = _STATE_BYTES + varint(_EVENT << 3 | 2) + varint(len(event) + more) + event
    length = len(_TIMESTAMP_KEY) + 9 + len(tail) + more
    return _Frame(varint(_PACKET << 3 | 2) + varint(length) + _TIMESTAMP_KEY, tail, event)


class _Writer:
    """Numbers tracks, names and flows while it encodes."""

    def __init__(self, start_ns: int) -> None:
        self._start = start_ns
        self._tracks = 0
        self._names: dict[str, bytes] = {}
        self._texts: dict[str, int] = {}
        self._notes: dict[str, int] = {}
        self._flows: dict[int, array[int]] = {}
        self._flow = 0
        self._pending = b""  # interned data that the next packet must bring along
        self._high = (-1, b"")

    def head(self) -> bytes:
        """The first packet: state cleared, and boot time equal to wall time, so that time stamps are wall time."""
        clocks = b"".join(
            message(1, number(1, clock) + number(2, max(0, self._start))) for clock in (_REALTIME, _BOOTTIME)
        )
        return message(_PACKET, _SEQUENCE_BYTES + number(_FLAGS, _CLEARED | _NEEDS_STATE) + message(_CLOCKS, clocks))

    def group(self, groups: dict[str, int], name: str, pid: int | None, program: str = "") -> bytes:
        """Descriptor of a top-level track, unless it has been written; its number goes into ``groups``. ``program``: in
        place of the name of the host."""
        if name in groups:
            return b""
        groups[name] = uuid = self._uuid()
        body = number(1, uuid) + number(11, _EXPLICIT)  # children in the order of their ranks, field 12
        if pid is not None:
            body += message(3, number(1, pid) + text(6, program if name == "Host" else name))
        else:
            body += text(2, name)
        return self._describe(body)

    def track(self, track: Track, parent: int) -> Iterator[bytes]:
        uuid, descriptor = self._child(track.name, parent)
        yield descriptor
        begin, ended = number(_TYPE, _BEGIN) + number(_TRACK, uuid), _frame(_END_BYTES + number(_TRACK, uuid))
        begun: dict[Any, _Frame] = {}
        stack: list[int] = []
        for record in track.records:
            start = record.start_ns
            while stack and stack[-1] <= start:
                yield self._timed(stack.pop(), ended)
            flows = self._flows_of(record)
            kind = type(record)
            facts = values_of(record)
            key = (kind, record.name, len(flows), facts) if facts[-1] is None else None  # attributes are no key
            frame = begun.get(key)
            if frame is None:
                event = begin + self._name(label(record.name)) + self._annotate(kind, facts)
                frame = _frame(event, len(flows))
                if key is not None and len(begun) < _MOST_KNOWN:
                    begun[key] = frame
            stack.append(end_of(record))
            yield self._timed(start, frame, flows)
        while stack:
            yield self._timed(stack.pop(), ended)

    def parts(self, parts: "list[_Part]", parent: int) -> Iterator[bytes]:
        """A track of parts of collectives, which follow each other."""
        uuid, descriptor = self._child("collectives on the device", parent)
        yield descriptor
        begin, end = number(_TYPE, _BEGIN) + number(_TRACK, uuid), _END_BYTES + number(_TRACK, uuid)
        for part in parts:
            event = begin + self._name(part.name) + self._note("waited ns", part.waited_ns)
            yield self._packet(part.start_ns, event + fixed64(_FLOWS, part.flow)) + self._packet(part.end_ns, end)

    def phases(self, program: Program, parent: int) -> Iterator[bytes]:
        """A track with the phases of a process and one with its steps."""
        of = f" · {one_line(program.root, 60)}" if program.root is not None else ""
        yield from self._slices(
            f"phases{of}",
            parent,
            ((one.start_ns, one.end_ns, phase_text(one.name, program.steps)) for one in program.phases),
        )
        steps = program.steps
        if steps is not None:
            rows = enumerate(zip(steps.starts, steps.ends, strict=True), 1)
            name = one_line(steps.name, 60)
            yield from self._slices(f"steps{of}", parent, ((start, end, f"{name} {at}") for at, (start, end) in rows))

    def gaps(self, gaps: "Iterator[Gap]", parent: int) -> Iterator[bytes]:
        """A track that says why a device was empty."""
        yield from self._slices("idle: why", parent, ((one.start_ns, one.end_ns, GAPS[one.cause]) for one in gaps))

    def _slices(self, name: str, parent: int, rows: "Iterator[tuple[int, int, str]]") -> Iterator[bytes]:
        """A track of slices that follow each other; none where there is no slice."""
        begin = end = b""
        for start, stop, words in rows:
            if not begin:
                uuid, descriptor = self._child(name, parent)
                yield descriptor
                begin, end = number(_TYPE, _BEGIN) + number(_TRACK, uuid), _END_BYTES + number(_TRACK, uuid)
            yield self._packet(start, begin + self._name(words)) + self._packet(stop, end)

    def counter(self, parent: int, name: str, unit: str, points: "list[tuple[int, float]]") -> Iterator[bytes]:
        uuid = self._uuid()
        yield self._describe(
            number(1, uuid) + text(2, name) + number(5, parent) + number(12, uuid) + message(8, text(6, unit))
        )
        frame = _frame(number(_TYPE, _COUNT) + number(_TRACK, uuid), len(double(_COUNTER, 0.0)))
        for time, value in points:
            yield self._timed(time, frame, double(_COUNTER, value))

    def _uuid(self) -> int:
        self._tracks += 1
        return self._tracks

    def _child(self, name: str, parent: int) -> tuple[int, bytes]:
        uuid = self._uuid()
        return uuid, self._describe(number(1, uuid) + text(2, name) + number(5, parent) + number(12, uuid))

    def _describe(self, body: bytes) -> bytes:
        return message(_PACKET, _SEQUENCE_BYTES + message(_DESCRIPTOR, body))

    def _timed(self, time: int, frame: _Frame, more: bytes = b"") -> bytes:
        """The packet of ``frame`` at ``time``, whose event ends with ``more``."""
        if self._pending or not _NINE_BYTES[0] <= time < _NINE_BYTES[1]:
            return self._packet(time, frame.event + more)
        return frame.head + self._time(time) + frame.tail + more

    def _packet(self, time: int, event: bytes) -> bytes:
        pending, self._pending = self._pending, b""
        interned = message(_INTERNED, pending) if pending else b""
        return message(_PACKET, _TIMESTAMP_KEY + self._time(time) + _STATE_BYTES + interned + message(_EVENT, event))

    def _time(self, time: int) -> bytes:
        """A time stamp as varint: its upper bits are mostly those of the one before."""
        high = time >> 28
        if high <= 0:
            return varint(max(0, time))
        if high != self._high[0]:
            self._high = (high, varint(high))
        return (
            bytes((time & 127 | 128, time >> 7 & 127 | 128, time >> 14 & 127 | 128, time >> 21 & 127 | 128))
            + self._high[1]
        )

    def _name(self, name: str) -> bytes:
        known = self._names.get(name)
        if known is None:
            iid = len(self._names) + 1
            known = self._names[name] = number(_NAME_ID, iid)
            self._pending += message(_INTERNED_NAME, number(1, iid) + text(2, name or "(unnamed)"))
        return known

    def _annotate(self, kind: type, facts: tuple[Any, ...]) -> bytes:
        return b"".join(self._note(name, value) for name, value in named(kind, facts))

    def _note(self, name: str, value: "int | float | str") -> bytes:
        iid = self._notes.get(name)
        if iid is None:
            iid = self._notes[name] = len(self._notes) + 1
            self._pending += message(_INTERNED_NOTE, number(1, iid) + text(2, name))
        if isinstance(value, str):
            return message(_NOTE, number(_NOTE_NAME, iid) + number(_NOTE_TEXT_ID, self._text(value)))
        if isinstance(value, int):
            return message(_NOTE, number(_NOTE_NAME, iid) + number(_NOTE_INT, value))
        return message(_NOTE, number(_NOTE_NAME, iid) + double(_NOTE_DOUBLE, value))

    def _text(self, value: str) -> int:
        iid = self._texts.get(value)
        if iid is None:
            iid = self._texts[value] = len(self._texts) + 1
            self._pending += message(_INTERNED_TEXT, number(1, iid) + text(2, value))
        return iid

    def _flows_of(self, record: Any) -> bytes:
        """For work, a new flow from its block; for a block, the flows to all its work."""
        if type(record) is BlockRecord:
            flows = self._flows.pop(record.block_id, None)
            return b"".join(fixed64(_FLOWS, flow) for flow in flows) if flows else b""
        if record.block_id is None or type(record) not in (GpuKernel, GpuMemoryTransfer):
            return b""
        self._flow += 1
        self._flows.setdefault(record.block_id, array("Q")).append(self._flow)
        return fixed64(_FLOWS, self._flow)


_ARGUMENTS = (
    "full_name",
    "grid",
    "block",
    "registers_per_thread",
    "bytes",
    "source",
    "destination",
    "elements",
    "source_line",
)


#: What is beyond has no place in an integer of a trace.
_INT_END = 1 << 63


@cache
def _reader(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Names and a reader of the fields of a kind of record that are shown; the last two are path and attributes."""
    names = (*(name for name in _ARGUMENTS if name in kind._fields), "path", "attributes")
    return names, attrgetter(*names)


def values_of(record: Any) -> tuple[Any, ...]:
    """What :func:`named` makes the arguments of a slice from; equal for equal ones, the last is the attributes."""
    kind: Any = type(record)
    values: tuple[Any, ...] = _reader(kind)[1](record)
    return values


def named(kind: type, values: tuple[Any, ...]) -> "Iterator[tuple[str, int | float | str]]":
    """Arguments of a slice by name."""
    *names, _, _ = _reader(kind)[0]
    *fields, path, attributes = values
    for name, value in zip(names, fields, strict=True):
        if value is not None:
            yield name, " × ".join(map(str, value)) if isinstance(value, tuple) else value
    if path:
        yield "block path", " › ".join(path)
    for name, value in plain(attributes).items() if attributes else ():
        fits = isinstance(value, (float, str)) or (isinstance(value, int) and -_INT_END <= value < _INT_END)
        yield name, value if fits else str(value)


def arguments(record: Any) -> "tuple[tuple[str, int | float | str], ...]":
    """The details that a slice shows, by name."""
    return tuple(named(type(record), values_of(record)))
