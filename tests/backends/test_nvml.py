"""NVML over a scripted library: every metric, every kind of absence, every way a driver is known to fail."""

import ctypes
import os
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvml_fake import EVERYTHING, FakeNvml

from gpusense._capi import nvml as c
from gpusense._metrics import GROUPS
from gpusense._protocols import Backend
from gpusense._records import Unavailable
from gpusense.backends import nvml
from gpusense.backends.nvml_library import as_text
from gpusense.backends.nvml_reader import ByteCounter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is a Linux library")

GIB = 1 << 30


@pytest.fixture
def make(build_library, tmp_path, monkeypatch):
    """``make("nvmlX")`` → a fresh scripted library without the function nvmlX, which the package will load."""

    def build(*lacks: str) -> FakeNvml:
        fake = FakeNvml(build_library("libnvidia_ml.c", "libnvidia-ml.so.1"), tmp_path, lacks)
        monkeypatch.setenv("GPUSENSE_LIBNVIDIA_ML", fake.path)
        return fake

    return build


@pytest.fixture
def fake(make):
    return make()


# -- what a healthy device tells -----------------------------------------------------------------------------------


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


# -- absence -------------------------------------------------------------------------------------------------------


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


# -- values that cannot be true ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "value", "field"),
    [
        ("utilization/gpu", 655, "utilization.gpu_percent"),
        ("memory/total", -1, "memory.total_bytes"),
        ("memory/used", -1, "memory.used_bytes"),
        ("nvmlDeviceGetTemperatureV", 0x7FFFFFFF, "thermal.gpu_celsius"),
        ("field/186", 0xFFFFFFFF, "power.draw_watts"),
        ("nvmlDeviceGetClockInfo", 0xFFFFFFFF, "clocks.sm_mhz"),
        ("nvmlDeviceGetTotalEnergyConsumption", -1, "power.energy_joules"),
        ("nvmlDeviceGetPerformanceState", 99, "clocks.performance_state"),
        ("threshold/1", 0, "thermal.slowdown_celsius"),
        ("type/186", 42, "power.draw_watts"),
    ],
)
def test_a_sentinel_becomes_none_and_is_counted(fake, what, value, field):
    fake.value(what, value)
    if field == "power.draw_watts" and what.startswith("type"):
        fake.code("nvmlDeviceGetPowerUsage", c.NOT_SUPPORTED)
    sample = fake.sample()
    group, _, name = field.partition(".")
    assert getattr(getattr(sample, group), name) is None
    assert sample.reason(field).startswith(("out of range", "unsupported"))
    assert sample.out_of_range >= 1


def test_an_unknown_performance_state_is_not_a_number(fake):
    fake.value("nvmlDeviceGetPerformanceState", c.PERFORMANCE_STATE_UNKNOWN)
    sample = fake.sample()
    assert sample.clocks.performance_state is None
    assert sample.out_of_range == 0


def test_throttle_bits_of_the_future_are_kept(fake):
    fake.value("nvmlDeviceGetCurrentClocksEventReasons", 0x1 | 0x200 | 0x8000)
    assert fake.sample().clocks.throttle_reasons == ("idle", "board_limit", "bit_0x8000")


@pytest.mark.parametrize("name", [b"NVIDIA \xf8\xff\xfe L4\0", b"\xf8" * 96, b"a\nb\x1b[31m\0"])
def test_a_name_of_random_bytes_is_shown_and_harmless(fake, name):
    fake.name(0, name)
    shown = fake.source().devices()[0].name
    assert shown.isprintable()
    assert len(shown) <= 96


@given(st.binary(max_size=120))
def test_text_of_any_bytes_is_printable(raw):
    text = as_text(raw)
    assert text is None or (text.isprintable() and text == text.strip())


# -- several ways to one value -------------------------------------------------------------------------------------


def test_memory_without_the_second_version_counts_the_reserve_as_used(make):
    fake = make("nvmlDeviceGetMemoryInfo_v2")
    sample = fake.sample()
    assert (sample.memory.used_bytes, sample.memory.reserved_bytes) == (1000000000, None)
    assert "reserved" in sample.reason("memory.reserved_bytes")


@pytest.mark.parametrize("code", [c.UNKNOWN, 25])
def test_memory_falls_back_where_the_second_version_is_refused(fake, code):
    """WSL answers UNKNOWN, a library of another age ARGUMENT_VERSION_MISMATCH."""
    fake.code("nvmlDeviceGetMemoryInfo_v2", code)
    assert fake.sample().memory.used_bytes == 1000000000


