"""Columns of numbers for the page in few bytes, which a few lines of JavaScript read into arrays. Pure.

Most numbers of a column fit into two bytes, into one, or are 0. Those that do not fit stand behind them: how far each
is from the one before, and then what they are, as columns themselves.
"""

import sys
from array import array
from operator import sub
from typing import Any, NamedTuple

from ..._records import lanes

#: Bytes that a number takes about which does not fit.
_FAR = 6


class Packed(NamedTuple):
    """``shape`` is what a reader needs: 0 where all numbers are 0; else the bytes of each, of which all lowest stand
    first, and 1 where the numbers are the differences from the one before, an odd one a negative one; and where some do
    not fit, how many, and the shapes of their distances and of themselves."""

    data: bytes
    shape: Any


def packed(values: "array[int]", *, alike: bool = False) -> Packed:
    """Numbers from 0 on, of which JavaScript keeps 53 bits. ``alike``: neighbours may be nearly the same."""
    best = _fitting(values)
    if alike and 0 < best[1] < 8:
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
    """Bytes that a column takes at least, about, and the width with which it does."""
    most = -(-max(values, default=0).bit_length() // 8)
    best = len(values) * most, most
    for width in range(most):
        far = _beyond(values, width).count(1)
        if 2 * far < len(values):
            best = min(best, (len(values) * width + _FAR * far, width))
    return best


def _beyond(values: "array[int]", width: int) -> bytes:
    """A byte for each number: 1 where so many bytes do not hold it."""
    return lanes.above(values, (1 << 8 * width) - 1)


def _written(values: "array[int]", width: int, steps: int) -> Packed:
    places = lanes.places(_beyond(values, width))
    low = values[:] if places else values
    for at in places:
        low[at] = 0
    raw = low.tobytes()
    data = b"".join(raw[at if sys.byteorder == "little" else 7 - at :: 8] for at in range(width))  # the lowest first
    if not places:
        return Packed(data, [width, steps] if width else 0)
    view = memoryview(places)
    distances = packed(array("q", [places[0], *map(sub, view[1:], view[:-1])]))
    large = packed(array("q", map(values.__getitem__, places)))
    return Packed(data + distances.data + large.data, [width, steps, len(places), distances.shape, large.shape])
