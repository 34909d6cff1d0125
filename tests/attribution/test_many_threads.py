"""Timelines of many short threads: the newest are kept, and what is forgotten gives no record to a wrong block."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusense._attribution import attributor as _attribution
from gpusense._attribution.attributor import Attributor
from gpusense._attribution.boundaries import CLOSE, GONE, LEAVE, OPEN, PLACED, SWITCH, Boundary
from gpusense._decode.correlation_ids import Widener

MOST = 120
IN_TIME = MOST // 2 - 1  # events and timelines that may be added before a record is read


def thread_id(number):
    return 0x7F0000000640 + number * 0x1000


@pytest.fixture
def most(monkeypatch):
    monkeypatch.setattr(_attribution, "MAX_EVENTS", MOST)


class Told:
    """An attributor with at most ``most`` events. Boundaries are read, or marked and some of the markers lost."""

    def __init__(self, most, marked):
        self.attributor, self.widener, self.most, self.marked = Attributor(), Widener(), most, marked

    def tell(self, corr, event, lost):
        before, _attribution.MAX_EVENTS = _attribution.MAX_EVENTS, self.most
        try:
            if not self.marked:
                self.attributor.boundaries_after([(PLACED, *event[:5], event.name, corr - 1)], self.widener)
                return
            self.attributor.boundary(event)
            if lost:
                self.attributor.lose(event.token)
            else:
                self.attributor.token(event.token, corr)
        finally:
            _attribution.MAX_EVENTS = before

    def resolve(self, thread, corr):
        return self.attributor.resolve(thread, corr)


class Server:
    """Threads that come and go: with a request each; helpers, whose blocks are inside those of others; loops, whose
    tasks are followed. Their ids are used again. ``launches``: thread, id, block or 0 where the thread knows, and how
    much ``few`` had been told by then."""

    def __init__(self, seed, ids, marked, lose=0.0):
        self.random = random.Random(seed)
        self.few, self.all = Told(MOST, marked), Told(1 << 30, marked)
        self.ids = [thread_id(number) for number in range(ids)]
        self.lose = lose
        self.corr = self.time = self.token = self.block = 0
        self.stacks, self.kinds, self.launches = {}, {}, []
        self.owned = set()

    def tell(self, thread, op, block, parent):
        self.corr, self.time, self.token = self.corr + 1, self.time + 10, self.token + 1
        event = Boundary(op, block, parent, thread, self.time, self.time + 5, f"b{block}", self.token)
        lost = self.random.random() < self.lose
        for told in (self.few, self.all):
            told.tell(self.corr, event, lost)

    def step(self):
        chance = self.random.random()
        if len(self.stacks) < 4 and chance < 0.3:
            self.begin()
        elif self.stacks:
            thread = self.random.choice(list(self.stacks))
            stack, kind = self.stacks[thread], self.kinds[thread]
            if chance < 0.5 and kind != "plain" and len(stack) < 3:
                self.open(thread, stack, kind)
            elif chance < 0.7 and stack:
                self.close(thread, stack, kind)
            elif chance < 0.8:
                self.end(thread, stack, kind)
            else:
                self.launch(thread)

    def begin(self):
        thread = self.random.choice([one for one in self.ids if one not in self.stacks])
        kind = self.random.choice(("request", "request", "request", "helper", "plain", "loop"))
        self.stacks[thread], self.kinds[thread] = [], kind
        if kind == "loop":
            self.tell(thread, SWITCH, 0, 0)

    def open(self, thread, stack, kind):
        others = [blocks[-1] for one, blocks in self.stacks.items() if blocks and one != thread]
        parent = stack[-1] if stack else self.random.choice(others) if kind == "helper" and others else None
        if kind == "helper" and parent is None:
            return
        if parent is None:
            self.owned.add(thread)
        self.block += 1
        stack.append(self.block)
        self.tell(thread, OPEN, self.block, parent)

    def close(self, thread, stack, kind):
        block = stack.pop()
        others = [one for one, kind in self.kinds.items() if one in self.stacks and kind != "loop"]
        if others and self.random.random() < 0.1:
            self.tell(self.random.choice(others), CLOSE, block, None)
        else:
            self.tell(thread, CLOSE, block, (stack[-1] if stack else 0) if kind == "loop" else None)

    def end(self, thread, stack, kind):
        while stack:
            self.close(thread, stack, kind)
        if kind == "loop":
            self.tell(thread, LEAVE, 0, 0)
            self.kinds[thread] = "plain"
        self.launch(thread)
        del self.stacks[thread]

    def launch(self, thread):
        self.corr += 1
        stack = self.stacks[thread]
        known = bool(stack) or self.kinds[thread] == "loop" or thread in self.owned
        truth = (stack[-1] if stack else 0) if known else None
        self.launches.append((thread, self.corr, truth, self.few.attributor._kept.added))


@given(st.integers(0, 10**9), st.integers(5, 400), st.booleans())
@settings(max_examples=30, deadline=None)
def test_records_that_come_in_time_are_given_as_if_nothing_were_forgotten(seed, ids, marked):
    server = Server(seed, ids, marked)
    few, kept, asked = server.few.attributor, server.few.attributor._kept, 0
    for _ in range(1500):
        server.step()
        if server.random.random() < 0.2:
            for thread, corr, _, added in reversed(server.launches):
                if kept.added - added >= IN_TIME:
                    break
                expected, asked = server.all.resolve(thread, corr), asked + 1
                assert few.resolve(thread, corr) == expected
                assert few.constant(thread, corr, corr) in (None, expected)
                assert list(few.segments(thread, [corr], corr, corr)) == [(0, 1, expected)]
    assert asked > 100
    assert len(server.all.attributor._threads) >= min(ids, 80) * 0.7
    assert len(few._threads) <= MOST // 5 + 4
    assert sum(len(line.corrs) for line in few._threads.values()) <= MOST + len(few._threads)


@given(st.integers(0, 10**9), st.integers(5, 400), st.booleans(), st.sampled_from([0.0, 0.1]))
@settings(max_examples=30, deadline=None)
def test_late_records_are_given_to_no_wrong_block(seed, ids, marked, lose):
    server = Server(seed, ids, marked, lose)
    for _ in range(1200):
        server.step()
    few, late = server.few.attributor, 0
    for thread, corr, truth, added in server.launches:
        found, inherited = few.resolve(thread, corr)
        assert list(few.segments(thread, [corr], corr, corr)) == [(0, 1, (found, inherited))]
        assert few.constant(thread, corr, corr) in (None, (found, inherited))
        if truth is not None and not (marked and lose):
            late += few._kept.added - added > IN_TIME
            around = {block for leaf in found for block in few.chain(leaf)}
            assert not found or truth in found or (len(found) > 1 and truth in around)
        if len(found) == 1 and not (marked and lose):
            assert found == server.all.resolve(thread, corr)[0]
    rows = sorted((corr, thread) for thread, corr, _, _ in server.launches)
    for thread in {thread for _, thread in rows[:20]}:
        corrs = [corr for corr, one in rows if one == thread]
        segments = few.segments(thread, corrs, corrs[0], corrs[-1])
        found = [place for low, high, place in segments for _ in range(low, high)]
        assert found == [few.resolve(thread, corr) for corr in corrs]
    assert late > 50 or (marked and lose)


def requests(attributor, numbers):
    """A thread each, with a block of its own."""
    for number in numbers:
        thread, corr = thread_id(number), number * 10
        attributor.boundary(Boundary(OPEN, number, None, thread, corr, corr, "request"), corr)
        attributor.boundary(Boundary(CLOSE, number, None, thread, corr + 5, corr + 5), corr + 5)


@pytest.mark.usefixtures("most")
def test_a_thread_that_went_is_outside_and_its_id_may_come_again():
    attributor = Attributor()
    requests(attributor, [1])
    attributor.boundary(Boundary(OPEN, 10**6, None, 5, 16, 16, "of another thread"), 16)
    requests(attributor, range(2, 200))
    assert thread_id(1) & 0xFFFFFFFF not in attributor._threads
    assert attributor.resolve(thread_id(1), 1995) == ((), False)
    assert attributor.resolve(thread_id(500), 1999) == ((10**6,), True)
    assert attributor.resolve(thread_id(150), 1999) == ((), False)
    attributor.boundary(Boundary(OPEN, 10**6 + 1, 10**6, thread_id(1), 2000, 2000, "new"), 2000)
    assert attributor.resolve(thread_id(1), 1999) == ((), False)
    assert attributor.resolve(thread_id(1), 2001) == ((10**6 + 1,), False)
    attributor.boundary(Boundary(CLOSE, 10**6 + 1, None, thread_id(1), 2005, 2005), 2005)
    assert attributor.resolve(thread_id(1), 2006) == ((), False)


@pytest.mark.usefixtures("most")
def test_what_comes_too_late_has_all_that_was_open_for_candidates():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 10**6, None, 5, 1, 1, "of another thread"), 1)
    requests(attributor, [1])
    for number in range(2, 500):
        attributor.boundary(Boundary(SWITCH, 0, number % 2, 6, number * 10, number * 10), number * 10)
    assert attributor.resolve(thread_id(1), 12) == ((0, 1, 10**6), False)
    assert attributor.resolve(thread_id(1), 5000) == ((), False)
    assert attributor.constant(thread_id(1), 12, 13) == ((0, 1, 10**6), False)
    assert attributor.constant(thread_id(1), 12, 5000) is None
    assert attributor.resolve(6, 30) == ((0, 10**6), True)
    assert list(attributor.segments(6, [30, 4991], 30, 4991)) == [
        (0, 1, ((0, 10**6), True)),
        (1, 2, ((1,), False)),
    ]


@pytest.mark.usefixtures("most")
def test_a_thread_with_a_block_open_or_a_marker_on_its_way_stays():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 10**6, None, 5, 1, 1, "for weeks"), 1)
    requests(attributor, [1])
    attributor.boundary(Boundary(OPEN, 10**6 + 1, None, thread_id(1), 20, 20, "marked", token=1))
    attributor.boundary(Boundary(OPEN, 10**6 + 2, None, 7, 21, 21, "closed by another"), 21)
    attributor.boundary(Boundary(CLOSE, 10**6 + 2, None, 5, 22, 22), 22)
    requests(attributor, range(3, 300))
    assert attributor.resolve(5, 3000) == ((10**6,), False)
    assert {5, thread_id(1) & 0xFFFFFFFF} <= set(attributor._threads)
    assert 7 not in attributor._threads
    attributor.lose(1)
    assert attributor.resolve(thread_id(1), 3000) == ((0, 10**6 + 1), False)


@pytest.mark.usefixtures("most")
def test_a_late_boundary_before_all_that_are_kept_goes_on_from_what_was_open():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 1, None, 5, 1, 1, "epoch"), 1)
    for number in range(2, 300):
        attributor.boundary(Boundary(OPEN, number, 1, 5, number * 10, number * 10, "step"), number * 10)
        attributor.boundary(Boundary(CLOSE, number, None, 5, number * 10 + 5, number * 10 + 5), number * 10 + 5)
    first = attributor._threads[5].since
    assert first > 100
    attributor.boundary(Boundary(OPEN, 1000, 1, 5, first - 8, first - 8, "late"), first - 9)
    attributor.boundary(Boundary(CLOSE, 1000, None, 5, first - 7, first - 7), first - 8)
    assert attributor.resolve(5, 10_000) == ((1,), False)
    assert attributor.resolve(5, 2992) == ((299,), False)


def test_queues_of_markers_go_with_the_last_of_them():
    attributor = Attributor()
    for thread in range(1, 100):
        attributor.boundary(Boundary(OPEN, thread, None, thread, thread * 10_000, thread * 10_000 + 500, "a"))
        attributor.boundary(Boundary(CLOSE, thread, None, thread, thread * 10_000 + 5_000, thread * 10_000 + 5_500))
        assert attributor.marker(thread, thread * 10_000 + 200, thread * 10)
        assert attributor.marker(0, thread * 10_000 + 5_200, thread * 10 + 5) if thread % 2 else True
    assert len(attributor._pending) == 49
    attributor.give_up(1 << 62)
    assert not attributor._pending
    assert attributor.lost_markers == 49
    assert attributor.resolve(51, 512) == ((51,), False)


@pytest.mark.usefixtures("most")
def test_late_records_of_a_thread_whose_id_is_used_again_are_not_the_new_ones():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 10**6, None, 5, 1, 1, "of another thread"), 1)
    attributor.boundary(Boundary(SWITCH, 0, 0, 6, 2, 2), 10)
    attributor.boundary(Boundary(LEAVE, 0, 0, 6, 3, 3), 20)
    requests(attributor, range(3, 50))
    assert 6 not in attributor._threads
    attributor.boundary(Boundary(OPEN, 10**6 + 1, 10**6, 6, 600, 600, "hook"), 600)
    assert attributor.resolve(6, 15) == ((0, 10**6), True)
    assert attributor.resolve(6, 599) == ((10**6,), True)
    assert attributor.resolve(6, 601) == ((10**6 + 1,), False)
    assert len(attributor._rooted) <= len(attributor._threads)


@pytest.mark.usefixtures("most")
def test_boundaries_that_come_or_are_lost_too_late_decide_nothing_that_is_kept():
    attributor = Attributor()
    attributor.boundary(Boundary(OPEN, 10**6, None, 5, 1, 1, "of another thread"), 1)
    for number in range(10, 450, 10):
        attributor.boundary(Boundary(OPEN, number, 10**6, 6, number, number, "hook"), number)
        attributor.boundary(Boundary(CLOSE, number, None, 6, number + 5, number + 5), number + 5)
        attributor.boundary(Boundary(SWITCH, 0, None, 6, number + 6, number + 6), number + 6)
    attributor.boundary(Boundary(CLOSE, 10**6 + 1, None, 6, 28, 28, token=1))
    attributor.lose(1)
    assert min(attributor._threads[6].corrs) > 100
    attributor.boundary(Boundary(OPEN, 10**6 + 1, 10**6, 6, 26, 26, "late"), 26)
    assert attributor.resolve(6, 27) == ((0, 10**6 + 1), True)
    assert attributor.resolve(6, 442) == ((440,), False)


# --- ids that are used again ------------------------------------------------------------------------------------------


def lived(widener, *rows):
    attributor = Attributor()
    attributor.boundaries_after([(PLACED, *row) for row in rows], widener)
    return attributor


def test_the_rights_of_a_thread_end_with_it():
    """A thread without blocks, as autograd's, gets the id of one that had some: what it launches lies in the only
    block that is open."""
    attributor = lived(
        Widener(),
        (OPEN, 1, None, 5, 10, "warm up", 0),
        (CLOSE, 1, None, 5, 20, "", 3),
        (GONE, 0, None, 5, 30, "", 4),
        (OPEN, 2, None, 6, 40, "step", 4),
        (CLOSE, 2, None, 6, 50, "", 9),
    )
    assert attributor.resolve(5, 2) == ((1,), False)
    assert attributor.resolve(5, 4) == ((), False)  # its last launch
    assert attributor.resolve(5, 7) == ((2,), True)
    assert attributor.resolve(5, 10) == ((), True)
    corrs = [2, 4, 6, 7, 10]
    found = [attributor.resolve(5, corr) for corr in corrs]
    for ascend in (False, True):
        segments = attributor.segments(5, corrs, 2, 10, 0, ascend)
        assert [place for low, high, place in segments for _ in range(low, high)] == found
    mixed = [10, 2, 7, 4]
    segments = attributor.segments(5, mixed, 2, 10)
    assert [place for low, high, place in segments for _ in range(low, high)] == [
        attributor.resolve(5, corr) for corr in mixed
    ]


def test_the_next_thread_with_its_id_has_rights_of_its_own():
    attributor = lived(
        Widener(),
        (OPEN, 1, None, 5, 10, "a", 0),
        (GONE, 0, None, 5, 20, "", 3),  # left its block open
        (OPEN, 2, None, 5, 30, "b", 3),
        (CLOSE, 2, None, 5, 40, "", 6),
        (GONE, 0, None, 5, 50, "", 6),
        (GONE, 0, None, 5, 60, "", 6),  # one that did nothing
        (OPEN, 3, None, 6, 70, "c", 7),
    )
    assert attributor.resolve(5, 3) == ((1,), False)
    assert attributor.resolve(5, 4) == ((2,), False)
    assert attributor.resolve(5, 8) == ((1, 3), True)  # what was left open may be anybody's


def test_many_lives_of_one_id_are_not_all_remembered():
    widener, attributor, remembered = Widener(), Attributor(), []
    for life in range(500):
        corr = 10 * life
        rows = ((OPEN, life + 1, None, 5, 1, "a", corr), (CLOSE, life + 1, None, 5, 2, "", corr + 5))
        attributor.boundaries_after([(PLACED, *row) for row in (*rows, (GONE, 0, None, 5, 3, "", corr + 5))], widener)
        remembered.append(len(attributor._kept.ends[5]))
    assert max(remembered) == 64
    assert attributor.resolve(5, 4993) == ((500,), False)
    assert attributor.resolve(5, 5001) == ((), True)
    assert attributor.resolve(5, 8) == ((), False)
