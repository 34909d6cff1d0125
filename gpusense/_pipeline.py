"""The one way of every record: decode, attribute, keep or count, hand on. Pure: bytes and records in, lists out.

Live capture feeds buffers as they come; a session file is replayed through the same code. Used by one thread at a time.

A buffer is decoded at once, because it must go back; what it held waits (as columns) until the markers of all blocks
that were opened or closed before it have arrived, because only then launch order can tell its block.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from . import _layouts as layouts
from ._alike import Alike
from ._attribution import Attributor, Boundary, Ids, Leaves, Widener
from ._batch import Batch
from ._decode import batches, numbers
from ._decode_record import record as decode_record
from ._ledger import WITH_BYTES, Ledger, Owners, grouped
from ._records import KINDS, Aggregate, Counters, DeviceBusy, GpuKernel, GpuSync, Path, Record
from ._sync_lines import Lines
from ._tally import BlockTotals, Watched
from ._threshold import Threshold

#: ``names(pointer) → (short, demangled or None, as the driver gave it or None)``
Names = Callable[[int], tuple[str, str | None, str | None]]

MARKER_BYTES = 4  # that a marker sets, where it is a memset
SLICE = 1280  # records decoded between two pauses: a buffer of kernels, well under a millisecond
#: A marker record that has not come this long after its call is lost. It is device work and may wait behind other work.
MARKER_PATIENCE_NS = 30_000_000_000

_KIND_NAMES = {
    layouts.KERNEL: "kernel",
    layouts.CONCURRENT_KERNEL: "kernel",
    layouts.MEMCPY: "transfer",
    layouts.MEMCPY2: "transfer",
    layouts.MEMSET: "memset",
    layouts.SYNCHRONIZATION: "sync",
    layouts.MEMORY2: "allocation",
    layouts.DRIVER: "launch",
    layouts.UNIFIED_MEMORY_COUNTER: "unified_memory",
}


_HELPERS = frozenset({"launch", "unified_memory"})  # summed up, and not counted among the records seen
_WITH_LINES = frozenset({"sync", "transfer"})  # what calls in which the host waits leave

#: Innermost candidate blocks, and whether the launching thread only inherited them.
Place = tuple[Leaves, bool]


class Marker(NamedTuple):
    """How the boundary calls of blocks look among the records: kind, key column, and stream where that tells them."""

    kind: int
    key: int
    context: int | None = None
    stream: int | None = None
    tokens: bool = False  # the key of each record is the token of its boundary


class Limits(NamedTuple):
    """What is kept one by one."""

    threshold_ns: int = 100_000
    trace_all: bool = False
    max_per_second: int = 5_000
    max_records: int = 200_000  # in memory; the oldest are then only counted
    devices: frozenset[int] | None = None  # CUDA ordinals to look at; None: all
    kinds: frozenset[int] | None = None  # CUPTI's kinds to look at; others come where another copy asks for them


class _Work(NamedTuple):
    """One decoded batch that waits for its markers."""

    kind: str
    thread: int
    batch: Batch
    ids: Ids
    names: Mapping[int, str]
    kept: dict[int, Record]  # index in the batch → record, still without its block
    newest_ns: int  # nothing in it ended later
    owners: Owners | None = None  # where some of it was captured in a block


class Pipeline:
    """Counts and keeps; see the module's head. ``emit`` gets each list of kept records."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        emit: Callable[[list[Record]], None] | None = None,
        start_ns: int = 0,
        marker: Marker | None = None,
        occupancy: Callable[[GpuKernel], float | None] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.start_ns = start_ns
        self.marker = marker
        self.attribution = Attributor()
        self._ledger = Ledger(self.limits.max_records, emit)
        self.kept = self._ledger.kept
        self.watched = Watched()
        self.threshold = Threshold(self.limits.threshold_ns, self.limits.max_per_second)
        self.occupancy = occupancy
        self.others_markers: frozenset[int] = frozenset()  # streams on which other copies of gpusense mark their blocks
        self.owners: dict[int, Path] = {}  # graph node id → path of the block that captured it
        self.lines = Lines()  # of synchronising calls; each comes before its records
        self._widener = Widener()
        self._waiting: deque[_Work] = deque()
        self._contexts: dict[int, int] = {}
        self._seen = self._invalid = self._pre_session = 0
        self._ambiguous = self._inherited = self._unknown = 0

    def configure(self, limits: Limits) -> None:
        self.limits = limits
        self.threshold.configure(limits.threshold_ns, limits.max_per_second)
        self._ledger.limit(limits.max_records)

    def go_on_from(self, old: "Pipeline") -> None:
        """Blocks that are open stay open, and correlation ids keep their upper half."""
        self.attribution, self.watched, self._widener = old.attribution, old.watched, old._widener
        self.owners, self.lines = old.owners, old.lines

    # --- in ---------------------------------------------------------------------------------------------------------

    def feed(
        self,
        buffer: memoryview,
        thread: int,
        strides: Mapping[int, int],
        names: Names,
        *,
        now_ns: int = 0,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Decodes one buffer, in slices with ``pause`` between them. The buffer is not needed afterwards."""
        offset, size = 0, len(buffer)
        while offset < size:
            found, tally = batches(buffer, strides, offset=offset, limit=SLICE)
            offset = tally.offset
            self._seen += tally.seen
            self._invalid += tally.invalid
            self._unknown += tally.unknown_kinds
            for batch in found:
                self._take(buffer, batch, thread, names, now_ns)
            if pause is not None and offset < size:
                pause()

    def restart_ids(self) -> None:
        """CUPTI was taken out of the process and is in it again: correlation ids begin anew."""
        self._widener.restart()

    def boundary(self, event: Boundary, corr: int | None = None) -> None:
        """A block was opened or closed."""
        self.attribution.boundary(event, corr)

    def boundary_after(self, event: Boundary, newest: int) -> None:
        """As :meth:`boundary`, where the newest correlation id at that moment was read: launches from the next id on
        come after it. ``newest`` has 32 bits, 0 where nothing was launched before."""
        self.attribution.boundary(event, self._widener.widen_one((newest + 1) & 0xFFFFFFFF))

    def record(self, records: Iterable[Record | Alike], now_ns: int = 0) -> None:
        """Finished records of any source: threshold, counts, sinks."""
        self.threshold.refill(now_ns)
        for item in records:
            if isinstance(item, Alike):
                self._finish_all(item)
            else:
                self._seen += 1
                self._finish(item)
        self._ledger.hand_on()

    def cycle(self, now_ns: int, final: bool = False, *, patience_ns: int | None = None) -> None:
        """Attributes what can be attributed now and hands kept records on. ``final``: no marker will come any more."""
        self.attribution.give_up(now_ns + 1 if final else now_ns - (patience_ns or MARKER_PATIENCE_NS))
        limit = self.attribution.waiting_since()
        waiting, self._waiting = self._waiting, deque()
        for work in waiting:
            if limit is None or final or work.newest_ns < limit:
                self._settle(work, now_ns)
            else:
                self._waiting.append(work)
        self._ledger.hand_on()
        self.watched.sweep()

    # --- out --------------------------------------------------------------------------------------------------------

    def aggregates(self) -> list[Aggregate]:
        return self._ledger.aggregates()

    def totals(self, block_id: int) -> BlockTotals | None:
        """What was launched inside a watched block so far; a copy."""
        totals = self.watched.get(block_id)
        return totals.copy() if totals is not None else None

    def busy(self) -> list[DeviceBusy]:
        return self._ledger.busy()

    def counters(self) -> Counters:
        """Seen = kept + aggregated + invalid + pre-session, once nothing waits for its marker."""
        waiting = sum(work.batch.count for work in self._waiting if work.kind not in _HELPERS)
        return Counters(
            seen=self._seen - waiting,
            kept=self._ledger.stored,
            aggregated=self._ledger.counted,
            invalid=self._invalid,
            pre_session=self._pre_session,
            ambiguous=self._ambiguous,
            unknown_kinds=self._unknown,
            lost_markers=self.attribution.lost_markers,
            inherited=self._inherited,
        )

    @property
    def newest_correlation(self) -> int:
        return self._widener.newest

    @property
    def idle(self) -> bool:
        """True when nothing waits for a marker."""
        return not self._waiting and self.attribution.waiting_since() is None

    # --- decode -----------------------------------------------------------------------------------------------------

    def _take(self, buffer: memoryview, batch: Batch, thread: int, names: Names, now_ns: int) -> None:
        if not self._wanted(batch.kind):
            self._leave_out(batch, ())
            return
        if self.others_markers and batch.kind == layouts.MEMSET:
            batch = self._without_others_markers(batch)
        if self.marker is not None and batch.kind == self.marker.kind:
            batch = self._markers(batch, thread)
        kind = _KIND_NAMES.get(batch.kind)
        if kind in _HELPERS:
            batch = self._help(batch)
        if kind is None or not batch.count:
            return
        batch = self._select(batch)
        if not batch.count:
            return
        ids = self._ids(batch)
        if batch.kind in (layouts.CONCURRENT_KERNEL, layouts.KERNEL):
            known = {pointer: names(pointer) for pointer in set(batch.key)}
        else:
            known = {}
        lines = self.lines.of(batch.correlation) if self.lines and kind in _WITH_LINES else None
        if lines is not None and kind == "sync":
            batch = batch.with_keys(self._ledger.piles.keys_with_lines(batch.key, lines))
        kept: dict[int, Record] = {}
        for i in self._slow(batch, now_ns):
            item = decode_record(buffer, batch, i, lambda pointer: known.get(pointer) or names(pointer))
            item = item._replace(correlation_id=ids.wide(i))
            kept[i] = _with_line(item, lines[i]) if lines is not None else item
        short = {pointer: text[0] for pointer, text in known.items()}
        owners = self._owners(buffer, batch) if self.owners else None
        self._waiting.append(_Work(kind, thread, batch, ids, short, kept, batch.latest, owners))

    def _ids(self, batch: Batch) -> Ids:
        column = batch.ascending_ids()
        ids = self._widener.ascending(column) if column is not None else None
        return ids or Ids(*self._widener.widen(batch.correlation))

    def _owners(self, buffer: memoryview, batch: Batch) -> Owners | None:
        """Who captured each record; None where that is known of none."""
        nodes = numbers(buffer, batch, "graph_node")
        if nodes is None or not any(nodes):
            return None
        find = self.owners.get
        found: Owners = [find(node) for node in nodes]
        sources = numbers(buffer, batch, "source_graph_node")
        if sources is not None:
            found = [owner or find(source) for owner, source in zip(found, sources, strict=True)]
        return found if any(found) else None

    def _wanted(self, kind: int) -> bool:
        kinds, marker = self.limits.kinds, self.marker
        return kinds is None or kind in kinds or (marker is not None and kind == marker.kind)

    def _help(self, batch: Batch) -> Batch:
        """Of records that are only ever summed up: calls that launch go on, counters are added at once."""
        if batch.kind == layouts.DRIVER:
            return batch.pick([i for i, key in enumerate(batch.key) if key in layouts.LAUNCH_CALLS])
        self._ledger.count_migrations(batch)
        return batch.pick(())

    def _markers(self, batch: Batch, thread: int) -> Batch:
        """Hands our own boundary calls to attribution; returns the batch without them."""
        marker = self.marker
        assert marker is not None
        rest = []
        rows = zip(batch.key, batch.stream, batch.correlation, batch.thread, batch.start, strict=True)
        for i, (key, stream, correlation, caller, start) in enumerate(rows):
            ours = (marker.tokens or key == marker.key) and (marker.stream is None or stream == marker.stream)
            if ours and marker.tokens:
                corr = self._widener.widen([correlation])[1]
                ours = self.attribution.token(key, corr) or marker.stream is not None
            elif ours:
                corr = self._widener.widen([correlation])[1]
                ours = self.attribution.marker(thread or caller, start, corr)
            if not ours:
                rest.append(i)
        return self._leave_out(batch, rest)

    def _without_others_markers(self, batch: Batch) -> Batch:
        if self.others_markers.isdisjoint(batch.stream):
            return batch
        rows = enumerate(zip(batch.stream, batch.bytes, strict=True))
        ours = self.others_markers
        return self._leave_out(batch, [i for i, (stream, size) in rows if stream not in ours or size != MARKER_BYTES])

    def _leave_out(self, batch: Batch, rest: Sequence[int]) -> Batch:
        """Only ``rest`` is work that this session sees."""
        if batch.kind in layouts.WORK_KINDS:
            self._seen -= batch.count - len(rest)
        return batch if len(rest) == batch.count else batch.pick(rest)

    def _select(self, batch: Batch) -> Batch:
        """Without work from before the session and of devices that were not asked for."""
        if batch.earliest < self.start_ns:
            good = [i for i, start in enumerate(batch.start) if start >= self.start_ns]
            self._pre_session += batch.count - len(good)
            batch = batch.pick(good)
        devices = self.limits.devices
        if devices is not None and batch.count and not devices.issuperset(batch.device):
            good = [i for i, device in enumerate(batch.device) if device is None or device in devices]
            self._seen -= batch.count - len(good)
            batch = batch.pick(good)
        return batch

    def _slow(self, batch: Batch, now_ns: int) -> Iterable[int]:
        """Indices of the records to keep."""
        if batch.kind == layouts.DRIVER:
            return ()
        if self.limits.trace_all:
            return range(batch.count)
        threshold = self.threshold
        threshold.refill(now_ns)
        if batch.kind == layouts.MEMORY2:  # what is alive can only be told from every one
            return [i for i in range(batch.count) if threshold.spend()]
        if not batch.reaches(threshold.effective_ns):
            return ()
        return threshold.choose(batch.duration, batch.longest)

    # --- attribute --------------------------------------------------------------------------------------------------

    def _settle(self, work: _Work, now_ns: int) -> None:
        batch, kept = work.batch, work.kept
        self._learn_devices(batch)
        if work.kind == "kernel":
            self._ledger.piles.know(work.names)
        same = self.attribution.constant(work.thread, work.ids.low, work.ids.high)
        segments: Iterable[tuple[int, int, Place]] = ((0, batch.count, same),) if same is not None else ()
        if same is None:
            segments = self.attribution.segments(work.thread, *work.ids)
        where = self._where(batch) if work.owners is None else None
        columns = [batch.key, batch.duration]
        if work.kind in WITH_BYTES:
            columns.append(batch.bytes)
        spots = self._ledger.spots(batch, self._contexts, work.owners) if where is None else None
        slow, placed = deque(kept), []
        counted = bytearray(b"\1") * batch.count if kept else None
        for low, high, place in segments:
            while slow and slow[0] < high:
                counted[slow[0]] = 0  # type: ignore[index]
                placed.append((kept[slow.popleft()], place))
            rows = [column[low:high] for column in columns]
            apart = spots[low:high] if spots is not None else None
            if counted is not None:
                chosen = counted[low:high]
                rows = [list(compress(column, chosen)) for column in rows]
                apart = list(compress(apart, chosen)) if apart is not None else None
            if rows[0]:
                self._count(work.kind, place, where, apart, *rows)
        for item, place in placed:
            self._keep(item, *place, now_ns)
        if work.kind in ("kernel", "transfer", "memset"):
            self._ledger.occupy(work.kind == "kernel", batch)

    def _where(self, batch: Batch) -> tuple[int | None, int | None] | None:
        """Device and stream of all records, or None where they differ."""
        if not (batch.uniform("device") and batch.uniform("stream")):
            return None
        device = batch.device[0]
        if device is None and batch.context[0] is not None and batch.uniform("context"):
            device = self._contexts.get(batch.context[0])
        return device, batch.stream[0]

    def _learn_devices(self, batch: Batch) -> None:
        """Synchronisations name a context only; work in the same context tells its device."""
        if batch.device[0] is not None and batch.context[0] is not None:
            self._contexts.setdefault(batch.context[0], batch.device[0])

    def _count(
        self,
        kind: str,
        place: Place,
        where: tuple[int | None, int | None] | None,
        apart: list[Any] | None,
        keys: list[int],
        durations: list[int],
        sizes: list[int] | None = None,
    ) -> None:
        """Counts records that share their block. ``where``: their device and stream, else see :meth:`Ledger.spots`."""
        leaves, inherited = place
        path, blocks = self._blocks(leaves)
        if kind not in _HELPERS:
            self._ledger.counted += len(durations)
        if len(leaves) > 1:
            self._ambiguous += len(durations)
        elif inherited and leaves:
            self._inherited += len(durations)
        watchers = [found for found in map(self.watched.get, blocks) if found is not None] if self.watched else []
        groups = grouped(keys, durations) if watchers else None
        if where is not None:
            self._ledger.count((path, kind, *where, None), keys, durations, sizes, groups)
        else:
            self._ledger.count_apart(path, kind, apart or (), keys, durations, sizes)
        if groups is not None:
            self._watch_groups(kind, watchers, groups, keys, sizes)
            for totals in watchers:
                totals.inherited += len(durations) if inherited else 0
        if self.watched:
            self._watch_ambiguous(leaves, blocks, len(durations))

    def _watch_groups(
        self,
        kind: str,
        watchers: list[BlockTotals],
        groups: Mapping[int, list[int]],
        keys: list[int],
        sizes: list[int] | None,
    ) -> None:
        """Adds to the blocks that someone may ask."""
        bytes_of: dict[int, int] = defaultdict(int)
        for key, size in zip(keys, sizes, strict=True) if sizes is not None else ():
            bytes_of[key] += size
        for key, members in groups.items():
            label = kind, self._ledger.piles.name(kind, key)[0]
            for totals in watchers:
                totals.extend(label, members, bytes_of.get(key, 0))

    def _blocks(self, leaves: Leaves) -> tuple[Path, tuple[int, ...]]:
        """Path of the innermost certain block, and it with all its ancestors."""
        if not leaves:
            return (), ()
        blocks = self.attribution.chain(leaves[0]) if len(leaves) == 1 else self.attribution.common_ancestors(leaves)
        return (self.attribution.path(blocks[0]) if blocks else ()), blocks

    def _watch(self, item: Any, blocks: tuple[int, ...], leaves: Leaves, inherited: bool) -> None:
        """As :meth:`_watch_part` for one record."""
        for block in blocks:
            totals = self.watched.get(block)
            if totals is not None:
                label = KINDS[type(item)], item.name
                totals.extend(label, [item.end_ns - item.start_ns], getattr(item, "bytes", 0))
                totals.inherited += 1 if inherited else 0
        self._watch_ambiguous(leaves, blocks, 1)

    def _watch_ambiguous(self, leaves: Leaves, certain: tuple[int, ...], count: int) -> None:
        if len(leaves) > 1:
            for block in {other for leaf in leaves for other in self.attribution.chain(leaf)}.difference(certain):
                totals = self.watched.get(block)
                if totals is not None:
                    totals.ambiguous += count

    def _keep(self, item: Any, leaves: Leaves, inherited: bool, now_ns: int) -> None:
        path, blocks = self._blocks(leaves)
        changes: dict[str, Any] = {"path": path, "block_id": blocks[0] if blocks else None}
        if len(leaves) > 1:
            self._ambiguous += 1
            changes["ambiguous"] = leaves
        elif inherited and leaves:
            self._inherited += 1
        if hasattr(item, "is_slow"):
            changes["is_slow"] = item.end_ns - item.start_ns >= self.limits.threshold_ns
        if type(item) is GpuKernel and self.occupancy is not None:
            changes["occupancy"] = self.occupancy(item)
        if item.device is None and item.context is not None:
            changes["device"] = self._contexts.get(item.context)
        if self.owners and getattr(item, "graph_node_id", None) is not None:
            changes["owner"] = owner_of(item, self.owners)
        item = item._replace(**changes)
        if self.watched and leaves:
            self._watch(item, blocks, leaves, inherited)
        self._ledger.store(item)

    # --- keep -------------------------------------------------------------------------------------------------------

    def _finish(self, item: Any) -> None:
        """A record that is complete already: keep it or count it."""
        duration = item.end_ns - item.start_ns
        kind = KINDS[type(item)]
        if duration < 0 or item.start_ns <= 0:
            self._invalid += 1
            return
        if item.block_id is not None and not item.path:
            item = item._replace(path=self.attribution.path(item.block_id))
        slow = duration >= self.limits.threshold_ns
        if getattr(item, "is_slow", slow) is not slow:
            item = item._replace(is_slow=slow)
        if kind != "block" and item.block_id is not None and self.watched:
            self._watch(item, self.attribution.chain(item.block_id), (item.block_id,), False)
        if kind in ("kernel", "transfer") and getattr(item, "timing", "device") == "device":
            self._ledger.occupy_once(item.backend, item.device, kind == "kernel", item.start_ns, item.end_ns)
        always = self.limits.trace_all
        wanted = always or kind in ("block", "allocation") or duration >= self.threshold.effective_ns
        if wanted and (always or self.threshold.spend()):
            self._ledger.store(item)
        else:
            self._ledger.demote(item)

    def _finish_all(self, columns: Alike) -> None:
        """As :meth:`_finish` does for each of them."""
        self._seen += len(columns)
        if self.limits.trace_all or not columns.sound:
            for item in columns.records():
                self._finish(item)
            return
        for at, kind in enumerate(columns.kinds):
            if kind.block_id is not None and not kind.path:
                columns.kinds[at] = kind._replace(path=self.attribution.path(kind.block_id))
        if self.watched:
            for kind, durations in columns.by_kind([]):
                for block in self.attribution.chain(kind.block_id) if kind.block_id is not None else ():
                    totals = self.watched.get(block)
                    if totals is not None:
                        totals.extend(("kernel", kind.name), durations)
        columns.settle(self.threshold, self.limits.threshold_ns, self._ledger)


def owner_of(item: Any, owners: Mapping[int, Path]) -> Path | None:
    """The block that captured a graph node, by its own id or, where the record has it, that of its source (13.4)."""
    return owners.get(item.graph_node_id) or owners.get((item.attributes or {}).get("source_graph_node", 0))


def _with_line(item: Any, line: str | None) -> Any:
    """A copy says it among its attributes: few are made by a call that waits."""
    if line is None:
        return item
    if type(item) is GpuSync:
        return item._replace(source_line=line)
    return item._replace(attributes={**(item.attributes or {}), "source_line": line})
