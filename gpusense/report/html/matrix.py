"""How long each rank waited in each collective, as a picture of at most so many rows and columns."""

from collections.abc import Sequence
from typing import Any

from ..._runtime.text import count_text, one_line, size_text
from ...analysis.collectives import Joined
from ...analysis.ranks import Ranks, job_of, names_text, ranks_of
from ...session import Session
from .places import Places

_ROWS, _COLUMNS = 64, 160


def matrix(session: Session, places: Places) -> dict[str, Any] | None:
    """Rows are ranks, columns collectives in their order. Of more than fit several are one, with the longest wait.
    None where fewer than two ranks met in any."""
    answer, told = session.once(ranks_of), session.once(job_of).told
    if answer is None or told is None or not told.joined:
        return None
    groups = _groups(answer)
    row_of = {at: row for row, mine in enumerate(groups) for at in mine}
    size = -(-len(told.joined) // _COLUMNS)
    bins = [told.joined[at : at + size] for at in range(0, len(told.joined), size)]
    waits, late = [], []
    for some in bins:
        longest: list[int | None] = [None] * len(groups)
        for each in some:
            for part in each.parts:
                row = row_of[part.process]
                longest[row] = max(longest[row] or 0, each.waited_ns(part))
        waits.append(longest)
        late.append(row_of[_longest(some).last.process])
    binned = "" if size == 1 else f"; a column is {count_text(size, 'collective')} in a row, with the longest wait"
    return {
        "note": f"{count_text(len(told.joined), 'collective')} of {count_text(len(answer.ranks), 'rank')}{binned}",
        "rows": [one_line(names_text([answer.ranks[at] for at in mine]), 60) for mine in groups],
        "columns": [_words(some) for some in bins],
        "places": [places.moment(*_time(_longest(some)), "collective") for some in bins],
        "waits": waits,
        "late": late,
    }


def _groups(answer: Ranks) -> list[list[int]]:
    """Places of ranks by row, in order: of many ranks those that are like no others have one each."""
    count = len(answer.ranks)
    alone = {at for mine in answer.alike if len(mine) <= 2 for at in mine} if count > _ROWS else set()
    alone = set(sorted(alone)[: _ROWS // 2])
    rest = [at for at in range(count) if at not in alone]
    size = -(-len(rest) // (_ROWS - len(alone))) if rest else 1
    return sorted([*([at] for at in alone), *(rest[at : at + size] for at in range(0, len(rest), size))])


def _words(some: Sequence[Joined]) -> str:
    """ "AllReduce number 7, 26.2 MB"; of several "AllReduce number 7 to ReduceScatter number 9"."""
    first, last = some[0], some[-1]
    name = f"{one_line(first.key.name, 60)} number {first.key.sequence:,}"
    if len(some) > 1:
        return f"{name} to {one_line(last.key.name, 60)} number {last.key.sequence:,}"
    return name + (f", {size_text(first.bytes)}" if first.bytes else "")


def _longest(some: Sequence[Joined]) -> Joined:
    """The one that most is waited in."""
    return max(some, key=lambda one: one.all_waited_ns)


def _time(each: Joined) -> tuple[str, int, int]:
    """Name, first arrival and last end."""
    ends = [part.end_ns for part in each.parts if part.end_ns is not None]
    return (
        f"{each.key.name} number {each.key.sequence:,}",
        each.parts[0].start_ns,
        max(ends, default=each.last.start_ns),
    )
