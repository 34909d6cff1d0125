"""The walk over a device's work says what plain sets of nanoseconds say."""

from array import array
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense.analysis.rows import Rows
from gpusense.analysis.sweep import COLLECTIVE, COMPUTE, COPY, Columns, sweep

work = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12), st.integers(0, 2), st.integers(0, 1)), max_size=25)
cuts = st.lists(st.integers(1, 59), max_size=6)


@given(work, cuts)
@examples(300)
def test_parts_and_gaps_are_those_of_sets(drawn, inside):
    drawn = sorted(drawn)
    starts = array("q", [start for start, *_ in drawn])
    ends = array("q", [start + length for start, length, *_ in drawn])
    kinds = array("I", [2 * what + stream for _, _, what, stream in drawn])
    classes, streams = [0, 0, 1, 1, 2, 2], [7, 8] * 3
    edges = [0, *sorted(set(inside)), 60]
    found = sweep(Columns(Rows(bytes((1,)) * len(drawn)), starts, ends, kinds, classes, streams), edges)

    def moments(*wanted):
        return {
            t
            for start, end, kind in zip(starts, ends, kinds, strict=True)
            if classes[kind] in wanted
            for t in range(start, end)
        }

    for segment, (low, high) in enumerate(pairwise(edges)):
        parts, here = found.parts(segment, segment + 1), set(range(low, high))
        compute, both = moments(COMPUTE) & here, moments(COMPUTE, COLLECTIVE) & here
        copy, everything = moments(COPY) & here, moments(COMPUTE, COLLECTIVE, COPY) & here
        assert parts.compute == len(compute)
        assert parts.collective_alone == len(both - compute)
        assert parts.copy_alone == len(everything - both)
        assert parts.copy_hidden == len(copy & compute)
        assert parts.collective_hidden == len(moments(COLLECTIVE) & compute)
        assert parts.compute + parts.collective_alone + parts.copy_alone + parts.empty == high - low
    assert sum(found.parts(i, i + 1).busy for i in range(len(edges) - 1)) == found.parts().busy
    between = {t for start, end in zip(found.gaps.start, found.gaps.end, strict=True) for t in range(start, end)}
    worked = {t for t in moments(COMPUTE, COLLECTIVE, COPY) if t < 60}
    span = set(range(min(worked), max(worked) + 1)) if worked else set()
    assert between >= span - worked
    assert not between & worked
