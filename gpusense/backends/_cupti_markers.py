"""The call that marks where a block begins and ends among the launches: a memset of four bytes on a stream of our own.

Its record comes with the memsets that are recorded anyway, so launches cost nothing more; its value is the token of the
boundary, so each record says which one it is. It is allowed during every stream capture, on a stream that is not
captured, and needs no current context. The device clears four bytes for it. What else was tried, with figures:
docs/adr/0002-markers.md.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from .. import _layouts as layouts
from .._capi.libraries import CUDA
from .._capi.loading import Loaded, load
from .._errors import GpuSenseError, NotYet
from .._pipeline import Marker
from . import _cuda_wait, cuda

STREAM_NON_BLOCKING = 1

#: ``call(token)`` answers true where no record will come; tokens are 32 bits.
Call = Callable[[int], Any]


class Memset:
    """Four bytes of device memory and a stream, in a context that the program has made."""

    def __init__(self, activity: Any) -> None:
        self._activity = activity
        self._context = 0
        self._stream = c_void_p()
        self._memory = c_uint64()
        self.call: Call = lambda token: None

    def prepare(self) -> tuple[Call, Marker]:
        """The call, and how its records look. Raises :class:`NotYet` while the program has no context."""
        api = cuda.SOURCE.api()
        contexts = _cuda_wait.contexts(api)
        if not contexts:
            raise NotYet("there is no CUDA context yet to mark blocks in")
        if self._context not in contexts:
            with _cuda_wait.relaxed(api, contexts[0]):  # allocating would break a capture of this thread
                codes = (
                    api.cuMemAlloc_v2(byref(self._memory), 4),
                    api.cuStreamCreate(byref(self._stream), STREAM_NON_BLOCKING),
                )
            if any(codes):
                raise GpuSenseError(f"cuMemAlloc and cuStreamCreate answered {codes}")
            self._context = contexts[0]
        number = self._activity.stream_id(self._context, self._stream.value)
        function, memory, stream = _memset(self._activity), self._memory.value, self._stream.value

        def call(token: int) -> Any:
            return function(memory, token, 1, stream)

        self.call = call
        return call, Marker(layouts.MEMSET, 0, None, number, tokens=True)

    def idle(self) -> bool:
        """Whether the device has done every marker that was given to it."""
        api = cuda.SOURCE.api()
        with _cuda_wait.relaxed(api, self._context):
            return bool(api.cuStreamQuery(self._stream) == 0)


def _memset(activity: Any) -> Any:
    """The driver's memset. With machine-code callbacks the GIL is kept, because giving it up for a few microseconds
    can cost a switch interval; Python callbacks need it, so there it is released."""
    loaded = load(CUDA, only_mapped=True)
    if not isinstance(loaded, Loaded):
        raise GpuSenseError(str(loaded))
    loader = ctypes.CDLL if activity.status().get("callbacks") == "ctypes" else ctypes.PyDLL
    function = loader(loaded.path, handle=loaded.library._handle)["cuMemsetD32Async"]
    function.restype = c_int
    function.argtypes = (c_uint64, c_uint, c_size_t, c_void_p)
    return function
