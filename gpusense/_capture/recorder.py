"""One tracer's recorder: when capture is on, what is read from the queue and from CUPTI, and what the session knows.

Threads of the program only append to ``events`` (a deque: atomic), items of the kinds in ``boundaries``. The
recording thread calls :meth:`Recorder.tick`; CUPTI's buffers arrive on the broker's drain thread in
:meth:`Recorder.on_buffer`. One lock serialises the two; sinks are called without it. What becomes of all that is the
:class:`~store.Store`'s to say: decoded at once, or written to a file.
"""

import os
import sys
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep, thread_time, time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from .._aggregation.block_totals import BlockTotals
from .._aggregation.same_kernels import SameKernels
from .._attribution.before_capture import Unmarked
from .._attribution.boundaries import CLOSED, LAST_PLACED, LOST, RECORD, Boundary, PlacedItem, boundary_of, record_of
from .._attribution.open_blocks import end_frames
from .._records.records import BUDGET, Counters, DeviceInfo, Path, Record, UnseenInterval
from .._runtime import log, threads
from .._runtime.clock import Anchor
from .._runtime.config import Settings
from .attachment import Capture
from .budget import BudgetKeeper
from .hang import HangWatch
from .live_store import LiveStore
from .sinks import Sinks, is_the_programs
from .store import Store
from .thread_names import ThreadNames
from .worker import FIRST_WAIT_S, Pauses

if TYPE_CHECKING:
    from ..session import Session

TICK_S = 0.1
#: Once nothing has come for so long, cycles come this seldom: while CUDA may come, whose first work is unseen until the
#: next, and while capture runs, where the drain thread looks for work and rings (``broker.REST_S``).
QUIET_S = 5.0
REST_ARMED_S, REST_S = 0.8, 2.0
#: The most that the one marker makes by which capture notices other profilers (``watch``): that is no work.
CANARY_BYTES = 256
MAX_WAIT_S = 1.0  # that blocks wait, all together, while another thread attaches: what they launch is to be seen
RETURN_WAIT_S = 0.2  # the same for each new beginning, or their work would come to the blocks around them
EVENTS_AT_ONCE = 64  # without a pause
#: That a cycle waits for another thread which is in a sink.
SINK_WAIT_S = 0.5
#: Settings for which capture has to begin anew.
_OF_CAPTURE = ("kinds", "buffer_size", "buffers", "line_packages")


class Owner(NamedTuple):
    """What a recorder asks of the tracer that it records for; the defaults are of a recorder alone."""

    wake: Callable[[], None] = lambda: None  # has the next cycle begin now
    elsewhere: Callable[[Callable[[], None]], bool] = lambda _: False  # gpusense's thread runs it, if there is one
    on_own_thread: Callable[[], bool] = lambda: False  # whether the caller is that thread
    metrics: Callable[[], Any] = lambda: None  # the monitor whose samples belong to the session
    left_out: Callable[[], dict[str, int]] = dict  # what of the program's is in no record, as counters


