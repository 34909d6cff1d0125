"""Collectives as records: the plugin's slots on the session's clock.

A device's global timer has an offset of its own to the clocks of the host. Two things bound it: no channel begins
before the host began the launch, and NCCL's thread sees none begin before it has. Where collectives are frequent the
bounds are a few microseconds apart; they drift with the timer.
"""

import os
import time
from typing import Any

from ..._records.metrics import CollectiveTotals
from ..._records.protocols import OnRecords
from ..._records.records import GpuCollective
from ..._runtime import clock, threads
from . import events
from .plugin import Communicator, Plugin, Slot
from .totals import Totals

#: By how much the two clocks move apart, at most: 10 µs a second.
DRIFT = 1e-5


class DeviceClock:
    """The offset of one device's timer: CLOCK_MONOTONIC is what that shows plus ``low`` to ``high``."""

    def __init__(self) -> None:
        self.low: float | None = None
        self.high: float | None = None
        self._looked_ns = 0

    def look(self, slot: Slot) -> None:
        """Learns from a collective whose first channel was seen to begin."""
        if not slot.first_ns:
            return
        drift = abs(slot.first_seen_ns - self._looked_ns) * DRIFT
        self._looked_ns = slot.first_seen_ns
        starts = [start for _, start, _ in slot.channels if start]
        low, high = slot.begun_ns - min(starts, default=slot.first_ns), slot.first_seen_ns - slot.first_ns
        self.low = low if self.low is None else max(low, self.low - drift)
        self.high = high if self.high is None else min(high, self.high + drift)
        if self.low > self.high:  # one of them was held too long; what was seen last is believed
            self.low, self.high = low, high

    @property
    def offset_ns(self) -> int | None:
        """CLOCK_MONOTONIC minus what it shows. NCCL's thread polls, so that it is near the higher bound."""
        return None if self.high is None else round(self.high)

    @property
    def error_ns(self) -> int | None:
        """How far below the true offset may be."""
        return None if self.high is None or self.low is None else round(self.high - self.low)


_active: "NcclSource | None" = None


def totals() -> tuple[CollectiveTotals, ...]:
    """Of the source of this process that was started last, while it runs."""
    return tuple(_active.totals()) if _active is not None else ()


class NcclSource:
    """A RecordSource. :meth:`poll` hands on what has ended; it is to be called a few times a second."""

    name = "nccl"

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self._lock = threads.rlock()
        self._pid = os.getpid()
        self._clocks: dict[int, DeviceClock] = {}
        self._on_records: OnRecords | None = None
        self._handed_on = 0
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
            records = [self._record(slot, communicators, ended=True) for slot in taken]
            on_records = self._on_records
            if records and on_records is not None:
                self._totals.add(records, now_ns)
                self._handed_on += len(records)
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
            "under_way": self.plugin.under_way,
        }

    def pending(self) -> list[GpuCollective]:
        """What has begun and not ended, in the order of their launches: what a hang waits for."""
        return [record for record, _ in self._unended()]

    def totals(self) -> list[CollectiveTotals]:
        """Sums so far by function and communicator."""
        if self._pid != os.getpid():
            return []
        now_ns = time.monotonic_ns()
        waits = [(record, now_ns - slot.first_seen_ns) for record, slot in self._unended(begun=True)]
        return self._totals.rows(now_ns, waits)

    def _unended(self, begun: bool = False) -> list[tuple[GpuCollective, Slot]]:
        """What has not ended; ``begun``: that the device is in. None where another thread is at it for long, or this
        one is."""
        if threads.mine(self._lock):
            return []
        try:
            if not self._lock.acquire(timeout=1.0):
                return []
            communicators = self.plugin.communicators()
            slots = [slot for slot in self.plugin.pending() if slot.first_seen_ns or not begun]
            slots = [slot._replace(channels=self.plugin.channels(slot)) for slot in slots]
            return [(self._record(slot, communicators, ended=False), slot) for slot in slots]
        finally:
            threads.give_back(self._lock)

    def _record(self, slot: Slot, communicators: dict[int, Communicator], *, ended: bool) -> GpuCollective:
        of = communicators.get(slot.row)
        device = self._clocks.setdefault(slot.row, DeviceClock())
        device.look(slot)
        told = events.decode(slot.event, of.version if of else events.NEWEST)
        ranks = of.ranks if of and of.ranks else None
        session, offset = clock.SESSION.of_monotonic(0), device.offset_ns
        channels: tuple[tuple[int | None, ...], ...] = tuple([(number, None, None) for number, _, _ in slot.channels])
        start = end = None
        if offset is not None:
            ahead = offset + session
            channels = tuple([(n, a + ahead if a else None, b + ahead if b else None) for n, a, b in slot.channels])
            start = min([a for _, a, _ in slot.channels if a], default=None)
            end = max([b for _, _, b in slot.channels if b], default=None)
            start, end = start and start + ahead, end and end + ahead
        by_host = bool(slot.channels_begun and start is None)  # before version 4: when NCCL's thread saw it
        if by_host:
            start, end = slot.first_seen_ns + session, slot.last_seen_ns + session if slot.last_seen_ns else None
        return GpuCollective(
            told.function,
            slot.begun_ns + session,
            (slot.ended_ns or slot.begun_ns) + session,
            _hexadecimal(told.communicator if told.communicator is not None else of and of.id),
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
            device_start_ns=start,
            device_end_ns=end if ended else None,
            channels=channels,
            clock_error_ns=None if by_host else device.error_ns,
            thread=slot.thread,
            attributes={"timing": "host"} if by_host else None,
        )


def _hexadecimal(number: int | None) -> str | None:
    return None if number is None else f"{number:016x}"
