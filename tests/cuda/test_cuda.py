"""gpusense.cuda over a scripted driver: contexts pushed and popped, memory given back, launches packed and measured."""

import ctypes
import gc
import shutil
import struct
import sys
import threading

import pytest

from gpusense import cuda
from gpusense._capi import loading
from gpusense._runtime.errors import BackendError, BackendUnavailable, GpuSenseError
from gpusense.cuda import _objects as cuda_objects
from gpusense.cuda import _workload

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CUDA: Linux here, Windows untested"),
    pytest.mark.usefixtures("settled"),
]

PTX = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 x, .param .f32 a, .param .s32 n) { ret; }
.visible .entry nothing() { ret; }
"""


@pytest.fixture
def fake(build_library, tmp_path, monkeypatch):
    """A scripted driver of this test's own; ``fake("calls", "cuInit")`` runs one of its control functions."""
    # Not named like a driver: a copy in this process would be taken for one by other tests.
    path = tmp_path / "fake-libcuda.so"
    shutil.copy(build_library("libcuda.c", "libcuda.so.1"), path)
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(path))
    monkeypatch.setattr(loading, "_handles", {})
    monkeypatch.setattr(cuda_objects, "_initialised", None)
    library = ctypes.CDLL(str(path))
    library.fake_cuda_last_name.restype = ctypes.c_char_p
    library.fake_cuda_last_arguments.restype = ctypes.c_void_p
    library.fake_cuda_used_bytes.restype = ctypes.c_uint64

    def control(name: str, *values: object):
        return getattr(library, f"fake_cuda_{name}")(
            *(value.encode() if isinstance(value, str) else value for value in values)
        )

    yield control
    gc.collect()
    assert control("stack_depth") == 0


@pytest.fixture
def function(fake) -> cuda.Function:
    return cuda.Module.from_ptx(PTX).function("add")


# --- availability -------------------------------------------------------------------------------------------------


def test_available(fake):
    assert cuda.cuda_available()
    assert cuda.device_count() == 1
    assert fake("calls", "cuInit") == 1


def test_without_a_library(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(tmp_path / "gone.so"))
    assert not cuda.cuda_available()
    assert cuda.device_count() == 0
    with pytest.raises(BackendUnavailable, match=r"libcuda: GPUSENSE_LIBCUDA=.*gone.so: no such file"):
        cuda.Device(0)
    with pytest.raises(BackendUnavailable):
        cuda.current_device()


def test_not_a_driver(fake, monkeypatch, build_library):
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(build_library("loadable.c", "libloadable.so")))
    with pytest.raises(BackendUnavailable, match=r"lacks cuDriverGetVersion, .*: not a CUDA driver"):
        cuda.Device(0)


@pytest.mark.parametrize("code", [3, 34, 35, 100, 999])
def test_initialisation_fails(fake, code):
    fake("fail", "cuInit", code)
    assert not cuda.cuda_available()
    with pytest.raises(BackendError, match="cuInit: ") as caught:
        cuda.Device(0)
    assert caught.value.code == code
    fake("fail", "cuInit", 0)  # a failure is not remembered
    assert cuda.cuda_available()


def test_no_device(fake):
    fake("set_devices", 0)
    assert not cuda.cuda_available()


# --- devices ------------------------------------------------------------------------------------------------------


def test_device(fake):
    device = cuda.Device(0)
    assert device.name == "NVIDIA H100 80GB HBM3"
    assert device.uuid.startswith("GPU-")
    assert device.compute_capability == (9, 0)
    assert device.multiprocessor_count == 132
    assert (device.clock_rate_mhz, device.memory_clock_rate_mhz) == (1980.0, 2619.0)
    assert device.memory_info() == (85_000_000_000, 85_000_000_000)
    assert repr(device) == "Device(0: NVIDIA H100 80GB HBM3)"


@pytest.mark.parametrize("ordinal", [-1, 1, 99])
def test_device_that_is_not_there(fake, ordinal):
    with pytest.raises(IndexError, match=f"there is no CUDA device {ordinal}: this process sees 1"):
        cuda.Device(ordinal)


def test_current_device_follows_the_threads_context(fake):
    fake("set_devices", 2)
    assert cuda.current_device() == 0
    with cuda.Device(1).current():
        assert cuda.current_device() == 1
        assert cuda.Buffer(16).device.ordinal == 1
    assert cuda.current_device() == 0


def test_primary_context_is_taken_once_and_shared(fake):
    for _ in range(3):
        cuda.Device(0).memory_info()
    assert fake("retained", 0) == 1
    assert fake("calls", "cuCtxPushCurrent_v2") == fake("calls", "cuCtxPopCurrent_v2") == 3


