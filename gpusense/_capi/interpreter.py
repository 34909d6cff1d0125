"""The dict that CPython keeps for extensions in each interpreter: where the copies of gpusense in a process meet.

It exists for this and is invisible to Python code. What lies there outlives versions, so it holds builtins and
functions only, under keys of ours.
"""

from typing import Any

from .._records.records import Unavailable
from .._runtime import threads

FREE_THREADED = Unavailable(
    "cupti", "capture is not supported by a free-threaded Python", "run with the usual build of Python"
)


def interpreter_dict() -> dict[str, Any] | Unavailable:
    """The dict that CPython keeps for extensions in each interpreter."""
    # Not sys._is_gil_enabled: it is true, too, while a thread imports an extension. And with PYTHON_GIL=1 such a build
    # of 3.13.5 traced, but once hung as it ended.
    if threads.free_threaded():
        return FREE_THREADED
    try:
        import ctypes

        api = ctypes.PyDLL(None)
        get, identify, get_dict = (
            api[name] for name in ("PyInterpreterState_Get", "PyInterpreterState_GetID", "PyInterpreterState_GetDict")
        )
    except (ImportError, OSError, AttributeError, TypeError) as error:
        return Unavailable("cupti", f"this Python gives copies of gpusense no place to share CUPTI in: {error}")
    # Borrowed references: a py_object result would drop a reference that was never taken.
    get.restype = get_dict.restype = ctypes.c_void_p
    identify.restype = ctypes.c_int64
    identify.argtypes = get_dict.argtypes = (ctypes.c_void_p,)
    state = get()
    if identify(state) != 0:
        return Unavailable("cupti", "subinterpreters cannot trace; the main interpreter of the process can")
    address = get_dict(state)
    if not address:
        return Unavailable("cupti", "this Python keeps no dictionary for extension modules")
    found: dict[str, Any] = ctypes.cast(address, ctypes.py_object).value
    return found
