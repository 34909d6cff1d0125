"""Durations on their way into sums: whenever they are summed up, and in whatever pieces, the sums are the same."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._aggregation import sums
from gpusense._aggregation.groups import Groups
from gpusense._aggregation.sums import Sums

KINDS = ("kernel", "transfer", "sync")

#: (place, key, durations), appended one after the other
appended = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.lists(st.integers(0, 10**6), min_size=1, max_size=40)),
    max_size=60,
)


def name(kind, key):
    return f"{kind} {key}", None


def place(number):
    return ("a",) * (number % 2), KINDS[number % 3], number, 7, None


@given(appended, st.integers(1, 100), st.integers(1, 30))
@examples(200)
def test_pieces_add_up(work, fold_at, piece):
    before = sums.FOLD_AT, sums.PIECE
    sums.FOLD_AT, sums.PIECE = fold_at, piece
    try:
        groups = Groups()
        held, expected = Sums(groups, name), {}
        held.know({key: (f"k{key}", None) for key in range(6)})
        most = 0
        for number, key, durations in work:
            spot = place(number)
            sizes = [duration % 7 for duration in durations]
            held.add(spot, [key] * len(durations), durations, sizes if spot[1] == "transfer" else None)
            most = max(most, held._held)
            held.tidy(None)
            assert held._held <= fold_at
            shown = f"k{key}" if spot[1] == "kernel" else f"{spot[1]} {key}"
            expected.setdefault((spot[0], spot[1], shown, number), []).extend(zip(durations, sizes, strict=True))
        held.fold()
        assert held._held == 0
        # What came in at once is at most as much again as what is held.
        assert most <= fold_at + max((len(durations) for _, _, durations in work), default=0)
    finally:
        sums.FOLD_AT, sums.PIECE = before
    found = {
        (row.path, row.kind, row.name, row.device): (row.count, row.total_ns, row.min_ns, row.max_ns, row.bytes)
        for row in groups.rows()
    }
    assert found == {
        (path, kind, shown, device): (
            len(pairs),
            sum(duration for duration, _ in pairs),
            min(duration for duration, _ in pairs),
            max(duration for duration, _ in pairs),
            sum(size for _, size in pairs) if kind == "transfer" else 0,
        )
        for (path, kind, shown, device), pairs in expected.items()
    }


@pytest.mark.parametrize("filled", [True, False])
def test_room_that_was_never_used_ends_with_the_rest(filled):
    """An interrupt came first."""
    groups = Groups()
    held = Sums(groups, name)
    pauses = []

    def pause():
        pauses.append(None)
        assert len(pauses) < 1_000

    with pytest.raises(ValueError, match="longer"):
        held.add(place(0), [], [1] * (sums.FOLD_AT + 1))
    if filled:
        held.add(place(0), [1] * 3_000, [1] * 3_000)
    held.tidy(pause)
    assert (held._held, groups.count) == (0, 3_000 if filled else 0)


def test_half_a_millisecond_at_a_time():
    groups = Groups()
    held = Sums(groups, name)
    counted = []

    def pause():
        counted.append(groups.count)

    for _ in range(200):
        held.add(place(0), [1] * 1_000, list(range(1_000)))
        held.tidy(pause)
        assert held._held <= sums.FOLD_AT
    counted.append(groups.count)
    assert max(after - before for before, after in pairwise(counted)) == sums.PIECE
    held.fold()
    assert groups.count == 200_000
