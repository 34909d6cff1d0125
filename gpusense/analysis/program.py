"""A program's run, divided: start-up, the loop's steady state with what interrupts it, the tail."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from operator import attrgetter, mul, ne
from typing import Any, NamedTuple

from .._records import lanes
from .._records.records import LOADER, BlockRecord, Path
from .._records.work import WorkTable
from .._runtime.patterns import pattern
from .._runtime.text import one_line, time_text
from ..session import Session
from .anomalies import median
from .busy import window
from .processes import processes_of
from .rows import Rows, marked, sums
from .steps import LEAST, Loop, find_loop, looked_at, steady

START_UP, STEADY, INTERLUDE, TAIL, WHOLE = "start-up", "steady", "interlude", "tail", "run"

#: A loop is the program's where its steps have at least so much of the time in which the device worked.
_WORTH = 0.3
#: The same of one kernel that is launched again and again: at the end of a warm-up, in a library, or in one step.
_WORTH_ALONE = 0.6
#: What lies between two steps and is shorter than this part of a step belongs to them.
_SHORT = 0.5
#: Blocks of the program are its steps where they hold so much of what the device did.
_BLOCKS_HOLD = 0.6
#: Of smaller loops each step has a whole number, but for a first one that differs.
_WHOLE = 0.15
#: Ranges around a compiler's work; a "compiled_step" is none.
_COMPILES = pattern(r"compile(?![a-z])|compilation|autotun|trace_to_jaxpr|^lower_(?:sharding|jaxpr)")
#: Passes of a block that is known to be a step.
_TOLD_LEAST = 3


class Phase(NamedTuple):
    """A part of the run. Phases follow each other without gaps and cover the window."""

    name: str  # "start-up", "steady", "interlude", "tail"; "run" where there is no loop
    start_ns: int
    end_ns: int
    process: str | None = None  # of a merged session, the first name of the paths of its blocks

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


class Launches(NamedTuple):
    """Columns: the kind of each launch, when its work began and ended; and of those that are looked at to find a loop
    (see :func:`~gpusense.analysis.steps.looked_at`) how long kernels ran and how many rows there are."""

    kinds: "array[int]"
    starts: "array[int]"
    ends: "array[int]"
    ran: "array[int]"
    counts: "array[int]"


class Steps(NamedTuple):
    """The steady state's steps."""

    number: int
    median_ns: float
    mean_ns: float
    spread_ns: float  # half of what lies between the 10th and the 90th percentile
    starts: "array[int]"
    ends: "array[int]"
    name: str  # "step", or the block that they are passes of
    warm_up: int  # slow ones before them, which are part of the start-up
    inner: int | None = None  # see :class:`~gpusense.analysis.steps.Loop`
    inner_ns: float | None = None

    def at(self, time_ns: int) -> int | None:
        """The number of the step that ran at a moment."""
        place = bisect_right(self.starts, time_ns) - 1
        return place if place >= 0 and time_ns < self.ends[place] else None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Without the times of each, for a notebook."""
        length, spread = time_text(self.median_ns), time_text(self.spread_ns)
        printer.text(f"{self.number:,} × {one_line(self.name, 60)} of {length} (median, ± {spread})")


class Program:
    """One process of a session: its launches in order, the loop in them, and its phases."""

    def __init__(self, session: Session, work: WorkTable, root: str | None = None) -> None:
        """``work``: of the session, in the order of starts; ``root``: of a merged session, whose path each of its rows
        begins with."""
        self._session, self._work, self.root = session, work, root
        #: Rows of this process, in the order of starts.
        self.rows = Rows(marked(work.path, [root is None or path[:1] == (root,) for path in work.paths]))

    @cached_property
    def _meta(self) -> dict[str, Any]:
        """What is known of this process."""
        of = self._session.meta
        if self.root is not None:
            return next((one for one in of.get("processes") or () if one.get("root") == self.root), of)
        return of

    @cached_property
    def window(self) -> tuple[int, int]:
        """The program's first line to its end, as far as they are known."""
        of = self._meta
        whole = window(self._session) or (0, 0)
        start = of.get("program_start_ns") or of.get("start_ns") or whole[0]
        end = of.get("program_end_ns") or of.get("end_ns") or whole[1]
        return (start, end) if end > start else whole

    @cached_property
    def _busy(self) -> Rows:
        """Rows that occupied a device."""
        on_device = [one.kind != "sync" and one.timing == "device" for one in self._work.kinds]
        return self.rows.where(marked(self._work.kind, on_device))

    @cached_property
    def first_ns(self) -> int:
        """When the first work of a device began; the start of the window where there was none."""
        first = self._busy.first
        return self.window[0] if first is None else self._work.start[first]

    @cached_property
    def launches(self) -> Launches:
        """In the order in which they were made; of one launch, as that of a graph, the first row alone."""
        work = self._work
        orders, *columns = map(self.rows.of, (work.order, work.kind, work.start, work.end))
        if not _ascend(orders):
            known = Rows(lanes.above(orders, 0))
            if 2 * len(known) >= len(orders):  # else of other sources than CUDA: as they ran
                orders, *columns = _in_order(*map(known.of, (orders, *columns)))
        kinds, starts, ends = columns
        kernel = bytes(one.kind == "kernel" for one in work.kinds)
        first, last = looked_at(len(orders))
        if orders and orders[0] and not _ascend(orders):
            return _joined(orders, kinds, starts, ends, kernel)
        ran = _lengths_of(kernel, kinds[first:last], starts[first:last], ends[first:last])
        return Launches(kinds, starts, ends, ran, array("q", (1,)) * len(ran))

    @cached_property
    def _loop(self) -> Loop | None:
        work, launches = self._work, self.launches
        numbers: dict[tuple[object, ...], int] = {}
        of_kind = []
        for one in work.kinds:
            telling = (one.kind, one.full_name or one.name, one.grid, one.direction, one.device)
            of_kind.append(numbers.setdefault(telling, len(numbers)))
        # Work of the device itself: what is copied to or from the host tells less of what a program means by a step.
        own = [key[0] in ("kernel", "memset") or key[3] in ("on_device", "gpu_to_gpu") for key in numbers]
        symbols = launches.kinds
        if of_kind != list(range(len(of_kind))):
            symbols = array("I", map(of_kind.__getitem__, symbols))
        return find_loop(symbols, launches.starts, launches.ends, launches.ran, launches.counts, own)

    @cached_property
    def steps(self) -> Steps | None:
        """None where nothing repeats itself, or only what hardly matters."""
        found = None if self._loop is None else _steps(self._loop, "step")
        told = self._told
        if told is not None and (found is None or not _as_many(found, told.number + told.warm_up)):
            return told
        if found is None or not self._matters(found):
            found = self._of_blocks()
            return found if found is not None and self._matters(found) else None
        around = self._around(found)
        if around is not None:
            return around
        if self._loop is not None and self._loop.period == 1 and 2 * len(self.launches.kinds) > len(self.rows):
            found = found._replace(name="launch")  # of one kernel, and not of a graph
            return found if self._matters(found, _WORTH_ALONE) else None
        return found._replace(name=self._named(found))

    @cached_property
    def _passes(self) -> "dict[Path, list[tuple[int, int]]]":
        """When each pass of each block was, in order; blocks further out first. Those in which a compiler works are no
        steps of the program."""
        passes: dict[Path, list[tuple[int, int]]] = {}
        for record in self._session.records:
            if (
                type(record) is BlockRecord
                and (self.root is None or record.path[:1] == (self.root,))
                and not compiles(record.name)
            ):
                passes.setdefault(record.path, []).append((record.start_ns, record.end_ns))
        for spans in passes.values():
            spans.sort()
        return dict(sorted(passes.items(), key=lambda item: (len(item[0]), -len(item[1]))))

    def cores(self, spans: "list[tuple[int, int]]") -> float | None:
        """On how many cores the process computed in some times, on average; None where no readings tell: those before
        and after a time must lie close to it."""
        try:
            times, spent = zip(*(self._meta.get("cpu_time") or ()), strict=True)
            used = whole = 0
            for start, end in spans:
                low, high = bisect_right(times, start) - 1, bisect_left(times, end)
                if low < 0 or 4 * (times[high] - times[low]) > 5 * (end - start):
                    return None
                used += spent[high] - spent[low]
                whole += times[high] - times[low]
        except (IndexError, TypeError, ValueError):  # not known, or what somebody made up
            return None
        return used / whole if whole else None

    @property
    def other_threads(self) -> list[str]:
        """The names of Python's threads beside the main one, as far as they are known."""
        rows = self._meta.get("threads") or ()
        names = [one_line(str(row.get("name")), 40) for row in rows if isinstance(row, dict)]
        return [name for name in dict.fromkeys(names) if name != "MainThread"]

    @cached_property
    def loads(self) -> "list[BlockRecord]":
        """Waits for a DataLoader, in order: blocks of the torch integration, or ranges of torch's own profiler."""
        return sorted(
            (
                record
                for record in self._session.records
                if type(record) is BlockRecord
                and (record.name == LOADER or record.name.startswith(f"enumerate({LOADER})#"))
                and (self.root is None or record.path[:1] == (self.root,))
            ),
            key=attrgetter("start_ns"),
        )

    def _named(self, steps: Steps) -> str:
        """What the program calls its steps, if one of its blocks is passed as often and holds most of the work."""
        total = sum(self._spent_by_path)
        for path, spans in self._passes.items():
            if _as_many(steps, len(spans)) and self._spent_in(path) >= _BLOCKS_HOLD * total:
                return path[-1]
        return "step"

    @cached_property
    def _told(self) -> Steps | None:
        """Passes of the block that is a step by what recorded it: ``step_block`` of an imported session. Three are
        enough, as many as a profiler's schedule often has, and too few to be found from launches."""
        for path, spans in self._passes.items():
            if path[-1] == self._meta.get("step_block") and len(spans) >= _TOLD_LEAST:
                starts = array("q", [start for start, _ in spans])
                found = _steps(Loop(0, starts, array("q", [*starts[1:], spans[-1][1]])), path[-1], _TOLD_LEAST - 1)
                return found if found is not None and self._matters(found) else None
        return None

    def _of_blocks(self) -> Steps | None:
        """Passes of the outermost repeated block that holds most of the work."""
        total = sum(self._spent_by_path)
        for path, spans in self._passes.items():
            if len(spans) > LEAST and (self._spent_in(path) >= _BLOCKS_HOLD * total):
                starts = array("q", [start for start, _ in spans])
                return _steps(Loop(0, starts[:-1], starts[1:]), path[-1])
        return None

    def _around(self, inner: Steps) -> Steps | None:
        """Steps of the program, of each of which its launches show several alike: passes of a block that holds most of
        the work say how many."""
        total = sum(self._spent_by_path)
        for path, spans in self._passes.items():
            each = (inner.number + inner.warm_up) / len(spans)
            if len(spans) < LEAST or each < 1.8 or abs(each - round(each)) > min(0.1 * round(each), _WHOLE):
                continue
            if self._spent_in(path) < _BLOCKS_HOLD * total:
                continue
            starts = inner.starts[:: round(each)]
            found = _steps(Loop(0, starts[:-1], starts[1:]), path[-1])
            return None if found is None else found._replace(inner=round(each), inner_ns=inner.median_ns)
        return None

    @cached_property
    def news(self) -> set[int]:
        """Rows of what had not run before with this size: compiled or tuned just then, perhaps. Not known of another
        tool's trace, which begins in the middle of a run."""
        if self._meta.get("imported_from"):
            return set()
        work, firsts = self._work, dict[tuple[object, ...], int]()
        for number, row in self.rows.firsts(self._work.kind):
            one = work.kinds[number]
            firsts.setdefault((one.kind, one.full_name or one.name, one.grid, one.block), row)
        return set(firsts.values())

    @cached_property
    def _spent_by_path(self) -> list[int]:
        """Of each path the time of its work on devices, added up."""
        paths, count = self._work.path, len(self._work.paths)
        lengths = self._lengths(self._busy)
        return sums(self._busy.of(paths), lengths, count) if count > 1 else [sum(lengths)]

    def _lengths(self, rows: Rows) -> "array[int]":
        return rows.lengths(self._work.start, self._work.end)

    def _spent_in(self, path: Path) -> int:
        """As far as it was launched in a block of this path or in one inside."""
        pairs = zip(self._work.paths, self._spent_by_path, strict=True)
        return sum(spent for other, spent in pairs if other[: len(path)] == path)

    def _matters(self, found: Steps, worth: float = _WORTH) -> bool:
        """Whether the steps have a real part of the work."""
        start, whole = self._work.start, sum(self._spent_by_path)
        first, last = bisect_left(start, found.starts[0]), bisect_left(start, found.ends[-1])
        outside = self._busy.within([(0, first), (last, len(start))])
        return whole - sum(self._lengths(outside)) >= worth * whole

    @cached_property
    def phases(self) -> list[Phase]:
        """In order, and without gaps."""
        low, high = self.window
        found = self._without_loop(low, high) if self.steps is None else self._with_loop(self.steps, low, high)
        return [phase._replace(process=self.root) for phase in found if phase.length_ns > 0]

    def _with_loop(self, steps: Steps, low: int, high: int) -> list[Phase]:
        found = [Phase(START_UP, low, steps.starts[0])] if steps.starts[0] > low else []
        at = steps.starts[0]
        for end, after in zip(steps.ends, steps.starts[1:], strict=False):
            if after - end > _SHORT * steps.median_ns:
                found += [Phase(STEADY, at, end), Phase(INTERLUDE, end, after)]
                at = after
        last = min(steps.ends[-1], high)
        found.append(Phase(STEADY, at, last))
        if high > last:
            found.append(Phase(TAIL, last, high))
        return found

    def _without_loop(self, low: int, high: int) -> list[Phase]:
        if not self._busy:
            return [Phase(WHOLE, low, high)]
        first, last = self.first_ns, max(self._busy.of(self._work.end))
        first, last = min(max(first, low), high), min(max(last, low), high)
        return [Phase(START_UP, low, first), Phase(WHOLE, first, last), Phase(TAIL, last, high)]

    @property
    def judged(self) -> str:
        """The name of the phase in which time can be saved."""
        return STEADY if self.steps is not None else WHOLE

    def spans(self, name: str) -> list[tuple[int, int]]:
        """When a phase was, all its parts."""
        return [(phase.start_ns, phase.end_ns) for phase in self.phases if phase.name == name]

    def rows_in(self, name: str) -> Rows:
        """Rows of this process that began in a phase."""
        start = self._work.start
        return self.rows.within((bisect_left(start, low), bisect_left(start, high)) for low, high in self.spans(name))


