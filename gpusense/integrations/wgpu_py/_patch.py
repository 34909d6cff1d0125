"""Replacing methods of the host's classes and putting them back exactly as they were."""

import functools
from collections.abc import Callable
from typing import Any

MARK = "_gpusense_original"
_ABSENT = object()


class Patches:
    """Remembers what it replaced. A method that another tool has wrapped since stays, and ours below it is inert."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> bool:
        """``make(original)`` in place of ``owner.name``; False where the host has no such method."""
        original = getattr(owner, name, None)
        if original is None:
            return False
        wrapper = make(original)
        functools.update_wrapper(wrapper, original)
        setattr(wrapper, MARK, original)
        self._done.append((owner, name, vars(owner).get(name, _ABSENT), wrapper))
        setattr(owner, name, wrapper)
        return True

    def undo(self) -> None:
        while self._done:
            owner, name, before, wrapper = self._done.pop()
            if vars(owner).get(name) is not wrapper:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def original(function: Any) -> Any:
    """The host's own function below a wrapper of ours."""
    return getattr(function, MARK, function)
