"""Which kinds are on, with several threads that want something else at once, against what is on once all is quiet."""

import os
import random
import sys
import threading
import time

import pytest
from support.cupti import COPIES, KERNELS, MEMSETS, SYNCS
from support.cupti import Engine as Scripted

from gpusense._decode import layouts
from gpusense.backends.cupti import broker

#: For a night: GPUSENSE_TEST_TRIALS=100000.
TRIALS = int(os.environ.get("GPUSENSE_TEST_TRIALS", 0)) or 60
ALL = (COPIES, MEMSETS, KERNELS, SYNCS, layouts.MEMCPY2)


class Cupti(Scripted):
    """Calls take a while; disabling copies ends memsets, too, until these are enabled anew, as in CUDA 13.0."""

    def __init__(self, chance):
        super().__init__()
        self.on, self.memsets, self.chance, self.guard = set(), True, chance, threading.Lock()

    def _slowly(self):
        if self.chance.random() < 0.5:
            time.sleep(self.chance.choice((0, 0.0001, 0.0004)))

    def enable(self, kind):
        self._slowly()
        with self.guard:
            self.memsets |= kind == MEMSETS and MEMSETS not in self.on
            self.on.add(kind)
        self._slowly()

    def disable(self, kind):
        self._slowly()
        with self.guard:
            self.memsets &= kind != COPIES
            self.on.discard(kind)
        self._slowly()

    def recorded(self):
        return {kind for kind in self.on if kind != MEMSETS or self.memsets}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(broker.threads, "start", lambda target, name: None)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield lambda chance: broker.Hub(Cupti(random.Random(chance.random())))
    sys.setswitchinterval(before)


def together(*actions):
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Copy:
    """One copy of gpusense. Several threads may use it at once."""

    def __init__(self, hub, kinds):
        self.hub, self.kinds, self.wants = hub, kinds, {"kinds": sorted(kinds)}
        self.leave, self.wanted = None, frozenset()

    def receive(self, *_): ...

    def join_or_leave(self):
        if self.leave is None:
            self.receiver = self.receive
            self.leave, self.wanted = self.hub.join(self.kinds, self.receiver, self.wants), self.kinds
        else:
            self.leave()
            self.leave, self.wanted = None, frozenset()

    def want(self, kinds):
        if self.leave is not None:
            self.hub.want(self.receiver, kinds)
            self.wanted = kinds

    def pause(self, kinds):
        self.hub.pause_kinds(kinds, self.wants)


def quiet(hub, copies):
    """Nothing but what somebody wants, and does not pause, is on; and nothing once all have left."""
    engine, kinds = hub._engine, hub._kinds
    wanted = frozenset().union(*(copy.wanted for copy in copies))
    assert engine.recorded() == wanted - kinds._paused
    assert (kinds.lasting is not None) == bool(kinds._paused)
    assert kinds._paused <= wanted
    for copy in copies:
        if copy.leave is not None:
            copy.leave()
    assert engine.on == set()
    assert not kinds._paused
    assert kinds.lasting is None


@pytest.mark.parametrize("seed", range(TRIALS))
def test_copies_that_join_leave_and_pause_at_once(hub, seed):
    chance = random.Random(seed)
    hub, copies = hub(chance), []

    def live(chance):
        copy = Copy(hub, frozenset((KERNELS, *chance.sample(ALL, chance.randrange(5)))))
        copies.append(copy)
        for _ in range(chance.randrange(3, 14)):
            act = chance.random()
            if act < 0.35:
                copy.join_or_leave()
            elif act < 0.5:
                copy.want(frozenset(chance.sample(sorted(copy.kinds), 1)))
            else:
                copy.pause(copy.kinds - {MEMSETS} if act < 0.8 else ())

    chances = [random.Random(chance.random()) for _ in range(chance.randrange(1, 5))]
    together(*(lambda own=own: live(own) for own in chances))
    quiet(hub, copies)


@pytest.mark.parametrize("seed", range(TRIALS))
def test_one_copy_whose_threads_pause_and_disable_at_once(hub, seed):
    chance = random.Random(seed)
    hub = hub(chance)
    copy = Copy(hub, frozenset((KERNELS, COPIES, MEMSETS, layouts.MEMCPY2)))

    def record(chance):
        for _ in range(chance.randrange(3, 20)):
            copy.pause(copy.kinds - {MEMSETS} if chance.random() < 0.6 else ())
            time.sleep(chance.choice((0, 0.0003)))

    def switch(chance):
        for _ in range(chance.randrange(1, 8)):
            copy.join_or_leave()
            time.sleep(chance.choice((0, 0.0003)))

    actions = [record] * chance.randrange(1, 3)
    owns = [random.Random(chance.random()) for _ in range(3)]
    together(*(lambda own=own, action=action: action(own) for own, action in zip(owns, (*actions, switch))))  # noqa: B905
    quiet(hub, [copy])


def test_who_asks_in_the_middle_of_a_call_is_not_forgotten(hub, monkeypatch):
    """As a signal handler or a finaliser of the program does, also at the very end."""
    hub = hub(random.Random(1))
    leave = hub.join({KERNELS}, print, mine := {})
    kinds, asked = hub._kinds, []
    real = kinds._next

    def interrupted():
        step = real()
        if kinds._switching.mine and step is None and not asked:
            asked.append(1)
            hub.pause_kinds((), mine)
        return step

    monkeypatch.setattr(kinds, "_next", interrupted)
    hub.pause_kinds({KERNELS}, mine)
    assert hub._engine.recorded() == {KERNELS}
    assert kinds.lasting is None
    leave()


def test_what_hangs_in_a_call_holds_others_for_a_limited_time(hub, monkeypatch):
    monkeypatch.setattr("gpusense.backends.cupti.kinds.SWITCH_WAIT_S", 0.01)
    hub = hub(random.Random(1))
    entered, go_on = threading.Event(), threading.Event()
    real = hub._engine.enable

    def enable(kind):
        entered.set()
        assert go_on.wait(20)
        real(kind)

    hub._engine.enable = enable
    first = threading.Thread(target=hub.join, args=({KERNELS}, print))
    first.start()
    assert entered.wait(20)
    hub.join({SYNCS}, repr)  # comes back: the first sees to it
    go_on.set()
    first.join(20)
    assert hub._engine.recorded() == {KERNELS, SYNCS}