def compiles(name: str) -> bool:
    """Whether a block is a range of JAX or torch around a compiler's work, which tries kernels out."""
    return _COMPILES.search(name) is not None


def _ascend(orders: "array[int]") -> bool:
    """Whether each launch has a number, and one of its own that is higher than that before it."""
    return not orders or (orders[0] > 0 and 0 not in lanes.less(memoryview(orders)[:-1], memoryview(orders)[1:]))


def _in_order(orders: "array[int]", *columns: "array[int]") -> "Iterator[array[int]]":
    """All columns by the first of them."""
    pieces = lanes.in_order(orders)
    if pieces is not None:
        return (lanes.joined(column, pieces) for column in (orders, *columns))
    rows = sorted(range(len(orders)), key=orders.__getitem__)
    return (array(column.typecode, map(column.__getitem__, rows)) for column in (orders, *columns))


def _lengths_of(wanted: bytes, kinds: "array[int]", starts: "array[int]", ends: "array[int]") -> "array[int]":
    """How long rows of wanted kinds were; 0 of others."""
    return array("q", map(mul, lanes.lengths(starts, ends), map(wanted.__getitem__, kinds)))


def _joined(
    orders: "array[int]", kinds: "array[int]", starts: "array[int]", ends: "array[int]", kernel: bytes
) -> Launches:
    """Launches of rows of which some, nodes of a graph, have one launch in common."""
    new = Rows(bytes((1, *map(ne, orders, orders[1:]))))
    begins = array("I", new)
    stops = array("I", (*begins[1:], len(orders)))
    first, last = looked_at(len(begins))
    begin, stop = begins[first], stops[:last][-1]
    part = slice(begin, stop)
    before = list(accumulate(_lengths_of(kernel, kinds[part], starts[part], ends[part]), initial=0))
    pairs = list(zip(begins[first:last], stops[first:last], strict=True))
    return Launches(
        new.of(kinds),
        new.of(starts),
        array(
            "q",
            [ends[low] if high == low + 1 else max(ends[low:high]) for low, high in zip(begins, stops, strict=True)],
        ),
        array("q", [before[high - begin] - before[low - begin] for low, high in pairs]),
        array("q", [high - low for low, high in pairs]),
    )


def _as_many(steps: Steps, passes: int) -> bool:
    return abs(passes - steps.number - steps.warm_up) <= 2 + steps.number // 50


def _steps(loop: Loop, name: str, least: int = LEAST) -> Steps | None:
    first, last = steady(loop)
    lengths = sorted(loop.lengths[first:last])
    if len(lengths) < least:
        return None
    low, high = lengths[len(lengths) // 10], lengths[-1 - len(lengths) // 10]
    return Steps(
        number=len(lengths),
        median_ns=median(lengths),
        mean_ns=sum(lengths) / len(lengths),
        spread_ns=(high - low) / 2,
        starts=loop.starts[first:last],
        ends=loop.ends[first:last],
        name=name,
        warm_up=first,
        inner=loop.inner,
        inner_ns=loop.inner_ns,
    )


def programs(session: Session, work: WorkTable, roots: "list[str] | None" = None) -> list[Program]:
    """One a process of the session. ``work``: its, in the order of starts; ``roots``: of the processes it has rows of,
    where it is a part of a merged session."""
    if roots is None:
        roots = [one["root"] for one in processes_of(session)]
        if len(roots) < 2:
            return [Program(session, work)]
    return [Program(session, work, root) for root in roots]
