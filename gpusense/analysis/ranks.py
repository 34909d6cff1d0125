"""Many ranks of one job: who computes longer, who arrives last, and how well their clocks agree."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from .._records.records import GpuCollective, GpuKernel
from .._runtime.text import count_text, one_line, percent_text, ranks_text, rate_text, sentence, size_text, time_text
from ..session import Session
from .anomalies import median
from .collectives import Collectives, Missing, Row, Slow, joined_table, slow_links
from .facts import Facts, Finding
from .families import is_collective
from .figures import FIGURES, collectives_with_exposed, figures_of
from .processes import divided, processes_of, sharing
from .sampled import sampled


class RankTime(NamedTuple):
    """One session of the job; times are unions over its devices, each device's added up."""

    rank: int
    window_ns: int
    compute_ns: int
    collective_ns: int
    collective_exposed_ns: int
    last_arrivals: int  # collectives in which this rank started last
    waited_ns: int  # in collectives, until the last rank had started
    clock_offset_ns: int | None  # its clock minus that of the lowest rank of its job; None: nothing to compare it by
    name: str = ""  # "rank 3"; "process 41" of a merged session whose processes have no ranks
    collectives: int = 0  # matched ones that it took part in
    late_ns: int | None = None  # median over its last arrivals: how much later it came than the one before it
    cost_ns: int = 0  # of all its last arrivals together: how much later it came than the one before it
    events: int = 0  # of its last arrivals those that make up most of that
    event_ns: int = 0  # how late it is in one of these: half of ``cost_ns`` is of later ones
    busy_ns: int = 0
    sm_mhz: float | None = None  # median of the monitor's samples while the device worked


class Ranks(NamedTuple):
    """The ranks of one job beside each other."""

    ranks: tuple[RankTime, ...]
    imbalance: float | None  # longest computing rank over the mean, less one
    straggler: int | None  # the rank that arrived last in most collectives
    collectives: int  # matched across all ranks
    clock_error_ns: int | None  # median disagreement of matched ends once offsets are taken off
    notes: tuple[str, ...]
    missing: tuple[Missing, ...] = ()  # collectives that some ranks waited in at the end, and others never began
    alike: tuple[tuple[int, ...], ...] = ()  # places in ``ranks`` of those that hardly differ, most first
    slow: tuple[Slow, ...] = ()  # collectives that take longer than others of their kind
    together: tuple[int, ...] = ()  # places in ``ranks`` of those that the others wait for, where these are several
    unrecorded: int = 0  # ranks of a communicator that were not recorded, of that which lacks most


class Job(NamedTuple):
    """The sessions of a job's ranks in the order of their numbers, and what their collectives say together."""

    sessions: tuple[Session, ...]
    numbers: tuple[int, ...]
    told: Collectives | None  # None where NCCL told of none
    rows: tuple[Row, ...]


def job(sessions: Sequence[Session]) -> Job:
    """By ``meta["rank"]``, by place where they have none. Raises ValueError for two sessions of the same rank."""
    numbered = {_number(session, place): session for place, session in enumerate(sessions)}
    if len(numbered) != len(sessions):
        raise ValueError("two sessions have the same rank; compare runs with diff instead")
    order = sorted(numbered)
    mine = [numbered[number] for number in order]
    found = [collectives_with_exposed(one) for one in mine]
    told, rows = joined_table(found) if any(found) else (None, [])
    return Job(tuple(mine), tuple(order), told, tuple(rows))


def ranks(sessions: Sequence[Session]) -> Ranks:
    """Compares sessions of one job by ``meta["rank"]`` (by place where they have none).

    Where NCCL told of collectives, they are matched by communicator and number (:mod:`.collectives`). Elsewhere their
    kernels are, by name and order, and only if every rank has the same number of each. A collective ends at about the
    same time on all ranks, so the median difference of ends is the difference of clocks; starts are compared after
    taking it off. Raises ValueError for two sessions of the same rank.
    """
    return _compared(job(sessions))


