"""Random histories against a model that is slow and obvious: it keeps the whole state of each thread, and looks.

For a night: GPUSENSE_TEST_HISTORIES=10000000.
"""

import os
import random

import pytest

from gpusense._attribution import attributor as _attribution
from gpusense._attribution.attributor import Attributor
from gpusense._attribution.boundaries import CLOSE, DARK, GONE, LIT, OPEN, PLACED, Boundary
from gpusense._attribution.timelines import MOST_CANDIDATES
from gpusense._decode.correlation_ids import Widener

PARTS = 8
HISTORIES = int(os.environ.get("GPUSENSE_TEST_HISTORIES", 0)) or 25_000
STARTS = (0, 0, 0, 2**31 - 50, 2**32 - 60, 5 * 2**32 - 30)


class History:
    """Threads with nested blocks that are closed by anybody, in any order; launches; threads that end, and others with
    their ids; times in which nothing is seen; ids that begin anew. The clock goes as it likes.

    Or, with ``marked``, one thread with a clock, whose boundaries have markers: some of these are lost.
    """

    def __init__(self, chance):
        self.chance = chance
        self.attributor, self.widener = Attributor(), Widener()
        self.corr = chance.choice(STARTS)
        self.widener.newest = max(self.corr - 1, 0)
        self.threads = [0x7F1000000000 + 0x801000 * i for i in range(chance.randrange(1, 4))]
        self.parents, self.stacks, self.blocks = {}, {}, 0
        self.open, self.home = [], {}  # block → life of a thread
        self.lives = dict.fromkeys(self.threads, 0)
        self.rooted, self.launches, self.rows = set(), [], []
        self.dark, self.hidden = False, []
        self.marked = chance.random() < 0.2
        self.crowded = not self.marked and chance.random() < 0.1  # nothing is closed for long
        self.now, self.markers, self.lost = 10**18, [], []  # the last: of each boundary, whether its marker was
        self.unplaced = None  # where the last DARK was, or without one the first LIT
        if self.marked:
            del self.threads[1:]
        if chance.random() < 0.3:
            self.light(LIT)

    def light(self, op):
        corr = self.widener.widen_one((self.corr + 1) & 0xFFFFFFFF)
        if op == DARK or self.unplaced is None:
            self.unplaced = corr
        self.attributor.boundary(Boundary(op, 0, None, 0, 0, 0), corr)

    def cross(self, op, block, parent, thread):
        if self.marked:
            self.corr += 1
            self.now += 1000
            self.lost.append(self.chance.random() < 0.2)
            token = len(self.lost)
            self.markers.append((token, self.corr & 0xFFFFFFFF))
            self.attributor.boundary(Boundary(op, block, parent, thread, self.now, self.now + 10, f"b{block}", token))
            return
        now = 10**18 + int(self.chance.random() * 2e9) - 10**9
        self.rows.append((PLACED, op, block, parent, thread, now, f"b{block}", self.corr & 0xFFFFFFFF))

    def step(self):
        chance, thread = self.chance, self.chance.choice(self.threads)
        life = thread, self.lives[thread]
        act = chance.random()
        if act < (0.6 if self.crowded else 0.3):
            stack = self.stacks.setdefault(life, [])
            parent = next((block for block in reversed(stack) if block in self.home), None)
            if self.crowded and chance.random() < 0.9:
                parent = None
            self.blocks += 1
            self.parents[self.blocks], self.home[self.blocks] = parent, life
            stack.append(self.blocks)
            self.open.append(self.blocks)
            if parent is None:
                self.rooted.add(life)
            self.cross(OPEN, self.blocks, parent, thread)
        elif act < 0.55 and self.open and not (self.crowded and chance.random() < 0.95):
            mine = [block for block in self.open if self.home[block] == life]
            block = mine[-1] if mine and chance.random() < 0.8 else chance.choice(self.open)
            self.open.remove(block)
            del self.home[block]
            self.cross(CLOSE, block, None, thread)
        elif act < 0.57:
            if life in self.rooted and not self.marked:  # others have no rights that could end
                self.cross(GONE, 0, None, thread)
                self.lives[thread] += 1
        elif act < 0.58:
            self.deliver()
            self.dark = not self.dark
            self.light(DARK if self.dark else LIT)
        elif act < 0.59:
            self.deliver()
            self.widener.widen_one(self.corr & 0xFFFFFFFF)  # of the work that was read
            self.widener.restart()
            self.corr = self.widener.newest
        else:
            answer = *self.answer(life), len(self.lost)
            for self.corr in range(self.corr + 1, self.corr + 1 + chance.choice((1, 2, 3))):  # noqa: B020
                self.launches.append((thread, self.corr, self.dark, answer))

    def answer(self, life):
        """Innermost blocks, and whether they are of other threads."""
        mine = [block for block in self.open if self.home[block] == life]
        inherits = not mine and life not in self.rooted
        opens = self.open if inherits else mine
        inner = set(opens)
        for block in opens:
            while (block := self.parents[block]) is not None:
                inner.discard(block)
        return life, tuple(sorted(inner)), inherits

    def around(self, blocks):
        chains = []
        for block in blocks:
            chain = [block]
            while self.parents[chain[-1]] is not None:
                chain.append(self.parents[chain[-1]])
            chains.append(chain)
        return next((block for block in chains[0] if all(block in chain for chain in chains)), 0)

    def deliver(self):
        if self.rows:
            self.attributor.boundaries_after(self.rows, self.widener)
        for token, corr in self.markers:
            if not self.lost[token - 1]:
                self.attributor.token(token, self.widener.widen_one(corr))
            elif self.chance.random() < 0.5:
                self.attributor.lose(token)  # the others are waited for
        if self.markers:
            self.attributor.give_up(self.now + 1000)
        self.rows, self.markers = [], []

    def judge(self):
        self.deliver()
        assert self.attributor.unplaced == self.unplaced
        for _, corr, dark, _ in self.launches:
            assert self.attributor.unseen(corr, corr) is dark
        for thread in self.threads:
            rows = [row for row in self.launches if row[0] == thread and not row[2]]
            if self.chance.random() < 0.5:
                self.chance.shuffle(rows)
            corrs = [row[1] for row in rows]
            if not rows:
                continue
            base = min(corrs) & ~0xFFFFFFFF if self.chance.random() < 0.5 else 0
            ascend = corrs == sorted(corrs)
            found = self.attributor.segments(thread, [c - base for c in corrs], min(corrs), max(corrs), base, ascend)
            places = [place for low, high, place in found for _ in range(low, high)]
            assert len(places) == len(rows)
            for (_, corr, _, (life, inner, inherits, crossed)), place in zip(rows, places, strict=True):
                inherits = inherits and life not in self.rooted  # with hindsight: it opened one of its own later
                assert self.attributor.resolve(thread, corr) == place
                if True in self.lost[max(crossed - 1, 0) : crossed + 1]:
                    assert ({*inner} or {0}) <= ({*place[0]} or {0})
                else:
                    self.agree(life, inner, inherits, place)
        self.launches = []

    def agree(self, life, inner, inherits, place):
        candidates, inherited = place
        if life in self.rooted and not any(self.was_mine(block, life) for block in inner):
            assert candidates == ()  # it owns what it launches
            return
        assert inherited is inherits
        if len(inner) <= MOST_CANDIDATES:
            assert candidates == inner
        else:
            assert len(candidates) <= MOST_CANDIDATES
            assert (self.attributor.common_ancestors(candidates) or (0,))[0] == self.around(inner)

    def was_mine(self, block, life):
        return block in self.stacks.get(life, ())


@pytest.mark.parametrize("part", range(PARTS))
def test_histories_are_told_as_they_were(part, monkeypatch):
    for number in range(part, HISTORIES, PARTS):
        chance = random.Random(number)
        monkeypatch.setattr(_attribution, "MAX_EVENTS", 10**6)
        history = History(chance)
        try:
            for _ in range(chance.choice((8, 8, 8, 8, 8, 8, 20, 30, 30, 300 if history.crowded else 100))):
                history.step()
                if chance.random() < 0.05:
                    history.judge()
            history.judge()
        except AssertionError as error:
            raise AssertionError(f"history {number}") from error
