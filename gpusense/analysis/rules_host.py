"""Findings about a device that is idle: launches, waits of the host, input, stalls, start-up.

All shares are of the phase that is judged: the steps, where there are such.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import sub
from typing import NamedTuple

from .._records.records import LOADER, LOADER_BATCH, LOADER_WORKERS, Path
from .._runtime.text import count_text, one_line, percent_text, time_text
from .anomalies import median
from .facts import Facts, Finding, waits_for_device
from .intervals import total
from .program import INTERLUDE, START_UP, STEADY, compiles
from .startup import LARGE, StartUp, dominates, start_up
from .transfers import SMALL_BYTES
from .view import LAUNCH_NS, WORTH, Cause, Stall, View, rhythm, unevenness
from .words import among_steps, block_text, each_text, kernel_text, path_text, place_text, places_text

#: Waiting times this uneven are those of a server for its requests: those of a loader differ less.
_RANDOM = 0.6
#: Imports and initialisation take so long on a slow day, and the first steps of a large model no longer.
_ORDINARY_NS = 10_000_000_000
#: Kernels of this length on average are short.
_SHORT_NS = 20_000
#: A request is a long one from so many times the usual on.
_FAR_LONGER = 3
#: What happens in so few steps says little about a longer run.
_ONCE = 2
#: gpusense's own processor time from which on what the host did may be that; a share of the run.
_OWN_LOAD = 0.1
#: What is made at its first use need not be used in the first step: so many may go by before.
_FIRST_FEW = 5


def finding(
    view: View, kind: str, spent: float, title: str, evidence: "list[str]", fix: str, **more: object
) -> Finding:
    saving = round(spent)
    per_step = view.per_step(saving)
    values = {
        "confidence": "high",
        "saving_ns": saving,
        "phase": view.name,
        "share": view.share(saving),
        "step_ns": None if per_step is None else round(per_step),
        "device": view.called,
        **more,
    }
    values["confidence"] = view.confidence(str(values["confidence"]))
    return Finding(kind, title, tuple(evidence), fix, **values)  # type: ignore[arg-type]


#: What to try where a device waits for the host, by what it waits for.
_PREPARE = {
    "graphics": "Record and submit the next frame while the GPU works, or move this work to another thread.",
    "input": (
        "Prepare the next input while the GPU works: more loader workers, prefetching, decoding and metrics off the "
        "main thread."
    ),
    "answer": (
        "Compute the answer on the device, or before the step: no callback to Python and no .item() in the middle of "
        "it. If the copy is the next input, prepare it before the result is read."
    ),
    "graph": (
        "Do less between two replays: set inputs and read results in fewer calls, or let one graph do more, as several "
        "tokens or steps."
    ),
    "other": "Move this work off the thread that launches: to a worker, behind the launches, or to every n-th step.",
}
_FOR = {"input": "to prepare the next input", "answer": "to answer what it has read"}
_ENDS = {
    "graph": "Most of the work is launched as CUDA graphs: what lies between two of them is the host's.",
    "input": "These gaps end with a copy to the device: the host was preparing the next input.",
    "answer": (
        "These gaps begin after a small copy to the host and end with a small one to the device: the host computes "
        "from what it has read, as in a callback or after .item()."
    ),
}


def launch_bound(facts: Facts) -> Iterator[Finding]:
    """Kernels so short that launching them takes longer."""
    for view in facts.feeding:
        cause = view.causes["launch"]
        if view.graphics or view.share(cause.total_ns) < WORTH:  # a submit has many passes
            continue
        what, lengths = max(((kind, _lengths_of(view, kind)) for kind in _LAUNCH_LESS), key=lambda row: len(row[1]))
        calls = len(lengths)
        if calls < 20 or _copies_dominate(view, cause.gaps):
            continue
        gaps = view.walk.gaps
        slow = [number for number in cause.gaps if gaps.end[number] - gaps.start[number] > LAUNCH_NS]
        slow_ns, short = view.gap_ns(slow), len(cause.gaps) - len(slow)
        heavy = place_text(view, cause.gaps)
        yield finding(
            view,
            "launch_bound",
            cause.total_ns - max(0, slow_ns - LAUNCH_NS * len(slow)),
            f"{view.text} is idle for {each_text(view, cause.total_ns)}, between "
            f"{among_steps(view, calls, what)} {_lengths_text(lengths)}.",
            [
                (
                    f"{count_text(short, 'gap')} of at most 100 µs, "
                    f"{time_text((cause.total_ns - slow_ns) / max(1, short))} on average, in which nothing was queued."
                ),
                *(
                    [f"{count_text(len(slow), 'gap')} of 100 µs to 1 ms, {time_text(slow_ns / len(slow))} on average."]
                    if slow_ns * 10 >= cause.total_ns
                    else []
                ),
                *([f"Most of them lie {heavy}."] if heavy else []),
                *_held_up(view),
            ],
            _LAUNCH_LESS[what],
            where=heavy or "",
        )


_LAUNCH_LESS = {
    "kernel": (
        "Launch less: replay the step as a CUDA graph, fuse kernels (torch.compile), use fused or foreach optimizers, "
        "or enlarge the batch."
    ),
    "memset": (
        "Clear less: let gradients go (zero_grad(set_to_none=True)), clear one buffer that holds them all, or make "
        "with empty() what is written anyhow."
    ),
}


def _lengths_of(view: View, kind: str) -> list[int]:
    """How long each piece of work of a kind took."""
    kinds = view.work.kinds
    return [ns for number, lengths in view.lengths.items() if kinds[number].kind == kind for ns in lengths]


def _lengths_text(lengths: Sequence[int]) -> str:
    """ "that run 2.64 µs on average: launching …"; of few long ones among many short ones what half of them take."""
    average = sum(lengths) / len(lengths)
    if average <= _SHORT_NS:
        return f"that run {time_text(average)} on average: launching them takes longer than running them"
    return f"of which half run at most {time_text(median(lengths))}: launching those takes longer than running them"


def _is_noise(view: View) -> bool:
    """Whether launches are what the device waits for, and the host is held up now and then besides."""
    stall, launch = view.stall, view.causes["launch"].total_ns
    return stall is not None and stall.every is None and view.share(launch) >= WORTH and launch > sum(stall.excess)


def _held_up(view: View) -> list[str]:
    stall, steps = view.stall, view.steps
    if stall is None or steps is None or not _is_noise(view) or _beside_interludes(view):
        return []
    each = f"{time_text(stall.mean_ns)}{' on average' if len(stall.steps) > 1 else ''}"
    return [f"Besides, in {len(stall.steps):,} of {steps.number:,} steps the host was held up for {each}."]


def _copies_dominate(view: View, gaps: Sequence[int]) -> bool:
    """Whether most of the gaps follow copies, so that copying less is the remedy."""
    rows = view.places(gaps)
    whole = sum(spent for *_, spent in rows)
    copies = sum(spent for before, _, _, spent in rows if before.kind == "transfer")
    return copies * 2 > whole


def synchronising(facts: Facts) -> Iterator[Finding]:
    """A device that is idle because the host waits for it before it launches more."""
    for view in facts.feeding:
        cause = view.causes["synchronising"]
        if view.share(cause.total_ns) < WORTH:
            continue
        number, calls = _waiting_calls(view)
        lines = [wait for wait in facts.waits if wait.source_line]
        where = one_line(lines[0].source_line or "") if lines else place_text(view, cause.gaps)
        mostly = f", mostly {'at ' if lines else ''}{where}" if where else ""
        once = (
            view.told is not None and 0 < number <= 1.2 * view.told.number and 3 * view.parts.busy >= 2 * view.length_ns
        )
        title = (
            f"{view.text} is busy {percent_text(view.share(view.parts.busy))} of each step, and idle for "
            f"{each_text(view, cause.total_ns).replace(' of each step', '')} after the host has waited for it, until "
            f"new work arrives{mostly}."
            if once
            else f"{view.text} is idle for {each_text(view, cause.total_ns)}, because the host waits for it before "
            f"it launches more{mostly}."
        )
        called = (
            f"{one_line(wait.source_line or '')} ({wait.count:,}×) for {time_text(wait.total_ns)}" for wait in lines[:3]
        )
        yield finding(
            view,
            "synchronising_call",
            cause.total_ns,
            title,
            [
                *calls,
                *([f"Called from {', '.join(called)}."] if lines else []),
                (
                    f"{count_text(len(cause.gaps), 'gap follows', 'gaps follow')} such waits, "
                    f"{time_text(cause.total_ns / len(cause.gaps))} on average{_per_step(view, len(cause.gaps))}."
                ),
            ],
            _LATER if view.graphics else _ONE_WAIT if once else _WAITS,
            where=where,
        )


#: What to do about waits for the device; and about one in each step, that leaves the device busy for most of it.
_WAITS = (
    "Read results less often: no .item(), .cpu(), bool(tensor) or synchronize() within a step; keep the value on the "
    "device, and log every n steps."
)
_LATER = "Read results less often, or those of the frame before: copy them into a buffer, and map it once it is ready."
_ONE_WAIT = (
    "Read the result every n-th step, or read that of the step before. If the program needs it at once, only faster "
    "kernels gain more."
)


def _waiting_calls(view: View) -> tuple[int, list[str]]:
    """How often the host waited, and in which calls, as far as their records say; but for short ones. A call that
    waits for a copy to the host that was queued before it is one wait, not two."""
    work = view.work
    waits: list[tuple[int, int, str]] = []
    copied: list[int] = []
    for row in view.program.rows_in(view.name):
        one = work.kinds[work.kind[row]]
        if one.kind == "sync" and one.name.endswith("synchronize"):
            waits.append((work.end[row], work.start[row], _CALLS.get(one.name, one.name)))
        elif one.kind == "transfer" and one.direction == "gpu_to_cpu" and work.size[row] <= SMALL_BYTES:
            copied.append(work.end[row])
    waits.sort()
    copied.sort()
    times, counts, after, alone, at = Counter[str](), Counter[str](), Counter[str](), 0, 0
    for end, start, name in waits:
        times[name] += end - start
        counts[name] += 1
        found = bisect_right(copied, end, at) - at
        after[name] += found > 0
        alone += max(0, found - 1)  # copies that no call waited for after them waited themselves
        at += found
    alone += len(copied) - at
    whole = sum(times.values())
    said = [
        (counts[name], f"in {name}{_after_text(counts[name], after[name])}")
        for name, spent in times.most_common(3)
        if 20 * spent >= whole
    ]
    if alone and 20 * alone >= sum(number for number, _ in said):
        said.append((alone, f"for small copies to the host{_AS}"))
    number = sum(number for number, _ in said)
    which = said[0][1] if len(said) == 1 else ", ".join(f"{number:,} {what}" for number, what in said)
    return number, [f"The host waited {count_text(number, 'time')}: {which}."] if said else []


def _after_text(count: int, after: int) -> str:
    """How many of the waits came after a small copy to the host."""
    if 2 * after < count:
        return ""
    return f", {'each' if after * 100 >= 99 * count else 'most'} after a small copy to the host{_AS}"


#: What makes small copies to the host.
_AS = " (.item(), bool(), .cpu())"
_CALLS = {
    "stream_synchronize": "cudaStreamSynchronize",
    "context_synchronize": "cudaDeviceSynchronize",
    "event_synchronize": "cudaEventSynchronize",
}


def _per_step(view: View, count: int) -> str:
    if view.told is None or not count:
        return ""
    each = count / view.told.number
    return f", {each:,.0f} a step" if each >= 1.5 else ""


def host(facts: Facts) -> Iterator[Finding]:
    """Long gaps in which the host launched nothing: input, stalls now and then, no demand."""
    for view in facts.feeding:
        cause = view.causes["host"]
        if view.share(cause.total_ns) < WORTH:
            continue
        spent = view.gap_by_step(cause.gaps)
        uneven = unevenness(spent)
        if view.stall is not None:
            if not _is_noise(view) and not _beside_interludes(view) and not _warms_up(view.stall, spent):
                yield _stall(view, view.stall)
        elif spent and uneven >= _RANDOM and _before_requests(view, cause.gaps):
            yield _long_requests(view) or _no_demand(view, cause.total_ns, uneven)
        else:
            yield from _starved(view, cause)


def _warms_up(stall: Stall, spent: Sequence[int]) -> bool:
    """Whether the slow steps are among the first, and never again: what is made there is made at its first use."""
    return stall.steps[-1] < min(_FIRST_FEW, len(spent) // 2)


def _before_requests(view: View, gaps: Sequence[int]) -> bool:
    """Whether the gaps lie at one place of the step: before a request's first work, once a request."""
    rows = view.places(gaps)
    whole = sum(spent for *_, spent in rows)
    steps = view.steps
    return bool(rows) and steps is not None and rows[0][3] >= 0.7 * whole and rows[0][2] <= 1.2 * steps.number


