"""Findings about a job of several ranks: who is late and why, who did not come, which links are slow."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from .._records.records import BlockRecord, GpuSync, Path
from .._runtime.text import count_text, one_line, percent_text, time_text
from .anomalies import median
from .calls import duration_ns
from .facts import Facts, Finding
from .intervals import Interval, intersect, total, union
from .ranks import Compared, Ranks, RankTime, jobs_of, one_program, rank_findings
from .sampled import sampled
from .view import WORTH, View
from .words import each_text, place_text

#: A clock is lower, and computing takes longer, from so much on.
_LOWER, _LONGER = 0.95, 1.05
#: Of so many ranks that did not come it is said where they were.
_WHEREABOUTS = 4
#: In one block a host that is late is for so much of the time, or it is not said.
_IN_A_BLOCK = 0.3


class _Why(NamedTuple):
    """What keeps a rank: a part of a sentence, what it rests on, and what to try."""

    words: str
    evidence: str
    fix: str


def across_ranks(facts: Facts) -> Iterator[Finding]:
    """What only a merged session of several processes shows, each job by itself."""
    for one in facts.session.once(jobs_of):
        names = {row.name for row in one.answer.ranks}
        yield from _across_job(facts, one, [view for view in facts.feeding if view.program.root in names])


def _across_job(facts: Facts, these: Compared, feeding: Sequence[View]) -> Iterator[Finding]:
    """``feeding``: the views of the job."""
    answer = these.answer
    longest = max((view.length_ns for view in facts.views), default=0)
    late = next((row.name for row in answer.ranks if row.rank == answer.straggler), None)
    waiting = [view.length_ns for view in feeding if view.program.root != late]
    why = _why_late(facts, these, feeding)
    for one in rank_findings(answer, why.words if why is not None else ""):
        if one.kind == "imbalance" and not one_program(facts.session, answer):
            continue
        length = median(waiting) if one.kind == "late_rank" and late and waiting else longest
        share = min(1.0, one.saving_ns / length) if one.saving_ns and length else None
        found = one._replace(share=share, phase=facts.views[0].name if facts.views else "")
        if one.kind == "hang":
            found = found._replace(evidence=(found.evidence[0], *_whereabouts(facts, answer), *found.evidence[1:]))
        if why is not None and one.kind == "late_rank":
            found = found._replace(evidence=(why.evidence, *found.evidence), fix=why.fix)
        yield found


def _whereabouts(facts: Facts, answer: Ranks) -> Iterator[str]:
    """Where the program's main thread was in those that did not come, as far as their own evidence tells."""
    first = answer.missing[0]
    absent = [answer.ranks[first.processes[rank]].name for rank in first.absent]
    for found in facts.session.meta.get("hang") or ():
        stacks = found.get("stacks") or ()
        frames = next((one["frames"] for one in stacks if one.get("name") == "MainThread"), None)
        if frames and found.get("process") in absent[:_WHEREABOUTS]:
            absent.remove(found["process"])
            yield f"{found['process'].capitalize()} was in {one_line(', called by '.join(frames[:3]), 120)}."


def _why_late(facts: Facts, these: Compared, feeding: Sequence[View]) -> _Why | None:
    """The late rank's own answer: where it spends more than the others do, most first."""
    answer = these.answer
    slow = next((row for row in answer.ranks if row.rank == answer.straggler), None)
    if slow is None:
        return None
    view = next((view for view in feeding if view.program.root == slow.name), None)
    others = [view for view in feeding if view.program.root != slow.name]
    if view is None or not others:
        return _computing(facts, None, slow, answer, others)

    def more(name: str) -> float:
        usual = sum(one.share(one.causes[name].total_ns) for one in others) / len(others)
        return view.share(view.causes[name].total_ns) - usual

    compute = [row.compute_ns for row in answer.ranks if row is not slow]
    found: list[tuple[float, Callable[[], _Why | None]]] = [
        (more("host") + more("new"), lambda: _waits_for_host(view, slow)),
        (more("synchronising"), lambda: _waits_for_device(facts, view, slow)),
        (more("launch"), lambda: _launches(view)),
        (view.share(slow.compute_ns - median(compute)), lambda: _computing(facts, view, slow, answer, others)),
    ]
    share, make = max(found, key=lambda pair: pair[0])
    cost = view.share(slow.cost_ns)
    why = make() if share >= min(WORTH, 0.5 * cost) > 0 else None
    return why or _in_a_block(facts, view, slow, these) or _in_turns(view, others)


