"""A program's start-up, divided as far as its records tell. Pure."""

from bisect import bisect_left
from typing import Any, NamedTuple

from ..session import Session
from .facts import loads_module
from .program import START_UP, Program
from .view import LAUNCH_NS, View

#: A start-up is worth a sentence from so long on, where it is this share of the run.
_LEAST_NS, _SHARE = 2_000_000_000, 0.5
#: Parts of it that are named first have so much of it.
LARGE = 0.2


class StartUp(NamedTuple):
    """Nanoseconds. The parts add up to ``whole_ns``; a pause is one of the device that works most."""

    whole_ns: int
    #: By what each is: in the order in which they mostly come, those that are 0 left out.
    parts: dict[str, int]
    #: From CUDA's initialisation to the device's first work, where that is a large part; else nothing.
    unused: list[tuple[int, int]]
    longest: tuple[int, int] | None  # the longest pause after the first work: its number in the walk, how long it is

    def large(self, share: float) -> list[tuple[str, int]]:
        """Parts that are so much of it."""
        return [(what, spent) for what, spent in self.parts.items() if spent >= share * self.whole_ns]


def dominates(program: Program) -> bool:
    """Whether the program has steps, and takes more time before them than for them."""
    low, high = program.window
    spent = sum(end - start for start, end in program.spans(START_UP))
    return program.steps is not None and spent >= max(_LEAST_NS, _SHARE * (high - low))


def start_up(session: Session, view: View) -> StartUp:
    """``view``: of the device that works most, in the steps."""
    program, of = view.program, view.of(START_UP)
    low, end = program.window[0], max(end for _, end in program.spans(START_UP))
    work, gaps = view.work, view.walk.gaps
    first = min(work.start[of.rows[0]] if of.rows else end, end)
    live = _initialised_ns(session, program)
    loads = sorted(one.start_ns for one in session.allocations if loads_module(one))
    work_called = "passes" if view.graphics else "kernels"
    pauses = {f"before {work_called} that ran for the first time": 0, "before copies to the device": 0}
    new, copied = pauses
    longest: tuple[int, int] | None = None
    for number in (one for one in of.gap_numbers if gaps.end[one] - gaps.start[one] > LAUNCH_NS):
        spent = of.shown(number)
        if longest is None or spent > longest[1]:
            longest = number, spent
        row = gaps.after[number]
        while row + 1 < len(work) and work.kinds[work.kind[row]].kind in ("memset", "sync"):
            row += 1  # what a kernel's memory is cleared by, before it
        loaded = bisect_left(loads, gaps.end[number]) > bisect_left(loads, gaps.start[number])
        if loaded or (row in view.news and work.kinds[work.kind[row]].kind == "kernel"):
            pauses[new] += spent
        elif work.kinds[work.kind[gaps.after[number]]].direction == "cpu_to_gpu":
            pauses[copied] += spent
    parts = {"before the device's first work": first - low}
    if live is not None and low < live < first:
        parts = {
            "before CUDA was initialised": live - low,
            "from CUDA's initialisation to the device's first work": first - live,
        }
    parts |= {**pauses, "of the device's own work": of.parts.busy}
    parts["of other pauses"] = end - low - sum(parts.values())
    unused = [(live, first)] if live is not None and first - live >= LARGE * (end - low) else []
    return StartUp(end - low, {what: spent for what, spent in parts.items() if spent > 0}, unused, longest)


def _initialised_ns(session: Session, program: Program) -> int | None:
    """When a process initialised CUDA; None where its session does not say."""
    capture: Any = session.meta.get("capture") or {}
    end = session.meta.get("end_ns")
    if program.root is not None:
        ends = (one.get("end_ns") for one in session.meta.get("processes") or () if one.get("root") == program.root)
        capture, end = capture.get(program.root) or {}, next(ends, None)
    lived = capture.get("cuda_live_ns")
    return end - lived if isinstance(end, int) and isinstance(lived, int) else None
