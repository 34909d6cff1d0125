"""The hub behind the shared subscription, with an engine of its own; the real meeting place is tested in lifetime."""

import sys
import threading
from collections import deque

import pytest
from support.cupti import COPIES, KERNELS, MEMSETS, SYNCS, Engine

from gpusense._capi import interpreter
from gpusense._records.records import Unavailable
from gpusense._runtime import threads
from gpusense._runtime.errors import BackendError
from gpusense.backends.cupti import activity as cupti
from gpusense.backends.cupti import broker


def test_callbacks_are_registered_once_and_kinds_counted(hub, engine):
    leave = [hub.join({KERNELS, COPIES}, print), hub.join({KERNELS, SYNCS}, print)]
    assert engine.calls == [("register",), ("enable", COPIES), ("enable", KERNELS), ("enable", SYNCS)]
    leave[0]()
    assert engine.named("disable") == [("disable", COPIES)]
    leave[0]()  # twice is fine
    leave[1]()
    assert sorted(engine.named("disable")) == [("disable", COPIES), ("disable", KERNELS), ("disable", SYNCS)]
    assert hub.status()["kinds"] == []
    # Meanwhile another profiler may have come and gone, with callbacks of its own.
    hub.join({KERNELS}, print)
    assert engine.calls[-2:] == [("register",), ("enable", KERNELS)]


