"""Threads, locks and thread ids of the operating system, also where gevent has put greenlets in their place.

A greenlet would read buffers only while the program waits, and would stop the whole program while it waits for CUPTI.
Does not import ``threading``: a process in which gpusense is off has no need of it.
"""

import _thread
import os
import sys
from collections.abc import Callable
from typing import Any


def patched(module: str) -> Any:
    """gevent's monkey module where it has replaced parts of ``module``."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey if monkey is not None and monkey.is_module_patched(module) else None


def native(module: str, name: str) -> Any:
    """``module.name`` as it is without gevent's patches."""
    monkey = patched(module)
    return monkey.get_original(module, name) if monkey is not None else getattr(__import__(module), name)


def lock() -> Any:
    """A lock of the system."""
    return native("_thread", "allocate_lock")()


def thread_id() -> Callable[[], int]:
    """The function that gives the id of the calling thread, by which CUPTI's buffers name it, too."""
    found: Callable[[], int] = native("_thread", "get_ident")
    return found


def system_id() -> int:
    """The number by which the system knows the calling thread; 0 where it tells none."""
    return int(_thread.get_native_id()) if hasattr(_thread, "get_native_id") else 0


def free_threaded() -> bool:
    """Whether this CPython was built to run without the GIL, with ``PYTHON_GIL=1`` too."""
    return "t" in getattr(sys, "abiflags", "")


def exists(system_id: int) -> bool:
    """Whether this process still has that thread; False where the system does not tell."""
    return os.path.exists(f"/proc/self/task/{system_id}")


class Count:
    """A number that any thread adds one to, exact without the GIL too: each has a part of its own."""

    __slots__ = ("_get_ident", "_parts")

    def __init__(self) -> None:
        self._get_ident = thread_id()
        self._parts: dict[int, int] = {}

    def add(self) -> None:
        thread = self._get_ident()
        self._parts[thread] = self._parts.get(thread, 0) + 1

    def total(self) -> int:
        return sum(list(self._parts.values()))


class Bell:
    """An event for one waiter: ``wait`` gives whether it was rung, and silences it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = lock()
        self._lock.acquire()

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # rings already
            pass

    def wait(self, timeout_s: float) -> bool:
        return bool(self._lock.acquire(timeout=timeout_s))

    def clear(self) -> None:
        self._lock.acquire(blocking=False)


class Thread:
    """A daemon thread of the system, where ``threading.Thread`` makes greenlets."""

    def __init__(self, target: Callable[[], None]) -> None:
        self._target = target
        self._ended = lock()

    def start(self) -> None:
        self._ended.acquire()
        native("_thread", "start_new_thread")(self._run, ())

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.release()

    def is_alive(self) -> bool:
        return bool(self._ended.locked())

    def join(self, timeout: float) -> None:
        if self._ended.acquire(timeout=timeout):
            self._ended.release()


def foreign(thread: Any) -> bool:
    """Whether gevent has patched ``threading`` since it made ``thread``."""
    return bool(patched("threading")) and not isinstance(thread, Thread)


class OwnedLock:
    """A lock that knows whether the calling thread has it, for code that may run inside the owner by surprise: a
    finaliser or a signal handler of the program. Check :attr:`mine` there; a second acquisition would succeed."""

    __slots__ = ("_is_owned", "_lock", "release")

    def __init__(self) -> None:
        self._lock = native("_thread", "RLock")()
        self._is_owned: Callable[[], bool] = self._lock._is_owned  # what threading.Condition asks, too
        self.release: Callable[[], None] = self._lock.release

    @property
    def mine(self) -> bool:
        return self._is_owned()

    def acquire(self, timeout: float = -1) -> bool:
        got: bool = self._lock.acquire(timeout=timeout)
        return got

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
