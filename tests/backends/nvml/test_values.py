"""What NVML's values become, against a scripted library: sentinels, fall-backs, counters and rates."""

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import EVERYTHING

from gpusense._capi import nvml as c
from gpusense.backends.nvml.library import as_text
from gpusense.backends.nvml.reader import ByteCounter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is a Linux library")


GIB = 1 << 30


@pytest.mark.parametrize(
    ("what", "value", "field"),
    [
        ("utilization/gpu", 655, "utilization.gpu_percent"),
        ("memory/total", -1, "memory.total_bytes"),
        ("memory/used", -1, "memory.used_bytes"),
        ("nvmlDeviceGetTemperatureV", 0x7FFFFFFF, "thermal.gpu_celsius"),
        ("nvmlDeviceGetTemperatureV", 0xFFFFFFFF, "thermal.gpu_celsius"),
        ("field/82", 0xFFFFFFFF, "thermal.memory_celsius"),
        ("nvmlDeviceGetPcieReplayCounter", 0xFFFFFFFF, "pcie.replay_count"),
        ("remapped", 0xFFFFFFFF, "health.remapped_rows"),
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


def test_a_clock_that_stands_still_is_not_a_measured_zero(fake):
    fake.value("nvmlDeviceGetClockInfo/1", 0)
    sample = fake.sample()
    assert (sample.clocks.sm_mhz, sample.clocks.graphics_mhz) == (None, 1755)
    assert sample.reason("clocks.sm_mhz") == "sleeping: the clock stands still"


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


def test_a_device_of_an_integrated_kind_is_unified_whatever_its_name(fake):
    fake.value("capability", 121)
    fake.procfs.mkdir()
    (fake.procfs / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\n")
    fake.code("nvmlDeviceGetMemoryInfo", c.NOT_SUPPORTED)
    fake.code("nvmlDeviceGetMemoryInfo_v2", c.NOT_SUPPORTED)
    memory = fake.sample().memory
    assert (memory.total_bytes, memory.free_bytes, memory.unified) == (1024000, 102400, True)


@pytest.mark.parametrize("answered_before", [True, False])
def test_a_refusal_never_makes_the_hosts_memory_that_of_a_device_with_its_own(fake, monkeypatch, answered_before):
    """An H100 whose memory was refused once had the host's, for the life of the process."""
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    fake.procfs.mkdir()
    (fake.procfs / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\n")
    source = fake.source()
    (device,) = source.devices()
    if answered_before:
        assert source.sample(device, ("fast",)).memory.total_bytes == 85520809984
    fake.code("nvmlDeviceGetMemoryInfo", c.NOT_SUPPORTED)
    fake.code("nvmlDeviceGetMemoryInfo_v2", c.NOT_SUPPORTED)
    for _ in range(600):
        now[0] += 10**9
        sample = source.sample(device, ("fast",))
        assert sample.memory.total_bytes is None
        assert sample.memory.unified is not True
    assert sample.reason("memory.total_bytes").startswith("unsupported: nvmlDeviceGetMemoryInfo")


def test_what_was_refused_is_asked_again_after_growing_pauses_and_may_answer(fake, monkeypatch):
    """While MIG is on, or a driver starts, much is refused that is answered later."""
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    source = fake.source()
    (device,) = source.devices()
    fake.code("nvmlDeviceGetUtilizationRates", c.NOT_SUPPORTED)
    for _ in range(6000):  # ten minutes
        now[0] += 10**8
        sample = source.sample(device, ("fast",))
    assert 8 <= fake.calls("nvmlDeviceGetUtilizationRates") <= 11
    assert sample.reason("utilization.gpu_percent").startswith("unsupported: nvmlDeviceGetUtilizationRates")
    fake.code("nvmlDeviceGetUtilizationRates", 0)
    now[0] += 256 * 10**9
    assert source.sample(device, ("fast",)).utilization.gpu_percent == 87
    fake.code("nvmlDeviceGetUtilizationRates", c.NOT_SUPPORTED)  # a new refusal, after an answer, is a first one
    assert source.sample(device, ("fast",)).utilization.gpu_percent is None
    fake.code("nvmlDeviceGetUtilizationRates", 0)
    now[0] += 10**9
    assert source.sample(device, ("fast",)).utilization.gpu_percent == 87


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
