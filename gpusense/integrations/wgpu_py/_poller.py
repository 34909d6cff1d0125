"""Steps that no submit of the program takes: a thread that polls devices, and moves along what has lain for a while.

Without it the last passes of a program that goes quiet would be read when it next submits, and a device that the
program let go would live until then. Every poll of ours is made here: wgpu-native's may not return (gfx-rs/wgpu#5969,
#9470), and then it is this thread that hangs, not the program.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from ..._runtime import threads

ROUND_S = 0.1
SOON_S = 0.001
#: Rounds with nothing to do before it sleeps until :meth:`Poller.wake`: a busy program need not wake it all the time.
QUIET_ROUNDS = 20


class Poller:
    """``step()`` says in how many seconds it is to be called again, 0 for when there is nothing to do. Starts no
    thread before :meth:`wake`."""

    def __init__(self, step: Callable[[], float]) -> None:
        self._step = step
        self._bell = threads.Bell()
        self._asked: deque[tuple[Callable[[], None], threads.Event]] = deque()
        self._thread: Any = None
        self._asleep = True
        self._ended = False
        self._lock = threads.lock()

    def wake(self) -> None:
        """There is something to do. Any thread."""
        if self._asleep and not self._ended:
            self._asleep = False
            self._start()
            self._bell.set()

    def hurry(self) -> None:
        """The next step is due now. Called in the middle of anything."""
        self._bell.set()

    def run(self, action: Callable[[], None], timeout_s: float) -> bool:
        """Whether ``action()``, which may hang, has come back in time."""
        if self._start() is None:  # no thread can be started: the interpreter ends, or a limit is reached
            action()
            return True
        done = threads.Event()
        self._asked.append((action, done))
        self._bell.set()
        return done.wait(timeout_s)

    def end(self) -> None:
        """No step is begun any more; one that hangs goes on hanging."""
        self._ended = True
        self._bell.set()

    def _start(self) -> Any:
        if self._thread is None and not self._ended:
            with self._lock:
                if self._thread is None:
                    self._thread = threads.start(self._run, "gpusense-wgpu")
        return self._thread if not self._ended else None

    @staticmethod
    def _answer(action: Callable[[], None], done: threads.Event) -> None:
        """Apart, so that nothing of it is held while the thread sleeps."""
        try:
            action()
        finally:
            done.set()

    def _run(self) -> None:
        quiet = 0
        while not self._ended:
            if self._asked:
                self._answer(*self._asked.popleft())
                continue
            again_s = self._step()
            quiet = 0 if again_s else quiet + 1
            if quiet < QUIET_ROUNDS:
                self._bell.wait(again_s or ROUND_S)
                continue
            self._asleep = True
            if not self._step():  # what came before it slept has rung no bell
                self._bell.wait(-1)
            self._asleep, quiet = False, 0
        while self._asked:  # who waits is not left waiting
            self._asked.popleft()[1].set()
