"""The monitor over scripted sources and a clock that only tests move."""

import re
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpusense
from gpusense import cli, dashboard, monitor, testing
from gpusense._dispatcher import Dispatcher
from gpusense._metrics import GROUPS, GpuMetrics, fill, without_values
from gpusense._protocols import Backend
from gpusense._records import Unavailable
from gpusense._sampler import SECOND, Clock, DeviceSampler, Schedule
from gpusense._sources import METRIC_BACKENDS, Merged

BUSY = {"utilization.gpu_percent": 90.0, "power.draw_watts": 300.0, "power.draw_window_s": 0.0}


class Rig:
    """A scripted source, a manual clock and the monitors started on them, which end with the test."""

    def __init__(self, count: int = 1) -> None:
        self.clock = testing.ManualClock()
        self.source = testing.ScriptedSource(count, clock=self.clock)
        for index in range(count):
            self.source.set(index, BUSY)
        self.started: list[monitor.Monitor] = []

    def start(self, callback=None, **more) -> monitor.Monitor:
        self.started.append(monitor.start_background(callback, source=self.source, clock=self.clock, **more))
        return self.started[-1]

    def lanes(self, lane: str) -> int:
        return sum(lane in lanes for _, lanes in self.source.calls)


@pytest.fixture
def rig():
    made = Rig()
    yield made
    for one in made.started:
        one.stop()


@pytest.fixture
def two():
    made = Rig(2)
    yield made
    for one in made.started:
        one.stop()


# -- deadlines -----------------------------------------------------------------------------------------------------


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


# -- the loop ------------------------------------------------------------------------------------------------------


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


# -- clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system does not tell how long it slept")
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


# -- callbacks -----------------------------------------------------------------------------------------------------


def wait_until(condition) -> None:
    waiting = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it did not happen")


def test_a_callback_gets_every_sample_of_every_device(two):
    got: list[GpuMetrics] = []
    two.start(got.append, interval=0.1)
    two.clock.advance(1)
    wait_until(lambda: len(got) == 22)
    assert {sample.device.index for sample in got} == {0, 1}
    assert [sample.sequence for sample in got if sample.device.index == 0] == list(range(11))


def test_a_callback_that_raises_does_not_stop_the_monitor(rig):
    errors: list[BaseException] = []

    def callback(sample):
        raise ValueError("mine")

    running = rig.start(callback, interval=0.1, on_error=errors.append)
    rig.clock.advance(1)
    wait_until(lambda: running.stats().callback_errors == 11)
    assert [str(error) for error in errors] == ["mine"]  # once, not eleven times
    for told in (2, 3):  # not both at once: whoever calls back late sees only where the clock has come to
        rig.clock.advance(10)
        wait_until(lambda told=told: len(errors) == told)
    assert running.running


def test_an_on_error_that_raises_is_survived(rig):
    def callback(sample):
        raise ValueError("mine")

    def on_error(error):
        raise KeyError("worse")

    running = rig.start(callback, interval=0.1, on_error=on_error)
    rig.clock.advance(1)
    wait_until(lambda: running.stats().callback_errors == 11)


def test_a_slow_callback_loses_the_oldest_and_counts_them():
    release, got, begun = threading.Event(), [], threading.Event()

    def callback(item):
        begun.set()
        release.wait(10)
        got.append(item)

    dispatcher = Dispatcher(callback, room=4)
    dispatcher.start()
    dispatcher.put(0)
    begun.wait(10)
    for item in range(1, 11):
        dispatcher.put(item)
    release.set()
    wait_until(lambda: len(got) == 5)
    assert got == [0, 7, 8, 9, 10]
    assert dispatcher.dropped == 6
    dispatcher.stop(5)


def test_a_slow_callback_does_not_delay_sampling(rig):
    release = threading.Event()
    running = rig.start(lambda sample: release.wait(10), interval=0.1)
    rig.clock.advance(20)
    assert len(running.history()) == 201
    assert running.stats().callbacks_dropped > 100
    release.set()


class Outcome(BaseException):
    """As pytest's skip and fail are, and asyncio's CancelledError."""


def stop_everything(error):
    raise Outcome


