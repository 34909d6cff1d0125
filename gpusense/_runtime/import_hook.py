"""Doing something right after a module has been imported, by a finder that takes itself out again.

Neither class has a base: those of ``importlib.abc`` take ten milliseconds to import.
"""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

from . import log


def watch(name: str, ready: Callable[[], None]) -> "_Finder":
    """Calls ``ready()`` once ``name`` has been executed; ``remove()`` of the result takes that back."""
    finder = _Finder(name, ready)
    sys.meta_path.insert(0, finder)
    return finder


def importable(name: str) -> bool:
    """Whether there is a package of that name; imports nothing."""
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class _Finder:
    def __init__(self, name: str, ready: Callable[[], None]) -> None:
        self.name, self.ready = name, ready

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        from importlib.util import find_spec

        self.remove()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader, self.ready)  # type: ignore[assignment]
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _After:
    """The module's own loader, with a step after it."""

    def __init__(self, inner: Any, ready: Callable[[], None]) -> None:
        self._inner, self._ready = inner, ready

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._inner  # as if we had never been there
        self._inner.exec_module(module)
        try:
            self._ready()
        except Exception:  # noqa: BLE001 - never into the program's import
            log.exception(f"after import {module.__name__}", "%s could not be instrumented", module.__name__)
