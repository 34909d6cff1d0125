"""Every metric of a real NVIDIA device against nvidia-smi at the same moment."""

import shutil
import subprocess
import time

import pytest

from gpusense import monitor
from gpusense._records.metrics import GROUPS
from gpusense.backends.nvml import source as nvml

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
if shutil.which("nvidia-smi") is None or not nvml.open():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def source():
    return nvml.open().metrics


@pytest.fixture(scope="module")
def device(source):
    return source.devices()[0]


def smi(device, *fields: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", device.uuid]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip().split(", ")


def both(source, device, field: str, get):
    """(ours, theirs) of one field, ours read around theirs: a value that moves may be either reading or between."""
    before = get(source.sample(device, ("fast", "medium", "slow")))
    (theirs,) = smi(device, field)
    after = get(source.sample(device, ("fast", "medium", "slow")))
    return (before, after), theirs


STEADY = {
    "memory.total": lambda m: m.memory.total_bytes // 2**20,
    "enforced.power.limit": lambda m: m.power.limit_watts,
    "pcie.link.gen.max": lambda m: m.pcie.max_generation,
    "pcie.link.width.max": lambda m: m.pcie.max_width,
    "ecc.errors.corrected.volatile.total": lambda m: m.health.ecc_corrected,
    "ecc.errors.uncorrected.volatile.total": lambda m: m.health.ecc_uncorrected,
    "ecc.errors.corrected.aggregate.total": lambda m: m.health.ecc_corrected_lifetime,
    "ecc.errors.uncorrected.aggregate.total": lambda m: m.health.ecc_uncorrected_lifetime,
    "fan.speed": lambda m: m.thermal.fan_percent,
}

#: field → (ours, how far apart two readings of a moment may lie)
MOVING = {
    "temperature.gpu": (lambda m: m.thermal.gpu_celsius, 3),
    "temperature.memory": (lambda m: m.thermal.memory_celsius, 3),
    "power.draw.instant": (lambda m: m.power.draw_watts, 40),
    "power.draw.average": (lambda m: m.power.average_watts, 40),
    "utilization.gpu": (lambda m: m.utilization.gpu_percent, 30),
    "utilization.memory": (lambda m: m.utilization.memory_controller_percent, 30),
    "memory.used": (lambda m: m.memory.used_bytes / 2**20, 64),
    "memory.free": (lambda m: m.memory.free_bytes / 2**20, 64),
    "clocks.gr": (lambda m: m.clocks.graphics_mhz, 400),
    "clocks.sm": (lambda m: m.clocks.sm_mhz, 400),
    "clocks.mem": (lambda m: m.clocks.memory_mhz, 100),
    "clocks.video": (lambda m: m.clocks.video_mhz, 400),
    "pcie.link.gen.current": (lambda m: m.pcie.generation, 4),
    "pcie.link.width.current": (lambda m: m.pcie.width, 0),
}


def is_absent(theirs: str) -> bool:
    return theirs.strip("[]").startswith(("N/A", "Not Supported", "Unknown", "GPU Requires"))


@pytest.mark.parametrize("field", STEADY)
def test_what_does_not_move_is_equal(source, device, field):
    (ours, _), theirs = both(source, device, field, STEADY[field])
    if is_absent(theirs):
        assert ours is None
    else:
        assert ours == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize("field", MOVING)
def test_what_moves_agrees(source, device, field):
    get, slack = MOVING[field]
    ours, theirs = both(source, device, field, lambda m: _quiet(get, m))
    if is_absent(theirs):
        assert ours == (None, None)
    else:
        assert min(ours) - slack <= float(theirs) <= max(ours) + slack


def _quiet(get, sample):
    try:
        return get(sample)
    except TypeError:  # arithmetic on None
        return None


def test_identity(source, device):
    uuid, bus, name, driver, capability = smi(device, "uuid", "pci.bus_id", "name", "driver_version", "compute_cap")
    assert (device.uuid, device.name, device.driver) == (uuid, name, driver)
    assert bus.lower().endswith(device.pci_bus_id)
    assert device.compute_capability == tuple(map(int, capability.split(".")))


def test_every_absence_has_a_reason(source, device):
    sample = source.sample(device, ("fast", "medium", "slow"))
    assert sample.state == "ok"
    assert sample.out_of_range == 0
    for group, empty in GROUPS.items():
        for field in empty._fields:
            if getattr(getattr(sample, group), field) is None:
                assert sample.reason(f"{group}.{field}"), field


def test_a_monitor_holds_its_period_and_its_budget(device):
    with monitor.start_background(interval=0.1) as running:
        time.sleep(3)
        stats = running.stats()
        assert running.latest()[0].power.draw_watts > 0
    assert stats.samples >= 25
    assert stats.skipped <= 3


def test_our_own_memory_is_seen():
    torch = pytest.importorskip("torch")
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    (mine, *_) = monitor.own_usage()
    if mine.memory_used_bytes is None:
        assert mine.reason.startswith(("denied", "unsupported"))  # a container: the pids are the host's
    else:
        assert mine.memory_used_bytes >= held.numel() or mine.memory_used_bytes == 0


def test_gpm_under_load(source, device):
    torch = pytest.importorskip("torch")
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    source.sample(device, ("fast", "gpm"))
    end = time.monotonic() + 1
    while time.monotonic() < end:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()
    sample = source.sample(device, ("fast", "gpm"))
    why = sample.reason("utilization.sm_active_percent")
    if why is None:
        assert sample.utilization.sm_active_percent > 50
        assert sample.utilization.tensor_percent > 10
    else:
        assert why.startswith(("unsupported", "denied"))


@pytest.mark.parametrize(
    ("settings", "seconds"), [({}, 5), ({"pcie": "continuous"}, 2), ({"gpm": True}, 2)], ids=["sampled", "exact", "gpm"]
)
def test_pcie_rate_of_a_known_copy(settings, seconds):
    torch = pytest.importorskip("torch")
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    card = torch.empty_like(host, device="cuda")
    with monitor.start_background(interval=0.1, **settings) as running:
        moved, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            card.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            moved += host.numel()
        rate = moved / (time.perf_counter() - start)
        pcie = running.latest()[0].pcie
    if pcie.rx_bytes_per_s is not None:
        assert pcie.rx_bytes_per_s == pytest.approx(rate, rel=0.25)
        assert 0 < pcie.rate_window_s <= 2.5
