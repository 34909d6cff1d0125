"""One device in one phase of the run: what every rule about time looks at, and the one denominator of its shares."""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from .._records import lanes
from .._records.device_identity import card
from .._records.records import BlockRecord, Path
from .._records.work import WorkKind, WorkTable
from .._runtime.text import one_line
from .anomalies import median, sigma
from .busy import DeviceKey
from .families import family
from .idle import Host, inside_blocks
from .intervals import Interval, intersect, subtract, total, union
from .program import INTERLUDE, STEADY, Program, Steps
from .rows import Rows, grouped, marked, sums
from .sweep import Parts, Sweep
from .trials import trials

#: A gap that begins as the host stops waiting for the device is the wait's cost for so long: what it takes to fill the
#: queue again. Beyond it the host did something else.
RESTART_NS = 1_000_000
#: A gap that is no longer is what one launch leaves: Python frameworks need 5 to 50 µs for one.
LAUNCH_NS = 100_000
#: A finding is worth a sentence from this share of its phase on.
WORTH = 0.05
#: A call that allocates or releases memory of the device takes no longer.
ALLOCATION_NS = 3_000_000

_EVER = 1 << 62  # nanoseconds
#: Pieces of work, or steps, from which a conclusion is worth more than a guess, and from which it may be sure.
_EVIDENCE = ((10, 3), (100, 10))
#: So much of what the device waits for the host must lie in a few steps to call it a stall.
_IN_FEW = 0.6
#: The first algorithms that are tried out, which load what they need, run so long before the waits that show trials.
_SET_UP_NS = 50_000_000
#: So many gaps are looked at one by one, to say where they lie.
_MANY = 50_000

#: Why a device was empty.
CAUSES = ("launch", "synchronising", "host", "new", "allocation", "graph", "unseen")
_LAUNCH, _WAITED, _HOST, _NEW, _ALLOCATION, _GRAPH, _UNSEEN = range(len(CAUSES))
#: By each code a table that makes 1 of it, and 0 of all others.
_IS = [bytes(code == other for other in range(256)) for code in range(len(CAUSES))]
#: What a gap is at first, by whether it is long.
_LONG = bytes((_LAUNCH, _HOST, *range(2, 256)))


class Cause(NamedTuple):
    """All gaps of a phase with one cause."""

    name: str  # one of :data:`CAUSES`
    total_ns: int
    gaps: "array[int]"  # their numbers in the walk


class Stall(NamedTuple):
    """A few steps in which a device stands empty far longer than in the others, for the host's sake."""

    steps: list[int]  # their numbers
    excess: list[float]  # nanoseconds longer than usual, of each
    every: int | None  # how many steps lie between two of them; None where that differs

    @property
    def mean_ns(self) -> float:
        return sum(self.excess) / len(self.excess)


