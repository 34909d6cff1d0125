"""Launch-order attribution against an oracle that knows who launched what."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._attribution.attributor import Attributor
from gpusense._attribution.before_capture import Unmarked
from gpusense._attribution.boundaries import CLOSE, LEAVE, OPEN, PLACED, SWITCH, Boundary
from gpusense._decode.correlation_ids import Ids, Widener

HOOKS = 7  # a thread, as autograd's


class World:
    """Threads that open and close blocks and launch; knows the truth."""

    def __init__(self, seed: int, threads: int, lose: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.attributor = Attributor()
        self.stacks: dict[int, list[int]] = {thread: [] for thread in range(1, threads + 1)}
        self.hooks: list[int] = []
        self.lose = lose
        self.time = 1_000_000
        self.corr = 0
        self.next_block = 0
        self.launches: list[tuple[int, int, int | None]] = []
        self.parents: dict[int, int | None] = {}
        self.markers: list[tuple[int, int, int]] = []
        self.lost_neighbours = 0

    def boundary(self, thread: int, op: int, block: int, parent: int | None) -> None:
        before = self.time
        self.time += 600
        self.corr += 1
        self.attributor.boundary(Boundary(op, block, parent, thread, before, self.time, f"b{block}"))
        if self.random.random() >= self.lose:
            self.markers.append((thread, before + 300, self.corr))
        self.time += 50

    def step(self) -> None:
        thread = self.random.choice(list(self.stacks))
        stack = self.stacks[thread]
        action = self.random.random()
        if action < 0.25 and len(stack) < 5:
            self.next_block += 1
            parent = stack[-1] if stack else None
            self.parents[self.next_block] = parent
            self.boundary(thread, OPEN, self.next_block, parent)
            stack.append(self.next_block)
        elif action < 0.45 and stack:
            self.boundary(thread, CLOSE, stack.pop(), None)
        else:
            self.corr += self.random.randint(1, 3)
            self.time += 4000
            self.launches.append((thread, self.corr, stack[-1] if stack else None))

    def hook(self) -> None:
        """On a thread of its own: a block below one of another thread, or its end; or a switch between tasks."""
        if self.random.random() < 0.2:
            self.corr += 1
            op, leaf = self.random.choice([(SWITCH, 0), (SWITCH, None), (LEAVE, 0)])
            self.attributor.boundary(Boundary(op, 0, leaf, HOOKS, self.time, self.time), self.corr)
        elif self.hooks and self.random.random() < 0.6:
            self.boundary(HOOKS, CLOSE, self.hooks.pop(), None)
        elif any(self.stacks.values()):
            self.next_block += 1
            parent = self.parents[self.next_block] = self.random.choice(list(filter(None, self.stacks.values())))[-1]
            self.boundary(HOOKS, OPEN, self.next_block, parent)
            self.hooks.append(self.next_block)

    def deliver(self, shuffle: bool = True) -> None:
        if shuffle:  # per-thread buffers: each thread's markers in order, threads in any order
            self.random.shuffle(self.markers)
            by_thread: dict[int, list[tuple[int, int, int]]] = {}
            for marker in self.markers:
                by_thread.setdefault(marker[0], []).append(marker)
            order = [thread for thread, _, _ in self.markers]
            for rows in by_thread.values():
                rows.sort(key=lambda row: row[2], reverse=True)
            self.markers = [by_thread[thread].pop() for thread in order]
        for marker in self.markers:
            assert self.attributor.marker(*marker)
        self.markers.clear()
        self.attributor.give_up(1 << 62)


@given(st.integers(0, 10**9), st.integers(1, 4))
@examples(60)
def test_threads_with_their_own_blocks_resolve_exactly(seed, threads):
    world = World(seed, threads)
    for _ in range(150):
        world.step()
    world.deliver()
    rooted = {thread for thread, _, block in world.launches if block is not None}
    for thread, corr, block in world.launches:
        leaves, inherited = world.attributor.resolve(thread, corr)
        if thread in rooted:
            assert leaves == ((block,) if block is not None else ())
            assert not inherited


@given(st.integers(0, 10**9))
@examples(60)
def test_order_alone_decides_one_thread_exactly(seed):
    world = World(seed, 1)
    for _ in range(150):
        world.step()
    world.deliver()
    for _thread, corr, block in world.launches:
        assert world.attributor.resolve(0, corr)[0] == ((block,) if block is not None else ())


@given(st.integers(0, 10**9), st.integers(1, 3), st.floats(0.01, 0.5))
@examples(60)
def test_a_lost_marker_costs_only_itself(seed, threads, lose):
    """With markers lost no launch goes to a wrong block: right, or ambiguous with the right one among them."""
    world = World(seed, threads, lose)
    for _ in range(150):
        world.step()
    world.deliver()
    wrong = 0
    for thread, corr, block in world.launches:
        leaves, inherited = world.attributor.resolve(thread, corr)
        if inherited or block is None:
            continue
        wrong += block not in leaves
    assert wrong == 0


class Overlapping:
    """Threads whose marker calls overlap: each begins, is numbered and returns while others go on. A helper without
    blocks launches meanwhile, and a lost call is known by its thread and times alone."""

    def __init__(self, seed: int, threads: int, lose: float) -> None:
        self.random = random.Random(seed)
        self.lose = lose
        self.stacks: dict[int, list[int]] = {thread: [] for thread in range(1, threads + 1)}
        self.calls: dict[int, list[int]] = {}  # under way: op, block, parent, when it began, its number
        self.before: dict[int, int] = dict.fromkeys(self.stacks, 0)  # number of the last call of each thread
        self.parents: dict[int, int | None] = {}
        self.open: set[int] = set()
        self.time = self.corr = 0
        self.launches: list[tuple[int, set[int]]] = []
        self.events: list[tuple[Boundary, int, int, bool]] = []  # with the numbers of it and of the one before; lost?

    def step(self) -> None:
        self.time += 1
        thread = self.random.choice([*self.stacks, HOOKS])
        if thread == HOOKS:
            self.corr += 1
            around = {self.parents[block] for block in self.open}
            self.launches.append((self.corr, self.open - around or {0}))
        elif thread not in self.calls:
            self.begin(thread, self.stacks[thread])
        elif len(self.calls[thread]) == 4:
            op, block, _, _ = self.calls[thread]
            self.corr += 1
            self.calls[thread].append(self.corr)
            self.open ^= {block}
        else:
            op, block, parent, began, corr = self.calls.pop(thread)
            event = Boundary(op, block, parent, thread, began, self.time, f"b{block}", len(self.events) + 1)
            self.events.append((event, corr, self.before[thread], self.random.random() < self.lose))
            self.before[thread] = corr

    def begin(self, thread: int, stack: list[int]) -> None:
        if stack and self.random.random() < 0.5:
            self.calls[thread] = [CLOSE, stack.pop(), None, self.time]
            return
        block = len(self.parents) + 1
        self.parents[block] = stack[-1] if stack else None
        self.calls[thread] = [OPEN, block, self.parents[block], self.time]
        stack.append(block)

    def told(self) -> Attributor:
        """All that came to an end, in any order; what was lost comes last."""
        attributor = Attributor()
        for event, *_ in self.events:
            attributor.boundary(event)
        for event, corr, _, lost in self.random.sample(self.events, len(self.events)):
            if not lost:
                attributor.token(event.token, corr)
        attributor.give_up(1 << 62)
        return attributor

    def certain(self, at: int) -> bool:
        """Whether no call that was lost can have been around there."""
        found = [(event.before_ns, corr) for event, corr, _, lost in self.events if not lost and corr <= at]
        return not any(
            lost and before <= at and not any(began >= event.after_ns for began, _ in found)
            for event, _, before, lost in self.events
        )


def test_a_lost_marker_is_in_doubt_for_other_threads_until_one_came_later():
    exact = inexact = 0
    for seed in range(24):
        world = Overlapping(seed, threads=1 + seed % 4, lose=(0.0, 0.05, 0.2)[seed % 3])
        for _ in range(150):
            world.step()
        while world.calls:
            world.step()
        attributor = world.told()
        for corr, truth in world.launches:
            certain = world.certain(corr)
            for thread in (0, HOOKS):
                candidates = set(attributor.resolve(thread, corr)[0] or (0,))
                assert candidates == truth if certain else candidates >= truth, (seed, corr)
            exact += certain
            inexact += not certain
    assert exact > 300
    assert inexact > 100


def test_lost_markers_between_two_others_leave_the_rest_exact():
    attributor = Attributor()
    for i in range(10):
        t = i * 10_000
        attributor.boundary(Boundary(OPEN, i + 1, None, 5, t, t + 500, f"b{i}"))
        attributor.boundary(Boundary(CLOSE, i + 1, None, 5, t + 5_000, t + 5_500))
    for i in range(10):
        if i != 4:
            assert attributor.marker(5, i * 10_000 + 200, i * 10 + 1)
        assert attributor.marker(5, i * 10_000 + 5_200, i * 10 + 9)
    assert attributor.waiting_since() == 40_000
    attributor.give_up(1 << 62)
    assert attributor.lost_markers == 1
    for i in range(10):
        leaves, _ = attributor.resolve(5, i * 10 + 5)
        assert leaves == ((i + 1,) if i != 4 else (5,)) or (i == 4 and 5 in leaves)


def test_blockless_thread_inherits_the_only_chain():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 0, 10, "step"), 10)
    attributor.boundary(Boundary(OPEN, 2, 1, 5, 20, 30, "backward"), 20)
    assert attributor.resolve(99, 25) == ((2,), True)
    attributor.boundary(Boundary(OPEN, 3, None, 6, 40, 50, "other"), 30)
    assert attributor.resolve(99, 35) == ((2, 3), True)
    assert attributor.resolve(5, 35) == ((2,), False)


def test_thread_outside_its_blocks_owns_nothing():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 0, 10, "a"), 10)
    attributor.boundary(Boundary(OPEN, 2, None, 6, 0, 10, "b"), 11)
    attributor.boundary(Boundary(CLOSE, 2, None, 6, 20, 30), 20)
    assert attributor.resolve(6, 25) == ((), False)


def test_hook_blocks_inside_a_helper_thread():
    """Autograd's thread opens blocks whose parent lives elsewhere; between them it inherits."""
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 0, 10, "step"), 10)
    attributor.boundary(Boundary(OPEN, 2, 1, 7, 20, 30, "layer.backward"), 20)
    attributor.boundary(Boundary(CLOSE, 2, None, 7, 40, 50), 30)
    assert attributor.resolve(7, 25) == ((2,), False)
    assert attributor.resolve(7, 35) == ((1,), True)


