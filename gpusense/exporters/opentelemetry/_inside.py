"""What was launched inside a block: sums for the block's own span, and of what has no span of its own. Imports no
OpenTelemetry.

Sums count what is in blocks inside, too. What is below the threshold the tracer only counts, and not when it ran.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import ref

from ..._aggregation.block_totals import BLOCK_TIME, KindSums, by_kind
from ..._records.records import AT_MOST, KINDS, GpuBlockTime, Record
from ..._records.work import WITH_ROWS
from ..._runtime.text import count_text, size_text, time_text
from ...analysis.blocks import sees_work
from ...session import Session
from ._attributes import Attributes, clean, nanoseconds

#: Kinds of work on the device, as they are called.
_WORK = (("kernel", "short kernel"), ("transfer", "short copy"), ("memset", "short memset"))
_PLURAL = {"short copy": "short copies"}
MAX_BLOCKS = 65_536  # whose sums wait for their span


class Inside(NamedTuple):
    """``sums``: all that was launched in the block, None where that is not known; ``short``: what of it has no span,
    without that of blocks inside; ``waits``: whether waits of the host were recorded; ``device``: nanoseconds that the
    device timed, where it did, and whether that is a bound.
    """

    sums: KindSums | None
    short: KindSums
    waits: bool
    device: tuple[int, bool] | None = None

    def attributes(self) -> Attributes:
        """Of the block's span."""
        timed: Attributes = {}
        if self.device is not None:
            timed = {"gpu.block.device_ns": clean(self.device[0]), "gpu.block.at_most": self.device[1]}
        if self.sums is None:
            return timed
        kernels, _, _ = self.sums.get("kernel", _NOTHING)
        copies, _, size = self.sums.get("transfer", _NOTHING)
        found = {
            "gpu.inside.kernels": kernels,
            "gpu.inside.gpu_ns": _device_ns(self.sums),
            "gpu.inside.transfers": copies,
            "gpu.inside.transfer_bytes": size,
        }
        if self.waits:
            found["gpu.inside.waits"], found["gpu.inside.wait_ns"], _ = self.sums.get("sync", _NOTHING)
        return {**{name: clean(value) for name, value in found.items()}, **timed}

    def summed(self) -> tuple[int, Attributes]:
        """Nanoseconds and attributes of the span for what has none; (0, {}) where there is nothing."""
        rows = [(name, self.short[kind]) for kind, name in _WORK if kind in self.short]
        if not rows:
            return 0, {}
        total = _device_ns(self.short)
        return total, {
            "gpu.operation": "summed",
            "gpu.aggregate.text": "; ".join(_words(name, row) for name, row in rows),
            "gpu.aggregate.count": sum(row[0] for _, row in rows),
            "gpu.aggregate.total_ns": clean(total),
            "gpu.aggregate.bytes": clean(sum(row[2] for _, row in rows)) or None,
            "gpu.aggregate.times": "drawn from the block's start, as long as all together; when it ran is unknown",
        }


_NOTHING = [0, 0, 0]


def _device_ns(sums: KindSums) -> int:
    return sum(sums[kind][1] for kind, _ in _WORK if kind in sums)


def _words(name: str, row: list[int]) -> str:
    size = f", {size_text(row[2])}" if row[2] else ""
    return f"{count_text(row[0], name, _PLURAL.get(name, name + 's'))}, {time_text(row[1])}{size}"


def only_place(session: Session) -> tuple[str, int | None] | None:
    """Backend and device of all work, where there is only one."""
    found = {(row.backend, row.device) for row in session.busy}
    return found.pop() if len(found) == 1 else None


class OfSession:
    """Of the blocks of a recorded session: known where it was loaded with ``each_block``, or all of it is listed."""

    def __init__(self, session: Session) -> None:
        capture = session.meta.get("capture") or {}
        self._seen = sees_work(capture.get("state"))
        self._waits = "sync" in (session.meta.get("kinds") or ())
        self._kept: dict[int, KindSums] = {}
        self._nested: dict[int, KindSums] = {}
        _add_records(self._kept, session.records)
        self._devices: dict[int, tuple[int, bool]] = {}
        for record in session.records:
            if type(record) is GpuBlockTime and record.block_id is not None:
                before, bound = self._devices.get(record.block_id, (0, False))
                self._devices[record.block_id] = before + record.duration_ns, bound or record.timing == AT_MOST
        self._sums = session.each_block
        blocks = sorted(session.blocks, key=lambda block: -block.block_id)  # those inside before those around them
        if self._sums is None and not any(row.kind in WITH_ROWS for row in session.aggregates):
            self._sums = {block: _copied(sums) for block, sums in self._kept.items()}
            for block in blocks:
                if block.parent_id is not None and block.block_id in self._sums:
                    _add(self._sums.setdefault(block.parent_id, {}), self._sums[block.block_id])
        for block in blocks:
            if self._sums is not None and block.parent_id is not None and block.block_id in self._sums:
                _add(self._nested.setdefault(block.parent_id, {}), self._sums[block.block_id])

    def of(self, block_id: int) -> Inside:
        device = self._devices.get(block_id)
        if self._sums is None:
            return Inside(None, {}, False, device)
        sums = self._sums.get(block_id, {})
        short = _less(sums, self._nested.get(block_id, {}), self._kept.get(block_id, {}))
        return Inside(sums if sums or self._seen else None, short, self._waits, device)


