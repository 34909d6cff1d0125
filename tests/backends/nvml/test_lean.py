"""What a running monitor asks of NVML: dear values rarely, each recognisable as old, and never a wrong rate."""

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import EVERYTHING, FakeNvml

from gpusense import testing
from gpusense._capi import nvml as c
from gpusense.backends.nvml.reader import ByteCounter
from gpusense.monitor._sampler import SECOND, DeviceSampler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is a Linux library")

RX, TX = "field/198", "field/197"


class Listener:
    interval_ns, process_ns = SECOND // 10, 10 * SECOND
    lanes_ns = SECOND, 10 * SECOND
    gpm = continuous = False

    def __init__(self, **settings):
        vars(self).update(settings)
        self.samples = []

    def accept(self, sample):
        self.samples.append(sample)


class Bench:
    """The loop of one fake device, driven by hand: both lanes at each of their deadlines."""

    def __init__(self, fake: FakeNvml, clock: testing.ManualClock) -> None:
        self.fake, self.clock, self.source = fake, clock, fake.source()
        (self.device,) = self.source.devices()
        self.source._device(self.device).watchable()  # as a monitor's start does

    def start(self, **settings) -> Listener:
        listener = Listener(**settings)
        self.sampler = DeviceSampler(self.source, self.device, self.clock, SECOND, 10 * SECOND)
        self.sampler._listeners = {listener: 0}
        self.sampler._set_period()
        return listener

    def run(self, seconds: float, traffic=lambda now: 0) -> None:
        """``traffic(ns)``: the bytes received until then."""
        end = self.clock.monotonic_ns() + int(seconds * SECOND)
        while (now := self.clock.monotonic_ns()) <= end:
            self.fake.value(RX, int(traffic(now)) % (1 << 32))
            wait = min(self.sampler.step_background(), self.sampler.step())
            self.clock.advance(max(wait, 1) / SECOND)


@pytest.fixture
def fake(build_library, tmp_path, monkeypatch):
    made = FakeNvml(build_library("libnvidia_ml.c", "libnvidia-ml.so.1"), tmp_path)
    monkeypatch.setenv("GPUSENSE_LIBNVIDIA_ML", made.path)
    return made


@pytest.fixture
def bench(fake, monkeypatch):
    clock = testing.ManualClock()
    clock.advance(1)
    monkeypatch.setattr(time, "monotonic_ns", clock.monotonic_ns)
    return Bench(fake, clock)


# -- PCIe ----------------------------------------------------------------------------------------------------------


def test_rates_are_sampled_over_a_short_stretch_and_repeated_recognisably(bench):
    listener = bench.start()
    bench.run(4.5, lambda now: now * 50)  # 50 GB/s: the counter wraps every 86 ms
    rates = [sample.pcie for sample in listener.samples if sample.pcie.rx_bytes_per_s is not None]
    assert len(rates) >= 44
    assert {round(rate.rx_bytes_per_s) for rate in rates} == {50 * SECOND}
    assert {rate.rate_window_s for rate in rates} == {0.025}
    readings = {rate.rate_monotonic_ns for rate in rates}
    assert [(when - min(readings)) / SECOND for when in sorted(readings)] == [0, 2, 4]
    assert bench.fake.calls(RX) == 6  # a pair for each


