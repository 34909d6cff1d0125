"""The way of a record: threshold, counting, attribution, budgets, memory."""

import itertools
import random
import struct
from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cupti import MARKER_CBID, STRIDES, T0, kernel, marker, memcpy, sync, view
from support.draws import examples
from support.sessions import watch

from gpusense._aggregation import placement
from gpusense._aggregation.pipeline import AHEAD_NS, Limits, Marker, Pipeline
from gpusense._attribution.boundaries import CLOSE, DARK, LIT, OPEN, PLACED, SWITCH, Boundary
from gpusense._records.records import BlockRecord, ComputeBlock, Direction, GpuKernel, GpuMemoryTransfer

MAIN, AUTOGRAD = 0x7001, 0x7002
DRIVER = Marker(4, MARKER_CBID)


def names(pointer):
    return f"k{pointer:x}", f"k{pointer:x}<float>()", f"_Z{pointer:x}"


def pipeline(threshold_us=100, **limits):
    out = []
    made = Pipeline(
        Limits(threshold_us * 1000, **limits), emit=lambda records: out.extend(records), start_ns=T0, marker=DRIVER
    )
    return made, out


def feed(made, *records, thread=MAIN, now=T0):
    made.feed(view(*records), thread, STRIDES, names, now_ns=now)


def test_slow_kernel_kept():
    made, out = pipeline()
    feed(made, kernel(T0, T0 + 150_000))
    made.cycle(T0)
    (item,) = out
    assert isinstance(item, GpuKernel)
    assert (item.name, item.duration_ns, item.is_slow) == ("k100", 150_000, True)


def test_fast_kernel_filtered():
    made, out = pipeline()
    feed(made, kernel(T0, T0 + 99_999))
    made.cycle(T0)
    assert out == []
    (row,) = made.ledger.aggregates()
    assert (row.kind, row.name, row.count, row.total_ns) == ("kernel", "k100", 1, 99_999)


def test_others_get_the_gil_between_the_parts_and_an_interrupt_there_loses_nothing():
    made, _ = pipeline()
    buffers = [[kernel(T0 + i, T0 + i + 5, 1 + i) for i in range(first, first + 300)] for first in (0, 300, 600)]
    pauses = []
    for records in buffers:
        made.feed(view(*records), MAIN, STRIDES, names, pause=lambda: pauses.append(None))
    assert len(pauses) == 9  # of each buffer: after it was walked over, made columns of, and looked through

    def interrupt():
        raise KeyboardInterrupt

    for left in (600, 300, 0):
        with pytest.raises(KeyboardInterrupt):
            made.cycle(T0, pause=interrupt)
        assert made.counters().aggregated == 900 - left
    made.cycle(T0, pause=interrupt)
    assert made.counters()[:3] == (900, 0, 900)


def test_an_interrupt_between_kept_records_loses_none_of_them():
    made, out = pipeline()
    made.feed(view(*(kernel(T0 + i, T0 + i + 100_000, 1 + i) for i in range(300))), MAIN, STRIDES, names)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.cycle(T0, pause=interrupt)
    made.cycle(T0)
    assert len(out) == made.counters().kept == 300
    assert made.ledger.busy()[0].kernel_ns == 100_299


@pytest.mark.parametrize("count", [3, 300])
def test_an_uncertain_boundary_between_nothing_and_nothing_leaves_work_outside(count):
    made, _ = pipeline()
    made.attribution.boundary(Boundary(SWITCH, 0, 0, MAIN, T0, T0 + 5, token=7))
    made.attribution.lose(7)
    made.feed(view(*(kernel(T0 + i, T0 + i + 5, 1 + i) for i in range(count))), MAIN, STRIDES, names)
    made.cycle(T0)
    assert {(row.path, row.count) for row in made.ledger.aggregates()} == {((), count)}
    assert made.counters().ambiguous == 0


def test_exactly_at_the_threshold():
    made, out = pipeline()
    feed(made, kernel(T0, T0 + 100_000))
    made.cycle(T0)
    assert [item.is_slow for item in out] == [True]


def test_trace_all():
    made, out = pipeline(trace_all=True)
    feed(made, kernel(T0, T0 + 1), kernel(T0 + 5, T0 + 200_005))
    made.cycle(T0)
    assert [item.is_slow for item in out] == [False, True]
    assert made.ledger.aggregates() == []


def test_custom_threshold():
    made, out = pipeline(threshold_us=5)
    feed(made, kernel(T0, T0 + 5_000), kernel(T0, T0 + 4_999))
    made.cycle(T0)
    assert [item.duration_ns for item in out] == [5_000]


def test_fast_transfer_filtered_and_large_slow_transfer_kept():
    made, out = pipeline()
    feed(made, memcpy(T0, T0 + 800, size=64), memcpy(T0, T0 + 10_000_000, size=100_000_000, copy=2))
    made.cycle(T0)
    (item,) = out
    assert isinstance(item, GpuMemoryTransfer)
    assert (item.direction, item.bytes, item.bandwidth_mb_per_s) == ("gpu_to_cpu", 100_000_000, 10_000.0)
    (row,) = made.ledger.aggregates()
    assert (row.direction, row.bytes, row.count) == ("cpu_to_gpu", 64, 1)