def test_interleaved_tasks_on_one_thread_are_ambiguous():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 0, 10, "task a"), 10)
    attributor.boundary(Boundary(OPEN, 2, None, 5, 20, 30, "task b"), 20)
    assert attributor.resolve(5, 15)[0] == (1,)
    assert attributor.resolve(5, 25)[0] == (1, 2)
    attributor.boundary(Boundary(CLOSE, 1, None, 5, 40, 50), 30)
    assert attributor.resolve(5, 35)[0] == (2,)


class Tasks:
    """Threads whose loops run tasks, each with blocks of its own, and code outside of loops between. A step is marked
    as the tracer does: where its block is not the one the thread was in."""

    def __init__(self, seed: int, threads: int, lose: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.attributor = Attributor()
        self.lose = lose
        self.corr = self.time = self.next_block = self.token = 0
        self.parents: dict[int, int | None] = {}
        self.open: set[int] = set()
        #: thread → stacks of blocks: of the code outside of loops, and of each task
        self.stacks: dict[int, list[list[int]]] = {thread: [[]] for thread in range(1, threads + 1)}
        self.current = dict.fromkeys(self.stacks, 0)  # which stack runs
        self.inside: dict[int, int] = {}
        self.events: dict[int, list[tuple[int, bool]]] = {thread: [] for thread in self.stacks}
        self.markers: list[tuple[int, int]] = []
        self.rooted: set[int] = set()
        self.launches: list[tuple[int, int, int, bool]] = []

    def leaf(self, stack: list[int]) -> int:
        return next((block for block in reversed(stack) if block in self.open), 0)

    def mark(self, thread: int, op: int, block: int, parent: int | None) -> None:
        self.corr, self.time, self.token = self.corr + 1, self.time + 1000, self.token + 1
        event = Boundary(op, block, parent, thread, self.time, self.time + 500, f"b{block}", self.token)
        self.attributor.boundary(event)
        lost = self.random.random() < self.lose
        self.events[thread].append((self.corr, lost))
        if not lost:
            self.markers.append((self.token, self.corr))
        elif self.random.random() < 0.5:
            self.attributor.lose(self.token)

    def step(self) -> None:
        thread = self.random.choice(list(self.stacks))
        stacks, stack = self.stacks[thread], self.stacks[thread][self.current[thread]]
        action = self.random.random()
        if action < 0.25:
            self.go_on(thread)
        elif action < 0.45 and len(stack) < 5:
            self.next_block += 1
            parent = self.leaf(stack)
            self.parents[self.next_block] = parent or None
            self.open.add(self.next_block)
            if not parent:
                self.rooted.add(thread)
            if thread in self.inside:
                self.inside[thread] = self.next_block
            self.mark(thread, OPEN, self.next_block, parent or None)
            stack.append(self.next_block)
        elif action < 0.6 and stack and (self.current[thread] == 0 or len(stack) > len(stacks[0])):
            block = stack.pop()
            if block not in self.open:
                return
            self.open.remove(block)
            if thread in self.inside:
                self.inside[thread] = self.leaf(stack)
            self.mark(thread, CLOSE, block, self.inside.get(thread))
        else:
            self.corr += self.random.randint(1, 3)
            self.launches.append((thread, self.corr, self.leaf(stack), thread in self.inside))

    def go_on(self, thread: int) -> None:
        """With another task, with a new one, or behind the loop."""
        stacks = self.stacks[thread]
        chosen = self.random.randrange(len(stacks) + 1)
        if chosen == len(stacks):
            if chosen > 4:
                return
            stacks.append(list(stacks[self.current[thread]]))
        self.current[thread] = chosen
        leaf = self.leaf(stacks[chosen])
        if chosen == 0:
            if self.inside.pop(thread, None) is not None:
                self.mark(thread, LEAVE, 0, leaf)
        elif self.inside.get(thread) != leaf:
            self.inside[thread] = leaf
            self.mark(thread, SWITCH, 0, leaf)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.random.shuffle(self.markers)
        for marker in self.markers:
            assert self.attributor.token(*marker)
        self.attributor.give_up(1 << 62)

    def may_be_uncertain(self, thread: int, corr: int) -> bool:
        """Whether a lost boundary lies between the two found ones around a launch."""
        before = [event for event in self.events[thread] if event[0] < corr]
        after = [event for event in self.events[thread] if event[0] > corr]
        return (bool(before) and before[-1][1]) or (bool(after) and after[0][1])


@given(st.integers(0, 10**9), st.integers(1, 3))
@examples(100)
def test_tasks_whose_switches_are_marked_resolve_exactly(seed, threads):
    world = Tasks(seed, threads)
    world.run(250)
    for thread, corr, block, followed in world.launches:
        leaves, inherited = world.attributor.resolve(thread, corr)
        if followed or thread in world.rooted:
            assert leaves == ((block,) if block else ())
            assert not inherited
        assert world.attributor.constant(thread, corr, corr) in (None, (leaves, inherited))


@given(st.integers(0, 10**9), st.integers(1, 3), st.floats(0.01, 0.5))
@examples(100)
def test_a_lost_switch_costs_the_segment_between_its_neighbours(seed, threads, lose):
    world = Tasks(seed, threads, lose)
    world.run(250)
    lost = sum(lost for events in world.events.values() for _, lost in events)
    assert world.attributor.lost_markers == lost
    for thread, corr, block, followed in world.launches:
        leaves, inherited = world.attributor.resolve(thread, corr)
        if not (followed or thread in world.rooted) or inherited:
            continue
        assert block in (leaves or (0,))
        if len(leaves) > 1:
            assert world.may_be_uncertain(thread, corr)


def test_order_decides_again_with_all_that_is_open():
    """Exact attribution is switched off while tasks are in the middle of their blocks."""
    attributor = Attributor()
    attributor.boundary(Boundary(SWITCH, 0, 0, 5, 0, 1), 1)
    attributor.boundary(Boundary(OPEN, 1, None, 5, 2, 3, "a"), 10)
    attributor.boundary(Boundary(SWITCH, 0, 0, 5, 4, 5), 20)
    attributor.boundary(Boundary(OPEN, 2, None, 5, 6, 7, "b"), 30)
    attributor.boundary(Boundary(SWITCH, 0, None, 5, 8, 9), 40)
    attributor.boundary(Boundary(CLOSE, 1, None, 5, 10, 11), 50)
    assert [attributor.resolve(5, corr)[0] for corr in (5, 15, 25, 35, 45, 55)] == [(), (1,), (), (2,), (1, 2), (2,)]


def test_a_thread_whose_steps_are_seen_inherits_nothing():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 0, 1, "of another thread"), 10)
    attributor.boundary(Boundary(SWITCH, 0, 0, 6, 2, 3), 20)
    attributor.boundary(Boundary(LEAVE, 0, 0, 6, 4, 5), 30)
    assert [attributor.resolve(6, corr) for corr in (15, 25, 35)] == [((1,), True), ((), False), ((1,), True)]
    assert [attributor.constant(6, corr, corr + 1) for corr in (15, 35)] == [((1,), True), ((1,), True)]
    assert list(attributor.segments(6, [15, 25, 35], 15, 35)) == [
        (0, 1, ((1,), True)),
        (1, 2, ((), False)),
        (2, 3, ((1,), True)),
    ]


