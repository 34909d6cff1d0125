"""Text of exact width: painting, bars, graphs. Pure; knows nothing of devices."""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

_SGR = {"title": "1", "dim": "2", "good": "32", "warm": "33", "hot": "31", "critical": "1;97;41", "accent": "36"}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
#: Text of nothing but printable characters of one cell: ASCII, Latin, lines, blocks, braille.
_plain = re.compile("[ -~\u00a0-\u00ac\u00ae-\u02ff–\u2500-\u259f▶\u2800-\u28ff]*").fullmatch
_ASCII_STEPS = " .:-=+*#%@"
#: Bits of a braille cell from the bottom up, left and right column.
_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)

GIB, MIB = 2**30, 2**20

Segment = tuple[str, str]  # text, style
Line = list[Segment]


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
        text = clip(printable(text), room)
        if not text:
            continue
        room -= cells(text)
        if theme.ascii and not text.isascii():
            text = text.encode("ascii", "replace").decode()
        parts.append(f"\x1b[{_SGR[style]}m{text}\x1b[0m" if theme.color and style else text)
    return "".join(parts)


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


def buckets(times: list[int], values: list[float | None], now_ns: int, span_s: int, count: int) -> list[float | None]:
    """Mean of ``values`` in each of ``count`` equal parts of the ``span_s`` seconds before ``now_ns``.

    None where nothing fell. A part without a sample between two that have one takes the earlier value, so that a slow
    period leaves no holes.
    """
    span = span_s * 1_000_000_000
    start = now_ns - span
    sums = [0.0] * count
    counts = [0] * count
    for time_ns, value in zip(times, values, strict=True):
        if value is not None and start <= time_ns <= now_ns:
            place = min((time_ns - start) * count // span, count - 1)
            sums[place] += value
            counts[place] += 1
    points = [total / number if number else None for total, number in zip(sums, counts, strict=True)]
    known = [place for place, number in enumerate(counts) if number]
    longest = count * 3 // span_s + 1  # three seconds
    for before, after in pairwise(known):
        if after - before <= longest:
            points[before + 1 : after] = [points[before]] * (after - before - 1)
    if known and count - 1 - known[-1] <= longest:
        points[known[-1] + 1 :] = [points[known[-1]]] * (count - 1 - known[-1])
    return points


def graph(points: list[float | None], rows: int, theme: Theme) -> list[list[Segment]]:
    """Percentages as ``rows`` lines, two points a cell (one in ASCII), each stretch in the colour of its load."""
    steps = len(_ASCII_STEPS) - 1 if theme.ascii else 4
    top = rows * steps
    # 0 stands for "unknown"; a value that is there fills at least one step.
    levels = [0 if p is None else min(max(int(p * top / 100 + 0.5), 1), top) for p in points]
    if theme.ascii:
        codes, shown = levels, levels
    else:
        codes = [left * (top + 1) + right for left, right in zip(levels[::2], levels[1::2], strict=True)]
        shown = [max(left, right) for left, right in zip(levels[::2], levels[1::2], strict=True)]
    colors = ["", *(load_style(level / top * 100) for level in range(1, top + 1))]
    styles = [colors[level] for level in shown]
    return [_row([table[code] for code in codes], styles) for table in _tables(rows, theme.ascii)]


@lru_cache(maxsize=16)
def _tables(rows: int, in_ascii: bool) -> list[list[str]]:
    """For each row from the top, the character of every code that :func:`graph` makes of the levels."""
    if in_ascii:
        steps = len(_ASCII_STEPS) - 1
        return [
            [_ASCII_STEPS[min(max(level - row * steps, 0), steps)] for level in range(rows * steps + 1)]
            for row in range(rows - 1, -1, -1)
        ]
    levels = range(rows * 4 + 1)
    return [
        [_braille(left - row * 4, right - row * 4) for left in levels for right in levels]
        for row in range(rows - 1, -1, -1)
    ]


def _braille(left: int, right: int) -> str:
    """The cell whose columns are filled to ``left`` and ``right`` of four dots; less than none is none."""
    return chr(0x2800 + sum(_LEFT[: max(left, 0)]) + sum(_RIGHT[: max(right, 0)]))


def _row(texts: list[str], styles: list[str]) -> list[Segment]:
    """Neighbours of one style joined, so that a line holds few escape sequences."""
    line: list[Segment] = []
    start = 0
    for place in range(1, len(texts) + 1):
        if place == len(texts) or styles[place] != styles[start]:
            line.append(("".join(texts[start:place]), styles[start]))
            start = place
    return line
