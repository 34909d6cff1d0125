"""The CUPTI backend against a scripted libcupti: capture, and what is there on request."""

import ctypes
import sys
import threading
import time

import pytest
from support.cupti import LOCKED, NAMES_DIE, OWN_THREAD, PER_THREAD, REVERSED, SMALL, TORN, UNKNOWN

from gpusense._decode import layouts
from gpusense._decode.walk import batches
from gpusense._records.records import GpuKernel, GpuMemoryTransfer, Unavailable
from gpusense._runtime.errors import BackendError, BackendUnavailable, GpuSenseError, MissingSymbol
from gpusense.backends.cupti import activity as cupti
from gpusense.backends.cupti import graph_nodes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")


def test_kernels_copies_and_memsets_arrive_with_their_names(fake, start):
    activity, got = start()
    fake.kernel("axpy")
    fake.memcpy(2, 8192)
    fake.memset()
    activity.flush()
    kernel, copy, memset = sorted(got.records, key=lambda record: record.correlation_id)
    assert isinstance(kernel, GpuKernel)
    assert (kernel.name, kernel.grid, kernel.block, kernel.stream) == ("axpy", (4, 1, 1), (128, 1, 1), 7)
    assert isinstance(copy, GpuMemoryTransfer)
    assert (copy.direction, copy.bytes) == ("gpu_to_cpu", 8192)
    assert memset.value == 5
    assert set(got.threads) == {threading.get_ident()}


def test_the_serialising_kernel_kind_is_never_enabled(fake, start):
    start()
    assert [kind for kind in range(64) if fake.enabled(kind)] == sorted(layouts.DEFAULT_KINDS)


def test_strides_are_those_of_the_loaded_library(fake, start):
    fake.set_stride(10, ctypes.c_size_t(208))
    fake.set_stride(1, ctypes.c_size_t(112))
    fake.set_stride(25, ctypes.c_size_t(0))
    activity, got = start()
    assert activity.strides[10] == 208
    assert activity.strides[1] == 112
    assert layouts.UNIFIED_MEMORY_COUNTER not in activity.strides
    ids = [fake.kernel(), fake.memcpy(), fake.kernel()]
    activity.flush()
    assert sorted(got.correlations) == ids


def test_a_library_that_tells_sizes_is_asked_and_not_walked(load_fake, start):
    fake = load_fake("-DWITH_STRUCT_SIZE")
    activity, _ = start()
    assert activity.strides[10] == 216
    assert fake.calls("cuptiActivityGetNextRecord") == 0


@pytest.mark.parametrize("stride", [168, 172, 0])
def test_kernel_records_of_impossible_size_are_refused(fake, stride):
    fake.set_stride(10, ctypes.c_size_t(stride))
    backend = cupti.open()
    assert isinstance(backend, Unavailable)
    assert "kernel records" in backend.reason


def test_status_tells_library_callbacks_and_counters(fake, start):
    activity, _ = start()
    fake.kernel()
    activity.flush()
    status = activity.status()
    assert status["library"] == fake.path
    assert status["version"] == "13.0 (130001)"
    assert status["callbacks"] in ("memfd", "mprotect", "ctypes")
    assert (status["requested"], status["completed"], status["buffers"]) == (1, 1, 1)
    assert (status["dropped"], status["missed"], status["foreign_buffers"], status["paused"]) == (0, 0, 0, False)


def test_what_finds_no_buffer_is_counted(fake, start):
    activity, got = start(buffers=2)
    for _ in range(100):  # 18 fit into a buffer
        fake.kernel()
    status = activity.status()
    assert status["dropped"] == 100 - 36
    assert status["missed"] == fake.refusals() == 64
    activity.flush()
    assert len(got.records) == 36
    assert activity.status()["dropped"] == 64
    fake.kernel()
    activity.flush()
    assert len(got.records) == 37


def test_old_cupti_is_never_refused_a_buffer(fake, start):
    fake.set_version(18)
    activity, got = start(buffers=2)
    for _ in range(100):
        fake.kernel()
    assert fake.refusals() == 0
    assert activity.status()["missed"] == 4
    activity.flush()
    assert len(got.records) == 36  # what went to scrap buffers is lost, and counted as missed buffers


def test_buffers_that_are_not_ours_are_left_alone(fake, start):
    activity, got = start()
    other = ctypes.create_string_buffer(4096)
    fake.complete(other, 4096, 4096)
    activity.flush()
    assert not got.records
    assert activity.status()["foreign_buffers"] == 1