#: Python takes its lock from a thread after so long, if another one waits for it; how exact that is.
_SWITCH_NS, _SWITCHED_NS = 5_000_000, 500_000
#: So many such waits are no chance.
_SWITCHES = 20


def _held_by_python(view: View, gaps: Sequence[int]) -> bool:
    """Whether another thread of Python keeps the one that launches from it: from launch to launch it takes as long as
    Python leaves a thread alone, now here and now there."""
    between, start = view.walk.gaps, view.work.start
    lengths = [start[between.after[number]] - start[between.before[number]] for number in gaps]
    fitting = sum(abs(ns - max(1, round(ns / _SWITCH_NS)) * _SWITCH_NS) <= _SWITCHED_NS for ns in lengths)
    return (
        len(gaps) >= _SWITCHES
        and fitting >= 0.8 * len(gaps)
        and 2 * max(count for *_, count, _ in view.places(gaps)) < len(gaps)
    )


def _waiting_for_python(view: View, cause: Cause) -> Finding:
    threads = view.program.other_threads
    return finding(
        view,
        "starved",
        cause.total_ns,
        f"{view.text} is idle for {each_text(view, cause.total_ns)}, because another thread holds the "
        "interpreter's lock (the GIL) while the host would launch.",
        [
            (
                f"Around most of {count_text(len(cause.gaps), 'gap')} it takes 5 ms from launch to launch, or a "
                "multiple: so long a thread keeps the GIL when others wait. They are not all at one place."
            ),
            *([f"Threads beside the main one: {', '.join(threads[:5])}."] if threads else []),
        ],
        "Move what that thread computes to a process, or into code that releases the GIL, as much of NumPy does. A "
        "shorter sys.setswitchinterval() makes each wait shorter.",
        confidence="medium",
        where="another thread",
    )


