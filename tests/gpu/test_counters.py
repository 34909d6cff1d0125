"""On a real NVIDIA GPU: what hardware counters say of work that is known."""

import time

import pytest

import gpusense
from gpusense._capi.libraries import CUDA
from gpusense._capi.loading import load

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def tracer():
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    if hasattr(load(CUDA).library, "fake_cuda_calls"):
        pytest.skip("a test before this one left a scripted driver in the process: run tests/gpu on its own")
    torch.zeros(1, device="cuda")
    gpusense.configure(mode="on", counters="1kHz")
    made = gpusense.get_tracer()
    deadline = time.monotonic() + 30
    status = {}
    while time.monotonic() < deadline:
        status = made.session().meta["sources"]["counters"]
        if status["state"] in ("sampling", "unavailable"):
            break
        time.sleep(0.1)
    if status.get("state") != "sampling":
        pytest.skip(f"no counters here: {status}")
    yield made
    gpusense.configure(counters=False)


def counted(tracer, name, times, work):
    """The counters of a block in which ``work`` was done so often, once it has been done before."""
    from gpusense.analysis.counters import block_shares

    work()
    torch.cuda.synchronize()
    time.sleep(0.1)
    with gpusense.trace(name):
        for _ in range(times):
            work()
        torch.cuda.synchronize()
    time.sleep(0.1)
    torch.zeros(1, device="cuda")  # what comes next is not this block's
    torch.cuda.synchronize()
    time.sleep(0.6)
    return next(row for row in block_shares(tracer.session()) if row.path == (name,))


def test_additions_move_the_bytes_that_they_are_of(tracer):
    big = torch.ones(1 << 28, device="cuda")
    row = counted(tracer, "add", 100, lambda: big.add_(1))
    moved = 100 * big.numel() * 4
    assert row.dram_read_bytes == pytest.approx(moved, rel=0.05)
    assert row.dram_write_bytes == pytest.approx(moved, rel=0.05)
    assert row.dram_percent is None or row.dram_percent > 60
    assert row.tensor_percent < 1


def test_products_of_matrices_keep_the_tensor_cores_busy(tracer):
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    row = counted(tracer, "product", 60, lambda: a @ a)
    assert row.tensor_percent > 50
    assert row.sm_active_percent > 80


def test_small_kernels_are_counted_one_by_one(tracer):
    small = torch.zeros(1, device="cuda")
    row = counted(tracer, "small", 10_000, lambda: small.add_(1))
    assert row.dispatches == pytest.approx(10_000, rel=0.02)


def test_copies_are_bytes_of_the_link_in_their_direction(tracer):
    host = torch.empty(1 << 27, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
    row = counted(tracer, "up", 20, lambda: there.copy_(host, non_blocking=True))
    assert row.pcie_rx_bytes == pytest.approx(20 << 27, rel=0.15)
    row = counted(tracer, "down", 20, lambda: host.copy_(there, non_blocking=True))
    assert row.pcie_tx_bytes == pytest.approx(20 << 27, rel=0.15)


def test_blocks_in_turn_have_their_own_figures_and_agree_with_their_kernels(tracer):
    from gpusense.analysis.counters import block_shares, device_stretches
    from gpusense.analysis.intervals import intersect, union

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    big = torch.ones(1 << 28, device="cuda")
    work = {"products in turn": (5, lambda: a @ a), "additions in turn": (16, lambda: big.add_(1))}
    for _, run in work.values():
        run()
    torch.cuda.synchronize()
    time.sleep(0.1)
    for _ in range(12):
        for name, (times, run) in work.items():
            with gpusense.trace(name):
                for _ in range(times):
                    run()
    torch.cuda.synchronize()
    time.sleep(0.6)
    session = tracer.session()
    rows = {row.path: row for row in block_shares(session)}
    busy = union([(kernel.start_ns, kernel.end_ns + 3_000) for kernel in session.kernels])  # launches are work
    for name in work:
        spans = device_stretches(session, 0)[0][name,][0]
        share = sum(end - start for start, end in intersect(busy, spans)) / sum(end - start for start, end in spans)
        assert rows[name,].graphics_engine_percent == pytest.approx(100 * share, abs=2), rows[name,]
    assert rows["products in turn",].tensor_percent > 50
    assert rows["additions in turn",].tensor_percent < 2
