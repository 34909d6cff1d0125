"""Timelines that are worked out late and piece by piece, against one that begins anew for each question."""

import random

from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._attribution.attributor import Attributor
from gpusense._attribution.boundaries import CLOSE, LEAVE, OPEN, PLACED, SWITCH, Boundary
from gpusense._attribution.timelines import DOUBTFUL, ENDED, MOST_CANDIDATES, UNCERTAIN, Crowd, Timeline
from gpusense._decode.correlation_ids import Widener


class Naive:
    """All events in order of id and time, walked through from the first."""

    def __init__(self, parents):
        self.parents = parents
        self.events = []

    def insert(self, corr, row):
        self.events.append((corr, row))
        self.events.sort(key=lambda event: event[0])  # several at one place stay in their order: clocks may go back

    def ancestors(self, block):
        while (block := self.parents.get(block)) is not None:
            yield block

    def after(self, corr):
        """Open blocks, leaves, and the block that the thread is in where switches are seen."""
        opens, leaves, inside, doubts = set(), (), None, {}
        for at, (time, op, block, parent) in self.events:
            if at > corr:
                break
            kind, before = op & ~UNCERTAIN & ~DOUBTFUL, leaves
            if not op & DOUBTFUL:
                opens = opens | {other for other, (what, until) in doubts.items() if until <= time and what == OPEN}
                doubts = {other: rest for other, rest in doubts.items() if rest[1] > time and other != block}
            if op & DOUBTFUL:
                doubts[block] = kind, parent
                opens = opens - {block}
            elif kind == SWITCH:
                inside = parent
            elif kind == LEAVE:
                inside, opens = None, {parent, *self.ancestors(parent)} if parent else set()
            else:
                opens = opens | {block} if kind == OPEN else opens - {block}
                if kind == ENDED:
                    inside = (self.parents.get(block) or 0) if inside == block else inside
                elif inside is not None:
                    inside = block if kind == OPEN else parent
            leaves = self.leaves(opens, inside, doubts)
            if op & UNCERTAIN:
                leaves = tuple(sorted({*(leaves or (0,)), *(before or (0,))}))
        return {*opens, *doubts}, leaves, inside

    def leaves(self, opens, inside, doubts):
        if inside is not None:
            return (inside,) if inside else ()
        around = {outer for other in opens for outer in self.ancestors(other)}
        nowhere = {0} if doubts and not opens else set()
        return tuple(sorted({*opens, *doubts, *nowhere} - around))  # whatever may be open, with nothing certain inside


class Script:
    """Rows in which most blocks are nested, and some are anything."""

    def __init__(self, seed, wild):
        self.random = random.Random(seed)
        self.wild = wild
        self.parents = {}
        self.stacks = {1: [], 2: [], 3: []}
        self.corr = self.time = 0
        self.switching = self.random.random() < 0.3

    def some_block(self, *others):
        return self.random.choice([*self.parents, *others])

    def event(self, thread):
        """Op, block and parent."""
        stack, chance = self.stacks[thread], self.random.random
        if chance() < self.wild:
            op = self.random.choice((OPEN, CLOSE, CLOSE, SWITCH, LEAVE) if self.switching else (OPEN, CLOSE))
            if op in (SWITCH, LEAVE):
                return op, 0, self.some_block(0, None) if op == SWITCH else self.some_block(0)
            if op == CLOSE and self.parents:
                return op, self.some_block(), self.some_block(0, None) if self.switching else None
            block = len(self.parents) + 1
            self.parents[block] = self.some_block(None)
            return OPEN, block, self.parents[block]
        if stack and chance() < 0.5:
            return CLOSE, stack.pop(), None
        block = len(self.parents) + 1
        self.parents[block] = stack[-1] if stack else None
        stack.append(block)
        return OPEN, block, self.parents[block]

    def go_on(self):
        """Id and time of the next event: several may have the same."""
        self.corr += self.random.randrange(3)
        self.time += self.random.randrange(3)
        return self.corr, self.time


