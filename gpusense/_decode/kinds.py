"""Which :class:`~gpusense._records.work.WorkKind` each record of a batch is. Pure.

A program launches the same again and again: a look at the few words of a record that differ (name, stream, grid, block)
finds its kind, and only the first record of a kind is read whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .._records.records import Path
from .._records.work import WorkKind, WorkTable, kind_of_record
from . import layouts
from .batch import Batch
from .names import Described, NameOf
from .record import record as decode_record

_MAX_KNOWN = 200_000  # combinations of words that are remembered

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

    __slots__ = ("_count", "_known", "_names", "table")

    def __init__(self, table: WorkTable) -> None:
        self.table = table
        self._known: dict[Any, dict[tuple[Any, ...], int]] = {}  # by place
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
    ) -> list[int] | None:
        """The number of each record's kind; None for records that have no row. ``lines``: of the program, by record;
        ``owners``: the blocks that captured them."""
        telling = _TELLING.get(batch.kind)
        if telling is None:
            return None
        columns: list[Sequence[Any]] = [*(getattr(batch, name) for name in telling), *batch.shape]
        place: tuple[Any, ...] = (batch.kind, thread)
        for name in ("device", "context"):
            if batch.uniform(name):
                place += (getattr(batch, name)[0],)
            else:
                columns.append(getattr(batch, name))
                place += (name,)
        columns += [extra for extra in (lines, owners) if extra is not None]
        place += (lines is None, owners is None)
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = {}
        numbers: list[Any] = list(map(known.get, zip(*columns, strict=True)))
        if None in numbers:
            self._learn(numbers, known, columns, lambda i: self._read(buffer, batch, i, thread, names, lines, owners))
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
