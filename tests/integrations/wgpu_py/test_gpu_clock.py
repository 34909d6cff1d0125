"""The clock as arithmetic: simulated devices of any period, width, offset and drift."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusense.integrations.wgpu_py._gpu_clock import DRIFT_PPM, REANCHOR_NS, TOLERANCE_NS, GpuClock

START = 1_790_000_000_000_000_000
periods = st.sampled_from([1.0, 10.0, 83.333335876464844, 52.083332061767578, 41.66666793823242, 0.5])


class Device:
    """A GPU whose ticks are ``period`` long, ``offset`` after the wall clock's epoch, in a counter of ``bits``."""

    def __init__(self, period: float, offset_ns: int, bits: int = 64) -> None:
        self.period, self.offset_ns, self.bits = Fraction(period), offset_ns, bits

    def ticks(self, wall_ns: int) -> int:
        return int((wall_ns - self.offset_ns) / self.period) & ((1 << self.bits) - 1)


@st.composite
def passes(draw):
    """Wall-clock (submitted, begin, end, seen) of successive passes."""
    found, now = [], START
    for _ in range(draw(st.integers(1, 30))):
        now += draw(st.integers(0, 50_000_000))
        submitted = now
        begin = submitted + draw(st.integers(0, 3_000_000))
        end = begin + draw(st.integers(100, 20_000_000))
        now = end + draw(st.integers(0, 3_000_000))
        found.append((submitted, begin, end, now))
    return found


@given(passes(), periods, st.integers(0, 10**15), st.sampled_from([36, 40, 64]))
@settings(max_examples=150, deadline=None)
def test_true_times_lie_within_the_uncertainty(work, period, offset, bits) -> None:
    device = Device(period, START - offset, bits)
    clock = GpuClock(period, bits)
    for submitted, begin, end, seen in work:
        assert clock.observe(device.ticks(begin), device.ticks(end), submitted, seen)
        quality = clock.quality(seen)
        assert quality["clock"] == "causality"
        # The counter floors to whole ticks, products to whole nanoseconds.
        rounding = int(2 * Fraction(period)) + 2
        wall = clock.wall_ns(device.ticks(begin))
        assert abs(wall - begin) <= quality["clock_uncertainty_ns"] + rounding
        assert abs(clock.duration_ns(device.ticks(begin), device.ticks(end)) - (end - begin)) <= rounding
    assert clock.steps == 0


@given(passes(), periods, st.integers(0, 10**15), st.sampled_from([36, 64]))
@settings(max_examples=100, deadline=None)
def test_many_at_once_equal_one_by_one(work, period, offset, bits) -> None:
    device = Device(period, START - offset, bits)
    clock = GpuClock(period, bits)
    begins = [device.ticks(begin) for _, begin, _, _ in work]
    ends = [device.ticks(end) for _, _, end, _ in work]
    assert clock.times(begins, ends) == []
    for (submitted, _, _, seen), begin, end in zip(work, begins, ends, strict=True):
        clock.observe(begin, end, submitted, seen)
    for (start, lasted), begin, end in zip(clock.times(begins, ends), begins, ends, strict=True):
        assert lasted == clock.duration_ns(begin, end)
        assert abs(start - clock.wall_ns(begin)) <= 1  # floors of a sum and of its parts
    assert clock.times([], []) == []


@pytest.mark.parametrize("period", [1.0, 52.083])
def test_many_at_once_across_a_wrap(period: float) -> None:
    device = Device(period, 0, 36)
    turn = int(Fraction(period) * (1 << 36))
    work = [(turn - 3_000_000 + at, turn - 2_000_000 + at) for at in range(0, 6_000_000, 500_000)]
    clock = GpuClock(period, 36)
    for begin, end in work[:2]:
        assert clock.observe(device.ticks(begin), device.ticks(end), begin - 10, end + 10)
    begins, ends = [device.ticks(begin) for begin, _ in work], [device.ticks(end) for _, end in work]
    assert min(ends) < max(begins) // 2  # the counter did begin anew
    starts, durations = clock.columns(begins, ends)
    slack = int(2 * period) + 12
    assert all(abs(start - begin) <= slack for start, (begin, _) in zip(starts, work, strict=True))
    assert all(abs(duration - 1_000_000) <= slack for duration in durations)


def test_more_passes_never_widen_the_bound_beyond_drift() -> None:
    device, clock = Device(1.0, START - 10**12), GpuClock(1.0)
    widths = []
    for number in range(50):
        at = START + number * 1_000_000
        clock.observe(device.ticks(at + 5_000 + 100 * number), device.ticks(at + 100_000), at, at + 130_000 - number)
        widths.append(clock.quality(at)["clock_uncertainty_ns"])
    allowed = 1_000_000 * DRIFT_PPM // 1_000_000 + 1
    assert all(later <= earlier + allowed for earlier, later in itertools.pairwise(widths))


