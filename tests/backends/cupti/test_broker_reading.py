"""How often the hub reads buffers, and what becomes of them, with an engine of its own."""

import threading

import pytest
from support.cupti import KERNELS, Engine

from gpusense.backends.cupti import broker


def test_buffers_beyond_what_the_strictest_member_allows_are_kept_back_empty(hub, engine):
    hub.join({KERNELS}, print, {"buffer_bytes": 8 * 4096})
    leave = hub.join({KERNELS}, print, {"buffer_bytes": 5 * 4096 + 1})
    buffers = [4096 * i for i in range(1, 9)]
    engine.full.extend((address, 216, 7) for address in buffers)
    hub.flush()
    assert engine.named("discard") == [("discard", address) for address in buffers[:3]]
    assert engine.given == buffers[3:]
    assert hub.status()["buffers_held_back"] == 3
    leave()
    engine.full.append((buffers[4], 216, 7))
    hub.flush()
    assert sorted(engine.given[5:]) == [*buffers[:3], buffers[4]]
    assert hub.status()["buffers_held_back"] == 0


def test_two_buffers_are_always_left(hub, engine):
    hub.join({KERNELS}, print, {"buffer_bytes": 1})
    engine.full.extend((4096 * i, 216, 7) for i in range(1, 9))
    hub.flush()
    assert len(engine.given) == 2


def test_draining_ends_although_buffers_keep_coming(hub, engine, monkeypatch):
    monkeypatch.setattr(broker, "DRAIN_LIMIT", 5)
    hub.join({KERNELS}, lambda address, *_: engine.full.append((address + 4096, 216, 7)))
    engine.full.append((4096, 216, 7))
    hub.flush()
    assert len(engine.given) == 5


def test_a_receiver_that_waits_for_a_flushing_thread_does_not_hang_it(hub, engine, monkeypatch):
    monkeypatch.setattr(broker, "CLOSE_WAIT_S", 0.05)
    other = []

    def waits(*_):
        thread = threading.Thread(target=hub.flush)
        thread.start()
        thread.join(20)
        other.append(thread.is_alive())

    hub.join({KERNELS}, waits)
    engine.full.append((4096, 216, 7))
    hub.flush()
    assert other == [False]


@pytest.mark.parametrize("limit", [None, 4 * 4096])
def test_buffers_are_read_more_often_where_more_and_more_are_needed(hub, engine, limit):
    """Of the eight buffers, or of the four that a member allows, more than a quarter at one time."""
    hub.join({KERNELS}, lambda *_: None, {"buffer_bytes": limit} if limit else None)
    few, many = (2, 3) if limit is None else (1, 2)
    threads = iter(range(1, 1000))
    periods = [broker.PERIOD_S]

    def look(*givers):
        engine.full.extend((4096 * n, 216, giver) for n, giver in enumerate(givers, 1))
        hub.flush()
        periods.append(hub._period_after(periods[-1], len(givers)))

    def new(count):
        return [next(threads) for _ in range(count)]

    look(*new(few))
    assert periods[-1] == broker.PERIOD_S
    for _ in range(6):
        look(*new(many))
    halves = [broker.PERIOD_S / 2**n for n in range(5)]
    assert periods[-7:] == [*halves, broker.SHORTEST_S, broker.SHORTEST_S]
    for _ in range(12):
        look(*new(few))
    assert periods[-1] == broker.PERIOD_S
    steady = new(6)  # each has a buffer at every look, however soon
    look(*steady)
    for _ in range(8):
        look(*steady)
    assert periods[-1] == broker.PERIOD_S
    look(*steady, *steady)  # these two for each fill
    assert periods[-1] == broker.PERIOD_S / 2


@pytest.mark.parametrize("limit", [None, 4 * 4096])
def test_buffers_are_read_early_where_many_are_in_use(hub, engine, limit):
    """Beside one for each thread that was seen last."""
    hub.join({KERNELS}, lambda *_: None, {"buffer_bytes": limit} if limit else None)
    few = 2 if limit is None else 1
    engine.used = few
    assert not hub._crowded()
    engine.used = few + 1
    assert hub._crowded()
    engine.full.append((4096, 216, 7))
    hub.flush()
    assert not hub._crowded()
    hub._period_after(broker.PERIOD_S, 1)
    assert not hub._crowded()
    hub._period_after(broker.PERIOD_S, 0)
    assert hub._crowded()


def test_a_hub_that_nothing_comes_to_rests_until_there_is_work_or_somebody_expects_some(hub, engine, monkeypatch):
    hub.join({KERNELS}, lambda *_: None)
    assert not hub._rests()
    monkeypatch.setattr(broker, "QUIET_S", 0)
    assert hub._rests()
    monkeypatch.setattr(broker, "QUIET_S", 60)
    hub._busy_ns = 0
    engine.full.append((4096, broker.FEW_BYTES, 7))  # a marker by which a member notices other profilers
    hub.flush()
    assert hub._rests()
    engine.full.append((4096, broker.FEW_BYTES + 1, 7))
    hub.flush()
    assert not hub._rests()
    hub._busy_ns = 0
    hub.shared()["rouse"]()
    assert not hub._rests()


def test_the_thread_reads_when_it_is_time_or_many_are_in_use(monkeypatch):
    monkeypatch.setattr(broker, "LOOK_S", 0.01)
    monkeypatch.setattr(broker, "SHORTEST_S", 0.01)
    monkeypatch.setattr(broker, "PERIOD_S", 60.0)
    engine = Engine()
    hub = broker.Hub(engine)
    read = threading.Event()
    leave = hub.join({KERNELS}, lambda *_: read.set())
    engine.full.append((4096, 216, 7))
    assert not read.wait(0.3)
    assert not engine.named("flush")
    engine.used = 8
    assert read.wait(20)
    engine.used = 0
    leave()
    monkeypatch.setattr(broker, "PERIOD_S", 0.3)
    hub = broker.Hub(engine)
    read.clear()
    leave = hub.join({KERNELS}, lambda *_: read.set())
    engine.full.append((4096, 216, 7))
    assert read.wait(20)
    before = hub._flushed_at
    hub.flush()  # somebody else, after which the thread's turn comes later
    assert hub._flushed_at > before
    leave()
    hub.at_exit()
