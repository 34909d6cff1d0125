"""The recording thread: rounds of the recorder, watchers, and errands that must not hold the program."""

from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from .._runtime import log, threads
from .capturing import FIRST_WAIT_S
from .recorder import Recorder

#: No fork waits longer for the thread to end; it goes on if a round takes longer.
REST_S = 0.05
#: Between two looks whether the system has given it up.
GONE_S = 0.00002


class Worker:
    """One thread that calls ``recorder.tick()`` until :meth:`end`. Every method may be called from any thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._bell = threads.Bell()
        self._errands: deque[Callable[[], None]] = deque()
        self._watchers: tuple[Callable[[], bool], ...] = ()
        self._ending = False
        self._thread: Any = None
        self._get_ident = threads.thread_id()
        self._ident = self._native_id = 0
        self._rest: deque[None] | None = None  # while a fork is under way; who takes what is in it decides

    def start(self) -> bool:
        """False where no thread can be started."""
        self._thread = threads.start(self._run, "gpusense")
        return self._thread is not None

    @property
    def started(self) -> bool:
        return self._thread is not None

    def wake(self) -> None:
        """Has the next round begin now."""
        self._bell.set()

    def end(self) -> None:
        """No round begins after this."""
        self._ending = True
        self._bell.set()

    def add_watcher(self, watcher: Callable[[], bool]) -> None:
        """``watcher()`` after each round, until it gives True or raises."""
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

    def finish(self, action: Callable[[], None], timeout_s: float) -> bool:
        """Whether ``action`` ended in time on the thread; here, where there is none any more."""
        done = threads.Bell()

        def errand() -> None:
            try:
                action()
            except BaseException as error:
                log.exception(f"errand {action!r}", "gpusense: ending the recording failed in part")
                if not isinstance(error, Exception) and not self.is_current():  # the thread must live
                    raise
            finally:
                done.set()

        if not self.errand(errand):
            errand()
        return done.wait(timeout_s)

    def _run(self) -> None:
        self._ident, self._native_id = self._get_ident(), threads.system_id()
        wait = FIRST_WAIT_S
        while True:
            self._bell.wait(wait)
            while self._errands:
                self._errands.popleft()()
            if self._ending or _taken(self._rest):
                return
            began = monotonic()
            try:
                self._recorder.tick(lazily=True)
            except BaseException:  # noqa: BLE001 - the thread must live
                log.exception("tick", "gpusense: the recording thread failed once and goes on")
            wait = self._recorder.pace(wait)
            self._watch()
            self._recorder.spent_s += monotonic() - began

    def _watch(self) -> None:
        for watcher in self._watchers:
            try:
                done = watcher()
            except BaseException:  # noqa: BLE001 - the thread must live
                done = True
                log.exception(f"watcher {watcher!r}", "gpusense: a watcher raised and was removed")
            if done:
                self._watchers = tuple(known for known in self._watchers if known is not watcher)

    # --- forks ------------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Before a fork: ends the thread for now, unless its round takes long or the program has called from it.

        Not while capture runs: CUDA has threads of its own, and a flush may take as long as CUPTI likes. Nor where
        gevent came after the thread: then ``threading`` complains on standard error when the thread ends.
        """
        capture, thread = self._recorder.capture, self._thread
        if thread is None or not thread.is_alive() or self.is_current():
            return
        if (capture is not None and capture.attached) or threads.foreign(thread):
            return
        deadline = monotonic() + REST_S
        self._rest = self._rest or deque((None,))  # a signal handler may fork while the program does
        self._bell.set()
        thread.join(REST_S)
        # The system counts a thread for some microseconds after it was joined.
        while not thread.is_alive() and threads.exists(self._native_id) and monotonic() < deadline:
            sleep(GONE_S)

    def go_on(self) -> None:
        """After a fork, in the parent: as before it."""
        rest, self._rest = self._rest, None
        if rest is not None and not _taken(rest):
            self.start()

    def forget_in_child(self) -> None:
        """After a fork: the thread is the parent's."""
        self._rest = None
        self._bell = threads.Bell()
        self._errands = deque()
        self._watchers = ()
        self._thread = None


def _taken(rest: "deque[None] | None") -> bool:
    """Whether the caller is the one that took what is in ``rest``: the thread, which ends, or :meth:`Worker.go_on`."""
    try:
        return rest is not None and rest.pop() is None
    except IndexError:
        return False
