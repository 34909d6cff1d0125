"""The types of record fields, taken apart for all who read values of them. Pure."""

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

Reader = Callable[[Any], Any]


class FieldType(NamedTuple):
    """What the annotation of a field says."""

    base: Any  # int, float, str, bool, Any, Literal, tuple, dict, or the class of a named tuple
    members: tuple[Any, ...] = ()  # the choices of a Literal; the types in a tuple, Ellipsis last for any number
    optional: bool = False  # None is a value, too


def field_type(hint: Any) -> FieldType:
    """``hint`` taken apart; raises ``TypeError`` for one that no field of a record has."""
    base, members = get_origin(hint), get_args(hint)
    if base in (Union, UnionType):
        others = [member for member in members if member is not NoneType]
        if len(others) == 1:
            return field_type(others[0])._replace(optional=len(members) > 1)
    elif base in (Literal, tuple, dict):
        return FieldType(base, members)
    elif hint in (int, float, str, bool, Any) or hasattr(hint, "_fields"):
        return FieldType(hint)
    raise TypeError(f"no field is of type {hint!r}")


def reader(hint: Any, make: Callable[[FieldType], Reader]) -> Reader:
    """What ``make`` gives to read values of ``hint``, passing None where that is a value."""
    kind = field_type(hint)
    read = make(kind)
    return (lambda value: None if value is None else read(value)) if kind.optional else read
