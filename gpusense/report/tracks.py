"""Where every record goes on a timeline: host threads, then each device's streams, copies and idle reasons.

Work that overlaps on one track is spread over overflow lanes, because viewers drop or misplace overlapping slices.
"""

from array import array
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from .._records import lanes
from .._records.device_identity import card, device_of, device_text
from .._records.records import (
    BlockRecord,
    ComputeBlock,
    GpuBlockTime,
    GpuCollective,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Syscall,
)
from .._records.work import WorkKind, WorkTable
from .._runtime.text import one_line
from ..analysis.figures import FIGURES
from ..analysis.operation import WAYS
from ..analysis.processes import processes_of
from ..analysis.rows import Rows
from ..session import Session

DIRECTIONS = {name: f"copies {way}" for name, way in WAYS.items()}
_WITHOUT_ROWS: dict[type, str] = {
    BlockRecord: "blocks",
    GpuBlockTime: "blocks",
    ComputeBlock: "compute",
    GpuCollective: "launches of collectives",
    Syscall: "syscalls",
}
_ON_DEVICE = "collectives on the device"
_HOST_TRACKS = {**_WITHOUT_ROWS, GpuSync: "waits"}
_ORDER = {
    name: at
    for at, name in enumerate(
        ("blocks", "compute", "launches of collectives", _ON_DEVICE, "waits", "syscalls", "stream", "copies")
    )
}


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
    place: tuple[Any, ...] = ()  # tracks are in its order


class WorkTrack(NamedTuple):
    """Rows of the table of all work that stand together, in order of start. They may overlap."""

    group: str
    name: str
    device: tuple[str, int | None] | None
    rows: Rows
    place: tuple[Any, ...]


def tracks(session: Session, *, work: bool = True) -> list[Track]:
    """Every kept record with a duration, on exactly one track; host first, then devices by number. Without ``work``
    only what has no row in the table of all work: see :func:`work_tracks`."""
    rows: dict[tuple[Any, ...], list[Any]] = {}
    merged = bool(session.meta.get("processes"))
    brief = {one["root"] for one in processes_of(session) if FIGURES in one}
    for record in session.records:
        if work or type(record) in _WITHOUT_ROWS:
            key = _key(record, merged)
            if type(record) is GpuCollective and record.device_start_ns is not None and key and key[1] in brief:
                # the work of this rank is not here: its collectives stand for its device
                until = record.device_end_ns or record.device_start_ns
                record = record._replace(start_ns=record.device_start_ns, end_ns=until)
                key = (*key[:2], _ON_DEVICE, None)
            if key is not None:
                rows.setdefault(key, []).append(record)
    found: list[Track] = []
    names = thread_names(session)
    for key in sorted(rows, key=_rank):
        group, name, device = _titles(session, key, names)
        nested = key[2] in ("blocks", "compute")
        records = sorted(rows.pop(key), key=lambda record: (record.start_ns, -end_of(record)))
        for lane, of in enumerate(nest(records) if nested else spread(records)):
            found.append(Track(group, name, lane, nested, device, of, _rank(key)))
    return found


#: Tracks of work of hosts, and of devices, that are told apart.
_MOST_TRACKS = 120
_NONE = 255


def work_tracks(session: Session, work: WorkTable) -> tuple[list[WorkTrack], int]:
    """The rows of the table of a session's work, in order of start, on the tracks on which their records would stand;
    and how many tracks are left out, because there are too many."""
    merged = bool(session.meta.get("processes"))
    root_of = [path[0] if merged and path else "Host" for path in work.paths]
    pairs = work.pairs() if merged else {(kind, 0) for kind in set(work.kind)}
    keys = {(kind, path): _key_of(work.kinds[kind], root_of[path]) for kind, path in pairs}
    ordered = sorted(set(keys.values()), key=_rank)
    hosts = [key for key in ordered if key[0] is None]
    chosen = [*hosts[:_MOST_TRACKS], *ordered[len(hosts) :][:_MOST_TRACKS]]
    numbers = {key: at for at, key in enumerate(chosen)}
    codes = {pair: numbers.get(key, _NONE) for pair, key in keys.items()}
    if merged:
        mask = bytes(map(codes.__getitem__, zip(work.kind, work.path, strict=True)))
    else:
        mask = bytes(map({kind: code for (kind, _), code in codes.items()}.__getitem__, work.kind))
    names, found = thread_names(session), list[WorkTrack]()
    for key, number in numbers.items():
        rows = Rows(mask.translate(bytes(at == number for at in range(256))))
        if len(rows):
            found.append(WorkTrack(*_titles(session, key, names), rows, _rank(key)))
    return found, len(ordered) - len(chosen)


