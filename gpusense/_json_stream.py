"""JSON text in pieces: an object whose long lists are never held whole, character for character what ``_json.dumps``
gives of it. Pure.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from json import JSONEncoder
from json.encoder import encode_basestring_ascii
from typing import Any

from . import _json

_BATCH = 256
_encode = JSONEncoder(allow_nan=False, separators=(",", ":")).encode
#: What JSON text is made of without a look inside; of a tuple of these nothing is a list before it is text.
_ATOMS = frozenset({str, int, bool, type(None)})
_FLAT = _ATOMS | {tuple}


class Rows:
    """Many rows, made one at a time by ``row`` of each of ``items``. May be read more than once if ``items`` may."""

    def __init__(self, items: Iterable[Any], row: Callable[[Any], Any]) -> None:
        self._items, self._row = items, row

    def __iter__(self) -> Iterator[Any]:
        return map(self._row, self._items)


def pieces(members: Iterable[tuple[str, Any]], *, portable: bool = False, indent: int | None = None) -> Iterator[str]:
    """The object of ``members``, whose values are plain or :class:`Rows`, as text; the rest as for ``_json.dumps``."""
    line, colon = ("", ":") if indent is None else ("\n" + " " * indent, ": ")
    before = "{" + line
    for name, value in members:
        yield f"{before}{_json.dumps(name, portable=portable)}{colon}"
        before = "," + line
        if isinstance(value, Rows):
            yield from _list(value, portable, indent)
        else:
            yield _json.dumps(value, portable=portable, indent=indent).replace("\n", line)
    yield "{}" if before[0] == "{" else "}" if indent is None else "\n}"


def _list(rows: Rows, portable: bool, indent: int | None) -> Iterator[str]:
    line = "" if indent is None else "\n" + " " * (2 * indent)
    indented = partial(_indented, line=line, step=" " * (indent or 0))
    before = "[" + line
    waiting = iter(rows)
    while batch := list(islice(waiting, _BATCH)):
        yield before
        before = "," + line
        if indent is None:
            yield _portable(_encode, batch, portable)[1:-1]
        else:
            yield before.join([_portable(indented, row, portable) for row in batch])
    yield "[]" if before[0] == "[" else "]" if indent is None else "\n" + " " * indent + "]"


def _portable(text_of: Callable[[Any], str], value: Any, portable: bool) -> str:
    text = text_of(value)
    return text_of(_json.replaced(value)) if portable and "\\ud" in text else text


def _indented(value: Any, line: str, step: str) -> str:
    """What ``json.dumps`` gives with ``indent``, slowly; ``line`` begins a line at the depth of ``value``."""
    kind = type(value)
    if kind is int:
        return int.__repr__(value)
    if kind is str:
        return encode_basestring_ascii(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    inner = line + step
    if kind is dict:
        if not value:
            return "{}"
        rows = [f"{encode_basestring_ascii(name)}: {_indented(item, inner, step)}" for name, item in value.items()]
        return "{" + inner + ("," + inner).join(rows) + line + "}"
    if kind is list or kind is tuple:
        if not value:
            return "[]"
        return "[" + inner + ("," + inner).join([_indented(item, inner, step) for item in value]) + line + "]"
    return _encode(value)  # a float


def is_flat(record: tuple[Any, ...]) -> bool:
    """Whether every field has a JSON form as it stands: atoms and tuples of atoms."""
    kinds = set(map(type, record))
    if kinds <= _ATOMS:
        return True
    return kinds <= _FLAT and all(set(map(type, value)) <= _ATOMS for value in record if type(value) is tuple)
