"""Groups against sums that are easy to believe."""

import math
import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from gpusense._aggregation import groups as _aggregate
from gpusense._aggregation.groups import Groups, row_of
from gpusense._records.records import GpuKernel

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


def test_kernels_of_one_label_are_summed_up_by_their_full_names():
    groups = Groups()
    for full_name, duration in (("fill<2>", 5), ("fill<4>", 7), ("fill<2>", 9)):
        item = GpuKernel("fill", 100, 100 + duration, full_name=full_name)
        groups.add(_aggregate.key_of(item, "kernel", ()), [duration])
    assert {row.full_name: (row.name, row.count, row.total_ns) for row in groups.rows()} == {
        "fill<2>": ("fill", 2, 14),
        "fill<4>": ("fill", 1, 7),
    }


def test_group_number_is_bounded_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(_aggregate, "MAX_GROUPS", 10)
    groups = Groups()
    for i in range(100):
        groups.add(((), "kernel", f"k{i}", "cuda", 0, 7, None, None, None, "device", None), [5])
    rows = groups.rows()
    assert len(rows) <= 11
    assert sum(row.count for row in rows) == 100
    assert any(row.name == _aggregate.OTHER for row in rows)


def test_groups_of_ever_new_root_blocks_are_bounded_too(monkeypatch):
    monkeypatch.setattr(_aggregate, "MAX_GROUPS", 10)
    groups = Groups()
    for i in range(100):
        for _ in range(2):
            groups.add(((f"request {i}", "step"), "kernel", "k", "cuda", 0, i, None, None, None, "device", None), [5])
    rows = groups.rows()
    assert len(rows) <= 21
    assert sum(row.count for row in rows) == 200
    assert sum(row.count for row in rows if row.path == ("request 5", "step")) == 2
    assert sum(row.count for row in rows if row.path == ("request 15",)) == 2
    assert sum(row.count for row in rows if row.path == (_aggregate.OTHER,)) == 2 * 80


@given(st.lists(st.integers(-(2**63), 2**63), min_size=1, max_size=120))
def test_durations_of_damaged_records_are_summed_up_exactly(durations):
    assert row_of(durations)[4] == sum(duration * duration for duration in durations)
