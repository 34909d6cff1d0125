"""A monitor whose devices follow a script: the same numbers at the same moment, whoever asks."""

import math

from gpusense._records.metrics import (
    Clocks,
    GpuMetrics,
    Links,
    Memory,
    Pcie,
    Power,
    ProcessUsage,
    Thermal,
    Utilization,
)
from gpusense._records.records import DeviceInfo

SECOND = 1_000_000_000
GIB = 2**30


def device(index: int, name: str = "NVIDIA H100 80GB HBM3", **fields) -> DeviceInfo:
    address = f"0000:{0x1B + index:02x}:00.0"
    return DeviceInfo(index, name, "nvidia", "nvml", pci_bus_id=address, driver="550.54", clock_max_mhz=1980, **fields)


def sample(index: int = 0, time_ns: int = 0, busy: float | None = 77, **fields) -> GpuMetrics:
    values = {
        "device": device(index),
        "utilization": Utilization(busy, 39, sm_active_percent=61.5, tensor_percent=38),
        "memory": Memory(80 * GIB, (10 + 8 * index) * GIB, reserved_bytes=500 << 20),
        "thermal": Thermal(64, 70, 73, 87, 92, fan_percent=40),
        "power": Power(350, 340, 700, energy_joules=3.6e6),
        "clocks": Clocks(1755, 1755, 2619, throttle_reasons=("power_cap",), performance_state=0),
        "pcie": Pcie(5, 16, 5, 16, 1.2e9, 3e8),
        "links": Links(18, 4e9, 3e9),
        "processes": (ProcessUsage(1234, 9 * GIB, 61.0, "python", True),),
        **fields,
    }
    return GpuMetrics(time_ns=time_ns, monotonic_ns=time_ns, source="script", **values)


class ScriptedMonitor:
    """``latest`` and ``history`` as a running monitor has them, two samples a second, load as a slow sine."""

    problem = None

    def __init__(self, devices: int, clock) -> None:
        self._devices = devices
        self._clock = clock

    def latest(self):
        return tuple(self._at(index, self._clock()) for index in range(self._devices))

    def history(self, seconds, device=None):
        now = self._clock()
        times = range(now - int(seconds * SECOND), now + 1, SECOND // 2)
        return tuple(self._at(getattr(device, "index", device) or 0, time_ns) for time_ns in times)

    def _at(self, index, time_ns):
        return sample(index, time_ns, 50 + 45 * math.sin(time_ns / SECOND / 9 + index))
