"""Rows by their mask: what they give of a column is what a list of their numbers gives."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense.analysis import rows as module
from gpusense.analysis.rows import Rows, grouped, marked, sums

stretches = st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=8)


@pytest.fixture(autouse=True)
def short_parts(monkeypatch):
    monkeypatch.setattr(module, "_PART", 5)


def mask_of(drawn):
    return b"".join(bytes((one,)) * length for one, length in drawn)


@given(stretches, stretches, st.lists(st.integers(0, 60), max_size=6))
@examples(200)
def test_rows_are_those_of_their_mask(drawn, other, cuts):
    mask = mask_of(drawn)
    rows, numbers = Rows(mask), [at for at, one in enumerate(mask) if one]
    column = array("q", (7 * at % 11 for at in range(len(mask))))
    assert list(rows) == numbers
    assert len(rows) == len(numbers)
    assert rows.first == (numbers[0] if numbers else None)
    assert list(rows.of(column)) == [column[at] for at in numbers]
    ends = array("q", (at * at for at in range(len(mask))))
    assert list(rows.lengths(column, ends)) == [ends[at] - column[at] for at in numbers]
    chained = [at for at in numbers if at - 1 in numbers or at + 1 in numbers]
    assert list(rows.chained()) == chained
    assert rows.number_of_stretches == sum(at - 1 not in numbers for at in numbers)
    second = mask_of(other)[: len(mask)].ljust(len(mask), b"\0")
    assert list(rows.where(second)) == [at for at in numbers if second[at]]
    ends = sorted(min(cut, len(mask)) for cut in cuts)
    spans = list(zip(ends[::2], ends[1::2], strict=False))
    assert list(rows.within(spans)) == [at for at in numbers if any(low <= at < high for low, high in spans)]
    first = dict(zip(reversed(rows.of(column)), reversed(numbers), strict=True))
    assert rows.firsts(column) == sorted(first.items(), key=lambda item: item[1])


@pytest.mark.parametrize("kinds", [1, 3, 256, 300])
def test_each_row_is_marked_as_its_kind(kinds):
    column = array("I", (at * at % kinds for at in range(500)))
    flags = [at % 3 == 1 for at in range(kinds)]
    assert list(marked(column, flags)) == [flags[kind] for kind in column]
    assert marked(array("I"), []) == b""


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(1, 60)), max_size=5),
    st.sampled_from((2, 64)),
    st.sampled_from((0, 4000)),
)
@examples(150)
def test_values_are_grouped_by_their_number_whatever_repeats_itself(drawn, alike, length):
    """Steps one after the other, of one loop, of several, or of none."""
    numbers = array("I", (7,)) * length + array("I", (one for step, times in drawn for one in step * times))
    values = array("q", (at * 37 % 101 for at in range(len(numbers))))
    before, module._ALIKE = module._ALIKE, alike
    try:
        found = grouped(numbers, values)
    finally:
        module._ALIKE = before
    expected = {}
    for number, value in zip(numbers, values, strict=True):
        expected.setdefault(number, []).append(value)
    assert list(found) == list(expected)
    assert [mine[0] for mine in found.values()] == [mine[0] for mine in expected.values()]
    assert [sorted(mine) for mine in found.values()] == [sorted(mine) for mine in expected.values()]


@pytest.mark.parametrize("length", [600, 7])
def test_steps_of_a_loop_are_found_also_where_another_loop_lies_in_it(length):
    step = [*range(length)] + [1, 2, 3, 4] * 30
    numbers = array("I", step * 40)
    pieces = list(module._repeats(numbers))
    assert sum(period * times for _, period, times in pieces) == len(numbers)
    assert (len(step), 39) <= max((period, times) for _, period, times in pieces)


def test_values_are_added_up_by_their_number():
    assert sums(array("I", [2, 0, 2]), array("q", [5, 7, 9]), 4) == [7, 0, 14, 0]
