"""Events on the program's streams: a bounded number of them in each context, and what they say by the host's clock.

A mark is made on the program's thread, in one call: nothing is done to a stream that is being captured. All else is
done on gpusense's thread. A mark that nobody has any more gives its event back.
"""

from collections import deque
from collections.abc import Callable
from ctypes import CFUNCTYPE, byref, c_float, c_int, c_int64, c_uint64, c_void_p, cast
from functools import cache
from itertools import pairwise
from time import monotonic_ns
from typing import Any

from ..._capi.cuda import error_text
from ..._capi.machine import executable, mark_code
from ..._capi.machine.mark_code import IS_CAPTURED, NOT_RECORDED, OTHER_CONTEXT, STEP_BITS
from ..._runtime import log
from ..cupti.synchronize import relaxed

MAX_EVENTS, GROW = 4_096, 64  # of a context, and made at once
MAX_STREAMS = 1_024
#: How far two marks of a busy stream lie apart with nothing in between, until it has been measured: the least of all
#: machines. As a rule it is 1.2 µs more at most; with the shortest kernel it is 1.65 µs more.
APART_NS, MORE_NS = 1_250.0, 1_400.0
#: Measured so often, the least counts, by so many marks.
MEASURES, MEASURED_BY = 5, 8
NOT_READY, IMPLICIT = 600, 906
#: Answers after which nothing of a context is used any more: a program may destroy it, and make another.
_GONE = frozenset({4, 201, 400, 709})
STREAM_NON_BLOCKING = 1

#: The clocks of host and device drift apart by some microseconds a second.
ANCHOR_NS = 1_000_000_000
ANCHOR_TRIES, ANCHOR_WAIT_NS = 5, 500_000  # the closest of so many is taken; each may take so long
#: A stream that reaches a mark so much later than the host had made it had work before it. One without reaches it some
#: microseconds after the call.
BUSY_NS = 25_000

_new = object.__new__

CAPTURED = "a CUDA graph was being captured on the block's stream"
FULL = f"{MAX_EVENTS:,} marks of earlier blocks wait for the device"
ENDED = "the CUDA context was destroyed"


#: Where the first and the last of some marks of a stream lie on it, between which there is nothing.
Run = list[float]


class Mark:
    """An event on a stream, made before ``issued_ns`` by the monotonic clock; it goes back into ``home``.

    Once the device has come to it and gpusense has looked, it lies ``at_ns`` behind the first mark of its stream, and
    has a ``run``. Made by ``Mark.__new__``: a constructor is one function more where it counts.
    """

    __slots__ = ("at_ns", "event", "home", "issued_ns", "run")
    event: int
    home: deque[int]
    issued_ns: int
    at_ns: float
    run: Run | None

    def __del__(self) -> None:
        try:
            self.home.append(self.event)
        except AttributeError:  # whoever made it was interrupted before it had them
            pass


class Anchor:
    """What the monotonic clock said as the device came to an event."""

    __slots__ = ("error_ns", "mark", "time_ns")

    def __init__(self, mark: Mark, time_ns: int, error_ns: int) -> None:
        self.mark, self.time_ns, self.error_ns = mark, time_ns, error_ns


class Failed(Exception):
    """The driver refused; its words."""


#: Makes a mark: (context, stream, event) -> monotonic nanoseconds, or as :mod:`mark_code` says why there is none.
Record = Callable[[int, int, int], int]


def record_with(api: Any) -> Record:
    """In machine code, or where the system does not allow that, in four calls."""
    functions = [getattr(api, name) for name in mark_code.SYMBOLS[:-1]]
    addresses = [cast(function, c_void_p).value or 0 for function in functions]
    return _machine_code(*addresses, executable.libc_address("clock_gettime")) or _calls(*functions)


@cache
def _machine_code(*addresses: int) -> Record | None:
    """Mapped once a process for each driver in it."""
    code = executable.native(mark_code.CODES)
    if code is None:
        return None
    try:
        address = executable.map_first(mark_code.image(code, addresses)).address
    except OSError:
        return None
    made: Record = CFUNCTYPE(c_int64, c_void_p, c_void_p, c_void_p)(address)
    return made


def _calls(current: Any, is_capturing: Any, record: Any) -> Record:
    def mark(context: int, stream: int, event: int) -> int:
        found, capturing = c_void_p(), c_int()
        step, code = OTHER_CONTEXT, int(current(byref(found)))
        if code == 0 and found.value == context:
            step, code = IS_CAPTURED, is_capturing(stream, byref(capturing))
            if code == 0 and not capturing.value:
                step, code = NOT_RECORDED, record(event, stream)
                if code == 0:
                    return monotonic_ns()
        return -((step << STEP_BITS) + code)

    return mark


