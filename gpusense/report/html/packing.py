"""Columns of numbers for the page in few bytes, which a few lines of JavaScript read into arrays. Pure.

Most numbers of a column fit into one or two bytes; those that do not stand behind them, with their places.
"""

import sys
from array import array
from operator import sub
from typing import Any, NamedTuple

from ..._records import lanes

_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "d"}  # bytes of a number, and what array holds such
_FAR = 4 + 8  # bytes of a number that does not fit, with its place


class Packed(NamedTuple):
    """``shape`` is what a reader needs: bytes of each number, how many do not fit, and 1 where the numbers are the
    differences from the one before, an odd one a negative one."""

    data: bytes
    shape: tuple[int, int, int]


def packed(values: "array[int]", *, alike: bool = False) -> Packed:
    """Numbers from 0 on, below 2**53. ``alike``: neighbours may be nearly the same."""
    best = _fitting(values)
    if alike and best[0]:
        steps = _steps(values)
        found = _fitting(steps)
        if found < best:
            return _written(steps, found[1], 1)
    return _written(values, best[1], 0)


def _steps(values: "array[int]") -> "array[int]":
    """Differences as numbers from 0 on."""
    view = memoryview(values)
    found = array("q", values[:1])
    found.extend(map(sub, view[1:], view[:-1]))
    return array("q", [2 * step if step >= 0 else -2 * step - 1 for step in found])


def _fitting(values: "array[int]") -> tuple[int, int]:
    """Bytes that a column takes at least, and the width with which it does."""
    if not any(values):
        return 0, 0
    return min(
        (len(values) * width + (_FAR * _beyond(values, width).count(1) if width < 8 else 0), width) for width in _WIDTHS
    )


def _beyond(values: "array[int]", width: int) -> bytes:
    return lanes.above(values, (1 << 8 * width) - 1)


def _written(values: "array[int]", width: int, steps: int) -> Packed:
    if not width:
        return Packed(b"", (0, 0, 0))
    far = lanes.places(_beyond(values, width)) if width < 8 else array("I")
    large = array("d", map(values.__getitem__, far))
    if far:
        values = values[:]
    for at in far:
        values[at] = 0
    columns: list[array[Any]] = [array(_WIDTHS[width], values), far, large]
    if sys.byteorder == "big":
        for column in columns:
            column.byteswap()
    return Packed(b"".join(column.tobytes() for column in columns), (width, len(far), steps))
