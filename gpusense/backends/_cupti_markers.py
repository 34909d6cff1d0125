"""The call that marks where a block begins and ends among the launches, and how its record is recognised.

Preferred: ``cuDriverGetVersion`` with the DRIVER kind on and every other function of it switched off (CUDA 12.5 and
later). It needs no context, is allowed during every stream capture, and leaves the launches' cost as it is. Else:
``cuStreamWaitEvent`` of an event that was never recorded on a stream of our own (SYNCHRONIZATION kind): no work for the
device, allowed during capture too. Measured in docs/adr/0002-markers.md.
"""

import ctypes
from collections.abc import Callable, Iterable
from ctypes import byref, c_int, c_uint, c_void_p
from typing import Any, Protocol

from .. import _layouts as layouts
from .._capi.libraries import CUDA
from .._capi.loading import Loaded, load
from .._errors import GpuSenseError, NotYet
from .._pipeline import Marker
from . import _cuda_wait, cuda

DRIVER_GET_VERSION = 2  # CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion
LAST_DRIVER_CBID = 1200  # beyond the newest function; unknown ids are refused without harm

STREAM_NON_BLOCKING = 1
EVENT_DISABLE_TIMING = 2

Call = Callable[[], Any]


class Plan(Protocol):
    """``prepare`` after the kind was enabled, and again each time it is enabled anew."""

    kind: int

    def prepare(self) -> tuple[Call, Marker]: ...


def choose(activity: Any, launches: bool = False) -> Plan:
    """The cheapest marker that the loaded CUPTI can filter. ``launches``: calls that launch are recorded, too, where
    functions can be chosen one by one."""
    if activity.can_select_api():
        return DriverCall(activity, layouts.LAUNCH_CALLS if launches else ())
    if not _cuda_wait.contexts(cuda.SOURCE.api()):
        raise NotYet("there is no CUDA context yet to mark blocks in")
    return WaitEvent(activity)


class DriverCall:
    """A driver function that nobody calls often, filtered to be the only one recorded but for those on request."""

    kind = layouts.DRIVER

    def __init__(self, activity: Any, others: Iterable[int] = ()) -> None:
        self._activity = activity
        self._wanted = {DRIVER_GET_VERSION, *others}

    def prepare(self) -> tuple[Call, Marker]:
        select = self._activity.select_api
        for cbid in range(1, LAST_DRIVER_CBID):
            if cbid not in self._wanted:
                select(layouts.DRIVER, cbid, False)
        function = _driver_function(self._activity, "cuDriverGetVersion", (ctypes.POINTER(c_int),))
        answer = byref(c_int())

        def call() -> None:
            function(answer)

        return call, Marker(self.kind, DRIVER_GET_VERSION)


class WaitEvent:
    """A wait that is over at once, on a stream of our own in a context that is there already."""

    kind = layouts.SYNCHRONIZATION

    def __init__(self, activity: Any) -> None:
        self._activity = activity

    def prepare(self) -> tuple[Call, Marker]:
        api = cuda.SOURCE.api()
        contexts = _cuda_wait.contexts(api)
        if not contexts:
            raise NotYet("there is no CUDA context any more to mark blocks in")
        stream, event = c_void_p(), c_void_p()
        api.cuCtxPushCurrent_v2(contexts[0])
        try:
            codes = (
                api.cuStreamCreate(byref(stream), STREAM_NON_BLOCKING),
                api.cuEventCreate(byref(event), EVENT_DISABLE_TIMING),
            )
            number = self._activity.stream_id(contexts[0], stream.value)
        finally:
            api.cuCtxPopCurrent_v2(byref(c_void_p()))
        if any(codes):
            raise GpuSenseError(f"cuStreamCreate and cuEventCreate answered {codes}")
        push = _driver_function(self._activity, "cuCtxPushCurrent_v2", (c_void_p,))
        wait = _driver_function(self._activity, "cuStreamWaitEvent", (c_void_p, c_void_p, c_uint))
        pop = _driver_function(self._activity, "cuCtxPopCurrent_v2", (ctypes.POINTER(c_void_p),))
        context, popped = contexts[0], byref(c_void_p())

        def call() -> None:
            # Without a current context CUPTI writes no record, and a thread that opens a block may have none.
            if push(context) == 0:
                wait(stream, event, 0)
                pop(popped)

        return call, Marker(self.kind, layouts.STREAM_WAIT_EVENT, None, number)


def _driver_function(activity: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    """A function of the driver. With machine-code callbacks the GIL is kept, because giving it up for half a
    microsecond can cost a switch interval; Python callbacks need it, so there it is released."""
    loaded = load(CUDA, only_mapped=True)
    if not isinstance(loaded, Loaded):
        raise GpuSenseError(str(loaded))
    loader = ctypes.CDLL if activity.status().get("callbacks") == "ctypes" else ctypes.PyDLL
    function = loader(loaded.path, handle=loaded.library._handle)[name]
    function.restype = c_int
    function.argtypes = arguments
    return function
