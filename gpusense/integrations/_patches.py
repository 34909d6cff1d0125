"""What the integrations share: replacing a host's functions and putting them back, and the tracer of the moment."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from .. import _active_tracer
from .._runtime import package

#: On each wrapper: the host's own function. By it every copy of gpusense knows a wrapper of any.
MARK = "_gpusense_original"
_ABSENT = object()


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
        self._done.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._done:
            owner, name, before, value = self._done.pop()
            if vars(owner).get(name) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def live_tracer() -> Any:
    """The active tracer where it records, else None; a process that has not decided yet decides now."""
    tracer = importlib.import_module(package.NAME).get_tracer()
    return tracer if tracer.active else None


def open_block(name: str, attributes: Any = None, parent: Any = None) -> Any:
    """A block of whatever tracer is active by now."""
    return _active_tracer().open_scope(name, attributes, None, parent)


def close_block(block: Any, error: "BaseException | None" = None) -> None:
    block.__exit__(None if error is None else type(error), error, None)


def reason_for_nothing() -> str:
    tracer = importlib.import_module(package.NAME).get_tracer()
    return str(getattr(tracer, "reason", "") or "nothing is recorded")
