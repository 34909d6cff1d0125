"""Energy of each block, from the monitor's samples of the whole device."""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

from .._records.metrics import GpuMetrics
from .._records.records import BlockRecord, Path
from ..session import Session
from .anomalies import median
from .intervals import Interval, intersect, total, union
from .sampled import SampledCard, sampled


class BlockEnergy(NamedTuple):
    """What the device drew while one block was open."""

    path: Path
    passes: int
    joules: float  # while at least one pass was open; blocks inside count here too
    sampled_share: float  # of the block's time: of passes in which a sample was taken
    estimated: bool  # most passes lie between two samples: their power is that of around them

    @property
    def joules_per_pass(self) -> float:
        return self.joules / self.passes


class DeviceEnergy(NamedTuple):
    """What one device drew between its first and last sample. It is the whole card's, whoever else uses it."""

    device: int | None  # None: a card that the session's work cannot be on
    joules: float | None
    method: str | None  # "counter": the driver's own; "power": samples joined by straight lines
    reason: str | None  # why there is none
    seconds: float  # between first and last sample
    #: Most first; of processes whose work ran on the device. Where no work is known, of all if it is the only one.
    blocks: tuple[BlockEnergy, ...]
    card: str = ""  # "GPU 0"; "another card: …" where there is no number
    worked: bool | None = None  # whether work of the session ran on it; None where no work is known at all


def energy(session: Session) -> list[DeviceEnergy]:
    """One row a sampled card. Unknown is None with a reason, never zero."""
    passes: dict[Path, list[Interval]] = {}
    for record in session.records:
        if type(record) is BlockRecord:
            passes.setdefault(record.path, []).append((record.start_ns, record.end_ns))
    cards = sampled(session)
    return [_device(card, _of(passes, card, session, len(cards) == 1)) for card in cards]


def _of(
    passes: dict[Path, list[Interval]], card: SampledCard, session: Session, only: bool
) -> dict[Path, list[Interval]]:
    """Those that may have used the card."""
    if card.worked is None:
        return passes if only else {}
    if len(session.meta.get("processes") or ()) > 1:
        return {path: spans for path, spans in passes.items() if path[0] in card.processes}
    return passes if card.worked else {}


def _device(card: SampledCard, passes: dict[Path, list[Interval]]) -> DeviceEnergy:
    samples = card.samples
    curve, method = _counter(samples), "counter"
    if curve is None or 2 * len(curve[1]) < len(samples):  # it is read more seldom, and says less of short times
        drawn = _power(samples)
        curve, method = (curve, method) if drawn is None else (drawn, "power")
    if curve is None:
        return DeviceEnergy(card.number, None, None, _why_not(samples), 0.0, (), card.text, card.worked)
    until, times = curve
    seen = [(times[0], times[-1])]
    apart = median(after - before for before, after in itertools.pairwise(times))
    blocks = []
    for path, spans in passes.items():
        open_time = union(spans)
        inside = intersect(open_time, seen)
        length = total(open_time)
        joules = sum(until(end) - until(start) for start, end in inside)
        own = [(start, end) for start, end in inside if bisect_left(times, start) < bisect_right(times, end)]
        share = total(own) / length if length else 0.0
        short = median(end - start for start, end in spans) < apart
        blocks.append(BlockEnergy(path, len(spans), joules, share, short))
    blocks.sort(key=lambda block: -block.joules)
    seconds, joules = (times[-1] - times[0]) / 1e9, until(times[-1]) - until(times[0])
    return DeviceEnergy(card.number, joules, method, None, seconds, tuple(blocks), card.text, card.worked)


_Curve = tuple[Callable[[int], float], list[int]]


def _counter(samples: list[GpuMetrics]) -> _Curve | None:
    """Energy so far by the driver's counter, straight between readings; None if absent or if it went backwards."""
    points = [(sample.time_ns, sample.power.energy_joules) for sample in samples]
    known = [(time, value) for time, value in points if value is not None]
    # Samples between two readings repeat the last one.
    known = known[:1] + [after for before, after in itertools.pairwise(known) if after[1] != before[1]]
    if len(known) < 2 or any(after[1] < before[1] for before, after in itertools.pairwise(known)):
        return None
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