@pytest.mark.parametrize("on_error", [None, stop_everything])
def test_a_callback_may_raise_anything(on_error):
    def callback(item):
        raise Outcome

    dispatcher = Dispatcher(callback, on_error)
    dispatcher.start()
    for item in range(3):
        dispatcher.put(item)
    wait_until(lambda: dispatcher.errors == 3)
    dispatcher.stop(5)


@pytest.mark.parametrize("on_error", [None, lambda error: sys.exit(2)])
def test_a_callback_that_exits_ends_neither_itself_nor_the_monitor(on_error):
    """SystemExit ended the thread without a word, and every later sample was dropped."""
    called = []

    def callback(item):
        called.append(item)
        sys.exit(1)

    dispatcher = Dispatcher(callback, on_error)
    dispatcher.start()
    for item in range(3):
        dispatcher.put(item)
    wait_until(lambda: dispatcher.errors == 3)
    assert called == [0, 1, 2]
    dispatcher.stop(5)


def test_no_call_after_stop(rig):
    got: list[GpuMetrics] = []
    running = rig.start(got.append, interval=0.1)
    rig.clock.advance(1)
    wait_until(lambda: got)
    running.stop()
    seen = len(got)
    running.accept(got[0])
    rig.clock.advance(1)
    assert len(got) == seen


def test_stop_waits_for_the_call_that_runs():
    begun, order = threading.Event(), []

    def callback(item):
        begun.set()
        threading.Event().wait(0.05)
        order.append("callback")

    dispatcher = Dispatcher(callback)
    dispatcher.start()
    dispatcher.put(1)
    begun.wait(10)
    dispatcher.put(2)
    dispatcher.stop(10)
    order.append("stopped")
    assert order == ["callback", "stopped"]


def test_stop_from_the_callback_and_twice(rig):
    got, running = [], []

    def callback(sample):
        got.append(sample)
        running[0].stop()
        running[0].stop()

    running.append(rig.start(callback, interval=0.1))
    rig.clock.advance(1)
    wait_until(lambda: not running[0].running)
    running[0].stop()
    assert len(got) == 1


