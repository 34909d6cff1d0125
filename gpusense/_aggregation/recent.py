"""The last seconds in full: every row of decoded work, and every record that came finished. Pure.

All of it was made anyhow, and is kept a while longer here: what a batch added to the table of all work, and records as
they are. So what comes in is one more reference, and nothing is copied. It goes in whole parts, the oldest first.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from sys import getsizeof
from typing import Any, NamedTuple

from .._attribution.timelines import Candidates
from .._records.records import BlockRecord, Record
from .._records.work import Columns, WorkTable
from .same_kernels import SameKernels

#: Of what is held, as it is reckoned here. With what writing it takes, and what this leaves out, it is below 64 MB.
MOST_BYTES = 44 << 20
_FINISHED = 256  # records that make a part

#: What one thing takes, over the numbers in its columns.
_A_PART, _A_BLOCK, _AN_AMBIGUITY, _A_SHARED_ROW = 1_100, 360, 150, 110


class Rows(NamedTuple):
    """Rows of decoded work: the columns that a table has of them, and the block of each, as (how many in a row, id or
    0). ``ambiguous``: number of such a run → the candidates where its block is not certain. ``table``: whose kinds and
    paths the columns mean."""

    table: WorkTable
    columns: Columns
    counts: "array[int]"
    blocks: "array[int]"
    ambiguous: dict[int, Candidates]


class Part(NamedTuple):
    """What came together. Nothing in it ended after ``newest_ns``."""

    newest_ns: int
    size_bytes: int
    content: Rows | list[Record | SameKernels]


class Recent:
    """What ended in the last ``keep_ns``, as far as it finds room. ``table``: whose kinds and paths new rows mean.

    Used by one thread at a time.
    """

    def __init__(self, keep_ns: int, table: WorkTable, most_bytes: int = MOST_BYTES) -> None:
        self.keep_ns = keep_ns
        self.table = table
        self._meant = table.empty()
        self.most_bytes = most_bytes
        self.size_bytes = 0
        self.gone_ns = 0  # what ended up to here is not held any more, or not all of it
        self._parts: deque[Part] = deque()
        self._finished: list[Record | SameKernels] = []

    def add_rows(self, columns: Columns, runs: Sequence[tuple[int, int, Candidates]], newest_ns: int) -> None:
        """Rows that the table got. ``runs``: how many in a row are of which block, and the candidates where that is
        not certain."""
        counts, blocks = array("q", [run[0] for run in runs]), array("q", [run[1] for run in runs])
        ambiguous = {number: run[2] for number, run in enumerate(runs) if run[2]}
        size = _A_PART + 40 * len(columns[0]) + 16 * len(runs) + _AN_AMBIGUITY * len(ambiguous)
        self._append(Part(newest_ns, size, Rows(self._meant, columns, counts, blocks, ambiguous)))

    def renumbered(self) -> None:
        """The table has forgotten kinds or paths, and has other numbers for the rest of them from now on."""
        self._meant = self.table.empty()

    def add(self, item: Any) -> None:
        """A finished record, or many in one."""
        self._finished.append(item)
        if len(self._finished) >= _FINISHED:
            self._close()

    def trim(self, now_ns: int) -> None:
        """Lets go what is too old, or from a time that has not come: a clock was wrong."""
        if self._finished:
            self._close()
        parts, since = self._parts, now_ns - self.keep_ns
        while parts and not since <= parts[0].newest_ns <= now_ns + self.keep_ns:
            self._drop(now_ns)

    def parts(self) -> list[Part]:
        """All of it, the oldest first. Parts do not change."""
        if self._finished:
            self._close()
        return list(self._parts)

    def _close(self) -> None:
        items, self._finished = self._finished, []
        newest_ns = max([item.end_ns for item in items])
        size = sum([_size(item) for item in items if type(item) is not BlockRecord or item.attributes])
        self._append(Part(newest_ns, _A_PART + _A_BLOCK * len(items) + size, items))

    def _append(self, part: Part) -> None:
        self._parts.append(part)
        self.size_bytes += part.size_bytes
        while self.size_bytes > self.most_bytes:
            self._drop(part.newest_ns)

    def _drop(self, now_ns: int) -> None:
        part = self._parts.popleft()
        self.size_bytes -= part.size_bytes
        self.gone_ns = max(self.gone_ns, min(part.newest_ns, now_ns))


def _size(item: Any) -> int:
    """About so many bytes more than a block takes; of what the program has put into attributes, texts count in full."""
    if type(item) is SameKernels:
        return _A_SHARED_ROW * len(item)
    size = getsizeof(item)
    attributes = getattr(item, "attributes", None)
    if attributes:
        size += getsizeof(attributes) + sum(getsizeof(value) for value in attributes.values())
    return size
