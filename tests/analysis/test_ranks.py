import random

import pytest
from support.ranks import collective, job_rank
from support.sessions import H100, MS, US, block, kernel, session

from gpusense.analysis.collectives import table
from gpusense.analysis.facts import Facts
from gpusense.analysis.figures import Figures, brief, collectives_with_exposed, figures_of
from gpusense.analysis.findings import findings
from gpusense.analysis.idle import idle
from gpusense.analysis.processes import apart
from gpusense.analysis.ranks import clusters, rank_findings, ranks, ranks_of, shown_text, split, telling
from gpusense.report import text
from gpusense.session import merge


def device(rank):
    return H100._replace(uuid=f"GPU-{rank:08}-0000-0000-0000-000000000000", pci_bus_id=f"0000:{rank:02}:00.0")


def job(count, *, slow=None, steps=20, offsets=None, factor=1.5, seed=2):
    """Sessions of a job in which every step computes and then meets in one collective."""
    rng = random.Random(seed)
    records = [[] for _ in range(count)]
    at = 0
    for _ in range(steps):
        work = [int(rng.gauss(MS, MS * 0.02) * (factor if rank == slow else 1)) for rank in range(count)]
        end = at + max(work) + 200 * US
        for rank in range(count):
            shift = (offsets or [0] * count)[rank]
            records[rank].append(kernel("gemm", at + shift, at + work[rank] + shift))
            records[rank].append(kernel("ncclDevKernel_AllReduce", at + work[rank] + shift, end + shift, stream=20))
        at = end
    return [
        session(*rows, end=at + 10**9, rank=rank, world_size=count, devices=(device(rank),))
        for rank, rows in enumerate(records)
    ]


def test_the_slow_rank_is_named_and_the_others_waits_are_its_cost():
    sessions = job(4, slow=2)
    answer = ranks(sessions)
    assert (answer.straggler, answer.collectives, answer.clock_error_ns) == (2, 20, 0)
    computing = [sum(k.duration_ns for k in run.kernels if k.name == "gemm") for run in sessions]
    assert [row.compute_ns for row in answer.ranks] == computing
    assert answer.imbalance == pytest.approx(max(computing) / (sum(computing) / 4) - 1)
    slow, quick = answer.ranks[2], answer.ranks[0]
    assert (slow.last_arrivals, slow.waited_ns) == (20, 0)
    assert quick.waited_ns == computing[2] - computing[0]
    straggler, imbalance = rank_findings(ranks(sessions))
    assert (straggler.kind, straggler.confidence, imbalance.kind) == ("late_rank", "high", "imbalance")
    assert straggler.saving_ns == pytest.approx(10 * MS, rel=0.1)


def test_clocks_that_differ_by_seconds_are_aligned_at_the_ends_of_collectives():
    apart = ranks(job(3, slow=1, offsets=[0, 11_000 * MS, -3_000 * MS]))
    assert apart.straggler == 1
    offsets = [row.clock_offset_ns for row in apart.ranks]
    assert offsets[1] - offsets[0] == 11_000 * MS
    assert offsets[2] - offsets[0] == -3_000 * MS
    assert apart.clock_error_ns == 0


def test_of_many_ranks_those_that_differ_most_are_the_evidence():
    _, imbalance = rank_findings(ranks(job(16, slow=13)))
    assert imbalance.title.startswith("Rank 13 computes ")
    assert imbalance.evidence[0].startswith("Rank 13: ")
    assert len(imbalance.evidence) == 9
    assert imbalance.evidence[-1] == "8 others lie between."


def test_balanced_ranks_have_no_straggler():
    answer = ranks(job(4))
    assert answer.straggler is None
    assert answer.imbalance < 0.05
    assert rank_findings(ranks(job(4))) == []


def test_without_common_collectives_nothing_is_compared_and_it_says_so():
    sessions = job(2)
    sessions[1].records = [record for record in sessions[1].records if record.name == "gemm"]
    answer = ranks(sessions)
    assert (answer.collectives, answer.clock_error_ns, answer.straggler) == (0, None, None)
    assert answer.ranks[0].clock_offset_ns is None
    assert any("20, 0 calls by rank" in note for note in answer.notes)
    assert any("cannot be compared" in note for note in answer.notes)


def test_where_nccl_told_nothing_it_says_why():
    sessions = job(2)
    assert ranks(sessions).notes == ()  # it was never asked
    for run, row in zip(
        sessions, ({"communicators": 0}, {"reason": "another profiler stays", "hint": ""}), strict=True
    ):
        run.meta["sources"] = {"nccl": row}
    before, other = ranks(sessions).notes
    assert "made before gpusense came, or its profiler interface is none of" in before
    assert other == "NCCL told of no collectives: another profiler stays; their kernels are compared in order"
    assert before[:40] in "\n".join(text.full(merge(sessions)))


def test_one_rank_and_no_rank_and_a_rank_twice():
    assert ranks([]).ranks == ()
    assert ranks(job(1)).imbalance is None
    unnumbered = job(2)
    for run in unnumbered:
        run.meta["rank"] = None
    assert [row.rank for row in ranks(unnumbered).ranks] == [0, 1]
    twice = job(2)
    twice[1].meta["rank"] = 0
    with pytest.raises(ValueError, match="same rank"):
        ranks(twice)