class Stream:
    """One of a context. :meth:`mark` may be called on any thread, all else on one at a time."""

    __slots__ = ("_anchor", "_last", "_unread", "first_ns", "handle", "place")

    def __init__(self, place: "Place", handle: int) -> None:
        self.place, self.handle = place, handle
        self._unread: deque[Mark] = deque()
        self._last: Mark | None = None  # that was read
        self._anchor: Anchor | None = None
        self.first_ns = 0.0  # when the device came to the first mark, by the monotonic clock; once that has a run

    # --- on the program's threads -------------------------------------------------------------------------------------

    def mark(self) -> Mark | str:
        """A mark behind all that the stream was given so far; or why there is none."""
        mark = self.mark_here()
        if mark is None:
            with relaxed(self.place.api, self.place.context) as pushed:
                mark = self.mark_here() if pushed else None
        return mark or self.place.failed("cuCtxPushCurrent", 201)

    def mark_here(self) -> Mark | str | None:
        """As :meth:`mark`; None where another context is current."""
        place = self.place
        if place.gone:
            return place.gone
        free = place.free
        try:
            event = free.popleft()
        except IndexError:  # another thread may take what there is then
            return self.mark_here() if place.grow() else FULL
        mark = _new(Mark)
        mark.event, mark.home, mark.run = event, free, None
        made = place.record(place.context, self.handle, event)
        if made < 0:
            return place.refused(*divmod(-made, 1 << STEP_BITS))
        mark.issued_ns = made  # afterwards: where the thread is held up in between, it is a bound
        self._unread.append(mark)
        return mark

    # --- on gpusense's thread, in relaxed mode and with the context current -------------------------------------------

    @property
    def newest(self) -> Mark | None:
        """Of the marks that nobody has looked at."""
        return self._unread[-1] if self._unread else None

    def read(self, anchor: Anchor) -> None:
        """Looks at the marks that the device has come to since."""
        unread, before, between = self._unread, self._last, self.place.between
        if before is None:
            if not self.place.reached(unread[0]):
                return
            before = self._last = unread.popleft()
            before.at_ns, before.run = 0.0, [0.0, 0.0]
        at, run, empty_ns = before.at_ns, before.run, self.place.apart_ns + MORE_NS
        while unread and (gap := between(before, unread[0])) is not None:
            at += gap
            if run is not None and 0 <= gap <= empty_ns:
                run[1] = at
            else:
                run = [at, at]
            before = self._last = unread.popleft()
            before.at_ns, before.run = at, run
        if anchor is not self._anchor:
            self._anchor, self.first_ns = anchor, anchor.time_ns + (between(anchor.mark, before) or 0.0) - at


