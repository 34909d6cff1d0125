"""Fork, exit and thread start, for the whole package: the one registrar of hooks.

Hooks hold their owners weakly. In a forked child no lock is taken that the parent may have held: owners get
``after_fork_in_child`` and replace what they have. A thread that cannot be started (the interpreter is shutting down)
is expected.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import _native

_owners: "weakref.WeakSet[Any]" = weakref.WeakSet()
_exits: list["weakref.ref[Any]"] = []
_registered = False


def register(owner: Any) -> None:
    """Calls ``owner.after_fork_in_child()`` in forked children and ``owner.at_exit()`` before the interpreter ends."""
    global _registered
    _owners.add(owner)
    _exits[:] = [known for known in _exits if known() is not None]
    _exits.append(weakref.ref(owner))
    if not _registered:
        _registered = True
        atexit.register(_run_exits)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork)


def _run_exits() -> None:
    for reference in reversed(_exits):
        owner = reference()
        if owner is not None:
            _quietly(owner.at_exit)


def _after_fork() -> None:
    for owner in list(_owners):
        _quietly(owner.after_fork_in_child)


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:  # noqa: BLE001 - never into the host's exit or fork
        from . import _log

        _log.exception("process-hook", "gpusense: a fork or exit hook failed")


def start_thread(target: Callable[[], None], name: str) -> Any:
    """A running daemon thread (``is_alive``, ``join``), or None where no thread can be started."""
    try:
        # The constructor, too: a subinterpreter may forbid daemon threads.
        thread = (
            _native.Thread(target)
            if _native.patched("threading")
            else threading.Thread(target=target, name=name, daemon=True)
        )
        thread.start()
    except (RuntimeError, MemoryError):  # "can't start new thread": limits, or the interpreter is shutting down
        return None
    return thread
