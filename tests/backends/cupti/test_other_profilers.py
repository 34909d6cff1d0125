"""The CUPTI backend and other profilers, against a scripted libcupti."""

import ctypes
import functools
import sys
import threading
import time
import types

import pytest
from support.cupti import PER_THREAD, SILENT, SMALL

from gpusense._capi.machine import mailbox_code
from gpusense._decode import layouts
from gpusense._records.records import GpuKernel
from gpusense._runtime.errors import BackendError
from gpusense.backends.cupti import activity as cupti
from gpusense.backends.cupti import broker, graph_nodes, other_profilers, watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")


def test_callbacks_are_not_taken_from_a_profiler_that_holds_cupti(fake, fresh, monkeypatch):
    monkeypatch.setattr(other_profilers, "mapped_files", list)
    for variable in other_profilers._INJECTION_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    fake.set_holder(1)
    with pytest.raises(BackendError, match=r"another profiler.*holds CUPTI"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)
    assert fake.calls("cuptiActivityRegisterCallbacks") == fake.calls("cuptiActivityEnable") == 0
    monkeypatch.setattr(other_profilers, "mapped_files", lambda: ["/opt/nsys/libToolsInjection64.so"])
    with pytest.raises(BackendError, match="Nsight Systems"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)


def torch_that(monkeypatch, profiling):
    """A stand-in, as it looks from a thread that is not the profiled one: torch's own answer is for the asker only."""

    class profile:
        entered, kineto_results = False, None

    state = types.SimpleNamespace(on=profiling, steps={}, profile=profile)
    autograd = types.SimpleNamespace(_profiler_enabled=lambda: False)

    class Profiler:
        _is_profiler_enabled = property(lambda self: state.on)
        KinetoStepTracker = types.SimpleNamespace(_step_dict=state.steps)

    Profiler.profile = profile
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(_C=types.SimpleNamespace(_autograd=autograd)))
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", Profiler())
    monkeypatch.setattr(other_profilers, "torch_is_prepared", other_profilers.Prepared())
    return state


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(other_profilers, "monotonic", lambda: clock.now)
    return clock


def test_a_subscription_that_torch_merely_kept_does_not_stop_us(fake, start, monkeypatch):
    fake.set_holder(1)
    monkeypatch.setattr(other_profilers, "mapped_files", list)
    torch_that(monkeypatch, False)
    activity, got = start()
    fake.kernel()
    activity.flush()
    assert len(got.records) == 1


def test_our_own_question_is_not_taken_for_another_profiler(fake, start):
    """Two threads that asked at once each saw the other's subscription."""
    activity, _ = start()
    fake.set_subscribe_ms(50)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(activity.is_held())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [False] * 4
    assert fake.subscribed() == 0


def test_our_own_subscription_for_a_graph_is_not_taken_for_another_profiler(fake, start):
    activity, got = start()
    function = ctypes.cast(fake.library.cuptiGetVersion, ctypes.c_void_p).value
    end = activity.subscribe(function, None, graph_nodes.EVENTS, "a test")
    assert not activity.is_held()
    activity.pause("test")
    activity.resume()
    fake.kernel()
    activity.flush()
    assert len(got.records) == 1
    activity.stop()
    with pytest.raises(BackendError, match="gpusense itself holds"):
        activity.detach()
    end()
    end()  # gives back ours, once
    fake.set_holder(1)
    assert activity.is_held()
    fake.set_holder(0)
    assert not activity.is_held()


CYCLES = ctypes.CFUNCTYPE(ctypes.c_uint64)(lambda: 5)


def test_a_clock_that_another_profiler_left_is_replaced(fake, start):
    """torch.profiler has records stamped with the processor's cycles, also those of whoever captures after it."""
    fake.library.cuptiActivityRegisterTimestampCallback(CYCLES)
    before = time.time_ns()
    activity, _ = start()
    assert before <= activity.timestamp_ns() <= time.time_ns()
    fake.library.cuptiActivityRegisterTimestampCallback(CYCLES)
    activity.pause("another profiler")
    activity.resume()
    assert before <= activity.timestamp_ns() <= time.time_ns()
    assert activity.status()["clocks_replaced"] == 2


