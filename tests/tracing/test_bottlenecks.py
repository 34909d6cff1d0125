"""What took the most time, in one list, each row with its share of something that is named and with its own advice."""

import io

import pytest
from support.sessions import MS, US, block, compute, copy, kernel, session, sync

from gpusense._tracing.bottlenecks import bottlenecks
from gpusense._tracing.summary import print_bottlenecks


def printed(run):
    out = io.StringIO()
    print_bottlenecks(run, 5, out)
    return out.getvalue().splitlines()


def test_a_program_of_blocks_alone_is_ranked_by_their_own_time():
    run = session(
        block(("fit",), 0, 10 * MS, number=1),
        block(("fit", "backward"), 0, 7 * MS, number=2, parent=1),
        block(("fit", "load"), 7 * MS, 9 * MS, number=3, parent=1),
        compute("tokenize", 7 * MS, 8 * MS, path=("fit", "load")),
        end=20 * MS,
    )
    rows = bottlenecks(run)
    assert [(row.name, row.kind, row.total_ns, row.share) for row in rows] == [
        ("fit › backward", "block", 7 * MS, 0.35),
        ("fit › load", "block", 2 * MS, 0.1),
        ("fit", "block", MS, 0.05),
        ("tokenize", "compute", MS, 0.05),
    ]
    assert {row.of for row in rows} == {"run's wall time"}
    assert rows[0].path == ("fit", "backward")
    assert "work of the host" in rows[0].suggestion
    assert "compute blocks" in rows[1].suggestion
    assert printed(run)[:2] == [
        "1. fit › backward (block): 7.00 ms in 1 pass, 35 % of the run's wall time",
        "   Divide it with blocks inside, or ask a profiler of Python: this is work of the host.",
    ]


def test_blocks_and_work_of_the_device_are_shares_of_different_times():
    run = session(
        block(("step",), 0, 40 * MS),
        kernel("sgemm", 0, 30 * MS, path=("step",)),
        copy("cpu_to_gpu", 64, 30 * MS, 40 * MS, path=("step",)),
        sync(0, 36 * MS, path=("step",)),
        sync(0, 36 * MS, path=("step",), name="stream_wait_event"),
        end=80 * MS,
        kinds=["sync"],
    )
    rows = {row.name: row for row in bottlenecks(run)}
    assert list(rows) == ["step", "stream_synchronize", "sgemm", "cpu_to_gpu"]
    assert [(row.share, row.of) for row in rows.values()] == [
        (0.5, "run's wall time"), (0.45, "run's wall time"), (0.75, "device time"), (0.25, "device time"),
    ]  # fmt: skip
    assert "waits for the device" in rows["step"].suggestion
    assert "pinned" in rows["cpu_to_gpu"].suggestion


@pytest.mark.parametrize(
    ("name", "calls", "length", "word"),
    [
        ("sm90_xmma_gemm_bf16", 2, MS, "tensor cores"),
        ("vectorized_elementwise_kernel", 2, MS, "Fuse it with its neighbours"),
        ("ncclDevKernel_AllReduce_Sum_f32", 2, MS, "while you compute"),
        ("sm90_xmma_gemm_bf16", 500, 2 * US, "CUDA graph"),
        ("mystery", 2, MS, "a library's kernel"),
    ],
)
def test_the_advice_is_that_of_the_kernel(name, calls, length, word):
    run = session(*(kernel(name, at * MS, at * MS + length) for at in range(calls)), end=calls * MS)
    (row,) = bottlenecks(run)
    assert word in row.suggestion


def test_a_row_of_little_time_is_not_what_to_look_at_first():
    run = session(kernel("sgemm", 0, 95 * MS), kernel("dgemm", 95 * MS, 100 * MS), end=100 * MS)
    first, second = bottlenecks(run)
    assert "At most" not in first.suggestion
    assert second.suggestion == f"{first.suggestion} At most 5.0 % can be gained."


def test_nothing_at_all():
    assert bottlenecks(session()) == []
    assert printed(session()) == ["Nothing was recorded."]
