"""The call that marks where a block begins and ends among the launches: a memset of four bytes on a stream of our own.

It is needed where CUPTI does not have the record of a launch in its buffer when the launch returns: elsewhere the
newest correlation id is read there instead (:meth:`Memset.reading`), and the memset only shows that capture lives.

Its record comes with the memsets that are recorded anyway, so launches cost nothing more; its value is the token of the
boundary, so each record says which one it is. It is allowed during every stream capture, on a stream that is not
captured, and needs no current context. The device clears four bytes for it. What else was tried, with figures:
docs/adr/0002-markers.md.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from time import monotonic
from typing import Any

from ..._aggregation.markers import Marker
from ..._capi.libraries import CUDA
from ..._capi.loading import Loaded, load
from ..._decode import layouts
from ..._runtime import log
from ..._runtime.errors import GpuSenseError, NotYet
from .. import cuda
from . import synchronize
from .mailbox import MISSING

STREAM_NON_BLOCKING = 1
RETRY_S = 1.0
TRIALS = 3  # memsets whose ids must be there at once

#: ``call(token)`` answers true where no record will come; tokens are 32 bits.
Call = Callable[[int], Any]


class Memset:
    """Four bytes of device memory and a stream, in a context that the program has made."""

    def __init__(self, activity: Any) -> None:
        self.activity = activity
        self._context = 0
        self._stream = c_void_p()
        self._memory = c_uint64()
        self._retry_at = 0.0
        self.lacking = ""  # why blocks cannot be marked although there is a context
        self.call: Call = lambda token: None

    def prepare(self) -> tuple[Call, Marker]:
        """The call, and how its records look. Raises :class:`NotYet` while the program has no context."""
        api = cuda.SOURCE.api()
        contexts = synchronize.contexts(api)
        if not contexts:
            raise NotYet("there is no CUDA context yet to mark blocks in")
        if self._context not in contexts:
            self._make(api, contexts[0])
        place = self.activity.context_id(self._context), self.activity.stream_id(self._context, self._stream.value)
        function, memory, stream = _memset(self.activity), self._memory.value, self._stream.value

        def call(token: int) -> Any:
            return function(memory, token, 1, stream)

        self.call = call
        return call, Marker(layouts.MEMSET, 0, *place, tokens=True)

    def _make(self, api: Any, context: int) -> None:
        """Memory and stream. A program may have taken all memory of the device: then kernels are recorded all the same,
        and blocks are marked once some is free. Looks once a second."""
        if monotonic() < self._retry_at:
            raise NotYet("the device has no memory for the marks of blocks")
        memory, stream = c_uint64(), c_void_p()
        with synchronize.relaxed(api, context):  # allocating would break a capture of this thread
            codes = (
                api.cuMemAlloc_v2(byref(memory), 4),
                api.cuStreamCreate(byref(stream), STREAM_NON_BLOCKING),
            )
            if any(codes):
                if not codes[0]:
                    api.cuMemFree_v2(memory)
                if not codes[1]:
                    api.cuStreamDestroy_v2(stream)
                self._retry_at = monotonic() + RETRY_S
                reason = self.lacking = f"cuMemAlloc and cuStreamCreate answered {codes}"
                log.once("marker", "GPU work cannot be put into blocks yet: %s", reason)
                raise NotYet(reason)
        self._context, self._memory, self._stream, self.lacking = context, memory, stream, ""

    def reading(self) -> Callable[[], int] | None:
        """After :meth:`prepare`: what gives the newest correlation id instead of a marker, if it can be relied on: the
        id of a memset must be there when the call returns."""
        newest: Callable[[], int] | None = self.activity.newest()
        if newest is None:
            return None
        before = newest()
        if self.call(0):
            return None
        if newest() == before:  # it may be an old one: another profiler took CUPTI out, and ids begin anew
            self.activity.forget_newest()
        return newest if all(self._moves(newest) for _ in range(TRIALS)) else None

    def _moves(self, newest: Callable[[], int]) -> bool:
        before = newest()
        return not self.call(0) and 0 < (newest() - before) & 0xFFFFFFFF < 0x80000000 and newest() < MISSING

    def idle(self) -> bool:
        """Whether the device has done every marker that was given to it."""
        api = cuda.SOURCE.api()
        with synchronize.relaxed(api, self._context):
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
