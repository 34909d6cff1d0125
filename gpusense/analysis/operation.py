"""The table of operations: what ran, how often, for how long; kept records and aggregates combined exactly."""

from collections.abc import Collection, Sequence
from operator import attrgetter, mul
from typing import NamedTuple

from .._records.records import Aggregate, standard_deviation
from ..session import Session
from .calls import OF_BLOCKS, OPERATIONS, Calls, calls, duration_ns, ordered, timed_by_host

__all__ = [
    "DEVICE_KINDS",
    "OPERATIONS",
    "WAYS",
    "Operation",
    "Spread",
    "called",
    "duration_ns",
    "kernel_backends",
    "operations",
    "spread",
]

#: What copies without a name of their own are called, by what their records have as a name.
WAYS = {
    "cpu_to_gpu": "host to device",
    "gpu_to_cpu": "device to host",
    "gpu_to_gpu": "between GPUs",
    "on_device": "on the device",
    "cpu_to_cpu": "on the host",
}

#: Kinds that occupy the device; the others are host time or instants.
DEVICE_KINDS = frozenset({"kernel", "transfer", "memset"})

_Key = tuple[str, str, str, int | None, str | None]


def called(backends: Collection[str]) -> str:
    """What runs on devices of these backends: wgpu times passes, which may have many kernels or none."""
    return "pass" if set(backends) == {"wgpu"} else "kernel or pass" if "wgpu" in backends else "kernel"


def kernel_backends(session: Session) -> set[str]:
    """Whose kernels, or passes, there are."""
    work = session.work
    kept = {work.kinds[number].backend for number in set(work.kind) if work.kinds[number].kind == "kernel"}
    return kept | {row.backend for row in session.aggregates if row.kind == "kernel"}


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
    share: float  # 0…1, of the time of all operations that the device timed, or of all of this kind that the host did
    bytes: int
    direction: str | None
    bandwidth_bytes_per_s: float | None
    first_ns: int | None  # duration of the earliest kept call
    full_name: str | None  # None where several share the name (see ``variants``) or it is no more than the name
    variants: int  # distinct full names: one, but where calls of older versions were only counted
    kept: int  # calls of which an individual record exists
    timing: str = "device"  # "host": copies that the host timed, as far as is known; and what is no work of the device


class Spread(NamedTuple):
    """How long some calls took, in nanoseconds. Counts and sums are exact, whether calls were kept or counted."""

    count: int  # type: ignore[assignment]
    total_ns: int
    min_ns: int
    max_ns: int
    avg_ns: float
    std_ns: float  # population standard deviation
    median_ns: float | None  # None where too many calls were only counted to know it exactly
    p95_ns: int | None  # nearest rank; None likewise


class _Group:
    """All calls of one operation: groups of kept ones, and rows of counted ones."""

    __slots__ = ("aggregates", "bytes", "calls", "durations")

    def __init__(self) -> None:
        self.calls: list[Calls] = []
        self.durations: list[int] = []
        self.aggregates: list[Aggregate] = []
        self.bytes = 0

    def side(self, kind: str) -> str:
        """Whose time it is a share of."""
        one = self.calls[0].records[0] if self.calls else self.aggregates[0]
        return "device" if kind in DEVICE_KINDS and not timed_by_host(one) else kind


def operations(
    session: Session, kinds: "frozenset[str] | None" = None, groups: "list[Calls] | None" = None
) -> list[Operation]:
    """Operations by falling total time, device work first. ``kinds`` restricts them."""
    found = _group(calls(session) if groups is None else groups, session.aggregates)
    totals: dict[str, int] = {}
    for key, group in found.items():
        side = group.side(key[0])
        spent = sum(group.durations) + sum(aggregate.total_ns for aggregate in group.aggregates)
        totals[side] = totals.get(side, 0) + spent
    table = [
        _operation(key, group, totals[group.side(key[0])])
        for key, group in found.items()
        if kinds is None or key[0] in kinds
    ]
    table.sort(key=lambda row: (row.kind not in DEVICE_KINDS, -row.total_ns, -row.count, row.kind, row.name))
    return table


