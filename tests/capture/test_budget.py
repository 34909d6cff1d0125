"""The overhead budget against loads that are made up."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._aggregation import threshold
from gpusense._capture import budget as _budget
from gpusense._capture.budget import Budget
from gpusense._decode.correlation_ids import LEFT

TICK_NS = 100_000_000


def drive(budget, seconds, rate, kept_share=0.0, now=0, spent=0, kept=0):
    """A load that costs ``rate`` of the time while capture is on, ``kept_share`` of it for what is kept one by one."""
    flips, states, last = [], [], budget.on
    for _ in range(int(seconds * 1e9 / TICK_NS)):
        now += TICK_NS
        if last:
            factor = 1 - kept_share + kept_share / 2**budget.level
            spent += int(TICK_NS * rate * factor)
            kept += 100 if kept_share else 0
        on = budget.step(now, spent, kept)
        if on and not last:
            flips.append(now)
        last = on
        states.append((budget.level, budget.fraction))
    return now, spent, kept, flips, states


@given(st.floats(0.001, 0.3), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@examples(60)
def test_a_steady_load_settles_below_its_budget(share, rate, kept_share):
    budget = Budget(share, 0)
    now, spent, kept, _, _ = drive(budget, 60, rate, kept_share)
    _, after, _, _, states = drive(budget, 120, rate, kept_share, now, spent, kept)
    cost = (after - spent) / 120e9
    lowest = rate * (1 - kept_share + kept_share / 2**_budget.HIGHEST_LEVEL) * _budget.LOWEST_FRACTION
    assert cost <= max(share * 1.1, lowest * 1.6)
    if rate <= share:
        assert (budget.level, budget.fraction) == (0, 1.0)
    assert len(set(states[-300:])) <= 60


@given(st.floats(0.001, 0.1), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5))
@examples(40)
def test_capture_is_switched_on_at_most_once_a_period(share, loads):
    budget, now, spent, kept, flips = Budget(share, 0), 0, 0, 0, []
    for rate, kept_share in loads:
        now, spent, kept, new, _ = drive(budget, 20, rate, kept_share, now, spent, kept)
        flips += new
    assert all(later - earlier >= _budget.PERIOD_NS for earlier, later in itertools.pairwise(flips))


def test_the_threshold_rises_first_and_falls_last():
    budget = Budget(0.02, 0)
    now, spent, kept, _, states = drive(budget, 30, 0.2, kept_share=0.95)
    levels = [level for level, _ in states]
    assert max(levels) >= 4
    assert all(fraction == 1.0 for level, fraction in states if level < max(levels))
    drive(budget, 60, 0.0, 0.0, now, spent, kept)
    assert (budget.level, budget.fraction) == (0, 1.0)


def test_where_nothing_is_kept_the_threshold_would_not_help():
    budget = Budget(0.02, 0)
    drive(budget, 30, 0.1)
    assert budget.level == 0
    assert 0.1 <= budget.fraction <= 0.25


def test_all_is_observed_within_the_budget():
    budget = Budget(0.05, 0)
    drive(budget, 10, 0.04)
    assert (budget.level, budget.fraction) == (0, 1.0)


@given(st.integers(-(10**13), 10**13))
@examples(30)
def test_a_clock_that_was_set_does_not_end_the_budget(step_ns):
    """Set back by an hour, no cycle ended for an hour, whatever it cost."""
    budget = Budget(0.02, 10**15)
    now, spent, kept, _, _ = drive(budget, 5, 0.0, now=10**15)
    drive(budget, 30, 0.1, now=now + step_ns, spent=spent, kept=kept)
    assert 0.1 <= budget.fraction <= 0.25


def launch(budget, seconds, rate, spent_rate=0.0, now=0, slowed=0, spent=0):
    """Launches that take longer by ``rate`` of the time while capture is on, and what that cost in truth."""
    cost, on, paused = 0.0, budget.on, 0
    for _ in range(int(seconds * 1e9 / TICK_NS)):
        now += TICK_NS
        out = budget.leaves and paused >= _budget.SETTLED_NS
        slowed += int(TICK_NS * rate) if on else 0
        spent += int(TICK_NS * spent_rate) if on else 0
        cost += (rate + spent_rate if on else 0 if out else rate * LEFT) * TICK_NS
        on = budget.step(now, spent, 0, slowed, out)
        paused = 0 if on else paused + TICK_NS
    return now, slowed, spent, cost / (seconds * 1e9)


@given(st.floats(0.001, 0.2), st.floats(0.0, 0.3), st.floats(0.0, 0.1))
@examples(60)
def test_launches_are_slowed_while_capture_pauses_too(share, rate, spent_rate):
    """What stays in a pause is a part of the cost; more is kept within the budget, or capture is hardly on."""
    budget = Budget(share, 0)
    now, slowed, spent, _ = launch(budget, 60, rate, spent_rate)
    now, slowed, spent, cost = launch(budget, 130, rate, spent_rate, now, slowed, spent)
    lowest = rate * LEFT + (rate * (1 - LEFT) + spent_rate) * _budget.LOWEST_FRACTION * 1.6
    assert cost <= max(share * 1.1, lowest)
    assert abs(budget.left - rate * LEFT) < 1e-3
    assert budget.level == 0  # a higher threshold does not make a launch faster
    launch(budget, 60, 0.0, 0.0, now, slowed, spent)
    assert (budget.fraction, budget.left) == (1.0, 0.0)


@given(st.floats(0.001, 0.2), st.floats(0.0, 0.3), st.floats(0.0, 0.1))
@examples(60)
def test_where_rests_take_cupti_out_nothing_stays_and_the_budget_is_kept(share, rate, spent_rate):
    budget = Budget(share, 0)
    budget.leaves = True
    now, slowed, spent, _ = launch(budget, 200, rate, spent_rate)
    _, _, _, cost = launch(budget, 400, rate, spent_rate, now, slowed, spent)
    lowest = (rate + spent_rate) * 2 * _budget.LOWEST_FRACTION * 1.6  # until it is out some of it stays
    assert cost <= max(share * 1.1, lowest)
    assert budget.left == 0
    if rate + spent_rate > share * 1.2:
        assert cost > share * 0.3  # and is not spent on pauses alone


def test_a_budget_below_what_stays_is_not_kept_and_that_is_told():
    budget = Budget(0.02, 0)
    launch(budget, 60, 0.1)
    assert budget.fraction == _budget.LOWEST_FRACTION
    assert 0.059 < budget.left < budget.cost < 0.065


def test_launches_count_beside_our_own_time():
    budget = Budget(0.02, 0)
    assert budget.step(_budget.PERIOD_NS, 15_000_000, 0, 4_000_000)
    assert (budget.cost, budget.fraction) == (0.019, 1.0)
    budget.step(2 * _budget.PERIOD_NS, 30_000_000, 0, 16_000_000)
    assert budget.cost == 0.027
    assert budget.fraction < 1.0


def test_a_long_burst_does_not_raise_the_threshold_for_ever():
    made = threshold.Threshold(100_000, 1)
    for _ in range(10_000):
        made.spend()
    assert made.effective_ns == threshold.HIGHEST_NS
    for second in range(2, 60):
        made.refill(second * 10**9)
    assert made.effective_ns == 100_000
    higher = threshold.Threshold(1 << 40, 1)
    for _ in range(10):
        higher.spend()
    assert higher.effective_ns == 1 << 40