def shuffled(events, chance, late):
    """Some of them come up to ten places later."""
    delay = {i: i + (chance.randrange(10) if chance.random() < late else 0) for i in range(len(events))}
    return [events[i] for i in sorted(delay, key=lambda i: (delay[i], i))]


def same(timeline, naive, corr):
    opens, leaves, inside = naive.after(corr)
    assert timeline.at(corr) == leaves
    assert timeline.decides(corr) == (bool(leaves) or inside is not None)
    assert timeline.index(corr) == sum(at <= corr for at, _ in naive.events)
    if corr >= naive.events[-1][0]:
        assert sorted(timeline.open_now()) == sorted(opens)


@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.05, 0.5]), st.sampled_from([0.0, 0.1, 0.9]), st.booleans())
@examples(60)
def test_a_timeline_equals_a_naive_one(seed, wild, late, lossy):
    script = Script(seed, wild)
    chance = script.random
    events = []
    for _ in range(60):
        op, block, parent = script.event(1)
        corr, time = script.go_on()
        flag = UNCERTAIN if lossy and chance.random() < 0.1 else 0
        events.append((corr, (time, op | flag, block, parent)))
    timeline, naive = Timeline(script.parents), Naive(script.parents)
    for event in shuffled(events, chance, late):
        timeline.insert(event[0], *event[1])
        naive.insert(*event)
        for _ in range(chance.choice((0, 0, 0, 1, 3))):
            same(timeline, naive, chance.randrange(script.corr + 2))
    for corr in range(-1, script.corr + 2):
        same(timeline, naive, corr)
    assert timeline.between(5, 20) == [corr for corr, _ in naive.events if 5 <= corr <= 20]


@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.05, 0.5]), st.booleans())
@examples(60)
def test_what_is_forgotten_leaves_what_was_open(seed, wild, asked):
    script = Script(seed, wild)
    timeline, naive = Timeline(script.parents), Naive(script.parents)
    kept = []
    for _ in range(80):
        op, block, parent = script.event(1)
        corr, time = script.go_on()
        late = script.random.random() < 0.1 and len(kept) > 3
        row = (time, op, block, parent)
        corr = script.random.choice(kept[2:]) if late else corr
        timeline.insert(corr, *row)
        naive.insert(corr, row)
        kept = sorted([*kept, corr])
        if len(kept) > 20:
            timeline.forget_before(10)
            kept = kept[-10:]
        assert timeline.corrs == kept
        if asked:
            same_from(timeline, naive, kept[0], script.random)
    for _ in range(20):
        same_from(timeline, naive, kept[0], script.random)


def same_from(timeline, naive, first, chance):
    corr = chance.randrange(first, naive.events[-1][0] + 2)
    _, leaves, inside = naive.after(corr)
    assert timeline.at(corr) == leaves
    assert timeline.decides(corr) == (bool(leaves) or inside is not None)


class Both:
    """An attributor, and naive timelines that are told the same."""

    def __init__(self, script):
        self.attributor, self.widener, self.waiting = Attributor(), Widener(), []
        self.every, self.rooted, self.homes = Naive(script.parents), set(), {}
        self.threads = {n: Naive(script.parents) for n in script.stacks}
        for block, parent in script.parents.items():  # a child is never known before its parent
            self.attributor.know(block, parent, "")

    def hand_over(self):
        self.attributor.boundaries_after(self.waiting, self.widener)
        self.waiting.clear()

    def read(self, corr, event):
        self.waiting.append((PLACED, *event[:5], event.name, corr - 1))
        self.naive(corr, event, event.op)

    def found(self, corr, event):
        self.hand_over()
        self.attributor.boundary(event, corr)
        self.naive(corr, event, event.op)

    def lost(self, _, event):
        self.hand_over()
        self.attributor.boundary(event)
        self.attributor.lose(event.token)
        self.naive(self.placed(event.thread, event.before_ns), event, event.op | UNCERTAIN)

    def placed(self, thread, time):
        placed = [(row[0], at) for at, row in self.threads[thread].events if row[0] < time]
        return max(placed)[1] if placed else 0

    def naive(self, corr, event, op):
        block, thread = event.block_id, event.thread
        if event.op == OPEN:
            self.homes[block] = thread
        elif event.op == CLOSE and (home := self.homes.pop(block, thread)) != thread:
            at = self.placed(home, event.before_ns) if op & UNCERTAIN else corr
            self.threads[home].insert(at, (event.before_ns, ENDED | op & UNCERTAIN, block, None))
        row = (event.before_ns, op, event.block_id, event.parent_id)
        self.threads[event.thread].insert(corr, row)
        if event.block_id and op & UNCERTAIN:
            self.every.insert(corr, (event.before_ns, event.op | DOUBTFUL, event.block_id, event.after_ns))
        elif event.block_id:
            self.every.insert(corr, row)
        if event.op == OPEN and event.parent_id is None:
            self.rooted.add(event.thread)

    def ask(self, corr):
        for thread in (0, 1, 2, 3, 9):
            _, leaves, inside = self.threads[thread].after(corr) if thread in self.threads else ((), (), None)
            own = thread in self.rooted or leaves or inside is not None
            expected = (leaves, False) if own else (self.every.after(corr)[1], thread != 0)
            if len(expected[0]) <= MOST_CANDIDATES:
                assert self.attributor.resolve(thread, corr) == expected


