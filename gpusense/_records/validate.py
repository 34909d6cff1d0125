"""Records and attributes as a program passes them, made into what every report and file reckons with, or refused. Pure.

A value of another type than its field has would fail much later: on the recording thread, in the file, in a report, and
take the records beside it along. Numbers of other types become Python's, lists tuples; attributes are copied, because
the program may go on to change its own.
"""

import math
from functools import cache
from typing import Any, Literal, get_args

from .hints import FieldType, Reader, reader
from .records import Dim3, Record

_MAX_INT = 1 << 63
_SIZES = frozenset({"bytes", "elements", "wait_ns"})  # unknown is None


def fitted(record: Record) -> Record:
    """``record`` with values of the types that its fields have; raises ``TypeError`` or ``ValueError`` for others."""
    cls: Any = type(record)
    readers, defaults, changes = readers_of(cls), cls._field_defaults, {}
    for name, value in zip(cls._fields, record, strict=True):
        if name in defaults and value is defaults[name]:
            continue
        fit = readers[name](value)
        if fit is not value:
            changes[name] = fit
    return record._replace(**changes) if changes else record


@cache
def readers_of(cls: Any) -> dict[str, Reader]:
    """What turns a value into one for each field of the record ``cls``, or raises."""
    return {
        name: reader(cls.__annotations__[name], _size_reader if name in _SIZES else _reader) for name in cls._fields
    }


def whole(value: Any) -> int:
    """A whole number of at most 64 bits; text is none."""
    if type(value) is not int:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError(f"{value!r:.40} is not a number")
        value = int(value)
    if -_MAX_INT <= value < _MAX_INT:
        number: int = value
        return number
    raise ValueError("a number of more than 64 bits")


def attributes_of(value: Any) -> dict[Any, Any]:
    """A copy of a mapping; raises where it is none."""
    if type(value) is dict:
        return value.copy()
    if not hasattr(value, "keys"):
        raise TypeError(f"attributes are {type(value).__name__} instead of a mapping")
    return dict(value)


def _size_reader(_: FieldType) -> Reader:
    return _size


def _reader(kind: FieldType) -> Reader:
    if kind.base is Literal:
        return _choice(kind.members)
    if kind.base is dict:
        return attributes_of
    if kind.base is tuple:
        return _dim3 if kind.members == get_args(Dim3) else _tuple(kind.members)
    return _SCALARS[kind.base]


def _choice(choices: tuple[str, ...]) -> Reader:
    def read(value: Any) -> str:
        if isinstance(value, str) and value in choices:
            return choices[choices.index(value)]
        raise ValueError(f"{value!r:.40} is none of {', '.join(choices)}")

    return read


def _tuple(members: tuple[Any, ...]) -> Reader:
    """Of any number of one type, or of one of each."""
    member = members[0]
    read_one = reader(member, _reader)
    if Ellipsis not in members:
        return _each(tuple([reader(one, _reader) for one in members]))

    def read(value: Any) -> Any:
        if type(value) is tuple and all(type(item) is member for item in value) and member is str:
            return value
        if not isinstance(value, (tuple, list)):
            raise TypeError(f"{type(value).__name__} instead of a tuple")
        return tuple([read_one(item) for item in value])

    return read


def _each(readers: tuple[Reader, ...]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, (tuple, list)) or len(value) != len(readers):
            raise TypeError(f"{value!r:.40} instead of {len(readers)} values")
        return tuple([read_one(item) for read_one, item in zip(readers, value, strict=True)])

    return read


def _dim3(value: Any) -> tuple[int, ...]:
    """Blocks or threads in up to three dimensions, as CUDA takes them."""
    sizes = value if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{len(sizes)} dimensions instead of three")
    return (*map(whole, sizes), 1, 1)[:3]


def _size(value: Any) -> int:
    number = whole(value)
    if number < 0:
        raise ValueError(f"a negative number, {number}")
    return number


def _real(value: Any) -> float:
    number = float(value)
    if isinstance(value, (str, bytes, bytearray)) or not math.isfinite(number):
        raise ValueError(f"{value!r:.40} is not a number")
    return number


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} instead of text")


_SCALARS: dict[Any, Reader] = {int: whole, float: _real, str: _text, bool: bool}
