"""Collectives as records: the plugin's slots on the session's clock.

A device's global timer has an offset of its own to the clocks of the host. Two things bound it: NCCL's thread sees no
channel begin before it has, and none begins before its launch. Where collectives are frequent the former is a few
microseconds off; both drift with the timer.
"""

import os
import time
from collections import deque
from typing import Any

from ..._records.metrics import CollectiveTotals
from ..._records.protocols import OnRecords, Wait
from ..._records.records import GpuCollective
from ..._runtime import clock, threads
from ..._runtime.text import time_text
from . import events
from .peers import Peers, Waiting, last_text, named, told
from .plugin import Communicator, Plugin, Slot
from .totals import Totals

#: Collectives that are remembered for a dump, however long ago they were: what led to a hang.
LAST = 1_000
#: By how much the two clocks move apart at most: 100 µs a second; while the host's is being set right, 1 ms.
DRIFT, MOST_DRIFT = 1e-4, 1e-3
#: From the launch of a kernel until NCCL tells of it, unless its thread is interrupted.
LAUNCH_NS = 200_000
#: Bounds of the offset may contradict each other by so much and still be of the collectives that they seem to be of.
TOLERATED_NS = 200_000
#: Why there are no times where there might be.
ASTRAY = "NCCL gives times of earlier ones, as it does once CUDA graphs and other launches have taken turns"
#: The same of ends: one of the threads that send tells of it, whatever those that receive still wait for.
SHARED = "NCCL tells of one end for what a kernel sends and receives at a time"


class DeviceClock:
    """The timer of a communicator's device: CLOCK_MONOTONIC is what that shows plus ``low`` to ``high``.

    NCCL tells of a launch after the kernel is launched, so a channel may begin before that, and not before the launch
    that its thread has told of before.

    NCCL numbers what the device does in a channel, and the host counts along. Up to 2.31 it forgets to where a CUDA
    graph is replayed after something else was launched: from then on it gives each collective the times of an earlier
    one, and says that it has ended before it has begun. So times that cannot be make ``astray`` of all that follow.
    """

    def __init__(self) -> None:
        self.low: float | None = None
        self.high: float | None = None
        self.astray = False
        self._looked_ns = 0
        self._told = 0, 0  # thread and end of the launch that was told of last
        self._parts: dict[int, tuple[int, int, int]] = {}  # by channel, of the last one: launched, began, ended

    def look(self, slot: Slot, start_ns: int) -> None:
        """Learns from a collective whose first channel was seen to begin. ``start_ns``: the earliest, by the timer."""
        thread, told_ns = self._told
        if slot.ended_ns > told_ns:
            self._told = slot.thread, slot.ended_ns
        if not slot.first_ns or self.astray:
            return
        elapsed = abs(slot.first_seen_ns - self._looked_ns)
        self._looked_ns = slot.first_seen_ns
        start_ns = start_ns or slot.first_ns
        before_ns = told_ns if thread == slot.thread and told_ns <= slot.begun_ns else 0
        low, high = max(before_ns, slot.begun_ns - LAUNCH_NS) - start_ns, slot.first_seen_ns - slot.first_ns
        self.low = low if self.low is None else max(low, self.low - elapsed * DRIFT)
        self.high = high if self.high is None else min(high, self.high + elapsed * DRIFT)
        too_early_ns = before_ns - start_ns - self.high if before_ns else 0
        self.astray = too_early_ns > elapsed * MOST_DRIFT + TOLERATED_NS or self._collide(slot)
        if too_early_ns > 0:  # the bound was held too long; what was seen last is believed
            self.high = high
        self.low = min(self.low, self.high)

    def _collide(self, slot: Slot) -> bool:
        """Whether a channel ends before it begins, or has two things to do at a time that were launched one by one."""
        for number, start, end in slot.channels if slot.ended_ns else ():
            if not start or not end:
                continue
            launched, before, until = self._parts.get(number, (0, 0, 0))
            if end < start or (slot.begun_ns > launched and max(start, before) < min(end, until)):
                return True
            self._parts[number] = slot.ended_ns, start, end
        return False

    @property
    def offset_ns(self) -> int | None:
        """CLOCK_MONOTONIC minus what it shows. NCCL's thread polls, so that it is near the higher bound."""
        return None if self.high is None else round(self.high)

    @property
    def error_ns(self) -> int | None:
        """How far below the true offset may be."""
        return None if self.high is None or self.low is None else round(self.high - self.low)


