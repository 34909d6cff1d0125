"""Collectives of many ranks put together: who arrived last, who waited how long, and who never came.

NCCL numbers the calls of each function in a communicator, the same on every rank, so parts are matched exactly, even
where ranks have seen different stretches of the run. Sends and receives have no number; they are matched in order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._records.records import GpuCollective, bus_factor
from .anomalies import median

#: Functions that end at about the same time on all ranks, since each needs something of every other: what clocks are
#: compared by.
TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")


class Key(NamedTuple):
    """What the parts of one collective have in common."""

    communicator: str
    name: str  # of the function; "Send 0 to 3" for a send and its receive
    sequence: int
    again: int = 0  # the how-manieth with this number: a replayed graph may give the same again


class Part(NamedTuple):
    """One rank's part of a collective, on the clock of the first process."""

    process: int  # place among the sessions
    rank: int  # in the communicator
    start_ns: int  # its first channel began on the device
    end_ns: int | None  # None: it had not ended


class Joined(NamedTuple):
    """One collective on all ranks of its communicator."""

    key: Key
    bytes: int | None
    parts: tuple[Part, ...]  # in the order of arrival

    @property
    def last(self) -> Part:
        """The part that the others waited for."""
        return self.parts[-1]

    @property
    def late_ns(self) -> int:
        """How much later the last one came than the one before it."""
        return self.parts[-1].start_ns - self.parts[-2].start_ns

    def waited_ns(self, part: Part) -> int:
        """How long this rank waited for the last one."""
        return self.last.start_ns - part.start_ns

    @property
    def duration_ns(self) -> int | None:
        """From the last arrival to the last end: what it takes when all are there."""
        ends = [part.end_ns for part in self.parts if part.end_ns is not None]
        return max(ends) - self.last.start_ns if len(ends) == len(self.parts) else None


class Row(NamedTuple):
    """The collectives of one communicator that are alike: function, size, algorithm and protocol."""

    communicator: str
    communicator_name: str | None
    name: str
    bytes: int | None  # of each call
    algorithm: str | None
    protocol: str | None
    ranks: int | None
    calls: int
    typical_ns: int | None  # median, from the arrival of the last rank on where all ranks are here; else with waiting
    waited_ns: int | None  # of all ranks, for the last to arrive; None where not all ranks are here
    last_rank: int | None  # in the communicator: which came last most often
    last_share: float | None  # in how many of the calls

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes a second by NCCL's tests' definition, at the typical time: comparable with what the links can do. A
        lower bound where the time has waiting in it."""
        if not self.bytes or not self.typical_ns or not self.ranks:
            return None
        return self.bytes * 1e9 / self.typical_ns * bus_factor(self.name, self.ranks)


class Missing(NamedTuple):
    """A collective that some ranks of a communicator began and others did not: what a hang waits for."""

    key: Key
    present: tuple[int, ...]  # they wait in it
    queued: tuple[int, ...]  # their host has launched it, their device has not begun it
    absent: tuple[int, ...]
    since_ns: int  # the first one waits since


class Collectives(NamedTuple):
    """All collectives of a job."""

    joined: tuple[Joined, ...]  # by arrival of the last
    missing: tuple[Missing, ...]
    offsets_ns: tuple[int | None, ...]  # each process's clock minus the first one's; None: nothing to compare it by
    error_ns: int | None  # median disagreement of matched ends once offsets are taken off
    unmatched: int  # parts without the others: at the edges of what was recorded


def join(processes: Sequence[Iterable[GpuCollective]]) -> Collectives:
    """Puts the collectives of each process's session together. One session a process, in any order."""
    found: dict[Key, list[tuple[int, GpuCollective]]] = defaultdict(list)
    ranks: dict[str, set[int]] = defaultdict(set)  # of a communicator, those that were seen
    furthest: dict[tuple[str, str, int], int] = {}  # by communicator, function and rank: the last number
    for process, records in enumerate(processes):
        for key, record in _keyed(records):
            found[key].append((process, record))
            if record.rank is not None:
                ranks[key.communicator].add(record.rank)
                last = key.communicator, key.name, record.rank
                furthest[last] = max(key.sequence, furthest.get(last, 0))
    offsets, error = _clocks(found, len(processes))
    joined: list[Joined] = []
    missing: list[Missing] = []
    unmatched = 0
    for key, parts in found.items():
        expected = 2 if key.name.startswith("Send ") else parts[0][1].ranks
        begun = sorted(_parts(parts, offsets), key=lambda part: part.start_ns)
        if len(begun) >= (expected or 2) > 1:
            joined.append(Joined(key, parts[0][1].bytes, tuple(begun)))
            continue
        absent = [
            rank
            for rank in ranks[key.communicator]
            if furthest.get((key.communicator, key.name, rank), -1) < key.sequence
        ]
        queued = [record.rank or 0 for _, record in parts if record.device_start_ns is None]
        if begun and all(part.end_ns is None for part in begun) and (absent or queued):
            waiting = sorted(part.rank for part in begun)
            missing.append(
                Missing(key, tuple(waiting), tuple(sorted(queued)), tuple(sorted(absent)), begun[0].start_ns)
            )
        else:
            unmatched += len(parts)
    joined.sort(key=lambda each: each.last.start_ns)
    missing.sort(key=lambda each: each.since_ns)
    return Collectives(tuple(joined), tuple(missing), tuple(offsets), error, unmatched)


