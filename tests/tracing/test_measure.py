"""Which passes of blocks are counted, with which set, and what becomes of a profiler that refuses or fails."""

import threading
from types import SimpleNamespace

import pytest

import gpusense
from gpusense._records.records import Unavailable
from gpusense._runtime.errors import BackendError
from gpusense._tracing import measure
from gpusense._tracing.measure import AT_FIRST, EVERY, FIRST, Meter, Turns

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


# Turns


def test_the_first_pass_warms_up_then_each_set_has_a_turn_then_one_pass_in_a_hundred():
    turns, seen = Turns(), []
    for number in range(1, 2 * EVERY + 20):
        if turns.due():
            seen.append((number, turns.choose(SETS, TENSOR)))
            turns.counted(seen[-1][1], None, without_tensor_cores=False)
    first = [FIRST + AT_FIRST * at for at in range(len(SETS))]
    assert seen[: len(SETS)] == list(zip(first, SETS, strict=True))
    assert [number for number, _ in seen[len(SETS) :]] == [first[-1] + EVERY, first[-1] + 2 * EVERY]


def test_sets_that_find_nothing_have_no_further_turn():
    turns, seen = Turns(), []
    for _ in range(12 * EVERY):
        if turns.due():
            seen.append(turns.choose(SETS, TENSOR))
            turns.counted(seen[-1], seen[-1] != "tf32", without_tensor_cores=False)
    assert seen[:4] == list(SETS)
    assert "tf32" not in seen[4:]
    assert {*seen[4:]} == {"activity", "pipes", "bf16"}


def test_without_tensor_cores_at_work_their_types_are_not_asked_for():
    turns, seen = Turns(), []
    for _ in range(8 * EVERY):
        if turns.due():
            seen.append(turns.choose(SETS, TENSOR))
            turns.counted(seen[-1], None, without_tensor_cores=True)
    assert {*seen} == {"activity", "pipes"}


def test_a_pass_that_cannot_be_counted_leaves_its_turn_to_the_next():
    turns = Turns()
    assert [turns.due() for _ in range(5)] == [False, True, True, True, True]


# Blocks


def test_passes_become_records_of_their_blocks(tracer, meter, profiler):
    meter.by_turns = True
    profiler.answer = counted((("bf16", 1e12),), dram_read_bytes=7.0, tensor_percent=40.0)
    passes(5)
    rows = counters(tracer)
    assert [row.metric_set for row in rows] == ["activity", "pipes"]
    blocks = tracer.session().blocks
    assert [row.block_id for row in rows] == [blocks[1].block_id, blocks[3].block_id]
    first = rows[0]
    assert (first.path, first.name, first.device, first.device_ns) == (("step",), "step", 0, 1000)
    assert (first.tensor_ops, first.flops, first.dram_read_bytes) == ((("bf16", 1e12),), (("fp32", 5.0),), 7.0)
    assert (first.tensor_percent, first.shared) == (40.0, False)
    assert blocks[1].start_ns == first.start_ns
    assert tracer.status()["measured"]["passes"] == 2


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
    for _ in range(3):
        with gpusense.measure("step"):
            pass
    status = tracer.status()["measured"]
    assert status["state"] == "unavailable"
    assert status["reason"].startswith("cuptiRangeProfiler")
    assert (status["passes"], status["lost"]) == (0, int(where == "end"))
    assert len(tracer.session().blocks) == 3
    assert len(profiler.calls) == int(where == "end")


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
