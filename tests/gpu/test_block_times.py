"""Blocks timed by events on a real GPU, beside CUPTI's records of the same blocks in the same process."""

import subprocess
import sys
import threading
from itertools import pairwise

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import gpusense  # noqa: E402
from gpusense._tracing import select  # noqa: E402
from gpusense.backends.block_times.marks import CAPTURED, MORE_NS  # noqa: E402

#: Clocks of the processor for which the device is kept busy, so that the host is ahead of it: some 5 ms.
AHEAD = 10_000_000
STEPS = 20


@pytest.fixture(scope="module", autouse=True)
def recording():
    gpusense.configure(mode="on", trace_all=True, max_records=2_000_000, kinds=("sync",))
    torch.zeros(1, device="cuda")
    tracer = gpusense.get_tracer()
    with gpusense.trace("attach"):
        torch.zeros(1, device="cuda")
    tracer.flush(5)
    assert tracer.status()["state"] == "running", tracer.status()
    select.time_blocks(tracer)
    return tracer


def spans(tracer, *names):
    """By block: what the events say, and first start and last end of the records inside it."""
    torch.cuda.synchronize()
    assert tracer.flush(10)
    session = tracer.session()
    work = [*session.kernels, *session.transfers, *(r for r in session.records if type(r) is gpusense.GpuMemset)]
    inside = {}
    for record in work:
        inside.setdefault(record.path, []).append(record)
    found = {}
    for record in session.records:
        if type(record) is gpusense.GpuBlockTime and record.name in names:
            ours = [one for path, of in inside.items() if path[: len(record.path)] == record.path for one in of]
            found[record.path] = record, min(r.start_ns for r in ours), max(r.end_ns for r in ours)
    return found


#: What two marks take beyond what is taken off, on some machines, in microseconds: until it has been measured.
MARKS = 1.7
#: For how long a mark may wait for those of three other streams, in microseconds.
TURN = 1.6


def check(found, count, more=0.0):
    """The events' spans are those of the records. ``more``: microseconds that the stream takes for something else."""
    assert len(found) == count
    rows = []
    for path, (record, start, end) in found.items():
        assert record.timing == "device", (path, record)
        rows.append(
            ((record.duration_ns - (end - start)) / 1e3, 2 + 0.001 * (end - start) / 1e3, record.start_ns - start)
        )
    apart, off = sorted(row[0] for row in rows), sorted(abs(row[2]) / 1e3 for row in rows)
    error = next(iter(found.values()))[0].clock_error_ns / 1e3
    print(f"\n{count} blocks: events - records {apart[0]:.2f}..{apart[len(apart) // 2]:.2f}..{apart[-1]:.2f} us")
    print(f"  starts off by {off[0]:.1f}..{off[-1]:.1f} us, clock error {error:.1f} us")
    outside = [
        (difference, allowed) for difference, allowed, _ in rows if not -allowed <= difference <= allowed + MARKS + more
    ]
    assert not outside, f"{len(outside)} of {count}: {outside[:5]}"
    assert off[-1] <= error + 20


def test_blocks_of_a_training_step(recording):
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(64, 512, device="cuda")
    for number in range(3 + STEPS):
        torch.cuda._sleep(4 * AHEAD)
        with gpusense.trace(f"step {number}"):
            with gpusense.trace("forward"):
                loss = model(data).square().mean()
            optimizer.zero_grad()
            with gpusense.trace("backward"):
                loss.backward()
            with gpusense.trace("optimizer"):
                optimizer.step()
            data.add_(0)  # none of the blocks ends with the stream at rest
        torch.cuda._sleep(AHEAD)
        torch.cuda.synchronize()
    names = [f"step {number}" for number in range(3, 3 + STEPS)]
    found = spans(recording, *names, "forward", "backward", "optimizer")
    found = {path: row for path, row in found.items() if path[0] in names}
    check(found, 4 * STEPS)


def test_a_stream_beside(recording):
    side, a, b = torch.cuda.Stream(), torch.ones(1 << 22, device="cuda"), torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()
    for number in range(STEPS):
        torch.cuda._sleep(AHEAD)
        side.wait_stream(torch.cuda.current_stream())
        with gpusense.trace(f"beside {number}"):
            a.mul_(1)
            with torch.cuda.stream(side):
                for _ in range(20):
                    b.mul_(1)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda._sleep(AHEAD)
        torch.cuda.synchronize()
    found = spans(recording, *[f"beside {number}" for number in range(STEPS)])
    assert {record.streams for record, _, _ in found.values()} == {2}
    check(found, STEPS)