@pytest.mark.parametrize(
    "flags", [0, LOCKED, PER_THREAD, LOCKED | PER_THREAD | REVERSED, OWN_THREAD, LOCKED | OWN_THREAD]
)
def test_many_launching_threads_lose_and_double_nothing(fake, start, flags):
    fake.set_flags(flags)
    fake.fail("cuptiActivitySetAttribute", 0 if flags & PER_THREAD else 1)
    activity, got = start(buffers=256)
    assert activity.status()["per_thread_buffers"] == bool(flags & PER_THREAD)
    count = 60 if flags & OWN_THREAD else 400
    threads = [threading.Thread(target=lambda: [fake.kernel() for _ in range(count)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    activity.flush()
    assert sorted(got.correlations) == list(range(1, 4 * count + 1))
    expected = {thread.ident for thread in threads} if flags & PER_THREAD else {0}
    assert set(got.threads) == expected


@pytest.mark.parametrize(("flags", "counter"), [(TORN, "truncated"), (UNKNOWN, "unknown_kinds")])
def test_damaged_buffers_give_what_came_before(fake, start, flags, counter):
    fake.set_flags(flags)
    activity, got = start()
    fake.kernel()
    fake.memcpy()
    activity.flush()
    assert len(got.records) == 2
    assert sum(getattr(tally, counter) for tally in got.tallies) == 1


def test_invalid_times_are_counted_and_not_shown(fake, start):
    activity, got = start()
    fake.kernel(start=100, end=50)
    fake.kernel()
    activity.flush()
    assert len(got.records) == 1
    assert got.tallies[0].invalid == 1


def test_names_are_read_before_the_buffer_goes_back(fake, start):
    fake.set_flags(NAMES_DIE)
    activity, got = start()
    for number in range(20):
        fake.kernel(f"kernel_{number}")
        activity.flush()
    assert sorted(record.name for record in got.records) == sorted(f"kernel_{n}" for n in range(20))
    assert activity.name(got.names[0]) != b"kernel_0"


@pytest.mark.parametrize("pointer", [0, 8, 2**47 - 16, 2**63, 2**64 - 1, -5])
def test_a_bad_name_pointer_reads_as_nothing(fake, start, pointer):
    activity, _ = start()
    assert activity.name(pointer) == b""


def test_the_view_is_dead_after_the_call(fake, start, fresh):
    activity = cupti.CuptiActivity()
    kept = []
    activity.start(layouts.DEFAULT_KINDS, lambda buffer, _: kept.append(buffer), **SMALL)
    fake.kernel()
    activity.flush()
    activity.stop()
    with pytest.raises(ValueError, match="released"):
        kept[0][0]


def test_external_correlation_and_api_records(fake, start):
    kinds = (*layouts.DEFAULT_KINDS, layouts.RUNTIME, layouts.EXTERNAL_CORRELATION)
    activity, _ = start(kinds)
    found = []
    second = cupti.CuptiActivity()
    second.start(kinds, lambda buffer, _: found.extend(batches(buffer, second.strides)[0]) or None)
    activity.push_external(2**40 + 1)
    fake.api(layouts.RUNTIME, 211, 90)
    assert activity.pop_external() == 2**40 + 1
    fake.api(layouts.RUNTIME, 41, 91)
    activity.flush()
    by_kind = {batch.kind: batch for batch in found}
    assert (by_kind[39].key, by_kind[39].correlation) == ([2**40 + 1], [90])
    assert sorted(by_kind[5].key) == [41, 211]
    with pytest.raises(BackendError, match="QUEUE_EMPTY"):
        activity.pop_external()
    second.stop()


def test_thin_calls(fake, start):
    activity, _ = start()
    assert activity.select_api(layouts.DRIVER, 307, False)
    assert not activity.select_api(layouts.RUNTIME, 5000, True)
    assert activity.api_name(layouts.DRIVER, 307) == "cuLaunchKernel"
    assert activity.api_name(layouts.RUNTIME, 1) is None
    assert activity.graph_node_id(41) == 42
    assert activity.graph_id(40) == 42
    activity.latency_timestamps(True)
    assert fake.calls("cuptiActivityEnableLatencyTimestamps") == 1
    fake.set_clock_offset(ctypes.c_int64(-(10**15)))
    assert abs(activity.timestamp_ns() - (time.time_ns() - 10**15)) < 10**12


def test_unified_memory_counters_are_chosen_before_the_kind_is_enabled(fake, start):
    activity, _ = start((*layouts.DEFAULT_KINDS, layouts.UNIFIED_MEMORY_COUNTER))
    assert fake.counters() == 4
    assert fake.enabled(layouts.UNIFIED_MEMORY_COUNTER)
    activity.stop()
    fake.fail("cuptiActivityConfigureUnifiedMemoryCounter", 29)
    activity, _ = start((*layouts.DEFAULT_KINDS, layouts.UNIFIED_MEMORY_COUNTER))
    assert "cannot be profiled" in activity.status()["refused_kinds"][layouts.UNIFIED_MEMORY_COUNTER]
    assert not fake.enabled(layouts.UNIFIED_MEMORY_COUNTER)


def test_graph_node_subscription_is_given_back(fake, start):
    activity, _ = start()
    function = ctypes.cast(fake.library.cuptiGetVersion, ctypes.c_void_p).value
    end = activity.subscribe(function, None, graph_nodes.EVENTS, "a test")
    assert fake.subscribed() == 1
    end()
    fake.fail("cuptiEnableCallback", 21)
    with pytest.raises(BackendError):
        activity.subscribe(1, None, graph_nodes.EVENTS, "a test")
    assert fake.subscribed() == 0


def test_errors_are_ours():
    assert issubclass(MissingSymbol, GpuSenseError)
    assert issubclass(BackendUnavailable, GpuSenseError)
