import io
import random

import pytest
from support.sessions import H100, HOSTILE, MS, T0, US, block, compute, copy, kernel, sample, session, sync, training

from gpusense._records.records import NO_GPU, Aggregate, Counters, DeviceBusy, UnseenInterval
from gpusense._tracing.summary import print_summary
from gpusense.analysis.diff import compare
from gpusense.analysis.findings import findings, verdict
from gpusense.report.text import summary
from gpusense.session import Session, merge


def kinds(run):
    return [finding.kind for finding in findings(run)]


def find(run, kind):
    return next(finding for finding in findings(run) if finding.kind == kind)


def test_every_session_has_a_verdict():
    for run in (Session(), session(), session(kernel("k", 0, 0)), session(block(("a",), 0, 5), end=9), training(2)):
        assert verdict(run).title
        assert verdict(run) == findings(run)[0]


def test_nothing_seen_says_why():
    run = session(
        end=41_000 * MS, capture={"cuda_live_ns": 41_000 * MS},
        unseen=[UnseenInterval(T0, None, "another profiler (Proton) holds CUPTI")],
    )  # fmt: skip
    found = verdict(run)
    assert found.kind == "nothing_seen"
    assert found.title == (
        "CUDA was in use for 41.0 s and no GPU work was seen: another profiler (Proton) holds CUPTI."
    )
    assert "doctor" in found.fix
    assert "ProfilerActivity" in verdict(session(end=MS, imported_from="torch.profiler")).fix
    dropped = verdict(session(end=MS, counters=Counters(dropped=12)))
    assert "12 records dropped by the driver" in dropped.title
    assert "gives no reason" in " ".join(verdict(session(end=MS)).evidence)


def test_a_process_that_only_initialised_cuda_lacks_nothing():
    ended = {"state": "stopped", "reason": "capture was stopped", "cuda_live_ns": 3_000 * MS}
    found = verdict(session(end=4_000 * MS, capture=ended))
    assert found.title == "CUDA was initialised for 3.00 s, and nothing was launched."
    assert found.fix.startswith("If you expected work")


def test_capture_that_was_off_for_most_of_the_run_comes_first():
    off = [UnseenInterval(T0, T0 + 8 * MS, "armed, CUDA not yet live")]
    run = session(kernel("k", 8 * MS, 9 * MS), end=10 * MS, unseen=off)
    assert verdict(run).kind == "capture_off"
    assert "80 %" in verdict(run).title


@pytest.mark.parametrize(
    ("start", "end", "reason", "said"),
    [
        (4_000, 5_000, "armed", "Capture was off for 1.00 ms (12 % of the main part): armed."),
        (4_000, 4_300, "armed", None),  # too little to change anything
        (0, 1_000, "armed", None),  # before the work that is judged
        (4_000, 5_000, "", None),
    ],
)
def test_capture_that_was_off_for_a_part_of_the_judged_phase_is_a_note(start, end, reason, said):
    off = [UnseenInterval(T0 + start * US, T0 + end * US, reason)]
    found = findings(session(kernel("k", MS, 9 * MS), end=10 * MS, unseen=off))
    assert found[0].kind != "capture_off_in_part"
    assert next((one.title for one in found if one.kind == "capture_off_in_part"), None) == said


def test_reasons_for_capture_being_off_are_told_by_length_and_overlaps_once():
    off = [
        UnseenInterval(T0, T0 + MS, "armed"),
        UnseenInterval(T0 + MS, T0 + 4 * MS, "another profiler holds CUPTI"),
        UnseenInterval(T0 + 3 * MS, T0 + 5 * MS, "another profiler holds CUPTI"),
        UnseenInterval(T0 + 2 * MS, T0 + 5 * MS, "armed anew"),
    ]
    found = verdict(session(kernel("k", 8 * MS, 9 * MS), end=10 * MS, unseen=off))
    assert found.kind == "capture_off"
    assert found.title == "Capture was off for 5.00 ms (50 % of the run): another profiler holds CUPTI."
    assert [line.split(":")[0] for line in found.evidence[:-1]] == ["4.00 ms", "3.00 ms", "1.00 ms"]
    assert found.fix.startswith("Run one profiler at a time")


