"""Blocks of a file that ended early whose boundaries are in it and whose records are not: open when the program was
killed, or closed when no more could be written. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._records.records import OPEN_AT_END, BlockRecord, Path
from .._runtime.text import count_text, one_line

#: In ``meta``: what ended a program that could not end its file, as "SIGKILL", where somebody looked.
ENDED_BY = "ended_by"
_NAME, _PATH = 40, 160  # longest


def open_at_end(paths: Sequence[Path]) -> str:
    """Says of blocks that they have the attribute :data:`OPEN_AT_END`; the last is that which began last."""
    last = one_line(" › ".join(one_line(name, _NAME) for name in paths[-1]), _PATH)
    which = "" if len(paths) == 1 else " the last of them"
    has, their = ("has", "its time is") if len(paths) == 1 else ("have", "their times are")
    return f"{count_text(len(paths), 'block')} {has} no end,{which} “{last}”: {their} at least what is shown"


def ended_text(meta: Mapping[str, Any]) -> str:
    """How a program ended that could not end its file; "" where it did."""
    if meta.get("complete") is not False:
        return ""
    how = meta.get(ENDED_BY)
    return f"the program was ended by {how}" if how else "the program was killed or still runs"


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
        """In the order in which they began. A block that was open ends with the last that is known, ``end_ns`` or the
        file's last boundary, and has the attribute :data:`OPEN_AT_END`."""
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
