"""The sampler's clock and ours. Pure.

Samples are stamped by a clock of the device whose distance to ours nobody tells. Two things bound it: a sample that
was read had ended before the reading did, and one that was not there although all was read had not when the reading
began. Each reading gives a bound, and the best of many are about as far apart as a short reading takes. What is
believed lies in the middle.
"""

#: By how much the two clocks move apart, at most: 10 µs a second; 3 were measured.
DRIFT = 1e-5
#: The time until a sample can be read differs by less than this.
LARGEST_DELAY_NS = 50_000_000


class Anchor:
    """Our clock minus the sampler's, in nanoseconds; of a device, for one thread at a time."""

    def __init__(self) -> None:
        self._low: float | None = None
        self._high: float | None = None
        self._looked_ns = 0
        self._empty_since: int | None = None  # before the reading that found nothing more

    def look(self, before_ns: int, after_ns: int, first_end: int, last_end: int, drained: bool) -> None:
        """Learns from a reading: when it began and ended here, the ends of its first and last sample, whether it read
        all there was."""
        drift = abs(after_ns - self._looked_ns) * DRIFT
        self._looked_ns = after_ns
        high = after_ns - last_end
        self._high = high if self._high is None else min(self._high + drift, high)
        if self._empty_since is not None:
            low = self._empty_since - first_end
            self._low = low if self._low is None else max(self._low - drift, low)
        if self._low is not None and self._low > self._high:
            if self._low - self._high < LARGEST_DELAY_NS:  # not each sample can be read equally soon
                self._low, self._high = self._high, self._low
            else:  # one of the clocks was set
                self._low, self._high = None, high
        self._empty_since = before_ns if drained else None

    def nothing(self, before_ns: int) -> None:
        """A reading that began then found no sample."""
        self._empty_since = before_ns

    def restarted(self) -> None:
        """What is read next did not follow what was read last."""
        self._empty_since = None

    @property
    def offset_ns(self) -> int | None:
        """Our clock minus the sampler's; None before the first reading."""
        if self._high is None:
            return None
        return round(self._high if self._low is None else (self._low + self._high) / 2)

    @property
    def error_ns(self) -> int | None:
        """How far from the true one that may be, but for the time until a sample can be read."""
        return None if self._high is None or self._low is None else round((self._high - self._low) / 2)
