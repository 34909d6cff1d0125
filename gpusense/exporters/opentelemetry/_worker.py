"""The exporter's own thread: bounded queue in front, one step a tick, an end that waits for a bounded time."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..._records.records import Record
from ..._runtime import log, threads


class Inbox:
    """Lists of records between the drain thread and the worker. What does not fit is counted, newest first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.received = 0
        self.refused = 0
        self._lists: list[list[Record]] = []
        self._count = 0
        self._lock = threads.lock()

    def put(self, records: list[Record]) -> None:
        with self._lock:
            self.received += len(records)
            room = self.limit - self._count
            if room < len(records):
                self.refused += len(records) - max(room, 0)
                records = records[: max(room, 0)]
            if records:
                self._lists.append(records)
                self._count += len(records)

    def take(self) -> list[Record]:
        with self._lock:
            lists, self._lists, self._count = self._lists, [], 0
        return [record for records in lists for record in records]

    def forget(self) -> None:
        """In a forked child: the parent sends what it had."""
        self._lock = threads.lock()
        self._lists, self._count = [], 0
        self.received = self.refused = 0


class Worker:
    """Calls ``step(final)`` every ``interval_s`` on a daemon thread, and a last time at :meth:`stop`.

    A forked child gets its thread on the first :meth:`wake`. Where no thread can be started, because the interpreter
    ends (Python 3.12) or the system refuses, :meth:`flush` and :meth:`stop` make the step themselves. An exception in
    ``step`` is logged once and the next tick comes all the same.
    """

    def __init__(self, step: Callable[[bool], Any], interval_s: float) -> None:
        self._step = step
        self._interval_s = interval_s
        self._stopping = False
        self._begin()

    def _begin(self) -> None:
        self._wake = threads.Event()
        self._done = threads.Event()
        self._flushes: deque[threads.Event] = deque()  # each set after the tick that it asks for
        self._thread: Any = None
        self._ident = 0  # of the thread that makes a step
        self._stepping = threads.lock()

    def start(self) -> bool:
        """Whether the thread runs; it cannot be started while the interpreter ends."""
        if self._thread is None:
            self._thread = threads.start(self._run, "gpusense-otel")
        return self._thread is not None

    def wake(self) -> None:
        if self._thread is None and not self._stopping:
            self.start()

    def flush(self, timeout_s: float) -> bool:
        """Asks for a tick now and waits for it; False where it did not end in time, or from inside a tick."""
        if self._stopping or threads.thread_id()() == self._ident:
            return False
        if not self.start():
            return self._step_here(timeout_s, final=False)
        served = threads.Event()
        self._flushes.append(served)
        self._wake.set()
        return served.wait(timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """The last tick, waited for at most ``timeout_s``; False where it was still running then."""
        self._stopping = True
        if self._thread is None:
            return self._step_here(timeout_s, final=True)
        self._wake.set()
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        self._ident = threads.thread_id()()
        with without_instrumentation():
            while not self._stopping:
                self._wake.wait(self._interval_s)
                self._wake.clear()
                flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
                if not self._stopping:
                    self._guarded(final=False)
                    for served in flushes:
                        served.set()
            self._guarded(final=True)
        self._done.set()

    def _step_here(self, timeout_s: float, *, final: bool) -> bool:
        """On the calling thread, for as long as an export takes."""
        if not self._stepping.acquire(timeout=max(timeout_s, 0.0)):
            return False
        before, self._ident = self._ident, threads.thread_id()()
        try:
            with without_instrumentation():
                self._guarded(final=final)
        finally:
            self._ident = before
            self._stepping.release()
        return True

    def _guarded(self, *, final: bool) -> None:
        try:
            self._step(final)
        except Exception:  # noqa: BLE001 - the thread must live on
            log.exception("otel-worker", "a batch of records could not be exported to OpenTelemetry and is lost")

    def forget(self) -> None:
        """In a forked child: the parent's thread and locks are not there."""
        self._begin()


@contextmanager
def without_instrumentation() -> Iterator[None]:
    """Keeps HTTP instrumentation from making spans of our own requests, in the calling thread."""
    from opentelemetry import context

    before = context.get_current()
    key = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
    context.attach(context.set_value("suppress_instrumentation", True, context.set_value(key, True)))
    try:
        yield
    finally:
        context.attach(before)
