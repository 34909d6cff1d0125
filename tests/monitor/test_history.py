"""Time-weighted statistics and energy over samples."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense.monitor._history import energy_joules, integral, statistic, window
from gpusense.testing import device, metrics

S = 1_000_000_000
DEVICE = device()


def at(seconds: float, watts: float | None = None, *, joules: float | None = None, read: float | None = None, **more):
    fields = {"power.draw_watts": watts, "power.draw_window_s": 0.0, "power.energy_joules": joules}
    if joules is not None:
        fields["power.energy_monotonic_ns"] = int((seconds if read is None else read) * S)
    return metrics(DEVICE, {**fields, **more}, time_ns=int(seconds * S) + 10**18, monotonic_ns=int(seconds * S))


def over(samples, start: float = 0, end: float = 1e6, **more):
    return window(samples, DEVICE, 10**18 + int(start * S), 10**18 + int(end * S), 2 * S, **more)


def test_a_mean_is_weighted_by_time_not_by_samples():
    points = [(0, 0.0), (1 * S, 0.0), (int(1.1 * S), 100.0), (int(1.2 * S), 100.0)]
    found = statistic(points, 2 * S)
    assert found.mean == pytest.approx((0.1 * 50 + 0.1 * 100) / 1.2)
    assert statistics.mean(value for _, value in points) == 50
    assert (found.min, found.max, found.samples) == (0, 100, 4)
    assert found.covered_seconds == pytest.approx(1.2)


def test_percentiles_are_weighted_by_time():
    found = statistic([(0, 1.0), (9 * S, 1.0), (10 * S, 5.0)], 20 * S)
    assert (found.p50, found.p95, found.p99) == (1, 1, 5)


def test_one_sample_is_itself_and_none_is_nothing():
    found = statistic([(5, 7.0)], S)
    assert found[:6] == (7, 7, 7, 7, 7, 7)
    assert (found.samples, found.covered_seconds) == (1, 0)
    assert statistic([], S) is None


@given(
    st.lists(st.tuples(st.integers(0, 10 * S), st.floats(-1e9, 1e9)), min_size=1, max_size=50),
    st.integers(1, 5 * S),
)
def test_a_statistic_stays_within_its_values(points, gap):
    points.sort()
    found = statistic(points, gap)
    low, high = min(value for _, value in points), max(value for _, value in points)
    for value in (found.mean, found.p50, found.p95, found.p99):
        assert low <= value <= high
    assert found.p50 <= found.p95 <= found.p99
    assert found.covered_seconds <= (points[-1][0] - points[0][0]) / S


@given(st.lists(st.integers(1, S), min_size=1, max_size=30), st.floats(0, 1000))
def test_constant_power_integrates_to_power_times_time(steps, watts):
    now, points = 0, [(0, watts)]
    for step in steps:
        now += step
        points.append((now, watts))
    assert integral(points, S) == pytest.approx(watts * now / S)
    assert statistic(points, S).mean == pytest.approx(watts)


def test_a_window_is_cut_at_its_times():
    samples = [at(i, 100.0 * i) for i in range(10)]
    cut = over(samples, 2, 5)
    assert cut.samples == 4
    assert cut.statistics["power.draw_watts"].mean == pytest.approx(350)
    assert cut.covered_seconds == 3
    assert "utilization.gpu_percent" not in cut.statistics


def set_by(samples, place: int, seconds: float):
    """The wall clock was set by ``seconds`` before ``samples[place]`` was taken."""
    moved = [sample._replace(time_ns=sample.time_ns + int(seconds * S)) for sample in samples[place:]]
    return [*samples[:place], *moved]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_window_that_a_step_of_the_clock_falls_into_has_every_sample(hours):
    """Set back by an hour, its end was before its beginning."""
    samples = set_by([at(i, 100) for i in range(20)], 10, hours * 3600)
    found = over(samples, 5, 15 + hours * 3600)
    assert (found.samples, found.covered_seconds, found.energy_joules) == (11, 10, 1000)
    assert over(samples, 5, 8).samples == 4  # before the step
    assert over(samples, 12 + hours * 3600, 15 + hours * 3600).samples == 4  # after it


def test_a_window_that_began_between_a_sample_and_a_step_back_has_what_follows():
    samples = set_by([at(i, 100) for i in range(20)], 10, -3600)
    assert over(samples, 9.5, 15 - 3600).samples == 6


def test_a_window_until_now_has_every_sample_after_a_small_step_back():
    """The clock had been there before."""
    samples = set_by([at(i, 100) for i in range(20)], 15, -8)
    assert over(samples, 3, 11.5).samples == 17


@given(
    st.lists(st.integers(1, 3 * S), min_size=1, max_size=30),
    st.integers(-5 * S, 100 * S),
    st.integers(0, 100 * S),
)
def test_where_the_clock_was_not_set_a_window_has_the_samples_between_its_times(steps, start, length):
    now, samples = 0, []
    for step in steps:
        now += step
        samples.append(at(now / S, 1.0)._replace(time_ns=now, monotonic_ns=now))
    inside = [sample for sample in samples if start <= sample.time_ns <= start + length]
    assert window(samples, DEVICE, start, start + length, S).samples == len(inside)


def test_a_jump_of_the_energy_counter_is_no_energy():
    """It was told as 184 TW."""
    samples = [at(i, 300, joules=joules) for i, joules in enumerate((100, 400, 1.84e14, 1.84e14 + 300, 1.84e14 + 600))]
    joules, method, _ = energy_joules(samples, 2 * S)
    assert joules == pytest.approx(1200)
    assert method.startswith("counter, 2.0 s")


def test_text_tuples_and_flags_have_no_statistic():
    samples = [at(i, 1.0, **{"memory.unified": True, "clocks.throttle_reasons": ("idle",)}) for i in range(3)]
    assert set(over(samples).statistics) == {"power.draw_watts", "power.draw_window_s"}


def test_time_nobody_watched_is_left_out_and_named():
    """A suspended laptop must not be billed for the night."""
    samples = [at(0, 100), at(1, 100), at(3601, 100), at(3602, 100)]
    found = over(samples)
    assert found.energy_joules == pytest.approx(200)
    assert found.covered_seconds == 2
    assert found.statistics["power.draw_watts"].covered_seconds == 2


def test_samples_without_the_value_break_the_line():
    found = over([at(0, 100), at(1, None), at(1.5, None), at(4, 100)])
    assert found.statistics["power.draw_watts"].covered_seconds == 0
    assert found.energy_joules == 0


def test_energy_comes_from_the_counter_and_the_edges_from_power():
    samples = [
        at(0, 100),
        at(1, 100, joules=1000),
        at(2, 100, joules=1000, read=1),
        at(3, 100, joules=1250),
        at(4, 100),
    ]
    joules, method, reason = energy_joules(samples, 2 * S)
    assert joules == pytest.approx(100 + 250 + 100)
    assert method == "counter, 2.0 s; the edges integrated from power"
    assert reason is None


def test_a_counter_read_before_the_window_is_not_used():
    samples = [at(10, 100, joules=5, read=4), at(11, 100, joules=5, read=4), at(12, 100, joules=900)]
    joules, method, _ = energy_joules(samples, 2 * S)
    assert (joules, method) == (200, "integrated from instantaneous power")


def test_a_counter_that_was_reset_does_not_go_negative():
    """The driver was reloaded in between."""
    samples = [at(0, 10, joules=5000), at(1, 10, joules=5010), at(2, 10, joules=3), at(3, 10, joules=13)]
    joules, _, _ = energy_joules(samples, 2 * S)
    assert joules == pytest.approx(20 + 10)


def test_without_a_counter_power_is_integrated_and_says_so():
    assert energy_joules([at(0, 100), at(2, 200)], 2 * S)[:2] == (300, "integrated from instantaneous power")
    averaged = [at(i, 100, **{"power.draw_window_s": 1.0}) for i in range(3)]
    assert energy_joules(averaged, 2 * S)[1] == "integrated from power averaged by the driver"


def test_energy_of_a_module_is_labelled():
    samples = [at(i, 1, joules=float(i), **{"power.scope": "module"}) for i in range(3)]
    assert "whole module" in energy_joules(samples, 2 * S)[1]


def test_without_power_there_is_a_reason_not_zero():
    samples = [at(i)._replace(reasons=(("power.draw_watts", "unsupported: NOT_SUPPORTED (3)"),)) for i in range(3)]
    found = over(samples)
    assert found.energy_joules is None
    assert found.energy_reason == "unsupported: NOT_SUPPORTED (3)"
    assert over([]).energy_reason == "stale: fewer than two samples"


def test_a_shared_cards_energy_is_split_and_labelled():
    found = over([at(0, 100), at(1, 100)], own_busy_share=0.25)
    assert found.own_energy_joules == pytest.approx(25)
    assert found.own_energy_method.startswith("estimate")
    assert over([at(0, 100), at(1, 100)], own_busy_share=7).own_energy_joules == pytest.approx(100)