def _group(kept: list[Calls], aggregates: list[Aggregate]) -> dict[_Key, _Group]:
    groups: dict[_Key, _Group] = {}
    for one in kept:
        group = groups.setdefault((one.kind, one.name, one.backend, one.device, one.direction), _Group())
        group.calls.append(one)
        if "bytes" in one.records[0]._fields:
            sizes = list(map(attrgetter("bytes"), one.records))
            group.bytes += sum(size or 0 for size in sizes) if None in sizes else sum(sizes)
    for group in groups.values():
        group.durations = ordered(group.calls)
    for aggregate in aggregates:
        if aggregate.count <= 0 or aggregate.kind in OF_BLOCKS:
            continue
        key = (aggregate.kind, aggregate.name, aggregate.backend, aggregate.device, aggregate.direction)
        counted = groups.setdefault(key, _Group())
        counted.aggregates.append(aggregate)
        counted.bytes += aggregate.bytes
    return groups


def _operation(key: _Key, group: _Group, side_total: int) -> Operation:
    kind, name, backend, device, direction = key
    kept = group.durations
    counted = group.aggregates
    of_calls, of_sums = {one.full_name for one in group.calls}, {one.full_name for one in counted}
    names = (of_calls | of_sums) - {None}
    lengths = spread(kept, counted)
    return Operation(
        kind=kind,
        name=name,
        backend=backend,
        device=device,
        **lengths._asdict(),
        share=lengths.total_ns / side_total if side_total else 0.0,
        bytes=group.bytes,
        direction=direction,
        bandwidth_bytes_per_s=group.bytes * 1e9 / lengths.total_ns if group.bytes and lengths.total_ns else None,
        first_ns=min(one.first for one in group.calls)[1] if group.calls else None,
        full_name=next(iter(names)) if len(names) == 1 else None,
        variants=len(names),
        kept=len(kept),
        timing="device" if group.side(kind) == "device" else "host",
    )


def spread(kept: Sequence[int], counted: Sequence[Aggregate]) -> Spread:
    """Of ``kept``, lengths in order, and what was ``counted``; at least one call in both together."""
    if len(kept) == 1 and not counted:  # of names that come once there may be very many
        (only,) = kept
        return Spread(1, only, only, only, float(only), 0.0, float(only), only)
    count = len(kept) + sum(aggregate.count for aggregate in counted)
    total = sum(kept) + sum(aggregate.total_ns for aggregate in counted)
    squares = sum(map(mul, kept, kept)) + sum(aggregate.sum_squares_ns2 for aggregate in counted)
    below = _rank_below(kept, counted)
    return Spread(
        count=count,
        total_ns=total,
        min_ns=min([*(aggregate.min_ns for aggregate in counted), *kept[:1]]),
        max_ns=max([*(aggregate.max_ns for aggregate in counted), *kept[-1:]]),
        avg_ns=total / count,
        std_ns=standard_deviation(count, total, squares),
        median_ns=_median(kept, below, count),
        p95_ns=_ranked(kept, below, -(-95 * count // 100) - 1),
    )


def _rank_below(kept: Sequence[int], counted: Sequence[Aggregate]) -> int | None:
    """How many counted calls are shorter than every kept one; None where they interleave."""
    if not counted:
        return 0
    if kept and max(aggregate.max_ns for aggregate in counted) > kept[0]:
        return None
    return sum(aggregate.count for aggregate in counted)


def _ranked(kept: Sequence[int], below: int | None, rank: int) -> int | None:
    if below is None or rank < below:
        return None
    return kept[rank - below]


def _median(kept: Sequence[int], below: int | None, count: int) -> float | None:
    low, high = _ranked(kept, below, (count - 1) // 2), _ranked(kept, below, count // 2)
    return None if low is None or high is None else (low + high) / 2
