"""All work of a run as columns: what ran, from when to when, in which block. Analyses read it; a row costs forty bytes.

A record of its own costs a microsecond and half a kilobyte, so only slow work has one (:mod:`.records`). Whatever
occupied a device or made the host wait for it has a row here, however short it was.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, pairwise
from operator import ne
from typing import Any, NamedTuple

from . import lanes
from .records import Dim3, GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync, Path, Record

#: Kinds of records that have rows.
WITH_ROWS = frozenset({"kernel", "transfer", "memset", "sync"})

#: Of a run that goes on for long: its first rows stay, and of the others the newest. What lay between is only summed.
HEAD, TAIL = 100_000, 400_000
_SHED = TAIL // 4  # rows that go at once
MAX_KINDS = MAX_PATHS = 100_000
OTHER = "(other)"  # the name of what is of one kind only because there are too many
_PART = 65_536  # rows that are sorted at a time


class WorkKind(NamedTuple):
    """What rows have in common. Two launches of one kernel with different grids are of two kinds."""

    kind: str  # "kernel", "transfer", "memset", "sync"
    name: str  # the label of a kernel, "cpu_to_gpu", "memset", "stream_synchronize"
    full_name: str | None = None  # of a kernel, demangled
    backend: str = "cuda"
    device: int | None = None
    context: int | None = None
    stream: int | None = None
    thread: int | None = None  # of the host, that launched it, where that is known
    grid: Dim3 | None = None
    block: Dim3 | None = None
    registers_per_thread: int | None = None
    shared_bytes: int | None = None  # static and dynamic together
    direction: str | None = None  # of a copy
    source: str | None = None  # its memory: "pageable", "pinned", "device", …
    destination: str | None = None
    timing: str = "device"  # "host": a copy that the host timed, which occupies no device
    source_line: str | None = None  # of a wait or a copy, where lines were asked for
    owner: Path | None = None  # of a node of a replayed CUDA graph: the block that captured it


class Hole(NamedTuple):
    """Rows that were there and went, because there were too many; sums have them."""

    start_ns: int
    end_ns: int
    rows: int


#: The columns of some rows, in the order of :data:`COLUMNS`.
Columns = tuple["array[int]", ...]

#: The columns and their types.
COLUMNS: tuple[tuple[str, str], ...] = (
    ("start", "q"),
    ("end", "q"),
    ("order", "q"),
    ("size", "q"),
    ("kind", "I"),
    ("path", "I"),
)


class WorkTable:
    """``start`` and ``end`` in nanoseconds since the Unix epoch, ``order`` of the launches (the correlation id of a
    CUDA call, which nodes of one graph launch share; 0 where it is not known), ``size`` in bytes of what copies and
    memsets move, ``kind`` and ``path``, which count into :attr:`kinds` and :attr:`paths`.

    Used by one thread at a time. Rows are in the order in which they were read; :meth:`ordered` sorts them.
    """

    __slots__ = (
        *("_kinds", "_paths", "end", "holes", "kind", "kinds", "most", "order", "path", "paths", "size", "start"),
        *("_tidy_at", "summed"),
    )

    def __init__(self, most: int | None = None) -> None:
        """``most``: rows that stay, :data:`HEAD` of them from the beginning; None: all."""
        self.kinds: list[WorkKind] = []
        self.paths: list[Path] = [()]
        self.holes: list[Hole] = []
        self.summed = 0  # rows that never were there: an older file has sums of them alone
        self.most = most
        self._kinds: dict[WorkKind, int] = {}
        self._paths: dict[Path, int] = {(): 0}
        self._tidy_at = min(MAX_KINDS, MAX_PATHS) // 2  # so many kinds, or paths
        self.start, self.end, self.order, self.size = array("q"), array("q"), array("q"), array("q")
        self.kind, self.path = array("I"), array("I")

    def __len__(self) -> int:
        return len(self.start)

    @property
    def complete(self) -> bool:
        """Whether no row has gone, and none never came."""
        return not self.holes and not self.summed

    def kind_of(self, kind: WorkKind) -> int:
        """The number of a kind, a new one if need be."""
        number = self._kinds.get(kind)
        if number is None and len(self.kinds) >= MAX_KINDS:
            kind = _plain(kind, len(self.kinds) // MAX_KINDS)
            number = self._kinds.get(kind)
        if number is None:
            number = self._kinds[kind] = len(self.kinds)
            self.kinds.append(kind)
        return number

    def pairs(self) -> set[tuple[int, int]]:
        """The numbers of kind and path of each row, once each."""
        return set(zip(self.kind, self.path, strict=True))

    def path_of(self, path: Path) -> int:
        """The number of a block's path."""
        number = self._paths.get(path)
        if number is None:
            number = self._paths[path] = len(self.paths)
            self.paths.append(path)
        return number

    @property
    def crowded(self) -> bool:
        """Whether there are many kinds or paths of which no row may be there any more."""
        return self.most is not None and max(len(self.kinds), len(self.paths)) > self._tidy_at

    def tidy(self, stay: Iterable[int]) -> dict[int, int]:
        """Forgets the kinds and paths that no row has, but for the kinds ``stay``. Gives the new number of each kind
        by its old one; tables that share the old ones keep them."""
        kinds = {old: new for new, old in enumerate(sorted({*stay, *self.kind}))}
        paths = {old: new for new, old in enumerate(sorted({0, *self.path}))}
        self.kinds, self.paths = [self.kinds[old] for old in kinds], [self.paths[old] for old in paths]
        self._kinds = {kind: number for number, kind in enumerate(self.kinds)}
        self._paths = {path: number for number, path in enumerate(self.paths)}
        self.kind = array("I", map(kinds.__getitem__, self.kind))
        self.path = array("I", map(paths.__getitem__, self.path))
        self._tidy_at = max(self._tidy_at, 2 * len(kinds), 2 * len(paths))
        return kinds

    # --- rows -------------------------------------------------------------------------------------------------------

    def append(
        self,
        kinds: Sequence[int],
        paths: Iterable[tuple[int, int]],
        starts: "Sequence[int] | memoryview",
        ends: "Sequence[int] | memoryview",
        orders: "Iterable[int] | None" = None,
        sizes: "Iterable[int] | None" = None,
    ) -> Columns:
        """Rows of which some in a row share a path: (how many, number of the path). Gives their columns, for whoever
        keeps them."""
        zeros = array("q", bytes(8 * len(kinds)))
        found = (
            _array(starts),
            _array(ends),
            zeros if orders is None else _array(orders),
            zeros if sizes is None else _array(sizes),
            array("I", kinds),
            array("I"),
        )
        for times, number in paths:
            found[-1].extend(array("I", (number,)) * times)
        self._even()
        self.take(found)
        if self.most is not None and len(self.start) > self.most:
            self._shed()
        return found

    def take(self, columns: Columns) -> None:
        """Adds rows that :meth:`append` of a table with the same kinds and paths gave."""
        for (name, _), column in zip(COLUMNS, columns, strict=True):
            getattr(self, name).extend(column)

    def add(self, record: "GpuKernel | GpuMemoryTransfer | GpuMemset | GpuSync") -> None:
        """The row of a finished record."""
        self.kind.append(self.kind_of(kind_of_record(record)))
        self.path.append(self.path_of(record.path))
        self.start.append(record.start_ns)
        self.end.append(record.end_ns)
        self.order.append(record.correlation_id or 0)
        self.size.append(getattr(record, "bytes", 0) or 0)
        if self.most is not None and len(self.start) > self.most:
            self._shed()

    def _even(self) -> None:
        """An interrupt may have come between two columns: a row that not all have is none."""
        least = min(len(getattr(self, name)) for name, _ in COLUMNS)
        for name, _ in COLUMNS:
            del getattr(self, name)[least:]

    def _shed(self) -> None:
        """Takes away the oldest rows behind the head."""
        most = self.most or 0
        first = min(HEAD, most // 4)
        last = first + max(min(_SHED, most // 4), len(self) - most)
        hole = Hole(min(self.start[first:last]), max(self.end[first:last]), last - first)
        for name, _ in COLUMNS:
            del getattr(self, name)[first:last]
        if self.holes:  # what goes is next to what went
            before = self.holes.pop()
            hole = Hole(min(before.start_ns, hole.start_ns), max(before.end_ns, hole.end_ns), before.rows + hole.rows)
        self.holes.append(hole)

    def ordered(self) -> "WorkTable":
        """The same rows by their start; this table itself where they are in order."""
        if lanes.in_order(self.start) == [(0, len(self))]:
            return self
        made = self.copy()
        made.sort()
        return made

    def sort(self) -> None:
        """Puts the rows in the order of their starts. Those that start at once stay as they are."""
        self._even()
        pieces = lanes.in_order(self.start)
        if pieces is None:  # as of several streams: most are out of order by little
            for first in range(0, len(self), _PART):
                part = range(first, min(first + _PART, len(self)))
                self._arrange(part, sorted(part, key=self.start.__getitem__))
            pieces = lanes.in_order(self.start)
        if pieces is None:
            self._arrange(range(len(self)), sorted(range(len(self)), key=self.start.__getitem__))
        elif len(pieces) > 1:
            for name, _ in COLUMNS:
                setattr(self, name, lanes.joined(getattr(self, name), pieces))

    def _arrange(self, part: range, rows: list[int]) -> None:
        """Puts into a part of the table other rows."""
        for name, code in COLUMNS:
            column: array[int] = getattr(self, name)
            column[part.start : part.stop] = array(code, map(column.__getitem__, rows))

    def divided(self, group: Callable[[Path], int | None]) -> "dict[int, WorkTable]":
        """A table for each group of paths, with its rows in their order, and no kind or path that it does not use."""
        groups = [group(path) for path in self.paths]
        of_row = [groups[path] for path in self.path]
        pieces: dict[int, list[tuple[int, int]]] = {}
        changes = compress(range(1, len(of_row)), map(ne, of_row, of_row[1:]))
        for first, last in pairwise((0, *changes, len(of_row))):  # a merged session has the rows of a process together
            if first < last and (mine := of_row[first]) is not None:
                pieces.setdefault(mine, []).append((first, last))
        return {mine: self._picked(parts) for mine, parts in pieces.items()}

    def _picked(self, pieces: Sequence[tuple[int, int]]) -> "WorkTable":
        made = self.empty()
        for name, _ in COLUMNS:
            column: array[int] = getattr(self, name)
            found = lanes.joined(column, pieces)
            setattr(made, name, found[:] if found is column else found)
        made.tidy(())
        return made

    def empty(self) -> "WorkTable":
        """Another without rows, whose kinds and paths are the same."""
        made = WorkTable(self.most)
        made.kinds, made._kinds, made.paths, made._paths = self.kinds, self._kinds, self.paths, self._paths
        made.holes, made.summed = self.holes, self.summed
        return made

    def renamed(self, names: Mapping[tuple[str, str], str]) -> "WorkTable":
        """The same rows, whose kernels have other names: by name and full name."""
        made = self.empty()
        made.kinds = [
            one._replace(name=names.get((one.name, one.full_name), one.name)) if one.full_name else one
            for one in self.kinds
        ]
        made._kinds = {kind: number for number, kind in enumerate(made.kinds)}
        for name, _ in COLUMNS:
            setattr(made, name, getattr(self, name))
        return made

    def copy(self) -> "WorkTable":
        """Another with the rows so far; kinds and paths, to which rows only add, are shared."""
        made = self.empty()
        made.holes = list(self.holes)
        for name, _ in COLUMNS:
            setattr(made, name, getattr(self, name)[:])
        return made

    # --- others -----------------------------------------------------------------------------------------------------

    def join(
        self, other: "WorkTable", kind: Callable[[WorkKind], WorkKind], path: Callable[[Path], Path], shift_ns: int = 0
    ) -> None:
        """Adds all rows of ``other``, whose kinds and paths become others."""
        kinds = [self.kind_of(kind(one)) for one in other.kinds]
        paths = [self.path_of(path(one)) for one in other.paths]
        self.kind.extend(map(kinds.__getitem__, other.kind))
        self.path.extend(map(paths.__getitem__, other.path))
        for name in ("start", "end"):
            column: array[int] = getattr(other, name)
            getattr(self, name).extend(map(shift_ns.__add__, column) if shift_ns else column)
        self.order.extend(other.order)
        self.size.extend(other.size)
        self.summed += other.summed
        self.holes += [Hole(low + shift_ns, high + shift_ns, rows) for low, high, rows in other.holes]

    def packed(self, first: int, last: int) -> bytes:
        """Some rows as bytes: each column one after the other, little-endian."""
        parts = []
        for name, _ in COLUMNS:
            column: array[int] = getattr(self, name)[first:last]
            if sys.byteorder == "big":
                column.byteswap()
            parts.append(column.tobytes())
        return b"".join(parts)

    def unpack(self, data: bytes, kinds: Mapping[int, int], paths: Mapping[int, int]) -> None:
        """Adds rows that :meth:`packed` made; ``kinds`` and ``paths`` say which of this table theirs are.

        Raises ``ValueError`` for anything else.
        """
        count, rest = divmod(len(data), sum(array(code).itemsize for _, code in COLUMNS))
        if rest:
            raise ValueError(f"{len(data)} bytes are no whole rows of work")
        at, found = 0, {}
        for name, code in COLUMNS:
            column = found[name] = array(code)
            column.frombytes(data[at : at + count * column.itemsize])
            at += count * column.itemsize
            if sys.byteorder == "big":
                column.byteswap()
        if min(found["start"], default=1) <= 0 or 1 in lanes.less(found["end"], found["start"]):
            raise ValueError("work that ends before it starts")
        try:
            found["kind"] = array("I", map(kinds.__getitem__, found["kind"]))
            found["path"] = array("I", map(paths.__getitem__, found["path"]))
        except KeyError:
            raise ValueError("rows of work of a kind or block that is not there") from None
        for name, column in found.items():
            getattr(self, name).extend(column)


def _plain(kind: WorkKind, times: int) -> WorkKind:
    """``kind`` with less of what tells it apart, the more ``times`` there are too many: a program may launch with ever
    new sizes, on ever new streams and threads, or kernels with ever new names."""
    if times == 1:
        return kind._replace(grid=None, block=None, registers_per_thread=None, shared_bytes=None)
    name, full_name = (kind.name, kind.full_name) if times == 2 else (OTHER, None)
    return WorkKind(kind.kind, name, full_name, kind.backend, kind.device, direction=kind.direction, timing=kind.timing)


def _array(values: "Iterable[int] | memoryview") -> "array[int]":
    if not isinstance(values, memoryview):
        return array("q", values)
    if values.itemsize == 4:
        halves = array("I", bytes(8 * len(values)))
        halves[sys.byteorder == "big" :: 2] = array("I", values.tobytes())
        values = memoryview(halves)
    made = array("q")
    made.frombytes(values.cast("B"))  # unsigned in a record, and below 2**63 where it was judged
    return made


def table_of(records: Iterable[Record]) -> WorkTable:
    """The rows of all records that are work of a device or waits for one."""
    table = WorkTable()
    for record in records:
        if type(record) in (GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync) and record.end_ns is not None:
            table.add(record)  # type: ignore[arg-type]
    return table


def kind_of_record(record: Any) -> WorkKind:
    """The kind of a finished record that has a row."""
    if type(record) is GpuKernel:
        shared = [size for size in (record.static_shared_bytes, record.dynamic_shared_bytes) if size is not None]
        return WorkKind(
            "kernel", record.name, record.full_name, record.backend, record.device, record.context, record.stream,
            grid=record.grid, block=record.block, registers_per_thread=record.registers_per_thread,
            shared_bytes=sum(shared) if shared else None, owner=record.owner,
        )  # fmt: skip
    place = record.backend, record.device, record.context, record.stream
    if type(record) is GpuMemoryTransfer:
        line = (record.attributes or {}).get("source_line")
        return WorkKind(
            "transfer", record.name, None, *place, direction=record.direction, source=record.source,
            destination=record.destination, timing=record.timing, source_line=line, owner=record.owner,
        )  # fmt: skip
    if type(record) is GpuMemset:
        return WorkKind("memset", record.name, None, *place, owner=record.owner)
    return WorkKind("sync", record.name, None, *place, source_line=record.source_line)


def record_of(
    kind: WorkKind,
    path: Path,
    start_ns: int,
    end_ns: int,
    order: int,
    size: int,
    block_id: int | None = None,
    ambiguous: tuple[int, ...] = (),
    slow_ns: int = 0,
) -> "GpuKernel | GpuMemoryTransfer | GpuMemset | GpuSync":
    """The record of a row, as far as rows tell; it is slow from ``slow_ns`` on. :func:`kind_of_record` gives its kind
    back, but for the launching thread and shared memory, of whose two sorts a row has the sum."""
    fields: dict[str, Any] = {
        "name": kind.name, "start_ns": start_ns, "end_ns": end_ns, "device": kind.device, "backend": kind.backend,
        "context": kind.context, "stream": kind.stream, "correlation_id": order or None, "path": path,
        "block_id": block_id, "ambiguous": ambiguous, "is_slow": end_ns - start_ns >= slow_ns,
    }  # fmt: skip
    if kind.kind == "sync":
        return GpuSync(**fields, source_line=kind.source_line)
    fields["owner"] = kind.owner
    if kind.kind == "kernel":
        attributes = {"shared_bytes": kind.shared_bytes} if kind.shared_bytes is not None else None
        return GpuKernel(
            **fields, full_name=kind.full_name, grid=kind.grid, block=kind.block, attributes=attributes,
            registers_per_thread=kind.registers_per_thread,
        )  # fmt: skip
    if kind.kind == "memset":
        return GpuMemset(**fields, bytes=size)
    lines = {"source_line": kind.source_line} if kind.source_line is not None else None
    direction: Any = kind.direction  # a copy has one
    return GpuMemoryTransfer(
        **fields, bytes=size, direction=direction, source=kind.source, destination=kind.destination,
        timing=kind.timing, attributes=lines,
    )  # fmt: skip
