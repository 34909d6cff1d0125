"""Every call of a session by what it was: one walk over the records, whose groups several analyses share."""

from collections.abc import Callable, Iterable
from itertools import chain, takewhile
from operator import attrgetter, sub
from typing import Any, NamedTuple, TypeVar

from .._records.records import KINDS, Aggregate, Dim3, Record
from ..session import Session

#: Kinds of records that are of blocks, which hold calls.
OF_BLOCKS = ("block", "block_counters", "block_time")
#: ``kind`` of every record that is a call.
OPERATIONS: dict[Any, str] = {of: kind for of, kind in KINDS.items() if kind not in OF_BLOCKS}

_FIELDS = ("name", "backend", "device", "direction", "full_name", "grid", "block")
_start = attrgetter("start_ns")
_T = TypeVar("_T")


class Calls(NamedTuple):
    """The kept calls of one operation on one device with one launch size, in order of their start."""

    kind: str
    name: str
    backend: str
    device: int | None
    direction: str | None
    full_name: str | None
    grid: Dim3 | None
    block: Dim3 | None
    records: list[Any]
    lengths: list[int]  # nanoseconds; 0 where the end is missing or lies before the start
    ordered: list[int]  # the same, shortest first

    @property
    def first(self) -> tuple[int, int]:
        """Start and length of the earliest call, of several at once the shortest."""
        start: int = self.records[0].start_ns
        at_once = takewhile(lambda pair: pair[0].start_ns == start, zip(self.records, self.lengths, strict=True))
        return start, min(length for _, length in at_once)


def calls(session: Session) -> list[Calls]:
    """The groups, in order of their first record."""
    tables: dict[type, tuple[Callable[[Any], Any], dict[Any, list[Record]]]] = {}
    groups: list[tuple[type, Any, list[Record]]] = []
    for cls in OPERATIONS:
        tables[cls] = attrgetter(*_fields_of(cls)), {}
    for record in session.records:
        table = tables.get(type(record))
        if table is not None:
            key = table[0](record)
            same = table[1].get(key)
            if same is None:
                same = table[1][key] = []
                groups.append((type(record), key, same))
            same.append(record)
    return [_calls(cls, key, same) for cls, key, same in groups]


def _calls(cls: Any, key: tuple[Any, ...], records: list[Any]) -> Calls:
    records.sort(key=_start)
    try:
        lengths = list(map(sub, map(attrgetter("end_ns"), records), map(_start, records)))
        ordered = sorted(lengths)
    except TypeError:  # without an end
        ordered = [-1]
    if ordered[0] < 0:
        lengths = [duration_ns(record) for record in records]
        ordered = sorted(lengths)
    known: dict[str, Any] = {**dict.fromkeys(_FIELDS), **dict(zip(_fields_of(cls), key, strict=True))}
    return Calls(OPERATIONS[cls], **known, records=records, lengths=lengths, ordered=ordered)


def _fields_of(cls: Any) -> list[str]:
    return [field for field in _FIELDS if field in cls._fields]


def grouped(groups: Iterable[Calls], key: Callable[[Calls], _T]) -> dict[_T, list[Calls]]:
    """The groups by their ``key``."""
    found: dict[_T, list[Calls]] = {}
    for group in groups:
        found.setdefault(key(group), []).append(group)
    return found


def ordered(groups: list[Calls]) -> list[int]:
    """All lengths of these groups, shortest first; not to be changed."""
    return groups[0].ordered if len(groups) == 1 else sorted(chain.from_iterable(group.ordered for group in groups))


def timed_by_host(item: Any) -> bool:
    """Whether the time of a copy is the host's, kept (a record) or counted: such copies occupy no device.

    Sums of older files do not say who timed them, but of wgpu's copies between host and GPU the host times all.
    """
    if type(item) is Aggregate and item.backend == "wgpu" and item.direction in ("cpu_to_gpu", "gpu_to_cpu"):
        return item.kind == "transfer"
    return getattr(item, "timing", "device") == "host"


def duration_ns(record: Any) -> int:
    """Length of a record; 0 where its end is missing or lies before its start."""
    end = record.end_ns
    return max(0, end - record.start_ns) if end is not None else 0
