import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sessions import H100, MS, T0, US, block, compute, copy, kernel, memset, session, sync, training

from gpusense._records.records import Aggregate, BlockRecord, DeviceBusy, UnseenInterval
from gpusense.analysis import launch as launch_module
from gpusense.analysis.busy import device_times, sweeps, window
from gpusense.analysis.facts import Facts
from gpusense.analysis.families import is_collective
from gpusense.analysis.idle import REASONS, idle, innermost
from gpusense.analysis.launch import launches
from gpusense.analysis.overlap import overlap
from gpusense.session import Session, merge


def counted(count, total, *, name="k", kind="kernel", device=0, stream=7, path=("run",)):
    each = total // count
    return Aggregate(path, kind, name, "cuda", device, stream, count, total, each, each, each * each * count)


def test_busy_is_the_union_and_not_the_sum():
    run = session(
        kernel("a", 0, 100), kernel("b", 50, 150, stream=8),
        copy("cpu_to_gpu", 10, 120, 220, stream=9), memset(4, 400, 410),
        end=1000,
    )  # fmt: skip
    (row,) = device_times(run)
    assert (row.busy_ns, row.kernel_ns, row.transfer_ns, row.busy_share) == (230, 150, 110, 0.23)
    assert {stream.stream: stream.busy_ns for stream in row.streams} == {7: 110, 8: 100, 9: 100}
    assert (row.first_ns, row.last_ns, row.source) == (T0, T0 + 410, "records")
    assert row.active_share == 230 / 410


def test_counted_work_uses_the_union_kept_while_counting():
    kept = DeviceBusy(0, 600, 100, 650, T0 + 10, T0 + 900)
    run = session(kernel("a", 100, 300), aggregates=[counted(50, 400)], busy=[kept], end=1000)
    (row,) = device_times(run)
    assert (row.busy_ns, row.kernel_ns, row.transfer_ns, row.source) == (650, 600, 100, "union")
    (hidden,) = overlap(run)
    assert (hidden.copy_hidden_ns, hidden.copy_exposed_ns, hidden.collective_ns) == (50, 50, None)
    (parts,) = idle(run)
    assert (parts.compute_ns, parts.copy_ns, parts.unattributed_ns, parts.no_work_ns) == (600, 50, 240, 110)


def test_counted_work_without_a_union_is_a_sum_and_says_so():
    run = session(aggregates=[counted(50, 400), counted(2, 60, kind="transfer", stream=9)], end=1000)
    (row,) = device_times(run)
    assert (row.busy_ns, row.kernel_ns, row.transfer_ns, row.source) == (460, 400, 60, "sum")
    assert all(not stream.exact for stream in row.streams)


def test_devices_and_backends_are_apart_and_host_timed_copies_occupy_none():
    run = session(
        kernel("a", 0, 10), kernel("a", 0, 30, device=1), kernel("p", 0, 50, device=None, backend="wgpu"),
        copy("cpu_to_gpu", 10, 60, 90, timing="host"), end=100,
    )  # fmt: skip
    assert {(row.backend, row.device): row.busy_ns for row in device_times(run)} == {
        ("cuda", 0): 10,
        ("cuda", 1): 30,
        ("wgpu", None): 50,
    }


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "ncclKernel_Broadcast",
        "rcclGenericKernel",
        "cross_device_reduce_1stage",
    ],
)
def test_collectives_are_known_by_name(name):
    assert is_collective(name)
    assert not is_collective("sm90_xmma_gemm_bf16")


def test_every_idle_nanosecond_has_a_reason():
    run = session(
        block(("run",), 0, 9_000),
        compute("load", 5_000, 8_000, path=("run",)),
        kernel("a", 1_000, 2_000),
        copy("cpu_to_gpu", 10, 1_500, 2_600),  # 600 exposed
        kernel("ncclDevKernel_AllReduce", 2_500, 3_000, stream=20),  # 500 exposed, 100 of them beside the copy
        kernel("b", 3_000, 4_000),
        sync(3_500, 4_200),
        kernel("c", 4_500, 5_000),  # 500 empty after the wait
        kernel("d", 8_000, 8_500),  # 3,000 empty, the host loads
        end=10_000,
    )
    (row,) = idle(run)
    assert {reason: row.part(reason) for reason in REASONS} == {
        "compute": 3_000,
        "collective": 500,
        "copy": 500,
        "synchronisation": 500,
        "host": 1_000 + 3_000 + 500,
        "no_work": 1_000,
        "unattributed": 0,
        "unseen": 0,
    }
    assert dict(row.host_inside) == {("run", "load"): 3_000, ("run",): 1_500}


