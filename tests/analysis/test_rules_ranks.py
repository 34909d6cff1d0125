"""Who is late, and why: each reason on one of four ranks."""

import re

import pytest
from support.ranks import collective, device, job_rank, kernel_of
from support.sessions import MS, US, kernel, session

from gpusense._records.records import GpuCollective
from gpusense.analysis.findings import findings
from gpusense.analysis.ranks import alike_text, rank_findings, ranks, ranks_of, shown_text
from gpusense.report import text
from gpusense.session import merge

REASONS = {
    "load": "its device waits for its host in “step › load”, 5.",
    "sync": "its host waits for its device at train.py:31 step before it launches more",
    "stall": "in 2 of 39 steps its host holds its device up for 200 ms in “step › load”",
    "every 5": "every 5 steps its host holds its device up for 20.0 ms in “step › load”",
    "clock": "its GPU runs at 1,400 MHz, those of the others at 1,980 MHz, and computes 40 % longer",
    "batch": "it computes 40 % longer than the others, at the same clock of 1,980 MHz",
}


@pytest.mark.parametrize("why", REASONS)
def test_the_late_rank_and_its_reason_are_the_verdict(why):
    run = merge([job_rank(rank, 4, steps=40, late=2, why=why) for rank in range(4)])
    first = findings(run)[0]
    assert (first.kind, first.where) == ("late_rank", "rank 2")
    assert first.title.startswith("Rank 2 ")
    assert REASONS[why] in first.title
    assert "waiting for it costs the others " in first.title
    answer = run.once(ranks_of)
    assert alike_text(answer) == "Ranks 0, 1 and 3 hardly differ; rank 2 is apart."
    slow = answer.ranks[2]
    assert slow.events == (8 if why == "every 5" else 2 if why == "stall" else 40)


def test_of_ranks_that_share_a_device_blocks_say_where_the_late_one_is():
    runs = [job_rank(rank, 2, steps=30, late=1, why="load") for rank in range(2)]
    for run in runs:
        run.devices = runs[0].devices
    first = findings(merge(runs))[0]
    assert (first.kind, first.where) == ("late_rank", "rank 1")
    assert ": its host is in “step › load” meanwhile, 3.9" in first.title
    assert first.evidence[0].startswith("Its host is in “step › load” for ")


def shared(*, late_us):
    """Two ranks on one device; the second comes so many microseconds later to one collective after another."""
    runs = [session(end=len(late_us) * 20 * MS, rank=rank, devices=(device(0),)) for rank in range(2)]
    for number, late in enumerate(late_us):
        at = number * 20 * MS
        for rank, run in enumerate(runs):
            start, end = at + late * US * rank, at + 15 * MS
            run.records += [
                kernel_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, end, stream=20),
                collective("AllReduce", rank, 2, number, start, end),
            ]
    return merge(runs)


def test_where_the_title_counts_the_worst_the_evidence_counts_all():
    run = shared(late_us=[10_000] * 6 + [100] * 14)
    (late,) = [one for one in findings(run) if one.kind == "late_rank"]
    assert late.title.startswith("Rank 1 arrives last by 10.0 ms in 6 of 20 collectives;")
    assert "It is last in 20 in all, in 14 of them by less than 5.00 ms." in late.evidence
    assert run.once(ranks_of).ranks[1].last_arrivals == 20
    (always,) = [one for one in findings(shared(late_us=[10_000] * 20)) if one.kind == "late_rank"]
    assert not any(" in all" in said for said in always.evidence)


def test_ranks_that_take_turns_on_one_device_are_told_so():
    (late,) = [one for one in findings(shared(late_us=[10_000] * 20)) if one.kind == "late_rank"]
    assert late.evidence[0].startswith("It shares GPU 0 with 1 other rank: ")
    assert late.fix.startswith("Give each rank a device of its own.")


def another(run, number):
    """The same as a rank of another job, with devices of its own."""
    run.devices = [device(number)]
    run.records = [one._replace(communicator="beef") if type(one) is GpuCollective else one for one in run.records]
    return run


