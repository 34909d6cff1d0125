"""Submitted passes on their way to their times: what they have in common once, and little for each.

They are looked at when they are submitted and then forgotten: hundreds come together before the GPU has told their
times, and by then each would have to be fetched from memory again, which costs more than all that is done with it.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ._pass import GRID, Pass


class Batch:
    """``kinds``: one pass of each kind; ``which`` of them each pass is, the queries ``lent`` to it, and when it was
    ``submitted``."""

    __slots__ = ("_last", "_number", "_numbers", "kinds", "lent", "submitted", "which")

    def __init__(self) -> None:
        self.kinds: list[Pass] = []
        self.which: list[int] = []
        self.lent: list[Any] = []  # Lent; None where the program's own queries are used
        self.submitted: list[int] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._last: tuple[Any, ...] = ()  # key of the last one, which the next is often like
        self._number = 0

    def __len__(self) -> int:
        return len(self.which)

    def add(self, passes: list[Pass], submitted_ns: int) -> None:
        try:
            self._add(passes, submitted_ns)
        except Exception:  # noqa: BLE001 - a program's workgroup counts may be of a type without a hash, or worse
            for timed in passes:
                timed[GRID] = whole(timed[GRID]) if timed[GRID] else None
            self._add(passes, submitted_ns)

    def _add(self, passes: list[Pass], submitted_ns: int) -> None:
        last, number, numbers = self._last, self._number, self._numbers
        which: list[int] = []
        lent: list[Any] = []
        for timed in passes:
            kind, source, name, dispatches, grid, size, block, code, at, queries, _, _ = timed
            key: tuple[Any, ...] = (kind, source, name, dispatches, grid, size)
            if block is not None or not name:
                key = (*key, id(block), id(code), at)  # ``kinds`` holds what has these ids
            if key != last:
                number = numbers.get(key, -1)
                if number < 0:
                    number = numbers[key] = len(self.kinds)
                    self.kinds.append(timed)
                last = key
            which.append(number)
            lent.append(queries)
        self._last, self._number = last, number
        self.which += which
        self.lent += lent
        self.submitted += [submitted_ns] * len(which)

    def pick(self, chosen: Iterable[int]) -> "Batch":
        """Some of them, in this order."""
        made, order = Batch(), list(chosen)
        made.kinds = self.kinds
        made.which = [self.which[at] for at in order]
        made.lent = [self.lent[at] for at in order]
        made.submitted = [self.submitted[at] for at in order]
        return made


def whole(grid: Any) -> tuple[int, ...] | None:
    """Workgroup counts as whole numbers; None where they are nothing that wgpu could have taken."""
    try:
        return tuple(map(int, grid))
    except Exception:  # noqa: BLE001 - whatever the program gave
        return None


class Timed(NamedTuple):
    """Passes that ended at the latest at ``seen_ns``, and their ticks."""

    batch: Batch
    begins: list[int]
    ends: list[int]
    seen_ns: int