def _compared(these: Job) -> Ranks:
    notes: list[str] = []
    seen = _arrived(these, notes)
    rows, summed = [], list[int]()
    for at, (rank, session) in enumerate(zip(these.numbers, these.sessions, strict=True)):
        figures = figures_of(session)
        name = name_of(session, rank)
        summed += [at] if figures.summed else []
        rows.append(
            RankTime(
                rank=rank,
                window_ns=figures.window_ns,
                compute_ns=figures.compute_ns,
                collective_ns=figures.collective_ns,
                collective_exposed_ns=figures.exposed_ns,
                last_arrivals=len(seen.late_ns[at]),
                waited_ns=seen.waited_ns[at],
                clock_offset_ns=seen.offsets_ns[at],
                name=name,
                collectives=seen.collectives[at],
                late_ns=round(median(seen.late_ns[at])) if seen.late_ns[at] else None,
                cost_ns=sum(seen.late_ns[at]),
                **_events(seen.late_ns[at]),
                busy_ns=figures.busy_ns,
                sm_mhz=figures.sm_mhz,
            )
        )
    if summed:
        whose = names_text([rows[at] for at in summed])
        notes.append(f"short kernels of {whose} were only summed; computing time is a lower bound")
    mean = sum(row.compute_ns for row in rows) / len(rows) if rows else 0
    return Ranks(
        ranks=tuple(rows),
        imbalance=max(row.compute_ns for row in rows) / mean - 1 if mean and len(rows) > 1 else None,
        straggler=_straggler(rows),
        collectives=seen.matched,
        clock_error_ns=seen.error_ns,
        notes=tuple(dict.fromkeys(notes)),
        missing=seen.missing,
        alike=tuple(map(tuple, clusters(rows))),
        slow=tuple(slow_links(these.rows)),
        together=_together(rows) if _straggler(rows) is None else (),
        unrecorded=seen.unrecorded,
    )


def name_of(session: Session, rank: int) -> str:
    """ "rank 3"; "process 41" of a merged session whose processes have no ranks."""
    return str(session.meta.get("root") or f"rank {rank}")


#: Figures of a rank by which it is like others: within so much of the run, or of the figure itself.
_LIKE = ("compute_ns", "collective_exposed_ns", "busy_ns", "cost_ns", "waited_ns")
_OF_THE_RUN, _OF_ITSELF = 0.03, 0.1
#: Who computes longer than the mean by so much is a finding; who is further from it in any figure is not called alike.
_APART = 0.1
#: Of the waiting of the others so much is for the last rank alone, where one is late.
_ALONE = 0.3
#: Who waits so little of what others wait is waited for.
_LITTLE = 0.2
#: So many groups are told apart; what remains is one.
_GROUPS = 8


def clusters(rows: Sequence[RankTime]) -> list[list[int]]:
    """Places of ranks that are alike, largest group first. Of many kinds the last group holds all that remain."""
    left, found = list(range(len(rows))), list[list[int]]()
    floor = _OF_THE_RUN * median([row.window_ns for row in rows]) if rows else 0.0
    while left and len(found) < _GROUPS - 1:
        middle = [median([getattr(rows[at], name) for at in left]) for name in _LIKE]
        mine = [at for at in left if _near(rows[at], middle, floor)]
        if not mine:  # no rank is like the middle of all
            distances = [_far(_values(rows[at]), middle) for at in left]
            centre = _values(rows[left[distances.index(min(distances))]])
            mine = [at for at in left if _near(rows[at], centre, floor)]
        found.append(mine)
        left = [at for at in left if at not in set(mine)]
    found.sort(key=lambda mine: (-len(mine), mine))
    return [*found, left] if left else found


def _near(row: RankTime, centre: Sequence[float], floor: float) -> bool:
    pairs = zip(_values(row), centre, strict=True)
    return all(abs(own - usual) <= max(floor, _OF_ITSELF * usual) for own, usual in pairs)


def _values(row: RankTime) -> list[int]:
    return [getattr(row, name) for name in _LIKE]


def _far(values: Sequence[float], centre: Sequence[float]) -> float:
    return sum(abs(own - usual) for own, usual in zip(values, centre, strict=True))


def telling(sessions: Sequence[Session], most: int) -> list[int]:
    """Places of the sessions that show a job best: who is missing or late, and of each group of ranks that are alike
    one, of the largest first. In order."""
    these = job(sessions)
    answer, by_number = _compared(these), {_number(one, place): place for place, one in enumerate(sessions)}
    chosen: list[int] = []
    if answer.missing:
        first = answer.missing[0]
        chosen += [first.processes[rank] for rank in (*first.absent, *first.queued)[:1]]
    if answer.straggler is not None:
        chosen.append(these.numbers.index(answer.straggler))
    chosen += [slow.row.members[0] for slow in answer.slow[:1]]
    chosen += [mine[0] for mine in answer.alike]
    kept = list(dict.fromkeys(chosen))[:most]
    return sorted(by_number[these.numbers[at]] for at in kept)


