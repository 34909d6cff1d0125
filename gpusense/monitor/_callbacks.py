"""Calls a user's callback away from the sampling threads: bounded queue, counted losses, survived exceptions."""

import collections
import time
from collections.abc import Callable
from typing import Any

from .._runtime import log, threads

#: Between two reports of the same kind of exception.
_QUIET_NS = 10_000_000_000


class Dispatcher:
    """One thread, one queue. When the callback is slower than the samples, the oldest sample is dropped and counted."""

    def __init__(
        self,
        callback: Callable[[Any], object],
        on_error: Callable[[BaseException], object] | None = None,
        *,
        room: int = 64,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._callback = callback
        self._on_error = on_error
        self._monotonic_ns = monotonic_ns
        self._queue: collections.deque[Any] = collections.deque(maxlen=room)
        self._lock = threads.rlock()
        self._changed = threads.Event()  # set and cleared under the lock
        self._stopped = False
        self._reported: dict[str, int] = {}  # kind of exception → when
        self.calls = self.dropped = self.errors = self.spent_ns = 0
        self._thread: Any = None

    def start(self) -> None:
        """Raises RuntimeError where no thread can be started."""
        self._thread = threads.start(self._run, "gpusense-callback")
        if self._thread is None:
            raise RuntimeError("can't start new thread")

    def put(self, item: Any) -> None:
        with self._lock:
            if self._stopped:
                return
            self.dropped += len(self._queue) == self._queue.maxlen
            self._queue.append(item)
            self._changed.set()

    def stop(self, timeout: float) -> None:
        """No call begins after this returns. Waits up to ``timeout`` for one that runs, unless it is the caller."""
        with self._lock:
            self._stopped = True
            self._queue.clear()
            self._changed.set()
        if self._thread is not None and self._thread.ident != threads.thread_id()():
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._changed.wait()
            with self._lock:
                if self._stopped:
                    return
                if not self._queue:
                    self._changed.clear()
                    continue
                item = self._queue.popleft()
                self.calls += 1  # under the lock: after ``stop`` took it, no call begins
                start = self._monotonic_ns()
            try:
                self._callback(item)
            except BaseException as error:  # noqa: BLE001  whatever it was (pytest's are none of Exception), sampling goes on
                self._failed(error)
            self.spent_ns += self._monotonic_ns() - start

    def _failed(self, error: BaseException) -> None:
        self.errors += 1
        kind, now = type(error).__name__, self._monotonic_ns()
        last = self._reported.get(kind)
        if last is not None and now - last < _QUIET_NS:
            return
        self._reported[kind] = now
        if self._on_error is None:
            log.exception(f"monitor callback {kind}", "the monitor's callback raised; sampling goes on")
            return
        try:
            self._on_error(error)
        except BaseException:  # noqa: BLE001
            log.exception("monitor on_error", "on_error of the monitor raised")
