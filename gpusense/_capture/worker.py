"""The recording thread: cycles of the recorder, watchers, and errands that must not hold the program; and the pauses in
which the program's threads get the GIL while it works."""

from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter_ns, sleep
from typing import Any, Protocol

from .._runtime import log, threads
from .attachment import Capture

FIRST_WAIT_S = 0.005  # before the first cycle
PAUSE_S = 0.0001
AT_ONCE_NS = 500_000  # of work, after which there is a pause
#: No fork waits longer for the thread to end; it goes on if a cycle takes longer.
FORK_S = 2.0


class Cycles(Protocol):
    """What the thread does again and again: a recorder."""

    @property
    def capture(self) -> Capture | None: ...

    spent_s: float
    steps: int

    def tick(self, *, lazily: bool) -> Any: ...

    def pace(self, waited_s: float) -> float:
        """Seconds until the next cycle."""


class Pauses:
    """Called between two parts of the work, by one thread at a time, so that the program's threads get the GIL.

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


class Worker:
    """One thread that calls ``recorder.tick()`` until :meth:`end`. Every method may be called from any thread."""

    def __init__(self, recorder: Cycles) -> None:
        self._recorder = recorder
        self._bell = threads.Bell()
        self._errands: deque[Callable[[], None]] = deque()
        self._watchers: tuple[Callable[[], bool], ...] = ()
        self._ending = False
        self._thread: Any = None
        self._get_ident = threads.thread_id()
        self._ident = self._native_id = 0
        self._end: deque[None] | None = None  # while a fork is under way; who takes what is in it decides
        self._missing: deque[None] = deque()  # as much, where the system had no room for a thread after a fork

    def start(self) -> bool:
        """False where no thread can be started."""
        self._thread = threads.start(self._run, "gpusense")
        return self._thread is not None

    @property
    def started(self) -> bool:
        return self._thread is not None

    def wake(self) -> None:
        """Has the next cycle begin now."""
        if self._missing and _taken(self._missing):
            self._start_again()
        self._bell.set()

    def end(self, patience_s: float = 0.0) -> None:
        """No cycle begins after this. Waits up to ``patience_s`` for the thread, unless the caller is it.

        A thread that the interpreter has to stop as it ends takes a file descriptor: glibc's ``pthread_exit`` loads
        libgcc_s, and aborts a process that has none left.
        """
        self._ending = True
        self._bell.set()
        thread = self._thread
        if thread is not None and not self.is_current() and not threads.foreign(thread):
            thread.join(patience_s)

    def add_watcher(self, watcher: Callable[[], bool]) -> None:
        """``watcher()`` after each cycle, until it gives True or raises."""
        self._watchers = (*self._watchers, watcher)

    def is_current(self) -> bool:
        """Whether the caller is the thread."""
        return self._ident == self._get_ident()

    def errand(self, action: Callable[[], None]) -> bool:
        """Has the thread run ``action``, which does not raise; False where there is no other such thread."""
        thread = self._thread
        if thread is None or self.is_current() or not thread.is_alive():
            return False
        self._errands.append(action)
        self._bell.set()
        return True

    def later(self, action: Callable[[], None]) -> bool:
        """As :meth:`errand`, also for the thread itself, and after what it is at."""
        if self._thread is None or not self._thread.is_alive():
            return False
        self._errands.append(action)
        self._bell.set()
        return True

    def finish(self, action: Callable[[], None], timeout_s: float, longest_s: float) -> bool:
        """Whether ``action`` ended on the thread; here, where there is none any more. It may take ``longest_s`` as long
        as the recorder's work goes on, and no ``timeout_s`` in which it does not."""
        done = threads.Bell()

        def errand() -> None:
            try:
                action()
            except BaseException as error:
                log.exception(f"errand {action!r}", "a part of ending the recording failed")
                if not isinstance(error, Exception) and not self.is_current():  # the thread must live
                    raise
            finally:
                done.set()

        if not self.errand(errand):
            errand()
        deadline, steps = monotonic() + longest_s, self._recorder.steps
        while not done.wait(timeout_s):
            if self._recorder.steps == steps or monotonic() > deadline:
                return False
            steps = self._recorder.steps
        return True

    def _run(self) -> None:
        self._ident, self._native_id = self._get_ident(), threads.system_id()
        wait = FIRST_WAIT_S
        while True:
            self._bell.wait(wait)
            while self._errands:
                self._errands.popleft()()
            if self._ending or _taken(self._end):
                return
            began = monotonic()
            try:
                self._recorder.tick(lazily=True)
            except BaseException:  # noqa: BLE001 - the thread must live
                log.exception("tick", "the recording thread failed once and goes on")
            wait = self._recorder.pace(wait)
            self._watch()
            self._recorder.spent_s += monotonic() - began

    def _watch(self) -> None:
        for watcher in self._watchers:
            try:
                done = watcher()
            except BaseException:  # noqa: BLE001 - the thread must live
                done = True
                log.exception(f"watcher {watcher!r}", "a check that runs beside the recording raised and was removed")
            if done:
                self._watchers = tuple(known for known in self._watchers if known is not watcher)

    # --- forks ------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Ends the thread for now, unless its cycle takes long or the program has called from it.

        Not while capture runs: CUDA has threads of its own, and a flush may take as long as CUPTI likes. Nor where
        gevent came after the thread: then ``threading`` complains on standard error when the thread ends.
        """
        capture, thread = self._recorder.capture, self._thread
        if self._missing and _taken(self._missing):
            self._end = deque()  # as if it had ended now
        if thread is None or not thread.is_alive() or self.is_current():
            return
        if (capture is not None and capture.attached) or threads.foreign(thread):
            return
        self._end = self._end or deque((None,))  # a signal handler may fork while the program does
        self._bell.set()
        threads.join(thread, self._native_id, FORK_S)

    def after_fork_in_parent(self) -> None:
        """As before it."""
        end, self._end = self._end, None
        if end is not None and not _taken(end):
            self._start_again()

    def _start_again(self) -> None:
        if not self.start():
            self._missing.append(None)

    def after_fork_in_child(self) -> None:
        """The thread is the parent's."""
        self._end, self._missing = None, deque()
        self._bell = threads.Bell()
        self._errands = deque()
        self._watchers = ()
        self._thread = None


def _taken(end: "deque[None] | None") -> bool:
    """Whether the caller is the one that took what is in ``end``: the thread, which ends, or
    :meth:`Worker.after_fork_in_parent`."""
    try:
        return end is not None and end.pop() is None
    except IndexError:
        return False
