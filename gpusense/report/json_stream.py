"""JSON text in pieces: an object whose long lists are never held whole. Pure.

Character for character what ``json_codec.dumps`` gives of it, which can only give the whole.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from json import JSONEncoder
from json.encoder import encode_basestring_ascii
from typing import Any

from .._records import json_codec
from .._records.records import KINDS

_BATCH = 256
_encode = JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Rows:
    """Many rows, made one at a time by ``row`` of each of ``items``.

    With ``derived``, the items are NamedTuples and a row is what ``json_codec.encode(item, full=True)`` gives and then
    those figures of it, by name: its text is made without making the row.
    """

    def __init__(
        self, items: Iterable[Any], row: Callable[[Any], Any], derived: dict[str, Callable[[Any], Any]] | None = None
    ) -> None:
        self.items, self.row, self.derived = items, row, derived

    def __iter__(self) -> Iterator[Any]:
        return map(self.row, self.items)


def pieces(members: Iterable[tuple[str, Any]], *, portable: bool = False, indent: int | None = None) -> Iterator[str]:
    """The object of ``members``, whose values are plain or :class:`Rows`; the rest as for ``json_codec.dumps``."""
    line, colon = ("", ":") if indent is None else ("\n" + " " * indent, ": ")
    before = "{" + line
    for name, value in members:
        yield f"{before}{json_codec.dumps(name, portable=portable)}{colon}"
        before = "," + line
        if isinstance(value, Rows):
            yield from _list(value, portable, indent)
        else:
            yield json_codec.dumps(value, portable=portable, indent=indent).replace("\n", line)
    yield "{}" if before[0] == "{" else "}" if indent is None else "\n}"


def _list(rows: Rows, portable: bool, indent: int | None) -> Iterator[str]:
    line = "" if indent is None else "\n" + " " * (2 * indent)
    text_of = _text_of(line, indent)
    tuples = None if rows.derived is None else _Texts(line, indent, rows.derived)
    before = "[" + line
    waiting = iter(rows if rows.derived is None else rows.items)
    while batch := list(islice(waiting, _BATCH)):
        texts = tuples.of(batch) if tuples is not None else [text_of(item) for item in batch]
        if portable:
            texts = [
                text_of(json_codec.replaced(item if tuples is None else rows.row(item))) if "\\ud" in text else text
                for item, text in zip(batch, texts, strict=True)
            ]
        yield before
        before = "," + line
        yield before.join(texts)
    yield "[]" if before[0] == "[" else "]" if indent is None else "\n" + " " * indent + "]"


def _text_of(line: str, indent: int | None) -> Callable[[Any], str]:
    """The text of plain values; ``line`` begins a line at their depth."""
    if indent is None:
        return _encode
    encode = JSONEncoder(allow_nan=False, indent=indent).encode
    return lambda value: encode(value).replace("\n", line)


class _Texts:
    """Text of NamedTuples of few classes, field by field into a template of the class."""

    def __init__(self, line: str, indent: int | None, derived: dict[str, Callable[[Any], Any]]) -> None:
        self._line = line
        self._inner = line + " " * (indent or 0)
        self._value = _text_of(self._inner, indent)
        self._derived = derived
        self._colon = ":" if indent is None else ": "
        self._tuples: dict[type, dict[tuple[Any, ...], str]] = {str: {}, int: {}}
        self._forms: dict[type, Callable[[Any], str]] = {
            int: int.__repr__,
            str: encode_basestring_ascii,
            type(None): {None: "null"}.__getitem__,
            bool: {False: "false", True: "true"}.__getitem__,
            tuple: self._tuple,
        }

    def of(self, items: list[Any]) -> list[str]:
        """The texts of ``items``, those of one class together."""
        kinds = list(map(type, items))
        if kinds.count(kinds[0]) == len(kinds):
            return self._of_one_class(items)
        texts = [""] * len(items)
        for kind in dict.fromkeys(kinds):
            places = [place for place, found in enumerate(kinds) if found is kind]
            for place, text in zip(places, self._of_one_class([items[place] for place in places]), strict=True):
                texts[place] = text
        return texts

    def _of_one_class(self, items: list[Any]) -> list[str]:
        """Field by field: what is equal in all goes into one template, what differs into its gaps."""
        kind = type(items[0])
        names = (*kind._fields, *self._derived)
        columns = [*zip(*items, strict=True), *(tuple(map(figure, items)) for figure in self._derived.values())]
        word = KINDS.get(kind)
        rows = [] if word is None else [f'"kind"{self._colon}"{word}"']
        gaps: list[Iterable[str]] = []
        for name, values in zip(names, columns, strict=True):
            kinds = set(map(type, values))
            form = self._forms.get(kinds.pop(), self._other) if len(kinds) == 1 else self._any
            if _are_one(values, form is not self._other and form is not self._any):
                rows.append(f'"{name}"{self._colon}{form(values[0]).replace("%", "%%")}')
            else:
                rows.append(f'"{name}"{self._colon}%s')
                gaps.append(map(form, values))
        template = "{" + self._inner + ("," + self._inner).join(rows) + self._line + "}"
        if not gaps:
            return [template % ()] * len(items)
        return list(map(template.__mod__, zip(*gaps, strict=True)))

    def _any(self, value: Any) -> str:
        return self._forms.get(type(value), self._other)(value)

    def _tuple(self, value: tuple[Any, ...]) -> str:
        """Of the same few paths and sizes in many records."""
        if not value:
            return "[]"
        kinds = set(map(type, value))
        known = self._tuples.get(kinds.pop()) if len(kinds) == 1 else None  # 1 and True are equal, their texts are not
        if known is None:
            return self._other(value)
        text = known.get(value)
        if text is None:
            text = self._other(value)
            if len(known) < _MOST_KNOWN:
                known[value] = text
        return text

    def _other(self, value: Any) -> str:
        return self._value(json_codec.plain(value, 1))


_MOST_KNOWN = 10_000


def _are_one(values: tuple[Any, ...], simple: bool) -> bool:
    """Whether all are the same object or, of whole numbers and texts, equal: 0.0 and -0.0 are equal, too."""
    first = values[0]
    if simple and type(first) is not tuple:
        return values.count(first) == len(values)
    return len(set(map(id, values))) == 1
