"""Records and metrics as JSON objects and back: the one codec of session files, reports and exports. Pure.

A reader of newer or older files is tolerant: unknown fields are skipped, missing ones take their default. A value of
the wrong type is not tolerated: it raises ``ValueError`` and costs its row alone.
"""

import json
import math
from functools import cache, lru_cache
from types import NoneType
from typing import Any, Literal, TypeVar

from .._runtime.text import well_formed
from .hints import FieldType, Reader, reader
from .metrics import GpuMetrics
from .records import KINDS, BlockRecord, Record

_T = TypeVar("_T", bound=tuple[Any, ...])

METRICS_SCHEMA = "gpusense.metrics/1"

#: The class of the records of each ``kind``.
CLASSES: dict[str, Any] = {kind: cls for cls, kind in KINDS.items()}
_MAX_DEPTH = 8
_MAX_TEXT = 1000
#: Whole numbers of files lie below it, on both sides.
MAX_INT = 1 << 200
#: What marks an array: printing one may wait for a device, or print a million numbers.
_ARRAY_MARKS = ("__array__", "__dlpack__", "__cuda_array_interface__")

_ATOMS = frozenset({str, int, bool, NoneType})
#: Stands for the default of a field that has none: nothing equals it.
REQUIRED = object()


def encode(record: tuple[Any, ...], *, full: bool = False) -> dict[str, Any]:
    """A NamedTuple as a JSON object. Records carry their ``kind``; fields equal to their default only if ``full``."""
    return _encode(record, full, 0)


def block_text(record: BlockRecord) -> str:
    """What :func:`dumps` makes of :func:`encode`, in a tenth of the time: names and paths come again and again."""
    name, block_id, parent, path, start_ns, end_ns, thread, attributes, error = record
    try:
        more = "" if attributes is None else f',"attributes":{object_text(attributes)}'
        if error is not None:
            more += f',"error":{text_of(error)}'
        return (
            f'{{"kind":"block","name":{text_of(name)},"block_id":{block_id},'
            f'"parent_id":{"null" if parent is None else parent},"path":{text_of(path)},'
            f'"start_ns":{start_ns},"end_ns":{end_ns},"thread":{thread}{more}}}'
        )
    except TypeError:  # a record that somebody made of something else than text and tuples
        return dumps(encode(record))


@lru_cache(maxsize=4096)
def text_of(value: str | tuple[str, ...]) -> str:
    """JSON of a text or of a tuple of texts, such as a path."""
    return dumps(value)


@lru_cache(maxsize=4096)
def _pairs(items: tuple[tuple[str, str], ...]) -> str:
    return dumps(dict(items))


def object_text(attributes: dict[str, Any]) -> str:
    """JSON of a record's attributes."""
    if type(attributes) is dict:
        items = tuple(attributes.items())
        if all(type(name) is str and type(value) is str for name, value in items):  # 1 and True are equal, but differ
            return _pairs(items)
    return dumps(plain(attributes, 1))


def _encode(record: tuple[Any, ...], full: bool, depth: int) -> dict[str, Any]:
    cls: Any = type(record)
    kind = KINDS.get(cls)
    row: dict[str, Any] = {} if kind is None else {"kind": kind}
    for (name, default), value in zip(defaults_of(cls), record, strict=True):
        if value is default or (not full and type(value) is type(default) and value == default):
            if full:
                row[name] = plain(value, depth + 1)
            continue
        row[name] = value if type(value) in _ATOMS else plain(value, depth + 1)
    return row


