"""Joins capture, pipeline and sinks of one tracer; everything here runs on gpusense's own threads but the queues.

Threads of the program only append to ``events`` (a deque: atomic). The recording thread calls :meth:`Recorder.tick`;
CUPTI's buffers arrive on the broker's drain thread. One lock serialises the two; sinks are called without it.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic, sleep, thread_time, time_ns
from typing import Any

from . import _log, _native
from ._attribution import CLOSE, OPEN, Boundary
from ._budget import Budget
from ._capture import Capture
from ._clock import Anchor
from ._config import Settings
from ._hang import HangWatch
from ._names_cache import NameCache
from ._pipeline import Limits, Pipeline
from ._records import Counters, DeviceInfo, Record, UnseenStretch
from ._tally import BlockTotals

BUDGET_REASON = "overhead budget"
MAX_UNSEEN = 1_000  # stretches; later ones of the overhead budget become one

#: Between two slices of decoding, so that the program's threads get the GIL.
PAUSE_S = 0.0001

TICK_S = 0.1
DONE_PATIENCE_NS = 1_500_000_000
FIRST_WAIT_S = 0.005


class Recorder:
    """Live mode: buffers are decoded as they come."""

    mode = "live"

    def __init__(self, settings: Settings, capture: Capture | None) -> None:
        self.settings = settings
        self.capture = capture
        self.absent = "no CUDA device or driver is there"  # why, where there is no capture
        self.events: deque[Any] = deque()
        self.marker: Callable[[int], Any] | None = None
        self.armed = capture is not None
        self.wake: Callable[[], None] = lambda: None
        self.metrics_source: Callable[[], Any] = lambda: None
        self.spent_s = 0.0
        self.start_ns = time_ns()
        self.unseen: list[UnseenStretch] = []
        self.clock = Anchor()
        self.sources: tuple[Any, ...] = ()  # what else records here: ``name``, ``flush(timeout_s)``, ``status()``
        self._sinks: list[Callable[[list[Record]], Any]] = []
        self._sink_errors = 0
        self._outbox: list[Record] = []
        self.elsewhere: Callable[[Callable[[], None]], bool] = lambda action: False
        self._lock = _native.OwnedLock()
        self._attaching = _native.OwnedLock()
        self._delivering = _native.OwnedLock()
        self._unmarked: dict[int, Boundary] = {}  # blocks opened while no capture was running
        self._names = NameCache()
        self._last_poke = 0.0
        self._read_ns = self.start_ns
        self._drain_cpu_ns = self._tick_cpu_ns = 0
        self.budget: Budget | None = None
        self._off_since: int | None = None
        self._off_ns = self._budget_since = 0
        self._end_ns: int | None = None
        self.pipeline = self._new_pipeline()
        self._hang = self._new_hang_watch()
        self._set_budget()

    def _set_budget(self) -> None:
        share = self.settings.overhead_budget
        self._off_ns, self._budget_since = 0, time_ns()
        self.budget = Budget(share, self._budget_since) if share is not None else None
        self.pipeline.threshold.raise_floor(0)

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
        )

    def reconfigure(self, settings: Settings) -> None:
        """The next records follow ``settings``; capture begins anew where that is needed."""
        old, self.settings = self.settings, settings
        with self._lock:
            self._consume()
            self.pipeline.configure(self._limits())
        if old.overhead_budget != settings.overhead_budget:
            self._observe(True)
            self._set_budget()
        capture = self.capture
        if capture is None:
            return
        capture.settings = settings
        if old.hang_after != settings.hang_after:
            self._hang = self._new_hang_watch()
        if any(getattr(old, name) != getattr(settings, name) for name in ("kinds", "buffer_size", "buffers")):
            self.pause_capture()
            self.resume_capture()

    def _new_pipeline(self) -> Pipeline:
        pipeline = Pipeline(self._limits(), emit=self._outbox_extend, start_ns=self.start_ns)
        if self.capture is not None and self.capture.running:
            pipeline.marker = self.capture.marker_shape
            pipeline.occupancy = self.capture.occupancy
        return pipeline

    def _outbox_extend(self, records: list[Record]) -> None:
        if self._sinks:
            self._outbox.extend(records)

    # --- from the program's threads ---------------------------------------------------------------------------------

    def poke(self) -> None:
        """A block was opened while capture waits for CUDA (look at most every 5 ms) or for a context (look now)."""
        now = monotonic()
        capture = self.capture
        # Once capture runs only a context is missed, and the next launches need its marker.
        soon = capture is not None and capture.running
        if (soon or now - self._last_poke > 0.005) and not self._lock.mine:
            self._last_poke = now
            self._look_after_capture()

    def add_sink(self, sink: Callable[[list[Record]], Any]) -> None:
        with self._lock:
            if sink not in self._sinks:
                self._sinks.append(sink)

    def remove_sink(self, sink: Callable[[list[Record]], Any]) -> None:
        with self._lock:
            self._sinks = [known for known in self._sinks if known != sink]

    # --- capture ----------------------------------------------------------------------------------------------------

    def _look_after_capture(self) -> None:
        """Begins capture if CUDA is live by now; notices that another profiler came or went. Raises nothing."""
        capture = self.capture
        if capture is None or self._attaching.mine or not self._attaching.acquire(timeout=0):
            return  # another thread is at it
        try:
            if self.armed:
                self._try(capture)
            else:
                self._watch(capture)
        except Exception as error:  # noqa: BLE001 - this may be a thread of the program
            capture.give_up(f"{type(error).__name__}: {error}")
            self.armed, self.marker = False, None
            _log.exception("capture", "gpusense: capture failed and is off")
        finally:
            self._attaching.release()

    def _try(self, capture: Capture) -> None:
        if not capture.running:
            stretch = capture.try_attach(self._on_buffer)
            if stretch is None:
                self.armed = capture.waiting
                return
            with self._lock:
                if stretch.reason:
                    self.unseen.append(stretch)
                self.pipeline.occupancy = capture.occupancy
                self._attached()
        if not capture.prepare_marker():
            return  # still armed: blocks are marked once there is a context
        with self._lock:
            self._consume()
            self.armed = False
            self.pipeline.marker = capture.marker_shape
            for event in self._unmarked.values():
                self._place(event, 0)
            self._unmarked.clear()
            self._attached()
            self.marker = capture.marker

    def _watch(self, capture: Capture) -> None:
        change = capture.watch()
        if change is not None:
            self.unseen.append(change)
        # While another profiler has CUPTI our markers would only be noise in its records.
        self.marker = capture.marker if capture.running else None

    def _attached(self) -> None:
        """For the file mode: what a reader needs to know of the capture."""

    def _place(self, event: Boundary, corr: int | None) -> None:
        self.pipeline.boundary(event, corr)

    def _on_buffer(self, buffer: memoryview, thread: int) -> None:
        """On the drain thread, with the buffer valid during the call."""
        began = thread_time()
        with self._lock:
            try:
                self._consume()
                self._read(buffer, thread)
                self._read_ns = time_ns()
            except Exception as error:  # noqa: BLE001 - the next buffer may be better
                self._lost(f"records could not be read: {type(error).__name__}: {error}")
        self._drain_cpu_ns += int((thread_time() - began) * 1e9)

    def _lost(self, reason: str) -> None:
        """A buffer could not be read. One stretch for all that fail for one reason."""
        _log.exception("buffer", "gpusense: a buffer of GPU records could not be read")
        last, now = self.unseen[-1] if self.unseen else None, time_ns()
        if last is not None and last.reason == reason:
            self.unseen[-1] = last._replace(end_ns=now)
        else:
            self.unseen.append(UnseenStretch(self._read_ns, now, reason))

    def _read(self, buffer: memoryview, thread: int) -> None:
        capture = self.capture
        assert capture is not None
        self._names.new_buffer(monotonic())
        if self._hang is not None:
            names = self._names
            self._hang.read(
                buffer, capture.strides, lambda at: names.resolve(at, capture.name)[0], capture.marker_shape
            )
        self.pipeline.feed(
            buffer,
            thread,
            capture.strides,
            lambda pointer: self._names.resolve(pointer, capture.name),
            now_ns=time_ns(),
            pause=_pause,
        )

    def pace(self, waited_s: float) -> float:
        """Seconds until the next tick: short while CUDA is being initialised, growing while nothing points to it."""
        if not self.armed or self.capture is None:
            return TICK_S
        return min(waited_s * (1.2 if self.capture.near else 2), 4 * FIRST_WAIT_S if self.capture.near else TICK_S)

    # --- the recording thread ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One round: attach if possible, move events into the pipeline, attribute, tell the sinks."""
        if self._lock.mine:
            return  # a signal handler that interrupted one
        began = thread_time()
        self._round()
        self._tick_cpu_ns += int((thread_time() - began) * 1e9)
        if self.budget is not None:
            self._keep_budget(self.budget)

    def _keep_budget(self, budget: Budget) -> None:
        spent = self._tick_cpu_ns + (self.capture.drain_cpu_ns() if self.capture is not None else 0)
        on = budget.step(time_ns(), spent, self.pipeline.threshold.kept)
        with self._lock:
            self.pipeline.threshold.raise_floor(budget.level)
        self._observe(on)

    def _observe(self, on: bool) -> None:
        """Capture on, or off for a while: then the stretch is told as not seen."""
        capture = self.capture
        if capture is None or on == (self._off_since is None):
            return
        if on:
            capture.duty(True)
            stretch = UnseenStretch(self._off_since or 0, time_ns(), BUDGET_REASON)
            self._off_ns += (stretch.end_ns or 0) - stretch.start_ns
            self._unseen_for_budget(stretch)
            self._off_since = None
        elif capture.running:
            capture.flush()
            if capture.duty(False):
                self._off_since = time_ns()

    def _unseen_for_budget(self, stretch: UnseenStretch) -> None:
        if len(self.unseen) >= MAX_UNSEEN and self.unseen[-1].reason.startswith(BUDGET_REASON):
            first = self.unseen.pop().start_ns
            stretch = UnseenStretch(first, stretch.end_ns, f"{BUDGET_REASON}; capture was on for a part of this time")
        self.unseen.append(stretch)

    def _round(self) -> None:
        self._look_after_capture()
        self._look_for_hang()
        self.clock.look()
        with self._lock:
            self._consume()
            self.pipeline.cycle(time_ns(), patience_ns=self._patience())
            outbox, self._outbox = self._outbox, []
            sinks = list(self._sinks)
        if outbox:
            self._deliver(sinks, outbox)

    def _look_for_hang(self) -> None:
        watch, capture = self._hang, self.capture
        if watch is None or capture is None or not capture.running or not watch.due(capture.ask):
            return
        with self._lock:
            watch.note()
        _log.once(
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

    def _deliver(self, sinks: list[Callable[[list[Record]], Any]], records: list[Record]) -> None:
        """One thread at a time, in order; a sink that flushes gets what that brings inside its call."""
        nested = self._delivering.mine
        if not nested:
            self._delivering.acquire()
        try:
            for sink in sinks:
                self._give(sink, records)
        finally:
            if not nested:
                self._delivering.release()

    def _give(self, sink: Callable[[list[Record]], Any], records: list[Record]) -> None:
        try:
            sink(list(records))
        except (Exception, SystemExit):  # noqa: BLE001 - a sink never reaches the program
            self._sink_errors += 1
            self.remove_sink(sink)
            _log.exception(f"sink {sink!r}", "gpusense: a sink raised and was removed")

    def _patience(self) -> int | None:
        """Short where the device has done every marker: one that has not been read since is lost. None: the usual."""
        oldest = self.pipeline.attribution.waiting_since()
        if oldest is None or self.capture is None or time_ns() - oldest < DONE_PATIENCE_NS:
            return None
        return DONE_PATIENCE_NS if self.capture.markers_done() else None

    def _consume(self) -> None:
        """Moves what the program's threads left in the queue into the pipeline. Under the lock."""
        events, manual = self.events, []
        # What is there now: threads that add faster than this takes must not keep it here.
        for _ in range(len(events)):
            item = events.popleft()
            if type(item) is list:
                self._boundary(item)
            elif type(item) is int:
                self.pipeline.attribution.lose(item)
            else:
                manual.append(item)
        if manual:
            self._manual(manual)

    def _manual(self, records: Iterable[Record]) -> None:
        self.pipeline.record(records, time_ns())

    def _boundary(self, item: list[Any]) -> None:
        event = Boundary(*item)
        if event.token:
            self._place(event, None)
        elif event.op == OPEN:
            self.pipeline.attribution.know(event.block_id, event.parent_id, event.name)
            if self.pipeline.marker is not None:  # another profiler has CUPTI, or had when the block was opened
                self._place(event, self.pipeline.newest_correlation + 1)
            else:
                self._unmarked[event.block_id] = event
        elif self._unmarked.pop(event.block_id, None) is None and self.capture is not None:
            self._place(event, self.pipeline.newest_correlation + 1)

    # --- results ----------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Everything the device has finished is read and handed on."""
        deadline = monotonic() + timeout_s
        read = self._flush_sources(timeout_s)
        while True:
            if self.capture is not None and self.capture.running:
                self.capture.flush()
            self.tick()
            if self.pipeline.idle:
                return read
            if monotonic() >= deadline:
                return False
            sleep(0.002)

    def _flush_sources(self, timeout_s: float) -> bool:
        read = True
        for source in self.sources:
            try:
                read = source.flush(timeout_s) and read
            except Exception:  # noqa: BLE001, PERF203 - a source never reaches the program
                self.sources = tuple(known for known in self.sources if known is not source)
                _log.exception(f"source {source!r}", "gpusense: a source raised and was removed")
        return read

    def settle(self, block: Any, timeout_s: float) -> bool:
        """Everything launched inside ``block`` has finished and been read."""
        deadline = monotonic() + timeout_s
        if not self.synchronise(timeout_s):
            return False
        return self.flush(max(0.0, deadline - monotonic()))

    def synchronise(self, timeout_s: float) -> bool:
        """True once what the device was given has finished; at once where nothing is captured."""
        capture = self.capture
        return capture is None or not capture.running or capture.synchronise(timeout_s, self.elsewhere)

    def block_totals(self, block: Any) -> BlockTotals | None:
        with self._lock:
            return self.pipeline.totals(block.block_id)

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self.capture.devices() if self.capture is not None else ()

    def counters(self) -> Counters:
        counters = self.pipeline.counters()
        extra = self.capture.losses() if self.capture is not None else {}
        return counters._replace(sink_errors=self._sink_errors, **extra)

    def meta(self) -> dict[str, Any]:
        """The ``meta`` of a session, as documented there."""
        from . import __version__

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
            "backends": capture.versions() if capture is not None else {},
            "capture": self.status(),
            "clock_steps": list(self.clock.steps),
            **({"hang": self._hang.found} if self._hang is not None and self._hang.found else {}),
            "sources": {source.name: source.status() for source in self.sources},
            "overhead": self._overhead(),
        }

    def _overhead(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"drain_cpu_ns": self._drain_cpu_ns, "thread_s": self.spent_s}
        budget = self.budget
        if budget is not None:
            now = self._end_ns or time_ns()
            off = self._off_ns + (now - self._off_since if self._off_since is not None else 0)
            facts.update(
                budget=budget.share,
                share=budget.cost,
                observed=1 - off / max(1, now - self._budget_since),
                threshold_ns=self.pipeline.threshold.effective_ns,
            )
        return facts

    def status(self) -> dict[str, Any]:
        if self.capture is None:
            return {"state": "unavailable", "reason": self.absent}
        return self.capture.status()

    def samples(self) -> list[Any]:
        """Device metrics of this session so far, from the monitor that runs in this process."""
        source = self.metrics_source()
        return list(source.history((time_ns() - self.start_ns) / 1e9)) if source is not None else []

    def session(self) -> Any:
        from .session import Session

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

    def unseen_stretches(self) -> list[UnseenStretch]:
        """Also the one that lasts, with no end."""
        lasting = self.capture.unseen_now() if self.capture is not None else None
        return [*self.unseen, lasting] if lasting is not None else list(self.unseen)

    def reset(self) -> None:
        with self._lock:
            self._consume()
            old, self.start_ns = self.pipeline, time_ns()
            self.pipeline = self._new_pipeline()
            self.pipeline.go_on_from(old)
            self.unseen.clear()

    def pause_capture(self) -> None:
        """Ends capture for now; :meth:`resume_capture` begins it again."""
        self._observe(True)
        self.flush(0.5)
        with self._attaching:
            self.marker = None
            self.armed = False
            if self.capture is not None and self.capture.attached:
                self._stop(self.capture)
                self.unseen.append(UnseenStretch(time_ns(), None, "recording was disabled"))

    def resume_capture(self) -> None:
        if self.capture is not None and self.capture.rearm():
            self.armed = True
            if self.unseen and self.unseen[-1].end_ns is None:
                self.unseen[-1] = self.unseen[-1]._replace(end_ns=time_ns())
            self.wake()

    def _stop(self, capture: Capture) -> None:
        """What is finished is read first. Where another profiler has CUPTI, the stretch without it ends here."""
        lasting = capture.unseen_now()
        if lasting is not None:
            self.unseen.append(lasting._replace(end_ns=time_ns()))
        capture.stop()

    def close(self) -> None:
        """Last flush; then capture ends. The results stay readable."""
        self.end_capture()
        self.end_results()

    def end_capture(self) -> None:
        """The part that asks others: sources, CUPTI. May hang where they do."""
        capture = self.capture
        self._flush_sources(1.0)
        with self._attaching:
            if capture is not None and capture.waiting and self._end_ns is None:
                self._never_captured(capture)
            self.marker = None
            self.armed = False
            if capture is not None and capture.attached:
                capture.flush()
                self._stop(capture)

    def _never_captured(self, capture: Capture) -> None:
        lasting = capture.unseen_now()
        if lasting is not None:
            self.unseen.append(lasting._replace(end_ns=time_ns()))
        elif capture.missed():
            self.unseen.append(UnseenStretch(self.start_ns, time_ns(), "the program ended before capture could begin"))

    def end_results(self, deliver: bool = True) -> None:
        """The part that is ours alone, but for the sinks. Without ``deliver``, time is short and nothing is decided."""
        self.marker, self.armed = None, False
        if not self._lock.acquire(timeout=0.5):
            return
        try:
            self._consume()
            if deliver:
                self.pipeline.cycle(time_ns(), final=True)
            elif self.capture is not None:
                self.unseen.append(UnseenStretch(time_ns(), None, "capture did not end in time as the program ended"))
            outbox, self._outbox = self._outbox, []
            sinks = list(self._sinks)
        finally:
            self._lock.release()
        self._end_ns = self._end_ns or time_ns()
        if outbox and deliver:
            self._deliver(sinks, outbox)

    def after_fork_in_child(self) -> None:
        self._lock = _native.OwnedLock()
        self._attaching = _native.OwnedLock()
        self._delivering = _native.OwnedLock()
        self.marker = None
        self.armed = False
        self.events = deque(maxlen=0)  # nobody reads it here: blocks that were open at the fork end into nothing
        self._sinks, self.sources = [], ()
        if self.capture is not None:
            self.capture.forget_in_child()


def _pause() -> None:
    sleep(PAUSE_S)


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


__all__ = ["CLOSE", "Recorder", "rank_and_world"]
