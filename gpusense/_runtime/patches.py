"""Replacing attributes of a library that the program uses, and putting them back."""

import functools
from collections.abc import Callable
from typing import Any

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
