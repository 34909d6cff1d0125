import random
import statistics

import pytest
from support.sessions import US, block, copy, kernel, session, sync, training

from gpusense._records.records import Aggregate
from gpusense.analysis.blocks import block_tree
from gpusense.analysis.findings import findings
from gpusense.analysis.operation import operations
from gpusense.analysis.transfers import transfers
from gpusense.report.text import full
from gpusense.session import Session


def aggregate_of(records, kind="kernel"):
    durations = [record.duration_ns for record in records]
    first = records[0]
    return Aggregate(
        first.path, kind, first.name, first.backend, first.device, first.stream, len(durations), sum(durations),
        min(durations), max(durations), sum(value * value for value in durations),
        bytes=sum(getattr(record, "bytes", 0) for record in records), direction=getattr(first, "direction", None),
    )  # fmt: skip


def test_one_row_an_operation_with_the_numbers_recomputed_from_the_records():
    run = training(5)
    table = operations(run)
    device_total = sum(record.duration_ns for record in [*run.kernels, *run.transfers, *run.memsets])
    for row in table:
        equal = [
            record.duration_ns
            for record in run.records
            if record.name == row.name and type(record).__name__ != "BlockRecord"
        ]
        assert (row.count, row.kept, row.total_ns) == (len(equal), len(equal), sum(equal))
        assert (row.min_ns, row.max_ns) == (min(equal), max(equal))
        assert row.median_ns == statistics.median(equal)
        assert row.std_ns == pytest.approx(statistics.pstdev(equal))
        assert row.p95_ns == sorted(equal)[max(0, -(-95 * len(equal) // 100) - 1)]
        if row.kind in ("kernel", "transfer", "memset"):
            assert row.share == sum(equal) / device_total
    assert [row.total_ns for row in table[:4]] == sorted((row.total_ns for row in table[:4]), reverse=True)
    assert {row.kind for row in table} == {"kernel", "transfer", "memset", "sync", "compute"}


def test_kept_and_counted_calls_together_give_what_all_kept_would():
    rng = random.Random(5)
    calls, at = [], 0
    for _ in range(200):
        length = rng.choice((3, 8, 40, 150, 900)) * US + rng.randrange(1000)
        calls.append(kernel("axpy", at, at + length, path=("run",)))
        at += length + 500
    whole = operations(session(*calls, end=at))[0]
    threshold = 100 * US
    kept = [call for call in calls if call.duration_ns >= threshold]
    below = [call for call in calls if call.duration_ns < threshold]
    mixed = operations(session(*kept, aggregates=[aggregate_of(below)], end=at))[0]
    for field in ("count", "total_ns", "min_ns", "max_ns", "avg_ns", "std_ns", "share", "p95_ns"):
        assert getattr(mixed, field) == getattr(whole, field), field
    assert mixed.kept == len(kept)
    assert mixed.median_ns is None  # more than half were only summed


def test_quantiles_are_unknown_where_counted_calls_interleave_with_kept_ones():
    calls = [kernel("k", index * 1000, index * 1000 + 100 + index) for index in range(10)]
    row = operations(session(*calls[::2], aggregates=[aggregate_of(calls[1::2])], end=20_000))[0]
    assert (row.count, row.median_ns, row.p95_ns) == (10, None, None)


def test_huge_sums_do_not_cancel():
    calls = [kernel("k", 0, 10**15 + step) for step in (0, 1, 2)]
    assert operations(session(*calls, end=2 * 10**15))[0].std_ns == pytest.approx((2 / 3) ** 0.5)


def test_full_name_only_where_it_is_the_same_for_all():
    run = session(
        kernel("k", 0, 5, full_name="k<float>"),
        kernel("k", 5, 9, full_name="k<half>"),
        kernel("j", 9, 10, full_name="j<1>"),
    )
    by_name = {row.name: row for row in operations(run)}
    assert (by_name["k"].full_name, by_name["k"].variants) == (None, 2)
    assert (by_name["j"].full_name, by_name["j"].variants) == ("j<1>", 1)


def test_directions_and_devices_are_rows_of_their_own_and_bandwidth_is_bytes_over_time():
    run = session(
        copy("cpu_to_gpu", 1_000_000, 0, 50_000), copy("gpu_to_cpu", 2_000_000, 60_000, 160_000),
        copy("cpu_to_gpu", 1_000_000, 0, 40_000, device=1),
    )  # fmt: skip
    rows = {(row.direction, row.device): row.bandwidth_bytes_per_s for row in operations(run)}
    assert rows == {("cpu_to_gpu", 0): 2e10, ("gpu_to_cpu", 0): 2e10, ("cpu_to_gpu", 1): 2.5e10}


def test_ends_before_starts_count_as_no_time_and_an_empty_session_as_nothing():
    row = operations(session(kernel("k", 100, 50), sync(5, 5)))[0]
    assert (row.count, row.total_ns, row.bandwidth_bytes_per_s) == (1, 0, None)
    assert operations(Session()) == []
    assert operations(session(block(("a",), 0, 5))) == []


def test_kinds_can_be_chosen_and_shares_stay_those_of_the_whole():
    run = training(3)
    everything = {(row.kind, row.name): row.share for row in operations(run)}
    chosen = operations(run, kinds=frozenset({"transfer"}))
    assert {row.kind for row in chosen} == {"transfer"}
    assert all(row.share == everything[row.kind, row.name] for row in chosen)


def test_copies_that_the_host_timed_are_no_gpu_time():
    """A kernel beside a long upload is all of the GPU's time, whether the upload was kept or counted."""
    upload = "write_buffer", "wgpu", None, None
    counted = Aggregate(("step",), "transfer", *upload, 5, 900, 1, 500, 300_000, 40, "cpu_to_gpu")
    run = session(
        kernel("main", 0, 100, path=("step",)),
        copy("cpu_to_gpu", 10, 0, 9_000, timing="host", path=("step",)),
        aggregates=[counted],
        end=10_000,
    )
    rows = {row.name: (row.share, row.timing) for row in operations(run)}
    assert rows["main"] == (1.0, "device")
    assert (rows["cpu_to_gpu"], rows["write_buffer"]) == ((9_000 / 9_900, "host"), (900 / 9_900, "host"))
    step = block_tree(run).children["step"]
    assert (step.gpu_ns, step.own_bytes) == (100, 50)
    assert step.operations == {
        ("kernel", "main"): [1, 100, 0],
        ("host_transfer", "cpu_to_gpu"): [1, 9_000, 10],
        ("host_transfer", "write_buffer"): [5, 900, 40],
    }
    lines = list(full(run))
    assert any("1.0 %" in line and line.endswith("main") for line in lines)  # of the run
    assert sum("(timed by the host)" in line for line in lines) == 2
    (found,) = (finding for finding in findings(run) if finding.kind == "nothing_to_gain")
    assert "busy 100 %" in found.title
    assert "main: 100 %" in " ".join(found.evidence)
    assert transfers(run) == []
