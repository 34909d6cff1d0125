"""Transfers, anomalies, phases, memory, coverage, blocks, energy, backends: on numbers checked by hand."""

import random
import statistics
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sessions import H100, MS, US, alloc, block, compute, copy, kernel, sample, session, sync, training

from gpusense._records.metrics import Pcie
from gpusense._records.records import Aggregate
from gpusense.analysis.anomalies import anomalies
from gpusense.analysis.backends import side_by_side
from gpusense.analysis.coverage import coverage
from gpusense.analysis.energy import energy
from gpusense.analysis.memory import memory
from gpusense.analysis.phases import first_calls, warm_ups
from gpusense.analysis.sampled import sampled
from gpusense.analysis.transfers import link_peak, pcie_bytes_per_s, transfers
from gpusense.analysis.waits import lines_missing, waits
from gpusense.report.html.data import page_data
from gpusense.session import Session, merge

SECOND = 1_000_000_000


# Transfers


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"), [(1, 16, 4.0), (2, 8, 4.0), (3, 16, 15.754), (4, 16, 31.508), (5, 16, 63.015)]
)
def test_pcie_rates_are_the_published_ones(generation, width, gigabytes):
    assert pcie_bytes_per_s(generation, width) / 1e9 == pytest.approx(gigabytes, abs=0.001)


def test_an_unknown_link_has_no_rate():
    assert pcie_bytes_per_s(None, 16) is pcie_bytes_per_s(9, 16) is pcie_bytes_per_s(4, None) is None


def test_a_sleeping_link_counts_with_what_it_can_do():
    idle = sample(0, pcie=Pcie(generation=1, width=16, max_generation=4, max_width=16))
    watched = sampled(session(metrics=[idle]))
    assert link_peak(watched, 0) == link_peak(watched, None) == pcie_bytes_per_s(4, 16)
    assert link_peak(watched, 3) is None
    assert link_peak(sampled(session()), 0) is None


def test_copies_are_grouped_by_direction_memory_and_pair():
    run = session(
        copy("cpu_to_gpu", 2_000_000, 0, 100_000, source="pageable", destination="device"),
        copy("cpu_to_gpu", 4_000_000, 100_000, 200_000, source="pinned", destination="device"),
        copy("cpu_to_gpu", 1_000, 200_000, 202_000, source="pinned", destination="device"),
        copy("gpu_to_gpu", 5_000_000, 0, 50_000, source_device=0, destination_device=1),
        copy("cpu_to_gpu", 77, 0, 9_000_000, timing="host"),
        aggregates=[Aggregate((), "transfer", "gpu_to_cpu", "cuda", 0, 7, 4, 8_000, 1, 9, 0, 4_000, "gpu_to_cpu")],
        metrics=[sample(0)],
    )
    rows = {(row.direction, row.source): row for row in transfers(run)}
    assert len(rows) == 4
    pageable, pinned = rows["cpu_to_gpu", "pageable"], rows["cpu_to_gpu", "pinned"]
    assert (pageable.bandwidth_bytes_per_s, pageable.pageable, pageable.pinned) == (2e10, True, False)
    assert (pinned.count, pinned.small, pinned.peak_bytes_per_s) == (2, 1, 4e10)
    assert pinned.link_bytes_per_s == pcie_bytes_per_s(5, 16)
    peer = rows["gpu_to_gpu", None]
    assert (peer.source_device, peer.destination_device, peer.link_bytes_per_s) == (0, 1, None)
    assert rows["gpu_to_cpu", None].small == 4


# Anomalies


def steady(count=60, seed=3, mean=100 * US, spread=0.02, **late):
    rng = random.Random(seed)
    calls, at = [], 0
    for index in range(count):
        length = int(rng.gauss(mean, mean * spread)) * late.get(f"call{index}", 1)
        calls.append(kernel("gemm", at, at + length, path=("step",)))
        at += length + US
    return calls


