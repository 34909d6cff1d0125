"""The graphs of the dashboard: the last minute of a value as rows of dots. Pure; knows nothing of devices.

A graph lies on a grid that stands still while time moves on: a moment keeps its part, and its side of a cell, until it
leaves on the left. What was drawn is kept, so that a picture costs what is new since the last one. Values are percent;
a part holds one in a byte, 0 where nothing is known.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from .paint import Line, Theme, load_style

_MOST = 255
_ASCII_STEPS = " .:-=+*#%@"
#: Bits of a braille cell from the bottom up, left and right column.
_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
_HOLD_S = 3


def code(percent: float) -> int:
    """A share in percent as the byte that stands for it."""
    return min(max(int(percent * (_MOST - 1) / 100 + 0.5), 0), _MOST - 1) + 1


class Graph:
    """One value over the last ``span_s`` seconds in ``count`` equal parts, ``align`` of them a cell.

    A part holds the mean of what fell into it. A part without a value between two that have one takes the earlier
    one, for three seconds at most, so that a slow period leaves no holes.
    """

    def __init__(self, count: int, align: int, span_s: int) -> None:
        self._count, self._align = count, align
        self._span_ns = span_s * 1_000_000_000
        self._hold = count * _HOLD_S // span_s + 1
        self._codes = bytearray()
        self._end: int | None = None  # the part after the last one in ``_codes``, counted from the beginning of time
        self._total, self._number = 0.0, 0

    def add(self, time_ns: int, percent: float | None) -> None:
        """Takes the next value; one that is older than the last is left out."""
        if percent is None:
            return
        place = time_ns * self._count // self._span_ns
        gap = 0 if self._end is None else place - self._end
        if gap < 0:
            if gap == -1:
                self._total += percent
                self._number += 1
                self._codes[-1] = code(self._total / self._number)
            return
        if gap:
            self._codes += self._gap(gap, gap < self._hold)
        self._codes.append(code(percent))
        self._end = place + 1
        self._total, self._number = percent, 1

    def codes(self, now_ns: int) -> bytes:
        """The parts up to the cell that holds ``now_ns``, the newest last; what has left on the left is forgotten."""
        count = self._count
        if self._end is None:
            return bytes(count)
        cells = now_ns * (count // self._align) // self._span_ns + 1
        gap = cells * self._align - self._end
        if gap < 0:  # values of a moment that has not come
            return bytes(self._codes[:gap][-count:]).rjust(count, b"\0")
        del self._codes[:-count]
        return bytes(self._codes + self._gap(gap, gap <= self._hold))[-count:].rjust(count, b"\0")

    def _gap(self, parts: int, held: bool) -> bytes:
        return (bytes(self._codes[-1:]) if held else b"\0") * min(parts, self._count)


class Graphs:
    """The graphs of what is looked at, several values of it, kept from picture to picture."""

    def __init__(self) -> None:
        self._key: object = None
        self._graphs: tuple[Graph, ...] = ()
        self._until_ns = 0

    def codes(
        self,
        key: object,
        history: Sequence[Any],
        now_ns: int,
        readers: Sequence[Callable[[Any], float | None]],
        count: int,
        align: int,
        span_s: int,
    ) -> list[bytes]:
        """What each of ``readers`` reads from the samples of ``history`` (oldest first, each with a ``monotonic_ns``).

        Only samples that are new since the last call are read, where ``key`` (equal for equal readers) and the size
        are as they were and time did not go back.
        """
        key = key, count, align, span_s
        until = self._until_ns
        new: Sequence[Any] = history
        if key != self._key or not history[0].monotonic_ns <= until <= history[-1].monotonic_ns:
            self._key = key
            self._graphs = tuple(Graph(count, align, span_s) for _ in readers)
        else:
            place = len(history)
            while place and history[place - 1].monotonic_ns > until:
                place -= 1
            new = history[place:]
        self._until_ns = history[-1].monotonic_ns
        for graph, read in zip(self._graphs, readers, strict=True):
            for sample in new:
                graph.add(sample.monotonic_ns, read(sample))
        return [graph.codes(now_ns) for graph in self._graphs]


def dots(codes: bytes, rows: int, theme: Theme) -> tuple[Line, ...]:
    """Parts as ``rows`` lines, two parts a cell (one in ASCII), each run of cells in the colour of its load.

    Whole lines go through tables at once: the bytes of the left and of the right sides of the cells.
    """
    steps = len(_ASCII_STEPS) - 1 if theme.ascii else 4
    left, right = (codes, b"") if theme.ascii else (codes[::2], codes[1::2])
    colors = _joined(left.translate(_COLORS), right.translate(_COLORS), len(_STYLES), _COLOR_OF_PAIR)
    runs = [(run.start(), run.end(), _STYLES[int(run.group()[0])]) for run in _runs(colors)]
    lines: list[Line] = []
    for row in range(rows - 1, -1, -1):
        filled = _filled(row, rows, steps)
        alphabet = _ASCII_STEPS if theme.ascii else _BRAILLE
        text = _joined(left.translate(filled), right.translate(filled), steps + 1, alphabet)
        lines.append([(text[start:end], style) for start, end, style in runs])
    return tuple(lines)


def _joined(left: bytes, right: bytes, base: int, alphabet: str) -> str:
    """A character for each pair of digits below ``base``: the one at left × base + right of ``alphabet``."""
    if not right:
        return codecs.charmap_decode(left, "strict", alphabet)[0]
    # As one large number: no pair reaches 256, so no byte overflows into the next.
    pairs = int.from_bytes(left, "big") * base + int.from_bytes(right, "big")
    return codecs.charmap_decode(pairs.to_bytes(len(left), "big"), "strict", alphabet)[0]


def _percent(number: int) -> float:
    return (number - 1) * 100 / (_MOST - 1)


@lru_cache(maxsize=64)
def _filled(row: int, rows: int, steps: int) -> bytes:
    """Code → how many steps of one row from the bottom it fills. A value that is there fills at least one of all."""
    top = rows * steps
    levels = [0, *(max(int(_percent(number) * top / 100 + 0.5), 1) for number in range(1, _MOST + 1))]
    return bytes([min(max(level - row * steps, 0), steps) for level in levels])


def _braille(left: int, right: int) -> str:
    """The cell whose columns are filled to ``left`` and ``right`` of four dots."""
    return chr(0x2800 + sum(_LEFT[:left]) + sum(_RIGHT[:right]))


_BRAILLE = "".join(_braille(left, right) for left in range(5) for right in range(5))
#: A cell has the style of the higher of its two parts.
_STYLES = ("", "good", "warm", "hot")
_COLORS = bytes([0, *(_STYLES.index(load_style(_percent(number))) for number in range(1, _MOST + 1))])
_COLOR_OF_PAIR = "".join(str(max(left, right)) for left in range(len(_STYLES)) for right in range(len(_STYLES)))
_runs = re.compile(r"(.)\1*").finditer
