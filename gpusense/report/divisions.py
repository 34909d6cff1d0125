"""Each device in each phase of the run, its time divided. Every share that a report shows is one of these.

There is one denominator a division: the phase, as far as it was seen. ``parts`` add up to it.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import mul
from typing import Any, NamedTuple

from .._records.device_identity import card, device_of, device_text
from .._records.records import standard_deviation
from .._runtime.text import count_text, one_line, percent_text, time_text
from ..analysis.activity import activity
from ..analysis.anomalies import median
from ..analysis.busy import DeviceKey
from ..analysis.facts import Facts
from ..analysis.families import family
from ..analysis.figures import FIGURES
from ..analysis.intervals import Interval, intersect, total
from ..analysis.operation import DEVICE_KINDS, Operation
from ..analysis.processes import processes_of
from ..analysis.program import INTERLUDE, START_UP, STEADY, TAIL, WHOLE, Program, Steps
from ..analysis.startup import dominates, start_up
from ..analysis.view import View
from ..analysis.words import IDLE
from ..session import Session

#: The name of all phases together.
ALL = "whole"
PHASES = (STEADY, WHOLE, START_UP, INTERLUDE, TAIL, ALL)

#: What a device's time is made of, and how each part is called: those of :data:`~gpusense.analysis.view.CAUSES` as the
#: findings call them.
PARTS = {
    "compute": "computing",
    "collective": "only communicating",
    "copy": "only copying",
    **{name: f"idle: {words}" for name, words in IDLE.items()},
}
#: What single gaps are called.
GAPS = {**{name: PARTS[name] for name in IDLE}, "unseen": "not seen: capture was off"}
_BUSY = ("compute", "collective", "copy")
_OF = {
    STEADY: "steps",
    START_UP: "start-up",
    INTERLUDE: "interruptions",
    TAIL: "end",
    WHOLE: "main part",
    ALL: "run",
}


def phase_text(name: str, steps: Steps | None = None) -> str:
    """ "steps", "start-up", …; "launches" where one kernel runs again and again."""
    return "launches" if name == STEADY and steps is not None and steps.name == "launch" else _OF.get(name, name)


#: Where the mean of the steps is so far from the middle one, it is said which is told; and where it is so far, the mean
#: is told as well: some are far longer than the others.
_OTHER, _FAR = 0.01, 0.05


#: Shares that add up to more than this are not of a whole whose parts were rounded.
_ALL_OF_IT = 1.005


def steps_text(steps: Steps) -> str:
    """ "28 steps of 33.1 ms (± 400 µs)"; "2,518 launches of 260 µs (median)". The middle one."""
    length, mean = time_text(steps.median_ns), time_text(steps.mean_ns)
    apart = abs(steps.mean_ns - steps.median_ns) / max(1, steps.median_ns)
    more = ["median"] if apart > _OTHER else []
    more += [f"± {time_text(steps.spread_ns)}"] if steps.spread_ns >= 1 else []
    more += [f"{mean} on average"] if apart > _FAR else []
    length += f" ({', '.join(more)})" if more else ""
    if steps.name == "launch":
        return f"{count_text(steps.number, 'launch', 'launches')} of {length}"
    named = "" if steps.name == "step" else f" (“{one_line(steps.name, 40)}”)"
    return f"{count_text(steps.number, 'step')}{named} of {length}"


class Division(NamedTuple):
    """One device in one phase. Nanoseconds; ``parts`` add up to ``length_ns``."""

    program: Program
    key: DeviceKey
    phase: str  # one of :data:`PHASES`
    length_ns: int  # what all shares are of
    busy_ns: int
    parts: dict[str, int]  # by the names of :data:`PARTS`; those that are 0 are left out
    gaps: dict[str, int]  # how many there are, by cause
    operations: list[Operation]  # of the device, most time first; ``share`` is of the phase
    unseen_ns: int = 0  # beside the length: when capture was off
    text: str = ""  # "GPU 0"
    shared: bool = False  # other processes used the device meanwhile: it is busy with their work, too

    def share(self, spent_ns: float) -> float:
        """Of the phase, 0…1. What runs at once on a device may be more than 1 together."""
        return spent_ns / self.length_ns if self.length_ns > 0 else 0.0

    @property
    def busy_share(self) -> float:
        return min(1.0, self.share(self.busy_ns))

    @property
    def at_once(self) -> str:
        """Why the shares of its operations are more than 100 % together; empty where they are not."""
        return self._counted_each_time if self._together_ns > self.length_ns else ""

    @property
    def at_once_with_idle(self) -> str:
        """The same of its operations and its idle time, as they stand in one list."""
        idle = sum(spent for name, spent in self.parts.items() if name not in _BUSY)
        return self._counted_each_time if self._together_ns + idle > _ALL_OF_IT * self.length_ns else ""

    @property
    def _together_ns(self) -> int:
        return sum(row.total_ns for row in self.operations)

    @property
    def _counted_each_time(self) -> str:
        return (
            f"work that ran at the same time counts each time: {percent_text(self.share(self._together_ns))} of the "
            f"{self.of} together, {percent_text(self.busy_share)} where each moment counts once"
        )

    @property
    def steps(self) -> Steps | None:
        """None where the phase has none."""
        return self.program.steps if self.phase == STEADY else None

    @property
    def judged(self) -> bool:
        """Whether it is the phase in which time can be saved."""
        return self.phase == self.program.judged

    @property
    def of(self) -> str:
        """What its shares are of: "steps"; "start-up seen" where capture was off for a part of it."""
        return phase_text(self.phase, self.program.steps) + (" seen" if self.unseen_ns * 1000 > self.length_ns else "")

    @property
    def device(self) -> str:
        """ "GPU 0"; of a merged session "rank 1 · GPU 0", "rank 1 · GPU 0 (shared)"."""
        text = f"{self.text} (shared)" if self.shared else self.text
        return text if self.program.root is None else f"{one_line(self.program.root, 40)} · {text}"

    @property
    def processor(self) -> str:
        """ "GPU"; "CPU" where that plays one."""
        return "CPU" if self.text.startswith("CPU ") else "GPU"

    def families(self) -> dict[str, int]:
        """Nanoseconds of kernels by family, of passes, and of what is copied or set; most first."""
        sums: dict[str, int] = {}
        for row in self.operations:
            name = "copies and memsets"
            if row.kind == "kernel":
                name = "passes" if row.backend == "wgpu" else family(row.full_name or row.name)
                name = "copy kernels" if name == "copy" else name  # beside copies and memsets
            sums[name] = sums.get(name, 0) + row.total_ns
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def holds(self, most: int = 3) -> str:
        """ "matmul 71 %, elementwise 12 %, idle: waiting for the host 7.2 %": what most of the phase was."""
        idle = {PARTS[name]: spent for name, spent in self.parts.items() if name not in _BUSY}
        rows = sorted({**self.families(), **idle}.items(), key=lambda item: -item[1])
        return ", ".join(
            f"{name} {percent_text(self.share(spent))}" for name, spent in rows[:most] if self.share(spent) >= 0.001
        )


class Gap(NamedTuple):
    """A time in which a device was idle."""

    start_ns: int
    end_ns: int
    cause: str


class Divisions:
    """All of a session, each made on first use."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def views(self) -> dict[tuple[str | None, DeviceKey], list[View]]:
        """Of each process and each device it used, busiest first, views of all phases in order."""
        found: dict[tuple[str | None, DeviceKey], list[View]] = {}
        for judged in () if self._facts.work.summed else self._facts.views:
            names = dict.fromkeys(phase.name for phase in judged.program.phases)
            found[judged.program.root, judged.key] = [
                judged if name == judged.name else judged.of(name) for name in names
            ]
        return found

    @cached_property
    def all(self) -> list[Division]:
        """Of each device its phases in order and the whole run."""
        if not self.views:
            return self._summed()
        found = []
        for key, views in self.views.items():
            mine, lengths, reaching = list[Division](), self._lengths[key], _reaching(views)
            shared = self._shared(views[0].program, views[0].key)
            for view, of in zip(views, lengths, strict=True):
                spent, off = _parts(view, reaching), total(view.spans) - view.length_ns
                mine.append(_division(view, view.name, view.length_ns, spent, _gaps(view), of, off))
            everything: _Lengths = {}
            for of in lengths:
                for what, calls in of.items():
                    everything.setdefault(what, _Calls()).add(calls)
            parts, gaps = Counter[str](), Counter[str]()
            for one in mine:
                parts.update(one.parts)
                gaps.update(one.gaps)
            whole = sum(one.length_ns for one in mine)
            mine.append(_division(views[0], ALL, whole, parts, gaps, everything, sum(one.unseen_ns for one in mine)))
            found += [one._replace(shared=shared) for one in mine]
        return found

    @property
    def programs(self) -> "list[Program]":
        """The processes of which it is known when they worked."""
        return list({id(views[0].program): views[0].program for views in self.views.values()}.values())

    def _shared(self, program: Program, key: DeviceKey) -> bool:
        """Whether another process used the device while this one ran."""
        start, end = program.window
        others = (views[0] for views in self.views.values() if views[0].program is not program)
        windows = (view.program.window for view in others if card(*view.key) == card(*key))
        return any(low < end and start < high for low, high in windows)

    def of(self, phase: str) -> list[Division]:
        """Of each device in one phase; not to be changed."""
        return self._by_phase.get(phase, [])

    @cached_property
    def _by_phase(self) -> dict[str, list[Division]]:
        found: dict[str, list[Division]] = {}
        for one in self.all:
            found.setdefault(one.phase, []).append(one)
        return found

    @cached_property
    def judged(self) -> list[Division]:
        """Of each device in the phase in which time can be saved; the whole run of a session that has sums alone."""
        return [one for one in self.all if one.judged] or self.of(ALL)

    def at_once(self, phase: str) -> list[str]:
        """Of each device in one phase why its shares are so much together, where they are."""
        found = self.of(phase)
        told = [(f"{one.device}: " if len(found) > 1 else "", one.at_once) for one in found]
        return [f"{device}{text}" for device, text in told if text]

    @property
    def shared(self) -> str:
        """What "(shared)" means, where a device is."""
        if not any(one.shared for one in self.all):
            return ""
        return "shared: other processes used the device meanwhile; how busy and idle it was counts the work of all"

    @cached_property
    def names(self) -> list[str]:
        """The phases that there are."""
        there = {one.phase for one in self.all}
        return [name for name in PHASES if name in there]

    def lengths(self, phase: str, row: Operation) -> "Sequence[int]":
        """How long the calls of an operation took in a phase, in order; of sums nothing is known."""
        found: list[int] = []
        for (_, key), views in self.views.items():
            if card(*key) == card(row.backend, row.device):
                for at, view in enumerate(views):
                    if phase in (view.name, ALL):
                        what = (row.kind, row.name, row.direction, row.backend)
                        calls = self._lengths[view.program.root, key][at].get(what)
                        found += calls.lengths if calls is not None else ()
        return sorted(found)

    @cached_property
    def _lengths(self) -> "dict[tuple[str | None, DeviceKey], list[_Lengths]]":
        return {key: [_lengths(view) for view in views] for key, views in self.views.items()}

    def rows(self, found: Sequence[Division]) -> list[tuple[str, Operation]]:
        """The operations of all of ``found``, most time first, with what stands before the name of each: "[0] ", of
        several processes "rank 1 [0] "."""
        several = len(self.programs) > 1
        rows = [
            ((f"{one_line(one.program.root or '', 40)} " if several else "") + self.mark(row), row)
            for one in found
            for row in one.operations
        ]
        return sorted(rows, key=lambda of: -of[1].total_ns)

    def mark(self, row: Operation) -> str:
        """What stands before an operation's name: "[0] "; "[CPU] " where a processor plays a GPU."""
        device = device_of(self._facts.session.devices, row.backend, row.device) if row.kind in DEVICE_KINDS else None
        if device is not None and device.kind == "cpu":
            return "[CPU] "
        return "" if row.device is None else f"[{row.device}] "

    def sentence(self) -> str:
        """ "28 steps of 33.1 ms (± 400 µs), after 9.30 s of start-up; GPU 0 busy 93 % of the steps"."""
        judged = self.judged
        if not judged:
            return ""
        program, of = judged[0].program, judged[0].of
        parts = []
        if program.steps is not None and judged[0].phase == STEADY:
            before = sum(end - start for start, end in program.spans(START_UP))
            parts.append(steps_text(program.steps) + (f", after {time_text(before)} of start-up" if before else ""))
            parts[0] += self._start_up(program)
        busy = [f"{one.device} {percent_text(one.busy_share)}" for one in judged[:8]]
        more = f" and {len(judged) - 8} more" if judged[8:] else ""
        if any(FIGURES in one for one in processes_of(self._facts.session)):  # of the others nothing is here
            parts.append(f"busy for so much of the {of}: {', '.join(busy)}{more}")
        elif len(judged) > 1:
            mean = sum(one.busy_share for one in judged) / len(judged)
            which = "GPUs" if all(one.processor == "GPU" for one in judged) else "devices"
            parts.append(f"{which} busy {percent_text(mean)} of the {of} ({', '.join(busy)}{more})")
        else:
            parts.append(f"{judged[0].device} busy {percent_text(judged[0].busy_share)} of the {of}")
            parts[-1] += self._active(judged[0])
        if judged[0].phase == WHOLE:
            parts[-1] += f": the {time_text(judged[0].length_ns)} from its first work to its last"
        return "; ".join(parts)

    def _active(self, one: Division) -> str:
        """ ", its multiprocessors active 12 %": what the device counted of the same time, where it did."""
        views = (view for view in self._facts.views if view.key == one.key and view.program is one.program)
        view = next(views, None)
        if view is None or view.name != one.phase or view.key[0] != "cuda":
            return ""
        found = activity(self._facts.session, view.device, view.spans)
        return "" if found is None or found.sm is None else f", its multiprocessors active {percent_text(found.sm)}"

    def _start_up(self, program: Program) -> str:
        """ " (9.10 s of it before CUDA was initialised)": its largest part, where it takes more time than the steps."""
        view = next((view for view in self._facts.feeding if view.program is program), None)
        if view is None or not dominates(program):
            return ""
        what, spent = max(start_up(self._facts.session, view).parts.items(), key=lambda part: part[1])
        return f" ({time_text(spent)} of it {what})"

    def gaps(self, key: DeviceKey) -> Iterator[Gap]:
        """Each time in which a device was idle between two pieces of work, in order."""
        views = next((views for (_, other), views in self.views.items() if card(*other) == card(*key)), ())
        causes: dict[int, str] = {}
        for view in views:
            for cause in view.causes.values():
                causes.update(dict.fromkeys(cause.gaps, cause.name))
        if views:
            starts, ends = views[0].walk.gaps.start, views[0].walk.gaps.end
            for number in sorted(causes):
                yield Gap(starts[number], ends[number], causes[number])

    def _summed(self) -> list[Division]:
        """Of a session that has sums of short work alone: the whole run, of which no gap is known."""
        facts, found = self._facts, []
        for time in facts.times:
            key, seen = (time.backend, time.device), max(0, (time.window_ns or time.busy_ns) - time.unseen_ns)
            rows = (row for row in facts.device_operations if row.timing == "device")
            mine = [row for row in rows if card(row.backend, row.device) == card(*key)]
            busy = min(time.busy_ns, seen)
            idle = next((row for row in facts.idle if (row.backend, row.device) == key), None)
            parts = {"compute": min(time.kernel_ns, busy)}
            if idle is not None:
                parts = {"compute": idle.compute_ns, "collective": idle.collective_ns, "copy": idle.copy_ns}
            parts["none"] = seen - sum(parts.values())
            parts = {name: spent for name, spent in parts.items() if spent > 0}
            shares = [row._replace(share=row.total_ns / seen if seen else 0.0) for row in mine]
            text = device_text(facts.session.devices, *key)
            found.append(Division(facts.programs[0], key, ALL, seen, busy, parts, {}, shares, time.unseen_ns, text))
        return sorted(found, key=lambda one: -one.busy_ns)


