import io
import json

from hypothesis import given
from hypothesis import strategies as st
from support.sessions import HOSTILE, US, block, copy, kernel, session, training

from gpusense._records.records import Aggregate
from gpusense.report import flamegraph
from gpusense.session import Session


def lines_of(run):
    file = io.StringIO()
    flamegraph.write(run, file)
    return file.getvalue().splitlines()


def test_a_stack_is_the_blocks_then_the_operation():
    run = session(
        block(("train",), 0, 100 * US), kernel("gemm", 0, 30 * US, path=("train", "step")),
        kernel("gemm", 40 * US, 50 * US, path=("train", "step")),
        copy("cpu_to_gpu", 8, 50 * US, 57 * US, path=("train",)),
        kernel("alone", 60 * US, 62 * US), end=100 * US,
    )  # fmt: skip
    assert sorted(lines_of(run)) == ["alone 2", "train;copies host to device 7", "train;step;gemm 40"]


def test_kept_and_counted_work_is_together():
    counted = Aggregate(("a",), "kernel", "k", "cuda", 0, 7, 10, 50 * US, 5 * US, 5 * US, 10 * (5 * US) ** 2)
    run = session(kernel("k", 0, 100 * US, path=("a",)), aggregates=[counted])
    assert lines_of(run) == ["a;k 150"]


def test_the_weights_add_up():
    run = training(4)
    device = sum(record.duration_ns for record in [*run.kernels, *run.transfers, *run.memsets])
    assert abs(sum(int(line.rpartition(" ")[2]) for line in lines_of(run)) * 1000 - device) <= 1000
    profile = json.loads(flamegraph.speedscope(run))["profiles"][0]
    assert sum(profile["weights"]) == profile["endValue"] == device


@given(st.lists(st.integers(1, 3000), max_size=30))
def test_rounding_never_drifts(lengths):
    at, records = 0, []
    for number, length in enumerate(lengths):
        records.append(kernel(f"k{number}", at, at + length))
        at += length
    total = sum(int(line.rpartition(" ")[2]) for line in lines_of(session(*records)))
    assert abs(total * 1000 - at) <= 500


def test_hostile_names_are_one_frame_each():
    run = session(*[kernel(name, at * US, (at + 1) * US, path=(name,)) for at, name in enumerate(HOSTILE)])
    lines = lines_of(run)
    assert len(lines) == len(HOSTILE)
    for line in lines:
        stack, _, weight = line.rpartition(" ")
        assert weight.isdigit()
        assert len(stack.split(";")) == 2
        assert line.isprintable()
    shared = json.loads(flamegraph.speedscope(run))["shared"]["frames"]
    assert HOSTILE[0] in {entry["name"] for entry in shared}


def test_paths_deeper_than_the_interpreter_stack():
    path = tuple(f"level{depth}" for depth in range(3000))
    (line,) = lines_of(session(kernel("k", 0, 5 * US, path=path)))
    assert line.count(";") == 3000


def test_empty_sessions():
    assert lines_of(Session()) == []
    file = io.StringIO()
    flamegraph.write_speedscope(Session(), file)
    assert json.loads(file.getvalue())["profiles"][0]["samples"] == []