def _waits_for_host(view: View, slow: RankTime) -> _Why:
    cause, stall = view.causes["host"], view.stall
    where = _place(view, slow, cause.gaps)
    if stall is not None:
        steps = view.steps.number if view.steps is not None else 0
        often = f"every {stall.every} steps" if stall.every else f"in {len(stall.steps):,} of {steps:,} steps"
        return _Why(
            f"{often} its host holds its device up for {time_text(stall.mean_ns)}{where}",
            f"Slow are {'steps' if stall.steps[1:] else 'step'} {', '.join(f'{at:,}' for at in stall.steps[:6])}"
            f"{' and more' if stall.steps[6:] else ''}.",
            f"Look at what the host of {slow.name} does there: saving, logging, evaluation, Python's garbage "
            "collection; do it on another thread, or on all ranks at once.",
        )
    return _Why(
        f"its device waits for its host{where}, {_each(view, cause.total_ns)}",
        f"Its device is idle for {each_text(view, cause.total_ns)}{where}, waiting for its host.",
        f"Look at what the host of {slow.name} does there: its input pipeline, its part of the data, its cores.",
    )


def _waits_for_device(facts: Facts, view: View, slow: RankTime) -> _Why:
    cause = view.causes["synchronising"]
    lines = _lines(facts, slow.name)
    where = f" at {one_line(lines[0][0], 60)}" if lines else _place(view, slow, cause.gaps)
    return _Why(
        f"its host waits for its device{where} before it launches more, {_each(view, cause.total_ns)}",
        f"Its device is idle for {each_text(view, cause.total_ns)} after such waits.",
        f"Let {slow.name} read results less often: no .item(), .cpu() or synchronize() within a step.",
    )


def _launches(view: View) -> _Why:
    cause = view.causes["launch"]
    return _Why(
        f"its host launches slowly, {_each(view, cause.total_ns)} between kernels",
        f"Its device is idle for {each_text(view, cause.total_ns)} between two launches.",
        "Look at the cores of its host: another program on them, their clock, or a debugger or profiler on this rank.",
    )


def _in_a_block(facts: Facts, view: View, slow: RankTime, these: Compared) -> _Why | None:
    """Where its host is while the others wait for it: all there is to know where ranks share a device, for one."""
    told = these.told
    if told is None:
        return None
    place = these.answer.ranks.index(slow)
    ahead = told.offsets_ns[place] or 0
    late = [each.parts[-2:] for each in told.joined if each.last.process == place]
    awaited = union([(before.start_ns + ahead, last.start_ns + ahead) for before, last in late])
    spans: dict[Path, list[Interval]] = {}
    for record in facts.session.records:
        if type(record) is BlockRecord and record.path[:1] == (slow.name,):
            spans.setdefault(record.path, []).append((record.start_ns, record.end_ns))
    own: Counter[Path] = Counter()
    for path, found in spans.items():
        within = total(intersect(union(found), awaited))
        own[path] += within
        own[path[:-1]] -= within
    where, spent = max(own.items(), key=itemgetter(1), default=((), 0))
    if not where[1:] or spent < _IN_A_BLOCK * total(awaited):
        return None
    block, share = one_line(" › ".join(where[1:]), 60), percent_text(spent / total(awaited))
    return _Why(
        f"its host is in “{block}” meanwhile, {_each(view, spent)}",
        f"Its host is in “{block}” for {share} of the time by which it comes later than the others.",
        f"Look at what the host of {slow.name} does there: its input pipeline, its part of the data, its cores.",
    )


