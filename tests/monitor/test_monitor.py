"""The monitor's loop over scripted sources and a clock that only tests move: deadlines, lanes, gaps."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import BUSY, Rig

from gpusense import testing
from gpusense._records.metrics import GpuMetrics, Pcie
from gpusense.cli.dashboard import dashboard
from gpusense.monitor._sampler import SECOND, Clock, DeviceSampler, Schedule


def test_a_late_tick_is_skipped_and_counted_never_bunched():
    schedule = Schedule(100, 1000)
    assert not schedule.begin(999)
    assert schedule.begin(1000)
    schedule.done(1350)  # the tick took three and a half periods
    assert (schedule.next_ns, schedule.skipped) == (1400, 3)


@given(st.integers(1, 10**9), st.lists(st.integers(0, 10**10), max_size=40))
def test_deadlines_stay_on_their_grid(period, durations):
    schedule, now = Schedule(period, 0), 0
    for duration in durations:
        now = max(now, schedule.next_ns)
        assert schedule.begin(now)
        now += duration
        schedule.done(now)
        assert schedule.next_ns > now
        assert schedule.next_ns - now <= period
        assert schedule.next_ns % period == 0
    assert schedule.ticks + schedule.skipped == schedule.next_ns // period


def test_a_monitor_samples_at_its_interval(rig):
    running = rig.start(interval=0.1)
    rig.clock.advance(1.0)
    assert len(running.history()) == 11
    times = [sample.monotonic_ns for sample in running.history()]
    assert times == [i * SECOND // 10 for i in range(11)]
    assert [sample.sequence for sample in running.history()] == list(range(11))
    assert running.stats()[:4] == (11, 11, 0, 0)


def test_history_keeps_what_it_was_asked_to_keep(rig):
    running = rig.start(interval=0.1, history=5)
    rig.clock.advance(2.0)
    assert len(running.history()) == 5
    assert len(running.history(seconds=0.2)) == 3
    assert running.history()[0].monotonic_ns < running.history()[-1].monotonic_ns


def test_two_devices_of_one_index_have_a_history_each():
    """Of a source that watches two hosts, each of which counts its devices from 0."""
    hosts = [testing.device(0)._replace(uuid=f"GPU-of-host-{number}", name=f"host {number}") for number in range(2)]
    made = Rig()
    made.source = testing.ScriptedSource(devices=hosts, clock=made.clock)
    made.source.set(0, BUSY)
    running = made.start(interval=0.1)
    try:
        made.clock.advance(1.0)
        assert [sample.device.name for sample in running.latest()] == ["host 0", "host 1"]
        for host in hosts:
            assert {sample.device.uuid for sample in running.history(device=host)} == {host.uuid}
            assert len(running.history(device=host)) == 11
            (window,) = running.window(device=host)
            assert (window.device.uuid, window.samples) == (host.uuid, 11)
        assert len(running.history(device=0)) == len(running.history()) == 22
        assert len(running.window()) == 2
        assert not running.idle_for(0.5, device=hosts[1])
        shown = dashboard.Live(running).state(dashboard.View(selected=1))
        assert {sample.device.uuid for sample in shown.history} == {hosts[1].uuid}
    finally:
        running.stop()


def test_each_lane_has_its_own_period(rig):
    rig.start(interval=0.1, medium_interval=1.0, slow_interval=5.0)
    rig.clock.advance(10.0)
    assert (rig.lanes("fast"), rig.lanes("medium"), rig.lanes("slow")) == (101, 11, 3)


def test_latest_joins_the_lanes(rig):
    class Laned(testing.ScriptedSource):
        def sample(self, device, lanes=("fast",)):
            fields = {"fast": "power.draw_watts", "medium": "power.limit_watts", "slow": "health.ecc_corrected"}
            sample = testing.metrics(device, {fields[lanes[0]]: 7})
            return sample._replace(monotonic_ns=rig.clock.monotonic_ns(), reasons=((f"clocks.{lanes[0]}", "x"),))

    rig.source = Laned(1)
    running = rig.start()
    rig.clock.advance(0.5)
    (latest,) = running.latest()
    assert (latest.power.draw_watts, latest.power.limit_watts, latest.health.ecc_corrected) == (7, 7, 7)


def test_what_the_slower_lanes_have_not_read_yet_is_stale(rig):
    got: list[GpuMetrics] = []
    sampler = DeviceSampler(rig.source, rig.source.devices()[0], rig.clock, SECOND, SECOND)
    listener = type("L", (), {"interval_ns": SECOND, "gpm": False, "accept": lambda self, sample: got.append(sample)})()
    sampler._listeners = {listener: 0}
    sampler.step()
    assert got[0].reason("power.limit_watts") == "stale: not read yet"
    rig.source.set(0, {"processes": ()})
    sampler.step_background()
    rig.clock.advance(1)
    sampler.step()
    assert got[1].processes == ()
    assert got[1].reason("power.limit_watts").startswith("unsupported")


def test_a_slow_lane_that_does_not_answer_makes_its_values_stale_and_delays_no_sample(rig):
    """Listing processes took two seconds in one monitor's 0.1 s loop."""
    hang = threading.Event()

    class Hanging(testing.ScriptedSource):
        def sample(self, device, lanes=("fast",)):
            if "medium" in lanes and rig.clock.monotonic_ns() >= SECOND:
                with_clock(hang)
            fields = {"pcie.width": 16} if "medium" in lanes else {"power.draw_watts": 1.0}
            return testing.metrics(device, fields, monotonic_ns=rig.clock.monotonic_ns())

    def with_clock(event):
        rig.clock.wait(event, 1e6)  # blocked, as in the driver, but visible to the clock

    rig.source = Hanging(1)
    running = rig.start(interval=0.1)
    rig.clock.advance(0.5)
    assert running.latest()[0].pcie.width == 16
    rig.clock.advance(60)
    (latest,) = running.latest()
    assert latest.power.draw_watts == 1
    assert latest.pcie.width is None
    assert latest.reason("pcie.width").startswith("stale: last read")
    assert len(running.history()) == 600
    hang.set()


