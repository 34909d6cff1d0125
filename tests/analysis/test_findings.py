import io

import pytest
from support.sessions import H100, HOSTILE, MS, T0, US, block, compute, copy, kernel, sample, session, sync, training

from gpusense._records.records import Aggregate, Counters, DeviceBusy, UnseenInterval
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
    assert found.title == ("CUDA was live for 41.0 s and no GPU work was seen: another profiler (Proton) holds CUPTI.")
    assert "doctor" in found.fix
    dropped = verdict(session(end=MS, counters=Counters(dropped=12)))
    assert "12 records dropped by the driver" in dropped.title
    assert "gives no reason" in " ".join(verdict(session(end=MS)).evidence)


def test_capture_that_was_off_for_most_of_the_run_comes_first():
    off = [UnseenInterval(T0, T0 + 8 * MS, "armed, CUDA not yet live")]
    run = session(kernel("k", 8 * MS, 9 * MS), end=10 * MS, unseen=off)
    assert verdict(run).kind == "capture_off"
    assert "80 %" in verdict(run).title
    short = session(kernel("k", MS, 9 * MS), end=10 * MS, unseen=[UnseenInterval(T0, T0 + MS, "armed")])
    assert verdict(short).kind != "capture_off_in_part"
    assert "capture_off_in_part" in kinds(short)


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
    assert [line.split(":")[0] for line in found.evidence] == ["4.00 ms", "3.00 ms", "1.00 ms"]


def test_what_a_budget_leaves_out_does_not_hide_what_was_seen():
    rests = [UnseenInterval(T0 + n * MS, T0 + n * MS + 800_000, "overhead budget") for n in range(10)]
    run = session(kernel("k", 8 * MS, 9 * MS), end=10 * MS, unseen=rests)
    assert verdict(run).kind != "capture_off"
    (found,) = (one for one in findings(run) if one.kind == "capture_off_in_part")
    assert found.title == "Capture was off for 8.00 ms (80 % of the run): overhead budget."


def test_of_a_run_that_is_mostly_start_up_the_verdict_speaks_of_the_rest():
    work = [kernel("gemm", 800 * MS + place * 10 * MS, 807 * MS + place * 10 * MS) for place in range(10)]
    found = verdict(session(*work, end=1000 * MS))
    assert found.kind == "mostly_nothing"
    assert found.title == (
        "GPU 0 had nothing to do 90 % of the run: 903 ms of 1.00 s are before its first and after its last work."
    )
    assert found.evidence == ("In the 97.0 ms between them it computed 72 %, waited for the host 28 %.",)
    run = session(block(("train",), 795 * MS, 900 * MS), *work, end=1000 * MS)
    assert verdict(run).title == "GPU 0 had nothing to do 90 % of the run: 895 ms of 1.00 s are outside any block."
    assert "In the 105 ms inside blocks it computed 67 %" in verdict(run).evidence[0]
    assert "heaviest_kernel" in kinds(run)


@pytest.mark.parametrize(("before_ms", "end_ms"), [(90, 180), (400, 820)])
def test_a_start_up_that_is_short_or_the_lesser_part_is_not_worth_a_word(before_ms, end_ms):
    run = session(kernel("gemm", before_ms * MS, end_ms * MS), end=end_ms * MS)
    assert "mostly_nothing" not in kinds(run)


def test_kernels_of_several_devices_are_named_once():
    run = session(*[kernel("gemm", 0, MS, device=device) for device in (0, 1)], kernel("k", MS, 2 * MS), end=2 * MS)
    found = find(run, "heaviest_kernel")
    assert "gemm takes 67 % of the GPU time" in found.title
    assert found.evidence == ("gemm: 67 %, 2 calls, 1.00 ms each.", "k: 33 %, 1 call, 1.00 ms each.")


def test_launch_bound():
    run = session(*[kernel("k", i * 10 * US, i * 10 * US + 4 * US) for i in range(2000)], end=20 * MS)
    found = verdict(run)
    assert found.kind == "launch_bound"
    assert "60 %" in found.title
    assert "2,000 kernels shorter than 10 µs" in found.title
    assert found.saving_ns == 1999 * 6 * US
    assert found.confidence == "high"


