"""The overhead budget end to end: capture is off for a part of the time, markers and blocks go on, and it is told."""

import functools
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")

HEAD = """
import ctypes, json, os, sys, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
"""

PROGRAM = (
    HEAD
    + """
import gpusense
from gpusense._capture import budget, recorder
budget.PERIOD_NS, budget.ON_NS, recorder.TICK_S = 100_000_000, 20_000_000, 0.01
gpusense.configure(kinds=("sync",))
gpusense.enable()
tracer = gpusense.get_tracer()
while tracer.recorder.marker is None:
    with gpusense.trace("waiting"):
        time.sleep(0.005)
cupti = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
def kinds(): return [cupti.fake_cupti_enabled(kind) for kind in (1, 2, 10, 38)]
on = kinds()
second = None
if sys.argv[1] == "two copies":
    from gpusense._decode import layouts
    from gpusense.backends.cupti import activity as backend
    second = backend.CuptiActivity()
    second.start(layouts.DEFAULT_KINDS, lambda buffer, thread: None)  # as a copy that looks at no one else's wishes
gpusense.configure(overhead_budget=0.0001)
off, launched, end = set(), 0, time.monotonic() + 1.5
while time.monotonic() < end:
    with gpusense.trace("step"):
        for _ in range(200):
            driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(500))
    launched += 200
    time.sleep(0.002)
    off.add(tuple(kinds()))
gpusense.configure(overhead_budget=None)
after = kinds()
session = tracer.session()
import io
state = tracer.status()
text = io.StringIO()
tracer.print_summary(text)
meta = tracer.recorder.meta()["overhead"]
gpusense.configure(overhead_budget=0.5)
print(json.dumps({
    "on": on, "off": sorted(off), "after": after, "launched": launched, "seen": session.counters.seen,
    "unseen": [s.reason for s in session.unseen], "lost": session.counters.lost_markers, "meta": sorted(meta),
    "blocks": sum(a.count for a in session.aggregates if a.kind == "block") + len(session.blocks),
    "ambiguous": session.counters.ambiguous, "state": [state["state"], state["reason"]],
}))
"""
)


@pytest.fixture
def program(answer):
    return functools.partial(answer, PROGRAM)


def test_capture_is_off_for_a_part_and_comes_back(program):
    facts = program("alone")
    assert facts["on"] == facts["after"] == [1, 1, 1, 1]
    assert [0, 1, 0, 0] in facts["off"]  # the kind of the markers stays
    assert facts["state"] == ["running", ""]  # and its records come: nobody is taken for a profiler that took over
    assert facts["unseen"].count("overhead budget") > 0
    assert 0 < facts["seen"] < facts["launched"]
    assert facts["lost"] == facts["ambiguous"] == 0
    assert facts["blocks"] >= facts["launched"] // 200


def test_what_another_copy_wants_stays_on(program):
    facts = program("two copies")
    assert facts["off"] == [[1, 1, 1, 1]]
    assert "overhead budget" not in facts["unseen"]
    assert facts["seen"] >= facts["launched"]


COST = """
from gpusense._tracing import select
tracer = select.control.start_session(mode=sys.argv[1], path=sys.argv[2]).tracer
recorder = tracer.recorder
while not recorder.capture.running: time.sleep(0.005)
hub = recorder.capture._activity.shared["flush"].__self__
end = time.monotonic() + 1.5
while time.monotonic() < end:
    for _ in range(500):
        driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(500))
    time.sleep(0.001)
told = recorder._drain_cpu_ns + recorder._tick_cpu_ns
spent = 0
for thread in (tracer._worker._thread, hub._thread):
    with open(f"/proc/self/task/{thread.native_id}/schedstat") as file: spent += int(file.read().split()[0])
print(json.dumps([told, spent, recorder.counters().seen]))
os._exit(0)
"""


@pytest.mark.parametrize("mode", ["live", "file"])
def test_own_cost_is_told_once_whichever_thread_reads(answer, mode, tmp_path):
    """Rounds of the recording thread read buffers, too."""
    told, spent, seen = answer(HEAD + COST, mode, str(tmp_path / "run.gpusense"))
    assert 0.3 * spent < told <= spent
    assert mode == "file" or seen > 1000
