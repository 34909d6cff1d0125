"""Many sessions as one: wall clocks kept, devices joined by identity, paths rooted at the process, ids unique. Pure.

A merged session has ``meta["processes"]``: one object a process with ``root`` (the first element of every path it
owns, "rank 3" or "process 41"), ``rank``, ``pid``, ``start_ns``, ``end_ns``. Block id ``n`` of process ``i`` (its place
in that list) becomes ``i * 2**40 + n``. A record's ``device`` is the ``index`` of the joined device. Nothing is shifted
in time: the sessions' own wall clocks are the common clock, and ``meta["notes"]`` says where that is doubtful. What a
process noted of itself is ``notes`` of its object.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._records.device_identity import device_text
from .._records.records import (
    Aggregate,
    Counters,
    DeviceBusy,
    DeviceInfo,
    GpuMemoryTransfer,
    Path,
    Record,
    UnseenInterval,
)
from .._records.work import WorkKind, WorkTable
from .._runtime.errors import SessionError
from ._session import Session
from ._unrecorded import ENDED_BY, ended_text

PROCESS_SHIFT = 40
#: Of ``meta``: kept where every session says the same.
_OF_THE_RUN = ("run", "host", "python", "frameworks", "driver", "cuda")

_DeviceKey = tuple[Any, ...]


def merged(sessions: Sequence[Session]) -> Session:
    """One session of all of ``sessions``; one alone comes back as it is. Raises ``SessionError`` for none."""
    if not sessions:
        raise SessionError("nothing to merge: no session was given")
    if len(sessions) == 1:
        return sessions[0]
    result = Session()
    processes: list[dict[str, Any]] = []
    capture: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    hangs: list[dict[str, Any]] = []
    killed: list[str] = []
    devices = _Devices()
    work = WorkTable()
    each_block: dict[int, dict[str, list[int]]] = {}
    busy: dict[tuple[str, int | None], list[DeviceBusy]] = {}
    for session in sessions:
        move = _Move(len(processes), _root(session, processes), devices.numbering(session))
        capture.update({move.root: session.meta.get("capture")} if move.root else session.meta.get("capture") or {})
        for name, told in _dict(session, "sources").items():
            sources[f"{move.root}: {name}" if move.root else name] = move.source(told)
        hangs.extend(move.hang(found) for found in session.meta.get("hang") or ())
        processes.extend(_processes(session, move.root))
        if session.meta.get("complete") is False and move.root and not session.meta.get(ENDED_BY):
            killed.append(f"{move.root}: {ended_text(session.meta)}")
        result.records.extend(move.record(record) for record in session.records)
        result.aggregates.extend(move.aggregate(aggregate) for aggregate in session.aggregates)
        work.join(session.work, move.kind, move.path)
        each_block.update((block + move.base, sums) for block, sums in (session.each_block or {}).items())
        result.metrics.extend(sample._replace(device=devices.known(sample.device)) for sample in session.metrics)
        result.unseen.extend(move.unseen(off, session.meta.get("end_ns")) for off in session.unseen)
        for part in session.counter_samples.parts():
            result.counter_samples.add(part.of_device(move.numbers[part.device]))
        for row in session.busy:
            device = move.device(row.device)
            busy.setdefault((row.backend, device), []).append(row._replace(device=device))
    result.take_work(work)
    result.each_block = each_block if all(one.each_block is not None for one in sessions) else None
    result.records.sort(key=lambda record: record.start_ns)
    result.metrics.sort(key=lambda sample: sample.time_ns)
    result.devices = devices.all()
    result.counters = Counters(*(sum(column) for column in zip(*(one.counters for one in sessions), strict=True)))
    notes = _clock_notes(processes)
    notes += [*killed, *_twins(processes)]
    result.busy = [_joined(rows, result.devices, notes) for rows in busy.values()]
    result.meta = _meta(sessions, processes, notes) | {"capture": capture, "sources": sources}
    if hangs:
        result.meta["hang"] = hangs
    return result


class _Move:
    """Where one session's ids, paths and device numbers go."""

    def __init__(self, base: int, root: str | None, numbers: dict[int, int]) -> None:
        self.base = base << PROCESS_SHIFT
        self.root = root
        self.numbers = numbers

    def path(self, path: Path) -> Path:
        return path if self.root is None else (self.root, *path)

    def device(self, device: int | None) -> int | None:
        return None if device is None else self.numbers[device]

    def block(self, block: int | None) -> int | None:
        return None if block is None else block + self.base

    def record(self, record: Record) -> Record:
        place: Any = record
        change: dict[str, Any] = {"path": self.path(record.path), "block_id": self.block(record.block_id)}
        fields = place._fields
        if "device" in fields:
            change["device"] = self.device(place.device)
        if "ambiguous" in fields and place.ambiguous:
            change["ambiguous"] = tuple(block + self.base if block else 0 for block in place.ambiguous)
        if "owner" in fields and place.owner is not None:
            change["owner"] = self.path(place.owner)
        if "parent_id" in fields:
            change["parent_id"] = self.block(place.parent_id)
        if isinstance(record, GpuMemoryTransfer):
            change["source_device"] = self.device(record.source_device)
            change["destination_device"] = self.device(record.destination_device)
        moved: Record = place._replace(**change)
        return moved

    def kind(self, kind: WorkKind) -> WorkKind:
        owner = None if kind.owner is None else self.path(kind.owner)
        return kind._replace(device=self.device(kind.device), owner=owner)

    def unseen(self, off: UnseenInterval, end_ns: int | None) -> UnseenInterval:
        """One that goes on to the end does so to that of its own process."""
        reason = f"{self.root}: {off.reason}" if self.root else off.reason
        return off._replace(end_ns=end_ns if off.end_ns is None else off.end_ns, reason=reason)

    def hang(self, found: dict[str, Any]) -> dict[str, Any]:
        """Evidence of a hang, with the process it is of."""
        streams = [
            {**row, "device": self.numbers.get(row.get("device"), row.get("device"))}
            for row in found.get("streams") or ()
        ]
        return {**found, "streams": streams, "process": self.root or found.get("process")}

    def source(self, told: Any) -> Any:
        """What a source told of itself, with the devices by their numbers here."""
        devices = told.get("devices") if isinstance(told, dict) else None
        if not isinstance(devices, dict):
            return told
        numbers = {str(number): str(place) for number, place in self.numbers.items()}
        return {**told, "devices": {numbers.get(number, number): one for number, one in devices.items()}}

    def aggregate(self, row: Aggregate) -> Aggregate:
        owner = self.path(row.owner) if row.owner is not None else None
        return row._replace(path=self.path(row.path), device=self.device(row.device), owner=owner)


