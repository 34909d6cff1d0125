"""A run is divided into phases that cover it, and its steps have the name that the program gives them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples
from support.sessions import MS, T0, US, block, copy, kernel, session

from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import ranked, verdict
from gpusense.analysis.program import INTERLUDE, START_UP, STEADY, TAIL, WHOLE
from gpusense.session import merge


def training(steps=40, *, start_up=300 * MS, save_every=0, blocks=False, warm_up=0):
    records, at, order = [kernel("init", start_up // 2, start_up // 2 + MS, correlation_id=1)], start_up, 2
    for step in range(steps):
        began = at
        at += 30 * MS if step < warm_up else 2 * MS
        for name, length in (("forward", 3 * MS), ("backward", 4 * MS), ("optimizer", MS)):
            path = ("train", "step") if blocks else ()
            records.append(kernel(name, at, at + length, correlation_id=order, path=path))
            at, order = at + length, order + 1
        if blocks:
            records.append(block(("train", "step"), began, at, number=10 + step, parent=1))
        if save_every and step % save_every == save_every - 1:
            for _ in range(5):
                records.append(copy("gpu_to_cpu", 10**6, at, at + 20 * MS, correlation_id=order))
                at, order = at + 20 * MS, order + 1
    if blocks:
        records.append(block(("train",), start_up, at, number=1))
    return session(*records, end=at + 50 * MS)


def program(run):
    (found,) = Facts(run).programs
    return found


def test_start_up_steps_and_tail():
    found = program(training())
    assert [phase.name for phase in found.phases] == [START_UP, STEADY, TAIL]
    assert found.steps.number == pytest.approx(40, abs=1)
    assert found.steps.median_ns == 10 * MS
    assert found.steps.name == "step"
    assert found.phases[0].start_ns == T0
    assert found.judged == STEADY


@pytest.mark.parametrize("name", ["backend_compile_and_load", "lower_sharding_computation", "autotune"])
def test_a_compiler_s_block_is_no_step(name):
    run = training(120)
    starts = program(run).steps.starts
    blocks = [block((name,), start - T0, start - T0 + 28 * MS) for start in starts[::3]]
    rows = [row._replace(path=(name,)) for row in run.records]
    assert program(session(*rows, *blocks, end=1_500 * MS)).steps.name == "step"
    blocks = [one._replace(name="compiled_step", path=("compiled_step",)) for one in blocks]
    rows = [row._replace(path=("compiled_step",)) for row in run.records]
    found = program(session(*rows, *blocks, end=1_500 * MS)).steps
    assert (found.name, found.inner) == ("compiled_step", 3)


def test_blocks_that_hold_no_whole_number_of_steps_are_none():
    run = training(120)
    starts = program(run).steps.starts[::9][:13]
    rows = [row._replace(path=("now and then",)) for row in run.records]
    blocks = [block(("now and then",), start - T0, start - T0 + 80 * MS) for start in starts]
    assert program(session(*rows, *blocks, end=1_500 * MS)).steps.name == "step"


def test_slow_first_steps_belong_to_the_start_up():
    found = program(training(warm_up=3))
    assert found.steps.warm_up in (1, 2)  # before the first there is nothing that tells where it began
    assert found.steps.number == pytest.approx(37, abs=1)
    assert found.steps.median_ns == 10 * MS


def test_what_comes_between_steps_is_an_interlude():
    run = training(120, save_every=20)
    found = program(run)
    names = [phase.name for phase in found.phases]
    assert names.count(INTERLUDE) in (5, 6)  # what follows the last step may be the tail
    assert verdict(run).kind == "periodic_stall"
    assert "Every 20 steps" in verdict(run).title


def test_the_program_s_own_block_names_the_steps():
    found = program(training(blocks=True))
    assert found.steps.name == "step"
    assert found.steps.number == pytest.approx(40, abs=1)


def test_without_a_loop_there_are_phases_and_no_steps():
    run = session(kernel("a", 10 * MS, 20 * MS), kernel("b", 30 * MS, 40 * MS), end=100 * MS)
    found = program(run)
    assert found.steps is None
    assert [(phase.name, phase.length_ns) for phase in found.phases] == [
        (START_UP, 10 * MS), (WHOLE, 30 * MS), (TAIL, 60 * MS)
    ]  # fmt: skip
    assert found.judged == WHOLE


def test_layers_alike_are_told_apart_by_the_block_around_them():
    records, at, order = [], 0, 1
    for token in range(20):
        began = at
        for _ in range(8):
            for name in ("norm", "attention", "mlp"):
                records.append(kernel(name, at, at + MS, correlation_id=order, path=("generate",)))
                at, order = at + MS, order + 1
        records.append(block(("generate",), began, at, number=100 + token))
    found = program(session(*records, end=at)).steps
    assert (found.name, found.inner) == ("generate", 8)
    assert found.median_ns == 24 * MS


loops = st.tuples(st.integers(5, 30), st.integers(0, 3), st.integers(0, 400), st.integers(0, 20), st.integers(0, 4))


@given(loops, st.integers(-(10**9), 10**9), st.sampled_from(["k{}", "<{}>", "triton_{}"]))
@examples(40)
def test_phases_cover_the_run_and_neither_names_nor_clocks_change_a_number(loop, shift, naming):
    steps, extra, start, gap, copies = loop
    records, at, order = [], start * US, 1
    for step in range(steps):
        for part in range(3 + (step % 2 if extra == 3 else 0)):
            length = (50 + 10 * part) * US
            records.append(kernel(naming.format(part), at, at + length, correlation_id=order))
            at, order = at + length, order + 1
        at += gap * 20 * US
        for _ in range(copies if step % 5 == 4 else 0):
            records.append(copy("cpu_to_gpu", 4096, at, at + 9 * US, correlation_id=order))
            at, order = at + 9 * US, order + 1
    facts = Facts(session(*records, end=at + MS))
    (found,) = facts.programs
    assert found.phases[0].start_ns == found.window[0]
    assert found.phases[-1].end_ns == found.window[1]
    assert all(a.end_ns == b.start_ns for a, b in zip(found.phases, found.phases[1:], strict=False))
    for view in facts.views:
        empty = sum(cause.total_ns for cause in view.causes.values())
        assert empty <= view.length_ns - view.parts.busy + gap * 20 * US + MS
    moved = [record._replace(start_ns=record.start_ns + shift, end_ns=record.end_ns + shift) for record in records]
    other = session(*moved, end=at + MS)
    other.meta["start_ns"] += shift
    other.meta["end_ns"] += shift
    told = [(one.kind, one.title, one.saving_ns, one.share) for one in ranked(facts)]
    assert told == [(one.kind, one.title, one.saving_ns, one.share) for one in ranked(Facts(other))]


def imported(run, **meta):
    run.meta.update(imported_from="torch.profiler", **meta)
    return run


def test_three_passes_are_steps_where_the_trace_says_so():
    records, order = [], 1
    for step in range(3):
        began = step * 40 * MS
        records.append(block(("ProfilerStep",), began, began + 39 * MS, number=1 + step))
        for layer in range(6):  # alone, these would be the steps
            for name in ("conv", "norm"):
                at = began + layer * 6 * MS + (name == "norm") * 2 * MS
                records.append(kernel(name, at, at + 2 * MS, correlation_id=order, path=("ProfilerStep",)))
                order += 1
    told = program(imported(session(*records), step_block="ProfilerStep"))
    assert (told.steps.number, told.steps.name, told.steps.median_ns) == (3, "ProfilerStep", 40 * MS)
    assert program(session(*records)).steps.number > 10


def test_as_many_steps_as_passes_are_those_of_the_launches():
    run = training(blocks=True)
    assert program(imported(run, step_block="step")).steps == program(training(blocks=True)).steps


def test_what_is_new_is_not_known_of_a_trace_that_begins_in_the_middle():
    assert program(training()).news
    assert not program(imported(training())).news
    both = Facts(merge([imported(training(), rank=0), imported(training(), rank=1)])).programs
    assert [one.news for one in both] == [set(), set()]
