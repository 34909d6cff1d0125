"""Energy of each block, from the monitor's samples of the whole device."""

import itertools
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from .._records.device_identity import key
from .._records.metrics import GpuMetrics
from .._records.records import BlockRecord, Path
from ..session import Session
from .intervals import Interval, intersect, total, union


class BlockEnergy(NamedTuple):
    """What the device drew while one block was open."""

    path: Path
    passes: int
    joules: float  # while at least one pass was open; blocks inside count here too
    sampled_share: float  # of the block's time that lies between the first and the last sample

    @property
    def joules_per_pass(self) -> float:
        return self.joules / self.passes


class DeviceEnergy(NamedTuple):
    """What one device drew between its first and last sample. It is the whole card's, whoever else uses it."""

    device: int
    joules: float | None
    method: str | None  # "counter": the driver's own; "power": samples joined by straight lines
    reason: str | None  # why there is none
    seconds: float  # between first and last sample
    blocks: tuple[BlockEnergy, ...]  # most first; of a merged session those of processes that worked on the device


def energy(session: Session) -> list[DeviceEnergy]:
    """One row a sampled device. Unknown is None with a reason, never zero."""
    by_device: dict[tuple[int, str], list[GpuMetrics]] = {}
    for sample in session.metrics:
        by_device.setdefault(key(sample.device), []).append(sample)
    passes: dict[Path, list[Interval]] = {}
    for record in session.records:
        if type(record) is BlockRecord:
            passes.setdefault(record.path, []).append((record.start_ns, record.end_ns))
    users = _users(session)
    return [
        _device(index, samples, passes if users is None else _of(passes, users.get(index, set())))
        for (index, _), samples in sorted(by_device.items())
    ]


def _users(session: Session) -> dict[int, set[str]] | None:
    """Of a merged session the processes that worked on each device; None for a session of one process."""
    if len(session.meta.get("processes") or ()) < 2:
        return None
    users: dict[int, set[str]] = {}
    for item in itertools.chain(session.records, session.aggregates):
        device = getattr(item, "device", None)
        if device is not None and item.path:
            users.setdefault(device, set()).add(item.path[0])
    return users


def _of(passes: dict[Path, list[Interval]], roots: set[str]) -> dict[Path, list[Interval]]:
    return {path: spans for path, spans in passes.items() if path[0] in roots}


def _device(index: int, samples: list[GpuMetrics], passes: dict[Path, list[Interval]]) -> DeviceEnergy:
    samples.sort(key=lambda sample: sample.time_ns)
    curve, method = _counter(samples), "counter"
    if curve is None:
        curve, method = _power(samples), "power"
    if curve is None:
        return DeviceEnergy(index, None, None, _why_not(samples), 0.0, ())
    until, times = curve
    sampled = [(times[0], times[-1])]
    blocks = []
    for path, spans in passes.items():
        open_time = union(spans)
        inside = intersect(open_time, sampled)
        length = total(open_time)
        joules = sum(until(end) - until(start) for start, end in inside)
        blocks.append(BlockEnergy(path, len(spans), joules, total(inside) / length if length else 0.0))
    blocks.sort(key=lambda block: -block.joules)
    seconds = (times[-1] - times[0]) / 1e9
    return DeviceEnergy(index, until(times[-1]) - until(times[0]), method, None, seconds, tuple(blocks))


_Curve = tuple[Callable[[int], float], list[int]]


def _counter(samples: list[GpuMetrics]) -> _Curve | None:
    """Energy so far by the driver's counter, straight between readings; None if absent or if it went backwards."""
    points = [(sample.time_ns, sample.power.energy_joules) for sample in samples]
    known = [(time, value) for time, value in points if value is not None]
    if len(known) < 2 or any(after[1] < before[1] for before, after in itertools.pairwise(known)):
        return None
    if known[-1][1] == known[0][1]:
        return None  # a counter that stands still is not one
    times, values = [time for time, _ in known], [value for _, value in known]

    def until(time: int) -> float:
        at = min(max(bisect_right(times, time) - 1, 0), len(times) - 2)
        step = times[at + 1] - times[at]
        share = (time - times[at]) / step if step else 0.0
        return values[at] + (values[at + 1] - values[at]) * share

    return until, times


def _power(samples: list[GpuMetrics]) -> _Curve | None:
    """The integral of the power draw, taken as straight between samples (trapezoidal rule)."""
    points = [(sample.time_ns, sample.power.draw_watts) for sample in samples]
    known = [(time, value) for time, value in points if value is not None]
    if len(known) < 2:
        return None
    times, watts = [time for time, _ in known], [value for _, value in known]
    sums = [0.0]
    for at in range(1, len(known)):
        sums.append(sums[-1] + (watts[at] + watts[at - 1]) / 2 * (times[at] - times[at - 1]) / 1e9)

    def until(time: int) -> float:
        at = min(max(bisect_right(times, time) - 1, 0), len(times) - 2)
        step, passed = times[at + 1] - times[at], time - times[at]
        slope = (watts[at + 1] - watts[at]) / step if step else 0.0
        return sums[at] + (watts[at] + slope * passed / 2) * passed / 1e9

    return until, times


def _why_not(samples: list[GpuMetrics]) -> str:
    if len(samples) < 2:
        return "fewer than two samples"
    return samples[0].reason("power.draw_watts") or "fewer than two samples with a power draw"
