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
from time import monotonic, sleep, thread_time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .._aggregation.block_totals import BlockTotals
from .._aggregation.same_kernels import SameKernels
from .._attribution.before_capture import Unmarked
from .._attribution.boundaries import (
    CLOSED,
    DARK,
    LAST_PLACED,
    LIT,
    LOST,
    OPEN_ENDED_NS,
    RECORD,
    Boundary,
    PlacedItem,
    boundary_of,
    boundary_on_clock,
    on_clock,
    record_of,
)
from .._attribution.open_blocks import LAST_ID, end_frames, next_token
from .._decode.walk import restamped
from .._records.counter_samples import CounterColumns, CounterTable
from .._records.records import (
    BLOCK_TIMES,
    BLOCKS,
    BUDGET,
    NO_GPU,
    NOT_USED,
    Counters,
    DeviceInfo,
    Path,
    Record,
    UnseenInterval,
)
from .._runtime import log, threads
from .._runtime.clock import SESSION, now_ns
from .._runtime.config import Settings
from .._runtime.errors import wants_room
from .._runtime.interrupts import is_the_programs
from . import identity
from .attachment import Capture
from .budget import MAX_UNSEEN, BudgetKeeper
from .cpu_time import CpuTime
from .hang import HangWatch, WaitWatch
from .losses import Losses
from .sinks import LONGEST_WAIT_S, Sinks
from .sources import Sources
from .store import Results, Store
from .thread_names import ThreadNames
from .worker import FIRST_WAIT_S, Pauses

if TYPE_CHECKING:
    from ..session import Session
    from .flight import Flight

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
FOLLOW_S = 0.5  # for the thread that looks after capture; then that one follows by itself
#: Settings for which capture has to begin anew.
_OF_CAPTURE = ("kinds", "buffer_size", "buffers", "line_packages")


#: That the program waits at most for what it has told gpusense to do; and at least for an answer, so that one comes.
DO_S, LEAST_S = 10.0, 0.05
#: That a dump waits at most for what the device has finished to be read.
READ_S = 1.0

IN_PART = "; work was seen for a part of this time"
BY_SURPRISE = "it was asked for in the middle of gpusense's own work, by a signal handler or finaliser"

_Answer = TypeVar("_Answer")


