"""Whole columns at once say what looking at each value says."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._records import lanes

numbers = st.one_of(st.integers(0, 9), st.integers(0, 2**62 - 1), st.integers(-(2**61), 2**61))
pairs = st.lists(st.tuples(numbers, numbers), max_size=30)
masks = st.lists(st.sampled_from((0, 0, 0, 1)), max_size=40).map(bytes)


@pytest.fixture(autouse=True)
def short_parts(monkeypatch):
    monkeypatch.setattr(lanes, "_PART", 7)


@given(pairs)
@examples(200)
def test_differences_and_comparisons_are_those_of_each_pair(drawn):
    left, right = (array("q", column) for column in zip(*drawn, strict=True)) if drawn else (array("q"), array("q"))
    assert list(lanes.lengths(left, right)) == [b - a for a, b in drawn]
    assert list(lanes.less(left, right)) == [a < b for a, b in drawn]
    limit = abs(drawn[0][0]) if drawn else 0
    assert list(lanes.above(right, limit)) == [b > limit for _, b in drawn]


@given(masks)
@examples(100)
def test_places_are_those_of_the_ones(mask):
    assert list(lanes.places(mask)) == [at for at, one in enumerate(mask) if one]


@given(st.lists(st.tuples(st.integers(-9, 3), st.integers(1, 12)), max_size=8), st.sampled_from((1, 16)))
@examples(200)
def test_pieces_put_a_column_in_order_as_sorting_does(runs, rises):
    """Runs of values that rise, each from somewhat below the end of the one before it."""
    column, at = array("q"), 20
    for step, length in runs:
        for _ in range(length):
            at += 1 if step % 2 else 0
            column.append(at)
        at += step
    before, lanes._RISES = lanes._RISES, rises
    try:
        pieces = lanes.in_order(column)
    finally:
        lanes._RISES = before
    ordered = sorted(range(len(column)), key=column.__getitem__)
    assert pieces is None or [at for first, last in pieces for at in range(first, last)] == ordered
    if pieces is not None:
        assert list(lanes.joined(column, pieces)) == sorted(column)
    assert pieces is not None or rises == 16


def test_a_column_that_falls_all_the_time_is_not_taken_apart():
    assert lanes.in_order(array("q", range(1000, 0, -1))) is None
    assert lanes.in_order(array("q", range(1000))) == [(0, 1000)]
