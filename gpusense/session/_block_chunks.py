"""The chunk of a file for boundaries where the newest correlation id was read, with the blocks that ended there. Pure.

A framework's modules make most of them, thousands a second, and their ends come again and again with the same path and
attributes. In a file that is an *entry*, said once a chunk, and each boundary is :data:`ROW` numbers of 64 bits.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .._attribution.boundaries import (
    CLOSE,
    ENDED,
    FRAME_FOLLOWED,
    FRAME_OPENED,
    GONE,
    OPEN,
    PLACED,
    Ended,
    Frame,
    Placed,
    PlacedItem,
)
from .._records.json_codec import loads, object_text, text_of
from .._records.records import BlockRecord, Path

#: Op, block, parent and 1 (0: none), thread, time, newest id, entry and 1 (0: none), start of the block (0: no record).
ROW = 8
HEAD = struct.Struct("<II")  # bytes of the entries, which are JSON, without padding; rows
AT_ONCE = 256  # items, after which to look whether there are enough for a chunk
_MANY_ROWS, _MUCH_TEXT = 4096, 1 << 20
_LONG_TEXT = 4 << 10  # of the attributes of a block, which has a record of its own then


class Packer:
    """Items of the queue on their way into a file."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._entries: dict[Any, int] = {}  # number and 1
        self._texts: list[str] = []  # of them
        self._length = 0

    def __bool__(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._numbers)

    @property
    def full(self) -> bool:
        """Whether a chunk should be made now."""
        return len(self._numbers) >= _MANY_ROWS * ROW or self._length >= _MUCH_TEXT

    def add(self, items: list[PlacedItem]) -> list[BlockRecord]:
        """Takes what :func:`taken_apart` does; gives the records back that are none of the usual ones."""
        numbers = self._numbers
        rest: list[BlockRecord] = []
        for item in items:
            if item[0] == PLACED:
                _, op, block, parent, thread, time, name, newest = item
                entry = self._entry(name, None) if op == OPEN else 0
                numbers += (op, block, 0 if parent is None else parent + 1, thread, time, newest, entry, 0)
            elif item[0] == ENDED:
                self._ended(item, rest)
            elif item[0] == FRAME_OPENED:
                self._frame(OPEN, item[1], item[1].start_ns, item[1].corr)
            else:
                frame, time, newest = item[1:4]
                self._frame(CLOSE, frame, time, newest)
                if item[0] == FRAME_FOLLOWED:
                    self._frame(OPEN, item[4], time, newest)
        return rest

    def _ended(self, item: Ended, rest: list[BlockRecord]) -> None:
        _, inside, here, newest, *fields = item
        record = BlockRecord._make(fields)
        name, block, parent, path, start, end, thread, attributes, error = record
        if inside is None and here == thread and error is None and name == path[-1]:
            text = None if attributes is None else object_text(attributes)
            if text is None or len(text) < _LONG_TEXT:
                outer = 0 if parent is None else parent + 1
                self._numbers += (CLOSE, block, outer, here, end, newest, self._entry(path, text), start)
                return
        self._numbers += (CLOSE, block, 0 if inside is None else inside + 1, here, end, newest, 0, 0)
        rest.append(record)

    def _frame(self, op: int, frame: Frame, time: int, newest: int) -> None:
        outer: Any = frame.outer  # a frame lies in another one
        key = frame.place, outer.path
        entry = self._entries.get(key)
        if entry is None:
            entry = self._new(key, (*key[1], frame.place.name), object_text(frame.place.attributes))
        start = frame.start_ns if op == CLOSE else 0
        self._numbers += (op, frame.number, outer.number + 1, frame.run.thread, time, newest, entry, start)

    def _entry(self, path: str | Path, attributes: str | None) -> int:
        """``path``: or the name alone, of a block that begins. ``attributes``: as text."""
        key = path, attributes
        return self._entries.get(key) or self._new(key, path, attributes)

    def _new(self, key: Any, path: str | Path, attributes: str | None) -> int:
        text = f"[{text_of(path)},{attributes or 'null'}]"
        self._texts.append(text)
        self._length += len(text)
        self._entries[key] = number = len(self._texts)
        return number

    def add_again(self, row: Sequence[int], entries: Sequence[tuple[Any, Any]]) -> None:
        """Takes a row of a chunk with ``entries``."""
        *before, entry, start = row
        if entry:
            path, attributes = entries[entry - 1]
            entry = self._entry(path, None if attributes is None else object_text(attributes))
        self._numbers += (*before, entry, start)

    def take(self) -> list[bytes]:
        """The payload of a chunk with all there is, in parts."""
        numbers, texts = self._numbers, self._texts
        self._numbers, self._texts, self._entries, self._length = [], [], {}, 0
        entries = f"[{','.join(texts)}]".encode("ascii")
        packed = array("Q", numbers)
        if sys.byteorder == "big":
            packed.byteswap()
        head = HEAD.pack(len(entries), len(numbers) // ROW)
        return [head, entries, bytes(-(HEAD.size + len(entries)) % 8), packed.tobytes()]


class Unpacked(NamedTuple):
    """What a chunk holds. ``boundaries``: as of :func:`taken_apart`."""

    boundaries: list[Placed]
    records: list[BlockRecord]
    reversed: int  # records that end before they begin
    refused: int  # rows that no tracer writes
    reason: str  # of the first


def unpacked(payload: bytes, shared: dict[Path, Path]) -> Unpacked:
    """``ValueError`` where the chunk as a whole is none that :class:`Packer` makes. ``shared`` has each path once."""
    entries, rows = _parts(payload, shared)
    boundaries: list[Placed] = []
    records: list[BlockRecord] = []
    backward = refused = 0
    reason = ""
    for op, block, outer, thread, time, newest, entry, start in rows:
        try:
            parent = outer - 1 if outer else None
            path, attributes = entries[entry - 1] if entry else ("", None)
            _check(op, block, parent, newest)
            if op == CLOSE and start:
                if type(path) is str:
                    raise ValueError("a block without a path")
                boundaries.append((PLACED, op, block, None, thread, time, "", newest))
                if start > time:
                    backward += 1
                    continue
                fields = path[-1], block, parent, path, start, time, thread, attributes, None
                records.append(BlockRecord._make(fields))
            else:
                name = path if type(path) is str else path[-1]
                boundaries.append((PLACED, op, block, parent, thread, time, name, newest))
        except (ValueError, IndexError) as error:  # somebody may have made the file up
            refused += 1
            reason = reason or str(error)
    return Unpacked(boundaries, records, backward, refused, reason)


def halves(payload: bytes) -> tuple[bytes, bytes] | None:
    """The rows of a chunk as two chunks, each with its entries; None of one row."""
    entries, rows = _parts(payload, {})
    packers, every = (Packer(), Packer()), list(rows)
    for at, row in enumerate(every):
        packers[2 * at >= len(every)].add_again(row, entries)
    first, second = (b"".join(packer.take()) for packer in packers)
    return (first, second) if len(every) > 1 else None


def _parts(payload: bytes, shared: dict[Path, Path]) -> tuple[list[tuple[Any, Any]], Iterator[tuple[int, ...]]]:
    if len(payload) < HEAD.size:
        raise ValueError(f"blocks in {len(payload)} bytes")
    length, count = HEAD.unpack_from(payload)
    begin = HEAD.size + length + -(HEAD.size + length) % 8
    if begin + 8 * ROW * count != len(payload):
        raise ValueError(f"{count} boundaries in {len(payload)} bytes")
    packed = array("Q", payload[begin:])
    if sys.byteorder == "big":
        packed.byteswap()
    found = loads(payload[HEAD.size : HEAD.size + length])
    if type(found) is not list:
        raise ValueError("no list of entries")
    rows: Any = zip(*[iter(packed.tolist())] * ROW, strict=True)
    return [_entry(item, shared) for item in found], rows


def _entry(item: Any, shared: dict[Path, Path]) -> tuple[Any, Any]:
    if type(item) is not list or len(item) != 2 or not (item[1] is None or type(item[1]) is dict):
        raise ValueError("an entry that is not a path with attributes")
    path, attributes = item
    if type(path) is str:
        return path, attributes
    if type(path) is not list or not path or {*map(type, path)} != {str}:
        raise ValueError("an entry without a path")
    made = tuple(path)
    return shared.setdefault(made, made), attributes


def _check(op: int, block: int, parent: int | None, newest: int) -> None:
    """As of boundaries on their own: a block has a lower number than those inside it, so no chain is a circle."""
    if op > GONE:
        raise ValueError("no boundary of a block")
    if op == OPEN and parent is not None and parent >= block:
        raise ValueError(f"block {block} is inside block {parent}, which is not older")
    if newest > 0xFFFFFFFF:
        raise ValueError("no correlation id")
