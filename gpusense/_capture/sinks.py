"""Finished records on their way to sinks: collected under the recorder's lock, handed out without it."""

from collections.abc import Callable
from time import thread_time
from typing import Any

from .._records.records import Record
from .._runtime import log, threads
from .._runtime.interrupts import is_the_programs

LONGEST_WAIT_S = 1e6  # a lock takes no infinite time

Sink = Callable[[list[Record]], Any]


class Sinks:
    """The sinks of one recorder, and what they have not got yet."""

    def __init__(self, on_own_thread: Callable[[], bool] = lambda: False) -> None:
        self._on_own_thread = on_own_thread
        self.errors = 0  # sinks that raised and were removed
        self._sinks: tuple[Sink, ...] = ()
        self._outbox: list[Record] = []
        self._cpu_ns = 0  # of sinks, elsewhere
        self._changing = threads.OwnedLock()
        self._turn = threads.OwnedLock()

    def add(self, sink: Sink) -> None:
        with self._changing:
            if sink not in self._sinks:
                self._sinks = (*self._sinks, sink)

    def remove(self, sink: Sink) -> None:
        with self._changing:
            self._sinks = tuple(known for known in self._sinks if known != sink)

    @property
    def awaited(self) -> bool:
        """Whether there is a sink."""
        return bool(self._sinks)

    def forget_in_child(self) -> None:
        """After a fork: the sinks are the parent's."""
        self._sinks = ()
        self._outbox = []
        self._changing = threads.OwnedLock()
        self._turn = threads.OwnedLock()

    def put(self, records: list[Record]) -> None:
        """Records for the next :meth:`hand_out`."""
        if self._sinks:
            with self._changing:
                self._outbox.extend(records)

    def hand_out(self, timeout_s: float = -1) -> bool:
        """Hands out everything that was put; call it without the recorder's lock. False where another thread was in a
        sink for all of ``timeout_s`` (negative: no limit): then it waits for the next call.

        One thread at a time, in order; a sink that flushes gets what that brings inside its call.
        """
        if not self._outbox:
            return True
        nested = self._turn.mine
        if not nested and not self._turn.acquire(timeout_s):
            return False
        try:
            with self._changing:
                records, self._outbox = self._outbox, []
            for sink in self._sinks if records else ():
                self._give(sink, records)
        finally:
            if not nested:
                self._turn.release()
        return True

    def hand_out_on(self, elsewhere: Callable[[Callable[[], None]], bool], timeout_s: float) -> bool:
        """As :meth:`hand_out`, on the thread where ``elsewhere`` has things run, if there is one: a sink
        may take long, and whoever asks says how long to wait."""
        done, handed = threads.Bell(), []

        def errand() -> None:
            began = thread_time()
            try:
                handed.append(self.hand_out(timeout_s))
            except BaseException:  # noqa: BLE001 - the thread must live
                log.exception("hand out", "gpusense: a sink was interrupted")
            finally:
                self._cpu_ns += int((thread_time() - began) * 1e9)
                done.set()

        if not self._outbox or not elsewhere(errand):
            return self.hand_out(timeout_s)
        return done.wait(min(timeout_s, LONGEST_WAIT_S)) and handed == [True]

    def take_cpu_ns(self) -> int:
        """What sinks have cost elsewhere since the last call."""
        taken, self._cpu_ns = self._cpu_ns, 0
        return taken

    def _give(self, sink: Sink, records: list[Record]) -> None:
        try:
            sink(list(records))
        except BaseException as error:  # a sink never reaches the program
            if is_the_programs(error) and not self._on_own_thread():
                raise
            self.errors += 1
            self.remove(sink)
            log.exception(f"sink {sink!r}", "gpusense: a sink raised and was removed")
