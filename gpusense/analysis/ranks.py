"""Many ranks of one job: who computes longer, who arrives last, and how well their clocks agree."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from .._records.records import GpuKernel, Path
from .._runtime.text import count_text, one_line, percent_text, time_text
from ..session import Session
from .anomalies import median
from .busy import sweeps, window
from .facts import Finding
from .families import is_collective


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


class Ranks(NamedTuple):
    """The ranks of one job beside each other."""

    ranks: tuple[RankTime, ...]
    imbalance: float | None  # longest computing rank over the mean, less one
    straggler: int | None  # the rank that arrived last in most collectives
    collectives: int  # matched across all ranks
    clock_error_ns: int | None  # median disagreement of matched ends once offsets are taken off
    notes: tuple[str, ...]


def ranks(sessions: Sequence[Session]) -> Ranks:
    """Compares sessions of one job by ``meta["rank"]`` (by place where they have none).

    Collectives are matched by name and order, only if every rank has the same number of each. A collective's kernels
    end together on all ranks, so the median difference of ends is the difference of clocks; starts are compared after
    taking it off. Raises ValueError for two sessions of the same rank.
    """
    numbered = {_number(session, place): session for place, session in enumerate(sessions)}
    if len(numbered) != len(sessions):
        raise ValueError("two sessions have the same rank; compare runs with diff instead")
    order = sorted(numbered)
    notes: list[str] = []
    matched = _matched([numbered[rank] for rank in order], notes)
    offsets, error = _clocks(matched)
    last, waited = _arrivals(matched, offsets)
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
                last_arrivals=last[at],
                waited_ns=waited[at],
                clock_offset_ns=offsets[at] if matched else None,
                name=name,
            )
        )
    mean = sum(row.compute_ns for row in rows) / len(rows) if rows else 0
    return Ranks(
        ranks=tuple(rows),
        imbalance=max(row.compute_ns for row in rows) / mean - 1 if mean and len(rows) > 1 else None,
        straggler=_straggler(rows, len(matched)),
        collectives=len(matched),
        clock_error_ns=round(error) if matched else None,
        notes=tuple(dict.fromkeys(notes)),
    )


def processes_of(session: Session) -> list[dict[str, Any]]:
    """The processes of a merged session, as ``meta["processes"]`` lists them; empty for a session of one."""
    listed = session.meta.get("processes")
    return [one for one in listed or () if isinstance(one, dict) and isinstance(one.get("root"), str)]


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
    roots = {one["root"]: at for at, one in enumerate(listed)}
    parts = [
        Session(
            meta={**session.meta, **one, "rank": number, "processes": []},
            devices=session.devices,
            work=session.work.inside(partial(_begins_with, one["root"])),
        )
        for one, number in zip(listed, numbers, strict=True)
    ]
    for record in session.records:
        at = roots.get(record.path[0]) if record.path else None
        if at is not None:
            parts[at].records.append(record)
    for row in session.aggregates:
        at = roots.get(row.path[0]) if row.path else None
        if at is not None:
            parts[at].aggregates.append(row)
    return parts


def _begins_with(root: str, path: Path) -> bool:
    return path[:1] == (root,)


def rank_findings(sessions: Sequence[Session]) -> list[Finding]:
    """What the ranks' comparison says, as findings."""
    answer = ranks(sessions)
    found = []
    if answer.straggler is not None:
        slow = next(row for row in answer.ranks if row.rank == answer.straggler)
        waits = [row.waited_ns for row in answer.ranks if row.rank != answer.straggler]
        cost = round(sum(waits) / len(waits))
        others = f"the others {time_text(cost)} each" if len(waits) > 1 else f"the other {time_text(cost)}"
        found.append(
            Finding(
                "late_rank",
                f"{_capital(slow.name)} arrives last in {percent_text(slow.last_arrivals / answer.collectives)} of "
                f"{count_text(answer.collectives, 'collective')}; waiting for it costs {others}.",
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


def _clocks(matched: list[list[GpuKernel]]) -> tuple[list[int], float]:
    """Offset of every rank's clock from the first rank's, and the median disagreement of ends that stays."""
    if not matched:
        return [], 0.0
    # Differences first, in integers: a median of absolute times would lose their nanoseconds.
    apart = [[kernel.end_ns - group[0].end_ns for kernel in group] for group in matched]
    offsets = [round(median([row[rank] for row in apart])) for rank in range(len(matched[0]))]
    left = [abs(row[rank] - offsets[rank]) for row in apart for rank in range(1, len(offsets))]
    return offsets, median(left)


def _arrivals(matched: list[list[GpuKernel]], offsets: list[int]) -> tuple[Counter[int], Counter[int]]:
    last: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    for group in matched:
        starts = [kernel.start_ns - offset for kernel, offset in zip(group, offsets, strict=True)]
        latest = max(starts)
        last[starts.index(latest)] += 1
        for rank, start in enumerate(starts):
            waited[rank] += latest - start
    return last, waited


def _straggler(rows: list[RankTime], collectives: int) -> int | None:
    """The rank that was last in more than half of at least five collectives; of two ranks, in four fifths."""
    if collectives < 5 or len(rows) < 2:
        return None
    worst = max(rows, key=lambda row: row.last_arrivals)
    share = worst.last_arrivals / collectives
    return worst.rank if share > 0.5 and (len(rows) > 2 or share >= 0.8) else None