@pytest.mark.parametrize("ascend", [False, True])
def test_a_thread_with_blocks_below_another_threads_is_in_its_own_while_one_is_open(ascend):
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 0, 1, "of another thread"), 10)
    attributor.boundary(Boundary(OPEN, 2, 1, 6, 2, 3, "hook"), 20)
    attributor.boundary(Boundary(CLOSE, 2, None, 6, 4, 5), 30)
    assert list(attributor.segments(6, [15, 25, 35], 15, 35, 0, ascend)) == [
        (0, 1, ((1,), True)),
        (1, 2, ((2,), False)),
        (2, 3, ((1,), True)),
    ]


@given(st.integers(0, 10**9), st.integers(0, 2**36), st.lists(st.integers(0, 9), min_size=1, max_size=80))
@examples(60)
def test_segments_of_ascending_ids_are_those_of_each_id(seed, first, steps):
    world = World(seed, 2)
    world.corr = first
    for _ in range(120):
        world.step()
        if world.random.random() < 0.4:
            world.hook()
    world.deliver()
    wide = [first + sum(steps[: i + 1]) for i in range(len(steps))]
    widener = Widener()
    widener.newest = first
    ids = widener.ascending([corr & 0xFFFFFFFF for corr in wide]) if wide[0] >> 32 == wide[-1] >> 32 else None
    if ids is None:
        ids = Ids(wide, wide[0], wide[-1])
    assert [ids.wide(i) for i in range(len(wide))] == wide
    for thread in (0, 1, 2, HOOKS, 9):
        found = [
            place
            for low, high, place in world.attributor.segments(thread, *ids)
            for _ in range(low, high)
        ]  # fmt: skip
        assert found == [world.attributor.resolve(thread, corr) for corr in wide]