class Owner(NamedTuple):
    """What a recorder asks of the tracer that it records for; the defaults are of a recorder alone."""

    wake: Callable[[], None] = lambda: None  # has the next cycle begin now
    elsewhere: Callable[[Callable[[], None]], bool] = lambda _: False  # gpusense's thread runs it, if there is one
    later: Callable[[Callable[[], None]], bool] = lambda _: False  # the same, also for that thread itself
    on_own_thread: Callable[[], bool] = lambda: False  # whether the caller is that thread
    metrics: Callable[[], Any] = lambda: None  # the monitor whose samples belong to the session
    left_out: Callable[[], dict[str, int]] = dict  # what of the program's is in no record, as counters
    ignored: Callable[[], dict[str, int]] = dict  # how many manual records did not fit, by reason


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
        store: Callable[[Settings, Capture | None, Sinks, int], Store] | None = None,
    ) -> None:
        """``store``: makes that of this recorder; None: a live one."""
        if store is None:
            from .live_store import LiveStore

            store = LiveStore
        self.settings = settings
        self.capture = capture
        self.owner = Owner()
        self.absent = NO_GPU  # why, where there is no capture
        self.block_times: Any = None  # the source that has the device time blocks, in place of capture
        self.facts: dict[str, Any] = {}  # more for ``meta``: which run this is, and where
        self.begun: Callable[[], object] | None = None  # to do once capture runs, on gpusense's thread
        self.looks_for_graphs = False  # ``store.launches.graphs`` is to say whether there were any
        self.events: deque[Any] = deque()
        self.sources = Sources(lambda: self.owner.on_own_thread())
        self.sinks = Sinks()
        self.clock = SESSION
        self.thread_names, self.cpu_time = ThreadNames(), CpuTime()
        self.start_ns = now_ns()
        self.store = store(settings, capture, self.sinks, self.start_ns)
        self.unseen: list[UnseenInterval] = []
        self.unread_at_end = 0  # of the queue, where the end was given up
        self.spent_s = 0.0
        self.marker: Callable[[int], Any] | None = None
        self.newest: Callable[[], int] | None = None
        self.armed = capture is not None
        self.disabled = False  # between pause_capture and resume_capture
        self._lock = threads.rlock()  # of everything that is recorded
        self._attaching = threads.rlock()
        self._last_poke = 0.0
        self._signs = False, 0  # at the last cycle: whether CUDA is near, and how many modules there are
        self._went_on: UnseenInterval | None = None  # see :meth:`_follow`
        self._followed: deque[tuple[bool, str]] = deque()  # see :meth:`_follow`: what is still to be done
        # Why it is armed, each written for itself: capture may begin, and the next block ends the rest.
        self._seeks, self._rests = self.armed, False
        self._came, self._quiet_s = True, 0.0  # since the last cycle something came; for how long nothing did
        self._patience_s = MAX_WAIT_S
        self._end_ns: int | None = None
        self._marked = False  # whether blocks were marked once: else nothing was launched that we saw
        self._began: UnseenInterval | None = None  # the time until capture, while it begins
        self._unmarked = Unmarked()  # boundaries until then
        self._pauses = Pauses()
        self.steps = 0  # parts of the work that are done: it goes on as long as they grow
        self._closing = threads.lock()  # taken, for good, by who closes the store
        self._read_ns = self.start_ns
        self._unread = ""  # why the last reading was not done
        self._losses = Losses(self.start_ns)
        self._forgotten: dict[str, int] = {}  # of the counters that go on, by the last reset
        self.counted: dict[int, CounterColumns] = {}  # device → the last samples of hardware counters, half a second
        self._drain_cpu_ns = self._tick_cpu_ns = self._answers_cpu_ns = 0
        self._get_ident = threads.thread_id()
        self._inside: set[int] = set()  # threads that are in here: what they ask besides, by surprise, is refused
        self._slowed_ns = 0  # of the program's launches, for the budget
        self._hang = self._new_hang_watch()
        self._waits = WaitWatch(settings.hang_after)
        self._flight: Flight | None = None
        self._follow_flight()
        self._budget = BudgetKeeper(self.unseen)
        self._budget.begin(settings.overhead_budget, settings.detach_in_pauses)
        self.store.note(self)

    def belong_to(self, owner: Owner) -> None:
        """Records for ``owner`` from now on."""
        self.owner = owner

    def _new_hang_watch(self) -> HangWatch | None:
        after_s = self.settings.hang_after
        return HangWatch(after_s) if after_s is not None and self.capture is not None else None

    def _follow_flight(self) -> None:
        """The flight recorder as the settings want it. On the program's thread: a signal handler is set on the main one
        alone, and what is imported here is not imported in the middle of a request."""
        settings, flight = self.settings, self._flight
        if settings.flight_recorder is None or self.store.recent is None:
            if flight is not None:
                flight.signal.want(False)
            self._flight = None
            return
        if flight is None:
            from . import dump  # noqa: F401
            from .flight import Flight

            flight = self._flight = Flight(settings, lambda: self.owner.wake())
        flight.configure(settings)
        flight.signal.want(settings.flight_signal)

    # --- settings ---------------------------------------------------------------------------------------------------

    def reconfigure(self, settings: Settings) -> None:
        """The next records follow ``settings``; capture begins anew where that is needed."""
        self._do(lambda: self._reconfigure(settings))
        self._follow_flight()

    def _reconfigure(self, settings: Settings) -> None:
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
        self._waits.configure(settings.hang_after)
        capture = self.capture
        if capture is not None:
            capture.settings = settings
            if old.hang_after != settings.hang_after:
                self._hang = self._new_hang_watch()
            if any(getattr(old, name) != getattr(settings, name) for name in _OF_CAPTURE):
                disabled = self.disabled
                self._pause_capture()
                if not disabled:
                    self._resume_capture()
        self.store.note(self)

    def reset(self) -> None:
        """Forgets what was recorded so far; open blocks stay open."""
        self._do(self._reset)

    def _reset(self) -> None:
        with self._lock:
            self._consume()
            self.store.flush()
            self.start_ns = now_ns()
            self._forgotten = self._counts_that_go_on()
            self.store.reset(self.start_ns)
            flight = self._flight
            if flight is not None:
                flight.reset()
            # What lasts goes on, and begins here.
            self.unseen[:] = [one._replace(start_ns=self.start_ns) for one in self.unseen if one.end_ns is None]
        self.store.note(self)

    def own(self, owners: dict[int, Path]) -> None:
        """Nodes of CUDA graphs by id, and the blocks that captured them, before any of them is replayed."""
        self._guarded(lambda: self._own(owners))

    def _own(self, owners: dict[int, Path]) -> None:
        with self._lock:
            self.store.own(owners)

    # --- begin and watch --------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """A block was opened while capture waits for CUDA (look at most every 5 ms) or for a context (look now)."""
        if self._rests:
            self._end_rest()
            return
        if not self._seeks:
            self._note_armed()
            return
        now = monotonic()
        capture = self.capture
        # Once capture runs only a context is missed, and the next launches need its marker.
        soon = capture is not None and capture.running
        if (soon or now - self._last_poke > 0.005) and self._get_ident() not in self._inside:
            self._last_poke, self._came = now, True
            self._guarded(lambda: self._look_after_capture(self._patience_s))
            self._patience_s = max(0.0, self._patience_s - (monotonic() - now))

    def cuda_starts(self) -> None:
        """CUDA is being initialised on some thread, which waits for this: no launch comes before capture."""
        capture = self.capture
        if capture is not None and capture.waiting:
            with capture.starting():
                if self._seeks:
                    self._guarded(lambda: self._look_after_capture(MAX_WAIT_S))
                else:
                    capture.missed()  # finds the driver, so that capture can begin at once when it is wanted

    def pace(self, waited_s: float) -> float:
        """Seconds until the next cycle: short while CUDA is being initialised, growing while nothing points to it, long
        once nothing has come for a while."""
        capture = self.capture
        seeks = self._seeks and capture is not None
        near = seeks and capture is not None and capture.near
        modules = len(sys.modules)
        if self._came or (near, modules) != self._signs:  # a program that imports something is about to begin
            self._came, self._signs, self._quiet_s = False, (near, modules), 0.0
            waited_s = min(waited_s, TICK_S)
        else:
            self._quiet_s += waited_s
        if self._quiet_s >= QUIET_S and not self._budget.keeps and self._hang is None:
            if not seeks:
                self._rests = True
                self._note_armed()
            return min(waited_s * 1.5, REST_S if capture is not None and capture.running else REST_ARMED_S)
        self._end_rest()
        if not seeks:
            return TICK_S
        return min(waited_s * (1.2 if near else 2), 4 * FIRST_WAIT_S if near else TICK_S)

    def _end_rest(self) -> None:
        """What may come next is read as soon as ever."""
        if self._rests:
            self._rests = False
            self._note_armed()
            self._came = True
            self.owner.wake()
            if self.capture is not None:
                self.capture.rouse()

    def _seek(self, on: bool) -> None:
        """Whether capture may become possible any moment."""
        self._seeks = on
        self._note_armed()

    def _note_armed(self) -> None:
        """Any thread, at any moment: what another one finds to do meanwhile is not missed, since it is looked at last;
        what another one takes away may be, until the next block asks."""
        self.armed = False
        if self._seeks or self._rests:
            self.armed = True

    def _look_after_capture(self, patience_s: float = 0.0) -> None:
        """Begins capture if CUDA is live by now; notices that another profiler came or went. Raises nothing."""
        capture = self.capture
        if capture is None or threads.mine(self._attaching):
            return
        try:
            if not self._attaching.acquire(timeout=patience_s):
                return  # another thread is at it
            self._catch_up(capture)
            if self._seeks:
                self._try(capture)
            else:
                self._watch(capture)
            self._catch_up(capture)
        except Exception as error:
            if is_the_programs(error):
                raise
            if wants_room(error):  # for a module of ours; with the next look there may be
                return
            capture.give_up(f"{type(error).__name__}: {error}")
            self._seek(False)
            self._mark_no_more()
            log.exception("capture", "recording GPU work failed and is off; the program goes on")
        finally:
            threads.give_back(self._attaching)

    def _try(self, capture: Capture) -> None:
        if not capture.running:
            self._began = capture.try_attach(self.on_buffer, lambda: self._joins(capture), self._follow)
            if self._began is None:
                self._seek(capture.waiting)
                return
        with self._lock:
            self._consume()
            self._unmarked.crossed = False
        if capture.prepare_marker():
            self._light(capture, first=self._began is not None)
            self._seek(False)
        # Work last, and first where there is no context yet, or no room for what marks blocks.
        if not capture.open():
            self._go_dark(capture)
            self._seek(capture.waiting)
        elif self._began is not None:
            if self._began.reason:  # else CUDA began just now, and nothing was launched before
                with self._lock:
                    self._add_unseen(self._began._replace(end_ns=now_ns()))
            self._began = None

    def _joins(self, capture: Capture) -> None:
        """Before the first buffer is shown."""
        with self._lock:
            self._consume()
            self.store.attached(capture)

    def _light(self, capture: Capture, first: bool = False) -> None:
        """Boundaries have a place among the launches from now on. ``first``: what was recorded before is what another
        tracer asked for."""
        with self._lock:
            if self._followed:
                return  # it is another profiler's again
            self._consume()
            self.store.attached(capture)
            self._mark_with(capture)
            if first and not capture.sharing.alone:
                self.store.boundary(Boundary(DARK, 0, None, 0, 0, 0), early=True)
            self._place(LIT, 0, None, "")
            if self._marked:
                return
            # A block whose thread has crossed no boundary since there was no context holds all that was launched.
            self._marked, crossed = True, self._unmarked.crossed
            for event in self._unmarked.drain():
                if crossed:
                    self._place(event.op, event.block_id, event.parent_id, event.name, event.thread)
                else:
                    self.store.boundary(event, early=True)

    def _place(self, op: int, block_id: int, parent_id: int | None, name: str, thread: int = 0) -> None:
        """A boundary that is here among the launches, as blocks have them. Under the lock."""
        marker, newest, now = self.marker, self.newest, now_ns()
        event = Boundary(op, block_id, parent_id, thread, now, now + OPEN_ENDED_NS, name)
        corr = newest() if marker is not None and newest is not None else LAST_ID + 1
        if corr <= LAST_ID:
            self.store.boundary(event._replace(after_ns=now), newest=corr)
        elif marker is None:
            self.store.boundary(event)
        else:
            token = next_token()
            self.store.boundary(event._replace(token=token))
            if marker(token):
                self.store.lose(token)

    def _go_dark(self, capture: Capture | None) -> None:
        """Boundaries have no place from now on. ``capture`` None: another profiler has CUPTI, and no call is made."""
        if self.marker is None:
            return
        with self._lock:
            if self.newest is None and capture is None:
                self._mark_no_more()
            self._place(DARK, 0, None, "")
            self._mark_no_more()

    def _add_unseen(self, unseen: UnseenInterval) -> None:
        """Of a pause the second part, without CUPTI, continues the first; and so do all where there are very many."""
        last = self.unseen[-1] if self.unseen else None
        if last is not None and unseen.reason == BUDGET and last.reason.startswith(BUDGET):
            self.unseen[-1] = last._replace(end_ns=unseen.end_ns)
        elif last is not None and len(self.unseen) >= MAX_UNSEEN:
            reason = last.reason if last.reason.endswith(IN_PART) else f"{unseen.reason}{IN_PART}"
            self.unseen[-1] = UnseenInterval(last.start_ns, unseen.end_ns, reason)
        else:
            self.unseen.append(unseen)

    def _watch(self, capture: Capture) -> None:
        change = self._went_on or capture.watch()
        if not capture.running:
            self._go_dark(None)  # our markers would only be noise in the records of another profiler
            return
        if self.marker is None and capture.prepare_marker():
            self._light(capture)
        if not capture.open():
            self._go_dark(capture)
            self._seek(capture.waiting)
        elif change is not None:
            self._went_on = None
            self._add_unseen(change._replace(end_ns=now_ns()))

    def _follow(self, resumes: bool, reason: str) -> None:
        """Another tracer in the process has noticed that another profiler has CUPTI, or has it no more. No work is
        recorded before the blocks of all have a place again. On a thread of that tracer."""
        self._guarded(lambda: self._follow_now(resumes, reason))

    def _follow_now(self, resumes: bool, reason: str) -> None:
        capture = self.capture
        if capture is None or threads.mine(self._attaching):
            return  # it is this one that has noticed
        self._followed.append((resumes, reason))
        if not resumes:
            self._go_dark(None)  # whatever is under way here: CUPTI may be back before that has ended
        try:
            if self._attaching.acquire(timeout=FOLLOW_S):
                self._catch_up(capture)  # else whoever looks after capture does, as soon as that has ended
        finally:
            threads.give_back(self._attaching)

    def _catch_up(self, capture: Capture) -> None:
        """Does what other tracers have told. Whoever looks after capture, before and after."""
        while self._followed:
            resumes, reason = self._followed.popleft()
            if not resumes:
                if self._went_on is not None:  # and no work was asked for since
                    self._add_unseen(self._went_on._replace(end_ns=now_ns()))
                    self._went_on = None
                capture.hold(reason)
                self._go_dark(None)
            elif (went_on := capture.go_on()) is not None:
                self._went_on = went_on  # told once :meth:`_watch` has asked for work
                if capture.prepare_marker():
                    self._light(capture)

    def _mark_with(self, capture: Capture) -> None:
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
            capture.close()
            self._go_dark(capture)
            self._seek(False)
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
        self._patience_s = max(self._patience_s, RETURN_WAIT_S)
        self._rests = False
        self._seek(True)

    # --- pause and end ----------------------------------------------------------------------------------------------

    def pause_capture(self) -> None:
        """Ends capture for now; :meth:`resume_capture` begins it again."""
        self._do(self._pause_capture)

    def _pause_capture(self) -> None:
        if not self._budget.outside:
            self._budget.switch(True, self.capture)
        self.sources.flush(0.5)
        self._read_all(monotonic() + 0.5)
        with self._attaching:
            outside = self._budget.outside
            if self.capture is not None:
                self.capture.close()
            self._go_dark(self.capture)
            self._seek(False)
            self.disabled = True
            if self.capture is not None and (self.capture.attached or outside):
                self._stop(self.capture)
                with self._lock:
                    if outside:
                        self._add_unseen(UnseenInterval(self._budget.came_back(), now_ns(), BUDGET))
                    self._budget.note(self.capture)
                self._add_unseen(UnseenInterval(now_ns(), None, "recording was disabled"))

    def resume_capture(self) -> None:
        self._do(self._resume_capture)

    def _resume_capture(self) -> None:
        self.disabled = False
        # Also where it was disabled before it had begun.
        if self.capture is not None and (self.capture.rearm() or self.capture.waiting):
            self._arm()
            if self.unseen and self.unseen[-1].end_ns is None:
                self.unseen[-1] = self.unseen[-1]._replace(end_ns=now_ns())
            self.owner.wake()

    def end_capture(self) -> None:
        """Capture ends for good. Asks others, sources and CUPTI, and may hang where they do."""
        self.sources.flush(1.0, last=True)
        capture = self.capture
        with self._attaching:
            if capture is not None and capture.waiting and self._end_ns is None:
                self._never_captured(capture)
            if capture is not None:
                capture.close()
            self._go_dark(capture)
            self._seek(False)
            if capture is not None and capture.attached:
                capture.flush()
                self._stop(capture)
                with self._lock:
                    self._budget.note(capture)

    def _stop(self, capture: Capture) -> None:
        """What is finished is read first. Where another profiler has CUPTI, the time without it ends here."""
        lasting = capture.unseen_now()
        if lasting is not None:
            self._add_unseen(lasting._replace(end_ns=now_ns()))
        capture.stop()

    def _never_captured(self, capture: Capture) -> None:
        lasting = capture.unseen_now()
        if lasting is not None:
            self._add_unseen(lasting._replace(end_ns=now_ns()))
        elif capture.missed():
            self._add_unseen(UnseenInterval(self.start_ns, now_ns(), "the program ended before capture could begin"))

    # --- buffers ----------------------------------------------------------------------------------------------------

    def on_buffer(self, view: memoryview, thread: int) -> None:
        """A buffer of ``thread`` (0: of all), valid during the call. On the drain thread."""
        began, alone = thread_time(), self._get_ident() not in self._inside
        if len(view) > CANARY_BYTES:
            self._came = True
            self._end_rest()
        self._guarded(lambda: self._add_buffer(view, thread))
        if alone:
            self._drain_cpu_ns += int((thread_time() - began) * 1e9)

    def _add_buffer(self, view: memoryview, thread: int) -> None:
        with self._lock:
            try:
                self._pauses.begin()
                self._take_events()
                launches = self.store.launches
                launches.wanted = self._budget.keeps or self.looks_for_graphs
                if self.clock.steps and self.capture is not None:
                    view = restamped(view, self.capture.strides, self.clock.of_wall)
                self.store.add(view, thread, self._pause)
                self._slowed_ns += launches.take()
                capture = self.capture
                if self._hang is not None and capture is not None:
                    self._hang.read(view, capture.strides, self.store.name, capture.own_streams)
                self._read_ns = now_ns()
            except BaseException as error:
                self._lost(f"records could not be read: {type(error).__name__}: {error}")
                if not isinstance(error, Exception):  # Ctrl-C is the program's; otherwise the next buffer may be better
                    raise

    def _lost(self, reason: str) -> None:
        """A buffer could not be read: one unseen time for all that fail for one reason."""
        log.exception("buffer", "a buffer of GPU records could not be read")
        last, now = self.unseen[-1] if self.unseen else None, now_ns()
        if last is not None and last.reason == reason:
            self.unseen[-1] = last._replace(end_ns=now)
        else:
            self._add_unseen(UnseenInterval(self._read_ns, now, reason))

    def take_counters(self, columns: CounterColumns) -> None:
        """Samples of hardware counters that follow those of their device so far. Any thread of gpusense."""
        with self._lock:
            if self._end_ns is None:
                self.counted[columns.device] = columns
                self.store.counter_samples(columns)

    # --- cycles -----------------------------------------------------------------------------------------------------

    def tick(self, timeout_s: float = SINK_WAIT_S, lazily: bool = False) -> bool:
        """One cycle: attach if possible, move the queue into the store, attribute, hand records to the sinks.

        ``lazily``: what is of no use yet may wait. False where another thread was in a sink for all of ``timeout_s``.
        """
        if self._get_ident() in self._inside:
            return False  # a signal handler or finaliser that interrupted one
        self._guarded(lambda: self._whole_cycle(lazily))
        self._dump_if_due()
        return self.sinks.hand_out(0.0 if lazily else timeout_s)

    def _whole_cycle(self, lazily: bool) -> None:
        began = thread_time()
        self._cycle(lazily)
        self._tick_cpu_ns += int((thread_time() - began) * 1e9) + self.sinks.take_cpu_ns()
        counts = self._counts_that_go_on()
        with self._lock:
            self._losses.look(counts, now_ns())
            self._budget.note(self.capture)
            if self.store.launches.graphs:
                self._budget.stay("CUDA graphs were replayed, and their next replay might fail")
            on = self._budget.step(self._tick_cpu_ns, self.store.threshold, self.capture, self._slowed_ns)
        self._follow_budget(on)

    def _cycle(self, lazily: bool) -> None:
        self._look_after_capture()
        self._look_for_hang()
        self._look_for_waits()
        self.clock.look()
        self.thread_names.look()
        self.cpu_time.look()
        if self.begun is not None and self.capture is not None and self.capture.running:
            begun, self.begun = self.begun, None
            begun()
        if not (lazily and self.store.may_wait(len(self.events), self.newest is not None)):
            with self._lock:
                self._pauses.begin()
                self._take_events()
                self.store.cycle(self._pause)
        self.store.beside(self)

    def _pause(self) -> None:
        """Between two parts of the work."""
        self.steps += 1
        self._pauses()

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
        self.clock.look()
        placed: list[PlacedItem] = []
        records: list[Record | SameKernels] = []
        # What is there now: threads that add faster than this takes must not keep it here.
        for _ in range(len(events) if most is None else min(most, len(events))):
            item = events.popleft()
            self._came = True
            kind = item[0]
            if self.clock.steps:
                item = on_clock(item, self.clock.of_wall)
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
                event = boundary_of(item)
                marked = self.clock.steps and event.token
                self._boundary(boundary_on_clock(event, self.clock.of_wall) if marked else event)
        if placed:
            records += self.store.placed(placed)
        self.store.records(records)
        flight = self._flight
        if flight is not None:
            flight.look(records)

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
            "nothing has completed on the GPU for %g s although it has work; the session holds the last work "
            "of each stream and all Python stacks",
            watch.after_s,
        )
        self._keep_evidence()
        capture.flush(forced=True)  # brings the records of what runs, without an end
        self._keep_evidence()

    def _look_for_waits(self) -> None:
        """What the work of sources waits for in other processes."""
        if not self._waits.due():
            return
        waits = self.sources.waits(round(self._waits.after_s * 1e9))
        new = self._waits.look(waits, on_terminal="run" in self.facts)
        for found in new:
            if self._flight is not None:
                self._flight.hangs(found["noticed_ns"], found["text"])
        if new:
            self._keep_evidence()

    def _keep_evidence(self) -> None:
        """Who sees a hang may kill the process: a file has to have it by then."""
        with self._lock:
            self._consume()
            self.store.flush()
        self.store.note(self)

    # --- the flight recorder ----------------------------------------------------------------------------------------

    def dump(self, path: str | None) -> str | None:
        """Writes the last seconds; gives the path, or None where that is not possible, see :meth:`status`. To who asks
        by surprise, as in :meth:`flush`, None, and it is written soon."""
        flight = self._flight
        if flight is None:
            return None
        if self._get_ident() in self._inside:
            flight.ask()
            return None
        return self._ask(lambda: self._dump(path, asked=True), DO_S, None)

    def _dump_if_due(self, at_once: bool = False) -> None:
        """``at_once``: the recording ends."""
        flight = self._flight
        if flight is not None and flight.due(at_once):
            self._guarded(lambda: self._dump(None))

    def _read_until(self, flight: "Flight") -> tuple[int, bool]:
        """Until when everything that the device had finished is read now, with what ``flight`` waits to write; and
        whether that is so. Behind a program that never rests, one reading takes long, and what was left meanwhile is
        for the next one."""
        deadline, again = monotonic() + READ_S, True
        while True:
            until_ns = now_ns()
            read = self._end_ns is not None or self._read_all(monotonic())
            if (read and flight.newest_ns <= until_ns) or not (again or monotonic() < deadline):
                return until_ns, read
            again = False
            sleep(0.002)

    def _dump(self, path: str | None, asked: bool = False) -> str | None:
        """On gpusense's thread, or where there is none."""
        from .dump import held, write

        flight = self._flight
        if flight is None:
            return None
        until_ns, read = self._read_until(flight)
        with self._lock:
            recent = self.store.recent
            taken = flight.take(until_ns, asked)
            if recent is None or not taken.reasons:
                return None
            first = min(reason.time_ns for reason in taken.reasons) - round(flight.seconds * 1e9)
            first = max(first, flight.since_ns)
            lost = self._losses.counts(first, until_ns)
            what = held(recent, first, until_ns, read, lost)
        try:
            found = write(path, what, taken, self, self._pause)
        except Exception as error:  # noqa: BLE001 - a full disk, mostly
            flight.done("", f"{error}")
            log.once("dump", "the flight recorder could not write: %s", error)
            return None
        flight.done(found)
        return found

    # --- what is known ----------------------------------------------------------------------------------------------

    def synchronise(self, timeout_s: float) -> bool:
        """True once all work of the device has finished; at once where nothing is captured."""
        capture = self.capture
        return capture is None or not capture.running or capture.synchronise(timeout_s, self.owner.elsewhere)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Those of CUDA, then those that other sources' records name; a card that both name once."""
        found = list(self.capture.devices()) if self.capture is not None else []
        return (*found, *self.sources.devices_beside(found))

    def status(self) -> dict[str, Any]:
        capture = self.capture
        found = capture.status() if capture is not None else self._without_capture()
        return {**found, **self._attribution(), **self._flight_status(), **self.sources.why_absent()}

    def _without_capture(self) -> dict[str, Any]:
        if self.block_times is None:
            return {"state": "unavailable", "reason": self.absent}
        state, reason = (BLOCKS, BLOCK_TIMES) if self.block_times.used else ("armed", NOT_USED)
        return {"state": state, "reason": reason}

    def _flight_status(self) -> dict[str, Any]:
        flight = self._flight
        if flight is not None:
            return {"flight_recorder": flight.status()}
        if self.settings.flight_recorder is not None:
            return {"flight_recorder": {"reason": "off: the session file has all of it"}}
        return {}

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
                f"{host} does not tell when it goes on with another task, so its tasks are ambiguous where they overlap"
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
        """Everything that the device has finished is read and handed on. False at once to who asks by surprise: a
        signal handler or finaliser in the middle of gpusense's own work."""
        if self._get_ident() in self._inside:
            return False
        deadline = monotonic() + min(timeout_s, LONGEST_WAIT_S)
        flushed = self.sources.flush(timeout_s)
        read = self._ask(lambda: self._read_all(deadline), max(LEAST_S, deadline - monotonic()), False)
        return self.sinks.wait(max(0.0, deadline - monotonic())) and read and flushed

    def _read_all(self, deadline: float) -> bool:
        """Whether everything that the device has finished was read by ``deadline``."""
        while True:
            unread = self.capture.flush() if self.capture is not None and self.capture.running else ""
            self._whole_cycle(lazily=False)
            self.sinks.hand_out()
            self._unread = unread
            if self.store.idle and not unread:
                return True
            if monotonic() >= deadline:
                return False
            sleep(0.002)

    # --- on gpusense's own thread, where no signal handler of the program comes in between --------------------------

    def _guarded(self, action: Callable[[], _Answer]) -> _Answer:
        """What ``action`` gives, here; what a signal handler or finaliser asks meanwhile is refused."""
        ident = self._get_ident()
        outermost = ident not in self._inside
        try:
            self._inside.add(ident)
            return action()
        finally:
            if outermost:
                self._inside.discard(ident)

    def _ask(self, action: Callable[[], _Answer], timeout_s: float, silent: _Answer) -> _Answer:
        """What ``action`` gives on gpusense's thread, or here where there is none; ``silent`` where that takes longer,
        and at once to who asks by surprise."""
        if self._get_ident() in self._inside:
            return silent
        answers: list[_Answer] = []
        done = threads.Bell()

        def here_or_there() -> None:
            if self.owner.elsewhere(self._errand(lambda: answers.append(action()), done.set)):
                done.wait(min(timeout_s, LONGEST_WAIT_S))
            else:
                answers.append(action())

        self._guarded(here_or_there)
        return answers[0] if answers else silent

    def _do(self, action: Callable[[], None]) -> None:
        """``action`` as in :meth:`_ask`, after all that was asked for before. It is done when this returns, unless
        somebody asks by surprise: then it is done soon."""
        if self._get_ident() not in self._inside:
            self._ask(action, DO_S, None)
        elif not self.owner.later(self._errand(action, lambda: None)):
            action()

    def _errand(self, action: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
        def errand() -> None:
            try:
                self._guarded(action)
            except BaseException:  # noqa: BLE001 - the thread must live
                log.exception("errand", "flush, reset or the like failed inside gpusense")
            finally:
                then()

        return errand

    def settle(self, block: Any, timeout_s: float) -> bool:
        """Everything launched inside ``block`` has finished and been read."""
        deadline = monotonic() + timeout_s
        if not self.synchronise(timeout_s):
            return False
        return self.flush(max(0.0, deadline - monotonic()))

    def block_totals(self, block: Any) -> BlockTotals | None:
        """What was launched inside ``block`` so far; None where nobody watched it."""
        self._bring_up_to_date()
        return self.totals_by_now(block)

    def totals_by_now(self, block: Any) -> BlockTotals | None:
        """As :meth:`block_totals`, of what has been read: nothing is read for it."""
        return self._guarded(lambda: self.store.totals(block.block_id, self._lock))

    def _bring_up_to_date(self) -> None:
        if self._end_ns is None:
            self._ask(self._read_queue, DO_S, None)

    def _read_queue(self) -> None:
        with self._lock:
            self._pauses.begin()
            self._take_events()
            self.store.flush()

    def counters(self) -> Counters:
        counts = self._counts_that_go_on()
        return self.store.counters()._replace(
            **{name: count - self._forgotten.get(name, 0) for name, count in counts.items()}
        )

    def _counts_that_go_on(self) -> dict[str, int]:
        """Those that do not begin anew with a reset by themselves."""
        stored = self.store.counters()
        return {
            "sink_errors": self.sinks.errors,
            "unsent_records": self.sinks.unsent,
            "unread_at_end": self.unread_at_end,
            "lost_markers": stored.lost_markers,
            "bytes_dropped": stored.bytes_dropped,
            "bytes_too_long": stored.bytes_too_long,
            **(self.capture.losses() if self.capture is not None else {}),
            **self.owner.left_out(),
        }

    def _lost_between(self, start_ns: int, end_ns: int) -> str:
        counts = self._counts_that_go_on()
        with self._lock:
            self._losses.look(counts, now_ns())
            return self._losses.between(start_ns, end_ns)

    def lacking(self, block: Any) -> str:
        """Why a block that was asked, and may be complete as far as waiting goes, is not; "" where it is."""
        of = self.clock.of_wall
        start, end = of(block.start_ns), now_ns() if block.end_ns is None else of(block.end_ns)
        lost = self._guarded(lambda: self._lost_between(start, end))
        if lost:
            return f"{lost} while it was open"
        for unseen in self.all_unseen():
            if unseen.start_ns < end and (unseen.end_ns is None or unseen.end_ns > start):
                return f"work was not seen while it was open: {unseen.reason}"
        return ""

    @property
    def unread(self) -> str:
        """Why the last reading was not done; "" where it was."""
        return self._unread

    def meta(self) -> dict[str, Any]:
        """The ``meta`` of a session, as documented there."""
        from .. import __version__

        settings, capture = self.settings, self.capture
        rank, world = identity.rank_and_world()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "start_ns": self.start_ns,
            "end_ns": self._end_ns or now_ns(),
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
            "clock_steps": [step for step in self.clock.steps if step[0] >= self.start_ns],
            "clock_ahead_ns": self.clock.ahead_ns,
            "threads": self.thread_names.rows(),
            "cpu_time": self.cpu_time.rows(),
            **identity.facts(capture.cuda_version() if capture is not None else None),
            **self.facts,
            **self._hangs(),
            "sources": {**self.sources.status(), **self._manual()},
            "overhead": {
                "drain_cpu_ns": self._drain_cpu_ns,
                "thread_cpu_ns": self._tick_cpu_ns,
                **({"answers_cpu_ns": self._answers_cpu_ns} if self._answers_cpu_ns else {}),
                "thread_s": self.spent_s,
                **self.sources.cpu_ns(),
                **self._budget.facts(self._end_ns or now_ns(), self.store.threshold),
            },
        }

    def _hangs(self) -> dict[str, Any]:
        found = [*(self._hang.found if self._hang is not None else ()), *self._waits.found]
        return {"hang": found} if found else {}

    def _manual(self) -> dict[str, Any]:
        ignored = self.owner.ignored()
        return {"manual": {"ignored": ignored}} if ignored else {}

    def of_old(self) -> list[Record]:
        """What sources tell of the time before a dump, and of what is under way."""
        return self.sources.last()

    def samples(self) -> list[Any]:
        """Device metrics of this session so far, from the monitor that runs in this process."""
        source = self.owner.metrics()
        if source is None:
            return []
        samples, of = list(source.history((now_ns() - self.start_ns) / 1e9)), self.clock.of_monotonic
        return [one._replace(time_ns=of(one.monotonic_ns)) for one in samples] if self.clock.steps else samples

    def session(self, each_block: bool = False) -> "Session":
        """All that was recorded so far; ``each_block``: as for :func:`gpusense.session.load`. To who asks by surprise,
        as in :meth:`flush`, a session that says so."""
        if self._get_ident() in self._inside:
            from ..session import Session

            return Session(meta={"mode": self.store.mode, "reason": BY_SURPRISE})
        self._bring_up_to_date()
        began = thread_time()
        try:
            return self.store.session(self, each_block)
        finally:
            self._answers_cpu_ns += int((thread_time() - began) * 1e9)

    def snapshot(self) -> "Session":
        """What is in memory: where a file is written, a session without records."""
        from ..session import Session
        from ..session._names import tell_apart

        records, aggregates, busy, work = self._guarded(self._results)
        session = Session(
            meta=self.meta(),
            devices=self.devices(),
            records=records,
            aggregates=aggregates,
            metrics=self.samples(),
            counter_samples=self._guarded(self._counter_table),
            busy=busy,
            unseen=self.all_unseen(),
            counters=self.counters(),
            work=work,
        )
        tell_apart(session)
        return session

    def _results(self) -> Results:
        with self._lock:
            return self.store.results()

    def _counter_table(self) -> CounterTable:
        with self._lock:
            return self.store.counter_table()

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Last flush; then capture ends. The results stay readable."""
        self.end_capture()
        self.end_results()

    def end_results(self, deliver: bool = True) -> None:
        """The part that is ours alone, but for the sinks. Without ``deliver``, time is short and nothing is decided."""
        self._mark_no_more()
        self._seek(False)
        try:
            if not self._lock.acquire(timeout=0.5):
                self.give_up_end()
                return
            self._take_events()
            if deliver:
                self.store.cycle(self._pause, final=True)
            elif self.capture is not None:
                self._add_unseen(UnseenInterval(now_ns(), None, "capture did not end in time as the program ended"))
        finally:
            threads.give_back(self._lock)
        self._end_ns = self._end_ns or now_ns()
        if deliver:
            self._dump_if_due(at_once=True)
        if deliver and not self.sinks.hand_out(SINK_WAIT_S):
            log.once("close-sinks", "a sink did not take the last records in time")
        self.sinks.give_up()
        self._close_store()

    def give_up_end(self) -> None:
        """The end does not go on: the session says so, with what is left in the queue, and is closed as it is."""
        if self._end_ns is None:
            self.unread_at_end = max(1, len(self.events))
            self._end_ns = now_ns()
            self._add_unseen(
                UnseenInterval(self._end_ns, None, "reading what was recorded took too long and was given up")
            )
        self._close_store()

    def _close_store(self) -> None:
        if self._closing.acquire(blocking=False):
            self.store.close(self)

    def after_fork_in_child(self) -> None:
        """No call to CUDA or CUPTI any more, and nobody reads the queue: blocks that were open end into nothing."""
        self._lock = threads.rlock()
        self._attaching = threads.rlock()
        self._inside = set()
        self._mark_no_more()
        self._seek(False)
        if self.capture is not None:
            self.capture.forget_in_child()
        self.events = deque(maxlen=0)
        self.sinks.forget_in_child()
        self.store.forget_in_child()
        if self._flight is not None:
            self._flight.signal.forget_in_child()
            self._flight = None
        self.sources.forget()
