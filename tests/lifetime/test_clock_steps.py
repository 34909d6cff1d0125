"""The wall clock is set while a program records: nothing is lost, and every length is what it was."""

import sys

import pytest
from support.programs import clean

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

_PROGRAM = """
mode, step = sys.argv[1], int(sys.argv[2])
if mode == "file":
    from gpusense._tracing.select import control
    control.start_session("file", "run.gpusense")
tracer, cupti = begin()
gpusense.configure(trace_all=True, overhead_budget=0.9)
preloaded = ctypes.CDLL(None)
preloaded.set_clock.argtypes = (ctypes.c_longlong,)
def work(count):
    for _ in range(count):
        driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(900))
        time.sleep(0.002)
tracer.reset()
began = time.monotonic()
with gpusense.trace("before"): work(10)
time.sleep(0.3)
with gpusense.trace("during") as during:
    work(10)
    preloaded.set_clock(step)
    work(10)
with gpusense.trace("after"):
    work(10)
    gpusense.record_kernel("by hand", duration_ns=1000)
time.sleep(0.3)
found = tracer.session()
lived = (time.monotonic() - began) * 1e9
kernels = {}
for kernel in found.kernels: kernels[kernel.path] = kernels.get(kernel.path, 0) + 1
blocks = {block.name: block.end_ns - block.start_ns for block in found.blocks if block.name != "waiting"}
print(kernels[("before",)], kernels[("during",)], kernels[("after",)])
print(all(10**7 < length < lived for length in blocks.values()), 10**7 < during.summary().wall_ns < lived)
inside = {block.name: block for block in found.blocks}
print(all(inside[kernel.path[-1]].start_ns <= kernel.start_ns and kernel.end_ns <= found.meta["start_ns"] + lived
          for kernel in found.kernels if kernel.path[0] != "waiting"))
overhead = tracer.recorder.meta()["overhead"]
print(0.5 < overhead["observed"] <= 1.0, [round(size / 1e9) for _, size in tracer.recorder.meta()["clock_steps"]])
lost = {name: count for name, count in found.counters._asdict().items() if count and name not in ("seen", "kept")}
print(lost)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("version", ["", "24"], ids=["read", "marked"])
@pytest.mark.parametrize("mode", ["live", "file"])
@pytest.mark.parametrize("seconds", [3600, -3600, -2])
def test_all_work_is_in_its_block_whatever_the_wall_clock_does(run, build_library, seconds, mode, version):
    preload = str(build_library("set_clock.c", "libset_clock.so"))
    code = _PROGRAM.replace("sys.argv[1]", repr(mode)).replace("sys.argv[2]", str(seconds * 10**9))
    done = run(code, LD_PRELOAD=preload, FAKE_CUPTI_VERSION=version)
    clean(done, f"10 20 11\nTrue True\nTrue\nTrue [{seconds}]\n{{}}\n")