def test_a_device_whose_driver_never_returns_is_degraded_in_latest_not_old_news(rig):
    hang = threading.Event()

    class Hanging(testing.ScriptedSource):
        def sample(self, device, lanes=("fast",)):
            if "fast" in lanes and rig.clock.monotonic_ns() >= SECOND:
                rig.clock.wait(hang, 1e6)
            return testing.metrics(device, BUSY, monotonic_ns=rig.clock.monotonic_ns())

    rig.source = Hanging(1)
    running = rig.start(interval=0.1)
    rig.clock.advance(0.5)
    assert running.latest()[0].state == "ok"
    rig.clock.advance(30)
    (latest,) = running.latest()
    assert (latest.state, latest.power.draw_watts) == ("degraded", None)
    assert latest.reason("power.draw_watts").startswith("stale: no sample for")
    hang.set()


def test_one_device_in_trouble_does_not_stop_the_others(two):
    running = two.start(interval=0.1)
    two.clock.advance(1)
    two.source.trouble(1, "lost", "lost: GPU_IS_LOST (15)")
    two.clock.advance(1)
    good, lost = running.latest()
    assert (good.state, lost.state) == ("ok", "lost")
    assert lost.power.draw_watts is None
    assert lost.reason("thermal.gpu_celsius") == "lost: GPU_IS_LOST (15)"


def test_a_source_that_raises_is_a_lost_sample(rig):
    class Raising(testing.ScriptedSource):
        def sample(self, device, lanes=("fast",)):
            raise RuntimeError("driver bug")

    rig.source = Raising(1)
    running = rig.start(interval=0.1)
    rig.clock.advance(0.3)
    (latest,) = running.latest()
    assert (latest.state, latest.reason("power.draw_watts")) == ("lost", "lost: RuntimeError: driver bug")


def test_two_monitors_share_one_loop(rig):
    first = rig.start(interval=0.2)
    second = rig.start(interval=0.1)
    rig.clock.advance(2)
    assert rig.lanes("fast") <= 22  # not 11 + 21
    assert len(second.history()) == pytest.approx(21, abs=1)
    assert len(first.history()) == pytest.approx(11, abs=1)
    second.stop()
    before = rig.lanes("fast")
    rig.clock.advance(2)
    assert rig.lanes("fast") - before == pytest.approx(10, abs=1)  # back to the slower of the two
    assert first.running


