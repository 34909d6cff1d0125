"""Steps of the wall clock, on clocks that the test moves."""

import pytest

from gpusense._runtime import clock

MS = 1_000_000


class Clocks:
    """Go on by 100 ns with each reading; ``held``: for how long readings of the wall clock are held up."""

    def __init__(self):
        self.now, self.wall, self.held = 0, 1_700_000_000_000 * MS, []

    def monotonic_ns(self):
        self.now += 100
        return self.now

    def time_ns(self):
        self.now += 100
        told = self.wall + self.now
        self.now += self.held.pop() if self.held else 0
        return told


@pytest.fixture
def clocks(monkeypatch):
    made = Clocks()
    monkeypatch.setattr(clock, "time_ns", made.time_ns)
    monkeypatch.setattr(clock, "monotonic_ns", made.monotonic_ns)
    return made


@pytest.mark.parametrize("size", [3_600_000 * MS, 5 * MS, -5 * MS, -3_600_000 * MS])
def test_a_step_is_told_once_with_its_size(clocks, size):
    anchor = clock.Anchor()
    assert anchor.look() == 0
    clocks.wall += size
    assert anchor.look() == pytest.approx(size, abs=1000)
    assert anchor.look() == 0
    ((when, told),) = anchor.steps
    assert told == pytest.approx(size, abs=1000)
    assert when == pytest.approx(clocks.wall + clocks.now - size, abs=10_000)  # by the clock that knows of no step


@pytest.mark.parametrize("size", [3_600_000 * MS, -3_600_000 * MS])
def test_times_from_before_and_behind_a_step_are_brought_to_one_clock(clocks, size):
    anchor = clock.Anchor()
    before = clocks.time_ns()
    assert anchor.of_wall(before) == before
    clocks.now += 100 * MS
    anchor.look()
    late = clocks.time_ns()  # behind the last look that found no step, and before the step
    clocks.wall += size
    early = clocks.time_ns()  # not found yet
    clocks.now += 100 * MS
    anchor.look()
    behind = clocks.time_ns()
    times = [anchor.of_wall(time) for time in (before, late, early, behind)]
    assert times == pytest.approx([before, late, early - size, behind - size], abs=1000)
    assert times == sorted(times)
    assert anchor.ahead_ns == pytest.approx(size, abs=1000)
    assert anchor.now_ns() == pytest.approx(behind - size, abs=1000)
    assert anchor.of_monotonic(clocks.monotonic_ns()) == pytest.approx(anchor.now_ns(), abs=1000)


def test_steps_without_end_are_remembered_within_a_bound(clocks, monkeypatch):
    monkeypatch.setattr(clock, "MAX_STEPS", 10)
    anchor = clock.Anchor()
    for _ in range(100):
        clocks.wall += 5 * MS
        anchor.look()
    assert len(anchor.steps) == len(anchor._eras) == 10
    assert anchor.of_wall(clocks.time_ns()) == pytest.approx(anchor.now_ns(), abs=1000)


@pytest.mark.parametrize("times", [1, 2, clock.TRIES, 3 * clock.TRIES])
def test_a_thread_held_up_between_two_readings_sees_no_step(clocks, times):
    """On a machine with more threads than processors this happened eight times a second."""
    anchor = clock.Anchor()
    clocks.held = [30 * MS] * times
    assert [anchor.look() for _ in range(8)] == [0] * 8
    assert anchor.steps == []


def test_a_first_reading_that_was_held_up_makes_no_step_later(clocks):
    clocks.held = [30 * MS] * clock.TRIES
    anchor = clock.Anchor()
    assert [anchor.look() for _ in range(3)] == [0] * 3
    clocks.wall += 5 * MS
    assert anchor.look() == pytest.approx(5 * MS, abs=1000)


def test_a_step_is_found_although_readings_are_held_up(clocks):
    anchor = clock.Anchor()
    clocks.held = [30 * MS] * clock.TRIES
    clocks.wall += 20 * MS
    anchor.look()  # cannot tell
    assert anchor.look() == pytest.approx(20 * MS, abs=1000)


def test_a_slew_is_no_step(clocks):
    anchor = clock.Anchor()
    for _ in range(100):
        clocks.wall += 50_000  # 500 ppm at ten looks a second
        assert anchor.look() == 0