def test_two_that_join_at_once_are_registered_once(hub, engine):
    inside, second = [], threading.Event()

    def register(after_another=False):
        inside.append(threading.get_ident())
        if len(inside) == 2:
            second.set()
        second.wait(0.5)  # time for the other to come here, too
        engine.calls.append(("register",))

    engine.register = register
    threads = [threading.Thread(target=hub.join, args=({KERNELS}, print)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert engine.named("register") == [("register",)]
    assert hub.status()["members"] == 2


def test_who_is_refused_beside_another_leaves_its_kinds_on(hub, engine, monkeypatch):
    """Both found that nothing was registered, since the first took longer than anyone waits."""
    monkeypatch.setattr(broker, "CLOSE_WAIT_S", 0.01)
    both, joined, refused = threading.Barrier(2), threading.Event(), []

    def register(after_another=False):
        both.wait(20)
        if threading.current_thread() is last:
            assert joined.wait(20)
            raise BackendError("cuptiActivityRegisterCallbacks", 7, "not now")

    def join():
        try:
            hub.join({KERNELS}, print)
            joined.set()
        except BackendError:
            refused.append(True)

    engine.register = register
    threads = [threading.Thread(target=join) for _ in range(2)]
    last = threads[1]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert refused == [True]
    assert hub.status()["kinds"] == [KERNELS]
    assert engine.named("disable") == []


def test_every_buffer_is_shown_once_to_all_and_given_back(hub, engine):
    shown = []
    hub.join({KERNELS}, lambda *full: shown.append(("a", *full)))
    hub.join({KERNELS}, lambda *full: shown.append(("b", *full)))
    engine.full.extend([(4096, 216, 7), (8192, 0, 7), (12288, 432, 8)])
    hub.flush()
    assert shown == [("a", 4096, 216, 7), ("b", 4096, 216, 7), ("a", 12288, 432, 8), ("b", 12288, 432, 8)]
    assert engine.given == [4096, 8192, 12288]  # the empty one, too
    assert (hub.status()["buffers"], hub.status()["bytes"]) == (2, 648)


def test_no_lock_of_ours_is_held_while_cupti_is_called(hub, engine):
    hub.join({KERNELS}, print)

    def probe():
        assert not hub._lock.locked()
        assert not threads.mine(hub._reading)

    engine.in_flush = probe
    hub.flush()
    assert engine.named("flush")


def test_no_lock_of_ours_is_held_while_kinds_are_switched(hub, engine):
    switched = []

    def switch(kind):
        assert not hub._lock.locked()
        switched.append(kind)

    engine.enable = engine.disable = switch
    leave = hub.join({KERNELS, COPIES, MEMSETS}, print, mine := {})
    hub.pause_kinds({COPIES}, mine)
    hub.pause_kinds((), mine)
    hub.pause("another profiler has it")
    hub.resume()
    leave()
    every = [COPIES, MEMSETS, KERNELS]
    assert switched[:-3] == [*every, COPIES, MEMSETS, MEMSETS, COPIES, *every]
    assert set(switched[-3:]) == set(every)


def test_a_buffer_is_given_back_even_when_the_receiver_is_interrupted(hub, engine):
    def interrupted(*_):
        raise KeyboardInterrupt

    hub.join({KERNELS}, interrupted)
    engine.full.append((4096, 216, 7))
    with pytest.raises(KeyboardInterrupt):
        hub.flush()
    assert engine.given == [4096]
    assert not threads.mine(hub._reading)
    assert hub.status()["members"] == 1


def test_a_receiver_that_raises_leaves_with_its_kinds(hub, engine):
    seen = []

    def raises(*_):
        raise ValueError("a receiver")

    hub.join({KERNELS, SYNCS}, raises)
    hub.join({KERNELS}, lambda *full: seen.append(full))
    engine.full.append((4096, 216, 7))
    hub.flush()
    assert len(seen) == 1
    assert engine.named("disable") == [("disable", SYNCS)]


def test_one_refused_kind_is_named_and_the_refused_kernel_kind_fails_all(hub, engine):
    engine.refuse["enable", SYNCS] = 21
    leave = hub.join({KERNELS, SYNCS}, print)
    assert "refused (21)" in hub.status()["refused_kinds"][SYNCS]
    leave()
    assert ("disable", SYNCS) not in engine.calls
    engine.refuse["enable", KERNELS] = 15
    with pytest.raises(BackendError, match="15"):
        hub.join({KERNELS, COPIES}, print)
    assert engine.calls[-1] == ("disable", COPIES)
    assert hub.status()["members"] == 0


def test_a_refused_registration_leaves_no_member(hub, engine):
    engine.refuse["register"] = 39
    with pytest.raises(BackendError):
        hub.join({KERNELS}, print)
    assert hub.status()["members"] == 0
    assert engine.named("enable") == []
    engine.refuse.clear()
    hub.join({KERNELS}, print)
    assert engine.named("register") == [("register",), ("register",)]


def test_paused_means_no_call_and_leaves_the_others_kinds_on(hub, engine):
    leave = hub.join({KERNELS}, print)
    hub.pause("another profiler")
    before = list(engine.calls)
    hub.flush()
    with pytest.raises(BackendError, match="another profiler"):
        hub.join({COPIES}, print)
    assert hub.status()["reason"] == "another profiler"
    leave()
    assert engine.calls == before


def test_resume_registers_and_enables_again(hub, engine):
    hub.join({KERNELS, COPIES}, print)
    hub.pause("another profiler")
    engine.calls.clear()
    hub.resume()
    assert engine.calls == [("register",), ("enable", COPIES), ("enable", KERNELS)]
    assert not hub.status()["paused"]
    hub.pause("again")
    engine.refuse["enable", COPIES] = 7
    with pytest.raises(BackendError):
        hub.resume()
    assert hub.status()["paused"]


# --- what several members agree on ----------------------------------------------------------------------------------


def test_one_alone_may_rest_and_one_who_would_not_be_told_keeps_its_kinds(hub, engine):
    hub.join({KERNELS, COPIES}, print)
    assert hub.pause_kinds({KERNELS, SYNCS})
    assert engine.calls[-1] == ("disable", KERNELS)
    leave = hub.join({SYNCS}, print)
    assert engine.calls[-2:] == [("enable", KERNELS), ("enable", SYNCS)]
    assert not hub.pause_kinds({KERNELS})
    leave()
    hub.join({SYNCS}, print, {})
    assert not hub.pause_kinds({KERNELS}, {})
    assert engine.calls[-1] == ("enable", SYNCS)


def test_a_rest_of_all_is_told_with_its_times_and_who_wanted_it(hub, engine, monkeypatch):
    clock = iter(range(100, 1000, 100))
    monkeypatch.setattr(broker.time, "time_ns", lambda: next(clock))
    one, two = {"name": "one"}, {"name": "two"}
    leave = hub.join({KERNELS}, print, one)
    hub.join({KERNELS, SYNCS}, print, two)
    assert hub.wants() == [one, two]
    engine.calls.clear()
    before = hub.pauses(0)
    assert hub.pause_kinds({KERNELS, SYNCS}, one)
    assert engine.calls == [("disable", KERNELS), ("disable", SYNCS)]
    assert hub.pause_kinds({KERNELS, SYNCS}, one)  # again changes nothing
    count, ended, lasting = hub.pauses(before[0])
    assert (ended, lasting[1:]) == ([], (None, one))
    assert hub.pause_kinds((), one)
    assert engine.calls[2:] == [("enable", KERNELS), ("enable", SYNCS)]
    count, ended, lasting = hub.pauses(count)
    (pause,) = ended
    assert pause[0] < pause[1]
    assert pause[2] is one
    assert lasting is None
    assert hub.pauses(count) == (count, [], None)
    hub.pause_kinds({KERNELS}, one)
    leave()
    assert engine.calls[-1] == ("enable", KERNELS)  # who wanted the rest has gone
    assert hub.pauses(count)[0] == count + 1


def test_a_rest_ends_with_the_last_member_and_with_a_new_one(hub, engine):
    leave = hub.join({KERNELS}, print, mine := {})
    hub.pause_kinds({KERNELS}, mine)
    hub.join({COPIES}, print, {})()
    assert (hub.pauses(0)[0], hub.pauses(0)[2]) == (1, None)
    hub.pause_kinds({KERNELS}, mine)
    leave()
    assert (hub.pauses(0)[0], hub.pauses(0)[2]) == (2, None)
    assert engine.named("enable")[-1] == ("enable", COPIES)


def test_what_ends_with_copies_is_switched_on_anew(hub, engine):
    hub.join({KERNELS, COPIES, MEMSETS}, print, mine := {})
    engine.calls.clear()
    hub.pause_kinds({KERNELS, COPIES}, mine)
    assert engine.calls == [("disable", COPIES), ("disable", KERNELS), ("disable", MEMSETS), ("enable", MEMSETS)]
    engine.calls.clear()
    hub.pause_kinds((), mine)
    assert engine.calls == [("enable", COPIES), ("enable", KERNELS)]
    engine.calls.clear()
    hub.pause_kinds({KERNELS}, mine)
    assert engine.calls == [("disable", KERNELS)]
    hub.pause_kinds((), mine)


def test_a_member_that_leaves_with_copies_leaves_memsets_on(hub, engine):
    hub.join({MEMSETS}, print, {})
    leave = hub.join({KERNELS, COPIES}, print, {})
    engine.calls.clear()
    leave()
    assert engine.calls[-3:] == [("disable", MEMSETS), ("enable", MEMSETS), ("flush", False)]


def test_a_kind_that_cannot_be_switched_on_stays_paused(hub, engine):
    hub.join({KERNELS}, print, mine := {})
    hub.pause_kinds({KERNELS}, mine)
    engine.refuse["enable", KERNELS] = 7
    hub.pause_kinds((), mine)
    assert hub.pauses(0)[2] is not None
    engine.refuse.clear()
    hub.pause_kinds((), mine)
    assert hub.pauses(0)[2] is None


def test_many_rests_are_remembered_as_far_as_there_is_room(hub, monkeypatch):
    monkeypatch.setattr(hub._kinds, "_pauses", deque(maxlen=3))
    hub.join({KERNELS}, print, mine := {})
    for _ in range(5):
        hub.pause_kinds({KERNELS}, mine)
        hub.pause_kinds((), mine)
    count, ended, _ = hub.pauses(0)
    assert (count, len(ended)) == (5, 3)
    assert hub.pauses(4)[1] == ended[-1:]


def test_opposite_wishes_at_once_leave_no_kind_off(hub, engine):
    hub.join({KERNELS}, print, mine := {})

    def meanwhile():
        engine.refuse.pop("disable")
        hub.pause_kinds((), mine)

    real = engine.disable

    def disable(kind):
        if "disable" in engine.refuse:
            meanwhile()
        real(kind)

    engine.refuse["disable"] = 0
    engine.disable = disable
    hub.pause_kinds({KERNELS}, mine)
    assert engine.calls[-1] == ("enable", KERNELS)


def test_a_forked_child_makes_no_call(hub, engine, monkeypatch):
    leave = hub.join({KERNELS}, print)
    monkeypatch.setattr(broker.os, "getpid", lambda: -5)
    hub.after_fork_in_child()
    engine.calls.clear()
    hub.flush()
    leave()
    hub.resume()
    hub.at_exit()
    with pytest.raises(BackendError, match="forked"):
        hub.join({KERNELS}, print)
    assert hub.status()["members"] == 0
    assert engine.calls == []


def test_a_forked_child_waits_for_no_thread_that_it_does_not_have(hub, monkeypatch):
    hub.join({KERNELS}, print)
    for lock in (hub._lock, hub._reading, hub._registering):
        lock.acquire()  # as another thread of the parent did
    monkeypatch.setattr(broker.os, "getpid", lambda: -5)
    hub.after_fork_in_child()
    done = threading.Thread(target=lambda: (hub.pause_kinds(()), hub.pauses(0), hub.status()), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()


def test_the_exit_hook_disables_and_flushes(hub, engine):
    shown = []
    hub.join({KERNELS}, lambda *full: shown.append(full))
    engine.in_flush = lambda: engine.full.append((4096, 216, 7))
    hub.at_exit()
    assert len(shown) == 1
    assert engine.calls[-2:] == [("disable", KERNELS), ("flush", False)]


def test_a_member_may_want_other_kinds(hub, engine):
    seen = []
    leave = hub.join({MEMSETS}, seen.append)
    hub.want(seen.append, {MEMSETS, KERNELS})  # a bound method is made anew each time
    hub.want(print, {SYNCS})
    assert hub.status()["kinds"] == [MEMSETS]
    receiver = print
    leave()
    leave = hub.join({MEMSETS}, receiver)
    engine.calls.clear()
    hub.want(receiver, {MEMSETS, KERNELS})
    hub.want(receiver, {MEMSETS})
    assert engine.calls == [("enable", KERNELS), ("disable", KERNELS)]
    engine.refuse["enable", KERNELS] = 7
    with pytest.raises(BackendError, match="refused"):
        hub.want(receiver, {MEMSETS, KERNELS})
    engine.refuse.clear()
    hub.want(receiver, {MEMSETS, KERNELS})  # nobody wanted them since: tried again
    assert hub.status()["kinds"] == [MEMSETS, KERNELS]
    assert hub.status()["refused_kinds"] == {}
    leave()
    hub.want(receiver, {KERNELS})  # it has gone
    assert hub.status()["kinds"] == []


def test_leaving_and_joining_at_once_never_loses_the_drain_thread(monkeypatch):
    monkeypatch.setattr(broker, "PERIOD_S", 0.0005)
    monkeypatch.setattr(broker, "SHORTEST_S", 0.0005)
    engine = Engine()
    hub = broker.Hub(engine)

    def drains():
        return sum(thread.name == "gpusense drain" for thread in threading.enumerate())

    before = drains()
    for _ in range(100):
        leave = hub.join({KERNELS}, print)
        leave()
        arrived = threading.Event()
        leave = hub.join({KERNELS}, lambda *_, arrived=arrived: arrived.set())
        engine.full.append((4096, 216, 7))
        assert arrived.wait(20)
        leave()
    assert drains() <= before + 1
    hub.at_exit()
    assert hub._thread is None or not hub._thread.is_alive()


def test_copies_meet_and_strangers_are_told_why(engine, monkeypatch):
    place = {}
    monkeypatch.setattr(broker, "interpreter_dict", lambda: place)
    shared = broker.meet(lambda: engine)
    assert broker.meet(Engine) is shared
    shared["join"]({KERNELS}, print)
    assert shared["status"]()["members"] == 1
    place[broker.KEY] = {**shared, "pid": -1}
    assert "forked" in broker.meet(Engine).reason
    place[broker.KEY] = {"abi": 2, "pid": shared["pid"]}
    assert isinstance(broker.meet(Engine), Unavailable)
    monkeypatch.setattr(broker, "interpreter_dict", lambda: Unavailable("cupti", "none here"))
    assert broker.meet(Engine).reason == "none here"


@pytest.mark.parametrize("abiflags", ["t", "td"])
def test_a_free_threaded_build_is_refused_with_and_without_the_gil(monkeypatch, abiflags):
    monkeypatch.setattr(sys, "abiflags", abiflags, raising=False)
    for has_gil in (False, True):
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_gil, raising=False)  # noqa: B023 - asked at once
        assert "free-threaded" in broker.interpreter_dict().reason
    monkeypatch.setattr(sys, "platform", "linux")
    assert cupti.open() == interpreter.FREE_THREADED  # for doctor, without a look at any library


def test_a_buffer_of_before_is_given_back_and_not_held_back(hub, engine):
    engine.status = lambda ask: {"buffer_count": 8, "buffer_size": 4096}
    hub.join({KERNELS}, print, {"buffer_bytes": 4096 * 4})
    engine.older = (4096,)
    engine.full += [(4096, 216, 7), (8192, 216, 7)]
    hub.flush()
    assert engine.given == [4096]
    assert hub.status()["buffers_held_back"] == 1