def test_the_slower_lanes_follow_the_monitor_that_wants_them_most(rig):
    """A second monitor of the device had the intervals of the first."""
    rig.start(interval=0.1, medium_interval=2.0, slow_interval=8.0)
    rig.clock.advance(7.9)
    assert (rig.lanes("medium"), rig.lanes("slow")) == (4, 1)
    eager = rig.start(interval=0.1, medium_interval=0.5, slow_interval=1.0)
    rig.clock.advance(4)
    assert rig.lanes("medium") - 4 == pytest.approx(9, abs=1)
    assert rig.lanes("slow") - 1 == pytest.approx(5, abs=1)
    assert eager.stats().samplers[0].background_skipped == 0
    eager.stop()
    before = rig.lanes("medium"), rig.lanes("slow")
    rig.clock.advance(8)
    assert rig.lanes("medium") - before[0] == pytest.approx(4, abs=1)
    assert rig.lanes("slow") - before[1] <= 2


class Listener:
    """A monitor as its samplers see it; ``act`` runs with each sample."""

    interval_ns = process_ns = SECOND
    lanes_ns = SECOND, SECOND
    gpm = continuous = False

    def __init__(self, act=lambda: None):
        self.accept = lambda sample: act()


def test_a_monitor_that_ends_in_the_middle_of_a_tick_is_gone(rig):
    """It came back with its next due time, and the device was sampled for ever."""
    sampler = DeviceSampler(rig.source, rig.source.devices()[0], rig.clock, SECOND, SECOND)
    second = Listener()
    first = Listener(lambda: sampler.retire(second))
    sampler._listeners = {first: 0, second: 0}
    sampler.step()
    assert list(sampler._listeners) == [first]
    assert sampler.retire(first)


def test_after_the_last_monitor_nothing_is_sampled(rig):
    running = rig.start(interval=0.1)
    rig.clock.advance(1)
    running.stop()
    before = len(rig.source.calls)
    rig.clock.advance(5)
    assert len(rig.source.calls) == before
    assert len(running.history()) == 11
    assert running.stats().samples == 11


def test_gpm_is_asked_for_only_where_a_monitor_wants_it(rig):
    rig.start(interval=0.1)
    rig.clock.advance(0.5)
    assert rig.lanes("gpm") == 0
    rig.start(interval=0.1, gpm=True)
    rig.clock.advance(0.5)
    assert rig.lanes("gpm") > 0


def test_byte_counters_are_read_between_the_ticks_where_they_would_wrap(rig):
    rig.source.counter_period_s = lambda device: 0.04
    rig.start(interval=0.1, pcie="continuous")
    rig.clock.advance(1.0)
    assert (rig.lanes("fast"), rig.lanes("counters")) == (11, 20)


def test_byte_counters_are_sampled_in_pairs_by_default(rig):
    rig.source.counter_period_s = lambda device: 0.04
    rig.start(interval=0.1)
    rig.clock.advance(4.5)
    assert (rig.lanes("fast"), rig.lanes("counters"), rig.lanes("pcie"), rig.lanes("medium")) == (46, 3, 3, 5)


