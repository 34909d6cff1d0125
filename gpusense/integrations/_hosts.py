"""What the integrations share: replacing a host's attributes, the one instrumentation of a host, and blocks."""

import functools
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .. import get_tracer
from .._records.records import Unavailable
from .._tracing.select import control

#: On each wrapper: the host's own function. By it every copy of gpusense knows a wrapper of any.
MARK = "_gpusense_original"
_ABSENT = object()

T = TypeVar("T")


class Installed(Generic[T]):
    """The one instrumentation of a host in this process: ``now``, or None while the host is as it was."""

    def __init__(self) -> None:
        self.now: T | None = None

    def take(self) -> T | None:
        """Gives it to whoever undoes it; from now on there is none."""
        now, self.now = self.now, None
        return now


class Patches:
    """Remembers what it replaced. What another tool has wrapped since stays, and ours below it only passes through."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Any:
        """``make(original)`` in place of ``owner.name``; None where the host has no such function."""
        original = getattr(owner, name, None)
        if original is None:
            return None
        wrapper = make(original)
        functools.update_wrapper(wrapper, original)
        setattr(wrapper, MARK, original)
        self.put(owner, name, wrapper)
        return wrapper

    def put(self, owner: Any, name: str, value: Any) -> None:
        """``value`` as ``owner.name``."""
        self.undo_too(owner, name, value, vars(owner).get(name, _ABSENT))
        setattr(owner, name, value)

    def undo_too(self, owner: Any, name: str, value: Any, before: Any) -> None:
        """``before`` is put back where ``owner.name`` is ``value`` at the end, by whomever."""
        self._done.append((owner, name, value, before))

    def undo(self) -> None:
        """Puts back what was there, wherever ours still is."""
        while self._done:
            owner, name, value, before = self._done.pop()
            if vars(owner).get(name) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def open_block(name: str, attributes: Any = None, parent: Any = None) -> Any:
    """A block of whatever tracer is active by now."""
    return (control.waiting or get_tracer()).open_scope(name, attributes, None, parent)


def close_block(block: Any, error: BaseException | None = None) -> None:
    """Ends it, on the thread that opened it."""
    block.__exit__(None if error is None else type(error), error, None)


def unless_recording(host: str) -> Unavailable | None:
    """Why there is nothing to instrument ``host`` for; None where there is. Decides whether this process records."""
    tracer = get_tracer()
    return None if tracer.active else Unavailable(host, str(getattr(tracer, "reason", "") or "nothing is recorded"))


def imported(host: str, last: str) -> bool:
    """Whether the program has imported ``host`` to its end, whose last name is ``last``."""
    module: Any = sys.modules.get(host)
    return module is not None and not getattr(module.__spec__, "_initializing", False) and hasattr(module, last)