class Place:
    """One context."""

    def __init__(self, api: Any, context: int, record: Record) -> None:
        self.api, self.context, self.record = api, context, record
        self.free: deque[int] = deque()
        self.made = 0
        self._streams: dict[tuple[int, int], Stream] = {}
        self._elapsed = c_float()  # milliseconds
        self._own: deque[int] = deque()  # for anchors, so that all marks of blocks may be in use
        self.anchor: Anchor | None = None
        self.gone = ""  # why it is of no use any more
        self._anchor_ns = 0
        self.apart_ns = APART_NS
        self._apart: list[float] = []  # each time that it was measured
        self._held: list[Mark] = []
        #: Streams of our own: for anchors, and for what waits for the program.
        self._stream, self._waits = c_void_p(), c_void_p()
        device = c_int()
        with relaxed(api, context) as pushed:
            code = api.cuCtxGetDevice(byref(device)) if pushed else 201
        if code:
            raise Failed(self.failed("cuCtxGetDevice", code))
        self.device = device.value
        self._id = self._number()
        self.grow()

    def _number(self) -> int:
        """Of the context, by which it differs from one that was at its address before; 0 before CUDA 12."""
        number = c_uint64()
        if not self.api.cuCtxGetId or self.api.cuCtxGetId(self.context, byref(number)):
            return 0
        return number.value

    def look(self) -> None:
        """Notices that the context is another one by now. On gpusense's thread."""
        if not self.gone and self._number() != self._id:
            self.gone = ENDED

    def failed(self, call: str, code: int) -> str:
        """What ``code`` means for whoever wants to know why a block has no time."""
        text = f"{call} answered {error_text(code)} ({code})"
        if code in _GONE:
            self.gone = self.gone or ENDED
        log.once(f"block times {code}", "the device cannot time blocks: %s", text)
        return text

    # --- on the program's threads -------------------------------------------------------------------------------------

    def stream(self, handle: int, thread: int = 0) -> Stream:
        """``thread``: whose it is, where the handle means another one on each."""
        found = self._streams.get((handle, thread))
        if found is None:
            if len(self._streams) >= MAX_STREAMS:
                self._streams.clear()
            found = self._streams.setdefault((handle, thread), Stream(self, handle))
        return found

    def refused(self, step: int, code: int) -> str | None:
        """Why no mark was made; None where another context is current."""
        if step == OTHER_CONTEXT:
            return None
        if step == IS_CAPTURED and code in (0, IMPLICIT):
            return CAPTURED
        return self.failed(mark_code.SYMBOLS[step - 1], code)

    def grow(self) -> bool:
        """More events; False where there are enough, and where the driver has none."""
        if self.made < MAX_EVENTS:
            with relaxed(self.api, self.context) as pushed:
                self.made += self._make(self.free, GROW if pushed else 0)
        return bool(self.free)

    def _make(self, into: deque[int], count: int) -> int:
        event = c_void_p()
        for made in range(count):
            code = self.api.cuEventCreate(byref(event), 0)
            if code:
                self.failed("cuEventCreate", code)
                return made
            into.append(event.value or 0)
        return count

    # --- on gpusense's thread, in relaxed mode and with the context current -------------------------------------------

    def read(self, streams: set[Stream]) -> str:
        """Looks at the marks of ``streams`` and of all others that are known; why that is not possible. In any mode."""
        unread = [stream for stream in {*streams, *self._streams.copy().values()} if stream.newest is not None]
        if not unread:
            return ""
        with relaxed(self.api, self.context) as pushed:
            try:
                if pushed and self.hold() and self.anchor is not None:
                    for stream in unread:
                        stream.read(self.anchor)
                    self._measure(next((newest for stream in unread if (newest := stream.newest) is not None), None))
            except Failed as error:
                return str(error)
        return "" if pushed else self.failed("cuCtxPushCurrent", 201)

    def reached(self, mark: Mark) -> bool:
        """Whether the device has come to it."""
        code = self.api.cuEventQuery(mark.event)
        if code not in (0, NOT_READY):
            raise Failed(self.failed("cuEventQuery", code))
        return bool(code == 0)

    def between(self, first: Mark, second: Mark) -> float | None:
        """Nanoseconds, in steps of half a microsecond or less; None where the device has not come to both."""
        code = self.api.cuEventElapsedTime(self._elapsed, first.event, second.event)
        if code not in (0, NOT_READY):
            raise Failed(self.failed("cuEventElapsedTime", code))
        return None if code else self._elapsed.value * 1e6

    def hold(self) -> bool:
        """Holds the device's clock to the host's, where that was last done a second ago; False where it never was."""
        now = monotonic_ns()
        if self.anchor is not None and now - self._anchor_ns < ANCHOR_NS:
            return True
        found = [anchor for anchor in map(self._anchor, range(ANCHOR_TRIES)) if anchor is not None]
        if found:
            self.anchor, self._anchor_ns = min(found, key=lambda anchor: anchor.error_ns), now
        return self.anchor is not None

    def _anchor(self, _: int) -> Anchor | None:
        """The device came to the event behind the last look that did not find it there, and before the next."""
        if not self._stream.value:
            for stream in (self._waits, self._stream):  # where there is the second, there are both
                code = self.api.cuStreamCreate(byref(stream), STREAM_NON_BLOCKING)
                if code:
                    raise Failed(self.failed("cuStreamCreate", code))
            self._make(self._own, ANCHOR_TRIES + 1 + MEASURED_BY)
        if not self._own:
            return None
        began = since = looked = monotonic_ns()
        mark = self._own_mark(self._stream)
        while not self.reached(mark):
            since = looked
            looked = monotonic_ns()
            if looked - began > ANCHOR_WAIT_NS:
                return None
        half = (monotonic_ns() - since) // 2
        return Anchor(mark, since + half, half)

    def _own_mark(self, stream: c_void_p) -> Mark:
        mark = _new(Mark)
        mark.event, mark.home = self._own.popleft(), self._own
        code = self.api.cuEventRecord(mark.event, stream)
        if code:
            raise Failed(self.failed("cuEventRecord", code))
        return mark

    def _measure(self, ahead: Mark | None) -> None:
        """How far marks lie apart: on a stream of our own, held until the device comes to ``ahead``. Were it not held,
        they would lie as far apart as the host made them."""
        if self._held:
            if self.reached(self._held[-1]):
                self._apart.append(min(self.between(*two) or 0.0 for two in pairwise(self._held)))
                self.apart_ns, self._held = min(self._apart), []
        elif ahead is not None and len(self._apart) < MEASURES and len(self._own) >= MEASURED_BY:
            if self.api.cuStreamWaitEvent(self._waits, ahead.event, 0):
                return
            held = [self._own_mark(self._waits) for _ in range(MEASURED_BY)]
            if not self.reached(ahead):
                self._held = held
