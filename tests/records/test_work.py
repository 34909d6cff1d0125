"""The table of all work: rows come in as columns or one by one, and come back the same in any form."""

from array import array

from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._records import work
from gpusense._records.records import GpuKernel, GpuMemoryTransfer, GpuSync
from gpusense._records.work import WorkKind, WorkTable, table_of

KINDS = [WorkKind("kernel", name, stream=stream) for name in "ab" for stream in (7, None)]
PATHS = [(), ("step",), ("step", "forward")]

rows = st.lists(
    st.tuples(
        st.integers(0, len(KINDS) - 1), st.integers(0, 2), st.integers(1, 10**6), st.integers(0, 500), st.integers(0, 9)
    ),
    max_size=50,
)


def table(drawn, most=None):
    made = WorkTable(most)
    kinds = [made.kind_of(kind) for kind in KINDS]
    paths = [made.path_of(path) for path in PATHS]
    for kind, path, start, length, size in drawn:
        made.append([kinds[kind]], [(1, paths[path])], [start], [start + length], [start * 2], [size])
    return made


def rows_of(made):
    columns = made.kind, made.path, made.start, made.end, made.order, made.size
    return [(made.kinds[kind], made.paths[path], *rest) for kind, path, *rest in zip(*columns, strict=True)]


@given(rows)
@examples(100)
def test_order_joining_and_packing_keep_every_row(drawn):
    made = table(drawn)
    assert sorted(rows_of(made.ordered()), key=repr) == sorted(rows_of(made), key=repr)
    assert list(made.ordered().start) == sorted(made.start)
    joined = WorkTable()
    joined.join(made, lambda kind: kind._replace(device=3), lambda path: ("rank 1", *path), shift_ns=5)
    assert [(kind._replace(device=None), path[1:], start - 5, end - 5, *rest) for kind, path, start, end, *rest in
            rows_of(joined)] == rows_of(made)  # fmt: skip
    back = WorkTable()
    kinds = {number: back.kind_of(kind) for number, kind in enumerate(made.kinds)}
    paths = {number: back.path_of(path) for number, path in enumerate(made.paths)}
    back.unpack(made.packed(0, len(made)), kinds, paths)
    assert rows_of(back) == rows_of(made)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=60), st.sampled_from((3, 16)))
@examples(100)
def test_rows_in_order_stay_as_they_came_where_they_begin_at_once(drawn, part):
    made = WorkTable()
    made.append([0] * len(drawn), [(len(drawn), 0)], [start for start, _ in drawn], [start + 1 for start, _ in drawn],
                range(len(drawn)), [size for _, size in drawn])  # fmt: skip
    before, work._PART = work._PART, part
    try:
        made.sort()
    finally:
        work._PART = before
    ordered = sorted(range(len(drawn)), key=lambda at: drawn[at][0])
    assert list(made.order) == ordered
    assert list(made.size) == [drawn[at][1] for at in ordered]


