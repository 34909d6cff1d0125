"""Declarative prototypes: one table a library, one :func:`bind`; a missing symbol becomes an explaining stand-in."""

import ctypes
from types import SimpleNamespace
from typing import Any

from .._runtime.errors import MissingSymbol

Prototypes = dict[str, tuple[Any, tuple[Any, ...]]]


def prototypes(**rows: tuple[Any, ...]) -> Prototypes:
    """A table from ``name=(result type, *argument types)`` rows."""
    return {name: (row[0], tuple(row[1:])) for name, row in rows.items()}


class Missing:
    """Stands in for a symbol the library lacks: false, and raises with the reason when called."""

    def __init__(self, name: str, library: str) -> None:
        self.name = name
        self.library = library

    def __bool__(self) -> bool:
        return False

    def __call__(self, *_arguments: object) -> Any:
        raise MissingSymbol(f"{self.library} has no function {self.name}; a newer driver or toolkit may have it")


def bind(library: ctypes.CDLL, table: Prototypes, path: str | None = None) -> Any:
    """A namespace with one attribute a row of ``table``, typed, or :class:`Missing`.

    Each call makes fresh function objects (item access on the CDLL), so that no other user of the same library can
    change our argument types, nor we theirs.
    """
    bound: dict[str, Any] = {}
    where = path or library._name or "the library"
    for name, (result, arguments) in table.items():
        try:
            function = library[name]
        except AttributeError:
            bound[name] = Missing(name, where)
            continue
        function.restype = result
        function.argtypes = arguments
        bound[name] = function
    return SimpleNamespace(**bound)


def missing(api: Any) -> tuple[str, ...]:
    """Names of the functions that :func:`bind` did not find."""
    return tuple(sorted(name for name, function in vars(api).items() if isinstance(function, Missing)))
