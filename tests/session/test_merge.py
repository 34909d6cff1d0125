"""Many sessions as one: devices by identity, ids and paths kept apart, counters summed, doubts told."""

import pytest
from support.sessions import H100, MS, T0, alloc, copy, kernel
from support.sessions import session as make_session

from gpusense._records.metrics import GpuMetrics
from gpusense._records.records import Aggregate, BlockRecord, Counters, DeviceBusy, UnseenInterval
from gpusense._runtime.errors import SessionError
from gpusense.analysis.findings import verdict
from gpusense.analysis.memory import alive, memory
from gpusense.analysis.unwritten import untimed
from gpusense.report import text
from gpusense.report.html.charts import charts
from gpusense.session import Session, load, merge, save
from gpusense.session._merge import PROCESS_SHIFT


def rank(number, *, uuid="GPU-shared", start=0, device=0, threshold=100_000):
    """One process with a block, a kernel in it, a peer copy, a counted kernel and a sample of its device."""
    card = H100._replace(uuid=uuid, index=0, cuda_index=device)
    block = BlockRecord("step", 1, None, ("step",), T0 + start, T0 + start + 5 * MS, 77)
    inner = BlockRecord("inner", 2, 1, ("step", "inner"), T0 + start, T0 + start + MS, 77)
    return Session(
        meta={
            "version": "1",
            "pid": 100 + number,
            "rank": number,
            "world_size": 2,
            "start_ns": T0 + start,
            "end_ns": T0 + start + 10 * MS,
            "threshold_ns": threshold,
            "trace_all": False,
            "backends": {"cupti": "13.0"},
            "overhead": {"drain_cpu_ns": 5},
            "capture": {"state": "stopped"},
            "damage": [f"damage of {number}"],
        },
        devices=(card,),
        records=[
            kernel("k", start, start + MS, device=device, path=("step",), block_id=1, ambiguous=(1, 2)),
            copy("gpu_to_gpu", 64, start, start + 2, device=device, source_device=device, destination_device=device),
            block,
            inner,
        ],
        aggregates=[Aggregate(("step",), "kernel", "s", "cuda", device, 7, 3, 9, 2, 4, 29)],
        metrics=[GpuMetrics(card, T0 + start, 5)],
        busy=[DeviceBusy(device, 2 * MS, 2, 2 * MS, T0 + start, T0 + start + 5 * MS)],
        unseen=[UnseenInterval(T0, T0 + 1, "before"), UnseenInterval(T0 + 1, None, "given up")],
        counters=Counters(seen=7, kept=4, aggregated=3),
    )


def test_nothing_and_one():
    with pytest.raises(SessionError, match="nothing to merge"):
        merge([])
    one = rank(0)
    assert merge([one]) is one


def test_owners_move_with_their_process(tmp_path):
    one = rank(0)
    owned = Aggregate(("step",), "kernel", "s", "cuda", 0, 7, 1, 5, 5, 5, 25, owner=("build", "forward"))
    one.aggregates.append(owned)
    one.records.append(kernel("r", 0, MS, path=("step",), owner=("build",)))
    merged = merge([one, rank(1)])
    assert [row.owner for row in merged.aggregates] == [None, ("rank 0", "build", "forward"), None]
    assert merged.kernels[-1].owner is None
    assert {item.owner for item in merged.kernels if item.name == "r"} == {("rank 0", "build")}
    save(merged, tmp_path / "m.gpusense")
    assert load(tmp_path / "m.gpusense").aggregates == merged.aggregates


def test_ids_paths_and_counters():
    merged = merge([rank(0), rank(1)])
    blocks = {block.path: block for block in merged.blocks}
    assert set(blocks) == {(f"rank {n}", *rest) for n in (0, 1) for rest in (("step",), ("step", "inner"))}
    assert len({block.block_id for block in merged.blocks}) == 4
    assert blocks["rank 1", "step", "inner"].parent_id == blocks["rank 1", "step"].block_id == (1 << PROCESS_SHIFT) + 1
    second = next(row for row in merged.kernels if row.path == ("rank 1", "step"))
    assert second.block_id == blocks["rank 1", "step"].block_id
    assert second.ambiguous == ((1 << PROCESS_SHIFT) + 1, (1 << PROCESS_SHIFT) + 2)
    assert merged.counters == Counters(seen=14, kept=8, aggregated=6)
    assert {row.path for row in merged.aggregates} == {("rank 0", "step"), ("rank 1", "step")}
    assert [row.reason for row in merged.unseen] == [
        f"rank {rank}: {why}" for rank in (0, 1) for why in ("before", "given up")
    ]
    assert {row.end_ns for row in merged.unseen} == {T0 + 1, *(rank(n).meta["end_ns"] for n in (0, 1))}
    assert [record.start_ns for record in merged.records] == sorted(record.start_ns for record in merged.records)


