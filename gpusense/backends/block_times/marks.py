"""Events on the program's streams: a bounded number of them in each context, and what they say by the host's clock.

A mark is made on the program's thread, in two calls: nothing is done to a stream that is being captured. All else is
done on gpusense's thread. A mark that nobody has any more gives its event back.
"""

from collections import deque
from ctypes import byref, c_float, c_int, c_uint64, c_void_p
from time import monotonic_ns
from typing import Any

from ..._capi.cuda import error_text
from ..._runtime import log
from ..cupti.synchronize import relaxed

MAX_EVENTS, GROW = 4_096, 64  # of a context, and made at once
MAX_STREAMS, MAX_DEPTH = 1_024, 1_000
#: Two marks with nothing in between lie 1.2 to 3.1 µs apart on H200s, and 3.2 and more with the shortest kernel. Where
#: the stream was idle it is the host that takes so long to make two, and longer with a launch.
EMPTY_NS = 3_150
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

CAPTURED = "a CUDA graph was being captured on the block's stream"
FULL = f"{MAX_EVENTS:,} marks of earlier blocks wait for the device"
ENDED = "the CUDA context was destroyed"


class Run:
    """Marks of a stream with nothing in between; ``length_ns`` from the first to the last of them."""

    __slots__ = ("length_ns",)

    def __init__(self) -> None:
        self.length_ns = 0


class Mark:
    """An event on a stream, made before ``issued_ns`` by the monotonic clock; it goes back into ``home``.

    ``before``: the last one on its stream, until somebody has looked what lay in between. Since then the mark has a
    ``run``, and lies ``into_ns`` behind the first of it.
    """

    __slots__ = ("before", "depth", "event", "home", "into_ns", "issued_ns", "run")

    def __init__(self, event: int, home: deque[int]) -> None:
        self.event, self.home, self.issued_ns = event, home, 0
        self.before: Mark | None = None
        self.run: Run | None = None
        self.depth = self.into_ns = 0  # how many before it nobody has looked at

    def __del__(self) -> None:
        self.home.append(self.event)


class Anchor:
    """What the monotonic clock said as the device came to an event."""

    __slots__ = ("error_ns", "mark", "time_ns")

    def __init__(self, mark: Mark, time_ns: int, error_ns: int) -> None:
        self.mark, self.time_ns, self.error_ns = mark, time_ns, error_ns


class Failed(Exception):
    """The driver refused; its words."""


class Place:
    """One context. :meth:`mark` may be called on any thread where it is current, all else on one at a time."""

    def __init__(self, api: Any, context: int) -> None:
        self.api, self.context = api, context
        self.free: deque[int] = deque()
        self.made = 0
        self._last: dict[int, Mark] = {}  # by stream
        self._own: deque[int] = deque()  # for anchors, so that all marks of blocks may be in use
        self.anchor: Anchor | None = None
        self.gone = ""  # why it is of no use any more
        self._stream = c_void_p()
        self._anchor_ns = 0
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
        """Notices that the context is another one by now."""
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

    def mark(self, stream: int) -> "Mark | str":
        """A mark behind all that ``stream`` was given so far; or why there is none."""
        capturing = c_int()
        code = self.api.cuStreamIsCapturing(stream, byref(capturing))
        if capturing.value or code == IMPLICIT:
            return CAPTURED
        if code:
            return self.failed("cuStreamIsCapturing", code)
        try:
            event = self.free.popleft()
        except IndexError:
            if not self.grow():
                return FULL
            event = self.free.popleft()
        mark = Mark(event, self.free)
        code = self.api.cuEventRecord(event, stream)
        if code:
            return self.failed("cuEventRecord", code)
        mark.issued_ns = monotonic_ns()  # afterwards: where the thread is held up in between, it is a bound
        before = self._last.get(stream)
        if before is None:
            if len(self._last) >= MAX_STREAMS:
                self._last.clear()
        elif before.run is not None:
            mark.before, mark.depth = before, 1
        elif before.depth < MAX_DEPTH:  # else to look at them takes long
            mark.before, mark.depth = before, before.depth + 1
        self._last[stream] = mark
        return mark

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

    def reached(self, mark: Mark) -> bool:
        """Whether the device has come to it."""
        code = self.api.cuEventQuery(mark.event)
        if code not in (0, NOT_READY):
            raise Failed(self.failed("cuEventQuery", code))
        return bool(code == 0)

    def between(self, first: Mark, second: Mark) -> int:
        """Nanoseconds; the driver counts in steps of half a microsecond."""
        milliseconds = c_float()
        code = self.api.cuEventElapsedTime(byref(milliseconds), first.event, second.event)
        if code:
            raise Failed(self.failed("cuEventElapsedTime", code))
        return round(milliseconds.value * 1e6)

    def run_of(self, mark: Mark) -> Run:
        """After the device has come to it: the marks around it that nothing lies between, as far as is known."""
        unknown: list[Mark] = []
        at: Mark | None = mark
        while at is not None and at.run is None:
            unknown.append(at)
            at = at.before
        run = Run()
        for one in reversed(unknown):
            before, one.before, one.depth = one.before, None, 0
            gap = self.between(before, one) if before is not None else -1
            if before is not None and before.run is not None and 0 <= gap <= EMPTY_NS:
                run, one.into_ns = before.run, before.into_ns + gap
                run.length_ns = max(run.length_ns, one.into_ns)
            else:
                run = Run()
            one.run = run
        return mark.run or run

    def time_ns(self, mark: Mark) -> int:
        """When the device came to it, by the monotonic clock. After :meth:`hold`."""
        assert self.anchor is not None
        return self.anchor.time_ns + self.between(self.anchor.mark, mark)

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
            code = self.api.cuStreamCreate(byref(self._stream), STREAM_NON_BLOCKING)
            if code:
                raise Failed(self.failed("cuStreamCreate", code))
            self._make(self._own, ANCHOR_TRIES + 1)
        if not self._own:
            return None
        mark = Mark(self._own.popleft(), self._own)
        began = since = looked = monotonic_ns()
        code = self.api.cuEventRecord(mark.event, self._stream)
        if code:
            raise Failed(self.failed("cuEventRecord", code))
        while not self.reached(mark):
            since = looked
            looked = monotonic_ns()
            if looked - began > ANCHOR_WAIT_NS:
                return None
        half = (monotonic_ns() - since) // 2
        return Anchor(mark, since + half, half)
