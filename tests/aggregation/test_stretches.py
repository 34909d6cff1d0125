"""Sums by stretches that come again are those of a look at each record."""

import random
import struct
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cupti import STRIDES, T0, kernel, memcpy, view
from support.draws import examples
from support.sessions import watch

from gpusense._aggregation import stretches as _stretches
from gpusense._aggregation import sums
from gpusense._aggregation.groups import Groups
from gpusense._aggregation.pipeline import Limits, Pipeline
from gpusense._aggregation.stretches import Cutter, spread
from gpusense._aggregation.sums import Piles
from gpusense._attribution.boundaries import CLOSE, OPEN, Boundary

#: Addresses that differ in their low, their second, their third byte.
ADDRESSES = [0x7F00_0000 + (i << shift) for shift in (0, 8, 16) for i in range(1, 40)]


def packed(numbers):
    return struct.pack(f"{len(numbers)}Q", *numbers)


def steps(seed, names, length, skip, count):
    """A sequence of names that comes again, some of it left out here and there."""
    rng = random.Random(seed)
    step = [rng.choice(ADDRESSES[:names]) for _ in range(length)]
    return [key for i in range(count) if rng.random() >= skip for key in (step[i % length],)]


sequences = st.builds(
    steps,
    st.integers(0, 1000),
    st.integers(1, len(ADDRESSES)),
    st.integers(1, 90),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.integers(2, 700),
).filter(bool)


def cut(cutter, keys, durations=None):
    return cutter.cut(packed(keys), packed(durations or [1] * len(keys)))


@given(st.lists(sequences, min_size=1, max_size=4), st.data())
@examples(150)
def test_stretches_are_all_of_a_batch_and_any_part_of_it(batches, data):
    cutter = Cutter()
    for keys in batches:
        stretches = cut(cutter, keys)
        assert b"".join(stretches.parts) == packed(keys)
        assert [len(part) for part in stretches.parts] == [
            end - begin for begin, end in zip([0, *stretches.ends], stretches.ends, strict=False)
        ]
        assert all(stretches.parts)
        assert cutter.distinct(stretches) == set(keys)
        for _ in range(5):
            low = data.draw(st.integers(0, len(keys) - 1))
            high = data.draw(st.integers(low + 1, len(keys)))
            parts = stretches.between(low, high)
            assert all(parts)
            assert b"".join(parts) == packed(keys[low:high])


def test_what_comes_again_is_cut_alike_wherever_a_batch_begins():
    rng = random.Random(7)
    step = [rng.choice(ADDRESSES) for _ in range(70)]
    cutter = Cutter()
    cut(cutter, step * 8)
    known = set()
    for begin in range(1, 70):
        parts = cut(cutter, (step * 9)[begin : begin + 490]).parts
        assert len(parts) >= 5
        known.update(parts[1:-1])
    assert len(known) <= 4


def test_where_nothing_cuts_well_a_batch_is_one_stretch_and_the_next_look_is_later(monkeypatch):
    cutter, looks = Cutter(), []
    choose = Cutter._choose
    monkeypatch.setattr(Cutter, "_choose", lambda self, keys: (looks.append(1), choose(self, keys)))
    for _ in range(_stretches.PATIENCE + 2):
        assert cut(cutter, [0x100] * 300).ends == [2400]
    assert len(looks) == 2


def test_bytes_that_cut_well_no_more_are_chosen_anew():
    cutter = Cutter()
    first, second = [ADDRESSES[:39], ADDRESSES[39:78]]
    assert len(cut(cutter, first * 20).ends) > 5
    for _ in range(_stretches.PATIENCE + 1):
        last = cut(cutter, second * 20)
    assert len(last.ends) > 5


def test_remembered_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(_stretches, "MAX_KEYS", 100)
    cutter, rng = Cutter(), random.Random(1)
    for _ in range(50):
        keys = [rng.choice(ADDRESSES) for _ in range(60)]
        assert cutter.distinct(cut(cutter, keys)) == set(keys)
        assert sum(len(part) // 8 for part in [*cutter._known, *cutter._once]) <= 160
        assert len(cutter._within) <= len(cutter._sets) + 1 <= 20


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 9), st.randoms(use_true_random=False))
@examples(100)
def test_durations_of_equal_stretches_go_to_their_keys(keys, times, rng):
    durations = [rng.randrange(2**40) for _ in range(len(keys) * times)]
    found = defaultdict(list)
    spread(packed(keys), bytearray(packed(durations)), found)
    expected = defaultdict(list)
    for key, duration in zip(keys * times, durations, strict=True):
        expected[key].append(duration)
    assert {key: sorted(members) for key, members in found.items()} == {
        key: sorted(members) for key, members in expected.items()
    }


