"""Many ranks of one job: who computes longer, who arrives last, and how well their clocks agree."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .._records.records import GpuCollective, GpuKernel
from .._runtime.text import count_text, one_line, percent_text, time_text
from ..session import Session
from .anomalies import median
from .busy import sweeps, window
from .collectives import Missing, Row, join, table
from .facts import Finding
from .families import is_collective
from .processes import divided, processes_of


class RankTime(NamedTuple):
    """One session of the job; times are unions over its devices, each device's added up."""

    rank: int
    window_ns: int
    compute_ns: int
    collective_ns: int
    collective_exposed_ns: int
    last_arrivals: int  # collectives in which this rank started last
    waited_ns: int  # in collectives, until the last rank had started
    clock_offset_ns: int | None  # its clock minus that of the lowest rank; None where they could not be compared
    name: str = ""  # "rank 3"; "process 41" of a merged session whose processes have no ranks
    collectives: int = 0  # matched ones that it took part in
    late_ns: int | None = None  # median over its last arrivals: how much later it came than the one before it


class Ranks(NamedTuple):
    """The ranks of one job beside each other."""

    ranks: tuple[RankTime, ...]
    imbalance: float | None  # longest computing rank over the mean, less one
    straggler: int | None  # the rank that arrived last in most collectives
    collectives: int  # matched across all ranks
    clock_error_ns: int | None  # median disagreement of matched ends once offsets are taken off
    notes: tuple[str, ...]
    missing: tuple[Missing, ...] = ()  # collectives that some ranks waited in at the end, and others never began


def ranks(sessions: Sequence[Session]) -> Ranks:
    """Compares sessions of one job by ``meta["rank"]`` (by place where they have none).

    Where NCCL told of collectives, they are matched by communicator and number (:mod:`.collectives`). Elsewhere their
    kernels are, by name and order, and only if every rank has the same number of each. A collective ends at about the
    same time on all ranks, so the median difference of ends is the difference of clocks; starts are compared after
    taking it off. Raises ValueError for two sessions of the same rank.
    """
    numbered = {_number(session, place): session for place, session in enumerate(sessions)}
    if len(numbered) != len(sessions):
        raise ValueError("two sessions have the same rank; compare runs with diff instead")
    order = sorted(numbered)
    notes: list[str] = []
    seen = _arrived([numbered[rank] for rank in order], notes)
    rows = []
    for at, rank in enumerate(order):
        session = numbered[rank]
        name = str(session.meta.get("root") or f"rank {rank}")
        span = window(session)
        computing = communicating = exposed = 0
        for walk in sweeps(session).values():
            parts = walk.parts()
            computing += parts.compute
            communicating += parts.collective
            exposed += parts.collective - parts.collective_hidden
        if session.work.summed:
            notes.append(f"{name}: short kernels were only summed; computing time is a lower bound")
        rows.append(
            RankTime(
                rank=rank,
                window_ns=span[1] - span[0] if span else 0,
                compute_ns=computing,
                collective_ns=communicating,
                collective_exposed_ns=exposed,
                last_arrivals=len(seen.late_ns[at]),
                waited_ns=seen.waited_ns[at],
                clock_offset_ns=seen.offsets_ns[at],
                name=name,
                collectives=seen.collectives[at],
                late_ns=round(median(seen.late_ns[at])) if seen.late_ns[at] else None,
            )
        )
    mean = sum(row.compute_ns for row in rows) / len(rows) if rows else 0
    return Ranks(
        ranks=tuple(rows),
        imbalance=max(row.compute_ns for row in rows) / mean - 1 if mean and len(rows) > 1 else None,
        straggler=_straggler(rows),
        collectives=seen.matched,
        clock_error_ns=seen.error_ns,
        notes=tuple(dict.fromkeys(notes)),
        missing=seen.missing,
    )


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
    return parts


def ranks_of(session: Session) -> Ranks | None:
    """The processes of a merged session compared; None for a session of one."""
    return ranks(split(session)) if len(processes_of(session)) > 1 else None


def collectives_of(session: Session) -> list[Row]:
    """All collectives of a session, merged or not, by what they are."""
    if not any(type(record) is GpuCollective for record in session.records):
        return []
    return table([one.collectives for one in split(session)])


