"""Which other profiler is at work in this process. Looks only at modules and libraries that are there already."""

import os
import sys
from typing import Any

from .._capi.handles import mapped_files

_INJECTED = {
    "libToolsInjection": "Nsight Systems",
    "libnvperfapi": "Nsight Compute",
    "libsanitizer-collection": "Compute Sanitizer",
}
_INJECTION_VARIABLES = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


def torch_is_profiling() -> bool:
    """Whether torch.profiler runs now; its CUPTI subscription alone stays after it has ended."""
    torch: Any = sys.modules.get("torch")
    try:
        return bool(torch is not None and torch._C._autograd._profiler_enabled())
    except Exception:  # noqa: BLE001 - torch half imported, or a version without it
        return False


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
    if torch_is_profiling():
        return "torch.profiler"
    if torch_monitor_is_running():
        return "torch's CUPTI monitor"
    return "Triton Proton" if proton_is_profiling() else None


def holder() -> str | None:
    """Who holds CUPTI, asked after it has refused a subscriber; None: a subscription that torch merely kept."""
    found = running() or _injected()
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