def test_meta():
    meta = merge([rank(0), rank(1, start=MS)]).meta
    assert [process["root"] for process in meta["processes"]] == ["rank 0", "rank 1"]
    assert [process["pid"] for process in meta["processes"]] == [100, 101]
    assert (meta["start_ns"], meta["end_ns"]) == (T0, T0 + 11 * MS)
    assert meta["overhead"] == {"drain_cpu_ns": 10}
    assert meta["capture"] == {"rank 0": {"state": "stopped"}, "rank 1": {"state": "stopped"}}
    assert meta["damage"] == ["damage of 0", "damage of 1"]


def test_a_device_two_ranks_share_is_one_and_its_busy_time_a_bound():
    merged = merge([rank(0), rank(1)])
    assert [device.uuid for device in merged.devices] == ["GPU-shared"]
    assert {record.device for record in merged.kernels} == {0}
    assert [(row.device, row.busy_ns) for row in merged.busy] == [(0, 4 * MS)]
    assert merge([rank(0)] * 3).busy[0].busy_ns == 5 * MS  # no more than the span
    assert "GPU 0 was used by 2 processes: its busy time is an upper bound" in merged.meta["notes"]


def test_a_device_whose_number_is_unknown_is_told_of_without_one():
    runs = [rank(0), rank(1)]
    for run in runs:
        run.busy = [row._replace(device=None) for row in run.busy]
    assert "GPU was used by 2 processes: its busy time is an upper bound" in merge(runs).meta["notes"]


def test_the_same_number_in_two_processes_is_two_devices():
    """Each rank sees its own card as device 0, as CUDA_VISIBLE_DEVICES makes it."""
    merged = merge([rank(0, uuid="GPU-a"), rank(1, uuid="GPU-b")])
    assert [(device.index, device.cuda_index, device.uuid) for device in merged.devices] == [
        (0, 0, "GPU-a"),
        (1, 1, "GPU-b"),
    ]
    by_rank = {row.path[0]: row.device for row in merged.kernels}
    assert by_rank == {"rank 0": 0, "rank 1": 1}
    assert {row.path[0]: row.device for row in merged.aggregates} == by_rank
    second = merged.transfers[1]
    assert (second.device, second.source_device, second.destination_device) == (1, 1, 1)
    assert [sample.device.index for sample in merged.metrics] == [0, 1]
    assert [(row.device, row.busy_ns) for row in merged.busy] == [(0, 2 * MS), (1, 2 * MS)]


def test_a_device_nobody_described_is_not_confused_with_another():
    bare = rank(1)
    bare.devices = ()
    bare.metrics = []
    merged = merge([rank(0), bare])
    assert len({row.device for row in merged.kernels}) == 2


def test_a_device_cuda_does_not_show_leaves_the_numbers_of_those_it_shows():
    """NVML lists two cards; the program may see only the second, as its device 0."""
    one = rank(0, uuid="GPU-b")
    hidden = H100._replace(uuid="GPU-a", index=0, cuda_index=None)
    one.devices = (hidden, one.devices[0]._replace(index=1, cuda_index=0))
    merged = merge([one, rank(1, uuid="GPU-a")])
    names = {device.cuda_index: device.uuid for device in merged.devices}
    assert {row.path[0]: names[row.device] for row in merged.kernels} == {"rank 0": "GPU-b", "rank 1": "GPU-a"}


def test_merging_what_was_merged(tmp_path):
    save(merge([rank(0), rank(1)]), tmp_path / "two.gpusense")
    merged = merge([load(tmp_path / "two.gpusense"), rank(2)])
    assert [process["root"] for process in merged.meta["processes"]] == ["rank 0", "rank 1", "rank 2"]
    assert len({block.block_id for block in merged.blocks}) == 6
    assert {block.block_id >> PROCESS_SHIFT for block in merged.blocks} == {0, 1, 2}
    assert set(merged.meta["capture"]) == {"rank 0", "rank 1", "rank 2"}


def test_processes_without_ranks_and_twins():
    bare = rank(0)
    bare.meta["rank"] = None
    merged = merge([bare, rank(1), rank(1)])
    assert [process["root"] for process in merged.meta["processes"]] == ["process 100", "rank 1", "rank 1 #2"]


def test_processes_without_ranks_are_given_none_by_the_report():
    bare = [rank(0), rank(1)]
    for one in bare:
        one.meta["rank"] = None
    lines = list(text.full(merge(bare)))
    at = lines.index("Ranks")
    assert [line.split()[:2] for line in lines[at + 2 : at + 4]] == [["process", "100"], ["process", "101"]]


def test_one_session_given_twice_is_told():
    notes = merge([rank(0), rank(1), rank(1)]).meta["notes"]
    assert "rank 1 and rank 1 #2 have one pid and one start: the same session twice?" in notes
    assert not any("twice" in note for note in merge([rank(0), rank(1)]).meta["notes"])


def test_doubts_are_told():
    notes = merge([rank(0), rank(1, start=3600 * 1000 * MS, threshold=5)]).meta["notes"]
    assert any("rank 1 overlaps no other process" in note for note in notes)
    assert any("different thresholds" in note for note in notes)
    hostile = rank(0)
    hostile.meta |= {"processes": [3, {"root": "rank 7"}], "start_ns": None}
    assert merge([hostile, rank(1)]).meta["processes"][0] == {"root": "rank 7"}


