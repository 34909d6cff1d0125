"""The sampler's clock and ours. Pure.

Samples are stamped by a clock of the device whose distance to ours nobody tells, and which changes slowly. Two things
bound it: a sample that was read had ended before the reading did, and one that was not there although all was read had
not when the reading began. Each reading gives a bound, and the best of many are about as far apart as a short reading
takes. Those of two minutes say how fast the clocks move apart, too: the distance is a line between all of them.
What is believed lies in the middle.
"""

from collections import deque

#: By how much the two clocks move apart, at most: 50 µs a second; 3 were measured.
DRIFT = 5e-5
#: The time until a sample can be read differs by less than this.
LARGEST_DELAY_NS = 50_000_000
#: The best bounds are kept of each stretch of so many nanoseconds, and of so many stretches.
STRETCH_NS, STRETCHES = 10_000_000_000, 12

_Bound = tuple[int, int]  # when it held, and our clock minus the sampler's at most, or at least


class Anchor:
    """Our clock minus the sampler's, in nanoseconds; of a device, for one thread at a time."""

    def __init__(self) -> None:
        self._begun_ns = 0  # the newest stretch
        self._highs: deque[_Bound] = deque(maxlen=STRETCHES)
        self._lows: deque[_Bound] = deque(maxlen=STRETCHES)
        self._newest: tuple[_Bound | None, _Bound | None] = None, None  # of this stretch: high and low
        self._between: tuple[int, int] | None = None  # the least and the most by now
        self._empty_since: int | None = None  # before the reading that found nothing more

    def look(self, before_ns: int, after_ns: int, first_end: int, last_end: int, drained: bool) -> None:
        """Learns from a reading: when it began and ended here, the ends of its first and last sample, whether it read
        all there was."""
        if after_ns - self._begun_ns >= STRETCH_NS:
            self._begun_ns, self._newest = after_ns, (None, None)
        high, low = self._newest
        found = after_ns, after_ns - last_end
        high = self._better(self._highs, high, found, high is None or found[1] < high[1])
        if self._empty_since is not None:
            found = self._empty_since, self._empty_since - first_end
            low = self._better(self._lows, low, found, low is None or found[1] > low[1])
        self._newest = high, low
        self._empty_since = before_ns if drained else None
        self._between = self._lines(after_ns)
        if self._between is not None and self._between[0] - self._between[1] > LARGEST_DELAY_NS:
            self._between = None  # one of the clocks was set
            self._begun_ns, self._newest = 0, (None, None)
            self._lows.clear()
            self._highs.clear()
            self._highs.append((after_ns, after_ns - last_end))

    @staticmethod
    def _better(bounds: "deque[_Bound]", known: _Bound | None, found: _Bound, better: bool) -> _Bound:
        if known is None:
            bounds.append(found)
        elif better:
            bounds[-1] = found
        return found if better or known is None else known

    def nothing(self, before_ns: int) -> None:
        """A reading that began then found no sample."""
        self._empty_since = before_ns

    def restarted(self) -> None:
        """What is read next did not follow what was read last."""
        self._empty_since = None

    def _lines(self, now: int) -> tuple[int, int] | None:
        """The least and the most that it can be now: on lines that lie between all bounds. The least is above the most
        where samples could not be read equally soon. None without bounds on both sides."""
        if not self._highs or not self._lows:
            return None
        fastest, slowest = DRIFT, -DRIFT
        for low_at, low in self._lows:
            for high_at, high in self._highs:
                if high_at > low_at:
                    fastest = min(fastest, (high - low) / (high_at - low_at))
                elif high_at < low_at:
                    slowest = max(slowest, (low - high) / (low_at - high_at))
        fastest, slowest = max(fastest, -DRIFT), min(slowest, DRIFT)
        return (
            max(low + round(min(slowest, fastest) * (now - at)) for at, low in self._lows),
            min(high + round(max(slowest, fastest) * (now - at)) for at, high in self._highs),
        )

    @property
    def offset_ns(self) -> int | None:
        """Our clock minus the sampler's, at the last reading; None before the first one."""
        if self._between is not None:
            return sum(self._between) // 2
        return min(high for _, high in self._highs) if self._highs else None

    @property
    def error_ns(self) -> int | None:
        """How far from the true one that may be, but for the time until a sample can be read."""
        return None if self._between is None else abs(self._between[1] - self._between[0]) // 2 + 1
