"""What the monitor sampled, as one series a device and metric; only values that are known."""

import math
from collections import Counter
from collections.abc import Callable, Iterator

from .._records.device_identity import key
from .._records.metrics import GpuMetrics
from .._records.records import DeviceInfo
from .._runtime.text import one_line
from ..session import Session

#: Name, unit, how to read it from a sample.
SERIES: tuple[tuple[str, str, Callable[[GpuMetrics], "float | None"]], ...] = (
    ("GPU utilization", "%", lambda sample: sample.utilization.gpu_percent),
    ("SM active", "%", lambda sample: sample.utilization.sm_active_percent),
    ("Memory used", "B", lambda sample: sample.memory.used_bytes),
    ("Power", "W", lambda sample: sample.power.draw_watts),
    ("SM clock", "MHz", lambda sample: sample.clocks.sm_mhz),
    ("Temperature", "°C", lambda sample: sample.thermal.gpu_celsius),
    ("PCIe to GPU", "B/s", lambda sample: sample.pcie.rx_bytes_per_s),
    ("PCIe to host", "B/s", lambda sample: sample.pcie.tx_bytes_per_s),
)

Points = list[tuple[int, float]]


def devices_seen(session: Session) -> "tuple[DeviceInfo, ...]":
    """The devices of the session; where it lists none, those that were sampled."""
    return session.devices or tuple({key(sample.device): sample.device for sample in session.metrics}.values())


def device_series(session: Session) -> Iterator[tuple[tuple[str, "int | None"], str, str, Points]]:
    """(backend and number of the device as records name it, metric, unit, points in order of time)."""
    by_device: dict[tuple[int, str], list[GpuMetrics]] = {}
    for sample in session.metrics:
        by_device.setdefault(key(sample.device), []).append(sample)
    shared = Counter(index for index, _ in by_device)
    for (index, own), samples in sorted(by_device.items()):
        samples.sort(key=lambda sample: sample.time_ns)
        device = samples[0].device
        place = ("cuda", device.cuda_index if device.cuda_index is not None else index)
        of = f" of {one_line(own or device.name)}" if shared[index] > 1 else ""
        for name, unit, read in SERIES:
            points = [(sample.time_ns, value) for sample in samples if (value := read(sample)) is not None]
            points = [(time, value) for time, value in points if math.isfinite(value)]
            if points:
                yield place, name + of, unit, points
