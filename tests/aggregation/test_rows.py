"""The table of all work has one row for each record of a device or a wait, kept one by one or only summed."""

from hypothesis import given
from hypothesis import strategies as st
from support.cupti import STRIDES, T0, kernel, memcpy, sync, view
from support.draws import examples

from gpusense._aggregation.pipeline import Limits, Pipeline
from gpusense._attribution.boundaries import CLOSE, OPEN, Boundary

NAMES = {0x100: b"_Z3addv", 0x140: b"gemm"}

#: What each record is: kind, which of two names, copies or types, stream, length, size.
drawn = st.lists(
    st.tuples(
        st.sampled_from("kcs"), st.integers(0, 1), st.sampled_from((7, 9)), st.integers(0, 300_000), st.integers(1, 9)
    ),
    min_size=1,
    max_size=60,
)


def fed(records, limits, cut=None):
    """A pipeline that was given ``records``, the first half of them in a block; and what its rows must be."""
    made = Pipeline(limits, start_ns=T0)
    end = len(records) // 2
    made.attribution.boundary(Boundary(OPEN, 1, None, 5, T0, T0, "step"), 0)
    made.attribution.boundary(Boundary(CLOSE, 1, None, 5, T0, T0), end)
    packed, wanted = [], []
    for number, (what, which, stream, length, size) in enumerate(records, 1):
        start = T0 + number * 1_000_000
        path = ("step",) if number < end else ()
        if what == "k":
            packed.append(kernel(start, start + length, number, name=(0x100, 0x140)[which], stream=stream))
            wanted.append(("kernel", ("add", "gemm")[which], stream, start, start + length, number, 0, path))
        elif what == "c":
            copy = ("cpu_to_gpu", "gpu_to_cpu")[which]
            packed.append(memcpy(start, start + length, number, copy=which + 1, size=size, stream=stream))
            wanted.append(("transfer", copy, stream, start, start + length, number, size, path))
        else:
            packed.append(sync(start, start + length, number, kind=3 + which, stream=stream))
            wait = ("stream_synchronize", "context_synchronize")[which]
            wanted.append(("sync", wait, stream, start, start + length, number, 0, path))
    for first in range(0, len(packed), cut or len(packed)):
        buffer = view(*packed[first : first + (cut or len(packed))])
        made.feed(buffer, 5, STRIDES, lambda pointer: (NAMES[pointer].decode(), None, None))
    made.cycle(T0, final=True)
    names = {"_Z3addv": "add"}
    return made, [(kind, names.get(name, name), *rest) for kind, name, *rest in wanted]


def rows_of(table):
    found = []
    for row in range(len(table)):
        one = table.kinds[table.kind[row]]
        name = {"_Z3addv": "add"}.get(one.name, one.name)
        times = table.start[row], table.end[row], table.order[row], table.size[row]
        found.append((one.kind, name, one.stream, *times, table.paths[table.path[row]]))
    return found


@given(drawn, st.sampled_from((None, 3)), st.sampled_from((0, 100_000, 10**9)))
@examples(60)
def test_every_record_has_its_row_whatever_is_kept(records, cut, threshold):
    made, wanted = fed(records, Limits(threshold), cut)
    assert sorted(rows_of(made.work)) == sorted(wanted)
    assert {one.thread for one in made.work.kinds} == {5}
    assert made.counters().seen == len(records)


def test_kinds_of_one_name_differ_by_grid_and_memory():
    made, _ = fed([("k", 0, 7, 5, 1)] * 3 + [("k", 0, 9, 5, 1)], Limits())
    assert [one.grid for one in made.work.kinds] == [(4, 1, 1)] * 2
    assert [one.block for one in made.work.kinds] == [(128, 1, 1)] * 2
    copies, _ = fed([("c", 0, 7, 5, 1)], Limits())
    (kind,) = copies.work.kinds
    assert (kind.direction, kind.source, kind.destination) == ("cpu_to_gpu", "pageable", "device")


def test_an_address_may_come_to_mean_another_kernel():
    made = Pipeline(Limits(), start_ns=T0)
    for number, name in enumerate(("one", "two"), 1):
        made.feed(
            view(kernel(T0 + number, T0 + number + 5, number)), 5, STRIDES, lambda _, name=name: (name, None, None)
        )
    made.cycle(T0, final=True)
    assert [made.work.kinds[kind].name for kind in made.work.kind] == ["one", "two"]


def test_live_mode_keeps_the_first_rows_and_the_newest():
    made, wanted = fed([("k", 0, 7, 5, 1)] * 60, Limits(max_rows=20), cut=4)
    rows = rows_of(made.work)
    assert rows[:5] == wanted[:5]
    assert rows[-1] == wanted[-1]
    assert len(rows) + sum(hole.rows for hole in made.work.holes) == 60
