"""Work timed by the device's own event system, not by what CUPTI puts around each launch. Blackwell and later.

Experimental: written from NVIDIA's headers, and never run on such a device. CUPTI begins with it before there is a
context of CUDA, once a process and for good. Where it does not, work is timed as usual. It is not asked while CUDA is
being initialised: a program on an H200 crashed then, with CUPTI 13.5.
"""

from typing import Any

from ..._capi import cupti as capi
from ..._runtime import log
from ..._runtime.errors import GpuSenseError
from .. import cuda

FIRST = (10, 0)  # compute capability


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
        self.on = False
        self.reason = ""

    def begin(self, api: Any, version: int) -> None:
        """Asks for them, the first time; before any kind is enabled."""
        if self.wanted and not self.on and not self.reason:
            newest = max((device.compute_capability or (0, 0) for device in cuda.SOURCE.devices()), default=None)
            self.reason = lacking(newest, version) or _refusal(api, newest is None)
            self.on = not self.reason
            if self.reason:
                log.once("hardware events", "no hardware events: %s", self.reason)

    def end(self, reason: str) -> None:
        """They are gone, as CUPTI is."""
        if self.on:
            self.on, self.reason = False, reason

    def status(self) -> dict[str, Any]:
        """As builtins; nothing where nobody asked for them."""
        return {"hardware_events": self.on, "hardware_events_reason": self.reason} if self.wanted else {}


def _refusal(api: Any, is_starting: bool) -> str:
    if is_starting:
        return "recording began as CUDA started, and CUPTI 13.5 has crashed when asked for them then"
    if cuda.SOURCE.in_use():
        return "CUDA had a context before; record from before the first one on"
    try:
        capi.check("cuptiActivityEnableHWTrace", api.cuptiActivityEnableHWTrace(1))
    except GpuSenseError as error:
        return str(error)
    return ""