@pytest.mark.parametrize("code", [13, 25, 26, 3])
def test_temperature_and_throttle_reasons_fall_back_to_the_older_call(fake, code):
    fake.code("nvmlDeviceGetTemperatureV", code)
    fake.code("nvmlDeviceGetCurrentClocksEventReasons", code)
    sample = fake.sample()
    assert sample.thermal.gpu_celsius == 51
    assert sample.clocks.throttle_reasons == ("hw_slowdown",)
    assert sample.reason("thermal.gpu_celsius") is None


def test_power_falls_back_to_the_averaged_call_and_says_its_window(fake):
    fake.code("field/186", c.NOT_SUPPORTED)
    sample = fake.sample()
    assert (sample.power.draw_watts, sample.power.draw_window_s) == (340, 1.0)


def test_a_field_the_driver_leaves_untouched_is_not_the_last_value(fake):
    source = fake.source()
    (device,) = source.devices()
    assert source.sample(device, ("fast",)).power.average_watts == 340
    fake.code("field/185", -1)
    assert source.sample(device, ("fast",)).power.average_watts is None


def test_no_energy_counter_is_a_reason_and_power_stays(fake):
    fake.code("nvmlDeviceGetTotalEnergyConsumption", c.NOT_SUPPORTED)
    sample = fake.sample()
    assert sample.power.energy_joules is None
    assert sample.power.draw_watts is not None
    assert sample.reason("power.energy_joules").startswith("unsupported")


def test_energy_of_a_module_says_so(fake):
    fake.name(0, b"NVIDIA GH200 480GB\0")
    assert fake.sample().power.scope == "module"


