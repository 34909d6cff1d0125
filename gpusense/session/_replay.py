"""A session file with raw buffers, read through the same pipeline as live capture."""

from collections.abc import Callable, Iterable
from typing import Any

from .._aggregation.block_totals import EachBlock, Watched
from .._aggregation.markers import Marker
from .._aggregation.pipeline import Limits, Pipeline
from .._aggregation.placement import with_owner
from .._attribution.boundaries import CLOSE, GONE, OPEN, Boundary
from .._capi import demangle
from .._decode.names import NameCache, Names
from .._records.records import BlockRecord, Counters, GpuKernel, Path
from .._runtime.process import is_written
from . import _format as file
from ._block_chunks import unpacked
from ._builder import Builder, rows_left_out
from ._session import Session
from ._unrecorded import ENDED_BY, Unrecorded, open_at_end

#: Boundaries and markers of one drain cycle lie close together in a file: attributing now and then bounds memory.
BUFFERS_PER_CYCLE = 16
MAX_PATHS = 100_000  # that are remembered, to have each once


class Replay:
    def __init__(
        self,
        threshold_ns: int | None,
        trace_all: bool,
        *,
        max_records: int = 1 << 62,
        watched: Watched | None = None,
    ) -> None:
        self.builder = Builder()
        self.names = NameCache(demangle)
        self._threshold_ns = threshold_ns
        self._trace_all = trace_all
        self._max_records = max_records
        self._watched = watched
        self._texts: dict[int, bytes] = {}
        self._paths: dict[Path, Path] = {}  # each once
        self._layouts: dict[int, dict[int, int]] = {}
        self._pipeline: Pipeline | None = None
        self._buffers = 0
        self.until_ns = 0  # nothing ended later; 0: not known
        self._epoch = 0
        self.forgot = False  # what was recorded before the program reset its tracer
        self.owners: dict[int, Path] = {}
        self.damage: list[str] = []
        self.unrecorded: Unrecorded | None = None  # of a file that ended early

    @property
    def pipeline(self) -> Pipeline:
        if self._pipeline is None:
            start_ns = self.builder.meta.get("start_ns") or 0
            self._pipeline = Pipeline(self._limits(), start_ns=start_ns, watched=self._watched)
            self._pipeline.owners = self.owners
        return self._pipeline

    def _limits(self) -> Limits:
        """What whoever reads the file chose, else what the run has chosen so far."""
        meta = self.builder.meta
        threshold = self._threshold_ns if self._threshold_ns is not None else meta.get("threshold_ns")
        devices = meta.get("only_devices")
        return Limits(
            100_000 if threshold is None else threshold,
            self._trace_all or (self._threshold_ns is None and bool(meta.get("trace_all"))),
            max_per_second=1 << 62,
            max_records=self._max_records,
            devices=None if devices is None else frozenset(map(int, devices)),
        )

    def take(self, chunk: file.Chunk) -> None:
        handler = HANDLERS.get(chunk.type)
        try:
            if handler is not None:
                handler(self, chunk)
            else:
                self.builder.take(chunk)
        except Exception as error:  # noqa: BLE001 - somebody may have made the file up
            self.damage.append(f"the chunk at offset {chunk.offset} was left out: {_in_words(error)}")

    def take_meta(self, chunk: file.Chunk) -> None:
        """Owners of graph nodes come as graphs are captured, and all of them once more at the end."""
        self.builder.take(chunk)
        if self._pipeline is not None:
            self._go_on(self._pipeline)
        self.owners.update(self.graph_owners(self.builder.meta.pop("graph_owners", None) or {}))

    def _go_on(self, old: Pipeline) -> None:
        """As the program has decided meanwhile: with other settings, or without all that was recorded so far."""
        limits = self._limits()._replace(kinds=old.limits.kinds)
        start_ns = self.builder.meta.get("start_ns") or 0
        if start_ns <= old.start_ns:
            old.configure(limits)
            return
        self.forgot = True
        self._pipeline = new = Pipeline(limits, start_ns=start_ns, marker=old.marker, occupancy=old.occupancy)
        new.go_on_from(old)
        new.others_markers = old.others_markers

    def take_names(self, chunk: file.Chunk) -> None:
        self._texts.update(chunk.names())
        self.names.new_buffer()

    def take_layout(self, chunk: file.Chunk) -> None:
        facts = chunk.json()
        self._layouts[facts["id"]] = {int(kind): int(stride) for kind, stride in facts["strides"].items()}
        pipeline, marker, kinds = self.pipeline, facts.get("marker"), facts.get("kinds")
        if marker:
            pipeline.marker = Marker(*marker)
        if kinds:
            pipeline.limits = pipeline.limits._replace(kinds=frozenset(kinds))
        epoch = facts.get("epoch", 0)
        if epoch > self._epoch:
            self._epoch = epoch
            pipeline.restart_ids()
        own = {(context, stream) for context, stream in facts.get("others_contexts", ())}
        known = {stream for _, stream in own}
        unknown = ((None, stream) for stream in facts.get("others_markers", ()) if stream not in known)
        pipeline.others_markers = frozenset((*own, *unknown))

    def take_boundaries(self, chunk: file.Chunk) -> None:
        refused, reason = 0, ""
        for row in chunk.json():
            try:
                boundary, corr, newest = _boundary(row)
            except (TypeError, ValueError) as error:
                refused, reason = refused + 1, reason or str(error)
                continue
            if self.unrecorded is not None:
                self._remember(boundary)
            if newest is not None:
                self.pipeline.boundary_after(boundary, newest)
                continue
            if corr:  # while nothing could be marked: about here
                self.pipeline.boundary_about(boundary)
            elif corr is None and boundary.token:
                self.pipeline.boundary_marked(boundary)
            else:
                self.pipeline.attribution.boundary(boundary, corr)
        if refused:
            self.damage.append(rows_left_out(refused, chunk, reason))

    def _remember(self, event: Boundary) -> None:
        assert self.unrecorded is not None
        if event.op == OPEN:
            self.unrecorded.opened(event.block_id, event.parent_id, event.name, event.thread, event.before_ns)
        elif event.op == CLOSE:
            self.unrecorded.closed(event.block_id, event.before_ns)

    def take_blocks(self, chunk: file.Chunk) -> None:
        """Boundaries where the newest correlation id was read, and blocks that ended there."""
        if len(self._paths) > MAX_PATHS:
            self._paths.clear()
        found = unpacked(chunk.payload, self._paths)
        self.pipeline.boundaries_after(found.boundaries)
        self.pipeline.refuse(found.reversed)
        self.pipeline.record(found.records)
        if self.unrecorded is not None:
            for _, op, block_id, parent_id, thread, time, name, _ in found.boundaries:
                self._remember(Boundary(op, block_id, parent_id, thread, time, time, name))
            self.unrecorded.recorded(found.records)
        if found.refused:
            self.damage.append(rows_left_out(found.refused, chunk, found.reason))

    def take_buffer(self, chunk: file.Chunk) -> None:
        buffer = chunk.buffer()
        strides = self._layouts.get(buffer.layout)
        if strides is None:
            raise ValueError(f"its layout {buffer.layout} is not known")
        if self.pipeline.occupancy is None:
            self.pipeline.occupancy = _occupancy_of(self.builder.devices)
        names = Names(self.names, self._text)
        self.pipeline.feed(buffer.data, buffer.thread, strides, names, now_ns=self.until_ns)
        self._buffers += 1
        if self._buffers % BUFFERS_PER_CYCLE == 0:
            self.pipeline.cycle(0)

    def _text(self, pointer: int) -> bytes:
        return self._texts.get(pointer, b"")

    def graph_owners(self, rows: dict[Any, Any]) -> dict[int, Path]:
        owners: dict[int, Path] = {}
        for node, path in rows.items():
            if node.isdecimal() and len(node) <= 20 and isinstance(path, list) and {*map(type, path)} <= {str}:
                owners[int(node)] = tuple(path)
            else:
                self.damage.append(f"the owner of the graph node {node[:40]!r} was left out")
        return owners

    def take_lines(self, chunk: file.Chunk) -> None:
        self.pipeline.lines.add([(int(correlation), str(line)) for correlation, line in chunk.json()])

    def take_records(self, chunk: file.Chunk) -> None:
        """Records of other sources go through the threshold too."""
        before, self.builder.reversed = len(self.builder.records), 0
        self.builder.take(chunk)
        fresh = self.builder.records[before:]
        del self.builder.records[before:]
        self.pipeline.refuse(self.builder.reversed)
        self.pipeline.record(fresh)
        if self.unrecorded is not None:
            self.unrecorded.recorded(record for record in fresh if type(record) is BlockRecord)

    def finish_blocks(self) -> None:
        """Those of which the file has the beginning alone, or both ends and no record."""
        found = self.unrecorded.records(self._last_known_ns()) if self.unrecorded is not None else []
        self.pipeline.record(found)
        paths = [record.path for record in found if record.attributes is not None]
        if paths:
            self.builder.meta.setdefault("notes", []).append(open_at_end(paths))

    def _last_known_ns(self) -> int:
        """So long the program worked at least, of what is in the file beside its blocks."""
        meta, metrics = self.builder.meta, self.builder.metrics
        killed = str(meta.get(ENDED_BY)).startswith("SIG")  # in the middle of what it did, and not at an exec before
        end = meta.get("program_end_ns") if killed else None
        sampled = metrics[-1].time_ns if metrics else 0
        return max(end if type(end) is int else 0, sampled, max(self.pipeline.work.end, default=0))


