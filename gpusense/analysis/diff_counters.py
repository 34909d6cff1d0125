"""What hardware counters say of two sets of runs, block by block, and whether the difference is more than chance.

With runs enough each gives one value. With fewer, the time that the device spent on a block is cut into parts of many
samples each: samples that follow one another are alike, so that single ones would find a difference everywhere.
"""

from collections.abc import Iterator, Sequence
from math import nan
from statistics import fmean, pstdev
from typing import NamedTuple

from .._records.records import Path
from ..session import Session
from .counters import LEAST_SAMPLES, Integral, Stretch, block_shares, device_stretches, integrals
from .processes import compared_path
from .significance import CALLS, DECISIVE_RUNS, EFFECT, LEVEL, benjamini_hochberg, mann_whitney

#: Parts that a block's time is cut into, at most. Up to forty on both sides the test would be exact, and slow.
_PARTS = 24
#: What is compared, its unit, and the fields that it is the sum of; amounts as rates.
_FIGURES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("SM", "%", ("sm_active_percent",)),
    ("tensor", "%", ("tensor_percent",)),
    ("DRAM", "B/s", ("dram_read_bytes", "dram_write_bytes")),
    ("SM clock", "MHz", ("sm_clock_mhz",)),
)

_Key = tuple[Path, int]


class CounterChange(NamedTuple):
    """One counter of one block on both sides: averages over the time in which its device did the block's work."""

    block: Path  # (): all work of the device
    device: int
    figure: str  # "SM" (active), "tensor" (pipe active), "DRAM" (read and written), "SM clock"
    unit: str  # "%", "B/s", "MHz"
    before: tuple[float, ...]
    after: tuple[float, ...]
    means: tuple[float, float]  # of the whole time of a run, as its report has it; of several their average
    samples: tuple[int, int]  # that these are of
    probability: float | None  # adjusted, that chance alone would do it; None where it could not be tested
    basis: str  # what each value is of: "runs", or "parts" of the block's time; "untested"

    @property
    def deviations(self) -> tuple[float | None, float | None]:
        """How far the values of a side lie apart; None of a single one."""
        before, after = (pstdev(side) if len(side) > 1 else None for side in (self.before, self.after))
        return before, after

    @property
    def change(self) -> float | None:
        """Relative change of the mean, 0.1 for 10 % more; None from zero."""
        before, after = self.means
        return after / before - 1 if before else None

    @property
    def verdict(self) -> str:
        """ "higher" or "lower" for sure, "no difference shown", or "not tested"."""
        if self.probability is None:
            return "not tested"
        before, after = self.means
        if self.probability > LEVEL or abs(after - before) < EFFECT * max(before, after):
            return "no difference shown"
        return "higher" if after > before else "lower"


def counter_changes(before: Sequence[Session], after: Sequence[Session]) -> list[CounterChange]:
    """The blocks that were counted on both sides: those that differ for sure first, then in their own order."""
    decisive = min(len(before), len(after)) >= DECISIVE_RUNS
    sides = [[dict(_counted(run, 1 if decisive else _PARTS)) for run in side] for side in (before, after)]
    rows: list[CounterChange] = []
    common = [dict.fromkeys(key for run in side for key in run) for side in sides]
    for key in common[0]:
        if key not in common[1]:
            continue
        found = [[run[key] for run in side if key in run] for side in sides]
        samples = (sum(one.samples for one in found[0]), sum(one.samples for one in found[1]))
        for at, (figure, unit, _) in enumerate(_FIGURES):
            one, other = (tuple(value for part in side for value in part.values[at]) for side in found)
            enough = min(len(one), len(other)) >= (DECISIVE_RUNS if decisive else CALLS)
            basis = "untested" if not enough else "runs" if decisive else "parts"
            means = [[part.means[at] for part in side if part.values[at]] for side in found]
            if one and other:
                mean = fmean(means[0]), fmean(means[1])
                rows.append(CounterChange(*key, figure, unit, one, other, mean, samples, None, basis))
    tested = [at for at, row in enumerate(rows) if row.basis != "untested"]
    adjusted = benjamini_hochberg([mann_whitney(rows[at].before, rows[at].after) for at in tested])
    for at, value in zip(tested, adjusted, strict=True):
        rows[at] = rows[at]._replace(probability=value)
    sure = ("higher", "lower")
    return sorted(rows, key=lambda row: -abs(row.change or 0) - 1 if row.verdict in sure else 0)


class _Counted(NamedTuple):
    """A block of one run."""

    samples: int
    means: list[float]  # of each figure; NaN where it was not counted
    values: list[list[float]]  # of each figure one a part, those that are known


def _counted(run: Session, most: int) -> Iterator[tuple[_Key, _Counted]]:
    shares, compared = run.once(block_shares), compared_path(run)
    for device, integral in run.once(integrals).items():
        stretches, _ = device_stretches(run, device)
        for row in shares:
            told = row.device == device and row.reason is None
            spans = integral.own(stretches[row.path][0]) if told else ""
            if not isinstance(spans, str):
                means = _figures(integral, spans)
                number = min(most, int(row.samples) // LEAST_SAMPLES)
                parts = [_figures(integral, part) for part in _cut(spans, number)] if number >= CALLS else [means]
                values = [[value for value in column if value == value] for column in zip(*parts, strict=True)]
                yield (compared(row.path), device), _Counted(round(row.samples), means, values)


def _figures(integral: Integral, part: list[Stretch]) -> list[float]:
    spent, _, values = integral.over(part)
    sums = [sum(values.get(field, nan) for field in fields) for _, _, fields in _FIGURES]
    return [
        found * 1e9 / spent if spent and unit == "B/s" else found
        for found, (_, unit, _) in zip(sums, _FIGURES, strict=True)
    ]


def _cut(stretches: list[Stretch], number: int) -> list[list[Stretch]]:
    """The stretches as ``number`` parts that follow one another and are of the same length together."""
    share = -(-sum(last - first for first, last in stretches) // number)
    parts: list[list[Stretch]] = [[]]
    room = share
    for first, last in stretches:
        while last - first > room:
            parts[-1].append((first, first + room))
            first, room = first + room, share
            parts.append([])
        parts[-1].append((first, last))
        room -= last - first
    return parts