def test_a_kernel_delayed_on_purpose_is_flagged_with_its_samples_and_nothing_else_is():
    calls = steady(call40=3)
    (found,) = anomalies(session(*calls))
    assert found.start_ns == calls[40].start_ns
    assert (found.duration_ns, found.path) == (calls[40].duration_ns, ("step",))
    assert found.samples == tuple(call.duration_ns for call in calls)
    rest = [call.duration_ns for call in calls[1:]]
    middle = statistics.median(rest)
    mad = statistics.median(abs(value - middle) for value in rest)
    assert found.typical_ns == middle
    assert found.score == pytest.approx(0.6745 * (calls[40].duration_ns - middle) / mad)
    assert found.excess_ns == pytest.approx(calls[40].duration_ns - middle, abs=1)


def test_of_very_many_calls_an_anomaly_holds_those_around_it():
    calls = steady(1000, call3=3, call500=4, call998=5)
    durations = [call.duration_ns for call in calls]
    found = sorted(anomalies(session(*calls)), key=lambda row: row.start_ns)
    assert [durations.index(row.duration_ns) for row in found] == [3, 500, 998]
    assert [row.calls for row in found] == [1000] * 3
    assert [row.samples for row in found] == [
        tuple(durations[:200]), tuple(durations[400:600]), tuple(durations[800:])
    ]  # fmt: skip


def test_healthy_noise_has_no_anomaly_where_two_sigma_finds_many():
    calls = steady(400, spread=0.05)
    assert anomalies(session(*calls)) == []
    assert len(anomalies(session(*calls), method="sigma", minimum_effect=0, minimum_ns=0)) >= 5


def test_where_most_calls_take_the_same_time_the_mean_deviation_serves():
    calls = [kernel("k", i * MS, i * MS + 50 * US) for i in range(20)]
    calls[7] = kernel("k", 7 * MS, 7 * MS + 90 * US)
    assert [found.duration_ns for found in anomalies(session(*calls))] == [90 * US]
    assert anomalies(session(*calls[:7])) == []  # all equal, and too few


def test_different_sizes_are_not_compared_and_a_slow_first_call_is_not_an_anomaly():
    small = [kernel("k", i * MS, i * MS + 50 * US, grid=(8, 1, 1)) for i in range(20)]
    large = [kernel("k", (30 + i) * MS, (30 + i) * MS + 500 * US, grid=(99, 1, 1)) for i in range(3)]
    assert anomalies(session(*small, *large)) == []
    slow_first = [kernel("k", i * MS, i * MS + (900 if i == 0 else 50) * US) for i in range(20)]
    assert anomalies(session(*slow_first)) == []


def test_an_unknown_method_is_an_error():
    with pytest.raises(ValueError, match="robust"):
        anomalies(session(), method="magic")


# Phases


def test_first_calls_are_set_apart():
    calls = [kernel("k", i * MS, i * MS + (400 if i == 0 else 50) * US) for i in range(10)]
    (first,) = first_calls(session(*reversed(calls)))
    assert (first.first_ns, first.steady_ns, first.calls, first.excess_ns) == (400 * US, 50 * US, 10, 350 * US)
    assert first_calls(session(*calls[:4])) == []
    assert first_calls(session(*calls[1:])) == []


def test_slow_first_passes_of_a_block_are_the_warm_up():
    at, blocks = 0, []
    for index in range(12):
        length = (50 if index == 0 else 20 if index == 1 else 10) * MS
        blocks.append(block(("step",), at, at + length, number=index))
        at += length
    (row,) = warm_ups(session(*blocks))
    assert (row.passes, row.of, row.warm_up_ns, row.steady_ns) == (2, 12, 70 * MS, 10 * MS)
    assert (row.excess_ns, row.total_ns, row.until_ns) == (50 * MS, 170 * MS, blocks[1].end_ns)
    assert warm_ups(session(*blocks[2:])) == []


# Memory


