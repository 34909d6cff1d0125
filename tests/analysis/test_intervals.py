import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpusense.analysis.intervals import apart, complement, intersect, subtract, total, union

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def points(intervals):
    return {point for start, end in intervals for point in range(start, end)}


@given(spans, spans)
def test_intervals_agree_with_sets_of_points(left, right):
    a, b = union(left), union(right)
    assert points(a) == points(left)
    assert total(a) == len(points(left))
    assert points(intersect(a, b)) == points(left) & points(right)
    assert points(subtract(a, b)) == points(left) - points(right)
    assert apart(a, b) == [span for span in a if not points([span]) & points(right)]
    assert points(complement(a, 5, 50)) == set(range(5, 50)) - points(left)


@given(spans)
def test_a_union_is_sorted_disjoint_and_not_touching(left):
    merged = union(left)
    assert all(start < end for start, end in merged)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(merged))