#: A pause is one of few where it has so much of all that the device waits for the host.
_PAUSE = 0.1


def _paused(view: View, cause: Cause, long: Sequence[int]) -> Finding:
    """Of a program without steps: a few long pauses among many, the longest first. What was done then nobody knows."""
    starts, low = view.walk.gaps.start, view.program.window[0]
    pauses = [
        f"{time_text(view.shown(at))} from {time_text(starts[at] - low)} on, {place_text(view, [at])}" for at in long
    ]
    return finding(
        view,
        "starved",
        cause.total_ns,
        f"{view.text} is idle for {each_text(view, cause.total_ns)}, waiting for the host: "
        f"{time_text(sum(map(view.shown, long)))} of that in {count_text(len(long), 'pause')}.",
        [
            f"The longest: {'; '.join(pauses[:3])}.",
            *_computed(view, view.when(sorted(long))),
        ],
        "Ask a profiler of Python what the host does then. What it compiles or loads can be kept for the next run.",
        where=place_text(view, long[:1]),
    )


def _starved(view: View, cause: Cause) -> Iterator[Finding]:
    """By what the host did: the next input, an answer to what it had read, or something else."""
    long = sorted((at for at in cause.gaps if view.shown(at) >= _PAUSE * cause.total_ns), key=view.shown, reverse=True)
    few = 0 < 10 * len(long) <= len(cause.gaps) and 2 * sum(map(view.shown, long)) > cause.total_ns
    if few and view.told is None and not _loader(view, cause.gaps):
        yield _paused(view, cause, long)
        return
    if not view.graphics and _held_by_python(view, cause.gaps):
        yield _waiting_for_python(view, cause)
        return
    gaps = view.walk.gaps
    found: dict[str, list[int]] = {}
    for number in cause.gaps:
        what = "graphics" if view.graphics else _awaited(view, gaps.before[number], gaps.after[number])
        found.setdefault(what, []).append(number)
    worth = {what: mine for what, mine in found.items() if view.share(view.gap_ns(mine)) >= WORTH}
    for what, mine in (worth or {"other": list(cause.gaps)}).items():
        yield _waiting(view, what, mine)