def _in_turns(view: View, others: Sequence[View]) -> _Why | None:
    """Ranks on one device wait for each other's turns there, whatever their hosts do."""
    beside = {one.program.root for one in others if one.key == view.key}
    if not beside:
        return None
    return _Why(
        "",
        f"It shares {view.text} with {count_text(len(beside), 'other rank')}: where their work takes turns there, "
        "whose turn is last comes last.",
        "Give each rank a device of its own. Of ranks on one device, who comes last may say nothing of their hosts.",
    )


def _computing(facts: Facts, view: View | None, slow: RankTime, answer: Ranks, beside: Sequence[View]) -> _Why | None:
    others = [row for row in answer.ranks if row.rank != slow.rank]
    usual = median([row.compute_ns for row in others])
    clocks = [row.sm_mhz for row in others if row.sm_mhz is not None]
    if not usual or slow.compute_ns < _LONGER * usual:
        return None
    longer, alone = percent_text(slow.compute_ns / usual - 1), len(others) == 1
    them = "the other" if alone else "the others"
    if slow.sm_mhz is not None and clocks and slow.sm_mhz < _LOWER * median(clocks):
        reasons = _reasons(facts, slow.name)
        return _Why(
            f"its GPU runs at {slow.sm_mhz:,.0f} MHz, {'that' if alone else 'those'} of {them} at "
            f"{median(clocks):,.0f} MHz, and computes {longer} longer",
            f"Reasons given by the driver: {', '.join(reasons)}." if reasons else "The driver gave no reason.",
            f"Check cooling and the power limit of the GPU of {slow.name}; move the job off it until then.",
        )
    said = f"at the same clock of {slow.sm_mhz:,.0f} MHz" if slow.sm_mhz is not None and clocks else ""
    calls = _calls(view, beside)
    return _Why(
        f"it computes {longer} longer than {them}{f', {said}' if said else ''}",
        calls or "It launches as many kernels, and each takes longer: a larger batch, or other shapes.",
        f"Give {slow.name} as much work as {them}: equal batches, equal lengths of sequences, equal shards.",
    )


def _calls(view: View | None, others: Sequence[View]) -> str:
    """How many kernels it launches in each step, where the others launch fewer or more."""
    if view is None or not others:
        return ""
    mine, usual = (_kernels(one) for one in (view, others[0]))
    if not usual or abs(mine - usual) < 0.05 * usual:
        return ""
    return f"It launches {mine:,.0f} kernels a step, {others[0].program.root} {usual:,.0f}."


def _kernels(view: View) -> float:
    return sum(count for count, _ in view.kernels.values()) / (view.steps.number if view.steps is not None else 1)


def _lines(facts: Facts, root: str) -> list[tuple[str, int]]:
    """The lines of a process that wait for its device, with nanoseconds, most first."""
    sums: dict[str, int] = {}
    for record in facts.session.records:
        if type(record) is GpuSync and record.source_line and record.path[:1] == (root,):
            sums[record.source_line] = sums.get(record.source_line, 0) + duration_ns(record)
    for row in facts.session.aggregates:
        if row.kind == "sync" and row.source_line and row.path[:1] == (root,):
            sums[row.source_line] = sums.get(row.source_line, 0) + row.total_ns
    return sorted(sums.items(), key=lambda item: -item[1])


def _reasons(facts: Facts, root: str) -> list[str]:
    """Why the clock of its device was held back, as the driver says."""
    found = {
        reason
        for card in sampled(facts.session)
        if root in card.processes
        for sample in card.samples
        for reason in sample.clocks.throttle_reasons or ()
    }
    return sorted(found)


def _place(view: View, slow: RankTime, gaps: Sequence[int]) -> str:
    """ " in “train_step › load”", as the rank itself calls it."""
    where = place_text(view, gaps).replace(f"“{one_line(slow.name)} › ", "“")
    return f" {where}" if where else ""


def _each(view: View, spent: int) -> str:
    """ "8.00 ms of each step"; in all where there are no steps."""
    if view.told is None:
        return f"{time_text(spent)} in all"
    return f"{time_text(spent / view.told.number)} of each {view.told.name if view.told.name != 'launch' else 'step'}"


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (across_ranks,)
