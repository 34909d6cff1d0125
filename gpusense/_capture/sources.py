"""What records for a tracer beside capture: passes of a graphics API, collectives, counters, sources of a user.

A source is a :class:`~gpusense._records.protocols.RecordSource`. All are asked one by one; one that raises is taken out
and told of once, and nothing of it reaches the program.
"""

from collections.abc import Callable, Iterator
from typing import Any

from .._records.device_identity import same
from .._records.protocols import Wait
from .._records.records import DeviceInfo, Record, Unavailable
from .._runtime import log
from .._runtime.interrupts import is_the_programs


class Sources:
    """Any thread may call its methods. What comes out of a source on ``own_thread()`` is never the program's."""

    def __init__(self, own_thread: Callable[[], bool]) -> None:
        self.absent: dict[str, Unavailable] = {}  # what might record here besides, and why it does not
        self._own_thread = own_thread
        self._known: tuple[Any, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._known)

    def add(self, source: Any) -> None:
        self._known = (*self._known, source)

    def remove(self, source: Any) -> None:
        self._known = tuple(known for known in self._known if known is not source)

    def forget(self) -> None:
        """In a forked child: nobody records here any more."""
        self._known = ()

    def flush(self, timeout_s: float, last: bool = False) -> bool:
        """Whether all have handed on what is finished. ``last``: the recording ends."""

        def flush(source: Any) -> bool:
            return bool((getattr(source, "end", source.flush) if last else source.flush)(timeout_s))

        return all(self._each(flush))

    def waits(self, longer_ns: int) -> list[Wait]:
        """What their work has waited in for so long, for other processes."""
        found = self._each(lambda source: source.waits(longer_ns) if hasattr(source, "waits") else ())
        return [wait for waits in found for wait in waits]

    def last(self) -> list[Record]:
        """What they remember of the time before a dump, and what is under way."""
        found = self._each(lambda source: source.last() if hasattr(source, "last") else ())
        return [record for records in found for record in records]

    def devices_beside(self, known: list[DeviceInfo]) -> list[DeviceInfo]:
        """Those that records of sources name, and ``known`` does not."""
        found: list[DeviceInfo] = []
        for devices in self._each(lambda source: source.used_devices() if hasattr(source, "used_devices") else ()):
            for device in devices:
                found += [] if any(same(device, one) for one in (*known, *found)) else [device]
        return found

    def status(self) -> dict[str, Any]:
        """For ``meta``: what each says, and why others are absent."""
        return {**self.why_absent(), **dict(self._each(lambda source: (source.name, source.status())))}

    def cpu_ns(self) -> dict[str, int]:
        """Processor time of those that have a thread of their own, by the name it has in ``overhead``."""
        return {f"{source.name}_cpu_ns": source.cpu_ns for source in self._known if hasattr(source, "cpu_ns")}

    def why_absent(self) -> dict[str, Any]:
        return {name: {"reason": why.reason, "hint": why.hint} for name, why in self.absent.items()}

    def _each(self, ask: Callable[[Any], Any]) -> list[Any]:
        answers = []
        for source in self._known:
            try:
                answers.append(ask(source))
            except BaseException as error:  # noqa: PERF203 - a source never reaches the program
                if is_the_programs(error) and not self._own_thread():
                    raise
                self.remove(source)
                log.exception(f"source {source!r}", "a source raised and was removed")
        return answers
