"""Recording one part of a program completely, for a test or a notebook cell, and giving what was launched in it."""

from typing import Any

from .. import configure, disable, enable, get_tracer
from .._aggregation.busy import Busy
from .._records.records import KINDS, Counters, Path, Record
from .._runtime.clock import SESSION
from ..session import Session

_ANSWER_S = 10.0
#: Counters of what is not in a session although it happened.
LOSSES = (
    *("invalid", "dropped", "missed", "lost_markers", "bytes_dropped"),
    *("failed_blocks", "shed_blocks", "ignored_records", "unread_at_end"),
)
#: How many recordings of a name there were.
_named: dict[str, int] = {}


class Recording:
    """From the start to :meth:`end` everything is kept one by one; the settings of before come back afterwards."""

    def __init__(self, name: str, kinds: tuple[str, ...] = ()) -> None:
        self._was_active = bool(get_tracer().active)
        self.on: bool = enable()
        self._before = get_tracer().config
        if self.on:
            configure(trace_all=True, kinds=tuple({*self._before.kinds, *kinds}))
        self.complete = True
        self._ended: Session | None = None
        self._counters: Counters = get_tracer().session().counters
        self._block: Any = get_tracer().open_scope(_unlike_others(name))

    @property
    def reason(self) -> str:
        """Why no GPU work can have been seen; empty where it can."""
        if not self.on:
            return "gpusense is off (GPUSENSE=off)"
        status = get_tracer().status()
        return "" if status.get("state") == "running" else str(status.get("reason") or status.get("state"))

    def end(self) -> Session:
        """What was recorded from the start until the first call of this method."""
        if self._ended is None:
            tracer = get_tracer()
            tracer.close_scope(self._block)
            self.complete = self._block.wait(_ANSWER_S)
            self._ended = (
                part(tracer.session(), self._block, self._counters) if self.on else Session(meta={"mode": "off"})
            )
        return self._ended

    def close(self) -> Session:
        """As :meth:`end`; then the settings of before."""
        session = self.end()
        if self.on:
            configure(trace_all=self._before.trace_all, kinds=self._before.kinds)
            if not self._was_active:
                disable()
        self.on = False
        return session


def _unlike_others(name: str) -> str:
    """What was only counted is told apart by its path alone, and two tests may have one name."""
    times = _named[name] = _named.get(name, 0) + 1
    return f"{name} ({times})" if times > 1 else name


def part(session: Session, block: Any, before: Counters) -> Session:
    """What ``session`` holds of the time and the inside of ``block``; losses are those since ``before``."""
    path, of = block.path, SESSION.of_wall
    start, end = of(block.start_ns), of(block.end_ns)
    records = [record for record in session.records if _inside(record, path, start, end)]
    aggregates = [row for row in session.aggregates if row.path[: len(path)] == path]
    busy = Busy()
    for record in records:
        kind = KINDS[type(record)]
        if kind in ("kernel", "transfer", "memset"):
            item: Any = record
            busy.add(item.backend, item.device, kind == "kernel", [item.start_ns], [item.end_ns])
    counted = sum(row.count for row in aggregates)
    lost = {name: max(0, getattr(session.counters, name) - getattr(before, name)) for name in LOSSES}
    return Session(
        meta={**session.meta, "start_ns": start, "end_ns": end},
        devices=session.devices,
        records=records,
        aggregates=aggregates,
        metrics=[sample for sample in session.metrics if start <= sample.time_ns <= end],
        busy=busy.rows(),
        unseen=[gap for gap in session.unseen if gap.end_ns is None or gap.end_ns >= start],
        counters=Counters(seen=len(records) + counted, kept=len(records), aggregated=counted, **lost),
        counter_samples=session.counter_samples.since(start, end),
    )


def _inside(record: Record, path: Path, start: int, end: int) -> bool:
    """Launched inside a block, or outside every block but in its time (by a thread that has no blocks)."""
    if record.path[: len(path)] == path:
        return record.end_ns >= start  # what the program timed itself may have begun before its block
    return not record.path and start <= record.start_ns <= end
