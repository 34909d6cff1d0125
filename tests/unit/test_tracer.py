"""Blocks, decorators, manual records, sinks, enabling: the tracer as a user meets it, without a GPU."""

import asyncio
import copy
import gc
import inspect
import io
import json
import sys
import threading
import time
from itertools import count

import pytest
from cupti_bytes import STRIDES, T0, kernel, view

import gpusense
from gpusense import _config, _noop, _scopes, _select, _tally, _tracer
from gpusense._recorder import Recorder
from gpusense._sharing import Sharing
from gpusense._tracer import Tracer
from gpusense.backends import BACKENDS


@pytest.fixture
def tracer(monkeypatch):
    """A live tracer of its own, without capture."""
    for name in ("GPUSENSE", "GPUSENSE_THRESHOLD_US", "GPUSENSE_LIBCUDA", "GPUSENSE_LIBCUPTI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_select, "_layers", _config.Layers())
    monkeypatch.setattr(_select, "_tracer", None)
    monkeypatch.setattr(_select, "possible", lambda: gpusense.Unavailable("cuda", "not in this test"))
    monkeypatch.setattr(gpusense, "_active", gpusense._Undecided())
    assert gpusense.enable()
    yield gpusense.get_tracer()
    _select._tracer.close()


def blocks(tracer):
    return {record.name: record for record in tracer.session().blocks}


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
        patched.setattr(_scopes, "MAX_WAITING", 10)
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


def test_zero_duration_has_no_bandwidth(tracer):
    gpusense.configure(trace_all=True)
    gpusense.record_transfer("zero", "on_device", bytes=64, start_ns=10**18, end_ns=10**18)
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


def test_one_tracer_a_process(tracer):
    assert gpusense.get_tracer() is gpusense.get_tracer() is tracer
    assert isinstance(tracer, Tracer)


def test_enable_and_disable(tracer):
    with gpusense.trace("before"):
        pass
    gpusense.disable()
    with gpusense.trace("while disabled") as block:
        gpusense.record_kernel("k", duration_ns=10**6)
    assert isinstance(block, _noop.NoopBlock)
    assert set(blocks(gpusense.get_tracer())) == {"before"}
    assert gpusense.enable()
    with gpusense.trace("after"):
        pass
    assert set(blocks(gpusense.get_tracer())) == {"before", "after"}


def test_off_and_on_again_by_configuration(tracer):
    gpusense.configure(mode="off")
    with gpusense.trace("while off") as block:
        pass
    assert isinstance(block, _noop.NoopBlock)
    gpusense.configure(mode="on")
    with gpusense.trace("after"):
        pass
    assert set(blocks(gpusense.get_tracer())) == {"after"}
    gpusense.disable()
    gpusense.configure(threshold_us=7)  # which is not to enable
    with gpusense.trace("while disabled"):
        pass
    assert set(blocks(gpusense.get_tracer())) == {"after"}


def test_threads_that_enable_at_once_make_one_tracer(tracer, monkeypatch):
    """The others went on capturing beside it, each with a thread of its own."""
    monkeypatch.setattr(_select, "_tracer", None)
    made, together = [], threading.Barrier(3)

    def live(*arguments, before=_select._live):
        made.append(before(*arguments))
        threading.Event().wait(0.05)
        return made[-1]

    def enable():
        together.wait(10)
        assert gpusense.enable()

    monkeypatch.setattr(_select, "_live", live)
    threads = [threading.Thread(target=enable) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    try:
        assert len(made) == 1
        assert gpusense.get_tracer() is made[0]
    finally:
        for one in made[1:]:
            one.close()
        tracer.close()


def test_a_signal_handler_that_configures_in_the_first_decision_leaves_a_tracer(tracer, monkeypatch):
    """None was active from then on, and every block raised AttributeError."""
    monkeypatch.setattr(_select, "_tracer", None)
    monkeypatch.setattr(gpusense, "_active", gpusense._Undecided())
    told = []

    def make(before=_select._make):
        gpusense.configure(threshold_us=7)
        told.append(gpusense.enable())
        return before()

    monkeypatch.setattr(_select, "_make", make)
    with gpusense.trace("first"):
        pass
    with gpusense.trace("second"):
        pass
    assert told == [False]
    assert gpusense.get_tracer().config.threshold_us == 7
    monkeypatch.setattr(_select, "_tracer", tracer)


def test_a_function_decorated_while_disabled_is_traced_after_enabling(tracer):
    gpusense.disable()

    @gpusense.trace("late", {"k": 1})
    def late():
        return 5

    assert late() == 5
    gpusense.enable()
    assert late() == 5
    assert blocks(gpusense.get_tracer())["late"].attributes == {"k": 1}


def test_reset(tracer):
    with gpusense.trace("old"):
        pass
    with gpusense.trace("open"):
        tracer.flush()
        gpusense.reset()
        gpusense.record_kernel("k", duration_ns=10**6)
    session = tracer.session()
    assert [block.name for block in session.blocks] == ["open"]
    assert [kernel.path for kernel in session.kernels] == [("open",)]


def test_ring_buffer_semantics(tracer):
    gpusense.configure(max_records=5)
    for i in range(20):
        gpusense.record_kernel(f"k{i % 2}", duration_ns=10**6 + i)
    session = gpusense.get_tracer().session()
    assert len(session.kernels) == 5
    assert [kernel.duration_ns for kernel in session.kernels] == [10**6 + i for i in range(15, 20)]
    assert sum(row.count for row in session.aggregates) == 15
    assert session.counters.seen == 20


def test_sink_gets_lists_and_one_that_raises_is_removed(tracer):
    got, calls = [], []

    def bad(records):
        calls.append(records)
        raise RuntimeError("sink")

    gpusense.configure(sinks=(got.extend, bad))
    for _ in range(2):
        gpusense.record_kernel("slow", duration_ns=10**6)
        gpusense.record_kernel("fast", duration_ns=10)
        tracer.flush()
    assert [record.name for record in got] == ["slow", "slow"]
    assert len(calls) == 1
    assert tracer.session().counters.sink_errors == 1


def test_asking_with_a_limit_ends_though_a_sink_hangs(tracer):
    hang, inside = threading.Event(), threading.Event()

    got = []

    def sink(records):
        got.extend(records)
        inside.set()
        hang.wait(30)

    tracer.add_sink(sink)
    with gpusense.trace("one"):
        pass
    assert inside.wait(10)
    with gpusense.trace("two"):
        pass
    asking = threading.Thread(target=tracer.flush, args=(0.1,))
    asking.start()
    asking.join(5)
    ended = not asking.is_alive()
    told = tracer.flush(0.01)
    hang.set()
    asking.join(10)
    assert ended
    assert told is False
    assert tracer.flush(10)
    assert [record.name for record in got] == ["one", "two"]  # what it could not be given then came later


def test_a_sink_is_called_on_gpusense_s_thread_and_whoever_asks_waits_no_longer_than_said(tracer):
    hang, threads = threading.Event(), set()

    def sink(records):
        threads.add(threading.get_ident())
        hang.wait(30)

    tracer.add_sink(sink)
    gpusense.record_kernel("one", duration_ns=10**6)
    began = time.monotonic()
    told = tracer.flush(0.2)
    took = time.monotonic() - began
    hang.set()
    assert (told, took < 10) == (False, True)
    assert tracer.flush(float("inf"))
    for _ in range(50):
        gpusense.record_kernel("more", duration_ns=10**6)
        assert tracer.flush(10)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_scope_below_what_is_no_block_of_a_live_tracer(tracer):
    for parent in (_noop.NoopBlock("off"), 5):
        scope = tracer.open_scope("layer", parent=parent)
        with gpusense.trace("inside"):
            pass
        tracer.close_scope(scope)
    assert {block.path for block in tracer.session().blocks} == {("layer",), ("layer", "inside")}


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()], ids=repr)
def test_a_sink_that_ends_with_more_than_an_exception_is_removed(tracer, error):
    def sink(records):
        raise error

    tracer.add_sink(sink)
    gpusense.record_kernel("k", duration_ns=10**9)
    tracer.flush(5)
    gpusense.record_kernel("k", duration_ns=10**9)
    tracer.flush(5)
    assert tracer.session().counters.sink_errors == 1


