"""Regular expressions that are compiled when they are first used: a program that needs none of them waits for none."""

import re
from typing import Any, cast


class _Pattern:
    """In the place of what ``re.compile`` gives, as far as its methods go."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(re.compile(self._text), name)
        setattr(self, name, found)  # the next use finds it as an attribute, as fast as that of the pattern itself
        return found


def pattern(text: str) -> "re.Pattern[str]":
    """``re.compile(text)``, later; so ``re.error`` comes then, too."""
    return cast("re.Pattern[str]", _Pattern(text))
