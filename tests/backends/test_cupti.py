"""The CUPTI backend against a scripted libcupti: capture, sharing, refusals, other profilers."""

import ctypes
import os
import shutil
import sys
import threading
import time
import types

import pytest

from gpusense import _broker, _decode
from gpusense import _layouts as layouts
from gpusense._capi import cupti as capi
from gpusense._capi import mailbox_code
from gpusense._capi.binding import MissingSymbol
from gpusense._errors import BackendError, BackendUnavailable, GpuSenseError
from gpusense._records import GpuKernel, GpuMemoryTransfer, Unavailable
from gpusense.backends import _cupti_graphs, _cupti_holders, _cupti_watch, cuda, cupti

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")

LOCKED, OWN_THREAD, PER_THREAD, REVERSED, NAMES_DIE, SILENT, TORN, UNKNOWN = (1 << bit for bit in range(8))
SMALL = {"buffer_size": 4096, "buffers": 16}


class Fake:
    """The control functions of one copy of tests/fakes/libcupti.c."""

    def __init__(self, path):
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)
        self.library.fake_cupti_requests.restype = ctypes.c_uint64
        self.library.fake_cupti_refusals.restype = ctypes.c_uint64

    def kernel(self, name="k", device=0, stream=7, start=0, end=0, correlation=0):
        return self.library.fake_cupti_kernel(
            name.encode(), device, stream, ctypes.c_uint64(start), ctypes.c_uint64(end), correlation
        )

    def memcpy(self, copy=1, size=4096):
        zero = ctypes.c_uint64(0)
        return self.library.fake_cupti_memcpy(copy, ctypes.c_uint64(size), 0, 7, zero, zero, 0)

    def memset(self, value=5, size=64):
        return self.library.fake_cupti_memset(value, ctypes.c_uint64(size), 0, 7, 0)

    def calls(self, name):
        return self.library.fake_cupti_calls(name.encode())

    def fail(self, name, code):
        self.library.fake_cupti_fail(name.encode(), code)

    def __getattr__(self, name):
        return getattr(self.library, f"fake_cupti_{name}")


@pytest.fixture
def fresh(monkeypatch):
    """CUDA looks live, and no copy has a subscription yet."""
    monkeypatch.setattr(cuda, "is_live", lambda: True)
    monkeypatch.setattr(cuda, "driver_version", lambda: (13, 0))
    place = _broker.interpreter_dict()
    place.pop(_broker.KEY, None)
    yield place
    place.pop(_broker.KEY, None)


@pytest.fixture
def load_fake(build_library, monkeypatch, tmp_path):
    def load(*flags):
        # A copy of its own: the library's state is per file.
        path = shutil.copy(build_library("libcupti.c", "libcupti.so.13", *flags), tmp_path / "libcupti.so.13")
        monkeypatch.setenv("GPUSENSE_LIBCUPTI", str(path))
        return Fake(path)

    return load


@pytest.fixture
def fake(load_fake, fresh):
    return load_fake()


class Receiver:
    """Decodes what it is shown, and keeps everything."""

    def __init__(self, strides, name):
        self.strides, self.name = strides, name
        self.records, self.threads, self.tallies, self.names = [], [], [], []

    def __call__(self, buffer, thread):
        assert buffer.readonly
        self.threads.append(thread)
        found, tally = _decode.batches(buffer, self.strides)
        self.tallies.append(tally)
        for batch in found:
            if batch.kind in layouts.WORK_KINDS:
                for i in range(len(batch.offsets)):
                    self.records.append(_decode.record(buffer, batch, i, self.describe))

    def describe(self, pointer):
        text = self.name(pointer).decode("utf-8", "replace")
        self.names.append(pointer)
        return text, None, text

    @property
    def correlations(self):
        return [record.correlation_id for record in self.records]


@pytest.fixture
def start(fresh):
    started = []

    def begin(kinds=layouts.DEFAULT_KINDS, **options):
        activity = cupti.CuptiActivity()
        absent = activity.load()
        assert absent is None, absent
        receiver = Receiver(activity.strides, activity.name)
        activity.start(kinds, receiver, **{**SMALL, **options})
        started.append(activity)
        return activity, receiver

    yield begin
    for activity in started:
        activity.stop()