def test_what_a_budget_leaves_out_does_not_hide_what_was_seen():
    rests = [UnseenInterval(T0 + n * MS, T0 + n * MS + 800_000, "overhead budget") for n in range(10)]
    run = session(kernel("k", 8 * MS, 9 * MS), end=10 * MS, unseen=rests)
    assert verdict(run).kind != "capture_off"
    (found,) = (one for one in findings(run) if one.kind == "capture_off_in_part")
    assert found.title == "Capture was off for 800 µs (80 % of the main part): overhead budget."


def test_of_a_run_that_is_mostly_start_up_the_verdict_speaks_of_the_rest():
    work = [kernel("gemm", 800 * MS + place * 10 * MS, 807 * MS + place * 10 * MS) for place in range(10)]
    found = verdict(session(*work, end=1000 * MS))
    assert found.kind == "starved"
    assert found.title == (
        "GPU 0 is idle for 28 % of the main part (27.0 ms of 97.0 ms) between a gemm and the next, waiting for "
        "the host."
    )
    assert found.saving_ns == 27 * MS


def test_a_place_between_copies_has_one_article():
    work = [copy("on_device", 8 << 20, 800 * MS + at * 10 * MS, 807 * MS + at * 10 * MS) for at in range(10)]
    run = session(kernel("gemm", 790 * MS, 800 * MS), *work, end=1000 * MS)
    (found,) = [one for one in findings(run) if one.kind == "starved"]
    assert found.where == "between a copy on the device and the next"


def steps(number, *parts, first=0, gap=MS):
    """A loop: each step has a kernel for each of ``parts`` (name, length), one right after the other, then a gap."""
    records, at, order = [], first, 1
    for _ in range(number):
        for name, length in parts:
            records.append(kernel(name, at, at + length, correlation_id=order))
            at, order = at + length, order + 1
        at += gap
    return records, at


def test_a_start_up_that_takes_most_of_the_run_is_said_and_what_is_unusual_of_it_comes_first():
    parts = [(name, 2 * MS) for name in "abc"]
    records, end = steps(100, *parts, first=14_000 * MS, gap=0)
    found = verdict(session(*records, end=end))
    assert found.kind == "startup"
    assert "14.0 s" in found.title
    assert found.saving_ns == 4_000 * MS  # beyond what imports and initialisation may take
    usual, end = steps(100, *parts, first=4_000 * MS, gap=0)
    run = session(*usual, end=end)
    assert verdict(run).kind == "nothing_to_gain"
    assert "startup" in kinds(run)


def test_steps_have_a_name_and_the_gap_between_them_a_place():
    records, end = steps(50, ("forward", 2 * MS), ("backward", 4 * MS), ("optimizer", MS), gap=3 * MS)
    found = verdict(session(*records, end=end))
    assert found.kind == "starved"
    assert found.title == (
        "GPU 0 is idle for 30 % of each step (3.00 ms of 10.0 ms) between optimizer and forward, waiting for the host."
    )
    assert (found.phase, found.step_ns) == ("steady", 3 * MS)
    assert found.share == pytest.approx(0.3, abs=0.001)


def test_a_stall_every_few_steps_is_no_starved_loop():
    records, at, order = [], 0, 1
    for step in range(100):
        for name in "abc":
            records.append(kernel(name, at, at + MS, correlation_id=order))
            at, order = at + MS, order + 1
        at += 60 * MS if step % 10 == 9 else 0
    found = verdict(session(*records, end=at))
    assert found.kind == "periodic_stall"
    assert found.title.startswith("Every 10 steps GPU 0 is idle for 60.0 ms longer than usual")


def test_requests_at_random_times_are_no_fault():
    draw, records, at, order = random.Random(4), [], 0, 1
    for _ in range(80):
        at += round(draw.expovariate(1) * 40 * MS)
        for name in "abcd":
            records.append(kernel(name, at, at + 2 * MS, correlation_id=order))
            at, order = at + 2 * MS, order + 1
    found = verdict(session(*records, end=at))
    assert found.kind == "no_demand"
    assert found.saving_ns is None