def test_context_is_popped_when_the_call_fails(fake):
    fake("fail", "cuMemGetInfo_v2", 719)
    with pytest.raises(BackendError, match=r"cuMemGetInfo: LAUNCH_FAILED \(719\)"):
        cuda.Device(0).memory_info()
    assert fake("stack_depth") == 0


def test_several_threads(fake):
    fake("set_devices", 2)
    problems = []

    def work(ordinal: int) -> None:
        try:
            device = cuda.Device(ordinal)
            module = cuda.Module.from_ptx(PTX, device)
            for n in range(40):
                buffer = cuda.Buffer.of(bytes([ordinal, n]) * 64, device)
                cuda.launch_instrumented(module.function("add"), 1, 32, (buffer, 1.0, n))
                assert buffer.to_bytes() == bytes([ordinal, n]) * 64
                assert fake("stack_depth") == 0
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n % 2,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert fake("launches") == 8 * 40
    assert fake("retained", 0) == fake("retained", 1) == 1
    gc.collect()
    assert fake("used_bytes", 0) == fake("used_bytes", 1) == 0


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), (ctypes.c_uint32 * 2)(1, 2), memoryview(b"a-b-c-")[::2]],
)
def test_what_goes_in_comes_out(fake, data):
    expected = bytes(memoryview(data))
    with cuda.Buffer.of(data) as buffer:
        assert buffer.nbytes == len(expected)
        assert buffer.to_bytes() == expected
        part = bytearray(2)
        buffer.copy_to(part)
        assert part == expected[:2]


def test_fill_and_copy_on_the_device(fake):
    with cuda.Buffer(8) as a, cuda.Buffer(16) as b:
        a.fill(7)
        b.fill()
        b.copy_from_buffer(a)
        assert b.to_bytes() == bytes([7] * 8 + [0] * 8)
        for bad in (-1, 256):
            with pytest.raises(ValueError, match="is not a byte"):
                a.fill(bad)


def test_sizes_are_checked(fake):
    with cuda.Buffer(8) as buffer, cuda.Buffer(9) as bigger:
        for attempt in (
            lambda: buffer.copy_from(bytes(9)),
            lambda: buffer.copy_to(bytearray(9)),
            lambda: buffer.copy_from_buffer(bigger),
        ):
            with pytest.raises(ValueError, match="9 bytes do not fit a buffer of 8"):
                attempt()
        buffer.copy_from(b"")
        buffer.copy_to(bytearray())
        with pytest.raises(TypeError):
            buffer.copy_to(bytes(8))
    for kind in (cuda.Buffer, cuda.PinnedMemory):
        with pytest.raises(ValueError, match="of 0 bytes"):
            kind(0)


def test_out_of_memory(fake):
    with pytest.raises(BackendError, match=r"cuMemAlloc: OUT_OF_MEMORY \(2\)"):
        cuda.Buffer(1 << 40)


def test_memory_is_given_back_once(fake):
    buffer = cuda.Buffer(1000)
    assert fake("used_bytes", 0) == 1000
    buffer.free()
    buffer.free()
    del buffer
    assert fake("used_bytes", 0) == 0
    assert fake("calls", "cuMemFree_v2") == 1
    cuda.Buffer(1000)
    gc.collect()
    assert fake("used_bytes", 0) == 0


def test_closed_things_are_not_used(fake, function):
    buffer, stream, event, module = cuda.Buffer(8), cuda.Stream(), cuda.Event(), function.module
    for thing in (buffer, stream, event, module):
        thing.close()
    for attempt in (
        buffer.to_bytes,
        stream.synchronize,
        event.record,
        lambda: module.function("add"),
        lambda: function.launch(1, 1, (0, 0.0, 0)),
    ):
        with pytest.raises(ValueError, match=r"this \w+ is closed"):
            attempt()


def test_pinned_memory_lives_as_long_as_a_view(fake):
    view = cuda.PinnedMemory(64).view()
    gc.collect()
    assert fake("calls", "cuMemFreeHost") == 0
    view[:] = bytes(range(64))
    buffer = cuda.Buffer.of(view)
    assert buffer.to_bytes() == bytes(range(64))
    del view, buffer
    gc.collect()
    assert fake("calls", "cuMemFreeHost") == 1


# --- modules and launches -----------------------------------------------------------------------------------------


def test_compiler_log_is_in_the_error(fake):
    with pytest.raises(cuda.CompileError, match=r"Missing \.version directive") as caught:
        cuda.Module.from_ptx("int main() {}")
    assert caught.value.code == 218
    assert "Missing .version directive" in caught.value.log
    assert str(caught.value).startswith("cuModuleLoadDataEx: INVALID_PTX\n")
    assert isinstance(caught.value, BackendError)