def _titles(
    session: Session, key: tuple[Any, ...], names: dict[tuple[str, Any], str]
) -> tuple[str, str, tuple[str, int | None] | None]:
    """Group and name of a track, and its device."""
    device, process, what, detail = key
    group = process if device is None else group_name(session, device)
    name = _name(what, detail, names.get((process, detail)))
    if what == "stream" and device[0] == "wgpu":  # which has one queue
        name = "passes"
    return group, name + (f" · {process}" if device is not None and process != "Host" else ""), device


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


def _key(record: Any, merged: bool) -> tuple[Any, ...] | None:
    """(device or None, process, what, stream, direction or thread); streams of merged processes stay apart."""
    process = record.path[0] if merged and record.path else "Host"
    kind = type(record)
    if kind is GpuKernel or kind is GpuMemset:
        return ((record.backend, record.device), process, "stream", record.stream)
    if kind is GpuMemoryTransfer:
        device = (record.backend, record.device) if record.timing == "device" else None
        return (device, process, "copies", record.direction)
    if kind is GpuBlockTime:
        return ((record.backend, record.device), process, "blocks", None)
    what = _HOST_TRACKS.get(kind)
    return None if what is None else (None, process, what, getattr(record, "thread", None))


def _key_of(kind: WorkKind, process: str) -> tuple[Any, ...]:
    """The same of a kind of rows."""
    device = (kind.backend, kind.device)
    if kind.kind == "sync":
        return (None, process, "waits", kind.thread)
    if kind.kind == "transfer":
        return (device if kind.timing == "device" else None, process, "copies", kind.direction)
    return (device, process, "stream", kind.stream)


def _rank(key: tuple[Any, ...]) -> tuple[Any, ...]:
    device, process, what, detail = key
    backend, number = ("", -1) if device is None else card(*device)  # what reached one card stands together
    where = backend, -1 if number is None else number, "" if device is None else device[0]
    by_number = len(process), process  # "rank 2" before "rank 10"
    return (device is not None, *where, *by_number, _ORDER[what], detail is not None, str(detail).rjust(20))


def thread_names(session: Session) -> dict[tuple[str, Any], str]:
    """What to call threads: by their process and either of their numbers, Python's and the system's. The system's,
    which other tools show, stands behind the name; several names where a number was given again."""
    meta = session.meta
    found: dict[tuple[str, Any], dict[str, None]] = {}
    for process in meta.get("processes") or [meta]:
        root = str(process.get("root") or "Host")
        for row in process.get("threads") or ():
            number, native, name = row.get("thread"), row.get("native_id"), one_line(str(row.get("name")), 60)
            for one in (number, native):
                found.setdefault((root, one), {})[f"{name} ({number if native is None else native})"] = None
    return {key: ", ".join(list(names)[:3]) + (" …" if len(names) > 3 else "") for key, names in found.items()}


def _name(what: str, detail: Any, thread_name: str | None) -> str:
    if what == "copies":
        return DIRECTIONS.get(detail, str(detail))
    if what == "stream":
        return "no stream" if detail is None else f"stream {detail}"
    if what == "waits":
        what = "waits for the GPU"
    thread = "" if detail is None else f" · {thread_name or f'thread {detail}'}"
    return f"{what}{thread}"


def spread(records: list[Any]) -> list[list[Any]]:
    """Records in order of start, dealt to the first lane that is free."""
    found = _dealt([record.start_ns for record in records], [end_of(record) for record in records])
    return [[records[at] for at in lane] for lane in found]


def dealt(starts: "array[int]", ends: "array[int]") -> "Sequence[Sequence[int]]":
    """The same of columns of times: which of them stand on each lane."""
    if 1 in lanes.less(memoryview(starts)[1:], memoryview(ends)[:-1]):
        return _dealt(starts, ends)
    return [range(len(starts))] if starts else []


def _dealt(starts: Sequence[int], ends: Sequence[int]) -> "list[array[int]]":
    found: list[array[int]] = []
    free: list[int] = []  # heaps: lanes, and when the others become free
    taken: list[tuple[int, int]] = []
    for at, start in enumerate(starts):
        while taken and taken[0][0] <= start:
            heappush(free, heappop(taken)[1])
        lane = heappop(free) if free else len(found)
        if lane == len(found):
            found.append(array("I"))
        found[lane].append(at)
        heappush(taken, (ends[at], lane))
    return found


def nest(records: Iterable[Any]) -> list[list[Any]]:
    """Records in order of start (longer first), dealt to the first lane on which they nest."""
    found: list[list[Any]] = []
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
        if lane == len(found):
            found.append([])
            stacks.append([])
        found[lane].append(record)
        stacks[lane].append(end)
        heappush(open_until, (end, lane))
        room.put(lane, end)
    return found


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