def table(processes: Sequence[Iterable[GpuCollective]], told: Collectives | None = None) -> list[Row]:
    """All collectives of a job by what they are, what takes longest in all first. ``told``: what :func:`join` gave."""
    processes = [list(records) for records in processes]
    told = told or join(processes)
    together = {each.key: each for each in told.joined}
    groups: dict[tuple[Any, ...], dict[Key, GpuCollective]] = defaultdict(dict)
    for records in processes:
        for key, record in _keyed(records):
            alike = key.communicator, key.name, record.bytes, record.algorithm, record.protocol
            groups[alike].setdefault(key, record)
    found = []
    for (communicator, name, size, algorithm, protocol), calls in groups.items():
        whole = [together[key] for key in calls if key in together]
        lengths = [each.duration_ns for each in whole] if whole else [each.duration_ns for each in calls.values()]
        known = [length for length in lengths if length is not None]
        last = Counter(each.last.rank for each in whole).most_common(1)
        first = next(iter(calls.values()))
        found.append(
            Row(
                communicator,
                first.communicator_name,
                name,
                size,
                algorithm,
                protocol,
                first.ranks,
                len(calls),
                round(median(known)) if known else None,
                sum(each.waited_ns(part) for each in whole for part in each.parts) if whole else None,
                last[0][0] if last else None,
                last[0][1] / len(whole) if last else None,
            )
        )
    return sorted(found, key=lambda row: -(row.typical_ns or 0) * row.calls)


def _keyed(records: Iterable[GpuCollective]) -> Iterable[tuple[Key, GpuCollective]]:
    """The records of one process that can be matched, each with what the other parts have in common with it."""
    seen: Counter[tuple[str, str, int | None]] = Counter()
    for record in records:
        if record.communicator is None:
            continue
        name = record.name
        if record.peer is not None:
            ends = (record.rank, record.peer) if name == "Send" else (record.peer, record.rank)
            name = f"Send {ends[0]} to {ends[1]}"
        place = record.communicator, name, record.sequence
        count = seen[place]
        seen[place] += 1
        if record.sequence is None:
            yield Key(record.communicator, name, count), record
        else:
            yield Key(record.communicator, name, record.sequence, count), record


def _parts(parts: list[tuple[int, GpuCollective]], offsets: Sequence[int | None]) -> Iterable[Part]:
    for process, record in parts:
        offset = offsets[process] or 0
        if record.device_start_ns is not None:
            end = None if record.device_end_ns is None else record.device_end_ns - offset
            yield Part(process, record.rank or 0, record.device_start_ns - offset, end)


def _clocks(found: dict[Key, list[tuple[int, GpuCollective]]], processes: int) -> tuple[list[int | None], int | None]:
    """Offsets by the ends of what ends together, from process to process along those that share most; what stays."""
    apart: dict[tuple[int, int], list[int]] = defaultdict(list)
    for key, parts in found.items():
        ends = [(process, record.device_end_ns) for process, record in parts if record.device_end_ns is not None]
        if key.name in TOGETHER and len(ends) > 1:
            first, first_end = ends[0]
            for process, end in ends[1:]:
                apart[first, process].append(end - first_end)
    edges = {pair: (len(differences), round(median(differences))) for pair, differences in apart.items()}
    offsets: list[int | None] = [None] * processes
    if processes:
        offsets[0] = 0
    while True:  # the best known way to one more process
        ways = [
            (count, b, offsets[a], difference) if offsets[b] is None else (count, a, offsets[b], -difference)
            for (a, b), (count, difference) in edges.items()
            if (offsets[a] is None) != (offsets[b] is None)
        ]
        if not ways:
            break
        _, process, known, difference = max(ways, key=lambda way: way[0])
        offsets[process] = (known or 0) + difference
    left = [
        abs(each - ((offsets[b] or 0) - (offsets[a] or 0)))
        for (a, b), differences in apart.items()
        if offsets[a] is not None
        for each in differences
    ]
    return offsets, round(median(left)) if left else None
