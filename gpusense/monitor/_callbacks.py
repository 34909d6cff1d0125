"""Calls a user's callback away from the sampling threads: bounded queue, counted losses, survived exceptions."""

import collections
import threading
import time
from collections.abc import Callable
from typing import Any

from .._runtime import log

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
        self._changed = threading.Condition()
        self._stopped = False
        self._told: dict[str, int] = {}
        self.calls = self.dropped = self.errors = self.spent_ns = 0
        self._thread = threading.Thread(target=self._run, name="gpusense-callback", daemon=True)

    def start(self) -> None:
        """Raises RuntimeError where the interpreter starts no more threads."""
        self._thread.start()

    def put(self, item: Any) -> None:
        with self._changed:
            if self._stopped:
                return
            self.dropped += len(self._queue) == self._queue.maxlen
            self._queue.append(item)
            self._changed.notify()

    def stop(self, timeout: float) -> None:
        """No call begins after this returns. Waits up to ``timeout`` for one that runs, unless it is the caller."""
        with self._changed:
            self._stopped = True
            self._queue.clear()
            self._changed.notify()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
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
        last = self._told.get(kind)
        if last is not None and now - last < _QUIET_NS:
            return
        self._told[kind] = now
        if self._on_error is None:
            log.exception(f"monitor callback {kind}", "the monitor's callback raised; sampling goes on")
            return
        try:
            self._on_error(error)
        except BaseException:  # noqa: BLE001
            log.exception("monitor on_error", "the monitor's on_error raised")
