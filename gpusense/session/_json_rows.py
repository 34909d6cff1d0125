"""Many rows of a session file as records at once: column by column, and equal values shared. Pure.

What :func:`gpusense._json.decode_record` does to one row, a third of the time a row and half the memory. It is told
apart by nothing but speed: rows that are not all as they should be raise ``ValueError`` and are then read one by one.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import itemgetter, lt
from typing import Any

from .._records.hints import FieldType, Reader, field_type
from .._records.json_codec import CLASSES, MAX_INT, REQUIRED, defaults_of, readers_of
from .._records.records import Record

#: Turns the values of one field into what records hold; ``share`` gives one object for equal ones.
_Share = Callable[[Any, Any], Any]
_Column = Callable[[Sequence[Any], _Share], Iterable[Any]]

_columns_of: dict[type, dict[str, _Column]] = {}


def records(rows: list[Any], shared: dict[Any, Any]) -> list[Record]:
    """The records of ``rows`` in their order. ``shared`` holds the texts and tuples met so far, by themselves.

    Raises ``ValueError`` where any row describes no record.
    """
    if set(map(type, rows)) - {dict}:
        raise ValueError("not all rows are objects")
    kinds = [row.get("kind") for row in rows]
    if set(map(type, kinds)) != {str}:
        raise ValueError("not all are of a kind")
    alike: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault((kinds[place], *row), []).append(place)
    if len(alike) == 1:
        return _decoded(next(iter(alike))[0], rows, shared)
    found: list[Any] = [None] * len(rows)
    for (kind, *_), places in alike.items():
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