def _awaited(view: View, before: int, after: int) -> str:
    """What a device waits for between two rows: a key of :data:`_PREPARE`."""
    work = view.work
    if work.kinds[work.kind[after]].direction != "cpu_to_gpu":
        return "other"
    read = work.kinds[work.kind[before]].direction == "gpu_to_cpu"
    return "answer" if read and max(work.size[before], work.size[after]) <= SMALL_BYTES else "input"


_CHEAPER = "smaller files, transforms on the GPU, what is decoded kept"


class _Loader(NamedTuple):
    """The DataLoader in which the host was for most of some gaps."""

    workers: int | None  # None: not known
    first: bool  # whether it was mostly for the first batch of an epoch

    @property
    def text(self) -> str:
        if self.first:
            return "The first batch of an epoch takes the DataLoader a long time"
        if self.workers == 0:
            return "The DataLoader has no workers, so the main thread makes each batch"
        workers = "" if self.workers is None else f"'s {count_text(self.workers, 'worker')}"
        return f"The DataLoader{workers} cannot keep up"

    @property
    def fix(self) -> str:
        if self.first and self.workers != 0:
            return "Keep the workers from one epoch to the next: DataLoader(persistent_workers=True)."
        more = "Use workers" if self.workers == 0 else "Use more workers"
        return f"{more} (DataLoader's num_workers), or make a sample cheaper: {_CHEAPER}."


