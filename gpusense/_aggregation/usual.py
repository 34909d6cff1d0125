"""How long each block usually takes: its 99th percentile as the program runs, from counts of lengths. Pure.

Lengths that differ by less than a sixteenth are counted together, so a percentile is at most that much too high, and a
block costs a few kilobytes however often it runs. What was long ago counts less and less.
"""

from .._records.records import Path

#: Passes from which on a block has a usual length, and after which what was before counts half.
MIN_PASSES, MEMORY = 100, 20_000
MAX_BLOCKS = 2_000
_LOOK_EVERY = 64  # passes, once there are many


class _Lengths:
    """Of one block. ``p99_ns``: 0 before there are enough."""

    __slots__ = ("_counts", "_look_at", "p99_ns", "passes")

    def __init__(self) -> None:
        self.passes = 0
        self.p99_ns = 0
        self._counts: dict[int, int] = {}
        self._look_at = MIN_PASSES

    def add(self, length_ns: int) -> None:
        octave = length_ns.bit_length() - 5  # sixteen places to one; exact below 32 ns
        place = (octave << 4) + (length_ns >> octave) if octave > 0 else length_ns
        counts = self._counts
        counts[place] = counts.get(place, 0) + 1
        self.passes += 1
        if self.passes >= self._look_at:
            self._look()

    def _look(self) -> None:
        counts = self._counts
        above, longer = self.passes // 100, 0
        for place in sorted(counts, reverse=True):
            longer += counts[place]
            if longer > above:
                self.p99_ns = _longest(place)
                break
        if self.passes >= MEMORY:
            self._counts = {place: count // 2 for place, count in counts.items() if count > 1}
            self.passes = sum(self._counts.values())
        self._look_at = self.passes + max(_LOOK_EVERY, self.passes // 8)


def _longest(place: int) -> int:
    """The longest that has this place."""
    octave = max(0, (place >> 4) - 1)
    return ((place - (octave << 4) + 1) << octave) - 1


class Usual:
    """The blocks of a program by their path. Used by one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[Path, _Lengths] = {}

    def add(self, path: Path, length_ns: int) -> int:
        """Counts a pass; gives the 99th percentile of those before it, 0 where they are too few."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = _Lengths()
            if len(self._known) > MAX_BLOCKS:
                self._forget()
        p99_ns = known.p99_ns
        known.add(length_ns)
        return p99_ns

    def passes(self, path: Path) -> int:
        """That are counted for it."""
        known = self._known.get(path)
        return known.passes if known is not None else 0

    def around(self, path: Path) -> int:
        """The 99th percentile of the outermost block around ``path`` that runs again and again; 0 without one."""
        for length in range(1, len(path)):
            known = self._known.get(path[:length])
            if known is not None and known.p99_ns:
                return known.p99_ns
        return 0

    def _forget(self) -> None:
        """The half that ran least, such as blocks whose names hold a number."""
        often = sorted(self._known.items(), key=lambda item: item[1].passes, reverse=True)
        self._known = dict(often[: MAX_BLOCKS // 2])
