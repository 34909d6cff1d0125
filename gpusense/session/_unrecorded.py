"""Blocks of a file that ended early whose boundaries are in it and whose records are not: open when the program was
killed, or closed when no more could be written. Pure."""

from collections.abc import Iterable

from .._records.records import OPEN_AT_END, BlockRecord, Path
from .._runtime.text import count_text


def open_at_end(count: int) -> str:
    """Says of ``count`` blocks that they have the attribute :data:`OPEN_AT_END`."""
    was = "open when recording ended, and"
    return f"{count_text(count, f'block was {was} counts', f'blocks were {was} count')} up to then"


class Unrecorded:
    """Takes what a file has, in its order; :meth:`records` are of the blocks that were left."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int | None, Path, int, int]] = {}  # parent, path, thread and start, by id
        self._ends: dict[int, int] = {}
        self._last_ns = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def opened(self, block_id: int, parent_id: int | None, name: str, thread: int, at_ns: int) -> None:
        around = self._blocks.get(parent_id) if parent_id is not None else None
        self._blocks[block_id] = parent_id, (*(around[1] if around else ()), name), thread, at_ns
        self._last_ns = max(self._last_ns, at_ns)

    def closed(self, block_id: int, at_ns: int) -> None:
        if block_id in self._blocks:
            self._ends[block_id] = at_ns
        self._last_ns = max(self._last_ns, at_ns)

    def recorded(self, records: Iterable[BlockRecord]) -> None:
        """Nothing is missing of these."""
        for record in records:
            self._blocks.pop(record.block_id, None)
            self._ends.pop(record.block_id, None)
            self._last_ns = max(self._last_ns, record.end_ns)

    def records(self, end_ns: int) -> list[BlockRecord]:
        """A block that was open ends with the last that is known, ``end_ns`` or the file's last boundary, and has the
        attribute :data:`OPEN_AT_END`."""
        last = max(self._last_ns, end_ns)
        return [
            BlockRecord(
                path[-1],
                block_id,
                parent_id,
                path,
                start,
                max(start, self._ends.get(block_id, last)),
                thread,
                None if block_id in self._ends else {OPEN_AT_END: True},
            )
            for block_id, (parent_id, path, thread, start) in self._blocks.items()
        ]
