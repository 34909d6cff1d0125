"""Jobs made of known arrivals, on clocks that are known to be wrong."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._records.records import GpuCollective
from gpusense.analysis import collectives

T0 = 1_700_000_000 * 10**9


def part(name, communicator, rank, ranks, sequence, start, end, **more):
    return GpuCollective(
        name,
        (start if start is not None else T0) - 5000,
        (start if start is not None else T0) - 1000,
        communicator,
        rank=rank,
        ranks=ranks,
        sequence=sequence,
        device_start_ns=start,
        device_end_ns=end,
        **more,
    )


def job(seed, groups, offsets, count=20, jitter=0):
    """[records of each process], and who came last in each: {(communicator, sequence): (rank, late)}."""
    source = random.Random(seed)
    records = [[] for _ in offsets]
    truth = {}
    for communicator, members in groups.items():
        for sequence in range(count):
            begun = T0 + sequence * 10**7 + int(communicator) * 1000
            arrivals = {process: begun + source.randrange(10**6) for process in members}
            end = max(arrivals.values()) + 200_000
            order = sorted(arrivals.values())
            last = max(arrivals, key=arrivals.__getitem__)
            truth[communicator, sequence] = members.index(last), order[-1] - order[-2]
            for rank, process in enumerate(members):
                own = end + source.randrange(-jitter, jitter + 1) if jitter else end
                records[process].append(
                    part(
                        "AllReduce", communicator, rank, len(members), sequence,
                        arrivals[process] + offsets[process], own + offsets[process],
                    )
                )  # fmt: skip
    return records, truth


GRID = {"70": [0, 1], "71": [2, 3], "80": [0, 2], "81": [1, 3]}  # two by two: no communicator has them all


@given(st.integers(0, 10**6), st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3))
def test_the_last_one_is_named_whatever_the_clocks_say(seed, others):
    offsets = [0, *others]
    records, truth = job(seed, GRID, offsets)
    answer = collectives.join(records)
    assert answer.offsets_ns == tuple(offsets)
    assert (answer.error_ns, answer.missing, answer.unmatched) == (0, (), 0)
    assert {
        (each.key.communicator, each.key.sequence): (each.last.rank, each.late_ns) for each in answer.joined
    } == truth
    for each in answer.joined:
        assert each.duration_ns == 200_000
        assert [each.waited_ns(one) >= 0 for one in each.parts] == [True] * 2
        assert each.waited_ns(each.last) == 0


def test_of_two_jobs_each_has_its_own_clock():
    two = {"70": [0, 1], "80": [2, 3]}
    records, truth = job(5, two, [0, 40_000_000, 9_000_000, -3_000_000])
    answer = collectives.join(records)
    assert (answer.offsets_ns, answer.error_ns) == ((0, 40_000_000, 0, -12_000_000), 0)
    assert {(one.key.communicator, one.key.sequence): (one.last.rank, one.late_ns) for one in answer.joined} == truth


def test_ends_that_jitter_leave_an_error_that_is_said():
    records, _ = job(3, {"9": [0, 1, 2]}, [0, 5_000_000, -7_000_000], count=200, jitter=2000)
    answer = collectives.join(records)
    assert answer.offsets_ns == pytest.approx((0, 5_000_000, -7_000_000), abs=500)
    assert 300 < answer.error_ns < 3000


def test_parts_are_matched_by_number_though_ranks_have_seen_different_stretches():
    records, truth = job(5, {"9": [0, 1]}, [0, 40], count=30)
    random.Random(1).shuffle(records[1])
    del records[0][:7], records[0][20:]  # began later, ended earlier
    answer = collectives.join(records)
    assert [each.key.sequence for each in answer.joined] == list(range(7, 27))
    assert all((each.last.rank, each.late_ns) == truth["9", each.key.sequence] for each in answer.joined)
    assert answer.unmatched == 10
    assert answer.missing == ()


def test_a_hang_names_the_rank_that_did_not_come():
    records, _ = job(5, {"9": [0, 1, 2, 3]}, [0, 0, 0, 0], count=3)
    for rank in (0, 1):
        records[rank].append(part("AllReduce", "9", rank, 4, 3, T0 + 10**9 + rank, None))
    records[2].append(part("AllReduce", "9", 2, 4, 3, None, None))
    (waiting,) = collectives.join(records).missing
    everyone = {rank: rank for rank in range(4)}
    assert waiting == (collectives.Key("9", "AllReduce", 3), (0, 1), (2,), (3,), T0 + 10**9, everyone, None)


def test_a_send_waits_for_its_receiver_and_for_nobody_else():
    records, _ = job(5, {"9": [3, 1, 0, 2]}, [0, 0, 0, 0], count=3)
    records[3].append(part("Send", "9", 0, 4, None, T0 + 10**9, None, peer=2))
    records[1].append(part("Recv", "9", 1, 4, None, T0 + 10**9, None, peer=7))  # whose sender was not recorded
    ended = part("Send", "9", 0, 4, None, T0 + 10**9, None, peer=1, attributes={"untimed": "NCCL told no end"})
    records[3].append(ended)
    (waiting,) = collectives.join(records).missing
    assert (waiting.present, waiting.absent, waiting.processes) == ((0,), (2,), {0: 3, 2: 0})


def test_ranks_in_different_collectives_wait_for_each_other():
    records, _ = job(5, {"9": [0, 1]}, [0, 0], count=3)
    records[0].append(part("AllReduce", "9", 0, 2, 3, T0 + 10**9, None))
    records[1].append(part("AllGather", "9", 1, 2, 0, T0 + 10**9 + 5, None))
    first, second = collectives.join(records).missing
    assert (first.key.name, first.present, first.absent) == ("AllReduce", (0,), (1,))
    assert (second.key.name, second.present, second.absent) == ("AllGather", (1,), (0,))


def test_sends_and_receives_are_matched_in_order():
    a, b = [], []
    for n in range(4):
        at = T0 + n * 10**6
        a.append(part("Send", "9", 0, 2, None, at, at + 5000, peer=1))
        a.append(part("Recv", "9", 0, 2, None, at, at + 5000, peer=1))
        b.append(part("Recv", "9", 1, 2, None, at + 300, at + 5000, peer=0))
        b.append(part("Send", "9", 1, 2, None, at + 300, at + 5000, peer=0))
    answer = collectives.join([a, b])
    assert [(each.key.name, each.key.sequence, each.last.rank, each.late_ns) for each in answer.joined] == [
        (name, n, 1, 300) for n in range(4) for name in ("Send 0 to 1", "Send 1 to 0")
    ]


def test_a_number_that_comes_again_is_matched_in_order():
    records = [
        [part("AllReduce", "9", rank, 2, 5, T0 + n * 1000 + rank, T0 + n * 1000 + 100) for n in range(3)]
        for rank in (0, 1)
    ]
    answer = collectives.join(records)
    assert [each.key.again for each in answer.joined] == [0, 1, 2]
    assert all(each.last.rank == 1 for each in answer.joined)


def test_nothing_gives_nothing():
    assert collectives.join([])[:5] == ((), (), (), None, 0)
    lonely = part("AllReduce", "9", 0, 1, 0, T0, T0 + 1)
    assert collectives.join([[lonely]])[:5] == ((), (), (0,), None, 1)
    assert collectives.join([[], [lonely]]).offsets_ns == (0, None)


def test_communicators_of_the_same_ranks_are_a_row_together():
    groups = {"70": [0, 1, 2], "71": [0, 1, 2], "72": [2, 1, 0], "73": [0, 1]}
    records, _ = job(5, groups, [0, 0, 0], count=4)
    rows = {row.communicator: row for row in collectives.table(records)}
    assert {name: (row.communicators, row.calls) for name, row in rows.items()} == {
        "70": (2, 8), "72": (1, 4), "73": (1, 4)
    }  # fmt: skip
    apart = collectives.table(records[:2])  # who else is in the larger ones nobody knows
    assert sorted(row.communicator for row in apart) == sorted(groups)


def test_rows_say_what_links_do_once_all_are_there():
    records, _ = job(5, {"9": [0, 1, 2, 3]}, [0, 0, 0, 0], count=9)
    for process in records:
        process[:] = [each._replace(bytes=10**6, algorithm="RING", protocol="LL") for each in process]
        process.append(process[-1]._replace(sequence=99, bytes=5, algorithm="TREE"))
    big, small = sorted(collectives.table(records), key=lambda row: -row.calls)
    assert (big.name, big.calls, big.bytes, big.algorithm, big.ranks) == ("AllReduce", 9, 10**6, "RING", 4)
    assert big.typical_ns == 200_000
    assert big.bus_bandwidth == pytest.approx(10**6 / 200e-6 * 1.5)
    assert big.waited_ns > 0
    assert 1 / 9 <= big.last_share <= 1
    assert (small.calls, small.algorithm) == (1, "TREE")
    (alone,) = [row for row in collectives.table(records[:1]) if row.calls == 9]
    assert (alone.waited_ns, alone.last_rank) == (None, None)
    assert alone.typical_ns > 200_000