#: Of a wait, for programs.
_TOLD = ("communicator", "communicator_name", "rank", "ranks", "name", "sequence", "peer")
_active: "NcclSource | None" = None


def totals() -> tuple[CollectiveTotals, ...]:
    """Of the source of this process that was started last, while it runs."""
    return tuple(_active.totals()) if _active is not None else ()


class NcclSource:
    """A RecordSource. :meth:`poll` hands on what has ended; it is to be called a few times a second."""

    name = "nccl"

    def __init__(self, plugin: Plugin, folder: str | None = None, job_rank: int | None = None) -> None:
        """``folder``: that of the run, which all processes of the run share. ``job_rank``: this process's number among
        those of the job."""
        self.plugin = plugin
        self._peers = Peers(folder, job_rank)
        self._noted = 0  # newest ticket that the others have been told of
        self._lock = threads.rlock()
        self._pid = os.getpid()
        self._clocks: dict[int, DeviceClock] = {}
        self._on_records: OnRecords | None = None
        self._handed_on = 0
        self._without_times: dict[str, int] = {}  # of these, by reason
        self._last: deque[GpuCollective] = deque(maxlen=LAST)
        self._totals = Totals()

    def start(self, on_records: OnRecords) -> None:
        global _active
        self._on_records, _active = on_records, self
        self.plugin.switch(True)

    def stop(self) -> None:
        global _active
        self.plugin.switch(False)
        self._on_records = None
        if _active is self:
            _active = None

    def end(self, timeout_s: float) -> bool:
        """Hands on what has not ended, too, without its end: it may be what the program hung in."""
        self._hand_on(timeout_s)
        on_records, self._on_records = self._on_records, None
        if on_records is not None:
            on_records(self.pending())
        return True

    def poll(self) -> bool:
        """Hands on what has ended. False always: it wants to be called again."""
        if self.plugin.used:
            self._hand_on(0)
        return False

    def flush(self, timeout_s: float) -> bool:
        """Hands on what has ended; what is under way on the device is not waited for."""
        return self._hand_on(timeout_s)

    def _hand_on(self, timeout_s: float) -> bool:
        """False where another thread, or this one below a signal handler, was at it all the time."""
        if threads.mine(self._lock):
            return False
        try:
            if not self._lock.acquire(timeout=timeout_s):
                return False
            now_ns = time.monotonic_ns()
            taken = self.plugin.take(now_ns)
            communicators = self.plugin.communicators() if taken else {}
            shared = _share_an_end(taken, communicators)
            records = [self._record(slot, communicators, ended=slot.ticket not in shared) for slot in taken]
            for at, record in enumerate(records):
                self._note(record)
                if taken[at].ticket in shared and not record.attributes:
                    record = records[at] = record._replace(channels=(), attributes={"untimed": SHARED})
                if record.attributes and (why := record.attributes.get("untimed")):
                    self._without_times[why] = self._without_times.get(why, 0) + 1
            on_records = self._on_records
            if records and on_records is not None:
                self._totals.add(records, now_ns)
                self._handed_on += len(records)
                self._last.extend(records)
                on_records(records)
        finally:
            threads.give_back(self._lock)
        return True

    def status(self) -> dict[str, Any]:
        """What there was when it was last looked, and what was lost."""
        return {
            "communicators": len(self.plugin.communicators()),
            "collectives": self._handed_on,
            "lost": self.plugin.lost,
            "late_channels": self.plugin.late,
            "under_way": self.plugin.under_way,
            **({"unnamed": self.plugin.unnamed} if self.plugin.unnamed else {}),
            **({"without_times": dict(self._without_times)} if self._without_times else {}),
        }

    def pending(self) -> list[GpuCollective]:
        """What has begun and not ended, in the order of their launches: what a hang waits for."""
        return [record for record, _ in self._unended()]

    def last(self) -> list[GpuCollective]:
        """The last :data:`LAST` that were handed on, without their channels, and what has begun and not ended."""
        return [*[record._replace(channels=()) for record in self._last], *self.pending()]

    def totals(self) -> list[CollectiveTotals]:
        """Sums so far by function and communicator."""
        if self._pid != os.getpid():
            return []
        now_ns = time.monotonic_ns()
        waits = [(record, now_ns - slot.first_seen_ns) for record, slot in self._unended(begun=True)]
        return self._totals.rows(now_ns, waits)

    def waits(self, longer_ns: int) -> list[Wait]:
        """Of each communicator what the device has been in for so long, and what other processes of the run have waited
        in for a rank of this one. Tells them how far this one has come."""
        found: dict[int, tuple[GpuCollective, Slot]] = {}
        now_ns = time.monotonic_ns()
        for of in self.plugin.communicators().values():
            if of.ranks:
                self._peers.note(f"{of.id:016x}", "", of.rank, -1)
        for record, slot in self._unended(begun=True):
            if now_ns - slot.first_seen_ns >= longer_ns:
                found.setdefault(slot.row, (record, slot))
        job_rank = self._peers.job_rank
        self._peers.tell(
            [
                Waiting(of.communicator, of.name, of.rank, of.sequence, slot.first_seen_ns, job_rank)
                for of, slot in found.values()
                if of.communicator is not None and of.rank is not None and of.sequence is not None
            ]
        )
        waits = [self._wait(record, slot, now_ns) for record, slot in found.values()]
        return waits + [self._awaited(wait, rank, now_ns) for wait, rank in self._peers.waited_for()]

    def _wait(self, record: GpuCollective, slot: Slot, now_ns: int) -> Wait:
        """What this process waits in, and for whom."""
        of, job_ranks = record.communicator, self._peers.job_ranks(record.communicator or "")
        name = f" ({record.communicator_name})" if record.communicator_name else ""
        who = named([record.rank or 0], job_ranks)
        text = f"{who} has been in {_named(record, job_ranks)} of communicator {of}{name} for "
        text += time_text(now_ns - slot.first_seen_ns)
        facts: dict[str, Any] = {field: getattr(record, field) for field in _TOLD}
        if of is not None and record.sequence is not None:
            missing = self._peers.missing(of, record.name, record.sequence)
            for field in ("came", "absent", "ended"):
                facts[field] = sorted(job_ranks.get(rank, rank) for rank in getattr(missing, field))
            absent = told(missing, record.ranks, job_ranks)
            text += f"; {absent}" if absent else ""
        return Wait((slot.ticket,), slot.first_seen_ns + clock.SESSION.of_monotonic(0), text, facts)

    def _awaited(self, wait: Waiting, rank: int, now_ns: int) -> Wait:
        """What another process waits in for this rank of the communicator, which is here."""
        known = {at: of for at, of in ((wait.rank, wait.job_rank), (rank, self._peers.job_rank)) if of is not None}
        text = (
            f"{named([rank], known)} is waited for: {named([wait.rank], known)} has been in {wait.function} number "
            f"{wait.sequence:,} of communicator {wait.communicator} for {time_text(now_ns - wait.since_ns)}, and "
            f"rank {known.get(rank, rank)} {last_text(self._peers.reached(wait.communicator, wait.function, rank))}"
        )
        facts = {"communicator": wait.communicator, "name": wait.function, "sequence": wait.sequence}
        facts |= {"rank": wait.rank, "absent": [known.get(rank, rank)]}
        return Wait((wait[:4], rank), wait.since_ns + clock.SESSION.of_monotonic(0), text, facts)

    def _unended(self, begun: bool = False) -> list[tuple[GpuCollective, Slot]]:
        """What has not ended; ``begun``: that the device is in. None where another thread is at it for long, or this
        one is."""
        if threads.mine(self._lock):
            return []
        try:
            if not self._lock.acquire(timeout=1.0):
                return []
            communicators = self.plugin.communicators()
            pending = self.plugin.pending()
            for slot in pending:
                if slot.ticket > self._noted:
                    self._noted = slot.ticket
                    self._note(self._record(slot, communicators, ended=False))
            slots = [slot for slot in pending if slot.first_seen_ns or not begun]
            slots = [slot._replace(channels=self.plugin.channels(slot)) for slot in slots]
            return [(self._record(slot, communicators, ended=False), slot) for slot in slots]
        finally:
            threads.give_back(self._lock)

    def _note(self, record: GpuCollective) -> None:
        """The host has launched it: for other ranks, which may wait for it."""
        if record.communicator is not None and record.rank is not None and record.sequence is not None:
            self._peers.note(record.communicator, record.name, record.rank, record.sequence)

    def _record(self, slot: Slot, communicators: dict[int, Communicator], *, ended: bool) -> GpuCollective:
        of = communicators.get(slot.row)
        device = self._clocks.get(slot.row)
        if device is None:
            device = self._clocks[slot.row] = DeviceClock()
        first, last = _span(slot.channels)
        device.look(slot, first)
        told = events.decode(slot.event, of.version if of else events.NEWEST)
        ranks = of.ranks if of and of.ranks else None
        session, offset = clock.SESSION.of_monotonic(0), device.offset_ns
        ahead = None if offset is None else offset + session
        start, end = (first and first + ahead, last and last + ahead) if ahead is not None else (0, 0)
        why = ASTRAY if device.astray and slot.channels_begun else slot.why
        by_host = bool(slot.channels_begun and not start)  # before version 4: when NCCL's thread saw it
        if why:
            start = end = 0
        elif by_host:
            start, end = slot.first_seen_ns + session, slot.last_seen_ns + session if slot.last_seen_ns else 0
        identity = told.communicator if told.communicator is not None else of and of.id
        return GpuCollective(
            told.function,
            slot.begun_ns + session,
            (slot.ended_ns or slot.begun_ns) + session,
            None if identity is None else f"{identity:016x}",
            communicator_name=told.communicator_name or (of.name or None if of else None),
            rank=of.rank if ranks and of else told.rank,
            ranks=ranks,
            nodes=of.nodes if ranks and of else None,
            sequence=told.sequence,
            elements=told.elements,
            data_type=told.data_type,
            bytes=events.size(told, ranks),
            root=told.root,
            peer=told.peer,
            algorithm=told.algorithm,
            protocol=told.protocol,
            device_start_ns=start or None,
            device_end_ns=(end or None) if ended else None,
            channels=() if why else _moved(slot.channels, ahead),
            clock_error_ns=None if by_host or why else device.error_ns,
            thread=slot.thread,
            attributes={"untimed": why} if why else {"timing": "host"} if by_host else None,
        )


