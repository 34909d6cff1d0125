"""The threads that sample the devices of one source: one takes their fast lanes in turn, one their slower lanes.

All that is due is done at one waking, with the driver's code and ours still in the caches. A turn that does not end
holds its device and no other: the thread it is on stays with that device, and the others go on on a new one.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from .._runtime.threads import unstarted as daemon_thread

_LOOK_S = 0.5  # between two looks for turns that do not end
_LATE_ROUNDS = 3  # in a row that took too much of the period, until the longest turn gets a thread of its own
_SHORT_NS = 1_000_000  # a round that nobody need look at


class Waiting(Protocol):
    """The clock, as far as it is used here."""

    def monotonic_ns(self) -> int: ...

    def wait(self, event: threading.Event, seconds: float) -> None: ...

    def enlist(self, thread: threading.Thread) -> None: ...


class Turn:
    """One lane of one device. ``step`` does what is due and says in how many nanoseconds it wants to be called again;
    ``period_ns`` tells how often it has something to do. It is never on two threads at once."""

    __slots__ = ("asked", "done", "due_ns", "period_ns", "step", "worker")

    def __init__(self, step: Callable[[], int], period_ns: Callable[[], int]) -> None:
        self.step = step
        self.period_ns = period_ns
        self.due_ns = 0
        self.asked = True  # wanted now, whatever ``step`` said
        self.done = threading.Event()  # it will not be taken again, and is not being taken
        self.worker: Worker | None = None


class Rounds:
    """The turns of one source. Methods may be called from any thread, also from a signal handler in one of them.

    ``watch`` is called first on the thread of the lane "slow", ``unwatch`` when the last thread ends.
    """

    def __init__(self, clock: Waiting, watch: Callable[[], None], unwatch: Callable[[], None]) -> None:
        self.clock = clock
        self.origin_ns = clock.monotonic_ns()  # of everyone's deadlines, so that they are due together
        self.lock = threading.RLock()
        self._watch, self._unwatch = watch, unwatch
        self._watched = False
        self._shared: dict[str, Worker] = {}  # lane → the thread that takes what is new
        self._workers: list[Worker] = []  # every thread that has not ended
        self._looking: threading.Thread | None = None
        self._look = threading.Event()

    def add(self, lane: str, turn: Turn) -> None:
        """Takes ``turn`` from now on. Raises RuntimeError where no thread can be started."""
        with self.lock:
            shared = self._shared.get(lane)
            if shared is None or shared.ended:
                self._shared[lane] = self._start(lane, (turn,))
                return
            shared.take((*shared.turns, turn))
            if self._looking is None:
                self._start_looking()

    def ask(self, turn: Turn) -> None:
        """Takes ``turn`` at once: what it wants has changed."""
        with self.lock:
            turn.asked = True
            if turn.worker is not None:
                turn.worker.wake.set()

    def remove(self, turn: Turn) -> None:
        """Does not take ``turn`` again; :meth:`join` waits for the one that may be under way."""
        with self.lock:
            worker = turn.worker
            if worker is None:
                turn.done.set()
                return
            worker.take(tuple(other for other in worker.turns if other is not turn))
            if worker.busy is not turn:
                turn.done.set()
            if not any(other.turns for other in self._workers):
                self._look.set()

    def join(self, turns: Iterable[Turn], deadline_s: float) -> None:
        """Waits for the end of removed turns until ``time.monotonic()`` is ``deadline_s``, and after the last turn for
        the threads; not for the thread that calls."""
        me = threading.current_thread()
        for turn in turns:
            if turn.worker is not None and turn.worker.thread is not me:
                turn.done.wait(max(0.0, deadline_s - time.monotonic()))
        with self.lock:
            threads = [worker.thread for worker in self._workers] + ([self._looking] if self._looking else [])
            if any(worker.turns for worker in self._workers):
                return
        for thread in threads:
            if thread is not me:
                thread.join(max(0.0, deadline_s - time.monotonic()))

    # -- the threads' side ---------------------------------------------------------------------------------------

    def split(self, worker: "Worker", stays: Turn | None) -> None:
        """Leaves ``stays`` to ``worker`` and gives the other turns to a new thread; nothing where none can be started.

        Call with the lock held.
        """
        rest = tuple(turn for turn in worker.turns if turn is not stays)
        if not rest:
            return
        try:
            other = self._start(worker.lane, rest)
        except RuntimeError:  # the interpreter is ending, or there are too many
            return
        if self._shared.get(worker.lane) is worker:
            self._shared[worker.lane] = other
        worker.take((stays,) if stays is not None and stays in worker.turns else ())

    def begin(self, worker: "Worker") -> None:
        """Watches from now on; while that takes, other threads may take what ``worker`` has to do."""
        with self.lock:
            if self._watched:
                return
            self._watched = worker.is_busy = True
            worker.since_ns = self.clock.monotonic_ns()
        self._watch()
        with self.lock:
            worker.is_busy = False

    def leave(self, worker: "Worker") -> None:
        """``worker`` has no turns left and ends; watching ends with the last one."""
        with self.lock:
            self._workers.remove(worker)
            if self._workers or not self._watched:
                return
            self._watched = False
        self._unwatch()

    def _start(self, lane: str, turns: tuple[Turn, ...]) -> "Worker":
        worker = Worker(self, lane)
        self.clock.enlist(worker.thread)
        self._workers.append(worker)
        before = [turn.worker for turn in turns]
        worker.take(turns)
        try:
            worker.thread.start()
        except RuntimeError:
            self._workers.remove(worker)
            for turn, owner in zip(turns, before, strict=True):
                turn.worker = owner
            raise
        return worker

    def _start_looking(self) -> None:
        self._look = threading.Event()
        looking = daemon_thread(self._run_looking, "gpusense-look")
        self.clock.enlist(looking)
        try:
            looking.start()
        except RuntimeError:
            return
        self._looking = looking

    def _run_looking(self) -> None:
        """Finds turns that do not end and lets the others go on. Two looks must see the same one: after one alone the
        whole process may have stood still."""
        while True:
            self.clock.wait(self._look, _LOOK_S)
            with self.lock:
                if not any(worker.turns for worker in self._workers):
                    self._looking = None
                    return
                self._look.clear()
                for worker in tuple(self._workers):
                    begun = worker.since_ns if worker.is_busy else None
                    if begun is not None and begun == worker.seen_ns:
                        self.split(worker, worker.busy)
                    worker.seen_ns = begun


class Worker:
    """One thread and the turns that it takes."""

    def __init__(self, rounds: Rounds, lane: str) -> None:
        self.lane = lane
        self.turns: tuple[Turn, ...] = ()  # replaced under the lock, never changed
        self.wake = threading.Event()
        self.is_busy = False
        self.busy: Turn | None = None  # None while busy: with the source itself
        self.since_ns = 0
        self.seen_ns: int | None = None  # ``since_ns`` at the last look
        self.ended = False
        self.thread = daemon_thread(self._run, f"gpusense-{lane}")
        self._rounds = rounds
        self._late = 0

    def take(self, turns: tuple[Turn, ...]) -> None:
        """``turns`` and no others, from the next turn on. Call with the lock held."""
        self.turns = turns
        for turn in turns:
            turn.worker = self
        self.wake.set()

    def _run(self) -> None:
        try:
            if self.lane == "slow":
                self._rounds.begin(self)
            while self._has_turns():
                self._round(self.turns)
        finally:
            self._rounds.leave(self)

    def _has_turns(self) -> bool:
        with self._rounds.lock:
            self.ended = not self.turns
            return not self.ended

    def _round(self, turns: tuple[Turn, ...]) -> None:
        """Takes what is due and waits for the next; returns early where ``turns`` are no longer the ones to take."""
        rounds = self._rounds
        start = now = rounds.clock.monotonic_ns()
        longest, most = None, 0
        for turn in turns:
            if now < turn.due_ns and not turn.asked:
                continue
            with rounds.lock:
                if self.turns is not turns:
                    return
                self.is_busy, self.busy, self.since_ns, turn.asked = True, turn, now, False
            wait = turn.step()
            before, now = now, rounds.clock.monotonic_ns()
            turn.due_ns = now + wait
            if now - before > most:
                longest, most = turn, now - before
            with rounds.lock:
                self.is_busy, self.busy = False, None
                if turn not in self.turns:
                    turn.done.set()
                if self.turns is not turns:
                    return
        self._judge(turns, now - start, longest)
        self.wake.clear()
        if self.turns is not turns or any(turn.asked for turn in turns):
            return
        wait = min([turn.due_ns for turn in turns]) - rounds.clock.monotonic_ns()
        if wait > 0:
            rounds.clock.wait(self.wake, wait / 1e9)

    def _judge(self, turns: tuple[Turn, ...], took: int, longest: Turn | None) -> None:
        if longest is None:
            return
        if took < _SHORT_NS or len(turns) == 1 or took <= min([turn.period_ns() for turn in turns]) // 2:
            self._late = 0
            return
        self._late += 1
        if self._late == _LATE_ROUNDS:
            self._late = 0
            with self._rounds.lock:
                if self.turns is turns:
                    self._rounds.split(self, longest)
