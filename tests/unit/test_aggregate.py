"""Groups and unions against sums that are easy to believe."""

import math
import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from gpusense import _aggregate
from gpusense._aggregate import Busy, Groups, IntervalUnion, span_of

KEY = (("step",), "kernel", "gemm", "cuda", 0, 7, None)


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=1, max_size=20), min_size=1, max_size=10))
def test_groups_are_the_sum_of_their_parts(parts):
    groups = Groups()
    for part in parts:
        groups.add(KEY, part, size=len(part))
    everything = [value for part in parts for value in part]
    (row,) = groups.rows()
    assert (row.count, row.total_ns, row.min_ns, row.max_ns) == (
        len(everything),
        sum(everything),
        min(everything),
        max(everything),
    )
    assert row.sum_squares_ns2 == sum(value * value for value in everything)
    assert row.bytes == len(everything)
    assert abs(row.std_ns - statistics.pstdev(everything)) <= 1e-6 * (1 + row.avg_ns)


@given(
    st.integers(0, 40).flatmap(
        lambda bits: st.lists(st.integers(0, 2**bits), min_size=1, max_size=2000 if bits % 8 == 0 else 150)
    )
)
def test_a_row_is_exact_whether_its_squares_are_added_or_taken_from_their_root(durations):
    assert _aggregate.row_of(durations) == [
        len(durations),
        sum(durations),
        min(durations),
        max(durations),
        sum(value * value for value in durations),
        0,
    ]


def test_squares_are_exact_up_to_where_the_root_is_trusted():
    source = random.Random(7)
    for count in (1, 2, 3, 10, 101, 1000, 30_000):
        most = math.isqrt(_aggregate._EXACT_FROM_ROOT // count)
        for low in (0, most // 2, most - 1):
            for _ in range(20):
                durations = [source.randint(max(low, 0), most) for _ in range(count)]
                assert _aggregate.row_of(durations)[4] == sum(value * value for value in durations)


def test_group_number_is_bounded_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(_aggregate, "MAX_GROUPS", 10)
    groups = Groups()
    for i in range(100):
        groups.add(((), "kernel", f"k{i}", "cuda", 0, 7, None), [5])
    rows = groups.rows()
    assert len(rows) <= 11
    assert sum(row.count for row in rows) == 100
    assert any(row.name == _aggregate.OTHER for row in rows)


def test_groups_of_ever_new_root_blocks_are_bounded_too(monkeypatch):
    monkeypatch.setattr(_aggregate, "MAX_GROUPS", 10)
    groups = Groups()
    for i in range(100):
        for _ in range(2):
            groups.add(((f"request {i}", "step"), "kernel", "k", "cuda", 0, i, None, None, None), [5])
    rows = groups.rows()
    assert len(rows) <= 21
    assert sum(row.count for row in rows) == 200
    assert sum(row.count for row in rows if row.path == ("request 5", "step")) == 2
    assert sum(row.count for row in rows if row.path == ("request 15",)) == 2
    assert sum(row.count for row in rows if row.path == (_aggregate.OTHER,)) == 2 * 80


def brute(intervals):
    covered = set()
    for start, end in intervals:
        covered.update(range(start, end))
    return len(covered)


INTERVALS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)).map(lambda p: (p[0], p[0] + p[1])), max_size=30)


@given(st.lists(INTERVALS, max_size=6), st.integers(1, 40))
def test_union_stays_exact_when_early_work_is_summed_up(batches, fold_at):
    """Batches in order of time, each begun after all before it had ended but for some overlap."""
    union = IntervalUnion()
    flat = []
    for number, batch in enumerate(filter(None, batches)):
        moved = [(start + 400 * number, end + 400 * number) for start, end in batch]
        flat += moved
        union.add(span_of([start for start, _ in moved], [end for _, end in moved]))
        if union._held > fold_at:
            union._fold()
    assert union.total_ns() == brute(flat)


@given(st.lists(INTERVALS, max_size=5))
def test_union_equals_brute_force(batches):
    union = IntervalUnion()
    for batch in filter(None, batches):
        union.add(span_of([start for start, _ in batch], [end for _, end in batch]))
    flat = [interval for batch in batches for interval in batch]
    assert union.total_ns() == brute(flat)
    if flat:
        assert union.first == min(start for start, _ in flat)
        assert union.last == max(end for _, end in flat)


def test_union_is_bounded_and_exact_in_order():
    union = IntervalUnion()
    for i in range(100_000):
        union.add(span_of([i * 10], [i * 10 + 4]))
        union.add(span_of([i * 10 + 2], [i * 10 + 5]))
    assert union.total_ns() == 500_000
    assert len(union._spans) <= _aggregate.FOLD_AT // 16


def test_a_span_that_is_known_to_be_in_order_is_what_it_is_found_to_be():
    starts, ends = [0, 10, 30], [10, 20, 31]
    assert span_of(starts, ends, 21, True) == span_of(starts, ends, 21) == span_of(starts, ends)
    assert span_of([0, 5], [10, 20]) == (0, 20, 20, [0], [20])


def test_busy_by_device_and_side():
    busy = Busy()
    busy.add("cuda", 0, True, [0, 5], [10, 20])
    busy.add("cuda", 0, False, [15], [30])
    busy.add("cuda", 1, True, [0], [1])
    rows = {row.device: row for row in busy.rows()}
    assert (rows[0].kernel_ns, rows[0].transfer_ns, rows[0].busy_ns) == (20, 15, 30)
    assert rows[1].busy_ns == 1
