"""What is kept one by one: slow work, at most so much a second, and less where gpusense costs too much. Pure."""

#: A burst raises the threshold to this, about a minute, or to what was chosen where that is more: blocks spend from the
#: budget however short they are, and after a long burst of them it must not take hours to come back.
HIGHEST_NS = 1 << 36


class Threshold:
    """The chosen threshold, and the one in effect: never lower, and higher in a burst or above a floor.

    ``effective_ns`` doubles each time a second's budget is gone and comes back half-way in each calm second.
    """

    def __init__(self, chosen_ns: int, max_per_second: int) -> None:
        self.chosen_ns = self.effective_ns = self.highest_ns = chosen_ns
        self.max_per_second = max_per_second
        self.kept = 0  # device records kept because they were slow
        self._tokens = max_per_second
        self._second = 0
        self._level = 0

    def configure(self, chosen_ns: int, max_per_second: int) -> None:
        self.chosen_ns, self.max_per_second = chosen_ns, max_per_second
        self.effective_ns = self.highest_ns = self._floor()
        self._tokens = min(self._tokens, max_per_second)

    def raise_floor(self, level: int) -> None:
        """Keeps the threshold at 2**level times the chosen one at least."""
        before, self._level = self._floor(), level
        if self.effective_ns <= before:  # no burst on top of it
            self.effective_ns = self._floor()
        self.effective_ns = max(self.effective_ns, self._floor())
        self.highest_ns = max(self.highest_ns, self.effective_ns)

    def _floor(self) -> int:
        return max(1, self.chosen_ns) << self._level if self._level else self.chosen_ns

    def refill(self, now_ns: int) -> None:
        """A new second: full budget again, and the threshold half-way back."""
        second = now_ns // 1_000_000_000
        if second != self._second:
            calm = self._tokens > self.max_per_second // 2
            self._second, self._tokens = second, self.max_per_second
            if calm and self.effective_ns > self._floor():
                self.effective_ns = max(self._floor(), self.effective_ns // 2)

    def spend(self) -> bool:
        """One record of this second's budget; when it is gone the threshold doubles and the record is only counted."""
        self._tokens -= 1
        if self._tokens >= 0:
            return True
        if self._tokens % self.max_per_second == self.max_per_second - 1:
            doubled = min(max(self.effective_ns, 1) * 2, HIGHEST_NS)
            self.effective_ns = max(self.effective_ns, doubled)
            self.highest_ns = max(self.highest_ns, self.effective_ns)
        return False

    def slow(self, durations: list[int], longest: int) -> list[int]:
        """Indices of those to keep; none is longer than ``longest``."""
        if longest < self.effective_ns:
            return []
        return [i for i, duration in enumerate(durations) if duration >= self.effective_ns and self.spend()]

    def choose(self, durations: list[int], longest: int) -> list[int]:
        """As :meth:`slow`, of device records; they add to :attr:`kept`."""
        chosen = self.slow(durations, longest)
        self.kept += len(chosen)
        return chosen