def _loader(view: View, gaps: Sequence[int]) -> _Loader | None:
    """None where the host was elsewhere."""
    loads = [(one.attributes or {}, spent) for one, spent in view.loads(gaps)]
    if not loads:
        return None
    first = sum(spent for known, spent in loads if known.get(LOADER_BATCH) == 0)
    return _Loader(loads[0][0].get(LOADER_WORKERS), 2 * first > sum(spent for _, spent in loads))


def _waiting(view: View, what: str, gaps: Sequence[int]) -> Finding:
    spent, loader = view.gap_ns(gaps), _loader(view, gaps)
    what = "input" if loader else "graph" if what == "other" and view.replays else what
    where = place_text(view, gaps)
    places = "" if where else places_text(view, gaps)
    ends = f" {_FOR[what]}" if what in _FOR else ""
    return finding(
        view,
        "starved",
        spent,
        f"{view.text} is idle for {each_text(view, spent)}{f' {where}' if where else ''}, waiting for the host{ends}.",
        [
            (
                f"{count_text(len(gaps), 'gap')} longer than 100 µs, {time_text(spent / len(gaps))} on average"
                f"{_per_step(view, len(gaps))}."
            ),
            *_meanwhile(view, gaps),
            *_computed(view, view.when(gaps)),
            *([f"Of this time {places}."] if places else []),
            *([f"{loader.text}."] if loader else [_ENDS[what]] if what in _ENDS else []),
        ],
        loader.fix if loader else _PREPARE[what],
        where=where or "",
        confidence="medium" if view.graphics else "high",
    )


def _meanwhile(view: View, gaps: Sequence[int]) -> list[str]:
    """In which blocks the host was during some gaps, as far as they hold a real part of them."""
    return _spent_in(view.blocks(gaps), sum(spent for *_, spent in view.places(gaps)))


def _computed(view: View, spans: "list[tuple[int, int]]", when: str = "then") -> list[str]:
    """Whether the host was busy itself in some times."""
    cores = view.program.cores(spans)
    if cores is None:
        return []
    if cores < _WAITED:
        return [f"The process itself waited {when}: it computed for {percent_text(cores)} of that time."]
    return [f"The process computed {when}, on {cores:.1f} cores on average."]


#: A process that computes less waits for a disk, a network or another process.
_WAITED = 0.2


def _spent_in(blocks: Sequence[tuple[Path, int]], whole: float) -> list[str]:
    named = [(path, spent / whole) for path, spent in blocks if spent * 10 >= whole][:3]
    said = ", ".join(f"{percent_text(share)} in {path_text(path)}" for path, share in named)
    return [f"Of this time the host spent {said}."] if named else []


_LESS_OFTEN = (
    "Look at what the program does there: saving, logging, evaluation or Python's garbage collection; do it in another "
    "thread or process, or less often."
)


def _stall(view: View, stall: Stall) -> Finding:
    steps = view.steps
    assert steps is not None
    spent, slow = sum(stall.excess), set(stall.steps)
    often = _often(stall.every, len(stall.steps), steps.number)
    longer = f"{view.text} is idle for {time_text(stall.mean_ns)} longer than usual"
    gaps = [at for at in view.causes["host"].gaps if steps.at(view.walk.gaps.start[at]) in slow]
    loader, inside = _loader(view, gaps), block_text(view, gaps)
    if inside and loader is None:
        longer += f" {inside}"
    if loader is not None:
        often = f"{loader.text}: {often[0].lower()}{often[1:]}"
    turns = loader is not None and not loader.first and loader.workers == stall.every
    return finding(
        view,
        "starved" if loader else "interruption" if len(stall.steps) == 1 else "periodic_stall",
        spent,
        f"{often} {longer}, {percent_text(view.share(spent))} of the time of all steps.",
        [
            *_meanwhile(view, gaps),
            *_computed(view, view.when(gaps)),
            *(["There are as many workers: their batches come together, and then none until the next."] * turns),
            f"The other steps take {time_text(steps.median_ns)}.",
            (
                f"{count_text(len(stall.steps), 'step is', 'steps are')} so slow, of {steps.number:,}: number "
                f"{', '.join(f'{at:,}' for at in stall.steps[:8])}{' …' if stall.steps[8:] else ''}."
            ),
        ],
        loader.fix if loader else _LESS_OFTEN,
        where=LOADER if loader else f"every {stall.every} steps" if stall.every else "some steps",
    )


def _often(every: int | None, count: int, of: int) -> str:
    return f"Every {every} steps" if every else f"In {count:,} of {of:,} steps"


