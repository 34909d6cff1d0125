"""How text may look where it goes: width, colour, and the letters its encoding has."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._runtime.text import encodable, terminal

_PLAIN_WIDTH = 100
#: Between one of them and its number no line ends.
_UNITS = frozenset(("%", "ns", "µs", "us", "ms", "s", "MHz", "W", "°C"))
_UNITS |= {f"{size}B{of}" for size in ("", "k", "M", "G", "T") for of in ("", "/s")}
_GLUE = "\N{NO-BREAK SPACE}"
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
#: Stand-ins for an encoding that lacks the letter.
_ASCII = str.maketrans(
    {"µ": "u", "–": "-", "—": "-", "…": "~", "·": "|", "×": "x", "›": ">", "≥": ">=", "█": "#", "░": ".", "�": "?"}
    | dict.fromkeys("“”", '"')
)


class Style(NamedTuple):
    """Where text goes. Everything shown passes through :meth:`line`."""

    width: int = _PLAIN_WIDTH
    color: bool = False
    encoding: str = "utf-8"
    cuts: bool = True  # False where lines may be longer than the width: a pipe, a file

    def line(self, text: str, *, paint: str = "") -> str:
        """``text``, on a screen cut to the width, in letters the encoding has, painted where colour is allowed."""
        text = self._one(text)
        if self.cuts and len(text) > self.width:
            text = text[: self.width - 1] + self.fit("…")
        return self._painted(text, paint)

    def wrapped(self, text: str, *, paint: str = "") -> list[str]:
        """``text`` in as many lines as it takes; those after the first stand further in than it does. A word that is
        longer than a line is divided only on a screen."""
        indent = text[: len(text) - len(text.lstrip())] + "  "
        text = glued(self._one(text))
        lines = [text.rstrip(" ")] if text.strip() else []
        if len(text) > self.width:
            from textwrap import wrap  # the line of a run without a GPU does not need it

            lines = wrap(text, self.width, subsequent_indent=indent, break_long_words=self.cuts, break_on_hyphens=False)
        return [self._painted(line.replace(_GLUE, " "), paint) for line in lines]

    def whole(self, text: str, *, paint: str = "") -> str:
        """As :meth:`line`, however long: a command is of use only whole."""
        return self._painted(self._one(text), paint)

    def _one(self, text: str) -> str:
        return self.fit(text.replace("\n", " "))

    def _painted(self, text: str, paint: str) -> str:
        return f"\x1b[{_CODES[paint]}m{text}\x1b[0m" if paint and self.color else text

    def fit(self, text: str) -> str:
        """``text`` in letters that the encoding has, none of which moves a cursor; lines stay lines."""
        text = terminal(text)
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return encodable(text.translate(_ASCII), self.encoding)
        except LookupError:
            return encodable(text.translate(_ASCII), "ascii")
        return text

    def bar(self, share: float, length: int = 20) -> str:
        """``share`` (0…1) as a bar of ``length`` cells."""
        full = round(max(0.0, min(1.0, share)) * length)
        return self.fit("█" * full + "░" * (length - full))


def glued(text: str) -> str:
    """With a no-break space before each unit."""
    first, *words = text.split(" ")
    parts, before = [first], first
    for word in words:
        parts.append(_GLUE if before[-1:].isdigit() and word.rstrip(".,:;)…") in _UNITS else " ")
        parts.append(word)
        before = word
    return "".join(parts)


PLAIN = Style(cuts=False)


def style_of(stream: Any, environ: Mapping[str, str] = os.environ) -> Style:
    """The style of a text stream. Colour only on a terminal that has it and whose user did not refuse it."""
    try:
        terminal = bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        terminal = False
    color = terminal and not environ.get("NO_COLOR") and environ.get("TERM", "") not in ("dumb", "")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return Style(_width(stream if terminal else None, environ), color, encoding, terminal)


def _width(terminal: Any, environ: Mapping[str, str]) -> int:
    try:
        asked = int(environ.get("COLUMNS", ""))
    except ValueError:
        asked = 0
    if asked <= 0 and terminal is not None:
        try:
            asked = os.get_terminal_size(terminal.fileno()).columns
        except (OSError, ValueError, AttributeError):
            asked = 0
    return max(40, min(asked, 300)) if asked > 0 else _PLAIN_WIDTH
