"""Live mode: buffers are decoded as they come, and what comes of them stays in memory and goes to the sinks."""

from contextlib import AbstractContextManager
from time import monotonic
from typing import TYPE_CHECKING

from .._aggregation.block_totals import BlockTotals
from .._aggregation.pipeline import Limits, Pipeline
from .._aggregation.recent import Recent
from .._aggregation.same_kernels import SameKernels
from .._attribution.boundaries import OPEN, Boundary, PlacedItem, taken_apart
from .._capi import demangle
from .._decode.names import NameCache, Names
from .._records.counter_samples import MOST_ROWS, CounterColumns, CounterTable
from .._records.records import BlockRecord, Counters, Path, Record
from .._records.work import HEAD, TAIL
from .._runtime.clock import now_ns
from .._runtime.config import Settings
from .attachment import Capture
from .sinks import Sinks
from .store import Known, Pause, Results, remember

if TYPE_CHECKING:
    from ..session import Session

#: A marker that the device has done, and that has not been read for so long, is lost.
DONE_PATIENCE_NS = 1_500_000_000
#: That the last seconds are kept longer than is asked for: what a dump is about is read that long after it ended.
MARGIN_S = 5.0


class LiveStore:
    """A :class:`~store.Store`: a pipeline, and the names that its buffers use."""

    mode = "live"

    def __init__(self, settings: Settings, capture: Capture | None, sinks: Sinks, start_ns: int) -> None:
        self._settings = settings
        self._capture = capture
        self._sinks = sinks
        self._names = NameCache(demangle)
        self._epoch = 0  # of correlation ids, as the capture counts them
        self._samples = CounterTable(MOST_ROWS)
        self._use(Pipeline(self._limits(), emit=sinks.put, start_ns=start_ns))

    def _use(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.threshold, self.launches = pipeline.threshold, pipeline.launches
        self.owners, self.watched = pipeline.owners, pipeline.watched
        self._keep_recent()

    def _keep_recent(self) -> None:
        seconds = self._settings.flight_recorder
        self.pipeline.keep_recent(None if seconds is None else round((seconds + MARGIN_S) * 1e9))

    def _limits(self) -> Limits:
        settings = self._settings
        return Limits(
            settings.threshold_ns,
            settings.trace_all,
            settings.max_records_per_second,
            settings.max_records,
            frozenset(settings.devices) if settings.devices is not None else None,
            self._capture.kinds if self._capture is not None else None,
            HEAD + TAIL,
        )

    # --- settings ---------------------------------------------------------------------------------------------------

    def attached(self, capture: Capture) -> None:
        pipeline = self.pipeline
        pipeline.configure(self._limits())
        pipeline.occupancy, pipeline.marker = capture.occupancy, capture.marker_shape
        if capture.epoch > self._epoch:
            self._epoch = capture.epoch
            pipeline.restart_ids()

    def configure(self, settings: Settings) -> None:
        self._settings = settings
        self.pipeline.configure(self._limits())
        self._keep_recent()

    def reset(self, start_ns: int) -> None:
        old = self.pipeline
        new = Pipeline(
            self._limits(), emit=self._sinks.put, start_ns=start_ns, marker=old.marker, occupancy=old.occupancy
        )
        new.go_on_from(old)
        self._use(new)
        self._samples = CounterTable(MOST_ROWS)

    def own(self, owners: dict[int, Path]) -> None:
        remember(self.owners, owners)

    # --- in ---------------------------------------------------------------------------------------------------------

    def add(self, view: memoryview, thread: int, pause: Pause) -> None:
        capture, pipeline = self._capture, self.pipeline
        assert capture is not None
        self._names.new_buffer(monotonic())
        pipeline.others_markers = capture.sharing.others_markers
        names = Names(self._names, capture.name, capture.glance)
        pipeline.feed(view, thread, capture.strides, names, now_ns=now_ns(), pause=pause)

    def name(self, pointer: int) -> str:
        assert self._capture is not None
        return self._names.resolve(pointer, self._capture.name)[0]

    def lines(self, rows: list[tuple[int, str]]) -> None:
        self.pipeline.lines.add(rows)

    def placed(self, items: list[PlacedItem]) -> list[BlockRecord]:
        boundaries, records = taken_apart(items)
        self.pipeline.boundaries_after(boundaries)
        return records

    def boundary(self, event: Boundary, early: bool = False, newest: int | None = None) -> None:
        if event.token:
            self.pipeline.boundary_marked(event)
        elif newest is not None:
            self.pipeline.boundary_after(event, newest)
        elif self._capture is None:
            self.know(event)
        elif early:
            self.pipeline.attribution.boundary(event, 0)
        else:
            self.pipeline.boundary_about(event)

    def know(self, event: Boundary) -> None:
        if event.op == OPEN:
            self.pipeline.attribution.know(event.block_id, event.parent_id, event.name)

    def lose(self, token: int) -> None:
        self.pipeline.attribution.lose(token)

    def records(self, records: list[Record | SameKernels]) -> None:
        if records:
            self.pipeline.record(records, now_ns())

    def counter_samples(self, columns: CounterColumns) -> None:
        self._samples.add(columns)

    # --- cycles -----------------------------------------------------------------------------------------------------

    def may_wait(self, waiting: int, read: bool) -> bool:
        return False

    def cycle(self, pause: Pause, final: bool = False) -> None:
        patience_ns = None if final else self._patience()
        self.pipeline.cycle(now_ns(), final, patience_ns=patience_ns, pause=pause)

    def _patience(self) -> int | None:
        """Short where the device has done every marker: one that has not been read since is lost. None: the usual."""
        oldest = self.pipeline.attribution.waiting_since()
        if oldest is None or self._capture is None or now_ns() - oldest < DONE_PATIENCE_NS:
            return None
        return DONE_PATIENCE_NS if self._capture.markers_done() else None

    def flush(self) -> None: ...

    def beside(self, known: Known) -> None: ...

    @property
    def recent(self) -> Recent | None:
        return self.pipeline.recent

    @property
    def idle(self) -> bool:
        return self.pipeline.idle

    # --- out --------------------------------------------------------------------------------------------------------

    def counters(self) -> Counters:
        return self.pipeline.counters()

    def results(self) -> Results:
        pipeline = self.pipeline
        return list(pipeline.kept), pipeline.ledger.aggregates(), pipeline.ledger.busy(), pipeline.work.copy()

    def counter_table(self) -> CounterTable:
        return self._samples.since(0)

    def totals(self, block_id: int, lock: AbstractContextManager[None]) -> BlockTotals | None:
        with lock:
            return self.pipeline.totals(block_id)

    def session(self, known: Known, each_block: bool = False) -> "Session":
        return known.snapshot()

    def note(self, known: Known) -> None: ...

    def close(self, known: Known) -> None: ...

    def forget_in_child(self) -> None:
        self.pipeline.keep_recent(None)