def test_device_selection():
    made, out = pipeline(devices=frozenset({1}))
    feed(made, kernel(T0, T0 + 200_000, device=0), kernel(T0, T0 + 200_000, device=1))
    made.cycle(T0)
    assert [item.device for item in out] == [1]
    assert made.counters().seen == 1


def test_work_from_before_the_session_is_counted_apart():
    made, out = pipeline()
    feed(made, kernel(T0 - 10, T0 + 200_000), kernel(T0 + 1, T0 + 200_001))
    made.cycle(T0)
    assert len(out) == 1
    assert made.counters().pre_session == 1


@pytest.mark.parametrize("trace_all", [True, False])
@pytest.mark.parametrize("others", [(), (kernel(T0 + 1, T0 + 200_001),)])
def test_work_that_ends_later_than_it_was_read_is_of_another_clock(trace_all, others):
    made, out = pipeline(trace_all=trace_all)
    ahead = [kernel(end - 100, end) for end in (T0 + AHEAD_NS + 10**each for each in (0, 9, 17))]
    feed(made, *others, *ahead)
    feed(made, kernel(T0 + 5, T0 + AHEAD_NS))  # device and host need not agree to the nanosecond
    made.cycle(T0)
    counted = made.counters()
    assert [item.end_ns for item in out] == [T0 + 200_001] * len(others) + [T0 + AHEAD_NS]
    assert (counted.seen, counted.invalid, counted.in_future) == (4 + len(others), 3, 3)
    assert counted.seen == counted.kept + counted.aggregated + counted.invalid
    assert {row.last_ns for row in made.ledger.busy()} == {T0 + AHEAD_NS}
    feed(made, ahead[2], now=0)  # it is not known when that was
    made.cycle(T0)
    assert made.counters().in_future == 3


def of_graph(record, node, source=None):
    """A record that replays a node of a graph; ``source`` needs the size of CUDA 13.4."""
    raw = bytearray(record)
    kind, late = struct.unpack_from("<I", raw)[0], 240
    offset = {10: 144, 1: 64}[kind]
    struct.pack_into("<Q", raw, offset, node)
    if source is not None:
        raw += bytes(late + 8 - len(raw))
        struct.pack_into("<Q", raw, late, source)
    return bytes(raw)


FORWARD, BACKWARD = ("step", "forward"), ("step", "backward")


def sums(made):
    return {(row.name, row.stream, row.owner): (row.count, row.total_ns, row.bytes) for row in made.ledger.aggregates()}


def test_sums_of_replayed_kernels_carry_who_captured_them():
    made, out = pipeline()
    made.owners = {1: FORWARD, 2: BACKWARD}
    feed(
        made,
        of_graph(kernel(T0, T0 + 1000, 1), 1),
        of_graph(kernel(T0, T0 + 2000, 2), 2),
        of_graph(kernel(T0, T0 + 200_000, 3), 2),
        of_graph(kernel(T0, T0 + 4000, 4), 1),
        of_graph(kernel(T0, T0 + 8000, 5), 9),
        kernel(T0, T0 + 16_000, 6),
        of_graph(kernel(T0, T0 + 32_000, 7, stream=8), 1),
        of_graph(memcpy(T0, T0 + 64_000, 8, size=64), 2),
    )
    made.cycle(T0)
    assert [item.owner for item in out] == [BACKWARD]
    assert sums(made) == {
        ("k100", 7, FORWARD): (2, 5000, 0),
        ("k100", 7, BACKWARD): (1, 2000, 0),
        ("k100", 7, None): (2, 24_000, 0),
        ("k100", 8, FORWARD): (1, 32_000, 0),
        ("cpu_to_gpu", 7, BACKWARD): (1, 64_000, 64),
    }
    counted = made.counters()
    assert counted.seen == counted.kept + counted.aggregated == 8


def test_owners_in_sums_keep_to_the_blocks_that_replay():
    made, _ = pipeline()
    made.owners = {1: FORWARD}
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0, "a"), 10)
    made.attribution.boundary(Boundary(CLOSE, 1, None, MAIN, T0, T0), 20)
    feed(made, *(of_graph(kernel(T0, T0 + 1000, corr), 1) for corr in (5, 12, 14, 25)))
    made.cycle(T0, final=True)
    assert {row.path: (row.owner, row.count) for row in made.ledger.aggregates()} == {
        (): (FORWARD, 2),
        ("a",): (FORWARD, 2),
    }


def test_a_kept_record_that_is_evicted_keeps_its_owner_in_the_sums():
    made, _ = pipeline(max_records=1)
    made.owners = {1: FORWARD}
    feed(made, *(of_graph(kernel(T0, T0 + 200_000, corr), 1) for corr in (1, 2)))
    made.cycle(T0)
    assert sums(made) == {("k100", 7, FORWARD): (1, 200_000, 0)}