# --- capture --------------------------------------------------------------------------------------------------------


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


# --- start, stop, sharing -------------------------------------------------------------------------------------------


def test_nothing_is_called_before_cuda_is_live(fake, monkeypatch, build_library):
    monkeypatch.setattr(cuda, "is_live", lambda: False)
    monkeypatch.setenv("GPUSENSE_LIBCUDA", "/nowhere/libcuda.so.1")
    assert "without a CUDA driver" in cupti.open().reason
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(build_library("libcuda.c", "libcuda.so.1")))
    backend = cupti.open()
    assert (backend.library, backend.version) == (fake.path, None)
    with pytest.raises(BackendUnavailable, match="not live"):
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
    _broker.interpreter_dict()[_broker.KEY]["join"]((10,), lambda *_: arrived.set())
    fake.kernel()
    assert arrived.wait(20)


def test_the_state_dict_holds_builtins_and_functions_only(fake, start, fresh):
    start()
    shared = fresh[_broker.KEY]
    assert {type(value) for value in shared.values()} <= {
        int,
        str,
        type(threading.Lock()),
        types.MethodType,
        types.FunctionType,
    }


def test_a_copy_with_another_abi_keeps_out(fake, fresh):
    fresh[_broker.KEY] = {"abi": 99, "pid": os.getpid(), "version": "9.9"}
    with pytest.raises(BackendUnavailable, match=r"9\.9"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)


# --- refusals -------------------------------------------------------------------------------------------------------

CODES = (1, 8, 9, 14, 15, 18, 27, 35, 39, 45, 777, 999)


@pytest.mark.parametrize("call", [*capi.REQUIRED, "cuptiSubscribe", "cuptiUnsubscribe"])
def test_any_call_may_fail_with_any_code(call, fake, fresh):
    # A subscription that could not be given back shows as a refused one in the next round.
    blamed = {call, "cuptiSubscribe"} if call == "cuptiUnsubscribe" else {call}
    for code in CODES:
        fresh.pop(_broker.KEY, None)
        fake.fail(call, code)
        backend = cupti.open()
        if isinstance(backend, Unavailable):
            assert call in ("cuptiGetVersion", "cuptiActivityGetNextRecord")
            assert str(code) in backend.reason or "kernel records" in backend.reason
        else:
            error = run_through(backend.activity, fake)
            assert error is None or error.call in blamed
            assert error is None or error.code == (39 if error.call != call else code)
            assert call == "cuptiActivityDisable" or not any(fake.enabled(kind) for kind in range(64))
        fake.fail(call, 0)


def run_through(activity, fake):
    """A whole life; the error of the start, the only step that may raise."""
    try:
        activity.start(layouts.DEFAULT_KINDS, Receiver(activity.strides, activity.name), **SMALL)
    except BackendError as error:
        return error
    fake.kernel()
    activity.status()
    activity.flush()
    activity.stop()
    return None


def test_a_failing_flush_is_told_in_the_status_and_later_ones_deliver(fake, start):
    activity, got = start()
    fake.kernel()
    fake.fail("cuptiActivityFlushAll", 999)
    activity.flush()
    assert "cuptiActivityFlushAll: UNKNOWN" in activity.status()["flush_error"]
    fake.fail("cuptiActivityFlushAll", 0)
    activity.flush()
    assert len(got.records) == 1
    assert activity.status()["flush_error"] == ""


def test_failing_once_does_not_spoil_the_next_start(fake, start):
    fake.fail("cuptiActivityEnable:10", 15)
    activity = cupti.CuptiActivity()
    got = []
    with pytest.raises(BackendError, match=r"NOT_INITIALIZED.*15"):
        activity.start(layouts.DEFAULT_KINDS, lambda buffer, _: got.append(len(buffer)), **SMALL)
    assert not any(fake.enabled(kind) for kind in range(64))
    fake.fail("cuptiActivityEnable:10", 0)
    activity.start(layouts.DEFAULT_KINDS, lambda buffer, _: got.append(len(buffer)), **SMALL)
    fake.kernel()
    activity.stop()
    assert got == [216]


