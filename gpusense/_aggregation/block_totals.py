"""What was launched inside a block so far: totals of blocks that somebody may ask. Pure."""

from collections.abc import Iterable
from typing import Any
from weakref import ref

from .groups import Row, merge_row, row_of
from .sums import NamedRow

FOLD_AT = 4_096  # durations held for one block


class BlockTotals:
    """What was launched inside one block and its children so far, by (kind, name)."""

    # Most blocks of a program launch nothing themselves: nothing is held before the first operation.
    block_id = 0
    _rows: dict[tuple[str, str], Row] | None = None
    _waiting: dict[tuple[str, str], list[int]]
    _held = 0
    ambiguous = 0
    inherited = 0
    late = False  # what was launched first may be missing

    def extend(self, key: tuple[str, str], durations: list[int], size: int = 0, inherited: bool = False) -> None:
        """One operation for each duration; ``size``: their bytes together; ``inherited``: see :class:`Counters`."""
        if inherited:
            self.inherited += len(durations)
        if self._rows is None:
            self._rows, self._waiting = {}, {}
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = list(durations)
        else:
            waiting.extend(durations)
        if size:
            mine = self._rows.setdefault(key, [0, 0, durations[0], durations[0], 0, 0])
            mine[5] += size
        self._held += len(durations)
        if self._held > FOLD_AT:
            self._fold(self._rows)

    def _fold(self, rows: dict[tuple[str, str], Row]) -> None:
        for key, durations in self._waiting.items():
            row = row_of(durations)
            mine = rows.get(key)
            if mine is None:
                rows[key] = row
            else:
                merge_row(mine, row)
        self._waiting.clear()
        self._held = 0

    @property
    def rows(self) -> dict[tuple[str, str], Row]:
        """(kind, name) → count, total, min, max, sum of squares, bytes."""
        if self._rows is None:
            return {}
        self._fold(self._rows)
        return self._rows

    def copy(self) -> "BlockTotals":
        made = BlockTotals()
        if self._rows is not None:
            made._rows, made._waiting = {key: list(row) for key, row in self.rows.items()}, {}
        made.ambiguous, made.inherited, made.late = self.ambiguous, self.inherited, self.late
        return made


#: Kind of work → how many, nanoseconds, bytes; of waits those of the host.
KindSums = dict[str, list[int]]
#: A stream waits there, not the host.
_NO_WAIT = ("sync", "stream_wait_event")
#: How long the block itself took on the device; named after the records' ``timing``.
BLOCK_TIME = "block_time"


def by_kind(totals: BlockTotals) -> KindSums:
    """What ``totals`` come to, whatever the operations are called."""
    found: KindSums = {}
    for key, row in totals.rows.items():
        if key != _NO_WAIT and key[0] != BLOCK_TIME:
            _add(found, key[0], row[0], row[1], row[5])
    return found


def _add(sums: KindSums, kind: str, count: int, spent: int, size: int) -> None:
    mine = sums.get(kind) or sums.setdefault(kind, [0, 0, 0])
    mine[0] += count
    mine[1] += spent
    mine[2] += size


SWEEP_AT = 1_000  # blocks, dead ones among them


class Late(ref[Any]):
    """To a block of an integration, which the program asked for when it was open already."""

    __slots__ = ()


class Watched:
    """The totals of blocks that someone may still ask, by the block's id.

    The program's threads put a weak reference to each block that the program has into ``blocks``; the block holds its
    totals, made here when something was launched in it, and they go with it. All methods are called under the
    pipeline's lock.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, ref[Any]] = {}
        self._sweep_at = SWEEP_AT

    def get(self, block_id: int) -> BlockTotals | None:
        """None for a block that is gone, or was entered anew since."""
        found = self.blocks.get(block_id)
        if found is None:
            return None
        block = found()
        if block is None or block.block_id != block_id:
            self.blocks.pop(block_id, None)
            return None
        totals: BlockTotals | None = block.totals
        if totals is None or totals.block_id != block_id:
            totals = block.totals = BlockTotals()
            totals.block_id = block_id
            totals.late = type(found) is Late
        return totals

    def among(self, blocks: Iterable[int]) -> list[BlockTotals]:
        """The totals of those of ``blocks`` that somebody may ask."""
        return [totals for totals in map(self.get, blocks) if totals is not None]

    def extend(self, blocks: Iterable[int], rows: Iterable[NamedRow], inherited: bool = False) -> None:
        """Adds to those of ``blocks`` that somebody may ask. ``rows`` are looked at only where there are such."""
        every = self.among(blocks)
        for key, durations, size in rows if every else ():
            for totals in every:
                totals.extend(key, durations, size, inherited)

    def sweep(self) -> None:
        """Forgets the blocks that are gone, now and then."""
        blocks = self.blocks
        if len(blocks) < self._sweep_at:
            return
        alive = 0  # of those that there are now: the program goes on adding to them
        for block_id, found in blocks.copy().items():  # threads of the program add to it
            block = found()
            if block is None or block.block_id != block_id:
                blocks.pop(block_id, None)
            else:
                alive += 1
        self._sweep_at = max(SWEEP_AT, 2 * alive)


class EachBlock(Watched):
    """Sums of every block of a recording, of those inside it as well: all of them are asked at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[int, KindSums] = {}
        self.blocks[0] = ref(self)  # somebody asks

    def get(self, block_id: int) -> BlockTotals | None:
        return None

    def extend(self, blocks: Iterable[int], rows: Iterable[NamedRow], inherited: bool = False) -> None:
        mine = [self.sums.setdefault(block, {}) for block in blocks]
        for key, durations, size in rows if mine else ():
            spent = sum(durations)
            for sums in mine if key != _NO_WAIT and key[0] != BLOCK_TIME else ():
                _add(sums, key[0], len(durations), spent, size)

    def sweep(self) -> None:
        """There is nothing to forget."""
