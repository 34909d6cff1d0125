"""The capture side of a recorder: when it begins, pauses and ends, and what was not seen meanwhile."""

import sys
from collections.abc import Callable
from time import monotonic, time_ns
from typing import Any

from .._attribution.open_blocks import end_frames
from .._records.records import BUDGET, DeviceInfo, UnseenStretch
from .._runtime import log, threads
from .._runtime.config import Settings
from .attachment import Capture
from .budget import BudgetKeeper
from .worker import FIRST_WAIT_S

TICK_S = 0.1

MAX_WAIT_S = 1.0  # that blocks wait, all together, while another thread attaches: what they launch is to be seen
RETURN_WAIT_S = 0.2  # the same for each new beginning, or their work would come to the blocks around them


class Capturing:
    """Base of the recorders, which say what is done with buffers.

    ``marker`` marks a block's boundary, None while that is not possible; ``newest``, where it is not None then, gives
    the newest correlation id in its place; ``armed`` while it may become possible any
    moment, so that blocks ask (:meth:`poke`).
    """

    def __init__(self, settings: Settings, capture: Capture | None) -> None:
        self.settings = settings
        self.capture = capture
        self.absent = "no CUDA device or driver is there"  # why, where there is no capture
        self.marker: Callable[[int], Any] | None = None
        self.newest: Callable[[], int] | None = None
        self.armed = capture is not None
        self.disabled = False  # between pause_capture and resume_capture
        self.wake: Callable[[], None] = lambda: None
        self.elsewhere: Callable[[Callable[[], None]], bool] = lambda action: False
        self.on_own_thread: Callable[[], bool] = lambda: False  # whether the caller is gpusense's thread
        self.left_out: Callable[[], dict[str, int]] = dict  # what of the program's is in no record, as counters
        self.start_ns = time_ns()
        self.unseen: list[UnseenStretch] = []
        self._budget = BudgetKeeper(self.unseen)
        self._lock = threads.OwnedLock()  # of everything that is recorded
        self._attaching = threads.OwnedLock()
        self._last_poke = 0.0
        self._patience_s = MAX_WAIT_S
        self._end_ns: int | None = None

    # --- what recorders do ------------------------------------------------------------------------------------------

    def _on_buffer(self, buffer: memoryview, thread: int) -> None:
        """On the drain thread, with the buffer valid during the call."""

    def _captures(self, capture: Capture) -> None:
        """Capture runs from now on. Under the lock."""

    def _marks(self, capture: Capture) -> None:
        """Blocks are marked from now on. Under the lock."""

    def flush(self, timeout_s: float) -> bool:
        """Everything the device has finished is read and handed on."""
        raise NotImplementedError

    # --- begin and watch --------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """A block was opened while capture waits for CUDA (look at most every 5 ms) or for a context (look now)."""
        now = monotonic()
        capture = self.capture
        # Once capture runs only a context is missed, and the next launches need its marker.
        soon = capture is not None and capture.running
        if (soon or now - self._last_poke > 0.005) and not self._lock.mine:
            self._last_poke = now
            self._look_after_capture(self._patience_s)
            self._patience_s = max(0.0, self._patience_s - (monotonic() - now))

    def pace(self, waited_s: float) -> float:
        """Seconds until the next tick: short while CUDA is being initialised, growing while nothing points to it."""
        if not self.armed or self.capture is None:
            return TICK_S
        return min(waited_s * (1.2 if self.capture.near else 2), 4 * FIRST_WAIT_S if self.capture.near else TICK_S)

    def _look_after_capture(self, patience_s: float = 0.0) -> None:
        """Begins capture if CUDA is live by now; notices that another profiler came or went. Raises nothing."""
        capture = self.capture
        if capture is None or self._attaching.mine or not self._attaching.acquire(timeout=patience_s):
            return  # another thread is at it
        try:
            if self.armed:
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
            stretch = capture.try_attach(self._on_buffer)
            if stretch is None:
                self.armed = capture.waiting
                return
            with self._lock:
                if stretch.reason:
                    self._tell(stretch)
                self._captures(capture)
        if not capture.prepare_marker():
            return  # still armed: blocks are marked once there is a context
        with self._lock:
            self._marks(capture)
            self.armed = False
            self._mark_with(capture)

    def _tell(self, stretch: UnseenStretch) -> None:
        """Of a rest the second part, without CUPTI, continues the first."""
        last = self.unseen[-1] if self.unseen else None
        if last is not None and stretch.reason == BUDGET and last.reason.startswith(BUDGET):
            self.unseen[-1] = last._replace(end_ns=stretch.end_ns)
        else:
            self.unseen.append(stretch)

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

    # --- rests ------------------------------------------------------------------------------------------------------

    def _follow_budget(self, on: bool) -> None:
        """Capture on, or off for a while, as a round has decided."""
        budget, capture = self._budget, self.capture
        if on or capture is None:
            self._end_rest()
            return
        if not budget.outside:
            budget.switch(False, capture)
            if capture.running and budget.leaves_now(capture):
                self._rest_without(capture)
        if not budget.keeps:  # the program has ended the budget meanwhile
            capture.sharing.rest(False)
            self._end_rest()

    def _rest_without(self, capture: Capture) -> None:
        """The rest goes on with CUPTI out of the process."""
        capture.flush()
        with self._attaching:
            if self.disabled or self._budget.outside or not capture.running:
                return  # another thread was faster
            self._mark_no_more()
            self.armed = False
            refused = capture.rest_without(BUDGET)
            with self._lock:
                self._budget.note(capture)
                self._budget.went_out(refused)

    def _end_rest(self) -> None:
        """Where a rest of the budget lasts, it ends now."""
        budget, capture = self._budget, self.capture
        if not budget.outside:
            budget.switch(True, capture)
            return
        with self._attaching:
            back = budget.outside and capture is not None and capture.rearm(budget.came_back())
            if back:
                self._arm()
        if back:
            self.wake()

    def _arm(self) -> None:
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
                        self._tell(UnseenStretch(self._budget.came_back(), time_ns(), BUDGET))
                    self._budget.note(self.capture)
                self.unseen.append(UnseenStretch(time_ns(), None, "recording was disabled"))

    def resume_capture(self) -> None:
        self.disabled = False
        # Also where it was disabled before it had begun.
        if self.capture is not None and (self.capture.rearm() or self.capture.waiting):
            self._arm()
            if self.unseen and self.unseen[-1].end_ns is None:
                self.unseen[-1] = self.unseen[-1]._replace(end_ns=time_ns())
            self.wake()

    def end_capture(self) -> None:
        """Ends it for good. May hang where CUPTI does."""
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
        """What is finished is read first. Where another profiler has CUPTI, the stretch without it ends here."""
        lasting = capture.unseen_now()
        if lasting is not None:
            self.unseen.append(lasting._replace(end_ns=time_ns()))
        capture.stop()

    def _never_captured(self, capture: Capture) -> None:
        lasting = capture.unseen_now()
        if lasting is not None:
            self.unseen.append(lasting._replace(end_ns=time_ns()))
        elif capture.missed():
            self.unseen.append(UnseenStretch(self.start_ns, time_ns(), "the program ended before capture could begin"))

    def forget_capture_in_child(self) -> None:
        """After a fork: no call to CUDA or CUPTI any more."""
        self._lock = threads.OwnedLock()
        self._attaching = threads.OwnedLock()
        self._mark_no_more()
        self.armed = False
        if self.capture is not None:
            self.capture.forget_in_child()

    # --- what is known ----------------------------------------------------------------------------------------------

    def synchronise(self, timeout_s: float) -> bool:
        """True once what the device was given has finished; at once where nothing is captured."""
        capture = self.capture
        return capture is None or not capture.running or capture.synchronise(timeout_s, self.elsewhere)

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self.capture.devices() if self.capture is not None else ()

    def status(self) -> dict[str, Any]:
        if self.capture is None:
            return {"state": "unavailable", "reason": self.absent, **self._attribution()}
        return {**self.capture.status(), **self._attribution()}

    @property
    def tells_tasks(self) -> bool:
        """Whether launches can be told apart by task: not without capture, nor where buffers are shared by threads."""
        capture = self.capture
        return capture is not None and not capture.ended and capture.per_thread is not False

    def _attribution(self) -> dict[str, Any]:
        """How launches are given to blocks, and why tasks are not told apart although that was asked for."""
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

    def unseen_stretches(self) -> list[UnseenStretch]:
        """Also the one that lasts, with no end."""
        lasting = [self._budget.lasting(), self.capture.unseen_now() if self.capture is not None else None]
        return [*self.unseen, *(stretch for stretch in lasting if stretch is not None)]