def test_failure_without_a_log(fake):
    fake("fail", "cuModuleLoadDataEx", 222)
    with pytest.raises(cuda.CompileError, match=r"UNSUPPORTED_PTX_VERSION, the driver is older than the PTX \(222\)"):
        cuda.Module.from_ptx(PTX)


def test_bad_text_and_bad_names(fake):
    with pytest.raises(ValueError, match="NUL"):
        cuda.Module.from_ptx("\0")
    with pytest.raises(KeyError, match="no kernel 'mul' in this module, only add, nothing"):
        cuda.Module.from_ptx(PTX).function("mul")


def test_launch_passes_grid_block_and_arguments(fake, function):
    with cuda.Buffer(16) as buffer:
        function.launch((2, 3), (32, 1, 2), (buffer, 1.5, -7))
        raw = ctypes.string_at(fake("last_arguments"), 24)
        assert struct.unpack("<Q", raw[:8]) == (buffer.address,)
        assert struct.unpack("<f", raw[8:12]) == (1.5,)
        assert struct.unpack("<i", raw[16:20]) == (-7,)
    assert fake("last_name") == b"add"
    assert fake("launches") == 1


@pytest.mark.parametrize(
    ("error", "arguments"), [(TypeError, (0, 1.0)), (TypeError, (0, 1.0, 2.0)), (OverflowError, (-1, 1.0, 2))]
)
def test_bad_arguments_launch_nothing(fake, function, error, arguments):
    with pytest.raises(error):
        function.launch(1, 1, arguments)
    assert fake("launches") == 0


@pytest.mark.parametrize("shape", [0, -1, (), (1, 2, 3, 4), (1, 0), ("x",), (1.5,), 2**31])
def test_bad_shapes(fake, function, shape):
    with pytest.raises(ValueError, match="grid must be one to three positive numbers"):
        function.launch(shape, 1, (0, 0.0, 0))
    with pytest.raises(ValueError, match="block must be one to three positive numbers"):
        cuda.launch_instrumented(function, 1, shape, (0, 0.0, 0))


def test_launch_error_is_raised(fake, function):
    with pytest.raises(BackendError, match="cuLaunchKernel: INVALID_VALUE"):
        function.launch(1, 2048, (0, 0.0, 0))
    with pytest.raises(ValueError, match="-1 bytes of shared memory"):
        function.launch(1, 1, (0, 0.0, 0), shared_bytes=-1)


def test_metrics(fake):
    fake("set_registers", 40, 1024)
    fake("set_kernel_ns", ctypes.c_uint64(123_456))
    function = cuda.Module.from_ptx(PTX).function("add")
    metrics = cuda.launch_instrumented(function, (4, 2), 256, (0, 0.0, 0), shared_bytes=2048)
    assert metrics.name == "add"
    assert metrics.event_time_ns == pytest.approx(123_456, abs=10)
    assert (metrics.grid, metrics.block) == ((4, 2, 1), (256, 1, 1))
    assert (metrics.static_shared_bytes, metrics.dynamic_shared_bytes) == (1024, 2048)
    assert (metrics.registers_per_thread, metrics.local_bytes_per_thread) == (40, 0)
    assert (metrics.blocks_per_sm, metrics.occupancy, metrics.device) == (8, 1.0, 0)


def test_metrics_on_a_stream(fake, function):
    with cuda.Stream() as stream:
        cuda.launch_instrumented(function, 1, 1, (0, 0.0, 0), stream=stream)
        stream.synchronize()
    assert fake("calls", "cuEventCreate") == fake("calls", "cuEventDestroy_v2") == 2
    assert fake("calls", "cuStreamDestroy_v2") == 1


def test_failing_kernel_surfaces_and_leaves_nothing_behind(fake, function):
    fake("fail", "cuEventSynchronize", 700)
    with pytest.raises(BackendError, match=r"cuEventSynchronize: ILLEGAL_ADDRESS \(700\)"):
        cuda.launch_instrumented(function, 1, 1, (0, 0.0, 0))
    assert fake("calls", "cuEventDestroy_v2") == 2


def test_much_shared_memory_is_asked_for(fake, function):
    function.launch(1, 1, (0, 0.0, 0), shared_bytes=48 * 1024)
    assert fake("calls", "cuFuncSetAttribute") == 0
    function.launch(1, 1, (0, 0.0, 0), shared_bytes=100 * 1024)
    assert fake("calls", "cuFuncSetAttribute") == 1
    with pytest.raises(BackendError, match="cuFuncSetAttribute: INVALID_VALUE"):
        function.launch(1, 1, (0, 0.0, 0), shared_bytes=1 << 20)


# --- the process --------------------------------------------------------------------------------------------------


