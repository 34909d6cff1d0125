"""Keeps gpusense's own cost under a share of the time: the threshold rises, capture pauses for a part of each cycle.

:class:`Budget` decides. It is pure: the clock and the cost are given to it. The cost has two parts: the CPU time of
gpusense's own threads, and what CUPTI adds to the program's launches. First the threshold rises, so that fewer records
are kept one by one. Where that is not enough, where nothing is kept, or where the launches alone cost too much, capture
is on for only a fraction of each cycle. It comes back in the reverse order once there is room for twice as much. A part
of what CUPTI costs stays in a pause, as long as the launches go on: where that alone is above the budget, the budget is
not kept, and ``left`` says so. Where pauses may take CUPTI out of the process nothing stays, but each costs its return,
so cycles are longer.

:class:`BudgetKeeper` applies that to one tracer, and notes each pause as a time in which work was not seen. The copies
of gpusense in a process keep the smallest budget of all; one of them switches capture, and all note the pauses.
"""

from typing import Any

from .._aggregation.threshold import Threshold
from .._decode.correlation_ids import LEFT
from .._records.records import BUDGET, UnseenInterval
from .._runtime.clock import now_ns as time_ns
from ..backends.cupti.sharing import Pause
from .attachment import Capture

PERIOD_NS = 1_000_000_000  # between two decisions
LONG_NS = 10_000_000_000  # where pauses may take CUPTI out
ON_NS = 200_000_000  # the shortest time for which capture is on
HIGHEST_LEVEL = 10  # doublings of the threshold
LOWEST_FRACTION = 1 / 64  # of a cycle in which capture is on
AIM = 0.85  # of the budget, so that a steady load settles below it

REASON = BUDGET
OTHERS_REASON = f"{BUDGET} of another copy of gpusense in this process"
MAX_UNSEEN = 1_000  # pauses that are noted one by one; later ones become one
SETTLED_NS = 200_000_000  # after which nothing on the device is still recorded that began before a pause, it is hoped
WORTH_NS = 1_000_000_000  # a pause that is shorter is not worth a return of CUPTI


class Budget:
    """``step`` says whether capture is on, and decides once a cycle; it is on for ``fraction`` of the next one."""

    def __init__(self, share: float, now_ns: int) -> None:
        self.share = share
        self.level = 0  # the threshold is multiplied by 2**level
        self.fraction = 1.0
        self.on = True
        self.cost = 0.0  # share of the time in the last cycle
        self.left = 0.0  # the part of it that no pause saves
        self.leaves = False  # whether pauses may take CUPTI out
        self._cycle_ns = self._last_ns = now_ns
        self._on_ns = self._out_ns = 0  # in this cycle: capture on, CUPTI out of the process
        self._length = float(PERIOD_NS)
        self._spent_ns = self._slowed_ns = self._kept = 0

    def step(self, now_ns: int, spent_ns: int, kept: int, slowed_ns: int = 0, out: bool = False) -> bool:
        """Whether capture is to be on from now. ``spent_ns`` is CPU time, ``kept`` counts records, ``slowed_ns`` is the
        time by which launches took longer, all of them so far; ``out``: CUPTI was out of the process since the last
        step."""
        passed = now_ns - self._cycle_ns
        if self.on:
            self._on_ns += max(0, now_ns - self._last_ns)
        elif out:
            self._out_ns += max(0, now_ns - self._last_ns)
        self._last_ns = now_ns
        if passed < 0:  # the clock was set back: the cycle begins anew, or none would end for as long
            self._begin(now_ns, spent_ns, slowed_ns, kept)
        elif passed >= self._length:
            slowed = self._slowed(max(0, slowed_ns - self._slowed_ns), passed)
            self.cost = max(0, spent_ns - self._spent_ns) / passed + slowed
            if self.cost > self.share:
                self._restrain(kept > self._kept and slowed < self.share)
            elif self.cost - self.left < (self.share - self.left) / 2:
                self._relax()
            self._begin(now_ns, spent_ns, slowed_ns, kept)
            self._length = max(LONG_NS if self.leaves and self.fraction < 1 else PERIOD_NS, ON_NS / self.fraction)
        self.on = self.fraction == 1.0 or now_ns - self._cycle_ns < self.fraction * self._length
        return self.on

    def _begin(self, now_ns: int, spent_ns: int, slowed_ns: int, kept: int) -> None:
        self._cycle_ns, self._spent_ns, self._slowed_ns, self._kept = now_ns, spent_ns, slowed_ns, kept
        self._on_ns = self._out_ns = 0

    def pause_ns(self, now_ns: int) -> float:
        """What is left of the pause that lasts; 0 where capture is on."""
        return 0 if self.on else max(0.0, self._cycle_ns + self._length - now_ns)

    def _slowed(self, slowed_ns: int, passed_ns: int) -> float:
        """Share of the cycle by which launches took longer. In pauses there are as many, it is assumed, as outside."""
        paused = max(0.0, 1 - (self._on_ns + self._out_ns) / passed_ns)
        left = LEFT * slowed_ns / self._on_ns if self._on_ns else 0.0
        self.left = 0.0 if self.leaves else left
        return slowed_ns / passed_ns + left * paused

    def _restrain(self, raising_helps: bool) -> None:
        if raising_helps and self.level < HIGHEST_LEVEL and self.fraction == 1.0:
            self.level += 1
        else:
            room = self.share * AIM - self.left
            self.fraction = max(LOWEST_FRACTION, self.fraction * room / (self.cost - self.left))

    def _relax(self) -> None:
        if self.fraction < 1.0:
            # Cost grows at most with the fraction, so that twice as much still fits.
            self.fraction = 1.0 if self.fraction > 0.5 else self.fraction * 2
        elif self.level:
            self.level -= 1