def test_what_a_process_could_not_record_is_still_told():
    one, two = rank(0), rank(1)
    one.meta |= {"kinds": ["sync"], "complete": True, "sources": {"wgpu": {"untimed": {"no queries": 3}}}}
    two.meta |= {
        "kinds": ["sync", "allocation"],
        "complete": False,
        "sources": {"wgpu": {"untimed": {"no queries": 4}}},
    }
    merged = merge([one, two])
    assert merged.meta["kinds"] == ["allocation", "sync"]
    assert merged.meta["complete"] is False
    assert "rank 1: the program was killed or still runs" in merged.meta["notes"]
    assert untimed(merged) == {"no queries": 7}
    assert untimed(merge([merged, rank(2)])) == {"no queries": 7}
    assert "complete" not in merge([rank(0), rank(1)]).meta
    two.meta["ended_by"] = "SIGKILL"
    merged = merge([one, two])
    assert (merged.meta["complete"], merged.meta["ended_by"]) == (False, "SIGKILL")
    said = " ".join(" ".join(text.full(merged)).split())
    assert said.count("Rank 1: the program was ended by SIGKILL, sent by somebody, or by a system") == 2
    assert "passes were not timed, the program was ended by SIGKILL" in said
    assert "wait_ns" not in dict(merged.summary().operations[0].reasons)  # waits were asked for, and there were none


def test_a_hang_of_one_process_is_told_with_its_name():
    row = {"device": 1, "stream": 7, "running": {"name": "stuck"}, "last_completed": {"name": "fine"}}
    hung = rank(3, uuid="GPU-other", device=1)
    hung.meta["hang"] = [{"after_s": 30.0, "streams": [row], "stacks": []}]
    merged = merge([rank(0), hung])
    (found,) = merged.meta["hang"]
    assert (found["process"], found["streams"][0]["device"]) == ("rank 3", 1)
    assert verdict(merged).title.startswith("The GPU of rank 3 hung: nothing completed for 30 s")
    assert any("rank 3: nothing completed for 30 s" in line for line in text.full(merged))


def test_shares_of_an_overhead_budget_are_not_summed_up():
    ranks = [rank(number) for number in range(3)]
    for one in ranks[:2]:
        one.meta["overhead"] |= {"budget": 0.02, "share": 0.01, "left": 0.006, "observed": 0.4, "threshold_ns": 200_000}
    found = merge(ranks).meta["overhead"]
    assert found == {
        "drain_cpu_ns": 15,
        "budget": 0.02,
        "share": 0.01,
        "left": 0.006,
        "observed": pytest.approx(0.6),
        "threshold_ns": 200_000,
    }
    ranks[0].meta["overhead"]["drain_cpu_ns"] = 3 * MS
    (line,) = [line for line in text.full(merge(ranks)) if line.startswith("gpusense used")]
    assert line == "gpusense used 3.00 ms of CPU (10 % of the run)"


def test_processes_have_their_own_addresses():
    ranks = [rank(0), rank(1)]
    for one in ranks:
        one.records += [alloc(100, 1, 0xA, path=("step",)), alloc(0, 9, 0xA, name="free", path=("step",))]
    merged = merge(ranks)
    (row,) = memory(merged)
    assert (row.peak_bytes, row.held_bytes, row.unknown_releases) == (200, 0, 0)
    assert [block.at_peak_bytes for block in row.blocks] == [100, 100]
    rows = {row.path: row.memory_peak_bytes for row in merged.summary().operations}
    assert rows["rank 0", "step"] == rows["rank 1", "step"] == 100
    assert sum(row.bytes for row in alive(merged, T0 + 5)) == 200
    (chart,) = [one for one in charts(merged, T0) if one["label"].startswith("Allocated")]
    assert (chart["label"], max(chart["v"])) == ("Allocated by these processes", 200)


def test_a_session_without_the_program_s_times_counts_whole():
    """A dump has none: what it holds lay outside the window of the merged session, and a report of both raised."""
    run = make_session(*(kernel("k", at * MS, at * MS + 1000) for at in range(10)), end=20 * MS)
    run.meta |= {"program_start_ns": T0 + MS, "program_end_ns": T0 + 19 * MS, "pid": 1}
    dump = make_session(*(kernel("d", at * MS, at * MS + 1000) for at in range(50, 60)), end=70 * MS, pid=2)
    dump.meta["start_ns"] = T0 + 50 * MS
    dump.meta["notes"] = ["written because the program asked for it"]
    both = merge([run, dump])
    assert (both.meta["program_start_ns"], both.meta["program_end_ns"]) == (T0 + MS, T0 + 70 * MS)
    assert len(list(text.full(both))) > 20
    assert [one.get("notes") for one in both.meta["processes"]] == [None, dump.meta["notes"]]
    assert "program_end_ns" not in merge([dump, dump]).meta
