"""How long blocks usually take: the 99th percentile of what was counted, within a sixteenth."""

from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._aggregation import usual
from gpusense._aggregation.usual import MIN_PASSES, Usual


@given(st.lists(st.integers(0, 10**11), min_size=1, max_size=8), st.randoms(use_true_random=False))
@examples(50)
def test_a_percentile_is_never_too_low_and_a_sixteenth_too_high_at_most(lengths, random):
    made = Usual()
    passes = random.choices(lengths, k=MIN_PASSES)
    for length in passes:
        made.add(("request",), length)
    exact = sorted(passes)[-2]  # one in a hundred is longer
    p99_ns = made.add(("request",), 0)
    assert exact <= p99_ns <= exact * (1 + 1 / 16)


@given(st.integers(0, 1 << 50))
@examples(300)
def test_lengths_are_counted_with_those_that_differ_by_a_sixteenth_at_most(length):
    made = usual._Lengths()
    made.add(length)
    (place,) = made._counts
    longest = usual._longest(place)
    assert length <= longest <= length * (1 + 1 / 16)
    made.add(longest)
    made.add(longest + 1)
    assert made._counts == {place: 2, place + 1: 1}


def test_nothing_is_usual_before_there_are_a_hundred_passes():
    made = Usual()
    assert [made.add(("request",), 1000) for _ in range(MIN_PASSES)] == [0] * MIN_PASSES
    assert 1000 <= made.add(("request",), 5_000_000) < 1063
    assert made.passes(("request",)) == MIN_PASSES + 1
    assert (made.add(("another",), 1000), made.passes(("none",))) == (0, 0)


def test_what_was_long_ago_counts_less():
    made = Usual()
    for length in (10_000, 1_000_000):
        for _ in range(usual.MEMORY):
            found = made.add(("request",), length)
    assert found >= 1_000_000  # it became slow: that is usual now
    for _ in range(4 * usual.MEMORY):
        found = made.add(("request",), 10_000)
    assert found < 11_000


def test_the_outermost_block_around_that_runs_again_and_again():
    made = Usual()
    for _ in range(MIN_PASSES):
        made.add(("serve", "request", "model"), 500)
        made.add(("serve", "request"), 1000)
    made.add(("serve",), 10**9)
    assert 1000 <= made.around(("serve", "request", "model")) < 1063
    assert made.around(("serve", "request")) == 0


def test_blocks_with_ever_new_names_do_not_push_out_those_that_run_often(monkeypatch):
    monkeypatch.setattr(usual, "MAX_BLOCKS", 50)
    made = Usual()
    for number in range(1_000):
        made.add((f"GET /{number}",), 1000)
        made.add(("request",), 1000)
        assert len(made._known) <= 51
    assert made.passes(("request",)) == 1_000
    for number in range(100):
        for _ in range(MIN_PASSES):
            made.add((f"often {number}",), 1000)
    assert len(made._known) <= 51