def test_devices_of_one_process_that_have_unequal_work_are_compared():
    run = session(*[kernel("gemm", 0, MS, device=device) for device in (0, 1)], kernel("k", MS, 2 * MS), end=2 * MS)
    found = verdict(run)
    assert found.kind == "imbalance"
    assert "kernels run on GPU 0 for 100 %, on GPU 1 for 50 % of the main part" in found.title


def test_launch_bound():
    run = session(*[kernel("k", i * 10 * US, i * 10 * US + 4 * US) for i in range(2000)], end=20 * MS)
    found = verdict(run)
    assert found.kind == "launch_bound"
    assert "60 %" in found.title
    assert "2,000 kernels that run 4.00 µs on average" in found.title
    assert found.saving_ns == 1999 * 6 * US
    assert found.confidence == "high"


@pytest.mark.parametrize(
    ("number", "confidence"), [(1, "low"), (9, "low"), (10, "medium"), (99, "medium"), (100, "high")]
)
def test_confidence_follows_from_how_much_was_seen(number, confidence):
    """Of one kernel it was said to be high."""
    run = session(*(kernel(f"k{at}", at * MS, at * MS + MS) for at in range(number)), end=number * MS)
    found = verdict(run)
    assert (found.kind, found.confidence) == ("nothing_to_gain", confidence)


def test_of_sums_alone_no_cause_is_made_up():
    row = Aggregate(("run",), "kernel", "k", "cuda", 0, 7, 2000, 8 * MS, US, 9 * US, 8 * MS * 4 * US)
    run = session(aggregates=[row], busy=[DeviceBusy(0, 8 * MS, 0, 8 * MS, T0, T0 + 20 * MS)], end=20 * MS)
    found = verdict(run)
    assert (found.kind, found.confidence) == ("nothing_to_gain", "low")
    assert "only sums of its work" in found.title
    assert "busy 40 %" in found.title


def test_waiting_for_the_host_names_the_block():
    run = session(
        block(("train",), 0, 100 * MS), compute("load", 20 * MS, 70 * MS, path=("train",)),
        kernel("k", 10 * MS, 20 * MS), kernel("k", 70 * MS, 100 * MS), end=100 * MS,
    )  # fmt: skip
    found = verdict(run)
    assert found.kind == "starved"
    assert "in “train › load”" in found.title
    assert found.saving_ns == 50 * MS


def test_synchronisation_names_the_line():
    records = []
    for i in range(50):
        at = i * 400 * US
        records += [kernel("k", at, at + 200 * US), sync(at + 20 * US, at + 210 * US, source_line="train.py:41")]
    found = verdict(session(*records, end=50 * 400 * US))
    assert found.kind == "synchronising_call"
    assert "train.py:41 (50×)" in " ".join(found.evidence)
    assert "The host waited 49 times: in cudaStreamSynchronize." in found.evidence
    assert found.title.endswith(", mostly at train.py:41.")
    assert found.saving_ns == 48 * 200 * US  # the first step has nothing before it that tells where it began


def test_pageable_copies_are_measured_against_pinned_ones_of_the_run():
    run = session(
        kernel("k", 0, 2 * MS, stream=8),
        copy("cpu_to_gpu", 50_000_000, 2 * MS, 12 * MS, source="pageable"),
        copy("cpu_to_gpu", 50_000_000, 12 * MS, 13 * MS, source="pinned"),
        kernel("k", 13 * MS, 14 * MS, stream=8), end=14 * MS,
    )  # fmt: skip
    found = verdict(run)
    assert found.kind == "pageable_copies"
    assert "from pageable memory, at 5.00 GB/s" in found.title
    assert "Pinned copies of this run reach 50.0 GB/s" in " ".join(found.evidence)
    assert (found.saving_ns, found.confidence) == (10 * MS, "low")  # of four pieces of work
    hidden = session(
        copy("cpu_to_gpu", 50_000_000, 0, 10 * MS, source="pageable"), kernel("k", 0, 10 * MS), end=10 * MS
    )
    assert "pageable_copies" not in kinds(hidden)  # behind a kernel it costs nothing