def test_a_kind_that_is_not_known_is_left_out_and_named(fake, start):
    fake.fail("cuptiActivityEnable:22", 21)
    activity, got = start()
    fake.kernel()
    activity.flush()
    assert len(got.records) == 1
    assert "INVALID_KIND" in activity.status()["refused_kinds"][22]


@pytest.mark.parametrize("code", sorted(capi.RESULTS))
def test_every_listed_code_says_what_it_means(code):
    name, meaning = capi.RESULTS[code]
    assert name == name.upper()
    assert len(meaning.split()) >= 4
    assert str(code) in str(BackendError("cuptiX", code, capi.text(code)))


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (15, "driver"),
        (35, "NVreg_RestrictProfilingToAdminUsers"),
        (45, "WSL"),
        (39, "another profiler"),
        (999, "driver"),
    ],
)
def test_common_refusals_say_what_to_do(code, advice):
    assert advice in capi.text(code)
    assert "does not know" in capi.text(12345)


def test_a_library_without_the_functions_is_no_cupti(build_library, fresh, monkeypatch):
    path = build_library("loadable.c", "libcupti.so.12")
    monkeypatch.setenv("GPUSENSE_LIBCUPTI", str(path))
    backend = cupti.open()
    assert isinstance(backend, Unavailable)
    assert "cuptiActivityRegisterCallbacks" in backend.reason


def test_what_an_old_library_lacks_says_so_when_asked_for(load_fake, start):
    load_fake("-DWITHOUT_LATER")
    activity, _ = start()
    with pytest.raises(MissingSymbol, match="cuptiActivityEnableDriverApi"):
        activity.select_api(layouts.DRIVER, 307, False)


# --- other profilers ------------------------------------------------------------------------------------------------


def test_callbacks_are_not_taken_from_a_profiler_that_holds_cupti(fake, fresh, monkeypatch):
    monkeypatch.setattr(_cupti_holders, "mapped_files", list)
    for variable in _cupti_holders._INJECTION_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    fake.set_holder(1)
    with pytest.raises(BackendError, match=r"another profiler.*holds CUPTI"):
        cupti.CuptiActivity().start(layouts.DEFAULT_KINDS, lambda *_: None)
    assert fake.calls("cuptiActivityRegisterCallbacks") == fake.calls("cuptiActivityEnable") == 0
    monkeypatch.setattr(_cupti_holders, "mapped_files", lambda: ["/opt/nsys/libToolsInjection64.so"])
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
    monkeypatch.setattr(_cupti_holders, "torch_is_prepared", _cupti_holders.Prepared())
    return state


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(_cupti_holders, "monotonic", lambda: clock.now)
    return clock


def test_a_subscription_that_torch_merely_kept_does_not_stop_us(fake, start, monkeypatch):
    fake.set_holder(1)
    monkeypatch.setattr(_cupti_holders, "mapped_files", list)
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
    end = activity.subscribe(function, None, _cupti_graphs.EVENTS, "a test")
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
    assert _cupti_watch.look(activity, paused=False)
    torch.on = False  # one cycle is over, and the next is prepared
    for _ in range(10):
        clock.now += 10
        assert _cupti_watch.look(activity, paused=True) is None
    mine.kineto_results = object()
    clock.now += 31
    assert _cupti_watch.look(activity, paused=True) == "resumed"


def test_torch_profiler_is_not_joined_before_it_records(fake, fresh, monkeypatch, clock):
    fake.set_holder(1)
    monkeypatch.setattr(_cupti_holders, "mapped_files", list)
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
    assert _cupti_holders.running() is None


def test_capture_pauses_for_torch_profiler_and_comes_back(fake, start, monkeypatch):
    torch = torch_that(monkeypatch, False)
    activity, got = start()
    assert _cupti_watch.look(activity, paused=False) is None
    torch.on = True
    reason = _cupti_watch.look(activity, paused=False)
    assert "torch.profiler" in reason
    assert activity.status()["paused"]
    fake.set_flags(SILENT)
    calls = fake.all_calls()
    fake.kernel()
    activity.flush()
    activity.status()
    assert _cupti_watch.look(activity, paused=True) is None
    assert fake.all_calls() == calls
    torch.on = False
    fake.set_flags(0)
    for kind in layouts.DEFAULT_KINDS:  # as the other profiler leaves it
        fake.library.cuptiActivityDisable(kind)
    assert _cupti_watch.look(activity, paused=True) == "resumed"
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
    assert _cupti_watch.look(activity, paused=True) is None
    assert activity.status()["reason"] == "another profiler"


