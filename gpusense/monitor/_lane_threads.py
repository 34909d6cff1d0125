"""The threads that sample the devices of one source: one runs their fast lanes, one after the other, one the slower.

All that is due is done in one cycle, with the driver's code and ours still in the caches. A task that does not end
holds its device and no other: the thread it is on stays with that device, and the others go on on a new one.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .._runtime import threads

_LOOK_S = 0.5  # between two looks for tasks that do not end
_LATE_CYCLES = 3  # in a row that took too much of the period, until the longest task gets a thread of its own
_SHORT_NS = 1_000_000  # a cycle that nobody need look at


class Waiting(Protocol):
    """The clock, as far as it is used here."""

    def monotonic_ns(self) -> int: ...

    def wait(self, event: threads.Event, seconds: float) -> None: ...

    def enlist(self, thread: Any) -> None: ...


class Task:
    """One lane of one device. ``step`` does what is due and returns in how many nanoseconds it wants to be called
    again; ``period_ns`` returns how often it has something to do. It is never on two threads at once."""

    __slots__ = ("asked", "done", "due_ns", "period_ns", "step", "worker")

    def __init__(self, step: Callable[[], int], period_ns: Callable[[], int]) -> None:
        self.step = step
        self.period_ns = period_ns
        self.due_ns = 0
        self.asked = True  # wanted now, whatever ``step`` returned
        self.done = threads.Event()  # it will not run again, and is not running
        self.worker: LaneWorker | None = None


class LaneThreads:
    """Those of one source, with their tasks. Methods may be called from any thread, also from a signal handler in one
    of them.

    ``watch`` is called first on the thread of the lane "slow", ``unwatch`` when the last thread ends.
    """

    def __init__(self, clock: Waiting, watch: Callable[[], None], unwatch: Callable[[], None]) -> None:
        self.clock = clock
        self.origin_ns = clock.monotonic_ns()  # of everyone's deadlines, so that they are due together
        self.lock = threads.rlock()
        self._watch, self._unwatch = watch, unwatch
        self._watched = False
        self._shared: dict[str, LaneWorker] = {}  # lane → the one that gets new tasks
        self._workers: list[LaneWorker] = []  # every thread that has not ended
        self._looking: Any = None  # the thread that looks for tasks that do not end
        self._look = threads.Event()

    def add(self, lane: str, task: Task) -> None:
        """Runs ``task`` from now on. Raises RuntimeError where no thread can be started."""
        with self.lock:
            shared = self._shared.get(lane)
            if shared is None or shared.ended:
                self._shared[lane] = self._start(lane, (task,))
                return
            shared.take((*shared.tasks, task))
            if self._looking is None:
                self._start_looking()

    def ask(self, task: Task) -> None:
        """Runs ``task`` at once: what it wants has changed."""
        with self.lock:
            task.asked = True
            if task.worker is not None:
                task.worker.wake.set()

    def remove(self, task: Task) -> None:
        """Does not run ``task`` again; :meth:`join` waits for the step that may be under way."""
        with self.lock:
            worker = task.worker
            if worker is None:
                task.done.set()
                return
            worker.take(tuple(other for other in worker.tasks if other is not task))
            if worker.busy is not task:
                task.done.set()
            if not any(other.tasks for other in self._workers):
                self._look.set()

    def join(self, tasks: Iterable[Task], deadline_s: float) -> None:
        """Waits for the end of removed tasks until ``time.monotonic()`` is ``deadline_s``, and for the threads where no
        task is left; never for the thread that calls."""
        me = threads.thread_id()()
        for task in tasks:
            if task.worker is not None and task.worker.ident != me:
                task.done.wait(max(0.0, deadline_s - time.monotonic()))
        with self.lock:
            running = [worker.thread for worker in self._workers] + [self._looking]
            if any(worker.tasks for worker in self._workers):
                return
        for thread in running:
            if thread is not None and thread.ident != me:
                thread.join(max(0.0, deadline_s - time.monotonic()))

    # -- the threads' side ---------------------------------------------------------------------------------------

    def split(self, worker: "LaneWorker", stays: Task | None) -> None:
        """Leaves ``stays`` to ``worker`` and gives the other tasks to a new thread; nothing where none can be started.

        Call with the lock held.
        """
        rest = tuple(task for task in worker.tasks if task is not stays)
        if not rest:
            return
        try:
            other = self._start(worker.lane, rest)
        except RuntimeError:  # the interpreter is ending, or there are too many
            return
        if self._shared.get(worker.lane) is worker:
            self._shared[worker.lane] = other
        worker.take((stays,) if stays is not None and stays in worker.tasks else ())

    def begin(self, worker: "LaneWorker") -> None:
        """Watches from now on; while that lasts, other threads may get the tasks of ``worker``."""
        with self.lock:
            if self._watched:
                return
            self._watched = worker.is_busy = True
            worker.since_ns = self.clock.monotonic_ns()
        self._watch()
        with self.lock:
            worker.is_busy = False

    def leave(self, worker: "LaneWorker") -> None:
        """``worker`` has no tasks left and ends; watching ends with the last one."""
        with self.lock:
            self._workers.remove(worker)
            if self._workers or not self._watched:
                return
            self._watched = False
        self._unwatch()

    def _start(self, lane: str, tasks: tuple[Task, ...]) -> "LaneWorker":
        """Call with the lock held. Raises RuntimeError where no thread can be started."""
        worker = LaneWorker(self, lane)
        self._workers.append(worker)
        before = [task.worker for task in tasks]
        worker.take(tasks)
        worker.thread = threads.start(worker.run, f"gpusense-{lane}")
        if worker.thread is None:
            self._workers.remove(worker)
            for task, owner in zip(tasks, before, strict=True):
                task.worker = owner
            raise RuntimeError("can't start new thread")
        self.clock.enlist(worker.thread)
        return worker

    def _start_looking(self) -> None:
        self._look = threads.Event()
        self._looking = threads.start(self._run_looking, "gpusense-look")
        if self._looking is not None:
            self.clock.enlist(self._looking)

    def _run_looking(self) -> None:
        """Finds tasks that do not end and lets the others go on. Two looks must see the same one: after one alone the
        whole process may have stood still."""
        while True:
            self.clock.wait(self._look, _LOOK_S)
            with self.lock:
                if not any(worker.tasks for worker in self._workers):
                    self._looking = None
                    return
                self._look.clear()
                for worker in tuple(self._workers):
                    begun = worker.since_ns if worker.is_busy else None
                    if begun is not None and begun == worker.seen_ns:
                        self.split(worker, worker.busy)
                    worker.seen_ns = begun


class LaneWorker:
    """One thread and the tasks that it runs."""

    def __init__(self, owner: LaneThreads, lane: str) -> None:
        self.lane = lane
        self.tasks: tuple[Task, ...] = ()  # replaced under the lock, never changed
        self.wake = threads.Event()
        self.is_busy = False
        self.busy: Task | None = None  # None while busy: with the source itself
        self.since_ns = 0
        self.seen_ns: int | None = None  # ``since_ns`` at the last look
        self.ended = False
        self.thread: Any = None
        self.ident = 0  # of the thread, once it runs
        self._owner = owner
        self._late = 0

    def take(self, tasks: tuple[Task, ...]) -> None:
        """``tasks`` and no others, from the next step on. Call with the lock held."""
        self.tasks = tasks
        for task in tasks:
            task.worker = self
        self.wake.set()

    def run(self) -> None:
        self.ident = threads.thread_id()()
        try:
            if self.lane == "slow":
                self._owner.begin(self)
            while self._has_turns():
                self._cycle(self.tasks)
        finally:
            self._owner.leave(self)

    def _has_turns(self) -> bool:
        with self._owner.lock:
            self.ended = not self.tasks
            return not self.ended

    def _cycle(self, tasks: tuple[Task, ...]) -> None:
        """Runs what is due and waits for the next; returns early where ``tasks`` are no longer the ones to run."""
        owner = self._owner
        start = now = owner.clock.monotonic_ns()
        longest, most = None, 0
        for task in tasks:
            if now < task.due_ns and not task.asked:
                continue
            with owner.lock:
                if self.tasks is not tasks:
                    return
                self.is_busy, self.busy, self.since_ns, task.asked = True, task, now, False
            wait = task.step()
            before, now = now, owner.clock.monotonic_ns()
            task.due_ns = now + wait
            if now - before > most:
                longest, most = task, now - before
            with owner.lock:
                self.is_busy, self.busy = False, None
                if task not in self.tasks:
                    task.done.set()
                if self.tasks is not tasks:
                    return
        self._judge(tasks, now - start, longest)
        self.wake.clear()
        if self.tasks is not tasks or any(task.asked for task in tasks):
            return
        wait = min([task.due_ns for task in tasks]) - owner.clock.monotonic_ns()
        if wait > 0:
            owner.clock.wait(self.wake, wait / 1e9)

    def _judge(self, tasks: tuple[Task, ...], took: int, longest: Task | None) -> None:
        if longest is None:
            return
        if took < _SHORT_NS or len(tasks) == 1 or took <= min([task.period_ns() for task in tasks]) // 2:
            self._late = 0
            return
        self._late += 1
        if self._late == _LATE_CYCLES:
            self._late = 0
            with self._owner.lock:
                if self.tasks is tasks:
                    self._owner.split(self, longest)
