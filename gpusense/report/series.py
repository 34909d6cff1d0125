"""What the monitor sampled, as one series a card and metric; only values that are known."""

import math
from collections.abc import Callable, Iterator

from .._records.metrics import GpuMetrics
from ..analysis.sampled import SampledCard, sampled
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


def device_series(session: Session) -> Iterator[tuple[SampledCard, str, str, Points]]:
    """(card, metric, unit, points in order of time); the cards that the session worked on first."""
    for card in sorted(sampled(session), key=lambda card: not card.worked):
        for name, unit, read in SERIES:
            points = [(sample.time_ns, value) for sample in card.samples if (value := read(sample)) is not None]
            points = [(time, value) for time, value in points if math.isfinite(value)]
            if points:
                yield card, name, unit, points
