"""Events on the program's streams: a bounded number of them in each context, and what they say by the host's clock.

A mark is made on the program's thread, in two calls: nothing is done to a stream that is being captured. All else is
done on gpusense's thread. A mark that nobody has any more gives its event back.
"""

from collections import deque
from ctypes import byref, c_float, c_int, c_uint64, c_void_p
from itertools import count
from time import monotonic_ns
from typing import Any

from ..._capi.cuda import error_text
from ..._runtime import log
from ..cupti.synchronize import relaxed

MAX_EVENTS, GROW = 4_096, 64  # of a context, and made at once
MAX_STREAMS, MAX_DEPTH = 1_024, 64
#: Two marks with nothing in between lie 2.9 to 3.5 µs apart on an H200, and 4.3 and more with the shortest kernel.
#: Where the stream was idle it is the host that takes so long to make two, and longer with a launch.
EMPTY_NS = 3_900
NOT_READY, IMPLICIT = 600, 906
#: Answers after which nothing of a context is used any more: a program may destroy it, and make another.
_GONE = frozenset({4, 201, 400, 709})
STREAM_NON_BLOCKING = 1

#: The clocks of host and device drift apart by some microseconds a second.
ANCHOR_NS = 1_000_000_000
ANCHOR_TRIES, ANCHOR_WAIT_NS = 5, 500_000  # the closest of so many is taken; each may take so long
#: A stream that reaches a mark so much later than the host made it had work before it. One without reaches it within
#: some microseconds.
BUSY_NS = 25_000

CAPTURED = "a CUDA graph was being captured on the block's stream"
FULL = f"{MAX_EVENTS:,} marks of earlier blocks wait for the device"
ENDED = "the CUDA context was destroyed"


class Mark:
    """An event on a stream, made at ``issued_ns`` by the monotonic clock; it goes back into ``home``.

    ``before``: the last one on its stream, until somebody has looked what lay in between; ``run`` is then the number of
    the first mark since which nothing did.
    """

    __slots__ = ("before", "depth", "event", "home", "issued_ns", "number", "run")

    def __init__(self, event: int, home: deque[int], issued_ns: int) -> None:
        self.event, self.home, self.issued_ns = event, home, issued_ns
        self.number = next(_numbers)
        self.before: Mark | None = None
        self.depth = 0  # of those before it that nobody has looked at
        self.run: int | None = None

    def follows(self, before: "Mark | None") -> None:
        """Unless there are so many before it that looking at them takes long."""
        if before is not None and before.depth < MAX_DEPTH:
            self.before, self.depth = before, before.depth + 1 if before.run is None else 1

    def __del__(self) -> None:
        self.home.append(self.event)


_numbers = count()


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
        mark = self._record(event, self.free, stream)
        if isinstance(mark, Mark):
            if len(self._last) >= MAX_STREAMS:
                self._last.clear()
            mark.follows(self._last.get(stream))
            self._last[stream] = mark
        return mark

    def _record(self, event: int, home: deque[int], stream: int) -> "Mark | str":
        mark = Mark(event, home, monotonic_ns())
        code = self.api.cuEventRecord(event, stream)
        return self.failed("cuEventRecord", code) if code else mark

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

    def nothing_between(self, first: Mark, last: Mark) -> bool:
        """Whether the stream had nothing to do between two of its marks: none of those in between lie apart."""
        unknown: list[Mark] = []
        at: Mark | None = last
        while at is not None and at.run is None:
            unknown.append(at)
            at = at.before
        for mark in reversed(unknown):
            before, mark.before, mark.depth = mark.before, None, 0
            nothing = before is not None and 0 <= self.between(before, mark) <= EMPTY_NS
            mark.run = before.run if before is not None and nothing else mark.number
        return last.run is not None and last.run <= first.number

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
        mark = self._record(self._own.popleft(), self._own, self._stream.value or 0) if self._own else FULL
        if isinstance(mark, str):
            return None
        since = looked = mark.issued_ns
        while not self.reached(mark):
            since = looked
            looked = monotonic_ns()
            if looked - mark.issued_ns > ANCHOR_WAIT_NS:
                return None
        half = (monotonic_ns() - since) // 2
        return Anchor(mark, since + half, half)
