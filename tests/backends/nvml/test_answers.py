"""NVML's lanes and refusals, against a scripted library."""

import sys

import pytest
from support.devices import EVERYTHING

from gpusense._capi import nvml as c
from gpusense._records.metrics import GROUPS
from gpusense._records.protocols import Backend
from gpusense._records.records import Unavailable
from gpusense.backends.nvml import source as nvml

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is a Linux library")


def test_a_device_is_described(fake):
    (device,) = fake.source().devices()
    assert (device.name, device.vendor, device.backend) == ("NVIDIA H100 80GB HBM3", "nvidia", "nvml")
    assert device.uuid == "GPU-ab000000-1111-2222-3333-444444444444"
    assert device.pci_bus_id == "0000:1b:00.0"
    assert device.memory_total_bytes == 85520809984
    assert device.compute_capability == (9, 0)
    assert (device.nvml_index, device.driver, device.kind) == (0, "580.159.04", "discrete")
    assert (device.clock_max_mhz, device.memory_bus_width_bits) == (1980, 5120)


def test_every_lane_gives_its_metrics(fake):
    sample = fake.sample()
    assert (sample.state, sample.source) == ("ok", "nvml")
    assert sample.utilization[:4] == (87, 42, 0, 0)
    assert sample.memory[:4] == (85520809984, 700000000, 84520809984, 300000000)
    assert sample.memory.unified is False
    assert (sample.thermal.gpu_celsius, sample.thermal.memory_celsius) == (52, 60)
    assert (sample.thermal.slowdown_celsius, sample.thermal.shutdown_celsius) == (89, 92)
    assert (sample.thermal.max_operating_celsius, sample.thermal.margin_celsius) == (87, 35)
    assert sample.power.draw_watts == pytest.approx(345.678)
    assert (sample.power.average_watts, sample.power.limit_watts, sample.power.draw_window_s) == (340, 700, 0)
    assert sample.power.energy_joules == pytest.approx(123456.789)
    assert sample.power.scope == "gpu"
    assert sample.clocks[:4] == (1755, 1755, 1755, 1755)
    assert (sample.clocks.throttle_reasons, sample.clocks.performance_state) == (("sw_power_cap",), 0)
    assert (sample.pcie.generation, sample.pcie.width) == (5, 16)
    assert (sample.pcie.max_generation, sample.pcie.max_width, sample.pcie.replay_count) == (5, 16, 3)
    assert (sample.health.remapped_rows, sample.health.remapped_rows_uncorrected) == (3, 1)
    assert (sample.health.remap_pending, sample.health.remap_failed, sample.health.retired_pages) == (False, False, 0)
    assert sample.processes == ()
    assert sample.source_time_ns == 1700000000000000000
    assert sample.cost_ns > 0


def test_a_lane_reads_only_its_own(fake):
    fast = fake.sample(lanes=("fast",))
    assert fast.utilization.gpu_percent == 87
    assert fast.power.limit_watts is None
    assert fast.health is GROUPS["health"]
    assert fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 0
    assert fake.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 0


def test_the_fast_lane_never_makes_the_calls_that_block(fake):
    source = fake.source()
    for _ in range(20):
        source.sample(source.devices()[0], ("fast", "medium"))
    assert fake.calls("nvmlDeviceGetPcieThroughput") == 0
    assert fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 0


def test_every_value_that_is_none_has_a_reason_of_the_six(fake):
    words = ("unsupported", "denied", "sleeping", "lost", "stale", "out of range")
    sample = fake.sample()
    for group, empty in GROUPS.items():
        for field in empty._fields:
            if getattr(getattr(sample, group), field) is None:
                assert sample.reason(f"{group}.{field}").startswith(words), field


def test_where_nothing_sleeps_initialisation_is_the_plain_one(fake):
    """Without attaching, driver 580 counts no device."""
    fake.sample()
    assert fake.calls("nvmlInitWithFlags") == 0
    assert fake.calls("nvmlInit_v2") == 1


def test_opening_again_initialises_once(fake):
    first, second = fake.open(), fake.open()
    assert first.metrics is second.metrics
    assert fake.references() == 1
    first.metrics.close()
    assert fake.references() == 0
    first.metrics.close()
    assert fake.calls("nvmlShutdown") == 1  # balanced: never one too many


def test_without_the_library_it_is_unavailable(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSENSE_LIBNVIDIA_ML", str(tmp_path / "none.so"))
    opened = nvml.open()
    assert isinstance(opened, Unavailable)
    assert "none.so" in opened.reason


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (18, "LIB_RM_VERSION_MISMATCH (18)"),
        (9, "DRIVER_NOT_LOADED (9)"),
        (4, "NO_PERMISSION (4)"),
        (999, "UNKNOWN (999)"),
        (12, "LIBRARY_NOT_FOUND (12)"),
        (4711, "code (4711)"),
    ],
)
def test_a_broken_installation_is_a_reason_not_an_exception(fake, code, words):
    fake.code("nvmlInit_v2", code)
    opened = fake.open()
    assert isinstance(opened, Unavailable)
    assert words in opened.reason
    assert opened.hint or code == 4711