def test_peaks_belong_to_the_blocks_that_allocated():
    run = session(
        alloc(100, 0, 0xA, path=("model",)), alloc(50, 10, 0xB, path=("step",)), alloc(70, 20, 0xC, path=("step",)),
        alloc(0, 30, 0xB, name="free"), alloc(20, 40, 0xD, path=("step", "eval")), alloc(0, 50, 0x99, name="free"),
        alloc(0, 60, 0xC, name="free"), alloc(5, 70, 0xE, device=1),
    )  # fmt: skip
    first, second = memory(run)
    assert (first.peak_bytes, first.peak_ns, first.held_bytes) == (220, run.allocations[2].start_ns, 120)
    assert (first.allocations, first.releases, first.unknown_releases) == (4, 3, 1)
    blocks = {row.path: (row.at_peak_bytes, row.peak_bytes, row.held_bytes) for row in first.blocks}
    assert blocks == {("model",): (100, 100, 100), ("step",): (120, 120, 0), ("step", "eval"): (0, 20, 20)}
    assert (second.device, second.peak_bytes) == (1, 5)
    assert memory(session()) == []


def test_a_reused_address_releases_what_was_there():
    (row,) = memory(session(alloc(100, 0, 0xA), alloc(60, 10, 0xA)))
    assert (row.peak_bytes, row.held_bytes) == (100, 60)


# Coverage