def test_beside_another_job_the_ranks_of_one_say_what_they_say_alone():
    def mine():
        return [job_rank(rank, 2, steps=30, late=1, why="load") for rank in range(2)]

    def others():
        return [another(job_rank(rank, 3, steps=40, late=0, why="batch"), 4 + rank) for rank in range(3)]

    def said(run):
        found = [one for one in findings(run) if one.kind in ("late_rank", "imbalance")]
        return sorted((re.sub(r" #\d", "", one.title), one.saving_ns, len(one.evidence)) for one in found)

    together = said(merge([*mine(), *others()]))
    assert together == sorted(said(merge(mine())) + said(merge(others())))
    assert len(together) == 3


def test_what_a_rank_computes_is_told_where_it_differs_and_no_cause_is_made_up():
    answer = ranks([job_rank(rank, 4, steps=40, late=2, why="load") for rank in range(4)])
    (late,) = rank_findings(answer)
    assert not any("computes" in said for said in late.evidence)
    assert late.fix.startswith("The session of rank 2 does not tell why. Put blocks of your own around ")
    (late, *_) = rank_findings(ranks([job_rank(rank, 4, steps=40, late=2, why="batch") for rank in range(4)]))
    assert late.evidence[0].startswith("It computes ")


def test_a_late_rank_is_the_verdict_although_it_works_on_for_long():
    runs = [job_rank(rank, 2, steps=8, late=1, why="load") for rank in range(2)]
    runs[1].records.append(kernel_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 60 * MS, 4000 * MS, stream=20))
    runs[1].meta["end_ns"] += 4000 * MS
    first = findings(merge(runs))[0]
    assert (first.kind, first.share > 0.5) == ("late_rank", True)


def test_ranks_that_were_not_recorded_are_part_of_the_evidence():
    runs = [job_rank(rank, 4, late=1, why="load") for rank in range(3)]
    (late,) = [one for one in findings(merge(runs)) if one.kind == "late_rank"]
    unrecorded = "1 rank of a communicator was not recorded: whom the others waited for may be there."
    assert late.evidence[-1] == unrecorded
    assert unrecorded in "\n".join(line.strip() for line in text.full(merge(runs)))


def test_ranks_that_are_late_in_turn_are_none():
    run = merge([job_rank(rank, 4, steps=40) for rank in range(4)])
    assert "late_rank" not in {one.kind for one in findings(run)}
    answer = run.once(ranks_of)
    assert alike_text(answer) == "All 4 ranks hardly differ."
    pids = [row._replace(name=f"process {row.rank + 40}") for row in answer.ranks]
    assert alike_text(answer._replace(ranks=tuple(pids))) == "All 4 processes hardly differ."


def stepping(steps, each, *, work=0.5, **meta):
    """``steps`` of ``each`` nanoseconds, whose device works for a part of each."""
    begun = [step * each for step in range(steps)]
    return session(*(kernel("gemm", at, at + round(work * each)) for at in begun), end=steps * each, **meta)


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        ({}, "All 3 ranks hardly differ."),
        ({"steps": 200, "each": 2 * MS}, ""),
        ({"work": 0.54}, "All 3 ranks hardly differ."),
        ({"work": 0.6}, "Ranks 0 and 1 hardly differ; rank 2 is apart."),
    ],
)
def test_ranks_of_which_any_figure_differs_are_not_called_alike(apart, said):
    runs = [{"steps": 40, "each": 10 * MS, "rank": rank} for rank in range(3)]
    runs[2].update(apart)
    assert shown_text(merge([stepping(**run) for run in runs])) == said


@pytest.mark.parametrize("second", ["train.py", "other.py"])
def test_of_different_programs_it_is_not_said_how_they_compare(second):
    scripts = ["train.py", "train.py", second]
    runs = [
        stepping(40, 10 * MS, pid=40 + at, run={"command": script}, work=0.9 if script == "other.py" else 0.5)
        for at, script in enumerate(scripts)
    ]
    idle = session(end=400 * MS, pid=50, run={"command": "train.py"})
    same = second == "train.py"
    assert shown_text(merge(runs)) == ("All 3 processes hardly differ." if same else "")
    told = "All 3 processes that used a device hardly differ." if same else ""
    assert shown_text(merge([*runs, idle])) == told
    assert "imbalance" not in {one.kind for one in findings(merge(runs))}


