"""Objects of OpenGL devices are released on threads of the program, never on one of gpusense's.

The garbage collector runs on whichever thread makes the next object, which may be ours. To release an object of OpenGL
wgpu-native makes its context current, and panics, which ends the process, where another thread has it just then. Two
devices have one context in common. A program of one thread never sees that, and must not for our sake.
"""

from collections import deque
from time import time_ns
from typing import Any

from ..._capi import main_thread
from ..._runtime import threads
from .._hosts import Patches
from ._hooks import Hooks

_CLASSES = ("GPUObjectBase", "GPUAdapter", "GPUCanvasContext")


def install(hooks: Hooks, patches: Patches) -> None:
    """Called when a program makes the first OpenGL device: others need none of this."""
    for name in _CLASSES:
        owner = getattr(hooks.host.api, name, None)
        if owner is not None:
            patches.wrap(owner, "__del__", lambda function: _finalizer(hooks, function))


def _finalizer(hooks: Hooks, function: Any) -> Any:
    waiting: deque[Any] = deque()

    def release() -> None:
        while waiting:
            function(waiting.popleft())

    def __del__(self: Any) -> None:
        if hooks.host.exiting or not threads.is_own(threads.system_id(), time_ns()):
            function(self)
            return
        waiting.append(self)
        main_thread.later(release)  # where too much waits, with the next one

    return __del__