def test_the_source_of_a_node_names_the_owner_where_the_node_does_not():
    made, _ = pipeline()
    made.owners = {1: FORWARD, 5: BACKWARD}
    records = [
        of_graph(kernel(T0, T0 + 1000, corr), node, source) for corr, node, source in ((1, 1, 5), (2, 7, 5), (3, 7, 8))
    ]
    made.feed(view(*records), MAIN, {10: 248}, names, now_ns=T0)
    made.cycle(T0)
    assert sums(made) == {("k100", 7, owner): (1, 1000, 0) for owner in (FORWARD, BACKWARD, None)}


def test_without_known_graphs_nothing_is_looked_up(monkeypatch):
    from gpusense._aggregation import pipeline as _pipeline

    monkeypatch.setattr(_pipeline, "numbers", None)
    made, _ = pipeline()
    feed(made, of_graph(kernel(T0, T0 + 1000), 1))
    made.cycle(T0)
    assert sums(made) == {("k100", 7, None): (1, 1000, 0)}


def test_kernels_wait_for_the_marker_of_their_block():
    made, out = pipeline()
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0 + 500, "step"))
    feed(made, kernel(T0 + 1_000, T0 + 201_000, 12))
    made.cycle(T0 + 300_000)
    assert out == []
    assert not made.idle
    feed(made, marker(T0 + 200, 10, MAIN))
    made.cycle(T0 + 300_000)
    assert [(item.path, item.block_id) for item in out] == [(("step",), 1)]
    assert made.idle


def test_a_marker_that_never_comes_is_given_up():
    made, out = pipeline()
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0 + 500, "step"))
    feed(made, kernel(T0 + 1_000, T0 + 201_000, 12))
    made.cycle(T0 + 60_000_000_000)
    assert len(out) == 1
    assert made.counters().lost_markers == 1


def test_nested_blocks_forward_and_backward():
    made, out = pipeline(trace_all=True)
    asked = watch(made, 1, 2, 3)
    at = iter(range(0, 100_000, 1_000))
    corr = iter(range(1, 1000))
    records, autograd = [], []

    def boundary(op, block, parent, name=""):
        t = T0 + next(at)
        made.attribution.boundary(Boundary(op, block, parent, MAIN, t, t + 500, name))
        records.append(marker(t + 200, next(corr), MAIN))

    def launch(into, count):
        for _ in range(count):
            t = T0 + next(at)
            into.append(kernel(t, t + 400, next(corr)))

    boundary(OPEN, 1, None, "step")
    boundary(OPEN, 2, 1, "forward")
    launch(records, 13)
    boundary(CLOSE, 2, None)
    boundary(OPEN, 3, 1, "backward")
    launch(autograd, 37)
    boundary(CLOSE, 3, None)
    boundary(CLOSE, 1, None)
    launch(records, 2)
    feed(made, *autograd, thread=AUTOGRAD)
    feed(made, *records)
    made.cycle(T0 + 10**9, final=True)
    by_path = {}
    for item in out:
        by_path[item.path] = by_path.get(item.path, 0) + 1
    assert by_path == {("step", "forward"): 13, ("step", "backward"): 37, (): 2}
    assert asked[1].totals.rows["kernel", "k100"][:2] == [50, 50 * 400]
    assert asked[2].totals.rows["kernel", "k100"][0] == 13
    assert made.counters().inherited == 37


def test_overlapping_blocks_of_two_threads_with_unknown_launcher_are_ambiguous():
    made, out = pipeline()
    asked = watch(made, 1, 2)
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0 + 500, "a"), 1)
    made.attribution.boundary(Boundary(OPEN, 2, None, AUTOGRAD, T0, T0 + 500, "b"), 2)
    feed(made, kernel(T0, T0 + 200_000, 5), kernel(T0, T0 + 10, 6), thread=0)
    made.cycle(T0 + 10**9)
    (item,) = out
    assert item.ambiguous == (1, 2)
    assert item.path == ()
    assert made.counters().ambiguous == 2
    assert asked[1].totals.ambiguous == asked[2].totals.ambiguous == 2
    assert asked[1].totals.rows == {}


@pytest.mark.parametrize("count", [1, 500])
def test_counts_of_what_is_uncertain_do_not_depend_on_how_many_come_at_once(count):
    made, _ = pipeline()
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0, "a"), 1)
    feed(made, *(kernel(T0 + i * 10, T0 + i * 10 + 5, 5 + i) for i in range(count)), thread=AUTOGRAD)
    made.cycle(T0)
    assert (made.counters().inherited, made.counters().ambiguous) == (count, 0)
    made.attribution.boundary(Boundary(OPEN, 2, None, AUTOGRAD, T0, T0, "b"), 1000)
    feed(made, *(kernel(T0 + i * 10, T0 + i * 10 + 5, 1005 + i) for i in range(count)), thread=0)
    made.cycle(T0)
    assert (made.counters().inherited, made.counters().ambiguous) == (count, count)


