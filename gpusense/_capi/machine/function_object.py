"""Function objects of CPython from machine code: they are called without the detour by ctypes and libffi.

Such a function has C's signature ``PyObject *f(PyObject *, PyObject *)``, is called with the GIL and takes no argument.
Sources: CPython's documentation, "Common Object Structures" (``PyMethodDef``, ``METH_NOARGS``, ``PyCFunction_NewEx``).
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from . import executable

_METH_NOARGS = 0x0004
_NAME_AT = 64  # behind the definition


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_void_p),
    )


def make_int() -> int:
    """Address of ``PyLong_FromUnsignedLongLong``; 0 where this Python has none to offer."""
    function = _python("PyLong_FromUnsignedLongLong")
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0


def of(address: int, name: str) -> Callable[[], Any] | None:
    """A function object that calls ``address``, which must stay valid; None where this Python makes none."""
    make = _python("PyCFunction_NewEx")
    if make is None or not address or not make_int():
        return None
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    # The object may be the last to go when the interpreter ends, and looks at its definition then: never unmapped.
    try:
        place = executable.map_memory(executable.PAGE)
    except OSError:
        return None
    text = name.encode("ascii") + b"\0"
    ctypes.memmove(place + _NAME_AT, text, len(text))
    definition = _MethodDef.from_address(place)
    definition.name, definition.function, definition.flags = place + _NAME_AT, address, _METH_NOARGS
    found: Callable[[], Any] = make(place, None, None)
    return found


def _python(name: str) -> Any:
    if sys.implementation.name != "cpython":
        return None
    try:
        return ctypes.pythonapi[name]
    except AttributeError:
        return None