@given(
    st.lists(st.tuples(sequences, st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(1, 900),
    st.integers(1, 300),
    st.randoms(use_true_random=False),
)
@examples(100)
def test_sums_are_those_of_single_durations(batches, fold_at, piece, rng):
    """Whenever they are summed up, and in whatever pieces; names that move on the way."""
    before = sums.FOLD_AT, sums.PIECE
    sums.FOLD_AT, sums.PIECE = fold_at, piece
    try:
        groups, cutter, expected = Groups(), Cutter(), {}
        piles = Piles(groups, lambda kind, key: (str(key), None))
        for keys, place, meaning in batches:
            piles.know({key: f"{key:x} {meaning}" for key in set(keys)})
            durations = [rng.randrange(100_000) for _ in keys]
            stretches = cut(cutter, keys, durations)
            edges = sorted({0, len(keys), *(rng.randrange(len(keys)) for _ in range(3))})
            for low, high in pairwise(edges):
                spot = (("a",) * (low % 2), "kernel", place, 7, None)
                if rng.random() < 0.2:  # one by one, as beside kept ones
                    piles.make_room(high - low)
                    for key, duration in zip(keys[low:high], durations[low:high], strict=True):
                        piles.at(spot)[key].append(duration)
                else:
                    piles.extend(spot, stretches, low, high)
                piles.tidy(None)
                assert piles._held <= fold_at
                for key, duration in zip(keys[low:high], durations[low:high], strict=True):
                    expected.setdefault((spot[0], f"{key:x} {meaning}", place), []).append(duration)
        held = sum(len(run) // 8 for runs in piles._runs.values() for run in runs.values())
        held += sum(len(pile) for by_key in piles._piles.values() for pile in by_key.values())
        assert piles._held == held
        piles.fold()
        assert piles._held == 0
    finally:
        sums.FOLD_AT, sums.PIECE = before
    found = {
        (row.path, row.name, row.device): (row.count, row.total_ns, row.min_ns, row.max_ns, row.sum_squares_ns2)
        for row in groups.rows()
    }
    assert found == {
        key: (len(d), sum(d), min(d), max(d), sum(x * x for x in d)) for key, d in expected.items()
    }  # fmt: skip


@pytest.mark.parametrize("again", [True, False])
def test_what_is_summed_up_at_once_is_bounded(again):
    groups, cutter, rng = Groups(), Cutter(), random.Random(3)
    piles = Piles(groups, lambda kind, key: (str(key), None))
    for number in range(200):
        keys = ADDRESSES[:40] * 25 if again else rng.choices(ADDRESSES[:40], k=1000)
        stretches = cut(cutter, keys)
        piles.extend(((), "kernel", number % 3, 7, None), stretches, 0, len(keys))
        counted = [groups.count]
        piles.tidy(lambda: counted.append(groups.count))  # noqa: B023
        counted.append(groups.count)
        assert max(after - before for before, after in pairwise(counted)) <= sums.PIECE + len(keys)
        assert piles._held <= sums.FOLD_AT


@pytest.mark.parametrize("asked", [False, True])
@given(
    st.lists(sequences, min_size=1, max_size=5),
    st.sampled_from([0.0, 0.0, 0.002, 0.05]),
    st.sampled_from([0.0, 0.01]),
    st.lists(st.integers(0, 2000), max_size=10),
    st.integers(0, 100),
)
@examples(60)
def test_a_pipeline_sums_what_it_does_not_keep(asked, batches, slow, copies, cuts, seed):
    """Blocks that begin and end anywhere, kernels that are kept between the others, copies, blocks someone may ask."""
    rng, out = random.Random(seed), []
    made = Pipeline(Limits(100_000, max_per_second=10**6), emit=out.extend, start_ns=T0)
    if asked:
        watch(made, 2)
    edges = sorted(set(cuts))
    for number, (low, high) in enumerate(zip(edges[::2], edges[1::2], strict=False), 1):
        made.boundary(Boundary(OPEN, number, None, 5, T0, T0, f"b{number % 2}"), low)
        made.boundary(Boundary(CLOSE, number, None, 5, T0, T0), high)

    def path(corr):
        return next(
            ((f"b{n % 2}",) for n, (a, b) in enumerate(zip(edges[::2], edges[1::2], strict=False), 1) if a <= corr < b),
            (),
        )

    at, corr, expected, kept, inside = T0 + 1000, 1, {}, [], [0, 0]
    for keys in batches:
        records = []
        for key in keys:
            duration = rng.randrange(100_000, 200_000) if rng.random() < slow else rng.randrange(100_000)
            if rng.random() < copies:
                records.append(memcpy(at, at + 10, corr))
                at, corr = at + 10, corr + 1
            records.append(kernel(at, at + duration, corr, name=key))
            if duration >= 100_000:
                kept.append((f"k{key:x}", path(corr), at))
            else:
                expected.setdefault((path(corr), f"k{key:x}"), []).append(duration)
            if len(edges) >= 4 and edges[2] <= corr < edges[3]:
                inside = [inside[0] + 1, inside[1] + duration]
            at, corr = at + duration, corr + 1
        made.feed(view(*records), 5, STRIDES, lambda pointer: (f"k{pointer:x}", None, None), now_ns=T0)
        made.cycle(T0)
    assert sorted((item.name, item.path, item.start_ns) for item in out) == sorted(kept)
    found = {
        (row.path, row.name): (row.count, row.total_ns, row.min_ns, row.max_ns, row.sum_squares_ns2)
        for row in made.aggregates()
        if row.kind == "kernel"
    }
    assert found == {key: (len(d), sum(d), min(d), max(d), sum(x * x for x in d)) for key, d in expected.items()}
    counters = made.counters()
    assert counters.seen == counters.kept + counters.aggregated
    if asked and len(edges) >= 4:
        rows = [row for (kind, _), row in made.totals(2).rows.items() if kind == "kernel"]
        assert [sum(row[0] for row in rows), sum(row[1] for row in rows)] == inside
