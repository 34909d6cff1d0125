"""How much the program computed, and until when: where a device waits for the host, whether that one was busy itself.

Readings of one counter, of all threads of the process, at most one a cycle. While the threads of gpusense rest there
are none, and the next one tells of all that time.
"""

from collections.abc import Callable
from time import process_time_ns

from .._runtime.clock import now_ns

#: So many readings are kept: of a longer run fewer a second.
_MOST, _APART_NS = 256, 100_000_000


class CpuTime:
    """For one thread at a time."""

    def __init__(self, clock: Callable[[], int] = now_ns, spent: Callable[[], int] = process_time_ns) -> None:
        self._clock, self._spent = clock, spent
        self._rows: list[tuple[int, int]] = []
        self._apart_ns = _APART_NS

    def look(self) -> None:
        """Takes a reading, if the one before is old enough."""
        now = self._clock()
        if self._rows and now - self._rows[-1][0] < self._apart_ns:
            return
        if len(self._rows) >= _MOST:
            del self._rows[1::2]
            self._apart_ns *= 2
        self._rows.append((now, self._spent()))

    def rows(self) -> list[tuple[int, int]]:
        """For ``meta``: moments, and how long all threads together had computed by then. Nanoseconds, rising."""
        return [*self._rows, (self._clock(), self._spent())]
