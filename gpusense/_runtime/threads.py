"""Threads, locks and thread ids of the operating system, also where gevent or eventlet put greenlets in their place.

A greenlet would read buffers and sample devices only while the program waits, and would stop the whole program while it
waits for a driver. So every thread of gpusense is begun by :func:`start`, and waits for what this module makes.
Does not import ``threading``: a process in which gpusense is off has no need of it.
"""

import _thread
import os
import sys
from collections.abc import Callable
from time import monotonic, sleep, time_ns
from typing import Any

_GONE_S = 0.00002  # between two looks whether the system has let a thread go
#: Of each thread that gpusense has begun: [its number in the system, when it began, when it ended or None], in
#: wall-clock nanoseconds. The system gives numbers again.
_lives: list[list[Any]] = []
MOST_LIVES = 1_000  # that are remembered: a server that forks, or a monitor that is begun anew, makes more and more


def native(name: str) -> Any:
    """``_thread.name`` as it is without patches."""
    gevent, eventlet = _patchers()
    if gevent is not None:
        return gevent.get_original("_thread", name)
    return getattr(eventlet.original("_thread") if eventlet is not None else _thread, name)


def patched() -> bool:
    """Whether ``threading`` makes greenlets."""
    return _patchers() != (None, None)


def _patchers() -> tuple[Any, Any]:
    """The modules of gevent and eventlet that know what was there before; None for who has replaced nothing."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    return (
        gevent if gevent is not None and any(map(gevent.is_module_patched, ("_thread", "threading"))) else None,
        eventlet if eventlet is not None and eventlet.is_monkey_patched("thread") else None,
    )


def lock() -> Any:
    """A lock of the system."""
    return native("allocate_lock")()


def rlock() -> Any:
    """A lock of the system that its owner may take again, as a signal handler in the middle of its work does.

    It is the interpreter's own: in ``with`` no interrupt comes between taking it and being sure to give it back, as one
    may in functions of ours. Taken with a timeout, within ``try``, it is given back in ``finally`` by
    :func:`give_back`.
    """
    return native("RLock")()


def give_back(lock: Any) -> None:
    """Releases the ``lock`` that :func:`rlock` made, if the calling thread has got it."""
    try:
        lock.release()
    except RuntimeError:  # not got in time
        pass


def mine(lock: Any) -> bool:
    """Whether the calling thread has the ``lock`` that :func:`rlock` made: for code that may run inside its owner by
    surprise, in a finaliser or a signal handler of the program."""
    owned: bool = lock._is_owned()  # what threading.Condition asks, too
    return owned


def thread_id() -> Callable[[], int]:
    """The function that gives the id of the calling thread, by which CUPTI's buffers name it, too."""
    found: Callable[[], int] = native("get_ident")
    return found


def local() -> Any:
    """An object whose attributes each thread of the system has for itself, as long as it lives."""
    return native("_local")()


def ends_with_python() -> bool:
    """Whether the calling thread began in Python. Of others, what :func:`local` keeps goes each time they leave it."""
    threading, here = sys.modules.get("threading"), thread_id()()
    if threading is None:
        return False
    for thread in threading.enumerate():  # no generator: one that is left early swallows what a signal handler raises
        if thread.ident == here:
            return type(thread).__name__ != "_DummyThread"
    return False


def is_main() -> bool:
    """Whether the caller is the thread whose signal handlers run, and which alone may set them."""
    import threading

    # Not current_thread(): that would enter a thread which somebody else has started into threading's list.
    return thread_id()() == threading.main_thread().ident


def system_id() -> int:
    """The number by which the system knows the calling thread; 0 where it names none."""
    return int(_thread.get_native_id()) if hasattr(_thread, "get_native_id") else 0


def free_threaded() -> bool:
    """Whether this CPython was built to run without the GIL, with ``PYTHON_GIL=1`` too."""
    return "t" in getattr(sys, "abiflags", "")


def is_own(system_id: int, at_ns: int) -> bool:
    """Whether that thread was gpusense's own at that wall-clock time."""
    return any(
        number == system_id and begun <= at_ns and (ended is None or at_ns <= ended)
        for number, begun, ended in list(_lives)
    )