def _no_demand(view: View, spent: float, uneven: float) -> Finding:
    steps = view.steps
    assert steps is not None
    busy = view.parts.busy / steps.number
    return finding(
        view,
        "no_demand",
        spent,
        f"{view.text} is idle for {percent_text(view.share(spent))} of the steps' time, between "
        f"{steps.number:,} requests at uneven intervals that need {time_text(busy)} of GPU work each, on average.",
        [
            (
                f"The idle time before a request varies much (coefficient of variation {uneven:.1f}): requests come "
                "so, batches of a loader do not."
            ),
            f"It was busy for {time_text(view.parts.busy)} of {time_text(view.length_ns)}.",
        ],
        "If these are requests, nothing is wrong: send it more of them, or use a smaller GPU.",
        confidence="medium",
        saving_ns=None,
        share=view.share(spent),
        step_ns=None,
    )


def _long_requests(view: View) -> Finding | None:
    """A few requests that take far longer than the others; None where there are no such."""
    busy = view.busy_by_step
    usual = median(busy)
    long = [at for at, spent in enumerate(busy) if spent >= _FAR_LONGER * usual]
    excess = sum(busy[at] - usual for at in long)
    if not usual or not long or 10 * len(long) > len(busy) or view.share(excess) < WORTH:
        return None
    each, every = median(busy[at] for at in long), rhythm(long)
    return finding(
        view,
        "long_requests",
        excess,
        f"{len(long):,} of {len(busy):,} requests take {each / usual:.0f} times as long as the rest "
        f"({time_text(each)} each), and those behind them wait.",
        [
            (
                f"The others take {time_text(usual)} each, and {view.text} is busy "
                f"{percent_text(view.share(view.parts.busy))} of the steps' time."
            ),
            *([f"One in {every:,} is so long."] if every else []),
        ],
        "Divide long requests, let short ones go first, or serve the long ones elsewhere.",
        confidence="medium",
        saving_ns=None,
        share=view.share(excess),
        step_ns=None,
    )


#: What is copied to the host where something is saved: more than results that are looked at.
_SAVES = 1 << 20


class _Interruptions(NamedTuple):
    """What lies between steps and keeps the device from computing. Nanoseconds, of all together."""

    number: int
    lost: float
    copies: float
    saved: int  # bytes that are copied to the host
    whole: int  # the steps and all that lies between them
    after: list[int]  # before which steps they are, by number


def _interruptions(view: View) -> _Interruptions | None:
    """None where the loop goes on, or its device computes meanwhile, as in an evaluation."""
    steps, found = view.steps, view.interludes
    if steps is None or not found:
        return None
    length = sum(parts.length for _, parts in found)
    lost, copies = sum(parts.length - parts.kernel for _, parts in found), sum(parts.copy for _, parts in found)
    whole = view.length_ns + length
    if lost < WORTH * whole or lost < 0.5 * length:
        return None
    work, saved = view.work, 0
    for row in view.program.rows_in(INTERLUDE):
        saved += work.size[row] if work.kinds[work.kind[row]].direction == "gpu_to_cpu" else 0
    after = [bisect_right(steps.starts, start) for (start, _), _ in found]
    return _Interruptions(len(found), lost, copies, saved, whole, after)


def _instead(view: View, found: _Interruptions) -> tuple[list[str], str]:
    """Where the host was in the interruptions, and what to do about them."""
    spans = [span for span, _ in view.interludes]
    blocks = view.blocks_in(spans)
    said = [*_spent_in(blocks, total(spans)), *_computed(view, spans)]
    if 2 * sum(spent for path, spent in blocks if compiles(path[-1])) > found.lost:
        return said, "Keep shapes fixed, and let the compiler keep what it has made (jax_compilation_cache_dir, say)."
    if found.saved >= _SAVES * found.number:
        return said, (
            "If it saves or logs: copy to pinned memory without waiting, and write in another thread or process, or do "
            "it less often."
        )
    return said, (
        "Look at what the host does then: computing, loading, evaluation, logging. Do it on the GPU, or in another "
        "thread or process, or less often."
    )


def _beside_interludes(view: View) -> bool:
    """Whether the steps that stall are those beside interruptions: then the two are one."""
    found, stall = _interruptions(view), view.stall
    if found is None or stall is None:
        return False
    every = rhythm(found.after)
    places = [*found.after, *([found.after[-1] + every] if every else [])]  # the last may have no step behind it
    beside = {number for after in places for number in (after - 1, after)}
    return 3 * len(beside.intersection(stall.steps)) >= 2 * len(stall.steps)


