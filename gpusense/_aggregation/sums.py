"""Durations on their way into sums. Pure.

A sum over one long list costs a tenth of sums over many short ones, and a block of a training step has few records of
each name. So durations are only appended at first, by place and key (the address of a kernel's name, a copy kind), and
summed up when there are many, when a name moves, or when someone asks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

from .._records.records import Path
from .groups import Groups, Row, merge_row, row_of
from .stretches import ITEM_BYTES, Stretches, spread

#: Path, kind, device, stream, owner: what records of one pile share.
Spot = tuple[Path, str, int | None, int | None, Path | None]
#: ``name(kind, key) → (name, direction or None)``
Name = Callable[[str, int], tuple[str, str | None]]

MAX_NAMES = MAX_LINES = 20_000
LINE_SHIFT = 8  # a wait's key: its type, and above that the number of the line it was made from
FOLD_AT = 32_768  # durations held; then all but a part of them are summed up, since many of a name at once cost less
KEPT = 4  # that part is one in so many
PIECE = 2_048  # durations are summed up at once, and four times as many are told apart: a part of a millisecond
BLOCK_FOLD_AT = 4_096  # durations held for one watched block


class Piles:
    """Durations that wait to be added to ``groups``."""

    __slots__ = ("_bytes", "_groups", "_held", "_in_runs", "_lines", "_name", "_names", "_piles", "_runs", "_texts")

    def __init__(self, groups: Groups, name: Name) -> None:
        self._groups = groups
        self._name = name
        self._names: dict[int, str] = {}
        self._lines: dict[str, int] = {}
        self._texts: list[str] = []  # of the lines, by number less one
        self._piles: dict[Spot, defaultdict[int, list[int]]] = {}
        self._bytes: dict[Spot, defaultdict[int, int]] = {}
        self._runs: dict[Spot, dict[bytes, bytearray]] = {}  # durations of equal stretches, one behind the other
        self._held = self._in_runs = 0  # durations in all, and those in runs

    def know(self, names: Mapping[int, str]) -> None:
        """Kernel names by address, from now on; an address may get another name when a module is unloaded."""
        known = self._names
        if not names.items() <= known.items():
            if len(known) > MAX_NAMES or any(known.get(pointer, name) != name for pointer, name in names.items()):
                self.fold()
                known.clear()
            known.update(names)

    def name(self, kind: str, key: int) -> tuple[str, str | None]:
        if kind == "kernel":
            return self._names.get(key, "?"), None
        return self._name(kind, key & (1 << LINE_SHIFT) - 1 if kind == "sync" else key)

    def keys_with_lines(self, types: Iterable[int], lines: Iterable[str | None]) -> list[int]:
        """Keys of waits that are summed up by line, too."""
        numbers = self._lines
        for line in set(lines).difference(numbers):
            if line is not None and len(numbers) < MAX_LINES:
                self._texts.append(line)
                numbers[line] = len(self._texts)
        found = [numbers.get(line, 0) if line is not None else 0 for line in lines]
        return [kind | number << LINE_SHIFT for kind, number in zip(types, found, strict=True)]

    def make_room(self, count: int) -> None:
        """Before ``count`` durations are appended."""
        self._held += count

    def tidy(self, pause: Callable[[], None] | None) -> None:
        """After durations were appended: sums up what there is too much, with ``pause`` before each part of it."""
        if self._held <= FOLD_AT:
            return
        kept = FOLD_AT // KEPT
        while self._held > kept and (self._runs or self._piles):
            if pause is not None:
                pause()
            if self._runs and (self._in_runs > kept or not self._piles):
                self._spread_some(max(PIECE, min(4 * PIECE, self._in_runs - kept)))
            else:
                self._fold_some(PIECE)
        if not (self._runs or self._piles):  # Ctrl-C may have come between making room and using it
            self._held = self._in_runs = 0

    def at(self, spot: Spot) -> defaultdict[int, list[int]]:
        """Where durations of one place are appended, by key; good until there is made room again."""
        piles = self._piles.get(spot)
        if piles is None:
            piles = self._piles[spot] = defaultdict(list)
        return piles

    def appending(self, count: int) -> Callable[[Spot, Stretches, int, int], None]:
        """What appends the durations of the records of a batch, from one to another, ``count`` of them in all."""
        self.make_room(count)
        return self._append

    def extend(self, spot: Spot, stretches: Stretches, low: int, high: int) -> None:
        """Appends the durations of the records from ``low`` to ``high`` of a batch."""
        self.make_room(high - low)
        self._append(spot, stretches, low, high)

    def _append(self, spot: Spot, stretches: Stretches, low: int, high: int) -> None:
        runs = self._runs.get(spot)
        if runs is None:
            runs = self._runs[spot] = {}
        self._in_runs += high - low
        durations, begin = stretches.durations, low * ITEM_BYTES
        for stretch in stretches.between(low, high):
            end = begin + len(stretch)
            try:
                runs[stretch] += durations[begin:end]
            except KeyError:
                runs[stretch] = bytearray(durations[begin:end])
            begin = end

    def appending_rows(self, count: int) -> Callable[[Spot, Sequence[list[int]], int, int], None]:
        """As :meth:`appending`, for keys, durations and, where there are such, bytes."""
        self.make_room(count)
        return self._append_rows

    def _append_rows(self, spot: Spot, columns: Sequence[list[int]], low: int, high: int) -> None:
        piles = self._piles.get(spot)
        if piles is None:
            piles = self._piles[spot] = defaultdict(list)
        keys = columns[0][low:high]
        for key, duration in zip(keys, columns[1][low:high], strict=True):
            piles[key].append(duration)
        if len(columns) > 2:
            self.add_bytes(spot, keys, columns[2][low:high])

    def add_bytes(self, spot: Spot, keys: Iterable[int], sizes: Iterable[int]) -> None:
        sums = self._bytes.get(spot)
        if sums is None:
            sums = self._bytes[spot] = defaultdict(int)
        for key, size in zip(keys, sizes, strict=True):
            sums[key] += size

    def fold(self) -> None:
        """Adds everything to the groups."""
        while self._runs:
            self._spread_some(FOLD_AT)
        while self._piles:
            self._fold_some(FOLD_AT)
        self._held = self._in_runs = 0

    def _fold_some(self, count: int) -> None:
        """Adds so many durations, told apart by key, those of the places first that were first."""
        while count > 0 and self._piles:
            spot, pile = next(iter(self._piles.items()))
            sizes = self._bytes.get(spot)
            while count > 0 and pile:
                key, durations = pile.popitem()
                if len(durations) > count:
                    pile[key] = durations[count:]
                    del durations[count:]
                count -= len(durations)
                self._held -= len(durations)
                self._add(spot, key, durations, sizes.pop(key, 0) if sizes is not None else 0)
            if not pile:
                del self._piles[spot]
                self._bytes.pop(spot, None)

    def _spread_some(self, count: int) -> None:
        """Tells so many durations apart by key, those of the places first that were first. In each, of the stretches
        that came most often first: the others are cheaper to tell apart when they have come again."""
        while count > 0 and self._runs:
            spot, runs = next(iter(self._runs.items()))
            pile = self.at(spot)
            for stretch in sorted(runs, key=lambda stretch: len(runs[stretch]), reverse=True):
                durations = runs.pop(stretch)
                room = max(count * ITEM_BYTES // len(stretch), 1) * len(stretch)
                if len(durations) > room:
                    runs[stretch] = durations[room:]
                    del durations[room:]
                spread(stretch, durations, pile)
                told = len(durations) // ITEM_BYTES
                self._in_runs -= told
                count -= told
                if count <= 0:
                    break
            if not runs:
                del self._runs[spot]

    def _add(self, spot: Spot, key: int, durations: list[int], size: int) -> None:
        path, kind, device, stream, owner = spot
        name, direction = self.name(kind, key)
        line = self._texts[(key >> LINE_SHIFT) - 1] if kind == "sync" and key >> LINE_SHIFT else None
        self._groups.add_row(
            (path, kind, name, "cuda", device, stream, direction, line, owner, "device"), row_of(durations, size)
        )


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

    def extend(self, key: tuple[str, str], durations: list[int], size: int = 0) -> None:
        """One operation for each duration; ``size``: their bytes together."""
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
        if self._held > BLOCK_FOLD_AT:
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

    def __bool__(self) -> bool:
        return bool(self.blocks)

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

    def sweep(self) -> None:
        """Forgets the blocks that are gone, now and then."""
        blocks = self.blocks
        if len(blocks) < self._sweep_at:
            return
        alive = 0  # of those that there are now: the program goes on adding to them
        for block_id, found in list(blocks.items()):
            block = found()
            if block is None or block.block_id != block_id:
                blocks.pop(block_id, None)
            else:
                alive += 1
        self._sweep_at = max(SWEEP_AT, 2 * alive)