def test_coverage_adds_concurrent_kernels_and_stops_at_one():
    full = 132 * 8
    run = session(
        kernel("half", 0, 100, grid=(full // 2, 1, 1), block=(256, 1, 1)),
        kernel("most", 50, 150, stream=8, grid=(full * 3 // 4, 1, 1), block=(256, 1, 1)),
        kernel("unknown", 200, 300),
        end=1000,
    )
    (row,) = coverage(run)
    assert row.estimated_sm_coverage == pytest.approx((50 * 0.5 + 50 * 1 + 50 * 0.75) / 1000)
    assert row.while_busy == pytest.approx((50 * 0.5 + 50 * 1 + 50 * 0.75) / 150)
    assert (row.considered_ns, row.kernel_ns, row.small_kernels) == (200, 300, 2)


def test_coverage_needs_a_known_device():
    run = session(kernel("k", 0, 100, grid=(9, 1, 1), block=(32, 1, 1)), devices=(), end=200)
    assert coverage(run) == coverage(Session()) == []


# Energy


def test_energy_by_the_counter_is_interpolated_and_blocks_get_their_part():
    run = session(
        block(("warm",), 0, SECOND), block(("step",), SECOND, 2 * SECOND, number=2),
        block(("step",), int(1.5 * SECOND), 3 * SECOND, number=3), block(("late",), 3 * SECOND, 7 * SECOND, number=4),
        metrics=[sample(at * SECOND, joules=1000 + 100 * at, watts=1) for at in (0, 1, 2, 4)], end=8 * SECOND,
    )  # fmt: skip
    (row,) = energy(run)
    assert (row.joules, row.method, row.seconds, row.reason) == (400, "counter", 4, None)
    blocks = {block.path: block for block in row.blocks}
    assert blocks["warm",].joules == pytest.approx(100)
    assert blocks["step",].joules == pytest.approx(200)  # overlapping passes count once
    assert blocks["step",].joules_per_pass == pytest.approx(100)
    assert blocks["late",].joules == pytest.approx(100)
    assert blocks["late",].sampled_share == pytest.approx(0.25)


def test_a_counter_that_is_read_seldom_is_not_what_blocks_between_its_readings_took():
    """Its last value is in each sample until it is read again: blocks between two readings took 0 J."""
    joules = (0, 0, 0, 0, 0, 1000, 1000, 1000)

    def run(watts):
        metrics = [sample(at * SECOND, joules=of, watts=watts) for at, of in enumerate(joules)]
        return session(block(("step",), 6 * SECOND, 7 * SECOND), metrics=metrics, end=8 * SECOND)

    (row,) = energy(run(200))
    assert (row.method, row.blocks[0].joules) == ("power", pytest.approx(200))
    (row,) = energy(run(None))
    assert (row.method, row.joules, row.seconds) == ("counter", 1000, 5)
    assert row.blocks[0].sampled_share == 0


def test_energy_by_power_is_the_trapezoid():
    run = session(
        block(("half",), 0, SECOND // 2), metrics=[sample(0, watts=100), sample(SECOND, watts=300)], end=SECOND
    )
    (row,) = energy(run)
    assert (row.joules, row.method) == (200, "power")
    assert row.blocks[0].joules == pytest.approx((100 + 200) / 2 * 0.5)


def test_energy_of_passes_between_two_samples_is_an_estimate():
    """One slow first pass with samples in it, and short ones of which one met a sample."""
    layer = [block(("layer",), SECOND // 4, 4 * SECOND), *(
        block(("layer",), at, at + MS, number=3 + at) for at in (5 * SECOND, int(6.2 * SECOND), int(7.7 * SECOND))
    )]  # fmt: skip
    never = [block(("never",), int(at * SECOND), int(at * SECOND) + MS, number=50 + int(at)) for at in (1.5, 2.5)]
    run = session(
        *layer, *never, block(("long",), 0, 9 * SECOND, number=90),
        metrics=[sample(at * SECOND, watts=100) for at in range(10)], end=9 * SECOND,
    )  # fmt: skip
    blocks = {row.path: row for row in energy(run)[0].blocks}
    assert [blocks[path].estimated for path in (("long",), ("layer",), ("never",))] == [False, True, True]
    assert blocks["long",].sampled_share == 1
    assert blocks["layer",].sampled_share == pytest.approx((3.75 + 0.001) / (3.75 + 0.003))
    assert blocks["never",].sampled_share == 0
    (table,) = [one for one in page_data(run).facts["tables"] if one["title"] == "Energy by block"]
    assert [row[0:1] + row[2:5] for row in table["rows"]] == [
        ("long", "900 J", "1", "900 J"),
        ("layer", "≈375 J", "4", "–"),
    ]
    assert table["remarks"] == [
        "≈: most passes are shorter than the time between two samples: power around them times their time.",
        "1 block had no sample in any pass: what the device used then is not known.",
    ]


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 500)), min_size=2, max_size=8), st.integers(0, 400))
def test_parts_of_the_energy_add_up(steps, cut):
    times = [sum(step for step, _ in steps[: at + 1]) * MS for at in range(len(steps))]
    metrics = [sample(at, watts=watts) for at, (_, watts) in zip(times, steps, strict=True)]
    middle = min(max(times[0], cut * MS), times[-1])
    run = session(block(("a",), times[0], middle), block(("b",), middle, times[-1], number=2), metrics=metrics)
    (row,) = energy(run)
    assert sum(block.joules for block in row.blocks) == pytest.approx(row.joules, abs=1e-9)


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ([sample(0, watts=100)], "fewer than two samples"),
        ([sample(0), sample(MS)], "unsupported: this source does not report it"),
    ],
)
def test_unknown_energy_is_none_with_a_reason_and_not_zero(metrics, reason):
    (row,) = energy(session(block(("a",), 0, MS), metrics=metrics, end=MS))
    assert (row.joules, row.method, row.reason, row.blocks) == (None, None, reason, ())


def test_a_counter_that_went_backwards_is_not_used():
    points = [sample(0, joules=500, watts=100), sample(SECOND, joules=20, watts=100)]
    assert energy(session(metrics=points))[0].method == "power"


# Backends