def test_a_link_too_slow_to_wrap_is_read_once_a_look_and_measured_throughout(bench):
    bench.fake.value("nvmlDeviceGetMaxPcieLinkGeneration", 1)
    bench.fake.value("nvmlDeviceGetMaxPcieLinkWidth", 4)
    bench.source.close()
    bench.source._device(bench.device).watchable()
    listener = bench.start()
    bench.run(6.5, lambda now: now // 2 if now < 4 * SECOND else 2 * SECOND)
    rate = listener.samples[-1].pcie
    assert (rate.rx_bytes_per_s, rate.rate_window_s) == (0, 2)
    assert {sample.pcie.rx_bytes_per_s for sample in listener.samples} >= {5e8, 0}
    assert bench.fake.calls(RX) == 4


@pytest.mark.parametrize("kind", [2, 3])
def test_64_bit_counters_are_measured_throughout(bench, kind):
    bench.fake.value("type/197", kind)
    bench.fake.value("type/198", kind)
    listener = bench.start()
    bench.run(6.5, lambda now: now // 4)
    assert (listener.samples[-1].pcie.rx_bytes_per_s, listener.samples[-1].pcie.rate_window_s) == (25e7, 2)
    assert bench.fake.calls(RX) == 5  # the first look began with a reading, before the type was known


def test_continuous_rates_are_exact_over_every_interval(bench):
    listener = bench.start(continuous=True)
    bench.run(2, lambda now: now * 50)
    rates = [sample.pcie for sample in listener.samples[2:]]
    assert {round(rate.rx_bytes_per_s) for rate in rates} == {50 * SECOND}
    assert {rate.rate_window_s for rate in rates} == {0.1}
    assert len({rate.rate_monotonic_ns for rate in rates}) == len(rates)


def test_gpm_gives_the_rates_and_the_counters_rest(bench):
    listener = bench.start(gpm=True)
    bench.run(1)
    calls = bench.fake.calls(RX)
    bench.run(5)
    assert bench.fake.calls(RX) == calls
    pcie = listener.samples[-1].pcie
    assert (pcie.rx_bytes_per_s, pcie.tx_bytes_per_s) == (31 << 20, 30 << 20)
    assert pcie.rate_window_s == pytest.approx(0.1)
    assert bench.source.counter_period_s(bench.device) is None


def test_without_byte_counters_no_stretch_is_begun(bench):
    bench.fake.code(TX, c.NOT_SUPPORTED)
    bench.fake.code(RX, c.NOT_SUPPORTED)
    listener = bench.start()
    bench.run(25)
    assert bench.fake.calls(RX) == 5  # again after 1, 2, 4 and 8 seconds
    pcie = listener.samples[-1].pcie
    assert (pcie.rx_bytes_per_s, pcie.rate_window_s) == (1e6, 0.02)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 300)), min_size=1, max_size=40),
    st.integers(0, 2**32 - 1),
)
def test_a_rate_is_true_over_its_window_or_absent(steps, start):
    """``steps``: bytes a nanosecond, at most what the link carries, for so many milliseconds."""
    counter, now, total, history = ByteCounter(), 0, start, {0: start}
    counter.add(start % 2**32, 32, 0, 63e9)
    for speed, milliseconds in steps:
        now, total = now + milliseconds * 1_000_000, total + speed * milliseconds * 1_000_000
        history[now] = total
        counter.add(total % 2**32, 32, now, 63e9)
    rate, why = counter.rate()
    if rate is None:
        assert "wrap more than once" in why
        assert steps[-1][1] > 68
    else:
        window_ns = round(counter.window_s * SECOND)
        assert rate == pytest.approx((total - history[now - window_ns]) * SECOND / window_ns)


# -- NVLink --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("fast",), ("fast", "lean"), ("fast", "lean", "gpm", "pcie"), ("counters",)])
def test_the_fast_lane_never_asks_the_nvlink_counters(bench, words):
    asked = [f"field/{field}" for field in (138, 139, 140, 141)]
    for name in asked:
        bench.fake.value(name, 1000)
    for _ in range(3):
        bench.source.sample(bench.device, words)
        bench.clock.advance(0.1)
    assert [bench.fake.calls(name) for name in asked] == [0, 0, 0, 0]
    bench.source.sample(bench.device, ("slow",))
    assert [bench.fake.calls(name) for name in asked] == [1, 1, 0, 0]  # they are seen where they are asked


