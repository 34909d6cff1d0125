"""On a real NVIDIA GPU: exact counters of passes of blocks against work that is known.

The whole of it, with cost and what other profilers do to it: ``python benchmarks/gpu/exact_counters.py``.
"""

import pytest

import gpusense
from gpusense._capi.libraries import CUDA
from gpusense._capi.loading import load

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

SIZE, GIB = 4096, 1 << 30
PRODUCT = 2 * SIZE**3
PASSES = 12  # each set has its turn


@pytest.fixture(scope="module")
def tracer():
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    if hasattr(load(CUDA).library, "fake_cuda_calls"):
        pytest.skip("a test before this one left a scripted driver in the process: run tests/gpu on its own")
    gpusense.configure(mode="on", counters=None)
    made = gpusense.get_tracer()
    torch.zeros(1, device="cuda")
    with gpusense.measure("first"):
        pass
    status = made.status()["measured"]
    if status["state"] != "counting" or not status["passes"]:
        pytest.skip(f"no exact counters here: {status}")
    return made


def measured(tracer, name, work):
    work()
    torch.cuda.synchronize()
    for _ in range(PASSES):
        with gpusense.measure(name):
            work()
    return [row for row in tracer.session().block_counters if row.name == name]


@pytest.mark.parametrize("kind", ["bf16", "tf32", "fp32"])
def test_a_product_has_the_operations_that_it_has(tracer, kind):
    of = {"dtype": torch.bfloat16 if kind == "bf16" else torch.float32, "device": "cuda"}
    a, b = torch.randn(SIZE, SIZE, **of), torch.randn(SIZE, SIZE, **of)
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    rows = measured(tracer, f"product in {kind}", lambda: torch.mm(a, b))
    counted = dict(part for row in rows for part in (row.flops if kind == "fp32" else row.tensor_ops))
    print(f"\n{kind}: {counted}")
    assert counted[kind] == pytest.approx(PRODUCT, rel=0.05 if kind == "fp32" else 0.01)  # fp32 by the pipe: at most
    others = [value for name, value in counted.items() if name not in (kind, "fp32", "fp16", "fp64")]
    assert not any(others)


def test_an_addition_in_place_reads_and_writes_its_operand(tracer):
    big = torch.randn(GIB // 4, device="cuda")
    rows = measured(tracer, "addition", lambda: big.add_(1))
    read = [row.dram_read_bytes for row in rows if row.dram_read_bytes is not None]
    written = [row.dram_write_bytes for row in rows if row.dram_write_bytes is not None]
    print(f"\nread {read}, written {written}")
    assert sum(read) / len(read) == pytest.approx(GIB, rel=0.02)
    assert sum(written) / len(written) == pytest.approx(GIB, rel=0.02)


def test_sets_have_their_turns(tracer):
    data = torch.randn(1 << 20, device="cuda")
    rows = measured(tracer, "turns", lambda: data.mul_(2))
    assert len(rows) == PASSES
    assert {"activity", "pipes"} <= {row.metric_set for row in rows}
    assert all(row.device_ns > 0 for row in rows)


def test_a_capture_with_a_measured_block_inside_is_whole(tracer):
    model, data = torch.nn.Linear(256, 256).cuda(), torch.randn(64, 256, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            model(data)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), gpusense.measure("captured"):
            out = model(data)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.allclose(out, model(data), atol=1e-2)
    assert not [row for row in tracer.session().block_counters if row.name == "captured"]