@pytest.mark.parametrize("count", [2, 500])
def test_blocks_that_are_asked_for_are_told_of_what_may_be_theirs(count):
    made, _ = pipeline()
    asked = watch(made, 1, 2, 3)
    made.attribution.boundary(Boundary(OPEN, 3, None, MAIN, T0, T0, "around"), 0)
    made.attribution.boundary(Boundary(OPEN, 1, 3, MAIN, T0, T0, "a"), 1)
    made.attribution.boundary(Boundary(OPEN, 2, 3, AUTOGRAD, T0, T0, "b"), 2)
    feed(made, *(kernel(T0 + i * 10, T0 + i * 10 + 5, 5 + i) for i in range(count)), thread=0)
    made.cycle(T0)
    assert [asked[n].totals.ambiguous for n in (1, 2, 3)] == [count, count, 0]
    assert asked[1].totals.rows == asked[2].totals.rows == {}
    assert [row[0] for row in asked[3].totals.rows.values()] == [count]


@pytest.mark.parametrize("count", [2, 500])
def test_a_block_that_is_asked_for_is_told_of_what_may_be_its_where_nobody_asks_for_the_one_around(count):
    made, _ = pipeline()
    asked = watch(made, 2)
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0, "a"), 1)
    made.attribution.boundary(Boundary(OPEN, 2, None, AUTOGRAD, T0, T0, "b"), 2)
    feed(made, *(kernel(T0 + i * 10, T0 + i * 10 + 5, 5 + i) for i in range(count)), thread=0)
    made.cycle(T0)
    assert asked[2].totals.ambiguous == count


def test_budget_raises_the_threshold_in_a_burst_and_comes_back():
    made, out = pipeline(max_per_second=100)
    feed(made, *(kernel(T0 + i, T0 + i + 150_000) for i in range(300)), now=T0)
    made.cycle(T0)
    assert 100 <= len(out) < 300
    assert made.threshold.effective_ns > 100_000
    assert made.counters().seen == 300 == made.counters().kept + made.counters().aggregated
    for second in range(1, 20):
        feed(made, kernel(T0, T0 + 5), now=T0 + second * 10**9)
    assert made.threshold.effective_ns == 100_000
    assert made.threshold.highest_ns > 100_000


def test_memory_is_a_ring_and_totals_still_add_up():
    made, _ = pipeline(max_records=10, max_per_second=10**9)
    feed(made, *(kernel(T0 + i, T0 + i + 150_000) for i in range(50)))
    made.cycle(T0)
    assert len(made.kept) == 10
    assert made.kept[0].start_ns == T0 + 40
    assert sum(row.count for row in made.ledger.aggregates()) == 40
    counters = made.counters()
    assert (counters.seen, counters.kept, counters.aggregated) == (50, 10, 40)


def test_manual_records_take_the_same_way():
    made, out = pipeline()
    made.attribution.know(4, None, "frame")
    made.record(
        [
            GpuKernel("pass", T0, T0 + 250_000, backend="wgpu", block_id=4),
            GpuKernel("pass", T0, T0 + 10, backend="wgpu", block_id=4),
            ComputeBlock("simd", T0, T0 + 300_000, elements=3),
            BlockRecord("frame", 4, None, ("frame",), T0, T0 + 1, MAIN),
            GpuKernel("backwards", T0, T0 - 5, backend="wgpu"),
        ],
        T0,
    )
    assert [type(item).__name__ for item in out] == ["GpuKernel", "ComputeBlock", "BlockRecord"]
    assert out[0].path == ("frame",)
    assert made.counters().invalid == 1
    (row,) = made.ledger.aggregates()
    assert (row.path, row.backend, row.count) == (("frame",), "wgpu", 1)


def test_syncs_learn_their_device_and_own_calls_are_no_work():
    made, out = pipeline(trace_all=True)
    feed(made, kernel(T0, T0 + 5, 2, device=3, context=1), sync(T0, T0 + 9, 3))
    made.cycle(T0)
    assert {item.device for item in out} == {3}


def test_devices_of_contexts_that_come_and_go_are_forgotten(monkeypatch):
    monkeypatch.setattr(placement, "MAX_CONTEXTS", 10)
    made, out = pipeline(trace_all=True)
    for context in range(1, 200):
        feed(made, kernel(T0, T0 + 5, context, device=context % 4, context=context))
    made.cycle(T0)
    assert len(made._placer._contexts) <= 10
    feed(made, kernel(T0, T0 + 5, 300, device=3, context=1), sync(T0, T0 + 9, 301))
    made.cycle(T0)
    assert out[-1].device == 3


