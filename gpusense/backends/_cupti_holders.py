"""Which other profiler is at work in this process. Looks only at modules and libraries that are there already."""

import os
import sys
from time import monotonic
from typing import Any

from .._capi.handles import mapped_files

_INJECTED = {
    "libToolsInjection": "Nsight Systems",
    "libnvperfapi": "Nsight Compute",
    "libsanitizer-collection": "Compute Sanitizer",
}
_INJECTION_VARIABLES = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


def torch_is_profiling() -> bool:
    """Whether torch.profiler records now, for any thread; its CUPTI subscription alone stays after it has ended."""
    # torch._C._autograd._profiler_enabled() answers for the asking thread only.
    return bool(getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False))


class Schedule:
    """Whether a torch.profiler with a schedule is under way: a step before it records, it takes CUPTI and tells nobody.

    What can be seen is its count of steps, which goes when its ``with`` ends, and stays where it was only stopped. One
    that has not moved for several of its steps counts as stopped.
    """

    LEAST_S, MOST_S, STEPS = 3.0, 120.0, 5

    def __init__(self) -> None:
        self._count: int | None = None
        self._moved_at = self._longest_s = 0.0

    def under_way(self) -> bool:
        """Ask now and then; it learns from the answers how long a step takes."""
        try:
            profiler: Any = sys.modules.get("torch.autograd.profiler")
            count = profiler.KinetoStepTracker._step_dict.get("ProfilerStep")
        except Exception:  # noqa: BLE001 - private, and no torch is the usual case
            count = None
        now = monotonic()
        if count is None:
            self._count, self._longest_s = None, 0.0
            return False
        if count != self._count:
            if self._count is not None:
                self._longest_s = max(self._longest_s, now - self._moved_at)
            self._count, self._moved_at = count, now
        return now - self._moved_at < min(max(self.LEAST_S, self.STEPS * self._longest_s), self.MOST_S)


TORCH_SCHEDULE = Schedule()


def torch_monitor_is_running() -> bool:
    """Whether the CUPTI monitor of newer torch releases has begun."""
    monitor: Any = sys.modules.get("torch.profiler._cupti.monitor")
    try:
        return bool(monitor is not None and monitor.is_running())
    except Exception:  # noqa: BLE001 - private, and it has changed before
        return False


def proton_is_profiling() -> bool:
    flags: Any = sys.modules.get("triton.profiler.flags")
    try:
        if flags is None:
            return False
        ask = getattr(flags, "get_profiling_on", None)
        return bool(ask() if ask is not None else flags.flags.profiling_on)
    except Exception:  # noqa: BLE001 - private, and it has changed before
        return False


def running() -> str | None:
    """Name of a profiler that certainly runs now."""
    TORCH_SCHEDULE.under_way()
    if torch_is_profiling():
        return "torch.profiler"
    if torch_monitor_is_running():
        return "torch's CUPTI monitor"
    return "Triton Proton" if proton_is_profiling() else None


def busy() -> str | None:
    """Name of a profiler that runs or is about to: not the moment to take CUPTI back."""
    found = running()
    return "torch.profiler" if found is None and TORCH_SCHEDULE.under_way() else found


def holder() -> str | None:
    """Who holds CUPTI, asked after it has refused a subscriber; None: a subscription that torch merely kept."""
    found = busy() or _injected()
    if found is not None:
        return found
    return None if "torch" in sys.modules else "whose name it does not tell"


def _injected() -> str | None:
    for path in mapped_files():
        name = os.path.basename(path)
        for prefix, tool in _INJECTED.items():
            if name.startswith(prefix):
                return tool
    for variable in _INJECTION_VARIABLES:
        if os.environ.get(variable):
            return f"injected by {variable}"
    return None
