"""When cuDNN tried its algorithms out, to choose one for a size: seen from how it waits between them. Pure."""

from bisect import bisect_left
from collections.abc import Sequence

from .._records.work import WorkKind, WorkTable
from .families import family
from .intervals import Interval

#: cuDNN runs each algorithm twice, then waits for the context and for an event.
_WAITS = ("context_synchronize", "event_synchronize")
#: Between two algorithms lies what it takes to load the next one.
_APART_NS = 20_000_000
#: So many algorithms are tried at least.
_FEWEST = 3


def trials(work: WorkTable, rows: Sequence[int]) -> list[Interval]:
    """The times in which convolutions were tried out, in order. ``rows``: of one process, in the order of starts."""
    kinds = work.kinds
    if not set(_WAITS) <= {one.name for one in kinds} or not any(map(_convolves, kinds)):
        return []
    waits = bytes(1 + _WAITS.index(one.name) if one.name in _WAITS else 0 for one in kinds)
    convolves = bytes(map(_convolves, kinds))
    found: list[list[int]] = []  # start, end, algorithms
    begun = 0  # when the wait for the context began that an event's follows
    for row in rows:
        wait = waits[work.kind[row]]
        if wait == 2 and begun:
            if found and begun - found[-1][1] <= _APART_NS:
                found[-1][1:] = [work.end[row], found[-1][2] + 1]
            else:
                found.append([begun, work.end[row], 1])
        begun = work.start[row] if wait == 1 else 0 if wait else begun
    mine = [row for row in rows if convolves[work.kind[row]]]
    starts = [work.start[row] for row in mine]
    spans = []
    for start, end, number in found:
        tried = {work.kind[row] for row in mine[bisect_left(starts, start) : bisect_left(starts, end)]}
        if min(number, len({kinds[kind].full_name or kinds[kind].name for kind in tried})) >= _FEWEST:
            spans.append((start, end))
    return spans


def _convolves(one: WorkKind) -> bool:
    return one.kind == "kernel" and family(one.full_name or one.name) == "convolution"