def _own(target: Callable[[], None]) -> Callable[[], None]:
    begun = time_ns()  # what the system does for the new thread before it runs is its own, too

    def run() -> None:
        life = [system_id(), begun, None]
        _lives.append(life)
        _forget_some()
        try:
            target()
        finally:
            life[2] = time_ns()

    return run


def _forget_some() -> None:
    """Of more lives than are remembered the first that have ended."""
    for life in list(_lives) if len(_lives) > MOST_LIVES else ():
        if life[2] is not None and len(_lives) > MOST_LIVES:
            try:
                _lives.remove(life)
            except ValueError:  # another thread was faster
                pass


def exists(system_id: int) -> bool:
    """Whether this process still has that thread; False where the system does not say."""
    return os.path.exists(f"/proc/self/task/{system_id}")


class Count:
    """A number that any thread adds one to, exact without the GIL too: each has a part of its own."""

    __slots__ = ("_get_ident", "_parts")

    def __init__(self) -> None:
        self._get_ident = thread_id()
        self._parts: dict[int, int] = {}

    def add(self) -> None:
        """One more."""
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


class Event:
    """``threading.Event`` of the system: for any number of waiters, also in a signal handler."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[Any] = []  # a lock for each, which :meth:`set` releases

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        while self._waiters:
            try:
                self._waiters.pop().release()
            except IndexError:  # noqa: PERF203 - another thread took the last one
                pass

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it was set in time."""
        if self._is_set:
            return True
        waiter = lock()
        waiter.acquire()
        self._waiters.append(waiter)
        if self._is_set or waiter.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0)):
            return True
        try:
            self._waiters.remove(waiter)
        except ValueError:  # set at this moment
            return True
        return self._is_set


class Thread:
    """A daemon thread of the system, where ``threading.Thread`` makes greenlets."""

    def __init__(self, target: Callable[[], None]) -> None:
        self._target = target
        self._ended = lock()
        self._ended.acquire()
        self.ident: int = native("start_new_thread")(self._run, ())

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.release()

    def is_alive(self) -> bool:
        return bool(self._ended.locked())

    def join(self, timeout: float = -1) -> None:
        if self._ended.acquire(timeout=timeout):
            self._ended.release()


def start(target: Callable[[], None], name: str, *, daemon: bool = True) -> Any:
    """A running thread of the system (``ident``, ``is_alive()``, ``join(timeout)``); None where none can be started.

    That is so at a limit of the system, while the interpreter ends, and for daemons in a subinterpreter. The
    interpreter waits for a thread that is no ``daemon`` before it ends. The thread has none of the program's context
    variables: where threads inherit them (an option since 3.14, usual in free-threaded builds) it would keep them
    alive, and lie in the block that was open.
    """
    try:
        run = _own(target)
        return _start_native(run, daemon) if patched() else _start(run, name, daemon)
    except (RuntimeError, MemoryError):
        return None


def _start(target: Callable[[], None], name: str, daemon: bool) -> Any:
    import threading
    from contextvars import Context

    context: dict[str, Any] = {"context": Context()} if sys.version_info >= (3, 14) else {}
    thread = threading.Thread(target=target, name=name, daemon=daemon, **context)
    thread.start()
    return thread


def _start_native(target: Callable[[], None], daemon: bool) -> Thread:
    thread, pid = Thread(target), os.getpid()
    if not daemon:
        import atexit

        atexit.register(lambda: thread.join() if os.getpid() == pid else None)
    return thread


def join(thread: Any, system_id: int, timeout_s: float) -> None:
    """Waits until ``thread`` has ended and the system, which counts it for some microseconds more, has let it go."""
    deadline = monotonic() + timeout_s
    thread.join(timeout_s)
    while not thread.is_alive() and exists(system_id) and monotonic() < deadline:
        sleep(_GONE_S)


def foreign(thread: Any) -> bool:
    """Whether ``threading`` has been patched since it made ``thread``."""
    return patched() and not isinstance(thread, Thread)