def test_many_threads_may_stop_at_once(rig):
    running = rig.start(lambda sample: None, interval=0.1)
    rig.clock.advance(0.5)
    threads = [threading.Thread(target=running.stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_monitor_is_a_context_manager(rig):
    with rig.start() as running:
        assert running.running
        assert monitor.current() is running
    assert not running.running
    assert monitor.current() is None


# -- what a monitor answers ----------------------------------------------------------------------------------------


def test_a_window_has_statistics_and_energy(rig):
    running = rig.start(interval=0.1)
    rig.clock.advance(1)
    start = rig.clock.time_ns()
    rig.clock.advance(2)
    rig.source.set(0, {"power.draw_watts": 100.0})
    rig.clock.advance(1)
    (found,) = running.window(start, rig.clock.time_ns())
    assert found.energy_joules == pytest.approx(2 * 300 + 1 * 100, abs=25)
    assert found.statistics["power.draw_watts"].max == 300
    assert found.statistics["utilization.gpu_percent"].mean == 90
    assert running.window(seconds=0.5)[0].statistics["power.draw_watts"].mean == 100
    assert running.window(device=9) == ()


def test_idle_for_knows_idle_from_unknown(rig):
    running = rig.start(interval=0.1)
    assert not running.idle_for(1)  # nothing is known yet
    rig.source.set(0, {"utilization.gpu_percent": 2.0})
    rig.clock.advance(2)
    assert running.idle_for(1, below=5)
    assert not running.idle_for(1, below=1)
    assert not running.idle_for(60, below=5)  # the history is too short to tell
    rig.source.set(0, {"utilization.gpu_percent": None})
    rig.clock.advance(0.5)
    assert not running.idle_for(1)
    rig.source.trouble(0, "sleeping", "sleeping: power_state is D3cold")
    rig.clock.advance(2)
    assert running.idle_for(1)


def test_idle_for_one_device(two):
    two.source.set(0, {"utilization.gpu_percent": 0.0})
    running = two.start(interval=0.1)
    two.clock.advance(2)
    assert running.idle_for(1, device=0)
    assert not running.idle_for(1, device=1)
    assert not running.idle_for(1)


def test_devices_can_be_chosen(two, monkeypatch):
    assert [device.index for device in two.start(devices=1).devices] == [1]
    assert [device.index for device in two.start(devices="GPU-00000000").devices] == [0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,-1,0")
    assert [device.index for device in two.start(devices="visible").devices] == [1]
    with pytest.raises(ValueError, match="names no devices"):
        two.start(devices=5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 0},
        {"interval": -1},
        {"interval": float("nan")},
        {"interval": "fast"},
        {"history": 0},
        {"history": 1.5},
        {"history": 10**30},
        {"interval": 1e300},
        {"slow_interval": float("inf")},
        {"medium_interval": 0},
        {"process_interval": -1},
        {"pcie": "exact"},
    ],
)
def test_settings_that_make_no_sense_are_refused(rig, wrong):
    with pytest.raises(ValueError, match="must be"):
        rig.start(**wrong)


async def later(sample):
    """Called, it would only make something to await."""


@pytest.mark.parametrize(("wrong", "said"), [("text", "callable"), (3, "callable"), (later, "coroutine")])
def test_what_cannot_be_called_back_is_refused(rig, wrong, said):
    with pytest.raises(TypeError, match=f"^callback must .*{said}"):
        rig.start(wrong)
    with pytest.raises(TypeError, match=f"^on_error must .*{said}"):
        rig.start(on_error=wrong)


def test_an_interval_that_no_thread_can_wait_for_ends_no_thread():
    running = monitor.start_background(None, interval=1e9, slow_interval=1e9, source=testing.ScriptedSource())
    wait_until(running.latest)
    time.sleep(0.05)
    names = {thread.name for thread in threading.enumerate()}
    running.stop()
    assert {"gpusense-fast", "gpusense-slow"} <= names


def test_a_device_is_its_own_name(two):
    first, second = two.source.devices()
    same = second._replace(index=5, name="as another source calls it", sources=("cuda",))
    for wanted in (second, [second], same, (same, 1)):
        assert two.start(devices=wanted).devices == (second,)
    assert two.start(devices=[second, "0"]).devices == (first, second)
    with pytest.raises(ValueError, match="'GPU-other' names no devices"):
        two.start(devices=second._replace(uuid="GPU-other", pci_bus_id=None))


def test_how_far_back_may_be_any_number_and_nothing_else(rig):
    running = rig.start(interval=0.1)
    rig.clock.advance(1)
    assert running.history(float("inf")) == running.history()
    assert running.window(seconds=float("inf"))[0].samples == len(running.history())
    assert not running.idle_for(float("inf"))
    for ask in (running.history, running.idle_for, lambda seconds: running.window(seconds=seconds)):
        with pytest.raises(TypeError, match="must be a number, not '60'"):
            ask("60")  # a factor to a text is a longer text


NAN, INF = float("nan"), float("inf")


def test_what_is_no_number_is_unknown_for_a_reason(rig, capsys):
    wild = {"utilization.gpu_percent": NAN, "power.draw_watts": INF, "thermal.gpu_celsius": -INF}
    rig.source.set(0, {**wild, "clocks.sm_mhz": 1500.0})
    running = rig.start(interval=0.1)
    rig.clock.advance(0.5)
    with testing.fake_gpus(rig.source):
        (now,) = monitor.snapshot()
        for verb in (["top", "--once"], ["monitor", "--once"]):
            assert cli.main(verb) == 0
            assert not re.search(r"\b(nan|inf)\b", capsys.readouterr().out)
    for sample in (*running.latest(), now):
        assert sample.clocks.sm_mhz == 1500.0
        for field, value in wild.items():
            assert sample.reason(field) == f"out of range: {value}"
    assert set(running.window()[0].statistics) == {"clocks.sm_mhz", "power.draw_window_s"}


@pytest.mark.parametrize("answer", [None, 3, (1, 2), {"gpu_percent": 3}])
def test_a_source_that_gives_no_sample_is_a_lost_sample(rig, answer):
    rig.source.sample = lambda device, lanes: answer
    running = rig.start(interval=0.1)
    rig.clock.advance(0.3)
    (latest,) = running.latest()
    assert latest.state == "lost"
    assert latest.reason("power.draw_watts").endswith("not a GpuMetrics")


def test_snapshot_and_own_usage_over_a_source():
    source = testing.ScriptedSource(2)
    source.set(0, {**BUSY, "processes": (gpusense._metrics.ProcessUsage(1, 5, visible=False),)})
    source.trouble(1, "sleeping", "sleeping: D3cold")
    with testing.fake_gpus(source):
        busy, asleep = monitor.snapshot()
        assert (busy.power.draw_watts, asleep.state) == (300, "sleeping")
        assert [sample.device.index for sample in monitor.snapshot(1)] == [1]
        hidden, unknown = monitor.own_usage()
    assert hidden.reason.startswith("denied")
    assert unknown.reason == "sleeping: D3cold"


def test_own_usage_is_the_row_of_this_process(monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 42)
    source = testing.ScriptedSource(2)
    rows = (gpusense._metrics.ProcessUsage(42, 1000, 7.0, "python", True),)
    source.set(0, {"processes": rows})
    source.set(1, {"processes": ()})
    with testing.fake_gpus(source):
        mine, nothing = monitor.own_usage()
    assert (mine.memory_used_bytes, mine.gpu_percent, mine.pid) == (1000, 7, 42)
    assert (nothing.memory_used_bytes, nothing.reason) == (0, None)


# -- joining -------------------------------------------------------------------------------------------------------


def test_fill_takes_what_is_missing_and_keeps_what_is_there():
    device = testing.device()
    newer = testing.metrics(device, {"power.draw_watts": 1.0}, reasons=(("power.limit_watts", "unsupported: a"),))
    older = testing.metrics(device, {"power.draw_watts": 2.0, "power.limit_watts": 3.0, "pcie.width": 16})
    joined = fill(newer, older)
    assert (joined.power.draw_watts, joined.power.limit_watts, joined.pcie.width) == (1, 3, 16)
    assert joined.reason("power.limit_watts") is None


def test_a_blanket_reason_speaks_for_every_field():
    gone = without_values(testing.metrics(testing.device(), BUSY), "lost", "lost: x")
    assert all(getattr(gone, group) is empty for group, empty in GROUPS.items())
    assert gone.reason("processes") == gone.reason("clocks.sm_mhz") == "lost: x"
    with pytest.raises(AttributeError):
        gone.reason("clocks.nonsense")


def test_a_device_of_two_sources_is_sampled_once_and_completed():
    device = testing.device()
    first, second = testing.ScriptedSource(devices=[device]), testing.ScriptedSource(devices=[device])
    first.set(0, {"power.draw_watts": 1.0})
    second.set(0, {"power.draw_watts": 2.0, "thermal.fan_rpm": 900.0})
    both = Merged((device,), {0: [(first, device), (second, device)]})
    assert both.sample(device, ("fast",)).thermal.fan_rpm is None
    assert second.calls == []  # only the slower lanes ask the second source
    sample = both.sample(device, ("fast", "medium"))
    assert (sample.power.draw_watts, sample.thermal.fan_rpm) == (1, 900)


def test_the_sources_of_a_machine_are_one_view(monkeypatch):
    """NVML and a file source know one card, a second card only the files know; CUDA's order counts."""
    one, two, three = (testing.device(i) for i in range(3))
    nvml = testing.ScriptedSource(devices=[one, two])
    files = testing.ScriptedSource(
        devices=[two._replace(uuid=None, backend="drm_files"), three._replace(nvml_index=None)]
    )
    nvml.set(1, {"power.draw_watts": 5.0})
    files.set(1, {"thermal.fan_rpm": 900.0})
    nvml.counter_period_s = lambda device: 0.05
    watched = []
    nvml.watch, nvml.unwatch = lambda: watched.append("on"), lambda: watched.append("off")
    opened = {"nvml": Backend("nvml", metrics=nvml), "drm_files": Backend("drm_files", metrics=files)}
    monkeypatch.setattr("gpusense._sources.open_backend", lambda name: opened.get(name) or Unavailable(name, "absent"))
    cuda = (two._replace(cuda_index=0), one._replace(cuda_index=1))
    monkeypatch.setattr("gpusense._sources._cuda_devices", lambda: cuda)
    opening = gpusense._sources.Opening()
    assert opening.ready.wait(10)
    merged = opening.merged()
    assert merged is opening.merged()
    assert [device.uuid for device in merged.devices()] == [two.uuid, one.uuid, three.uuid]
    assert [device.cuda_index for device in merged.devices()] == [0, 1, None]
    first = merged.devices()[0]
    sample = merged.sample(first, ("fast", "medium"))
    assert (sample.device, sample.power.draw_watts, sample.thermal.fan_rpm) == (first, 5, 900)
    assert merged.counter_period_s(first) == 0.05
    assert merged.counter_period_s(merged.devices()[2]) is None
    merged.watch()
    merged.unwatch()
    assert watched == ["on", "off"]
    monkeypatch.setattr("gpusense._sources._cuda_devices", lambda: cuda[::-1])
    assert opening.merged() is merged  # its ordinals, not its list, give the order
    monkeypatch.setattr("gpusense._sources._cuda_devices", lambda: ())
    assert [device.uuid for device in opening.merged().devices()] == [one.uuid, two.uuid, three.uuid]


def test_a_machine_that_starts_no_more_threads_is_survived(rig, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    running = rig.start(lambda sample: None)
    assert running.problem == "can't start new thread"
    assert running.latest() == ()
    running.stop()
    assert not monitor._samplers


def test_stop_waits_once_for_however_many_drivers_that_hang(rig):
    hang, begun = threading.Event(), threading.Semaphore(0)

    class Hanging(testing.ScriptedSource):
        def sample(self, device, lanes=("fast",)):
            begun.release()
            hang.wait(30)
            return super().sample(device, lanes)

    running = monitor.start_background(lambda sample: None, source=Hanging(4))
    assert begun.acquire(timeout=10)  # a thread for each lane is in the driver
    assert begun.acquire(timeout=10)
    waited = []
    for sampler in [sampler for _, sampler in running._samplers]:
        for turn in sampler._turns:
            turn.done.wait = lambda timeout, wait=turn.done.wait: (waited.append(timeout), wait(timeout))
    running.stop(0.2)
    hang.set()
    assert len(waited) == 8
    assert max(waited) <= 0.2
    assert sum(waited) < 0.4  # not eight times as long: what the first waits took is gone for the later
    assert not monitor._samplers


def test_a_driver_that_hangs_while_it_is_watched_does_not_hold_the_program():
    hang, began, order = threading.Event(), threading.Event(), []

    class Hanging(testing.ScriptedSource):
        def watch(self):
            began.set()
            hang.wait(30)
            order.append("watched")
            raise RuntimeError("driver bug")

        def unwatch(self):
            order.append("unwatched")

    running = monitor.start_background(source=Hanging(1), interval=0.01)
    assert began.wait(10)
    wait_until(lambda: running.history())
    assert order == []
    running.stop(0.05)
    hang.set()
    wait_until(lambda: order == ["watched", "unwatched"])


def test_stats_stay_after_stop(rig):
    running = rig.start(interval=0.1)
    rig.clock.advance(1)
    running.stop()
    assert running.stats().ticks == 11
    assert [device.index for device in running.devices] == [0]


# -- a machine without devices -------------------------------------------------------------------------------------


def test_without_a_gpu_everything_answers_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSENSE_LIBNVIDIA_ML", str(tmp_path / "none.so"))
    monkeypatch.setattr(monitor, "_opening", None)
    monkeypatch.setattr("gpusense._sources.METRIC_BACKENDS", ("nvml",))
    assert monitor.snapshot() == ()
    assert monitor.own_usage() == ()
    with monitor.start_background(interval=0.05) as running:
        assert running.latest() == running.history() == running.window() == running.devices == ()
        assert not running.idle_for(1)
        assert running.stats().samples == 0
    (absent,) = monitor.sources()
    assert isinstance(absent, Unavailable)
    assert "none.so" in absent.reason


def test_every_backend_is_asked_and_answers_with_a_backend_or_a_reason():
    for name in METRIC_BACKENDS:
        opened = gpusense._sources.open_backend(name)
        assert isinstance(opened, (Backend, Unavailable))


def test_a_backend_that_is_not_in_this_copy_is_a_reason():
    assert "not part of this copy" in gpusense._sources.open_backend("nonsense").reason
