"""Collectives of many ranks put together: who arrived last, who waited how long, and who never came.

NCCL numbers the calls of each function in a communicator, the same on every rank, so parts are matched exactly, even
where ranks have seen different stretches of the run. Sends and receives have no number; they are matched in order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, NamedTuple

from .._records.records import GpuCollective, bus_factor
from .anomalies import median

#: Functions that end at about the same time on all ranks, since each needs something of every other: what clocks are
#: compared by.
TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")
#: In the attributes of a collective: for how long its rank ran no other kernel beside it.
EXPOSED = "exposed_ns"
#: So many calls say what is typical of their links.
_ENOUGH = 5
#: So many times as long as others of their kind take those whose links are slow; if there is only one other.
_SLOWER, _FAR_SLOWER = 1.5, 2.0


class Key(NamedTuple):
    """What the parts of one collective have in common."""

    communicator: str
    name: str  # of the function; "Send 0 to 3" for a send and its receive
    sequence: int
    again: int = 0  # the how-manieth with this number: a replayed graph may give the same again
    ends: tuple[int, int] | None = None  # of a send: from which rank to which


#: A record with what the other parts of its collective have in common with it.
_Keyed = tuple[Key, GpuCollective]


class Part(NamedTuple):
    """One rank's part of a collective, on the clock of the first process."""

    process: int  # place among the sessions
    rank: int  # in the communicator
    start_ns: int  # its first channel began on the device
    end_ns: int | None  # None: it had not ended


_start = attrgetter("start_ns")


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
    def all_waited_ns(self) -> int:
        """How long all ranks together waited for the last one."""
        return self.last.start_ns * len(self.parts) - sum(part.start_ns for part in self.parts)

    @property
    def duration_ns(self) -> int | None:
        """From the last arrival to the last end: what it takes when all are there."""
        ends = [part.end_ns for part in self.parts if part.end_ns is not None]
        return max(ends) - self.last.start_ns if len(ends) == len(self.parts) else None


class Row(NamedTuple):
    """The collectives that are alike: function, size, algorithm and protocol, of one communicator or of several of the
    same ranks in the same order, such as one a layer."""

    communicator: str  # the first one
    communicator_name: str | None
    name: str  # as of a :class:`Key`
    bytes: int | None  # of each call
    algorithm: str | None
    protocol: str | None
    ranks: int | None
    calls: int
    typical_ns: int | None  # median, from the arrival of the last rank on where all ranks are here; else with waiting
    waited_ns: int | None  # of all ranks, for the last to arrive; None where not all ranks are here
    last_rank: int | None  # in the communicator: which came last most often
    last_share: float | None  # in how many of the calls
    last_process: int | None = None  # its place among the sessions
    exposed_ns: int | None = None  # of all ranks: as long as a rank ran no other kernel beside; None where not known
    hidden_ns: int | None = None  # of all ranks: the rest of the same calls
    members: tuple[int, ...] = ()  # places among the sessions of those that took part
    nodes: int | None = None
    communicators: int = 1
    ends: tuple[int, ...] = ()  # of a send: places among the sessions of who sends and who receives, of those known

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes a second of one rank at the typical time."""
        return self.bytes * 1e9 / self.typical_ns if self.bytes and self.typical_ns else None

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes a second by NCCL's tests' definition, at the typical time: comparable with what the links can do. A
        lower bound where the time has waiting in it."""
        if not self.bytes or not self.typical_ns or not self.ranks:
            return None
        return self.bytes * 1e9 / self.typical_ns * bus_factor(self.name, self.ranks)


class Missing(NamedTuple):
    """A collective that some ranks of a communicator began and others did not: what a hang waits for. Ranks are those
    of the communicator."""

    key: Key
    present: tuple[int, ...]  # they wait in it
    queued: tuple[int, ...]  # their host has launched it, their device has not begun it
    absent: tuple[int, ...]
    since_ns: int  # the first one waits since
    processes: dict[int, int]  # of each rank that was seen its place among the sessions
    communicator_name: str | None = None


class Collectives(NamedTuple):
    """All collectives of a job."""

    joined: tuple[Joined, ...]  # by arrival of the last
    missing: tuple[Missing, ...]
    #: Each process's clock minus that of the first one it shares collectives with; None: nothing to compare it by.
    offsets_ns: tuple[int | None, ...]
    error_ns: int | None  # median disagreement of matched ends once offsets are taken off
    unmatched: int  # parts without the others: at the edges of what was recorded
    members: dict[str, dict[int, int]]  # of each communicator the process of each of its ranks that was seen
    absent: dict[str, int]  # of communicators how many of their ranks were not seen at all


