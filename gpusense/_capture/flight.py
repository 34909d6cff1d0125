"""The flight recorder: when the last seconds are to be written, why, how often, and what became of it.

What is written comes from ``_aggregation/recent``, by :mod:`.dump`, on gpusense's own thread. The program's threads do
here what they did without: a block leaves its end in the queue, and whether it took unusually long is looked at where
the queue is read.
"""

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, NamedTuple

from .._aggregation.usual import Usual
from .._records.records import BlockRecord, Path
from .._runtime.clock import now_ns
from .._runtime.config import Settings
from .._runtime.text import time_text
from .dump_signal import DumpSignal

#: Of dumps that nobody asked for, the next is written after so long.
EVERY_S = 60.0
#: The same error in the same block asks for a dump so seldom: one that comes with every tenth request would leave no
#: other dump among the last ten.
SAME_ERROR_S = 3_600.0
#: A block that is slow again asks for a dump where it takes longer than in its last one, or than a half of that, a
#: quarter of it, … with each of these times gone by: else those that are a little slow would take the turn of the one
#: that is very slow.
SINKS_S = 600.0
#: Until a dump is written: work that a block launched is still under way as it ends.
SETTLE_S = 0.5
#: A shorter block asks for no dump, however unusual: a garbage collection would. One inside others neither, unless what
#: it took too long is such a share of what the outermost of them usually takes.
LEAST_NS, LEAST_SHARE = 1_000_000, 0.5
MOST_REASONS, MOST_REMEMBERED = 20, 1_000

#: How things end that are as they should be.
_NO_FAULTS = frozenset(
    {"CancelledError", "GeneratorExit", "KeyboardInterrupt", "StopAsyncIteration", "StopIteration", "SystemExit"}
)


class Reason(NamedTuple):
    """Why there is a dump."""

    trigger: str  # "slow", "error", "hang", "signal", "asked"
    time_ns: int  # when that was
    path: Path = ()  # of the block
    block_id: int | None = None
    duration_ns: int | None = None
    p99_ns: int | None = None  # of the passes before
    passes: int | None = None  # that are counted for it
    error: str | None = None  # of a hang, what waits for whom

    @property
    def text(self) -> str:
        """One sentence without an end."""
        block = f"“{' › '.join(self.path)}”"
        if self.trigger == "slow" and self.duration_ns is not None and self.p99_ns:
            usual = f"its p99 is {time_text(self.p99_ns)}, over {self.passes:,} passes"
            return f"block {block} took {time_text(self.duration_ns)}; {usual}"
        if self.trigger == "error":
            return f"{self.error} ended block {block} after {time_text(self.duration_ns)}"
        if self.trigger == "hang":
            return str(self.error)
        return "the signal SIGUSR2 came" if self.trigger == "signal" else "the program asked for it"


class Taken(NamedTuple):
    """Why a dump is written, what is worst first."""

    reasons: list[Reason]
    passed_over: int  # since the dump before
    worst: Reason | None  # of those that were passed over


