"""Text of exact width: painting, bars, numbers. Pure; knows nothing of devices."""

import re
import unicodedata
from typing import NamedTuple

from ..._runtime.text import printable

_SGR = {"title": "1", "dim": "2", "good": "32", "warm": "33", "hot": "31", "critical": "1;97;41", "accent": "36"}
_COLOR_ON = {"": "\x1b[0m"} | {style: f"\x1b[{code}m" for style, code in _SGR.items()}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
#: Text of nothing but printable characters of one cell: ASCII, Latin, lines, blocks, braille.
_plain = re.compile("[ -~\u00a0-\u00ac\u00ae-\u02ff–…\u2500-\u259f▶▲▼\u2800-\u28ff]*").fullmatch

Segment = tuple[str, str]  # text, style
Line = list[Segment]


class Theme(NamedTuple):
    """What the terminal can show, and the signs that depend on it."""

    color: bool = True
    ascii: bool = False

    @property
    def dot(self) -> str:
        return " | " if self.ascii else " · "

    @property
    def degree(self) -> str:
        return " C" if self.ascii else " °C"

    @property
    def none(self) -> str:
        return "-" if self.ascii else "–"

    @property
    def up(self) -> str:
        return "^" if self.ascii else "▲"

    @property
    def down(self) -> str:
        return "v" if self.ascii else "▼"


def paint(line: Line, width: int, theme: Theme) -> str:
    """The text of ``line`` in at most ``width`` cells, the last a "…" where it was longer, with escape sequences only
    where the theme has colour."""
    whole = "".join([text for text, _ in line])
    if len(whole) <= width and (whole.isprintable() if whole.isascii() else not theme.ascii and _plain(whole)):
        return paint_fitting(line, theme)
    room = width
    line = [(measurable(text), style) for text, style in line]
    left = sum([cells(text) for text, _ in line])
    parts = []
    for text, style in line:
        wide = cells(text)
        cut = left > room and wide >= room  # what has no room is not left out without a sign
        if cut:
            text = clip(text, room - 1) + "…" if room > 0 else ""
        room -= wide
        left -= wide
        if theme.ascii and not text.isascii():
            text = text.replace("…", "~").encode("ascii", "replace").decode()
        parts.append(f"\x1b[{_SGR[style]}m{text}\x1b[0m" if theme.color and style and text else text)
        if cut:
            break
    return "".join(parts)


def paint_fitting(line: Line, theme: Theme) -> str:
    """As :func:`paint`, for a line of printable text that is known to fit."""
    if not theme.color:
        return "".join([text for text, _ in line])
    return "".join([f"\x1b[{_SGR[style]}m{text}\x1b[0m" if style and text else text for text, style in line])


def paint_run(line: Line, theme: Theme) -> str:
    """As :func:`paint_fitting`, for many pieces whose styles are colours: each takes the place of the one before."""
    if not theme.color:
        return "".join([text for text, _ in line])
    return "".join([_COLOR_ON[style] + text for text, style in line]) + "\x1b[0m"


def measurable(text: str) -> str:
    """``text`` with a question mark for everything that could move the cursor or take no cell, so that
    :func:`cells` knows its width."""
    if _plain(text):
        return text
    return "".join(["?" if unicodedata.category(c) in ("Mn", "Me") else c for c in printable(text, "?")])


def cells(text: str) -> int:
    """Terminal columns that ``text`` takes: two for a wide East Asian character."""
    if _plain(text):
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def clip(text: str, room: int) -> str:
    """``text`` cut to ``room`` cells."""
    if cells(text) <= room:
        return text
    kept = 0
    for place, character in enumerate(text):
        kept += cells(character)
        if kept > room:
            return text[:place]
    return text


def shortened(text: str, room: int) -> str:
    """``text`` as :func:`measurable`, in at most ``room`` cells: the last a "…" where it was longer."""
    text = measurable(text)
    return text if cells(text) <= room else clip(text, room - 1) + "…" if room > 0 else ""


def pad(text: str, room: int) -> str:
    """``text`` in exactly ``room`` cells."""
    text = shortened(text, room)
    return text + " " * (room - cells(text))


def bar(share: float | None, width: int, theme: Theme) -> str:
    """``share`` (0…1) as a bar of ``width`` cells."""
    if width <= 0:
        return ""
    filled = min(max(share or 0.0, 0.0), 1.0) * width
    whole = int(filled)
    if theme.ascii:
        return "#" * whole + "." * (width - whole)
    part = _EIGHTHS[int((filled - whole) * 8)] if whole < width else ""
    part = "" if part == " " else part
    return "█" * whole + part + "░" * (width - whole - len(part))


def load_style(percent: float | None) -> str:
    """The colour of a share in percent: a warning from 70, an alarm from 90."""
    if percent is None:
        return "dim"
    return "good" if percent < 70 else "warm" if percent < 90 else "hot"


def whole_percent_text(percent: float | None, theme: Theme) -> str:
    """Without decimals at any size, so that a line keeps its width."""
    return theme.none if percent is None else f"{percent:.0f} %"
