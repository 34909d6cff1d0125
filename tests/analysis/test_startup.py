"""A start-up is divided, and its parts are the whole of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples
from support.sessions import MS, T0, alloc, copy, kernel, session

from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import findings
from gpusense.analysis.startup import dominates, start_up
from gpusense.report.text import summary
from gpusense.session import merge

SECOND = 1000 * MS


def run(pauses, *, initialised=None, rank=None):
    """A first kernel after a second; then the pauses, each ended by what it names; then ten steps of 30 ms."""
    records, at, number = [kernel("fill", SECOND, SECOND + MS, correlation_id=1)], SECOND + MS, 2
    for place, (seconds, ends) in enumerate(pauses):
        at += round(seconds * SECOND)
        if ends == "copy":
            records.append(copy("cpu_to_gpu", 1 << 20, at, at + MS, correlation_id=number))
        else:
            name = f"new_{place}" if ends == "new" else "fill"
            records.append(kernel(name, at, at + MS, correlation_id=number))
        at, number = at + MS, number + 1
    for _ in range(10):
        for name in "abc":
            records.append(kernel(name, at, at + 10 * MS, correlation_id=number))
            at, number = at + 10 * MS, number + 1
    capture = {} if initialised is None else {"cuda_live_ns": at - round(initialised * SECOND)}
    return session(*records, end=at, capture=capture, rank=rank)


def divided(made):
    facts = Facts(made)
    return start_up(made, facts.feeding[0])


def test_each_pause_comes_to_what_ends_it():
    found = divided(run([(3, "new"), (2, "copy"), (0.5, "again")], initialised=0.25))
    assert {what: round(spent / SECOND, 1) for what, spent in found.parts.items()} == {
        "before CUDA was initialised": 0.2,
        "from CUDA's initialisation to the device's first work": 0.8,
        "before kernels that ran for the first time": 3.0,
        "before copies to the device": 2.0,
        "of the device's own work": 0.0,
        "of other pauses": 0.5,
    }


@given(
    st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["copy", "new", "again"])), max_size=6),
    st.none() | st.floats(0, 2),
)
@examples(30)
def test_the_parts_are_the_whole(pauses, initialised):
    found = divided(run(pauses, initialised=initialised))
    assert sum(found.parts.values()) == found.whole_ns
    assert all(spent > 0 for spent in found.parts.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_its_large_parts_and_its_longest_pause_are_told_beside_the_verdict(ranks):
    made = run([(5, "new"), (1, "copy")], initialised=0.9)
    if ranks > 1:
        made = merge([made, run([(5, "new"), (1, "copy")], initialised=0.9, rank=1)])
    found = [one for one in findings(made) if one.kind == "startup"]
    assert len(found) == 1
    assert (
        "Start-up takes 7.01 s, 96 % of the run: 5.00 s before kernels that ran for the first time; " in found[0].title
    )
    assert (
        "900 ms before CUDA was initialised, 100 ms from CUDA's initialisation to the device's first work"
        in found[0].evidence[0]
    )
    assert found[0].evidence[1] == "The longest pause of GPU 0 is 5.00 s, from 1.00 s on, between fill and new_0."
    assert found[0].fix == "If runs stay as short as this: cache what is compiled."
    assert ("The same on 1 other device or rank: 96 %." in found[0].evidence) == (ranks > 1)
    head = " ".join(line.strip() for line in summary(made)[:4])
    assert "after 7.01 s of start-up (5.00 s of it before kernels that ran for the first time)" in head


def test_what_loads_a_module_is_loading_whatever_runs_next():
    made = run([(3, "again"), (1, "again")])
    made.records.append(alloc(4, 2 * SECOND, 7, memory="device_static"))
    assert round(divided(made).parts["before kernels that ran for the first time"] / SECOND, 1) == 3.0


def test_a_short_one_is_not_told():
    made = run([(0.2, "new")])
    assert not dominates(Facts(made).programs[0])
    assert "of start-up (" not in " ".join(summary(made))
    assert made.meta["start_ns"] == T0
