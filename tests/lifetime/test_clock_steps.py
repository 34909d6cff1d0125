"""The wall clock is set while a program records."""

import json
import sys

import pytest

import gpusense

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the clock is replaced by preloading")

STEPPED = """
import json
clock = ctypes.CDLL(None)
clock.fake_set_clock.argtypes = (ctypes.c_longlong,)
tracer, fake = begin()
nothing, launch = ctypes.c_uint64(0), driver.fake_cuda_count_call
def work():
    for _ in range(10):
        fake.fake_cupti_kernel(b"k", 0, 7, nothing, nothing, launch())
        time.sleep(0.002)
gpusense.reset()
with gpusense.trace("before"): work()
time.sleep(0.3)
clock.fake_set_clock(STEP * 10**9)
with gpusense.trace("after"): work()
time.sleep(0.3)
session = tracer.session()
meta = session.meta
print(json.dumps([kernels(session), session.counters.pre_session, (meta["end_ns"] - meta["start_ns"]) / 1e9]))
"""


@pytest.mark.parametrize("step", [-3600, -1, 3600])
@pytest.mark.parametrize("writes_a_file", [False, True])
def test_what_follows_a_step_of_the_clock_belongs_to_the_session(run, build_library, tmp_path, step, writes_a_file):
    """Set back by an hour, all that came after it was from before the session."""
    clock = str(build_library("stepped_clock.c", "stepped_clock.so"))
    code = STEPPED.replace("STEP", str(step))
    if writes_a_file:
        started = (
            "from gpusense._tracing import select\nrecording = select.control.start_session(path='run.gpusense')\n"
        )
        code = code.replace("tracer, fake = begin()", f"{started}tracer, fake = begin()")
        code = code.replace("tracer.session()", "recording.finish()")
    done = run(code, LD_PRELOAD=clock)
    assert done.returncode == 0, done.stderr
    launched, before, length_s = json.loads(done.stdout)
    assert (launched, before) == (20, 0)
    assert 0 < length_s < 20 or step > 0
    if writes_a_file:
        loaded = gpusense.load(tmp_path / "run.gpusense")
        assert sum(row.count for row in loaded.aggregates if row.kind == "kernel") + len(loaded.kernels) == 20