def names_text(rows: Sequence[RankTime]) -> str:
    """ "ranks 0 to 62"; "process 41 and 6 others" where they have no ranks."""
    if all(row.name == f"rank {row.rank}" for row in rows):
        return ranks_text([row.rank for row in rows])
    first = one_line(rows[0].name, 40)
    return first if len(rows) == 1 else f"{first} and {count_text(len(rows) - 1, 'other')}"


def alike_text(answer: Ranks, figures: Mapping[str, Sequence[float]] | None = None, processes: int = 0) -> str:
    """ "Ranks 0 to 62 hardly differ; rank 63 is apart."; "" for a few ranks that all hardly differ.

    ``figures``: what else is known of some of them, by name; ``processes``: how many there are, with those that had no
    work of a device."""
    groups = [[answer.ranks[at] for at in mine] for mine in answer.alike]
    if len(groups) < 2:
        what = "ranks" if all(row.name.startswith("rank ") for row in answer.ranks) else "processes"
        what += " that used a device" if what == "processes" and processes > len(answer.ranks) else ""
        said = len(answer.ranks) > 2 and _agree(answer.ranks, figures or {})
        return f"All {len(answer.ranks)} {what} hardly differ." if said else ""
    large = [names_text(mine) for mine in groups if len(mine) > 1 and _agree(mine, figures or {})]
    rest = [mine[0] for mine in groups if len(mine) == 1]
    parts = [f"{name} hardly differ" for name in large]
    if rest:
        parts.append(f"{names_text(rest)} {'is' if len(rest) == 1 else 'are'} apart")
    return f"{_capital('; '.join(parts), 400)}." if large else ""


def _agree(rows: Sequence[RankTime], figures: Mapping[str, Sequence[float]]) -> bool:
    """Whether none is so far from the mean that a finding would say it, in any figure that is known of several."""
    known = [figures[row.name] for row in rows if row.name in figures]
    columns = [[row.compute_ns for row in rows], [row.busy_ns for row in rows], *zip(*known, strict=True)]
    means = [sum(column) / max(1, len(column)) for column in columns]
    return not any(
        abs(value - mean) >= _APART * mean > 0 for column, mean in zip(columns, means, strict=True) for value in column
    )


def _of_steps(facts: Facts) -> dict[str, tuple[float, float, float]]:
    """By process how many steps it has, how long these are, and how busy its devices are in the phase judged."""
    busy: dict[str | None, list[float]] = {}
    for view in facts.views:
        busy.setdefault(view.program.root, []).append(view.parts.busy / max(1, view.length_ns))
    return {
        one.root: (
            0.0 if one.steps is None else one.steps.number,
            0.0 if one.steps is None else one.steps.median_ns,
            sum(busy[one.root]) / len(busy[one.root]),
        )
        for one in facts.programs
        if one.root is not None and one.root in busy
    }


def one_program(session: Session, answer: Ranks) -> bool:
    """Whether the processes ran the same, as ranks of a job do, and what has one command."""
    return session.meta.get("run") is not None or all(row.name.startswith("rank ") for row in answer.ranks)


def split(session: Session) -> list[Session]:
    """One session a process of a merged session, for :func:`ranks`; itself alone if it is of one.

    Ranks that occur twice, or not at all, become places in the list.
    """
    listed = processes_of(session)
    if len(listed) < 2:
        return [session]
    numbers = [one.get("rank") for one in listed]
    if None in numbers or len(set(numbers)) < len(numbers):
        numbers = list(range(len(listed)))
    parts = divided(session, {one["root"]: at for at, one in enumerate(listed)})
    for part, one, number in zip(parts, listed, numbers, strict=True):
        part.meta = {**session.meta, **one, "rank": number, "processes": []}
    by_root = {one["root"]: part for one, part in zip(listed, parts, strict=True)}
    for card in sampled(session) if session.metrics else ():
        for root in card.processes & by_root.keys():
            by_root[root].metrics += card.samples
    return parts


