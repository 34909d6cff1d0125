"""Capture on a real GPU, with torch as the program: counts, attribution, names, sessions."""

import asyncio
import json
import pathlib
import subprocess
import sys
import threading

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import gpusense  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "gpu"))


@pytest.fixture(scope="module", autouse=True)
def recording():
    gpusense.configure(mode="on", trace_all=True, max_records=2_000_000, kinds=("sync",))
    torch.zeros(1, device="cuda")
    tracer = gpusense.get_tracer()
    with gpusense.trace("attach"):
        torch.zeros(1, device="cuda")
    tracer.flush(5)
    assert tracer.status()["state"] == "running", tracer.status()
    return tracer


def launched(count, tensor):
    for _ in range(count):
        tensor.add_(1.0)


def test_every_nested_count_is_exact(recording):
    tensor = torch.randn(128, 128, device="cuda")
    for count in range(1, 60):
        with gpusense.trace("outer") as outer:
            with gpusense.trace("inner") as inner:
                launched(count, tensor)
            launched(2, tensor)
        assert inner.summary().kernel_count == count
        assert outer.summary().kernel_count == count + 2
    assert recording.session().counters.lost_markers == 0


def test_forward_and_backward_of_a_module(recording):
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]).cuda()
    data = torch.randn(64, 256, device="cuda")
    model(data).sum().backward()
    seen = set()
    for _ in range(5):
        with gpusense.trace("forward") as forward:
            loss = model(data).sum()
        with gpusense.trace("backward") as backward:
            loss.backward()
        seen.add((forward.summary().kernel_count, backward.summary().kernel_count))
    assert len(seen) == 1
    (counts,) = seen
    assert min(counts) > 5


def test_two_threads_resolve_exactly(recording):
    results = {}

    def work(name, count):
        tensor = torch.randn(64, 64, device="cuda")
        with gpusense.trace(name) as block:
            launched(count, tensor)
        results[name] = block

    threads = [threading.Thread(target=work, args=(f"t{i}", 100 + i * 37)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        summary = results[f"t{i}"].summary()
        assert (summary.kernel_count, summary.ambiguous) == (100 + i * 37, 0)


def test_tasks_that_take_turns_resolve_exactly_on_request(recording):
    tensor = torch.randn(64, 64, device="cuda")
    if not recording.status()["per_thread_buffers"]:
        pytest.skip("this CUPTI does not tell which thread launched")

    async def task(number):
        launched(1, tensor)  # in no block, while others wait inside theirs
        with gpusense.trace(f"task {number}") as block:
            for _ in range(20):
                launched(number, tensor)
                await asyncio.sleep(0)
        return block

    async def all_of_them():
        return await asyncio.gather(*(task(number) for number in range(1, 5)))

    gpusense.configure(attribution="exact")
    try:
        before = recording.session().counters
        blocks = asyncio.run(all_of_them())
        launched(3, tensor)
        found = [(block.summary().kernel_count, block.summary().ambiguous) for block in blocks]
    finally:
        gpusense.configure(attribution="order")
    assert found == [(20 * number, 0) for number in range(1, 5)]
    after = recording.session().counters
    assert (after.ambiguous, after.lost_markers) == (before.ambiguous, before.lost_markers)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_blocks_inside_a_graph_capture_do_not_break_it(recording, mode):
    tensor = torch.zeros(64, device="cuda")
    tensor.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        with gpusense.trace("captured"):
            tensor.add_(1)
        tensor.mul_(2)
    with gpusense.trace("replay") as replay:
        graph.replay()
    assert replay.summary().kernel_count == 2


def test_copies_by_direction_and_memory_kind(recording):
    data = torch.randn(1 << 20)
    pinned = data.pin_memory()
    with gpusense.trace("copies") as block:
        device = data.cuda()
        pinned.cuda(non_blocking=True)
        device.cpu()
        device.clone()
    assert block.summary().transfer_count == 4
    mine = [record for record in recording.session().transfers if record.path == ("copies",)]
    assert sorted((r.direction, r.source, r.destination) for r in mine) == [
        ("cpu_to_gpu", "pageable", "device"),
        ("cpu_to_gpu", "pinned", "device"),
        ("gpu_to_cpu", "device", "pageable"),
        ("on_device", "device", "device"),
    ]
    assert {record.bytes for record in mine} == {4 << 20}


def test_waits_are_seen(recording):
    tensor = torch.randn(4096, 4096, device="cuda")
    with gpusense.trace("wait") as block:
        (tensor @ tensor).sum()
        torch.cuda.synchronize()
    summary = block.summary()
    assert summary.wait_ns is not None
    assert summary.wait_ns > 0


def by_name(records):
    counts = {}
    for name, duration in records:
        row = counts.setdefault(name, [0, 0])
        row[0] += 1
        row[1] += duration
    return counts


SCRIPT = """
import sys, json, torch
sys.path.insert(0, {folder!r})
import workloads
step = workloads.small()
for _ in range(5): step()
torch.cuda.synchronize()
mode, out = sys.argv[1:]
STEPS = 20
if mode == "profiler":
    from torch.profiler import profile, ProfilerActivity
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(STEPS): step()
        torch.cuda.synchronize()
    rows = {{}}
    for event in p.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            row = rows.setdefault(event.name, [0, 0]); row[0] += 1; row[1] += event.device_time * 1000
    json.dump(rows, open(out, "w"))
else:
    import gpusense
    with gpusense.trace("steps"):
        for _ in range(STEPS): step()
        torch.cuda.synchronize()
"""


def test_a_training_run_counts_what_torch_profiler_counts(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(folder=str(ROOT / "benchmarks" / "gpu")))
    env_python = [sys.executable, "-m", "gpusense", "run", "-o", str(tmp_path / "run.gpusense"), "--trace-all"]
    done = subprocess.run(
        [*env_python, str(script), "gpusense", "-"], cwd=ROOT, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    out = tmp_path / "profiler.json"
    subprocess.run([sys.executable, str(script), "profiler", str(out)], cwd=ROOT, check=True, timeout=90)
    theirs = json.loads(out.read_text())
    session = gpusense.load(tmp_path / "run.gpusense")
    kernels = by_name((k.full_name or k.raw_name, k.duration_ns) for k in session.kernels if k.path[:1] == ("steps",))
    kernel_rows = {name: row for name, row in theirs.items() if not name.startswith(("Memcpy", "Memset"))}
    assert sum(row[0] for row in kernels.values()) == sum(row[0] for row in kernel_rows.values())
    assert sorted(row[0] for row in kernels.values()) == sorted(row[0] for row in kernel_rows.values())
    copies = [t for t in session.transfers if t.path[:1] == ("steps",)]
    assert len(copies) == sum(row[0] for name, row in theirs.items() if name.startswith("Memcpy"))
    mine, other = (sum(row[1] for row in rows.values()) for rows in (kernels, kernel_rows))
    print(f"kernels {sum(r[0] for r in kernels.values())}, total {mine / 1e6:.2f} ms against {other / 1e6:.2f} ms")
    assert mine == pytest.approx(other, rel=0.03)
