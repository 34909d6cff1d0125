"""Finished records on their way to sinks: collected under the recorder's lock, handed out without it."""

from collections.abc import Callable
from typing import Any

from . import _log, _native
from ._records import Record

Sink = Callable[[list[Record]], Any]


class Delivery:
    """The sinks of one recorder, and what they have not been given yet."""

    def __init__(self) -> None:
        self.errors = 0  # sinks that raised and were removed
        self._sinks: tuple[Sink, ...] = ()
        self._outbox: list[Record] = []
        self._changing = _native.OwnedLock()
        self._turn = _native.OwnedLock()

    def add(self, sink: Sink) -> None:
        with self._changing:
            if sink not in self._sinks:
                self._sinks = (*self._sinks, sink)

    def remove(self, sink: Sink) -> None:
        with self._changing:
            self._sinks = tuple(known for known in self._sinks if known != sink)

    def forget_in_child(self) -> None:
        """After a fork: the sinks are the parent's."""
        self._sinks = ()
        self._changing = _native.OwnedLock()
        self._turn = _native.OwnedLock()

    def put(self, records: list[Record]) -> None:
        """Records for the next :meth:`take`. Under the recorder's lock, as that one."""
        if self._sinks:
            self._outbox.extend(records)

    def take(self) -> Callable[[], None]:
        """What hands out everything that was put; call it without the lock."""
        records, self._outbox = self._outbox, []
        sinks = self._sinks
        return lambda: self._hand_out(sinks, records)

    def _hand_out(self, sinks: tuple[Sink, ...], records: list[Record]) -> None:
        """One thread at a time, in order; a sink that flushes gets what that brings inside its call."""
        if not records:
            return
        nested = self._turn.mine
        if not nested:
            self._turn.acquire()
        try:
            for sink in sinks:
                self._give(sink, records)
        finally:
            if not nested:
                self._turn.release()

    def _give(self, sink: Sink, records: list[Record]) -> None:
        try:
            sink(list(records))
        except (Exception, SystemExit):  # noqa: BLE001 - a sink never reaches the program
            self.errors += 1
            self.remove(sink)
            _log.exception(f"sink {sink!r}", "gpusense: a sink raised and was removed")
