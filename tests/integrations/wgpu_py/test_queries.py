"""Where the values of lent queries are once they are resolved, without a GPU."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense.integrations.wgpu_py._queries import A_SET, MOST, QUERIES, Queries, own_places, taken


class Host:
    """Sets are numbers; so are pointers."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def write_kinds(self):
        return {"compute": "A", "render": "B"}

    def query_set(self, device, size, keep):
        self.sizes.append(size)
        return SimpleNamespace(_internal=len(self.sizes) - 1)

    def writes(self, name, query_set, passes):
        return None, [(name, query_set._internal, 2 * number) for number in range(passes)]

    def plain_passes(self, writes):
        return None, [("plain", *write) for write in writes]


def made(one_set: bool) -> Queries:
    queries = Queries(Host(), None, None, one_set)
    while len(queries.all) < QUERIES // 2:
        assert queries.more()
    return queries


MADE = {one_set: made(one_set) for one_set in (False, True)}


def resolved(runs, size):
    """The stamps of a buffer into which ``runs`` were resolved: each is the number of its query through all sets."""
    stamps: dict[int, int] = {}
    for query_set, first, count, offset in runs:
        assert offset % 256 == 0
        assert first + count <= size
        for number in range(count):
            assert stamps.setdefault((offset >> 3) + number, query_set * size + first + number) is not None
    return [stamps.get(at, -1) for at in range(max(stamps) + 1)], len(stamps)


def check(queries, lent):
    order, places = queries.places(lent)
    stamps, written = resolved(places.runs, queries.size)
    assert written == 2 * len(lent)  # and none that was not lent: it may never have been written
    ordered = lent if order is None else [lent[at] for at in order]
    assert taken(stamps, places.begins) == [queries_of[0] for queries_of in ordered]
    assert taken(stamps, places.ends) == [queries_of[0] + 1 for queries_of in ordered]
    return order, places


@pytest.mark.parametrize("one_set", [False, True])
@given(st.lists(st.integers(0, QUERIES // 2 - 1), min_size=1, max_size=60, unique=True))
def test_any_queries_are_found_again(one_set: bool, numbers: list[int]) -> None:
    check(MADE[one_set], [MADE[one_set].all[number] for number in numbers])


@pytest.mark.parametrize("one_set", [False, True])
@given(st.integers(0, QUERIES // 2 - 1), st.integers(1, QUERIES // 2))
def test_queries_lent_in_turn_need_no_order(one_set: bool, first: int, count: int) -> None:
    ring = MADE[one_set].all * 2
    order, places = check(MADE[one_set], ring[first : first + count])
    assert order is None
    assert len(places.runs) <= (2 if one_set else count * 2 // A_SET + 2)


def test_each_knows_its_set() -> None:
    for one_set, size in ((False, A_SET), (True, QUERIES)):
        queries = MADE[one_set]
        assert len(queries.all) == QUERIES // 2
        assert len(queries.sets) == QUERIES // size
        for number in (0, 1, A_SET // 2, QUERIES // 2 - 1):
            query_set, index = queries.place(queries.all[number])
            _, compute, render, plain = queries.all[number]
            assert query_set._internal * size + index == 2 * number
            assert compute == ("A", query_set._internal, index)
            assert render == ("B", query_set._internal, index)
            assert plain == ("plain", *compute)


@pytest.mark.parametrize(("one_set", "most"), [(False, MOST), (True, QUERIES)])
def test_there_are_as_many_as_are_asked_for_and_then_no_more(one_set: bool, most: int) -> None:
    queries = Queries(Host(), None, None, one_set)
    assert queries.all == []
    sizes = []
    while lent := queries.more():
        sizes.append(len(lent))
    assert 2 * sum(sizes) == most
    assert [lent[0] for lent in queries.all] == list(range(0, most, 2))
    assert queries.more() == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=30))
def test_the_programs_own_queries_are_found_again_and_no_others_are_read(owned: list[tuple[int, int, int]]) -> None:
    sets = [SimpleNamespace(_internal=number) for number in range(3)]
    places = own_places([(sets[which], begin, end) for which, begin, end in owned])
    stamps: dict[int, tuple[int, int]] = {}
    for query_set, first, count, offset in places.runs:
        assert offset % 256 == 0
        for number in range(count):
            assert stamps.setdefault((offset >> 3) + number, (query_set, first + number)) == (query_set, first + number)
    assert set(stamps.values()) == {(which, index) for which, *both in owned for index in both}
    assert len(places.runs) <= len(stamps)
    column = [stamps.get(at) for at in range(max(stamps) + 1)]
    assert taken(column, places.begins) == [(which, begin) for which, begin, _ in owned]
    assert taken(column, places.ends) == [(which, end) for which, _, end in owned]


def test_neighbours_of_one_set_are_one_run() -> None:
    query_set = SimpleNamespace(_internal=7)
    places = own_places([(query_set, 2 * number, 2 * number + 1) for number in range(100)])
    assert places.runs == [(7, 0, 200, 0)]