def test_what_was_not_seen_is_no_idle_time():
    """A device that seems idle while capture is off may be at work: an overhead budget switches it off on purpose."""
    off = [UnseenInterval(T0 - 500, T0 + 1_000, "before"), UnseenInterval(T0 + 4_000, T0 + 8_000, "overhead budget")]
    work = kernel("a", 1_000, 2_000), kernel("b", 3_000, 4_500), kernel("c", 8_000, 9_000)
    run = session(block(("run",), 0, 9_500), *work, end=10_000, unseen=off)
    (row,) = idle(run)
    assert {reason: row.part(reason) for reason in REASONS if row.part(reason)} == {
        "compute": 3_500, "host": 1_000 + 500, "no_work": 500, "unseen": 1_000 + 3_500
    }  # fmt: skip
    assert [gap[:2] for gap in row.gaps if gap.reason == "unseen"] == [(T0, T0 + 1_000), (T0 + 4_500, T0 + 8_000)]
    (time,) = device_times(run)
    assert (time.unseen_ns, time.busy_share, time.active_ns) == (5_000, 3_500 / 5_000, 8_000 - 4_000)
    (wgpu,) = device_times(session(*(one._replace(backend="wgpu") for one in work), end=10_000, unseen=off))
    assert (wgpu.unseen_ns, wgpu.busy_share) == (0, 0.35)


def test_what_was_not_seen_is_no_idle_time_where_work_was_only_counted():
    off = [UnseenInterval(T0 + 200, T0 + 700, "overhead budget"), UnseenInterval(T0 + 950, None, "overhead budget")]
    kept = DeviceBusy(0, 200, 0, 200, T0 + 100, T0 + 900)
    run = session(aggregates=[counted(20, 200)], busy=[kept], end=1000, unseen=off)
    (row,) = idle(run)
    assert {reason: row.part(reason) for reason in REASONS if row.part(reason)} == {
        "compute": 200, "no_work": 100 + 50, "unseen": 500 + 50, "unattributed": 800 - 500 - 200
    }  # fmt: skip
    assert sum(row.part(reason) for reason in REASONS) == row.window_ns == 1000


def test_a_merged_session_has_the_same_share_of_the_time_that_its_processes_saw():
    off = [UnseenInterval(T0, T0 + 300, "CUDA was in use before")]

    def rank(number, device, unseen=()):
        card = H100._replace(index=device, cuda_index=device, uuid=f"GPU-{device}")
        work = kernel("k", 400, 700, device=device)
        return session(work, end=1000, unseen=unseen, devices=(card,), rank=number, pid=number)

    for other in (rank(1, 0, off), rank(1, 1)):  # on the same device, or on another one
        run = merge([rank(0, 0, off), other])
        alone = Facts(rank(0, 0, off))
        merged = Facts(run)
        assert merged.times[0].busy_share == alone.times[0].busy_share == 300 / 700
        assert merged.idle[0].unseen_ns == alone.idle[0].unseen_ns == 300
        assert {view.unseen == alone.views[0].unseen for view in merged.views if view.device == 0} == {True}
    assert [time.unseen_ns for time in merged.times] == [300, 0]


def test_after_a_copy_to_the_host_a_short_gap_is_a_wait_and_a_long_one_is_not():
    run = session(
        kernel("a", 0, 1_000), copy("gpu_to_cpu", 4, 1_000, 1_010), kernel("b", 1_500, 2_000),
        copy("gpu_to_cpu", 4, 2_000, 2_010), kernel("c", 5 * MS, 6 * MS), end=6 * MS,
    )  # fmt: skip
    (row,) = idle(run)
    assert (row.synchronisation_ns, row.host_ns) == (490, 5 * MS - 2_010)


def test_a_wait_longer_than_its_restart_is_charged_only_while_it_lasts():
    run = session(kernel("a", 0, 1_000), sync(500, 3_000), kernel("b", 5 * MS, 6 * MS), end=6 * MS)
    (row,) = idle(run)
    assert (row.synchronisation_ns, row.host_ns) == (2_000, 5 * MS - 3_000)


@given(
    st.lists(
        st.tuples(st.sampled_from("kcnsbg"), st.integers(0, 3_000_000), st.integers(0, 900_000)),
        min_size=1,
        max_size=25,
    )
)
def test_the_parts_add_up_to_the_window(events):
    make = {
        "k": lambda a, b: kernel("k", a, b),
        "c": lambda a, b: copy("gpu_to_cpu", 8, a, b),
        "n": lambda a, b: kernel("ncclKernel", a, b, stream=3),
        "s": lambda a, b: sync(a, b),
        "b": lambda a, b: block(("x",), a, b),
        "g": lambda a, b: compute("y", a, b),
    }
    run = session(*[make[kind](start, start + length) for kind, start, length in events], end=4_000_000)
    for row in idle(run):
        assert sum(row.part(reason) for reason in REASONS) == row.window_ns == 4_000_000
        busy = row.compute_ns + row.collective_ns + row.copy_ns
        assert sum(gap.end_ns - gap.start_ns for gap in row.gaps) == row.window_ns - busy
        assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(row.gaps))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=8))