@cache
def defaults_of(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Fields with their defaults, or :data:`REQUIRED`."""
    return tuple((name, cls._field_defaults.get(name, REQUIRED)) for name in cls._fields)


@cache
def readers_of(cls: Any) -> dict[str, Reader]:
    """What turns the JSON value of each field of the NamedTuple ``cls`` into its type, or raises ``ValueError``."""
    return {name: reader(cls.__annotations__[name], _reader) for name in cls._fields}


def decode(cls: type[_T], row: Any) -> _T:
    """The NamedTuple ``cls`` from a JSON object; ``ValueError`` names the field that does not fit."""
    if not isinstance(row, dict):
        raise ValueError(f"{cls.__name__}: {type(row).__name__} instead of an object")
    readers = readers_of(cls)
    try:
        return cls(**{name: readers[name](value) for name, value in row.items() if name in readers})
    except (ValueError, TypeError):
        raise ValueError(f"{cls.__name__}{_misfit(cls, readers, row)}") from None


def _misfit(cls: Any, readers: dict[str, Reader], row: dict[str, Any]) -> str:
    for name, value in row.items():
        try:
            readers.get(name, _anything)(value)
        except ValueError as error:  # noqa: PERF203 - looks for the one that raises
            return f".{name}: {error}"
    return f": without {', '.join(set(cls._fields) - row.keys() - cls._field_defaults.keys())}"


class ReversedError(ValueError):
    """A record that ends before it starts: whole, but impossible. The clock was set back, or a program timed it so."""


def decode_record(row: Any) -> Record:
    """The record a JSON object with a ``kind`` describes; ``ValueError`` where it describes none,
    :class:`ReversedError` where its times are impossible."""
    kind = row.get("kind") if isinstance(row, dict) else None
    cls = CLASSES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"no record is of kind {kind!r}"[:80])
    record: Record = decode(cls, row)
    if record.end_ns < record.start_ns:
        raise ReversedError(f"{cls.__name__}: ends {record.start_ns - record.end_ns} ns before it starts")
    return record


def metrics_to_dict(metrics: GpuMetrics) -> dict[str, Any]:
    """One device and sample: fields at their default are absent, ``reasons`` is an object from field to sentence, in
    which the key "*" speaks for every field without a value."""
    row = encode(metrics)
    if metrics.reasons:
        row["reasons"] = dict(reversed(metrics.reasons))  # of several reasons of one field the first counts
    return row


def metrics_from_dict(row: dict[str, Any]) -> GpuMetrics:
    """The inverse. Unknown keys are skipped, missing ones take their default; ValueError names what does not fit."""
    reasons = row.get("reasons")
    if isinstance(reasons, dict):
        row = {**row, "reasons": list(reasons.items())}
    return decode(GpuMetrics, row)


def metrics_line(samples: tuple[GpuMetrics, ...], **more: Any) -> dict[str, Any]:
    """What one line of ``gpusense monitor --json`` holds: the schema, and every device sampled at that moment."""
    return {"schema": METRICS_SCHEMA, **more, "devices": [metrics_to_dict(sample) for sample in samples]}


def dumps(value: Any, *, portable: bool = False, indent: int | None = None) -> str:
    """JSON text in ASCII of what :func:`plain` or :func:`encode` gave. Bytes of a name that were not UTF-8 come back on
    reading, unless ``portable``: then they are the replacement character, as strict readers in other languages want it.
    """
    write = _compact if indent is None else json.JSONEncoder(allow_nan=False, indent=indent).encode
    text: str = write(value)
    if portable and "\\ud" in text:
        text = write(replaced(value))
    return text


_compact = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def loads(text: str | bytes) -> Any:
    """The value of JSON text; ``ValueError`` also for nesting that is too deep and for bytes that are not text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` in the types JSON has. What has no JSON form becomes text; arrays are named, never read."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if -MAX_INT < value < MAX_INT else hex(value)[:_MAX_TEXT]
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if depth > _MAX_DEPTH:
        return "…"
    try:
        return _composed(value, kind, depth)
    except Exception:  # noqa: BLE001 - an attribute's own code must not end the drain
        return f"<{kind.__name__}>"


def _composed(value: Any, kind: type, depth: int) -> Any:
    if hasattr(kind, "_fields") and isinstance(value, tuple):
        return _encode(value, False, depth)
    if isinstance(value, dict):
        return {_key(key): plain(item, depth + 1) for key, item in list(value.items())}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in list(value)]
    return _foreign(value)


def _foreign(value: Any) -> Any:
    from numbers import Integral, Real

    if isinstance(value, Integral):
        return plain(int(value))
    if isinstance(value, Real):
        return plain(float(value))
    return _text(value)


def _key(key: Any) -> str:
    try:
        return _text(key)
    except Exception:  # noqa: BLE001 - as in plain
        return f"<{type(key).__name__}>"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if any(hasattr(type(value), mark) for mark in _ARRAY_MARKS):
        return f"<{type(value).__module__}.{type(value).__qualname__}>"
    return str(value)[:_MAX_TEXT]


def replaced(value: Any) -> Any:
    """``value`` with the replacement character for what strict readers do not take."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {replaced(key): replaced(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replaced(item) for item in value]
    return value


def _reader(kind: FieldType) -> Reader:
    if kind.base is Literal:
        return _choice(kind.members)
    if kind.base is tuple:
        return _tuple(kind.members)
    if kind.base is dict:
        return _object
    return _SCALARS.get(kind.base) or (lambda value: decode(kind.base, value))


def _choice(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, str) and value in choices:
            return value
        raise ValueError(f"{value!r} is none of {', '.join(choices)}"[:120])

    return read


def _tuple(members: tuple[Any, ...]) -> Reader:
    endless = members[-1] is Ellipsis
    readers = [reader(member, _reader) for member in members if member is not Ellipsis]

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{type(value).__name__} instead of a list")
        if endless:
            return tuple([readers[0](item) for item in value])
        if len(value) != len(readers):
            raise ValueError(f"{len(value)} values instead of {len(readers)}")
        return tuple([read_one(item) for read_one, item in zip(readers, value, strict=True)])

    return read


def _int(value: Any) -> int:
    if type(value) is int and -MAX_INT < value < MAX_INT:
        return value
    raise ValueError(f"{type(value).__name__} instead of a whole number of at most 200 bits")


def _float(value: Any) -> float:
    if type(value) in (int, float) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{type(value).__name__} instead of a number")


def _str(value: Any) -> str:
    if type(value) is str:
        return value
    raise ValueError(f"{type(value).__name__} instead of text")


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise ValueError(f"{type(value).__name__} instead of true or false")


def _anything(value: Any) -> Any:
    return value


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ValueError(f"{type(value).__name__} instead of an object")


_SCALARS: dict[Any, Reader] = {int: _int, float: _float, str: _str, bool: _bool, Any: _anything}
