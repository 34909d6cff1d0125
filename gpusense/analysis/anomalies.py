"""Calls that took unusually long among calls of the same operation and size."""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from .._records.records import Path
from ..session import Session
from .calls import Calls, calls, duration_ns, grouped

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
    groups: list[Calls] | None = None,
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
    found: list[Anomaly] = []
    for key, records, lengths in _comparable(calls(session) if groups is None else groups):
        if len(records) < MINIMUM_CALLS:
            continue
        centre, spread = (robust_spread if method == "robust" else sigma)(lengths[1:])
        if spread <= 0:
            continue
        floor = max(centre + minimum_ns, centre * (1 + minimum_effect), centre + limit * spread)
        long = [place for place, length in enumerate(lengths) if length >= floor and place]
        durations = tuple(lengths) if long else ()
        for place in long:
            record, length, near = records[place], lengths[place], _around(durations, place)
            value, device = (length - centre) / spread, getattr(record, "device", None)
            found.append(Anomaly(*key, device, record.start_ns, length, centre, value, record.path, near, len(records)))
    return sorted(found, key=lambda row: (-row.excess_ns, row.start_ns))


def _comparable(groups: list[Calls]) -> Iterator[tuple[tuple[str, str], list[Any], list[int]]]:
    """(kind and name, calls by their start, their lengths) of calls that are to be compared with each other."""
    kept = [group for group in groups if group.kind != "allocation" and _same_work(group)]
    compared = attrgetter("kind", "name", "backend", "device", "full_name", "grid", "block")
    for same in grouped(kept, compared).values():
        key = same[0].kind, same[0].name
        sized = "bytes" in same[0].records[0]._fields
        if len(same) == 1 and not sized:
            yield key, same[0].records, same[0].lengths
            continue
        by_size: dict[Any, list[Any]] = {}
        for record in (record for group in same for record in group.records):
            by_size.setdefault(record.bytes if sized else None, []).append(record)
        for records in by_size.values():
            records.sort(key=attrgetter("start_ns"))
            yield key, records, [duration_ns(record) for record in records]


def _same_work(group: Calls) -> bool:
    """Whether equal names mean equal work. Of wgpu's passes only those say so that have their pipeline's name and a
    known size: under one label of a program, or at one line of a library, very different things are done."""
    if group.backend != "wgpu" or group.kind != "kernel":
        return True
    sources = {(record.attributes or {}).get("label_source") for record in group.records}
    return group.grid is not None and sources == {"entry_point"}


def _around(durations: tuple[int, ...], place: int) -> tuple[int, ...]:
    if len(durations) <= MOST_SAMPLES:
        return durations
    first = min(max(place - MOST_SAMPLES // 2, 0), len(durations) - MOST_SAMPLES)
    return durations[first : first + MOST_SAMPLES]


def robust_spread(values: "Sequence[int]") -> tuple[float, float]:
    """Median, and the spread by which (x − median) / spread is the robust z."""
    ordered = sorted(values)
    centre = median(ordered)
    # Of values in order: the sort finds two runs that are in order already.
    deviations = [abs(value - centre) for value in ordered]
    mad = median(deviations)
    if mad > 0:
        return centre, mad / 0.6745
    return centre, 1.2533 * sum(deviations) / len(deviations)


def sigma(values: "Sequence[int]") -> tuple[float, float]:
    """Mean and standard deviation."""
    count, total = len(values), sum(values)
    variance = (sum(value * value for value in values) * count - total * total) / count**2
    return total / count, max(0.0, variance) ** 0.5


def median(values: "Iterable[float]") -> float:
    """The middle value; of an even number the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
