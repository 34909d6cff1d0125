"""Under which conditions two sets of runs ran: programs, clocks, devices and software, where they differ."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._records.metrics import GpuMetrics
from .._runtime.text import one_line
from ..session import Session
from .anomalies import median
from .counters import block_shares
from .sampled import concerned

#: A difference of clocks that is not worth a word.
_SAME_CLOCK = 0.02
#: Command lines of a side that are shown, as of runs with one seed each.
_SHOWN = 3
_Side = Sequence[Session]


def names(session: Session) -> str:
    """What a run is called: its label, and the file that it was read from; "" where neither is known."""
    import os

    run = session.meta.get("run")
    label = run.get("label") if isinstance(run, dict) else None
    file = session.meta.get("path")
    parts = [one_line(str(part), 80) for part in (label, file and os.path.basename(str(file))) if part]
    return f"{parts[0]} ({parts[1]})" if len(parts) == 2 else "".join(parts)


def conditions(before: _Side, after: _Side, same_kernels: bool = False) -> list[str]:
    """What differs, most telling first: "program: a.py → b.py", "same kernels, SM clock 12 % lower (1,980 → 1,742
    MHz)", "torch 2.9 → 2.11".

    Clocks are what hardware counters say of the devices' work, else medians of the samples in which one was busy.
    ``same_kernels``: both sides launched the same.
    """
    same = "same kernels, " if same_kernels else ""
    clocks = [f"{same}{sentence}" for sentence in _clocks(before, after)]
    rest = (_throttling, _devices, _software)
    return [*_programs(before, after), *clocks, *(line for told in rest for line in told(before, after))]


def clocks_are_known(before: _Side, after: _Side) -> bool:
    """Whether both sides were sampled, so that a slower clock would show."""
    return bool(_both(before, after, _SM_CLOCKS))


def _programs(before: _Side, after: _Side) -> Iterator[str]:
    """Where both sides know what was run."""
    runs = [[_texts(run.meta.get("run")) for run in side] for side in (before, after)]
    sides = [sorted({str(one["command"]) for one in side if one.get("command")}) for side in runs]
    if all(sides) and sides[0] != sides[1]:
        more = [f" and {len(side) - _SHOWN} more" if len(side) > _SHOWN else "" for side in sides]
        shown = [" or ".join(one_line(each, 120) for each in side[:_SHOWN]) for side in sides]
        yield f"program: {shown[0]}{more[0]} → {shown[1]}{more[1]}"


def _clocks(before: _Side, after: _Side) -> Iterator[str]:
    for what, reads in (("SM clock", _SM_CLOCKS), ("memory clock", (_memory_clock,))):
        low, high = _both(before, after, reads) or (0.0, 0.0)
        if low and abs(high / low - 1) >= _SAME_CLOCK:
            word = "lower" if high < low else "higher"
            yield f"{what} {abs(high / low - 1) * 100:.0f} % {word} ({low:,.0f} → {high:,.0f} MHz)"


def _both(
    before: _Side, after: _Side, reads: "Sequence[Callable[[_Side], float | None]]"
) -> tuple[float, float] | None:
    """What the first of these that both sides know says of them."""
    for read in reads:
        low, high = read(before), read(after)
        if low and high:
            return low, high
    return None


def _counted_clock(side: _Side) -> float | None:
    """The median over devices and runs of what hardware counters say of the time in which a device did work."""
    rows = (row for run in side for row in run.once(block_shares) if not row.path)
    known = [row.sm_clock_mhz for row in rows if row.sm_clock_mhz is not None]
    return median(known) if known else None


def _sm_clock(side: _Side) -> float | None:
    return _clock(side, lambda sample: sample.clocks.sm_mhz)


def _memory_clock(side: _Side) -> float | None:
    return _clock(side, lambda sample: sample.clocks.memory_mhz)


_SM_CLOCKS = (_counted_clock, _sm_clock)


def _clock(side: _Side, read: Callable[[GpuMetrics], "float | None"]) -> float | None:
    """The median over the cards that the runs worked on, of samples in which they were busy if there are some."""
    samples = (sample for run in side for card in concerned(run) for sample in card.samples)
    known = [(sample, value) for sample in samples if (value := read(sample)) is not None]
    busy = [value for sample, value in known if sample.utilization.gpu_percent]
    values = busy or [value for _, value in known]
    return median(values) if values else None


def _throttling(before: _Side, after: _Side) -> Iterator[str]:
    sides = [
        {
            reason
            for run in side
            for card in concerned(run)
            for sample in card.samples
            for reason in sample.clocks.throttle_reasons or ()
        }
        for side in (before, after)
    ]
    for word, reasons in (("after", sides[1] - sides[0]), ("before", sides[0] - sides[1])):
        if reasons and all(any(run.metrics for run in side) for side in (before, after)):
            yield f"clocks were lowered only {word}: {', '.join(sorted(map(one_line, reasons)))}"


def _devices(before: _Side, after: _Side) -> Iterator[str]:
    sides = [sorted({device.name for run in side for device in run.devices}) for side in (before, after)]
    if sides[0] != sides[1]:
        shown = [", ".join(map(one_line, side)) or "none" for side in sides]
        yield f"different devices: {shown[0]} → {shown[1]}"


def _software(before: _Side, after: _Side) -> Iterator[str]:
    sides = [[_versions(run) for run in side] for side in (before, after)]
    for name in dict.fromkeys(name for side in sides for run in side for name in run):
        values = [sorted({run[name] for run in side if name in run}) for side in sides]
        if values[0] != values[1]:
            shown = [" or ".join(map(one_line, side)) or "–" for side in values]
            yield f"{one_line(name, 40)} {shown[0]} → {shown[1]}"


def _versions(run: Session) -> dict[str, str]:
    """Name → version of what the run used, as far as it is known."""
    meta: dict[str, Any] = run.meta
    drivers = {device.driver for device in run.devices if device.driver}
    found = {
        **_texts(meta.get("frameworks")),
        "CUDA": meta.get("cuda"),
        "driver": meta.get("driver") or (drivers.pop() if len(drivers) == 1 else None),
        "Python": meta.get("python"),
        "gpusense": meta.get("version"),
        **_texts(meta.get("backends")),
        "host": meta.get("host"),
    }
    return {name: str(value) for name, value in found.items() if value}


def _texts(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