def _boundary(row: Any) -> tuple[Boundary, int | None, int | None]:
    """The boundary in a row of a file, whether its place is only known roughly, and the newest correlation id where
    that was read. Raises where it is none that a tracer writes.

    A block has a lower number than those inside it; otherwise a chain of parents could be a circle.
    """
    event, (corr, newest) = row[: len(Boundary._fields)], (*row[len(Boundary._fields) :], None)[:2]
    found = Boundary(*event)
    numbers = found.op, found.block_id, found.thread, found.before_ns, found.after_ns, found.token
    if {*map(type, numbers)} != {int} or {type(found.parent_id), type(corr), type(newest)} - {
        int,
        type(None),
    }:
        raise ValueError("a number is missing")
    if type(found.name) is not str or not CLOSE <= found.op <= GONE or min(numbers) < 0:
        raise ValueError("no boundary of a block")
    if found.op == OPEN and found.parent_id is not None and not 0 <= found.parent_id < found.block_id:
        raise ValueError(f"block {found.block_id} is inside block {found.parent_id}, which is not older")
    if newest is not None and not 0 <= newest <= 0xFFFFFFFF:
        raise ValueError("no correlation id")
    return found, corr, newest


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


#: What of a file goes through the pipeline; the rest is taken as it stands.
HANDLERS: dict[int, Callable[[Replay, file.Chunk], None]] = {
    file.META: Replay.take_meta,
    file.NAME: Replay.take_names,
    file.LAYOUT: Replay.take_layout,
    file.BOUNDARY: Replay.take_boundaries,
    file.BUFFER: Replay.take_buffer,
    file.RECORDS: Replay.take_records,
    file.LINES: Replay.take_lines,
    file.BLOCKS: Replay.take_blocks,
}


