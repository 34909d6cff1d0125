"""How what gpusense itself has a device do at the ends of blocks is known among the records. Pure."""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .._decode.batch import Batch

MARKER_BYTES = 4  # that a marker sets, where it is a memset


class Marker(NamedTuple):
    """How the boundary calls of blocks look among the records: kind, key column, and their stream where it matters."""

    kind: int
    key: int
    context: int | None = None
    stream: int | None = None
    tokens: bool = False  # the key of each record is the token of its boundary


#: The context, where that is known, and the stream of calls of gpusense's own: streams are numbered in each context.
OwnStream = tuple[int | None, int]


def on_own_streams(own: Collection[OwnStream], batch: "Batch") -> list[bool] | None:
    """Which records of ``batch`` are on one of these; None where none is."""
    streams = {stream for _, stream in own}
    if streams.isdisjoint(batch.stream):
        return None
    return [
        stream in streams and (context is None or (context, stream) in own or (None, stream) in own)
        for context, stream in zip(batch.context, batch.stream, strict=True)
    ]