def interludes(facts: Facts) -> Iterator[Finding]:
    """What stops the loop now and then: a checkpoint, say. Evaluation that keeps the device busy is none."""
    for view in facts.feeding:
        steps, found = view.steps, _interruptions(view)
        if steps is None or found is None:
            continue
        lost, each, stall = found.lost, found.lost / found.number, view.stall
        if stall is not None and _beside_interludes(view):
            lost += sum(stall.excess)
            each += stall.mean_ns if len(stall.steps) >= found.number else 0
        every, copies = rhythm(found.after), found.copies / found.number
        often = f"Every {every} steps" if every else "Once" if found.number == 1 else f"{found.number:,} times"
        what = f", {time_text(copies)} of each in copies" if found.copies * 5 > found.lost else ""
        said, fix = _instead(view, found)
        yield Finding(
            "interruption" if found.number == 1 else "periodic_stall",
            f"{often} the loop stops for {time_text(each)} without a {'pass' if view.graphics else 'kernel'} running: "
            f"{percent_text(lost / found.whole)} of the loop's time.",
            (
                (
                    f"{count_text(found.number, 'interruption')} between {steps.number:,} steps of "
                    f"{time_text(steps.median_ns)}{what.replace('each', 'it') if found.number == 1 else what}."
                ),
                *said,
            ),
            fix,
            view.confidence(),
            round(lost),
            phase=STEADY,
            where=f"every {every} steps" if every else "between steps",
            share=lost / found.whole,
            step_ns=round(lost / steps.number),
            device=view.called,
        )


def recompilation(facts: Facts) -> Iterator[Finding]:
    """Kernels that are new within the steady state, each after a pause: compiled, tuned or loaded just then."""
    for view in facts.feeding:
        cause, steps = view.causes["new"], view.steps
        if view.trials:
            yield from _tried_out(view, cause)
            continue
        if steps is None or view.share(cause.total_ns) < WORTH or len(cause.gaps) < 3:
            continue
        gaps = view.walk.gaps
        rows = [gaps.after[i] for i in cause.gaps]
        names = [kernel_text(view, view.work.kinds[view.work.kind[row]]) for row in rows if row in view.news]
        some = ", ".join(dict.fromkeys(names[:3]))
        affected = sum(1 for spent in view.gap_by_step(cause.gaps) if spent)
        one, many = ("pass", "passes") if view.graphics else ("kernel", "kernels")
        often, each = affected > _ONCE, cause.total_ns / max(1, affected)
        idle = (
            each_text(view, cause.total_ns) if often else f"{time_text(each)} in {affected} of {steps.number:,} steps"
        )
        yield finding(
            view,
            "recompilation" if often else "interruption",
            cause.total_ns,
            f"{view.text} is idle for {idle}, each time before a {one} or a size that had not run before: it is "
            "compiled or tuned then.",
            [
                (
                    f"{count_text(len(names), one, many)} in {affected:,} of {steps.number:,} steps ran for the first "
                    f"time, {some} among them."
                ),
                f"The pauses before them take {time_text(each)} in each of these steps.",
            ],
            "Create pipelines before the first frame, and keep them."
            if view.graphics
            else "Keep shapes fixed (pad to a few sizes), mark dynamic dimensions, and cache what is compiled.",
            where=some,
        )


def _tried_out(view: View, cause: Cause) -> Iterator[Finding]:
    """cuDNN's choice of algorithms: the pauses before its trials, and the trials, which compute nothing of use."""
    ran = sum(end - start for start, end in view.trials)
    inside = sum(view.gap_ns([at]) for at in cause.gaps if _within(view.walk.gaps.end[at], view.trials))
    spent = cause.total_ns + ran - inside
    if view.share(spent) < WORTH:
        return
    yield finding(
        view,
        "recompilation",
        spent,
        f"{view.text} spends {each_text(view, spent)} while cuDNN chooses its algorithms: it compiles and tries them "
        "for each size that had not run before.",
        [
            f"{count_text(len(view.trials), 'series', 'series')} of trials, and {time_text(cause.total_ns)} of pauses.",
        ],
        "Keep shapes fixed (pad to a few sizes), or switch the trials off where shapes change "
        "(torch.backends.cudnn.benchmark = False): with fixed shapes they end after the first step.",
        where="cuDNN",
    )


def _within(moment: int, spans: Sequence[tuple[int, int]]) -> bool:
    at = bisect_right(spans, (moment, 1 << 63)) - 1
    return at >= 0 and moment <= spans[at][1]


#: What allocates and releases, by the record's name and kind of memory.
_ALLOCATORS = {
    ("alloc", "pinned"): "cudaHostAlloc",
    ("free", "pinned"): "cudaFreeHost",
    ("alloc", "managed"): "cudaMallocManaged",
    ("alloc", None): "cudaMalloc",
    ("free", None): "cudaFree",
}


