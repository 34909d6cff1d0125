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
    """Of one block. ``p99_ns``: None before there are enough."""

    __slots__ = ("_counts", "_look_at", "p99_ns", "passes")

    def __init__(self) -> None:
        self.passes = 0
        self.p99_ns: int | None = None
        self._counts: dict[int, int] = {}
        self._look_at = MIN_PASSES

    def add(self, length_ns: int) -> None:
        place = _place(length_ns)
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


def _place(length_ns: int) -> int:
    """Sixteen to an octave; exact below 16 ns."""
    octave = max(0, length_ns.bit_length() - 5)
    return (octave << 4) + (length_ns >> octave)


def _longest(place: int) -> int:
    """The longest that has this place."""
    octave = max(0, (place >> 4) - 1)
    return ((place - (octave << 4) + 1) << octave) - 1


class Usual:
    """The blocks of a program by their path. Used by one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[Path, _Lengths] = {}

    def pass_of(self, path: Path, length_ns: int) -> tuple[int, int] | None:
        """Counts a pass; gives the 99th percentile of those before it and their number, None where they are too few."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = _Lengths()
            if len(self._known) > MAX_BLOCKS:
                self._forget()
        p99_ns, passes = known.p99_ns, known.passes
        known.add(length_ns)
        return (p99_ns, passes) if p99_ns is not None else None

    def around(self, path: Path) -> int:
        """The 99th percentile of the outermost block around ``path`` that runs again and again; 0 without one."""
        for length in range(1, len(path)):
            known = self._known.get(path[:length])
            if known is not None and known.p99_ns is not None:
                return known.p99_ns
        return 0

    def _forget(self) -> None:
        """The half that ran least, such as blocks whose names hold a number."""
        often = sorted(self._known.items(), key=lambda item: item[1].passes, reverse=True)
        self._known = dict(often[: MAX_BLOCKS // 2])