class OfTracer:
    """Of blocks that have just ended, while the tracer decodes what it captures. All but :meth:`watch` is the worker's.

    What is read of a block after it was asked counts for the block around it.
    """

    def __init__(self, tracer_of: Callable[[], Any]) -> None:
        self._tracer_of = tracer_of
        self._kept: dict[int, KindSums] = {}
        self._nested: dict[int, KindSums] = {}

    def watch(self, block: Any) -> Any:
        """On the program's thread, as ``block`` opens: has its sums kept for as long as what this gives is held."""
        tracer = getattr(block, "tracer", None)
        if tracer is None or not _decodes(tracer):
            return None
        tracer.watched[block.block_id] = ref(block)
        return block

    @property
    def known(self) -> bool:
        """Whether there can be sums: where a file is written, nothing is decoded before its end."""
        return _decodes(self._tracer_of())

    def add(self, records: Iterable[Record]) -> None:
        """These get spans of their own."""
        _add_records(self._kept, records)
        for known in (self._kept, self._nested):
            while len(known) > MAX_BLOCKS:
                del known[next(iter(known))]

    def of(self, block_id: int, parent_id: int | None, block: Any) -> Inside:
        """Of a block, asked once and after those inside it; ``block``: what :meth:`watch` gave, whose tracer may have
        ended since."""
        nested, kept = self._nested.pop(block_id, {}), self._kept.pop(block_id, {})
        if block is None or block.block_id != block_id:  # it was entered anew
            return Inside(None, {}, False)
        recorder = block.tracer.recorder
        totals = recorder.totals_by_now(block)
        if totals is None:
            return Inside(None, {}, False)
        sums = by_kind(totals)
        if parent_id is not None:
            _add(self._nested.setdefault(parent_id, {}), sums)
        seen = bool(sums) or sees_work(recorder.status().get("state"))
        timed = [(name, row[1]) for (kind, name), row in totals.rows.items() if kind == BLOCK_TIME]
        device = (sum(spent for _, spent in timed), any(name == AT_MOST for name, _ in timed)) if timed else None
        short = _less(sums, nested, kept)
        return Inside(sums if seen else None, short, "sync" in recorder.settings.kinds, device)

    def forget(self) -> None:
        """In a forked child."""
        self._kept, self._nested = {}, {}


def _decodes(tracer: Any) -> bool:
    recorder = getattr(tracer, "recorder", None)
    return recorder is not None and recorder.store.mode == "live"


def _add_records(sums: dict[int, KindSums], records: Iterable[Record]) -> None:
    for record in records:
        kind = KINDS[type(record)]
        if kind in WITH_ROWS and record.block_id is not None:
            start, end, size = nanoseconds(record.start_ns), nanoseconds(record.end_ns), getattr(record, "bytes", 0)
            if start is not None and end is not None and end >= start:  # else it gets no span either
                row = [1, end - start, size if type(size) is int else 0]
                _add(sums.setdefault(record.block_id, {}), {kind: row})


def _add(into: KindSums, more: KindSums) -> None:
    for kind, row in more.items():
        mine = into.setdefault(kind, [0, 0, 0])
        for column, value in enumerate(row):
            mine[column] += value


def _copied(sums: KindSums) -> KindSums:
    return {kind: list(row) for kind, row in sums.items()}


def _less(sums: KindSums, *others: KindSums) -> KindSums:
    """``sums`` without ``others``; only kinds of which some are left."""
    left: KindSums = {}
    for kind, row in sums.items():
        taken = [other[kind] for other in others if kind in other]
        rest = [max(0, value - sum(mine[at] for mine in taken)) for at, value in enumerate(row)]
        if rest[0]:
            left[kind] = rest
    return left
