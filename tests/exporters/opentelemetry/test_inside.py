"""What a block's span says of what was launched inside, and the span for what has none of its own."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import receiver
from support.control import begun
from support.sessions import RECORDED, T0, session

import gpusense
from gpusense._records.records import Aggregate, BlockRecord, GpuKernel, GpuMemoryTransfer, GpuSync
from gpusense.exporters.opentelemetry import export_session
from gpusense.exporters.opentelemetry._inside import OfSession
from gpusense.exporters.opentelemetry._replay import _Source
from gpusense.session import load, merge

DEMO = RECORDED


@pytest.fixture
def live(monkeypatch):
    """The real tracer, without a device."""
    control = begun(monkeypatch)
    assert gpusense.enable()
    yield gpusense.get_tracer()
    control.live.close()


@pytest.fixture
def on(otel, app, live, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")  # its thread sends what a test asks it to
    assert otel.instrument(tracer=live, tracer_provider=app, metrics=False)
    return live


def work(tracer, kernels, copies=0, duration_ns=5_000):
    for _ in range(kernels):
        tracer.record_kernel("tiny", duration_ns=duration_ns)
    for _ in range(copies):
        tracer.record_transfer("up", "cpu_to_gpu", bytes=1_000, duration_ns=duration_ns)


def inside(span):
    return {key.rpartition(".")[2]: value for key, value in span.attributes.items() if key.startswith("gpu.inside.")}


# --- as it runs -------------------------------------------------------------------------------------------------------


def test_ten_short_kernels_are_no_empty_bar(on, spans):
    with on.trace("train"):
        work(on, 1, duration_ns=2_000_000)
        with on.trace("forward"):
            work(on, 9, copies=2)
        work(on, 3)
    [forward], [train] = spans("forward"), spans("train")
    assert inside(forward) == {"kernels": 9, "gpu_ns": 55_000, "transfers": 2, "transfer_bytes": 2_000}
    assert inside(train) == {"kernels": 13, "gpu_ns": 2_070_000, "transfers": 2, "transfer_bytes": 2_000}
    short = {span.parent.span_id: span for span in spans("short work, summed")}
    of_forward, of_train = short[forward.context.span_id], short[train.context.span_id]
    assert len(short) == 2
    assert of_forward.attributes["gpu.aggregate.text"] == "9 short kernels, 45.0 µs; 2 short copies, 10.0 µs, 2.00 kB"
    assert of_train.attributes["gpu.aggregate.text"] == "3 short kernels, 15.0 µs"  # the long one has a span
    assert (of_forward.start_time, of_forward.end_time) == (forward.start_time, forward.start_time + 55_000)
    assert "start" in of_forward.attributes["gpu.aggregate.times"]
    assert of_forward.attributes["gpu.threshold_ns"] == 100_000
    assert len(spans("gpu_kernel: tiny")) == 1


def test_the_applications_own_span_is_no_empty_bar_either(otel, on, app, spans):
    with app.test_tracer.start_as_current_span("GET /"):
        work(on, 4)
        with on.trace("infer"):
            work(on, 5)
    [request], [infer] = spans("GET /"), spans("infer")
    short = {span.parent.span_id: span.attributes["gpu.aggregate.text"] for span in spans("short work, summed")}
    assert short == {
        request.context.span_id: "4 short kernels, 20.0 µs",
        infer.context.span_id: "5 short kernels, 25.0 µs",
    }
    assert inside(request) == {}  # what it says is the application's affair
    status = otel.status()
    assert (status["received"], status["exported"], status["scopes"]) == (2, 1, 1)


def test_what_comes_after_a_block_has_ended_is_waited_for(otel, on, app, spans, monkeypatch):
    from gpusense.exporters.opentelemetry import _pipeline

    monkeypatch.setattr(_pipeline, "HOLD_S", 1e9)
    with on.trace("step") as step:
        pass
    on.flush()
    otel._active.tick(False)
    otel._active.tick(False)
    assert app.test_exporter.get_finished_spans() == ()
    monkeypatch.setattr(_pipeline, "HOLD_S", 0.0)
    on.record([GpuKernel("late", step.end_ns, step.end_ns + 7_000, block_id=step.block_id)])  # read when it is due
    otel._active.tick(False)
    [found] = [span for span in app.test_exporter.get_finished_spans() if span.name == "step"]
    assert inside(found)["kernels"] == 1
    assert spans("short work, summed")[0].attributes["gpu.aggregate.text"] == "1 short kernel, 7.00 µs"


def test_nothing_is_held_once_its_span_is_made(otel, on, spans):
    for _ in range(20):
        with on.trace("step"):
            work(on, 1)
    assert len(spans("step")) == 20
    otel._active.tick(False)
    places = [otel._active.blocks.place(span_id) for span_id in list(otel._active.blocks._places)]
    assert [place.block for place in places] == [None] * 20
    assert not otel._active._held
    status = otel.status()
    assert status["received"] == status["exported"] == 20


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_the_span_is_off_by_option(otel, app, live, spans, monkeypatch, how):
    if how == "variable":
        monkeypatch.setenv("GPUSENSE_OTEL_SUMMED_SPANS", "off")
    otel.instrument(tracer=live, tracer_provider=app, metrics=False, summed_spans=how == "variable")
    with live.trace("step"):
        work(live, 2)
    assert inside(spans("step")[0])["kernels"] == 2
    assert [span.name for span in spans()] == ["step"]


def test_a_tracer_that_has_ended_meanwhile_is_asked_all_the_same(otel, on, spans):
    with on.trace("step"):
        work(on, 2)
    on.flush()
    otel._active.tick(False)
    on.close()
    otel._active._inside._tracer_of = otel._active._tracer_of = gpusense.get_tracer
    assert inside(spans("step")[0])["kernels"] == 2
    assert otel.status()["exported"] == 1


def test_a_block_that_was_entered_anew_says_nothing_of_before(on, spans):
    block = on.trace("step")
    for _ in range(2):
        with block:
            work(on, 1)
    assert sorted(len(inside(span)) for span in spans("step")) == [0, 4]


def test_a_block_of_which_nothing_could_be_seen_says_nothing(on, spans):
    with on.trace("step"):
        pass
    assert inside(spans("step")[0]) == {}


# --- of a session -----------------------------------------------------------------------------------------------------


def test_sums_of_a_file_are_those_of_its_records():
    """The same file once with every record, and once with sums."""
    every, summed = load(DEMO, trace_all=True), load(DEMO, each_block=True)
    one, other = OfSession(every), OfSession(summed)
    assert every.each_block is None
    blocks = [block.block_id for block in every.blocks]
    assert len(blocks) > 50
    for block in blocks:
        listed, counted = one.of(block), other.of(block)
        assert (listed.sums, listed.waits) == (counted.sums, counted.waits)
        assert listed.short == {}
    short = [other.of(block).short for block in blocks]
    below = [row for row in summed.aggregates if row.kind == "kernel" and row.path]
    assert sum(rows["kernel"][0] for rows in short if "kernel" in rows) == sum(row.count for row in below)
    assert sum(rows["kernel"][1] for rows in short if "kernel" in rows) == sum(row.total_ns for row in below)


def test_sums_keep_their_blocks_when_sessions_are_merged():
    one, two = load(DEMO, each_block=True), load(DEMO, each_block=True)
    merged = merge([one, two])
    assert len(merged.each_block) == 2 * len(one.each_block)
    of = OfSession(merged)
    first, last = (OfSession(one).of(block.block_id) for block in (one.blocks[1], one.blocks[-1]))
    known = [of.of(block.block_id) for block in merged.blocks]
    assert known.count(first) >= 2
    assert known.count(last) >= 2
    assert merge([load(DEMO, each_block=True), load(DEMO)]).each_block is None  # half of it is not known


def block(number, parent, start=0, end=1_000_000):
    return BlockRecord("b", number, parent, ("b",), T0 + start, T0 + end, 1)


@settings(max_examples=25)
@given(
    parents=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    launched=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 200_000), st.booleans()), max_size=40),
)
def test_all_work_of_a_tree_is_in_one_span_or_in_one_sum(parents, launched):
    """``parents[i]``: of block i + 1, cut to an older block or none; what is launched has a span or is only summed."""
    blocks = [block(i + 1, parent if 0 < parent <= i else None) for i, parent in enumerate(parents)]
    above = {one.block_id: one.parent_id for one in blocks}
    records, sums = [], {}
    for number, duration, listed in launched:
        number = (number - 1) % len(blocks) + 1
        if listed:
            records.append(GpuKernel("k", T0, T0 + duration, block_id=number))
        at = number
        while at is not None:
            row = sums.setdefault(at, {}).setdefault("kernel", [0, 0, 0])
            row[0], row[1] = row[0] + 1, row[1] + duration
            at = above[at]
    made = session(*blocks, *records, aggregates=[Aggregate((), "kernel", "k", "cuda", 0, 7, 1, 1, 1, 1, 1)])
    made.each_block = sums
    of = OfSession(made)
    short = [of.of(one.block_id).short.get("kernel", [0, 0]) for one in blocks]
    assert sum(row[0] for row in short) == sum(not listed for _, _, listed in launched)
    assert sum(row[1] for row in short) == sum(duration for _, duration, listed in launched if not listed)
    assert all((of.of(one.block_id).sums or {}) == sums.get(one.block_id, {}) for one in blocks)


def test_waits_are_those_of_the_host_and_unknown_is_absent():
    records = [
        block(1, None),
        GpuMemoryTransfer("up", "cpu_to_gpu", 64, T0, T0 + 10, block_id=1),
        GpuSync("stream_synchronize", T0, T0 + 30, block_id=1),
    ]
    found = OfSession(session(*records, kinds=["sync"])).of(1).attributes()
    assert (found["gpu.inside.waits"], found["gpu.inside.wait_ns"]) == (1, 30)
    assert found["gpu.inside.gpu_ns"] == 10
    assert "gpu.inside.waits" not in OfSession(session(*records[:2])).of(1).attributes()
    assert OfSession(session(records[0])).of(1).attributes() == {}
    seen = session(records[0], capture={"state": "stopped"})
    assert OfSession(seen).of(1).attributes()["gpu.inside.kernels"] == 0
    only_counted = session(*records, aggregates=[Aggregate((), "kernel", "k", "cuda", 0, 7, 1, 1, 1, 1, 1)])
    assert OfSession(only_counted).of(1).attributes() == {}  # of whose block the kernel was nobody knows


def test_each_process_of_a_merged_session_is_a_resource_of_its_own():
    sessions = [
        session(
            block(1, None),
            GpuKernel("k", T0, T0 + 9, 0, block_id=1, path=("b",)),
            GpuKernel("k", T0, T0 + 9, 0),
            pid=pid,
        )
        for pid in (41, 42)
    ]
    spans = list(_Source(merge(sessions), None, {}, None).spans())
    pids = Counter((span.name, span.resource.attributes.get("process.pid")) for span in spans)
    assert pids == {
        **{("b", pid): 1 for pid in (41, 42)},
        **{("gpu_kernel: k", pid): 2 for pid in (41, 42)},
        ("gpusense.session", None): 1,
    }
    assert len({id(span.resource) for span in spans}) == 3  # which is hashed once


def test_a_file_is_sent_with_its_sums():
    recorded = load(DEMO, each_block=True)
    with receiver() as got:
        first = export_session(recorded, got.url)
    with receiver() as less:
        second = export_session(recorded, less.url, summed_spans=False)
    assert first.refused == second.refused == 0
    names = [span.name for span in got.spans]
    assert names.count("short work, summed") == first.sent - second.sent > 50
    assert {span.span_id for span in less.spans} < {span.span_id for span in got.spans}
    assert len({span.span_id for span in got.spans}) == first.sent
    short = {one.key for span in got.spans if span.name == "short work, summed" for one in span.attributes}
    assert short >= {"gpu.backend", "gpu.device.index", "hw.name"}  # all ran on one of the two devices
    forward = next(span for span in got.spans if span.name == "forward")
    assert {one.key: one.value.int_value for one in forward.attributes}["gpu.inside.kernels"] > 10
    root = next(span for span in got.spans if span.name == "gpusense.session")
    assert {one.key for one in root.attributes} >= {"process.pid"}