@given(st.integers(0, 10**9), *map(st.sampled_from, ([0.0, 0.05, 0.5], [0.0, 0.3], [0.0, 0.3], [0.0, 0.9])))
@examples(40)
def test_threads_together_and_boundaries_that_were_lost(seed, wild, late, lose, read):
    """A lost one lies where the one before it, by time, lies on its thread; among those of all it stays in doubt until
    one came later. Those whose newest id was read come many at once."""
    script = Script(seed, wild)
    chance = script.random
    events = []
    for token in range(1, 90):
        thread = chance.choice((1, 1, 1, 2, 3))
        corr, time = script.go_on()
        events.append((corr, Boundary(*script.event(thread), thread, time, time + chance.choice((0, 1, 9)), "", token)))
    both = Both(script)
    for corr, event in shuffled(events, chance, late):
        way = both.lost if chance.random() < lose else both.read if chance.random() < read else both.found
        way(corr, event)
        if chance.random() < 0.2:
            both.hand_over()
            both.ask(chance.randrange(script.corr + 2))
    both.hand_over()
    for corr in range(-1, script.corr + 2):
        both.ask(corr)


def requests(count, at_once):
    """Boundaries of blocks without parents, so many of which are open at a time; the oldest ends."""
    opens, rows = [], []
    for block in range(1, count + 1):
        if len(opens) == at_once:
            rows.append((CLOSE, opens.pop(0), None))
        opens.append(block)
        rows.append((OPEN, block, None))
    return rows


def test_crowds_are_walked_once_by_who_asks_in_order(monkeypatch):
    walked = []
    goes_on = Crowd.goes_on
    monkeypatch.setattr(Crowd, "goes_on", lambda *event: (walked.append(event), goes_on(*event))[1])
    rows, line = requests(600, 10), Timeline(dict.fromkeys(range(601)))
    for at, row in enumerate(rows):
        line.insert(at, at, *row)
    for first in range(0, len(rows), 100):
        line.segments(range(first, first + 100), first + 99, 0, False)
    assert len(walked) < 1.1 * len(rows)


def test_an_interrupt_while_a_crowd_goes_on_changes_no_answer():
    class Interrupted(dict):
        left = 0

        def get(self, *key):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().get(*key)

    rows, parents = requests(120, 5), Interrupted.fromkeys(range(121))
    line, naive = Timeline(parents), Timeline(dict(parents))
    for at, row in enumerate(rows):
        line.insert(at, at, *row)
        naive.insert(at, at, *row)
    interrupts = 0
    for at in range(len(rows)):
        parents.left = 1 + at % 2
        try:
            line.at(at)
        except KeyboardInterrupt:
            interrupts += 1
        parents.left = 0
        assert line.at(at) == naive.at(at)
        assert line.at(at // 2) == naive.at(at // 2)
    assert interrupts > 20