def rank_findings(answer: Ranks) -> list[Finding]:
    """What the ranks' comparison says, as findings."""
    found = [_hang(answer.missing)] if answer.missing else []
    if answer.straggler is not None:
        slow = next(row for row in answer.ranks if row.rank == answer.straggler)
        waits = [row.waited_ns for row in answer.ranks if row.rank != answer.straggler]
        cost = round(sum(waits) / len(waits))
        others = f"the others {time_text(cost)} each" if len(waits) > 1 else f"the other {time_text(cost)}"
        found.append(
            Finding(
                "late_rank",
                f"{_capital(slow.name)} arrives last in {percent_text(slow.last_arrivals / slow.collectives)} of "
                f"{count_text(slow.collectives, 'collective')}, by {time_text(slow.late_ns or 0)}; waiting for it "
                f"costs {others}.",
                (
                    (
                        f"It computes {time_text(slow.compute_ns)}; the mean is "
                        f"{time_text(sum(row.compute_ns for row in answer.ranks) / len(answer.ranks))}."
                    ),
                    f"Clocks agree within {time_text(answer.clock_error_ns)} after alignment at the collectives' ends.",
                ),
                "Give it less work or equal shapes; look at its clocks, its input pipeline and who else uses its card.",
                "high" if (answer.clock_error_ns or 0) * 10 <= cost else "low",
                cost,
                where=slow.name,
            )
        )
    if answer.imbalance is not None and answer.imbalance >= 0.1:
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
    return found


def _hang(missing: Sequence[Missing]) -> Finding:
    """The first collective that not all ranks came to."""
    key, present, queued, absent, _ = missing[0]
    who = _numbers(absent or queued)
    why = "never launched it" if absent else "launched it, and its device never began it"
    return Finding(
        "hang",
        f"{_capital(who)} did not come to {key.name} number {key.sequence:,}, in which {_numbers(present)} waited at "
        "the end of the run.",
        (
            f"{_capital(who)} {why}. Ranks are those of communicator {key.communicator}.",
            *(
                f"{_capital(_numbers(each.present))} waited in {each.key.name} number {each.key.sequence:,}."
                for each in missing[1:4]
            ),
            *([f"{len(missing) - 4:,} more collectives were waited in."] if len(missing) > 4 else ()),
        ),
        "Look at what these ranks did instead: an exception, a branch that calls other collectives or none, a loader "
        "that ran out first.",
        "high",
        where=who,
    )


def _numbers(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 5", "ranks 0 to 6 and 9"."""
    stretches: list[list[int]] = []
    for rank in sorted(ranks):
        if stretches and rank == stretches[-1][1] + 1:
            stretches[-1][1] = rank
        else:
            stretches.append([rank, rank])
    texts = [str(a) if a == b else f"{a} and {b}" if b == a + 1 else f"{a} to {b}" for a, b in stretches]
    word = "rank" if len(ranks) == 1 else "ranks"
    shown = texts if len(texts) <= 5 else [*texts[:4], f"{len(texts) - 4:,} more ranges"]
    return f"{word} {', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else f"{word} {''.join(shown)}"


def _capital(name: str) -> str:
    return one_line(name[:1].upper() + name[1:], 60)


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
            notes.append(f"{name}: {', '.join(str(len(kernels)) for kernels in lists)} calls by rank, not matched")
    if not found:
        notes.append("no collective was seen on every rank: clocks cannot be compared, nor arrivals")
    found.sort(key=lambda group: group[0].start_ns)
    return found


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


def _arrived(sessions: list[Session], notes: list[str]) -> _Arrived:
    told = join([session.collectives for session in sessions]) if len(sessions) > 1 else None
    if told is not None and told.joined:
        arrivals = [[(part.start_ns, part.process) for part in each.parts] for each in told.joined]
        offsets, error = told.offsets_ns, told.error_ns
    else:
        matched = _matched(sessions, notes)
        offsets, error = _clocks(matched) if matched else ((None,) * len(sessions), None)
        arrivals = [
            sorted(
                (kernel.start_ns - (offset or 0), at)
                for at, (kernel, offset) in enumerate(zip(group, offsets, strict=True))
            )
            for group in matched
        ]
    missing = told.missing if told is not None else ()
    seen = _Arrived(offsets, error, len(arrivals), Counter(), [[] for _ in sessions], Counter(), missing)
    for arrived in arrivals:
        latest, last = arrived[-1]
        seen.late_ns[last].append(latest - arrived[-2][0])
        for start, at in arrived:
            seen.collectives[at] += 1
            seen.waited_ns[at] += latest - start
    return seen


def _straggler(rows: list[RankTime]) -> int | None:
    """The rank that was last in more than half of at least five of its collectives; of two ranks, in four fifths."""
    enough = [row for row in rows if row.collectives >= 5]
    if not enough or len(rows) < 2:
        return None
    worst = max(enough, key=lambda row: row.last_arrivals / row.collectives)
    share = worst.last_arrivals / worst.collectives
    return worst.rank if share > 0.5 and (len(rows) > 2 or share >= 0.8) else None
