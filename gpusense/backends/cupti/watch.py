"""Notices that another profiler took over, and that it has ended.

CUPTI does not say when its callbacks are replaced. A profiler that we know says so itself. For any other a *canary* is
sent at each look: a marker that belongs to no block, so that a flush must bring a buffer once the device has done it.
If none comes any more, our callbacks are not the registered ones. Canaries need a buffer a thread; elsewhere a long
kernel could hold the buffer back.
"""

from typing import Any, NamedTuple

from ..._runtime.errors import GpuSenseError
from . import other_profilers

TAKEN_OVER = "another profiler took over the buffers of CUPTI; capture goes on when it is disabled and enabled again"


class Heartbeat(NamedTuple):
    """Numbers that grow while capture lives; compare two."""

    requested: int = 0  # buffers that CUPTI asked of us
    completed: int = 0  # buffers that CUPTI returned to us
    flushes: int = 0
    canaries: bool = False  # whether a finished canary must show in the numbers after a flush
    paused_since_ns: int = 0  # work is not recorded now, only markers are


def look(activity: Any, *, paused: bool) -> str | None:
    """While running: why to pause now, and pauses. While paused: "resumed" once capture goes on. None: no change."""
    if paused:
        return _try_resume(activity) if other_profilers.busy() is None else None
    holder: str | None = other_profilers.running()
    status = activity.status()
    if status.get("paused"):  # another copy of gpusense in this process noticed first
        activity.end_lines(str(status["reason"]))
        return str(status["reason"])
    reason = f"another profiler, {holder}, holds CUPTI" if holder is not None else _missed_canary(activity)
    if reason is not None:
        activity.pause(reason)
        activity.was_held = activity.is_held()
    else:
        activity.begin_lines()  # whoever had the subscription may have given it back
    return reason


def _try_resume(activity: Any) -> str | None:
    """Callbacks were taken by a profiler without a name: it has ended once the subscription that it held is free, or
    held by torch that no longer profiles. Where it held none, nothing would tell."""
    if activity.status().get("reason") == TAKEN_OVER:
        ended = activity.torch_kept_subscription() if activity.is_held() else activity.was_held
        if not ended:
            return None
    try:
        activity.resume()
    except GpuSenseError:
        return None
    activity.last_heartbeat = None
    return "resumed"


def _missed_canary(activity: Any) -> str | None:
    """Compares with the look before, and sends the next canary. One flush may come a moment too early."""
    activity.suspects = False
    before, canary = activity.last_heartbeat, activity.canary
    done = canary is None or before is None or canary.idle()  # before the flush, which only brings what is done by then
    activity.flush()
    activity.last_heartbeat = now = activity.heartbeat()
    if not now.canaries:
        return None
    if not done:
        activity.last_heartbeat = before  # the device has not come to the last canary yet
        return None
    canary.call(0)
    if before is None or not before.canaries:
        return None
    silent = now[:2] == before[:2]
    if silent and now.flushes - before.flushes < 2:
        activity.last_heartbeat, activity.suspects = before, True
        return None
    if before.paused_since_ns:
        if now.paused_since_ns == before.paused_since_ns and not silent:
            activity.canaries_in_pauses = True
        if not activity.canaries_in_pauses:  # this CUPTI may record no memsets alone
            return None
    return TAKEN_OVER if silent else None
