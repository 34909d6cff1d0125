"""Two sets of runs compared: counts first, which are exact on any machine; times only where they differ for sure.

What is compared has a name that is the same on both sides: kernels by their full names, blocks by their paths.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._records.records import Path
from .._runtime.text import count_text, one_line, option_percent_text, size_text, time_text
from ..session import Session
from ..session._names import alike
from .anomalies import median
from .blocks import BlockNode, block_tree, times_blocks
from .busy import device_times, unseen, window
from .conditions import clocks_are_known, conditions, names
from .diff_counters import CounterChange, counter_changes
from .intervals import total
from .operation import DEVICE_KINDS, Operation, operations
from .processes import compared_path
from .significance import CALLS, DECISIVE_RUNS, EFFECT, LEVEL, benjamini_hochberg, holm, mann_whitney, runs_needed
from .unwritten import untimed

#: Shares of device time, of blocks of wall time, from which a time decides.
_DECIDING_SHARE = 0.05
#: Operations below this share of device time on both sides are not tested: each test costs power.
_TESTED_SHARE = 0.02
#: A share of the run below which capture that was off is not worth a word.
_MOMENT = 0.01
#: Kinds that are recorded on request: none on one side may mean that they were not asked for.
_ON_REQUEST = ("synchronisations", "allocations", "bytes allocated")


class CountChange(NamedTuple):
    """A count in every run of both sides."""

    what: str  # "kernels", "bytes cpu_to_gpu", "calls of gemm"
    before: tuple[int, ...]
    after: tuple[int, ...]
    total: bool  # of the whole run, not of one operation: only these decide

    @property
    def change(self) -> float | None:
        """Share by which the median changed; None from zero."""
        before = median(self.before)
        return median(self.after) / before - 1 if before else None

    @property
    def verdict(self) -> str:
        """ "same", "more", "fewer", or "varies" where the runs of both sides overlap."""
        if set(self.before) == set(self.after) and len(set(self.before)) == 1:
            return "same"
        if min(self.after) > max(self.before):
            return "more"
        if max(self.after) < min(self.before):
            return "fewer"
        return "varies"


class TimeChange(NamedTuple):
    """A time on both sides, in nanoseconds. What ``before`` and ``after`` list is what ``basis`` says."""

    what: str  # "wall time", "GPU busy", the operation's name, or the block's path: "step › load"
    kind: str  # "total", "block", or the operation's kind
    before: tuple[int, ...]
    after: tuple[int, ...]
    share: float  # of device time, of a block of wall time; the larger of both sides
    probability: float | None  # adjusted, that chance alone would do it; None where it could not be tested
    basis: str  # "runs": totals, of a block a usual pass; "calls", "passes": single ones; "untested": as of runs
    effect_ns: float = 0  # what it changed in a whole run, of a block without those inside

    @property
    def change(self) -> float | None:
        """Relative change of the median, 0.1 for 10 % more; None where it was 0."""
        before = median(self.before)
        return median(self.after) / before - 1 if before else None

    @property
    def verdict(self) -> str:
        """ "slower" or "faster" for sure, "no difference shown", or "not tested"."""
        if self.probability is None or self.change is None:
            return "not tested"
        if self.probability > LEVEL or abs(self.change) < EFFECT:
            return "no difference shown"
        return "slower" if self.change > 0 else "faster"

    @property
    def called(self) -> str:
        """What it is called among others: "block step › load"."""
        return f"block {self.what}" if self.kind == "block" else self.what

    @property
    def decides(self) -> bool:
        """Whether runs were compared, and it is not too small to matter. Of single calls and passes of one run it is
        not known what differs from run to run."""
        return self.basis == "runs" and (self.kind == "total" or self.share >= _DECIDING_SHARE)


class Diff(NamedTuple):
    """Two sets of runs side by side."""

    runs: tuple[int, int]  # before and after
    counts: tuple[CountChange, ...]  # totals first, then operations whose calls changed
    times: tuple[TimeChange, ...]  # totals first, then operations by what they changed
    appeared: tuple[str, ...]  # operations on the second side only
    vanished: tuple[str, ...]
    notes: tuple[str, ...]
    blocks: tuple[TimeChange, ...] = ()  # by what they changed themselves
    conditions: tuple[str, ...] = ()  # what else differs: clocks, devices, versions
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # of the runs: labels and files
    counters: tuple[CounterChange, ...] = ()  # of the hardware; they never decide
    unrecorded: tuple[int, int] = (0, 0)  # runs in which the device timed blocks, and kernels were not recorded

    @property
    def blind(self) -> str:
        """Why nothing can be said to be as good as before: a run in which no GPU work was seen is no fast one."""
        work = [row for row in self.counts if row.total and row.what in ("kernels", "copies", "memsets")]
        if not work:
            return ""
        if self.unrecorded[1] and not self.unrecorded[0]:
            return (
                f"kernels were not recorded in {count_text(self.unrecorded[1], 'run')} after: the device timed blocks"
            )
        before = list(map(sum, zip(*(row.before for row in work), strict=True)))
        after = list(map(sum, zip(*(row.after for row in work), strict=True)))
        if not all(before) or all(after):
            return ""
        of = count_text(len(after), "run")
        return f"no GPU work was recorded in {after.count(0)} of {of} after, and in each run before"

    def failures(self, over: float) -> tuple[str, ...]:
        """Sentences about everything that grew by more than ``over`` (0.1 is 10 %) and decides; empty if all is well.
        Where a run after has recorded no GPU work at all, that is one, too.

        Totals of counts decide wherever the runs of both sides do not overlap. Times decide where at least five runs
        a side show a significant change: wall time, GPU time, operations of at least 5 % of device time, and blocks of
        at least 5 % of wall time.
        """
        found = [self.blind] if self.blind else []
        for count in self.counts:
            if count.total and count.verdict == "more" and not _maybe_unrecorded(count):
                change = count.change
                if change is None or change > over:
                    grew = f"+{option_percent_text(change)}" if change is not None else "from none"
                    found.append(f"{count.what}: {_range(count.before)} → {_range(count.after)} ({grew})")
        found += [
            f"{time.called}: +{option_percent_text(time.change or 0)} (p = {time.probability:.2g}, {self.runs[1]} runs)"
            for time in (*self.times, *self.blocks)
            if time.decides and time.verdict == "slower" and (time.change or 0) > over
        ]
        return tuple(found)

    @property
    def times_were_judged(self) -> bool:
        """Whether there are enough runs a side for times to decide."""
        return min(self.runs) >= DECISIVE_RUNS


def compare(before: Sequence[Session], after: Sequence[Session]) -> Diff:
    """Compares two runs, or two sets of runs of the same program. Raises ValueError for an empty side."""
    if not before or not after:
        raise ValueError("both sides need at least one session")
    named = tuple(map(names, before)), tuple(map(names, after))
    before, after = alike((before, after))
    listed = [[operations(run) for run in side] for side in (before, after)]
    tables = [[_table(rows) for rows in side] for side in listed]
    keys = [set().union(*side) for side in tables]
    counts = [
        CountChange(what, tuple(map(read, listed[0])), tuple(map(read, listed[1])), True) for what, read in _TOTALS
    ]
    counts = [row for row in counts if any(row.before) or any(row.after)]
    notes = _notes(before, after, counts)
    counts += _calls(tables, sorted(keys[0] & keys[1]))
    trees = [[_blocks(run) for run in side] for side in (before, after)]
    paths = [set().union(*side) for side in trees]
    return Diff(
        runs=(len(before), len(after)),
        counts=tuple(counts),
        times=_times(before, after, tables, sorted(keys[0] & keys[1]), notes),
        appeared=(*(name for _, name in sorted(keys[1] - keys[0])), *_named(paths[1] - paths[0])),
        vanished=(*(name for _, name in sorted(keys[0] - keys[1])), *_named(paths[0] - paths[1])),
        notes=tuple(notes),
        blocks=_block_times(before, after, trees, sorted(paths[0] & paths[1])),
        conditions=tuple(conditions(before, after, _same_kernels(counts, keys))),
        names=named,
        counters=tuple(counter_changes(before, after)),
        unrecorded=(sum(map(times_blocks, before)), sum(map(times_blocks, after))),
    )


def _same_kernels(counts: list[CountChange], keys: "list[set[_Key]]") -> bool:
    """Whether both sides launched the same kernels, each as often."""
    return (
        any(row.what == "kernels" for row in counts)
        and all(row.verdict == "same" for row in counts if row.what == "kernels" or not row.total)
        and not any(kind == "kernel" for kind, _ in keys[0] ^ keys[1])
    )


_Key = tuple[str, str]
_Table = dict[_Key, list[Operation]]


def _table(listed: list[Operation]) -> _Table:
    """Operations by kind and name, over devices and backends."""
    rows: _Table = {}
    for row in listed:
        rows.setdefault((row.kind, row.name), []).append(row)
    return rows


def _count(kind: str) -> Callable[[list[Operation]], int]:
    return lambda rows: sum(row.count for row in rows if row.kind == kind)


def _bytes(direction: str) -> Callable[[list[Operation]], int]:
    return lambda rows: sum(row.bytes for row in rows if row.direction == direction)


_TOTALS: tuple[tuple[str, Callable[[list[Operation]], int]], ...] = (
    ("kernels", _count("kernel")),
    ("copies", _count("transfer")),
    ("memsets", _count("memset")),
    ("bytes to the GPU", _bytes("cpu_to_gpu")),
    ("bytes to the host", _bytes("gpu_to_cpu")),
    ("bytes between GPUs", _bytes("gpu_to_gpu")),
    ("synchronisations", _count("sync")),
    ("allocations", lambda rows: sum(row.count for row in rows if (row.kind, row.name) == ("allocation", "alloc"))),
    ("bytes allocated", lambda rows: sum(row.bytes for row in rows if (row.kind, row.name) == ("allocation", "alloc"))),
)


def _calls(tables: list[list[_Table]], common: list[_Key]) -> list[CountChange]:
    rows = []
    for key in common:
        sides = [tuple(sum(row.count for row in run.get(key, ())) for run in side) for side in tables]
        change = CountChange(f"calls of {key[1]}", sides[0], sides[1], False)
        if change.verdict != "same":
            rows.append(change)
    return sorted(rows, key=lambda row: -abs(median(row.after) - median(row.before)))


def _times(
    before: Sequence[Session],
    after: Sequence[Session],
    tables: list[list[_Table]],
    common: list[_Key],
    notes: list[str],
) -> tuple[TimeChange, ...]:
    totals = []
    for what, read in (("wall time", _wall), ("GPU busy", _busy)):
        sides = [tuple(value for run in side if (value := read(run)) is not None) for side in (before, after)]
        if sides[0] and sides[1]:
            totals.append(TimeChange(what, "total", sides[0], sides[1], 1.0, None, "untested"))
    rows = []
    for key in common:
        if key[0] not in DEVICE_KINDS:
            continue
        sides = [tuple(sum(row.total_ns for row in run.get(key, ())) for run in side) for side in tables]
        share = max(sum(row.share for row in run.get(key, ())) for side in tables for run in side)
        effect = median(sides[1]) - median(sides[0])
        rows.append(TimeChange(key[1], key[0], sides[0], sides[1], share, None, "untested", effect))
    if min(len(before), len(after)) >= DECISIVE_RUNS:
        totals = _tested(totals, "runs", holm)
        tested = [row for row in rows if row.share >= _TESTED_SHARE]
        needed = runs_needed(len(tested))
        if tested and min(len(before), len(after)) < needed:
            notes.append(
                f"{count_text(len(tested), 'operation is', 'operations are')} compared: a change in a single one can "
                f"only be told from chance with {count_text(needed, 'run')} a side."
            )
        rows = _tested(tested, "runs", benjamini_hochberg) + [row for row in rows if row.share < _TESTED_SHARE]
    elif len(before) == len(after) == 1:
        rows = _tested_calls(before[0], after[0], rows)
    return (*totals, *_heaviest_first(rows))


def _heaviest_first(rows: list[TimeChange]) -> list[TimeChange]:
    """By what they changed; those that changed nothing by their share."""
    return sorted(rows, key=lambda row: (-abs(row.effect_ns), -row.share))


def _tested(rows: list[TimeChange], basis: str, adjust: Callable[[Sequence[float]], list[float]]) -> list[TimeChange]:
    adjusted = adjust([mann_whitney(row.before, row.after) for row in rows])
    return [row._replace(probability=value, basis=basis) for row, value in zip(rows, adjusted, strict=True)]


def _tested_calls(before: Session, after: Session, rows: list[TimeChange]) -> list[TimeChange]:
    """Single calls of one run a side, where every call was kept."""
    durations = [_durations(run) for run in (before, after)]
    complete = _complete(before) & _complete(after)
    testable: list[TimeChange] = []
    others: list[TimeChange] = []
    for row in rows:
        key = (row.kind, row.what)
        enough = min(len(side.get(key, ())) for side in durations) >= CALLS
        (testable if enough and key in complete else others).append(row)
    keys = [(row.kind, row.what) for row in testable]
    adjusted = benjamini_hochberg([mann_whitney(durations[0][key], durations[1][key]) for key in keys])
    tested = [
        row._replace(before=tuple(durations[0][key]), after=tuple(durations[1][key]), probability=value, basis="calls")
        for row, key, value in zip(testable, keys, adjusted, strict=True)
    ]
    return tested + others


def _durations(run: Session) -> dict[_Key, list[int]]:
    """Lengths of calls, of all work where the session has its rows, else of those that were kept."""
    work, found = run.work, dict[_Key, list[int]]()
    keys = [(one.kind, one.name) for one in work.kinds]
    for kind, start, end in zip(work.kind, work.start, work.end, strict=True):
        if keys[kind][0] in DEVICE_KINDS:
            found.setdefault(keys[kind], []).append(end - start)
    return found


def _complete(run: Session) -> set[_Key]:
    """Operations of which the length of every call is known."""
    counted = (
        set() if run.has_work and run.work.complete else {(row.kind, row.name) for row in run.aggregates if row.count}
    )
    return {(row.kind, row.name) for row in operations(run, DEVICE_KINDS)} - counted


# --- blocks -----------------------------------------------------------------------------------------------------------


def _blocks(run: Session) -> dict[Path, BlockNode]:
    """Blocks with passes by their paths."""
    compared = compared_path(run)
    return {compared(node.path): node for _, node in block_tree(run).walk() if node.passes}


def _named(paths: set[Path]) -> list[str]:
    return [f"block {one_line(' › '.join(path), 200)}" for path in sorted(paths)]


def _block_times(
    before: Sequence[Session],
    after: Sequence[Session],
    trees: list[list[dict[Path, BlockNode]]],
    common: list[Path],
) -> tuple[TimeChange, ...]:
    """With enough runs each gives one usual pass; else passes are the samples, and nothing is known of other runs."""
    decisive = min(len(before), len(after)) >= DECISIVE_RUNS
    walls = [[max(1, _wall(run) or 1) for run in side] for side in (before, after)]
    rows = []
    for path in common:
        nodes = [[tree[path] for tree in side if path in tree] for side in trees]
        if any(all(node.open_passes == node.passes for node in side) for side in nodes):
            continue  # no pass that ended
        usual = [tuple(round(_usual(node)) for node in side) for side in nodes]
        passes = [tuple(length for node in side for length in node.lengths) for side in nodes]
        share = max(
            tree[path].wall_ns / wall
            for side, spans in zip(trees, walls, strict=True)
            for tree, wall in zip(side, spans, strict=True)
            if path in tree
        )
        own = [sum(node.times.own_ns or 0 for node in side) / len(side) for side in nodes]
        whole = not any(node.counted for side in nodes for node in side)
        by_pass = not decisive and whole and min(map(len, passes)) >= CALLS
        sides = passes if by_pass else usual
        basis = "passes" if by_pass else "untested"
        rows.append(TimeChange(" › ".join(path), "block", sides[0], sides[1], share, None, basis, own[1] - own[0]))
        rows += _on_device(" › ".join(path), nodes, share, decisive)
    tested: list[TimeChange] = []
    left: list[TimeChange] = []
    for row in rows:
        (tested if row.basis == "passes" or (decisive and row.share >= _TESTED_SHARE) else left).append(row)
    found = _tested(tested, "runs" if decisive else "passes", benjamini_hochberg) + left
    return tuple(_heaviest_first(found))


def _on_device(what: str, nodes: list[list[BlockNode]], share: float, decisive: bool) -> list[TimeChange]:
    """The same of what the device timed; none where it did not in all runs, or for the most part gave bounds."""
    if not all(2 * node.times.device_at_most < node.times.device_passes for side in nodes for node in side):
        return []
    usual = [tuple(round(median(node.device_lengths or [_device_avg(node)])) for node in side) for side in nodes]
    passes = [tuple(length for node in side for length in node.device_lengths) for side in nodes]
    whole = all(len(node.device_lengths) == node.times.device_passes for side in nodes for node in side)
    by_pass = not decisive and whole and min(map(len, passes)) >= CALLS
    sides, basis = (passes, "passes") if by_pass else (usual, "untested")
    total = [sum(node.times.device_ns or 0 for node in side) / len(side) for side in nodes]
    return [TimeChange(f"{what}, device", "block", sides[0], sides[1], share, None, basis, total[1] - total[0])]


def _device_avg(node: BlockNode) -> float:
    return node.times.device_avg_ns or 0.0


def _usual(node: BlockNode) -> float:
    """Length of a pass: the median, or where that is not known the average."""
    times = node.times
    return times.median_ns if times.median_ns is not None else times.avg_ns or 0.0


def _wall(run: Session) -> int | None:
    """Of the program, as every report gives it, and not of the process around it."""
    whole = window(run)
    return whole[1] - whole[0] if whole else None


def _busy(run: Session) -> int | None:
    times = device_times(run)
    return sum(time.busy_ns for time in times) if times else None


def _notes(before: Sequence[Session], after: Sequence[Session], counts: list[CountChange]) -> list[str]:
    notes = []
    if min(len(before), len(after)) < DECISIVE_RUNS:
        notes.append(
            f"Times do not decide with {count_text(len(before), 'run')} before and {len(after)} after: noise from run "
            f"to run cannot be told from a change. Give {DECISIVE_RUNS} or more sessions a side. Where single calls or "
            "passes are compared, they are samples of only these runs."
        )
    if any(row.what == "kernels" for row in counts) and not clocks_are_known(before, after):
        notes.append("Clocks were not sampled on both sides: a slower GPU cannot be told from slower code.")
    counted = [any(len(run.counter_samples) for run in side) for side in (before, after)]
    if any(counted) and not all(counted):
        notes.append("Hardware counters were sampled on one side only: they are not compared.")
    notes += [
        f"{row.what}: recorded on one side only; were they asked for in both?"
        for row in counts
        if _maybe_unrecorded(row)
    ]
    for what, amount, words in _MISSING:
        sides = [sum(map(amount, side)) for side in (before, after)]
        if any(sides):
            notes.append(f"{what} ({words(sides[0])} before, {words(sides[1])} after): counts are lower bounds.")
    return notes


def _is_broken(run: Session) -> bool:
    return bool(run.meta.get("damage")) or run.meta.get("complete") is False


def _unseen_ns(run: Session) -> int:
    """How long capture was off; 0 where it was only for a moment, as it is at most beginnings."""
    whole, off = window(run), total(unseen(run, ("cuda", None)))
    return off if whole is not None and off > _MOMENT * (whole[1] - whole[0]) else 0


#: What makes counts too small: what is said, how much of it there is in a run, and how that is written.
_MISSING: tuple[tuple[str, Callable[[Session], int], Callable[[int], str]], ...] = (
    ("Records are missing", lambda run: run.counters.dropped + run.counters.invalid, "{:,}".format),
    ("Requests for a buffer found none free", lambda run: run.counters.missed, "{:,}".format),
    ("wgpu passes were not timed", lambda run: sum(untimed(run).values()), "{:,}".format),
    ("Session files do not hold all that was recorded", lambda run: run.counters.bytes_dropped, size_text),
    ("Session files are incomplete or damaged", lambda run: int(_is_broken(run)), str),
    ("Capture was off for a time", _unseen_ns, time_text),
)


def _maybe_unrecorded(row: CountChange) -> bool:
    return row.what in _ON_REQUEST and (not any(row.before) or not any(row.after))


def _range(values: tuple[int, ...]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