def test_nvlink_rates_are_means_between_two_slow_passes_and_stand_until_the_next(bench):
    for field in (138, 139):
        bench.fake.value(f"field/{field}", 1000)
        bench.fake.value(f"type/{field}", 3)
    listener = bench.start()
    bench.run(9.5)
    assert listener.samples[-1].links.tx_bytes_per_s is None
    assert listener.samples[-1].reason("links.tx_bytes_per_s") == "stale: a rate needs two samples"
    bench.fake.value("field/138", 1000 + 10_000_000)
    begun = len(listener.samples)
    bench.run(8)
    rates = [sample.links for sample in listener.samples[begun + 10 :]]
    assert {(rate.tx_bytes_per_s, rate.rx_bytes_per_s) for rate in rates} == {(1_024_000_000, 0)}
    assert bench.fake.calls("field/138") == 2


# -- what else is dear ---------------------------------------------------------------------------------------------


def test_one_sample_on_request_reads_everything_anew(bench):
    bench.fake.value("process/rows", 1)
    bench.fake.value("nvlink/total", 1)
    for _ in range(3):
        bench.source.sample(bench.device, EVERYTHING)
    for name in (
        "ComputeRunningProcesses_v3",
        "EnforcedPowerLimit",
        "CurrPcieLinkWidth",
        "TotalEnergyConsumption",
        "MarginTemperature",
        "MigMode",
        "ProcessUtilization",
    ):
        assert bench.fake.calls(f"nvmlDeviceGet{name}") == 3, name
    assert bench.fake.calls("nvmlDeviceGetNvLinkState") == 3 * 2  # one link and the end of the numbering
    assert bench.fake.calls(RX) == 3


def test_processes_are_listed_at_their_own_interval_and_stand_in_between(bench):
    bench.fake.value("process/rows", 2)
    listener = bench.start(process_ns=4 * SECOND)
    bench.run(9.5)
    assert bench.fake.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 3
    assert all(len(sample.processes) == 2 for sample in listener.samples[1:])


def test_what_somebody_sets_is_read_every_five_seconds(bench):
    listener = bench.start()
    bench.run(4)
    bench.fake.value("nvmlDeviceGetEnforcedPowerLimit", 300_000)
    assert bench.fake.calls("nvmlDeviceGetEnforcedPowerLimit") == 1
    bench.run(2.5)
    assert [sample.power.limit_watts for sample in (listener.samples[1], listener.samples[-1])] == [700, 300]
    assert listener.samples[-1].reason("instances") == "unsupported: MIG is off"
    assert bench.fake.calls("nvmlDeviceGetTemperatureThreshold") == 3


def test_what_costs_a_millisecond_is_read_every_ten_seconds_and_stands_in_between(bench):
    bench.fake.value("nvlink/total", 2)
    bench.fake.value("nvlink/up", 2)
    bench.fake.value("process/rows", 2)
    listener = bench.start(process_ns=2 * SECOND)
    bench.run(19.5)
    dear = ("MarginTemperature", "MigMode", "ProcessUtilization")
    assert {name: bench.fake.calls(f"nvmlDeviceGet{name}") for name in dear} == dict.fromkeys(dear, 2)
    assert bench.fake.calls("nvmlDeviceGetNvLinkState") == 2 * 3  # two links and the end of the numbering
    assert bench.fake.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 10
    for sample in listener.samples[1:]:
        assert (sample.thermal.margin_celsius, sample.links.nvlink_count) == (35, 2)
        assert sample.reason("instances") == "unsupported: MIG is off"
    shares = [sample.processes[0].gpu_percent for sample in listener.samples[1:99]]
    assert set(shares) == {55}  # through five listings


def test_mig_instances_are_read_every_second(bench):
    bench.fake.value("mig/mode", 1)
    bench.start()
    bench.run(3.5)
    assert bench.fake.calls("nvmlDeviceGetMaxMigDeviceCount") == 4


def test_a_minute_makes_few_dear_calls(bench):
    """Counts, not times: on an H100 these are all the calls that cost over 50 µs."""
    bench.start()
    bench.run(59.5)
    assert bench.fake.calls("nvmlDeviceGetUtilizationRates") == 596
    dear = ("TotalEnergyConsumption", "RemappedRows", "ComputeRunningProcesses_v3", "ProcessUtilization")
    assert {name: bench.fake.calls(f"nvmlDeviceGet{name}") for name in dear} == dict.fromkeys(dear, 6)
    assert bench.fake.calls(RX) == 60
    assert bench.fake.calls("nvmlDeviceGetPcieThroughput") == 0


