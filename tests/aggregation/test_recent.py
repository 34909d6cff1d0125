"""What is kept of the last seconds: what comes out is what went in, in whole parts, within its time and its room."""

import tracemalloc

import pytest
from support.cupti import STRIDES, T0, kernel, memcpy, view

from gpusense._aggregation import recent
from gpusense._aggregation.pipeline import Limits, Pipeline
from gpusense._aggregation.recent import Recent
from gpusense._aggregation.same_kernels import SameKernels
from gpusense._attribution.boundaries import CLOSE, OPEN, Boundary
from gpusense._records.records import BlockRecord, ComputeBlock, GpuKernel
from gpusense._records.work import WorkTable

S = 1_000_000_000


def block(number, start, end, **more):
    return BlockRecord("step", number, None, ("step",), start, end, 5, **more)


def pipeline(keep_s=10):
    made = Pipeline(Limits(), start_ns=T0)
    made.keep_recent(keep_s * S)
    return made


def contents(made):
    return [part.content for part in made.recent.parts()]


def test_rows_are_those_of_the_table_with_the_block_of_each():
    made = pipeline()
    boundary = made.attribution.boundary
    boundary(Boundary(OPEN, 1, None, 5, T0, T0, "step"), 2)
    boundary(Boundary(CLOSE, 1, None, 5, T0, T0), 4)
    made.feed(view(*[kernel(T0 + at, T0 + at + 9, at) for at in range(1, 6)]), 5, STRIDES, lambda _: ("k", None, None))
    made.feed(view(memcpy(T0 + 70, T0 + 90, 3)), 5, STRIDES, lambda _: ("", None, None))
    made.cycle(T0 + S)
    kernels, copies = contents(made)
    assert (list(kernels.counts), list(kernels.blocks), kernels.ambiguous) == ([1, 2, 2], [0, 1, 0], {})
    assert (list(copies.counts), list(copies.blocks)) == ([1], [1])
    whole = made.work.empty()
    for rows in (kernels, copies):
        whole.take(rows.columns)
    for name in ("start", "end", "order", "size", "kind", "path"):
        assert getattr(whole, name) == getattr(made.work, name)


def test_two_threads_in_one_buffer_leave_candidates():
    made = pipeline()
    for number, thread in ((1, 5), (2, 6)):
        made.attribution.boundary(Boundary(OPEN, number, None, thread, T0, T0, f"request {number}"), 1)
    made.feed(view(kernel(T0, T0 + 9, 2)), 0, STRIDES, lambda _: ("k", None, None))
    made.cycle(T0 + S)
    (rows,) = contents(made)
    assert (list(rows.blocks), rows.ambiguous) == ([0], {0: (1, 2)})


def test_finished_records_stay_what_they_are_however_many_a_second():
    made = Pipeline(Limits(max_per_second=2), start_ns=T0)
    made.keep_recent(10 * S)
    columns = SameKernels([GpuKernel("pass", 0, 0, backend="wgpu")], [0, 0], [T0, T0 + 10], [5, 6])
    items = [block(number, T0, T0 + number) for number in range(1, 9)] + [ComputeBlock("sum", T0, T0 + 3), columns]
    made.record(items, T0)
    assert made.counters().aggregated > 0
    (found,) = contents(made)
    assert found == items


def test_what_is_too_old_goes_and_what_is_of_a_time_that_has_not_come():
    made = Recent(10 * S, WorkTable())
    for number, end in enumerate((T0, T0 + 50 * S, T0 + 5 * S), 1):
        made.add(block(number, end - 9, end))
        made.trim(end)
    made.trim(T0 + 12 * S)
    assert [part.content[0].block_id for part in made.parts()] == [3]
    assert made.gone_ns == T0 + 5 * S  # when a time was met that had not come


def test_of_too_much_the_oldest_parts_go_whole():
    made = Recent(10 * S, WorkTable(), most_bytes=100_000)
    table = WorkTable()
    for number in range(100):
        at = T0 + number
        columns = table.append([0] * 100, [(100, 0)], [at] * 100, [at] * 100)
        made.add_rows(columns, [(100, 7, ())], at)
        assert made.size_bytes <= 100_000
    parts = made.parts()
    assert [part.newest_ns for part in parts] == list(range(T0 + 100 - len(parts), T0 + 100))
    assert made.gone_ns == parts[0].newest_ns - 1
    assert 15 < len(parts) < 25


def rows_of_a_run(length):
    """Batches of so many kernels in blocks of their own, as long runs have them, and a block record for each."""
    table = WorkTable(10)
    for number in range(1 << 20):
        at = T0 + number
        blocks = [(1, at + i, ()) for i in range(length)]
        yield table.append([0] * length, [(length, 0)], [at] * length, [at] * length), blocks, at


@pytest.mark.parametrize("of", ["rows", "short batches", "blocks", "passes"])
def test_it_takes_no_more_than_it_reckons(of):
    most = 1 << 20
    made = Recent(1 << 62, WorkTable(), most_bytes=most)
    runs = rows_of_a_run(2 if of == "short batches" else 1_000)
    tracemalloc.start()
    try:
        number = 0
        while not made.gone_ns:
            number += 1
            at = T0 + number
            if of == "blocks":
                made.add(block(number, at, at + number, attributes={"prompt": f"{number}" * 50}))
            elif of == "passes":
                starts = [at + i for i in range(50)]
                made.add(SameKernels([GpuKernel("pass", 0, 0)], [0] * 50, starts, [i + 300 for i in range(50)]))
            else:
                made.add_rows(*next(runs))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.15 * most


def test_with_what_writing_takes_it_stays_below_64_mb():
    assert recent.MOST_BYTES * 1.15 + (8 << 20) < 64_000_000


def test_settings_turn_it_on_and_off_and_a_reset_begins_anew():
    made = pipeline()
    made.record([block(1, T0, T0 + 1)], T0)
    made.keep_recent(5 * S)
    assert (len(contents(made)), made.recent.keep_ns) == (1, 5 * S)
    made.keep_recent(None)
    assert made.recent is None
    made.keep_recent(5 * S)
    assert contents(made) == []


def test_parts_do_not_change_when_more_comes():
    made = Recent(10 * S, WorkTable())
    made.add(block(1, T0, T0 + 1))
    (part,) = made.parts()
    made.add(block(2, T0, T0 + 1))
    assert len(part.content) == 1
    assert len(made.parts()) == 2
