"""On a real NVIDIA GPU: every record arrives, the stamped thread is the launching one, other profilers get theirs.

Each case runs in a process of its own: ``python -m pytest tests/gpu/test_capture.py -s``.
"""

import json

import pytest

from gpusense import cuda

pytestmark = pytest.mark.gpu

HEAD = """
import json, os, sys, threading, time
from collections import Counter
from gpusense._decode import layouts
from gpusense._decode.record import unpack
from gpusense._decode.walk import batches
from gpusense import cuda as own
from gpusense.backends.cupti import markers, watch, activity as cupti
from gpusense.backends import cuda
PTX = '''
.version 6.0
.target sm_50
.address_size 64
.visible .entry nothing() { ret; }
.visible .entry spin(.param .u32 n)
{
    .reg .b32 %i; .reg .pred %p;
    ld.param.u32 %i, [n];
again:
    sub.u32 %i, %i, 1;
    setp.ne.u32 %p, %i, 0;
    @%p bra again;
    ret;
}
'''
device = own.Device(0)
module = own.Module.from_ptx(PTX, device)
nothing = module.function("nothing")
grids, mixed, sizes = Counter(), Counter(), []
def receive(buffer, thread):
    sizes.append(len(buffer))
    found, tally = batches(buffer, activity.strides)
    for batch in found:
        if batch.kind == layouts.CONCURRENT_KERNEL:
            for at in batch.offsets:
                grid = unpack(buffer, batch.kind, batch.stride, at)["grid_x"]
                grids[grid] += 1
                mixed[thread, grid] += 1
activity = cupti.CuptiActivity()
def begin(*more, **options):
    activity.start((*layouts.DEFAULT_KINDS, *more), receive, **options)
def settle():
    device.synchronize()
    for _ in range(5):
        activity.flush()
        time.sleep(0.05)
def answer(**facts):
    status = activity.status()
    names = ("version", "callbacks", "per_thread_buffers", "requested", "missed", "dropped", "foreign_buffers")
    print(json.dumps({**facts, **{name: status.get(name) for name in names}}))
"""


@pytest.fixture
def run(run_python):
    if not cuda.cuda_available():
        pytest.skip("needs an NVIDIA GPU")

    def start(code, **options):
        done = run_python(HEAD + code, timeout=100, **options)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"\n{facts}")
        return facts

    return start


def test_every_launch_of_every_thread_arrives_in_a_buffer_of_its_own_thread(run):
    facts = run("""
begin()
idents = {}
def work(number):
    idents[number] = threading.get_ident()
    for _ in range(20_000):
        nothing.launch(number, 1)
threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
settle()
wrong = sum(count for (thread, grid), count in mixed.items() if thread != idents[grid])
answer(counts=sorted(grids.values()), wrong_thread=wrong)
""")
    assert facts["counts"] == [20_000] * 4
    assert (facts["missed"], facts["dropped"]) == (0, 0)
    if facts["per_thread_buffers"]:
        assert facts["wrong_thread"] == 0


def test_small_buffers_in_flight_lose_nothing_uncounted(run):
    facts = run("""
begin(buffer_size=4096, buffers=4)
for _ in range(20_000):
    nothing.launch(1, 1)
settle()
answer(arrived=sum(grids.values()))
""")
    assert facts["arrived"] + facts["dropped"] == 20_000


def test_a_running_kernel_does_not_hold_back_the_canary(run):
    facts = run("""
begin()
activity.canary = markers.Memset(activity)
activity.canary.prepare()
module.function("spin").launch(1, 1, [2**31])
verdicts = []
for _ in range(6):
    verdicts.append(watch.look(activity, paused=False))
    activity.flush(); time.sleep(0.1); activity.flush()
answer(verdicts=verdicts, heartbeat=list(activity.heartbeat()))
""")
    assert facts["verdicts"] == [None] * 6
    assert facts["heartbeat"][3]


def test_torch_profiler_gets_all_its_data_and_capture_comes_back(run):
    pytest.importorskip("torch")
    facts = run("""
import torch
x = torch.ones(1024, device="cuda")
torch.cuda.synchronize()
begin()
activity.canary = markers.Memset(activity)
activity.canary.prepare()
def changes(count):
    seen = []
    for _ in range(count):
        paused = activity.status()["paused"]
        seen.append(watch.look(activity, paused=paused))
        activity.flush(); time.sleep(0.15); activity.flush()
    return [verdict for verdict in seen if verdict]
before = changes(3)
for _ in range(50): x.add_(1)
settle()
ours_before = sum(grids.values())
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
    for _ in range(100): x.add_(1)
    torch.cuda.synchronize()
theirs = sum(event.count for event in profile.key_averages() if "elementwise" in event.key)
after = changes(6)
now = sum(grids.values())
for _ in range(50): x.add_(1)
settle()
answer(before=before, after=after, theirs=theirs, ours_before=ours_before, ours_after=sum(grids.values()) - now)
""")
    assert facts["theirs"] == 100
    assert facts["before"] == []
    assert facts["ours_before"] == 50
    assert facts["after"][-1] == "resumed"
    assert facts["ours_after"] == 50


def test_the_process_may_end_while_threads_launch(run_python):
    if not cuda.cuda_available():
        pytest.skip("needs an NVIDIA GPU")
    code = """
begin(buffer_size=4096)
def storm():
    while True: nothing.launch(1, 1)
for _ in range(2): threading.Thread(target=storm, daemon=True).start()
time.sleep(0.5)
"""
    for _ in range(5):
        done = run_python(HEAD + code, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