def test_a_merged_session_is_split_again_and_has_the_ranks_among_its_findings():
    together = merge(job(4, slow=2))
    parts = split(together)
    assert [part.meta["rank"] for part in parts] == [0, 1, 2, 3]
    assert ranks(parts).ranks == ranks(job(4, slow=2)).ranks
    assert {"late_rank", "imbalance"} <= {finding.kind for finding in findings(together)}
    alone = job(1)[0]
    assert split(alone) == [alone]


def test_merged_processes_without_ranks_or_with_a_rank_twice_are_numbered_by_place():
    runs = job(3)
    for run in runs:
        run.meta["rank"] = 0
    assert [part.meta["rank"] for part in split(merge(runs))] == [0, 1, 2]
    damaged = merge(job(2))
    damaged.meta["processes"] = [None, {"root": 7}, {"root": "rank 0"}]
    assert split(damaged) == [damaged]


def test_a_process_without_a_rank_that_launched_nothing_is_none_of_the_job():
    runs = [session(kernel("k", 0, 9 * MS), end=10 * MS, pid=1), session(end=10 * MS, pid=2)]
    assert ranks_of(merge(runs)) is None
    assert "imbalance" not in [one.kind for one in findings(merge(runs))]
    runs.append(session(kernel("k", 0, 3 * MS), end=10 * MS, pid=3))
    assert len(ranks_of(merge(runs)).ranks) == 2
    told = [session(*work, end=10 * MS, rank=at) for at, work in enumerate(([kernel("k", 0, MS)], []))]
    assert len(ranks_of(merge(told)).ranks) == 2  # of a job it is one, whatever it did


def test_a_device_waits_for_its_own_process_and_not_for_another():
    def run(rank, load):
        return session(
            block(("load",), 0, load), kernel("k", load, 10 * MS), end=10 * MS,
            rank=rank, devices=(device(rank),),
        )  # fmt: skip

    first, second = idle(merge([run(0, 2 * MS), run(1, 7 * MS)]))
    assert first.host_inside == ((("rank 0", "load"), 2 * MS),)
    assert second.host_inside == ((("rank 1", "load"), 7 * MS),)


def test_processes_are_analysed_apart_unless_they_share_a_device():
    runs = job(4)
    runs[3].devices = runs[1].devices
    together = merge(runs)
    groups = apart(together)
    assert [roots for roots, _ in groups] == [["rank 0"], ["rank 1", "rank 3"], ["rank 2"]]
    for roots, part in groups:
        assert {record.path[0] for record in part.records} == set(roots)
        assert {path[0] for path in part.work.paths if path} == set(roots)
        assert len(part.work) == 40 * len(roots)
    facts = Facts(together)
    assert [view.program.root for view in facts.views if view.key == ("cuda", 1)] == ["rank 1", "rank 3"]
    assert len(facts.views) == 4  # and not one of each device for each process
    assert list(facts.walks) == [("cuda", 0), ("cuda", 1), ("cuda", 2)]


def test_a_brief_session_compares_as_the_whole_one_does():
    whole = [job_rank(rank, 4, late=1, why="load") for rank in range(4)]
    short = [brief(one) for one in whole]
    assert all(len(one.work) == 0 and len(one.records) == 20 for one in short)
    assert ranks(short) == ranks(whole)
    mixed = merge([short[0], whole[1], *short[2:]])
    assert mixed.once(ranks_of).ranks == ranks(whole).ranks
    assert shown_text(mixed) == (
        "Ranks 0, 2 and 3 hardly differ; rank 1 is apart. Work is shown of rank 1; name the files of other ranks to "
        "see theirs."
    )
    assert telling(short, 4) == [0, 1]


def test_a_collective_is_exposed_as_long_as_no_other_kernel_of_its_rank_runs():
    run = session(
        kernel("gemm", 0, 3 * MS),
        kernel("ncclDevKernel_AllReduce", 2 * MS, 6 * MS, stream=20),
        kernel("gemm", 4 * MS, 5 * MS),
        collective("AllReduce", 0, 2, 0, 2 * MS, 6 * MS),
        end=7 * MS,
    )
    (one,) = collectives_with_exposed(run)
    assert one.attributes == {"exposed_ns": 2 * MS}
    (row,) = table([[one]])
    assert (row.exposed_ns, row.hidden_ns) == (2 * MS, 2 * MS)


def test_of_many_kinds_of_ranks_the_last_group_holds_the_rest():
    rows = ranks([job_rank(0, 1)]).ranks * 40
    rows = [row._replace(rank=at, name=f"rank {at}", compute_ns=at * row.window_ns) for at, row in enumerate(rows)]
    groups = clusters(rows)
    assert sorted(at for mine in groups for at in mine) == list(range(40))
    assert len(groups) == 8


def test_what_a_file_says_in_place_of_figures_is_not_believed():
    run = job_rank(0, 1)
    right = figures_of(run)
    for wrong in ({"compute_ns": 5}, {"window_ns": None}, [], "x", dict.fromkeys(Figures._fields, 1.5)):
        run.meta["figures"] = wrong
        assert figures_of(run) == right
