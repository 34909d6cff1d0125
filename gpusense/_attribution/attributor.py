"""Which block launched a record: launch order and launching thread, nothing per launch. Pure: no clock, no ctypes.

Every record carries a correlation id that grows with each API call of the process. A block's start and end are placed
among them: by the newest id at that moment, where it can be read, else by one recognisable call (a *marker*), so its
launches have ids in between. Where CUPTI fills one buffer per thread,
the thread that asked for the buffer is the thread that launched, and each thread is resolved on its own.

Rules: a marker identifies itself by thread and time bracket, never by its order, so a lost one costs only itself. Order
decides only where the open blocks form one parent chain; elsewhere the record is ambiguous and lists its candidates.

Where switches between tasks are marked, too, a thread is in one block at a time, the one that the last boundary names,
and what else is open on it does not matter.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, count, islice, takewhile
from operator import gt

from .._decode.correlation_ids import Widener
from .._records.records import Path
from .boundaries import CLOSE, DARK, GONE, LEAVE, LIT, OPEN, Boundary, Placed
from .timelines import DOUBTFUL, ENDED, UNCERTAIN, Candidates, Events, Forgotten, Threads, Timeline, chain

#: CUPTI's clock lies within 0.1 µs of the wall clock on Linux; a marker may sit this far outside its bracket.
BRACKET_SLACK_NS = 2_000
THREAD_MASK = 0xFFFFFFFF
MAX_EVENTS = 100_000
MAX_BLOCKS = 100_000
MAX_DARK = 10_000  # times in which nothing is seen; no record comes from before so many


def _around(queue: "deque[Boundary]", at_ns: int) -> tuple[int, int, Boundary] | None:
    """The boundary of one thread whose call was at ``at_ns``, after how far outside its bracket that is, and its width.

    Of several that fit the last: a call that is read before it returned has a bracket wide open.
    """
    best = None
    for event in queue:
        if event.before_ns - BRACKET_SLACK_NS > at_ns:
            break
        outside = max(event.before_ns - at_ns, at_ns - event.after_ns, 0)
        if outside <= BRACKET_SLACK_NS and (best is None or outside <= best[0]):
            best = outside, event.after_ns - event.before_ns, event
    return best


class Attributor:
    """Collects boundaries and marker records; answers which block a correlation id of a thread belongs to.

    Used by one thread at a time (the drain thread, or a reader replaying a session file).
    """

    def __init__(self) -> None:
        self._parents: dict[int, int | None] = {}
        self._names: dict[int, str] = {}
        self._paths: dict[int, Path] = {}
        self._all = Timeline(self._parents)
        self._kept = Threads(self._all, self._parents)
        self._threads, self._rooted = self._kept.lines, self._kept.rooted
        self._homes: dict[int, int] = {}  # block that is open → thread
        self._elsewhere: dict[int, int] = {}  # block that another thread closed → thread, until its end has a place
        self._pending: dict[int, deque[Boundary]] = {}  # of threads that have any
        self._tokens: dict[int, Boundary] = {}  # in the order of issue
        self._failed: set[int] = set()  # of them: no record will come
        self._stay = 0  # blocks that had to stay when some were forgotten last
        self._dark: list[tuple[int, int]] = []  # from the one id on, and up to before the other, nothing is seen
        self._dark_from: int | None = None  # where that lasts
        self.light: Boundary | None = None  # a LIT that waits for its record
        self.light_since_ns = 0  # when the first one was made of which no record came
        self._lit_at: int | None = None  # the place of the first LIT
        self._dark_since_ns = 0  # when that began, where the place of the DARK is not known
        self._lit_late = False  # whether it ends with the next boundary that has a place
        self.lost_markers = 0

    def boundary(self, event: Boundary, corr: int | None = None) -> None:
        """A block was opened or closed, or a thread went on in another one. ``corr`` where it is known at once (blocks
        open before capture began: 0)."""
        if event.op == OPEN:
            self.know(event.block_id, event.parent_id, event.name)
            self._homes[event.block_id] = event.thread
            if event.parent_id is None:
                self._rooted.add(event.thread & THREAD_MASK)
        elif event.op == CLOSE:
            home = self._homes.pop(event.block_id, event.thread)
            if home != event.thread:
                self._elsewhere[event.block_id] = home
        if corr is not None:
            self._place(event, corr)
        elif event.token:
            self._tokens[event.token] = event
            if event.op == LIT:
                self.light_since_ns = event.before_ns if self.light is None else self.light_since_ns
                self.light = event
        else:
            self._pending.setdefault(event.thread & THREAD_MASK, deque()).append(event)

    def boundaries_after(self, items: Iterable[Placed], widener: Widener) -> None:
        """As :meth:`boundary` for each of ``items``, which hold 32 bits of the newest id."""
        parents, names, homes, widen = self._parents, self._names, self._homes, widener.widen_one
        every: Events = [], []
        threads: dict[int, Events] = {}
        for _, op, block, parent, thread, time_ns, name, newest in items:
            if op == OPEN:
                parents[block] = parent
                names[block] = name
                homes[block] = thread
                if parent is None:
                    self._rooted.add(thread & THREAD_MASK)
            corr = widen((newest + 1) & 0xFFFFFFFF)
            if op == GONE or (op == OPEN and parent is None and self._kept.ends):
                op = self._lives(op, thread, corr)
            row = time_ns, op, block, parent
            if op == CLOSE and (home := homes.pop(block, thread)) != thread:
                corrs, rows = threads.get(home) or threads.setdefault(home, ([], []))
                corrs.append(corr)
                rows += (time_ns, ENDED, block, None)
            corrs, rows = threads.get(thread) or threads.setdefault(thread, ([], []))
            corrs.append(corr)
            rows += row
            if block:
                every[0].append(corr)
                every[1].extend(row)
        for thread, events in threads.items():
            self._timeline(thread).extend(*events)
            self._kept.added += len(events[0])
        self._all.extend(*every)
        self._forget()

    def _lives(self, op: int, thread: int, corr: int) -> int:
        """A thread ended, or opened a block without a parent. Gives what that is on its timeline."""
        if op == GONE:
            self._kept.end(thread & THREAD_MASK, corr)
            return LEAVE
        self._kept.root(thread & THREAD_MASK, corr)
        return op

    def _timeline(self, thread: int) -> Timeline:
        return self._threads.get(thread & THREAD_MASK) or self._kept.begin(thread & THREAD_MASK)

    def know(self, block_id: int, parent_id: int | None, name: str) -> None:
        """Name and parent of a block, without a place among the launches."""
        self._parents[block_id] = parent_id
        self._names[block_id] = name
        if len(self._parents) > max(MAX_BLOCKS, 2 * self._stay):
            self._forget_blocks()

    def _forget(self) -> None:
        """The older half of what has become too much."""
        if len(self._all.corrs) > MAX_EVENTS:
            self._all.forget_before(MAX_EVENTS // 2)
        if self._kept.added >= self._kept.look_at:
            self._kept.look(MAX_EVENTS, self._waiting)
        if len(self._parents) > max(MAX_BLOCKS, 2 * self._stay):
            self._forget_blocks()

    def _forget_blocks(self) -> None:
        """Drops the older half of the closed blocks; those still open keep their ancestors. So many may be open that
        nothing can be dropped: the next time is when there are twice as many."""
        ids = list(self._parents)
        needed: set[int] = set()
        for block in self._all.open_now():
            at: int | None = block
            while at is not None and at not in needed:
                needed.add(at)
                at = self._parents.get(at)
        self._stay = len(needed)
        needed.update(ids[len(ids) // 2 :])
        for block in ids:
            if block not in needed:
                del self._parents[block], self._names[block]
                self._paths.pop(block, None)
                self._homes.pop(block, None)

    def marker(self, thread: int, start_ns: int, corr: int) -> bool:
        """A marker record arrived; False if it is none of ours (the program made the same call)."""
        pending = self._pending
        threads = [thread & THREAD_MASK] if thread else list(pending)
        found = [(*best, key) for key in threads if key in pending and (best := _around(pending[key], start_ns))]
        if not found:
            return False
        _, _, event, key = min(found, key=lambda fit: fit[:2])
        pending[key].remove(event)  # earlier ones stay: buffers of one thread may come out of order
        if not pending[key]:
            del pending[key]
        self._place(event, corr)
        return True

    def token(self, token: int, corr: int) -> bool:
        """As :meth:`marker`, for a record that carries the token of its boundary."""
        event = self._tokens.pop(token, None)
        if event is None:
            return False
        self._failed.discard(token)
        self._place(event, corr)
        self._sweep()
        return True

    def _place(self, event: Boundary, corr: int, flag: int = 0) -> None:
        op, block, parent, thread, before_ns, after_ns, _, _ = event
        if op in (DARK, LIT):
            self._see(event, corr, bool(flag))
            return
        if op == GONE or (op == OPEN and parent is None and self._kept.ends):
            op = self._lives(op, thread, corr)
        if (self._lit_late or self._dark_since_ns) and not flag:
            self._see(event, corr, False)
        timeline = self._threads.get(thread & THREAD_MASK) or self._timeline(thread)
        timeline.insert(corr, before_ns, op | flag, block, parent)
        if block:
            if flag:
                self._all.insert(corr, before_ns, op | DOUBTFUL, block, after_ns)
            else:
                self._all.insert(corr, before_ns, op, block, parent)
            if self._elsewhere and op == CLOSE and (home := self._elsewhere.pop(block, None)) is not None:
                at = self._kept.placed_before(home & THREAD_MASK, before_ns) if flag else corr
                self._timeline(home).insert(at, before_ns, ENDED | flag, block, None)
        kept = self._kept
        kept.added += 1
        if kept.added >= kept.look_at or len(self._all.corrs) > MAX_EVENTS:
            self._forget()

    def give_up(self, before_ns: int) -> None:
        """Markers issued before ``before_ns`` that have not arrived are lost."""
        overdue = list(takewhile(lambda event: event.after_ns < before_ns, self._tokens.values()))
        for event in overdue:
            del self._tokens[event.token]
            self._failed.discard(event.token)
        for thread, queue in list(self._pending.items()):
            while queue and queue[0].after_ns < before_ns:
                overdue.append(queue.popleft())
            if not queue:
                del self._pending[thread]
        for event in overdue:
            self._lose(event)
        self._sweep()

    def lose(self, token: int) -> None:
        """The marker call of a boundary failed: no record will come."""
        if token in self._tokens:
            self._failed.add(token)
            self._sweep()

    def _sweep(self) -> None:
        """A failed boundary has its place once all before it have theirs."""
        while self._failed:
            token = next(iter(self._tokens))
            if token not in self._failed:
                return
            self._failed.remove(token)
            self._lose(self._tokens.pop(token))

    def _lose(self, event: Boundary) -> None:
        """Its place is right behind the boundary before it on its thread, or anywhere up to the one after it."""
        self.lost_markers += 1
        self._place(event, self._kept.placed_before(event.thread & THREAD_MASK, event.before_ns), UNCERTAIN)

    # --- where boundaries have no place -----------------------------------------------------------------------------

    def _see(self, event: Boundary, corr: int, lost: bool) -> None:
        """Nothing is seen from a DARK to its LIT. Where the place of one is not known: from the last boundary on that
        has a place, or up to the next one."""
        op, dark = event.op, self._dark_from
        if op == DARK:
            if dark is None:
                self._dark_from = self._last_place() if lost else corr
                self._dark_since_ns = event.before_ns if lost else 0
            return
        if op == LIT:
            self.light = None
        elif dark is not None and event.before_ns < self._dark_since_ns:  # its record came late
            self._dark_from = max(dark, corr)
            return
        elif not self._lit_late:
            return
        if self._dark_from is None:
            self._lit_at = 0 if lost else corr
        elif lost:
            self._lit_late = True
        elif op == LIT or corr > self._dark_from:
            self._dark.append((self._dark_from, max(corr, self._dark_from)))
            del self._dark[:-MAX_DARK]
            self._dark_from, self._lit_late, self._dark_since_ns = None, False, 0

    def _last_place(self) -> int:
        return max((0, *self._all.corrs[-1:], *(end for _, end in self._dark[-1:])))

    @property
    def unplaced(self) -> int | None:
        """Where a boundary belongs that has no place of its own: in the last time in which nothing is seen, or before
        the first LIT. None: there is no such place."""
        if self._dark_from is not None:
            return self._dark_from
        if self._dark:
            return self._dark[-1][0]
        return 0 if self.light is not None else self._lit_at

    def began_anew(self, corr: int, newest: int = 0) -> bool:
        """Whether ids began anew since the last DARK, where ``corr``, 32 bits, is that of its LIT. ``newest``: of
        those from before."""
        dark = self._dark_from
        return dark is not None and (corr - max(dark, newest)) & 0xFFFFFFFF >= 0x80000000

    def issued_ns(self, token: int) -> int:
        """When the marker call was made whose record is waited for; 0 where none is."""
        event = self._tokens.get(token)
        return event.before_ns if event is not None else 0

    def unseen(self, low: int, high: int) -> bool:
        """Whether some of the ids from ``low`` to ``high`` are not seen."""
        if self._dark_from is not None and high >= self._dark_from:
            return True
        for begin, end in reversed(self._dark):
            if end <= low:
                return False
            if begin <= high:
                return True
        return False

    # --- questions --------------------------------------------------------------------------------------------------

    def _waiting(self) -> set[int]:
        """Threads of boundaries without a place."""
        return {event.thread & THREAD_MASK for event in self._tokens.values()}.union(self._pending)

    def waiting_since(self) -> int | None:
        """Time of the oldest boundary whose marker has not arrived; None if all have."""
        oldest = [queue[0].before_ns for queue in self._pending.values()]
        oldest += [event.before_ns for event in islice(self._tokens.values(), 1)]
        return min(oldest) if oldest else None

    def _view(self, thread: int, corr: int) -> tuple[Timeline | Forgotten, bool]:
        """What decides for a record of ``thread`` (0: unknown), and whether it inherits from other threads."""
        if not thread:
            return self._all, False
        thread &= THREAD_MASK
        own = self._threads.get(thread)
        if own is not None and corr >= own.since:
            return (own, False) if self._kept.owns(thread, corr) else (self._all, True)
        forgotten = self._kept.forgotten(thread)
        return (forgotten, not forgotten.owned) if forgotten is not None else (self._all, True)

    def resolve(self, thread: int, corr: int) -> tuple[Candidates, bool]:
        """Innermost candidate blocks of one launch, and whether its thread only inherited them.

        A thread that never opened a block of its own (autograd's) belongs to the enclosing chain where that is the only
        one; a thread that opens blocks with a parent elsewhere (hooks inside autograd) uses its own while one is open.
        """
        timeline, inherits = self._view(thread, corr)
        if inherits and timeline is self._all:
            own = self._threads.get(thread & THREAD_MASK)
            if own is not None and own.decides(corr):
                return own.at(corr), False
        return timeline.at(corr), inherits

    def constant(self, thread: int, low: int, high: int) -> tuple[Candidates, bool] | None:
        """As :meth:`resolve` for every id in ``low``…``high``, or None where a boundary lies between."""
        if thread & THREAD_MASK in self._kept.ends:
            return None
        timeline, inherits = self._view(thread, low)
        if timeline.index(low) != timeline.index(high):
            return None
        if inherits:
            own = self._threads.get(thread & THREAD_MASK)
            if own is not None and (own.index(low) != own.index(high) or own.decides(low)):
                return None
        return timeline.at(low), inherits

    def segments(
        self, thread: int, corrs: Sequence[int], first: int, last: int, base: int = 0, ascend: bool = False
    ) -> Iterable[tuple[int, int, tuple[Candidates, bool]]]:
        """``(low, high, place)`` for segments of ``corrs`` that share their block, as :meth:`resolve` gives it.

        See :class:`Ids` for what describes them.
        """
        timeline, inherits = self._view(thread, first)
        if ascend and type(timeline) is Timeline:
            key = thread & THREAD_MASK
            some = (inherits and timeline is self._all) or key in self._kept.ends
            own = self._threads.get(key) if some else None
            if own is not None and first >= own.since:
                return self._own_or_all(key, own, corrs, last, base)
            return timeline.segments(corrs, last, base, inherits)
        same = self.constant(thread, first, last)
        return (
            ((0, len(corrs), same),) if same is not None else self._resolved(thread, corrs, first, last, base, ascend)
        )

    def _own_or_all(
        self, thread: int, own: Timeline, corrs: Sequence[int], last: int, base: int
    ) -> list[tuple[int, int, tuple[Candidates, bool]]]:
        """As :meth:`segments`, for ids that ascend, of a thread whose blocks lie in those of others: its own ones where
        one is open."""
        found: list[tuple[int, int, tuple[Candidates, bool]]] = []
        for low, high, place in own.segments(corrs, last, base, False):
            corr = corrs[low] + base
            if place[0] or own.decides(corr) or self._kept.owns(thread, corr):
                found.append((low, high, place))
            else:
                rest = self._all.segments(corrs[low:high], corrs[high - 1] + base, base, True)
                found += [(low + first, low + behind, outer) for first, behind, outer in rest]
        return found

    def _resolved(
        self, thread: int, corrs: Sequence[int], first: int, last: int, base: int, ascend: bool
    ) -> Iterator[tuple[int, int, tuple[Candidates, bool]]]:
        """As :meth:`segments`, for any ids."""
        timeline, inherits = self._view(thread, first)
        simple = not inherits and type(timeline) is Timeline and thread & THREAD_MASK not in self._kept.ends
        own = self._threads.get(thread & THREAD_MASK) if not simple else None
        cuts = set(timeline.between(first, last))
        if own is not None:
            cuts.update(own.between(first, last), self._all.between(first, last))
        ordered = [cut - base for cut in sorted(cuts)]

        def resolve(corr: int) -> tuple[Candidates, bool]:
            return (timeline.at(corr), False) if simple else self.resolve(thread, corr)

        ends: Iterable[int] = ()
        if not ascend:
            # Ids ascend but for a few places where records of another stream, or of another run, begin. Sorting what
            # is sorted costs a fourth of looking for these.
            corrs = list(corrs)
            ends = () if sorted(corrs) == corrs else compress(count(1), map(gt, corrs, corrs[1:]))
        low = 0
        for end in (*ends, len(corrs)):
            for cut in ordered[bisect_right(ordered, corrs[low]) :]:
                high = bisect_left(corrs, cut, low, end)
                if high > low:
                    yield low, high, resolve(corrs[low] + base)
                    low = high
                if high == end:
                    break
            if low < end:
                yield low, end, resolve(corrs[low] + base)
                low = end

    def path(self, block_id: int | None) -> Path:
        """Names of the block and its ancestors, outermost first."""
        if block_id is None:
            return ()
        path = self._paths.get(block_id)
        if path is not None:
            return path
        parent, name = self._parents.get(block_id), self._names.get(block_id)
        path = self._paths.get(parent) if parent is not None else ()
        if path is not None and name is not None:  # most are the first asked for inside a block that was asked for
            path = self._paths[block_id] = (*path, name)
            return path
        missing: list[int] = []  # no recursion: blocks may be nested deeper than Python's limit
        at: int | None = block_id
        while at is not None and at not in self._paths:
            missing.append(at)
            at = self._parents.get(at)
        known = self._paths[at] if at is not None else ()
        for block in reversed(missing):
            name = self._names.get(block)
            known = (*known, name or "?")
            if name is not None:  # else the block is forgotten, and nobody would take its path away
                self._paths[block] = known
        return known

    def chain(self, block_id: int) -> tuple[int, ...]:
        """The block and its ancestors, innermost first."""
        return chain(block_id, self._parents)

    def common_ancestors(self, candidates: Candidates) -> tuple[int, ...]:
        """Blocks that enclose every candidate, innermost first."""
        shared = self.chain(candidates[0])
        for block_id in candidates[1:]:
            if not shared:
                break
            others = set(self.chain(block_id))
            shared = tuple([block for block in shared if block in others])
        return shared
