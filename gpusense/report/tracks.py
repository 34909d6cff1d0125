"""Where every record goes on a timeline: host threads, then each device's streams, copies and idle reasons.

Work that overlaps on one track is spread over overflow lanes, because viewers drop or misplace overlapping slices.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from .._records.device_identity import card, device_of, device_text
from .._records.records import (
    BlockRecord,
    ComputeBlock,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Syscall,
)
from .._runtime.text import one_line
from ..analysis.operation import WAYS
from ..analysis.sampled import SampledCard
from ..session import Session

DIRECTIONS = {name: f"copies {way}" for name, way in WAYS.items()}
_HOST_TRACKS: dict[type, str] = {
    BlockRecord: "blocks",
    ComputeBlock: "compute",
    GpuSync: "waits",
    Syscall: "syscalls",
}
_ORDER = {"blocks": 0, "compute": 1, "waits": 2, "syscalls": 3, "stream": 4, "copies": 5}


def label(name: str) -> str:
    """What to call an operation: copies without a label of their own are named after their direction."""
    return DIRECTIONS.get(name, name)


class Track(NamedTuple):
    """Records in order of start. In a nested track each lies inside or beside the others; else none overlap."""

    group: str  # "Host", or "rank 3" of a merged session; "GPU 0 · NVIDIA H100 80GB HBM3"
    name: str  # "stream 7", "thread 1", "copies host to device"
    lane: int  # 0; overflow lanes from 1
    nested: bool
    device: tuple[str, int | None] | None  # backend and number; None for the host
    records: list[Any]


def tracks(session: Session) -> list[Track]:
    """Every kept record with a duration, on exactly one track; host first, then devices by number."""
    rows: dict[tuple[Any, ...], list[Any]] = {}
    merged = bool(session.meta.get("processes"))
    for record in session.records:
        key = _key(record, merged)
        if key is not None:
            rows.setdefault(key, []).append(record)
    found: list[Track] = []
    names = _thread_names(session)
    for key in sorted(rows, key=_rank):
        device, process, what, detail = key
        group = process if device is None else group_name(session, device)
        name = _name(what, detail, names.get((process, detail)))
        if what == "stream" and device[0] == "wgpu":  # which has one queue
            name = "passes"
        name += f" · {process}" if device is not None and process != "Host" else ""
        nested = what in ("blocks", "compute")
        records = sorted(rows.pop(key), key=lambda record: (record.start_ns, -end_of(record)))
        for lane, of in enumerate(nest(records) if nested else spread(records)):
            found.append(Track(group, name, lane, nested, device, of))
    return found


def end_of(record: Any) -> int:
    """Where a record ends on the timeline: never before it starts."""
    start: int = record.start_ns
    end: int | None = record.end_ns
    return start if end is None or end < start else end


def group_name(session: Session, device: tuple[str, int | None]) -> str:
    """ "GPU 0 · NVIDIA H100 80GB HBM3"."""
    backend, number = device
    info = device_of(session.devices, backend, number)
    label = device_text(session.devices, backend, number)
    if backend not in ("cuda", "wgpu") and number is not None:
        label += f" ({backend})"
    return f"{label} · {info.name}" if info is not None and info.kind != "cpu" else label


def card_name(session: Session, card: SampledCard) -> str:
    """The group of what the monitor sampled of a card."""
    return card.text if card.number is None else group_name(session, ("cuda", card.number))


def _key(record: Any, merged: bool) -> tuple[Any, ...] | None:
    """(device or None, process, what, stream, direction or thread); streams of merged processes stay apart."""
    process = record.path[0] if merged and record.path else "Host"
    kind = type(record)
    if kind is GpuKernel or kind is GpuMemset:
        return ((record.backend, record.device), process, "stream", record.stream)
    if kind is GpuMemoryTransfer:
        device = (record.backend, record.device) if record.timing == "device" else None
        return (device, process, "copies", record.direction)
    what = _HOST_TRACKS.get(kind)
    return None if what is None else (None, process, what, getattr(record, "thread", None))


def _rank(key: tuple[Any, ...]) -> tuple[Any, ...]:
    device, process, what, detail = key
    backend, number = ("", -1) if device is None else card(*device)  # what reached one card stands together
    where = backend, -1 if number is None else number, "" if device is None else device[0]
    by_number = len(process), process  # "rank 2" before "rank 10"
    return (device is not None, *where, *by_number, _ORDER[what], detail is not None, str(detail).rjust(20))


def _thread_names(session: Session) -> dict[tuple[str, Any], str]:
    """What to call threads: by their process and either of their numbers, Python's and the system's. With the number
    where others have the same name, and with several names where a number was given again."""
    meta = session.meta
    rows = [
        (
            str(process.get("root") or "Host"),
            row.get("thread"),
            row.get("native_id"),
            one_line(str(row.get("name")), 60),
        )
        for process in meta.get("processes") or [meta]
        for row in process.get("threads") or ()
    ]
    having = Counter(
        (process, name) for process, _, name in {(process, number, name) for process, number, _, name in rows}
    )
    found: dict[tuple[str, Any], dict[str, None]] = {}
    for process, number, native, name in rows:
        shown = name if having[process, name] == 1 else f"{name} ({number})"
        for one in (number, native):
            found.setdefault((process, one), {})[shown] = None
    return {key: ", ".join(list(names)[:3]) + (" …" if len(names) > 3 else "") for key, names in found.items()}


def _name(what: str, detail: Any, thread_name: str | None) -> str:
    if what == "copies":
        return DIRECTIONS.get(detail, str(detail))
    if what == "stream":
        return "no stream" if detail is None else f"stream {detail}"
    if what == "waits":
        return "waits for the GPU"
    thread = "" if detail is None else f" · {thread_name or f'thread {detail}'}"
    return f"{what}{thread}"


def spread(records: Iterable[Any]) -> list[list[Any]]:
    """Records in order of start, dealt to the first lane that is free."""
    lanes: list[list[Any]] = []
    free: list[int] = []  # heaps: lanes, and when the others become free
    taken: list[tuple[int, int]] = []
    for record in records:
        while taken and taken[0][0] <= record.start_ns:
            heappush(free, heappop(taken)[1])
        lane = heappop(free) if free else len(lanes)
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(record)
        heappush(taken, (end_of(record), lane))
    return lanes


def nest(records: Iterable[Any]) -> list[list[Any]]:
    """Records in order of start (longer first), dealt to the first lane on which they nest."""
    lanes: list[list[Any]] = []
    stacks: list[list[int]] = []  # of each lane the ends of what is open, innermost last
    open_until: list[tuple[int, int]] = []  # a heap of all of them, with their lanes
    room = _Room()
    for record in records:
        while open_until and open_until[0][0] <= record.start_ns:
            lane = heappop(open_until)[1]
            stacks[lane].pop()  # the innermost ends first
            room.put(lane, stacks[lane][-1] if stacks[lane] else _ALWAYS)
        end = end_of(record)
        lane = room.first(end)
        if lane == len(lanes):
            lanes.append([])
            stacks.append([])
        lanes[lane].append(record)
        stacks[lane].append(end)
        heappush(open_until, (end, lane))
        room.put(lane, end)
    return lanes


_ALWAYS, _NEVER = 1 << 200, -(1 << 200)


class _Room:
    """Until when each lane has room for a slice, and the first lane with enough: a tree of the maxima of halves.

    A server has thousands of requests open at once on one thread; to look through all lanes for each takes minutes.
    """

    def __init__(self) -> None:
        self._count, self._width = 0, 1
        self._until = [_NEVER, _NEVER]

    def put(self, lane: int, until: int) -> None:
        self._count = max(self._count, lane + 1)
        if lane >= self._width:
            self._widen()
        place = lane + self._width
        self._until[place] = until
        while place > 1:
            place //= 2
            self._until[place] = max(self._until[2 * place], self._until[2 * place + 1])

    def first(self, end: int) -> int:
        """The first lane with room until ``end``; the number of lanes where there is none."""
        if self._until[1] < end:
            return self._count
        place = 1
        while place < self._width:
            place = 2 * place + (self._until[2 * place] < end)
        return place - self._width

    def _widen(self) -> None:
        leaves = self._until[self._width :]
        self._width *= 2
        self._until = [_NEVER] * self._width + leaves + [_NEVER] * (self._width - len(leaves))
        for place in range(self._width - 1, 0, -1):
            self._until[place] = max(self._until[2 * place], self._until[2 * place + 1])


def levels(records: Iterable[Any]) -> list[list[Any]]:
    """A nested track as one list a depth."""
    rows: list[list[Any]] = []
    stack: list[int] = []
    for record in records:
        while stack and stack[-1] <= record.start_ns:
            stack.pop()
        if len(stack) == len(rows):
            rows.append([])
        rows[len(stack)].append(record)
        stack.append(end_of(record))
    return rows
