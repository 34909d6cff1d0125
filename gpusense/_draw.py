"""Text of exact width: painting, bars, graphs. Pure; knows nothing of devices."""

import codecs
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

_SGR = {"title": "1", "dim": "2", "good": "32", "warm": "33", "hot": "31", "critical": "1;97;41", "accent": "36"}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
#: Text of nothing but printable characters of one cell: ASCII, Latin, lines, blocks, braille.
_plain = re.compile("[ -~\u00a0-\u00ac\u00ae-\u02ff–\u2500-\u259f▶\u2800-\u28ff]*").fullmatch
_ASCII_STEPS = " .:-=+*#%@"
_LEVELS = [bytes([level]) for level in range(256)]
#: Bits of a braille cell from the bottom up, left and right column.
_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)

GIB, MIB = 2**30, 2**20

Segment = tuple[str, str]  # text, style
Line = list[Segment]
Stretch = tuple[float | None, int]  # value, how many points of a graph have it


class Theme(NamedTuple):
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


def paint(line: Line, width: int, theme: Theme) -> str:
    """The text of ``line`` cut to ``width`` cells, with escape sequences only where the theme has colour."""
    room = width
    parts = []
    for text, style in line:
        if not (text.isascii() and text.isprintable()) and not _plain(text):
            text = printable(text)
            wide = cells(text)
        else:
            wide = len(text)
        if wide > room:
            text = clip(text, room)
            wide = cells(text)
        if not text:
            continue
        room -= wide
        if theme.ascii and not text.isascii():
            text = text.encode("ascii", "replace").decode()
        parts.append(f"\x1b[{_SGR[style]}m{text}\x1b[0m" if theme.color and style else text)
    return "".join(parts)


def paint_fitting(line: Line, theme: Theme) -> str:
    """As :func:`paint`, for a line of printable text that is known to fit."""
    if not theme.color:
        return "".join([text for text, _ in line])
    return "".join([f"\x1b[{_SGR[style]}m{text}\x1b[0m" if style else text for text, style in line])


def printable(text: str) -> str:
    """``text`` with everything that could move the cursor, or take no cell, made visible as a question mark."""
    if _plain(text):
        return text
    return "".join(c if c.isprintable() and not unicodedata.combining(c) else "?" for c in text)


def cells(text: str) -> int:
    """Terminal columns that ``text`` takes: two for a wide East Asian character."""
    if _plain(text):
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def clip(text: str, room: int) -> str:
    if cells(text) <= room:
        return text
    kept = 0
    for place, character in enumerate(text):
        kept += cells(character)
        if kept > room:
            return text[:place]
    return text


def pad(text: str, room: int) -> str:
    """``text`` in exactly ``room`` cells."""
    text = clip(printable(text), room)
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


def size_text(size: float, unit: int = GIB) -> str:
    return f"{size / unit:.1f}" if unit == GIB else f"{size / unit:.0f}"


def rate_text(rate: float) -> str:
    """Bytes a second with a unit that keeps it short."""
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if rate >= unit:
            return f"{rate / unit:.1f} {name}"
    return f"{rate:.0f} B/s"


def percent_text(percent: float | None, theme: Theme) -> str:
    return theme.none if percent is None else f"{percent:.0f} %"


