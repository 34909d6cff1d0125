"""Marks at the ends of blocks, and records of what lay between them on the device.

On the program's threads: a mark on each stream that the block is on, as it opens and as it closes, and where the thread
goes on to another stream in between. On gpusense's: marks are read once the device has come to them.

Nothing here reaches the program: what the driver refuses is the reason why a block has no time, and is counted by the
block's path.
"""

import time
from collections import deque
from ctypes import byref, c_int, c_uint, c_void_p
from operator import attrgetter
from typing import Any, NamedTuple

from ..._attribution.open_blocks import innermost
from ..._capi.cuda_facts import count
from ..._records.protocols import OnRecords
from ..._records.records import AT_MOST, DeviceInfo, GpuBlockTime, Path
from ..._runtime import process, threads
from ..._runtime.clock import SESSION
from .. import cuda
from .hosts import Hosts, silent
from .marks import BUSY_NS, Failed, Mark, Place, Stream, record_with

MAX_REASONS = 1_000  # paths and reasons that are told apart
PER_THREAD = 2  # the handle that means another stream on each thread
_POLL_S = 0.0005

BEGAN = "CUDA came into use inside the block"
CAME = "the library that launches came into use inside the block"
NO_CONTEXT = "the thread had no CUDA context as the block began"
ELSEWHERE = "the block ended on another thread, which has another default stream"
UNFINISHED_YET = "the device has not come to its end yet"
UNFINISHED = "the device had not come to the block's end as recording ended"


class Span:
    """One stream in one block; ``end`` None while the block's thread is on it. ``keeps`` it alive; ``own``: it is of
    the thread's own device."""

    __slots__ = ("end", "keeps", "own", "start", "stream")

    def __init__(self, stream: Stream, keeps: Any, own: bool, start: Mark) -> None:
        self.stream, self.keeps, self.own, self.start = stream, keeps, own, start
        self.end: Mark | None = None


#: A block whose marks are to be read: name, path, number, spans.
Closed = tuple[str, Path, int, list[Span]]


class Here(NamedTuple):
    """A stream that this thread launches on; see :class:`Span`."""

    stream: Stream
    keeps: Any
    own: bool


class _Reach(NamedTuple):
    """A span on the session's clock."""

    start_ns: int
    end_ns: int
    idle_before: bool
    idle_behind: bool
    own: bool
    empty: bool  # the stream had nothing to do in between


def _on(stream: Stream, block: Any) -> Span | None:
    """What ``block`` has of it."""
    return next((span for span in block.marked if span.stream is stream), None)


_end_ns = attrgetter("end_ns")