def test_switches_without_blocks_are_forgotten_in_time(monkeypatch):
    from gpusense._attribution import attributor as _attribution

    monkeypatch.setattr(_attribution, "MAX_EVENTS", 100)
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 0, 1, "a"), 1)
    attributor.boundary(Boundary(SWITCH, 0, 0, 5, 1, 1))
    attributor.give_up(1 << 62)  # from here on places are looked up by time, too
    for i in range(2, 1000):
        attributor.boundary(Boundary(SWITCH, 0, i % 2, 5, i, i), i * 2)
    timeline = attributor._threads[5]
    assert len(timeline.corrs) == len(timeline._rows) / 4 == len(timeline._by_time) <= 100
    assert len(timeline._steps) <= 100
    assert attributor.resolve(5, 1999) == ((1,), False)
    assert attributor.resolve(5, 1997) == ((), False)


def test_unmarked_boundaries_come_down_to_what_is_open():
    early = Unmarked()
    assert early.add(Boundary(OPEN, 1, None, 5, 0, 0, "a"))
    assert early.add(Boundary(SWITCH, 0, 0, 5, 1, 1))
    assert early.add(Boundary(OPEN, 2, None, 5, 2, 2, "b"))
    assert early.add(Boundary(CLOSE, 2, 0, 5, 3, 3))
    assert early.add(Boundary(OPEN, 3, 1, 6, 4, 4, "c"))
    assert early.add(Boundary(LEAVE, 0, 3, 6, 5, 5))
    assert early.add(Boundary(CLOSE, 3, None, 6, 6, 6))
    assert not early.add(Boundary(CLOSE, 9, None, 6, 7, 7))
    assert early.drain() == [
        Boundary(OPEN, 1, None, 5, 0, 0, "a"),
        Boundary(SWITCH, 0, 0, 5, 3, 3),
        Boundary(LEAVE, 0, 1, 6, 5, 5),
    ]
    assert early.drain() == []


