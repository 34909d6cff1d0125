"""Processes, MIG instances and GPM, against a scripted library."""

import os
import sys
import time

import pytest
from support.devices import EVERYTHING

from gpusense._capi import nvml as c
from gpusense.backends import sysfs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is a Linux library")


GIB = 1 << 30


def test_processes_of_our_namespace_have_names(fake, monkeypatch):
    monkeypatch.setattr("gpusense.backends.nvml.processes.sees_host_pids", lambda procfs: True)
    (fake.procfs / "4000").mkdir(parents=True)
    (fake.procfs / "4000" / "comm").write_text("python3\n")
    fake.value("process/rows", 2)
    first, second = fake.sample().processes
    assert (first.pid, first.name, first.visible) == (4000, "python3", True)
    assert (first.memory_used_bytes, first.gpu_percent) == (GIB, 55)
    assert (second.pid, second.name, second.visible) == (4001, None, False)


def test_pids_in_a_container_are_the_hosts_and_never_joined(fake, monkeypatch):
    monkeypatch.setattr("gpusense.backends.nvml.processes.sees_host_pids", lambda procfs: False)
    (fake.procfs / "4000").mkdir(parents=True)
    (fake.procfs / "4000" / "comm").write_text("somebody else\n")
    fake.value("process/rows", 1)
    (row,) = fake.sample().processes
    assert (row.pid, row.name, row.visible) == (4000, None, False)


def test_unknown_process_memory_is_none(fake):
    """WDDM and WSL give all bits set."""
    fake.value("process/rows", 1)
    fake.value("process/memory", -1)
    assert fake.sample().processes[0].memory_used_bytes is None


def test_the_process_list_grows_as_the_driver_asks(fake):
    fake.value("process/rows", 500)
    processes = fake.sample().processes
    assert len(processes) == 500
    assert {row.pid for row in processes} == set(range(4000, 4500))


def test_a_process_list_that_cannot_be_read_is_not_an_empty_one(fake):
    fake.value("process/rows", 1)
    fake.value("process/pid", 0)
    sample = fake.sample()
    assert sample.processes is None
    assert sample.reason("processes").startswith("out of range: ")
    assert sample.out_of_range == 1


@pytest.mark.parametrize(("code", "listed"), [(c.NOT_SUPPORTED, True), (c.TIMEOUT, False)])
def test_a_list_without_the_processes_of_one_kind_is_no_list_unless_there_is_no_such_kind(fake, code, listed):
    fake.code("nvmlDeviceGetGraphicsRunningProcesses_v3", code)
    sample = fake.sample()
    assert (sample.processes is not None) == listed
    assert listed or sample.reason("processes").startswith("stale: nvmlDeviceGetGraphicsRunningProcesses")


@pytest.mark.parametrize("stride", [24, 32, 16])
def test_a_process_list_of_another_stride_is_recognised(fake, stride):
    """Drivers 525 and 535 widened the struct under the same name: pids became nonsense elsewhere."""
    fake.value("process/rows", 5)
    fake.value("process/stride", stride)
    assert [row.pid for row in fake.sample().processes] == [4000, 4001, 4002, 4003, 4004]


@pytest.mark.parametrize(
    "missing",
    [
        ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
         "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v2",
         "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    ],
)  # fmt: skip
def test_older_process_calls_serve(make, missing):
    fake = make(*missing)
    fake.value("process/rows", 3)
    assert [row.pid for row in fake.sample().processes] == [4000, 4001, 4002]


def test_a_real_namespace_answers():
    assert sysfs.sees_host_pids() in (True, False, None)
    assert sysfs.process_name(os.getpid())
    total, available = sysfs.meminfo()
    assert 0 < available <= total


def test_mig_instances_have_their_own_memory_and_utilization_is_absent_not_zero(fake):
    fake.value("mig/mode", 1)
    fake.code("nvmlDeviceGetUtilizationRates", c.NOT_SUPPORTED)
    sample = fake.sample()
    assert sample.utilization.gpu_percent is None
    assert sample.reason("utilization.gpu_percent").startswith("unsupported")
    first, second = sample.instances  # places 0 and 2: the numbering has holes
    assert first.uuid.startswith("MIG-")
    assert (first.gpu_instance, second.gpu_instance) == (0, 2)
    assert (first.memory_total_bytes, first.sm_count) == (85520809984, 16)
    assert "MIG 1g.10gb" in first.name


def test_without_mig_instances_say_why(fake):
    sample = fake.sample()
    assert sample.instances is None
    assert sample.reason("instances") == "unsupported: MIG is off"


def test_gpm_is_read_only_on_request_and_needs_two_samples(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    source = fake.source()
    (device,) = source.devices()
    source.sample(device, ("fast",))
    assert fake.calls("nvmlGpmSampleGet") == 0
    first = source.sample(device, ("fast", "gpm"))
    assert first.reason("utilization.sm_active_percent").startswith("stale: GPM needs two samples")
    now[0] += 100_000_000
    second = source.sample(device, ("fast", "gpm")).utilization
    assert (second.sm_active_percent, second.sm_occupancy_percent, second.tensor_percent) == (12, 13, 15)
    assert (second.dram_bandwidth_percent, second.fp32_percent, second.graphics_engine_percent) == (20, 22, 11)
    now[0] += 10_000_000  # the driver has nothing new within 100 ms: the last values stand
    fake.value("gpm/2", 99)
    assert source.sample(device, ("fast", "gpm")).utilization.sm_active_percent == 12
    assert fake.calls("nvmlGpmSampleGet") == 2


def test_a_device_that_comes_and_goes_leaves_no_gpm_samples_behind(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    fake.value("mig/mode", 1)
    source = fake.source()
    (device,) = source.devices()
    for _ in range(5):
        for _ in range(3):
            assert source.sample(device, (*EVERYTHING, "gpm")).state == "ok"
            now[0] += 100_000_000
        fake.code("nvmlDeviceGetUtilizationRates", c.GPU_IS_LOST)
        assert source.sample(device, ("fast", "gpm")).state == "lost"
        fake.code("nvmlDeviceGetUtilizationRates", 0)
        now[0] += 60_000_000_000
    held = fake.calls("nvmlGpmSampleAlloc") - fake.calls("nvmlGpmSampleFree")
    assert held == 2 * 3  # two for the device and for each of its two instances


def test_gpm_on_an_older_device_is_unsupported_and_asked_once(fake):
    fake.value("gpm", 0)
    source = fake.source()
    for _ in range(3):
        sample = source.sample(source.devices()[0], ("fast", "gpm"))
    assert sample.reason("utilization.sm_active_percent").startswith("unsupported: nvmlGpmQueryDeviceSupport")
    assert fake.calls("nvmlGpmQueryDeviceSupport") == 1


def test_gpm_of_mig_instances(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    fake.value("mig/mode", 1)
    source = fake.source()
    for _ in range(2):
        sample = source.sample(source.devices()[0], ("medium", "gpm"))
        now[0] += 1_000_000_000
    assert [row.sm_active_percent for row in sample.instances] == [12, 12]
