"""The wall clock is set while a program records: nothing is lost, and every length is what it was."""

import subprocess
import sys

import pytest
from support.programs import clean

from gpusense.session import load

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


_INTERRUPTED = """
tracer, cupti = begin()
preloaded = ctypes.CDLL(None)
preloaded.set_clock.argtypes = (ctypes.c_longlong,)
preloaded.set_clock(int(sys.argv[1]))
for _ in range(3): time.sleep(0.15)  # until the step is found
with gpusense.trace("interrupted") as interrupted:
    tracer.recorder.pause_capture()
    time.sleep(0.05)
    tracer.recorder.resume_capture()
    running(tracer)
print(interrupted.summary().complete, interrupted.summary().reason, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_block_in_which_work_was_not_seen_says_so_whatever_the_wall_clock_does(run, build_library, seconds):
    preload = str(build_library("set_clock.c", "libset_clock.so"))
    done = run(_INTERRUPTED.replace("sys.argv[1]", str(seconds * 10**9)), LD_PRELOAD=preload)
    clean(done, "False work was not seen while it was open: recording was disabled\n")


_RUN = """
import ctypes, time
preloaded = ctypes.CDLL(None)
preloaded.set_clock.argtypes = (ctypes.c_longlong,)
time.sleep(0.2)
preloaded.set_clock(%d)
time.sleep(0.4)
"""


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_run_takes_as_long_as_it_takes_whatever_the_wall_clock_does(environ, build_library, tmp_path, seconds):
    preload = str(build_library("set_clock.c", "libset_clock.so"))
    (tmp_path / "program.py").write_text(_RUN % (seconds * 10**9), "utf-8")
    command = [sys.executable, "-m", "gpusense", "run", "-o", "run.gpusense", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ | {"LD_PRELOAD": preload}, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    meta = load(tmp_path / "run.gpusense").meta
    assert 5e8 < meta["program_end_ns"] - meta["program_start_ns"] < 3e10
    assert meta["start_ns"] <= meta["program_start_ns"]
    assert meta["program_end_ns"] <= meta["end_ns"]
