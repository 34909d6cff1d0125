"""So that the program's threads get the GIL while gpusense's are at work."""

from time import perf_counter_ns, sleep

PAUSE_S = 0.0001
AT_ONCE_NS = 500_000  # of work, after which there is a pause


class Pauses:
    """Called between two parts of the work, by one thread at a time.

    Whoever wants the GIL waits for the part that is under way, and then for being woken: pauses that come too soon cost
    a busy program more than they give it.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = 0

    def begin(self) -> None:
        """The work begins."""
        self._since = perf_counter_ns()

    def __call__(self) -> None:
        if perf_counter_ns() - self._since >= AT_ONCE_NS:
            sleep(PAUSE_S)
            self._since = perf_counter_ns()
