"""Keeps gpusense's own cost under a share of the time. Pure: the clock and the cost are told.

The cost has two parts: the CPU time of gpusense's own threads, and what CUPTI adds to the program's launches. First the
threshold rises, so that fewer records are kept one by one. Where that is not enough, where nothing is kept, or where
the launches alone cost too much, capture is on for only a part of each cycle. It comes back in the reverse order once
there is room for twice as much. A part of what CUPTI costs stays while capture is off, as long as the launches go on:
where that alone is above the budget, the budget is not kept, and ``left`` says so. Where rests may take CUPTI out of
the process nothing stays, but each costs its return, so cycles are longer.
"""

from .._decode.correlation_ids import LEFT

PERIOD_NS = 1_000_000_000  # between two decisions
LONG_NS = 10_000_000_000  # where rests may take CUPTI out
ON_NS = 200_000_000  # the shortest stretch in which capture is on
HIGHEST_LEVEL = 10  # doublings of the threshold
LOWEST_DUTY = 1 / 64
AIM = 0.85  # of the budget, so that a steady load settles below it


class Budget:
    """``step`` says whether capture is on at a moment, and decides anew once a cycle."""

    def __init__(self, share: float, now_ns: int) -> None:
        self.share = share
        self.level = 0  # the threshold is multiplied by 2**level
        self.duty = 1.0
        self.on = True
        self.cost = 0.0  # share of the time in the last cycle
        self.left = 0.0  # the part of it that no rest saves
        self.leaves = False  # whether rests may take CUPTI out
        self._cycle_ns = self._last_ns = now_ns
        self._on_ns = self._out_ns = 0  # in this cycle: capture on, CUPTI out of the process
        self._length = float(PERIOD_NS)
        self._spent_ns = self._slowed_ns = self._kept = 0

    def step(self, now_ns: int, spent_ns: int, kept: int, slowed_ns: int = 0, out: bool = False) -> bool:
        """Told the CPU time spent, the records kept, and the time by which launches took longer, all of them so far,
        and whether CUPTI was out of the process since the last step; whether capture is to be on from now."""
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
            self._length = max(LONG_NS if self.leaves and self.duty < 1 else PERIOD_NS, ON_NS / self.duty)
        self.on = self.duty == 1.0 or now_ns - self._cycle_ns < self.duty * self._length
        return self.on

    def _begin(self, now_ns: int, spent_ns: int, slowed_ns: int, kept: int) -> None:
        self._cycle_ns, self._spent_ns, self._slowed_ns, self._kept = now_ns, spent_ns, slowed_ns, kept
        self._on_ns = self._out_ns = 0

    def rest_ns(self, now_ns: int) -> float:
        """How long it is until capture is on again; 0 where it is on."""
        return 0 if self.on else max(0.0, self._cycle_ns + self._length - now_ns)

    def _slowed(self, slowed_ns: int, passed_ns: int) -> float:
        """Share of the cycle by which launches took longer. In a rest there were as many, it is assumed, as outside."""
        resting = max(0.0, 1 - (self._on_ns + self._out_ns) / passed_ns)
        left = LEFT * slowed_ns / self._on_ns if self._on_ns else 0.0
        self.left = 0.0 if self.leaves else left
        return slowed_ns / passed_ns + left * resting

    def _restrain(self, raising_helps: bool) -> None:
        if raising_helps and self.level < HIGHEST_LEVEL and self.duty == 1.0:
            self.level += 1
        else:
            room = self.share * AIM - self.left
            self.duty = max(LOWEST_DUTY, self.duty * room / (self.cost - self.left))

    def _relax(self) -> None:
        if self.duty < 1.0:
            # Cost grows at most with the duty, so that twice as much still fits.
            self.duty = 1.0 if self.duty > 0.5 else self.duty * 2
        elif self.level:
            self.level -= 1
