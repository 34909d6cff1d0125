"""Joins capture, pipeline and sinks of one tracer; all of it runs on gpusense's own threads but what queues.

Threads of the program only append to ``events`` (a deque: atomic): boundaries as lists of the fields of a
:class:`Boundary`, and of the newest id where that was read; frames and closed blocks, see :func:`taken_apart`;
tokens of marker calls that failed; finished records. The recording thread calls :meth:`Recorder.tick`; CUPTI's buffers
arrive on the broker's drain thread. One lock serialises the two; sinks are called without it.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic, sleep, thread_time, time_ns
from typing import Any

from .._aggregation.block_totals import BlockTotals
from .._aggregation.pipeline import Limits, Pipeline
from .._aggregation.same_kernels import Alike
from .._attribution.attributor import OPEN, Boundary
from .._attribution.before_capture import Unmarked
from .._attribution.crossings import taken_apart
from .._attribution.open_blocks import Frame, bringers
from .._capi import demangle
from .._decode.names import NameCache, Names
from .._records.records import Counters, Path, Record, UnseenStretch
from .._runtime import log, threads
from .._runtime.clock import Anchor
from .._runtime.config import Settings
from .attachment import Capture
from .capturing import Capturing
from .hang import HangWatch
from .pauses import Pauses
from .sinks import Delivery, is_the_programs

EVENTS_AT_ONCE = 64  # without a pause

#: That a round waits for another thread which is in a sink.
SINK_WAIT_S = 0.5
DONE_PATIENCE_NS = 1_500_000_000
#: Settings for which capture has to begin anew.
_OF_CAPTURE = ("kinds", "buffer_size", "buffers", "line_packages")
BOUNDARY_FIELDS = len(Boundary._fields)  # of what the program's threads leave; where read, the newest id follows
MAX_OWNERS = 500_000  # of graph nodes; the oldest are then forgotten


class Recorder(Capturing):
    """Live mode: buffers are decoded as they come."""

    mode = "live"

    def __init__(self, settings: Settings, capture: Capture | None) -> None:
        super().__init__(settings, capture)
        self.events: deque[Any] = deque()
        self.metrics_source: Callable[[], Any] = lambda: None
        self.spent_s = 0.0
        self.clock = Anchor()
        self.sources: tuple[Any, ...] = ()  # what else records here: ``name``, ``flush(timeout_s)``, ``status()``
        self._delivery = Delivery(lambda: self.on_own_thread())
        self._unmarked = Unmarked()  # boundaries while no capture was running
        self._names = NameCache(demangle)
        self._pause = Pauses()
        self._read_ns = self.start_ns
        self._epoch = 0  # of correlation ids, as the capture counts them
        self._drain_cpu_ns = self._tick_cpu_ns = 0
        self._get_ident = threads.thread_id()
        self._in_rounds: set[int] = set()  # threads that are in a round, whose time is the round's
        self._slowed_ns = 0  # of the program's launches, for the budget
        self.pipeline = self._new_pipeline()
        self._hang = self._new_hang_watch()
        self._duty.begin(settings.overhead_budget, settings.detach_in_rests)

    def _new_hang_watch(self) -> HangWatch | None:
        after_s = self.settings.hang_after
        return HangWatch(after_s) if after_s is not None and self.capture is not None else None

    def _limits(self) -> Limits:
        settings = self.settings
        return Limits(
            settings.threshold_ns,
            settings.trace_all,
            settings.max_records_per_second,
            settings.max_records,
            frozenset(settings.devices) if settings.devices is not None else None,
            self.capture.kinds if self.capture is not None else None,
        )

    def reconfigure(self, settings: Settings) -> None:
        """The next records follow ``settings``; capture begins anew where that is needed."""
        old, self.settings = self.settings, settings
        with self._lock:
            self._consume()
            self.pipeline.configure(self._limits())
        if any(getattr(old, name) != getattr(settings, name) for name in ("overhead_budget", "detach_in_rests")):
            with self._lock:
                self._duty.look(self.capture)  # a rest may have begun since
            self._end_rest()
            with self._lock:
                self._duty.look(self.capture)
                self._duty.begin(settings.overhead_budget, settings.detach_in_rests)
                self.pipeline.threshold.raise_floor(0)
        capture = self.capture
        if capture is None:
            return
        capture.settings = settings
        if old.hang_after != settings.hang_after:
            self._hang = self._new_hang_watch()
        if any(getattr(old, name) != getattr(settings, name) for name in _OF_CAPTURE):
            disabled = self.disabled
            self.pause_capture()
            if not disabled:
                self.resume_capture()

    def _new_pipeline(self) -> Pipeline:
        pipeline = Pipeline(self._limits(), emit=self._delivery.put, start_ns=self.start_ns)
        if self.capture is not None and self.capture.running:
            pipeline.marker = self.capture.marker_shape
            pipeline.occupancy = self.capture.occupancy
        return pipeline

    def add_sink(self, sink: Callable[[list[Record]], Any]) -> None:
        self._delivery.add(sink)

    def remove_sink(self, sink: Callable[[list[Record]], Any]) -> None:
        self._delivery.remove(sink)

    # --- capture ----------------------------------------------------------------------------------------------------

    def _captures(self, capture: Capture) -> None:
        self.pipeline.configure(self._limits())
        self.pipeline.occupancy = capture.occupancy
        if capture.epoch > self._epoch:
            self._epoch = capture.epoch
            self._consume()
            self.pipeline.restart_ids()
        self._attached()

    def _marks(self, capture: Capture) -> None:
        self._consume()
        self.pipeline.marker = capture.marker_shape
        for event in self._unmarked.drain():
            self._place(event, 0)
        self._attached()

    def _attached(self) -> None:
        """For the file mode: what a reader needs to know of the capture."""

    def _place(self, event: Boundary, corr: int | None) -> None:
        self.pipeline.boundary(event, corr)

    def _place_after(self, crossings: list[Any]) -> list[Any]:
        """Boundaries where the newest id was read, see :func:`taken_apart`; gives the records of those that ended."""
        rows, records = taken_apart(crossings)
        self.pipeline.boundaries_after(rows)
        return records

    def _on_buffer(self, buffer: memoryview, thread: int) -> None:
        """On the drain thread, with the buffer valid during the call."""
        began = thread_time()
        with self._lock:
            try:
                self._pause.begin()
                self._take_events()
                launches = self.pipeline.launches
                launches.wanted = self._duty.keeps
                self._read(buffer, thread)
                self._slowed_ns += launches.take()
                self._read_ns = time_ns()
            except BaseException as error:
                self._lost(f"records could not be read: {type(error).__name__}: {error}")
                if not isinstance(error, Exception):  # Ctrl-C is the program's; otherwise the next buffer may be better
                    raise
        if self._get_ident() not in self._in_rounds:
            self._drain_cpu_ns += int((thread_time() - began) * 1e9)

    def _lost(self, reason: str) -> None:
        """A buffer could not be read. One stretch for all that fail for one reason."""
        log.exception("buffer", "gpusense: a buffer of GPU records could not be read")
        last, now = self.unseen[-1] if self.unseen else None, time_ns()
        if last is not None and last.reason == reason:
            self.unseen[-1] = last._replace(end_ns=now)
        else:
            self.unseen.append(UnseenStretch(self._read_ns, now, reason))

    def _read(self, buffer: memoryview, thread: int) -> None:
        capture = self.capture
        assert capture is not None
        self._names.new_buffer(monotonic())
        self.pipeline.others_markers = capture.sharing.others_markers
        if self._hang is not None:
            names = self._names
            self._hang.read(
                buffer, capture.strides, lambda at: names.resolve(at, capture.name)[0], capture.marker_shape
            )
        self.pipeline.feed(
            buffer,
            thread,
            capture.strides,
            Names(self._names, capture.name),
            now_ns=time_ns(),
            pause=self._pause,
        )

    def own(self, owners: dict[int, Path]) -> None:
        """Nodes of CUDA graphs by id, and the blocks that captured them, before any of them is replayed."""
        with self._lock:
            known = self.pipeline.owners
            known.update(owners)
            while len(known) > MAX_OWNERS:
                del known[next(iter(known))]

    # --- the recording thread ---------------------------------------------------------------------------------------

    def tick(self, timeout_s: float = SINK_WAIT_S, lazily: bool = False) -> bool:
        """One round: attach if possible, move events into the pipeline, attribute, tell the sinks.

        ``lazily``: what is of no use yet may wait. False where another thread was in a sink for all of ``timeout_s``.
        """
        if self._lock.mine:
            return True  # a signal handler that interrupted one
        began, ident, delivery = thread_time(), self._get_ident(), self._delivery
        self._in_rounds.add(ident)
        try:
            self._round(lazily)
            handed = delivery.hand_out(timeout_s) if lazily else delivery.hand_out_on(self.elsewhere, timeout_s)
        finally:
            self._in_rounds.discard(ident)
        self._tick_cpu_ns += int((thread_time() - began) * 1e9) + delivery.take_cpu_ns()
        with self._lock:
            self._duty.look(self.capture)
            if self.pipeline.launches.graphs:
                self._duty.stay("CUDA graphs were replayed, and their next replay might fail")
            on = self._duty.step(self._tick_cpu_ns, self.pipeline.threshold, self.capture, self._slowed_ns)
        self._follow_budget(on)
        return handed

    def _round(self, lazily: bool) -> None:
        self._look_after_capture()
        self._look_for_hang()
        self.clock.look()
        if not (lazily and self._may_wait()):
            with self._lock:
                self._digest()

    def _may_wait(self) -> bool:
        """Whether what the program's threads left is of no use to anybody yet."""
        return False

    def _digest(self) -> None:
        """Under the lock."""
        self._pause.begin()
        self._take_events()
        self.pipeline.cycle(time_ns(), patience_ns=self._patience(), pause=self._pause)

    def _take_events(self) -> None:
        """As :meth:`_consume`, in parts with a pause between them."""
        for _ in range(len(self.events) // EVENTS_AT_ONCE):
            self._consume(EVENTS_AT_ONCE)
            self._pause()
        self._consume()

    def _look_for_hang(self) -> None:
        watch, capture = self._hang, self.capture
        if watch is None or capture is None or not capture.running or not watch.due(capture.ask):
            return
        with self._lock:
            watch.note()
        log.once(
            "hang",
            "gpusense: nothing has completed on the GPU for %g s although it has work; the session holds the last work "
            "of each stream and all Python stacks",
            watch.after_s,
        )
        self._keep_evidence()
        capture.flush(forced=True)  # brings the records of what runs, without an end
        self._keep_evidence()

    def _keep_evidence(self) -> None:
        """For the file mode: who sees a hang may kill the process."""

    def _patience(self) -> int | None:
        """Short where the device has done every marker: one that has not been read since is lost. None: the usual."""
        oldest = self.pipeline.attribution.waiting_since()
        if oldest is None or self.capture is None or time_ns() - oldest < DONE_PATIENCE_NS:
            return None
        return DONE_PATIENCE_NS if self.capture.markers_done() else None

    def _consume(self, most: int | None = None) -> None:
        """Moves what the program's threads left in the queue into the pipeline, at most so much. Under the lock."""
        noted = self.capture.lines() if self.capture is not None else None
        if noted:
            self._lines(noted)
        for bring in bringers[:]:
            bring()
        events = self.events
        crossings: list[Any] = []
        manual: list[Any] = []
        # What is there now: threads that add faster than this takes must not keep it here.
        for _ in range(len(events) if most is None else min(most, len(events))):
            item = events.popleft()
            kind = type(item)
            if kind is Frame or kind is tuple or (kind is list and len(item) > BOUNDARY_FIELDS):
                crossings.append(item)
                continue
            if kind is int:
                self.pipeline.attribution.lose(item)
                continue
            if crossings:  # the newest id is one of theirs
                manual += self._place_after(crossings)
                crossings = []
            if kind is list:
                self._boundary(item)
            else:
                manual.append(item)
        if crossings:
            manual += self._place_after(crossings)
        if manual:
            self._manual(manual)

    def _lines(self, rows: list[tuple[int, str]]) -> None:
        """Of synchronising calls whose records are not read yet."""
        self.pipeline.lines.add(rows)

    def _manual(self, records: Iterable[Record | Alike]) -> None:
        self.pipeline.record(records, time_ns())

    def _boundary(self, item: list[Any]) -> None:
        event = Boundary(*item)
        if event.token:
            self._place(event, None)
            return
        if event.op == OPEN:
            self.pipeline.attribution.know(event.block_id, event.parent_id, event.name)
        # With a marker, another profiler has CUPTI, or had when the block was opened.
        early = self.pipeline.marker is None and (self._unmarked.add(event) or self.capture is None)
        if not early:
            self._place(event, self.pipeline.newest_correlation + 1)

    # --- results ----------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Everything the device has finished is read and handed on."""
        deadline = monotonic() + timeout_s
        read = self._flush_sources(timeout_s)
        while True:
            if self.capture is not None and self.capture.running:
                self.capture.flush()
            handed = self.tick(max(0.0, deadline - monotonic()))
            if self.pipeline.idle:
                return read and handed
            if monotonic() >= deadline:
                return False
            sleep(0.002)

    def _flush_sources(self, timeout_s: float) -> bool:
        read = True
        for source in self.sources:
            try:
                read = source.flush(timeout_s) and read
            except BaseException as error:  # noqa: PERF203 - a source never reaches the program
                if is_the_programs(error) and not self.on_own_thread():
                    raise
                self.sources = tuple(known for known in self.sources if known is not source)
                log.exception(f"source {source!r}", "gpusense: a source raised and was removed")
        return read

    def settle(self, block: Any, timeout_s: float) -> bool:
        """Everything launched inside ``block`` has finished and been read."""
        deadline = monotonic() + timeout_s
        if not self.synchronise(timeout_s):
            return False
        return self.flush(max(0.0, deadline - monotonic()))

    def block_totals(self, block: Any) -> BlockTotals | None:
        with self._lock:
            return self.pipeline.totals(block.block_id)

    def counters(self) -> Counters:
        counters = self.pipeline.counters()
        extra = self.capture.losses() if self.capture is not None else {}
        return counters._replace(sink_errors=self._delivery.errors, **extra, **self.left_out())

    def meta(self) -> dict[str, Any]:
        """The ``meta`` of a session, as documented there."""
        from .. import __version__

        settings, capture = self.settings, self.capture
        rank, world = rank_and_world(os.environ)
        return {
            "version": __version__,
            "pid": os.getpid(),
            "start_ns": self.start_ns,
            "end_ns": self._end_ns or time_ns(),
            "threshold_ns": settings.threshold_ns,
            "effective_threshold_ns": self.pipeline.threshold.highest_ns,
            "trace_all": settings.trace_all,
            "mode": self.mode,
            "rank": rank,
            "world_size": world,
            "kinds": list(settings.kinds),
            "only_devices": None if settings.devices is None else list(settings.devices),
            "backends": capture.versions() if capture is not None else {},
            "capture": self.status(),
            "clock_steps": list(self.clock.steps),
            **({"hang": self._hang.found} if self._hang is not None and self._hang.found else {}),
            "sources": {source.name: source.status() for source in self.sources},
            "overhead": {
                "drain_cpu_ns": self._drain_cpu_ns,
                "thread_cpu_ns": self._tick_cpu_ns,
                "thread_s": self.spent_s,
                **self._duty.facts(self._end_ns or time_ns(), self.pipeline.threshold),
            },
        }

    def samples(self) -> list[Any]:
        """Device metrics of this session so far, from the monitor that runs in this process."""
        source = self.metrics_source()
        return list(source.history((time_ns() - self.start_ns) / 1e9)) if source is not None else []

    def session(self) -> Any:
        from ..session import Session

        with self._lock:
            records = list(self.pipeline.kept)
            aggregates, busy = self.pipeline.aggregates(), self.pipeline.busy()
        counters = self.counters()
        return Session(
            meta=self.meta(),
            devices=self.devices(),
            records=records,
            aggregates=aggregates,
            metrics=self.samples(),
            busy=busy,
            unseen=self.unseen_stretches(),
            counters=counters,
        )

    def reset(self) -> None:
        with self._lock:
            self._consume()
            old, self.start_ns = self.pipeline, time_ns()
            self.pipeline = self._new_pipeline()
            self.pipeline.go_on_from(old)
            self.unseen.clear()

    def close(self) -> None:
        """Last flush; then capture ends. The results stay readable."""
        self.end_capture()
        self.end_results()

    def end_capture(self) -> None:
        """The part that asks others: sources, CUPTI. May hang where they do."""
        self._flush_sources(1.0)
        super().end_capture()

    def end_results(self, deliver: bool = True) -> None:
        """The part that is ours alone, but for the sinks. Without ``deliver``, time is short and nothing is decided."""
        self._mark_no_more()
        self.armed = False
        if not self._lock.acquire(timeout=0.5):
            return
        try:
            self._consume()
            if deliver:
                self.pipeline.cycle(time_ns(), final=True)
            elif self.capture is not None:
                self.unseen.append(UnseenStretch(time_ns(), None, "capture did not end in time as the program ended"))
        finally:
            self._lock.release()
        self._end_ns = self._end_ns or time_ns()
        if deliver:
            self._delivery.hand_out(SINK_WAIT_S)

    def after_fork_in_child(self) -> None:
        self.forget_capture_in_child()
        self.events = deque(maxlen=0)  # nobody reads it here: blocks that were open at the fork end into nothing
        self._delivery.forget_in_child()
        self.sources = ()


def rank_and_world(environ: Any) -> tuple[int | None, int | None]:
    """Rank and world size as launchers set them (torchrun, Open MPI, Slurm); None outside one."""
    for rank_name, world_name in (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        rank, world = environ.get(rank_name, ""), environ.get(world_name, "")
        if rank.isdigit() and world.isdigit():
            return int(rank), int(world)
    return None, None
