"""GPU ticks on the wall clock: pure arithmetic over what callers observed, no library, no time source of its own.

Two things are known about a timed pass: it began after the host submitted it and ended before the host saw it done.
With d the device's time, the offset ``wall - d`` therefore lies in ``[submitted - d(begin), seen - d(end)]``; many
passes narrow that interval. Where the driver reads both clocks at once (a calibrated sample) the offset is that
sample's, as long as it lies in the interval: on some drivers the two counters have different epochs
(kvark/blade#388), and only causality notices. Clocks drift, so knowledge ages; clocks step, so it can become void.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

#: Two crystals of ordinary quality drift apart by less than this.
DRIFT_PPM = 50
REANCHOR_NS = 1_000_000_000
#: Disagreement below this is jitter of taking host times in Python, not a different clock.
TOLERANCE_NS = 20_000


class Reading(NamedTuple):
    """Both clocks at one moment; ``deviation_ns``: how far apart the two readings may have been."""

    ticks: int
    wall_ns: int
    deviation_ns: int


class GpuClock:
    """Maps one device's ticks to wall-clock nanoseconds. One thread at a time.

    ``period_ns`` is the length of a tick, ``valid_bits`` the width of the counter, ``read`` gives a calibrated
    reading or None. Products are taken in integers: today's nanoseconds do not fit a double.
    """

    def __init__(
        self, period_ns: float, valid_bits: int = 64, read: Callable[[], tuple[int, int, int] | None] | None = None
    ) -> None:
        self._numerator, self._denominator = period_ns.as_integer_ratio()
        self._mask = (1 << valid_bits) - 1
        self._last: tuple[int, int] | None = None  # raw, unwrapped
        self._read = read
        self._low: int | None = None
        self._high: int | None = None
        self._bounds_at = 0
        self._offset: int | None = None  # of the calibrated reading
        self._deviation = 0
        self._anchored_at = 0
        self.steps = 0
        self.rejected: str | None = None  # why calibrated readings are not used, once they have been refused

    def duration_ns(self, begin: int, end: int) -> int:
        """Nanoseconds from ``begin`` to ``end``, across at most one wrap; negative when end came first."""
        return self._scale(self._signed(end - begin))

    def observe(self, begin: int, end: int, submitted_ns: int, seen_ns: int) -> bool:
        """Learns from one pass; False when it contradicts causality by itself, and nothing is learnt."""
        low, high = submitted_ns - self._device_ns(begin), seen_ns - self._device_ns(end)
        if low > high + TOLERANCE_NS:
            return False
        high = max(low, high)
        if self._low is None or self._high is None:
            self._low, self._high = low, high
        else:
            slack = _drift(seen_ns - self._bounds_at)
            new_low, new_high = max(self._low - slack, low), min(self._high + slack, high)
            if new_low > new_high + TOLERANCE_NS:
                self._step()
                new_low, new_high = low, high
            self._low, self._high = new_low, max(new_low, new_high)
        self._bounds_at = seen_ns
        self._last = (end & self._mask, self._unwrap(end))
        return True

    def anchor(self, now_ns: int) -> None:
        """Takes a calibrated reading when one is due. Call after :meth:`observe`, or there is nothing to check by."""
        if self._read is None or (self._offset is not None and now_ns - self._anchored_at < REANCHOR_NS):
            return
        reading = self._read()
        if reading is None:
            self._refuse("the driver stopped giving calibrated time stamps")
            return
        sample = Reading(*reading)
        offset = sample.wall_ns - self._device_ns(sample.ticks)
        if self._offset is not None:
            expected = self._deviation + sample.deviation_ns + _drift(now_ns - self._anchored_at) + TOLERANCE_NS
            if abs(offset - self._offset) > expected:
                self._step()
        beyond = self._beyond(offset, sample.deviation_ns, now_ns)
        if beyond:
            self._refuse(f"calibrated time stamps contradict the order of submission by {beyond} ns")
            return
        self._offset, self._deviation, self._anchored_at = offset, sample.deviation_ns, now_ns

    def times(self, begins: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
        """``(wall-clock start, duration)`` of each pass in nanoseconds; nothing was learnt before: an empty list."""
        starts, durations = self.columns(begins, ends)
        return list(zip(starts, durations, strict=True))

    def columns(self, begins: Sequence[int], ends: Sequence[int]) -> tuple[list[int], list[int]]:
        """The starts and the durations of :meth:`times`.

        As :meth:`wall_ns` and :meth:`duration_ns`, for many at once: this runs for every pass of a program.
        """
        origin = begins[0] if begins else 0
        wall = self.wall_ns(origin)
        if wall is None or not begins:
            return [], []
        numerator, denominator = self._numerator, self._denominator
        since = [begin - origin for begin in begins]
        lasted = [end - begin for begin, end in zip(begins, ends, strict=True)]
        half = self._mask >> 1
        if min(since) < -half or max(since) > half or min(lasted) < -half or max(lasted) > half:  # across a wrap
            since, lasted = [self._signed(ticks) for ticks in since], [self._signed(ticks) for ticks in lasted]
        if numerator == denominator:
            return [wall + ticks for ticks in since], lasted
        starts = [wall + ticks * numerator // denominator for ticks in since]
        return starts, [ticks * numerator // denominator for ticks in lasted]

    def wall_ns(self, ticks: int) -> int | None:
        """Wall-clock nanoseconds of ``ticks``; None before anything was learnt."""
        offset = self._offset
        if offset is None:
            if self._low is None or self._high is None:
                return None
            offset = (self._low + self._high) // 2
        return offset + self._device_ns(ticks)

    def quality(self, now_ns: int) -> dict[str, Any]:
        """How a time was made: ``clock`` and ``clock_uncertainty_ns``, plus or minus."""
        if self._offset is not None:
            error = self._deviation + _drift(now_ns - self._anchored_at)
            return {"clock": "calibrated", "clock_uncertainty_ns": error}
        if self._low is None or self._high is None:
            return {"clock": "none", "clock_uncertainty_ns": None}
        return {"clock": "causality", "clock_uncertainty_ns": (self._high - self._low + 1) // 2}

    def _beyond(self, offset: int, deviation: int, now_ns: int) -> int:
        """By how many nanoseconds ``offset`` lies outside what causality allows."""
        if self._low is None or self._high is None:
            return 0
        slack = deviation + _drift(now_ns - self._bounds_at) + TOLERANCE_NS
        return max(self._low - slack - offset, offset - self._high - slack, 0)

    def _step(self) -> None:
        """One of the clocks jumped: everything learnt before is void."""
        self.steps += 1
        self._low = self._high = self._offset = None

    def _refuse(self, why: str) -> None:
        self.rejected = why
        self._read = self._offset = None

    def _device_ns(self, ticks: int) -> int:
        return self._scale(self._unwrap(ticks))

    def _unwrap(self, ticks: int) -> int:
        """``ticks`` as a number that goes on growing when the counter wraps."""
        if self._last is None:
            self._last = (ticks & self._mask, ticks & self._mask)
        raw, full = self._last
        return full + self._signed(ticks - raw)

    def _signed(self, difference: int) -> int:
        difference &= self._mask
        return difference - self._mask - 1 if difference > self._mask >> 1 else difference

    def _scale(self, ticks: int) -> int:
        return ticks * self._numerator // self._denominator


def _drift(elapsed_ns: int) -> int:
    return max(0, elapsed_ns) * DRIFT_PPM // 1_000_000
