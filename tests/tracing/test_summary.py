"""The printed table of blocks: a tree, whatever took how long."""

import io

from gpusense._records.records import BlockRecord, GpuAllocation, GpuKernel
from gpusense._tracing.summary import print_summary
from gpusense.session import Session

MS = 1_000_000


def session(*lengths):
    """Blocks by path and length in milliseconds."""
    ids = {path: number for number, (path, _) in enumerate(lengths, 1)}
    return Session(
        records=[
            BlockRecord(path[-1], ids[path], ids.get(path[:-1]), path, 0, length * MS, 1, None, None)
            for path, length in lengths
        ]
    )


def test_rows_stand_below_the_block_they_ran_in():
    run = session(
        (("step",), 90),
        (("step", "zero"), 1),
        (("step", "backward"), 50),
        (("step", "backward", "0"), 49),
        (("step", "forward"), 30),
        (("step", "forward", "0"), 10),
        (("step", "forward", "1"), 20),
        (("loader",), 5),
    )
    text = io.StringIO()
    print_summary(run, text)
    heads, *lines = text.getvalue().splitlines()
    assert [line[heads.index("block") :] for line in lines[:8]] == [
        "step",
        "  backward",
        "    0",
        "  forward",
        "    1",
        "    0",
        "  zero",
        "loader",
    ]


def test_of_very_many_blocks_the_first_are_shown_and_the_others_counted():
    text = io.StringIO()
    print_summary(session(*[((f"request {i}",), 1000 - i) for i in range(203)]), text)
    lines = text.getvalue().splitlines()
    assert [line.split()[-1] for line in lines[1:201]] == [str(i) for i in range(200)]
    assert lines[201] == "… and 3 more blocks"


def test_a_budget_that_no_rest_keeps_is_told():
    """CUPTI goes on costing while capture rests. That alone may be more than the budget."""
    run = session((("step",), 90))
    for share, left, told in ((0.061, 0.059, True), (0.021, 0.012, False), (0.019, 0.0, False)):
        run.meta["overhead"] = {"budget": 0.02, "share": share, "left": left, "observed": 0.25}
        text = io.StringIO()
        print_summary(run, text)
        lines = text.getvalue().splitlines()
        assert any(line.startswith("Only 25 % of the run was recorded") for line in lines)
        found = [line for line in lines if "is not kept" in line]
        assert bool(found) is told
    run.meta["overhead"] = {"budget": "much", "share": None, "left": [], "observed": {}}  # a file may hold anything
    print_summary(run, io.StringIO())
    run.meta["overhead"] = {"budget": 0.02, "share": 0.061, "left": 0.059}
    text = io.StringIO()
    print_summary(run, text)
    assert (
        "overhead budget of 2.0 % is not kept: CUPTI makes launches longer by about 5.9 % of the run" in text.getvalue()
    )


def test_a_block_whose_parent_is_unknown_keeps_its_place():
    run = session((("a",), 9), (("a", "lost", "b"), 5), (("gone", "c"), 7))
    text = io.StringIO()
    print_summary(run, text)
    heads, *lines = text.getvalue().splitlines()
    place = heads.index("block")
    assert [(line[:place].split()[0], line[place:]) for line in lines[:5]] == [
        ("9.00", "a"), ("–", "  lost"), ("5.00", "    b"), ("–", "gone"), ("7.00", "  c"),
    ]  # fmt: skip
    assert [row.name for row in run.summary().operations] == ["a", "c", "b"]


def test_deep_blocks_are_added_up_once_a_path_and_not_once_a_kernel():
    taken = []

    class Path(tuple):
        def __getitem__(self, place):
            taken.append(1)
            return tuple.__getitem__(self, place)

        __hash__ = tuple.__hash__

    deep = Path(f"level {depth}" for depth in range(50))
    run = session((tuple(deep), 1))
    run.records += [GpuKernel("k", at, at + 1, path=deep) for at in range(200)]
    (row,) = run.summary().operations
    assert (row.kernel_count, row.gpu_ns) == (200, 200)
    assert len(taken) < 200


def test_of_many_blocks_that_ended_for_lack_of_memory_a_few_are_told_and_counted():
    run = session(*((("search", f"batch {number}"), 1) for number in range(40)))
    run.records = [record._replace(error="OutOfMemoryError") for record in run.records]
    run.records.append(GpuAllocation("alloc", 10**6, 0, 0xA, path=("search",)))
    shown = io.StringIO()
    print_summary(run, shown)
    lines = shown.getvalue().splitlines()
    assert sum("ended for lack of memory" in line for line in lines) == 5
    assert lines.count("     1.00 MB in 1 from search") == 5
    assert "… and 35 more blocks ended so" in lines
