"""Which :class:`~gpusense._records.work.WorkKind` each record of a batch is. Pure.

A program launches the same again and again: a look at the few words of a record that differ (name, stream, grid, block)
finds its kind, and only the first record of a kind is read whole. A loop launches even the same in the same order: then
one comparison with what came a step before finds the kinds of a whole batch.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._records.records import Path
from .._records.work import WorkKind, WorkTable, kind_of_record
from . import layouts
from .batch import SHAPE, Batch, PackedColumns
from .names import Described, NameOf
from .record import record as decode_record

_MAX_KNOWN = 200_000  # combinations of words that are remembered
_BACK = 8_192  # records before a batch among which it is looked for
_MOST_PLACES = 8  # whose records are remembered for that
_PATIENCE = 32  # batches, at most, until one is looked for again that was in vain

#: Kinds of records that have a row, and the columns that tell them apart within one place, beside their shape. The key
#: of copies between devices is their direction here (see ``record.directions``): both devices are in no column.
_TELLING: dict[int, tuple[str, ...]] = {
    layouts.KERNEL: ("key",),
    layouts.CONCURRENT_KERNEL: ("key",),
    layouts.MEMCPY: ("stream",),
    layouts.MEMCPY2: ("key", "stream"),
    layouts.MEMSET: ("stream",),
    layouts.SYNCHRONIZATION: ("key", "stream"),
}


class Kinds:
    """Finds the kinds of ``table``'s rows. Addresses of names may come to mean others: see :meth:`know`."""

    __slots__ = ("_count", "_earlier", "_known", "_names", "table")

    def __init__(self, table: WorkTable) -> None:
        self.table = table
        self._known: dict[Any, dict[tuple[Any, ...], int]] = {}  # by place
        self._earlier: dict[Any, _Earlier] = {}  # by place
        self._names: dict[int, Described] = {}
        self._count = 0

    def know(self, names: Mapping[int, Described]) -> None:
        """What kernels at some addresses are called from now on."""
        if not names.items() <= self._names.items():
            if any(self._names.get(pointer, text) != text for pointer, text in names.items()):
                self.forget()
            self._names.update(names)

    def forget(self) -> None:
        """The table has other numbers from now on."""
        self._known.clear()
        self._earlier.clear()
        self._names.clear()
        self._count = 0

    def of(
        self,
        buffer: memoryview,
        batch: Batch,
        thread: int,
        names: NameOf,
        lines: Sequence[str | None] | None = None,
        owners: Sequence[Path | None] | None = None,
    ) -> Sequence[int] | None:
        """The number of each record's kind; None for records that have no row. ``lines``: of the program, by record;
        ``owners``: the blocks that captured them."""
        telling = _TELLING.get(batch.kind)
        if telling is None:
            return None
        place: tuple[Any, ...] = (batch.kind, thread)
        more: list[Sequence[Any]] = []
        for name in ("device", "context"):
            if batch.uniform(name):
                place += (getattr(batch, name)[0],)
            else:
                more.append(getattr(batch, name))
                place += (name,)
        more += [extra for extra in (lines, owners) if extra is not None]
        place += (lines is None, owners is None)
        earlier, packed = None, None if more else batch.packed((*telling, *SHAPE))
        if packed is not None:
            earlier = self._earlier_of(place)
            again = earlier.again(packed, batch.count)
            if again is not None:
                return again
        numbers = self._looked_up(
            place,
            [*(getattr(batch, name) for name in telling), *batch.shape, *more],
            lambda i: self._read(buffer, batch, i, thread, names, lines, owners),
        )
        if earlier is not None and packed is not None:
            earlier.add(packed, array("I", numbers))
        return numbers

    def _earlier_of(self, place: Any) -> "_Earlier":
        found = self._earlier.get(place)
        if found is None:
            if len(self._earlier) >= _MOST_PLACES:
                del self._earlier[next(iter(self._earlier))]
            found = self._earlier[place] = _Earlier()
        return found

    def _looked_up(self, place: Any, columns: list[Sequence[Any]], read: Callable[[int], WorkKind]) -> list[int]:
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = {}
        numbers: list[Any] = list(map(known.get, zip(*columns, strict=True)))
        if None in numbers:
            self._learn(numbers, known, columns, read)
        return numbers

    def _learn(self, numbers: list[Any], known: dict[tuple[Any, ...], int], columns: Any, read: Any) -> None:
        if self._count > _MAX_KNOWN:
            known.clear()
            self.forget()
        at = -1
        for _ in range(numbers.count(None)):
            at = numbers.index(None, at + 1)
            key = tuple(column[at] for column in columns)
            number = known.get(key)
            if number is None:
                number = known[key] = self.table.kind_of(read(at))
                self._count += 1
            numbers[at] = number

    def _read(
        self,
        buffer: memoryview,
        batch: Batch,
        i: int,
        thread: int,
        names: NameOf,
        lines: Sequence[str | None] | None,
        owners: Sequence[Path | None] | None,
    ) -> WorkKind:
        kind = kind_of_record(decode_record(buffer, batch, i, names))
        return kind._replace(
            thread=thread or None,
            source_line=lines[i] if lines is not None else None,
            owner=owners[i] if owners is not None else None,
        )