@given(rows, st.integers(4, 20))
@examples(100)
def test_of_too_many_rows_the_first_and_the_newest_stay(drawn, most):
    whole, made = table(drawn), table(drawn, most)
    assert len(made) <= most
    assert len(made) + sum(hole.rows for hole in made.holes) == len(whole)
    assert made.complete == (len(drawn) <= most)
    first = min(len(made), most // 4)
    assert rows_of(made)[:first] == rows_of(whole)[:first]
    last = len(made) - first
    assert rows_of(made)[first:] == rows_of(whole)[len(whole) - last :]


def test_columns_come_as_lists_or_as_they_lie_in_a_record():
    numbers = [1, 2**31, 2**32 - 1]
    packed = memoryview(array("I", numbers)), memoryview(array("Q", [2**40, 5, 2**62]))
    made = WorkTable()
    made.append([0, 0, 0], [(3, 0)], packed[1], packed[1], packed[0], numbers)
    assert list(made.order) == list(made.size) == numbers
    assert list(made.start) == list(made.end) == [2**40, 5, 2**62]


def test_an_interrupt_between_two_columns_costs_no_more_than_its_row():
    made = table([(0, 0, 10, 5, 0), (1, 1, 20, 5, 0)])
    made.start.append(30)  # and then it came
    made.append([0], [(1, 0)], [40], [41])
    assert list(made.start) == [10, 20, 40]
    made.start.append(5)
    made.sort()
    assert list(made.start) == [10, 20, 40]
    assert len(made.end) == len(made.kind) == 3


def test_finished_records_have_rows():
    kernel = GpuKernel("k", 10, 20, device=0, stream=7, grid=(3, 1, 1), static_shared_bytes=8, path=("a",))
    copy = GpuMemoryTransfer("cpu_to_gpu", "cpu_to_gpu", 64, 20, 30, device=0, source="pageable", destination="device")
    wait = GpuSync("stream_synchronize", 30, 40, source_line="train.py:3 step")
    made = table_of([kernel, copy, wait])
    assert [kind.kind for kind in made.kinds] == ["kernel", "transfer", "sync"]
    assert made.kinds[0].grid == (3, 1, 1)
    assert made.kinds[0].shared_bytes == 8
    assert (made.kinds[1].source, made.kinds[1].direction) == ("pageable", "cpu_to_gpu")
    assert made.kinds[2].source_line == "train.py:3 step"
    assert made.size == array("q", [0, 64, 0])
    assert made.paths[made.path[0]] == ("a",)


def test_what_is_of_too_many_kinds_never_becomes_another(monkeypatch):
    """A server with a thread for each request, then kernels with ever new names."""
    monkeypatch.setattr(work, "MAX_KINDS", 5)
    made = WorkTable()
    for number in range(50):
        row = made.kinds[made.kind_of(WorkKind("kernel", "k", thread=number, grid=(1, 1, 1)))]
        assert (row.kind, row.name, row.thread) in (("kernel", "k", number), ("kernel", "k", None))
    for number in range(50):
        row = made.kinds[made.kind_of(WorkKind("memset", f"m {number}", device=1))]
        assert (row.kind, row.device) == ("memset", 1)
        assert row.name in (f"m {number}", work.OTHER)
    assert len(made.kinds) <= 17


def test_kinds_and_paths_go_with_their_rows(monkeypatch):
    monkeypatch.setattr(work, "MAX_KINDS", 40)
    monkeypatch.setattr(work, "MAX_PATHS", 40)
    made, shared = WorkTable(most=20), None
    for number in range(1, 500):
        made.add(GpuKernel(f"k {number}", number, number + 1, path=("a", f"b {number}")))
        if made.crowded:
            shared = made.copy()
            told = [
                (shared.kinds[kind], shared.paths[path]) for kind, path in zip(shared.kind, shared.path, strict=True)
            ]
            numbers = made.tidy({shared.kinds.index(shared.kinds[5])})
            assert made.kinds[numbers[5]] == shared.kinds[5]
            assert told == [
                (made.kinds[kind], made.paths[path]) for kind, path in zip(made.kind, made.path, strict=True)
            ]
            assert made.paths[0] == ()
        assert len(made.kinds) <= 50
        assert len(made.paths) <= 50
    assert shared is not None
    assert made.paths[made.path[-1]] == ("a", "b 499")
    assert made.kinds[made.kind[-1]].name == "k 499"
    assert made.kind_of(made.kinds[3]) == 3
    assert made.path_of(made.paths[3]) == 3


def test_kinds_without_end_become_few(monkeypatch):
    monkeypatch.setattr(work, "MAX_KINDS", 3)
    made = WorkTable()
    numbers = [made.kind_of(WorkKind("kernel", "k", grid=(n, 1, 1))) for n in range(50)]
    assert len(made.kinds) == 4
    assert made.kinds[numbers[-1]].grid is None
