"""The decoded chunks of a session file, collected into a session.

Rows of records are read many at once, column by column, with equal values shared: a third of the time a row that
:func:`~gpusense._records.json_codec.decode_record` takes, and half the memory. Nothing else is different: rows that are
not all as they should be raise ``ValueError`` and are then read one by one.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import itemgetter, lt
from typing import Any

from .._records import json_codec
from .._records.counter_samples import unpacked
from .._records.hints import FieldType, Reader, field_type
from .._records.json_codec import CLASSES, MAX_INT, REQUIRED, defaults_of, readers_of
from .._records.metrics import GpuMetrics
from .._records.records import Aggregate, Counters, DeviceBusy, DeviceInfo, Record, UnseenInterval
from .._records.work import WorkTable
from .._runtime.text import count_text
from . import _format as file
from ._session import Session
from ._work_chunks import unpack

#: What ``meta`` must hold where it holds it at all; anything else is left out and named.
_META_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("start_ns", "end_ns", "threshold_ns", "pid", "rank", "world_size"), (int, type(None))),
    **dict.fromkeys(("backends", "overhead", "capture", "graph_owners"), dict),
    "trace_all": bool,
    "damage": list,
    "processes": list,
    "only_devices": (list, type(None)),
}
#: Chunks that are rows of one type, and the list of a session that they belong to.
_LISTS: dict[int, tuple[type[tuple[Any, ...]], str]] = {
    file.AGGREGATES: (Aggregate, "aggregates"),
    file.METRICS: (GpuMetrics, "metrics"),
    file.UNSEEN: (UnseenInterval, "unseen"),
    file.BUSY: (DeviceBusy, "busy"),
}

#: What ``meta["damage"]`` says where writing the file failed begins so.
ENDED_EARLY = "writing ended early"

#: Turns the values of one field into what records hold; ``share`` gives one object for equal ones.
_Share = Callable[[Any, Any], Any]
_Column = Callable[[Sequence[Any], _Share], Iterable[Any]]

_columns_of: dict[type, dict[str, _Column]] = {}


class Builder:
    """Collects the decoded chunks of a file into a session; raw chunks (names, buffers, boundaries) are not its own."""

    def __init__(self) -> None:
        self._session = Session()
        self._damage: list[str] = []
        self._shared: dict[Any, Any] = {}  # texts and tuples of records, each once
        self.devices: list[DeviceInfo] = []
        self.reversed: int | None = None  # rows whose record ends before it starts; None: they are damage

    @property
    def meta(self) -> dict[str, Any]:
        return self._session.meta

    @property
    def records(self) -> list[Record]:
        return self._session.records

    @property
    def metrics(self) -> list[GpuMetrics]:
        return self._session.metrics

    @property
    def is_empty(self) -> bool:
        """Whether nothing of what it was given is work, says whose it is, or is of its time."""
        into = self._session
        return not (into.records or into.metrics or into.counter_samples or into.meta.get("graph_owners"))

    def take(self, chunk: file.Chunk) -> bool:
        """Whether ``chunk`` was of a type this class collects. A row that cannot be read becomes a sentence."""
        into = self._session
        if chunk.type in (file.META, file.END):
            self._update_meta(chunk, ended=chunk.type == file.END)
        elif chunk.type == file.RECORDS:
            self._rows(chunk, json_codec.decode_record, into.records, at_once=True)
        elif chunk.type == file.WORK:
            self._work(chunk)
        elif chunk.type == file.SAMPLES:
            self._samples(chunk)
        elif chunk.type in _LISTS:
            cls, name = _LISTS[chunk.type]
            self._rows(chunk, partial(json_codec.decode, cls), getattr(into, name))
        elif chunk.type == file.DEVICES:
            self.devices.clear()  # a later list knows more
            self._rows(chunk, partial(json_codec.decode, DeviceInfo), self.devices)
        elif chunk.type == file.COUNTERS:
            found = [into.counters]
            self._rows(chunk, partial(json_codec.decode, Counters), found)
            into.counters = found[-1]
        else:
            return False
        return True

    def session(self) -> Session:
        self._session.devices = tuple(self.devices)
        if self._damage:
            self._session.meta.setdefault("damage", []).extend(self._damage)
        return self._session

    def _work(self, chunk: file.Chunk) -> None:
        if not self._session.has_work:
            self._session.take_work(WorkTable())
        try:
            self.records.extend(unpack(chunk.payload, self._session.work, self.meta.get("threshold_ns") or 0))
        except ValueError as error:
            self._damage.append(f"the work in the chunk at offset {chunk.offset} was left out: {error}")

    def _samples(self, chunk: file.Chunk) -> None:
        try:
            self._session.counter_samples.add(unpacked(chunk.payload))
        except ValueError as error:
            self._damage.append(f"the samples in the chunk at offset {chunk.offset} were left out: {error}")

    def _json(self, chunk: file.Chunk) -> Any:
        try:
            return chunk.json()
        except ValueError as error:
            self._damage.append(f"the chunk at offset {chunk.offset} is not JSON: {error}")
            return None

    def _rows(self, chunk: file.Chunk, decode: Any, into: list[Any], *, at_once: bool = False) -> None:
        rows = self._json(chunk)
        if at_once and isinstance(rows, list) and rows:
            try:
                into.extend(records(rows, self._shared))
                return
            except ValueError:  # some are damaged: each on its own then
                pass
        refused = 0
        reason = ""
        for row in rows if isinstance(rows, list) else []:
            try:
                into.append(decode(row))
            except ValueError as error:  # noqa: PERF203 - raised for damaged rows only
                if self.reversed is not None and isinstance(error, json_codec.ReversedError):
                    self.reversed += 1
                    continue
                refused += 1
                reason = reason or str(error)
        if refused:
            self._damage.append(rows_left_out(refused, chunk, reason))

    def _update_meta(self, chunk: file.Chunk, *, ended: bool) -> None:
        found = self._json(chunk)
        if not isinstance(found, dict):
            return
        for name in [name for name, kind in _META_TYPES.items() if not isinstance(found.get(name, None), kind)]:
            if name in found:
                self._damage.append(f"{name} in the chunk at offset {chunk.offset} is {type(found[name]).__name__}")
                del found[name]
        meta = self._session.meta
        if not ended:
            meta.update(found)
            return
        meta["file"] = found
        counters = self._session.counters
        lost = {name: found.get(name) for name in ("bytes_dropped", "bytes_too_long")}
        known = {name: value for name, value in lost.items() if type(value) is int and value > getattr(counters, name)}
        self._session.counters = counters._replace(**known)  # with a full disk, END alone may have fitted
        if found.get("failure"):
            self._damage.append(ended_early(found["failure"]))
        if meta.get("end_ns") is None:
            meta["end_ns"] = found.get("end_ns")


def ended_early(failure: object) -> str:
    """For ``meta["damage"]``, where writing the file failed."""
    return f"{ENDED_EARLY}: {failure}"


def rows_left_out(count: int, chunk: file.Chunk, reason: str) -> str:
    """For ``meta["damage"]``. ``reason`` is that of the first."""
    where = f"of the chunk at offset {chunk.offset}"
    left_out = count_text(count, f"row {where} was left out", f"rows {where} were left out")
    return f"{left_out}; {'first: ' if count > 1 else ''}{reason}"


# --- rows of records, column by column -------------------------------------------------------------------------------


def records(rows: list[Any], shared: dict[Any, Any]) -> list[Record]:
    """The records of ``rows`` in their order. ``shared`` holds the texts and tuples met so far, by themselves.

    Raises ``ValueError`` where any row describes no record.
    """
    if set(map(type, rows)) - {dict}:
        raise ValueError("not all rows are objects")
    kinds = [row.get("kind") for row in rows]
    if set(map(type, kinds)) != {str}:
        raise ValueError("not all are of a kind")
    same_fields: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows):
        same_fields.setdefault((kinds[place], *row), []).append(place)
    if len(same_fields) == 1:
        return _decoded(next(iter(same_fields))[0], rows, shared)
    found: list[Any] = [None] * len(rows)
    for (kind, *_), places in same_fields.items():
        for place, record in zip(places, _decoded(kind, [rows[place] for place in places], shared), strict=True):
            found[place] = record
    return found


def _decoded(kind: str, rows: list[dict[str, Any]], shared: dict[Any, Any]) -> list[Any]:
    """Records of one kind whose rows have the same fields."""
    cls = CLASSES.get(kind)
    if cls is None:
        raise ValueError("no such kind")
    columns = _columns_of.get(cls) or _columns_of.setdefault(cls, _columns(cls))
    share: _Share = shared.setdefault
    values: list[Iterable[Any]] = []
    for name, default in defaults_of(cls):
        if name in rows[0]:
            values.append(columns[name](list(map(itemgetter(name), rows)), share))
        elif default is REQUIRED:
            raise ValueError(f"without {name}")
        else:
            values.append(repeat(default, len(rows)))
    if "end_ns" in cls._fields:
        starts, ends = (values[cls._fields.index(name)] for name in ("start_ns", "end_ns"))
        if any(map(lt, ends, starts)):
            raise ValueError("ends before it starts")
    return list(map(partial(tuple.__new__, cls), zip(*values, strict=True)))


def _columns(cls: Any) -> dict[str, _Column]:
    readers = readers_of(cls)
    return {name: _column(cls.__annotations__[name], readers[name]) for name in cls._fields}


def _column(hint: Any, reader: Reader) -> _Column:
    """As ``reader`` for a whole column; one by one where no quicker way is sure to give the same."""
    kind = field_type(hint)
    quick = _quick(kind)
    if kind.optional:
        return lambda values, share: _one_by_one(reader, values) if None in values else quick(reader, values, share)
    return lambda values, share: quick(reader, values, share)


_Quick = Callable[[Reader, Sequence[Any], _Share], Iterable[Any]]


def _quick(kind: FieldType) -> _Quick:
    members = set(kind.members) - {Ellipsis}
    if kind.base is tuple and members in ({int}, {str}):
        return partial(_tuples, members.pop())
    return _QUICK.get(kind.base, lambda reader, values, share: _one_by_one(reader, values))


def _one_by_one(reader: Reader, values: Sequence[Any]) -> list[Any]:
    return list(map(reader, values))


def _ints(_reader: Reader, values: Sequence[Any], _share: _Share) -> Sequence[Any]:
    if set(map(type, values)) != {int} or not -MAX_INT < min(values) <= max(values) < MAX_INT:
        raise ValueError("not all are whole numbers")
    return values


def _floats(_reader: Reader, values: Sequence[Any], _share: _Share) -> Sequence[Any]:
    if set(map(type, values)) - {int, float} or not all(map(math.isfinite, values)):
        raise ValueError("not all are numbers")
    return list(map(float, values))


def _texts(_reader: Reader, values: Sequence[Any], share: _Share) -> Sequence[Any]:
    if set(map(type, values)) != {str}:
        raise ValueError("not all are text")
    return list(map(share, values, values))


def _tuples(member: type, reader: Reader, values: Sequence[Any], share: _Share) -> Sequence[Any]:
    """Of members of one type: each different one is read, the others are the same."""
    if set(map(type, values)) != {list} or set(map(type, chain.from_iterable(values))) - {member}:
        raise ValueError(f"not all are lists of {member.__name__}")
    tuples = list(map(tuple, values))
    for different in set(tuples):
        reader(different)
    return list(map(share, tuples, tuples))


_QUICK: dict[Any, _Quick] = {int: _ints, float: _floats, str: _texts}
