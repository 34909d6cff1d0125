"""What a sample costs on a driver that answers at once: the package's own share of a monitor's cost.

The scripted library of the tests stands in for the driver; what the real calls add stands in
``benchmarks/gpu/monitor_cost.py``. Budget: 0.1 ms CPU a fast sample with the driver.
"""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.devices import FakeNvml  # noqa: E402
from support.machine import find_compiler  # noqa: E402

from gpusense import testing  # noqa: E402
from gpusense._records.metrics import fill  # noqa: E402
from gpusense.monitor._sampler import SECOND, DeviceSampler  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is a Linux library")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("driver") / "built.so"
    source = ROOT / "tests" / "fakes" / "libnvidia_ml.c"
    flags = ["-shared", "-fPIC", "-O2", "-pthread"]
    subprocess.run([*compiler, *flags, "-o", str(library), str(source)], check=True, timeout=300)
    return library


@pytest.fixture
def fake(built, tmp_path, monkeypatch):
    made = FakeNvml(built, tmp_path)
    monkeypatch.setenv("GPUSENSE_LIBNVIDIA_ML", made.path)
    return made


LANES = [("fast", "lean"), ("fast",), ("fast", "gpm"), ("medium", "lean"), ("medium",), ("slow",), ("counters",)]


@pytest.mark.parametrize("lanes", LANES, ids="+".join)
def test_sample(benchmark, fake, lanes):
    source = fake.source()
    (device,) = source.devices()
    source.sample(device, lanes)
    benchmark(source.sample, device, lanes)


def test_tick_of_a_running_monitor(benchmark, fake):
    """A whole tick: sample, join with the slower lanes, into one history."""
    source = fake.source()
    clock = testing.ManualClock()
    sampler = DeviceSampler(source, source.devices()[0], clock, SECOND, SECOND)
    kept = []
    listener = type("L", (), {"interval_ns": 1, "gpm": False, "accept": lambda self, sample: kept.append(sample)})()
    sampler._listeners = {listener: 0}
    sampler.step_background()
    benchmark(sampler._tick, 0)


def test_joining_two_lanes(benchmark):
    device = testing.device()
    fast = testing.metrics(device, {"power.draw_watts": 1.0, "thermal.gpu_celsius": 50.0, "pcie.rx_bytes_per_s": 1.0})
    slower = testing.metrics(device, {"power.limit_watts": 700.0, "thermal.shutdown_celsius": 90.0, "pcie.width": 16})
    benchmark(fill, fast, slower)