def divisions_of(session: Session) -> Divisions:
    """Of the one analysis of a session."""
    return session.once(_divided)


def _divided(session: Session) -> Divisions:
    return Divisions(session.once(Facts))


def operations_of(session: Session) -> list[Operation]:
    """The table of operations, with medians of calls that were only counted from the rows of all work."""
    known = {_whole(row): row for one in divisions_of(session).of(ALL) for row in one.operations}
    return [
        row._replace(median_ns=same.median_ns, p95_ns=same.p95_ns)
        if row.median_ns is None and (same := known.get(_whole(row))) is not None
        else row
        for row in session.once(Facts).operations
    ]


def _whole(row: Operation) -> tuple[Any, ...]:
    """What two rows agree in that are of the same calls."""
    return row.kind, row.name, row.backend, row.device, row.direction, row.count, row.total_ns


class _Calls:
    """All calls of one operation in a phase."""

    __slots__ = ("full_name", "lengths", "size")

    def __init__(self, full_name: str | None = None) -> None:
        self.lengths, self.size, self.full_name = array("q"), 0, full_name

    def add(self, other: "_Calls") -> None:
        self.lengths.extend(other.lengths)
        self.size += other.size
        self.full_name = self.full_name or other.full_name


#: By kind, name, direction and backend.
_Lengths = dict[tuple[str, str, "str | None", str], _Calls]


