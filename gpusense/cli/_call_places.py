"""In which block a system call was made: by its thread's number in the system, and its time. Pure.

Blocks of one thread lie in each other, and a call belongs to the innermost one. Where they overlap in another way, as
those of tasks that take turns do, nobody knows whose call it was, and it gets none.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from .._records.records import BlockRecord, Path, Syscall
from .._runtime import threads

_MOST = 500_000
_OPEN = 1 << 63  # the end of what has none


class Span(NamedTuple):
    """A block, as long as it is open."""

    start_ns: int
    end_ns: int
    block_id: int
    path: Path


class CallPlaces:
    """Blocks as they come; a listener of a tracer, too."""

    def __init__(self) -> None:
        self._spans: dict[int, dict[int, Span]] = {}
        self._count = 0
        self._known: dict[int, tuple[list[int], list[Span | None]]] = {}

    def block_opened(self, block: Any) -> None:
        if block.recorded and self._count < _MOST:
            self._count += 1
            span = Span(block.start_ns, _OPEN, block.block_id, block.path)
            self._spans.setdefault(threads.system_id(), {})[block.block_id] = span
            self._known = {}

    def block_closed(self, block: Any) -> None:
        mine = self._spans.get(threads.system_id(), {})
        span = mine.get(block.block_id)
        if span is not None and block.end_ns is not None:
            mine[block.block_id] = span._replace(end_ns=block.end_ns)
            self._known = {}

    def add(self, blocks: Iterable[BlockRecord], native_ids: dict[int, int]) -> None:
        """``native_ids``: of each number of Python the thread's number in the system."""
        for block in blocks:
            native = native_ids.get(block.thread)
            if native is not None:
                span = Span(block.start_ns, block.end_ns, block.block_id, block.path)
                self._spans.setdefault(native, {})[block.block_id] = span
        self._known = {}

    def placed(self, calls: list[Syscall]) -> list[Syscall]:
        """``calls`` with their blocks, as far as these are known by now."""
        found = []
        for call in calls:
            span = self.at(call.thread, call.start_ns) if call.thread is not None else None
            found.append(call if span is None else call._replace(block_id=span.block_id, path=span.path))
        return found

    def at(self, thread: int, time_ns: int) -> Span | None:
        """The innermost block of a thread at a moment, as far as it is known by now."""
        known = self._known  # another one once a block begins or ends
        if thread not in known:
            known[thread] = _innermost(list(self._spans.get(thread, {}).values()))
        times, spans = known[thread]
        place = bisect_right(times, time_ns)
        return spans[place - 1] if place else None


def _innermost(spans: list[Span]) -> tuple[list[int], list[Span | None]]:
    """Moments at which the innermost block changes, and which it is from then on."""
    moments = sorted({time for span in spans for time in (span.start_ns, span.end_ns)})
    waiting = sorted(spans, key=attrgetter("start_ns", "block_id"))
    waiting.reverse()
    now: list[Span] = []  # the last of them is open; of those before it some may have ended
    ends: list[int] = []  # of those that are open, in order
    overlap_ns = 0  # until then one is open that began before another and ends before it
    found: list[Span | None] = []
    for moment in moments:
        del ends[: bisect_right(ends, moment)]
        while waiting and waiting[-1].start_ns <= moment:
            span = waiting.pop()
            now.append(span)
            earlier = bisect_left(ends, span.end_ns)
            overlap_ns = max((overlap_ns, *ends[earlier - 1 : earlier]))
            ends.insert(earlier, span.end_ns)
        while now and now[-1].end_ns <= moment:
            now.pop()
        found.append(now[-1] if now and overlap_ns <= moment else None)
    return moments, found
