"""Kernels that have much in common, as columns: what they share once, and their times. Pure.

Of a program's wgpu passes most are like one before and below the threshold. A record for each, made and taken apart
again only to be counted, costs more than all the rest of timing them; so they travel as columns, and whoever needs a
record makes it. What comes of them is the same.
"""

from collections.abc import Iterable
from itertools import compress
from operator import add, le
from typing import Any

from .._records.records import GpuKernel, Record

_make: Any = tuple.__new__  # of a record out of a row that is known to be complete
_START, _END = GpuKernel._fields.index("start_ns"), GpuKernel._fields.index("end_ns")


class SameKernels:
    """``kinds``: records without times, all of one backend and device; ``which`` of them each kernel is; its start
    and duration. In order of their starts; at least one."""

    __slots__ = ("durations", "kinds", "starts", "submitted", "which")

    def __init__(
        self,
        kinds: list[GpuKernel],
        which: list[int],
        starts: list[int],
        durations: list[int],
        submitted: list[int] | None = None,
    ) -> None:
        """``submitted``: when the host handed each over; records have it in their attributes, as "submitted_ns"."""
        if not all(map(le, starts, starts[1:])):
            order = sorted(range(len(starts)), key=starts.__getitem__)
            which, starts, durations = ([column[at] for at in order] for column in (which, starts, durations))
            submitted = [submitted[at] for at in order] if submitted else None
        self.kinds, self.which, self.starts, self.durations, self.submitted = kinds, which, starts, durations, submitted

    def __len__(self) -> int:
        return len(self.starts)

    def records(self) -> list[GpuKernel]:
        return _records(self.kinds, self.which, self.starts, self.durations, self.submitted)

    def at(self, chosen: list[int]) -> list[GpuKernel]:
        """The records of some."""
        which, starts, durations = ([column[i] for i in chosen] for column in (self.which, self.starts, self.durations))
        submitted = [self.submitted[i] for i in chosen] if self.submitted else None
        return _records(self.kinds, which, starts, durations, submitted)

    def by_kind(self, without: list[int]) -> list[tuple[GpuKernel, list[int]]]:
        """The durations of each kind, but for some."""
        which, durations = self.which, self.durations
        if without:
            others = [True] * len(which)
            for at in without:
                others[at] = False
            which, durations = list(compress(which, others)), list(compress(durations, others))
        if len(self.kinds) == 1:
            lists = [durations]
        else:
            lists = [[] for _ in self.kinds]
            for number, duration in zip(which, durations, strict=True):
                lists[number].append(duration)
        return [(kind, members) for kind, members in zip(self.kinds, lists, strict=True) if members]

    @property
    def end_ns(self) -> int:
        """None ended later."""
        return self.starts[-1] + max(self.durations)

    @property
    def ends(self) -> list[int]:
        return list(map(add, self.starts, self.durations))

    @property
    def sound(self) -> bool:
        """No time is impossible."""
        return self.starts[0] > 0 and min(self.durations) >= 0


def _records(
    kinds: list[GpuKernel], which: list[int], starts: list[int], durations: list[int], submitted: list[int] | None
) -> list[GpuKernel]:
    rows = [list(kind) for kind in kinds]
    made: list[GpuKernel] = []
    make, keep, first, last = _make, made.append, _START, _END
    for number, start, duration in zip(which, starts, durations, strict=True):
        row = rows[number]
        row[first], row[last] = start, start + duration
        keep(make(GpuKernel, row))
    if submitted:
        made = [
            kernel._replace(attributes={**(kernel.attributes or {}), "submitted_ns": since})
            for kernel, since in zip(made, submitted, strict=True)
        ]
    return made


def expanded(items: Iterable[Record | SameKernels]) -> list[Record]:
    """Records, those of columns one by one."""
    made: list[Record] = []
    for item in items:
        if isinstance(item, SameKernels):
            made += item.records()
        else:
            made.append(item)
    return made
