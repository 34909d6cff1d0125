"""One clock for a session: the wall clock as it was when the first tracer was made, which then goes on by itself.

The wall clock may be set, and a suspended machine finds it hours later; the monotonic clock knows of neither. So
``now_ns`` is the monotonic clock plus a difference that stays, and what others stamp by the wall clock (the program's
threads, CUPTI) is brought to it: see :class:`Anchor`.
"""

from time import monotonic_ns, time_ns

#: A change of wall minus monotonic clock beyond this is a step (NTP slews stay far below it between two looks).
STEP_NS = 1_000_000
#: The two clocks cannot be read at once. Reading one of them twice shows what lies between; this is close enough.
CLOSE_NS = 20_000
TRIES = 5


MAX_STEPS = 1_000  # that are remembered; of more, the oldest are forgotten


class Anchor:
    """Watches the difference of the two clocks; every step is remembered as (time of its discovery, size)."""

    __slots__ = ("_doubt", "_eras", "_first", "_looked_ns", "_offset", "steps")

    def __init__(self) -> None:
        self._offset, self._doubt = _difference()
        self._first = self._offset
        self.steps: list[tuple[int, int]] = []
        self._looked_ns = self.now_ns()
        #: From when on, and by how much the wall clock was then ahead of ours; the newest last.
        self._eras: list[tuple[int, int]] = []

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, if no step and no suspend had been since this began."""
        return monotonic_ns() + self._first

    def of_monotonic(self, time: int) -> int:
        """What the monotonic clock said, by this clock."""
        return time + self._first

    @property
    def ahead_ns(self) -> int:
        """By how much the wall clock is ahead of this one, by all steps that were found."""
        return self._eras[-1][1] if self._eras else 0

    def of_wall(self, time: int) -> int:
        """What the wall clock said not long ago, by this clock.

        After a step a time may be from before or from behind it: it is what lies in the past, and behind the last look
        that found no step.
        """
        latest = self.now_ns() + CLOSE_NS
        for since, ahead in reversed(self._eras):
            if since <= time - ahead <= latest:
                return time - ahead
        return time

    def look(self) -> int:
        """The step since the last look in nanoseconds; 0 for none.

        A thread that is held up between two readings sees clocks that seem to have moved apart: what that can explain
        is no step, and where it could explain a whole one the earlier difference stands until the next look.
        """
        offset, doubt = _difference()
        step = offset - self._offset
        if abs(step) < STEP_NS + self._doubt + doubt:
            if doubt <= max(self._doubt, CLOSE_NS):
                self._offset, self._doubt = offset, doubt
            self._looked_ns = self.now_ns()
            return 0
        self._offset, self._doubt = offset, doubt
        now = self.now_ns()
        self.steps.append((now, step))
        self._eras.append((self._looked_ns, offset - self._first))
        del self.steps[:-MAX_STEPS], self._eras[:-MAX_STEPS]
        self._looked_ns = now
        return step


def _difference() -> tuple[int, int]:
    """(wall minus monotonic clock, by how much that may be wrong at most), the best of a few readings."""
    best = (0, 1 << 62)
    for _ in range(TRIES):
        before = monotonic_ns()
        wall = time_ns()
        after = monotonic_ns()
        doubt = (after - before) // 2
        if doubt < best[1]:
            best = wall - before - doubt, doubt
        if doubt <= CLOSE_NS:
            break
    return best


#: Of this process.
SESSION = Anchor()
now_ns = SESSION.now_ns