def test_a_rank_that_is_late_once_as_at_the_first_collective_is_not_the_verdict():
    runs = []
    for rank in range(3):
        parts = []
        for sequence in range(30):
            late = 900 * MS * (sequence == 0 and rank == 1) + 40 * US * (sequence % 3 == rank)
            end = sequence * 2 * MS + 910 * MS
            parts.append(collective("AllReduce", rank, 3, sequence, end - 902 * MS + late, end))
        runs.append(session(*parts, end=2000 * MS, rank=rank))
    assert ranks(runs).straggler is None


@pytest.mark.parametrize("slow_link", [False, True])
def test_ranks_that_are_late_together_are_named_together_or_their_link_is(slow_link):
    runs = []
    for rank in range(8):
        parts, late = [], rank >= 6
        for n in range(20):
            at = n * 20 * MS
            took = (6 if late and slow_link else 1) * MS
            ready = at + took + (5 * MS if late and not slow_link else 0) + rank * US
            parts += [
                collective("AllGather", rank % 2, 2, n, at, at + took, communicator=f"c{rank // 2}"),
                collective("AllReduce", rank, 8, n, ready, at + 8 * MS, communicator="world"),
            ]
        runs.append(session(*parts, end=500 * MS, rank=rank))
    run = merge(runs)
    answer = run.once(ranks_of)
    assert (answer.straggler, answer.together) == (None, (6, 7))
    kinds = {one.kind: one.title for one in findings(run)}
    assert ("slow_links" in kinds, "late_rank" in kinds) == (slow_link, not slow_link)
    if not slow_link:
        assert kinds["late_rank"].startswith("Ranks 6 and 7 arrive last together; waiting for them costs the others 1")


def test_links_that_carry_less_than_others_of_their_kind_are_named():
    runs = []
    for rank in range(8):
        pair, took = f"{rank // 2}{rank // 2}", (3 if rank // 2 == 3 else 1) * MS
        parts = [
            collective("AllReduce", rank % 2, 2, n, n * 10 * MS + MS, n * 10 * MS + MS + took, communicator=pair)
            for n in range(10)
        ]
        runs.append(session(*parts, end=200 * MS, rank=rank))
    answer = ranks(runs)
    (slow,) = answer.slow
    assert (slow.row.members, slow.usual_ns, slow.others, slow.lost_ns) == ((6, 7), MS, 3, 20 * MS)
    (found,) = [one for one in findings(merge(runs)) if one.kind == "slow_links"]
    assert found.title == (
        "AllReduce of 26.2 MB among ranks 6 and 7 takes 3.00 ms, where 3 others like it take 1.00 ms: "
        "8.74 GB/s instead of 26.2 GB/s."
    )


def test_who_did_not_come_is_a_rank_of_the_job():
    runs = []
    for rank in range(4):
        mine, group = rank // 2, f"c{rank % 2}"
        parts = [collective("AllReduce", mine, 2, n, n * MS, n * MS + US, communicator=group) for n in range(5)]
        if rank == 1:
            hung = collective("AllReduce", 0, 2, 5, 5 * MS, 6 * MS, communicator=group, communicator_name="odd")
            sent = collective("Send", 0, 2, None, 7 * MS, 8 * MS, communicator=group, peer=1)
            parts += [each._replace(device_end_ns=None) for each in (hung, sent)]
        runs.append(session(*parts, end=500 * MS, rank=rank))
        hung = {"after_s": 3.0, "streams": [], "stacks": [], "ended_ns": None}
        wait = {**hung, "text": "rank 1 has been in it", "wait": {"communicator": "c1", "sequence": 5}}
        stack = {
            "thread": 1,
            "name": "MainThread",
            "frames": ["load.py:7 read", "train.py:31 step", "train.py:90 main"],
        }
        runs[-1].meta["hang"] = {1: [hung, wait], 3: [{**hung, "stacks": [stack]}]}.get(rank, [])
    found, cause = [one for one in findings(merge(runs)) if one.kind in ("hang", "waited")]
    assert cause.title.startswith("The GPU of rank 3 hung")  # it is why that rank did not come
    assert found.title == "Rank 3 did not come to AllReduce number 5, in which rank 1 waited at the end of the run."
    assert found.evidence == (
        "Rank 3 never launched it: rank 1 of communicator c1 (“odd”).",
        "Rank 3 was in load.py:7 read, called by train.py:31 step, called by train.py:90 main.",
        "Rank 1 waited in Send number 0 from rank 1 to rank 3.",
    )
    assert "hang" not in {one.kind for one in findings(merge(runs[::2]))}
