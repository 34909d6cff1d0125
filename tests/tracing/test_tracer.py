"""Blocks and manual records, and what is asked about them."""

import asyncio
import copy
import gc
import inspect
import io
import json
import threading
import time
from itertools import count

import pytest
from support.cupti import STRIDES, T0, kernel, view
from support.sessions import blocks

import gpusense
from gpusense import session as session_module
from gpusense._aggregation import block_totals
from gpusense._attribution import open_blocks
from gpusense._attribution.boundaries import OPEN
from gpusense._capture.recorder import Recorder
from gpusense._records.records import GpuMemoryTransfer
from gpusense._runtime import config
from gpusense._tracing import block as _block
from gpusense.analysis.busy import device_times
from gpusense.backends.cupti.sharing import Sharing
from gpusense.session import Session


def test_block(tracer):
    with gpusense.trace("step", {"batch": 64}) as block:
        assert tracer.current_block() is block
        assert block.end_ns is None
    assert tracer.current_block() is None
    record = blocks(tracer)["step"]
    assert (record.block_id, record.attributes, record.path) == (block.block_id, {"batch": 64}, ("step",))
    assert record.start_ns <= record.end_ns == block.end_ns
    assert record.thread == threading.get_ident()


def test_nesting_and_several_operations(tracer):
    with gpusense.trace("outer") as outer, gpusense.trace("inner") as inner:
        assert inner.parent_id == outer.block_id
        assert inner.path == ("outer", "inner")
    with gpusense.trace("outer"):
        pass
    summary = tracer.summary()
    assert summary.operation("outer").count == 2
    assert summary.operation("inner").count == 1


def test_an_exception_passes_through_and_is_named(tracer):
    with pytest.raises(ZeroDivisionError), gpusense.trace("bad"):
        1 / 0  # noqa: B018
    assert blocks(tracer)["bad"].error == "ZeroDivisionError"


def test_decorator_several_calls(tracer):
    @gpusense.trace("work")
    def work(a, *, b):
        """Adds."""
        return a + b

    assert [work(i, b=1) for i in range(3)] == [1, 2, 3]
    assert (work.__name__, work.__doc__) == ("work", "Adds.")
    assert tracer.summary().operation("work").count == 3


def test_decorator_on_coroutine_generator_and_async_generator(tracer):
    @gpusense.trace("co")
    async def co(x):
        await asyncio.sleep(0)
        return x * 2

    @gpusense.trace("gen")
    def gen():
        assert tracer.current_block().name == "gen"
        got = yield 1
        assert got == "sent"
        yield 2
        return 3

    @gpusense.trace("agen")
    async def agen():
        try:
            yield 1
            yield 2
        except ValueError:
            yield "caught"

    async def main():
        assert await co(4) == 8
        stream = agen()
        assert await stream.asend(None) == 1
        assert await stream.athrow(ValueError()) == "caught"
        await stream.aclose()

    asyncio.run(main())
    g = gen()
    assert next(g) == 1
    assert tracer.current_block() is None
    assert g.send("sent") == 2
    with pytest.raises(StopIteration) as stop:
        next(g)
    assert stop.value.value == 3
    counts = {row.name: row.count for row in tracer.summary().operations}
    assert counts["co"] == 1
    assert counts["gen"] == 3
    assert inspect.iscoroutinefunction(co)


def test_blocks_that_many_threads_open_are_recorded_or_counted(tracer):
    """Exact on a free-threaded build, too."""
    threads, each = 4, 3_000
    ready = threading.Barrier(threads)

    def work():
        ready.wait(20)
        for _ in range(each):
            with tracer.trace("block"):
                pass

    running = [threading.Thread(target=work) for _ in range(threads)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_block, "MAX_WAITING", 10)
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
    (row,) = tracer.summary().operations
    status = tracer.status()
    assert status["failed_blocks"] == 0
    assert status["shed_blocks"] > 0
    assert row.count + status["shed_blocks"] == threads * each


