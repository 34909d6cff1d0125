"""Wall clock and monotonic clock together, and the detection of steps between them."""

from time import monotonic_ns, time_ns

#: A change of wall minus monotonic clock beyond this is a step (NTP slews stay far below it between two looks).
STEP_NS = 1_000_000
#: The two clocks cannot be read at once. Reading one of them twice shows what lies between; this is close enough.
CLOSE_NS = 20_000
TRIES = 5


class Anchor:
    """Watches the difference of the two clocks; every step is remembered as (wall time of its discovery, size)."""

    __slots__ = ("_doubt", "_offset", "steps")

    def __init__(self) -> None:
        self._offset, self._doubt = _difference()
        self.steps: list[tuple[int, int]] = []

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
            return 0
        self._offset, self._doubt = offset, doubt
        self.steps.append((time_ns(), step))
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