def join(processes: Sequence[Iterable[GpuCollective]]) -> Collectives:
    """Puts the collectives of each process's session together. One session a process, in any order.

    Of a communicator of which some ranks were not recorded, the others are compared: whom they all waited for may be
    missing, and ``absent`` says so.
    """
    return _joined([_keyed(records) for records in processes])


def table(processes: Sequence[Iterable[GpuCollective]]) -> list[Row]:
    """All collectives of a job by what they are, what takes longest in all first."""
    return joined_table(processes)[1]


def joined_table(processes: Sequence[Iterable[GpuCollective]]) -> tuple[Collectives, list[Row]]:
    """What :func:`join` and :func:`table` give."""
    found = [_keyed(records) for records in processes]
    told = _joined(found)
    return told, _table(found, told)


def _joined(processes: Sequence[list[_Keyed]]) -> Collectives:
    found: dict[Key, list[tuple[int, GpuCollective]]] = defaultdict(list)
    members: dict[str, dict[int, int]] = defaultdict(dict)
    furthest: dict[tuple[str, str, int], int] = {}  # by communicator, function and rank: the last number
    sizes: dict[str, int] = {}
    for process, records in enumerate(processes):
        for key, record in records:
            found[key].append((process, record))
            if record.rank is not None:
                members[key.communicator].setdefault(record.rank, process)
                last = key.communicator, key.name, record.rank
                furthest[last] = max(key.sequence, furthest.get(last, 0))
            if record.ranks is not None:
                sizes[key.communicator] = record.ranks
    offsets, error = _clocks(found, len(processes))
    joined: list[Joined] = []
    missing: list[Missing] = []
    unmatched = 0
    for key, parts in found.items():
        known = members.get(key.communicator, {})
        if key.ends is not None:
            known = {rank: known[rank] for rank in key.ends if rank in known}
        expected = len(known) if key.ends is None else 2
        begun = sorted(_parts(parts, offsets), key=_start)
        if len(begun) >= expected > 1:
            joined.append(Joined(key, parts[0][1].bytes, tuple(begun)))
            continue
        if not begun or any(part.end_ns is not None for part in begun) or any(_untimed(record) for _, record in parts):
            unmatched += len(parts)
            continue
        absent = [rank for rank in known if furthest.get((key.communicator, key.name, rank), -1) < key.sequence]
        queued = [record.rank for _, record in parts if record.device_start_ns is None and record.rank in known]
        if not absent and not queued:
            unmatched += len(parts)
            continue
        waiting = [part.rank for part in begun if part.rank in known]
        present, late, never = (tuple(sorted(ranks)) for ranks in (waiting, queued, absent))
        name = parts[0][1].communicator_name
        missing.append(Missing(key, present, late, never, begun[0].start_ns, known, name))
    joined.sort(key=lambda each: each.parts[-1].start_ns)
    missing.sort(key=lambda each: each.since_ns)
    lacking = {name: size - len(members.get(name, ())) for name, size in sizes.items()}
    return Collectives(
        *(tuple(joined), tuple(missing), tuple(offsets), error, unmatched, dict(members)),
        {name: count for name, count in lacking.items() if count > 0},
    )


def _table(processes: Sequence[list[_Keyed]], told: Collectives) -> list[Row]:
    together = {each.key: each for each in told.joined}
    first_of: dict[tuple[int, ...], str] = {}
    like = {
        name: first_of.setdefault(tuple(process for _, process in sorted(ranks.items())), name)
        for name, ranks in told.members.items()
        if len(ranks) > 1 and name not in told.absent
    }
    groups: dict[tuple[Any, ...], dict[Key, GpuCollective]] = defaultdict(dict)
    beside: dict[tuple[Any, ...], list[int]] = {}  # exposed and hidden nanoseconds
    for records in processes:
        for key, record in records:
            communicator = like.get(key.communicator, key.communicator)
            alike = communicator, key.name, record.bytes, record.algorithm, record.protocol
            groups[alike].setdefault(key, record)
            alone, length = exposed_of(record), record.duration_ns
            if alone is not None and length is not None:
                sums = beside.setdefault(alike, [0, 0])
                sums[0] += alone
                sums[1] += length - alone
    found = []
    for alike, calls in groups.items():
        communicator, name, size, algorithm, protocol = alike
        whole = [together[key] for key in calls if key in together]
        lengths = [each.duration_ns for each in whole] if whole else [each.duration_ns for each in calls.values()]
        known = [length for length in lengths if length is not None]
        last = Counter((each.last.rank, each.last.process) for each in whole).most_common(1)
        key, first = next(iter(calls.items()))
        places = [told.members[key.communicator].get(rank) for rank in key.ends or ()]
        exposed, hidden = beside.get(alike, (None, None))
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
                sum(each.all_waited_ns for each in whole) if whole else None,
                last[0][0][0] if last else None,
                last[0][1] / len(whole) if last else None,
                last[0][0][1] if last else None,
                exposed,
                hidden,
                tuple(sorted({part.process for part in whole[0].parts})) if whole else (),
                first.nodes,
                len({key.communicator for key in calls}),
                tuple([place for place in places if place is not None]),
            )
        )
    return sorted(found, key=lambda row: -(row.typical_ns or 0) * row.calls)


