"""When each device and stream was busy: unions of intervals, so that concurrent work counts once."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .._records.device_identity import card
from .._records.records import Aggregate, DeviceBusy
from .._records.work import WorkKind, WorkTable
from ..session import Session
from .calls import timed_by_host
from .families import is_collective
from .intervals import Interval, intersect, subtract, total, union
from .operation import DEVICE_KINDS
from .rows import Rows, marked
from .sweep import COLLECTIVE, COMPUTE, COPY, Columns, Sweep, sweep

#: Backend and device; of a card that both CUDA and wgpu reached, all work stands under CUDA.
DeviceKey = tuple[str, "int | None"]


class StreamTime(NamedTuple):
    """How long one stream was busy."""

    stream: int | None
    busy_ns: int
    exact: bool  # False: a sum of durations, where work of the stream was only summed


class DeviceTime(NamedTuple):
    """How one device spent ``window_ns``."""

    device: int | None
    backend: str
    window_ns: int
    busy_ns: int
    kernel_ns: int
    transfer_ns: int
    first_ns: int | None
    last_ns: int | None
    streams: tuple[StreamTime, ...]
    source: str  # "records"; "union" as kept while counting; "sum" of durations, an upper bound
    unseen_ns: int = 0  # of the window, while capture was off
    active_ns: int = 0  # from the first to the last piece of work, without what was not seen

    @property
    def busy_share(self) -> float:
        """Of the part of the window in which work was seen."""
        seen = self.window_ns - self.unseen_ns
        return min(1.0, self.busy_ns / seen) if seen > 0 else 0.0

    @property
    def active_share(self) -> float:
        """Busy share of the time from the first to the last piece of work."""
        return min(1.0, self.busy_ns / self.active_ns) if self.active_ns else 0.0


def window(session: Session) -> Interval | None:
    """First and last nanosecond to account for: the program's, as far as they are known, else the session's own, else
    what its records span; None if empty."""
    meta = session.meta
    start = meta.get("program_start_ns") or meta.get("start_ns")
    end = meta.get("program_end_ns") or meta.get("end_ns")
    if start is None or end is None or end <= start:
        starts = [record.start_ns for record in session.records]
        ends = [record.end_ns or record.start_ns for record in session.records]
        ends += [busy.last_ns for busy in session.busy if busy.last_ns is not None]
        starts += [busy.first_ns for busy in session.busy if busy.first_ns is not None]
        if start is None:
            start = min(starts, default=None)
        end = max(ends, default=None)
    return (start, end) if start is not None and end is not None and end > start else None


def unseen(session: Session, key: DeviceKey) -> list[Interval]:
    """When work of a device could have happened without being seen: then one that seems idle may not be.

    Only CUDA's capture is ever off. In a merged session that is so while one of the processes is not seen whose work
    on the device is known.
    """
    whole = window(session)
    if whole is None or key[0] != "cuda":
        return []
    rows = session.unseen
    if len(session.meta.get("processes") or ()) > 1:
        roots = tuple(f"{root}: " for root in session.once(_at_work).get(card(*key), ()))
        rows = [row for row in rows if row.reason.startswith(roots)]
    spans = [(row.start_ns, row.end_ns if row.end_ns is not None else whole[1]) for row in rows]
    return intersect(union(spans), [whole])


def _at_work(session: Session) -> dict[tuple[str, int | None], set[str]]:
    """The roots of the processes that worked on each card."""
    work = session.work
    used = {(card(work.kinds[kind].backend, work.kinds[kind].device), work.paths[path]) for kind, path in work.pairs()}
    used |= {(card(row.backend, row.device), row.path) for row in _on_device(session)}
    found: dict[tuple[str, int | None], set[str]] = {}
    for of, path in used:
        found.setdefault(of, set()).update(path[:1])
    return found


def device_order(key: DeviceKey) -> tuple[str, int]:
    """By backend and number."""
    return key[0], -1 if key[1] is None else key[1]


def cards(keys: Iterable[DeviceKey]) -> dict[tuple[str, int | None], DeviceKey]:
    """Each card once, by what it is summed up under, with the key that stands for it."""
    found: dict[tuple[str, int | None], DeviceKey] = {}
    for key in keys:
        mine = found.get(card(*key))
        if mine is None or key[0] == "cuda" or (mine[0] != "cuda" and key < mine):
            found[card(*key)] = key
    return found


def columns(work: WorkTable) -> dict[DeviceKey, Columns]:
    """What each device did, of work in the order of starts."""
    used = sorted(set(work.kind))
    places = {number: (work.kinds[number].backend, work.kinds[number].device) for number in used}
    timed = {n: place for n, place in places.items() if work.kinds[n].kind != "sync" and work.kinds[n].timing != "host"}
    classes = [_class(one) for one in work.kinds]
    streams = [one.stream for one in work.kinds]
    found = {}
    for of, key in sorted(cards(timed.values()).items(), key=lambda item: device_order(item[1])):
        mine = bytearray(len(work.kinds))
        for number, place in timed.items():
            mine[number] = card(*place) == of
        found[key] = Columns(Rows(marked(work.kind, mine)), work.start, work.end, work.kind, classes, streams)
    return found


def _class(kind: WorkKind) -> int:
    if kind.kind != "kernel":
        return COPY
    return COLLECTIVE if is_collective(kind.full_name or kind.name) else COMPUTE


def sweeps(session: Session, work: WorkTable | None = None, edges: Iterable[int] = ()) -> dict[DeviceKey, Sweep]:
    """A walk over every device that did anything, divided at ``edges``."""
    work = session.work.ordered() if work is None else work
    low, high = window(session) or (work.start[0], work.start[0] + 1) if len(work) else (0, 0)
    cuts = [low, *sorted({edge for edge in edges if low < edge < high}), high]
    return {key: sweep(one, cuts) for key, one in columns(work).items()}


def device_times(session: Session, walks: dict[DeviceKey, Sweep] | None = None) -> list[DeviceTime]:
    """Busy time by device: exact from the rows of all work. Of a session that has sums alone the union that was kept
    while counting, else a sum (see ``source``)."""
    walks = sweeps(session) if walks is None else walks
    complete = session.work.complete
    summed = set() if complete else {card(row.backend, row.device) for row in _on_device(session) if row.count}
    kept = {card(busy.backend, busy.device): busy for busy in session.busy}
    every = [*walks, *((busy.backend, busy.device) for busy in session.busy if busy.busy_ns)]
    every += [] if complete else [(row.backend, row.device) for row in _on_device(session) if row.count]
    known = cards(every)
    whole = window(session) or (0, 0)
    rows = []
    for of, key in sorted(known.items(), key=lambda item: device_order(item[1])):
        walk = None if of in summed else walks.get(key)
        rows.append(_device_time(session, key, walk, kept.get(of), whole[1] - whole[0], unseen(session, key)))
    return rows


def _device_time(
    session: Session, key: DeviceKey, walk: Sweep | None, kept: DeviceBusy | None, length: int, off: list[Interval]
) -> DeviceTime:
    backend, device = key
    first: int | None
    last: int | None
    if walk is not None:
        parts, source = walk.parts(), "records"
        busy, kernel, transfer, first, last = parts.busy, parts.kernel, parts.copy, walk.first_ns, walk.last_ns
        streams = tuple(StreamTime(stream, spent, True) for stream, spent in walk.streams.items())
    else:
        sums = [row for row in _on_device(session) if card(row.backend, row.device) == card(*key)]
        listed = _listed(session, key)
        streams = _summed_streams(sums, listed)
        if kept is not None:
            busy, kernel, transfer, source = kept.busy_ns, kept.kernel_ns, kept.transfer_ns, "union"
            first, last = kept.first_ns, kept.last_ns
        else:
            source = "sum"
            kernel = sum(row.total_ns for row in sums if row.kind == "kernel")
            transfer = sum(row.total_ns for row in sums if row.kind != "kernel")
            if listed is not None:
                parts = listed.parts()
                kernel, transfer = kernel + parts.kernel, transfer + parts.copy
                busy = kernel + transfer - (parts.kernel + parts.copy - parts.busy)
            else:
                busy = kernel + transfer
            first, last = (listed.first_ns, listed.last_ns) if listed is not None else (None, None)
    active = subtract([(first, last)], off) if first is not None and last is not None and last > first else []
    return DeviceTime(
        *(device, backend, length, busy, kernel, transfer, first, last),
        tuple(sorted(streams, key=lambda row: -row.busy_ns)),
        source,
        unseen_ns=min(total(off), max(0, length - busy)),
        active_ns=total(active),
    )


def _listed(session: Session, key: DeviceKey) -> Sweep | None:
    """A walk over what a session without rows of all work lists."""
    return sweeps(session).get(key)


def _on_device(session: Session) -> Iterator[Aggregate]:
    """What was summed of the devices' work; a copy that the host timed is none of it."""
    return (row for row in session.aggregates if row.kind in DEVICE_KINDS and not timed_by_host(row))


def _summed_streams(sums: list[Aggregate], listed: Sweep | None) -> tuple[StreamTime, ...]:
    summed: dict[int | None, int] = {}
    for row in sums:
        summed[row.stream] = summed.get(row.stream, 0) + row.total_ns
    known = listed.streams if listed is not None else {}
    return tuple(
        StreamTime(stream, known.get(stream, 0) + summed.get(stream, 0), stream not in summed)
        for stream in {**known, **summed}
    )