def test_exposed_copies_and_collectives():
    run = session(
        kernel("k", 0, 50 * MS), copy("cpu_to_gpu", 10**9, 40 * MS, 70 * MS, stream=8),
        kernel("ncclDevKernel_AllReduce", 70 * MS, 90 * MS, stream=9), end=90 * MS,
    )  # fmt: skip
    assert find(run, "exposed_copies").saving_ns == 20 * MS
    assert find(run, "exposed_collectives").saving_ns == 20 * MS
    assert verdict(run).kind == "exposed_copies"


def test_first_calls_are_no_anomalies():
    run = training(20)
    unusual = [finding for finding in findings(run) if finding.kind == "anomalies"]
    assert all("sm90" in line for finding in unusual for line in finding.evidence)


@pytest.mark.parametrize(
    ("capability", "said"), [((9, 0), "TF32"), ((8, 0), "TF32"), ((7, 0), "float16"), ((6, 1), None), (None, "TF32")]
)
def test_single_precision_is_a_finding_where_tensor_cores_could_take_it(capability, said):
    card = H100._replace(compute_capability=capability)
    run = session(
        *[kernel("volta_sgemm_64x64_tn", step * MS, step * MS + MS) for step in range(9)], devices=(card,), end=9 * MS
    )
    fixes = [finding.fix for finding in findings(run) if finding.kind == "fp32_math"]
    assert [said in fix for fix in fixes] == ([True] if said else [])


def test_small_copies():
    records = [copy("cpu_to_gpu", 512, i * 10 * US, i * 10 * US + 3 * US) for i in range(500)]
    found = verdict(session(*records, kernel("k", 5 * MS, 6 * MS), end=6 * MS))
    assert found.kind == "small_copies"
    assert "500 copies below 64 KiB" in found.evidence[0]


def test_low_coverage_throttling_and_full_memory():
    metrics = [
        sample(i * MS, used=int(H100.memory_total_bytes * 0.97), why=("sw_thermal_slowdown",) if i % 2 else ())
        for i in range(10)
    ]
    run = session(kernel("tiny", 0, 10 * MS, grid=(4, 1, 1), block=(128, 1, 1)), end=10 * MS, metrics=metrics)
    assert {"small_grids", "throttled", "memory_full"} <= set(kinds(run))
    assert "50 % of the samples" in find(run, "throttled").title
    idle_clocks = session(kernel("k", 0, MS), end=MS, metrics=[sample(i, why=("gpu_idle",)) for i in range(10)])
    assert "throttled" not in kinds(idle_clocks)


def test_lost_records_and_damage_are_said():
    run = session(
        kernel("k", 0, MS), end=MS, counters=Counters(seen=90, kept=90, dropped=10, missed=2, bytes_dropped=5_000_000),
        damage=["chunk 3: checksum differs at byte 4096"],
    )  # fmt: skip
    assert verdict(run).kind == "damaged"
    lost = find(run, "data_lost")
    assert "10 %" in lost.title
    assert "5.00 MB" in " ".join(lost.evidence)


@pytest.mark.parametrize("ended", [None, T0 + 4000 * MS])
def test_work_that_hung_is_no_record_of_a_wrong_clock(ended):
    counters = Counters(seen=91, kept=90, invalid=1)
    fix = "If they are of a source of your own: give its records times of one clock, time.time_ns()."
    stream = {"device": 0, "stream": 7, "last_completed": None, "running": {"name": "k"}}
    hang = [{"after_s": 3.0, "ended_ns": ended, "streams": [stream]}]
    assert find(session(kernel("k", 0, MS), end=MS, counters=counters), "data_lost").fix == fix
    lost = find(session(kernel("k", 0, MS), end=MS, counters=counters, hang=hang), "data_lost")
    assert lost.fix == (fix if ended else "")
    assert lost.evidence[0].endswith("left out." if ended else "left out: work that hangs has no end.")


