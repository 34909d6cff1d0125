"""Calls that took unusually long among calls of the same operation and size."""

from typing import Any, NamedTuple

from .._records import Path
from ..session import Session
from .operation import OPERATIONS, duration_ns

#: Fewer calls than this say nothing about what is usual.
MINIMUM_CALLS = 8
#: Beyond so many calls an anomaly holds the nearest: a million calls have thousands of anomalies.
MOST_SAMPLES = 200


class Anomaly(NamedTuple):
    """One unusual call beside the calls it was compared with."""

    kind: str
    name: str
    device: int | None
    start_ns: int
    duration_ns: int
    typical_ns: float  # median (robust) or mean (sigma)
    score: float  # robust z, or standard deviations
    path: Path
    samples: tuple[int, ...]  # durations of compared calls in order of start: all, or of many those around this one
    calls: int = 0  # how many were compared

    @property
    def excess_ns(self) -> int:
        return self.duration_ns - round(self.typical_ns)


def anomalies(
    session: Session,
    *,
    method: str = "robust",
    score: float | None = None,
    minimum_effect: float = 0.2,
    minimum_ns: int = 10_000,
) -> list[Anomaly]:
    """Slow calls, what they cost most first.

    ``method="robust"``: 0.6745·(x − median) / MAD ≥ 3.5 (Iglewicz and Hoaglin 1993); where more than half the calls
    took the same time, (x − median) / (1.2533 · mean absolute deviation). ``method="sigma"``: (x − mean) / standard
    deviation ≥ 2. Either way a call counts only if it is ``minimum_effect`` (as a share) and ``minimum_ns`` above
    what is typical. Calls are compared where name, device, launch size and bytes agree; the first call is left to
    :func:`~.phases.first_calls`.
    """
    if method not in ("robust", "sigma"):
        raise ValueError(f"method must be 'robust' or 'sigma', not {method!r}")
    limit = score if score is not None else (3.5 if method == "robust" else 2.0)
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for record in session.records:
        kind = OPERATIONS.get(type(record))
        if kind not in (None, "allocation"):
            groups.setdefault(_alike(kind, record), []).append(record)
    found: list[Anomaly] = []
    for key, records in groups.items():
        if len(records) < MINIMUM_CALLS:
            continue
        records.sort(key=lambda record: record.start_ns)
        durations = tuple(duration_ns(record) for record in records)
        centre, spread = (robust_spread if method == "robust" else _sigma)(durations[1:])
        if spread <= 0:
            continue
        floor = max(centre + minimum_ns, centre * (1 + minimum_effect), centre + limit * spread)
        for place, (record, length) in enumerate(zip(records[1:], durations[1:], strict=True), 1):
            if length >= floor:
                device = getattr(record, "device", None)
                value = (length - centre) / spread
                near = _around(durations, place)
                found.append(
                    Anomaly(
                        key[0], key[1], device, record.start_ns, length, centre, value, record.path, near, len(records)
                    )
                )
    return sorted(found, key=lambda row: -row.excess_ns)


def _around(durations: tuple[int, ...], place: int) -> tuple[int, ...]:
    if len(durations) <= MOST_SAMPLES:
        return durations
    first = min(max(place - MOST_SAMPLES // 2, 0), len(durations) - MOST_SAMPLES)
    return durations[first : first + MOST_SAMPLES]


def _alike(kind: Any, record: Any) -> tuple[Any, ...]:
    size = (getattr(record, "grid", None), getattr(record, "block", None), getattr(record, "bytes", None))
    return (
        kind,
        record.name,
        record.backend,
        getattr(record, "device", None),
        getattr(record, "full_name", None),
        size,
    )


def robust_spread(values: "tuple[int, ...]") -> tuple[float, float]:
    """Median, and the spread by which (x − median) / spread is the robust z."""
    centre = median(values)
    deviations = [abs(value - centre) for value in values]
    mad = median(deviations)
    if mad > 0:
        return centre, mad / 0.6745
    return centre, 1.2533 * sum(deviations) / len(deviations)


def _sigma(values: "tuple[int, ...]") -> tuple[float, float]:
    count, total = len(values), sum(values)
    variance = (sum(value * value for value in values) * count - total * total) / count**2
    return total / count, max(0.0, variance) ** 0.5


def median(values: "tuple[float, ...] | list[float] | tuple[int, ...] | list[int]") -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