def replay(
    reader: file.Reader, *, threshold_ns: int | None = None, trace_all: bool = False, each_block: bool = False
) -> Session:
    """The session that raw chunks decode to; ``threshold_ns`` (None: the run's own) and ``trace_all`` choose anew."""
    sums = EachBlock() if each_block else None
    state = Replay(threshold_ns, trace_all, watched=sums)
    state.until_ns, early = _end(reader)
    state.unrecorded = Unrecorded() if early else None
    for chunk in reader:
        state.take(chunk)
    pipeline = state.pipeline
    try:
        state.finish_blocks()
        pipeline.cycle(0, final=True)
    except Exception as error:  # noqa: BLE001 - as for a chunk
        state.damage.append(f"the last records were left out: {_in_words(error)}")
    session = state.builder.session()
    session.each_block = sums.sums if sums is not None else None
    records = [with_owner(record, state.owners) for record in pipeline.kept]
    session.records = sorted(records, key=lambda record: record.start_ns)
    session.aggregates = pipeline.ledger.aggregates()
    if state.forgot:
        session.metrics = [sample for sample in session.metrics if sample.time_ns >= pipeline.start_ns]
    session.counter_samples = session.counter_samples.since(session.meta.get("start_ns") or 0)
    session.busy = pipeline.ledger.busy()
    pipeline.work.sort()
    session.take_work(pipeline.work)
    session.counters = with_recorders(pipeline.counters(), session.counters)
    session.meta["threshold_ns"] = pipeline.limits.threshold_ns
    session.meta["trace_all"] = pipeline.limits.trace_all
    if state.damage:
        session.meta.setdefault("damage", []).extend(state.damage)
    return session


def with_recorders(counted: Counters, recorder: Counters) -> Counters:
    """``counted`` from the records of a file, and of what they cannot tell what the ``recorder`` has counted."""
    return counted._replace(
        dropped=recorder.dropped,
        missed=recorder.missed,
        foreign_buffers=recorder.foreign_buffers,
        sink_errors=recorder.sink_errors,
        bytes_dropped=recorder.bytes_dropped,
        bytes_too_long=recorder.bytes_too_long,
        failed_blocks=recorder.failed_blocks,
        shed_blocks=recorder.shed_blocks,
        ignored_records=recorder.ignored_records,
        unsent_records=recorder.unsent_records,
        unread_at_end=recorder.unread_at_end,
    )


def _end(reader: file.Reader) -> tuple[int, bool]:
    """When the recording ended, 0 where that is not known, as of one that was killed; and whether writing the file had
    ended before, and does not go on."""
    end = reader.last(file.END)
    try:
        facts = end.json() if end is not None else {}
        end_ns, early = facts.get("end_ns"), end is None or bool(facts.get("failure"))
    except (ValueError, AttributeError):  # somebody may have made the file up
        return 0, True
    early = early and not is_written(reader.path)
    return end_ns if type(end_ns) is int and end_ns > 0 else 0, early


def _occupancy_of(devices: Iterable[Any]) -> Callable[[GpuKernel], float | None]:
    from .._records.occupancy import Limits as DeviceLimits
    from .._records.occupancy import of_kernel

    limits = {device.cuda_index: DeviceLimits.of(device) for device in devices if device.cuda_index is not None}

    def occupancy(kernel: GpuKernel) -> float | None:
        return of_kernel(kernel, limits.get(kernel.device))

    return occupancy
