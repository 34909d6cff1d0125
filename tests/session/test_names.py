"""What a session calls its kernels: no two full names alike, however it came about."""

from gpusense._aggregation.groups import aggregate, key_of, row_of
from gpusense._decode.labels import label
from gpusense._records.records import GpuKernel
from gpusense.analysis.diff import compare
from gpusense.analysis.operation import operations
from gpusense.session import Session, load, merge, save
from gpusense.session._names import tell_apart
from tests.support.sessions import T0

FILL = "void at::native::vectorized_elementwise_kernel<{}, at::native::FillFunctor<int>, std::array<char*, 1ul> >(int)"
TWO, FOUR = FILL.format(2), FILL.format(4)
NAMES = {TWO: "elementwise<FillFunctor<int>, 2>", FOUR: "elementwise<FillFunctor<int>, 4>"}


def kernel(full_name, at=0, name=None):
    return GpuKernel(name or label(full_name), T0 + at, T0 + at + 10, 0, full_name=full_name)


def counted(full_name, name=None):
    item = kernel(full_name, name=name)
    return aggregate(key_of(item, "kernel", ()), row_of([10, 20]))


def session(*records, sums=()):
    return Session(meta={"start_ns": T0, "end_ns": T0 + 1000}, records=list(records), aggregates=list(sums))


def test_kernels_of_one_label_are_told_apart_kept_and_counted():
    made = session(kernel(TWO), kernel(FOUR, 20), kernel("void saxpy<float>(int)", 40), sums=[counted(FOUR)])
    assert {row.name for row in made.records[:2]} == {"elementwise<FillFunctor<int>>"}
    tell_apart(made)
    assert {row.full_name: row.name for row in [*made.records, *made.aggregates]} == {
        **NAMES,
        "void saxpy<float>(int)": "saxpy<float>",
    }
    table = {row.name: (row.full_name, row.count, row.variants) for row in operations(made)}
    assert table == {
        NAMES[TWO]: (TWO, 1, 1),
        NAMES[FOUR]: (FOUR, 3, 1),
        "saxpy<float>": ("void saxpy<float>(int)", 1, 1),
    }


def test_a_saved_session_keeps_its_names(tmp_path):
    made = session(kernel(TWO), kernel(FOUR, 20), sums=[counted(FOUR)])
    save(made, tmp_path / "a.gpusense")
    once = load(tmp_path / "a.gpusense")
    assert {row.name for row in once.records} == set(NAMES.values())
    save(once, tmp_path / "b.gpusense")
    again = load(tmp_path / "b.gpusense")
    assert (again.records, again.aggregates) == (once.records, once.aggregates)


def test_merged_sessions_agree_on_names_that_alone_they_did_not_need():
    both = session(kernel(TWO), kernel(FOUR, 20))
    tell_apart(both)
    alone = session(kernel(TWO, 40))
    tell_apart(alone)
    assert alone.records[0].name == "elementwise<FillFunctor<int>>"
    assert {row.full_name: row.name for row in merge([both, alone]).records} == NAMES


def test_a_comparison_takes_one_kernel_for_one_whatever_its_run_called_it():
    both = session(kernel(TWO), kernel(FOUR, 20))
    tell_apart(both)
    alone = session(kernel(TWO, 40))
    found = compare([both], [alone])
    assert found.vanished == (NAMES[FOUR],)
    assert found.appeared == ()
    assert alone.records[0].name == "elementwise<FillFunctor<int>>"  # the session is not the comparison's to change


def test_names_of_older_versions_stay_with_their_sums():
    base = "vectorized_elementwise_kernel"
    older = session(
        kernel(TWO, name=base), kernel(FOUR, 20, name=base), sums=[counted(TWO, base)._replace(full_name=None)]
    )
    tell_apart(older)
    assert [(row.name, row.count, row.full_name, row.variants) for row in operations(older)] == [(base, 4, None, 2)]
