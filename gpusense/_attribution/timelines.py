"""Which blocks are open, as a step function of the correlation id. Pure.

A program with many blocks makes thousands of boundaries a second and few of them are ever asked about: placing one is
two appends, and the steps are worked out when they are asked for. What is kept for each is numbers in flat lists: every
object beside them would have the garbage collector come sooner.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Any

from .boundaries import CLOSE, LEAVE, OPEN, SWITCH

ENDED = 8  # another thread closed the block
UNCERTAIN = 4  # with one of these: the call was somewhere between this event's neighbours
OUTSIDE = 0  # among several candidates: no block at all

#: Ids of the innermost open blocks. One: exact. None: outside every block. Several: ambiguous.
Candidates = tuple[int, ...]

#: Their correlation ids; and time, op, block and parent of each, one after the other.
Events = tuple[list[int], list[Any]]

#: What is open after an event. Where each open block is the parent of the one inside it: ``(innermost block, the step
#: without it)``. Else ``(candidates, open blocks, block the thread is in)``; the last is None where order decides.
Step = tuple[Any, ...]
NOTHING: Step = (OUTSIDE, None)


class Timeline:
    """The events of one thread, or of all; they come a buffer at a time and, with several threads, into the middle."""

    __slots__ = ("_before", "_by_time", "_known", "_rows", "_steps", "corrs", "old", "seen", "since")

    def __init__(self, parents: dict[int, int | None]) -> None:
        self._known = parents
        self.corrs: list[int] = []
        self._rows: list[Any] = []  # as in :data:`Events`
        self._steps: list[Step] = []  # after each event, as far as they are worked out
        self._before = NOTHING  # what was open before the first event, where others were forgotten
        self.since = -1  # what was before this id is forgotten
        self.old = self.seen = 0  # so many events there were, of this thread and of all, when somebody last looked
        self._by_time: list[tuple[int, int]] | None = None  # (time, corr) of each event, once someone asked for it

    def insert(self, corr: int, time_ns: int, op: int, block: int, parent: int | None) -> None:
        corrs, rows = self.corrs, self._rows
        if corrs and (corr < corrs[-1] or (corr == corrs[-1] and time_ns < rows[-4])):
            at = bisect_right(corrs, corr)
            while at and corrs[at - 1] == corr and rows[4 * at - 4] > time_ns:
                at -= 1  # several whose place is only known roughly
            corrs.insert(at, corr)
            rows[4 * at : 4 * at] = (time_ns, op, block, parent)
            del self._steps[at:]
        else:
            corrs.append(corr)
            rows += (time_ns, op, block, parent)
        if self._by_time is not None:
            insort(self._by_time, (time_ns, corr))

    def extend(self, corrs: list[int], rows: list[Any]) -> None:
        """As :meth:`insert` for each of some :data:`Events`."""
        times = rows[::4]
        behind = not self.corrs or (corrs and self.corrs[-1] <= corrs[0] and self._rows[-4] <= times[0])
        if behind and self._by_time is None and sorted(corrs) == corrs and sorted(times) == times:
            self.corrs += corrs
            self._rows += rows
            return
        rest = iter(rows)
        for event in zip(corrs, rest, rest, rest, rest, strict=True):
            self.insert(*event)

    def _work_out(self) -> list[Step]:
        steps = self._steps
        step = steps[-1] if steps else self._before
        rest = iter(self._rows[4 * len(steps) :])
        for _, op, block, parent in zip(rest, rest, rest, rest, strict=True):
            if op == OPEN and (step[0] == parent or step is NOTHING):
                step = (block, step)
            elif op == CLOSE and step[0] == block:
                step = step[1]
            else:
                step = _irregular(step, op, block, parent, self._known)
            steps.append(step)
        return steps

    def index(self, corr: int) -> int:
        """Number of events at or before ``corr``; 0 means before all of them."""
        return bisect_right(self.corrs, corr)

    def segments(
        self, ids: Sequence[int], last: int, base: int, flag: bool
    ) -> list[tuple[int, int, tuple[Candidates, bool]]]:
        """``(low, high, (candidates, flag))`` for segments of ``ids`` between which no event lies.

        ``ids`` ascend, ``base`` is to be added to each, and ``last`` is what the last then is. With many blocks this is
        most of the work.
        """
        events, low = self.corrs, 0
        at = bisect_right(events, ids[0] + base)
        end = bisect_right(events, last, at)
        steps = self._steps if end <= len(self._steps) else self._work_out()
        found: list[tuple[int, int, tuple[Candidates, bool]]] = []
        while at < end:
            high = bisect_left(ids, events[at] - base, low + 1)
            found.append((low, high, (_candidates(steps[at - 1]) if at else (), flag)))
            low = high
            at += 1
            if at < end and events[at] - base <= ids[low]:  # no work is between them
                at = bisect_right(events, ids[low] + base, at + 1, end)
        found.append((low, len(ids), (_candidates(steps[at - 1]) if at else (), flag)))
        return found

    def between(self, low: int, high: int) -> list[int]:
        """Correlation ids of the events in ``low``…``high``."""
        return self.corrs[bisect_left(self.corrs, low) : bisect_right(self.corrs, high)]

    def _step(self, i: int) -> Step:
        """What is open after the first ``i`` events."""
        if i == 0:
            return NOTHING
        steps = self._steps
        return steps[i - 1] if i <= len(steps) else self._work_out()[i - 1]

    def after(self, count: int) -> Candidates:
        """What is open after the first ``count`` events."""
        return _candidates(self._step(count))

    def at(self, corr: int) -> Candidates:
        return self.after(self.index(corr))

    def decides(self, corr: int) -> bool:
        """Whether the thread is at ``corr`` in a block of its own, or known to be outside all."""
        step = self._step(bisect_right(self.corrs, corr))
        return bool(step[0]) or (len(step) == 3 and step[2] is not None)

    def now(self) -> tuple[Candidates, int | None]:
        """All blocks that are open after the last event, and the block that the thread is in where that is known."""
        return _unfolded(self._step(len(self.corrs)))

    def open_now(self) -> Candidates:
        return self.now()[0]

    def placed_before(self, time_ns: int) -> int:
        """Where the last event before ``time_ns`` lies among the launches; 0 where there is none."""
        if self._by_time is None:
            self._by_time = sorted(zip(self._rows[::4], self.corrs, strict=True))
        at = bisect_left(self._by_time, (time_ns, 0))
        return self._by_time[at - 1][1] if at else 0

    def forget_before(self, keep: int) -> None:
        drop = len(self.corrs) - keep
        if drop > 0:
            self._before = self._work_out()[drop - 1]
            del self.corrs[:drop], self._rows[: 4 * drop], self._steps[:drop]
            self.since = max(self.since, *self.corrs[:1])
            if self._by_time is not None:
                del self._by_time[:drop]


def _candidates(step: Step) -> Candidates:
    inside = step[0]
    return inside if len(step) == 3 else (inside,) if inside else ()


def _irregular(step: Step, op: int, block: int, parent: int | None, known: dict[int, int | None]) -> Step:
    """The step after ``step`` for every event: tasks interleave, threads are looked at together, switches are seen."""
    opens, inside = _unfolded(step)
    kind = op & ~UNCERTAIN
    if kind == SWITCH:
        inside = parent
    elif kind == LEAVE:
        inside, opens = None, chain(parent, known) if parent else ()
    else:
        opens = tuple(other for other in opens if other != block)
        if kind == OPEN:
            opens = (*opens, block)
        if kind == ENDED:
            inside = inside if inside != block else known.get(block) or OUTSIDE
        elif inside is not None:
            inside = block if kind == OPEN else parent
    candidates = _innermost(opens, known) if inside is None else (inside,) if inside else ()
    if op & UNCERTAIN:  # both states are candidates
        candidates = tuple(sorted({*(candidates or (OUTSIDE,)), *(_candidates(step) or (OUTSIDE,))}))
    elif inside is None and len(candidates) <= 1:
        return _nested(opens, candidates, known) or (candidates, opens, None)
    return candidates, opens, inside


def _unfolded(step: Step) -> tuple[Candidates, int | None]:
    """Open blocks, and the block that the thread is in where that is known."""
    if len(step) == 3:
        return step[1], step[2]
    opens = []
    while step is not NOTHING:
        opens.append(step[0])
        step = step[1]
    return tuple(reversed(opens)), None


def _nested(opens: Candidates, candidates: Candidates, known: dict[int, int | None]) -> Step | None:
    """The short form of a step with at most one innermost block, where each other block is the parent of the one inside
    it."""
    around, left = list(candidates), set(opens).difference(candidates)
    while left:
        parent = known.get(around[-1])
        if parent not in left:
            return None
        left.remove(parent)
        around.append(parent)
    step = NOTHING
    for block in reversed(around):
        step = (block, step)
    return step


def chain(block_id: int, parents: dict[int, int | None]) -> tuple[int, ...]:
    """The block and its ancestors, innermost first."""
    ids = [block_id]
    parent = parents.get(block_id)
    while parent is not None:
        ids.append(parent)
        parent = parents.get(parent)
    return tuple(ids)


def _innermost(open_blocks: Candidates, parents: dict[int, int | None]) -> Candidates:
    """Open blocks that are no ancestor of another open block."""
    if len(open_blocks) <= 1:
        return open_blocks
    inner = set(open_blocks)
    for block in open_blocks:
        parent = parents.get(block)
        while parent is not None:
            inner.discard(parent)
            parent = parents.get(parent)
    return tuple(sorted(inner))


# --- many threads -----------------------------------------------------------------------------------------------------

#: As much memory as of so many events goes for a timeline itself.
WEIGHT = 4
#: Ids of threads are addresses, a page at least apart: none of those below 2**32 share a slot, nor do small numbers.
_SLOTS = 1 << 20
_HELPED, _OWNED = 1, 2
_MAX_LIVES = 64  # of threads with the same id, one after the other


class Forgotten:
    """What is known of a thread without its events: as much of a :class:`Timeline` as the placing of records asks
    for. ``every``: the timeline of all threads."""

    __slots__ = ("_every", "_until", "owned")

    def __init__(self, every: Timeline, until: int, owned: bool) -> None:
        self._every = every
        self._until = until  # from here on it had none
        self.owned = owned  # its kernels are in no block of another

    def index(self, corr: int) -> int:
        """Equal for two ids that have the same candidates."""
        if corr < self._until:
            return self._every.index(corr)
        return -1 if self.owned else -1 - self._every.index(corr)

    def between(self, low: int, high: int) -> list[int]:
        until = self._until
        cuts = self._every.between(low, min(high, until) if self.owned else high)
        return [*cuts, until] if low <= until <= high else cuts

    def at(self, corr: int) -> Candidates:
        if corr >= self._until:
            return () if self.owned else self._every.at(corr)
        candidates = self._every.at(corr)
        return candidates if not candidates or OUTSIDE in candidates else (OUTSIDE, *candidates)


class Threads:
    """The timelines of threads, for as many as the newest events need: a server may have a thread for each request, for
    weeks. ``every``: the timeline of all of them together. Whoever adds events counts them in ``added``, and calls
    :meth:`look` when that has come to ``look_at``: that looks after a few timelines at a time, those first for which it
    was longest ago, so that nobody waits for all of them.

    - The newest events are kept, whichever thread they are of; of each timeline also the last one before these, because
      it says what was open.
    - A thread that opened and closed nothing meanwhile goes, unless a block of its is open, or its tasks are followed.
    - Of a thread that went it stays known whether it owned its kernels. Then what it launches is outside every block,
      and not in that of another. A new thread with its id begins so, as one with the id of a thread that stayed does.
    - What was launched while events were that are forgotten, and comes only now, may have been outside or in any block
      that was open: all of them are candidates.
    """

    __slots__ = (
        "_every",
        "_gone",
        "_looked_at",
        "_order",
        "_parents",
        "_until",
        "added",
        "ends",
        "lines",
        "look_at",
        "rooted",
        "roots",
    )

    def __init__(self, every: Timeline, parents: dict[int, int | None]) -> None:
        self.lines: dict[int, Timeline] = {}
        self.rooted: set[int] = set()  # opened a block without a parent: they own their kernels
        self.ends: dict[int, list[int]] = {}  # where threads ended whose ids others may have now
        self.roots: dict[int, list[int]] = {}  # of each of these threads, that had such a block: a place in its life
        self.added = self.look_at = 0  # events so far, and timelines by their weight
        self._looked_at = 0
        self._order: deque[int] = deque()  # threads, the one first that was longest not looked at
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
        self._order.append(thread)
        return line

    def end(self, thread: int, corr: int) -> None:
        """A thread ended. What has its id from here on is another one."""
        if thread not in self.lines and not self._was(thread) and thread not in self.rooted:
            return
        if thread not in self.lines:
            self.begin(thread)
        ends = self.ends.setdefault(thread, [])
        roots = self.roots.setdefault(thread, [corr - 1] if thread in self.rooted else [])
        roots[:] = [root if root > corr else min(root, corr - 1) for root in roots]
        insort(ends, corr)
        if len(ends) > _MAX_LIVES:
            del ends[: _MAX_LIVES // 2]
            roots[:] = [ends[0] - 1, *(root for root in roots if root >= ends[0])]

    def root(self, thread: int, corr: int) -> None:
        """It opened a block without a parent."""
        if thread in self.ends and not self.owns(thread, corr):
            self.roots[thread].append(corr)

    def owns(self, thread: int, corr: int) -> bool:
        """Whether what a thread launches at ``corr`` is in its own blocks, or outside all."""
        ends = self.ends.get(thread)
        if ends is None or thread not in self.rooted:
            return thread in self.rooted
        life = bisect_right(ends, corr)
        return any(bisect_right(ends, root) == life for root in self.roots[thread])

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
        """Forgets what came before the ``most // 2`` newest events, in those timelines that nobody has looked at for
        longest; so about ``most`` events are kept. Threads that are ``waiting`` for the place of an event stay."""
        between = (most >> 8) or 1
        before = self.added - most // 2 + between
        stay: Container[int] | None = None
        lines, order = self.lines, self._order
        for _ in range(min(len(order), 2 * (self.added - self._looked_at))):
            thread = order[0]
            line = lines[thread]
            if line.seen > before:
                break
            order.popleft()
            fresh = len(line.corrs) - line.old
            if not fresh and self._is_over(line):
                stay = waiting() if stay is None else stay
                if thread not in stay:
                    self._drop(thread, line)
                    continue
            line.forget_before(fresh + 1)
            line.old, line.seen = len(line.corrs), self.added
            order.append(thread)
        self._looked_at, self.look_at = self.added, self.added + between

    def _is_over(self, line: Timeline) -> bool:
        """Whether order decides and nothing is open; what another thread closed is open here, but not among all."""
        opens, inside = line.now()
        return inside is None and (not opens or set(opens).isdisjoint(self._every.open_now()))

    def _drop(self, thread: int, line: Timeline) -> None:
        if self._gone is None:
            self._gone = bytearray(_SLOTS)
        self._until = max(self._until, *line.corrs[-1:])
        self._gone[_slot(thread)] = _OWNED if self.owns(thread, self._until) else _HELPED
        self.rooted.discard(thread)
        self.ends.pop(thread, None)
        self.roots.pop(thread, None)
        del self.lines[thread]


def _slot(thread: int) -> int:
    return (thread ^ thread >> 12) % _SLOTS