def allocations(facts: Facts) -> Iterator[Finding]:
    """Memory of the device that is allocated and released in every step."""
    for view in facts.feeding:
        cause = view.causes["allocation"]
        if view.share(cause.total_ns) < WORTH:
            continue
        calls = Counter(
            _ALLOCATORS.get((one.name, one.memory)) or _ALLOCATORS.get((one.name, None), one.name)
            for one in facts.session.allocations
            if one.device == view.device
            and waits_for_device(one)
            and any(low <= one.start_ns < high for low, high in view.spans)
        )
        steps = view.told.number if view.told is not None and sum(calls.values()) >= view.told.number else 1
        said = " and ".join(f"{round(number / steps):,} calls of {name}" for name, number in calls.most_common(2))
        yield finding(
            view,
            "allocations",
            cause.total_ns,
            f"{view.text} is idle for {each_text(view, cause.total_ns)} around {said}"
            f"{' a step' if steps > 1 else ''}, which wait for it.",
            [f"{count_text(len(cause.gaps), 'gap')}, {time_text(cause.total_ns / len(cause.gaps))} on average."],
            "Keep memory: allocate once, use a pool (cudaMallocAsync, the framework's allocator), and do not call "
            "empty_cache() in the loop.",
            where=", ".join(calls),
        )


def start_ups(facts: Facts) -> Iterator[Finding]:
    """A start-up that takes more time than what it was for."""
    for view in facts.feeding:
        program, steps = view.program, view.program.steps
        if steps is None or not dominates(program):
            continue
        low, high = program.window
        divided = start_up(facts.session, view)
        spent = divided.whole_ns
        first = min(max(program.first_ns, low), steps.starts[0])
        unusual = max(first - low, steps.starts[0] - first) - _ORDINARY_NS
        warm = f", with {count_text(steps.warm_up, 'slow first step')} in it" if steps.warm_up else ""
        large, parts = (
            ", ".join(f"{time_text(part)} {what}" for what, part in divided.large(share)) for share in (LARGE, 0.01)
        )
        yield Finding(
            "startup",
            f"Start-up takes {time_text(spent)}, {percent_text(spent / (high - low))} of the run{warm}: {large}; the "
            f"{steps.number:,} steps after it take {time_text(sum(map(sub, steps.ends, steps.starts)))}.",
            (
                f"It is all that comes before the first step at full speed: {parts}.",
                *_computed(view, divided.unused, "from CUDA's initialisation to the device's first work"),
                *_longest_pause(view, divided),
            ),
            _shorter(divided),
            "high",
            unusual if unusual > 0 else None,
            phase=START_UP,
            share=spent / (high - low),
            device=view.called,
        )


#: What makes parts of a start-up shorter, by what their names have in them.
_SHORTER = {
    "first time": "cache what is compiled",
    "before copies": "load weights straight to the device",
    "before CUDA was": "import less, and make on the device what is made before",
    "first work": "do on the device, or beside it, what the host does first",
}


def _shorter(divided: StartUp) -> str:
    """What to do about the large parts; about all that may be one where none is."""
    large = ", ".join(what for what, _ in divided.large(LARGE))
    advice = [fix for part, fix in _SHORTER.items() if part in large] or _SHORTER.values()
    return f"If runs stay as short as this: {'; '.join(advice)}."


def _longest_pause(view: View, divided: StartUp) -> list[str]:
    if divided.longest is None or 10 * divided.longest[1] < divided.whole_ns:
        return []
    number, spent = divided.longest
    gaps, kinds = view.walk.gaps, view.work.kinds
    before, after = (kernel_text(view, kinds[view.work.kind[row[number]]]) for row in (gaps.before, gaps.after))
    since = time_text(gaps.start[number] - view.program.window[0])
    return [f"The longest pause of {view.text} is {time_text(spent)}, from {since} on, between {before} and {after}."]


def _but_for_own_load(rule: Callable[[Facts], Iterator[Finding]]) -> Callable[[Facts], Iterator[Finding]]:
    """What ``rule`` finds; hardly sure where gpusense itself kept the host busy."""

    def rated(facts: Facts) -> Iterator[Finding]:
        own, share = facts.own_cpu_ns, facts.own_share
        if own is None or share is None or share <= _OWN_LOAD:
            yield from rule(facts)
            return
        but = f"gpusense itself used {time_text(own)} of CPU, {percent_text(share)} of the run: it may be that."
        for found in rule(facts):
            yield found._replace(confidence="low", evidence=(but, *found.evidence))

    return rated


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = tuple(
    map(
        _but_for_own_load,
        (launch_bound, synchronising, host, interludes, recompilation, allocations, start_ups),
    )
)
