"""Fork, exit, signals that end it, questions that may never be answered, and what a descriptor stands for: what
concerns the whole process.

Hooks hold their owners weakly. In a forked child no lock is taken that the parent may have held: owners get
``after_fork_in_child`` and replace what they have. A thread that cannot be started (the interpreter is shutting down)
is expected.

Owners end their threads before a fork (``before_fork``) and start them again in the parent (``after_fork_in_parent``).
A module that one of them was importing would stay locked in the child for ever; and since 3.12 a fork warns where the
process has more than one thread, so that gpusense's thread would be what a program is warned of.
"""

import atexit
import os
import weakref
from _thread import get_ident
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

from . import threads

_Answer = TypeVar("_Answer")
_END_WAIT_S = 5.0  # for what is done before a signal or os._exit ends the process
PATIENCE_S = 5.0  # with a driver: one that hangs never returns

_owners: "weakref.WeakSet[Any]" = weakref.WeakSet()
_exits: list["weakref.ref[Any]"] = []
_registered = False


def register(owner: Any) -> None:
    """Calls ``owner.after_fork_in_child()`` in forked children and ``owner.at_exit()`` before the interpreter ends.

    Where the owner has them, also ``before_fork()`` and ``after_fork_in_parent()``.
    """
    global _registered
    _owners.add(owner)
    _exits[:] = [known for known in _exits if known() is not None]
    _exits.append(weakref.ref(owner))
    if not _registered:
        _registered = True
        atexit.register(_run_exits)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)


def after_forks(action: Callable[[], None]) -> None:
    """Calls ``action()`` in forked children, for as long as the process lives."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _quietly(action))


def _run_exits() -> None:
    for reference in reversed(_exits):
        owner = reference()
        if owner is not None:
            _quietly(owner.at_exit)


def _after_fork() -> None:
    for owner in list(_owners):
        _quietly(owner.after_fork_in_child)


def _before_fork() -> None:
    _tell("before_fork")


def _after_fork_in_parent() -> None:
    _tell("after_fork_in_parent")


def _tell(hook: str) -> None:
    for owner in list(_owners):
        action = getattr(owner, hook, None)
        if action is not None:
            _quietly(action)


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:  # noqa: BLE001 - never into the host's exit or fork
        from . import log

        log.exception("process-hook", "what gpusense does at a fork or exit failed")


def end_on_signals(end: Callable[[], None]) -> None:
    """Where nobody handles SIGTERM or SIGHUP, it still ends the process as that signal does, but ``end()`` comes first.
    Only from the main thread, and not in a forked child."""
    import signal

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    if not threads.is_main() or not numbers:
        return

    def handle(number: int, _frame: object) -> None:
        _end_in_time(end)
        end_by(number)

    for number in numbers:
        signal.signal(number, handle)
    if hasattr(os, "register_at_fork"):
        _keep_from_children(handle, numbers)


def is_written(path: str) -> bool:
    """Whether a process has claimed the session file at ``path``, as ``session`` does with those that it writes."""
    try:
        import fcntl

        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False


def end_on_os_exit(end: Callable[[int], None]) -> None:
    """``os._exit(status)`` by Python code still ends this process at once, but ``end(status)`` comes first. Forked
    children leave as they did."""
    theirs, pid = os._exit, os.getpid()

    def leave(status: int) -> None:
        if os.getpid() == pid and isinstance(status, int):
            _end_in_time(lambda: end(status))
        theirs(status)

    os._exit = leave  # type: ignore[assignment]


def _end_in_time(end: Callable[[], None]) -> None:
    """Not here: this thread may hold a lock that ending needs, since whoever asks may have interrupted anything."""
    ender = threads.start(end, "gpusense-end")
    if ender is not None:
        ender.join(_END_WAIT_S)


def end_by(number: int) -> None:
    """Ends the process as that signal does where nobody handles it."""
    import signal

    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _keep_from_children(handler: Any, numbers: list[Any]) -> None:
    """Gives forked children the default back; blocked meanwhile, so that no signal falls between the two unheard."""
    import signal

    masks: dict[int, Any] = {}

    def before() -> None:
        masks[get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def after() -> None:
        mask = masks.pop(get_ident(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def after_in_child() -> None:
        for number in numbers:
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after_in_child)


class _Question:
    """Asked on a thread of its own, which may never end."""

    def __init__(self, ask: Callable[[], Any], name: str) -> None:
        self.pid = os.getpid()
        self.answers: list[Any] = []
        self._ask = ask
        self._began = monotonic()
        self._thread = threads.start(lambda: self.answers.append(ask()), name)

    @property
    def is_open(self) -> bool:
        return self._thread is not None and self.pid == os.getpid() and self._thread.is_alive()

    def wait(self) -> None:
        if self._thread is None:
            self.answers.append(self._ask())
        else:
            self._thread.join(max(0.0, self._began + PATIENCE_S - monotonic()))


_open_questions: dict[str, _Question] = {}


def answer(ask: Callable[[], _Answer], name: str, silent: _Answer) -> _Answer:
    """What ``ask()``, which does not raise, gives on a thread of its own; ``silent`` where it gives nothing in time.

    While that thread hangs, who asks under the same ``name`` waits for it and not beside it, and soon not at all.
    """
    question = _open_questions.get(name)
    if question is None or not question.is_open:
        question = _open_questions[name] = _Question(ask, name)
    question.wait()
    if not question.answers:
        return silent
    if _open_questions.get(name) is question:
        _open_questions.pop(name, None)
    found: _Answer = question.answers[0]
    return found


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Device and number of its file; None where the descriptor is none.

    A program may close a descriptor of ours, and a file of its own may have its number then.
    """
    try:
        found = os.fstat(descriptor)
    except (OSError, OverflowError):
        return None
    return found.st_dev, found.st_ino
