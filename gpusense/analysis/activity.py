"""How much of a device worked in some time, as it counted itself: beside "busy", which says that something ran."""

from collections.abc import Sequence
from typing import NamedTuple

from ..session import Session
from .counters import LEAST_SAMPLES, shares_over
from .intervals import Interval
from .sampled import sampled


class Activity(NamedTuple):
    """Shares 0…1 of the whole time that was asked for; None is what was not counted."""

    sm: float | None = None  # multiprocessors with a warp resident
    tensor: float | None = None  # cycles in which the tensor pipe worked
    memory: float | None = None  # of the bandwidth
    bytes_per_s: float | None = None


def activity(session: Session, device: int | None, spans: Sequence[Interval]) -> Activity | None:
    """Over some time of a CUDA device, by counters or else by what the driver told the monitor; None without both."""
    return counted(session, device, spans) or _monitored(session, device, spans)


def counted(session: Session, device: int | None, spans: Sequence[Interval]) -> Activity | None:
    """By samples of counters alone; None where they do not say enough of these spans alone."""
    row = shares_over(session, device, spans) if device is not None else None
    if row is None:
        return None
    return Activity(
        _share(row.sm_active_percent), _share(row.tensor_percent), _share(row.dram_percent), row.dram_bytes_per_s
    )


def _monitored(session: Session, device: int | None, spans: Sequence[Interval]) -> Activity | None:
    """By the driver's averages, where the monitor sampled them."""
    shares = [
        sample.utilization.sm_active_percent
        for card in sampled(session)
        if card.number == device
        for sample in card.samples
        if sample.utilization.sm_active_percent is not None
        and any(start <= sample.time_ns <= end for start, end in spans)
    ]
    return Activity(sm=sum(shares) / len(shares) / 100) if len(shares) >= LEAST_SAMPLES else None


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