def _lengths(view: View) -> _Lengths:
    work, found = view.work, _Lengths()
    calls = {
        kind: found.setdefault((one.kind, one.name, one.direction, one.backend), _Calls(one.full_name))
        for kind, one in ((kind, work.kinds[kind]) for kind in view.by_kind)
    }
    for kind, (_, _, size) in view.by_kind.items():
        calls[kind].size += size
    for kind, lengths in view.lengths.items():
        calls[kind].lengths.extend(lengths)
    return found


#: Parts of gaps that lie in a later phase than the gap's beginning, by cause, in order.
_Reaching = dict[str, list[Interval]]


def _reaching(views: list[View]) -> _Reaching:
    found: _Reaching = {}
    for view in views:
        ends = view.walk.gaps.end
        for number, ns in view.beyond.items():
            cause = next((one.name for one in view.causes.values() if number in one.gaps), None)
            if cause is not None and cause != "unseen":
                found.setdefault(cause, []).append((ends[number] - ns, ends[number]))
    return {cause: sorted(pieces) for cause, pieces in found.items()}


def _parts(view: View, reaching: _Reaching) -> dict[str, int]:
    """What the phase is made of: of a gap that ends in another phase what lies in this one."""
    parts = view.parts
    found = {"compute": parts.compute, "collective": parts.collective_alone, "copy": parts.copy_alone}
    for name, cause in view.causes.items():
        if name != "unseen":  # which is no part of what was seen
            found[name] = cause.total_ns + total(intersect(reaching.get(name, []), view.spans))
    found["none"] = view.length_ns - sum(found.values())
    return found