@pytest.mark.parametrize(
    ("losses", "title"),
    [
        ({"dropped": 4}, None),
        ({"dropped": 2, "invalid": 2}, None),
        ({"dropped": 6}, "Some records are missing (0.1 % of those known): totals are lower bounds."),
        ({"dropped": 4, "missed": 1}, "Some records are missing: totals are lower bounds."),
        ({"lost_markers": 1}, "Some records are missing: totals are lower bounds."),
    ],
)
def test_a_share_of_lost_records_that_changes_no_figure_is_no_finding(losses, title):
    run = session(kernel("k", 0, MS), end=MS, counters=Counters(seen=10_000, kept=10_000, **losses))
    assert [row.title for row in findings(run) if row.kind == "data_lost"] == ([title] if title else [])


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"capped_at_ns": 5}, "4.00 MB beyond the file's cap."),
        ({"failure": "No space left"}, "4.00 MB after an error."),
        (None, "4.00 MB not in the file."),
    ],
)
def test_why_something_was_not_written_is_said_of_many_files_too(end, said):
    counters = Counters(seen=1, kept=1, bytes_dropped=5_000_000, bytes_too_long=1_000_000)
    run = session(kernel("k", 0, MS), end=MS, counters=counters, **({"file": end} if end else {}))
    other = session(kernel("k", 0, MS), end=MS)
    for one in (run, merge([other, run])):
        assert find(one, "data_lost").evidence == (
            f"Not written: {said}", "Not written: 1.00 MB too long for one chunk of the file."
        )  # fmt: skip


def test_a_healthy_run_names_its_heaviest_kernel():
    run = session(*[kernel("gemm", i * MS, i * MS + 990 * US) for i in range(50)], end=50 * MS)
    found = verdict(run)
    assert found.kind == "nothing_to_gain"
    assert "busy 99 %" in found.title
    assert "gemm: 100 %" in found.evidence[1]


def test_copies_without_kernels():
    run = session(copy("cpu_to_gpu", 8, 0, 10), end=1000)
    assert "copies_only" in kinds(run)


def test_findings_are_ranked_by_their_share():
    shares = [finding.share for finding in findings(training(20)) if finding.share is not None]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0


@pytest.mark.parametrize("name", HOSTILE)
def test_sentences_stay_on_one_line_whatever_the_names(name):
    run = session(
        *[kernel(name, i * MS, i * MS + 400 * US, path=(name,)) for i in range(9)],
        block((name,), 0, 9 * MS),
        end=9 * MS,
    )
    for finding in findings(run):
        for text in (finding.title, *finding.evidence, finding.fix):
            assert text.isprintable()
            assert len(text) < 700


def test_passes_without_a_time_are_told_wherever_numbers_are():
    sources = {"wgpu": {"timed": 1, "untimed": {"the device has no timestamp-query": 2, "it was lost": 2_950}}}
    run = session(kernel("main", 0, 10, backend="wgpu", device=None), end=MS, sources=sources)
    found = find(run, "untimed")
    assert found.title == "2,952 wgpu passes were not timed: GPU times and counts are lower bounds."
    assert found.evidence == ("2,950 passes: it was lost.", "2 passes: the device has no timestamp-query.")
    assert any("2,952 wgpu passes were not timed" in line for line in summary(run))
    shown = io.StringIO()
    print_summary(run, shown)
    assert "2,952 wgpu passes were not timed: it was lost" in shown.getvalue()
    assert any(
        "wgpu passes were not timed (0 before, 2,952 after)" in note for note in compare([session()], [run]).notes
    )
    blind = find(session(end=MS, sources=sources), "nothing_seen")
    assert "2,950 passes not timed: it was lost" in blind.title


def test_a_source_that_was_refused_is_named_beside_others_work() -> None:
    run = session(kernel("k", 0, MS), end=MS, sources={"wgpu": {"reason": "wgpu-native 99 is not known"}})
    assert find(run, "untimed").title == "wgpu is not traced: wgpu-native 99 is not known."


def test_a_child_that_was_killed_is_not_why_a_job_without_a_gpu_has_no_work():
    run = session(
        block(("process 1", "main"), 0, MS),
        complete=False,
        processes=[{"root": "process 1"}, {"root": "process 2"}],
        capture={f"process {n}": {"state": "unavailable", "reason": NO_GPU} for n in (1, 2)},
    )
    (found,) = findings(run)
    assert (found.title, found.fix) == (f"No GPU work was seen: {NO_GPU}.", "")