def test_a_drifting_device_stays_inside() -> None:
    """40 ppm fast for a minute: 2.4 ms, far more than any one bound is wide."""
    clock = GpuClock(1.0)
    for number in range(600):
        at = START + number * 100_000_000
        skew = (at - START) * 40 // 1_000_000
        assert clock.observe(at + skew + 10_000, at + skew + 60_000, at, at + 90_000)
        error = abs(clock.wall_ns(at + skew + 10_000) - (at + 10_000))
        assert error <= clock.quality(at + 90_000)["clock_uncertainty_ns"] + 1
    assert clock.steps == 0


@pytest.mark.parametrize("step", [10_000_000_000, -10_000_000_000, 5_000_000, -5_000_000])
def test_a_step_of_either_clock_is_found_and_followed(step: int) -> None:
    device, clock = Device(1.0, START - 10**12), GpuClock(1.0)
    for number in range(5):
        at = START + number * 1_000_000
        clock.observe(device.ticks(at + 10_000), device.ticks(at + 20_000), at, at + 30_000)
    at = START + 10_000_000
    assert clock.observe(device.ticks(at + 10_000), device.ticks(at + 20_000), at + step, at + step + 30_000)
    assert clock.steps == 1
    assert abs(clock.wall_ns(device.ticks(at + 10_000)) - (at + step + 10_000)) <= 20_000


def test_a_pass_longer_than_the_host_saw_teaches_nothing() -> None:
    clock = GpuClock(1.0)
    assert not clock.observe(0, 10_000_000, START, START + 1_000_000)
    assert clock.wall_ns(5) is None
    assert clock.quality(START) == {"clock": "none", "clock_uncertainty_ns": None}


def test_a_calibrated_reading_is_believed_within_causality_only() -> None:
    device, now = Device(1.0, START - 10**12), START + 1_000_000
    for error, accepted in ((0, True), (15_000, True), (11_850_000_000, False), (-11_850_000_000, False)):
        clock = GpuClock(1.0, 64, lambda error=error: (device.ticks(now), now + error, 50))
        clock.observe(device.ticks(now - 50_000), device.ticks(now - 30_000), now - 60_000, now - 20_000)
        clock.anchor(now)
        assert (clock.rejected is None) == accepted
        assert clock.quality(now)["clock"] == ("calibrated" if accepted else "causality")
        if accepted:
            assert clock.wall_ns(device.ticks(now)) == now + error
        else:
            assert abs(clock.wall_ns(device.ticks(now)) - now) <= 20_001
            assert "contradict" in clock.rejected


def test_readings_are_taken_again_now_and_then_and_age() -> None:
    device, taken = Device(1.0, START - 10**12), []
    now = START

    def read():
        taken.append(now)
        return device.ticks(now), now, 100

    clock = GpuClock(1.0, 64, read)
    for number in range(31):
        now = START + number * REANCHOR_NS // 10
        clock.observe(device.ticks(now - 50_000), device.ticks(now - 30_000), now - 60_000, now - 20_000)
        clock.anchor(now)
    assert len(taken) == 4
    assert clock.quality(now)["clock_uncertainty_ns"] == 100
    assert clock.quality(now + 1_000_000)["clock_uncertainty_ns"] == 100 + DRIFT_PPM


def test_a_wall_clock_step_between_readings_moves_the_anchor() -> None:
    device, offset, now = Device(1.0, START - 10**12), 0, START
    clock = GpuClock(1.0, 64, lambda: (device.ticks(now), now + offset, 100))
    clock.observe(device.ticks(now - 50_000), device.ticks(now - 30_000), now - 60_000, now - 20_000)
    clock.anchor(now)
    now, offset = now + 2 * REANCHOR_NS, 3_600_000_000_000
    clock.anchor(now)
    assert (clock.steps, clock.rejected) == (1, None)
    assert clock.wall_ns(device.ticks(now)) == now + offset


def test_a_driver_that_stops_answering_falls_back() -> None:
    device, answers = Device(1.0, START - 10**12), [(Device(1.0, START - 10**12).ticks(START), START, 10), None]
    clock = GpuClock(1.0, 64, lambda: answers.pop(0))
    clock.observe(device.ticks(START - 50_000), device.ticks(START - 30_000), START - 60_000, START - 20_000)
    clock.anchor(START)
    assert clock.quality(START)["clock"] == "calibrated"
    clock.anchor(START + 2 * REANCHOR_NS)
    assert "stopped" in clock.rejected
    assert clock.quality(START)["clock"] == "causality"


def test_the_counter_wraps_in_the_middle_of_a_pass() -> None:
    clock = GpuClock(10.0, 36)
    top = 1 << 36
    assert clock.duration_ns(top - 5, 5) == 100
    assert clock.duration_ns(5, top - 5) == -100
    clock.observe(top - 1_000, 1_000, START, START + 40_000)
    assert clock.wall_ns(1_000) - clock.wall_ns(top - 1_000) == 20_000
    assert TOLERANCE_NS < 50_000
