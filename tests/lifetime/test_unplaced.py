"""Capture begins, pauses, goes on and ends beside threads that launch in blocks: no kernel comes to another's block."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

#: Each kernel bears the number of its block as its name; "0": of none that is recorded.
PROGRAM = """
import ctypes, json, os, sys, threading, time, types
when, file, taken_out = sys.argv[1], sys.argv[2], sys.argv[3] == "out"
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
cupti = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
import gpusense
from gpusense._tracing.select import control
gpusense.configure(trace_all=True, max_records_per_second=10**9, max_records=10**9)
run = control.start_session("file", file) if file else None
gpusense.enable()
tracer = gpusense.get_tracer()
stop = []

def work(i):
    while not stop:
        time.sleep(0.0005)
        for name in ("a", "b"):
            with gpusense.trace(name) as block:
                number = block.block_id if getattr(block, "recorded", False) else 0
                for _ in range(3):
                    driver.fake_cuda_launch(b"%d" % number, 0, 7 + i, ctypes.c_uint64(900))

def until(ready):
    for _ in range(4000):
        if ready(): return
        time.sleep(0.005)
    raise SystemExit(str(tracer.status()))

def runs(): return tracer.status()["state"] == "running" and tracer.recorder.marker is not None

def busy():
    while not stop: sum(range(1000))

threads = [threading.Thread(target=work, args=(i,)) for i in range(2)] + [threading.Thread(target=busy)]
for thread in threads: thread.start()
until(runs)
time.sleep(0.1)
other = types.SimpleNamespace(profiling_on=False)
sys.modules["triton.profiler.flags"] = types.SimpleNamespace(flags=other)
for _ in range(2):
    if when == "disabled":
        gpusense.disable()
        time.sleep(0.02)
        gpusense.enable()
    elif when == "profiler":
        other.profiling_on = True
        until(lambda: tracer.status()["state"] == "paused")
        if taken_out:
            cupti.cuptiFinalize()
            driver.fake_cuda_set_correlation(ctypes.c_uint(0))
        other.profiling_on = False
    until(runs)
    time.sleep(0.1)
stop.append(1)
for thread in threads: thread.join()
tracer.flush(5)
session = run.finish() if run else tracer.session()
found = [(int(k.name), k.block_id or 0, k.ambiguous) for k in session.kernels if k.name != "0"]
wrong = [each for each in found if each[0] != each[1] and each[0] not in each[2]]
counted = session.counters
adds_up = counted.seen == counted.kept + counted.aggregated + counted.invalid + counted.pre_session
print(json.dumps([len(found), wrong[:3], adds_up, session.meta.get("damage") or [],
                  [u.reason for u in session.unseen if u.end_ns is not None]]))
"""


@pytest.mark.parametrize("cuda", [13, 12])  # ids are read, and blocks are marked
@pytest.mark.parametrize("into", ["memory", "file"])
@pytest.mark.parametrize("when", ["begun", "disabled", "profiler", "profiler out"])
def test_no_kernel_comes_to_the_block_of_another(run, tmp_path, when, into, cuda):
    import json

    when, _, out = when.partition(" ")
    path = str(tmp_path / "a.gpusense") if into == "file" else ""
    env = {"GPUSENSE": "on"} | ({"FAKE_CUPTI_VERSION": "24"} if cuda == 12 else {})
    code = f"import sys; sys.argv[1:] = {[when, path, out]!r}\n" + PROGRAM
    done = run(code, head="", **env)
    assert done.returncode == 0, done.stderr
    kernels, wrong, adds_up, damage, reasons = json.loads(done.stdout.splitlines()[-1])
    assert kernels > 50 or (out and cuda == 12)  # where the marker that begins is lost, all until the next is unseen
    assert wrong == []
    assert adds_up
    assert damage == []
    told = {"begun": 0, "disabled": 2, "profiler": 2}[when]
    assert sum(reason.startswith(("recording was", "another profiler")) for reason in reasons) == told


@pytest.mark.parametrize("cuda", [13, 12])
def test_a_thread_with_the_id_of_one_that_ended_begins_without_blocks_of_its_own(run, cuda):
    """As autograd's thread, which opens no block and lives from the first backward pass on."""
    env = {"FAKE_CUPTI_VERSION": "24"} if cuda == 12 else {}
    done = run(
        """
import queue
tracer, _ = begin()
gpusense.configure(trace_all=True)
ids, jobs, done = [], queue.Queue(), queue.Queue()
launch = lambda name: driver.fake_cuda_launch(name, 0, 7, ctypes.c_uint64(900))
def warm_up():
    ids.append(threading.get_ident())
    with gpusense.trace("warm up"): launch(b"warm up")
def helper():
    ids.append(threading.get_ident())
    while jobs.get() is not None:
        launch(b"backward")
        done.put(1)
for target in (warm_up, helper):
    thread = threading.Thread(target=target)
    thread.start()
    if target is warm_up: thread.join()
for _ in range(2):
    with gpusense.trace("step"):
        launch(b"forward")
        jobs.put(1)
        done.get()
jobs.put(None)
thread.join()
tracer.flush(5)
session = tracer.session()
print(sorted((k.name, *k.path) for k in session.kernels), session.counters.inherited)
""",
        GPUSENSE="on",
        **env,
    )
    expected = [*[("backward", "step")] * 2, *[("forward", "step")] * 2, ("warm up", "warm up")]
    assert done.stdout == f"{expected} 2\n", done.stderr