def test_the_clock_is_left_alone_where_it_is_the_wall_clock(fake, start):
    activity, _ = start()
    assert fake.calls("cuptiActivityRegisterTimestampCallback") == 0
    assert activity.status()["clocks_replaced"] == 0


def test_no_capture_by_a_clock_that_cannot_be_replaced(fake, fresh):
    fake.library.cuptiActivityRegisterTimestampCallback(CYCLES)
    fake.fail("cuptiActivityRegisterTimestampCallback", 15)
    with pytest.raises(BackendError, match="cuptiActivityRegisterTimestampCallback"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)


@pytest.mark.parametrize("form", ["function", "object"])
def test_proton_is_named(fake, fresh, monkeypatch, form):
    on = types.SimpleNamespace(profiling_on=True)
    flags = types.SimpleNamespace(flags=on) if form == "object" else types.SimpleNamespace(get_profiling_on=lambda: 1)
    monkeypatch.setitem(sys.modules, "triton.profiler.flags", flags)
    fake.set_holder(1)
    with pytest.raises(BackendError, match="Proton"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)


def test_cupti_is_not_taken_back_before_torch_profiler_records(fake, start, monkeypatch, clock):
    """With a schedule it takes CUPTI a step before."""
    torch = torch_that(monkeypatch, False)
    activity, _ = start()
    mine = torch.profile()
    torch.on = mine.entered = True
    assert watch.look(activity, paused=False)
    torch.on = False  # one cycle is over, and the next is prepared
    for _ in range(10):
        clock.now += 10
        assert watch.look(activity, paused=True) is None
    mine.kineto_results = object()
    clock.now += 31
    assert watch.look(activity, paused=True) == "resumed"


def test_torch_profiler_is_not_joined_before_it_records(fake, fresh, monkeypatch, clock):
    fake.set_holder(1)
    monkeypatch.setattr(other_profilers, "mapped_files", list)
    mine = torch_that(monkeypatch, False).profile()
    mine.entered = True
    for kind in layouts.DEFAULT_KINDS:
        fake.library.cuptiActivityEnable(kind)
    with pytest.raises(BackendError, match=r"torch\.profiler"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)
    assert all(fake.enabled(kind) for kind in layouts.DEFAULT_KINDS)
    del mine
    clock.now += 4
    cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)


def test_stopping_before_torch_profiler_records_leaves_it_the_kinds(fake, start, monkeypatch, clock):
    activity, _ = start()
    torch = torch_that(monkeypatch, False)
    mine, torch.steps["ProfilerStep"] = torch.profile(), 0
    mine.entered = True
    activity.stop()
    assert fake.enabled(10)


@pytest.mark.parametrize(
    "module", ["torch", "torch.autograd.profiler", "triton.profiler.flags", "torch.profiler._cupti.monitor"]
)
def test_half_imported_profilers_are_no_profilers(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace())
    assert other_profilers.running() is None


def test_capture_pauses_for_torch_profiler_and_comes_back(fake, start, monkeypatch):
    torch = torch_that(monkeypatch, False)
    activity, got = start()
    assert watch.look(activity, paused=False) is None
    torch.on = True
    reason = watch.look(activity, paused=False)
    assert "torch.profiler" in reason
    assert activity.status()["paused"]
    fake.set_flags(SILENT)
    calls = fake.all_calls()
    fake.kernel()
    activity.flush()
    activity.status()
    assert watch.look(activity, paused=True) is None
    assert fake.all_calls() == calls
    torch.on = False
    fake.set_flags(0)
    for kind in layouts.DEFAULT_KINDS:  # as the other profiler leaves it
        fake.library.cuptiActivityDisable(kind)
    assert watch.look(activity, paused=True) == "resumed"
    fake.kernel()
    activity.flush()
    assert len(got.records) == 1
    assert activity.status()["registrations"] == 2


def test_stopping_while_another_profiler_runs_leaves_it_the_kinds(fake, start, monkeypatch):
    activity, _ = start()
    torch_that(monkeypatch, True)
    activity.stop()
    assert fake.enabled(10)


