"""Finished records on their way to sinks: collected under the recorder's lock, handed out on a thread of their own.

A sink is the program's, and may take long or never return. Recording goes on beside it: what waits for it has a bound,
and what is beyond that is counted.
"""

from collections.abc import Callable
from time import monotonic, sleep, thread_time
from typing import Any

from .._records.records import Record
from .._runtime import log, threads
from .._runtime.interrupts import is_the_programs

LONGEST_WAIT_S = 1e6  # a lock takes no infinite time
#: Records that wait for the sinks; what comes beyond is counted and not handed to them.
MAX_WAITING = 200_000
WAIT_S = 0.05  # that a fork, or the end of the recording, waits for the thread to end
FIRST_LOOK_S = 0.0005  # until the first look whether the thread has handed all out

Sink = Callable[[list[Record]], Any]


class Sinks:
    """The sinks of one recorder, and what they have not got yet. Its thread is started with the first records."""

    def __init__(self) -> None:
        self.errors = 0  # sinks that raised and were removed
        self.unsent = 0  # records that no sink got: one took too long
        self._sinks: tuple[Sink, ...] = ()
        self._outbox: list[Record] = []
        self._cpu_ns = 0  # of sinks
        self._get_ident = threads.thread_id()
        self.forget_in_child()

    def add(self, sink: Sink) -> None:
        with self._joining:
            if sink not in self._sinks:
                self._sinks = (*self._sinks, sink)

    def remove(self, sink: Sink) -> None:
        with self._joining:
            self._sinks = tuple(known for known in self._sinks if known != sink)

    @property
    def awaited(self) -> bool:
        """Whether there is a sink."""
        return bool(self._sinks)

    def forget_in_child(self) -> None:
        """After a fork: the sinks and their thread are the parent's."""
        self._sinks = ()
        self._outbox = []
        self._joining = threads.rlock()  # of sinks
        self._changing = threads.rlock()  # of records and thread; where a handler of the program may come in, not held
        self._thread: Any = None
        self._ident = 0  # of the thread that is in the sinks
        self._own = self._native_id = 0  # of the thread that is started for them
        self._bell = threads.Bell()
        self._busy = self._ending = False

    def put(self, records: list[Record]) -> None:
        """Records for the next :meth:`hand_out`."""
        if self._sinks:
            with self._changing:
                room = MAX_WAITING - len(self._outbox)
                self._outbox.extend(records[: max(0, room)])
                self.unsent += max(0, len(records) - room)

    def hand_out(self, timeout_s: float = 0.0) -> bool:
        """Has everything that was put handed out; False where a sink has not taken all of it in time.

        One thread, in order.
        """
        with self._changing:
            started = not self._outbox or self._start()
            self._busy = self._busy or bool(self._outbox)
        if started:
            self._bell.set()
            return self.wait(timeout_s)
        self._deliver()  # the interpreter ends
        return True

    def wait(self, timeout_s: float) -> bool:
        """As :meth:`hand_out`, after it. A sink that flushes gets what that brings inside its call."""
        if self._ident == self._get_ident():
            self._deliver()
            return True
        deadline, wait_s = monotonic() + min(timeout_s, LONGEST_WAIT_S), FIRST_LOOK_S
        while self._busy:
            if monotonic() >= deadline:
                return False
            sleep(wait_s)
            wait_s = min(2 * wait_s, 20 * FIRST_LOOK_S)
        return True

    def give_up(self) -> None:
        """The recording ends: what waits is counted, and the thread ends, unless a sink holds it."""
        with self._changing:
            self.unsent += len(self._outbox)
            self._outbox, self._ending = [], True
        self._bell.set()
        self._end_thread()

    def take_cpu_ns(self) -> int:
        """What sinks have cost since the last call."""
        taken, self._cpu_ns = self._cpu_ns, 0
        return taken

    def before_fork(self) -> None:
        """Ends the thread for now, unless a sink holds it; the next records start another."""
        self._end_thread()

    def _end_thread(self) -> None:
        thread = self._thread
        if thread is not None and self._ident != self._get_ident() and not threads.foreign(thread):
            self._ending = True
            self._bell.set()
            threads.join(thread, self._native_id, WAIT_S)

    def _start(self) -> bool:
        self._ending = False
        if self._thread is None or not self._thread.is_alive():
            self._thread = threads.start(self._run, "gpusense sinks")
        return self._thread is not None

    def _run(self) -> None:
        self._own, self._native_id = self._get_ident(), threads.system_id()
        while True:
            self._bell.wait(LONGEST_WAIT_S)
            self._deliver()
            with self._changing:
                if self._ending:
                    self._thread = None
                    return

    def _deliver(self) -> None:
        before, self._ident = self._ident, self._get_ident()
        began = thread_time()
        try:
            while True:
                with self._changing:
                    records, self._outbox = self._outbox, []
                    self._busy = bool(records) or self._ident == before
                if not records:
                    return
                for sink in self._sinks:
                    self._give(sink, records)
        finally:
            self._ident = before
            if not before:
                self._cpu_ns += int((thread_time() - began) * 1e9)

    def _give(self, sink: Sink, records: list[Record]) -> None:
        try:
            sink(list(records))
        except BaseException as error:  # a sink never reaches the program
            if is_the_programs(error) and self._get_ident() != self._own:
                raise
            self.errors += 1
            self.remove(sink)
            log.exception(f"sink {sink!r}", "a sink raised and was removed")