def shown_text(session: Session) -> str:
    """Which ranks are alike, and whose work is in the session where that is not all; "" of a session of one."""
    answer = session.once(ranks_of)
    if answer is None:
        return ""
    listed = processes_of(session)
    same = one_program(session, answer)
    said = alike_text(answer, _of_steps(session.once(Facts)), len(listed)) if same else ""
    whole = {one["root"] for one in listed if FIGURES not in one}
    shown = [row for row in answer.ranks if row.name in whole]
    if len(shown) == len(answer.ranks) or not shown:
        return said
    return f"{said} Work is shown of {names_text(shown)}; name the files of other ranks to see theirs.".lstrip()


def notes_on(session: Session) -> tuple[str, ...]:
    """What the comparison of a job's ranks lacks; none where the processes are no ranks of a job."""
    answer = session.once(ranks_of)
    numbered = answer is not None and all(row.name == f"rank {row.rank}" for row in answer.ranks)
    return answer.notes if answer is not None and numbered else ()


def job_of(session: Session) -> Job:
    """Of the processes of a session, merged or not."""
    return job(split(session))


def ranks_of(session: Session) -> Ranks | None:
    """The processes of a merged session compared; None for a session of one. One without a rank that launched nothing,
    as a compiler's worker, is none of the job."""
    listed = processes_of(session)
    if len(listed) < 2:
        return None
    these = session.once(job_of)
    if these.told is None and None in [one.get("rank") for one in listed]:
        these = job([one for one in these.sessions if figures_of(one).busy_ns])
    return _compared(these) if len(these.sessions) > 1 else None


class Compared(NamedTuple):
    """One job of a merged session."""

    answer: Ranks
    told: Collectives | None  # as :class:`Job`'s


def jobs_of(session: Session) -> list[Compared]:
    """The processes of a merged session compared, each job by itself; none for a session of one. There are several jobs
    where the number of a rank occurs twice: processes are then of one job where communicators connect them."""
    answer = session.once(ranks_of)
    if answer is None:
        return []
    these, numbers = session.once(job_of), [one.get("rank") for one in processes_of(session)]
    whole = [Compared(answer, these.told)]
    if these.told is None or len(set(numbers)) == len(numbers):
        return whole
    connected = sharing([{record.communicator for record in one.collectives} - {None} for one in these.sessions])
    apart = [job([these.sessions[at] for at in places]) for places in connected if len(places) > 1]
    return [Compared(_compared(one), one.told) for one in apart] if len(apart) > 1 else whole


def collectives_of(session: Session) -> list[Row]:
    """All collectives of a session, merged or not, by what they are."""
    if not any(type(record) is GpuCollective for record in session.records):
        return []
    return list(session.once(job_of).rows)


#: Of a rank that is late in fewer of its collectives it is said how often.
_ALWAYS = 0.5
#: What a rank computes is told where it is so far from the mean.
_TOLD = 0.05


def late_text(slow: RankTime) -> str:
    """ "Rank 3 arrives last in 99 % of 200 collectives, by 8.00 ms"; "… arrives last by 60.0 ms in 20 of 800"."""
    if _now_and_then(slow):
        return (
            f"{_capital(slow.name)} arrives last by {time_text(slow.event_ns)} in {slow.events:,} of "
            f"{count_text(slow.collectives, 'collective')}"
        )
    return (
        f"{_capital(slow.name)} arrives last in {percent_text(slow.last_arrivals / slow.collectives)} of "
        f"{count_text(slow.collectives, 'collective')}, by {time_text(slow.late_ns or 0)}"
    )


def _now_and_then(slow: RankTime) -> bool:
    """Whether it is the few collectives to which it comes much later that count, not all in which it is last."""
    return slow.events < _ALWAYS * slow.collectives and slow.events * 2 < slow.last_arrivals + slow.collectives // 10


def _late_evidence(answer: Ranks, slow: RankTime) -> Iterator[str]:
    """How often it is last in all, where the title counts the worst alone; what it computes, where that differs."""
    less = slow.last_arrivals - slow.events
    if less and _now_and_then(slow):
        yield (
            f"It is last in {slow.last_arrivals:,} in all, in {less:,} of them by less than "
            f"{time_text(slow.event_ns / 2)}."
        )
    mean = sum(row.compute_ns for row in answer.ranks) / len(answer.ranks)
    if abs(slow.compute_ns - mean) >= _TOLD * mean > 0:
        yield f"It computes {time_text(slow.compute_ns)}; the mean is {time_text(mean)}."
    if answer.clock_error_ns is not None:
        yield f"Clocks agree within {time_text(answer.clock_error_ns)} after alignment at the collectives' ends."
    if answer.unrecorded:
        yield sentence(_unrecorded_text(answer.unrecorded))