def test_a_broken_installation_that_is_repaired_is_found(fake):
    fake.code("nvmlInit_v2", 9)
    assert not fake.open()
    fake.code("nvmlInit_v2", 0)
    assert isinstance(fake.open(), Backend)


def test_no_device_for_this_process_is_a_reason(fake):
    fake.devices(0)
    assert "no device" in fake.open().reason


@pytest.mark.parametrize("name", sorted(c.NVML))
def test_any_function_may_be_missing(make, name):
    fake = make(name)
    opened = fake.open()
    if name == "nvmlDeviceGetCount_v2":
        assert "FUNCTION_NOT_FOUND" in opened.reason
        return
    assert isinstance(opened, Backend), opened
    if name.startswith("nvmlDeviceGetHandleByIndex"):
        return
    source = opened.metrics
    for _ in range(2):
        sample = source.sample(source.devices()[0], (*EVERYTHING, "gpm"))
    assert sample.state == "ok"
    assert sample.device.name
    assert name not in str(sample.reasons) or "FUNCTION_NOT_FOUND" in str(sample.reasons)


@pytest.mark.parametrize("code", [3, 4, 2, 10, 13, 20, 21, 25, 26, 999, 31415])
@pytest.mark.parametrize("name", sorted(name for name in c.NVML if name.startswith("nvmlDeviceGet")))
def test_any_function_may_answer_any_code(fake, name, code):
    fake.value("process/rows", 1)
    source = fake.source()
    (device,) = source.devices()
    fake.code(name, code)
    for _ in range(2):
        sample = source.sample(device, (*EVERYTHING, "gpm"))
    assert sample.state == "ok"
    for field, why in sample.reasons:
        assert why.startswith(("unsupported", "denied", "stale", "out of range")), (field, why)


def test_unsupported_is_asked_once(fake):
    fake.code("nvmlDeviceGetEncoderUtilization", c.NOT_SUPPORTED)
    source = fake.source()
    for _ in range(10):
        sample = source.sample(source.devices()[0], ("fast",))
    assert fake.calls("nvmlDeviceGetEncoderUtilization") == 1
    assert sample.reason("utilization.encoder_percent") == (
        "unsupported: nvmlDeviceGetEncoderUtilization: NOT_SUPPORTED (3)"
    )
    assert sample.utilization.gpu_percent == 87


def test_a_transient_failure_is_asked_again_with_growing_pauses(fake):
    fake.code("nvmlDeviceGetUtilizationRates", c.TIMEOUT)
    source = fake.source()
    for _ in range(100):
        sample = source.sample(source.devices()[0], ("fast",))
    assert 5 <= fake.calls("nvmlDeviceGetUtilizationRates") <= 8
    assert sample.reason("utilization.gpu_percent") == "stale: nvmlDeviceGetUtilizationRates: TIMEOUT (10)"
    fake.code("nvmlDeviceGetUtilizationRates", 0)
    for _ in range(65):
        sample = source.sample(source.devices()[0], ("fast",))
    assert sample.utilization.gpu_percent == 87
    assert sample.reason("utilization.gpu_percent") is None


def test_denied_says_so(fake):
    fake.code("nvmlDeviceGetTemperatureV", c.NO_PERMISSION)
    fake.code("nvmlDeviceGetTemperature", c.NO_PERMISSION)
    assert fake.sample().reason("thermal.gpu_celsius").startswith("denied: ")


def test_all_fields_refused_leaves_a_device_that_answers_nothing(fake):
    """Jetson: NVML initialises and every query is NOT_SUPPORTED."""
    source = fake.source()
    (device,) = source.devices()
    fake.code("*", c.NOT_SUPPORTED)
    sample = source.sample(device, EVERYTHING)
    assert sample.state == "ok"
    assert sample.utilization == GROUPS["utilization"]
    assert "NOT_SUPPORTED (3)" in sample.reason("utilization.gpu_percent")
    calls = fake.calls()
    source.sample(device, ("fast",))
    assert fake.calls() - calls <= 2


def test_a_virtual_gpu_without_clocks_and_links(fake):
    fake.value("nvmlDeviceGetVirtualizationMode", 2)
    for name in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetNvLinkState"):
        fake.code(name, c.NOT_SUPPORTED)
    sample = fake.sample()
    assert sample.device.kind == "virtual"
    assert sample.clocks.sm_mhz is None
    assert sample.links.nvlink_count is None
    assert sample.utilization.gpu_percent == 87


def test_a_passive_card_has_no_fan_and_a_fan_may_pass_a_hundred_percent(fake):
    assert fake.sample().reason("thermal.fan_percent") == "unsupported: this board has no fan of its own"
    fake.value("nvmlDeviceGetNumFans", 2)
    fake.value("nvmlDeviceGetFanSpeed_v2/0", 40)
    fake.value("nvmlDeviceGetFanSpeed_v2/1", 104)
    fake.source().close()  # ask everything again
    sample = fake.sample()
    assert (sample.thermal.fan_percent, sample.thermal.fan_rpm) == (104, 1500)
