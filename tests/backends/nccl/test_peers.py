"""What processes of one run tell each other of their ranks: two that are played by this one."""

import os

import pytest

from gpusense.backends.nccl.peers import Missing, Peers, Waiting, told


@pytest.fixture
def as_process(tmp_path, monkeypatch):
    """``as_process(pid)`` is that process from then on; gives what it knows."""
    known = {}

    def become(pid):
        monkeypatch.setattr(os, "getpid", lambda: pid)
        return known.setdefault(pid, Peers(str(tmp_path)))

    return become


def test_each_sees_how_far_the_others_have_come(as_process):
    gone = 1 << 30
    late = as_process(gone)
    late.job_rank = 3
    late.note("ab", "AllReduce", 1, 5)
    late.note("ab", "AllReduce", 1, 4)  # does not go back
    late.note("cd", "AllReduce", 0, 99)
    late.tell([])
    early = as_process(os.getppid())
    early.note("ab", "AllReduce", 0, 6)
    early.note("ab", "Broadcast", 2, 0)
    early.tell([Waiting("ab", "AllReduce", 0, 6, 77)])
    assert early.job_ranks("ab") == {1: 3}  # no launcher has said of itself which it is
    assert early.missing("ab", "AllReduce", 6) == Missing(
        frozenset({0}), {1: (5, gone), 2: (-1, os.getpid())}, frozenset({1})
    )
    assert early.missing("ab", "AllReduce", 5).absent.keys() == {2}
    assert early.waited_for() == []  # it is its own
    late = as_process(gone)
    assert late.waited_for() == [(Waiting("ab", "AllReduce", 0, 6, 77), 1)]
    late.note("ab", "AllReduce", 1, 6)
    assert late.waited_for() == []
    early = as_process(os.getppid())
    early.tell([])
    late = as_process(gone)
    late.note("ab", "AllReduce", 1, -1)
    assert not [wait for wait, _ in late.waited_for()]


def test_a_file_that_is_damaged_or_gone_costs_itself(as_process, tmp_path):
    peers = as_process(41)
    peers.note("ab", "AllReduce", 0, 3)
    peers.tell([])
    (tmp_path / "nccl-reached-7").write_text("[[1, 2], 3")
    (tmp_path / "nccl-reached-8").write_text('[["ab", "AllReduce", 1, 3, 1, "of a later version"], 5, null]')
    (tmp_path / "nccl-reached-x").write_text("")
    assert peers.missing("ab", "AllReduce", 3) == Missing(frozenset({0}), {}, frozenset())
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    peers.note("ab", "AllReduce", 0, 4)
    peers.tell([])  # the run has ended
    assert peers.missing("ab", "AllReduce", 4).came == {0}
    alone = Peers(None)
    alone.tell([Waiting("ab", "AllReduce", 0, 6, 77)])
    assert alone.waited_for() == []


@pytest.mark.parametrize(
    ("absent", "came", "ranks", "text"),
    [
        ({1: (5, 7)}, {2}, 2, "rank 7 (1 of the communicator) has not come: it launched number 5 last"),
        (
            {0: (5, 7), 1: (6, 8)},
            {2},
            4,
            "ranks 4 and 7 (0 and 1 of the communicator) have not come; of 1 other rank nothing is known here",
        ),
        ({1: (5, 7)}, {0}, 2, "rank 1 has not come: it launched number 5 last"),
        ({1: (-1, 7)}, {0}, 3, "rank 1 has not come: it has launched none yet; of 1 other rank nothing is known here"),
        ({2: (5, 7), 1: (4, 8)}, {0}, None, "ranks 1 and 2 have not come"),
        (dict.fromkeys(range(1, 12), (5, 7)), {0}, 12, "ranks 1 to 11 have not come"),
        ({}, {0, 1}, 2, "all ranks have launched it, so a device or the network does not go on"),
        ({}, {0}, None, ""),
    ],
)
def test_who_is_missing_in_words(absent, came, ranks, text):
    job_ranks = {0: 4, 1: 7, 2: 9} if 2 in came else dict.fromkeys([0], 0)
    assert told(Missing(frozenset(came), absent, frozenset()), ranks, job_ranks) == text
