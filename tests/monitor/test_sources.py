"""Devices that come while the process runs: a driver that starts late, a card that is plugged in."""

import pytest
from support.devices import BUSY, wait_until

from gpusense import monitor, testing
from gpusense._records.protocols import Backend
from gpusense._records.records import Unavailable
from gpusense.monitor import _shared, _sources


class Machine:
    """What the backends of a machine answer when they are opened; every opening is noted."""

    def __init__(self) -> None:
        self.metrics = {}
        self.opened = []

    def plug(self, backend: str, *indices: int) -> None:
        source = testing.ScriptedSource(devices=[testing.device(i)._replace(backend=backend) for i in indices])
        for index in indices:
            source.set(index, BUSY)
        self.metrics[backend] = source

    def open(self, name: str):
        self.opened.append(name)
        found = self.metrics.get(name)
        return Unavailable(name, "absent") if found is None else Backend(name, metrics=found)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(_sources, "_FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(_sources, "_LONGEST_LOOK_S", 0.2)
    monkeypatch.setattr(_sources, "open_backend", made.open)
    monkeypatch.setattr(_sources, "_cuda_devices", tuple)
    monkeypatch.setattr(_shared.shared, "_opening", None)
    yield made
    opening, _shared.shared._opening = _shared.shared._opening, None
    assert opening is None or not opening._followers


def test_a_driver_that_starts_late_is_seen_by_the_monitor_that_runs_and_by_a_snapshot(machine):
    with monitor.start_background(interval=0.05) as running:
        assert running.devices == ()
        machine.plug("nvml", 0, 1)
        wait_until(lambda: len(running.latest()) == 2)
        assert len(monitor.snapshot()) == 2
        assert running.problem is None


def test_a_snapshot_alone_sees_a_driver_that_starts_late(machine):
    assert monitor.snapshot() == ()
    machine.plug("nvml", 0)
    wait_until(lambda: monitor.snapshot() != ())


def test_a_card_that_comes_later_takes_no_place_of_those_that_are_watched(machine):
    machine.plug("amd_sysfs", 5)
    with monitor.start_background(interval=0.05) as running:
        (first,) = running.devices
        machine.plug("nvml", 0)  # comes before AMD's in every list
        wait_until(lambda: len(running.latest()) == 2)
        assert [(one.device.index, one.device.uuid) for one in running.latest()] == [
            (0, first.uuid),
            (1, testing.device(0).uuid),
        ]
        assert running.devices[0] is first
        assert len({sampler.key[0] for sampler in running._samplers}) == 1  # and share the threads


def test_a_monitor_of_named_devices_does_not_take_others(machine):
    machine.plug("amd_sysfs", 5)
    with monitor.start_background(interval=0.05, devices=0) as running:
        machine.plug("nvml", 0)
        wait_until(lambda: len(monitor.snapshot()) == 2)
        assert len(running.devices) == 1


def test_what_costs_a_process_is_opened_again_only_beside_a_new_device(machine):
    with monitor.start_background(interval=0.05) as running:
        wait_until(lambda: machine.opened.count("nvml") >= 4)
        assert machine.opened.count("rocm_smi") == 1
        machine.plug("amd_sysfs", 0)
        wait_until(lambda: running.devices)
        wait_until(lambda: machine.opened.count("rocm_smi") == 2)


def test_looking_again_ends_with_the_last_monitor(machine):
    with monitor.start_background(interval=0.05):
        opening = _shared.shared.opening()
        wait_until(lambda: opening._looking is not None)
    wait_until(lambda: opening._looking is None)