class Slow(NamedTuple):
    """Collectives whose bytes take longer than the same in other communicators, or between other ranks."""

    row: Row
    usual_ns: float  # median of the typical times of the others
    others: int

    @property
    def lost_ns(self) -> int:
        """Of all calls together, a rank."""
        return round(((self.row.typical_ns or 0) - self.usual_ns) * self.row.calls)


def slow_links(rows: Iterable[Row]) -> list[Slow]:
    """Rows that take half as long again as most others of their kind, what is lost most first.

    Of a kind are: the function, the bytes, and how many ranks on how many nodes take part. Times count from the last
    arrival on, so that no rank's lateness is in them.
    """
    kinds: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.waited_ns is not None and row.typical_ns and row.bytes and row.calls >= _ENOUGH:
            kinds[row.name.partition(" ")[0], row.bytes, row.ranks, row.nodes].append(row)
    found = []
    for alike in kinds.values():
        if len(alike) < 2:
            continue
        usual = median(sorted(row.typical_ns or 0 for row in alike)[: -(-len(alike) // 2)])  # of the quicker half
        found += [
            Slow(row, usual, len(alike) - 1)
            for row in alike
            if (row.typical_ns or 0) >= (_FAR_SLOWER if len(alike) == 2 else _SLOWER) * usual
        ]
    return sorted(found, key=lambda slow: -slow.lost_ns)


def exposed_of(record: GpuCollective) -> int | None:
    """For how long the rank ran no other kernel beside it, where somebody has found that out."""
    found = record.attributes.get(EXPOSED) if record.attributes else None
    return found if type(found) is int else None


def _untimed(record: GpuCollective) -> bool:
    """Whether it has ended although nobody can say when."""
    return record.attributes is not None and "untimed" in record.attributes


def _keyed(records: Iterable[GpuCollective]) -> list[_Keyed]:
    """The records of one process that can be matched, each with what the other parts have in common with it."""
    seen: dict[Key, int] = {}
    found = []
    for record in records:
        communicator, name, sequence, ends = record.communicator, record.name, record.sequence, None
        if communicator is None:
            continue
        if record.peer is not None and record.rank is not None:
            ends = (record.rank, record.peer) if name == "Send" else (record.peer, record.rank)
            name = f"Send {ends[0]} to {ends[1]}"
        key = Key(communicator, name, -1 if sequence is None else sequence, ends=ends)
        count = seen.get(key, 0)
        seen[key] = count + 1
        if sequence is None:
            key = key._replace(sequence=count)
        elif count:
            key = key._replace(again=count)
        found.append((key, record))
    return found


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
    ways: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # from a process: minus how many, to, difference
    for (a, b), (count, difference) in edges.items():
        ways[a].append((-count, b, difference))
        ways[b].append((-count, a, -difference))
    offsets: list[int | None] = [None] * processes
    for first in range(processes):
        # What shares nothing with those before has a clock of its own, such as another job's.
        queue = [(0, first, 0)] if offsets[first] is None and (first == 0 or first in ways) else []
        while queue:  # the best known way to one more process
            _, process, offset = heappop(queue)
            if offsets[process] is None:
                offsets[process] = offset
                for count, other, difference in ways[process]:
                    if offsets[other] is None:
                        heappush(queue, (count, other, offset + difference))
    left = [
        abs(each - ((offsets[b] or 0) - (offsets[a] or 0)))
        for (a, b), differences in apart.items()
        if offsets[a] is not None
        for each in differences
    ]
    return offsets, round(median(left)) if left else None