def rank_findings(answer: Ranks, why: str = "") -> list[Finding]:
    """What the ranks' comparison says, as findings. ``why``: what keeps the rank that is late."""
    found = [_hang(answer)] if answer.missing else []
    if answer.straggler is not None:
        slow = next(row for row in answer.ranks if row.rank == answer.straggler)
        waits = [row.waited_ns for row in answer.ranks if row.rank != answer.straggler]
        cost = round(sum(waits) / len(waits))
        others = f"the others {time_text(cost)} each" if len(waits) > 1 else f"the other {time_text(cost)}"
        found.append(
            Finding(
                "late_rank",
                f"{late_text(slow)}{f': {why}' if why else ''}; waiting for it costs {others}.",
                tuple(_late_evidence(answer, slow)),
                f"The session of {slow.name} does not tell why. Put blocks of your own around the parts of "
                "a step, or record it with --syscalls: then it tells what its host does meanwhile.",
                "high" if (answer.clock_error_ns or 0) * 10 <= cost else "low",
                cost,
                where=slow.name,
            )
        )
    if answer.together and not any(set(answer.together) == set(slow.row.members) for slow in answer.slow):
        found.append(_late_together(answer))
    if answer.imbalance is not None and answer.imbalance >= _APART:
        by_time = sorted(answer.ranks, key=lambda row: -row.compute_ns)
        shown = by_time if len(by_time) <= 8 else [*by_time[:4], *by_time[-4:]]
        hidden = len(by_time) - len(shown)
        found.append(
            Finding(
                "imbalance",
                f"{_capital(by_time[0].name)} computes {percent_text(answer.imbalance)} longer than the mean of all "
                "ranks.",
                (
                    *(f"{_capital(row.name)}: {time_text(row.compute_ns)} computing." for row in shown),
                    *([f"{hidden:,} others lie between."] if hidden else ()),
                ),
                "Divide the work more evenly.",
                "high",
            )
        )
    return found + [_slow_link(answer, slow) for slow in answer.slow[:1]]


def _late_together(answer: Ranks) -> Finding:
    late = [answer.ranks[at] for at in answer.together]
    cost = round(_mean_wait(answer.ranks, late))
    own, usual = (
        sum(row.compute_ns for row in rows) / len(rows)
        for rows in (late, [row for row in answer.ranks if row not in late])
    )
    return Finding(
        "late_rank",
        f"{_capital(names_text(late))} arrive last together; waiting for them costs the others {time_text(cost)} each.",
        (f"They compute {time_text(own)}, the others {time_text(usual)}.",),
        "Look at what these ranks have in common: a host, a switch, a stage of the pipeline, a kind of data.",
        "medium",
        cost,
        where=names_text(late),
    )


def _slow_link(answer: Ranks, slow: Slow) -> Finding:
    """Links that carry less than others of their kind."""
    row = slow.row
    members = names_text([answer.ranks[at] for at in row.members])
    function, _, pair = row.name.partition(" ")
    others = f"{slow.others:,} others" if slow.others > 1 else "the other"
    usual = (row.bytes or 0) * 1e9 / slow.usual_ns
    more = [
        f"{each.row.name} among {names_text([answer.ranks[at] for at in each.row.members])}"
        for each in answer.slow[1:4]
    ]
    return Finding(
        "slow_links",
        f"{function} of {size_text(row.bytes)} {'between' if pair else 'among'} {members} takes "
        f"{time_text(row.typical_ns)}, where {others} like it {'take' if slow.others > 1 else 'takes'} "
        f"{time_text(slow.usual_ns)}: {rate_text(row.algorithm_bandwidth)} instead of {rate_text(usual)}.",
        (
            f"{count_text(row.calls, 'call')}; times count from the arrival of the last rank on.",
            *([f"So are {', '.join(more)}{' and more' if answer.slow[4:] else ''}."] if more else ()),
        ),
        "Look at the links of these ranks: errors of NVLink and PCIe (nvidia-smi nvlink -e), the speed of the network "
        "card, and which way NCCL goes (NCCL_DEBUG=INFO).",
        "medium",
        slow.lost_ns,
        where=members,
    )


