"""What the overhead budget does to one tracer: its threshold rises, capture is off for a while, and that is told.

The copies of gpusense in a process keep the smallest budget of all; one of them switches capture, and all are told.
"""

from time import time_ns
from typing import Any

from .._aggregation.threshold import Threshold
from .._records.records import BUDGET, UnseenStretch
from ..backends.cupti.sharing import Stretch
from .attachment import Capture
from .budget import Budget

REASON = BUDGET
OTHERS_REASON = f"{BUDGET} of another copy of gpusense in this process"
MAX_UNSEEN = 1_000  # stretches; later ones become one
SETTLED_NS = 200_000_000  # after which nothing on the device is still recorded that began before a rest, it is hoped
WORTH_NS = 1_000_000_000  # a rest that is shorter is not worth a return of CUPTI


class Duty:
    """Whether capture is on at a moment. ``unseen`` gets each stretch in which it was off, whoever wanted it."""

    def __init__(self, unseen: list[UnseenStretch]) -> None:
        self._unseen = unseen
        self._own: float | None = None  # what this copy was told
        self._budget: Budget | None = None  # what is kept
        self._lasting: Stretch | None = None
        self._off_ns = self._began_ns = 0
        self._detaches = False  # whether the program allows it
        self.outside = False  # whether CUPTI is out of the process for the rest that lasts
        self.stays = ""  # why it is not taken out although that is allowed

    def begin(self, share: float | None, detaches: bool = False) -> None:
        """Keeps the cost below ``share`` of the time from now on; None: no limit of its own. ``detaches``: rests may
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
        """Told the CPU time that this copy's own threads spent so far, and what CUPTI added to the program's launches;
        whether capture is to be on as far as this copy decides, and ``threshold`` follows."""
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
        """No rest takes CUPTI out from now on, where that was allowed."""
        if self._detaches and not self.stays:
            self.stays = reason

    def _may_leave(self, capture: Capture | None) -> bool:
        return self._detaches and not self.stays and capture is not None and capture.sharing.alone

    def leaves_now(self, capture: Capture | None) -> bool:
        """Whether CUPTI is to be taken out for the rest that lasts: then :meth:`went_out`, and :meth:`came_back` at its
        end."""
        budget, lasting, now = self._budget, self._lasting, time_ns()
        if budget is None or lasting is None or not lasting.ours or not self._may_leave(capture):
            return False
        return now - lasting.start_ns >= SETTLED_NS and budget.rest_ns(now) >= WORTH_NS

    def went_out(self, refused: str) -> None:
        """CUPTI is out, or ``refused`` says why not; nobody captures in any case. After a :meth:`look`."""
        self.outside, self.stays = True, refused
        self._lasting = Stretch(time_ns(), None, True)

    def came_back(self) -> int:
        """Since when nobody captured, to be told as not seen."""
        start = self._lasting.start_ns if self._lasting is not None else time_ns()
        self._off_ns += max(0, time_ns() - max(start, self._began_ns))
        self.outside, self._lasting = False, None
        return start

    def observe(self, on: bool, capture: Capture | None) -> None:
        """Capture on, or off for a while, as :meth:`step` said; :meth:`look` next."""
        if capture is None:
            return
        if on and self._lasting is not None and self._lasting.ours:
            capture.sharing.rest(False)
        elif not on and self._lasting is None and capture.running:
            capture.flush()
            capture.sharing.rest(True)

    def look(self, capture: Capture | None) -> None:
        """Tells the stretches that have ended since the last look. By one thread at a time."""
        if capture is not None and not self.outside:
            ended, self._lasting = capture.sharing.stretches()
            capture.hold_lines(self._lasting is not None)
            for stretch in ended:
                self._tell(stretch)

    def _tell(self, stretch: Stretch) -> None:
        end = stretch.end_ns or time_ns()
        self._off_ns += max(0, end - max(stretch.start_ns, self._began_ns))
        unseen, reason = self._unseen, REASON if stretch.ours else OTHERS_REASON
        start = stretch.start_ns
        if len(unseen) >= MAX_UNSEEN and unseen[-1].reason.startswith(reason):
            start = unseen.pop().start_ns
            reason = f"{reason}; capture was on for a part of this time"
        unseen.append(UnseenStretch(start, end, reason))

    def lasting(self) -> UnseenStretch | None:
        """The stretch in which capture is off now."""
        if self._lasting is None:
            return None
        return UnseenStretch(self._lasting.start_ns, None, REASON if self._lasting.ours else OTHERS_REASON)

    def facts(self, now_ns: int, threshold: Threshold) -> dict[str, Any]:
        """For the session: the budget, the cost, the part of it that no rest saves, and for what share of the time
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