@pytest.mark.parametrize("refused", [True, False])
def test_unified_memory_is_the_systems(fake, refused):
    """GB10: some drivers say NOT_SUPPORTED, others give a number; the system's own figures are shown for both."""
    fake.procfs.mkdir()
    (fake.procfs / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n")
    fake.name(0, b"NVIDIA GB10\0")
    fake.value("process/rows", 2)
    if refused:
        fake.code("nvmlDeviceGetMemoryInfo", c.NOT_SUPPORTED)
        fake.code("nvmlDeviceGetMemoryInfo_v2", c.NOT_SUPPORTED)
    sample = fake.sample()
    assert sample.memory[:3] == (1024000, 409600, 614400)
    assert sample.memory.unified is True
    assert sample.memory.shared_used_bytes == 2 * GIB
    assert sample.device.kind == "integrated"


def test_a_device_without_memory_information_is_unified_whatever_its_name(fake):
    fake.procfs.mkdir()
    (fake.procfs / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\n")
    fake.code("nvmlDeviceGetMemoryInfo", c.NOT_SUPPORTED)
    fake.code("nvmlDeviceGetMemoryInfo_v2", c.NOT_SUPPORTED)
    memory = fake.sample().memory
    assert (memory.total_bytes, memory.free_bytes, memory.unified) == (1024000, 102400, True)


# -- byte counters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", ["nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth"])
def test_where_the_link_is_unknown_a_counter_may_have_wrapped_any_number_of_times(fake, monkeypatch, unknown):
    """20 GB in a second were told as 2.8 GB."""
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    fake.code(unknown, c.NOT_SUPPORTED)
    source = fake.source()
    (device,) = source.devices()
    for total in (0, 20 * 10**9):
        fake.value("field/198", total % (1 << 32))
        sample = source.sample(device, ("fast",))
        now[0] += 10**9
    assert sample.pcie.rx_bytes_per_s is None
    assert "wrap more than once" in sample.reason("pcie.rx_bytes_per_s")


def test_pcie_rates_come_from_the_byte_counters(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    fake.value("nvmlDeviceGetMaxPcieLinkGeneration", 3)
    source = fake.source()
    (device,) = source.devices()
    fake.value("field/198", (1 << 32) - 1_000_000)
    first = source.sample(device, ("fast",))
    assert first.reason("pcie.rx_bytes_per_s") == "stale: a rate needs two samples"
    fake.value("field/198", 9_000_000)  # wrapped
    fake.value("field/197", 5_000_000)
    now[0] += 100_000_000
    second = source.sample(device, ("fast",))
    assert (second.pcie.rx_bytes_per_s, second.pcie.tx_bytes_per_s) == (100e6, 50e6)
    assert source.counter_period_s(device) == pytest.approx(0.8 * 2**32 / (0.985e9 * 16))


def test_a_counter_that_may_have_wrapped_twice_gives_no_rate(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    source = fake.source()
    (device,) = source.devices()
    source.sample(device, ("fast",))
    now[0] += 100_000_000  # 63 GB/s on this link: 6.3 GB, more than 32 bits
    assert "wrap more than once" in source.sample(device, ("fast",)).reason("pcie.rx_bytes_per_s")
    for _ in range(2):
        now[0] += 50_000_000
        source.sample(device, ("counters",))
    assert source.sample(device, ("fast",)).pcie.rx_bytes_per_s == 0


def test_64_bit_counters_need_no_extra_reads(fake):
    fake.value("type/197", 3)
    fake.value("type/198", 3)
    source = fake.source()
    (device,) = source.devices()
    source.sample(device, ("fast",))
    assert source.counter_period_s(device) is None


def test_without_byte_counters_the_slow_lane_asks_the_slow_call(fake):
    fake.code("field/197", c.NOT_SUPPORTED)
    fake.code("field/198", c.NOT_SUPPORTED)
    sample = fake.sample()
    assert (sample.pcie.rx_bytes_per_s, sample.pcie.tx_bytes_per_s) == (1e6, 1e6)
    assert fake.calls("nvmlDeviceGetPcieThroughput") == 2


@given(
    st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 10**9)), min_size=1, max_size=30),
    st.integers(0, 2**32 - 1),
)
def test_a_wrapping_counter_adds_up(steps, start):
    counter = ByteCounter()
    raw, now = start, 0
    counter.add(raw, 32, now, None)
    for step, elapsed in steps:
        raw, now = (raw + step) % 2**32, now + elapsed
        counter.add(raw, 32, now, None)
    rate, _ = counter.rate()
    assert rate == pytest.approx(sum(step for step, _ in steps) * 1e9 / now)


def test_nvlink_counts_links_and_bytes(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    fake.value("nvlink/total", 18)
    fake.value("nvlink/up", 17)
    fake.value("field/138", 1000)
    fake.value("field/139", 1000)
    fake.value("type/138", 3)
    fake.value("type/139", 3)
    source = fake.source()
    (device,) = source.devices()
    source.sample(device, EVERYTHING)
    fake.value("field/138", 2000)
    now[0] += 1_000_000_000
    sample = source.sample(device, EVERYTHING)
    assert (sample.links.nvlink_count, sample.links.nvlink_total) == (17, 18)
    assert (sample.links.tx_bytes_per_s, sample.links.rx_bytes_per_s) == (1024000, 0)


# -- processes -----------------------------------------------------------------------------------------------------


def test_processes_of_our_namespace_have_names(fake, monkeypatch):
    monkeypatch.setattr("gpusense.backends._host.sees_host_pids", lambda procfs: True)
    (fake.procfs / "4000").mkdir(parents=True)
    (fake.procfs / "4000" / "comm").write_text("python3\n")
    fake.value("process/rows", 2)
    first, second = fake.sample().processes
    assert (first.pid, first.name, first.visible) == (4000, "python3", True)
    assert (first.memory_used_bytes, first.gpu_percent) == (GIB, 55)
    assert (second.pid, second.name, second.visible) == (4001, None, False)


def test_pids_in_a_container_are_the_hosts_and_never_joined(fake, monkeypatch):
    monkeypatch.setattr("gpusense.backends._host.sees_host_pids", lambda procfs: False)
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
    assert nvml._host.sees_host_pids() in (True, False, None)
    assert nvml._host.process_name(os.getpid())
    total, available = nvml._host.meminfo()
    assert 0 < available <= total


# -- MIG and GPM ---------------------------------------------------------------------------------------------------


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


# -- Xid -----------------------------------------------------------------------------------------------------------


def wait_for(condition, seconds: float = 5.0) -> bool:
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


# -- devices that go away ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("code", "kind"), [(c.GPU_IS_LOST, None), (c.NOT_SUPPORTED, "integrated"), (0, "discrete")])
def test_a_device_without_memory_of_its_own_is_integrated_one_that_does_not_answer_is_not(fake, code, kind):
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
    assert source.sample(device._replace(uuid="GPU-other"), ("fast",)).state == "lost"


# -- sleep ---------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr("gpusense.backends._host.asleep", lambda *_: pytest.fail("asked"))
    assert source.sample(source.devices()[0], ("fast",)).state == "ok"


# -- one process, one library --------------------------------------------------------------------------------------


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
    monkeypatch.setattr("gpusense.backends.nvml_device._FIRST_PAUSE_S", 0.0)
    source = fake.source()
    (device,) = source.devices()
    states, stop = set(), threading.Event()

    def lane(name):
        while not stop.is_set():
            states.add(source.sample(device, (name,)).state)

    threads = [threading.Thread(target=lane, args=(name,)) for name in ("medium", "slow", "counters")]
    for thread in threads:
        thread.start()
    for turn in range(60):
        fake.code("nvmlDeviceGetUtilizationRates", c.GPU_IS_LOST if turn % 2 else 0)
        source._known()[device.uuid]._pause_s = 0.0
        states.add(source.sample(device, ("fast",)).state)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert states == {"ok", "lost"}