def test_threads_that_ran_tasks_and_ended_leave_nothing_unmarked():
    early = Unmarked()
    early.add(Boundary(OPEN, 1, None, 5, 0, 0, "open throughout"))
    early.add(Boundary(LEAVE, 0, 0, 5, 1, 1))
    for thread in range(10, 1000, 3):
        early.add(Boundary(OPEN, thread, None, thread, 2, 2, "request"))
        early.add(Boundary(SWITCH, 0, 0, thread, 3, 3))
        early.add(Boundary(LEAVE, 0, thread, thread, 4, 4))
        early.add(Boundary(CLOSE, thread, None, thread, 5, 5))
        early.add(Boundary(SWITCH, 0, 0, thread + 1, 3, 3))
        early.add(Boundary(SWITCH, 0, None, thread + 1, 4, 4))
        early.add(Boundary(SWITCH, 0, 0, thread + 2, 3, 3))
        early.add(Boundary(LEAVE, 0, 0, thread + 2, 4, 4))
    assert early.drain() == [Boundary(OPEN, 1, None, 5, 0, 0, "open throughout"), Boundary(LEAVE, 0, 0, 5, 1, 1)]


def test_paths_chains_and_common_ancestors():
    attributor = Attributor()
    attributor.know(1, None, "epoch")
    attributor.know(2, 1, "step")
    attributor.know(3, 2, "forward")
    attributor.know(4, 2, "backward")
    assert attributor.path(3) == ("epoch", "step", "forward")
    assert attributor.path(3) is attributor.path(3)  # made once
    assert attributor.common_ancestors((3, 4)) == (2, 1)