class Recorder:
    """Any thread may call its methods, but where they say otherwise.

    ``marker`` marks a block's boundary, None while that is not possible; ``newest``, where it is not None then, gives
    the newest correlation id in its place; ``armed`` while it may become possible any moment, so that blocks ask
    (:meth:`poke`), and while the threads rest, so that the first block wakes them.
    """

    def __init__(
        self,
        settings: Settings,
        capture: Capture | None,
        store: Callable[[Settings, Capture | None, Sinks, int], Store] = LiveStore,
    ) -> None:
        self.settings = settings
        self.capture = capture
        self.owner = Owner()
        self.absent = "no CUDA device or driver is there"  # why, where there is no capture
        self.events: deque[Any] = deque()
        self.sources: tuple[Any, ...] = ()  # what else records here: ``name``, ``flush(timeout_s)``, ``status()``
        self.sinks = Sinks(lambda: self.owner.on_own_thread())
        self.clock = Anchor()
        self.thread_names = ThreadNames()
        self.start_ns = time_ns()
        self.store = store(settings, capture, self.sinks, self.start_ns)
        self.unseen: list[UnseenInterval] = []
        self.spent_s = 0.0
        self.marker: Callable[[int], Any] | None = None
        self.newest: Callable[[], int] | None = None
        self.armed = capture is not None
        self.disabled = False  # between pause_capture and resume_capture
        self._lock = threads.OwnedLock()  # of everything that is recorded
        self._attaching = threads.OwnedLock()
        self._last_poke = 0.0
        self._signs = False, 0  # at the last cycle: whether CUDA is near, and how many modules there are
        self._rests = False  # ``armed`` only so that the next block ends the rest
        self._came, self._quiet_s = True, 0.0  # since the last cycle something came; for how long nothing did
        self._patience_s = MAX_WAIT_S
        self._end_ns: int | None = None
        self._marked = False  # whether blocks were marked once: else nothing was launched that we saw
        self._unmarked = Unmarked()  # boundaries until then
        self._pause = Pauses()
        self._read_ns = self.start_ns
        self._drain_cpu_ns = self._tick_cpu_ns = 0
        self._get_ident = threads.thread_id()
        self._in_cycles: set[int] = set()  # threads that are in a cycle, whose time is the cycle's
        self._slowed_ns = 0  # of the program's launches, for the budget
        self._hang = self._new_hang_watch()
        self._budget = BudgetKeeper(self.unseen)
        self._budget.begin(settings.overhead_budget, settings.detach_in_pauses)
        self.store.note(self)

    def belong_to(self, owner: Owner) -> None:
        """Records for ``owner`` from now on."""
        self.owner = owner

    def _new_hang_watch(self) -> HangWatch | None:
        after_s = self.settings.hang_after
        return HangWatch(after_s) if after_s is not None and self.capture is not None else None

    # --- settings ---------------------------------------------------------------------------------------------------

    def reconfigure(self, settings: Settings) -> None:
        """The next records follow ``settings``; capture begins anew where that is needed."""
        old, self.settings = self.settings, settings
        with self._lock:
            self._consume()
            self.store.flush()
            self.store.configure(settings)
        if any(getattr(old, name) != getattr(settings, name) for name in ("overhead_budget", "detach_in_pauses")):
            with self._lock:
                self._budget.note(self.capture)  # a pause may have begun since
            self._end_pause()
            with self._lock:
                self._budget.note(self.capture)
                self._budget.begin(settings.overhead_budget, settings.detach_in_pauses)
                self.store.threshold.raise_floor(0)
        capture = self.capture
        if capture is not None:
            capture.settings = settings
            if old.hang_after != settings.hang_after:
                self._hang = self._new_hang_watch()
            if any(getattr(old, name) != getattr(settings, name) for name in _OF_CAPTURE):
                disabled = self.disabled
                self.pause_capture()
                if not disabled:
                    self.resume_capture()
        self.store.note(self)

    def reset(self) -> None:
        """Forgets what was recorded so far; open blocks stay open."""
        with self._lock:
            self._consume()
            self.store.flush()
            self.start_ns = time_ns()
            self.store.reset(self.start_ns)
            self.unseen.clear()
        self.store.note(self)

    def own(self, owners: dict[int, Path]) -> None:
        """Nodes of CUDA graphs by id, and the blocks that captured them, before any of them is replayed."""
        with self._lock:
            self.store.own(owners)

    # --- begin and watch --------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """A block was opened while capture waits for CUDA (look at most every 5 ms) or for a context (look now)."""
        if self._rests:
            self._end_rest()
            return
        now = monotonic()
        capture = self.capture
        # Once capture runs only a context is missed, and the next launches need its marker.
        soon = capture is not None and capture.running
        if (soon or now - self._last_poke > 0.005) and not self._lock.mine:
            self._last_poke, self._came = now, True
            self._look_after_capture(self._patience_s)
            self._patience_s = max(0.0, self._patience_s - (monotonic() - now))

    def pace(self, waited_s: float) -> float:
        """Seconds until the next cycle: short while CUDA is being initialised, growing while nothing points to it, long
        once nothing has come for a while."""
        capture = self.capture
        armed = self.armed and capture is not None and not self._rests
        near = armed and capture is not None and capture.near
        modules = len(sys.modules)
        if self._came or (near, modules) != self._signs:  # a program that imports something is about to begin
            self._came, self._signs, self._quiet_s = False, (near, modules), 0.0
            waited_s = min(waited_s, TICK_S)
        else:
            self._quiet_s += waited_s
        if self._quiet_s >= QUIET_S and not self._budget.keeps and self._hang is None:
            if not armed:
                self.armed = self._rests = True
            return min(waited_s * 1.5, REST_S if capture is not None and capture.running else REST_ARMED_S)
        self._end_rest()
        if not armed:
            return TICK_S
        return min(waited_s * (1.2 if near else 2), 4 * FIRST_WAIT_S if near else TICK_S)

    def _end_rest(self) -> None:
        """What may come next is read as soon as ever."""
        if self._rests:
            self.armed = self._rests = False
            self._came = True
            self.owner.wake()
            if self.capture is not None:
                self.capture.rouse()

    def _look_after_capture(self, patience_s: float = 0.0) -> None:
        """Begins capture if CUDA is live by now; notices that another profiler came or went. Raises nothing."""
        capture = self.capture
        if capture is None or self._attaching.mine or not self._attaching.acquire(timeout=patience_s):
            return  # another thread is at it
        try:
            if self.armed and not self._rests:
                self._try(capture)
            else:
                self._watch(capture)
        except Exception as error:  # noqa: BLE001 - this may be a thread of the program
            capture.give_up(f"{type(error).__name__}: {error}")
            self.armed = False
            self._mark_no_more()
            log.exception("capture", "gpusense: capture failed and is off")
        finally:
            self._attaching.release()

    def _try(self, capture: Capture) -> None:
        if not capture.running:
            unseen = capture.try_attach(self.on_buffer)
            if unseen is None:
                self.armed = capture.waiting
                return
            with self._lock:
                if unseen.reason:
                    self._add_unseen(unseen)
                self._consume()
                self.store.attached(capture)
        if not capture.prepare_marker():
            return  # still armed: blocks are marked once there is a context
        with self._lock:
            self._consume()
            self._marked = True
            for event in self._unmarked.drain():
                self.store.boundary(event, early=True)
            self.store.attached(capture)
            self.armed = False
            self._mark_with(capture)

    def _add_unseen(self, unseen: UnseenInterval) -> None:
        """Of a pause the second part, without CUPTI, continues the first."""
        last = self.unseen[-1] if self.unseen else None
        if last is not None and unseen.reason == BUDGET and last.reason.startswith(BUDGET):
            self.unseen[-1] = last._replace(end_ns=unseen.end_ns)
        else:
            self.unseen.append(unseen)

    def _watch(self, capture: Capture) -> None:
        change = capture.watch()
        if change is not None:
            self.unseen.append(change)
        # While another profiler has CUPTI our markers would only be noise in its records.
        self._mark_with(capture if capture.running else None)

    def _mark_with(self, capture: Capture | None) -> None:
        if capture is None:
            self._mark_no_more()
            return
        if capture.newest is not self.newest:
            self._mark_no_more()  # never the new marker with the old way of reading
            self.newest = capture.newest
        self.marker = capture.marker

    def _mark_no_more(self) -> None:
        if self.marker is not None:
            self.marker = None
            end_frames()

    # --- pauses of the budget -----------------------------------------------------------------------------------------

    def _follow_budget(self, on: bool) -> None:
        """Capture on, or off for a while, as a cycle has decided."""
        budget, capture = self._budget, self.capture
        if on or capture is None:
            self._end_pause()
            return
        if not budget.outside:
            budget.switch(False, capture)
            if capture.running and budget.leaves_now(capture):
                self._pause_outside(capture)
        if not budget.keeps:  # the program has ended the budget meanwhile
            capture.sharing.pause_kinds(False)
            self._end_pause()

    def _pause_outside(self, capture: Capture) -> None:
        """The pause goes on with CUPTI out of the process."""
        capture.flush()
        with self._attaching:
            if self.disabled or self._budget.outside or not capture.running:
                return  # another thread was faster
            self._mark_no_more()
            self.armed = False
            refused = capture.pause_outside(BUDGET)
            with self._lock:
                self._budget.note(capture)
                self._budget.went_out(refused)

    def _end_pause(self) -> None:
        """Where a pause of the budget lasts, it ends now."""
        budget, capture = self._budget, self.capture
        if not budget.outside:
            budget.switch(True, capture)
            return
        with self._attaching:
            back = budget.outside and capture is not None and capture.rearm(budget.came_back())
            if back:
                self._arm()
        if back:
            self.owner.wake()

    def _arm(self) -> None:
        self._rests = False
        self.armed, self._patience_s = True, max(self._patience_s, RETURN_WAIT_S)

    # --- pause and end ----------------------------------------------------------------------------------------------

    def pause_capture(self) -> None:
        """Ends capture for now; :meth:`resume_capture` begins it again."""
        if not self._budget.outside:
            self._budget.switch(True, self.capture)
        self.flush(0.5)
        with self._attaching:
            outside = self._budget.outside
            self._mark_no_more()
            self.armed = False
            self.disabled = True
            if self.capture is not None and (self.capture.attached or outside):
                self._stop(self.capture)
                with self._lock:
                    if outside:
                        self._add_unseen(UnseenInterval(self._budget.came_back(), time_ns(), BUDGET))
                    self._budget.note(self.capture)
                self.unseen.append(UnseenInterval(time_ns(), None, "recording was disabled"))

    def resume_capture(self) -> None:
        self.disabled = False
        # Also where it was disabled before it had begun.
        if self.capture is not None and (self.capture.rearm() or self.capture.waiting):
            self._arm()
            if self.unseen and self.unseen[-1].end_ns is None:
                self.unseen[-1] = self.unseen[-1]._replace(end_ns=time_ns())
            self.owner.wake()

    def end_capture(self) -> None:
        """Capture ends for good. Asks others, sources and CUPTI, and may hang where they do."""
        self._flush_sources(1.0)
        capture = self.capture
        with self._attaching:
            if capture is not None and capture.waiting and self._end_ns is None:
                self._never_captured(capture)
            self._mark_no_more()
            self.armed = False
            if capture is not None and capture.attached:
                capture.flush()
                self._stop(capture)
                if self._lock.acquire(timeout=0.5):
                    try:
                        self._budget.note(capture)
                    finally:
                        self._lock.release()

    def _stop(self, capture: Capture) -> None:
        """What is finished is read first. Where another profiler has CUPTI, the time without it ends here."""
        lasting = capture.unseen_now()
        if lasting is not None:
            self.unseen.append(lasting._replace(end_ns=time_ns()))
        capture.stop()

    def _never_captured(self, capture: Capture) -> None:
        lasting = capture.unseen_now()
        if lasting is not None:
            self.unseen.append(lasting._replace(end_ns=time_ns()))
        elif capture.missed():
            self.unseen.append(UnseenInterval(self.start_ns, time_ns(), "the program ended before capture could begin"))

    # --- buffers ----------------------------------------------------------------------------------------------------

    def on_buffer(self, view: memoryview, thread: int) -> None:
        """A buffer of ``thread`` (0: of all), valid during the call. On the drain thread."""
        began = thread_time()
        if len(view) > CANARY_BYTES:
            self._came = True
            self._end_rest()
        with self._lock:
            try:
                self._pause.begin()
                self._follow_clock()
                self._take_events()
                launches = self.store.launches
                launches.wanted = self._budget.keeps
                self.store.add(view, thread, self._pause)
                self._slowed_ns += launches.take()
                capture = self.capture
                if self._hang is not None and capture is not None:
                    self._hang.read(view, capture.strides, self.store.name, capture.marker_shape)
                self._read_ns = time_ns()
            except BaseException as error:
                self._lost(f"records could not be read: {type(error).__name__}: {error}")
                if not isinstance(error, Exception):  # Ctrl-C is the program's; otherwise the next buffer may be better
                    raise
        if self._get_ident() not in self._in_cycles:
            self._drain_cpu_ns += int((thread_time() - began) * 1e9)

    def _lost(self, reason: str) -> None:
        """A buffer could not be read: one unseen time for all that fail for one reason."""
        log.exception("buffer", "gpusense: a buffer of GPU records could not be read")
        last, now = self.unseen[-1] if self.unseen else None, time_ns()
        if last is not None and last.reason == reason:
            self.unseen[-1] = last._replace(end_ns=now)
        else:
            self.unseen.append(UnseenInterval(self._read_ns, now, reason))

    # --- cycles -----------------------------------------------------------------------------------------------------

    def tick(self, timeout_s: float = SINK_WAIT_S, lazily: bool = False) -> bool:
        """One cycle: attach if possible, move the queue into the store, attribute, hand records to the sinks.

        ``lazily``: what is of no use yet may wait. False where another thread was in a sink for all of ``timeout_s``.
        """
        if self._lock.mine:
            return True  # a signal handler that interrupted one
        began, ident, sinks = thread_time(), self._get_ident(), self.sinks
        self._in_cycles.add(ident)
        try:
            self._cycle(lazily)
            handed = sinks.hand_out(timeout_s) if lazily else sinks.hand_out_on(self.owner.elsewhere, timeout_s)
        finally:
            self._in_cycles.discard(ident)
        self._tick_cpu_ns += int((thread_time() - began) * 1e9) + sinks.take_cpu_ns()
        with self._lock:
            self._budget.note(self.capture)
            if self.store.launches.graphs:
                self._budget.stay("CUDA graphs were replayed, and their next replay might fail")
            on = self._budget.step(self._tick_cpu_ns, self.store.threshold, self.capture, self._slowed_ns)
        self._follow_budget(on)
        return handed

    def _cycle(self, lazily: bool) -> None:
        self._look_after_capture()
        self._look_for_hang()
        with self._lock:
            self._follow_clock()
        self.thread_names.look()
        if not (lazily and self.store.may_wait(len(self.events), self.newest is not None)):
            with self._lock:
                self._pause.begin()
                self._take_events()
                self.store.cycle(self._pause)
        self.store.beside(self)

    def _follow_clock(self) -> None:
        """Where the wall clock was set back, the session began that much earlier by what it tells now: else all that
        follows would be from before the session. Under the lock."""
        step = self.clock.look()
        if step < 0:
            self.start_ns += step
            self.store.begin_earlier(self.start_ns)
            self.store.note(self)

    def _take_events(self) -> None:
        """As :meth:`_consume`, in parts with a pause between them."""
        for _ in range(len(self.events) // EVENTS_AT_ONCE):
            self._consume(EVENTS_AT_ONCE)
            self._pause()
        self._consume()

    def _consume(self, most: int | None = None) -> None:
        """Moves what the program's threads left in the queue into the store, at most so much. Under the lock."""
        noted = self.capture.lines() if self.capture is not None else None
        if noted:
            self.store.lines(noted)
        events = self.events
        placed: list[PlacedItem] = []
        records: list[Record | SameKernels] = []
        # What is there now: threads that add faster than this takes must not keep it here.
        for _ in range(len(events) if most is None else min(most, len(events))):
            item = events.popleft()
            self._came = True
            kind = item[0]
            if kind <= LAST_PLACED:
                placed.append(item)
                continue
            if kind == LOST:
                self.store.lose(item[1])
                continue
            if placed:  # the newest id is one of theirs
                records += self.store.placed(placed)
                placed = []
            if kind in (CLOSED, RECORD):
                records.append(record_of(item))
            else:
                self._boundary(boundary_of(item))
        if placed:
            records += self.store.placed(placed)
        self.store.records(records)

    def _boundary(self, event: Boundary) -> None:
        """Without a newest id."""
        # Once blocks were marked, another profiler has CUPTI, or had when the block was opened.
        early = not self._marked and not event.token
        if early and self.capture is not None and self._unmarked.add(event):
            self.store.know(event)
        else:
            self.store.boundary(event, early and self.capture is None)

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
        """Who sees a hang may kill the process: a file has to have it by then."""
        with self._lock:
            self._consume()
            self.store.flush()
        self.store.note(self)

    # --- what is known ----------------------------------------------------------------------------------------------

    def synchronise(self, timeout_s: float) -> bool:
        """True once all work of the device has finished; at once where nothing is captured."""
        capture = self.capture
        return capture is None or not capture.running or capture.synchronise(timeout_s, self.owner.elsewhere)

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self.capture.devices() if self.capture is not None else ()

    def status(self) -> dict[str, Any]:
        if self.capture is None:
            return {"state": "unavailable", "reason": self.absent, **self._attribution()}
        return {**self.capture.status(), **self._attribution()}

    @property
    def tells_tasks(self) -> bool:
        """Whether launches can be kept apart by task: not without capture, nor where threads share buffers."""
        capture = self.capture
        return capture is not None and not capture.ended and capture.per_thread is not False

    def _attribution(self) -> dict[str, Any]:
        """How launches come to blocks, and why tasks are not kept apart although that was asked for."""
        wanted = self.settings.attribution
        limits = []
        if wanted == "exact":
            if self.capture is not None and self.capture.per_thread is False:
                limits.append(
                    "this CUPTI does not tell which thread launched, so tasks are ambiguous where they overlap"
                )
            limits += [
                f"{host} tells nobody when it goes on with another task, so its tasks are ambiguous where they overlap"
                for host in ("uvloop", "gevent")
                if host in sys.modules
            ]
        return {"attribution": wanted, "attribution_limits": limits}

    def all_unseen(self) -> list[UnseenInterval]:
        """When work was not seen, and why; also what lasts, with no end."""
        lasting = [self._budget.lasting(), self.capture.unseen_now() if self.capture is not None else None]
        return [*self.unseen, *(unseen for unseen in lasting if unseen is not None)]

    # --- results ----------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Everything that the device has finished is read and handed on."""
        deadline = monotonic() + timeout_s
        read = self._flush_sources(timeout_s)
        while True:
            if self.capture is not None and self.capture.running:
                self.capture.flush()
            handed = self.tick(max(0.0, deadline - monotonic()))
            if self.store.idle:
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
                if is_the_programs(error) and not self.owner.on_own_thread():
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
        """What was launched inside ``block`` so far; None where nobody watched it."""
        self._bring_up_to_date()
        return self.store.totals(block.block_id, self._lock)

    def _bring_up_to_date(self) -> None:
        if self._end_ns is None and not self._lock.mine:
            with self._lock:
                self._consume()
                self.store.flush()

    def counters(self) -> Counters:
        extra = self.capture.losses() if self.capture is not None else {}
        return self.store.counters()._replace(sink_errors=self.sinks.errors, **extra, **self.owner.left_out())

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
            "effective_threshold_ns": self.store.threshold.highest_ns,
            "trace_all": settings.trace_all,
            "mode": self.store.mode,
            "rank": rank,
            "world_size": world,
            "kinds": list(settings.kinds),
            "only_devices": None if settings.devices is None else list(settings.devices),
            "backends": capture.versions() if capture is not None else {},
            "capture": self.status(),
            "clock_steps": list(self.clock.steps),
            "threads": self.thread_names.rows(),
            **({"hang": self._hang.found} if self._hang is not None and self._hang.found else {}),
            "sources": {source.name: source.status() for source in self.sources},
            "overhead": {
                "drain_cpu_ns": self._drain_cpu_ns,
                "thread_cpu_ns": self._tick_cpu_ns,
                "thread_s": self.spent_s,
                **self._budget.facts(self._end_ns or time_ns(), self.store.threshold),
            },
        }

    def samples(self) -> list[Any]:
        """Device metrics of this session so far, from the monitor that runs in this process."""
        source = self.owner.metrics()
        return list(source.history((time_ns() - self.start_ns) / 1e9)) if source is not None else []

    def session(self) -> "Session":
        """All that was recorded so far."""
        self._bring_up_to_date()
        return self.store.session(self)

    def snapshot(self) -> "Session":
        """What is in memory: where a file is written, a session without records."""
        from ..session import Session
        from ..session._names import tell_apart

        with self._lock:
            records, aggregates, busy, work = self.store.results()
        session = Session(
            meta=self.meta(),
            devices=self.devices(),
            records=records,
            aggregates=aggregates,
            metrics=self.samples(),
            busy=busy,
            unseen=self.all_unseen(),
            counters=self.counters(),
            work=work,
        )
        tell_apart(session)
        return session

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Last flush; then capture ends. The results stay readable."""
        self.end_capture()
        self.end_results()

    def end_results(self, deliver: bool = True) -> None:
        """The part that is ours alone, but for the sinks. Without ``deliver``, time is short and nothing is decided."""
        ended = self._end_ns is not None
        self._mark_no_more()
        self.armed = False
        if self._lock.acquire(timeout=0.5):
            try:
                self._consume()
                if deliver:
                    self.store.cycle(None)
                elif self.capture is not None:
                    self.unseen.append(
                        UnseenInterval(time_ns(), None, "capture did not end in time as the program ended")
                    )
            finally:
                self._lock.release()
            self._end_ns = self._end_ns or time_ns()
            if deliver:
                self.sinks.hand_out(SINK_WAIT_S)
        if not ended:
            self.store.close(self)

    def after_fork_in_child(self) -> None:
        """No call to CUDA or CUPTI any more, and nobody reads the queue: blocks that were open end into nothing."""
        self._lock = threads.OwnedLock()
        self._attaching = threads.OwnedLock()
        self._mark_no_more()
        self.armed = False
        if self.capture is not None:
            self.capture.forget_in_child()
        self.events = deque(maxlen=0)
        self.sinks.forget_in_child()
        self.store.forget_in_child()
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