def test_four_threads_with_a_stream_each(recording):
    def run(thread):
        stream, data = torch.cuda.Stream(), torch.ones(1 << 20, device="cuda")
        with torch.cuda.stream(stream):
            for number in range(STEPS):
                torch.cuda._sleep(AHEAD)
                with gpusense.trace(f"thread {thread}.{number}"):
                    for _ in range(30):
                        data.mul_(1)
                torch.cuda._sleep(AHEAD)
                stream.synchronize()

    workers = [threading.Thread(target=run, args=(one,)) for one in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    names = [f"thread {one}.{number}" for one in range(4) for number in range(STEPS)]
    check(spans(recording, *names), 4 * STEPS, more=2 * TURN)  # at both ends of a block


def test_nothing_is_put_into_a_graph_and_its_replays_are_timed(recording):
    data, done = torch.zeros(1 << 20, device="cuda"), threading.Event()

    def beside():  # blocks of another thread, while the graph is captured in global mode
        stream, own = torch.cuda.Stream(), torch.ones(1024, device="cuda")
        with torch.cuda.stream(stream):
            while not done.wait(0.0005):
                with gpusense.trace("beside the capture"):
                    own.mul_(1)

    other = threading.Thread(target=beside)
    other.start()
    graph = torch.cuda.CUDAGraph()
    try:
        with gpusense.trace("around"), torch.cuda.graph(graph):
            for number in range(50):
                with gpusense.trace("captured"):
                    data.add_(number)
    finally:
        done.set()
        other.join()
    for number in range(STEPS):
        torch.cuda._sleep(AHEAD)
        with gpusense.trace(f"replay {number}"):
            graph.replay()
        torch.cuda._sleep(AHEAD)
    torch.cuda.synchronize()
    assert data[0].item() == STEPS * sum(range(50))
    check(spans(recording, *[f"replay {number}" for number in range(STEPS)]), STEPS, more=10)  # a graph's first node
    untimed = {tuple(row["path"]): row for row in recording.recorder.block_times.status()["untimed"]}
    row = untimed["around", "captured"]
    assert (row["reason"], row["count"]) == (CAPTURED, 50)
    assert not any(path[0] == "beside the capture" for path in untimed), untimed


def test_marks_with_nothing_in_between_are_as_a_rule_told_from_those_with_the_shortest_kernel(recording):
    data, stream = torch.ones(1, device="cuda"), torch.cuda.current_stream().cuda_stream
    with gpusense.trace("makes marks"):
        data.add_(1)
    (place,) = recording.recorder.block_times._places.values()
    found = {}
    for name in ("nothing", "one kernel"):
        torch.cuda.synchronize()
        torch.cuda._sleep(4 * AHEAD)
        made = []
        for _ in range(300):
            made.append(place.stream(stream).mark())
            if name != "nothing":
                data.add_(1)
        torch.cuda.synchronize()
        gaps = found[name] = sorted(place.between(a, b) for a, b in pairwise(made))
        print(f"\n{name} between marks: {gaps[0]}..{gaps[len(gaps) // 2]}..{gaps[-1]} ns")
    print(f"  measured on a stream of our own: {place._apart}")
    assert found["nothing"][-4] <= place.apart_ns + MORE_NS < found["one kernel"][0]


def test_blocks_without_work_are_as_a_rule_nothing_where_the_stream_is_busy(recording):
    data = torch.ones(1, device="cuda")
    torch.cuda._sleep(4 * AHEAD)
    for _ in range(50):
        with gpusense.trace("nothing"), gpusense.trace("nothing inside"):
            pass
        with gpusense.trace("one"):
            data.add_(1)
    torch.cuda.synchronize()
    recording.flush(10)
    found = {"nothing": [], "nothing inside": [], "one": []}
    for record in recording.session().records:
        if type(record) is gpusense.GpuBlockTime and record.name in found:
            found[record.name].append(record.duration_ns)
    print(f"\none kernel: {min(found['one'])}..{max(found['one'])} ns")
    for name in ("nothing", "nothing inside"):  # now and then the device is held up between two marks
        assert found[name].count(0) >= 48, found[name]
        assert max(found[name]) < 10_000
    assert 0 not in found["one"]


def test_what_they_are_alone_and_a_device_that_has_failed():
    program = """
import gpusense, torch
gpusense.configure(kernels="blocks")
with gpusense.trace("first"):
    data = torch.ones(1 << 20, device="cuda")
for number in range(10):
    with gpusense.trace("step"):
        for _ in range(200): data.mul_(1)
        torch.cuda.synchronize()
import time
tracer = gpusense.get_tracer()
tracer.flush(5)
spent = []
for number in range(20):
    began = time.perf_counter_ns()
    for _ in range(100):
        with gpusense.trace("cost"): pass
    spent.append((time.perf_counter_ns() - began) / 100)
    tracer.flush(5)
spent.sort()
tracer.reset()
print(f"a block costs {spent[0] / 1e3:.1f}..{spent[10] / 1e3:.1f}..{spent[-1] / 1e3:.1f} us")
print(tracer.status()["state"], tracer.session().meta["sources"]["block_times"])
print([(r.name, r.duration_ns, r.timing) for r in tracer.session().records if type(r).__name__ == "GpuBlockTime"])
try:
    with gpusense.trace("fails"):
        data[torch.tensor([1 << 40], device="cuda")] = 1
        torch.cuda.synchronize()
except Exception as error:
    print("the program's:", type(error).__name__)
with gpusense.trace("after"):
    pass
tracer.flush(1)
print(tracer.recorder.block_times.status())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    print(done.stdout, done.stderr[-3000:])
    assert "the program's: " in done.stdout
    assert done.stderr.count("gpusense:") <= 2
    assert "blocks" in done.stdout.splitlines()[1]
