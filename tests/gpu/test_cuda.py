"""On a real NVIDIA GPU: facts against nvidia-smi, occupancy against the driver's own call, kernels that compute."""

import array
import pathlib
import runpy
import shutil
import subprocess
import threading

import pytest

from gpusense import cuda
from gpusense._capi.libraries import CUDA
from gpusense._capi.loading import load
from gpusense._records.occupancy import Limits, blocks_per_sm
from gpusense.backends import cuda as backend
from gpusense.cuda import _workload

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> cuda.Device:
    if not cuda.cuda_available():
        pytest.skip("needs an NVIDIA GPU")
    if hasattr(load(CUDA).library, "fake_cuda_calls"):
        pytest.skip("a test before this one left a scripted driver in the process: run tests/gpu on its own")
    return cuda.Device(0)


def hungry_kernel(values: int, static_shared: int) -> str:
    """A kernel that keeps ``values`` numbers alive at a time, so that it needs at least as many registers."""
    shared = f".shared .align 16 .b8 room[{static_shared}];" if static_shared else ""
    touch = "st.volatile.shared.f32 [room], %f0;" if static_shared else ""
    loads = "\n".join(f"ld.volatile.global.f32 %f{n}, [%p + {4 * n}];" for n in range(values))
    stores = "\n".join(f"st.volatile.global.f32 [%p + {4 * n}], %f{n};" for n in reversed(range(values)))
    return f"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry hungry(.param .u64 p)
{{
    .reg .b64 %p; .reg .f32 %f<{values}>; {shared}
    ld.param.u64 %p, [p];
    cvta.to.global.u64 %p, %p;
    {loads}
    {touch}
    {stores}
    ret;
}}
"""


def test_occupancy_is_the_drivers(device):
    limits = Limits.of(device.info)
    most = limits.shared_memory_per_block_bytes
    compared, differing, registers = 0, [], set()
    for values in (2, 12, 20, 28, 36, 44, 52, 60, 76, 92, 108, 124, 156, 188, 220, 240):
        for static in (0, 4, 1000, 16 * 1024, 48 * 1024):
            function = cuda.Module.from_ptx(hungry_kernel(values, static), device).function("hungry")
            registers.add(function.registers_per_thread)
            for dynamic in (0, 1, 127, 128, 3000, 20_000, 60_000, most - static - 1, most - static):
                for threads in (1, 32, 33, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1000, 1024):
                    launch = (threads, function.registers_per_thread, function.static_shared_bytes, dynamic)
                    ours, theirs = blocks_per_sm(limits, *launch), function.blocks_per_sm(threads, dynamic)
                    compared += 1
                    if ours != theirs:
                        differing.append((*launch, ours, theirs))
    print(f"\n{device.name}: {compared} launches, {len(registers)} register counts {min(registers)}…{max(registers)}")
    assert len(registers) >= 12
    assert differing == [], f"{len(differing)} of {compared} (threads, registers, static, dynamic, ours, driver's)"


def test_facts_are_nvidia_smis(device):
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs nvidia-smi")
    fields = "name,uuid,pci.bus_id,memory.total,clocks.max.sm,clocks.max.memory,compute_cap"
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", device.uuid],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    name, uuid, bus, memory, sm_clock, memory_clock, capability = done.stdout.strip().split(", ")
    info = device.info
    print(f"\n{info}")
    assert (info.name, info.uuid) == (name, uuid)
    assert info.pci_bus_id == bus.lower()[-len(info.pci_bus_id) :]
    assert 0.97 < info.memory_total_bytes / (int(memory) << 20) <= 1.0  # without what the driver reserves
    assert info.clock_max_mhz == float(sm_clock)
    assert info.memory_clock_max_mhz == float(memory_clock)
    assert info.compute_capability == tuple(map(int, capability.split(".")))


def test_backend_sees_what_the_module_sees(device):
    device.memory_info()  # makes the primary context
    assert backend.SOURCE.is_live()
    assert backend.SOURCE.devices()[0] == device.info
    assert backend.SOURCE.memory_info(0) == device.memory_info()
    assert backend.SOURCE.driver_version() >= (11, 7)


def test_backend_leaves_a_process_without_cuda_alone(device, run_python):
    code = """if True:
        import ctypes
        from gpusense.backends import cuda
        backend = cuda.open()
        print(backend)
        assert backend.library and not cuda.SOURCE.is_live() and cuda.SOURCE.devices() == ()
        assert not any("libcuda.so" in line for line in open("/proc/self/maps"))
        theirs = ctypes.CDLL("libcuda.so.1")
        cuda.SOURCE._next_scan = 0
        assert not cuda.SOURCE.is_live() and cuda.SOURCE.driver_version() >= (11, 7)
        count = ctypes.c_int()
        assert theirs.cuDeviceGetCount(ctypes.byref(count)) == 3  # still nobody initialised it
        assert theirs.cuInit(0) == 0
        assert cuda.SOURCE.is_live() and cuda.SOURCE.devices()
        assert not cuda.SOURCE.memory_info(0)  # no context, and none made
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_saxpy(device):
    count = 100_001
    x, y = array.array("f", range(count)), array.array("f", [1.0]) * count
    saxpy = cuda.Module.from_ptx(_workload.PTX, device).function("saxpy")
    with cuda.Buffer.of(x, device) as a, cuda.Buffer.of(y, device) as b:
        metrics = cuda.launch_instrumented(saxpy, -(-count // 256), 256, (a, b, 0.5, count))
        b.copy_to(y)
    assert list(y) == [0.5 * n + 1.0 for n in range(count)]
    assert metrics.event_time_ns > 0
    assert metrics.occupancy == 1.0


def test_matmul(device):
    side = 48
    a = array.array("f", [(row * 7 + column) % 5 for row in range(side) for column in range(side)])
    b = array.array("f", [(row + column * 3) % 7 for row in range(side) for column in range(side)])
    c = array.array("f", [0.0]) * (side * side)
    matmul = cuda.Module.from_ptx(_workload.PTX, device).function("matmul_naive")
    with cuda.Buffer.of(a, device) as da, cuda.Buffer.of(b, device) as db, cuda.Buffer(4 * side * side, device) as dc:
        matmul.launch((3, 3), (16, 16), (da, db, dc, side))
        dc.copy_to(c)
    for row, column in ((0, 0), (5, 40), (47, 47)):
        assert c[row * side + column] == sum(a[row * side + k] * b[k * side + column] for k in range(side))


@pytest.mark.parametrize("nanoseconds", [0, 200_000, 5_000_000])
def test_spin_takes_its_time(device, nanoseconds):
    spin = cuda.Module.from_ptx(_workload.PTX, device).function("spin")
    cuda.launch_instrumented(spin, 1, 32, (0,))
    metrics = cuda.launch_instrumented(spin, 1, 32, (nanoseconds,))
    print(f"\nspin {nanoseconds} ns: events say {metrics.event_time_ns}")
    assert metrics.event_time_ns >= nanoseconds * 0.99


def test_compiler_log(device):
    with pytest.raises(cuda.CompileError, match="ptxas") as caught:
        cuda.Module.from_ptx(".version 6.0\n.target sm_50\n.visible .entry k() { nonsense; }", device)
    print(f"\n{caught.value}")
    assert "nonsense" in caught.value.log


def test_failing_kernel_is_an_error(run_python, device):
    code = """if True:
        from gpusense.cuda import _workload
        from gpusense import cuda
        saxpy = cuda.Module.from_ptx(_workload.PTX).function("saxpy")
        try:
            cuda.launch_instrumented(saxpy, 1, 32, (16, 16, 1.0, 32))
        except Exception as error:
            assert error.code == 700, error
        else:
            raise SystemExit("no error")
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_memory_is_taken_and_given_back(device):
    before = device.memory_info()
    with cuda.Buffer(256 << 20, device):
        assert before.free_bytes - device.memory_info().free_bytes >= 250 << 20
    assert abs(before.free_bytes - device.memory_info().free_bytes) < 64 << 20


def test_threads(device):
    problems = []

    def work(seed: int) -> None:
        try:
            saxpy = cuda.Module.from_ptx(_workload.PTX, device).function("saxpy")
            with cuda.Stream(device) as stream, cuda.Buffer(4 * 1024, device) as x, cuda.Buffer(4 * 1024, device) as y:
                x.copy_from(array.array("f", [seed]) * 1024)
                y.fill(0)
                for _ in range(50):
                    saxpy.launch(4, 256, (x, y, 1.0, 1024), stream=stream)
                stream.synchronize()
                result = array.array("f", y.to_bytes())
                assert set(result) == {50.0 * seed}
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []


def test_example_paints_the_same_picture_on_both(device):
    example = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "examples" / "gpu_pixels.py"))
    for width, height in ((64, 32), (33, 7), (1, 1)):
        pixels, metrics = example["render_on_gpu"](width, height)
        assert pixels == example["render_on_cpu"](width, height)
        assert metrics.name == "gradient"


def test_demonstration_runs(device):
    launched = _workload.run(steps=3)
    assert launched.kernels == {"matmul_naive": 3, "saxpy": 24, "spin": 3}
    assert _workload.selftest().kernels == {"spin": 1}