def test_threads_and_tasks_have_their_own_chain(tracer):
    seen = {}

    def run(name):
        with gpusense.trace(name) as block:
            seen[name] = block.parent_id

    with gpusense.trace("main"):
        threads = [threading.Thread(target=run, args=(f"t{i}",)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(seen.values()) == {None}

    async def task(name, parent):
        with gpusense.trace(name) as block:
            await asyncio.sleep(0)
            assert block.parent_id == parent.block_id
            assert tracer.current_block() is block

    async def main():
        with gpusense.trace("request") as parent:
            await asyncio.gather(*(task(f"task{i}", parent) for i in range(4)))
            await asyncio.to_thread(lambda: seen.update(worker=tracer.current_block()))
            assert seen["worker"] is parent

    asyncio.run(main())


def test_a_generator_left_early_in_another_context_raises_nothing(tracer):
    async def numbers():
        with gpusense.trace("numbers"):
            for i in range(10):
                yield i

    async def main():
        async for i in numbers():
            if i == 2:
                break
        await asyncio.sleep(0)

    asyncio.run(main())
    assert tracer.current_block() is None


def test_blocks_closed_out_of_order(tracer):
    first, second = gpusense.trace("first"), gpusense.trace("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert tracer.current_block() is second
    second.__exit__(None, None, None)
    assert tracer.current_block() is None
    second.__exit__(None, None, None)  # twice does nothing
    assert tracer.summary().operation("second").count == 1


def test_unified_session_kernel_transfer_wgpu_and_compute_block(tracer):
    with gpusense.trace("frame"):
        gpusense.record_kernel("sgemm", duration_ns=250_000, device=0)
        gpusense.record_kernel("blur", duration_ns=300_000, backend="wgpu", grid=(8, 8, 1))
        gpusense.record_transfer("mesh_upload", "cpu_to_gpu", bytes=10_485_760, duration_ns=25_000_000)
        with gpusense.compute_block("normalise", elements=10_000):
            time.sleep(0.0002)
    session = tracer.session()
    assert {kernel.backend for kernel in session.kernels} == {"cuda", "wgpu"}
    assert [transfer.name for transfer in session.transfers] == ["mesh_upload"]
    assert session.compute_blocks[0].elements_per_s > 0
    assert {record.path for record in session.records} == {("frame",)}


def test_transfer_directions_bandwidth_and_record_fields(tracer):
    gpusense.record_transfer("up", "cpu_to_gpu", bytes=1_000_000, duration_ns=1_000_000)
    gpusense.record_transfer("down", "gpu_to_cpu", bytes=1_048_576, duration_ns=1_000_000)
    up, down = tracer.session().transfers
    assert (up.direction, up.bytes, up.duration_ns, up.timing) == ("cpu_to_gpu", 1_000_000, 1_000_000, "host")
    assert up.bandwidth_mb_per_s == pytest.approx(1000.0)
    assert down.direction == "gpu_to_cpu"
    assert down.bandwidth_mib_per_s == pytest.approx(1000.0)
    assert down.bandwidth_mb_per_s == pytest.approx(1048.576)


def test_short_copies_by_hand_are_counted_as_the_host_s(tracer, tmp_path):
    """They were counted as the device's; what was kept one by one said better."""
    for timing in ("host", "device"):
        for _ in range(50):
            gpusense.record_transfer("small", "cpu_to_gpu", bytes=64, duration_ns=1_000, device=0, timing=timing)
    gpusense.record_kernel("k", duration_ns=1_000, device=0)
    session = tracer.session()
    session_module.save(session, tmp_path / "run.gpusense")
    kept = Session(records=[GpuMemoryTransfer("small", "cpu_to_gpu", 64, 1, 900, device=0, timing="host")] * 3)
    session_module.fold(kept, 1_000)
    assert [(row.count, row.timing) for row in kept.aggregates] == [(3, "host")]
    for found in (session, gpusense.load(tmp_path / "run.gpusense")):
        counted = {(row.name, row.timing): row.count for row in found.aggregates}
        assert counted == {("small", "host"): 50, ("small", "device"): 50, ("k", "device"): 1}
        found.busy.clear()  # what was kept while counting is exact: here the sums are to say it
        (cuda,) = device_times(found)
        assert (cuda.kernel_ns, cuda.transfer_ns) == (1_000, 50_000)


def test_zero_duration_has_no_bandwidth(tracer):
    gpusense.configure(trace_all=True)
    now = time.time_ns()
    gpusense.record_transfer("zero", "on_device", bytes=64, start_ns=now, end_ns=now)
    (transfer,) = gpusense.get_tracer().session().transfers
    assert transfer.bandwidth_mb_per_s is None
    assert transfer.bandwidth_mib_per_s is None


def test_fast_transfer_filtered_slow_one_kept(tracer):
    gpusense.record_transfer("fast", "cpu_to_gpu", bytes=64, duration_ns=99_999)
    gpusense.record_transfer("slow", "cpu_to_gpu", bytes=64, duration_ns=100_000)
    session = tracer.session()
    assert [(item.name, item.is_slow) for item in session.transfers] == [("slow", True)]
    assert [(row.name, row.count) for row in session.aggregates] == [("fast", 1)]


def test_statistics(tracer):
    for duration in (1_000_000, 2_000_000, 3_000_000):
        with gpusense.trace("op") as block:
            pass
        gpusense.record_kernel("k", duration_ns=duration, block_id=block.block_id)
    (row,) = [row for row in tracer.summary().operations if row.name == "op"]
    assert row.count == 3
    assert row.min_ns <= row.avg_ns <= row.max_ns
    assert row.total_ns == pytest.approx(row.avg_ns * 3)
    assert row.std_ns >= 0
    assert (row.gpu_ns, row.kernel_count) == (6_000_000, 3)
    assert row.wait_ns is None
    assert "wait_ns" in dict(row.reasons)
    assert row.min_ns <= row.median_ns <= row.p95_ns == row.max_ns
    assert row.own_ns == row.total_ns


def test_what_no_source_could_tell_of_a_block_is_none_with_its_reason(tracer):
    with gpusense.trace("step"):
        pass
    found = tracer.summary()
    (row,) = found.operations
    assert (row.gpu_ns, row.kernel_count, row.transfer_ns, row.transfer_bytes) == (None,) * 4
    assert row.utilization_percent is None
    assert "no NVIDIA GPU" in dict(row.reasons)["gpu_ns"]
    unknown = {name for name, value in row._asdict().items() if value is None}
    assert unknown - dict(row.reasons).keys() <= {
        *("attributes", "bandwidth_mb_per_s", "memory_allocated_bytes", "memory_source")
    }
    assert (found.gpu_ns, found.gpu_busy_ns, found.transfer_bytes) == (None, None, None)
    assert found.operations == tracer.session().summary().operations


def test_a_summary_is_kept_until_something_more_is_recorded(tracer):
    def of_one(name):
        with gpusense.trace(name):
            pass
        return tracer.summary()

    first = of_one("step")
    again = tracer.summary()
    assert again.operations is first.operations
    assert again.wall_ns > first.wall_ns
    second = of_one("step")
    assert [row.count for row in second.operations] == [2]
    gpusense.record_kernel("k", duration_ns=100)
    assert tracer.summary().counters.seen == second.counters.seen + 1
    tracer.reset()
    (other,) = of_one("other").operations  # as many records as there were first
    assert other.name == "other"


def test_memory_by_block(tracer):
    now = time.time_ns()
    with gpusense.trace("alloc") as block:
        pass
    make = gpusense.GpuAllocation
    tracer.record(
        [
            make("alloc", 1000, now, 0x10, block_id=block.block_id, path=block.path),
            make("alloc", 500, now + 1, 0x20, block_id=block.block_id, path=block.path),
            make("free", 1000, now + 2, 0x10, block_id=block.block_id, path=block.path),
            make("alloc", 100, now + 3, 0x30, block_id=block.block_id, path=block.path),
        ]
    )
    row = tracer.summary().operation("alloc")
    assert (row.memory_allocated_bytes, row.memory_peak_bytes) == (1600, 1500)
    assert row.memory_source == "CUPTI allocation records"


def test_bottlenecks(tracer):
    gpusense.record_kernel("small", duration_ns=1_000_000)
    gpusense.record_kernel("big", duration_ns=9_000_000)
    first, second = tracer.bottlenecks(top_n=2)
    assert (first.name, second.name) == ("big", "small")
    assert first.share == pytest.approx(0.9)
    assert first.suggestion
    assert tracer.bottlenecks(0) == []


def test_printed_forms_and_json(tracer, tmp_path, monkeypatch):
    with gpusense.trace("step"):
        gpusense.record_kernel("sgemm", duration_ns=5_000_000)
    out = io.StringIO()
    tracer.print_summary(out)
    tracer.print_bottlenecks(5, out)
    assert "step" in out.getvalue()
    assert "sgemm" in out.getvalue()
    made = tracer.session()  # else a later one ends later
    monkeypatch.setattr(type(tracer), "session", lambda self: made)
    assert tracer.export_json(tmp_path / "run.json") is None
    text = (tmp_path / "run.json").read_text()
    data = json.loads(text)
    assert tracer.export_json() == text
    assert {"schema", "counters", "operations", "blocks", "records", "devices"} <= set(data)
    assert data["operations"][0]["name"] == "sgemm"


def test_ring_buffer_semantics(tracer):
    gpusense.configure(max_records=5)
    for i in range(20):
        gpusense.record_kernel(f"k{i % 2}", duration_ns=10**6 + i)
    session = gpusense.get_tracer().session()
    assert len(session.kernels) == 5
    assert [kernel.duration_ns for kernel in session.kernels] == [10**6 + i for i in range(15, 20)]
    assert sum(row.count for row in session.aggregates) == 15
    assert session.counters.seen == 20


@pytest.mark.parametrize("name", [None, 3, b"bytes", ["list"], "", "x" * 5000, "\udcff"])
def test_any_name_is_taken(tracer, name):
    with gpusense.trace(name):
        pass
    assert len(tracer.session().blocks) == 1


def test_bad_manual_records_reach_nobody(tracer):
    tracer.record_kernel("k", duration_ns=5, device="first")
    tracer.record_transfer("t", "cpu_to_gpu", bytes=1, start_ns=100, end_ns=50)
    session = tracer.session()
    assert session.records == []
    assert (session.counters.invalid, session.counters.ignored_records) == (0, 2)


def test_block_summary_says_why_nothing_was_captured(tracer):
    with gpusense.trace("empty") as block:
        pass
    summary = block.summary()
    assert summary.kernel_count is None
    assert "no NVIDIA GPU" in summary.reason
    assert "empty" in str(summary)


def test_what_no_source_could_tell_is_unknown_beside_what_the_program_told(tracer):
    with gpusense.trace("upload") as block:
        gpusense.record_transfer("mesh", "cpu_to_gpu", bytes=2_000_000, duration_ns=1_000_000)
    summary = block.summary()
    assert (summary.transfer_count, summary.transfer_bytes) == (1, 2_000_000)
    assert (summary.kernel_count, summary.gpu_ns, summary.memset_count) == (None, None, None)
    assert "1 copy (2.00 MB in 1.00 ms)" in str(summary)
    assert "kernels" not in str(summary)
    tracer.reset()
    with gpusense.trace("empty"):
        pass
    out = io.StringIO()
    tracer.print_summary(out)
    heads, row, *notes = out.getvalue().splitlines()
    assert heads.split()[-2:] == ["stddev", "block"]
    assert row.split()[-1] == "empty"
    assert notes[0].startswith("GPU, kernels, copies, bytes: not known, because no NVIDIA GPU")


def test_names_cannot_write_to_the_terminal(tracer):
    evil = "a\x1b]0;title\x07\nb\u202e"
    with tracer.trace(evil) as block:
        gpusense.record_kernel(evil, duration_ns=1_000_000)
        gpusense.record_transfer(evil, "cpu_to_gpu", bytes=1, duration_ns=1_000_000)
    out = io.StringIO()
    tracer.print_summary(out)
    tracer.print_bottlenecks(file=out)
    for text in (str(block.summary()), out.getvalue()):
        assert "a�]0;title��b�" in text
        assert all(line.isprintable() for line in text.split("\n"))
    assert "1 call," in out.getvalue()


def test_a_copy_of_a_block_that_cannot_be_made_prints_nothing(tracer, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    block = gpusense.trace("copied")
    with pytest.raises(TypeError):
        copy.deepcopy(block)
    gc.collect()
    assert seen == []


def test_tokens_have_32_bits_also_after_four_billion(tracer, monkeypatch):
    """The one after 2**32 - 1 has 33 bits, and its record another value."""
    monkeypatch.setattr(open_blocks, "_tokens", count(0xFFFFFFFE))
    tokens = []
    for _ in range(3):
        tracer._mark(tokens.append, OPEN, 1, None, 5, 0, "a")
    assert tokens == [0xFFFFFFFF, 1, 2]


def test_a_buffer_whose_reading_is_interrupted_is_told():
    """Ctrl-C during ``block.summary()``: it is the program's, and the records that it cost are told."""
    recorder = Recorder(config.Settings(), None)
    recorder.start_ns = recorder.store.pipeline.start_ns = 0

    class Interrupted:
        strides, marker_shape, running, sharing = STRIDES, None, True, Sharing()

        def lines(self):
            return []

        def glance(self, names):
            return lambda: True

        def name(self, pointer):
            raise KeyboardInterrupt

        def unseen_now(self):
            return None

    recorder.capture = recorder.store._capture = Interrupted()
    buffer = view(*[kernel(T0 + i * 1000, T0 + i * 1000 + 500, correlation=100 + i) for i in range(20)])
    with pytest.raises(KeyboardInterrupt):
        recorder.on_buffer(buffer, 5)
    assert "KeyboardInterrupt" in recorder.all_unseen()[0].reason


def test_many_blocks_keep_memory_flat(tracer):
    again = gpusense.trace("again and again")
    for _ in range(2000):
        with gpusense.trace("x"), again:
            pass
    assert tracer.flush(30)
    assert len(tracer.watched) < block_totals.SWEEP_AT
    assert again.block_id in tracer.watched
    assert len(tracer.recorder.events) == 0


def test_a_block_that_is_entered_again_has_what_was_launched_then(tracer):
    block = gpusense.trace("step")
    for launched in (2, 0, 3):
        with block:
            for _ in range(launched):
                tracer.record_kernel("k", duration_ns=5)
        assert block.summary().kernel_count == (launched or None)