class BudgetKeeper:
    """What the budget does to one tracer. ``unseen`` gets each pause of capture, whichever copy wanted it."""

    def __init__(self, unseen: list[UnseenInterval]) -> None:
        self._unseen = unseen
        self._own: float | None = None  # the limit of this copy
        self._budget: Budget | None = None  # what is kept
        self._lasting: Pause | None = None
        self._off_ns = self._began_ns = 0
        self._detaches = False  # whether the program allows it
        self.outside = False  # whether CUPTI is out of the process for the pause that lasts
        self.stays = ""  # why it is not taken out although that is allowed

    def begin(self, share: float | None, detaches: bool = False) -> None:
        """Keeps the cost below ``share`` of the time from now on; None: no limit of its own. ``detaches``: pauses may
        take CUPTI out of the process."""
        self._own, self._detaches, self.stays = share, detaches, ""
        self._keep(share)

    def _keep(self, share: float | None) -> None:
        self._off_ns, self._began_ns = 0, time_ns()
        self._budget = Budget(share, self._began_ns) if share is not None else None

    @property
    def keeps(self) -> bool:
        """Whether there is a budget, of this copy or of another."""
        return self._budget is not None

    def step(self, spent_ns: int, threshold: Threshold, capture: Capture | None, slowed_ns: int = 0) -> bool:
        """Whether capture is to be on as far as this copy decides; ``threshold`` follows. ``spent_ns`` is the CPU time
        of this copy's own threads so far, ``slowed_ns`` what CUPTI added to the program's launches."""
        share, leads = self._own, False
        if capture is not None:
            share, spent_ns, leads = capture.sharing.agree(self._own, spent_ns)
        if share != (self._budget.share if self._budget is not None else None):
            self._keep(share)
        budget = self._budget
        if budget is None:
            threshold.raise_floor(0)
            return True
        budget.leaves = leads and self._may_leave(capture)
        on = budget.step(time_ns(), spent_ns, threshold.kept, slowed_ns, self.outside and not self.stays)
        threshold.raise_floor(budget.level)
        return on or not leads

    def stay(self, reason: str) -> None:
        """No pause takes CUPTI out from now on, where that was allowed."""
        if self._detaches and not self.stays:
            self.stays = reason

    def _may_leave(self, capture: Capture | None) -> bool:
        return self._detaches and not self.stays and capture is not None and capture.sharing.alone

    def leaves_now(self, capture: Capture | None) -> bool:
        """Whether CUPTI is to be taken out for the pause that lasts: then :meth:`went_out`, and at its end
        :meth:`came_back`."""
        budget, lasting, now = self._budget, self._lasting, time_ns()
        if budget is None or lasting is None or not lasting.ours or not self._may_leave(capture):
            return False
        return now - lasting.start_ns >= SETTLED_NS and budget.pause_ns(now) >= WORTH_NS

    def went_out(self, refused: str) -> None:
        """CUPTI is out, or ``refused`` says why not; nobody captures in any case. After a :meth:`note`."""
        self.outside, self.stays = True, refused
        self._lasting = Pause(time_ns(), None, True)

    def came_back(self) -> int:
        """Since when nobody captured: a time in which work was not seen."""
        start = self._lasting.start_ns if self._lasting is not None else time_ns()
        self._off_ns += max(0, time_ns() - max(start, self._began_ns))
        self.outside, self._lasting = False, None
        return start

    def switch(self, on: bool, capture: Capture | None) -> None:
        """Capture on, or off for a while, as :meth:`step` said; :meth:`note` next."""
        if capture is None:
            return
        if on and self._lasting is not None and self._lasting.ours:
            capture.sharing.pause_kinds(False)
        elif not on and self._lasting is None and capture.running:
            capture.flush()
            capture.sharing.pause_kinds(True)

    def note(self, capture: Capture | None) -> None:
        """Notes the pauses that have ended since the last call. By one thread at a time."""
        if capture is not None and not self.outside:
            ended, self._lasting = capture.sharing.pauses()
            capture.hold_lines(self._lasting is not None)
            for pause in ended:
                self._add(pause)

    def _add(self, pause: Pause) -> None:
        end = pause.end_ns or time_ns()
        self._off_ns += max(0, end - max(pause.start_ns, self._began_ns))
        unseen, reason = self._unseen, REASON if pause.ours else OTHERS_REASON
        start = pause.start_ns
        if len(unseen) >= MAX_UNSEEN and unseen[-1].reason.startswith(reason):
            start = unseen.pop().start_ns
            reason = f"{reason}; capture was on for a part of this time"
        unseen.append(UnseenInterval(start, end, reason))

    def lasting(self) -> UnseenInterval | None:
        """The pause that lasts."""
        if self._lasting is None:
            return None
        return UnseenInterval(self._lasting.start_ns, None, REASON if self._lasting.ours else OTHERS_REASON)

    def facts(self, now_ns: int, threshold: Threshold) -> dict[str, Any]:
        """For the session: the budget, the cost, the part of it that no pause saves, and for what share of the time
        capture was on. Empty without a budget."""
        budget = self._budget
        if budget is None:
            return {}
        off = self._off_ns
        if self._lasting is not None:
            off += now_ns - max(self._lasting.start_ns, self._began_ns)
        return {
            "budget": budget.share,
            "share": budget.cost,
            "left": budget.left,
            "observed": 1 - off / max(1, now_ns - self._began_ns),
            "threshold_ns": threshold.effective_ns,
            **({"stays": self.stays} if self.stays else {}),
        }
