"""Collectives that Kineto tells of beside kernels: each field, older forms, and two ranks that are put together."""

import json

import pytest

from gpusense import cli, load
from gpusense.analysis.collectives import table
from gpusense.analysis.ranks import ranks
from gpusense.cli.importers.collectives import collective

GROUP = {
    "Group size": 4,
    "Process Group Name": "3",
    "Process Group Description": "tensor_parallel",
    "Process Group Ranks": "[1, 3, 5, 7]",
    "Seq": 41,
}


def told(name, given=1024, got=1024, kind="BFloat16", **more):
    return {"Collective name": name, "In msg nelems": given, "Out msg nelems": got, "dtype": kind, **GROUP, **more}


def test_all_that_is_told():
    record = collective(told("_allgather_base", 256, 1024), 1000, 3000, 5)
    assert (record.name, record.communicator_name, record.rank, record.ranks) == ("AllGather", "tensor_parallel", 2, 4)
    assert (record.sequence, record.elements, record.data_type, record.bytes) == (41, 256, "bfloat16", 2048)
    assert (record.device_start_ns, record.device_end_ns, record.algorithm) == (1000, 3000, None)
    same = collective(told("allreduce", Seq=42), 0, 1, 7)
    assert same.communicator == record.communicator  # on every rank
    assert len(record.communicator) == 16
    assert collective(told("allreduce", **{"Process Group Name": "4"}), 0, 1, 7).communicator != record.communicator


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("allreduce", "AllReduce"), ("allreduce_coalesced", "AllReduce"), ("all_reduce", "AllReduce"),
        ("barrier", "AllReduce"), ("_reduce_scatter_base", "ReduceScatter"),
        ("reduce_scatter_tensor_coalesced", "ReduceScatter"), ("all_gather", "AllGather"),
        ("allgather_into_tensor_coalesced", "AllGather"), ("_broadcast_oop", "Broadcast"), ("_reduce_oop", "Reduce"),
        ("all_to_allv", "AllToAll"), ("alltoall_base", "AllToAll"), ("gather", "Gather"), ("scatter", "Scatter"),
        ("of_tomorrow", "of_tomorrow"),
    ],
)  # fmt: skip
def test_names_are_those_of_nccl(called, name):
    assert collective(told(called), 0, 1, None).name == name


def test_a_scatter_counts_what_one_rank_gets_and_sends_name_both_ends():
    scatter = collective(told("_reduce_scatter_base", 1024, 256, "Float"), 0, 1, 1)
    assert (scatter.elements, scatter.bytes, scatter.rank) == (256, 4096, 0)
    send = collective(told("send", **{"Dst Rank": 7}), 0, 1, 1)
    recv = collective(told("recv", **{"Src Rank": 1}), 0, 1, 7)
    assert (send.name, send.rank, send.peer, send.sequence) == ("Send", 0, 3, None)
    assert (recv.name, recv.rank, recv.peer, recv.sequence) == ("Recv", 3, 0, None)


@pytest.mark.parametrize(
    ("text", "size", "rank", "place"),
    [
        ("[0, 1, 2, 3, ...]", 64, 60, 60),
        ("[1, 9, 17, ...]", 8, 25, 3),
        ("[0, 1, 5, ...]", 8, 5, None),  # by which steps it goes on nobody says
        ("[0, ...]", 8, 0, None),
        ("[]", 8, 0, None),
        ("one of them", 8, 0, None),
        (None, 8, 0, None),
        ("[0, 1]", 2, None, None),
        ("[0, 1, ...]", 1 << 40, 1, None),
    ],
)
def test_places_in_long_groups(text, size, rank, place):
    args = told("allreduce", **{"Process Group Ranks": text, "Group size": size})
    assert collective(args, 0, 1, rank).rank == place


@pytest.mark.parametrize("value", [None, -1, "7", 1.5, [], 1 << 80, True])
def test_what_is_of_another_kind_is_not_known(value):
    names = ("In msg nelems", "Out msg nelems", "Group size", "Seq", "dtype", "Process Group Description")
    record = collective(told("allreduce", **dict.fromkeys(names, value)), 0, 1, 1)
    assert (record.elements, record.bytes, record.ranks, record.sequence, record.data_type) == (None,) * 5
    assert collective({"Collective name": value}, 0, 1, 1) is None or value == "7"
    assert collective({}, 0, 1, 1) is None


T = 1_700_000_000_000_000  # µs


def trace_of(rank, late, ahead):
    """Ten steps of 10 ms: ``late`` by so many µs to each of its collectives; its clock ``ahead``."""
    events = []
    for step in range(10):
        at = T + ahead + step * 10_000
        number = 2 * step + 1
        args = {
            "stream": 20, "device": 0, "context": 1, "correlation": number, "Collective name": "allreduce",
            "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "Group size": 2, "dtype": "Float", "Seq": step + 1,
            "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
        }  # fmt: skip
        kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        events += [
            {"ph": "X", "cat": "kernel", "name": kernel, "ts": at + late, "dur": 5_000 - late, "tid": 20, "args": args},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": at + late - 9, "dur": 5, "tid": 77,
             "args": {"correlation": number}},
            {"ph": "X", "cat": "user_annotation", "name": "backward", "ts": at, "dur": 6_000, "tid": 77},
            {"ph": "X", "cat": "kernel", "name": "copy_kernel", "ts": at + 5_500, "dur": 5, "tid": 20,
             "args": {**args, "correlation": number + 1}},
        ]  # fmt: skip
    return {"traceEvents": events, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}


def test_who_was_late_in_two_ranks_traces(tmp_path, capsys):
    sessions = []
    for rank, late, ahead in ((0, 0, 0), (1, 3_000, 1_234_567)):
        path, out = tmp_path / f"rank{rank}.json", tmp_path / f"rank{rank}.gpusense"
        path.write_text(json.dumps(trace_of(rank, late, ahead)))
        assert cli.main(["import", str(path), "-o", str(out)]) == 0
        sessions.append(load(out))
    assert "10 collectives" in capsys.readouterr().err
    told = sessions[1].collectives
    assert len(told) == 10
    assert {(one.rank, one.path, one.thread) for one in told} == {(1, ("backward",), 77)}
    assert {one.device_start_ns - one.start_ns for one in told} == {9_000}
    answer = ranks(sessions)
    assert (answer.collectives, answer.straggler, answer.ranks[1].late_ns) == (10, 1, 3_000_000)
    assert (answer.ranks[1].clock_offset_ns, answer.clock_error_ns) == (1_234_567_000, 0)
    (row,) = table([session.collectives for session in sessions])
    assert (row.name, row.calls, row.bytes, row.typical_ns, row.last_rank) == ("AllReduce", 10, 4 << 20, 2_000_000, 1)
    assert row.bus_bandwidth == pytest.approx((4 << 20) / 2e-3)
    assert cli.main(["report", *(str(tmp_path / f"rank{rank}.gpusense") for rank in (0, 1))]) == 0
    assert "Rank 1 arrives last in 100 % of 10 collectives, by 3.00 ms" in capsys.readouterr().out