def test_wait_event_markers_are_not_counted_as_work():
    made = Pipeline(Limits(trace_all=True), start_ns=T0, marker=Marker(38, 2, None, 99))
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0 + 500, "a"))
    feed(made, sync(T0 + 100, T0 + 110, 7, kind=2, stream=99), sync(T0 + 100, T0 + 110, 8, kind=2, stream=98))
    made.cycle(T0 + 10**9)
    assert made.counters().seen == 1
    assert made.attribution.lost_markers == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 300_000), st.integers(0, 3), st.integers(1, 50), st.booleans()),
        min_size=1,
        max_size=200,
    ),
    st.booleans(),
)
@examples(50)
def test_nothing_is_lost_and_nothing_counted_twice(rows, trace_all):
    made, out = pipeline(trace_all=trace_all)
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0, "a"), 10)
    made.attribution.boundary(Boundary(CLOSE, 1, None, MAIN, T0, T0), 30)
    records = [
        memcpy(T0, T0 + d, corr, size=10) if copy else kernel(T0, T0 + d, corr, name=0x100 + name)
        for d, name, corr, copy in rows
    ]
    feed(made, *records)
    made.cycle(T0, final=True)
    counters = made.counters()
    assert counters.seen == len(rows) == counters.kept + counters.aggregated
    assert counters.kept == len(out)
    total = sum(item.duration_ns for item in out) + sum(row.total_ns for row in made.ledger.aggregates())
    assert total == sum(row[0] for row in rows)
    inside = sum(1 for _, _, corr, _ in rows if 10 <= corr < 30)
    found = sum(1 for item in out if item.path == ("a",)) + sum(
        row.count for row in made.ledger.aggregates() if row.path == ("a",)
    )
    assert found == inside


def covered(intervals):
    total, reach = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


WORK = st.tuples(
    st.integers(-50, 3_000),  # nanoseconds from the end of the one before
    st.sampled_from([0, 700, 4_000, 99_999, 100_000, 250_000]),
    st.integers(0, 3),  # name
    st.sampled_from([7, 7, 7, 8, 13]),  # stream
    st.sampled_from([0, 0, 0, 0, 1]),  # device
    st.sampled_from([True, False, False, False, False]),  # copy
)


@given(
    st.lists(st.tuples(WORK, st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(1, 2**34),
    st.booleans(),
    st.booleans(),
    st.integers(1, 200),
)
@examples(100)
def test_sums_and_busy_times_are_those_worked_out_record_by_record(runs, first, shuffled, one_stream, inside):
    """With ids that ascend or not, beyond 32 bits or not, work that overlaps or not, one stream or several."""
    made, out = pipeline()
    made.widener.newest = first
    watch(made, 1)
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0, "a"), first + 5)
    made.attribution.boundary(Boundary(CLOSE, 1, None, MAIN, T0, T0), first + 5 + inside)
    at, rows, records = T0 + 1_000_000, [], []
    for row, times in runs:
        for _ in range(times):
            step, duration, name, stream, device, copy = row
            stream, device = (7, 0) if one_stream else (stream, device)
            start = at + step
            rows.append((start, start + duration, name, stream, device, copy, first + len(rows)))
            at = start + duration
    if shuffled:
        random.Random(first).shuffle(rows)
    sums, kept, busy, watched = {}, [], {}, [0, 0]
    for start, end, name, stream, device, copy, corr in rows:
        if copy:
            records.append(memcpy(start, end, corr & 0xFFFFFFFF, size=10 + name, stream=stream, device=device))
        else:
            records.append(kernel(start, end, corr & 0xFFFFFFFF, name=name, stream=stream, device=device))
        path = ("a",) if first + 5 <= corr < first + 5 + inside else ()
        busy.setdefault(device, []).append((start, end))
        watched = [watched[0] + 1, watched[1] + end - start] if path else watched
        label = "cpu_to_gpu" if copy else f"k{name:x}"
        if end - start >= 100_000:
            kept.append((label, path, start, end, stream, device, corr))
            continue
        sums.setdefault((path, label, device, stream), []).append((end - start, 10 + name if copy else 0))
    feed(made, *records)
    made.cycle(T0, final=True)
    found = {
        (row.path, row.name, row.device, row.stream): (
            row.count, row.total_ns, row.min_ns, row.max_ns, row.sum_squares_ns2, row.bytes
        )
        for row in made.ledger.aggregates()
    }  # fmt: skip
    assert found == {
        key: (len(d), sum(d), min(d), max(d), sum(x * x for x in d), sum(b))
        for key, (d, b) in ((key, tuple(zip(*pairs, strict=True))) for key, pairs in sums.items())
    }
    assert sorted(kept) == sorted(
        (item.name, item.path, item.start_ns, item.end_ns, item.stream, item.device, item.correlation_id)
        for item in out
    )
    assert {row.device: row.busy_ns for row in made.ledger.busy()} == {d: covered(times) for d, times in busy.items()}
    totals = made.totals(1).rows.values()
    assert [sum(row[0] for row in totals), sum(row[1] for row in totals)] == watched


@pytest.mark.parametrize("junk", [b"", b"\x00" * 64, b"\xff" * 4096, bytes(range(256)) * 4])
def test_damaged_buffers_are_counted(junk):
    made, out = pipeline()
    made.feed(memoryview(junk), MAIN, STRIDES, names)
    made.cycle(T0)
    assert out == []
    assert made.counters().unknown_kinds == (1 if junk else 0)