def test_a_marker_call_of_the_program_is_not_ours():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 100_000, 100_500, "a"))
    assert not attributor.marker(5, 50_000, 7)
    assert attributor.marker(5, 100_200, 9)
    assert not attributor.marker(5, 100_300, 10)


def test_blocks_are_forgotten_but_open_ones_keep_their_ancestors(monkeypatch):
    from gpusense._attribution import attributor as _attribution

    monkeypatch.setattr(_attribution, "MAX_BLOCKS", 100)
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 0, 1, "root"), 1)
    for i in range(2, 1000):
        attributor.boundary(Boundary(OPEN, i, 1, 5, i, i, "x"), i * 2)
        attributor.boundary(Boundary(CLOSE, i, None, 5, i, i), i * 2 + 1)
    assert len(attributor._parents) <= 101
    assert attributor.path(999) == ("root", "x")


def test_paths_of_blocks_that_are_not_known_are_not_kept():
    attributor = Attributor()
    attributor.know(1, None, "a")
    assert [attributor.path(number) for number in range(1, 1000)] == [("a",)] + [("?",)] * 998
    assert len(attributor._paths) == 1


def test_many_boundaries_at_once_are_forgotten_in_time(monkeypatch):
    from gpusense._attribution import attributor as _attribution

    monkeypatch.setattr(_attribution, "MAX_EVENTS", 100)
    monkeypatch.setattr(_attribution, "MAX_BLOCKS", 100)
    attributor, widener = Attributor(), Widener()
    attributor.boundaries_after([(PLACED, OPEN, 1, None, 5, 0, "root", 0xFFFFFFFF)], widener)
    for i in range(2, 1000, 2):
        attributor.boundaries_after(
            [(PLACED, op, j, 1, 5, i, "x", i * 2 + n) for n, (op, j) in enumerate([(OPEN, i), (CLOSE, i)])], widener
        )
        assert len(attributor._threads[5].corrs) <= 100
        assert len(attributor._all.corrs) <= 100
        assert len(attributor._parents) <= 100
    assert attributor.path(998) == ("root", "x")
    assert attributor.resolve(5, 998 * 2 + 1) == ((998,), False)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(0, 2**34))
def test_widening_follows_the_wrap(steps, start):
    widener = Widener()
    assert widener.widen([start & 0xFFFFFFFF])
    widener.newest = start
    value = start
    for step in steps:
        batch = [value + i * 1000 for i in range(step + 1)]
        assert widener.widen([v & 0xFFFFFFFF for v in batch]) == (batch, batch[0], batch[-1])
        value = batch[-1] + 2**27


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8), st.integers(0, 2**34), st.booleans())
def test_ids_in_any_order_are_as_wide_as_each_and_known_to_ascend_where_they_do(corrs, newest, close):
    one, other = Widener(), Widener()
    one.newest = other.newest = newest
    if close:
        corrs = [(newest + corr % 50 - 25) & 0xFFFFFFFF for corr in corrs]
    ids = one.ids(corrs)
    wide, low, high = other.widen(corrs)
    assert ([ids.wide(i) for i in range(len(corrs))], ids.low, ids.high) == (wide, low, high)
    assert one.newest == other.newest
    assert not ids.ascend or sorted(wide) == wide


