"""Records that the program makes itself, as its tracer takes them. A keyword that there is not raises, as for any
function and also where nothing is recorded; a value that does not fit raises nothing, is counted and logged."""

from collections.abc import Callable, Iterable
from time import time_ns
from typing import TYPE_CHECKING, Any
from weakref import ref

from .._aggregation.block_totals import Late
from .._aggregation.same_kernels import SameKernels
from .._attribution.boundaries import RECORD, Item
from .._attribution.open_blocks import here
from .._records.fields import ComputeFields, KernelFields, TransferFields, check_names
from .._records.records import KINDS, ComputeBlock, Direction, GpuKernel, GpuMemoryTransfer, Record
from .._records.validate import fitted, readers_of, whole
from .._runtime import log, threads
from .._runtime.interrupts import is_the_programs
from .block import Block

if TYPE_CHECKING:
    from typing_extensions import Unpack

_get_ident = threads.thread_id()
_REASONS = 20  # for ignoring records, that are kept
#: What was done ends at most so far ahead of the caller's clock. Seconds, and clocks that begin with the machine, give
#: times of 1970.
AHEAD_NS, EARLIEST_NS = 1_000_000_000, 365 * 24 * 3600 * 10**9


class ManualRecords:
    """A tracer's part: records, and the block that they are made in. ``_append`` puts one into its queue."""

    ignored_records: int
    _ignored_for: dict[str, list[Any]]  # kind, field and mistake → the first reason, and how often
    _append: Callable[[Item], None]
    watched: dict[int, ref[Any]]

    def current_block(self) -> Block | None:
        """The innermost open block of this thread or task."""
        block = _innermost()
        if block is not None and block.recorded and block.block_id not in self.watched:
            self.watched[block.block_id] = Late(block)
        return block

    def record(self, records: Iterable[Record]) -> None:
        """Finished records of any kind, with wall-clock nanoseconds; they go through threshold and sinks as all do."""
        if type(records) in KINDS:  # one alone; it is iterable, too
            records = (records,)  # type: ignore[assignment]
        try:
            items = iter(records)
        except TypeError as error:
            self._ignored(f"record {type(records)}", str(error))
            return
        for item in items:
            try:
                if type(item) in KINDS:
                    self._append((RECORD, _in_order(fitted(item))))
                elif isinstance(item, SameKernels):
                    self._append((RECORD, item))
                else:
                    self._ignored(f"record {type(item)}", f"{type(item).__name__} is not a record")
            except Exception as error:  # noqa: PERF203 - the program's mistake is no reason to end it
                if is_the_programs(error):
                    raise
                self._ignored(f"record {type(item)}", f"{type(error).__name__}: {error}", error)

    def _here(self, fields: dict[str, Any]) -> dict[str, Any]:
        if "block_id" not in fields:
            block = _innermost()
            if block is not None and block.recorded:
                fields["block_id"] = block.block_id
                fields.setdefault("path", block.path)
        return fields

    def record_kernel(
        self,
        name: str,
        start_ns: int | None = None,
        end_ns: int | None = None,
        *,
        duration_ns: int | None = None,
        **fields: "Unpack[KernelFields]",
    ) -> None:
        """One kernel or pass timed by the caller, in wall-clock nanoseconds (``time.time_ns()``).

        Two of ``start_ns``, ``end_ns`` and ``duration_ns`` are enough; an end that is not passed is now. Further
        ``fields`` are those of :class:`GpuKernel`; another name raises ``TypeError``. A record with a value that does
        not fit its field is left out, counted as ``ignored_records`` of :meth:`status`, and the reason logged once.
        """
        check_names("record_kernel", fields, KernelFields)
        self._add(GpuKernel, name, (start_ns, end_ns, duration_ns), dict(fields))

    def record_transfer(
        self,
        name: str,
        direction: "Direction",
        bytes: int = 0,
        *,
        duration_ns: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        **fields: "Unpack[TransferFields]",
    ) -> None:
        """One copy of ``bytes`` bytes timed by the caller, with times as for :meth:`record_kernel`.

        ``direction`` is "cpu_to_gpu", "gpu_to_cpu", "gpu_to_gpu" (between devices) or "on_device" (inside one). Further
        ``fields`` are those of :class:`GpuMemoryTransfer`; ``timing`` is "host" unless it is passed.
        """
        check_names("record_transfer", fields, TransferFields)
        values = {"timing": "host", "direction": direction, "bytes": bytes, **fields}
        self._add(GpuMemoryTransfer, name, (start_ns, end_ns, duration_ns), values)

    def record_compute_block(
        self,
        name: str,
        start_ns: int | None = None,
        end_ns: int | None = None,
        elements: int | None = None,
        *,
        duration_ns: int | None = None,
        **fields: "Unpack[ComputeFields]",
    ) -> None:
        """CPU work timed by the caller, with times as for :meth:`record_kernel`, on the calling thread."""
        check_names("record_compute_block", fields, ComputeFields)
        values = {"elements": elements, "thread": _get_ident(), **fields}
        self._add(ComputeBlock, name, (start_ns, end_ns, duration_ns), values)

    def _add(self, kind: Any, name: Any, times: tuple[Any, Any, Any], values: dict[str, Any]) -> None:
        field = "name"
        try:
            text = name if type(name) is str else str(name)
            field = "times"
            values["start_ns"], values["end_ns"] = _times(*times)
            if kind is GpuMemoryTransfer:
                values.setdefault("label", text)
            readers = readers_of(kind)
            for field, value in values.items():
                if value is not None or kind._field_defaults.get(field, field) is not None:  # else it is the default
                    values[field] = readers[field](value)
            field = "times"
            self._plausible(values["start_ns"], values["end_ns"])
            self._append((RECORD, kind(name=text, **self._here(values))))
        except Exception as error:
            if is_the_programs(error):
                raise
            self._ignored(f"record {kind} {field}", f"{field} of {kind.__name__} {name!r:.80}: {error}", error)

    def _plausible(self, start_ns: int, end_ns: int) -> None:
        """Raises where the times are of another clock, or in another unit: they would reach from 1970 to today."""
        if end_ns < start_ns:
            raise ValueError(f"it ends {start_ns - end_ns} ns before it starts")
        if end_ns > time_ns() + AHEAD_NS:
            raise ValueError("it ends in the future: times are nanoseconds, as time.time_ns() gives them")
        if start_ns < EARLIEST_NS:
            raise ValueError("it starts in 1970: times are nanoseconds, as time.time_ns() gives them")

    def _ignored(self, key: str, reason: str, mistake: object = "") -> None:
        """``mistake`` counts for itself, whatever the value was that it names."""
        import re

        key += re.sub(r"'[^']*'|\d+", "", f" {mistake}")
        self.ignored_records += 1
        if key in self._ignored_for or len(self._ignored_for) < _REASONS:
            self._ignored_for.setdefault(key, [reason, 0])[1] += 1
        log.once(key, "a record is ignored: %s", reason)

    def _reasons(self) -> dict[str, int]:
        """How many records were ignored, by what was wrong with the first that had this mistake."""
        return {row[0]: row[1] for row in list(self._ignored_for.values())}


def _in_order(record: Any) -> Any:
    """Raises where it ends before it starts."""
    end_ns = getattr(record, "end_ns", None)
    if end_ns is not None and end_ns < record.start_ns:
        raise ValueError(f"{record.name!r:.80} ends {record.start_ns - end_ns} ns before it starts")
    return record


def _innermost() -> Block | None:
    block: Block | None = here()
    while block is not None and block.end_ns is not None:
        block = block.outer
    return block


def _times(start_ns: Any, end_ns: Any, duration_ns: Any) -> tuple[int, int]:
    """Start and end from any two of the three; an end that is not passed is now. Raises where one is no number."""
    start, end, duration = (None if time is None else whole(time) for time in (start_ns, end_ns, duration_ns))
    if duration == 0 and duration_ns != 0:
        raise ValueError(f"a duration of {duration_ns!r:.40}: it is in nanoseconds")
    if start is not None:
        if end is None:
            end = start + duration if duration is not None else time_ns()
        return start, end
    end = end if end is not None else time_ns()
    return end - (duration or 0), end
