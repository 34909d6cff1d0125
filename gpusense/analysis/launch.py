"""Whether a device starves between short kernels because launching them takes longer than running them."""

from bisect import bisect_left
from operator import sub
from typing import NamedTuple

from .._records.device_identity import card
from ..session import Session
from .busy import DeviceKey, DeviceTime, device_times, sweeps, unseen
from .calls import Calls, calls
from .intervals import Interval, apart
from .sweep import Sweep

#: A kernel shorter than this runs for less time than Python frameworks need to launch the next (5–10 µs).
SHORT_NS = 10_000
#: A gap shorter than this is what one launch leaves; a longer one has another cause.
LAUNCH_GAP_NS = 100_000


class LaunchProfile(NamedTuple):
    """Launch statistics of one device."""

    device: int | None
    backend: str
    kernels: int
    short_kernels: int  # shorter than 10 µs; operations that were only counted go by their average
    avg_ns: float
    active_ns: int  # first to last work, without what was not seen
    busy_ns: int
    small_gaps: int | None  # gaps below 100 µs; None where work was only counted
    small_gap_ns: int  # their sum; from counts: all idle time between first and last work if its mean gap is small
    median_gap_ns: int | None
    launch_bound: bool

    @property
    def short_share(self) -> float:
        return self.short_kernels / self.kernels if self.kernels else 0.0


def launches(
    session: Session,
    walks: dict[DeviceKey, Sweep] | None = None,
    times: list[DeviceTime] | None = None,
    groups: list[Calls] | None = None,
) -> list[LaunchProfile]:
    """One :class:`LaunchProfile` a device with kernels.

    Launch-bound: at least 100 kernels, most of them short, and small gaps taking at least a fifth of the active time.
    """
    walks = sweeps(session) if walks is None else walks
    counts: dict[DeviceKey, list[int]] = {}
    for group in calls(session) if groups is None else groups:
        if group.kind == "kernel":
            row = counts.setdefault(card(group.backend, group.device), [0, 0, 0])
            row[0] += len(group.ordered)
            row[1] += bisect_left(group.ordered, SHORT_NS)
            row[2] += sum(group.ordered)
    for aggregate in session.aggregates:
        if aggregate.kind == "kernel" and aggregate.count:
            row = counts.setdefault(card(aggregate.backend, aggregate.device), [0, 0, 0])
            row[0] += aggregate.count
            row[1] += aggregate.count if aggregate.avg_ns < SHORT_NS else 0
            row[2] += aggregate.total_ns
    times = device_times(session, walks) if times is None else times
    by_key = {(time.backend, time.device): time for time in times}
    worked = {key: counts[card(*key)] for key in by_key if card(*key) in counts}
    return [_profile(by_key[key], walks.get(key), unseen(session, key), *of) for key, of in worked.items()]


def _profile(
    time: DeviceTime, walk: Sweep | None, off: list[Interval], kernels: int, short: int, spent: int
) -> LaunchProfile:
    active = time.active_ns
    small: int | None
    if time.source != "records" or walk is None:
        idle = max(0, active - time.busy_ns)
        small, median = None, None
        small_ns = idle if idle < LAUNCH_GAP_NS * kernels else 0
    else:
        gaps = list(map(sub, walk.gaps.end, walk.gaps.start))
        if off:
            seen = apart(list(zip(walk.gaps.start, walk.gaps.end, strict=True)), off)
            gaps = [end - start for start, end in seen]
        gaps.sort()
        small = bisect_left(gaps, LAUNCH_GAP_NS)
        small_ns = sum(gaps[:small])
        median = gaps[len(gaps) // 2] if gaps else None
    # A submit has many passes: what lies between them is no launch.
    bound = time.backend != "wgpu" and kernels >= 100 and short * 2 > kernels and active > 0 and small_ns * 5 >= active
    return LaunchProfile(
        time.device,
        time.backend,
        kernels,
        short,
        spent / kernels if kernels else 0.0,
        active,
        time.busy_ns,
        small,
        small_ns,
        median,
        bound,
    )
