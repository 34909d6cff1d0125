"""Which passes of blocks are counted, with which set, and what becomes of a profiler that refuses or fails."""

import threading
from types import SimpleNamespace

import pytest

import gpusense
from gpusense._records.records import Unavailable
from gpusense._runtime.errors import BackendError
from gpusense._tracing import measure
from gpusense._tracing.measure import EVERY, FIRST, MAX_FAILURES, Meter, Sets, Turns

SETS, TENSOR = ("activity", "pipes", "bf16", "tf32"), ("bf16", "tf32")


def counted(tensor_ops=(), **amounts):
    return SimpleNamespace(device_ns=1000, tensor_ops=tensor_ops, flops=(("fp32", 5.0),), amounts=amounts)


class Profiler:
    """Counts ranges as CUPTI does: one at a time."""

    device, sets, tensor = 0, SETS, TENSOR

    def __init__(self):
        self.calls, self.open, self.fails, self.answer = [], False, None, counted(dram_read_bytes=1.0)

    def begin(self, name):
        assert not self.open
        if self.fails == "begin":
            raise BackendError("cuptiRangeProfilerStart", 26, "busy")
        self.open = self.fails != "capturing"
        self.calls.append(name)
        return self.open

    def end(self):
        assert self.open
        self.open = False
        if self.fails == "end":
            raise BackendError("cuptiRangeProfilerDecodeData", 9, "hardware")
        return self.answer


@pytest.fixture
def profiler():
    return Profiler()


@pytest.fixture
def meter(tracer, profiler):
    """That of a live tracer, over the profiler of the test."""
    found = tracer._meter = Meter(tracer.record, lambda patiently: profiler)
    tracer.add_block_listener(found)
    return found


def passes(number, name="step"):
    for _ in range(number):
        with gpusense.trace(name):
            pass


def counters(tracer):
    return tracer.session().block_counters


# Sets


def turns_of(sets, number, *, found=(), tensor_share=None):
    seen = []
    for _ in range(number):
        seen.append(sets.name)
        sets.counted(sets.name in found if sets.name in (*TENSOR, "links") else None, tensor_share)
        sets.change()
    return seen


def test_each_set_has_its_turn_and_then_those_that_found_something():
    sets = Sets((*SETS, "links"), TENSOR)
    assert sets.first
    assert turns_of(sets, 5, found=("bf16",), tensor_share=0.4) == [*SETS, "links"]
    assert not sets.first
    assert turns_of(sets, 4, found=("bf16",), tensor_share=0.4) == ["activity", "pipes", "bf16", "activity"]


def test_without_tensor_cores_at_work_their_types_have_no_turn():
    assert turns_of(Sets((*SETS, "links"), TENSOR), 4, tensor_share=0.0) == ["activity", "pipes", "links", "activity"]


def test_a_block_is_due_once_with_each_set_and_then_one_pass_in_a_hundred():
    turns, seen = Turns(), []
    for number in range(1, 2 * EVERY + 20):
        turns.passes += 1
        if turns.due(0 if number < 10 else 1):
            seen.append(number)
            turns.last, turns.with_set = number, 0 if number < 10 else 1
    assert seen == [FIRST, 10, 10 + EVERY, 10 + 2 * EVERY]


# Blocks


def test_passes_become_records_of_their_blocks(tracer, meter, profiler):
    meter.by_turns = True
    profiler.answer = counted((("bf16", 1e12),), dram_read_bytes=7.0, tensor_percent=40.0)
    passes(5)
    rows = counters(tracer)
    assert [row.metric_set for row in rows] == list(SETS)
    blocks = tracer.session().blocks
    assert [row.block_id for row in rows] == [block.block_id for block in blocks[1:]]
    first = rows[0]
    assert (first.path, first.name, first.device, first.device_ns) == (("step",), "step", 0, 1000)
    assert (first.tensor_ops, first.flops, first.dram_read_bytes) == ((("bf16", 1e12),), (("fp32", 5.0),), 7.0)
    assert (first.tensor_percent, first.shared) == (40.0, False)
    assert blocks[1].start_ns == first.start_ns
    assert tracer.status()["measured"]["passes"] == 4


def test_a_function_is_measured_with_and_without_parentheses(tracer, meter, profiler):
    assert meter.status()["state"] == "waiting"

    @gpusense.measure
    def bare(x):
        return x + 1

    @gpusense.measure("named")
    def named(x):
        return x + 2

    assert [(bare(number), named(number)) for number in range(2)] == [(1, 2), (2, 3)]
    assert {row.path[-1] for row in counters(tracer)} == {bare.__qualname__, "named"}
    assert meter.status()["state"] == "counting"


def test_of_blocks_in_each_other_the_outermost_is_counted_and_the_inner_one_in_its_own_turn(tracer, meter):
    meter.by_turns = True
    for _ in range(7):
        with gpusense.trace("step"), gpusense.trace("forward"):
            pass
    assert [row.path for row in counters(tracer)] == [
        *(("step",), ("step", "forward"), ("step",), ("step", "forward"), ("step",), ("step", "forward")),
    ]