class _Devices:
    """Devices of all sessions by identity: the UUID, else the PCI bus id, else the process and its own number."""

    def __init__(self) -> None:
        self._places: dict[_DeviceKey, int] = {}
        self._found: list[DeviceInfo | None] = []
        self._sessions = 0

    def numbering(self, session: Session) -> dict[int, int]:
        """Device number in the session's records → number in the merged session."""
        self._sessions += 1
        numbers: dict[int, int] = {}
        for device in sorted(session.devices, key=lambda one: one.cuda_index is None):
            number = device.index if device.cuda_index is None else device.cuda_index
            numbers.setdefault(number, self._place(self._key(device), device))
        for number in sorted(_numbers(session) - numbers.keys()):
            numbers[number] = self._place((self._sessions, number), None)
        return numbers

    def known(self, device: DeviceInfo) -> DeviceInfo:
        place = self._place(self._key(device), device)
        return self._found[place] or device

    def all(self) -> tuple[DeviceInfo, ...]:
        return tuple(device for device in self._found if device is not None)

    def _key(self, device: DeviceInfo) -> _DeviceKey:
        if device.uuid:
            return ("uuid", device.uuid)
        if device.pci_bus_id:
            return ("pci", device.pci_bus_id)
        return (self._sessions, device.backend, device.index)

    def _place(self, key: _DeviceKey, device: DeviceInfo | None) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._found)
            self._found.append(None if device is None else device._replace(index=place, cuda_index=place))
        return place


def _numbers(session: Session) -> set[int]:
    places: list[Any] = [*session.records, *session.aggregates, *session.busy, *session.work.kinds]
    names = ("device", "source_device", "destination_device")
    found = {getattr(place, name, None) for place in places for name in names}
    return {number for number in (*found, *session.counter_samples.devices) if number is not None}


def _root(session: Session, before: list[dict[str, Any]]) -> str | None:
    """The path element this session's records get; None where they have one already, being merged."""
    if session.meta.get("processes"):
        return None
    taken = {process.get("root") for process in before}
    rank, pid = session.meta.get("rank"), session.meta.get("pid")
    root = f"rank {rank}" if rank is not None else f"process {pid if pid is not None else len(before)}"
    return root if root not in taken else f"{root} #{len(before)}"


def _processes(session: Session, root: str | None) -> list[dict[str, Any]]:
    if root is None:
        return [one for one in session.meta["processes"] if isinstance(one, dict)]
    names = ("rank", "world_size", "pid", "start_ns", "end_ns", "threads", "host")
    known = ("notes", "imported_from", "step_block", "figures", "cpu_time", ENDED_BY)
    more: dict[str, Any] = {name: session.meta[name] for name in known if session.meta.get(name)}
    return [{"root": root, **{name: session.meta.get(name) for name in names}, **more}]


def _clock_notes(processes: Iterable[dict[str, Any]]) -> list[str]:
    notes = ["times are each process's own wall clock; across hosts they are as good as the hosts' time service"]
    spans = [(one.get("root"), one.get("start_ns"), one.get("end_ns")) for one in processes]
    whole = [(root, start, end) for root, start, end in spans if isinstance(start, int) and isinstance(end, int)]
    for root, start, end in whole if len(whole) > 1 else ():
        if not any(other != root and first < end and last > start for other, first, last in whole):
            notes.append(f"{root} overlaps no other process in time: another run, or a wrong clock")
    return notes


