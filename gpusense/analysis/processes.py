"""The processes of a merged session, apart again: each alone, or those together that shared a device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._records.device_identity import card
from .._records.records import Path
from .._records.work import WorkTable
from ..session import Session


def processes_of(session: Session) -> list[dict[str, Any]]:
    """The processes of a merged session, as ``meta["processes"]`` lists them; empty for a session of one."""
    listed = session.meta.get("processes")
    return [one for one in listed or () if isinstance(one, dict) and isinstance(one.get("root"), str)]


def compared_path(session: Session) -> Callable[[Path], Path]:
    """What a path is called where runs are compared: of processes that have no rank, the place stands for the root."""
    processes = processes_of(session)
    roots = {
        one["root"]: f"process {place}"
        for place, one in enumerate(processes, 1)
        if len(processes) > 1 and one.get("rank") is None
    }
    return lambda path: (roots.get(path[0], path[0]), *path[1:]) if path else path


def divided(session: Session, places: Mapping[str, int]) -> list[Session]:
    """What a merged session has of each group of processes: records, sums and work. ``places``: the group of each root,
    from 0 on without a gap. What is of the whole, such as samples of devices, is in none."""
    works = session.work.divided(lambda path: places.get(path[0]) if path else None)
    parts = [
        Session(meta=session.meta, devices=session.devices, work=works.get(place) or WorkTable())
        for place in range(max(places.values(), default=-1) + 1)
    ]
    for part in parts:
        part.work.holes, part.work.summed = session.work.holes, session.work.summed
    for interval in session.unseen:
        at = places.get(interval.reason.partition(": ")[0])
        if at is not None:
            parts[at].unseen.append(interval)
    for record in session.records:
        at = places.get(record.path[0]) if record.path else None
        if at is not None:
            parts[at].records.append(record)
    for row in session.aggregates:
        at = places.get(row.path[0]) if row.path else None
        if at is not None:
            parts[at].aggregates.append(row)
    return parts


def apart(session: Session) -> list[tuple[list[str], Session]]:
    """The processes of a merged session, with their roots: those together that worked on one device, the others each
    alone. Analyses of devices and of their hosts then cost as much as the processes have work, however many there are.
    """
    listed = processes_of(session)
    roots = [one["root"] for one in listed]
    if len(roots) < 2 or len(set(roots)) < len(roots):
        return [(roots, session)]
    parts = divided(session, {root: at for at, root in enumerate(roots)})
    groups = sharing([_cards(part.work) for part in parts])
    if len(groups) == 1:
        return [(roots, session)]
    if len(groups) < len(parts):
        parts = divided(session, {roots[at]: place for place, group in enumerate(groups) for at in group})
    for group, part in zip(groups, parts, strict=True):
        part.meta = {**session.meta, "processes": [listed[at] for at in group]}
    return [([roots[at] for at in group], part) for group, part in zip(groups, parts, strict=True)]


def _cards(work: WorkTable) -> set[Any]:
    """The devices on which there is work."""
    return {card(one.backend, one.device) for one in work.kinds if one.kind != "sync"}


def sharing(used: Sequence[set[Any]]) -> list[list[int]]:
    """Places of sets that have a member in common, directly or by way of others."""
    above, first = list(range(len(used))), dict[Any, int]()

    def top(at: int) -> int:
        while above[at] != at:
            at = above[at]
        return at

    for at, members in enumerate(used):
        for member in members:
            low, high = sorted((top(at), top(first.setdefault(member, at))))
            above[high] = low
    groups: dict[int, list[int]] = {}
    for at in range(len(used)):
        groups.setdefault(top(at), []).append(at)
    return list(groups.values())
