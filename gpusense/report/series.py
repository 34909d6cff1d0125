"""What was sampled of devices, by the monitor and by hardware counters, as one series a device and value."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .._records.device_identity import device_text
from .._records.metrics import GpuMetrics
from ..analysis import counters
from ..analysis.sampled import sampled
from ..session import Session
from .tracks import group_name

#: Name, unit, how to read it from a sample of the monitor.
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


class Series(NamedTuple):
    """One value of one device over time."""

    device: str  # "GPU 0"; of a card that records cannot be of what it is called
    group: str  # what a trace calls it: "GPU 0 · NVIDIA H200"
    name: str
    unit: str
    points: Points  # (nanoseconds, value), in order of time


def device_series(session: Session, *, held: bool = False) -> Iterator[Series]:
    """What the monitor sampled, of the cards that the session worked on first; then what the hardware counted.

    ``held`` is for viewers that draw a value until the next one: all samples of counters, each from its start on, and
    NaN from where nothing is known. Else a point stands in the middle of its sample, and very many become averages.
    """
    known = set()
    for card in sorted(sampled(session), key=lambda card: not card.worked):
        group = card.text if card.number is None else group_name(session, ("cuda", card.number))
        for name, unit, read in SERIES:
            points = [(sample.time_ns, value) for sample in card.samples if (value := read(sample)) is not None]
            points = [(time, value) for time, value in points if math.isfinite(value)]
            if points:
                known.add((group, name))
                yield Series(card.text, group, name, unit, points)
    for device, name, unit, points in counters.series(session, held=held):
        called, group = device_text(session.devices, "cuda", device), group_name(session, ("cuda", device))
        yield Series(called, group, f"{name}, counted" if (group, name) in known else name, unit, points)
