"""Kernels to keep, between the buffer they come in and their block: all of a record that has to be read at once. Pure.

A record is made when everything about it is known: making one again for each thing that is learned costs more than all
else that is done with it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._records.records import GpuKernel, Path
from . import layouts
from .batch import Batch
from .correlation_ids import Ids
from .names_cache import Described
from .record import BLOCK_AND_SHARED, DEVICE, END, NAME, REGISTERS, START, Names, Raw, kernel

AT_ONCE = 128  # records, without a pause
MAX_LAUNCHES = 4_096  # whose occupancy is remembered

#: The fields of a record, the kernel's name, its correlation id.
Draft = tuple[Raw, Described, int]


def drafts_of(
    buffer: memoryview,
    batch: Batch,
    chosen: Sequence[int],
    ids: Ids,
    names: Names,
    pause: Callable[[], None] | None,
) -> dict[int, Draft]:
    """Those at the indices ``chosen``, which ascend, of a batch of kernels; by index."""
    read = layouts.unpacker(batch.kind, batch.stride).struct.unpack_from
    corrs, base = ids.corrs, ids.base
    drafts: dict[int, Draft] = {}
    for at, (i, offset) in enumerate(zip(chosen, batch.offsets_at(chosen), strict=True), 1):
        raw = read(buffer, offset)
        drafts[i] = raw, names(raw[NAME]), corrs[i] + base
        if pause is not None and not at % AT_ONCE:
            pause()
    return drafts


class Drafts:
    """Makes records of drafts. ``occupancy`` tells a kernel's by its device, block, registers and shared memory."""

    __slots__ = ("_known", "occupancy")

    def __init__(self, occupancy: Callable[[GpuKernel], float | None] | None) -> None:
        self.occupancy = occupancy
        self._known: dict[tuple[Any, ...], float | None] = {}

    def made(
        self, drafts: Iterable[Draft], slow_ns: int, path: Path, block_id: int | None, ambiguous: tuple[int, ...]
    ) -> list[GpuKernel]:
        """The records of kernels that were launched in one block."""
        known, made = self._known, []
        for raw, text, correlation in drafts:
            launch = raw[DEVICE], raw[REGISTERS], raw[BLOCK_AND_SHARED]
            share = known[launch] if launch in known else self._work_out(launch, raw, text)
            slow = raw[END] - raw[START] >= slow_ns
            made.append(kernel(raw, text, correlation, share, slow, path, block_id, ambiguous))
        return made

    def _work_out(self, launch: tuple[Any, ...], raw: Raw, text: Described) -> float | None:
        found = self.occupancy(kernel(raw, text, None)) if self.occupancy is not None else None
        if len(self._known) >= MAX_LAUNCHES:
            self._known.clear()
        self._known[launch] = found
        return found
