"""The chunk of a file for the table of all work: which kinds and blocks its rows have, and the rows themselves. Pure.

Each chunk says all that its rows need, so damage costs one chunk. Where a chunk says the block of each row, too, its
rows are all that there is of their work: a reader makes a record of each, which takes a program ten times as long as
leaving columns.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, get_args

from .._records import json_codec
from .._records.records import Direction, Record
from .._records.work import WITH_ROWS, Hole, WorkKind, WorkTable, record_of

HEAD = struct.Struct("<II")  # bytes of the JSON that follows, without padding; rows
ROWS = 1 << 18  # in a chunk


def packed(table: WorkTable) -> Iterator[list[bytes]]:
    """The payloads of chunks with all rows, in parts."""
    first = 0
    while first < len(table) or first == 0:
        last = min(first + ROWS, len(table))
        more = {"summed": table.summed, "holes": [list(hole) for hole in table.holes]} if first == 0 else {}
        yield _payload(table, first, last, more)
        first = max(last, 1)


def packed_in_full(
    table: WorkTable, counts: Sequence[int], blocks: Sequence[int], ambiguous: Mapping[int, Sequence[int]]
) -> list[bytes]:
    """The payload of one chunk with all rows, of which a reader makes records. ``counts`` of them in a row are of which
    of ``blocks`` (0: of none); ``ambiguous``: of such a run, by its number, the candidates."""
    runs = list(chain.from_iterable(zip(counts, blocks, strict=True)))
    doubts = [[number, list(candidates)] for number, candidates in ambiguous.items()]
    return _payload(table, 0, len(table), {"blocks": runs, "ambiguous": doubts})


def _payload(table: WorkTable, first: int, last: int, more: dict[str, Any]) -> list[bytes]:
    kinds, paths = sorted(set(table.kind[first:last])), sorted(set(table.path[first:last]))
    head: dict[str, Any] = {
        "kinds": [[number, json_codec.encode(table.kinds[number])] for number in kinds],
        "paths": [[number, list(table.paths[number])] for number in paths],
        **more,
    }
    text = json_codec.dumps(head).encode("ascii")
    return [HEAD.pack(len(text), last - first), text, bytes(-(HEAD.size + len(text)) % 8), table.packed(first, last)]


def unpack(payload: bytes, table: WorkTable, slow_ns: int = 0) -> list[Record]:
    """Adds the rows of a chunk to ``table``; gives their records where it is one of :func:`packed_in_full`, slow from
    ``slow_ns`` on. ``ValueError`` where it is none that this module makes."""
    if len(payload) < HEAD.size:
        raise ValueError(f"work in {len(payload)} bytes")
    length, count = HEAD.unpack_from(payload)
    begin = HEAD.size + length + -(HEAD.size + length) % 8
    head = json_codec.loads(payload[HEAD.size : HEAD.size + length])
    if type(head) is not dict:
        raise ValueError("no kinds of work")
    in_full = "blocks" in head
    kinds = {_number(row): table.kind_of(_kind(row[1], in_full)) for row in _rows(head, "kinds")}
    paths = {_number(row): table.path_of(_path(row[1])) for row in _rows(head, "paths")}
    runs = _runs(head, count) if in_full else []
    before = len(table)
    table.unpack(payload[begin:], kinds, paths)
    if len(table) - before != count:
        raise ValueError(f"{count} rows of work in {len(payload)} bytes")
    for row in head.get("holes") or ():
        if len(row) != 3 or {*map(type, row)} != {int}:
            raise ValueError("no hole in the work")
        table.holes.append(Hole(*row))
    if type(head.get("summed", 0)) is int:
        table.summed += head.get("summed", 0)
    return _records(table, before, runs, slow_ns)


def _runs(head: dict[str, Any], count: int) -> list[tuple[int, int | None, tuple[int, ...]]]:
    """How many rows in a row are of which block, and the candidates where that is not certain."""
    numbers = head["blocks"]
    doubts = {_number(row): row[1] for row in _rows(head, "ambiguous")}
    if type(numbers) is not list or {*map(type, numbers)} - {int} or len(numbers) % 2 or min(numbers, default=0) < 0:
        raise ValueError("no blocks of rows")
    if any(type(found) is not list or {*map(type, found)} - {int} for found in doubts.values()):
        raise ValueError("no candidates for a block")
    counts, blocks = numbers[::2], numbers[1::2]
    if sum(counts) != count:
        raise ValueError(f"blocks of {sum(counts)} rows for {count}")
    return [
        (times, block or None, tuple(doubts.get(number, ())))
        for number, (times, block) in enumerate(zip(counts, blocks, strict=True))
    ]


def _records(
    table: WorkTable, first: int, runs: list[tuple[int, int | None, tuple[int, ...]]], slow_ns: int
) -> list[Record]:
    made: list[Record] = []
    for count, block, candidates in runs:
        for at in range(first, first + count):
            times = table.start[at], table.end[at], table.order[at], table.size[at]
            kind, path = table.kinds[table.kind[at]], table.paths[table.path[at]]
            made.append(record_of(kind, path, *times, block, candidates, slow_ns))
        first += count
    return made


def _rows(head: dict[str, Any], name: str) -> list[Any]:
    rows = head.get(name)
    if type(rows) is not list or not all(type(row) is list and len(row) == 2 for row in rows):
        raise ValueError(f"no {name} of work")
    return rows


def _number(row: list[Any]) -> int:
    if type(row[0]) is not int:
        raise ValueError("a kind of work without a number")
    return row[0]


def _kind(value: Any, in_full: bool) -> WorkKind:
    kind = json_codec.decode(WorkKind, value)
    if in_full and (
        kind.kind not in WITH_ROWS or (kind.kind == "transfer" and kind.direction not in get_args(Direction))
    ):
        raise ValueError(f"work of which there is no record: {kind.kind}")
    return kind


def _path(value: Any) -> tuple[str, ...]:
    if type(value) is not list or {*map(type, value)} - {str}:
        raise ValueError("no path of a block")
    return tuple(value)