def test_a_resume_that_cupti_refuses_stays_paused(fake, start):
    activity, _ = start()
    activity.pause("another profiler")
    fake.fail("cuptiActivityRegisterCallbacks", 7)
    assert watch.look(activity, paused=True) is None
    assert activity.status()["reason"] == "another profiler"


def looks(activity, fake, monkeypatch, count):
    """Verdicts of some looks with two flushes between each."""
    verdicts = []
    for _ in range(count):
        verdicts.append(watch.look(activity, paused=activity.status()["paused"]))
        activity.flush()
        activity.flush()
    return verdicts


def give_canaries(activity, fake, idle=True):
    activity.canary = types.SimpleNamespace(call=lambda _token: fake.memset(), idle=lambda: idle)


def test_stolen_callbacks_are_noticed_at_the_next_look(fake, start, monkeypatch):
    activity, _ = start()
    give_canaries(activity, fake)
    assert looks(activity, fake, monkeypatch, 4) == [None] * 4
    fake.set_flags(PER_THREAD | SILENT)
    assert looks(activity, fake, monkeypatch, 3) == [None, watch.TAKEN_OVER, None]
    assert activity.status()["reason"] == watch.TAKEN_OVER
    fake.set_flags(PER_THREAD)
    assert looks(activity, fake, monkeypatch, 3) == [None] * 3  # whether the other has ended, nothing tells


def test_silence_after_one_flush_is_only_suspicious(fake, start, monkeypatch):
    """It may have come a moment before CUPTI knew that the device was done."""
    monkeypatch.setattr(broker, "PERIOD_S", 60.0)
    activity, _ = start()
    give_canaries(activity, fake)
    look = functools.partial(watch.look, activity, paused=False)
    for _ in range(3):
        assert (look(), activity.suspects) == (None, False)
    fake.set_flags(PER_THREAD | SILENT)
    assert (look(), activity.suspects) == (None, False)  # the last canary was delivered before
    assert (look(), activity.suspects) == (None, True)
    fake.set_flags(PER_THREAD)
    activity.canary.call(0)
    assert (look(), activity.suspects) == (None, False)
    fake.set_flags(PER_THREAD | SILENT)
    look()
    assert (look(), activity.suspects) == (None, True)
    assert (look(), activity.suspects) == (watch.TAKEN_OVER, False)


def test_a_canary_that_is_done_just_after_the_flush_is_not_missed(fake, start, monkeypatch):
    monkeypatch.setattr(broker, "PERIOD_S", 60.0)
    activity, _ = start()
    give_canaries(activity, fake)
    watch.look(activity, paused=False)
    fake.set_flags(PER_THREAD | SILENT)  # the next one does not come: the device is busy with something else
    watch.look(activity, paused=False)
    give_canaries(activity, fake, idle=False)
    flush, before = activity.flush, fake.calls("cuptiActivityFlushAll")

    def done_after_it():
        flush()
        if fake.calls("cuptiActivityFlushAll") - before > 2:
            give_canaries(activity, fake)

    monkeypatch.setattr(activity, "flush", done_after_it)
    assert [watch.look(activity, paused=False) for _ in range(3)] == [None] * 3
    assert activity.canary.idle()
    assert watch.look(activity, paused=False) == watch.TAKEN_OVER  # it should have come by now


def test_callbacks_stolen_by_a_torch_profiler_that_has_ended_come_back(fake, start, monkeypatch):
    activity, got = start()
    give_canaries(activity, fake)
    monkeypatch.setattr(other_profilers, "mapped_files", list)
    torch_that(monkeypatch, False)
    looks(activity, fake, monkeypatch, 1)
    fake.set_flags(PER_THREAD | SILENT)
    fake.set_holder(1)
    assert looks(activity, fake, monkeypatch, 2)[-1] == watch.TAKEN_OVER
    fake.set_flags(PER_THREAD)
    assert looks(activity, fake, monkeypatch, 3) == ["resumed", None, None]
    fake.kernel()
    activity.flush()
    assert sum(type(record) is GpuKernel for record in got.records) == 1


