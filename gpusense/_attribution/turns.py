"""The timelines of threads, for as many as the newest events need. Pure.

A server may have a thread for each request, for weeks. Rules:

- The newest events are kept, whichever thread they are of; of each timeline also the last one before these, because it
  says what was open.
- A thread that opened and closed nothing meanwhile goes, unless a block of its is open, or its tasks are followed.
- Of a thread that went it stays known whether it owned its kernels. Then what it launches is outside every block, and
  not in that of another. A new thread with its id begins so, as one with the id of a thread that stayed does.
- What was launched while events were that are forgotten, and comes only now, may have been outside or in any block
  that was open: all of them are candidates.
"""

from collections import deque
from collections.abc import Callable, Container

from .timelines import OUTSIDE, Leaves, Timeline

#: As much memory as of so many events goes for a timeline itself.
WEIGHT = 4
#: Ids of threads are addresses, a page at least apart: none of those below 2**32 share a slot, nor do small numbers.
_SLOTS = 1 << 20
_HELPED, _OWNED = 1, 2


class Forgotten:
    """What can be told of a thread without its events: as much of a :class:`Timeline` as the placing of records asks
    for. ``every``: the timeline of all threads."""

    __slots__ = ("_every", "_until", "owned")

    def __init__(self, every: Timeline, until: int, owned: bool) -> None:
        self._every = every
        self._until = until  # from here on it had none
        self.owned = owned  # its kernels are in no block of another

    def index(self, corr: int) -> int:
        """Equal for two ids that have the same leaves."""
        if corr < self._until:
            return self._every.index(corr)
        return -1 if self.owned else -1 - self._every.index(corr)

    def between(self, low: int, high: int) -> list[int]:
        until = self._until
        cuts = self._every.between(low, min(high, until) if self.owned else high)
        return [*cuts, until] if low <= until <= high else cuts

    def at(self, corr: int) -> Leaves:
        if corr >= self._until:
            return () if self.owned else self._every.at(corr)
        leaves = self._every.at(corr)
        return leaves if not leaves or OUTSIDE in leaves else (OUTSIDE, *leaves)


class Threads:
    """``every``: the timeline of all of them together. Whoever adds events counts them in ``added``, and calls
    :meth:`look` when that has come to ``look_at``: each timeline has its turn, a few at a time, so that nobody waits
    for all of them."""

    __slots__ = ("_every", "_gone", "_looked_at", "_parents", "_turns", "_until", "added", "lines", "look_at", "rooted")

    def __init__(self, every: Timeline, parents: dict[int, int | None]) -> None:
        self.lines: dict[int, Timeline] = {}
        self.rooted: set[int] = set()  # opened a block without a parent: they own their kernels
        self.added = self.look_at = 0  # events so far, and timelines by their weight
        self._looked_at = 0
        self._turns: deque[int] = deque()  # threads, the one whose turn was longest ago first
        self._every = every
        self._parents = parents
        self._gone: bytearray | None = None  # by slot
        self._until = 0

    def begin(self, thread: int) -> Timeline:
        """The timeline of a thread that has none."""
        line = self.lines[thread] = Timeline(self._parents)
        was = self._was(thread)
        if was:
            line.since = self._until
            if was == _OWNED:
                self.rooted.add(thread)
        self.added += WEIGHT
        line.seen = self.added
        self._turns.append(thread)
        return line

    def _was(self, thread: int) -> int:
        """What a thread was that went."""
        return self._gone[_slot(thread)] if self._gone is not None else 0

    def forgotten(self, thread: int) -> Forgotten | None:
        """For a thread without a timeline, or before it: what is known of it if there was one."""
        line = self.lines.get(thread)
        if line is not None:
            return Forgotten(self._every, line.since, thread in self.rooted)
        was = self._was(thread)
        return Forgotten(self._every, self._until, was == _OWNED) if was else None

    def placed_before(self, thread: int, time_ns: int) -> int:
        """As of its timeline; at the end of what is forgotten where it would be in there."""
        line = self.lines.get(thread)
        if line is not None:
            return max(line.placed_before(time_ns), line.since)
        return self._until if self._was(thread) else 0

    def look(self, most: int, waiting: Callable[[], Container[int]]) -> None:
        """Forgets what came before the ``most // 2`` newest events, as far as it is the turn of its thread; so there
        are about ``most`` of them. Threads that are ``waiting`` for the place of an event stay."""
        between = (most >> 8) or 1
        before = self.added - most // 2 + between
        stay: Container[int] | None = None
        lines, turns = self.lines, self._turns
        for _ in range(min(len(turns), 2 * (self.added - self._looked_at))):
            thread = turns[0]
            line = lines[thread]
            if line.seen > before:
                break
            turns.popleft()
            fresh = len(line.corrs) - line.old
            if not fresh and self._is_over(line):
                stay = waiting() if stay is None else stay
                if thread not in stay:
                    self._drop(thread, line)
                    continue
            line.forget_before(fresh + 1)
            line.old, line.seen = len(line.corrs), self.added
            turns.append(thread)
        self._looked_at, self.look_at = self.added, self.added + between

    def _is_over(self, line: Timeline) -> bool:
        """Whether order decides and nothing is open; what another thread closed is open here, but not among all."""
        opens, inside = line.now()
        return inside is None and (not opens or set(opens).isdisjoint(self._every.open_now()))

    def _drop(self, thread: int, line: Timeline) -> None:
        if self._gone is None:
            self._gone = bytearray(_SLOTS)
        self._gone[_slot(thread)] = _OWNED if thread in self.rooted else _HELPED
        self._until = max(self._until, *line.corrs[-1:])
        self.rooted.discard(thread)
        del self.lines[thread]


def _slot(thread: int) -> int:
    return (thread ^ thread >> 12) % _SLOTS
