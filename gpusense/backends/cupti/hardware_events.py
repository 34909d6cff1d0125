"""Work timed by the device's own event system, not by what CUPTI puts around each launch. Blackwell and later.

Experimental: written from NVIDIA's headers, and never run on such a device. CUPTI begins with it before there is a
context of CUDA, once a process and for good. Where it does not, work is timed as usual.
"""

from ctypes import byref, c_size_t, c_uint8
from typing import Any

from ..._capi import cupti as capi
from ..._runtime import log
from ..._runtime.errors import GpuSenseError
from .. import cuda

FIRST = (10, 0)  # compute capability
_STARTING = "CUDA was only starting as CUPTI was asked"


def lacking(newest: tuple[int, int] | None, version: int | None = None) -> str:
    """Why there are none, by the newest device's compute capability and what cuptiGetVersion says, where these are
    known; "" where nothing is known to be missing."""
    if newest is not None and newest < FIRST:
        return f"they come with Blackwell (compute capability 10.0); the newest device here has {newest[0]}.{newest[1]}"
    if version is not None and version < capi.VERSION_BEARS_EVENTS:
        return f"they need CUPTI of CUDA 13.4 Update 1 ({capi.VERSION_BEARS_EVENTS}); this one is {version}"
    return ""


class HardwareEvents:
    """Whether CUPTI times by them. One thread at a time."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.on: bool | None = False  # None: not known, as ``reason`` says
        self.reason = ""

    def begin(self, api: Any, version: int) -> None:
        """Asks for them, the first time; before any kind is enabled."""
        if self.wanted and self.on is False and not self.reason:
            newest = _newest()
            self.reason = lacking(newest, version) or _refusal(api)
            if self.reason:
                log.once("hardware events", "no hardware events: %s", self.reason)
            elif newest is None:
                self.on, self.reason = None, _STARTING
            else:
                self.on = True

    def look(self, api: Any) -> bool:
        """Where CUDA was only starting, CUPTI goes back to its usual way without a word: whether that turns out now."""
        newest = _newest() if self.reason == _STARTING else None
        if newest is None:
            return False
        value, size = c_uint8(), c_size_t(1)
        code = api.cuptiActivityGetAttribute(capi.ATTRIBUTE_HARDWARE_EVENTS, byref(size), byref(value))
        self.reason = lacking(newest)
        if self.reason:
            self.on = False
        elif code:
            self.reason = "CUPTI does not say whether it went back to its usual way"
        else:
            self.on = bool(value.value)
            self.reason = "" if self.on else "CUPTI went back to its usual way as CUDA started"
        return self.on is False

    def end(self, reason: str) -> None:
        """They are gone, as CUPTI is."""
        if self.on is not False:
            self.on, self.reason = False, reason

    def status(self) -> dict[str, Any]:
        """As builtins; nothing where nobody asked for them."""
        return {"hardware_events": self.on, "hardware_events_reason": self.reason} if self.wanted else {}


def _newest() -> tuple[int, int] | None:
    """The highest compute capability; None while CUDA starts."""
    return max((device.compute_capability or (0, 0) for device in cuda.SOURCE.devices()), default=None)


def _refusal(api: Any) -> str:
    if cuda.SOURCE.in_use():
        return "CUDA had a context before; gpusense run, or GPUSENSE=on, asks for them in time"
    try:
        capi.check("cuptiActivityEnableHWTrace", api.cuptiActivityEnableHWTrace(1))
    except GpuSenseError as error:
        return str(error)
    return ""