@pytest.mark.parametrize("jitter", [-5, 0, 5])
def test_widening_around_the_wrap_out_of_order(jitter):
    widener = Widener()
    widener.newest = 2**32 - 3
    wide = [2**32 + jitter, 2**32 - 1, 2**32 + 2]
    assert widener.widen([v & 0xFFFFFFFF for v in wide]) == (wide, min(wide), max(wide))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40), st.integers(0, 2**34))
def test_one_id_is_widened_as_many_are(ids, newest):
    one, many = Widener(), Widener()
    one.newest = many.newest = newest
    for number in ids:
        assert one.widen_one(number) == many.widen([number])[1]
        assert one.newest == many.newest


def test_ids_that_begin_anew_are_later_than_all_before():
    widener = Widener()
    assert widener.widen([5, 9])[0] == [5, 9]
    widener.restart()
    assert widener.widen_one(3) == 2**32 + 3
    widener.restart()
    assert widener.widen([1])[0] == [2 * 2**32 + 1]


def ended_elsewhere(attributor, way, op, block, parent, thread, corr):
    event = Boundary(op, block, parent, thread, corr * 10, corr * 10 + 5, f"b{block}", corr if way == "marked" else 0)
    if way == "read":
        attributor.boundaries_after([(PLACED, *event[:5], event.name, corr - 1)], Widener())
        return
    attributor.boundary(event, corr if way == "known" else None)
    if way == "marked":
        attributor.token(corr, corr)


@pytest.mark.parametrize("way", ["read", "known", "marked"])
def test_a_block_that_another_thread_closed_is_open_on_neither(way):
    attributor = Attributor()
    for n in range(100):
        base, block = 100 * n + 10, 10 * n + 1
        ended_elsewhere(attributor, way, OPEN, block, None, 5, base)
        ended_elsewhere(attributor, way, OPEN, block + 1, block, 5, base + 10)
        ended_elsewhere(attributor, way, CLOSE, block + 1, None, 6, base + 20)
        ended_elsewhere(attributor, way, OPEN, block + 2, None, 6, base + 25)
        ended_elsewhere(attributor, way, CLOSE, block, None, 6, base + 30)
        ended_elsewhere(attributor, way, CLOSE, block + 2, None, 6, base + 35)
        places = [attributor.resolve(5, base + at)[0] for at in (5, 15, 22, 33, 40)]
        assert places == [(block,), (block + 1,), (block,), (), ()]
        assert [attributor.resolve(6, base + at)[0] for at in (27, 32, 40)] == [(block + 2,), (block + 2,), ()]
    assert attributor._threads[5].open_now() == attributor._threads[6].open_now() == attributor._all.open_now() == ()
    assert not attributor._homes
    assert not attributor._elsewhere


def test_a_block_of_a_followed_task_that_another_thread_closed():
    attributor = Attributor()
    attributor.boundary(Boundary(SWITCH, 0, 0, 5, 0, 1), 1)
    attributor.boundary(Boundary(OPEN, 1, None, 5, 2, 3, "outer"), 10)
    attributor.boundary(Boundary(OPEN, 2, 1, 5, 4, 5, "inner"), 20)
    attributor.boundary(Boundary(CLOSE, 2, None, 6, 6, 7), 30)
    attributor.boundary(Boundary(SWITCH, 0, 0, 5, 8, 9), 40)
    attributor.boundary(Boundary(CLOSE, 1, None, 6, 10, 11), 50)
    attributor.boundary(Boundary(SWITCH, 0, None, 5, 12, 13), 60)
    assert [attributor.resolve(5, corr)[0] for corr in (15, 25, 35, 45, 55, 65)] == [(1,), (2,), (1,), (), (), ()]


def test_a_lost_end_on_another_thread_leaves_both_candidates_until_the_next_boundary():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 10, 15, "a"), 10)
    attributor.boundary(Boundary(CLOSE, 1, None, 6, 20, 25, token=1))
    attributor.boundary(Boundary(OPEN, 2, None, 5, 30, 35, "b"), 30)
    attributor.lose(1)
    assert [attributor.resolve(5, corr)[0] for corr in (15, 31)] == [(0, 1), (2,)]
