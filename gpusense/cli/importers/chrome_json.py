"""Reads a Chrome trace event by event, however large: nothing but one event is held. Pure: bytes in, values out.

Both forms are read, the object with ``traceEvents`` and the bare list; also several documents, one after the other. A
number with a point comes as its text, because times of today in microseconds have more digits than a float.
"""

import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from itertools import chain
from json import JSONDecoder
from typing import Any, BinaryIO

EVENTS = "traceEvents"
_CHUNK = 1 << 20  # bytes
_GZIP = 16 + zlib.MAX_WBITS
_LONGEST = 1 << 26  # of one value
_BLANK = " \t\r\n"
_AFTER = ",]}" + _BLANK  # a number: before anything else, more of it is to come
_decode = JSONDecoder(parse_float=str, parse_constant=lambda _: None).raw_decode


class Damaged(ValueError):
    """The text ends too early or is no JSON; what was read before it stands."""


def texts(file: BinaryIO) -> Iterator[str]:
    """The text of ``file``, which may be packed by gzip, in pieces. Of damage all is given that comes before it.

    Raises :class:`Damaged`.
    """
    decode = getincrementaldecoder("utf-8-sig")("replace").decode
    head = file.read(2)
    pieces = chain((head,), iter(lambda: file.read(_CHUNK), b""))
    for piece in _unpacked(pieces) if head == b"\x1f\x8b" else pieces:
        yield decode(piece)
    yield decode(b"", True)


def _unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """No more than a piece at a time, however much a byte stands for."""
    state = zlib.decompressobj(_GZIP)
    for piece in pieces:
        while piece:
            if state.eof:  # one packed file after the other is one text
                state = zlib.decompressobj(_GZIP)
            try:
                yield state.decompress(piece, _CHUNK)
            except zlib.error as error:
                raise Damaged(f"it cannot be unpacked: {error}") from None
            piece = state.unconsumed_tail or state.unused_data
    if not state.eof:
        raise Damaged("the packed file ends too early")


def values(pieces: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Name and value of each member of the text; of ``traceEvents``, each element under that name.

    Raises :class:`Damaged` where the text is no JSON.
    """
    text = _Text(iter(pieces))
    while sign := text.sign():
        if sign == "[":
            yield from _elements(text)
        elif sign == "{":
            yield from _members(text)
        else:
            raise Damaged("this is not the JSON of a trace")


def _members(text: "_Text") -> Iterator[tuple[str, Any]]:
    text.skip()
    while (sign := text.sign()) != "}":
        if sign == ",":
            text.skip()
            continue
        name = text.value()
        if not isinstance(name, str) or text.sign() != ":":
            raise Damaged(f"no member of an object at character {text.place:,}")
        text.skip()
        if name == EVENTS and text.sign() == "[":
            yield from _elements(text)
        else:
            yield name, text.value()
    text.skip()


def _elements(text: "_Text") -> Iterator[tuple[str, Any]]:
    text.skip()
    while (sign := text.sign()) != "]":
        if sign == ",":
            text.skip()
            continue
        yield EVENTS, text.value()
    text.skip()


class _Text:
    """The text, as far as it was read, and the place in it."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._text, self._at, self._before = "", 0, 0

    @property
    def place(self) -> int:
        return self._before + self._at

    def sign(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            text, at = self._text, self._at
            while at < len(text) and text[at] in _BLANK:
                at += 1
            self._at = at
            if at < len(text):
                return text[at]
            if not self._more():
                return ""

    def skip(self) -> None:
        self._at += 1

    def value(self) -> Any:
        if not self.sign():
            raise Damaged("the file ends too early")
        while True:
            try:
                found, end = _decode(self._text, self._at)
            except RecursionError:
                raise Damaged(f"lists in lists without end at character {self.place:,}") from None
            except ValueError as error:
                if len(self._text) - self._at > _LONGEST:
                    raise Damaged(f"no JSON at character {self.place:,}: {str(error).partition(':')[0]}") from None
                if not self._more():
                    raise Damaged("the file ends too early") from None
                continue
            after = self._text[end : end + 1]
            if self._text[self._at] in '"[{' or (after and after in _AFTER) or not self._more():
                self._at = end
                return found

    def _more(self) -> bool:
        """Reads as much again as waits, so that a long value is not decoded too often; False at the end."""
        new, size, most = [], 0, len(self._text) - self._at
        for piece in self._pieces:
            new.append(piece)
            size += len(piece)
            if size and size >= most:
                break
        self._before += self._at
        self._text, self._at = self._text[self._at :] + "".join(new), 0
        return size > 0
