"""What the ranks of one host tell each other under ``gpusense run``: how far each has come, and what it waits in.

Each process has two small files in the run's folder, and reads those of the others only while somebody waits. So it can
be told which rank has not come although that one does nothing, holds the GIL or has ended.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..._records.json_codec import dumps, loads
from ..._runtime.text import count_text, ranks_text

#: Functions of communicators that are told of: those that were launched last.
MOST = 4_096
_REACHED, _WAITS = "nccl-reached-", "nccl-waits-"


class Place(NamedTuple):
    """One rank's newest launch of a function in a communicator; -1: none yet. JSON arrays in the files."""

    communicator: str
    function: str  # "": that the rank is there at all
    rank: int  # in the communicator
    sequence: int
    job_rank: int | None = None  # the same rank's number in the job


class Waiting(NamedTuple):
    """A collective that one rank is in, and not all have come to. JSON arrays in the files."""

    communicator: str
    function: str
    rank: int  # in the communicator
    sequence: int
    since_ns: int  # CLOCK_MONOTONIC, which is the same for the whole host
    job_rank: int | None = None


class Missing(NamedTuple):
    """What is known of a collective on this host. Ranks are those of the communicator."""

    came: frozenset[int]  # ranks that have launched it
    absent: dict[int, tuple[int, int]]  # ranks that have not: the number that each launched last, or -1; its process
    ended: frozenset[int]  # those of them whose process is no more


class Peers:
    """This process among those of the run, whose folder that is. Used by one thread at a time."""

    def __init__(self, folder: str | None, job_rank: int | None = None) -> None:
        self.job_rank = job_rank
        self._folder = folder
        self._reached: dict[tuple[str, str, int], int] = {}
        self._told: dict[tuple[str, str, int], int] = {}
        self._waits: list[Waiting] = []

    def note(self, communicator: str, function: str, rank: int, sequence: int) -> None:
        """This rank of this process has launched it."""
        key = communicator, function, rank
        if sequence <= self._reached.get(key, -2):
            return
        for one, reached in (((communicator, "", rank), -1), (key, sequence)):
            self._reached.pop(one, None)
            self._reached[one] = reached  # the newest last
        while len(self._reached) > MOST:
            del self._reached[next(iter(self._reached))]

    def tell(self, waits: list[Waiting]) -> None:
        """Writes what has changed; where the folder has gone, the run has ended and there is nobody to tell."""
        if self._folder is None:
            return
        if self._reached != self._told:
            self._told = dict(self._reached)
            self._write(_REACHED, [[*key, sequence, self.job_rank] for key, sequence in self._told.items()])
        if waits != self._waits:
            self._waits = waits
            self._write(_WAITS, [list(one) for one in waits])

    def missing(self, communicator: str, function: str, sequence: int) -> Missing:
        """Who of those on this host has come to it."""
        furthest: dict[int, tuple[int, int]] = {}
        for pid, place in self._places(communicator):
            if place.function in ("", function):
                furthest[place.rank] = max(furthest.get(place.rank, (-1, pid)), (place.sequence, pid))
        absent = {rank: at for rank, at in furthest.items() if at[0] < sequence}
        ended = frozenset(rank for rank, (_, pid) in absent.items() if not os.path.exists(f"/proc/{pid}"))
        return Missing(frozenset(furthest.keys() - absent.keys()), absent, ended)

    def job_ranks(self, communicator: str) -> dict[int, int]:
        """The numbers in the job of a communicator's ranks, of those that are known."""
        return {place.rank: place.job_rank for _, place in self._places(communicator) if place.job_rank is not None}

    def _places(self, communicator: str) -> Iterator[tuple[int, Place]]:
        """What the processes on this host have told of it, and this one knows, each with its process."""
        mine = [(os.getpid(), Place(*key, reached, self.job_rank)) for key, reached in self._reached.items()]
        for pid, place in (*self._told_by_all(_REACHED, Place), *mine):
            if place.communicator == communicator:
                yield pid, place

    def waited_for(self) -> list[tuple[Waiting, int]]:
        """What others wait in, and a rank of this process has not launched, with that rank."""
        return [
            (wait, rank)
            for pid, wait in self._told_by_all(_WAITS, Waiting)
            for communicator, function, rank in list(self._reached)
            if pid != os.getpid() and communicator == wait.communicator and not function
            if self.reached(communicator, wait.function, rank) < wait.sequence
        ]

    def reached(self, communicator: str, function: str, rank: int) -> int:
        """The number that this rank of this process has launched last; -1: none."""
        return self._reached.get((communicator, function, rank), -1)

    def _write(self, kind: str, rows: list[list[Any]]) -> None:
        path = os.path.join(self._folder or "", f"{kind}{os.getpid()}")
        try:
            with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(dumps(rows))
            os.replace(f"{path}.new", path)  # who reads has one of the two, whole
        except OSError:
            self._folder = None

    def _told_by_all(self, kind: str, form: Any) -> Iterator[tuple[int, Any]]:
        for pid, rows in self._files(kind):
            for row in rows if isinstance(rows, list) else ():
                try:
                    yield pid, form(*row)
                except TypeError:  # noqa: PERF203 - of another version
                    continue

    def _files(self, kind: str) -> Iterable[tuple[int, Any]]:
        try:
            names = os.listdir(self._folder) if self._folder is not None else []
        except OSError:
            return
        for name in names:
            pid = name[len(kind) :]
            if name.startswith(kind) and pid.isdigit():
                try:
                    with open(os.path.join(self._folder or "", name), encoding="utf-8") as file:
                        yield int(pid), loads(file.read())
                except (OSError, ValueError):  # it has gone
                    continue


def told(found: Missing, ranks: int | None, job_ranks: Mapping[int, int]) -> str:
    """Who has not come, in words, of a communicator of so many ranks."""
    parts = []
    if found.absent:
        who = named(found.absent, job_ranks)
        last = [f": it {last_text(last)}" for last, _ in found.absent.values()]
        parts.append(f"{who} has not come{last[0]}" if len(last) == 1 else f"{who} have not come")
    if found.ended:
        whose = "its process" if len(found.absent) == 1 else f"the process of {named(found.ended, job_ranks)}"
        parts.append(f"{whose} has ended")
    unknown = (ranks or 0) - len(found.came) - len(found.absent)
    if unknown > 0:
        parts.append(f"of {count_text(unknown, 'other rank')} nothing is known here")
    if ranks and not parts:
        parts.append("all ranks have launched it, so a device or the network does not go on")
    return "; ".join(parts)


def last_text(sequence: int) -> str:
    """How far a rank has come, in words."""
    return f"launched number {sequence:,} last" if sequence >= 0 else "has launched none yet"


def named(ranks: Collection[int], job_ranks: Mapping[int, int]) -> str:
    """Ranks of a communicator as those of the job, and as its own where these are others: "rank 6 (2 of the
    communicator)"."""
    theirs, of_job = ranks_text(ranks), ranks_text(job_ranks.get(rank, rank) for rank in ranks)
    return theirs if theirs == of_job else f"{of_job} ({theirs.partition(' ')[2]} of the communicator)"
