"""What a monitor answers: windows, settings, sources, trouble."""

import re
import threading
import time

import pytest
from support.devices import BUSY, wait_until

import gpusense
from gpusense import cli, monitor, testing
from gpusense._records.metrics import GROUPS, fill, without_values
from gpusense._records.protocols import Backend
from gpusense._records.records import Unavailable
from gpusense.monitor._sources import Merged


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
    with pytest.raises(ValueError, match="names no device"):
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
    with pytest.raises(ValueError, match="'GPU-other' names no device"):
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
    source.set(0, {**BUSY, "processes": (gpusense._records.metrics.ProcessUsage(1, 5, visible=False),)})
    source.trouble(1, "sleeping", "sleeping: D3cold")
    with testing.fake_gpus(source):
        busy, asleep = monitor.snapshot()
        assert (busy.power.draw_watts, asleep.state) == (300, "sleeping")
        assert [sample.device.index for sample in monitor.snapshot(1)] == [1]
        hidden, unknown = monitor.own_usage()
    assert hidden.reason.startswith("denied")
    assert unknown.reason == "sleeping: D3cold"


@pytest.mark.parametrize("shown", ["MIG-aa-1", "MIG-AA", "MIG-bb-2"])
def test_visible_is_the_device_of_the_mig_instance_that_cuda_shows(monkeypatch, shown):
    source = testing.ScriptedSource(2)
    source.set(0, {"instances": (monitor.Instance(uuid="MIG-bb-1"), monitor.Instance(uuid="MIG-bb-2"))})
    source.set(1, {"instances": (monitor.Instance(uuid="MIG-aa-1"), monitor.Instance())})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with testing.fake_gpus(source):
        assert [one.device.index for one in monitor.snapshot("visible")] == [0 if "bb" in shown else 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cc")
    with testing.fake_gpus(source):
        assert monitor.snapshot("visible") == ()


@pytest.mark.parametrize(("memory", "reason"), [(1000, None), (None, "unsupported")])
def test_own_usage_where_pids_need_no_namespace_and_the_driver_may_tell_no_memory(monkeypatch, memory, reason):
    """On Windows the system owns the memory, and there are no namespaces: the row was passed over and told as 0."""
    monkeypatch.setattr("os.getpid", lambda: 42)
    source = testing.ScriptedSource(1)
    source.set(0, {"processes": (monitor.ProcessUsage(42, memory, 7.0),)})
    with testing.fake_gpus(source):
        (mine,) = monitor.own_usage()
    assert (mine.memory_used_bytes, mine.gpu_percent) == (memory, 7.0)
    assert (mine.reason or "").partition(":")[0] == (reason or "")


def test_own_usage_is_the_row_of_this_process(monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 42)
    source = testing.ScriptedSource(2)
    rows = (gpusense._records.metrics.ProcessUsage(42, 1000, 7.0, "python", True),)
    source.set(0, {"processes": rows})
    source.set(1, {"processes": ()})
    with testing.fake_gpus(source):
        mine, nothing = monitor.own_usage()
    assert (mine.memory_used_bytes, mine.gpu_percent, mine.pid) == (1000, 7, 42)
    assert (nothing.memory_used_bytes, nothing.reason) == (0, None)


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
    open_backend = "gpusense.monitor._sources.open_backend"
    monkeypatch.setattr(open_backend, lambda name: opened.get(name) or Unavailable(name, "absent"))
    cuda = (two._replace(cuda_index=0), one._replace(cuda_index=1))
    monkeypatch.setattr("gpusense.monitor._sources._cuda_devices", lambda: cuda)
    opening = gpusense.monitor._sources.Opening()
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
    monkeypatch.setattr("gpusense.monitor._sources._cuda_devices", lambda: cuda[::-1])
    assert opening.merged() is merged  # its ordinals, not its list, give the order
    monkeypatch.setattr("gpusense.monitor._sources._cuda_devices", lambda: ())
    assert [device.uuid for device in opening.merged().devices()] == [one.uuid, two.uuid, three.uuid]


def test_two_cards_that_nothing_tells_apart_have_figures_of_their_own(monkeypatch):
    """Both had those of the first, which has their name."""
    twins = [testing.device(at)._replace(name="a card", uuid=None, pci_bus_id=None, nvml_index=None) for at in (0, 1)]
    files = testing.ScriptedSource(devices=twins)
    for at, watts in ((0, 5.0), (1, 50.0)):
        files.set(at, {"power.draw_watts": watts})
    opened = {"drm_files": Backend("drm_files", metrics=files)}
    open_backend = "gpusense.monitor._sources.open_backend"
    monkeypatch.setattr(open_backend, lambda name: opened.get(name) or Unavailable(name, "absent"))
    monkeypatch.setattr("gpusense.monitor._sources._cuda_devices", lambda: ())
    opening = gpusense.monitor._sources.Opening()
    assert opening.ready.wait(10)
    merged = opening.merged()
    assert [merged.sample(device).power.draw_watts for device in merged.devices()] == [5, 50]


def test_a_machine_that_starts_no_more_threads_is_survived(rig, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    running = rig.start(lambda sample: None)
    assert running.problem == "can't start new thread"
    assert running.latest() == ()
    running.stop()
    assert not monitor.shared.samplers


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

    class Noted:
        def __init__(self, event):
            self.event, self.set = event, event.set

        def wait(self, timeout):
            waited.append(timeout)
            return self.event.wait(timeout)

    for sampler in running._samplers:
        for task in sampler._tasks:
            task.done = Noted(task.done)
    running.stop(0.2)
    hang.set()
    assert len(waited) == 8
    assert max(waited) <= 0.2
    assert sum(waited) < 0.4  # not eight times as long: what the first waits took is gone for the later
    assert not monitor.shared.samplers


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


def test_without_a_gpu_everything_answers_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSENSE_LIBNVIDIA_ML", str(tmp_path / "none.so"))
    monkeypatch.setattr(monitor.shared, "_opening", None)
    monkeypatch.setattr("gpusense.monitor._sources.names", lambda role: ("nvml",))
    assert monitor.snapshot() == ()
    assert monitor.own_usage() == ()
    with monitor.start_background(interval=0.05) as running:
        assert running.latest() == running.history() == running.window() == running.devices == ()
        assert not running.idle_for(1)
        assert running.stats().samples == 0
    (absent,) = monitor.sources()
    assert isinstance(absent, Unavailable)
    assert "none.so" in absent.reason
