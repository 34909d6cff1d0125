"""Other profilers that come and go, and a device that hangs, against scripted drivers."""

import sys

import pytest
from support.programs import clean

import gpusense

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")


#: As torch.profiler looks from outside.
TORCH = """
import types
class Profiler(types.ModuleType): _is_profiler_enabled = property(lambda self: torch.on)
torch = types.ModuleType("torch"); torch.on = False
sys.modules["torch"], sys.modules["torch.autograd.profiler"] = torch, Profiler("torch.autograd.profiler")
def until(condition, seconds=20):
    "How often it looked: once in 10 ms, and less often where the machine is busy."
    end, looks = time.monotonic() + seconds, 0
    while not condition():
        if time.monotonic() > end: raise SystemExit(f"not in time: {gpusense.get_tracer().status()}")
        time.sleep(0.01)
        looks += 1
    return looks
"""


SILENT, PER_THREAD = 32, 4


def test_a_profiler_that_was_first_keeps_cupti_and_we_follow_when_it_ends(run):
    done = run(
        TORCH
        + """
torch.on = True
tracer = gpusense.get_tracer()
for _ in range(5):
    with gpusense.trace("unseen"): time.sleep(0.02)
fake = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
status = tracer.status()
print(status["state"], "torch.profiler" in status["reason"], fake.fake_cupti_calls(b"cuptiActivityRegisterCallbacks"))
(interval,) = tracer.session().unseen
print(interval.end_ns, "torch.profiler" in interval.reason)
torch.on = False  # it keeps its subscription, as the real one does
until(lambda: tracer.recorder.marker)
with gpusense.trace("seen") as block: launched = _workload.run(gpusense.trace, 1)
print(block.summary().kernel_count == sum(launched.kernels.values()))
(interval,) = tracer.session().unseen
print(interval.end_ns > interval.start_ns, "torch.profiler" in interval.reason)
""",
        FAKE_CUPTI_HOLDER="1",
    )
    clean(done, "paused True 0\nNone True\nTrue\nTrue True\n")


@pytest.mark.parametrize("known", [True, False])
def test_a_profiler_that_comes_later_gets_cupti_and_gives_it_back(run, known):
    """It takes the callbacks silently; where nothing names it, our own calls stop showing up."""
    begins, ends = ("torch.on = True", "torch.on = False") if known else ("", "fake.fake_cupti_set_holder(0)")
    done = run(
        TORCH
        + f"""
tracer, fake = begin()
launched = _workload.run(gpusense.trace, 1)
count = sum(launched.kernels.values())
{"" if known else "del sys.modules['torch']"}
fake.fake_cupti_set_holder(1); fake.fake_cupti_set_flags({SILENT | PER_THREAD}); {begins}
taken = time.time_ns()  # by now: before it, a call of ours may still have shown up
print(until(lambda: tracer.status()["state"] == "paused") < 130)
before = fake.fake_cupti_calls(b"cuptiActivityFlushAll"), fake.fake_cupti_calls(b"cuptiActivityRegisterCallbacks")
with gpusense.trace("unseen"): _workload.run(gpusense.trace, 1)
print(tracer.recorder.marker, before == (
    fake.fake_cupti_calls(b"cuptiActivityFlushAll"), fake.fake_cupti_calls(b"cuptiActivityRegisterCallbacks")))
fake.fake_cupti_set_flags({PER_THREAD}); {ends}
until(lambda: tracer.recorder.marker)
with gpusense.trace("seen") as block: _workload.run(gpusense.trace, 1)
print(block.summary().kernel_count == count)
session = tracer.session()
interval = session.unseen[-1]
print(interval.start_ns <= taken < interval.end_ns, "profiler" in interval.reason, kernels(session) == 2 * count)
"""
    )
    clean(done, "True\nNone True\nTrue\nTrue True True\n")


HUNG = """
tracer, fake = begin()
_workload.run(gpusense.trace, 1)
card = cuda.Device(0)
spin = cuda.Module.from_ptx(_workload.PTX, card).function("spin")
tracer.flush()
driver.fake_cuda_set_stuck(1)
saxpy = cuda.Module.from_ptx(_workload.PTX, card).function("saxpy")
with gpusense.trace("stuck"):
    spin.launch((1,), (32,), (1,))
    saxpy.launch((1,), (32,), (buffer, buffer, 0.5, 1))
def waits_for_the_device():
    for _ in range(400):
        gpusense.trace("goes on").__enter__().__exit__(None, None, None)
        time.sleep(0.01)
        with tracer.recorder._lock:  # not in the middle of a buffer
            if tracer.recorder._hang.found and tracer.recorder._hang.found[0]["streams"][0]["running"]: break
waits_for_the_device()
"""


@pytest.mark.parametrize("file", [False, True])
def test_a_hang_leaves_evidence(run, tmp_path, file):
    begin = "from gpusense._tracing import select; select.control.start_session('file', 's.gpusense')\n" if file else ""
    ending = """
found, = tracer.recorder._hang.found
(row,) = [row for row in found["streams"] if row["running"]]
assert row["last_launched"]["name"] == "saxpy", row
print(row["running"]["name"], row["last_completed"]["kind"], found["last_completed_ns"] < found["noticed_ns"])
frames = [stack["frames"] for stack in found["stacks"] if stack["name"] == "MainThread"][0]
print(frames[0].endswith("waits_for_the_device"), found["ended_ns"])
sys.stdout.flush()
"""
    if file:  # as a watchdog would
        ending += """
def written():
    return any(row["running"] for hang in gpusense.load("s.gpusense").meta.get("hang", ()) for row in hang["streams"])
while not written(): time.sleep(0.01)  # it is written right after it is known; the time limit ends this
os._exit(9)
"""
    else:
        ending += """
from gpusense.report import text
lines = list(text.full(tracer.session()))
print(any("The GPU hung" in line for line in lines), any("waits_for_the_device" in line for line in lines))
driver.fake_cuda_set_stuck(0)
time.sleep(0.2)
with gpusense.trace("goes on") as block: _workload.run(gpusense.trace, 1)
block.wait()
print(found["ended_ns"] > found["noticed_ns"])
"""
    done = run(begin + HUNG + ending, GPUSENSE_HANG_AFTER="0.4", timeout=30)
    assert done.stdout.startswith("spin transfer True\nTrue None\n"), (done.stdout, done.stderr)
    if file:
        assert done.returncode == 9
        (found,) = gpusense.load(tmp_path / "s.gpusense").meta["hang"]
        assert [row["running"]["name"] for row in found["streams"] if row["running"]] == ["spin"]
        assert found["stacks"]
    else:
        clean(done, "spin transfer True\nTrue None\nTrue True\nTrue\n")


def test_an_idle_device_is_no_hang(run):
    done = run(
        """
tracer, fake = begin()
_workload.run(gpusense.trace, 1)
for _ in range(50):
    with gpusense.trace("marks"): time.sleep(0.02)
print(tracer.recorder._hang.found, "hang" in tracer.session().meta)
""",
        GPUSENSE_HANG_AFTER="0.2",
    )
    clean(done, "[] False\n")