def test_blocks_that_are_gone_are_forgotten():
    made, _ = pipeline()
    held = watch(made, *range(1, 3001))
    made.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0, "a"), 1)
    del held[2]
    held[3].block_id = 4000  # entered anew
    feed(made, kernel(T0, T0 + 200, 5))
    made.cycle(T0, final=True)
    assert set(made.watched.blocks) == {1, *range(4, 3001)}
    assert made.totals(1).rows["kernel", "k100"][0] == 1
    assert made.totals(2) is made.totals(3) is None
    assert made.totals(4).rows == {}
    held.clear()
    made.cycle(T0)
    assert len(made.watched.blocks) == 2998  # not each time
    watch(made, *range(5000, 9000))
    made.cycle(T0)
    assert set(made.watched.blocks) == set(range(5000, 9000))


@examples(60)
@given(st.integers(0, 2**32 - 1))
def test_kernels_that_come_together_are_counted_as_one_by_one(seed):
    """Three ways: many at a time where nobody may ask a block, with somebody who may, and one kernel at a time."""
    draw = random.Random(seed)
    rows, newest, block, around = [], 0, 0, []
    count = draw.randint(128, 400)
    while newest < count:
        newest += draw.randint(0, 40)
        if around and draw.random() < 0.5:
            rows.append((PLACED, CLOSE, around.pop(), None, MAIN, T0, "", newest))
        else:
            block += 1
            parent = around[-1] if around else None
            rows.append((PLACED, OPEN, block, parent, MAIN, T0, f"b{block % 5}", newest))
            around.append(block)
    keys = draw.choices([0x100, 0x140, 0x180, 0x11C0], k=draw.randint(1, 40))
    first = draw.choice([1, 2**32 - 100, draw.randrange(1, 2**32)])  # ids wrap
    records = [
        kernel(T0 + i, T0 + i + 5 + i % 7, (first + i) & 0xFFFFFFFF, name=keys[i % len(keys)]) for i in range(count)
    ]
    thread = draw.choice([MAIN, AUTOGRAD, 0])
    found = []
    for way in ("together", "asked", "one by one"):
        made, _ = pipeline()
        made.widener.newest = first - 1
        made.boundaries_after([(*row[:-1], (first - 1 + row[-1]) & 0xFFFFFFFF) for row in rows])
        keep = watch(made, 10**9) if way == "asked" else None
        for begin in range(0, count, 1 if way == "one by one" else 200):
            part = records[begin : begin + (1 if way == "one by one" else 200)]
            made.feed(view(*part), thread, STRIDES, names)
            made.cycle(T0)
        found.append((sorted(map(repr, made.ledger.aggregates())), made.counters()))
        del keep
    assert found[0] == found[1] == found[2]


#: Of names.
ADDRESSES = [0x7F00_0000 + (i << shift) for shift in (0, 8, 16) for i in range(1, 40)]


def steps(seed, names, length, skip, count):
    """A sequence of names that comes again, some of it left out here and there."""
    rng = random.Random(seed)
    step = [rng.choice(ADDRESSES[:names]) for _ in range(length)]
    return [key for i in range(count) if rng.random() >= skip for key in (step[i % length],)]


sequences = st.builds(
    steps,
    st.integers(0, 1000),
    st.integers(1, len(ADDRESSES)),
    st.integers(1, 90),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.integers(2, 700),
).filter(bool)


@pytest.mark.parametrize("asked", [False, True])
@given(
    st.lists(sequences, min_size=1, max_size=5),
    st.sampled_from([0.0, 0.0, 0.002, 0.05]),
    st.sampled_from([0.0, 0.01]),
    st.lists(st.integers(0, 2000), max_size=10),
    st.integers(0, 100),
)
@examples(60)
def test_a_pipeline_sums_what_it_does_not_keep(asked, batches, slow, copies, cuts, seed):
    """Blocks that begin and end anywhere, kernels that are kept between the others, copies, blocks someone may ask."""
    rng, out = random.Random(seed), []
    made = Pipeline(Limits(100_000, max_per_second=10**6), emit=out.extend, start_ns=T0)
    if asked:
        watch(made, 2)
    edges = sorted(set(cuts))
    for number, (low, high) in enumerate(zip(edges[::2], edges[1::2], strict=False), 1):
        made.attribution.boundary(Boundary(OPEN, number, None, 5, T0, T0, f"b{number % 2}"), low)
        made.attribution.boundary(Boundary(CLOSE, number, None, 5, T0, T0), high)

    def path(corr):
        return next(
            ((f"b{n % 2}",) for n, (a, b) in enumerate(zip(edges[::2], edges[1::2], strict=False), 1) if a <= corr < b),
            (),
        )

    at, corr, expected, kept, inside = T0 + 1000, 1, {}, [], [0, 0]
    for keys in batches:
        records = []
        for key in keys:
            duration = rng.randrange(100_000, 200_000) if rng.random() < slow else rng.randrange(100_000)
            if rng.random() < copies:
                records.append(memcpy(at, at + 10, corr))
                at, corr = at + 10, corr + 1
            records.append(kernel(at, at + duration, corr, name=key))
            if duration >= 100_000:
                kept.append((f"k{key:x}", path(corr), at))
            else:
                expected.setdefault((path(corr), f"k{key:x}"), []).append(duration)
            if len(edges) >= 4 and edges[2] <= corr < edges[3]:
                inside = [inside[0] + 1, inside[1] + duration]
            at, corr = at + duration, corr + 1
        made.feed(view(*records), 5, STRIDES, lambda pointer: (f"k{pointer:x}", None, None), now_ns=T0)
        made.cycle(T0)
    assert sorted((item.name, item.path, item.start_ns) for item in out) == sorted(kept)
    found = {
        (row.path, row.name): (row.count, row.total_ns, row.min_ns, row.max_ns, row.sum_squares_ns2)
        for row in made.ledger.aggregates()
        if row.kind == "kernel"
    }
    assert found == {key: (len(d), sum(d), min(d), max(d), sum(x * x for x in d)) for key, d in expected.items()}
    counters = made.counters()
    assert counters.seen == counters.kept + counters.aggregated
    if asked and len(edges) >= 4:
        rows = [row for (kind, _), row in made.totals(2).rows.items() if kind == "kernel"]
        assert [sum(row[0] for row in rows), sum(row[1] for row in rows)] == inside