class Flight:
    """:meth:`look`, :meth:`due`, :meth:`take` and :meth:`done` are called by one thread at a time (under the recorder's
    lock); the others by any. ``wake`` has the next cycle of gpusense's thread begin now."""

    def __init__(self, settings: Settings, wake: Callable[[], None], clock: Callable[[], float] = monotonic) -> None:
        self.since_ns = now_ns()  # nothing is held from before
        self.signal = DumpSignal(self.ask)
        self._wake = wake
        self._clock = clock
        self._usual = Usual()
        self._waiting: list[Reason] = []
        self._due_at = 0.0
        self._asked = False
        self._again_at = 0.0
        self._errors: dict[tuple[Path, str], float] = {}  # when they may ask again
        self._slow: dict[Path, tuple[int, float]] = {}  # how slow it was in its last dump, and when that was
        self._passed_over = 0  # reasons since the last dump
        self._worst: Reason | None = None  # of them
        self._written = self._failed = 0
        self._last = self._failure = ""
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Goes on by ``settings``, and with the usual lengths of blocks."""
        self.seconds = settings.flight_recorder or 0.0
        self._factor = settings.flight_factor

    def reset(self) -> None:
        """Nothing from before counts any more."""
        self.since_ns = now_ns()
        self._usual = Usual()
        self._waiting, self._asked = [], False
        self._slow, self._passed_over, self._worst = {}, 0, None

    # --- why ----------------------------------------------------------------------------------------------------------

    def look(self, records: Iterable[Any]) -> None:
        """Whether any of ``records``, of what has just ended, is a reason."""
        add, factor = self._usual.add, self._factor
        for item in records:
            if type(item) is not BlockRecord:
                continue
            length_ns = item.end_ns - item.start_ns
            p99_ns = add(item.path, length_ns)
            if item.error is not None and item.error not in _NO_FAULTS:
                self._note(self._reason("error", item, p99_ns))
            elif (
                p99_ns
                and length_ns >= LEAST_NS
                and length_ns > factor * p99_ns
                and length_ns - p99_ns >= LEAST_SHARE * self._usual.around(item.path)
            ):
                self._note(self._reason("slow", item, p99_ns))

    def _reason(self, trigger: str, block: BlockRecord, p99_ns: int) -> Reason:
        length_ns, passes = block.end_ns - block.start_ns, self._usual.passes(block.path) if p99_ns else None
        return Reason(trigger, block.end_ns, block.path, block.block_id, length_ns, p99_ns or None, passes, block.error)

    def _note(self, reason: Reason) -> None:
        """It will be in a dump, or is passed over."""
        now = self._clock()
        early = not self._waiting and now < self._again_at and reason.trigger != "hang"
        if early or self._is_known(reason, now):
            self._pass_over(reason)
            return
        if not self._waiting:
            self._due_at = now + SETTLE_S
        self._waiting.append(reason)
        if len(self._waiting) > MOST_REASONS:
            self._waiting.sort(key=_order)
            self._waiting.pop()

    def _pass_over(self, reason: Reason) -> None:
        self._passed_over += 1
        self._worst = min(self._worst or reason, reason, key=_order)

    def _is_known(self, reason: Reason, now: float) -> bool:
        """Whether another dump tells as much. A hang is told once as it is."""
        if reason.trigger == "hang":
            return False
        if reason.trigger == "error":
            return now < self._errors.get((reason.path, reason.error or ""), now)
        before_ns, at = self._slow.get(reason.path, (0, now))
        return (reason.duration_ns or 0) <= before_ns >> int((now - at) // SINKS_S)

    def _remember(self, reason: Reason, now: float) -> None:
        if reason.trigger == "hang":
            return
        known: dict[Any, Any] = self._errors if reason.trigger == "error" else self._slow
        if reason.trigger == "error":
            known[reason.path, reason.error] = now + SAME_ERROR_S
        else:
            known[reason.path] = reason.duration_ns, now
        if len(known) > MOST_REMEMBERED:
            del known[next(iter(known))]

    def hangs(self, time_ns: int, text: str) -> None:
        """Work waits for another process."""
        self._note(Reason("hang", time_ns, error=text))

    def ask(self) -> None:
        """Somebody outside wants one: for a signal handler, sets a flag and rings."""
        self._asked = True
        self._wake()

    # --- when ---------------------------------------------------------------------------------------------------------

    def due(self, at_once: bool = False) -> bool:
        """Whether one is to be written now; ``at_once``: it is the last time to do so."""
        return self._asked or bool(self._waiting and (at_once or self._clock() >= self._due_at))

    @property
    def newest_ns(self) -> int:
        """When the last thing was that waits for a dump."""
        return max((reason.time_ns for reason in self._waiting), default=0)

    def take(self, until_ns: int, asked: bool = False) -> Taken:
        """Why there is a dump now of what was until then, and what made none since the last one. ``asked``: the program
        wants it."""
        waiting, self._waiting = self._waiting, []
        found = [reason for reason in waiting if reason.time_ns <= until_ns]
        now = self._clock()
        if found:
            self._again_at = now + EVERY_S
        for reason in sorted(found, key=_order, reverse=True):  # of two that are about one block, the worse counts
            self._remember(reason, now)
        if self._asked:
            self._asked = False
            found.append(Reason("signal", until_ns))
        if asked:
            found.append(Reason("asked", until_ns))
        taken = Taken(sorted(found, key=_order), self._passed_over, self._worst)
        self._passed_over, self._worst = 0, None
        for reason in waiting:
            if reason.time_ns > until_ns:  # for the next one, if that may be
                self._note(reason)
        return taken

    def done(self, path: str, failure: str = "") -> None:
        """What became of it."""
        if failure:
            self._failed += 1
            self._failure = failure
        else:
            self._written += 1
            self._last = path

    # --- what is known ------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """For people."""
        worst = self._worst
        return {
            "seconds": self.seconds,
            "written": self._written,
            "last": self._last or None,
            "failed": self._failed,
            "failure": self._failure or None,
            "passed_over": self._passed_over,
            "passed_over_worst": worst.text if worst is not None else None,
            "next_after_s": max(0.0, round(self._again_at - self._clock(), 1)),
            "signal": self.signal.state,
        }


def _order(reason: Reason) -> tuple[bool, int]:
    """What was asked for and errors, then what took longest."""
    return reason.trigger == "slow", -(reason.duration_ns or 0) if reason.trigger == "slow" else reason.time_ns