def _twins(processes: Iterable[dict[str, Any]]) -> list[str]:
    """What looks like one session given twice: then all of it counts twice."""
    known: dict[Any, Any] = {}
    notes = []
    for one in processes:
        which = one.get("pid"), one.get("start_ns"), one.get("rank")
        if None not in which[:2] and which in known:
            notes.append(f"{known[which]} and {one.get('root')} have one pid and one start: the same session twice?")
        known.setdefault(which, one.get("root"))
    return notes


def _joined(rows: list[DeviceBusy], devices: Sequence[DeviceInfo], notes: list[str]) -> DeviceBusy:
    """Busy time of one device; of several processes' unions only the sum is known, bounded by the span."""
    if len(rows) == 1:
        return rows[0]
    starts = [row.first_ns for row in rows if row.first_ns is not None]
    ends = [row.last_ns for row in rows if row.last_ns is not None]
    first, last = min(starts, default=None), max(ends, default=None)
    span = last - first if first is not None and last is not None else None

    def total(name: str) -> int:
        summed: int = sum(getattr(row, name) for row in rows)
        return summed if span is None else min(summed, span)

    which = device_text(devices, rows[0].backend, rows[0].device)
    notes.append(f"{which} was used by {len(rows)} processes: its busy time is an upper bound")
    return rows[0]._replace(
        kernel_ns=total("kernel_ns"),
        transfer_ns=total("transfer_ns"),
        busy_ns=total("busy_ns"),
        first_ns=first,
        last_ns=last,
    )


def _meta(sessions: Sequence[Session], processes: list[dict[str, Any]], notes: list[str]) -> dict[str, Any]:
    metas = [session.meta for session in sessions]
    ends = [meta.get("end_ns") for meta in metas]
    thresholds = {meta.get("threshold_ns") for meta in metas}
    if len(thresholds) > 1:
        notes.append(f"the sessions were recorded with {len(thresholds)} different thresholds; the highest is shown")
    backends: dict[str, Any] = {}
    for meta in metas:
        backends.update(meta.get("backends") or {})
    return {
        "version": metas[0].get("version"),
        "pid": None,
        "rank": None,
        "world_size": metas[0].get("world_size"),
        "start_ns": min((meta["start_ns"] for meta in metas if meta.get("start_ns") is not None), default=None),
        "end_ns": max((end for end in ends if end is not None), default=None),
        "threshold_ns": max((threshold for threshold in thresholds if threshold is not None), default=None),
        "trace_all": all(meta.get("trace_all") for meta in metas),
        "backends": backends,
        "mode": metas[0].get("mode"),
        "kinds": sorted({kind for meta in metas for kind in meta.get("kinds") or ()}),
        **_endings(metas),
        "overhead": _overhead([_dict(session, "overhead") for session in sessions]),
        "damage": [sentence for meta in metas for sentence in meta.get("damage") or ()],
        "processes": processes,
        "notes": notes,
        **{name: metas[0][name] for name in _OF_THE_RUN if metas[0].get(name) is not None and _same(metas, name)},
        **_programs(metas),
        "file": _file([meta.get("file") or {} for meta in metas]),
    }


def _endings(metas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether all files are whole, and what ended the programs of those that are not, where that is known of each."""
    if not _any(metas, "complete"):
        return {}
    cut = {meta.get(ENDED_BY) for meta in metas if meta.get("complete") is False}
    return {"complete": not cut, **({ENDED_BY: " and ".join(sorted(map(str, cut)))} if cut and None not in cut else {})}


def _file(ends: list[dict[str, Any]]) -> dict[str, Any]:
    """Why something is not in the files, where that is so."""
    names = ("failure", "capped_at_ns")
    return {name: next((end[name] for end in ends if end.get(name) is not None), None) for name in names}


def _same(metas: Sequence[dict[str, Any]], name: str) -> bool:
    return all(meta.get(name) == metas[0][name] for meta in metas)


def _programs(metas: Sequence[dict[str, Any]]) -> dict[str, int]:
    """When the first program began and the last one ended, where one of them says; of the others the session's time."""
    found: dict[str, int] = {}
    for name, whole, most in (("program_start_ns", "start_ns", min), ("program_end_ns", "end_ns", max)):
        if _any(metas, name):
            times = [meta[name] if meta.get(name) is not None else meta.get(whole) for meta in metas]
            found[name] = most(at for at in times if at is not None)
    return found


def _any(metas: Sequence[dict[str, Any]], name: str) -> bool:
    return any(meta.get(name) is not None for meta in metas)


def _dict(session: Session, name: str) -> dict[str, Any]:
    return session.meta.get(name) or {}


def _overhead(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Times summed up; of a budget and its threshold the highest, of shares the mean over all processes."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, []).append(value)
    rules: dict[str, Callable[[Any], Any]] = {"budget": max, "threshold_ns": max, "share": _mean, "left": _mean}
    joined = {name: rules.get(name, sum)(values) for name, values in found.items()}
    if "observed" in found:  # a process without a budget observed all of its time
        joined["observed"] = _mean([part.get("observed", 1.0) for part in parts])
    return joined


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