def looks(activity, fake, monkeypatch, count):
    """Verdicts of some looks with two flushes between each."""
    verdicts = []
    for _ in range(count):
        verdicts.append(_cupti_watch.look(activity, paused=activity.status()["paused"]))
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
    assert looks(activity, fake, monkeypatch, 3) == [None, _cupti_watch.TAKEN_OVER, None]
    assert activity.status()["reason"] == _cupti_watch.TAKEN_OVER
    fake.set_flags(PER_THREAD)
    assert looks(activity, fake, monkeypatch, 3) == [None] * 3  # whether the other has ended, nothing tells


def test_callbacks_stolen_by_a_torch_profiler_that_has_ended_come_back(fake, start, monkeypatch):
    activity, got = start()
    give_canaries(activity, fake)
    monkeypatch.setattr(_cupti_holders, "mapped_files", list)
    torch_that(monkeypatch, False)
    looks(activity, fake, monkeypatch, 1)
    fake.set_flags(PER_THREAD | SILENT)
    fake.set_holder(1)
    assert looks(activity, fake, monkeypatch, 2)[-1] == _cupti_watch.TAKEN_OVER
    fake.set_flags(PER_THREAD)
    assert looks(activity, fake, monkeypatch, 3) == ["resumed", None, None]
    fake.kernel()
    activity.flush()
    assert sum(type(record) is GpuKernel for record in got.records) == 1


@pytest.fixture
def other(fake):
    """A profiler that registers its own callbacks while our buffers are in flight, and is given those."""
    from gpusense._capi.mailbox import COMPLETE, REQUEST

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
    monkeypatch.setattr(_broker, "PERIOD_S", 60.0)  # else a flush may come between the launch and the other
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
    monkeypatch.setattr(_broker, "PERIOD_S", 60.0)
    activity, _ = start()
    engine = activity.shared["newest"].__self__._engine
    fake.kernel()
    assert engine.lent() == 1
    activity.pause("another profiler")
    other.take_over()
    activity.resume()
    assert engine.lent() == 0
    fake.kernel()
    assert engine.lent() == 1
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
    monkeypatch.setattr(_cupti_holders, "mapped_files", list)
    looks(activity, fake, monkeypatch, 1)
    fake.set_flags(PER_THREAD | SILENT)
    fake.set_holder(1)
    assert looks(activity, fake, monkeypatch, 2)[-1] == _cupti_watch.TAKEN_OVER
    assert looks(activity, fake, monkeypatch, 3) == [None] * 3
    fake.set_holder(0)
    fake.set_flags(PER_THREAD)
    assert looks(activity, fake, monkeypatch, 3) == ["resumed", None, None]
    fake.kernel()
    activity.flush()
    assert sum(type(record) is GpuKernel for record in got.records) == 1


# --- on request -----------------------------------------------------------------------------------------------------


def test_external_correlation_and_api_records(fake, start):
    kinds = (*layouts.DEFAULT_KINDS, layouts.RUNTIME, layouts.EXTERNAL_CORRELATION)
    activity, _ = start(kinds)
    found = []
    second = cupti.CuptiActivity()
    second.start(kinds, lambda buffer, _: found.extend(_decode.batches(buffer, second.strides)[0]) or None)
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
    end = activity.subscribe(function, None, _cupti_graphs.EVENTS, "a test")
    assert fake.subscribed() == 1
    end()
    fake.fail("cuptiEnableCallback", 21)
    with pytest.raises(BackendError):
        activity.subscribe(1, None, _cupti_graphs.EVENTS, "a test")
    assert fake.subscribed() == 0


def test_errors_are_ours():
    assert issubclass(MissingSymbol, GpuSenseError)
    assert issubclass(BackendUnavailable, GpuSenseError)
