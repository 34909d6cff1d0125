"""What the overhead budget does to one tracer: its threshold rises, capture is off for a while, and that is told."""

from time import time_ns
from typing import Any

from ._budget import Budget
from ._capture import Capture
from ._records import UnseenStretch
from ._threshold import Threshold

REASON = "overhead budget"
MAX_UNSEEN = 1_000  # stretches; later ones become one


class Duty:
    """Whether capture is on at a moment. ``unseen`` gets each stretch in which it was off. On the recording thread."""

    def __init__(self, unseen: list[UnseenStretch]) -> None:
        self._unseen = unseen
        self._budget: Budget | None = None
        self._off_since: int | None = None
        self._off_ns = self._began_ns = 0

    def begin(self, share: float | None) -> None:
        """Keeps the cost below ``share`` of the time from now on; None: no limit."""
        self._off_ns, self._began_ns = 0, time_ns()
        self._budget = Budget(share, self._began_ns) if share is not None else None

    @property
    def limited(self) -> bool:
        return self._budget is not None

    def step(self, spent_ns: int, threshold: Threshold) -> bool:
        """Told the CPU time spent so far; whether capture is to be on, and ``threshold`` follows."""
        budget = self._budget
        if budget is None:
            return True
        on = budget.step(time_ns(), spent_ns, threshold.kept)
        threshold.raise_floor(budget.level)
        return on

    def observe(self, on: bool, capture: Capture | None) -> None:
        """Capture on, or off for a while: then the stretch is told as not seen."""
        if capture is None or on == (self._off_since is None):
            return
        if on:
            capture.duty(True)
            stretch = UnseenStretch(self._off_since or 0, time_ns(), REASON)
            self._off_ns += (stretch.end_ns or 0) - stretch.start_ns
            self._tell(stretch)
            self._off_since = None
        elif capture.running:
            capture.flush()
            if capture.duty(False):
                self._off_since = time_ns()

    def _tell(self, stretch: UnseenStretch) -> None:
        unseen = self._unseen
        if len(unseen) >= MAX_UNSEEN and unseen[-1].reason.startswith(REASON):
            first = unseen.pop().start_ns
            stretch = UnseenStretch(first, stretch.end_ns, f"{REASON}; capture was on for a part of this time")
        unseen.append(stretch)

    def facts(self, now_ns: int, threshold: Threshold) -> dict[str, Any]:
        """For the session: the budget, the cost, the share of the time in which capture was on. Empty without one."""
        budget = self._budget
        if budget is None:
            return {}
        off = self._off_ns + (now_ns - self._off_since if self._off_since is not None else 0)
        return {
            "budget": budget.share,
            "share": budget.cost,
            "observed": 1 - off / max(1, now_ns - self._began_ns),
            "threshold_ns": threshold.effective_ns,
        }