def _hang(answer: Ranks) -> Finding:
    """The first collective that not all ranks came to."""

    def names(each: Missing, ranks: Sequence[int]) -> str:
        return names_text([answer.ranks[each.processes[rank]] for rank in ranks])

    def called(each: Missing) -> str:
        ends = [names(each, [rank]) for rank in each.key.ends or ()]
        between = f" from {ends[0]} to {ends[1]}" if ends else ""
        return f"{each.key.name.partition(' ')[0]} number {each.key.sequence:,}{between}"

    first, more = answer.missing[0], answer.missing[1:]
    late = first.absent or first.queued
    who, theirs = names(first, late), ranks_text(late)
    why = "never launched it" if first.absent else "launched it, and its device never began it"
    named = f" (“{one_line(first.communicator_name, 40)}”)" if first.communicator_name else ""
    of = f"{'' if who == theirs else theirs + ' of '}communicator {first.key.communicator}{named}"
    return Finding(
        "hang",
        f"{_capital(who)} did not come to {called(first)}, in which {names(first, first.present)} waited at the end of "
        "the run.",
        (
            f"{_capital(who)} {why}: {of}.",
            *(f"{_capital(names(each, each.present))} waited in {called(each)}." for each in more[:3]),
            *([f"{len(more) - 3:,} more collectives were waited in."] if len(more) > 3 else ()),
        ),
        "Look at what these ranks did instead: an exception, a branch that calls other collectives or none, a loader "
        "that ran out first.",
        "high",
        where=who,
    )


def _capital(name: str, most: int = 60) -> str:
    return one_line(name[:1].upper() + name[1:], most)


def _number(session: Session, place: int) -> int:
    rank = session.meta.get("rank")
    return rank if isinstance(rank, int) else place


def _matched(sessions: list[Session], notes: list[str]) -> list[list[GpuKernel]]:
    """Collectives with one kernel of every rank, in the order of the first rank."""
    if len(sessions) < 2:
        return []
    by_name: list[dict[str, list[GpuKernel]]] = []
    for session in sessions:
        names: dict[str, list[GpuKernel]] = {}
        for kernel in session.kernels:
            if is_collective(kernel.full_name or kernel.name):
                names.setdefault(kernel.full_name or kernel.name, []).append(kernel)
        for kernels in names.values():
            kernels.sort(key=lambda kernel: kernel.start_ns)
        by_name.append(names)
    found: list[list[GpuKernel]] = []
    for name in sorted(set().union(*by_name)):
        lists = [names.get(name, []) for names in by_name]
        if len({len(kernels) for kernels in lists}) == 1:
            found += [list(group) for group in zip(*lists, strict=True)]
        else:
            notes.append(f"{name}: {_calls_text([len(kernels) for kernels in lists])} calls by rank, not matched")
    if not found:
        notes.append("no collective was seen on every rank: clocks cannot be compared, nor arrivals")
    found.sort(key=lambda group: group[0].start_ns)
    return found


def _why_untold(sessions: Sequence[Session]) -> list[str]:
    """Why NCCL told nothing of collectives whose kernels are there."""
    rows = [row for one in sessions for name, row in (one.meta.get("sources") or {}).items() if name.endswith("nccl")]
    whys = [
        row.get("reason")
        or "its communicators were made before gpusense came, or its profiler interface is none of versions 2 to 6"
        for row in rows
        if not row.get("communicators")
    ]
    return [f"NCCL told of no collectives: {why}; their kernels are compared in order" for why in dict.fromkeys(whys)]


def _calls_text(calls: list[int]) -> str:
    """ "20, 0"; of many ranks "20 (63 ranks), 19 (1 rank)"."""
    if len(calls) <= 8:
        return ", ".join(map(str, calls))
    common = Counter(calls).most_common(4)
    return ", ".join(f"{count:,} ({count_text(times, 'rank')})" for count, times in common)


def _clocks(matched: list[list[GpuKernel]]) -> tuple[tuple[int | None, ...], int]:
    """Offset of every rank's clock from the first rank's, and the median disagreement of ends that stays."""
    # Differences first, in integers: a median of absolute times would lose their nanoseconds.
    apart = [[kernel.end_ns - group[0].end_ns for kernel in group] for group in matched]
    offsets = [round(median([row[rank] for row in apart])) for rank in range(len(matched[0]))]
    left = [abs(row[rank] - offsets[rank]) for row in apart for rank in range(1, len(offsets))]
    return tuple(offsets), round(median(left))