@pytest.fixture
def other(fake):
    """A profiler that registers its own callbacks while our buffers are in flight, and is given those."""
    from gpusense.backends.cupti.mailbox import COMPLETE, REQUEST

    class Other:
        def __init__(self):
            self.own = [ctypes.create_string_buffer(4096) for _ in range(4)]
            self.given = []
            self.callbacks = REQUEST(self._requested), COMPLETE(self._completed)

        def _requested(self, buffer, length, records):
            buffer[0], length[0], records[0] = ctypes.addressof(self.own[0]), 4096, 0

        def _completed(self, context, stream, buffer, size, valid):
            self.given.append(buffer)

        def take_over(self):
            assert fake.library.cuptiActivityRegisterCallbacks(*self.callbacks) == 0
            assert fake.library.cuptiActivityFlushAll(1) == 0

    return Other()


@pytest.mark.parametrize("native", [True, False], ids=["machine code", "ctypes"])
def test_buffers_that_other_profilers_were_given_are_replaced(fake, start, other, native, monkeypatch):
    if not native:
        monkeypatch.setattr(mailbox_code, "CODES", {})
    monkeypatch.setattr(broker, "PERIOD_S", 60.0)  # else a flush may come between the launch and the other
    activity, receiver = start()
    before = activity.status()
    launched = []
    for _ in range(300):
        fake.kernel()  # is in flight when the other comes
        activity.pause("another profiler")
        other.take_over()
        activity.resume()
        launched.append(fake.kernel())
        activity.flush()
        after = activity.status()
        for name in ("requested", "completed", "missed", "foreign_buffers"):
            assert after[name] >= before[name]
        before = after
    assert len(other.given) == 300
    assert receiver.correlations == launched
    assert (after["missed"], after["requested"], after["buffers_lost"]) == (0, 600, 300)
    assert after["buffer_count"] == SMALL["buffers"]


def test_a_buffer_that_another_profiler_has_is_not_waited_for(fake, start, other, monkeypatch):
    """Else whoever steps aside later would cut off what still runs."""
    monkeypatch.setattr(broker, "PERIOD_S", 60.0)
    activity, _ = start()
    engine = activity.shared["newest"].__self__._engine
    fake.kernel()
    assert engine.lent() == 1
    activity.pause("another profiler")
    other.take_over()
    activity.resume()
    assert engine.lent() == engine.in_use() == 0
    fake.kernel()
    assert engine.lent() == engine.in_use() == 1
    before = fake.calls("cuptiActivityFlushAll")
    activity.shared["step_aside"]("another profiler")
    assert engine.lent() == 0
    assert fake.calls("cuptiActivityFlushAll") == before + 1


def test_buffers_that_come_back_at_the_next_registration_are_not_lost(fake, start):
    """Many threads have one each in flight while capture was merely paused."""
    activity, receiver = start()
    threads = [threading.Thread(target=fake.kernel) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    activity.pause("another profiler")
    activity.resume()
    activity.flush()
    assert len(receiver.records) == 10
    assert activity.status()["buffers_lost"] == 0


@pytest.mark.parametrize("case", ["no context", "shared buffers", "a long kernel"])
def test_silence_proves_nothing_without_canaries(fake, start, monkeypatch, case):
    fake.fail("cuptiActivitySetAttribute", 1 if case == "shared buffers" else 0)
    fake.set_flags(0 if case == "shared buffers" else PER_THREAD)
    activity, _ = start()
    if case != "no context":
        give_canaries(activity, fake, idle=case != "a long kernel")
    fake.set_flags(SILENT)
    assert looks(activity, fake, monkeypatch, 4) == [None] * 4


def test_callbacks_stolen_by_a_stranger_come_back_when_he_gives_the_subscription_up(fake, start, monkeypatch):
    activity, got = start()
    give_canaries(activity, fake)
    monkeypatch.setattr(other_profilers, "mapped_files", list)
    looks(activity, fake, monkeypatch, 1)
    fake.set_flags(PER_THREAD | SILENT)
    fake.set_holder(1)
    assert looks(activity, fake, monkeypatch, 2)[-1] == watch.TAKEN_OVER
    assert looks(activity, fake, monkeypatch, 3) == [None] * 3
    fake.set_holder(0)
    fake.set_flags(PER_THREAD)
    assert looks(activity, fake, monkeypatch, 3) == ["resumed", None, None]
    fake.kernel()
    activity.flush()
    assert sum(type(record) is GpuKernel for record in got.records) == 1
