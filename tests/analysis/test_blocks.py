"""Blocks by path: what their passes took, how that splits, what was launched in them, and what is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sessions import MS, US, block, compute, copy, kernel, memset, session, sync, training

from gpusense._records.records import Aggregate
from gpusense._records.work import WorkKind, WorkTable
from gpusense.analysis.blocks import block_tree, why_unknown
from gpusense.session import load, merge, save


def counted_passes(path, lengths):
    squares = sum(length * length for length in lengths)
    return Aggregate(
        path[:-1], "block", path[-1], "cpu", None, None, len(lengths), sum(lengths), min(lengths), max(lengths), squares
    )


def test_the_block_tree_adds_up_kept_and_counted():
    counted = Aggregate(("a", "b"), "kernel", "k", "cuda", 0, 7, 5, 500, 100, 100, 50_000)
    run = session(
        block(("a",), 0, 1000), block(("a",), 1000, 1500, number=2), block(("a", "b"), 10, 500, number=3),
        kernel("k", 0, 100, path=("a",)), kernel("j", 100, 300, path=("a", "b")), memset(64, 300, 310, path=("a", "b")),
        sync(400, 450, path=("a",)), kernel("free", 900, 930), compute("cpu", 0, 10, path=("a",)),
        aggregates=[counted],
    )  # fmt: skip
    root = block_tree(run)
    a, b = root.children["a"], root.children["a"].children["b"]
    assert (root.gpu_ns, root.own_gpu_ns, root.kernels) == (30 + 100 + 200 + 10 + 500, 30, 8)
    assert (a.gpu_ns, a.own_gpu_ns, a.passes, a.wall_ns, a.own_sync_ns) == (810, 100, 2, 1500, 50)
    assert (b.gpu_ns, b.kernels, b.own_bytes, b.wall_ns) == (710, 6, 64, 490)
    assert b.operations["kernel", "k"] == [5, 500, 0]
    assert a.operations["compute", "cpu"] == [1, 10, 0]


def test_the_block_tree_tells_what_was_replayed_by_who_captured_it():
    path, captured = ("replay",), ("build", "forward")
    run = session(
        kernel("k", 0, 100, path=path, owner=captured),
        memset(64, 300, 310, path=path)._replace(owner=captured),
        kernel("j", 100, 300, path=path),
        aggregates=[
            Aggregate(path, "kernel", "k", "cuda", 0, 7, 5, 500, 100, 100, 50_000, owner=captured),
            Aggregate(path, "kernel", "k", "cuda", 0, 7, 2, 90, 40, 50, 4_100, owner=("build",)),
        ],
    )
    replay = block_tree(run).children["replay"]
    assert replay.owners == {captured: [6, 610], ("build",): [2, 90]}
    assert replay.gpu_ns == 900


# --- passes


def test_the_figures_of_passes_are_those_of_each_pass():
    run = session(*(block(("step",), at * MS, at * MS + at * 100, number=at) for at in range(1, 101)))
    times = block_tree(run).children["step"].times
    assert (times.passes, times.total_ns, times.min_ns, times.max_ns) == (100, 505_000, 100, 10_000)
    assert (times.avg_ns, times.median_ns, times.p95_ns) == (5050.0, 5050.0, 9500)
    assert times.std_ns == pytest.approx(2886.607)
    assert times.own_ns == times.total_ns


def test_passes_that_were_only_summed_count_and_leave_no_rank_that_is_not_known():
    kept = [block(("step",), at * MS, at * MS + 500, number=at) for at in range(1, 11)]
    short = session(*kept, aggregates=[counted_passes(("step",), [100, 200, 300])])
    times = block_tree(short).children["step"].times
    assert (times.passes, times.total_ns, times.min_ns) == (13, 5_600, 100)
    assert (times.median_ns, times.p95_ns) == (500, 500)  # the summed ones are all shorter
    mixed = session(*kept, aggregates=[counted_passes(("step",), [100, 900])])
    times = block_tree(mixed).children["step"].times
    assert (times.passes, times.total_ns, times.max_ns) == (12, 6_000, 900)
    assert (times.median_ns, times.p95_ns) == (None, None)
    assert why_unknown(mixed, "median_ns") == "too many passes were only summed"


def test_own_time_is_without_blocks_inside_also_where_these_run_at_once_or_outlive_it():
    run = session(
        block(("a",), 0, 100, number=1),
        block(("a", "b"), 10, 40, number=2, parent=1),
        block(("a", "c"), 20, 60, number=3, parent=1),  # beside it, of another task
        block(("a", "c"), 90, 130, number=4, parent=1),  # ends after it
        block(("a",), 1000, 1010, number=5),
    )
    root = block_tree(run)
    assert root.children["a"].times.own_ns == 110 - 50 - 10
    assert [(depth, node.name, node.times.own_ns) for depth, node in root.walk()] == [
        (0, "a", 50), (1, "c", 80), (1, "b", 30),
    ]  # fmt: skip


_SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=6)


@given(st.lists(_SPANS, min_size=1, max_size=3))
def test_own_time_is_when_no_block_inside_was_open(inside):
    """Each pass of 20 ns, and the passes in it, which may overlap and end after it."""
    records, expected, number = [], 0, 100
    for at, spans in enumerate(inside, 1):
        start = at * 1000
        records.append(block(("a",), start, start + 20, number=at))
        for low, length in spans:
            number += 1
            records.append(block(("a", f"b{length % 2}"), start + low, start + low + length, number=number, parent=at))
        expected += sum(not any(low <= time < low + length for low, length in spans) for time in range(20))
    assert block_tree(session(*records)).children["a"].times.own_ns == expected


def test_own_times_add_up_to_the_run_of_the_outermost_block():
    for _, node in block_tree(training(6)).walk():
        inside = sum(child.wall_ns for child in node.children.values())
        assert node.times.own_ns == node.wall_ns - inside


# --- how the time splits


def test_the_time_splits_into_waits_and_the_host_and_what_was_launched_inside():
    run = session(
        block(("step",), 0, 1000, number=1),
        block(("step", "load"), 0, 400, number=2, parent=1),
        copy("cpu_to_gpu", 64, 10, 110, path=("step", "load")),
        copy("cpu_to_gpu", 32, 10, 15, path=("step", "load"), timing="host"),
        memset(8, 120, 121, path=("step",)),
        kernel("k", 200, 500, path=("step",)),
        sync(300, 500, path=("step",)),
        sync(300, 340, path=("step",), name="stream_wait_event"),
        end=1000,
    )
    step = block_tree(run).children["step"]
    times = step.times
    assert (times.kernel_ns, times.kernels, times.transfer_ns, times.transfer_bytes) == (300, 1, 105, 96)
    assert (times.wait_ns, times.host_ns) == (200, 800)  # a stream that waits is not the host
    assert (step.own_sync_ns, step.gpu_ns) == (240, 401)
    load = step.children["load"].times
    assert (load.kernel_ns, load.transfer_bytes, load.wait_ns, load.host_ns) == (0, 96, 0, 400)


def test_all_work_is_found_by_its_block_also_where_its_sums_are_not():
    """Of very many blocks sums are kept together; the rows of all work still know each."""
    work = WorkTable()
    number = work.kind_of(WorkKind("kernel", "k", "k()", device=0))
    upload = work.kind_of(WorkKind("transfer", "cpu_to_gpu", device=0, direction="cpu_to_gpu", timing="host"))
    for at in range(20):
        path = work.path_of((f"request {at}", "forward"))
        work.append(
            [number, upload], [(2, path)], [at * US + 1, at * US + 1], [at * US + 11, at * US + 4], sizes=[0, 8]
        )
    run = session(
        *(block((f"request {at}", "forward"), at * US, at * US + 500, number=at) for at in range(20)),
        kernel("k", 0, 10, path=("request 0", "forward")),
        compute("cpu", 0, 5, path=("request 0",)),
        aggregates=[Aggregate(("(other)",), "kernel", "(other)", "cuda", 0, None, 19, 190, 10, 10, 1900)],
    )
    run.take_work(work)
    root = block_tree(run)
    assert {node.times.kernel_ns for depth, node in root.walk() if depth == 1} == {10}
    assert "(other)" not in root.children
    assert (root.times.kernels, root.times.kernel_ns, root.times.transfer_bytes, root.gpu_ns) == (20, 200, 160, 200)
    assert root.children["request 0"].operations["compute", "cpu"] == [1, 5, 0]
    work.summed = 1  # not all of it: the sums have everything
    assert (block_tree(run).times.kernels, block_tree(run).times.kernel_ns) == (20, 200)


def test_a_saved_session_has_the_same_figures(tmp_path):
    run = training(5)
    save(run, tmp_path / "run.gpusense")
    again = load(tmp_path / "run.gpusense")
    figures = [[node.times for _, node in block_tree(one).walk()] for one in (run, again)]
    assert figures[0] == figures[1]


# --- what is not known


@pytest.mark.parametrize(
    ("capture", "kinds", "gpu", "wait"),
    [
        ({}, (), None, None),
        ({"state": "unavailable", "reason": "no CUDA device"}, ("sync",), None, None),
        ({"state": "armed"}, (), None, None),
        ({"state": "stopped"}, (), 0, None),
        ({"state": "running"}, ("sync",), 0, 0),
    ],
)
def test_what_could_not_be_seen_is_unknown_and_what_was_watched_is_zero(capture, kinds, gpu, wait):
    run = session(block(("step",), 0, MS), end=MS, capture=capture, kinds=kinds)
    times = block_tree(run).children["step"].times
    assert (times.kernel_ns, times.kernels, times.transfer_ns, times.transfer_bytes) == (gpu,) * 4
    assert (times.wait_ns, times.host_ns) == (wait, None if wait is None else MS)
    for field, value in times._asdict().items():
        assert value is not None or why_unknown(run, field)


def test_a_reason_is_that_of_the_session():
    blind = session(block(("step",), 0, MS), capture={"state": "unavailable", "reason": "no driver"}, kinds=["sync"])
    assert why_unknown(blind, "kernel_ns") == why_unknown(blind, "wait_ns") == "no driver"
    assert "kinds=('sync',)" in why_unknown(session(), "wait_ns")


def test_of_merged_processes_each_is_known_or_not_for_itself():
    sighted = session(block(("step",), 0, MS), kernel("k", 0, 10, path=("step",)), end=MS, rank=0)
    blind = session(block(("step",), 0, MS), end=MS, rank=1, pid=4343, capture={"state": "unavailable"})
    root = block_tree(merge([sighted, blind]))
    seen = {node.path: node.times.kernel_ns for _, node in root.walk()}
    assert seen == {("rank 0",): 10, ("rank 0", "step"): 10, ("rank 1",): None, ("rank 1", "step"): None}