def places(times: Sequence[int], now_ns: int, span_s: int, count: int, align: int = 1) -> list[int]:
    """Which of ``count`` parts of the last ``span_s`` seconds each time falls into; -1: none.

    The parts lie on a grid that stands still while ``now_ns`` moves, and begin anew every ``align`` of them: a moment
    keeps its part, and its side of a cell, until it leaves on the left.
    """
    span = span_s * 1_000_000_000
    whole = count // align
    first = ((now_ns * whole - 1) // span + 1 - whole) * align
    oldest = now_ns - span
    last = count - 1
    found = []
    for time_ns in times:
        place = time_ns * count // span - first
        if not oldest <= time_ns <= now_ns:
            place = -1
        elif not 0 <= place <= last:  # the oldest part holds what its place on the grid leaves over
            place = 0 if place < 0 else last
        found.append(place)
    return found


def stretches(where: Sequence[int], values: Sequence[float | None], count: int, span_s: int) -> list[Stretch]:
    """What ``count`` parts of ``span_s`` seconds hold, from the places of the values: the mean of what fell into each.

    None where nothing fell. A part without a sample between two that have one takes the earlier value, so that a slow
    period leaves no holes.
    """
    longest = count * 3 // span_s + 1  # three seconds
    found: list[Stretch] = []
    latest: float | None = None
    filled, total, number = 0, 0.0, 0
    for place, value in zip(where, values, strict=True):
        if value is None or place < 0:
            continue
        gap = place - filled
        if gap < 0:  # another in the same part
            total += value
            number += 1
            latest = total / number
            found[-1] = latest, 1
            continue
        if gap and found and gap < longest:
            found[-1] = latest, gap + 1
        elif gap:
            found.append((None, gap))
        found.append((value, 1))
        latest = total = value
        number = 1
        filled = place + 1
    gap = count - filled
    found.append((latest if gap <= longest else None, gap))
    return found


def graph(points: Sequence[Stretch], rows: int, theme: Theme) -> list[Line]:
    """Percentages as ``rows`` lines (16 at most), two points a cell (one in ASCII), each stretch in the colour of its
    load."""
    steps = len(_ASCII_STEPS) - 1 if theme.ascii else 4
    top = rows * steps
    step = top / 100
    filled = []
    for value, parts in points:
        # 0 stands for "unknown"; a value that is there fills at least one step.
        level = 0
        if value is not None:
            level = int(value * step + 0.5)
            level = 1 if level < 1 else min(level, top)
        filled.append(_LEVELS[level] * parts)
    levels = b"".join(filled)
    left, right = (levels, b"") if theme.ascii else (levels[::2], levels[1::2])
    # From here on whole lines go through tables at once: bytes for levels, a character for each byte.
    colors = _color_table(top, steps)
    runs = [
        (run.start(), run.end(), _STYLES[run.group()[0]])
        for run in _runs(_joined(left.translate(colors), right.translate(colors), len(_STYLES), _COLOR_OF_PAIR))
    ]
    lines: list[Line] = []
    for row in range(rows - 1, -1, -1):
        cut = _row_table(row, steps)
        text = _joined(left.translate(cut), right.translate(cut), steps + 1, _ASCII_STEPS if theme.ascii else _BRAILLE)
        lines.append([(text[start:end], style) for start, end, style in runs])
    return lines


def _joined(left: bytes, right: bytes, base: int, alphabet: str) -> str:
    """A character for each pair of digits below ``base``: the one at left × base + right of ``alphabet``."""
    if not right:
        return codecs.charmap_decode(left, "strict", alphabet)[0]
    # As one large number: no pair reaches 256, so no byte overflows into the next.
    pairs = int.from_bytes(left, "big") * base + int.from_bytes(right, "big")
    return codecs.charmap_decode(pairs.to_bytes(len(left), "big"), "strict", alphabet)[0]


@lru_cache(maxsize=64)
def _row_table(row: int, steps: int) -> bytes:
    """Level → how many of the steps of one row from the bottom it fills."""
    return bytes([min(max(level - row * steps, 0), steps) for level in range(256)])


@lru_cache(maxsize=64)
def _color_table(top: int, steps: int) -> bytes:
    """Level → place in the styles; in row 0 the text is drawn whatever the style."""
    known = [_STYLE_PLACES[load_style(min(level, top) / top * 100)] for level in range(1, 256)]
    return bytes([0, *known])


def _braille(left: int, right: int) -> str:
    """The cell whose columns are filled to ``left`` and ``right`` of four dots."""
    return chr(0x2800 + sum(_LEFT[:left]) + sum(_RIGHT[:right]))


_BRAILLE = "".join(_braille(left, right) for left in range(5) for right in range(5))
#: Styles of a cell, and a digit for each that the next stands for; a cell has the stronger of its two points.
_STYLES = {"0": "", "1": "good", "2": "warm", "3": "hot"}
_STYLE_PLACES = {"good": 1, "warm": 2, "hot": 3}
_COLOR_OF_PAIR = "".join(str(max(left, right)) for left in range(4) for right in range(4))
_runs = re.compile(r"(.)\1*").finditer