class BlockTimes:
    """A RecordSource and a listener of blocks. :meth:`poll` is to be called a few times a second."""

    name = "block_times"

    def __init__(self) -> None:
        self._on = True
        self._on_records: OnRecords | None = None
        self._api: Any = None
        self._record: Any = None  # see marks.Record
        self._places: dict[int, Place] = {}
        self._primary: dict[int, int] = {}  # contexts by device
        self._devices: tuple[int, ...] = ()  # with a primary context
        self._hosts = Hosts(self._leaves, self._arrives, self._library_came)
        self._newest = self._came = 0  # block that was opened last; and when a library was met
        self._closed: deque[Closed] = deque()
        self._reading = threads.lock()
        self._untimed: dict[tuple[Path, str], int] = {}
        self._timed = 0
        self._error_ns: int | None = None
        self._ident = threads.thread_id()
        process.register(self)

    # --- blocks, on the program's threads -----------------------------------------------------------------------------

    def block_opened(self, block: Any) -> None:
        """Marks its beginning: ``block.marked`` are its spans from now on, or why there will be no time."""
        if not self._on or (self._api is None and not self._look()):
            return
        stream = self._hosts.streams(self._devices).here
        mark = stream.mark_here() if stream is not None and not stream.place.gone else None
        block.marked, self._newest = [], block.block_id
        if mark is None:
            self._begin([block])
        elif isinstance(mark, str):
            block.marked = mark
        else:
            block.marked.append(Span(stream, None, True, mark))

    def block_closed(self, block: Any) -> None:
        """Marks its end."""
        spans, block.marked = block.marked, None
        if not self._on:
            return
        self._hosts.look()
        if spans is None:
            reason = BEGAN if self._api is not None or self._look() else ""
        elif isinstance(spans, str):
            reason = spans
        else:
            reason = self._end(spans, block) if block.block_id > self._came else CAME
            if not reason:
                self._closed.append((block.name, block.path, block.block_id, spans))
        if reason:
            self._miss(block.path, reason)

    def _end(self, spans: list[Span], block: Any) -> str:
        """Marks the end on the streams that the thread has not left; why that is not possible."""
        for span in spans:
            if span.end is None:
                stream = span.stream
                if stream.handle == PER_THREAD and block.thread != self._ident():
                    return ELSEWHERE
                mark = stream.mark_here() or stream.mark()
                if isinstance(mark, str):
                    return mark
                span.end = mark
        return ""

    def _begin(self, blocks: list[Any]) -> None:
        """The thread is on its current streams from now on, in all of ``blocks``."""
        streams = self._streams()
        if isinstance(streams, str):
            for block in blocks:
                block.marked = streams
            return
        for stream, keeps, own in streams:
            new = []
            for block in blocks:
                span = _on(stream, block)
                if span is None:
                    new.append(block)
                else:
                    span.end = None
            mark = stream.mark() if new else ""
            for block in new:
                if isinstance(mark, str):
                    block.marked = mark
                elif not isinstance(block.marked, str):
                    block.marked.append(Span(stream, keeps, own, mark))

    def _library_came(self) -> None:
        self._came = self._newest

    # --- as the thread goes on to another stream ----------------------------------------------------------------------

    def _leaves(self) -> None:
        blocks = self._here()
        streams = self._streams() if blocks else ""
        for stream, _, _ in () if isinstance(streams, str) else streams:
            found = [(block, _on(stream, block)) for block in blocks]
            of = [(block, span) for block, span in found if span is not None and span.end is None]
            mark = stream.mark() if of else ""
            for block, span in of:
                if isinstance(mark, str):
                    block.marked = mark
                else:
                    span.end = mark

    def _arrives(self) -> None:
        blocks = self._here()
        if blocks:
            self._begin(blocks)

    def _here(self) -> list[Any]:
        """The open blocks of this thread or task that may get a time, innermost first."""
        found, block = [], innermost.get() if self._on else None
        while block is not None:
            if isinstance(block.marked, list):
                found.append(block)
            block = block.outer
        return found

    # --- contexts and streams -----------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Whether the program has initialised CUDA by now."""
        api = cuda.SOURCE.api()
        if api is None or not cuda.SOURCE.is_live():
            return False
        self._record = record_with(api)
        self._api = api
        return True

    def _context(self) -> int:
        context = c_void_p()
        self._api.cuCtxGetCurrent(byref(context))
        return context.value or 0

    def _streams(self) -> list[Here] | str:
        """Those that this thread launches on; or why nobody knows."""
        try:
            return self._ask_for_streams()
        except Failed as error:
            return str(error)

    def _ask_for_streams(self) -> list[Here] | str:
        answer = self._hosts.streams(self._devices)
        current = self._context()
        own = self._place(current) if current else None
        if not answer.streams:
            library = silent()
            if answer.reason or library:
                return answer.reason or f"{library} does not tell which streams it uses"
            if own is None:
                return NO_CONTEXT
            answer.here = own.stream(0)
            return [Here(answer.here, None, True)]
        found: list[Here] = []
        for device, handle, keeps in answer.streams:
            place = own
            if device is not None and (own is None or own.device != device):
                place = self._place(self._primary.get(device) or self._primary_of(device))
            elif place is None:
                place = self._place(self._primary.get(0) or self._primary_of(0))
            thread = self._ident() if handle == PER_THREAD else 0
            stream = place.stream(0 if handle == 1 else handle, thread)  # 1: the legacy one
            if not any(stream is here.stream for here in found):
                found.append(Here(stream, keeps, place is own or own is None))
        if len(answer.streams) == 1 and keeps is None and place is own and not thread:
            answer.here = stream
        return found

    def _place(self, context: int) -> Place:
        place = self._places.get(context)
        if place is None or place.gone:
            if not context:
                raise Failed(NO_CONTEXT)
            place = self._places[context] = Place(self._api, context, self._record)
        return place

    def _is_active(self, device: int) -> bool:
        """Whether the program has made the context that the runtime uses there."""
        flags, active = c_uint(), c_int()
        code = self._api.cuDevicePrimaryCtxGetState(device, byref(flags), byref(active))
        return not code and bool(active.value)

    def _primary_of(self, device: int) -> int:
        """That context; 0 where there is none."""
        context = c_void_p()
        if not self._is_active(device) or self._api.cuDevicePrimaryCtxRetain(byref(context), device):
            return 0
        self._api.cuDevicePrimaryCtxRelease_v2(device)  # active anyway: only its handle was wanted
        self._primary[device] = context.value or 0
        return context.value or 0

    # --- reading, on gpusense's thread --------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Hands on what the device has done. False always: it wants to be called again."""
        if self._on and (self._api is not None or self._look()) and self._reading.acquire(blocking=False):
            try:
                self._look_at_contexts()
                self._hand_on()
            finally:
                self._reading.release()
        return False

    def _look_at_contexts(self) -> None:
        self._devices = tuple(device for device in range(count(self._api)) if self._is_active(device))
        for context, place in self._places.copy().items():
            place.look()
            if place.gone:
                del self._places[context]
                self._primary.clear()

    def _hand_on(self) -> None:
        closed = self._taken()
        places: dict[Place, set[Stream]] = {place: set() for place in self._places.copy().values()}
        for _, _, _, spans in closed:
            for span in spans:
                places.setdefault(span.stream.place, set()).add(span.stream)
        failed = {place: place.gone or place.read(streams) for place, streams in places.items()}
        records: list[GpuBlockTime] = []
        for one in closed:
            _, path, _, spans = one
            unread = [span.stream.place for span in spans if span.end is None or span.end.run is None]
            if not unread:
                records += _records(one)
            elif failed[unread[0]]:
                self._miss(path, failed[unread[0]])
            else:
                self._closed.append(one)
        on_records = self._on_records
        if records and on_records is not None:
            self._timed += len(records)
            self._error_ns = records[-1].clock_error_ns
            on_records(records)

    # --- a source -----------------------------------------------------------------------------------------------------

    def start(self, on_records: OnRecords) -> None:
        self._on_records, self._on = on_records, True

    def stop(self) -> None:
        self._on, self._on_records = False, None
        self._closed.clear()
        self._hosts.forget()

    def flush(self, timeout_s: float) -> bool:
        """False where the device has not come to the ends of all blocks in time."""
        deadline = time.monotonic() + timeout_s
        last: Closed | None = None
        while self._on:
            self.poll()
            if self._reading.acquire(timeout=max(0.0, deadline - time.monotonic())):  # another thread may be reading
                try:
                    waiting = list(self._closed)
                finally:
                    self._reading.release()
                last = last or (waiting[-1] if waiting else None)
                if not any(closed is last for closed in waiting):
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def end(self, timeout_s: float) -> bool:
        """The last flush: what the device has not come to by then has no time."""
        read = self.flush(timeout_s)
        self._on = False
        for _, path, _, _ in self._taken():
            self._miss(path, UNFINISHED)
        self._hosts.forget()
        return read

    def _taken(self) -> list[Closed]:
        """What waits to be read; other threads may add to it and take from it meanwhile."""
        found: list[Closed] = []
        try:
            while True:
                found.append(self._closed.popleft())
        except IndexError:
            return found

    @property
    def used(self) -> bool:
        """Whether the program has initialised CUDA, as far as was seen."""
        return self._api is not None

    def used_devices(self) -> tuple[DeviceInfo, ...]:
        return cuda.SOURCE.devices() if self._api is not None else ()

    def status(self) -> dict[str, Any]:
        """How many blocks were timed, and how many not and why, by path; by how much the clock may be off."""
        untimed = [{"path": list(path), "reason": why, "count": n} for (path, why), n in self._untimed.copy().items()]
        return {"timed": self._timed, "untimed": untimed, "clock_error_ns": self._error_ns}

    def why(self, path: Path) -> str:
        """Why passes of a block have no time; the last reason that there was."""
        return next((why for of, why in reversed(self._untimed.copy()) if of == path), UNFINISHED_YET)

    def _miss(self, path: Path, reason: str) -> None:
        key = path, reason
        if key not in self._untimed and len(self._untimed) >= MAX_REASONS:
            key = (), reason
        self._untimed[key] = self._untimed.get(key, 0) + 1

    # --- life of the process ------------------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        """CUDA does not work here: no call any more."""
        self._on, self._on_records, self._reading = False, None, threads.lock()

    def at_exit(self) -> None:
        """The tracer ends it."""


