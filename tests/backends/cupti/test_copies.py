"""The CUPTI backend against a scripted libcupti: start, stop, several receivers."""

import os
import sys
import threading
import types

import pytest
from support.cupti import SILENT, SMALL

from gpusense._decode import layouts
from gpusense._runtime.errors import BackendUnavailable
from gpusense.backends import cuda
from gpusense.backends.cupti import activity as cupti
from gpusense.backends.cupti import broker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")


def test_nothing_is_called_before_cuda_is_live(fake, monkeypatch, build_library):
    monkeypatch.setattr(cuda.SOURCE, "is_live", lambda: False)
    monkeypatch.setenv("GPUSENSE_LIBCUDA", "/nowhere/libcuda.so.1")
    assert "needs the CUDA driver" in cupti.open().reason
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(build_library("libcuda.c", "libcuda.so.1")))
    backend = cupti.open()
    assert (backend.library, backend.version) == (fake.path, None)
    with pytest.raises(BackendUnavailable, match="has not used CUDA yet"):
        backend.activity.start(layouts.DEFAULT_KINDS, lambda *_: None)
    assert fake.all_calls() == 0


def test_threads_are_not_told_where_they_share_buffers(fake, start):
    fake.set_version(18)  # does not know the attribute
    activity, got = start()
    fake.kernel()
    activity.flush()
    assert got.threads == [0]


def test_other_systems_are_told_that_tracing_needs_linux(fresh, monkeypatch):
    monkeypatch.setattr(cupti.sys, "platform", "win32")
    assert "Linux" in cupti.open().reason
    with pytest.raises(BackendUnavailable, match="Linux"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)


def test_stop_disables_the_kinds_and_shows_the_rest(fake, start):
    activity, got = start()
    fake.kernel()
    activity.stop()
    assert len(got.records) == 1
    assert not any(fake.enabled(kind) for kind in range(64))
    fake.kernel()
    activity.flush()
    activity.stop()
    assert len(got.records) == 1


def test_start_and_stop_again_and_again(fake, start):
    activity, got = start()
    for _ in range(50):
        activity.stop()
        activity.start(layouts.DEFAULT_KINDS, got, **SMALL)
        fake.kernel()
        activity.flush()
    assert len(got.records) == 50
    # Anew each time: meanwhile another profiler may have come and gone.
    assert fake.calls("cuptiActivityRegisterCallbacks") == 51
    assert fake.subscribed() == 0


def test_the_library_may_write_into_its_buffers_after_stop(fake, start):
    activity, _ = start()
    fake.kernel()
    fake.set_flags(SILENT)  # so that the buffer stays in flight
    activity.stop()
    assert fake.in_flight() == 1
    fake.scribble()


def test_two_receivers_see_every_record_once_and_either_may_leave_first(fake, start):
    first, got_first = start()
    second, got_second = start((layouts.CONCURRENT_KERNEL, layouts.SYNCHRONIZATION))
    fake.kernel()
    first.flush()
    first.stop()
    assert fake.enabled(10)
    assert fake.enabled(38)
    assert not fake.enabled(1)
    fake.kernel()
    second.flush()
    second.stop()
    assert (got_first.correlations, got_second.correlations) == ([1], [1, 2])
    assert not fake.enabled(10)


def test_a_receiver_that_raises_is_dropped_alone(fake, start):
    good, got = start()
    bad = cupti.CuptiActivity()

    def raises(_buffer, _thread):
        raise RuntimeError("a receiver")

    bad.start((*layouts.DEFAULT_KINDS, layouts.SYNCHRONIZATION), raises)
    assert fake.enabled(38)
    for _ in range(3):
        fake.kernel()
        good.flush()
    assert len(got.records) == 3
    status = good.status()
    assert (status["members"], status["dropped_members"]) == (1, 1)
    assert not fake.enabled(38)
    bad.stop()


def test_a_receiver_may_flush(fake, start, fresh):
    activity = cupti.CuptiActivity()
    seen = []

    def flushes(_buffer, _thread):
        activity.flush()
        seen.append(1)

    activity.start(layouts.DEFAULT_KINDS, flushes, **SMALL)
    fake.kernel()
    activity.flush()
    activity.stop()
    assert seen == [1]


def test_finished_work_arrives_without_a_flush(fake, start):
    start()
    arrived = threading.Event()
    broker.interpreter_dict()[broker.KEY]["join"]((10,), lambda *_: arrived.set())
    fake.kernel()
    assert arrived.wait(20)


def test_the_state_dict_holds_builtins_and_functions_only(fake, start, fresh):
    start()
    shared = fresh[broker.KEY]
    assert {type(value) for value in shared.values()} <= {
        int,
        str,
        type(threading.Lock()),
        types.MethodType,
        types.FunctionType,
    }


def test_a_copy_with_another_abi_keeps_out(fake, fresh):
    fresh[broker.KEY] = {"abi": 99, "pid": os.getpid(), "version": "9.9"}
    with pytest.raises(BackendUnavailable, match=r"9\.9"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)