def test_no_rate_reaches_back_before_a_gap(bench):
    """A 32-bit counter that began anew while the machine slept gives any number."""
    listener = bench.start()
    bench.run(10, lambda now: now)  # 1 GB/s
    assert listener.samples[-1].pcie.rx_bytes_per_s == pytest.approx(1e9)
    bench.clock.suspend(3600)
    begun = len(listener.samples)
    bench.run(0.5, lambda now: 7)
    rates = [sample.pcie.rx_bytes_per_s for sample in listener.samples[begun:]]
    assert set(rates) <= {None, 0.0}
    assert rates[-1] == 0.0


def test_what_a_device_said_before_it_slept_is_not_repeated(fake, monkeypatch):
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    fake.pci("0000:1b:00.0")
    source = fake.source()
    (device,) = source.devices()
    lanes = ("medium", "lean", "pcie")
    for total in (0, 25_000_000):
        fake.value(RX, total)
        sample = source.sample(device, lanes)
        now[0] += 25_000_000
    assert sample.pcie.rx_bytes_per_s == pytest.approx(1e9)
    fake.pci("0000:1b:00.0", status="suspended")
    assert source.sample(device, ("medium", "lean")).state == "sleeping"
    fake.pci("0000:1b:00.0")
    now[0] += 10**12
    sample = source.sample(device, ("medium", "lean"))
    assert sample.pcie.rx_bytes_per_s is None
    assert sample.reason("pcie.rx_bytes_per_s").startswith("stale")


def test_what_a_lost_device_said_is_not_repeated(bench):
    listener = bench.start()
    bench.run(2)
    bench.fake.value("nvmlDeviceGetEnforcedPowerLimit", 300_000)
    bench.fake.code("nvmlDeviceGetUtilizationRates", c.GPU_IS_LOST)
    bench.run(0.5)
    bench.fake.code("nvmlDeviceGetUtilizationRates", 0)
    bench.run(2)
    assert listener.samples[-1].power.limit_watts == 300


def test_a_call_that_fails_is_absent_though_the_memory_it_writes_reads_the_same(fake):
    """Performance state 0 and no answer are the same four bytes."""
    source = fake.source()
    (device,) = source.devices()
    for _ in range(3):
        assert source.sample(device, ("fast", "lean")).clocks.performance_state == 0
    fake.code("nvmlDeviceGetPerformanceState", c.TIMEOUT)
    sample = source.sample(device, ("fast", "lean"))
    assert sample.clocks.performance_state is None
    assert sample.reason("clocks.performance_state").startswith("stale")


def test_the_same_impossible_answer_is_counted_every_time(fake):
    fake.value("utilization/gpu", 655)
    source = fake.source()
    (device,) = source.devices()
    counts = [source.sample(device, ("fast", "lean")).out_of_range for _ in range(4)]
    assert counts == [1, 2, 3, 4]
    fake.value("utilization/gpu", 50)
    sample = source.sample(device, ("fast", "lean"))
    assert (sample.utilization.gpu_percent, sample.reason("utilization.gpu_percent")) == (50, None)


# -- sleep ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "asked"),
    [("Disabled by default", False), ("Not supported", False), ("Enabled (fine-grained)", True), ("?", True)],
)
def test_a_board_its_driver_never_powers_down_is_not_asked_each_time(fake, monkeypatch, told, asked):
    """power/control is "auto" there too: distributions set it on every NVIDIA device."""
    fake.pci("0000:1b:00.0", control="auto")
    folder = fake.procfs / "driver" / "nvidia" / "gpus" / "0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "power").write_text(f"Runtime D3 status:          {told}\nVideo Memory:               Active\n")
    source = fake.source()
    questions = []
    monkeypatch.setattr("gpusense.backends.nvml.device.asleep", lambda *_: questions.append(1))
    assert source.sample(source.devices()[0], ("fast",)).state == "ok"
    assert bool(questions) is asked