class _Earlier:
    """Records of one place that came one after the other: their columns as bytes, and their kinds."""

    __slots__ = ("_columns", "_fixed", "_in_vain", "_lag", "_numbers", "_wait")

    def __init__(self) -> None:
        self._fixed: object = None  # columns that hold one value
        self._columns: list[bytearray] = []
        self._numbers = array("I")
        self._lag = 0  # so many records before them the last ones were the same; 0: none were
        self._wait = self._in_vain = 0

    def again(self, batch: PackedColumns, count: int) -> "array[int] | None":
        """The kinds of records that are the same as those a step before; None where they are not."""
        fixed, columns = batch
        if not self._lag or fixed != self._fixed:
            return None
        for before, data in zip(self._columns, columns, strict=True):
            back = len(data) // count * self._lag
            begin = len(before) - back
            if before[begin : begin + len(data)] != data[:back] or data[back:] != data[: max(0, len(data) - back)]:
                self._lag = 0
                return None
        numbers = self._numbers[-self._lag :]
        numbers = (numbers * -(-count // self._lag))[:count]
        self._append(columns, numbers)
        return numbers

    def add(self, batch: PackedColumns, numbers: "array[int]") -> None:
        """Records whose kinds were looked up. They may be the same as others before."""
        fixed, columns = batch
        if fixed != self._fixed:
            self._fixed, self._columns, self._numbers = fixed, [bytearray() for _ in columns], array("I")
        if self._wait:
            self._wait -= 1
        elif self._numbers:
            self._lag = self._found(numbers)
            self._in_vain = 0 if self._lag else min(2 * self._in_vain + 1, _PATIENCE)
            self._wait = self._in_vain
        self._append(columns, numbers)

    def _found(self, numbers: "array[int]") -> int:
        """How many records before them the same began; 0 where that is not known."""
        wanted, width = numbers.tobytes(), numbers.itemsize
        before = self._numbers[-_BACK:].tobytes()
        at = (before + wanted[:-width]).find(wanted)
        return 0 if at < 0 or at % width else (len(before) - at) // width

    def _append(self, columns: list[bytes], numbers: "array[int]") -> None:
        fixed, self._fixed = self._fixed, None  # Ctrl-C may come between two of them
        for mine, data in zip(self._columns, columns, strict=True):
            mine += data
        self._numbers += numbers
        much = len(self._numbers) - _BACK
        if much > _BACK:
            for mine, data in zip(self._columns, columns, strict=True):
                del mine[: len(data) // len(numbers) * much]
            del self._numbers[:much]
        self._fixed = fixed
