"""When each device and stream was busy: unions of intervals, so that concurrent work counts once."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from .._records.device_identity import card
from .._records.records import Aggregate, DeviceBusy, GpuKernel, GpuMemoryTransfer, GpuMemset
from ..session import Session
from .calls import timed_by_host
from .intervals import Interval, intersect, joined, subtract, total, union
from .operation import DEVICE_KINDS

#: Backend and device; of a card that both CUDA and wgpu reached, all work stands under CUDA.
DeviceKey = tuple[str, "int | None"]

#: Parts of kernel names that mark communication between devices: NCCL, RCCL, MSCCL, NVSHMEM, vLLM's and PyTorch's own.
_COLLECTIVES = (
    "nccl",
    "rccl",
    "msccl",
    "nvshmem",
    "cross_device_reduce",
    "multimem_all_",
    "multimem_one_shot",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
)


class Timeline(NamedTuple):
    """Disjoint busy intervals of one device, from the individual records."""

    compute: list[Interval]  # kernels but collectives
    collective: list[Interval]
    transfer: list[Interval]  # copies and memsets timed by the device
    streams: dict["int | None", list[Interval]]
    counted: bool  # some of the device's work was only summed, so that gaps are not gaps


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


def is_collective(name: str) -> bool:
    """Whether a kernel of this name communicates with other devices."""
    lower = name.lower()
    return any(part in lower for part in _COLLECTIVES)


def window(session: Session) -> Interval | None:
    """First and last nanosecond to account for: the session's own, else what its records span; None if empty."""
    start, end = session.meta.get("start_ns"), session.meta.get("end_ns")
    if start is None or end is None or end <= start:
        starts = [record.start_ns for record in session.records]
        ends = [record.end_ns or record.start_ns for record in session.records]
        ends += [busy.last_ns for busy in session.busy if busy.last_ns is not None]
        starts += [busy.first_ns for busy in session.busy if busy.first_ns is not None]
        if start is None:
            start = min(starts, default=None)
        end = max(ends, default=None)
    return (start, end) if start is not None and end is not None and end > start else None


def unseen(session: Session, backend: str) -> list[Interval]:
    """When work of ``backend`` could have happened without being seen: then a device that seems idle may not be.

    Only CUDA's capture is ever off. In a merged session one process may be unseen while another is not: there is no
    answer then.
    """
    whole = window(session)
    if whole is None or backend != "cuda" or len(session.meta.get("processes") or ()) > 1:
        return []
    spans = [(row.start_ns, row.end_ns if row.end_ns is not None else whole[1]) for row in session.unseen]
    return intersect(union(spans), [whole])


_place = attrgetter("backend", "device", "stream")
_place_of_kernel = attrgetter("backend", "device", "stream", "name")  # by its name a collective is known
_span = attrgetter("start_ns", "end_ns")


def timelines(session: Session) -> dict[DeviceKey, Timeline]:
    """A :class:`Timeline` for every device that did anything, in order of backend and number."""
    spans: dict[DeviceKey, dict[str, list[Interval]]] = {}
    streams: dict[DeviceKey, dict[int | None, list[Interval]]] = {}
    places: dict[tuple[Any, ...], tuple[list[Interval], list[Interval]]] = {}
    backends: dict[DeviceKey, set[str]] = {}
    for record in session.records:
        kind = type(record)
        place: tuple[Any, ...]
        if kind is GpuKernel:
            place = _place_of_kernel(record)
        elif kind is GpuMemset or (kind is GpuMemoryTransfer and record.timing == "device"):  # type: ignore[union-attr]
            place = _place(record)
        else:
            continue
        both = places.get(place)
        if both is None:
            key, stream = card(place[0], place[1]), place[2]
            backends.setdefault(key, set()).add(place[0])
            what = "transfer" if kind is not GpuKernel else "collective" if is_collective(record.name) else "compute"
            of_stream = streams.setdefault(key, {}).setdefault(stream, [])
            both = places[place] = (spans.setdefault(key, {}).setdefault(what, []), of_stream)
        span = _span(record)
        if not span[1]:
            span = (span[0], span[0])
        both[0].append(span)
        both[1].append(span)
    summed = [row for row in _on_device(session) if row.count]
    places_of = [(row.backend, row.device) for row in summed]
    for key in (*places_of, *((busy.backend, busy.device) for busy in session.busy if busy.busy_ns)):
        backends.setdefault(card(*key), set()).add(key[0])
    counted = {card(*key) for key in places_of}
    named = {("cuda" if "cuda" in among else min(among), key[1]): key for key, among in backends.items()}
    return {
        name: Timeline(
            compute=union(spans.get(key, {}).get("compute", ())),
            collective=union(spans.get(key, {}).get("collective", ())),
            transfer=union(spans.get(key, {}).get("transfer", ())),
            streams={stream: union(of) for stream, of in streams.get(key, {}).items()},
            counted=key in counted,
        )
        for name, key in sorted(named.items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1]))
    }


def device_times(session: Session, lines: dict[DeviceKey, Timeline] | None = None) -> list[DeviceTime]:
    """Busy time by device: exact from records, else the union kept while counting, else a sum (see ``source``)."""
    lines = timelines(session) if lines is None else lines
    whole = window(session)
    length = whole[1] - whole[0] if whole else 0
    kept = {card(busy.backend, busy.device): busy for busy in session.busy}
    off = {backend: unseen(session, backend) for backend in {key[0] for key in lines}}
    return [_device_time(session, key, line, kept.get(card(*key)), length, off[key[0]]) for key, line in lines.items()]


def _device_time(
    session: Session, key: DeviceKey, line: Timeline, kept: DeviceBusy | None, length: int, off: list[Interval]
) -> DeviceTime:
    backend, device = key
    everything = joined(line.compute, line.collective, line.transfer)
    busy, kernel, transfer = total(everything), total(joined(line.compute, line.collective)), total(line.transfer)
    first, last = (everything[0][0], everything[-1][1]) if everything else (None, None)
    source = "records"
    if line.counted and kept is not None:
        busy, kernel, transfer, source = kept.busy_ns, kept.kernel_ns, kept.transfer_ns, "union"
        first, last = kept.first_ns, kept.last_ns
    elif line.counted:
        source = "sum"
        for row in _on_device(session):
            if card(row.backend, row.device) == card(*key):
                busy += row.total_ns
                kernel += row.total_ns if row.kind == "kernel" else 0
                transfer += row.total_ns if row.kind != "kernel" else 0
    active = subtract([(first, last)], off) if first is not None and last is not None and last > first else []
    streams = _streams(session, key, line)
    return DeviceTime(
        *(device, backend, length, busy, kernel, transfer, first, last, streams, source),
        unseen_ns=min(total(off), max(0, length - busy)),
        active_ns=total(active),
    )


def _on_device(session: Session) -> Iterator[Aggregate]:
    """What was counted of the devices' work; a copy that the host timed is none of it."""
    return (row for row in session.aggregates if row.kind in DEVICE_KINDS and not timed_by_host(row))


def _streams(session: Session, key: DeviceKey, line: Timeline) -> tuple[StreamTime, ...]:
    summed: dict[int | None, int] = {}
    for row in _on_device(session):
        if card(row.backend, row.device) == card(*key):
            summed[row.stream] = summed.get(row.stream, 0) + row.total_ns
    rows = [
        StreamTime(stream, total(line.streams.get(stream, [])) + summed.get(stream, 0), stream not in summed)
        for stream in {**line.streams, **summed}
    ]
    return tuple(sorted(rows, key=lambda row: -row.busy_ns))