def test_launch_bound_from_counts_alone():
    row = Aggregate(("run",), "kernel", "k", "cuda", 0, 7, 2000, 8 * MS, US, 9 * US, 8 * MS * 4 * US)
    run = session(aggregates=[row], busy=[DeviceBusy(0, 8 * MS, 0, 8 * MS, T0, T0 + 20 * MS)], end=20 * MS)
    found = verdict(run)
    assert (found.kind, found.confidence, found.saving_ns) == ("launch_bound", "medium", 12 * MS)


def test_waiting_for_the_host_names_the_block():
    run = session(
        block(("train",), 0, 100 * MS), compute("load", 20 * MS, 70 * MS, path=("train",)),
        kernel("k", 10 * MS, 20 * MS), kernel("k", 70 * MS, 100 * MS), end=100 * MS,
    )  # fmt: skip
    found = verdict(run)
    assert found.kind == "host_bound"
    assert found.title == "GPU 0 waits for the host 60 % of the run, mostly in “train › load”."
    assert found.saving_ns == 60 * MS


def test_synchronisation_names_the_line():
    records = []
    for i in range(50):
        at = i * 400 * US
        records += [kernel("k", at, at + 200 * US), sync(at + 20 * US, at + 210 * US, source_line="train.py:41")]
    found = verdict(session(*records, end=50 * 400 * US))
    assert found.kind == "synchronisation"
    assert "train.py:41 (50×)" in found.evidence[1]
    assert found.title.endswith(", mostly at train.py:41.")
    assert found.saving_ns == 49 * 200 * US


def test_pageable_copies_are_measured_against_pinned_ones_of_the_run():
    run = session(
        copy("cpu_to_gpu", 50_000_000, 0, 10 * MS, source="pageable"),
        copy("cpu_to_gpu", 50_000_000, 10 * MS, 11 * MS, source="pinned"),
        kernel("k", 0, 11 * MS, stream=8), end=11 * MS,
    )  # fmt: skip
    found = find(run, "pageable_copies")
    assert "5.00 GB/s where 50.0 GB/s" in found.title
    assert (found.saving_ns, found.confidence) == (9 * MS, "high")
    unknown = session(
        copy("cpu_to_gpu", 50_000_000, 0, 10 * MS, source="pageable"), kernel("k", 0, 10 * MS), end=10 * MS
    )
    assert "pageable_copies" not in kinds(unknown)  # nothing to compare with: no claim


def test_exposed_copies_and_collectives():
    run = session(
        kernel("k", 0, 50 * MS), copy("cpu_to_gpu", 10**9, 40 * MS, 70 * MS, stream=8),
        kernel("ncclDevKernel_AllReduce", 70 * MS, 90 * MS, stream=9), end=90 * MS,
    )  # fmt: skip
    assert find(run, "exposed_copies").saving_ns == 20 * MS
    assert find(run, "exposed_collectives").saving_ns == 20 * MS
    assert verdict(run).kind == "exposed_copies"


def test_warm_up_and_anomalies_are_apart():
    run = training(20)
    assert "warm_up" in kinds(run)
    unusual = [finding for finding in findings(run) if finding.kind == "anomalies"]
    assert all("sm90" in line for finding in unusual for line in finding.evidence)


def test_small_copies():
    records = [copy("cpu_to_gpu", 512, i * 10 * US, i * 10 * US + 3 * US) for i in range(500)]
    assert "500 copies below 64 KiB" in find(session(*records, end=5 * MS), "small_copies").title


def test_low_coverage_throttling_and_full_memory():
    metrics = [
        sample(i * MS, used=int(H100.memory_total_bytes * 0.97), why=("sw_thermal_slowdown",) if i % 2 else ())
        for i in range(10)
    ]
    run = session(kernel("tiny", 0, 10 * MS, grid=(4, 1, 1), block=(128, 1, 1)), end=10 * MS, metrics=metrics)
    assert {"low_coverage", "throttled", "memory_full"} <= set(kinds(run))
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
    assert found.kind == "heaviest_kernel"
    assert "busy 99 %" in found.title
    assert "gemm takes 100 %" in found.title


def test_copies_without_kernels():
    run = session(copy("cpu_to_gpu", 8, 0, 10), end=1000)
    assert "copies_only" in kinds(run)


def test_findings_are_ranked_by_what_they_could_save():
    savings = [finding.saving_ns or 0 for finding in findings(training(20))]
    assert savings == sorted(savings, reverse=True)
    assert savings[0] > 0


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