def wait_until(what):
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("asked", [True, False])
def test_a_sink_that_ends_gpusense_s_own_thread_is_removed(tracer, caplog, error, asked):
    """It was called again with each list, where it had interrupted itself."""
    calls, others = [], []

    def sink(records):
        calls.append(threading.current_thread().name)
        raise error

    tracer.add_sink(sink)
    tracer.add_sink(others.extend)
    for number in range(3):
        gpusense.record_kernel("k", duration_ns=10**9)
        if asked:
            assert tracer.flush(5)
        else:
            wait_until(lambda seen=number: len(others) > seen)
    assert calls == ["gpusense"]
    assert len(others) == 3
    assert tracer.session().counters.sink_errors == 1


class Source:
    name = "odd"

    def __init__(self, error):
        self.error, self.calls = error, 0

    def flush(self, timeout_s):
        self.calls += 1
        raise self.error

    def status(self):
        return {}


@pytest.mark.parametrize("error", [RuntimeError(), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_a_source_that_ends_with_anything_is_removed(tracer, error):
    source = Source(error)
    tracer.add_source(source)
    for _ in range(2):
        assert tracer.flush(5)
    assert source.calls == 1


def test_ctrl_c_in_a_source_is_the_programs_and_a_sources_own_is_not(tracer):
    source = Source(KeyboardInterrupt())
    tracer.add_source(source)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tracer.flush(5)
    done = threading.Event()
    assert tracer._worker.errand(lambda: (tracer._recorder._flush_sources(1.0), done.set()))
    assert done.wait(10)
    assert tracer.flush(5)
    assert source.calls == 3
    assert tracer._worker._thread.is_alive()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_watcher_and_an_end_that_interrupt_themselves_leave_the_thread(tracer, error):
    calls = []

    def interrupted():
        calls.append(threading.current_thread().name)
        raise error

    tracer._worker.add_watcher(interrupted)
    assert tracer._worker.finish(interrupted, 10)
    wait_until(lambda: len(calls) == 2)
    for _ in range(3):
        tracer._worker.wake()
        gpusense.record_kernel("k", duration_ns=10**9)
        assert tracer.flush(5)
    assert calls == ["gpusense", "gpusense"]
    assert tracer._worker._thread.is_alive()


def test_ctrl_c_in_a_sink_is_the_programs(tracer):
    tracer._worker.end()
    tracer._worker._thread.join(10)
    calls = []

    def sink(records):
        calls.append(records)
        if len(calls) == 1:
            raise KeyboardInterrupt

    tracer.add_sink(sink)
    gpusense.record_kernel("k", duration_ns=10**9)
    with pytest.raises(KeyboardInterrupt):
        tracer.flush(5)
    gpusense.record_kernel("k", duration_ns=10**9)
    tracer.flush(5)
    assert len(calls) == 2


def test_a_sink_given_before_recording_begins_is_kept_for_it(tracer, monkeypatch):
    tracer.close()
    monkeypatch.setattr(_select, "_tracer", None)
    got = []
    gpusense.configure(sinks=[got.extend])
    assert not gpusense.get_tracer().active
    assert gpusense.enable()
    with gpusense.trace("step"):
        pass
    gpusense.get_tracer().close()
    assert [record.name for record in got] == ["step"]


def test_block_listener(tracer):
    events = []

    class Listener:
        def block_opened(self, block):
            events.append(("open", block.name, threading.get_ident()))

        def block_closed(self, block):
            events.append(("close", block.name, block.end_ns is not None))
            raise RuntimeError("listener")

    tracer.add_block_listener(Listener())
    for _ in range(2):
        with gpusense.trace("a"):
            pass
    assert events == [("open", "a", threading.get_ident()), ("close", "a", True)]


def test_sample_rate_opens_one_root_in_so_many(tracer):
    gpusense.configure(sample_rate=0.25)
    for _ in range(100):
        with gpusense.trace("root"), gpusense.trace("child"):
            pass
    summary = gpusense.get_tracer().summary()
    assert summary.operation("root").count == 25
    assert summary.operation("child").count == 25


def test_scopes_for_spans_of_others(tracer):
    scope = tracer.open_scope("GET /", {"http.method": "GET"})
    with gpusense.trace("inside") as block:
        assert block.parent_id == scope.block_id
    tracer.close_scope(scope)
    assert set(blocks(tracer)) == {"GET /", "inside"}


@pytest.fixture
def reading(tracer):
    """A tracer that places its blocks by the newest correlation id, which is 7."""
    tracer._recorder.marker, tracer._recorder.newest = (lambda token: None), (lambda: 7)
    return tracer


def test_scopes_without_a_block_around_them_are_sampled_and_shed(reading, monkeypatch):
    reading.config = reading.config._replace(sample_rate=0.25)
    for _ in range(100):
        scope = reading.open_scope("scope")
        reading.close_scope(reading.open_scope("inside"))
        reading.close_scope(scope)
    assert [block.name for block in reading.session().blocks].count("scope") == 25
    assert [block.name for block in reading.session().blocks].count("inside") == 25
    reading.config = reading.config._replace(sample_rate=1.0)
    monkeypatch.setattr(_scopes, "MAX_WAITING", -1)
    reading.close_scope(reading.open_scope("too many"))
    assert (reading.status()["shed_blocks"], "too many" in blocks(reading)) == (1, False)


def interrupted_at(number, call, *given):
    """Whether there is a line of that number, counted as they run, where Ctrl-C comes in the middle of ``call``."""
    lines = count()

    def look(frame, event, _):
        if frame.f_code.co_filename != _scopes.__file__:
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        call(*given)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_line_of_a_scope_is_the_programs_and_leaves_no_block_around_others(reading):
    number = 0
    while interrupted_at(number, reading.open_scope, "opened"):
        assert reading.current_block() is None, number
        number += 1
    assert number > 15
    reading.close_scope(reading.current_block())
    number = 0
    scope = reading.open_scope("closed", {"a": 1})
    while interrupted_at(number, reading.close_scope, scope):
        with gpusense.trace("after") as block:
            assert block.parent_id is None or scope.end_ns is None
        reading.close_scope(scope)
        assert scope.end_ns is not None
        with gpusense.trace("after") as block:
            assert block.parent_id is None
        scope = reading.open_scope("closed", {"a": 1})
        number += 1
    assert number > 15
    assert reading.failed_blocks == 0


def test_a_listener_is_told_before_the_record_is_made(reading):
    class Listener:
        def block_opened(self, block): ...

        def block_closed(self, block):
            block.attributes = {"closed_by": "listener", "end_ns": block.end_ns}

    reading.add_block_listener(Listener())
    with gpusense.trace("a") as block:
        pass
    assert blocks(reading)["a"].attributes == {"closed_by": "listener", "end_ns": block.end_ns}


@pytest.mark.parametrize("name", [None, 3, b"bytes", ["list"], "", "x" * 5000, "\udcff"])
def test_any_name_is_taken(tracer, name):
    with gpusense.trace(name):
        pass
    assert len(tracer.session().blocks) == 1


def test_bad_manual_records_reach_nobody(tracer):
    tracer.record_kernel("k", duration_ns=5, nonsense=1)
    tracer.record_transfer("t", "cpu_to_gpu", bytes=1, start_ns=100, end_ns=50)
    session = tracer.session()
    assert session.records == []
    assert session.counters.invalid == 1


def test_block_summary_says_why_nothing_was_captured(tracer):
    with gpusense.trace("empty") as block:
        pass
    summary = block.summary()
    assert summary.kernel_count is None
    assert "no CUDA" in summary.reason
    assert "empty" in str(summary)


def test_what_no_source_could_tell_is_unknown_beside_what_the_program_told(tracer):
    with gpusense.trace("upload") as block:
        gpusense.record_transfer("mesh", "cpu_to_gpu", bytes=2_000_000, duration_ns=1_000_000)
    summary = block.summary()
    assert (summary.transfer_count, summary.transfer_bytes) == (1, 2_000_000)
    assert (summary.kernel_count, summary.gpu_ns, summary.memset_count) == (None, None, None)
    assert "1 transfer (2.00 MB in 1 ms)" in str(summary)
    assert "kernels" not in str(summary)
    tracer.reset()
    with gpusense.trace("empty"):
        pass
    out = io.StringIO()
    tracer.print_summary(out)
    row = next(line for line in out.getvalue().splitlines() if line.startswith("empty"))
    assert row.split()[-2:] == ["?", "?"]


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


def test_configuration_errors_say_what_would_be_right(tracer):
    with pytest.raises(_config.ConfigurationError, match=r"known: .*threshold_us"):
        gpusense.configure(treshold_us=5)
    with pytest.raises(_config.ConfigurationError, match="0…1"):
        gpusense.configure(sample_rate=2)
    with pytest.raises(ValueError, match="must be a number"):
        gpusense.configure(threshold_us="fast")
    with pytest.raises(_config.ConfigurationError, match="'order' or 'exact'"):
        gpusense.configure(attribution="guessed")
    with pytest.raises(gpusense.BackendUnavailable, match="cupti"):
        gpusense.configure(backends=("cupti",), strict=True)
    with pytest.raises(_config.ConfigurationError, match="unknown backend 'cupty'; known: cuda, cupti"):
        gpusense.configure(backends=("cupty",))


def test_a_configure_that_raises_changes_nothing(tracer):
    gpusense.configure(threshold_us=7)
    with pytest.raises(gpusense.BackendUnavailable):
        gpusense.configure(backends=("cupti",), strict=True, threshold_us=3)
    after = gpusense.configure(sample_rate=1.0)
    assert (after.strict, after.backends, after.threshold_us) == (False, None, 7)


def test_settings_know_every_backend():
    assert tuple(name for name, _ in BACKENDS) == _config.BACKEND_NAMES


def test_the_environment_has_the_last_word_on_the_mode():
    layers = _config.Layers()
    layers.application["mode"] = "on"
    for word, mode in (("auto", "auto"), ("off", "off"), ("on", "on"), ("", "on"), ("maybe", "on")):
        assert layers.resolve({"GPUSENSE": word}).mode == mode
    assert layers.resolve({}).mode == "on"


@pytest.mark.parametrize("word", ["maybe", "disabled", "2"])
def test_a_mode_that_there_is_not_is_told(word):
    found, problems = _config.from_environment({"GPUSENSE": word, "GPUSENSE_BACKENDS": "cupti,nvmll"})
    assert found == {}
    assert problems == [
        f"GPUSENSE={word!r} is ignored: it must be off, auto or on",
        "GPUSENSE_BACKENDS='cupti,nvmll' is ignored: unknown backend 'nvmll'; known: "
        + ", ".join(_config.BACKEND_NAMES),
    ]
    for known in ("", "auto", "OFF", " on ", "0", "true"):
        assert _config.from_environment({"GPUSENSE": known}) == ({}, [])


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", ["buffers", "max_records", "threshold_us"])
def test_a_setting_that_is_no_number(name, value):
    with pytest.raises(_config.ConfigurationError, match=name):
        _config.check(name, value)


def test_a_copy_of_a_block_that_cannot_be_made_prints_nothing(tracer, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    block = gpusense.trace("copied")
    with pytest.raises(TypeError):
        copy.deepcopy(block)
    gc.collect()
    assert seen == []


def test_environment_over_application_over_host(tracer, monkeypatch):
    assert gpusense.configure(defaults=True, threshold_us=1, buffers=8).threshold_us == 1
    assert gpusense.configure(threshold_us=2).threshold_us == 2
    assert gpusense.configure(defaults=True, threshold_us=3).threshold_us == 2
    monkeypatch.setenv("GPUSENSE_THRESHOLD_US", "7.5")
    monkeypatch.setenv("GPUSENSE_BUFFERS", "many")
    monkeypatch.setenv("GPUSENSE_ATTRIBUTION", " Exact")
    settings = gpusense.configure()
    assert (settings.threshold_us, settings.buffers, settings.attribution) == (7.5, 8, "exact")


def test_tokens_have_32_bits_also_after_four_billion(tracer, monkeypatch):
    """The one after 2**32 - 1 has 33 bits, and its record another value."""
    monkeypatch.setattr(_tracer, "_tokens", count(0xFFFFFFFF))
    tokens = []
    for _ in range(3):
        event = [0] * 8
        tracer._mark(event, lambda token: tokens.append(token))
    assert tokens == [0xFFFFFFFF, 1, 2]


def test_a_buffer_whose_reading_is_interrupted_is_told():
    """Ctrl-C during ``block.summary()``: it is the program's, and the records that it cost are told."""
    recorder = Recorder(_config.Settings(), None)
    recorder.start_ns = recorder.pipeline.start_ns = 0

    class Interrupted:
        strides, marker_shape, running, sharing = STRIDES, None, True, Sharing()

        def lines(self):
            return []

        def name(self, pointer):
            raise KeyboardInterrupt

        def unseen_now(self):
            return None

    recorder.capture = Interrupted()
    buffer = view(*[kernel(T0 + i * 1000, T0 + i * 1000 + 500, correlation=100 + i) for i in range(20)])
    with pytest.raises(KeyboardInterrupt):
        recorder._on_buffer(buffer, 5)
    assert "KeyboardInterrupt" in recorder.unseen_stretches()[0].reason


def test_many_blocks_keep_memory_flat(tracer):
    again = gpusense.trace("again and again")
    for _ in range(2000):
        with gpusense.trace("x"), again:
            pass
    assert tracer.flush(30)
    assert len(tracer._watched) < _tally.SWEEP_AT
    assert again.block_id in tracer._watched
    assert len(tracer._recorder.events) == 0


def test_a_block_that_is_entered_again_has_what_was_launched_then(tracer):
    block = gpusense.trace("step")
    for launched in (2, 0, 3):
        with block:
            for _ in range(launched):
                tracer.record_kernel("k", duration_ns=5)
        assert block.summary().kernel_count == (launched or None)


def test_a_scope_may_belong_to_a_block_of_another_thread(tracer):
    with gpusense.trace("backward") as outer:

        def work():
            tracer.close_scope(tracer.open_scope("layer", parent=outer))
            tracer.close_scope(tracer.open_scope("other", parent=outer))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    layer = blocks(tracer)["layer"]
    assert (layer.path, layer.parent_id) == (("backward", "layer"), outer.block_id)
    assert layer.thread != outer.thread
    assert blocks(tracer)["other"].path == ("backward", "other")


def test_a_watcher_is_asked_until_it_is_done_or_raises(tracer, caplog):
    asked = {"done": 0, "bad": 0}
    finished = threading.Event()

    def done():
        asked["done"] += 1
        if asked["done"] == 3:
            finished.set()
        return asked["done"] == 3

    def bad():
        asked["bad"] += 1
        raise RuntimeError

    tracer.add_watcher(bad)
    tracer.add_watcher(done)
    while not finished.wait(0.01):
        tracer._recorder.wake()
    tracer.close()
    assert asked == {"done": 3, "bad": 1}
    assert "a watcher raised" in caplog.text