def test_measure_counts_every_pass_and_nothing_else(tracer, meter):
    passes(3)
    for _ in range(3):
        with gpusense.measure("asked"):
            passes(1, "inside")
    assert [(row.path, row.metric_set) for row in counters(tracer)] == [
        *((("asked",), "activity"), (("asked",), "pipes"), (("asked",), "bf16")),
    ]


def test_measure_as_a_decorator(tracer, meter):
    @gpusense.measure("called")
    def twice():
        return 2

    assert (twice(), twice()) == (2, 2)
    assert [row.path for row in counters(tracer)] == [("called",), ("called",)]


def test_without_a_device_measure_is_a_block():
    with gpusense.measure("nothing") as block:
        pass
    assert block.name == "nothing"


def test_a_block_of_another_thread_beside_it_is_said(tracer, meter):
    inside, done = threading.Event(), threading.Event()

    def other():
        with gpusense.trace("other"):
            inside.set()
            done.wait(5)

    with gpusense.measure("alone"):
        pass
    thread = threading.Thread(target=other)
    with gpusense.measure("joined later"):
        thread.start()
        inside.wait(5)
    with gpusense.measure("beside"):
        pass
    done.set()
    thread.join()
    with gpusense.measure("alone again"):
        pass
    assert [(row.name, row.shared) for row in counters(tracer)] == [
        *(("alone", False), ("joined later", True), ("beside", True), ("alone again", False)),
    ]


def test_long_passes_are_not_counted_by_turns(tracer, meter, monkeypatch):
    monkeypatch.setattr(measure, "LONGEST_S", 0.0)
    meter.by_turns = True
    passes(3, "epoch")
    with gpusense.measure("asked"):
        pass
    assert [row.name for row in counters(tracer)] == ["asked"]


def test_counting_by_turns_takes_its_share_of_the_time_and_no_more(tracer, meter, monkeypatch):
    meter.by_turns = True
    meter._spent_s = 60.0
    passes(5)
    assert not counters(tracer)
    with gpusense.measure("asked"):
        pass
    assert len(counters(tracer)) == 1


@pytest.mark.parametrize("where", ["begin", "end"])
def test_a_refusal_ends_it_with_a_reason_and_never_reaches_the_program(tracer, meter, profiler, where):
    profiler.fails = where
    for _ in range(MAX_FAILURES + 1):
        with gpusense.measure("step"):
            pass
    status = tracer.status()["measured"]
    assert status["state"] == "unavailable"
    assert status["reason"].startswith("cuptiRangeProfiler")
    assert (status["passes"], status["lost"]) == (0, MAX_FAILURES * (where == "end"))
    assert len(tracer.session().blocks) == MAX_FAILURES + 1
    assert len(profiler.calls) == MAX_FAILURES * (where == "end")


def test_after_another_profiler_it_goes_on(tracer, meter, profiler):
    for fails in ("begin", None):
        profiler.fails = fails
        with gpusense.measure("step"):
            pass
    status = tracer.status()["measured"]
    assert (status["state"], status["passes"], "reason" in status) == ("counting", 1, False)


def test_a_second_block_that_was_asked_for_has_each_set_too(tracer, meter):
    for name in ("one", "other"):
        for _ in range(6):
            with gpusense.measure(name):
                pass
    sets = {name: [row.metric_set for row in counters(tracer) if row.name == name] for name in ("one", "other")}
    assert {*sets["one"]} == {*sets["other"]} == {*SETS}


def test_other_blocks_wait_for_a_set_no_longer_than_a_block_comes(tracer, meter):
    meter.by_turns = True
    passes(2, "once")
    passes(measure.LONGEST_STAY + 20)
    assert {row.metric_set for row in counters(tracer) if row.name == "step"} > {"activity"}


def test_while_a_stream_is_captured_nothing_is_counted(tracer, meter, profiler):
    profiler.fails = "capturing"
    with gpusense.measure("step"):
        pass
    profiler.fails = None
    with gpusense.measure("step"):
        pass
    assert [row.metric_set for row in counters(tracer)] == ["activity"]


def test_a_range_that_was_lost_is_counted_as_lost(tracer, meter, profiler):
    profiler.answer = None
    with gpusense.measure("step"):
        pass
    assert tracer.status()["measured"] == {
        "state": "counting", "passes": 0, "lost": 1, "spent_s": pytest.approx(0, abs=1)
    }  # fmt: skip


def test_where_there_is_no_profiler_the_reason_is_told(tracer):
    tracer._meter = Meter(tracer.record, lambda patiently: Unavailable("counters", "not on this card"))
    with gpusense.measure("step"):
        pass
    assert tracer.status()["measured"]["reason"] == "not on this card"


def test_an_exception_of_the_program_ends_the_range(tracer, meter, profiler):
    with pytest.raises(ZeroDivisionError), gpusense.measure("step"):
        1 / 0  # noqa: B018
    assert not profiler.open
    assert len(counters(tracer)) == 1


def test_the_setting_counts_by_turns_until_it_is_taken_back(tracer, meter):
    gpusense.configure(counters="exact")
    assert meter.by_turns
    gpusense.configure(counters=None)
    assert not meter.by_turns
