"""gpusense.wgpu: explicit transfers and scopes, alone and under instrumentation."""

import sys

import pytest

import gpusense
from gpusense._records.records import ComputeBlock, GpuKernel, GpuMemoryTransfer, GpuSync
from gpusense.integrations import wgpu_py


@pytest.fixture
def tracer():
    """A live tracer that keeps everything and has nothing in it."""
    gpusense.configure(trace_all=True)
    gpusense.enable()
    gpusense.reset()
    yield gpusense.get_tracer()
    gpusense.disable()
    gpusense.configure(trace_all=False)


@pytest.fixture(params=["bare", "instrumented"])
def way(request, wgpu, tracer):
    if request.param == "instrumented":
        assert wgpu_py.instrument() is True
    yield request.param
    wgpu_py.uninstrument()


def test_transfers_are_recorded_once_under_the_given_label(way, tracer, programs) -> None:
    work = programs.Compute(programs.device())
    data = bytes(range(256)) * 4
    with gpusense.trace("upload") as block:
        gpusense.wgpu.traced_write_buffer(work.gpu.queue, work.buffer, 0, data, "mesh")
    assert bytes(gpusense.wgpu.traced_read_buffer(work.gpu.queue, work.buffer, "mesh", 0, 1024)) == data
    assert bytes(gpusense.wgpu.traced_read_buffer(work.gpu.queue, work.buffer, offset=512, size=256)) == data[:256]
    write, first, second = tracer.session().transfers
    assert (write.name, write.direction, write.bytes, write.label) == ("write_buffer(mesh)", "cpu_to_gpu", 1024, "mesh")
    assert (write.path, write.block_id) == (("upload",), block.block_id)
    assert (first.name, first.bytes, first.timing) == ("read_buffer(mesh)", 1024, "host")
    assert 0 <= first.wait_ns <= first.duration_ns
    assert (second.name, second.bytes) == ("read_buffer(numbers)", 256)
    assert {transfer.usage for transfer in (write, first, second)} == {"COPY_SRC|COPY_DST|STORAGE"}
    assert {transfer.backend for transfer in (write, first, second)} == {"wgpu"}


def test_mapping_polls_until_mapped(way, tracer, programs) -> None:
    gpu = programs.device()
    source = gpu.create_buffer_with_data(data=bytes(range(64)), usage=programs.U.COPY_SRC)
    target = gpu.create_buffer(label="target", size=64, usage=programs.U.MAP_READ | programs.U.COPY_DST)
    encoder = gpu.create_command_encoder()
    encoder.copy_buffer_to_buffer(source, 0, target, 0, 64)
    gpu.queue.submit([encoder.finish()])
    assert gpusense.wgpu.traced_map_buffer(target, "answer") is target
    assert target.map_state == "mapped"
    assert bytes(target.read_mapped()) == bytes(range(64))
    target.unmap()
    (wait,) = tracer.session().syncs
    assert (wait.name, wait.backend) == ("map_buffer(answer)", "wgpu")
    with pytest.raises(Exception, match=r"."):
        gpusense.wgpu.traced_map_buffer(source)


def test_a_scope_holds_the_passes_begun_inside(tracer, wgpu, programs) -> None:
    assert wgpu_py.instrument() is True
    try:
        work = programs.Compute(programs.device())
        with gpusense.wgpu.scope("shadows") as block:
            work.run(3)
        work.run()
        kernels = tracer.session().kernels
        assert [kernel.path for kernel in kernels] == [("shadows",)] * 3 + [()]
        summary = block.summary()
        assert sum(row.count for row in summary.rows) == 3 if hasattr(summary, "rows") else "3 kernels" in str(summary)
    finally:
        wgpu_py.uninstrument()


def test_one_session_holds_every_kind_of_work(tracer, wgpu, programs) -> None:
    """wgpu passes, CUDA-like kernels, transfers, compute blocks and user blocks, on one timeline."""
    assert wgpu_py.instrument(copies=True) is True
    try:
        work = programs.Compute(programs.device())
        with gpusense.trace("frame") as block:
            with gpusense.compute_block("prepare", elements=work.count):
                sum(range(10_000))
            work.write()
            work.run(2, label="churn")
            now = block.start_ns
            gpusense.record_kernel("gemm", now, now + 1_000, backend="cuda", device=0)
            gpusense.record_transfer("weights", "cpu_to_gpu", bytes=1 << 20, duration_ns=1_000)
            work.read()
        session = tracer.session()
        kernels = {(kernel.backend, kernel.name) for kernel in session.kernels}
        assert kernels == {("wgpu", "churn"), ("cuda", "gemm")}
        names = {transfer.name for transfer in session.transfers}
        assert {"write_buffer(numbers)", "read_buffer(numbers)", "weights", "copy_buffer_to_buffer"} <= names
        assert [record.name for record in session.compute_blocks] == ["prepare"]
        assert [record.name for record in session.blocks] == ["frame"]
        kinds = (GpuKernel, GpuMemoryTransfer, ComputeBlock)
        assert all(record.path == ("frame",) for record in session.records if type(record) in kinds)
        assert not [record for record in session.records if type(record) is GpuSync]
        passes = [kernel for kernel in session.kernels if kernel.backend == "wgpu"]
        assert all(block.start_ns < kernel.start_ns < kernel.end_ns < block.end_ns for kernel in passes)
        assert session.meta["sources"]["wgpu"]["timed"] == 3
    finally:
        wgpu_py.uninstrument()


def test_while_disabled_passes_are_dropped(tracer, wgpu, programs) -> None:
    assert wgpu_py.instrument() is True
    try:
        work = programs.Compute(programs.device())
        gpusense.disable()
        work.run(2, label="unseen")
        assert wgpu_py.flush(10)
        gpusense.enable()
        work.run(label="seen")
        session = tracer.session()
        assert [kernel.name for kernel in session.kernels] == ["seen"]
        assert session.meta["sources"]["wgpu"]["timed"] == 3
    finally:
        wgpu_py.uninstrument()
    assert tracer.session().meta["sources"] == {}


def test_switched_off_nothing_is_wrapped(wgpu, run_python) -> None:
    code = """
from gpusense.integrations import wgpu_py
answer = wgpu_py.instrument()
assert not answer and "GPUSENSE=off" in answer.reason, answer
from wgpu.backends.wgpu_native import _api
assert not hasattr(_api.GPUQueue.submit, "_gpusense_original")
print("ok")
"""
    assert run_python(code, GPUSENSE="off").stdout == "ok\n"


def test_facts_of_the_machine(driver) -> None:
    cards = gpusense.wgpu.cards()
    assert cards
    assert cards[0].heaps[0].size_bytes > 0
    assert sys.modules["gpusense.backends.wgpu.vulkan"]
