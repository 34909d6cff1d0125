"""Running something on the main thread, where alone signal handlers can be set, from any other thread."""

import ctypes
from collections.abc import Callable

from .._runtime import log

_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_calls: dict[Callable[[], None], object] = {}  # by what they run; the interpreter has their addresses alone


def later(action: Callable[[], None]) -> bool:
    """Has the main thread run ``action`` as soon as it is between two steps of Python; False where too much waits."""

    def run(_: object) -> int:
        try:
            action()
        except Exception:  # noqa: BLE001 - never into the program
            log.exception("main-thread", "a call on the main thread failed")
        return 0

    call = _calls.setdefault(action, _CALL(run))
    add = ctypes.PyDLL(None)["Py_AddPendingCall"]
    add.restype, add.argtypes = ctypes.c_int, (_CALL, ctypes.c_void_p)
    return bool(add(call, None) == 0)
