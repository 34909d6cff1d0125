"""Which other profiler is at work in this process. Looks only at modules and libraries that are there already."""

import gc
import os
import sys
from time import monotonic
from typing import Any

from ..._capi.handles import mapped_files
from .injection import is_ours

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


class Prepared:
    """Whether a torch.profiler has CUPTI and does not record yet: with a schedule it takes it a step before.

    torch tells nobody, so its profiler objects are looked for among all objects, which takes some ten milliseconds in
    a large program. Only for a profiler that has taken CUPTI, and seldom: the answer is kept for a while.
    """

    SHORTEST_S, LONGEST_S = 1.0, 30.0

    def __init__(self) -> None:
        self._found = False
        self._until = self._kept_s = 0.0

    def __call__(self) -> bool:
        now = monotonic()
        if now >= self._until:
            self._found = _prepared()
            self._kept_s = min(max(self.SHORTEST_S, 2 * self._kept_s), self.LONGEST_S) if self._found else 0.0
            self._until = now + self._kept_s + 0.1
        return self._found


def _prepared() -> bool:
    module: Any = sys.modules.get("torch.autograd.profiler")
    try:
        return any(
            found.entered and found.kineto_results is None
            for found in gc.get_referrers(module.profile)
            if type(found) is module.profile
        )
    except Exception:  # noqa: BLE001 - no torch, half imported, or other than it was
        return False


torch_is_prepared = Prepared()


def torch_has_a_schedule() -> bool:
    """Whether a torch.profiler was made that has not left its ``with``; one that was only stopped counts, too."""
    module: Any = sys.modules.get("torch.autograd.profiler")
    try:
        return "ProfilerStep" in module.KinetoStepTracker._step_dict
    except Exception:  # noqa: BLE001 - as above
        return False


def torch_monitor_is_running() -> bool:
    """Whether the CUPTI monitor of newer torch releases has begun."""
    monitor: Any = sys.modules.get("torch.profiler._cupti.monitor")
    try:
        return bool(monitor is not None and monitor.is_running())
    except Exception:  # noqa: BLE001 - private, and it has changed before
        return False


def proton_is_profiling() -> bool:
    """Whether Triton's Proton records now."""
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
    if torch_is_profiling():
        return "torch.profiler"
    if torch_monitor_is_running():
        return "torch's CUPTI monitor"
    return "Triton Proton" if proton_is_profiling() else None


def busy() -> str | None:
    """Name of a profiler that runs or is about to, where one has CUPTI: not the moment to take it back."""
    found = running()
    return "torch.profiler" if found is None and torch_is_prepared() else found


def holder() -> str | None:
    """Who holds CUPTI, asked after it has refused a subscriber; None: a subscription that torch merely kept."""
    found = busy() or _injected()
    if found is not None:
        return found
    return None if "torch" in sys.modules else "whose name is not known"


def _injected() -> str | None:
    for path in mapped_files():
        name = os.path.basename(path)
        for prefix, tool in _INJECTED.items():
            if name.startswith(prefix):
                return tool
    for variable in _INJECTION_VARIABLES:
        value = os.environ.get(variable)
        if value and not is_ours(value):
            return f"injected by {variable}"
    return None
