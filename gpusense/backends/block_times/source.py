"""Marks at the ends of blocks, and records of what lay between them on the device.

On the program's threads: a mark on each stream that the block is on, as it opens and as it closes, and where the thread
goes on to another stream in between. On gpusense's: marks are read once the device has come to them.

Nothing here reaches the program: what the driver refuses is the reason why a block has no time, and is counted by the
block's path.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from ctypes import byref, c_int, c_uint, c_void_p
from typing import Any, NamedTuple

from ..._attribution.open_blocks import innermost
from ..._capi.cuda_facts import count
from ..._records.protocols import OnRecords
from ..._records.records import AT_MOST, DeviceInfo, GpuBlockTime, Path
from ..._runtime import process, threads
from ..._runtime.clock import SESSION
from .. import cuda
from ..cupti.synchronize import relaxed
from .hosts import Hosts, silent
from .marks import BUSY_NS, Failed, Mark, Place, Stream, record_with

#: Two marks around work on a busy stream lie further apart than it takes: 1.25 µs on one machine with an H200, 2.9 on
#: others. The least is taken off, half of it at each, so that no time is too short.
MARK_NS = 625
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


class Opened:
    """A block's spans so far; ``reason`` why there will be no time. ``hosts``: how many libraries were known."""

    __slots__ = ("hosts", "reason", "spans")

    def __init__(self, hosts: int) -> None:
        self.hosts, self.reason = hosts, ""
        self.spans: list[Span] = []

    def on(self, stream: Stream) -> Span | None:
        """What is known of this stream."""
        return next((span for span in self.spans if span.stream is stream), None)


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
        self._hosts = Hosts(self._leaves, self._arrives)
        self._closed: deque[Closed] = deque()
        self._reading = threads.lock()
        self._untimed: dict[tuple[Path, str], int] = {}
        self._timed = 0
        self._error_ns: int | None = None
        self._ident = threads.thread_id()
        process.register(self)

    # --- blocks, on the program's threads -----------------------------------------------------------------------------

    def block_opened(self, block: Any) -> None:
        """Marks its beginning."""
        if not self._on or (self._api is None and not self._look()):
            return
        hosts = self._hosts.look()
        stream = self._hosts.streams(self._devices).here
        mark = stream.mark_here() if stream is not None and not stream.place.gone else None
        block.marked = opened = Opened(hosts)
        if mark is None:
            self._begin([opened])
        elif isinstance(mark, str):
            opened.reason = mark
        else:
            opened.spans.append(Span(stream, None, True, mark))

    def block_closed(self, block: Any) -> None:
        """Marks its end."""
        opened, block.marked = block.marked, None
        if not self._on:
            return
        if opened is None:
            if self._api is not None or self._look():
                self._miss(block.path, BEGAN)
            return
        reason = opened.reason or (self._ends(opened, block) if opened.hosts == self._hosts.look() else CAME)
        if reason:
            self._miss(block.path, reason)
        else:
            self._closed.append((block.name, block.path, block.block_id, opened.spans))

    def _ends(self, opened: Opened, block: Any) -> str:
        """Marks the end on the streams that the thread has not left; why that is not possible."""
        for span in opened.spans:
            if span.end is None:
                stream = span.stream
                if stream.handle == PER_THREAD and block.thread != self._ident():
                    return ELSEWHERE
                mark = stream.mark()
                if isinstance(mark, str):
                    return mark
                span.end = mark
        return ""

    def _begin(self, blocks: Iterable[Opened]) -> None:
        """The thread is on its current streams from now on, in all of ``blocks``."""
        streams = self._streams()
        if isinstance(streams, str):
            for opened in blocks:
                opened.reason = opened.reason or streams
            return
        for here in streams:
            new = []
            for opened in blocks:
                span = opened.on(here.stream)
                if span is None:
                    new.append(opened)
                else:
                    span.end = None
            mark = here.stream.mark() if new else ""
            for opened in new:
                if isinstance(mark, str):
                    opened.reason = opened.reason or mark
                else:
                    opened.spans.append(Span(*here, mark))

    def _end(self, spans: Iterable[Span]) -> str:
        """The thread has left the one stream of ``spans``; why that could not be marked."""
        mark: Mark | str = ""
        for span in spans:
            mark = mark or span.stream.mark()
            if isinstance(mark, str):
                return mark
            span.end = mark
        return ""

    # --- as the thread goes on to another stream ----------------------------------------------------------------------

    def _leaves(self) -> None:
        blocks = list(self._here())
        streams = self._streams() if blocks else ""
        for here in () if isinstance(streams, str) else streams:
            spans = [(opened, opened.on(here.stream)) for opened in blocks]
            of = [(opened, span) for opened, span in spans if span is not None and span.end is None]
            reason = self._end([span for _, span in of])
            for opened, _ in of if reason else ():
                opened.reason = opened.reason or reason

    def _arrives(self) -> None:
        blocks = list(self._here())
        if blocks:
            self._begin(blocks)

    def _here(self) -> Iterator[Opened]:
        """The open blocks of this thread or task, innermost first."""
        block = innermost.get() if self._on else None
        while block is not None:
            if block.marked is not None:
                yield block.marked
            block = block.outer

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
        records: list[GpuBlockTime] = []
        waiting: set[Stream] = set()
        for _ in range(len(self._closed)):
            closed = self._closed.popleft()
            try:
                found = self._read(closed, waiting)
            except Failed as error:
                self._miss(closed[1], str(error))
                continue
            if found is None:
                self._closed.append(closed)
            else:
                records += found
        on_records = self._on_records
        if records and on_records is not None:
            self._timed += len(records)
            on_records(records)

    def _read(self, closed: Closed, waiting: set[Stream]) -> list[GpuBlockTime] | None:
        """The times of a block, one a device; None while the device has not come to its end."""
        found: list[GpuBlockTime] = []
        places: dict[Place, list[Span]] = {}
        for span in closed[-1]:
            if span.stream in waiting:
                return None
            places.setdefault(span.stream.place, []).append(span)
        for place, spans in places.items():
            if place.gone:
                raise Failed(place.gone)
            with relaxed(self._api, place.context) as pushed:
                if not pushed:
                    raise Failed(place.failed("cuCtxPushCurrent", 201))
                for span in spans:
                    if span.end is not None and not place.reached(span.end):
                        waiting.add(span.stream)
                        return None
                if not place.hold() or place.anchor is None:
                    return None
                self._error_ns = place.anchor.error_ns
                reaches = [_reach(place, span, place.anchor.error_ns) for span in spans if span.end is not None]
            record = _record(closed, place, reaches, self._error_ns)
            found += [record] if record is not None else []
        return found

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
        last = self._closed[-1] if self._closed else None
        while last is not None and self._on:
            self.poll()
            if not any(closed is last for closed in list(self._closed)):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def end(self, timeout_s: float) -> bool:
        """The last flush: what the device has not come to by then has no time."""
        read = self.flush(timeout_s)
        while self._closed:
            self._miss(self._closed.popleft()[1], UNFINISHED)
        self._on = False
        self._hosts.forget()
        return read

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


