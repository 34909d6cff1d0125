"""What is noted of a pass until it is submitted, and submitted passes on their way to their times. Plain data.

A pass is one list, made in every frame. When it is submitted it is looked at and then forgotten: hundreds come together
before the GPU has told their times, and by then each would have to be fetched from memory again, which costs more than
all that is done with it. So a :class:`Batch` has what they have in common once, and little for each.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

#: One timed pass or copy on its way from the encoder to its submission, by the places below. A list because making one
#: and looking into it costs a fraction of what an object with attributes costs, and there may be thousands a second.
Pass = list[Any]

KIND = 0  # "compute", "render", or the copy's method
SOURCE = 1  # of the name: "pass", "encoder", "pipeline", "entry_point" or "line"
NAME = 2  # None: its first pipeline may still name it; of a "line" what stands behind it
DISPATCHES = 3
GRID = 4  # of the last dispatch, as the program gave it
BYTES = 5  # of a copy
BLOCK = 6
CODE = 7  # that began a pass without a label
AT = 8  # where in it: an instruction, whose line is looked up when it is needed
LENT = 9  # our two queries; None where the program's own are used
WRITES = 10  # pointer to the C structure that says which queries; None once it has reached the pass
OWN = 11  # the program's own query set and indices

#: Two neighbouring queries: the number of the first, pointers to the C structure that says so, and to the descriptor of
#: a compute pass without a label that has them.
Lent = tuple[int, Any, Any, Any]

CLEAR = "clear_buffer"  # the one :data:`KIND` of those with bytes that is no copy
POINTER = {"compute": 1, "render": 2}  # in :data:`Lent`
PLAIN = 3


def begun(kind: str, name: str, lent: Lent | None, block: Any) -> Pass:
    """A new copy; :mod:`._passes` spells out its passes, which come too often for one call more."""
    return [kind, "pass", name, 0, None, None, block, None, 0, lent, None, None]


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
        """Passes that the program submitted at ``submitted_ns``, whatever it gave as workgroup counts."""
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
            if block is not None or source == "line":
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
