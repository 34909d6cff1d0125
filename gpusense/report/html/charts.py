"""Device metrics and memory over time, thinned to what a chart can show: highest and lowest of every bucket stay.

Points come in runs. Between two runs nothing is known, and nothing is drawn.
"""

from itertools import accumulate, pairwise
from typing import Any

from ..._records.device_identity import device_text
from ..._runtime.text import one_line
from ...analysis.memory import place_of
from ...session import Session
from ..series import Points, device_series

_POINTS = 1_200
#: So many times the usual pause between two samples is a gap.
_PAUSE = 4
#: Of these units 0 is no more special than another number.
_WITHOUT_ZERO = ("°C",)


def charts(session: Session, start_ns: int) -> list[dict[str, Any]]:
    """Charts with at least two points, not all zero, by device."""
    found = []
    for one in device_series(session):
        if len(one.points) >= 2 and any(value for _, value in one.points):
            shifted = [(time - start_ns, value) for time, value in one.points]
            found.append(_chart(one.device, one.name, one.unit, _runs(shifted)))
    return found + _allocated(session, start_ns)


def _runs(points: Points) -> list[Points]:
    """The points, parted where for far longer than usual the value was not known."""
    pauses = sorted(after - before for (before, _), (after, _) in pairwise(points))
    most = _PAUSE * pauses[len(pauses) // 2]
    runs = [points[:1]]
    for (before, _), point in pairwise(points):
        if point[0] - before > most:
            runs.append([])
        runs[-1].append(point)
    return runs


def _allocated(session: Session, start_ns: int) -> list[dict[str, Any]]:
    live: dict[int | None, dict[Any, int]] = {}
    place_in = place_of(session)
    points: dict[int | None, list[tuple[int, float]]] = {}
    totals: dict[int | None, int] = {}
    for record in sorted(session.allocations, key=lambda record: record.start_ns):
        held = live.setdefault(record.device, {})
        place = place_in(record)
        change = -held.pop(place, 0)
        if record.name == "alloc":
            held[place] = record.bytes
            change += record.bytes
        totals[record.device] = totals.get(record.device, 0) + change
        points.setdefault(record.device, []).append((record.start_ns - start_ns, totals[record.device]))
    return [
        _chart(
            "GPU" if device is None else device_text(session.devices, "cuda", device),
            *(_whose(session), "B", [of]),
            step=True,
        )
        for device, of in points.items()
        if len(of) >= 2
    ]


def _whose(session: Session) -> str:
    several = len(session.meta.get("processes") or ()) > 1
    return "Allocated by these processes" if several else "Allocated by this process"


def _chart(device: str, label: str, unit: str, runs: list[Points], step: bool = False) -> dict[str, Any]:
    number = sum(map(len, runs))
    runs = [thin(run, max(2, _POINTS * len(run) // number)) for run in runs]
    points = [point for run in runs for point in run]
    values = [value for _, value in points]
    return {
        "device": one_line(device),
        "label": label,
        "unit": unit,
        "zero": unit not in _WITHOUT_ZERO,
        "range": [min(values), max(values)],
        "step": step,
        "of": number,
        "t": [time for time, _ in points],
        "v": values,
        "begins": list(accumulate(map(len, runs[:-1]), initial=0)),  # where among the points each run begins
    }


def thin(points: Points, limit: int) -> Points:
    """At most about ``limit`` points in order: first and last, and of every bucket the lowest and the highest."""
    if len(points) <= limit:
        return points
    buckets = max(1, limit // 2)
    kept = [points[0]]
    for number in range(buckets):
        low, high = number * len(points) // buckets, (number + 1) * len(points) // buckets
        part = range(low, high)
        places = {min(part, key=lambda at: points[at][1]), max(part, key=lambda at: points[at][1])}
        kept += [points[at] for at in sorted(places)]
    kept.append(points[-1])
    return kept
