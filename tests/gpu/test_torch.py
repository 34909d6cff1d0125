"""On a real NVIDIA GPU with torch: kernels are in the blocks of the modules that launched them, forward and backward.

Each case runs in a process of its own: ``python -m pytest tests/gpu/test_torch.py -s``.
"""

import json
import pathlib
import subprocess
import sys

import pytest

from gpusense import cuda

pytestmark = pytest.mark.gpu
BENCHMARK = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "gpu" / "torch_hooks.py"


@pytest.fixture
def run(run_python):
    if not cuda.cuda_available():
        pytest.skip("needs an NVIDIA GPU")
    pytest.importorskip("torch")

    def start(code):
        done = run_python(code, timeout=110)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"\n{facts}")
        return facts

    return start


def test_every_layer_has_the_kernels_of_a_direct_call(run):
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--part", "kernels"], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{facts}")
    assert all(block == direct > 0 for _, _, block, direct in facts["rows"])
    assert facts["ambiguous"] == 0


def test_the_blocks_of_a_step_hold_all_of_its_kernels(run):
    facts = run("""
import json, torch, gpusense
from gpusense.integrations import torch as integration
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(8, 64, device="cuda")
def step():
    loss = model(data).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for _ in range(3):
    step()
assert integration.instrument(min_us=0, memory=True) is True
with gpusense.trace("step") as block:
    step()
assert block.wait(10)
tracer = gpusense.get_tracer()
rows = {"/".join(row.path): [row.gpu_ns, row.kernel_count] for row in tracer.summary().operations}
memory = next(item.attributes for item in tracer.session().blocks if item.path == ("step", "AdamW.step"))
print(json.dumps({"rows": rows, "memory": memory, "errors": integration.statistics().errors}))
""")
    rows = facts["rows"]
    assert facts["errors"] == []
    for i in range(4):
        assert rows[f"step/Sequential/{i}"][1] > 0
        assert rows[f"step/backward/Sequential/{i}"][1] > 0
    children = sum(rows[f"step/backward/Sequential/{i}"][1] for i in range(4))
    assert rows["step/backward/Sequential"][1] == children
    assert rows["step/backward"][1] > children  # mean and square stand outside the model
    assert rows["step/AdamW.step"][1] > 0
    assert rows["step"][1] > sum(rows[f"step/{part}"][1] for part in ("Sequential", "backward", "AdamW.step"))
    assert facts["memory"]["torch.memory.allocated_bytes"] > 0
    assert facts["memory"]["torch.memory.peak_bytes"] >= facts["memory"]["torch.memory.allocated_bytes"]


def test_ranges_hold_their_kernels(run):
    facts = run("""
import json, torch, gpusense
from gpusense.integrations import torch as integration
x = torch.ones(1000, device="cuda")
x.add(1); torch.cuda.synchronize()
integration.instrument()
torch.cuda.nvtx.range_push("nvtx")
for _ in range(5):
    x = x.add(1)
torch.cuda.nvtx.range_pop()
with torch.profiler.record_function("recorded"):
    for _ in range(7):
        x = x.add(1)
torch.cuda.synchronize()
rows = {"/".join(row.path): row.kernel_count for row in gpusense.get_tracer().summary().operations}
print(json.dumps(rows))
""")
    assert (facts["nvtx"], facts["recorded"]) == (5, 7)


GRAPH = """
import json, time, torch, gpusense
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]).cuda().eval()
data = torch.randn(16, 64, device="cuda")
with torch.no_grad():
    model(data)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(data)
def replay(times=100):
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()
def counted():
    with gpusense.trace("replays") as block:
        replay()
    return block.wait(10) and block.summary().kernel_count
replay()
gpusense.enable()
counted()  # attaches
"""


def test_graphs_go_on_after_cupti_was_taken_out(run):
    facts = run(
        GRAPH
        + """
before, answers = counted(), []
for _ in range(5):
    answers.append(str(gpusense.detach()))
    replay()
    gpusense.enable()
    counted()
print(json.dumps({"before": before, "answers": answers, "after": counted()}))
"""
    )
    assert facts["answers"] == ["None"] * 5
    assert facts["before"] == facts["after"] >= 600


def test_cupti_stays_where_a_graph_was_replayed_unrecorded(run):
    """Taken out then, CUDA 13.0 fails the next replay with an unspecified launch failure."""
    facts = run(
        GRAPH
        + """
before = counted()
gpusense.disable()
replay()
reason = gpusense.detach().reason
replay()
gpusense.enable()
counted()
print(json.dumps({"before": before, "reason": reason, "after": counted()}))
"""
    )
    assert facts["reason"].startswith("work went unrecorded")
    assert facts["before"] == facts["after"] >= 600


@pytest.mark.parametrize("mode", ["live", "file"])
def test_rests_without_cupti_beside_a_training(run, mode):
    facts = run(
        f"mode = {mode!r}"
        """
import json, os, sys, tempfile, time, torch, gpusense
from gpusense._capture import budget
from gpusense._tracing import select
budget.LONG_NS = 2_000_000_000
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(8, 256, device="cuda")
def step():
    loss = model(data).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
for _ in range(5):
    step()
path = os.path.join(tempfile.mkdtemp(), "run.gpusense")
run = select.control.start_session(mode=mode, path=path, overhead_budget=0.02, detach_in_pauses=True)
states, steps, losses, end = set(), 0, [], time.monotonic() + 12
while time.monotonic() < end:
    with gpusense.trace("step"):
        losses.append(step())
    steps += 1
    states.add(run.tracer.status()["state"])
taken_out = run.tracer.status()["detached"]
overhead = run.tracer.recorder.meta()["overhead"]
run.finish()
session = gpusense.load(path) if mode == "file" else run.tracer.session()
work = [(a.path, a.count) for a in session.aggregates if a.kind == "kernel"] + [(k.path, 1) for k in session.kernels]
inside = sum(count for path, count in work if path == ("step",))
print(json.dumps({"states": sorted(states), "taken_out": taken_out, "overhead": overhead, "steps": steps,
    "inside": inside, "outside": sum(count for _, count in work) - inside, "fell": losses[-1] < losses[0],
    "blocks": sum(a.count for a in session.aggregates if a.kind == "block") + len(session.blocks),
    "lost": session.counters.lost_markers + session.counters.dropped + session.counters.missed}))
"""
    )
    assert facts["taken_out"] >= 2
    assert "detached" in facts["states"]
    assert facts["fell"]
    assert facts["inside"] > 100 * facts["outside"]
    assert (facts["lost"], facts["blocks"]) == (0, facts["steps"])
    assert facts["overhead"]["left"] == 0


def test_compilers_and_exporters_give_the_same(run):
    """The rows of ``tests/support/torch_rows.py``, with the models on the GPU."""
    script = pathlib.Path(__file__).resolve().parents[1] / "support" / "torch_rows.py"
    found = []
    for order in ((), ("before",), ("after",)):
        done = subprocess.run(
            [sys.executable, str(script), "cuda", *order], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    without, *instrumented = found
    for one in instrumented:
        assert one["errors"] == []
        assert {name for name, came in one["rows"].items() if came != without["rows"][name]} == set()
