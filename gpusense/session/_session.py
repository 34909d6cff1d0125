"""Everything recorded in one run, in memory: what analyses, reports and exporters read; nothing else reaches them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._records.counter_samples import CounterTable
from .._records.counters import BlockCounters
from .._records.metrics import GpuMetrics
from .._records.records import (
    ALWAYS_LISTED,
    KINDS,
    Aggregate,
    BlockRecord,
    ComputeBlock,
    Counters,
    DeviceBusy,
    DeviceInfo,
    GpuAllocation,
    GpuCollective,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Record,
    Syscall,
    UnseenInterval,
)
from .._records.work import WITH_ROWS, WorkTable, table_of
from .._runtime.text import count_text
from . import _views

if TYPE_CHECKING:
    from os import PathLike

    from .. import BlockOperation, Finding, Operation, Phase, Span, Steps, TraceSummary

T = TypeVar("T")


class Session:
    """All records of one run. ``records`` are the listed ones; ``aggregates`` sum up the others; nothing is in both.

    ``work`` has a row for each of both that occupied a device or made the host wait: see
    :class:`~gpusense._records.work.WorkTable`. What is listed is chosen by a threshold; the rows are all there.

    ``meta`` has at least ``version`` (of gpusense), ``pid``, ``start_ns``, ``end_ns`` (None while running),
    ``threshold_ns``, ``trace_all``, ``backends`` (name → version text), ``rank`` and ``world_size`` (None outside a
    launcher), ``mode`` ("live" or "file"), ``overhead`` (drain CPU nanoseconds and the like), ``capture`` (how capture
    was done: callbacks, library, cuda_live_ns), ``damage`` (list of sentences with offsets, from a damaged file).

    What the session means is asked by methods from :meth:`summary` on. They analyse it once, when the first is called,
    which takes about as long as loading it; what is changed afterwards they do not see. Any thread may call them; two
    that are the first at the same time may both do the work.
    """

    __slots__ = (
        *("_once", "_work", "aggregates", "busy", "counter_samples", "counters", "devices", "each_block", "meta"),
        *("metrics", "records", "unseen"),
    )

    def __init__(
        self,
        *,
        meta: dict[str, Any] | None = None,
        devices: tuple[DeviceInfo, ...] = (),
        records: list[Record] | None = None,
        aggregates: list[Aggregate] | None = None,
        metrics: list[GpuMetrics] | None = None,
        busy: list[DeviceBusy] | None = None,
        unseen: list[UnseenInterval] | None = None,
        counters: Counters | None = None,
        work: WorkTable | None = None,
        each_block: dict[int, dict[str, list[int]]] | None = None,
        counter_samples: CounterTable | None = None,
    ) -> None:
        self.meta: dict[str, Any] = meta if meta is not None else {}
        self.devices = devices
        self.records: list[Record] = records if records is not None else []
        self.aggregates: list[Aggregate] = aggregates if aggregates is not None else []
        self.metrics: list[GpuMetrics] = metrics if metrics is not None else []
        self.busy: list[DeviceBusy] = busy if busy is not None else []
        self.unseen: list[UnseenInterval] = unseen if unseen is not None else []
        self.counters = counters if counters is not None else Counters()
        #: Hardware counters over time, where they were asked for.
        self.counter_samples = counter_samples if counter_samples is not None else CounterTable()
        self._work = work
        #: Block id → kind of work → how many, nanoseconds, bytes; where ``load`` was asked for it.
        self.each_block = each_block
        self._once: dict[Any, Any] = {}

    def once(self, make: "Callable[[Session], T]") -> T:
        """What ``make(session)`` gave the first time: analyses that several ask for. Two threads that are the first at
        the same time may both make it, and get the same one."""
        known = self._once.get(make)
        if known is None:
            known = self._once.setdefault(make, make(self))
        return known  # type: ignore[no-any-return]

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """For copies and other processes, which work out anew what a session means."""
        return None, {name: getattr(self, name) for name in self.__slots__} | {"_once": {}}

    def __repr__(self) -> str:
        kept, counted = len(self.records), sum(one.count for one in self.aggregates)
        return f"<Session {self.meta.get('mode', 'merged')}: {count_text(kept, 'record')}, {counted:,} summed>"

    @property
    def work(self) -> WorkTable:
        """All work as columns. Of sessions of older files it is what their records say; ``work.summed`` is the rest."""
        if self._work is None:
            self._work = table_of(self.records)
            self._work.summed = sum(row.count for row in self.aggregates if row.kind in WITH_ROWS)
        return self._work

    def take_work(self, work: WorkTable) -> None:
        """``work`` is that of the session."""
        self._work = work

    @property
    def has_work(self) -> bool:
        """Whether the table of work came with the session, and is not made of its records."""
        return self._work is not None

    @property
    def kernels(self) -> list[GpuKernel]:
        """Kernels that were kept one by one."""
        return [record for record in self.records if type(record) is GpuKernel]

    @property
    def transfers(self) -> list[GpuMemoryTransfer]:
        """Copies that were kept one by one."""
        return [record for record in self.records if type(record) is GpuMemoryTransfer]

    @property
    def memsets(self) -> list[GpuMemset]:
        """Memsets that were kept one by one."""
        return [record for record in self.records if type(record) is GpuMemset]

    @property
    def syncs(self) -> list[GpuSync]:
        """Waits of the host that were kept; none unless kind "sync" was on."""
        return [record for record in self.records if type(record) is GpuSync]

    @property
    def allocations(self) -> list[GpuAllocation]:
        """Allocations and releases; none unless kind "allocation" was on."""
        return [record for record in self.records if type(record) is GpuAllocation]

    @property
    def collectives(self) -> list[GpuCollective]:
        """Collectives, sends and receives as NCCL tells of them. Their kernels are in ``kernels``, too."""
        return [record for record in self.records if type(record) is GpuCollective]

    @property
    def block_counters(self) -> list[BlockCounters]:
        """Exact counters of passes of blocks; none unless ``counters="exact"`` was on, or blocks were measured."""
        return [record for record in self.records if type(record) is BlockCounters]

    @property
    def compute_blocks(self) -> list[ComputeBlock]:
        """Compute blocks that were kept one by one."""
        return [record for record in self.records if type(record) is ComputeBlock]

    @property
    def blocks(self) -> list[BlockRecord]:
        """Finished ``trace()`` blocks."""
        return [record for record in self.records if type(record) is BlockRecord]

    @property
    def syscalls(self) -> list[Syscall]:
        """System calls, where an external tracer gave them."""
        return [record for record in self.records if type(record) is Syscall]

    @property
    def duration_ns(self) -> int | None:
        """From start to end; None while it runs."""
        start, end = self.meta.get("start_ns"), self.meta.get("end_ns")
        return end - start if start is not None and end is not None else None

    # --- what it means: worked out once, when it is first asked for ---

    def summary(self) -> "TraceSummary":
        """Statistics of every block by path, with the GPU work launched inside: as a tracer answers of its own."""
        return _views.summary(self)

    def findings(self) -> "tuple[Finding, ...]":
        """What slowed the run down, what could save most first. At least one: that nothing was seen is one, too."""
        return _views.findings(self)

    @property
    def verdict(self) -> "Finding":
        """The finding to act on: the first of :meth:`findings`. ``str()`` of it is a few sentences."""
        return self.findings()[0]

    @property
    def phases(self) -> "tuple[Phase, ...]":
        """The run, divided: start-up, steady state, what interrupts it, end. In order and without gaps, from the first
        line of the program to its end; of a merged session one process after the other."""
        return _views.phases(self)

    @property
    def steps(self) -> "Steps | None":
        """The steps of the program's loop: how many, how long, and when each began and ended. None where nothing
        repeats itself; of a merged session those of the first process that has a loop."""
        return _views.steps(self)

    def block_table(self) -> "tuple[BlockOperation, ...]":
        """A row for each path of blocks, as the report's table: parents first, and beside each other the longest.
        :attr:`blocks` has the single passes."""
        return _views.block_table(self)

    def operations(self) -> "tuple[Operation, ...]":
        """A row for every kernel, copy, memset, wait and compute block by name and device: how often, how long, how
        many bytes. Work of devices first, by falling total time; sums are of the whole run and exact."""
        return _views.operations(self)

    def timeline(self) -> "tuple[Span, ...]":
        """All that has a beginning and an end, by its start: blocks, work of devices, waits of the host, and when a
        device was empty, with the cause. A notebook draws it. Of work that is there as sums alone nothing is in it
        (``session.work.complete`` is False then)."""
        return _views.timeline(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON knows it, schema ``gpusense.report/1``: dicts, lists, text, numbers and None."""
        return _views.to_dict(self)

    @overload
    def to_html(self, path: None = None) -> str: ...

    @overload
    def to_html(self, path: "str | PathLike[str]") -> None: ...

    def to_html(self, path: Any = None) -> str | None:
        """The report as one offline HTML page: its text, or None where it was written to ``path``. Raises ``OSError``
        where that cannot be written."""
        return _views.to_html(self, path)

    @overload
    def to_perfetto(self, path: None = None) -> bytes: ...

    @overload
    def to_perfetto(self, path: "str | PathLike[str]") -> None: ...

    def to_perfetto(self, path: Any = None) -> bytes | None:
        """A native trace for ui.perfetto.dev: its bytes, or None where it was written to ``path``. Raises ``OSError``
        where that cannot be written."""
        return _views.to_perfetto(self, path)

    def to_dataframe(self, kind: str = "operations") -> Any:
        """A data frame of pandas or polars: of the one that the program has imported, else of the one that is
        installed. A row is one of what ``kind`` says, a column one of its fields, with the unit in its name.

        - what the session means: "operations", "blocks" (by path), "counters" (of the hardware, by path and device),
          "phases", "findings", "timeline";
        - each piece of work, short ones too: "kernels", "transfers", "memsets", "syncs" (waits of the host);
        - records: "passes" (of blocks), "compute_blocks", "allocations", "syscalls", "block_counters" (exact ones);
        - samples of devices: "metrics", with columns such as "power.draw_watts", and "counter_samples" of the hardware.

        Paths are text ("step/forward"), and what is not known is missing (None, NaN or NA). There may be no row, but
        the columns are there. Raises ``ValueError`` for another kind, and ``ModuleNotFoundError`` where neither library
        is installed.
        """
        return _views.to_dataframe(self, kind)

    def save(self, path: "str | PathLike[str]") -> None:
        """Writes the session as the suffix says: ``.gpusense`` for a session that :func:`load` gives back, ``.html``,
        ``.json``, ``.pftrace`` (Perfetto), ``.trace.json`` (Chrome), ``.speedscope.json``, ``.folded`` or ``.txt``.

        Raises ``ValueError`` for another suffix, ``OSError`` or :class:`SessionError` where it cannot be written.
        """
        _views.save(self, path)

    def _repr_html_(self) -> str | None:
        return _views.answer(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("\n".join(_views.answer_lines(self)))


def fold(session: Session, threshold_ns: int) -> None:
    """Moves what is shorter than ``threshold_ns`` from the records of ``session`` into its aggregates, exactly."""
    from .._aggregation.groups import GroupKey, aggregate, key_of, row_of

    kept: list[Record] = []
    short: dict[GroupKey, list[Record]] = {}
    for record in session.records:
        kind = KINDS[type(record)]
        if kind == "block" or kind in ALWAYS_LISTED or record.end_ns - record.start_ns >= threshold_ns:
            kept.append(record)
            continue
        key = key_of(record, kind, record.path)
        short.setdefault(key, []).append(record)
    for key, members in short.items():
        size = sum(getattr(record, "bytes", 0) for record in members)
        session.aggregates.append(aggregate(key, row_of([record.end_ns - record.start_ns for record in members], size)))
    moved = len(session.records) - len(kept)
    session.records[:] = kept
    counters = session.counters
    session.counters = counters._replace(kept=counters.kept - moved, aggregated=counters.aggregated + moved)
    session.meta["threshold_ns"] = max(threshold_ns, session.meta.get("threshold_ns") or 0)