def _share_an_end(slots: list[Slot], communicators: dict[int, Communicator]) -> set[int]:
    """Tickets of sends and receives whose end is told with another's; of a send and a receive it is the send's own."""
    works: dict[Any, list[tuple[bool, int]]] = {}
    for slot in slots:
        if slot.channels and not events.is_collective(slot.event):
            of = communicators.get(slot.row)
            receives = events.is_receive(slot.event, of.version if of else events.NEWEST)
            for part in slot.channels:
                works.setdefault((slot.row, part), []).append((receives, slot.ticket))
    return {
        ticket
        for work in works.values()
        for receives, ticket in work
        if len(work) > 1 and (receives or len(work) > 2 or not any(other for other, _ in work))
    }


def _span(channels: tuple[tuple[int, int, int], ...]) -> tuple[int, int]:
    """The earliest start and the latest end; 0 where none is known."""
    first = last = 0
    for _, start, end in channels:
        if start and (start < first or not first):
            first = start
        if end > last:
            last = end
    return first, last


def _moved(channels: tuple[tuple[int, int, int], ...], ahead: int | None) -> tuple[tuple[int | None, ...], ...]:
    """On the session's clock, which is so far ahead of the device's; None where that, or a time, is not known."""
    if ahead is None:
        return tuple([(number, None, None) for number, _, _ in channels])
    return tuple([(n, start + ahead if start else None, end + ahead if end else None) for n, start, end in channels])


def _named(record: GpuCollective, job_ranks: dict[int, int]) -> str:
    """ "AllReduce number 41"; "Recv from rank 3"."""
    if record.peer is not None:
        return f"{record.name} {'to' if record.name == 'Send' else 'from'} {named([record.peer], job_ranks)}"
    return record.name if record.sequence is None else f"{record.name} number {record.sequence:,}"
