"""SIGUSR2, by which somebody outside asks for a dump, beside what the program does with that signal itself."""

from collections.abc import Callable
from typing import Any

from .._capi import main_thread
from .._runtime import threads

OFF = "off"
SET = "SIGUSR2 asks for a dump"
WAITS = "waits for the main thread: only there can a signal handler be set"


class DumpSignal:
    """A handler of SIGUSR2 that calls ``ask``, which is quick and waits for nothing, and then what was there before.

    Python runs handlers on the main thread between two of its own steps: while that thread is inside a call of C, a
    signal waits.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._wanted = False
        self._handler: Any = None  # ours, once it is set
        self._before: Any = None  # what was there
        self._refused = ""

    def want(self, wanted: bool) -> None:
        """From any thread; where that is not the main one, it is done there soon."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if threads.is_main():
            self._follow()
        elif not main_thread.later(self._follow):
            self._refused = "the main thread has too many calls waiting"

    @property
    def state(self) -> str:
        """For people, see the constants; or why it is not set."""
        if not self._wanted:
            return OFF
        if self._handler is None:
            return self._refused or WAITS
        import signal

        return SET if signal.getsignal(signal.SIGUSR2) is self._handler else "the program has set another handler since"

    def forget_in_child(self) -> None:
        """After a fork, on the child's only thread: the handler is as it was before ours."""
        self._wanted = False
        self._follow()

    def _follow(self) -> None:
        """On the main thread."""
        import signal

        number = getattr(signal, "SIGUSR2", None)
        if number is None:
            self._refused = "this system has no SIGUSR2"
        elif self._wanted and self._handler is None:
            self._set(signal, number)
        elif not self._wanted and self._handler is not None and signal.getsignal(number) is self._handler:
            signal.signal(number, self._before)
            self._handler = None

    def _set(self, signal: Any, number: int) -> None:
        before = signal.getsignal(number)
        if before is None:
            self._refused = "a handler that is not Python's has SIGUSR2"
            return

        def handle(received: int, frame: Any) -> None:
            if self._wanted:
                self._ask()
            if callable(before):
                before(received, frame)

        try:
            signal.signal(number, handle)
        except ValueError as error:  # in a subinterpreter
            self._refused = str(error)
            return
        self._handler, self._before = handle, before
