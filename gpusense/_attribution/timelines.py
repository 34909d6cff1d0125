"""Which blocks are open, as a step function of the correlation id. Pure.

A program with many blocks makes thousands of boundaries a second and few of them are ever asked about: placing one is
two appends, and the steps are worked out when they are asked for. What is kept for each is numbers in flat lists: every
object beside them would have the garbage collector come sooner.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Any

from .boundaries import CLOSE, LEAVE, OPEN, SWITCH

ENDED = 8  # another thread closed the block
UNCERTAIN = 4  # with one of these: the call was somewhere between this event's neighbours
#: The same among the events of all threads, where other neighbours say nothing: the call was before the first event
#: that came later than the time that stands in the place of the parent.
DOUBTFUL = 16
OUTSIDE = 0  # among several candidates: no block at all

#: Ids of the innermost open blocks. One: exact. None: outside every block. Several: ambiguous.
Candidates = tuple[int, ...]

#: Their correlation ids; and time, op, block and parent of each, one after the other.
Events = tuple[list[int], list[Any]]

#: What is open after an event, where each open block is the parent of the one inside it: ``(innermost block, the step
#: without it)``. None where it is a :class:`Crowd`.
Step = tuple[Any, ...]
NOTHING: Step = (OUTSIDE, None)

#: Blocks of which it is not certain whether they are open: what is about to be, or has been, done with each, OPEN or
#: CLOSE, and until when.
Doubts = dict[int, tuple[int, int]]

#: Of a crowd: the open blocks, the block that the thread is in, candidates where these are not certain, and doubts.
Snapshot = tuple[Candidates, int | None, Candidates | None, Doubts]

#: So many candidates at most. Of more, one of them is the innermost block around all, and the others are the newest.
MOST_CANDIDATES = 32
_FEW = 8  # open blocks that are looked at whether they are a chain again
_OFTEN = 32  # events, or as many as blocks are open, after which a crowd is kept to go on from
_REMEMBERED = 4_096


class Crowd:
    """What is open where that is no chain: requests in flight, threads looked at together. It goes from event to
    event, each of which costs as much as it changes.

    A block *lives* while it, or a block inside it, is open. Of each block around living ones is kept how many of these
    lie right inside it, and the exclusive or of their numbers: where there is one alone, that is its number.
    """

    __slots__ = ("_doubts", "_known", "_leaves", "_maybe", "_outer", "_within", "_xor", "inside", "opens")

    def __init__(self, known: dict[int, int | None], snapshot: Snapshot = ((), None, None, {})) -> None:
        self._known = known
        self.opens: dict[int, None] = {}
        self._leaves: dict[int, None] = {}  # those without an open block inside, the newest last
        self._outer: dict[int, int] = {}  # of each that lives
        self._within: dict[int, int] = {}
        self._xor: dict[int, int] = {}
        for block in snapshot[0]:
            self._open(block)
        self.inside, self._maybe = snapshot[1:3]
        self._doubts = dict(snapshot[3])

    def snapshot(self) -> Snapshot:
        return tuple(self.opens), self.inside, self._maybe, dict(self._doubts)

    def all_open(self) -> Candidates:
        """Blocks that are open for all that is known."""
        return *self.opens, *self._doubts

    def may_be_open(self, blocks: Candidates) -> bool:
        """Whether any of them is one of those."""
        return any(block in self.opens or block in self._doubts for block in blocks)

    def goes_on(self, time_ns: int, op: int, block: int, parent: int | None) -> None:
        """An event: switches are seen, or tasks interleave."""
        if op & DOUBTFUL:  # its place says nothing of what came before its time
            self._close(block)
            self._doubts[block] = op & ~DOUBTFUL, parent or 0
            return
        if self._doubts:
            self._decide(time_ns)
            self._doubts.pop(block, None)
        before = (self.candidates() or (OUTSIDE,)) if op & UNCERTAIN else ()
        kind = op & ~UNCERTAIN
        self._maybe = None
        if kind == SWITCH:
            self.inside = parent
        elif kind == LEAVE:
            self.__init__(self._known, (chain(parent, self._known) if parent else (), None, None, {}))  # type: ignore[misc]
        else:
            self._close(block)
            if kind == OPEN:
                self._open(block)
            if kind == ENDED:
                self.inside = self.inside if self.inside != block else self._known.get(block) or OUTSIDE
            elif self.inside is not None:
                self.inside = block if kind == OPEN else parent
        if before:  # both states are candidates
            self._maybe = tuple(sorted({*before, *(self.candidates() or (OUTSIDE,))})[-MOST_CANDIDATES:])

    def _decide(self, time_ns: int) -> None:
        """What was doubtful is done by then."""
        for block, (op, until_ns) in list(self._doubts.items()):
            if until_ns <= time_ns:
                del self._doubts[block]
                if op == OPEN:
                    self._open(block)

    def _open(self, block: int) -> None:
        if block in self.opens:
            return
        self.opens[block] = None
        if block in self._outer:  # an older one of its own is open
            return
        self._leaves[block] = None
        within, at = self._within, block
        while True:
            outer = self._outer[at] = self._known.get(at) or OUTSIDE
            self._xor[outer] = self._xor.get(outer, 0) ^ at
            within[outer] = within.get(outer, 0) + 1
            if within[outer] > 1 or outer == OUTSIDE:
                return
            if outer in self.opens:
                self._leaves.pop(outer, None)
                return
            at = outer

    def _close(self, block: int) -> None:
        if block not in self.opens:
            return
        del self.opens[block]
        self._leaves.pop(block, None)
        at = block
        while at not in self._within:
            outer = self._outer.pop(at)
            self._within[outer] -= 1
            self._xor[outer] ^= at
            if self._within[outer]:
                return
            del self._within[outer], self._xor[outer]
            if outer == OUTSIDE:
                return
            if outer in self.opens:
                self._leaves[outer] = None
                return
            at = outer

    def candidates(self) -> Candidates:
        if self._maybe is not None:
            return self._maybe
        if self.inside is not None:
            return (self.inside,) if self.inside else ()
        if self._doubts:
            return self._doubtful()
        return self._innermost()

    def _innermost(self) -> Candidates:
        if len(self._leaves) <= MOST_CANDIDATES:
            return tuple(sorted(self._leaves))
        around = OUTSIDE
        while self._within.get(around) == 1:
            around = self._xor[around]
        return tuple(sorted((around, *islice(reversed(self._leaves), MOST_CANDIDATES - 1))))

    def _doubtful(self) -> Candidates:
        """With the blocks that may be open, and in which none certainly is."""
        maybe = [block for block in self._doubts if block not in self._outer]
        if len(self._leaves) + len(maybe) <= MOST_CANDIDATES:
            return tuple(sorted({*(self._leaves or (OUTSIDE,)), *maybe}))
        return OUTSIDE, *sorted((*self._leaves, *maybe))[1 - MOST_CANDIDATES :]

    def chained(self) -> Step | None:
        """The step that says the same, where the open blocks are few, and a chain."""
        if len(self.opens) > _FEW or len(self._leaves) > 1 or self.inside is not None or self._maybe is not None:
            return None
        if self._doubts:
            return None
        around, left = list(self._leaves), self.opens.keys() - self._leaves.keys()
        while left:
            parent = self._known.get(around[-1])
            if parent not in left:
                return None
            left.remove(parent)
            around.append(parent)
        step = NOTHING
        for block in reversed(around):
            step = (block, step)
        return step


class Timeline:
    """The events of one thread, or of all; they come a buffer at a time and, with several threads, into the middle."""

    __slots__ = (
        "_at",
        "_before",
        "_by_time",
        "_crowd",
        "_kept",
        "_kept_at",
        "_known",
        "_rows",
        "_states",
        "_steps",
        "corrs",
        "old",
        "seen",
        "since",
    )

    def __init__(self, parents: dict[int, int | None]) -> None:
        self._known = parents
        self.corrs: list[int] = []
        self._rows: list[Any] = []  # as in :data:`Events`
        self._steps: list[Step | None] = []  # after each event, as far as they are worked out
        self._kept: list[Snapshot] = []  # of crowds
        self._kept_at: list[int] = []  # after so many events
        self._crowd: Crowd | None = None  # after ``_at`` events: the one that was asked for last
        self._at = 0
        self._states: dict[int, tuple[Candidates, int | None]] = {}  # of crowds that were asked for
        self._before: Step | None = NOTHING  # what was open before the first event, where others were forgotten
        self.since = -1  # what was before this id is forgotten
        self.old = self.seen = 0  # so many events there were, of this thread and of all, when somebody last looked
        self._by_time: list[tuple[int, int]] | None = None  # (time, corr) of each event, once someone asked for it

    def insert(self, corr: int, time_ns: int, op: int, block: int, parent: int | None) -> None:
        corrs, rows = self.corrs, self._rows
        if corrs and corr < corrs[-1]:
            at = bisect_right(corrs, corr)  # of several at one place the last: they come in their order, clocks do not
            corrs.insert(at, corr)
            rows[4 * at : 4 * at] = (time_ns, op, block, parent)
            self._not_worked_out(at)
        else:
            corrs.append(corr)
            rows += (time_ns, op, block, parent)
        if self._by_time is not None:
            insort(self._by_time, (time_ns, corr))

    def extend(self, corrs: list[int], rows: list[Any]) -> None:
        """As :meth:`insert` for each of some :data:`Events`."""
        behind = not self.corrs or (corrs and self.corrs[-1] <= corrs[0])
        if behind and self._by_time is None and sorted(corrs) == corrs:
            self.corrs += corrs
            self._rows += rows
            return
        rest = iter(rows)
        for event in zip(corrs, rest, rest, rest, rest, strict=True):
            self.insert(*event)

    def _not_worked_out(self, at: int) -> None:
        """What is known of events from ``at`` on holds no more."""
        del self._steps[at:]
        keep = bisect_right(self._kept_at, at)
        del self._kept[keep:], self._kept_at[keep:]
        self._states.clear()
        self._crowd = None

    def _work_out(self, count: int) -> list[Step | None]:
        """The steps after the first ``count`` events, and after those behind them as long as they are chains: who asks
        for one asks for the next soon, and a crowd is of use while it stands there."""
        steps = self._steps
        step = steps[-1] if steps else self._before
        crowd = self._crowd_after(len(steps)) if step is None else None
        self._crowd = None  # Ctrl-C may come before it says where it stands
        rest = iter(self._rows[4 * len(steps) : 4 * count if step is None else None])
        for time_ns, op, block, parent in zip(rest, rest, rest, rest, strict=True):
            if step is None:
                if len(steps) >= count:
                    break
                assert crowd is not None
                crowd.goes_on(time_ns, op, block, parent)
                step = crowd.chained()
            elif op == OPEN and (step[0] == parent or step is NOTHING):
                step = (block, step)
            elif op == CLOSE and step[0] == block:
                step = step[1]
            else:
                crowd = Crowd(self._known, (_unfolded(step), None, None, {}))
                crowd.goes_on(time_ns, op, block, parent)
                step = crowd.chained()
                if step is None:
                    self._keep(crowd, len(steps) + 1)
            steps.append(step)
            if step is None and crowd is not None and len(steps) - self._kept_at[-1] > max(_OFTEN, len(crowd.opens)):
                self._keep(crowd, len(steps))
        self._crowd, self._at = crowd if step is None else None, len(steps)
        return steps

    def _keep(self, crowd: Crowd, at: int) -> None:
        self._kept.append(crowd.snapshot())
        self._kept_at.append(at)

    def _crowd_after(self, count: int) -> Crowd:
        """After ``count`` events, as far as they are worked out; it is a crowd."""
        at, crowd = self._at, self._crowd
        if crowd is not None and at == count:
            return crowd
        last = bisect_right(self._kept_at, count) - 1
        if crowd is None or not self._kept_at[last] <= at <= count:
            at, crowd = self._kept_at[last], Crowd(self._known, self._kept[last])
        self._crowd = None  # as above
        rest = iter(self._rows[4 * at : 4 * count])
        for event in zip(rest, rest, rest, rest, strict=True):
            crowd.goes_on(*event)
        self._crowd, self._at = crowd, count
        return crowd

    def _state(self, count: int) -> tuple[Candidates, int | None]:
        """The candidates after the first ``count`` events, and the block that the thread is in where that is known."""
        step = self._step(count)
        if step is not None:
            return ((step[0],) if step[0] else ()), None
        found = self._states.get(count)
        if found is None:
            if len(self._states) >= _REMEMBERED:
                self._states.clear()
            crowd = self._crowd_after(count)
            found = self._states[count] = crowd.candidates(), crowd.inside
        return found

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
        found: list[tuple[int, int, tuple[Candidates, bool]]] = []
        while at < end:
            high = bisect_left(ids, events[at] - base, low + 1)
            found.append((low, high, (self._state(at)[0], flag)))
            low = high
            at += 1
            if at < end and events[at] - base <= ids[low]:  # no work is between them
                at = bisect_right(events, ids[low] + base, at + 1, end)
        found.append((low, len(ids), (self._state(at)[0], flag)))
        return found

    def between(self, low: int, high: int) -> list[int]:
        """Correlation ids of the events in ``low``…``high``."""
        return self.corrs[bisect_left(self.corrs, low) : bisect_right(self.corrs, high)]

    def _step(self, i: int) -> Step | None:
        """What is open after the first ``i`` events."""
        if i == 0:
            return NOTHING
        steps = self._steps
        return steps[i - 1] if i <= len(steps) else self._work_out(i)[i - 1]

    def after(self, count: int) -> Candidates:
        """What is open after the first ``count`` events."""
        return self._state(count)[0]

    def at(self, corr: int) -> Candidates:
        return self.after(self.index(corr))

    def decides(self, corr: int) -> bool:
        """Whether the thread is at ``corr`` in a block of its own, or known to be outside all."""
        candidates, inside = self._state(bisect_right(self.corrs, corr))
        return bool(candidates) or inside is not None

    def now(self) -> tuple[Candidates, int | None]:
        """All blocks that are open after the last event, and the block that the thread is in where that is known."""
        step = self._step(len(self.corrs))
        if step is not None:
            return _unfolded(step), None
        crowd = self._crowd_after(len(self.corrs))
        return crowd.all_open(), crowd.inside

    def are_open(self, blocks: Candidates) -> bool:
        """Whether any of them is, after the last event."""
        step = self._step(len(self.corrs))
        if step is None:
            return self._crowd_after(len(self.corrs)).may_be_open(blocks)
        opens = _unfolded(step)
        return any(block in opens for block in blocks)

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
            self._before = self._step(drop)
            before = self._crowd_after(drop).snapshot() if self._before is None else None
            del self.corrs[:drop], self._rows[: 4 * drop], self._steps[:drop]
            gone = bisect_right(self._kept_at, drop)
            self._kept[:gone] = [before] if before is not None else []
            self._kept_at[:gone] = [drop] if before is not None else []
            self._kept_at = [at - drop for at in self._kept_at]
            self._states.clear()
            self._crowd = None
            self.since = max(self.since, *self.corrs[:1])
            if self._by_time is not None:
                del self._by_time[:drop]


def _unfolded(step: Step) -> Candidates:
    """Open blocks, the innermost one last."""
    opens = []
    while step is not NOTHING:
        opens.append(step[0])
        step = step[1]
    return tuple(reversed(opens))


def chain(block_id: int, parents: dict[int, int | None]) -> tuple[int, ...]:
    """The block and its ancestors, innermost first."""
    ids = [block_id]
    parent = parents.get(block_id)
    while parent is not None:
        ids.append(parent)
        parent = parents.get(parent)
    return tuple(ids)


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
        return inside is None and not self._every.are_open(opens)

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
