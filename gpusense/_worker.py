"""The recording thread: rounds of the recorder, watchers, and errands that must not hold the program."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from . import _log, _native, _process
from ._capturing import FIRST_WAIT_S
from ._recorder import Recorder


class Worker:
    """One thread that calls ``recorder.tick()`` until :meth:`end`. Every method may be called from any thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._bell = _native.Bell()
        self._errands: deque[Callable[[], None]] = deque()
        self._watchers: tuple[Callable[[], bool], ...] = ()
        self._ending = False
        self._thread: Any = None
        self._get_ident = _native.thread_id()
        self._ident = 0

    def start(self) -> bool:
        """False where no thread can be started."""
        self._thread = _process.start_thread(self._run, "gpusense")
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

    def errand(self, action: Callable[[], None]) -> bool:
        """Has the thread run ``action``, which does not raise; False where there is no other such thread."""
        thread = self._thread
        if thread is None or self._ident == self._get_ident() or not thread.is_alive():
            return False
        self._errands.append(action)
        self._bell.set()
        return True

    def finish(self, action: Callable[[], None], timeout_s: float) -> bool:
        """Whether ``action`` ended in time on the thread; here, where there is none any more."""
        done = _native.Bell()

        def errand() -> None:
            try:
                action()
            except Exception:  # noqa: BLE001 - the thread must live
                _log.exception(f"errand {action!r}", "gpusense: ending the recording failed in part")
            finally:
                done.set()

        if not self.errand(errand):
            errand()
        return done.wait(timeout_s)

    def _run(self) -> None:
        self._ident = self._get_ident()
        wait = FIRST_WAIT_S
        while True:
            self._bell.wait(wait)
            while self._errands:
                self._errands.popleft()()
            if self._ending:
                return
            began = monotonic()
            try:
                self._recorder.tick()
            except BaseException:  # noqa: BLE001 - the thread must live
                _log.exception("tick", "gpusense: the recording thread failed once and goes on")
            wait = self._recorder.pace(wait)
            self._watch()
            self._recorder.spent_s += monotonic() - began

    def _watch(self) -> None:
        for watcher in self._watchers:
            try:
                done = watcher()
            except Exception:  # noqa: BLE001 - a watcher never reaches the program
                done = True
                _log.exception(f"watcher {watcher!r}", "gpusense: a watcher raised and was removed")
            if done:
                self._watchers = tuple(known for known in self._watchers if known is not watcher)

    def forget_in_child(self) -> None:
        """After a fork: the thread is the parent's."""
        self._bell = _native.Bell()
        self._errands = deque()
        self._watchers = ()
        self._thread = None