def test_the_same_operation_is_put_side_by_side():
    run = session(
        kernel("blur", 0, 100), kernel("blur", 200, 260, backend="wgpu", device=None), compute("blur", 300, 900),
        kernel("only", 0, 10), copy("cpu_to_gpu", 8, 0, 10), copy("cpu_to_gpu", 8, 0, 30, backend="wgpu", device=None),
    )  # fmt: skip
    pairs = {pair.name: pair for pair in side_by_side(run)}
    assert set(pairs) == {"blur", "cpu_to_gpu"}
    assert [(row.backend, row.avg_ns) for row in pairs["blur"].sides] == [("wgpu", 60), ("cuda", 100), ("cpu", 600)]
    assert pairs["blur"].ratio == 10
    assert side_by_side(training(2)) == []


# Waits


def test_waits_are_summed_by_line_whether_kept_or_counted():
    run = session(
        sync(0, 4 * MS, source_line="train.py:31 step"),
        sync(5 * MS, 6 * MS, source_line="train.py:31 step")._replace(name="event_synchronize"),
        sync(6 * MS, 7 * MS),
        sync(7 * MS, 9 * MS)._replace(name="stream_wait_event"),
        aggregates=[
            Aggregate((), "sync", "stream_synchronize", "cuda", 0, 7, 100, 3 * MS, 1, 90, 0, source_line="a.py:2 f"),
            Aggregate((), "sync", "stream_synchronize", "cuda", None, 7, 2, 30, 10, 20, 0, source_line="a.py:2 f"),
            Aggregate((), "sync", "stream_wait_event", "cuda", 0, 7, 9, 9, 1, 1, 9),
            Aggregate((), "kernel", "k", "cuda", 0, 7, 9, 9, 1, 1, 9),
        ],
    )
    assert [tuple(row) for row in waits(run)] == [
        ("train.py:31 step", 2, 5 * MS, 4 * MS, ("event_synchronize", "stream_synchronize")),
        ("a.py:2 f", 102, 3 * MS + 30, 90, ("stream_synchronize",)),
        (None, 1, MS, MS, ("stream_synchronize",)),
    ]
    assert waits(run)[0].avg_ns == 2.5 * MS
    assert waits(session()) == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, ""),
        ({"running": True, "reason": "", "noted": 0}, ""),
        ({"running": False, "reason": "another profiler", "noted": 0}, "another profiler"),
        ({"running": False, "reason": "capture was stopped", "noted": 7}, ""),
        ("no dict", ""),
    ],
)
def test_why_lines_are_missing(status, reason):
    run = session()
    run.meta["capture"] = {"sync_lines": status} if status is not None else {}
    assert lines_missing(run) == reason


def test_what_was_held_at_the_peak_is_not_copied_at_each_new_one(monkeypatch):
    copied = []
    module = sys.modules[memory.__module__]
    monkeypatch.setattr(module, "dict", lambda *of: copied.append(1) or dict(*of), raising=False)
    run = session(*(alloc(10, at, at, path=("run", f"request {at}")) for at in range(1, 501)))
    (row,) = memory(run)
    assert (row.peak_bytes, len(row.blocks), row.blocks[0].at_peak_bytes) == (5_000, 500, 10)
    assert not copied


def test_a_device_draws_nothing_for_processes_that_do_not_use_it():
    """Ranks merged, each with a card of its own: the energy of a card belongs to the blocks of one rank."""
    ranks = []
    for number in (0, 1):
        card = H100._replace(uuid=f"GPU-{number}", pci_bus_id=None)
        run = session(
            kernel("k", 0, MS, path=("step",), block_id=1), block(("step",), 0, SECOND), end=SECOND,
            devices=(card,), metrics=[sample(at, device=card, watts=100.0) for at in (0, SECOND)], rank=number,
            world_size=2,
        )  # fmt: skip
        ranks.append(run)
    first, second = energy(merge(ranks))
    assert [(one.path, one.joules) for one in first.blocks] == [(("rank 0", "step"), pytest.approx(100.0))]
    assert [(one.path, one.joules) for one in second.blocks] == [(("rank 1", "step"), pytest.approx(100.0))]