MEMSET = struct.Struct("<IIQQQIIIIHHIQQIIII")


def memset(start, correlation, *, value=0, size=4, context=1, stream=5):
    rest = 0, context, stream, correlation, *[0] * 9
    return MEMSET.pack(2, value, size, start, start + 10, *rest)


def memsets(*records):
    """What is left of them, where stream 5 is the one of markers and boundary 41 has been met."""
    made = Pipeline(Limits(trace_all=True), start_ns=T0, marker=Marker(2, 0, None, 5, tokens=True))
    made.boundary_marked(Boundary(OPEN, 1, None, MAIN, T0, T0 + 5, "a", 41))
    strides = {**STRIDES, 2: MEMSET.size}
    made.feed(view(memset(T0 + 1, 1, value=41), *records), MAIN, strides, names, now_ns=T0)
    made.cycle(T0, final=True)
    return [record.bytes for record in made.kept]


def test_streams_of_other_contexts_have_the_same_numbers():
    ours = memset(T0 + 20, 2)  # as a canary
    assert memsets(ours, memset(T0 + 30, 3, size=1 << 20), memset(T0 + 40, 4, context=2)) == [1 << 20, 4]


MEMCPY2 = struct.Struct("<IBBBBQQQIIIIIIIIQQIIII")
PAGEABLE, PINNED, DEVICE = 1, 2, 3


def peer(at, correlation, *, copy=10, kinds=(DEVICE, DEVICE), devices=(0, 1)):
    source, destination = devices
    rest = 0, 1, 7, source, 1, destination, 2, correlation, *[0] * 6
    return MEMCPY2.pack(22, copy, *kinds, 0, 64, at, at + 10, *rest)


#: Whatever says which way a copy went: its kind, both memories, both devices.
COPIES = [
    *(
        lambda at, corr, copy=copy, kinds=kinds: memcpy(at, at + 10, corr, copy=copy, kinds=kinds)
        for copy in range(12)
        for kinds in itertools.product((0, PAGEABLE, PINNED, DEVICE, 5), repeat=2)
    ),
    *(
        lambda at, corr, copy=copy, devices=devices: peer(at, corr, copy=copy, devices=devices)
        for copy in (0, 8, 10)
        for devices in itertools.product((0, 1), repeat=2)
    ),
]


@pytest.mark.parametrize("at_once", [1, 500])
def test_a_copy_has_one_direction_kept_counted_and_in_the_table(at_once):
    """And in the totals of its block, if somebody asks for them."""
    kept = Pipeline(Limits(trace_all=True), start_ns=T0)
    counted = Pipeline(Limits(), start_ns=T0)
    watch(counted, 1)
    counted.attribution.boundary(Boundary(OPEN, 1, None, MAIN, T0, T0, "all"), 0)
    records = [copy(T0 + 100 * i, 1 + i) for i, copy in enumerate(COPIES)]
    random.Random(1).shuffle(records)
    for made in (kept, counted):
        for first in range(0, len(records), at_once):
            buffer = view(*records[first : first + at_once])
            made.feed(buffer, MAIN, {**STRIDES, 22: MEMCPY2.size}, names, now_ns=T0)
        made.cycle(T0, final=True)
    each = Counter(item.direction for item in kept.kept)
    assert set(each) == set(get_args(Direction))
    sums = counted.ledger.aggregates()
    assert {row.direction: row.count for row in sums} == {row.name: row.count for row in sums} == each
    assert {name: row[0] for (_, name), row in counted.totals(1).rows.items()} == each
    for made in (kept, counted):
        assert Counter(made.work.kinds[kind].direction for kind in made.work.kind) == each