class _Arrived(NamedTuple):
    """What collectives say of ranks, each list by their places."""

    offsets_ns: tuple[int | None, ...]
    error_ns: int | None
    matched: int
    collectives: Counter[int]
    late_ns: Sequence[list[int]]  # of each one in which it came last
    waited_ns: Counter[int]
    missing: tuple[Missing, ...]
    unrecorded: int


def _arrived(these: Job, notes: list[str]) -> _Arrived:
    told, sessions = these.told if len(these.sessions) > 1 else None, list(these.sessions)
    unrecorded = max(told.absent.values(), default=0) if told is not None else 0
    if told is not None and told.joined:
        arrivals = [[(part.start_ns, part.process) for part in each.parts] for each in told.joined]
        offsets, error = told.offsets_ns, told.error_ns
        notes += [_unrecorded_text(unrecorded)] if unrecorded else []
    else:
        matched = _matched(sessions, notes)
        notes += _why_untold(sessions) if matched else []
        offsets, error = _clocks(matched) if matched else ((None,) * len(sessions), None)
        arrivals = [
            sorted(
                (kernel.start_ns - (offset or 0), at)
                for at, (kernel, offset) in enumerate(zip(group, offsets, strict=True))
            )
            for group in matched
        ]
    missing = told.missing if told is not None else ()
    seen = _Arrived(offsets, error, len(arrivals), Counter(), [[] for _ in sessions], Counter(), missing, unrecorded)
    for arrived in arrivals:
        latest, last = arrived[-1]
        seen.late_ns[last].append(latest - arrived[-2][0])
        for start, at in arrived:
            seen.collectives[at] += 1
            seen.waited_ns[at] += latest - start
    return seen


def _unrecorded_text(count: int) -> str:
    were = "was" if count == 1 else "were"
    return f"{count_text(count, 'rank')} of a communicator {were} not recorded: whom the others waited for may be there"


def _events(late_ns: list[int]) -> dict[str, int]:
    ordered = sorted(late_ns, reverse=True)
    half = next(
        (late for late, sofar in zip(ordered, accumulate(ordered), strict=True) if 2 * sofar >= sum(ordered)), 0
    )
    return {"event_ns": half, "events": sum(2 * late >= half for late in ordered) if half else 0}


def _straggler(rows: list[RankTime]) -> int | None:
    """The rank that most of the waiting is for; else the one that was last in more than half of at least five of its
    collectives. Of two ranks, four fifths. Late once, as at the first collective, is no habit."""
    enough = [row for row in rows if row.collectives >= 5]
    if not enough or len(rows) < 2:
        return None
    least, whole = 0.5 if len(rows) > 2 else 0.8, sum(row.cost_ns for row in rows)
    worst = max(enough, key=lambda row: row.cost_ns)
    if worst.events < 2 or worst.cost_ns <= least * whole:
        worst = max(enough, key=lambda row: row.last_arrivals / row.collectives)
        if worst.last_arrivals <= least * worst.collectives:
            return None
    # Where others come hardly earlier than the last one, they are late together: see :func:`_together`.
    return worst.rank if _ALONE * _mean_wait(rows, [worst]) <= worst.cost_ns else None


def _mean_wait(rows: Sequence[RankTime], late: Sequence[RankTime]) -> float:
    """How long the others wait, each on average."""
    waits = [row.waited_ns for row in rows if row not in late]
    return sum(waits) / len(waits) if waits else 0.0


def _together(rows: Sequence[RankTime]) -> tuple[int, ...]:
    """Places of several ranks that the others wait for, and that wait for nobody themselves."""
    longest = max((row.waited_ns for row in rows), default=0)
    late = [at for at, row in enumerate(rows) if row.collectives and row.waited_ns < _LITTLE * longest]
    others = [row for row in rows if row.collectives and row.waited_ns > 0.5 * longest]
    whole = len(late) > 1 and len(late) + len(others) == len(rows) and 2 * len(late) <= len(rows)
    return tuple(late) if whole and longest > _OF_THE_RUN * median([row.window_ns for row in rows]) else ()
