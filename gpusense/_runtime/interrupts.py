"""Exceptions that the program throws into whatever runs on a thread of its own. Pure.

Code that must not fail catches all that fails in it. But a signal handler runs between any two calls there, and what it
raises, a timeout for example, is meant for the program. It is told apart by who called whom: the interpreter calls a
handler, or a trace function, with the frame that it interrupts. Nothing of gpusense passes a frame to anybody.
"""

from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from . import package

_VARIABLE_ARGUMENTS = 0x04  # a flag of a code object (inspect.CO_VARARGS)
_ENTRY, _MORE, _BITS = 0x80, 0x40, 6  # of a byte in an exception table

_Function = TypeVar("_Function", bound=Callable[..., Any])


def is_the_programs(error: BaseException) -> bool:
    """Whether ``error``, which came out of gpusense's code, was thrown into it: by a signal handler, by a trace
    function, with Ctrl-C, or from another thread. What a sink or ``__str__`` of the program raises itself is not."""
    module = type(error).__module__
    if isinstance(error, KeyboardInterrupt) or module.partition(".")[0] in ("gevent", "greenlet"):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if _interrupts(trace.tb_next.tb_frame, trace.tb_frame):
            return True
        trace = trace.tb_next
    # PyThreadState_SetAsyncExc: raised where nothing of ours raises an exception of that class.
    return (
        trace is not None
        and str(trace.tb_frame.f_globals.get("__name__")).startswith(package.NAME)
        and module not in ("builtins", "ctypes", "struct", "zlib")
        and not module.startswith(package.NAME)
    )


def _interrupts(frame: FrameType, interrupted: FrameType) -> bool:
    """Whether ``interrupted`` is among the arguments of ``frame``."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _VARIABLE_ARGUMENTS)
    values = frame.f_locals
    for name in code.co_varnames[:count]:
        value = values.get(name)
        if value is interrupted or (type(value) is tuple and any(item is interrupted for item in value)):
            return True
    return False


def from_the_start(function: _Function) -> _Function:
    """``function``, which begins with a ``try``, with that ``try`` around its very first instruction.

    There the interpreter looks for signals, and from Python 3.11 on the ``try`` begins behind it: what a handler raises
    would leave an ``__exit__`` that has done nothing. The compiler's table of exceptions says which instructions lie
    in a ``try``. Its first row is this one (CPython, Objects/exception_handling_notes.txt); it is made to begin at 0.
    """
    code: Any = function.__code__
    table: bytes = getattr(code, "co_exceptiontable", b"")  # 3.10 has none, and looks for signals inside the ``try``
    if table:
        start, at = _number(table, 0)
        length, at = _number(table, at)
        code = code.replace(co_exceptiontable=bytes([_ENTRY, *_digits(start + length)]) + table[at:])
        function.__code__ = code
    return function


def _number(table: bytes, at: int) -> tuple[int, int]:
    """A number of an exception table, and where the next one begins."""
    value = 0
    while True:
        byte = table[at]
        value, at = value << _BITS | byte & _MORE - 1, at + 1
        if not byte & _MORE:
            return value, at


def _digits(value: int) -> list[int]:
    """The inverse of :func:`_number`."""
    digits = [value & _MORE - 1]
    while value := value >> _BITS:
        digits.insert(0, value & _MORE - 1 | _MORE)
    return digits
