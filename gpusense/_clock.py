"""Wall clock and monotonic clock together, and the detection of steps between them."""

from time import monotonic_ns, time_ns

#: A change of wall minus monotonic clock beyond this is a step (NTP slews stay far below it between two looks).
STEP_NS = 1_000_000


class Anchor:
    """Watches the difference of the two clocks; every step is remembered as (monotonic, wall before, wall after)."""

    __slots__ = ("_offset", "steps")

    def __init__(self) -> None:
        self._offset = time_ns() - monotonic_ns()
        self.steps: list[tuple[int, int]] = []  # (wall time of the discovery, size of the step)

    def look(self) -> int:
        """The step since the last look in nanoseconds; 0 for none."""
        offset = time_ns() - monotonic_ns()
        step = offset - self._offset
        self._offset = offset
        if abs(step) < STEP_NS:
            return 0
        self.steps.append((time_ns(), step))
        return step
