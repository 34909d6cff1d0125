"""Events, and devices and libraries that sleep, fail or go away, against a scripted library."""

import ctypes
import sys
import threading
import time

import pytest
from support.devices import EVERYTHING

from gpusense._capi import nvml as c
from gpusense._records.metrics import GROUPS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is a Linux library")


def wait_for(condition, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False


def test_xid_errors_are_counted_while_a_monitor_watches(fake):
    source = fake.source()
    (device,) = source.devices()
    assert "running monitor" in source.sample(device, ("slow",)).reason("health.xid_count")
    fake.value("xid/events", 2)
    fake.value("xid", 79)
    source.watch()
    try:
        assert wait_for(lambda: source.sample(device, ("slow",)).health.xid_count == 2)
        assert source.sample(device, ("slow",)).health.last_xid == 79
    finally:
        source.unwatch()
    assert wait_for(lambda: fake.calls("nvmlEventSetFree") == 1)


def test_the_thread_that_waits_for_xid_errors_sleeps_in_the_driver(fake):
    """It wakes to see whether anybody still watches, at most once in two seconds."""
    source = fake.source()
    source.watch()
    assert wait_for(lambda: fake.library.fake_waited_ms() >= 2000)
    source.unwatch()


def test_a_device_without_xid_events_says_so(fake):
    fake.value("events", 0)
    source = fake.source()
    source.watch()
    (device,) = source.devices()
    assert wait_for(lambda: "RegisterEvents" in source.sample(device, ("slow",)).reason("health.xid_count"))
    source.unwatch()


def test_where_nobody_watches_any_more_there_is_no_count(fake):
    """A count of 0 after the last monitor had ended said that all was well."""
    source = fake.source()
    (device,) = source.devices()
    fake.value("xid/events", 2)
    source.watch()
    assert wait_for(lambda: source.sample(device, ("slow",)).health.xid_count == 2)
    source.unwatch()
    assert wait_for(lambda: source.sample(device, ("slow",)).health.xid_count is None)
    assert "running monitor" in source.sample(device, ("slow",)).reason("health.xid_count")


def test_a_device_that_is_not_watched_has_no_count_although_another_is(fake):
    fake.devices(2)
    fake.code("nvmlDeviceRegisterEvents", 3, device=1)
    source = fake.source()
    first, second = source.devices()
    source.watch()
    assert wait_for(lambda: source.sample(first, ("slow",)).health.xid_count == 0)
    sample = source.sample(second, ("slow",))
    assert sample.health.xid_count is None
    assert "RegisterEvents" in sample.reason("health.xid_count")
    source.unwatch()


def test_who_begins_to_watch_as_the_last_user_leaves_is_not_left_alone(fake):
    """The old thread still gave its set back, and no other was started."""
    source = fake.source()
    (device,) = source.devices()
    fake.slow("nvmlEventSetFree", 300)
    source.watch()
    assert wait_for(lambda: source.sample(device, ("slow",)).health.xid_count == 0)
    source.unwatch()
    assert wait_for(lambda: fake.calls("nvmlEventSetFree") == 1)
    source.watch()
    assert wait_for(lambda: fake.calls("nvmlEventSetCreate") == 2)
    assert wait_for(lambda: source.sample(device, ("slow",)).health.xid_count == 0)
    source.unwatch()


def test_a_device_lost_in_the_middle_is_a_state_and_the_others_go_on(fake, monkeypatch):
    fake.devices(2)
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    source = fake.source()
    first, second = source.devices()
    fake.code("nvmlDeviceGetUtilizationRates", c.GPU_IS_LOST, device=1, after=50)
    states = []
    for _ in range(60):
        now[0] += 100_000_000
        assert source.sample(first, ("fast",)).state == "ok"
        states.append(source.sample(second, ("fast",)).state)
    assert states == ["ok"] * 50 + ["lost"] * 10
    lost = source.sample(second, ("fast",))
    assert lost.reason("power.draw_watts") == "lost: nvmlDeviceGetUtilizationRates: GPU_IS_LOST (15)"
    assert lost.utilization == GROUPS["utilization"]
    fake.code("nvmlDeviceGetUtilizationRates", 0, device=1)
    now[0] += 60_000_000_000
    assert source.sample(second, ("fast",)).state == "ok"  # found again by its UUID
    assert fake.calls("nvmlDeviceGetHandleByUUID") >= 3


def test_a_lost_device_is_asked_again_with_growing_pauses_not_every_tick(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    source = fake.source()
    (device,) = source.devices()
    fake.code("*", c.GPU_IS_LOST)
    fake.code("nvmlDeviceGetHandleByUUID", c.GPU_IS_LOST)
    fake.code("nvmlDeviceGetHandleByPciBusId_v2", c.GPU_IS_LOST)
    before = fake.calls()
    for _ in range(600):  # a minute
        now[0] += 100_000_000
        assert source.sample(device, ("fast",)).state == "lost"
    assert fake.calls() - before < 40


def test_a_device_lost_before_the_start_is_listed_and_never_touched_without_a_handle(fake):
    """The fake aborts the process if it is given a NULL handle."""
    fake.devices(3)
    fake.code("nvmlDeviceGetHandleByIndex_v2", c.GPU_IS_LOST, device=1)
    source = fake.source()
    devices = source.devices()
    assert len(devices) == 3
    assert devices[1].details == (("error", "GPU_IS_LOST (15)"),)
    assert [source.sample(device, EVERYTHING).state for device in devices] == ["ok", "lost", "ok"]


@pytest.mark.parametrize(
    ("code", "capability", "kind"),
    [
        (c.GPU_IS_LOST, 90, None),
        (c.NOT_SUPPORTED, 90, None),
        (0, 90, "discrete"),
        (c.NOT_SUPPORTED, 121, "integrated"),
        (0, 121, "integrated"),
    ],
)
def test_what_a_device_is_decides_whether_it_is_integrated_not_what_it_refuses(fake, code, capability, kind):
    fake.value("capability", capability)
    fake.code("nvmlDeviceGetMemoryInfo", code)
    (device,) = fake.source().devices()
    assert device.kind == kind


def test_a_device_hidden_by_the_container_is_not_listed(fake):
    fake.devices(3)
    fake.code("nvmlDeviceGetHandleByIndex_v2", c.NO_PERMISSION, device=1)
    assert [device.nvml_index for device in fake.source().devices()] == [0, 2]


def test_a_container_that_loses_its_devices_is_degraded_and_not_hammered(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    source = fake.source()
    (device,) = source.devices()
    fake.code("*", c.UNKNOWN)
    states = set()
    before = fake.calls()
    for _ in range(600):
        now[0] += 100_000_000
        states.add(source.sample(device, ("fast",)).state)
    assert states == {"degraded"}
    assert fake.calls() - before < 250
    assert "UNKNOWN (999)" in source.sample(device, ("fast",)).reason("power.draw_watts")
    fake.code("*", 0)
    now[0] += 60_000_000_000
    for _ in range(70):
        now[0] += 100_000_000
        sample = source.sample(device, ("fast",))
    assert (sample.state, sample.utilization.gpu_percent) == ("ok", 87)


def test_a_library_shut_down_by_someone_else_is_initialised_again(fake):
    source = fake.source()
    (device,) = source.devices()
    assert source.sample(device, ("fast",)).state == "ok"
    fake.shut_down()
    assert fake.references() == 0
    assert source.sample(device, EVERYTHING).state == "ok"
    assert fake.references() == 1
    assert fake.calls("nvmlInit_v2") == 2
    assert fake.calls("nvmlShutdown") == 1  # theirs; one of ours would hit the next user of the library


def test_a_library_that_stays_gone_is_lost_and_tried_again_later(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    source = fake.source()
    (device,) = source.devices()
    fake.code("*", c.LIB_RM_VERSION_MISMATCH)
    fake.code("nvmlInit_v2", c.LIB_RM_VERSION_MISMATCH)
    sample = source.sample(device, ("fast",))
    assert sample.state == "lost"
    assert "LIB_RM_VERSION_MISMATCH (18)" in sample.reason("power.draw_watts")
    inits = fake.calls("nvmlInit_v2")
    for _ in range(10):
        source.sample(device, ("fast",))
    assert fake.calls("nvmlInit_v2") == inits
    fake.code("*", 0)
    fake.code("nvmlInit_v2", 0)
    now[0] += 2_000_000_000
    assert source.sample(device, ("fast",)).state == "ok"


def test_a_device_nobody_knows_is_lost_not_an_error(fake):
    source = fake.source()
    (device,) = source.devices()
    other = device._replace(uuid="GPU-other", pci_bus_id="0000:f0:00.0")
    assert source.sample(other, ("fast",)).state == "lost"


def test_devices_that_come_later_are_found_when_it_is_opened_again(fake):
    fake.devices(0)
    assert not fake.open()
    fake.devices(1)
    fake.pci("0000:1b:00.0")
    source = fake.source()
    (first,) = source.devices()
    fake.devices(2)
    assert source.devices() == (first,)
    fake.pci("0000:1c:00.0")
    assert fake.source() is source
    assert [device.index for device in source.devices()] == [0, 1]
    assert [source.sample(device, ("fast",)).state for device in source.devices()] == ["ok", "ok"]
    calls = fake.calls()
    fake.open()  # nothing new: nobody is asked
    assert fake.calls() == calls


def test_a_device_without_a_name_is_not_found_twice(fake):
    fake.devices(2)
    for bus in ("0000:1b:00.0", "0000:1c:00.0"):
        fake.pci(bus)
    fake.code("nvmlDeviceGetHandleByIndex_v2", c.GPU_IS_LOST, device=1)
    source = fake.source()
    assert len(source.devices()) == 2
    fake.code("nvmlDeviceGetHandleByIndex_v2", 0, device=1)
    assert fake.source() is source
    assert [source.sample(device, ("fast",)).state for device in source.devices()] == ["ok", "ok"]


def test_three_boards_with_one_uuid_are_three_devices(fake):
    fake.devices(3)
    for place in range(3):
        fake.uuid(place, "GPU-00000000-0000-0000-0000-000000000000")
        fake.value("utilization/gpu", 10 * (place + 1), device=place)
    source = fake.source()
    devices = source.devices()
    assert [device.pci_bus_id for device in devices] == ["0000:1b:00.0", "0000:1c:00.0", "0000:1d:00.0"]
    assert [source.sample(device, ("fast",)).utilization.gpu_percent for device in devices] == [10, 20, 30]


def test_a_device_that_was_lost_when_it_was_listed_is_found_under_its_name(fake):
    fake.devices(2)
    fake.code("nvmlDeviceGetHandleByIndex_v2", c.GPU_IS_LOST, device=1)
    source = fake.source()
    fake.code("nvmlDeviceGetHandleByIndex_v2", 0, device=1)
    assert source.sample(source.devices()[1], ("fast",)).state == "ok"
    named = source.devices()[1]
    assert named.uuid is not None
    assert source.sample(named, ("fast",)).state == "ok"


@pytest.mark.parametrize(("status", "power"), [("suspended", "D3cold"), ("suspended", "unknown"), ("active", "D3hot")])
def test_a_sleeping_device_is_not_touched(fake, status, power):
    """Zero calls into the driver: not even initialisation, which attaches devices."""
    fake.pci("0000:1b:00.0", status=status, power=power)
    sample = fake.sample()
    assert sample.state == "sleeping"
    assert sample.reason("power.draw_watts").startswith("sleeping: ")
    assert fake.calls() == 0


def test_a_device_that_wakes_up_is_sampled_and_described(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    fake.pci("0000:1b:00.0", status="suspended")
    source = fake.source()
    (device,) = source.devices()
    assert device.name == "NVIDIA GPU (asleep)"
    fake.pci("0000:1b:00.0")
    now[0] += 2_000_000_000
    sample = source.sample(device, EVERYTHING)
    assert (sample.state, sample.utilization.gpu_percent) == ("ok", 87)
    assert sample.device.name == "NVIDIA H100 80GB HBM3"
    fake.pci("0000:1b:00.0", status="suspended")
    calls = fake.calls()
    assert source.sample(device, EVERYTHING).state == "sleeping"
    assert fake.calls() == calls


def test_one_sleeps_and_the_other_is_sampled_by_its_address(fake):
    fake.devices(2)
    fake.pci("0000:1b:00.0", status="suspended")
    fake.pci("0000:1c:00.0")
    source = fake.source()
    awake, asleep = source.devices()
    assert (awake.pci_bus_id, asleep.pci_bus_id) == ("0000:1c:00.0", "0000:1b:00.0")
    assert fake.flags() == c.NO_ATTACH  # attaching would wake the one that sleeps
    assert fake.calls("nvmlInit_v2") == 0
    assert source.sample(awake, EVERYTHING).state == "ok"
    assert source.sample(asleep, EVERYTHING).state == "sleeping"
    assert fake.calls("nvmlDeviceGetHandleByIndex_v2") == 0


def test_a_server_whose_devices_never_sleep_is_not_asked_each_time(fake, monkeypatch):
    fake.pci("0000:1b:00.0", control="on")
    source = fake.source()
    monkeypatch.setattr("gpusense.backends.nvml.device.asleep", lambda *_: pytest.fail("asked"))
    assert source.sample(source.devices()[0], ("fast",)).state == "ok"


def test_another_user_of_the_library_keeps_its_prototypes(fake):
    """pynvml in the same process declares the same functions in its own way."""
    theirs = ctypes.CDLL(fake.path)
    theirs.nvmlDeviceGetCount_v2.argtypes = (ctypes.c_char_p,)
    fake.sample()
    assert theirs.nvmlDeviceGetCount_v2.argtypes == (ctypes.c_char_p,)


def test_a_thousand_openings_and_closings_leave_nothing(fake):
    source = fake.source()
    (device,) = source.devices()
    for _ in range(200):
        assert source.sample(device, EVERYTHING).state == "ok"
        source.close()
    assert fake.references() == 0


def test_a_lane_that_alone_fails_does_not_condemn_the_device(fake):
    """A consumer card: no ECC, no remapping, and the energy call times out."""
    for name in ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPages_v2"):
        fake.code(name, c.NOT_SUPPORTED)
    fake.code("nvmlDeviceGetPcieReplayCounter", c.NOT_SUPPORTED)
    fake.code("nvmlDeviceGetTotalEnergyConsumption", c.TIMEOUT)
    source = fake.source()
    (device,) = source.devices()
    assert source.sample(device, ("slow",)).state == "ok"
    assert source.sample(device, ("fast",)).state == "ok"


def test_lanes_on_two_threads_never_pass_on_a_handle_that_was_lost_meanwhile(fake, monkeypatch):
    """The fake aborts on a NULL handle."""
    monkeypatch.setattr("gpusense.backends.nvml.device._FIRST_PAUSE_S", 0.0)
    source = fake.source()
    (device,) = source.devices()
    sampled = source._device(device)
    states, stop = set(), threading.Event()

    def lane(name):
        while not stop.is_set():
            states.add(source.sample(device, (name,)).state)

    threads = [threading.Thread(target=lane, args=(name,)) for name in ("medium", "slow", "counters")]
    for thread in threads:
        thread.start()
    for turn in range(60):
        fake.code("nvmlDeviceGetUtilizationRates", c.GPU_IS_LOST if turn % 2 else 0)
        sampled._pause_s = 0.0
        states.add(source.sample(device, ("fast",)).state)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert states == {"ok", "lost"}