def _reach(place: Place, span: Span, error_ns: int) -> _Reach:
    """From the last mark before work to the first one behind it."""
    first, last = span.start, span.end
    assert last is not None
    behind, before = span.stream.run_of(last), span.stream.run_of(first)
    start = place.time_ns(first)
    end = start + max(0, place.between(first, last))
    busy = BUSY_NS + error_ns
    idle_before, idle_behind = start - first.issued_ns < busy, end - last.issued_ns < busy
    if before is behind:
        return _Reach(start, end, idle_before, idle_behind, span.own, True)
    start, end = start + before.length_ns - first.into_ns, end - last.into_ns
    if end - start > 2 * MARK_NS:
        start, end = start + (0 if idle_before else MARK_NS), end - (0 if idle_behind else MARK_NS)
    return _Reach(start, end, idle_before, idle_behind, span.own, False)


def _record(closed: Closed, place: Place, reaches: list[_Reach], error_ns: int | None) -> GpuBlockTime | None:
    """From the first of its streams' spans to the last; None where nothing says that the device was used at all."""
    if not any(reach.own or not (reach.idle_before and reach.idle_behind) for reach in reaches):
        return None
    used = [reach for reach in reaches if not reach.empty]
    first = min(used or reaches, key=lambda reach: reach.start_ns)
    last = max(used or reaches, key=lambda reach: reach.end_ns)
    end = last.end_ns if used else first.start_ns
    at_most = bool(used) and (first.idle_before or last.idle_behind)
    ahead = SESSION.of_monotonic(0) + SESSION.ahead_ns  # of the wall clock, by which sources tell the time
    name, path, number, _ = closed
    return GpuBlockTime(
        name,
        first.start_ns + ahead,
        end + ahead,
        place.device,
        streams=len(reaches),
        timing=AT_MOST if at_most else "device",
        clock_error_ns=error_ns,
        path=path,
        block_id=number,
    )
