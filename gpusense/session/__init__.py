"""Session: everything recorded in one run, in memory; how it is saved, loaded and merged.

What a :class:`Session` holds is what every analysis, report and exporter reads; nothing else reaches them. The file
format stands in ``_format.py``.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._records.metrics import GpuMetrics
from .._records.records import (
    Aggregate,
    BlockRecord,
    ComputeBlock,
    Counters,
    DeviceBusy,
    DeviceInfo,
    GpuAllocation,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Record,
    Syscall,
    UnseenStretch,
)
from .._runtime.text import count_text

if TYPE_CHECKING:
    from ._format import Chunk
    from ._writer import Writer


class Session:
    """All records of one run. ``records`` are the kept ones; ``aggregates`` count the others; nothing is in both.

    ``meta`` has at least ``version`` (of gpusense), ``pid``, ``start_ns``, ``end_ns`` (None while running),
    ``threshold_ns``, ``trace_all``, ``backends`` (name → version text), ``rank`` and ``world_size`` (None outside a
    launcher), ``mode`` ("live" or "file"), ``overhead`` (drain CPU nanoseconds and the like), ``capture`` (how capture
    was done: callbacks, library, cuda_live_ns), ``damage`` (list of sentences with offsets, from a damaged file).
    """

    __slots__ = ("aggregates", "busy", "counters", "devices", "meta", "metrics", "records", "unseen")

    def __init__(
        self,
        *,
        meta: dict[str, Any] | None = None,
        devices: tuple[DeviceInfo, ...] = (),
        records: list[Record] | None = None,
        aggregates: list[Aggregate] | None = None,
        metrics: list[GpuMetrics] | None = None,
        busy: list[DeviceBusy] | None = None,
        unseen: list[UnseenStretch] | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.meta: dict[str, Any] = meta if meta is not None else {}
        self.devices = devices
        self.records: list[Record] = records if records is not None else []
        self.aggregates: list[Aggregate] = aggregates if aggregates is not None else []
        self.metrics: list[GpuMetrics] = metrics if metrics is not None else []
        self.busy: list[DeviceBusy] = busy if busy is not None else []
        self.unseen: list[UnseenStretch] = unseen if unseen is not None else []
        self.counters = counters if counters is not None else Counters()

    def __repr__(self) -> str:
        kept, counted = len(self.records), sum(one.count for one in self.aggregates)
        return f"<Session {self.meta.get('mode', 'merged')}: {count_text(kept, 'record')}, {counted:,} counted>"

    @property
    def kernels(self) -> list[GpuKernel]:
        """Kernels that were kept one by one."""
        return [record for record in self.records if type(record) is GpuKernel]

    @property
    def transfers(self) -> list[GpuMemoryTransfer]:
        """Copies that were kept one by one."""
        return [record for record in self.records if type(record) is GpuMemoryTransfer]

    @property
    def memsets(self) -> list[GpuMemset]:
        """Memsets that were kept one by one."""
        return [record for record in self.records if type(record) is GpuMemset]

    @property
    def syncs(self) -> list[GpuSync]:
        """Waits of the host that were kept; none unless kind "sync" was on."""
        return [record for record in self.records if type(record) is GpuSync]

    @property
    def allocations(self) -> list[GpuAllocation]:
        """Allocations and releases; none unless kind "allocation" was on."""
        return [record for record in self.records if type(record) is GpuAllocation]

    @property
    def compute_blocks(self) -> list[ComputeBlock]:
        """Compute blocks that were kept one by one."""
        return [record for record in self.records if type(record) is ComputeBlock]

    @property
    def blocks(self) -> list[BlockRecord]:
        """Finished ``trace()`` blocks."""
        return [record for record in self.records if type(record) is BlockRecord]

    @property
    def syscalls(self) -> list[Syscall]:
        """System calls, where an external tracer gave them."""
        return [record for record in self.records if type(record) is Syscall]

    @property
    def duration_ns(self) -> int | None:
        """From start to end; None while it runs."""
        start, end = self.meta.get("start_ns"), self.meta.get("end_ns")
        return end - start if start is not None and end is not None else None


#: What ``load`` adds to ``meta``.
_OF_THE_FILE = ("path", "complete", "file")
#: What ``meta`` must hold where it holds it at all; anything else is left out and named.
_META_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("start_ns", "end_ns", "threshold_ns", "pid", "rank", "world_size"), (int, type(None))),
    **dict.fromkeys(("backends", "overhead", "capture", "graph_owners"), dict),
    "trace_all": bool,
    "damage": list,
    "processes": list,
    "only_devices": (list, type(None)),
}


def load(path: "str | os.PathLike[str]", *, threshold_us: float | None = None, trace_all: bool = False) -> Session:
    """The session in a file. What is damaged is left out and named in ``meta["damage"]``; ``meta["complete"]`` is false
    where the program was killed before it could end the file, or is still running.

    Raw activity buffers are decoded now: ``threshold_us`` (None: what the run used) and ``trace_all`` choose anew what
    is kept one by one. A session without raw buffers keeps what was kept; a higher threshold folds more of it into
    aggregates. Raises ``SessionError`` where the file is no session, of a later format version, or cannot be read.
    """
    import gc

    # Records make no cycles, and while a million of them are made the search for some takes half the time.
    searched = gc.isenabled()
    gc.disable()
    try:
        return _load(path, None if threshold_us is None else int(threshold_us * 1000), trace_all)
    finally:
        if searched:
            gc.enable()


def _load(path: "str | os.PathLike[str]", threshold_ns: int | None, trace_all: bool) -> Session:
    from . import _format as file

    with file.Reader(path) as reader:
        builder = Builder()
        raw = reader.has(file.BUFFER)
        for chunk in () if raw else reader:
            builder.take(chunk)
        # A run records what other sources give it undecided too; a saved session has been decided about.
        decided = builder.meta.pop("decided", False) or builder.meta.get("mode") != "file"
        if raw or not decided:
            from ._replay import replay

            session = replay(reader, threshold_ns=threshold_ns, trace_all=trace_all)
        else:
            session = builder.session()
            if threshold_ns is not None and not trace_all:
                fold(session, threshold_ns)
        session.meta["path"] = reader.path
        session.meta["complete"] = reader.complete
        session.meta["damage"] = [*reader.damage, *session.meta.get("damage", ())]
    return session


def save(session: Session, path: "str | os.PathLike[str]") -> None:
    """Writes ``session`` to a file that :func:`load` gives back equal. Raises ``SessionError`` where that fails; what
    session ``path`` held before is there still then.
    """
    from .._runtime.errors import SessionError
    from ._paths import kept_until_whole
    from ._writer import Writer

    path = os.fspath(path)
    with kept_until_whole(path) as (fd, replaces):
        writer = Writer(path, max_bytes=None, fd=fd)
        try:
            _write(session, writer)
        finally:
            writer.close(end_ns=session.meta.get("end_ns"))
        lost = f"{writer.bytes_too_long} bytes were too much for one chunk" if writer.bytes_too_long else None
        if writer.failure or (lost and replaces):
            raise SessionError(f"{writer.path}: {writer.failure or lost}")
    if lost:
        raise SessionError(f"{writer.path}: {lost}")


def _write(session: Session, writer: "Writer") -> None:
    from . import _format as file

    meta = {key: value for key, value in session.meta.items() if key not in _OF_THE_FILE}
    writer.json(file.META, meta | {"decided": True})
    writer.rows(file.DEVICES, session.devices)
    writer.records(session.records)
    writer.rows(file.AGGREGATES, session.aggregates)
    writer.rows(file.BUSY, session.busy)
    writer.rows(file.METRICS, session.metrics)
    writer.rows(file.UNSEEN, session.unseen)
    writer.rows(file.COUNTERS, [session.counters])


def merge(sessions: "Sequence[Session]") -> Session:
    """One session of the sessions of many processes or ranks, on one clock, with devices joined and ids kept apart.

    ``meta["processes"]`` lists them, ``meta["notes"]`` says how their clocks were joined.
    """
    from ._merge import merged

    return merged(sessions)


class Builder:
    """Collects the decoded chunks of a file into a session; raw chunks (names, buffers, boundaries) are not its own."""

    def __init__(self) -> None:
        self._session = Session()
        self._devices: list[DeviceInfo] = []
        self._damage: list[str] = []
        self._shared: dict[Any, Any] = {}  # texts and tuples of records, each once
        self.reversed: int | None = None  # rows whose record ends before it starts; None: they are damage

    @property
    def meta(self) -> dict[str, Any]:
        return self._session.meta

    @property
    def records(self) -> list[Record]:
        return self._session.records

    @property
    def devices(self) -> list[DeviceInfo]:
        return self._devices

    def take(self, chunk: "Chunk") -> bool:
        """Whether ``chunk`` was of a type this class collects. A row that cannot be read becomes a sentence."""
        from .._records import json_codec
        from . import _format as file

        into = self._session
        if chunk.type in (file.META, file.END):
            self._update_meta(chunk, ended=chunk.type == file.END)
        elif chunk.type == file.RECORDS:
            self._rows(chunk, json_codec.decode_record, into.records, at_once=True)
        elif chunk.type == file.AGGREGATES:
            self._rows(chunk, lambda row: json_codec.decode(Aggregate, row), into.aggregates)
        elif chunk.type == file.DEVICES:
            self._devices.clear()  # a later list knows more
            self._rows(chunk, lambda row: json_codec.decode(DeviceInfo, row), self._devices)
        elif chunk.type == file.METRICS:
            self._rows(chunk, lambda row: json_codec.decode(GpuMetrics, row), into.metrics)
        elif chunk.type == file.UNSEEN:
            self._rows(chunk, lambda row: json_codec.decode(UnseenStretch, row), into.unseen)
        elif chunk.type == file.BUSY:
            self._rows(chunk, lambda row: json_codec.decode(DeviceBusy, row), into.busy)
        elif chunk.type == file.COUNTERS:
            found: list[Counters] = []
            self._rows(chunk, lambda row: json_codec.decode(Counters, row), found)
            into.counters = found[-1] if found else into.counters
        else:
            return False
        return True

    def session(self) -> Session:
        self._session.devices = tuple(self._devices)
        if self._damage:
            self._session.meta.setdefault("damage", []).extend(self._damage)
        return self._session

    def _json(self, chunk: "Chunk") -> Any:
        try:
            return chunk.json()
        except ValueError as error:
            self._damage.append(f"the chunk at offset {chunk.offset} is not JSON: {error}")
            return None

    def _rows(self, chunk: "Chunk", decode: Any, into: list[Any], *, at_once: bool = False) -> None:
        from .._records import json_codec

        rows = self._json(chunk)
        if at_once and isinstance(rows, list) and rows:
            from ._json_rows import records

            try:
                into.extend(records(rows, self._shared))
                return
            except ValueError:  # some are damaged: each on its own then
                pass
        refused = 0
        reason = ""
        for row in rows if isinstance(rows, list) else []:
            try:
                into.append(decode(row))
            except ValueError as error:  # noqa: PERF203 - raised for damaged rows only
                if self.reversed is not None and isinstance(error, json_codec.ReversedError):
                    self.reversed += 1
                    continue
                refused += 1
                reason = reason or str(error)
        if refused:
            self._damage.append(rows_left_out(refused, chunk, reason))

    def _update_meta(self, chunk: "Chunk", *, ended: bool) -> None:
        found = self._json(chunk)
        if not isinstance(found, dict):
            return
        for name in [name for name, kind in _META_TYPES.items() if not isinstance(found.get(name, None), kind)]:
            if name in found:
                self._damage.append(f"{name} in the chunk at offset {chunk.offset} is {type(found[name]).__name__}")
                del found[name]
        meta = self._session.meta
        if not ended:
            meta.update(found)
            return
        meta["file"] = found
        counters = self._session.counters
        lost = {name: found.get(name) for name in ("bytes_dropped", "bytes_too_long")}
        known = {name: value for name, value in lost.items() if type(value) is int and value > getattr(counters, name)}
        self._session.counters = counters._replace(**known)  # with a full disk, END alone may have fitted
        if found.get("failure"):
            self._damage.append(ended_early(found["failure"]))
        if meta.get("end_ns") is None:
            meta["end_ns"] = found.get("end_ns")


def ended_early(failure: object) -> str:
    """For ``meta["damage"]``, where writing the file failed."""
    return f"writing ended early: {failure}"


def rows_left_out(count: int, chunk: "Chunk", reason: str) -> str:
    """For ``meta["damage"]``. ``reason`` is that of the first."""
    where = f"of the chunk at offset {chunk.offset}"
    left_out = count_text(count, f"row {where} was left out", f"rows {where} were left out")
    return f"{left_out}; {'first: ' if count > 1 else ''}{reason}"


def fold(session: Session, threshold_ns: int) -> None:
    """Moves what is shorter than ``threshold_ns`` from the records of ``session`` into its aggregates, exactly."""
    from .._aggregation.groups import GroupKey, aggregate, key_of, row_of
    from .._records.records import KINDS

    kept: list[Record] = []
    short: dict[GroupKey, list[Record]] = {}
    for record in session.records:
        if type(record) in (BlockRecord, GpuAllocation) or record.end_ns - record.start_ns >= threshold_ns:
            kept.append(record)
            continue
        key = key_of(record, KINDS[type(record)], record.path)
        short.setdefault(key, []).append(record)
    for key, members in short.items():
        size = sum(getattr(record, "bytes", 0) for record in members)
        session.aggregates.append(aggregate(key, row_of([record.end_ns - record.start_ns for record in members], size)))
    moved = len(session.records) - len(kept)
    session.records[:] = kept
    counters = session.counters
    session.counters = counters._replace(kept=counters.kept - moved, aggregated=counters.aggregated + moved)
    session.meta["threshold_ns"] = max(threshold_ns, session.meta.get("threshold_ns") or 0)