def _gaps(view: View) -> dict[str, int]:
    return {name: len(cause.gaps) for name, cause in view.causes.items() if cause.gaps}


def _division(
    view: View, phase: str, length: int, parts: dict[str, int], gaps: dict[str, int], lengths: _Lengths, unseen: int
) -> Division:
    shown = {name: parts[name] for name in PARTS if parts.get(name, 0) > 0}
    busy = sum(shown.get(name, 0) for name in _BUSY)
    rows = [_operation(view.device, *key, calls, length) for key, calls in lengths.items()]
    rows.sort(key=lambda row: (-row.total_ns, -row.count, row.kind, row.name))
    return Division(view.program, view.key, phase, length, busy, shown, dict(gaps), rows, unseen, view.text)


def _operation(
    device: int | None, kind: str, name: str, direction: str | None, backend: str, calls: _Calls, length: int
) -> Operation:
    values = sorted(calls.lengths)
    count, spent = len(values), sum(values)
    return Operation(
        kind=kind,
        name=name,
        backend=backend,
        device=device,
        count=count,
        total_ns=spent,
        min_ns=values[0],
        max_ns=values[-1],
        avg_ns=spent / count,
        std_ns=standard_deviation(count, spent, sum(map(mul, values, values))),
        median_ns=median(values),
        p95_ns=values[-(-95 * count // 100) - 1],
        share=spent / length if length > 0 else 0.0,
        bytes=calls.size,
        direction=direction,
        bandwidth_bytes_per_s=calls.size * 1e9 / spent if calls.size and spent else None,
        first_ns=calls.lengths[0],
        full_name=calls.full_name,
        variants=1,
        kept=count,
    )
