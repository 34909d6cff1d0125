"""What a device did in a phase, and why it was empty, comes to the phase as far as it was seen."""

from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples
from support.sessions import MS, T0, block, kernel, session

from gpusense._records.records import UnseenInterval
from gpusense.analysis.facts import Facts

lengths = st.integers(1, 3 * MS)


@given(st.lists(st.tuples(lengths, lengths, st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=30))
@examples(150)
def test_work_and_the_causes_of_gaps_are_the_phase_as_far_as_it_was_seen(drawn):
    """``drawn``: how long each kernel runs, how long nothing does after it, and which quarters of that are unseen."""
    records, unseen, at = [], [], 0
    for number, (runs, empty, first, last) in enumerate(drawn):
        records.append(kernel("k", at, at + runs, correlation_id=number + 1))
        at += runs
        if first < last and number + 1 < len(drawn):
            low, high = (T0 + at + empty * quarter // 4 for quarter in (first, last))
            unseen.append(UnseenInterval(low, high, "off"))
        at += empty
    facts = Facts(session(*records, unseen=unseen))
    for view in facts.views:
        if view.name == "run":
            assert view.parts.busy + sum(cause.total_ns for cause in view.causes.values()) == view.length_ns


@given(st.lists(st.tuples(lengths, lengths, st.integers(0, 9)), min_size=30, max_size=45), st.integers(0, 44))
@examples(60)
def test_gaps_of_a_step_are_those_that_begin_in_it(drawn, off):
    """``drawn``: as above, and which kernels are new ones."""
    records, at, hidden = [], 0, []
    for number, (runs, empty, new) in enumerate(drawn):
        name = f"new {number}" if not new else "abc"[number % 3]
        records.append(kernel(name, at, at + runs, correlation_id=number + 1))
        if number == off:
            hidden.append(UnseenInterval(T0 + at + runs + empty // 2, T0 + at + runs + empty, "off"))
        at += runs + empty
    for view in Facts(session(*records, unseen=hidden)).views:
        for cause in view.causes.values():
            assert list(cause.gaps) == sorted(cause.gaps)
            spent = [0] * (view.steps.number if view.steps is not None else 0)
            for number in cause.gaps:
                inside = (
                    [at for at, start in enumerate(view.steps.starts) if start <= view.walk.gaps.start[number]]
                    if spent
                    else []
                )
                if inside:
                    spent[inside[-1]] += view.shown(number)
            assert view.gap_by_step(cause.gaps) == spent
            assert sum(row[3] for row in view.places(cause.gaps)) == cause.total_ns


def test_a_gap_that_was_seen_for_the_most_has_its_cause_and_no_more_of_it_counts():
    records = [kernel("k", at * MS, (at + 10) * MS, correlation_id=at + 1) for at in (0, 40, 80)]
    off = [UnseenInterval(T0 + low * MS, T0 + high * MS, "off") for low, high in ((12, 22), (50, 75))]
    around = block(("load",), 0, 90 * MS)
    (view,) = Facts(session(*records, around, unseen=off)).views
    assert view.length_ns == (90 - 10 - 25) * MS
    assert view.blocks(view.causes["host"].gaps) == ((("load",), 20 * MS),)
    assert {name: cause.total_ns for name, cause in view.causes.items() if cause.gaps} == {
        "host": 20 * MS,
        "unseen": 5 * MS,
    }