def _reach(span: Span, busy_ns: int) -> _Reach:
    """From the last mark before work to the first one behind it."""
    first, last, first_ns = span.start, span.end, span.stream.first_ns
    assert last is not None
    assert first.run is not None
    assert last.run is not None
    idle_before = first_ns + first.at_ns - first.issued_ns < busy_ns
    idle_behind = first_ns + last.at_ns - last.issued_ns < busy_ns
    empty = first.run is last.run
    start, end = (first.at_ns, last.at_ns) if empty else (first.run[1], last.run[0])
    apart_ns = span.stream.place.apart_ns  # what the marks take, half of it each: a time is that of the work between
    if not empty and end - start > apart_ns:
        start, end = start + (0 if idle_before else apart_ns / 2), end - (0 if idle_behind else apart_ns / 2)
    start_ns = round(first_ns + start)
    return _Reach(start_ns, start_ns + max(0, round(end - start)), idle_before, idle_behind, span.own, empty)


def _records(closed: Closed) -> list[GpuBlockTime]:
    """The times of a block, one a device."""
    places: dict[Place, list[Span]] = {}
    for span in closed[-1]:
        places.setdefault(span.stream.place, []).append(span)
    found = [_record(closed, place, spans) for place, spans in places.items()]
    return [record for record in found if record is not None]


def _record(closed: Closed, place: Place, spans: list[Span]) -> GpuBlockTime | None:
    """From the first of its streams' spans to the last; None where nothing says that the device was used at all."""
    name, path, number, _ = closed
    error_ns = place.anchor.error_ns if place.anchor is not None else 0
    reaches = [_reach(span, BUSY_NS + error_ns) for span in spans]
    if not any(reach.own or not (reach.idle_before and reach.idle_behind) for reach in reaches):
        return None
    used = [reach for reach in reaches if not reach.empty]
    first = min(used or reaches)
    last = max(used, key=_end_ns) if used else first
    end_ns = last.end_ns if used else first.start_ns
    timing = AT_MOST if used and (first.idle_before or last.idle_behind) else "device"
    ahead = SESSION.of_monotonic(0) + SESSION.ahead_ns  # of the wall clock, by which sources tell the time
    start_ns, end_ns = first.start_ns + ahead, end_ns + ahead
    return GpuBlockTime(
        name, start_ns, end_ns, place.device, "cuda", len(spans), timing, error_ns, path=path, block_id=number
    )