def test_the_strictest_monitor_of_a_device_decides_for_all(rig):
    rig.source.counter_period_s = lambda device: 0.04
    rig.start(interval=0.1)
    exact = rig.start(interval=0.1, pcie="continuous", process_interval=1.0)
    rig.clock.advance(3.95)
    assert rig.lanes("pcie") >= 39
    assert rig.lanes("processes") >= 4
    exact.stop()
    before = rig.lanes("pcie"), rig.lanes("processes")
    rig.clock.advance(4)
    assert rig.lanes("pcie") - before[0] in (2, 3)
    assert rig.lanes("processes") - before[1] <= 1


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system does not say how long it slept")
def test_a_thread_held_up_between_two_clocks_has_not_slept(monkeypatch):
    """A container that is throttled for a tenth of a second is no suspended machine."""
    now, slept, held = [10**9], 5 * SECOND, [SECOND // 10] * 2

    def clock_gettime_ns(which):
        told = now[0] + (slept if which == time.CLOCK_BOOTTIME else 0)
        now[0] += held.pop() if held and which == time.CLOCK_BOOTTIME else 100
        return told

    monkeypatch.setattr(time, "clock_gettime_ns", clock_gettime_ns)
    assert [Clock().suspended_ns() for _ in range(3)] == pytest.approx([slept] * 3, abs=1000)
    held = [SECOND // 10]
    assert Clock().suspended_ns() == pytest.approx(slept, abs=1000)


def test_a_suspended_machine_leaves_a_gap_that_is_not_billed(rig):
    running = rig.start(interval=0.1)
    rig.clock.advance(1)
    before = running.window()[0].energy_joules
    rig.clock.suspend(3600)
    rig.clock.advance(1)
    gaps = [sample.gap_ns for sample in running.history() if sample.gap_ns]
    assert gaps == [3600 * SECOND]
    assert running.window()[0].energy_joules == pytest.approx(before + 300)


def test_a_device_that_was_lost_leaves_a_gap_with_its_first_answer(rig):
    running = rig.start(interval=0.1)
    rig.clock.advance(1)
    rig.source.trouble(0, "lost", "lost: GPU_IS_LOST (15)")
    rig.clock.advance(5)
    rig.clock.suspend(60)
    rig.clock.advance(5)
    rig.source.set(0, BUSY)
    rig.clock.advance(1)
    gaps = [sample.gap_ns for sample in running.history() if sample.gap_ns]
    assert gaps == [70 * SECOND]


def test_what_the_slower_lanes_said_before_a_gap_does_not_stand_after_it(rig):
    """The first sample after a night asleep had the PCIe rate of the evening."""
    rates = [5e9]

    class Slow(testing.ScriptedSource):
        def sample(self, device, lanes=("fast", "medium")):
            found = super().sample(device, lanes)
            return found if "medium" not in lanes else found._replace(pcie=Pcie(rx_bytes_per_s=rates[0]))

    rig.source = Slow(clock=rig.clock)
    running = rig.start(interval=0.1, medium_interval=10.0)
    rig.clock.advance(5.05)
    assert running.latest()[0].pcie.rx_bytes_per_s == 5e9
    rates[0] = 1e3
    rig.clock.suspend(3600)
    rig.clock.advance(0.3)
    after = running.history(0.25)
    assert [sample.gap_ns for sample in after] == [3600 * SECOND, 0, 0]
    assert {sample.pcie.rx_bytes_per_s for sample in after} <= {None, 1e3}
    assert after[-1].pcie.rx_bytes_per_s == 1e3


def test_a_stopped_process_leaves_a_gap(rig):
    sampler = DeviceSampler(rig.source, rig.source.devices()[0], rig.clock, SECOND, SECOND)
    assert sampler._gap(0) == 0
    sampler._last_ns = 0
    assert sampler._gap(100_000_000) == 0
    assert sampler._gap(60 * SECOND) == 60 * SECOND - 100_000_000


def test_a_step_of_the_wall_clock_disturbs_nothing(rig):
    running = rig.start(interval=0.1)
    rig.clock.advance(1)
    rig.clock.step(-86400)
    rig.clock.advance(1)
    assert len(running.history(seconds=3)) == 21
    assert all(sample.gap_ns == 0 for sample in running.history())


@pytest.mark.parametrize("step", [-86400, -1, 0, 1, 86400])
def test_a_step_of_the_wall_clock_takes_nothing_out_of_a_window(rig, step):
    """After one a day back, no sample lay between the first one's time and now."""
    running = rig.start(interval=0.1)
    rig.clock.advance(2)
    rig.clock.step(step)
    rig.clock.advance(2)
    (everything,), (recent,) = running.window(), running.window(seconds=3)
    assert (everything.samples, recent.samples) == (41, 31)
    assert (everything.covered_seconds, everything.energy_joules) == pytest.approx((4, 1200))
    assert (recent.covered_seconds, recent.energy_joules) == pytest.approx((3, 900))
    now = rig.clock.time_ns()
    assert (recent.start_ns, recent.end_ns) == (now - 3 * SECOND, now)
    (before,) = running.window(end_ns=running.history()[20].time_ns) if step > 0 else (recent,)
    assert before.samples == (21 if step > 0 else 31)
    rig.source.trouble(0, "lost", "lost: test")
    rig.clock.advance(5)
    assert running.window(seconds=3)[0].statistics == {}
