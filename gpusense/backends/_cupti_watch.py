"""Notices that another profiler took over, and that it has ended.

CUPTI does not tell when its callbacks are replaced. A profiler that we know says so itself; of any other the trace is
that work goes on (the program's own calls, ``Heartbeat.expected``) while no buffer is requested from us any more.
"""

from typing import Any, NamedTuple

from .._errors import GpuSenseError
from . import _cupti_holders


class Heartbeat(NamedTuple):
    """Numbers that grow while capture lives; compare two."""

    requested: int  # buffers that CUPTI asked of us
    completed: int
    buffers: int  # shown to the receivers
    lost_markers: int = 0  # filled in by whoever sets markers


def look(activity: Any, *, paused: bool) -> str | None:
    """While running: why to pause now, and pauses. While paused: "resumed" once capture goes on. None: no change."""
    holder: str | None = _cupti_holders.running()
    if not paused:
        if holder is None:
            return None
        reason = f"another profiler, {holder}, holds CUPTI"
        activity.pause(reason)
        return reason
    if holder is not None:
        return None
    try:
        activity.resume()
    except GpuSenseError:
        return None
    return "resumed"


def stolen(before: Heartbeat, after: Heartbeat) -> bool:
    """Whether markers get lost while CUPTI asks nothing of us: our callbacks are no longer the registered ones."""
    return after.lost_markers > before.lost_markers and after[:3] == before[:3]