def test_forked_child_is_told(run_python, build_library):
    code = """if True:
        import os, sys
        from gpusense import cuda
        from gpusense._runtime.errors import GpuSenseError
        buffer = cuda.Buffer(16)
        child = os.fork()
        if child == 0:
            try:
                cuda.Device(0)
            except GpuSenseError as error:
                assert "forked" in str(error)
                assert not cuda.cuda_available()
                buffer.free()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        buffer.fill(1)
    """
    done = run_python(code, GPUSENSE_LIBCUDA=str(build_library("libcuda.c", "libcuda.so.1")))
    assert done.returncode == 0, done.stderr


def test_leaving_with_everything_open(run_python, build_library):
    code = """if True:
        from gpusense import cuda
        held = [cuda.Buffer(16), cuda.Stream(), cuda.Event(), cuda.PinnedMemory(8), cuda.PinnedMemory(8).view()]
        cycle = [held]; cycle.append(cycle)
    """
    done = run_python(code, GPUSENSE_LIBCUDA=str(build_library("libcuda.c", "libcuda.so.1")))
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_initialises_nothing(run_python, build_library):
    code = "import gpusense.cuda, gpusense.cuda._workload"
    path = str(build_library("libcuda.c", "libcuda.so.1"))
    done = run_python(code, GPUSENSE_LIBCUDA=path, FAKE_CUDA_FAIL="cuInit=abort")
    assert done.returncode == 0, done.stderr


# --- the demonstration --------------------------------------------------------------------------------------------

EVENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_void_p)


class Event(ctypes.Structure):
    _fields_ = (
        ("what", ctypes.c_int),
        ("ids", ctypes.c_uint * 4),
        ("shapes", ctypes.c_uint * 9),
        ("pinned", ctypes.c_int),
        ("value", ctypes.c_uint),
        ("bytes", ctypes.c_uint64),
        ("times", ctypes.c_uint64 * 2),
    )


@pytest.fixture
def seen(fake):
    """(what, name, bytes, pinned) of all device work, in order, and of blocks as they open and close."""
    events = []

    def observe(what, name, _correlation, address):
        event = Event.from_address(address)
        assert event.what == what
        events.append((what, name.decode(), event.bytes, bool(event.pinned)))

    held = EVENT(observe)
    fake("set_observer", held)
    yield events
    fake("set_observer", None)


class Trace:
    """Stands where gpusense.trace does: notes blocks among the events."""

    def __init__(self, events: list) -> None:
        self.events = events

    def __call__(self, name: str) -> "Trace":
        self.events.append(("open", name))
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.events.append(("close", ""))


def test_demonstration_launches_what_it_says(fake, seen):
    launched = _workload.run(Trace(seen), steps=3)
    path, kernels, blocks = [], {}, {}
    copies, memsets = {2: [], 3: [], 4: []}, []
    for what, name, *facts in seen:
        if what == "open":
            path.append(name)
            blocks[tuple(path)] = blocks.get(tuple(path), 0) + 1
        elif what == "close":
            path.pop()
        elif what == 1:
            kernels.setdefault(tuple(path), {}).setdefault(name, 0)
            kernels[tuple(path)][name] += 1
        elif what == 5:
            memsets.append(facts[0])
        else:
            copies[what].append(facts)
    assert path == []
    assert launched.kernels_by_block == kernels
    assert launched.blocks == blocks
    assert launched.kernels == {"matmul_naive": 3, "saxpy": 24, "spin": 3}
    names = {"cpu_to_gpu": 2, "gpu_to_cpu": 3, "on_device": 4}
    assert launched.copies == {name: len(copies[what]) for name, what in names.items()}
    assert launched.copy_bytes == {name: sum(size for size, _ in copies[what]) for name, what in names.items()}
    assert (launched.memsets, launched.memset_bytes) == (len(memsets), sum(memsets))
    assert {pinned for _, pinned in copies[2]} == {pinned for _, pinned in copies[3]} == {True, False}
    gc.collect()
    assert fake("used_bytes", 0) == 0


def test_cuda_is_live_before_the_first_block(fake):
    def trace(name: str):
        raise RuntimeError(f"{name} opens, cuInit was called {fake('calls', 'cuInit')} times")

    with pytest.raises(RuntimeError, match="demo opens, cuInit was called 1 times"):
        _workload.run(trace)


def test_selftest_is_one_kernel_and_one_copy(fake, seen):
    launched = _workload.selftest(lambda: seen.append("ready"))
    assert seen[0] == "ready"
    assert [event[0] for event in seen[1:]] == [2, 1]
    assert launched.kernels == {"spin": 1}
    assert launched.copies == {"cpu_to_gpu": 1}


def test_demonstration_without_cuda(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(tmp_path / "gone.so"))
    with pytest.raises(GpuSenseError, match="no such file"):
        _workload.run()
