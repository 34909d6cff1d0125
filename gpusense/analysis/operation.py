"""The table of operations: what ran, how often, for how long; kept records and aggregates combined exactly."""

from typing import Any, NamedTuple

from .._records import KINDS, Aggregate, Record
from ..session import Session

#: Kinds that occupy the device; the others are host time or instants.
DEVICE_KINDS = frozenset({"kernel", "transfer", "memset"})
#: ``kind`` of every record that is an operation; blocks hold operations.
OPERATIONS = {of: kind for of, kind in KINDS.items() if kind != "block"}

_Key = tuple[str, str, str, int | None, str | None]


class Operation(NamedTuple):
    """Every call of one operation on one device. Counts and sums are exact, whether calls were kept or counted."""

    kind: str  # "kernel", "transfer", "memset", "sync", "compute", "allocation", "syscall"
    name: str
    backend: str
    device: int | None
    count: int  # type: ignore[assignment]
    total_ns: int
    min_ns: int
    max_ns: int
    avg_ns: float
    std_ns: float  # population standard deviation
    median_ns: float | None  # None where too many calls were only counted to know it exactly
    p95_ns: int | None  # nearest rank; None likewise
    share: float  # 0…1, of the time of all device operations, or of all of this kind for host operations
    bytes: int
    direction: str | None
    bandwidth_bytes_per_s: float | None
    first_ns: int | None  # duration of the earliest kept call
    full_name: str | None  # None where several share the short name (see ``variants``) or none is known
    variants: int  # distinct full names among the kept calls
    kept: int  # calls of which an individual record exists


class _Group:
    __slots__ = ("aggregates", "bytes", "durations", "first", "names")

    def __init__(self) -> None:
        self.durations: list[int] = []
        self.aggregates: list[Aggregate] = []
        self.bytes = 0
        self.first: tuple[int, int] | None = None
        self.names: set[str] = set()


def duration_ns(record: Any) -> int:
    """Length of a record; 0 where its end is missing or lies before its start."""
    end = record.end_ns
    return max(0, end - record.start_ns) if end is not None else 0


def operations(session: Session, kinds: "frozenset[str] | None" = None) -> list[Operation]:
    """Operations by falling total time, device work first. ``kinds`` restricts them."""
    groups = _group(session.records, session.aggregates)
    totals: dict[str, int] = {}
    for key, group in groups.items():
        side = "device" if key[0] in DEVICE_KINDS else key[0]
        spent = sum(group.durations) + sum(aggregate.total_ns for aggregate in group.aggregates)
        totals[side] = totals.get(side, 0) + spent
    table = [
        _operation(key, group, totals["device" if key[0] in DEVICE_KINDS else key[0]])
        for key, group in groups.items()
        if kinds is None or key[0] in kinds
    ]
    table.sort(key=lambda row: (row.kind not in DEVICE_KINDS, -row.total_ns, -row.count, row.kind, row.name))
    return table


def _group(records: list[Record], aggregates: list[Aggregate]) -> dict[_Key, _Group]:
    groups: dict[_Key, _Group] = {}
    record: Any  # every kind below has the fields its kind is asked for
    for record in records:
        kind = OPERATIONS.get(type(record))
        if kind is None:
            continue
        key = (kind, record.name, record.backend, getattr(record, "device", None), getattr(record, "direction", None))
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group()
        start, end = record.start_ns, record.end_ns
        length = end - start if end is not None and end > start else 0
        group.durations.append(length)
        group.bytes += getattr(record, "bytes", 0) or 0
        if group.first is None or start < group.first[0]:
            group.first = (start, length)
        if kind == "kernel" and record.full_name:
            group.names.add(record.full_name)
    for aggregate in aggregates:
        if aggregate.count <= 0 or aggregate.kind == "block":
            continue
        key = (aggregate.kind, aggregate.name, aggregate.backend, aggregate.device, aggregate.direction)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group()
        group.aggregates.append(aggregate)
        group.bytes += aggregate.bytes
    return groups


def _operation(key: _Key, group: _Group, side_total: int) -> Operation:
    kind, name, backend, device, direction = key
    kept = sorted(group.durations)
    counted = group.aggregates
    count = len(kept) + sum(aggregate.count for aggregate in counted)
    total = sum(kept) + sum(aggregate.total_ns for aggregate in counted)
    squares = sum(value * value for value in kept) + sum(aggregate.sum_squares_ns2 for aggregate in counted)
    below = _rank_below(kept, counted)
    return Operation(
        kind=kind,
        name=name,
        backend=backend,
        device=device,
        count=count,
        total_ns=total,
        min_ns=min([aggregate.min_ns for aggregate in counted] + kept[:1]),
        max_ns=max([aggregate.max_ns for aggregate in counted] + kept[-1:]),
        avg_ns=total / count,
        # In integers, so that nanosecond sums beyond 2**53 do not cancel.
        std_ns=(max(0, squares * count - total * total) ** 0.5) / count,
        median_ns=_median(kept, below, count),
        p95_ns=_ranked(kept, below, -(-95 * count // 100) - 1),
        share=total / side_total if side_total else 0.0,
        bytes=group.bytes,
        direction=direction,
        bandwidth_bytes_per_s=group.bytes * 1e9 / total if group.bytes and total else None,
        first_ns=group.first[1] if group.first else None,
        full_name=next(iter(group.names)) if len(group.names) == 1 else None,
        variants=len(group.names),
        kept=len(kept),
    )


def _rank_below(kept: list[int], counted: list[Aggregate]) -> int | None:
    """How many counted calls are shorter than every kept one; None where they interleave."""
    if not counted:
        return 0
    if kept and max(aggregate.max_ns for aggregate in counted) > kept[0]:
        return None
    return sum(aggregate.count for aggregate in counted)


def _ranked(kept: list[int], below: int | None, rank: int) -> int | None:
    if below is None or rank < below:
        return None
    return kept[rank - below]


def _median(kept: list[int], below: int | None, count: int) -> float | None:
    low, high = _ranked(kept, below, (count - 1) // 2), _ranked(kept, below, count // 2)
    return None if low is None or high is None else (low + high) / 2
