"""The chunk of a file for the table of all work: which kinds and blocks its rows have, and the rows themselves. Pure.

Each chunk says all that its rows need, so damage costs one chunk.
"""

import struct
from collections.abc import Iterator
from typing import Any

from .._records import json_codec
from .._records.work import Hole, WorkKind, WorkTable

HEAD = struct.Struct("<II")  # bytes of the JSON that follows, without padding; rows
ROWS = 1 << 18  # in a chunk


def packed(table: WorkTable) -> Iterator[list[bytes]]:
    """The payloads of chunks with all rows, in parts."""
    first = 0
    while first < len(table) or first == 0:
        last = min(first + ROWS, len(table))
        kinds, paths = sorted(set(table.kind[first:last])), sorted(set(table.path[first:last]))
        head: dict[str, Any] = {
            "kinds": [[number, json_codec.encode(table.kinds[number])] for number in kinds],
            "paths": [[number, list(table.paths[number])] for number in paths],
        }
        if first == 0:
            head |= {"summed": table.summed, "holes": [list(hole) for hole in table.holes]}
        text = json_codec.dumps(head).encode("ascii")
        yield [HEAD.pack(len(text), last - first), text, bytes(-(HEAD.size + len(text)) % 8), table.packed(first, last)]
        first = max(last, 1)


def unpack(payload: bytes, table: WorkTable) -> None:
    """Adds the rows of a chunk to ``table``. ``ValueError`` where it is none that :func:`packed` makes."""
    if len(payload) < HEAD.size:
        raise ValueError(f"work in {len(payload)} bytes")
    length, count = HEAD.unpack_from(payload)
    begin = HEAD.size + length + -(HEAD.size + length) % 8
    head = json_codec.loads(payload[HEAD.size : HEAD.size + length])
    if type(head) is not dict:
        raise ValueError("no kinds of work")
    kinds = {_number(row): table.kind_of(json_codec.decode(WorkKind, row[1])) for row in _rows(head, "kinds")}
    paths = {_number(row): table.path_of(_path(row[1])) for row in _rows(head, "paths")}
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


def _rows(head: dict[str, Any], name: str) -> list[Any]:
    rows = head.get(name)
    if type(rows) is not list or not all(type(row) is list and len(row) == 2 for row in rows):
        raise ValueError(f"no {name} of work")
    return rows


def _number(row: list[Any]) -> int:
    if type(row[0]) is not int:
        raise ValueError("a kind of work without a number")
    return row[0]


def _path(value: Any) -> tuple[str, ...]:
    if type(value) is not list or {*map(type, value)} - {str}:
        raise ValueError("no path of a block")
    return tuple(value)
