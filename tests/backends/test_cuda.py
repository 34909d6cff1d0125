"""The CUDA backend over a scripted driver: nothing before CUDA is live, everything the driver tells afterwards."""

import ctypes
import pathlib
import shutil
import sys

import pytest

from gpusense._capi import cuda as capi
from gpusense._capi import cuda_facts, loading
from gpusense._records.occupancy import Limits
from gpusense._records.protocols import Backend
from gpusense._records.records import Unavailable
from gpusense._runtime.errors import BackendError
from gpusense.backends import cuda
from gpusense.backends.cupti import synchronize

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CUDA: Linux here, Windows untested")

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e00"


class Fake:
    """A scripted driver of this test's own, as if the program had loaded it; ``control("devices", 2)`` and the like."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)

    def __getattr__(self, name: str):
        function = self.library[f"fake_cuda_{name}"]
        return lambda *values: function(*(value.encode() if isinstance(value, str) else value for value in values))


@pytest.fixture
def fake_path(build_library, tmp_path, monkeypatch) -> pathlib.Path:
    """Present, named by the environment variable, not yet loaded by anybody."""
    # Not named like a driver: a copy in this process would be taken for one by other tests.
    path = tmp_path / "fake-libcuda.so"
    shutil.copy(build_library("libcuda.c", "libcuda.so.1"), path)
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(path))
    monkeypatch.setattr(loading, "_handles", {})
    monkeypatch.setattr(cuda, "SOURCE", cuda.CudaSource())
    return path


@pytest.fixture
def fake(fake_path) -> Fake:
    return Fake(fake_path)


@pytest.fixture
def live(fake) -> Fake:
    fake.set_live(1)
    return fake


# --- live or not --------------------------------------------------------------------------------------------------


def test_present_but_not_loaded_is_available_and_stays_unloaded(fake_path):
    backend = cuda.open()
    assert isinstance(backend, Backend)
    assert (backend.name, backend.library, backend.version) == ("cuda", str(fake_path), None)
    assert not backend.devices.is_live()
    assert backend.devices.devices() == ()
    assert backend.devices.driver_version() is None
    assert backend.devices.limits(0) is None
    assert str(fake_path) not in loading.handles.mapped_files()


def test_loaded_but_not_initialised_is_not_live(fake):
    source = cuda.CudaSource()
    assert not source.is_live()
    assert source.devices() == ()
    assert source.driver_version() == (13, 0)
    assert source.memory_info(0) == Unavailable("cuda", "CUDA is not initialised in this process")


def test_live_once_the_program_initialises(fake):
    source = cuda.CudaSource()
    assert not source.is_live()
    assert fake.library.cuInit(0) == 0
    assert source.is_live()


def test_cuda_that_ended_is_not_live(live):
    source = cuda.CudaSource()
    assert source.is_live()
    live.fail("cuDeviceGetCount", 4)
    assert not source.is_live()
    assert source.devices() == ()


def test_never_initialises_nor_makes_a_context(live):
    backend = cuda.open()
    backend.devices.devices()
    backend.devices.memory_info(0)
    backend.devices.limits(0)
    assert live.calls("cuInit") == live.calls("cuDevicePrimaryCtxRetain") == live.calls("cuCtxPushCurrent_v2") == 0


def test_a_whole_process_without_cuinit(run_python, fake_path):
    code = """if True:
        import ctypes, os
        from gpusense.backends.cupti import synchronize
        from gpusense.backends import cuda
        cuda.open(); cuda.SOURCE.is_live(); cuda.SOURCE.devices()
        theirs = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
        cuda.SOURCE._next_scan = 0
        cuda.open(); cuda.SOURCE.is_live(); cuda.SOURCE.devices(); cuda.SOURCE.memory_info(0)
        assert theirs.fake_cuda_calls(b"cuDeviceGetCount") > 0
    """
    done = run_python(code, GPUSENSE_LIBCUDA=str(fake_path), FAKE_CUDA_FAIL="cuInit=abort")
    assert done.returncode == 0, done.stderr


def test_absent_library_is_looked_for_seldom(fake_path, monkeypatch):
    now = 100.0
    looks = []
    monkeypatch.setattr(cuda, "load", lambda *_, **__: looks.append(now) or Unavailable("libcuda", "absent"))
    source = cuda.CudaSource(clock=lambda: now)
    for _ in range(50):
        source.is_live()
    assert looks == [100.0]
    now = 100.2
    source.is_live()
    assert looks == [100.0, 100.2]


# --- reasons ------------------------------------------------------------------------------------------------------


def test_bad_path_is_the_reason(fake_path, monkeypatch):
    monkeypatch.setenv("GPUSENSE_LIBCUDA", f"{fake_path}.gone")
    answer = cuda.open()
    assert isinstance(answer, Unavailable)
    assert answer.reason == f"GPUSENSE_LIBCUDA={fake_path}.gone: no such file"


def test_right_name_wrong_symbols(build_library, tmp_path, monkeypatch):
    path = tmp_path / "fake-libcuda.so"
    shutil.copy(build_library("loadable.c", "libloadable.so"), path)
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(path))
    monkeypatch.setattr(loading, "_handles", {})
    held = ctypes.CDLL(str(path))
    answer = cuda.open()
    assert isinstance(answer, Unavailable)
    assert answer.reason.startswith(f"{path} lacks cuDriverGetVersion, cuDeviceGetCount, ")
    assert not cuda.CudaSource().is_live()
    assert held.fake_add(1, 1) == 2


def test_version(live):
    backend = cuda.open()
    assert (backend.library, backend.version) == (live.path, "CUDA 13.0")
    live.set_version(11070)
    assert backend.devices.driver_version() == (11, 7)
    live.fail("cuDriverGetVersion", 999)
    assert backend.devices.driver_version() is None
    assert cuda.open().version is None


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (100, "NO_DEVICE, no GPU is visible"),
        (3, "NOT_INITIALIZED"),
        (999, "UNKNOWN, see the kernel log"),
        (77777, "unknown error"),
    ],
)
def test_error_names(code, text):
    with pytest.raises(BackendError, match=f"cuInit: {text}") as caught:
        capi.check("cuInit", code)
    assert (caught.value.call, caught.value.code) == ("cuInit", code)
    assert str(caught.value).endswith(f"({code})")
    capi.check("cuInit", 0)


# --- devices ------------------------------------------------------------------------------------------------------


def test_device_facts(live):
    (device,) = cuda.CudaSource().devices()
    assert device.name == "NVIDIA H100 80GB HBM3"
    assert (device.index, device.cuda_index, device.vendor, device.backend) == (0, 0, "nvidia", "cuda")
    assert device.uuid == UUID
    assert device.pci_bus_id == "0000:1b:00.0"
    assert device.memory_total_bytes == 85_000_000_000  # beyond 32 bits: the _v2 call
    assert device.compute_capability == (9, 0)
    assert device.sm_count == 132
    assert device.clock_max_mhz == 1980.0
    assert device.memory_clock_max_mhz == 2619.0
    assert device.memory_bus_width_bits == 5120
    assert device.threads_per_sm == 2048
    assert device.registers_per_sm == 65536
    assert device.shared_memory_per_sm_bytes == 233472
    assert device.kind == "discrete"
    assert device.sources == ("cuda",)
    assert dict(device.details)["blocks_per_sm"] == "32"


def test_several_devices_keep_cudas_order(live):
    live.set_devices(3)
    devices = cuda.CudaSource().devices()
    assert [device.cuda_index for device in devices] == [0, 1, 2]
    assert [device.pci_bus_id for device in devices] == ["0000:1b:00.0", "0000:1c:00.0", "0000:1d:00.0"]
    assert len({device.uuid for device in devices}) == 3


def test_no_device(live):
    live.set_devices(0)
    assert cuda.CudaSource().devices() == ()


def test_slice_of_a_device_is_named_as_such(run_python, fake_path):
    code = """if True:
        import ctypes, os
        theirs = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
        from gpusense.backends.cupti import synchronize
        from gpusense.backends import cuda
        print(cuda.SOURCE.devices()[0].uuid)
    """
    done = run_python(code, GPUSENSE_LIBCUDA=str(fake_path), FAKE_CUDA_LIVE="1", FAKE_CUDA_MIG="1")
    assert done.stdout.strip() == "MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00", done.stderr


def test_older_driver_without_the_second_uuid_call(build_library, tmp_path, monkeypatch):
    path = tmp_path / "fake-libcuda.so"
    shutil.copy(build_library("libcuda.c", "libcuda-old.so.1", "-DWITHOUT_LATER"), path)
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(path))
    monkeypatch.setattr(loading, "_handles", {})
    Fake(path).set_live(1)
    assert cuda.CudaSource().devices()[0].uuid == UUID


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("cuDeviceGetUuid_v2", None),
        ("cuDeviceGetPCIBusId", "pci_bus_id"),
        ("cuDeviceTotalMem_v2", "memory_total_bytes"),
        ("cuDeviceGetAttribute", "sm_count"),
    ],
)
@pytest.mark.parametrize("code", [1, 100, 101, 201, 999])
def test_a_question_that_fails_costs_only_its_answer(live, call, field, code):
    live.fail(call, code)
    (device,) = cuda.CudaSource().devices()
    assert device.name == "NVIDIA H100 80GB HBM3"
    assert device.uuid == UUID
    if field:
        assert getattr(device, field) is None
    if call == "cuDeviceGetAttribute":
        assert device.compute_capability is device.kind is device.clock_max_mhz is None
        assert device.details == ()


def test_no_uuid_at_all(live):
    live.fail("cuDeviceGetUuid", 999)
    live.fail("cuDeviceGetUuid_v2", 999)
    assert cuda.CudaSource().devices()[0].uuid is None


def test_unnamed_and_oddly_named_devices(live):
    live.fail("cuDeviceGetName", 1)
    assert cuda.CudaSource().devices()[0].name == "unknown NVIDIA device"
    live.fail("cuDeviceGetName", 0)
    live.library.fake_cuda_set_name(0, b"GPU \xff\xfe")
    assert cuda.CudaSource().devices()[0].name == "GPU ��"


def test_clock_of_zero_is_unknown(live):
    live.set_attribute(0, capi.CLOCK_RATE_KHZ, 0)
    assert cuda.CudaSource().devices()[0].clock_max_mhz is None


def test_integrated_device(live):
    live.set_attribute(0, capi.INTEGRATED, 1)
    assert cuda.CudaSource().devices()[0].kind == "integrated"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:1B:00.0", "0000:1b:00.0"),
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0001:C3:00.0", "0001:c3:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("", None),
        (None, None),
        ("1B:00.0", None),
    ],
)
def test_pci_bus_id_form(text, expected):
    assert cuda_facts.pci_bus_id(text) == expected


def test_limits(live):
    limits = cuda.CudaSource().limits(0)
    assert limits == Limits((9, 0), 2048, 65536, 233472, 32, 65536, 1024, 1024, 232448)


# --- memory -------------------------------------------------------------------------------------------------------


def test_memory_in_the_threads_own_context(live):
    context = ctypes.c_void_p()
    live.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    live.library.cuCtxPushCurrent_v2(context)
    live.library.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4096))
    try:
        assert cuda.CudaSource().memory_info(0) == (85_000_000_000 - 4096, 85_000_000_000)
        assert live.retained(0) == 1
        assert live.stack_depth() == 1
        assert live.calls("cuCtxPushCurrent_v2") == 1  # the program's own
    finally:
        live.library.cuCtxPopCurrent_v2(None)


def test_memory_through_an_active_primary_context(live):
    live.library.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    info = cuda.CudaSource().memory_info(0)
    assert info.free_bytes == info.total_bytes == 85_000_000_000
    assert (live.retained(0), live.stack_depth()) == (1, 0)


def test_memory_without_a_context_is_unknown_and_makes_none(live):
    answer = cuda.CudaSource().memory_info(0)
    assert isinstance(answer, Unavailable)
    assert "device 0 has no active context, and none is made to ask" in answer.reason
    assert live.retained(0) == 0


@pytest.mark.parametrize("call", ["cuMemGetInfo_v2", "cuCtxPushCurrent_v2", "cuDevicePrimaryCtxRetain"])
def test_memory_failure_leaves_the_stack_as_it_was(live, call):
    live.library.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    live.fail(call, 999)
    answer = cuda.CudaSource().memory_info(0)
    assert isinstance(answer, Unavailable)
    assert answer.reason.startswith(call.removesuffix("_v2"))
    assert (live.retained(0), live.stack_depth()) == (1, 0)


def test_waiting_for_the_devices(live):
    cuda.SOURCE.api()
    assert synchronize.synchronise(10.0)
    assert live.calls("cuCtxSynchronize") == 0  # no context, nothing to wait for
    live.library.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    assert synchronize.synchronise(10.0)
    assert live.calls("cuCtxSynchronize") == 1
    assert live.calls("cuThreadExchangeStreamCaptureMode") == 2  # relaxed, and back
    assert live.retained(0) == 1
    live.fail("cuCtxSynchronize", 700)
    assert not synchronize.synchronise(10.0)