def test_innermost_is_the_latest_opened_block_still_open(spans):
    blocks = [BlockRecord(str(i), i, None, (str(i),), a, a + n, 1) for i, (a, n) in enumerate(spans)]
    segments = innermost(blocks)
    for point in range(75):
        here = [path for start, end, path in segments if start <= point < end]
        still_open = [b for b in blocks if b.start_ns <= point < b.end_ns]
        if not still_open:
            assert here == []
        else:
            latest = max(b.start_ns for b in still_open)
            assert len(here) == 1
            assert here[0] in [b.path for b in still_open if b.start_ns == latest]


def test_overlap_splits_hidden_from_exposed():
    run = session(
        kernel("a", 0, 1_000),
        copy("cpu_to_gpu", 9, 400, 1_600, stream=8),
        kernel("ncclX", 900, 1_100, stream=9),
        end=2_000,
    )
    (row,) = overlap(run)
    assert (row.copy_ns, row.copy_hidden_ns, row.copy_exposed_ns) == (1_200, 600, 600)
    assert (row.collective_ns, row.collective_hidden_ns, row.collective_exposed_ns) == (200, 100, 100)


def test_many_short_kernels_with_gaps_are_launch_bound_and_long_ones_are_not():
    short = session(*[kernel("k", i * 10 * US, i * 10 * US + 4 * US) for i in range(500)], end=6 * MS)
    (row,) = launches(short)
    assert row.launch_bound
    assert (row.kernels, row.short_kernels, row.small_gaps) == (500, 500, 499)
    assert (row.small_gap_ns, row.median_gap_ns) == (499 * 6 * US, 6 * US)
    dense = session(*[kernel("k", i * 5 * US, i * 5 * US + 4_900) for i in range(500)], end=3 * MS)
    assert not launches(dense)[0].launch_bound
    long = session(*[kernel("k", i * MS, i * MS + 900 * US) for i in range(500)], end=500 * MS)
    assert not launches(long)[0].launch_bound


def test_counted_short_kernels_are_recognised_as_launch_bound():
    kept = DeviceBusy(0, 400 * 1000 * US // 100, 0, 4 * MS, T0, T0 + 10 * MS)
    run = session(aggregates=[counted(1000, 4 * MS)], busy=[kept], end=11 * MS)
    (row,) = launches(run)
    assert row.launch_bound
    assert (row.small_gaps, row.small_gap_ns, row.short_kernels) == (None, 6 * MS, 1000)


@pytest.mark.parametrize("start", [-3 * MS, 2000 * MS])
def test_work_recorded_by_hand_outside_the_run_is_nothing_to_divide(start):
    run = session(kernel("a", start, start + MS), kernel("b", 0, MS, device=1), end=1000 * MS)
    assert [row.device for row in idle(run)] == [1]


def test_a_session_without_end_ends_with_its_last_record():
    run = session(kernel("a", 10, 500), kernel("b", 700, 900))
    assert window(run) == (T0, T0 + 900)
    assert idle(run)[0].window_ns == 900
    assert window(Session()) is None
    assert idle(Session()) == device_times(Session()) == []
    assert sweeps(session()) == {}


def test_a_training_run_adds_up():
    (row,) = idle(training(6))
    assert sum(row.part(reason) for reason in REASONS) == row.window_ns


def test_records_are_looked_through_once_and_not_once_a_process():
    """Many processes, each with a device of its own: what tells of each host is sorted out beforehand."""
    seen = []

    class Counted(list):
        def __iter__(self):
            seen.append(1)
            return list.__iter__(self)

    counts = []
    for processes in (2, 20):
        runs = [
            session(
                kernel("k", 0, 10), block(("step",), 0, 20), end=99,
                devices=(H100._replace(uuid=f"GPU-{number}", pci_bus_id=None),), rank=number, world_size=processes,
            )
            for number in range(processes)
        ]  # fmt: skip
        run = merge(runs)
        run.records = Counted(run.records)
        seen.clear()
        assert len(idle(run)) == processes
        counts.append(len(seen))
    assert counts[0] == counts[1]


def test_gaps_are_compared_with_the_time_not_seen_in_one_sweep(monkeypatch):
    """A budget leaves a thousand intervals out; a long run has a million gaps."""
    from gpusense.analysis import intervals

    swept = []
    intersect = intervals.intersect
    for module in (intervals, launch_module):
        monkeypatch.setattr(module, "intersect", lambda *of: swept.append(1) or intersect(*of), raising=False)
    run = session(
        *(kernel("k", at, at + 50) for at in range(0, 20_000, 100)), end=20_000,
        unseen=[UnseenInterval(T0 + at + 60, T0 + at + 90, "overhead budget") for at in range(0, 20_000, 200)],
    )  # fmt: skip
    (row,) = launches(run)
    assert row.median_gap_ns == 50
    assert row.small_gaps == 99  # of 199 gaps those in which capture was on
    assert len(swept) < 50