class View:
    """``key`` of the device; ``name`` of the phase, whose parts are ``spans``."""

    def __init__(
        self,
        program: Program,
        key: DeviceKey,
        text: str,
        walk: Sweep,
        work: WorkTable,
        host: Host,
        off: list[Interval],
        allocations: "Sequence[int]" = (),
        name: str | None = None,
    ) -> None:
        """``text``: "GPU 0". ``allocations``: when memory of the device was allocated or released by calls that may
        stop it; in order."""
        self.program, self.key, self.walk, self.work, self.host = program, key, walk, work, host
        self.text = text
        self.allocations = allocations
        self.name = name or program.judged
        self.spans = program.spans(self.name)
        self._off = intersect(self.spans, off)
        self._unknown = off

    def confidence(self, most: str = "high") -> str:
        """How sure a conclusion about this phase can be, at most ``most``: what was seen a few times may be chance."""
        steps = self.steps.number if self.steps is not None else 0
        enough = sum(len(self.rows) >= pieces or steps >= passes for pieces, passes in _EVIDENCE)
        return min(("low", "medium", "high")[enough], most, key=("low", "medium", "high").index)

    @property
    def called(self) -> str:
        """ "GPU 0"; of a merged session "rank 1 · GPU 0"."""
        root = self.program.root
        return self.text if root is None else f"{one_line(root, 40)} · {self.text}"

    def of(self, name: str) -> "View":
        """The same device in another phase."""
        return View(
            *(self.program, self.key, self.text, self.walk, self.work, self.host, self._unknown, self.allocations, name)
        )

    @property
    def device(self) -> int | None:
        return self.key[1]

    @property
    def steps(self) -> Steps | None:
        """None where the phase is no steady state."""
        return self.program.steps if self.name == STEADY else None

    @property
    def graphics(self) -> bool:
        """Whether its work is passes of wgpu."""
        return self.key[0] == "wgpu"

    @property
    def told(self) -> Steps | None:
        """The steps where a sentence may speak of them: one kernel that runs again and again is no step."""
        return None if self.steps is None or self.steps.name == "launch" else self.steps

    @cached_property
    def length_ns(self) -> int:
        """What all shares are of: the phase, as far as it was seen."""
        return total(self.spans) - total(self._off)

    @cached_property
    def parts(self) -> Parts:
        """How the device spent the phase."""
        found = [self.walk.between(start, end) for start, end in self.spans]
        return Parts(*map(sum, zip(*found, strict=True))) if found else Parts(0, 0, 0, 0, 0, 0, 0)

    def share(self, spent_ns: float) -> float:
        """Of the phase."""
        return spent_ns / self.length_ns if self.length_ns > 0 else 0.0

    def per_step(self, spent_ns: float) -> float | None:
        """What that is in each step."""
        return spent_ns / self.told.number if self.told is not None else None

    # --- work -------------------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> Rows:
        """Rows of the device that began in the phase."""
        mine = [
            one.kind != "sync" and one.timing == "device" and card(one.backend, one.device) == card(*self.key)
            for one in self.work.kinds
        ]
        return self.program.rows_in(self.name).where(marked(self.work.kind, mine))

    @cached_property
    def by_kind(self) -> "dict[int, tuple[int, int, int]]":
        """Of each kind of work: calls, nanoseconds, bytes."""
        work, number = self.work, len(self.work.kinds)
        moved = self.rows.where(marked(work.kind, [one.kind in ("transfer", "memset") for one in work.kinds]))
        sizes = sums(moved.of(work.kind), moved.of(work.size), number)
        return {kind: (len(mine), sum(mine), sizes[kind]) for kind, mine in sorted(self.lengths.items())}

    @cached_property
    def lengths(self) -> "dict[int, array[int]]":
        """Nanoseconds of each call, by kind of work; kinds in the order of their first, which comes first."""
        work, rows = self.work, self.rows
        return grouped(rows.of(work.kind), rows.lengths(work.start, work.end))

    @cached_property
    def labels(self) -> dict[str, str]:
        """What the kernels of the phase are called, by their full names."""
        return {one.full_name or one.name: one.name for one in map(self.work.kinds.__getitem__, self.by_kind)}

    def label(self, full_name: str) -> str:
        """What a kernel of the phase is called, for a sentence."""
        return one_line(self.labels[full_name], 60)

    @cached_property
    def kernels(self) -> dict[str, tuple[int, int]]:
        """Of each kernel, by its full name: calls and nanoseconds, most first."""
        sums: dict[str, list[int]] = {}
        for kind, (count, spent, _) in self.by_kind.items():
            one = self.work.kinds[kind]
            if one.kind == "kernel":
                mine = sums.setdefault(one.full_name or one.name, [0, 0])
                mine[0] += count
                mine[1] += spent
        return {name: (n, ns) for name, (n, ns) in sorted(sums.items(), key=lambda item: -item[1][1])}

    @cached_property
    def kernel_ns(self) -> int:
        """All kernels' times added up; where several run at once more than the time they took together."""
        return sum(spent for _, spent in self.kernels.values())

    @cached_property
    def families(self) -> dict[str, int]:
        """Nanoseconds of kernels by family, most first; copies between host and device are "copies"."""
        sums: dict[str, int] = {}
        for name, (_, spent) in self.kernels.items():
            sums[family(name)] = sums.get(family(name), 0) + spent
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    # --- gaps -------------------------------------------------------------------------------------------------------

    @cached_property
    def _gap_parts(self) -> list[range]:
        return [self.walk.gaps.between(start, end) for start, end in self.spans]

    @cached_property
    def gap_numbers(self) -> "array[int]":
        """The gaps that begin in the phase."""
        return array("I", chain.from_iterable(self._gap_parts))

    @cached_property
    def causes(self) -> dict[str, Cause]:
        """Every gap of the phase by its cause."""
        numbers, mine = self.gap_numbers, self._codes
        codes = b"".join(mine[part.start : part.stop] for part in self._gap_parts)
        found = {name: array("I", Rows(codes.translate(_IS[code])).of(numbers)) for code, name in enumerate(CAUSES)}
        if found["new"] and found["host"]:
            self._compiled(found)
        if self.trials and found["host"]:
            self._before_trials(found)
        if self.share(self.gap_ns(found["launch"])) >= WORTH:
            self._launched_slowly(found)
        if self._waits_keep_it_short(found):
            found["synchronising"] = _together(found["synchronising"], found["launch"])
            found["launch"] = array("I")
        return {name: Cause(name, self.gap_ns(mine), mine) for name, mine in found.items()}

    def _launched_slowly(self, found: "dict[str, array[int]]") -> None:
        """Where launches are what the device waits for anyhow, gaps somewhat longer have the same cause: some calls of
        a framework take longer than others. What ends with a copy to the device is the making of an input."""
        gaps, work = self.walk.gaps, self.work
        sorted_out = array("I"), array("I")
        for number in found["host"]:
            before, after = (work.kinds[work.kind[row[number]]].direction for row in (gaps.before, gaps.after))
            slow = gaps.end[number] - gaps.start[number] <= RESTART_NS and (after != "cpu_to_gpu" or before == after)
            sorted_out[slow].append(number)
        host, slow_ones = sorted_out
        if self.gap_ns(slow_ones) <= self.gap_ns(found["launch"]):
            found["host"], found["launch"] = host, _together(found["launch"], slow_ones)

    def _waits_keep_it_short(self, found: "dict[str, array[int]]") -> bool:
        """Whether the short gaps follow from waits, too: a host that waits often cannot launch ahead, although all its
        launches take less time than what they launch. Its pace is that of the faster quarter: a wait slows it."""
        launched, waits = found["launch"], len(found["synchronising"])
        if not launched or waits * 50 < len(self.rows):
            return False
        gaps, start = self.walk.gaps, self.work.start
        short = (number for number in launched if gaps.end[number] - gaps.start[number] <= LAUNCH_NS)
        intervals = sorted(start[gaps.after[number]] - start[gaps.before[number]] for number in short)
        return intervals[len(intervals) // 4] * len(self.rows) < self.parts.busy

    def gap_ns(self, numbers: Sequence[int]) -> int:
        """How long some gaps, in order, are together, as far as they were seen and lie in the phase."""
        whole = sum(self._lengths(numbers))
        return whole - sum(ns for at, ns in chain(self.unseen.items(), self.beyond.items()) if _holds(numbers, at))

    def _lengths(self, numbers: Sequence[int]) -> "Iterable[int]":
        """How long some gaps are."""
        lengths = self.walk.gap_lengths
        if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
            return lengths[numbers[0] : numbers[-1] + 1]
        return map(lengths.__getitem__, numbers)

    @cached_property
    def unseen(self) -> dict[int, int]:
        """Of gaps how much of them lies in a part of the phase of which nothing is known."""
        return self._lost((low, high, high) for low, high in self._off)

    @cached_property
    def beyond(self) -> dict[int, int]:
        """Of gaps how much of them lies outside the phase in which they begin."""
        ends = [end for _, end in self.spans]
        return self._lost(zip(ends, [*(start for start, _ in self.spans[1:]), _EVER], ends, strict=True))

    def _lost(self, pieces: Iterable[tuple[int, int, int]]) -> dict[int, int]:
        """How much of gaps lies in pieces (low, high), of those that begin before a third time."""
        gaps, found = self.walk.gaps, dict[int, int]()
        for low, high, before in pieces:
            for number in range(bisect_right(gaps.end, low), bisect_left(gaps.start, before)):
                lost = min(high, gaps.end[number]) - max(low, gaps.start[number])
                found[number] = found.get(number, 0) + lost
        return found

    def shown(self, number: int) -> int:
        """How long a gap is in the phase, as far as it was seen."""
        return self.walk.gap_lengths[number] - self.unseen.get(number, 0) - self.beyond.get(number, 0)

    def _shown_each(self, numbers: Sequence[int]) -> "array[int]":
        """As :meth:`shown`, of some in order."""
        lengths = array("q", self._lengths(numbers))
        for number, lost in chain(self.unseen.items(), self.beyond.items()):
            if _holds(numbers, number):
                lengths[bisect_left(numbers, number)] -= lost
        return lengths

    def _compiled(self, found: "dict[str, array[int]]") -> None:
        """What a compiler does takes several gaps: in the steps in which something new ran, the host's long ones are
        its own, as far as there are such in no other steps."""
        steps, start = self.steps, self.work.start
        if steps is None:
            return
        spent = self.gap_by_step(found["host"])
        with_new = sorted({at for at in map(steps.at, (start[row] for row in self.news)) if at is not None})
        usual = [ns for at, ns in enumerate(spent) if at not in set(with_new)]
        mean = sum(spent[at] for at in with_new) / len(with_new) if with_new else 0.0
        if not mean or mean < 3 * (sum(usual) / len(usual) if usual else 0.0):
            return
        those = set(with_new)
        new, host = array("I"), array("I")
        for number in found["host"]:
            (new if steps.at(self.walk.gaps.start[number]) in those else host).append(number)
        found["new"], found["host"] = _together(found["new"], new), host

    @cached_property
    def trials(self) -> list[Interval]:
        """When algorithms of convolutions were tried out in the phase."""
        return trials(self.work, self.program.rows_in(self.name))

    def _before_trials(self, found: "dict[str, array[int]]") -> None:
        """Before cuDNN tries algorithms it compiles and loads them: long gaps that end just before a trial or in it."""
        gaps = self.walk.gaps
        starts = [start for start, _ in self.trials]
        new, host = array("I"), array("I")
        for number in found["host"]:
            at = bisect_right(starts, gaps.end[number] + _SET_UP_NS) - 1
            tried = at >= 0 and gaps.end[number] <= self.trials[at][1]
            (new if tried else host).append(number)
        found["new"], found["host"] = _together(found["new"], new), host

    @cached_property
    def _codes(self) -> bytearray:
        """The cause of each gap of the device, by its place in :data:`CAUSES`."""
        starts, ends = self.walk.gaps.start, self.walk.gaps.end
        codes = bytearray(lanes.above(self.walk.gap_lengths, LAUNCH_NS).translate(_LONG))
        if self.steps is not None:
            self._mark_new(codes)
        self._mark_waits(codes)
        for moment in self.allocations:
            at = bisect_left(ends, moment)
            if at < len(ends) and starts[at] - LAUNCH_NS <= moment:
                calls = _between(self.allocations, starts[at] - LAUNCH_NS, ends[at])
                if ends[at] - starts[at] <= ALLOCATION_NS * calls:
                    codes[at] = _ALLOCATION
        self._mark_graphs(codes)
        for number, lost in self.unseen.items():
            if 2 * lost >= ends[number] - starts[number]:
                codes[number] = _UNSEEN
        return codes

    def _mark_new(self, codes: bytearray) -> None:
        """Long gaps that end with a kernel that had not run before."""
        after, kinds = self.walk.gaps.after, self.work.kinds
        for row in self.news:
            at = bisect_left(after, row)
            if at < len(after) and after[at] == row and codes[at] == _HOST:
                codes[at] = _NEW if kinds[self.work.kind[row]].kind == "kernel" else _HOST

    @property
    def replays(self) -> bool:
        """Whether most of the program's work is launched as graphs."""
        return 2 * len(self.program.launches.kinds) < len(self.program.rows)

    def _mark_graphs(self, codes: bytearray) -> None:
        """Gaps within one launch: between two kernels of a graph, where no host is in between."""
        order, gaps = self.work.order, self.walk.gaps
        if len(self.program.launches.kinds) < len(self.program.rows):
            for at, (before, after) in enumerate(zip(gaps.before, gaps.after, strict=True)):
                if order[before] == order[after] > 0:
                    codes[at] = _GRAPH

    def _mark_waits(self, codes: bytearray) -> None:
        """Gaps in which the host waited for the device, or that begin as a copy to the host ends."""
        starts, ends = self.walk.gaps.start, self.walk.gaps.end
        for low, high in self.host.waits:
            for at in range(bisect_left(ends, low), bisect_right(starts, high)):
                if ends[at] - starts[at] <= RESTART_NS or (low <= starts[at] and high >= ends[at]):
                    codes[at] = _WAITED
        for moment in self.host.backs.get(card(*self.key), ()):
            at = bisect_left(starts, moment)
            if at < len(starts) and starts[at] == moment and ends[at] - moment <= RESTART_NS:
                codes[at] = _WAITED

    @cached_property
    def news(self) -> set[int]:
        """Rows of kernels that had not run before with this size: compiled or tuned just then, perhaps."""
        return self.program.news

    @cached_property
    def stall(self) -> Stall | None:
        """The steps in which the host holds the device up, where most of what it waits for the host lies in few."""
        spent = self.gap_by_step(self.causes["host"].gaps)
        usual, odd = regular_part(spent)
        excess = [spent[at] - usual for at in odd]
        if not odd or 3 * len(odd) > len(spent) or sum(excess) < _IN_FEW * self.causes["host"].total_ns:
            return None
        return Stall(odd, excess, rhythm(odd))

    def in_stall(self, rows: Iterable[int]) -> float:
        """Of the time of some rows the share that lies in the steps that stall."""
        if self.stall is None or self.steps is None:
            return 0.0
        work, those = self.work, set(self.stall.steps)
        inside = whole = 0
        for row in rows:
            length = work.end[row] - work.start[row]
            whole += length
            inside += length if self.steps.at(work.start[row]) in those else 0
        return inside / whole if whole else 0.0

    @cached_property
    def busy_by_step(self) -> list[int]:
        """Nanoseconds for which the device worked in each step."""
        steps = self.steps
        if steps is None:
            return []
        empty = self.gap_by_step(self.gap_numbers)
        return [end - start - gap for start, end, gap in zip(steps.starts, steps.ends, empty, strict=True)]

    def gap_by_step(self, numbers: Sequence[int]) -> list[int]:
        """Nanoseconds of some gaps in each step."""
        steps, gaps = self.steps, self.walk.gaps
        if steps is None:
            return []
        begins = [bisect_left(numbers, bisect_left(gaps.start, start)) for start in steps.starts]
        lengths = self._shown_each(numbers)
        return [sum(lengths[low:high]) for low, high in pairwise((*begins, len(numbers)))]

    def places(self, numbers: Sequence[int]) -> list[tuple[WorkKind, WorkKind, int, int]]:
        """Between what and what some gaps lie: kinds before and after, how many, nanoseconds; most first. Of very many
        some are looked at."""
        gaps, work, some = self.walk.gaps, self.work, _some(numbers)
        before, after = (map(work.kind.__getitem__, map(side.__getitem__, some)) for side in (gaps.before, gaps.after))
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for key, spent in zip(zip(before, after, strict=True), self._shown_each(some), strict=True):
            mine = found[key]
            mine[0] += 1
            mine[1] += spent
        rows = [(work.kinds[a], work.kinds[b], n, spent) for (a, b), (n, spent) in found.items()]
        return sorted(rows, key=lambda row: -row[3])

    def blocks(self, numbers: Sequence[int]) -> tuple[tuple[Path, int], ...]:
        """In which innermost blocks the host was during some gaps, with nanoseconds; most first."""
        return self.blocks_in(self.when(numbers)) if self.host.segments else ()

    def blocks_in(self, spans: list[Interval]) -> tuple[tuple[Path, int], ...]:
        """As :meth:`blocks`, during some times."""
        return inside_blocks(spans, self.host.segments)

    def loads(self, numbers: Sequence[int]) -> list[tuple[BlockRecord, int]]:
        """The waits for a DataLoader that take most of some gaps, with nanoseconds, most first; none where the host was
        elsewhere."""
        loads, spans = self.program.loads, self.when(numbers)
        common = intersect(spans, union((one.start_ns, one.end_ns) for one in loads))
        if 2 * total(common) <= total(spans):
            return []
        starts, spent = [one.start_ns for one in loads], Counter[int]()
        for low, high in common:
            spent[bisect_right(starts, low) - 1] += high - low
        return [(loads[at], ns) for at, ns in spent.most_common()]

    def when(self, numbers: Sequence[int]) -> list[Interval]:
        """When some gaps were, as :meth:`gap_ns` has them; of very many some are looked at."""
        gaps = self.walk.gaps
        spans = [(gaps.start[number], gaps.end[number]) for number in _some(numbers)]
        return subtract(intersect(spans, self.spans), self._unknown)

    # --- what interrupts the loop ------------------------------------------------------------------------------------

    @cached_property
    def interludes(self) -> list[tuple[Interval, Parts]]:
        """What lies between two steps, with how the device spent it."""
        return [
            ((phase.start_ns, phase.end_ns), self.walk.between(phase.start_ns, phase.end_ns))
            for phase in self.program.phases
            if phase.name == INTERLUDE and not intersect([(phase.start_ns, phase.end_ns)], self._unknown)
        ]


def _between(times: "Sequence[int]", low: int, high: int) -> int:
    """How many moments lie between two."""
    return bisect_right(times, high) - bisect_left(times, low)


def _holds(numbers: Sequence[int], one: int) -> bool:
    """Whether numbers in order have one among them."""
    at = bisect_left(numbers, one)
    return at < len(numbers) and numbers[at] == one


def _together(one: "array[int]", other: "array[int]") -> "array[int]":
    """Numbers of both, each in order, in order."""
    few, many = sorted((one, other), key=len)
    made, at = array("I"), 0
    for number in few:
        place = bisect_left(many, number, at)
        made += many[at:place]
        made.append(number)
        at = place
    return made + many[at:]


def _some(numbers: Sequence[int]) -> Sequence[int]:
    """Of very many every second, third and so on."""
    return numbers[:: 1 + len(numbers) // _MANY]


def regular_part(spent: list[int]) -> tuple[float, list[int]]:
    """Of what each step spends: what every step does (the median), and the numbers of the steps that spend far more.

    Of these the ones that are far from the others are left out: less than half of the excess below which half of it
    all lies.
    """
    usual = median(spent) if spent else 0.0
    least = max(2.0 * usual, usual + RESTART_NS)
    odd = [at for at, one in enumerate(spent) if one > least]
    excess = sorted(spent[at] - usual for at in odd)
    middle = next((one for one, sofar in zip(excess, accumulate(excess), strict=True) if 2 * sofar >= sum(excess)), 0.0)
    return usual, [at for at in odd if 2 * (spent[at] - usual) >= middle]


def rhythm(numbers: list[int]) -> int | None:
    """Every how many steps something happens; None where that is not regular."""
    if len(numbers) < 3:
        return None
    distances = [after - before for before, after in pairwise(numbers)]
    usual = round(median(distances))
    fitting = sum(abs(distance - usual) <= max(1, usual // 10) for distance in distances)
    return usual if usual > 1 and fitting * 4 >= 3 * len(distances) else None


def unevenness(spent: list[int]) -> float:
    """The coefficient of variation: 0 of equal values, about 1 of waiting times for requests that come at random."""
    mean, deviation = sigma(spent) if spent else (0.0, 0.0)
    return deviation / mean if mean else 0.0
