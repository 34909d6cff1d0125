"""Several scripted GPUs in one process: whose ordinal is whose, copies between them, collectives."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")


@pytest.fixture
def run(build_library, environ, tmp_path):
    nvml = {"GPUSENSE_LIBNVIDIA_ML": str(build_library("libnvidia_ml.c", "libnvidia-ml.so.1"))}

    def start(code, **env):
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=environ | nvml | env, capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert done.stderr == ""
        return json.loads(done.stdout)

    return start


@pytest.mark.parametrize(
    ("order", "cuda"), [("20", [1, None, 0, None]), ("3210", [3, 2, 1, 0]), ("1", [None, 0, None, None])]
)
def test_ordinals_are_joined_by_identity_and_not_by_number(run, order, cuda):
    """As CUDA_VISIBLE_DEVICES reorders and hides: NVML has four devices in its own order."""
    found = run(
        """
import ctypes, json, os
nvml = ctypes.CDLL(os.environ["GPUSENSE_LIBNVIDIA_ML"])
nvml.fake_reset(); nvml.fake_devices(4)
for number in range(4): nvml.fake_uuid(number, b"GPU-00010203-0405-0607-0809-0a0b0c0d0e%02x" % number)
ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"]).cuInit(0)
import gpusense
print(json.dumps([[d.nvml_index, d.cuda_index, d.uuid, list(d.sources)] for d in gpusense.devices()]))
""",
        FAKE_CUDA_ORDER=order,
    )
    by_nvml = {row[0]: row for row in found if row[0] is not None}
    assert [by_nvml[number][1] for number in range(4)] == cuda
    assert (
        len([row for row in found if row[2]]) == 4
    )  # others of this machine, such as a software renderer, have no UUID
    for number in range(4):
        assert by_nvml[number][2].endswith(f"{number:02x}")
        assert ("cuda" in by_nvml[number][3]) == (cuda[number] is not None)


@pytest.mark.parametrize("count", [2, 8])
def test_work_copies_and_collectives_of_every_device(run, count):
    found = run(
        """
import ctypes, json, os, struct, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"]); driver.cuInit(0)
import gpusense
from gpusense.cuda import _workload
from gpusense import cuda
from gpusense.analysis.families import is_collective
count = int(os.environ["FAKE_CUDA_DEVICES"])
buffers = [cuda.Buffer(64, cuda.Device(number)) for number in range(count)]
gpusense.configure(trace_all=True)
tracer = gpusense.get_tracer()
for _ in range(400):
    with gpusense.trace("waiting"): pass
    if tracer.recorder.marker: break
    time.sleep(0.005)
fake = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
launched = [_workload.run(gpusense.trace, 1, number) for number in range(count)]
record = struct.Struct("<IBBBBQQQIIIIIIIIQQIIII")
for number in range(count):
    now, other = time.time_ns(), (number + 1) % count
    fake.fake_cupti_raw(record.pack(22, 10, 3, 3, 0, 4096, now, now + 500, number, number + 1, 7, number, number + 1,
                                    other, other + 1, 900 + number, 0, 0, 0, 0, 0, 0), 96)
    fake.fake_cupti_kernel(b"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", number, 9,
                           ctypes.c_uint64(0), ctypes.c_uint64(0), 0)
tracer.flush()
session = tracer.session()
kernels = [sum(k.device == number and not is_collective(k.name) for k in session.kernels) for number in range(count)]
print(json.dumps({
    "kernels": kernels == [sum(one.kernels.values()) for one in launched],
    "peers": sorted([copy.source_device, copy.destination_device, copy.bytes] for copy in session.transfers
                    if copy.direction == "gpu_to_gpu"),
    "collectives": sorted(k.device for k in session.kernels if is_collective(k.name)),
    "devices": [d.cuda_index for d in session.devices],
}))
""",
        FAKE_CUDA_DEVICES=str(count),
    )
    assert found == {
        "kernels": True,
        "peers": sorted([number, (number + 1) % count, 4096] for number in range(count)),
        "collectives": list(range(count)),
        "devices": list(range(count)),
    }