def test_markers_are_told_by_their_context_where_none_carries_a_token():
    """As where ids are read: a canary is all that is there. Another copy's markers beside them."""
    made = Pipeline(Limits(trace_all=True), start_ns=T0, marker=Marker(2, 0, 1, 5, tokens=True))
    made.others_markers = frozenset({(2, 6), (None, 8)})
    strides = {**STRIDES, 2: MEMSET.size}
    places = [(context, stream) for context in (1, 2) for stream in (5, 6, 8)]
    records = [memset(T0 + 10 * i, i, context=context, stream=stream) for i, (context, stream) in enumerate(places, 1)]
    records.append(memset(T0 + 100, 9, context=2, stream=6, size=8))
    made.feed(view(*records), MAIN, strides, names, now_ns=T0)
    made.cycle(T0, final=True)
    assert [(row.context, row.stream, row.bytes) for row in made.kept] == [(1, 6, 4), (2, 5, 4), (2, 6, 8)]


@pytest.mark.parametrize("context", [None, 1])
def test_waits_on_a_stream_of_another_context_are_the_programs(context):
    made = Pipeline(Limits(trace_all=True), start_ns=T0, marker=Marker(2, 0, context, 5, tokens=True))
    made.feed(
        view(sync(T0 + 1, T0 + 2, 1, stream=5), sync(T0 + 3, T0 + 4, 2, stream=7)), MAIN, STRIDES, names, now_ns=T0
    )
    other = bytearray(sync(T0 + 5, T0 + 6, 3, stream=5))
    struct.pack_into("<I", other, 28, 2)
    made.feed(view(other), MAIN, STRIDES, names, now_ns=T0)
    made.cycle(T0, final=True)
    assert [row.correlation_id for row in made.kept] == ([2, 3] if context else [2])
    assert made.counters().seen == len(made.kept)


# --- where boundaries have no place -----------------------------------------------------------------------------------


def whose(made):
    made.cycle(T0 + 10**9, final=True)
    return {record.correlation_id & 0xFFFFFFFF: record.path for record in made.kept}


def test_what_was_launched_while_boundaries_had_no_place_is_not_seen():
    made, _ = pipeline(trace_all=True)
    made.boundaries_after([(PLACED, OPEN, 1, None, MAIN, T0, "a", 0)])
    made.boundary_after(Boundary(DARK, 0, None, 0, T0, T0), 3)
    made.boundary_about(Boundary(CLOSE, 1, None, MAIN, T0, T0))
    made.boundary_about(Boundary(OPEN, 2, None, MAIN, T0, T0, "b"))
    made.boundary_after(Boundary(LIT, 0, None, 0, T0, T0), 6)
    feed(made, *(kernel(T0 + 10 * i, T0 + 10 * i + 5, i) for i in (2, 7, 5, 3, 4, 8, 6)))
    assert whose(made) == {2: ("a",), 3: ("a",), 7: ("b",), 8: ("b",)}
    counters = made.counters()
    assert (counters.seen, counters.kept, counters.pre_session) == (7, 4, 3)


def test_ids_that_began_anew_while_another_had_cupti_are_later_than_all_before():
    made, _ = pipeline(trace_all=True)
    made.boundaries_after([(PLACED, OPEN, 1, None, MAIN, T0, "a", 0), (PLACED, CLOSE, 1, None, MAIN, T0 + 1, "", 90)])
    made.lines.add([(5, "before")])
    made.boundary_after(Boundary(DARK, 0, None, 0, T0 + 2, T0 + 2), 95)
    made.boundary_after(Boundary(LIT, 0, None, 0, T0 + 3, T0 + 3), 4)
    made.boundaries_after([(PLACED, OPEN, 2, None, MAIN, T0 + 4, "b", 4)])
    assert not made.lines  # they were of other calls
    feed(made, kernel(T0 + 10, T0 + 20, 5), kernel(T0 + 30, T0 + 40, 91))
    assert whose(made) == {5: ("b",), 91: ("b",)}


@pytest.mark.parametrize("work_first", [False, True])
def test_a_marker_may_say_that_ids_began_anew_when_work_behind_it_has_come(work_first):
    made = Pipeline(Limits(trace_all=True), start_ns=T0, marker=Marker(2, 0, None, 5, tokens=True))
    made.boundary_marked(Boundary(OPEN, 1, None, MAIN, T0, T0 + 1, "a", 41))
    strides = {**STRIDES, 2: MEMSET.size}
    made.feed(view(memset(T0, 10, value=41), kernel(T0 + 1, T0 + 2, 11)), MAIN, strides, names, now_ns=T0)
    made.boundary_about(Boundary(DARK, 0, None, 0, T0 + 5, T0 + 5))
    made.boundary_marked(Boundary(LIT, 0, None, 0, T0 + 10, T0 + 11, "", 42))
    made.boundary_marked(Boundary(OPEN, 2, 1, AUTOGRAD, T0 + 12, T0 + 13, "b", 43))
    buffers = [
        (MAIN, memset(T0 + 10, 3, value=42)),
        (AUTOGRAD, memset(T0 + 12, 4, value=43), kernel(T0 + 20, T0 + 21, 5)),
    ]
    for thread, *records in reversed(buffers) if work_first else buffers:
        made.feed(view(*records), thread, strides, names, now_ns=T0)
    found = whose(made)
    assert found[5] == ("a", "b")
    assert made.idle
