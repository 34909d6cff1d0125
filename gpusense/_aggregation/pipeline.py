"""The one way of every record: decode, attribute, keep or count, hand on. Pure: bytes and records in, lists out.

Live capture feeds buffers as they come; a session file is replayed through the same code. Used by one thread at a time.
What decodes and selects is here; ``placement`` attributes, keeps and counts.

A buffer is decoded at once, because it must go back; what it held waits (as columns) until the markers of all blocks
that were opened or closed before it have arrived, because only then launch order says its block.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._attribution.boundaries import LIT, Boundary, Placed
from .._decode import layouts
from .._decode.batch import Batch
from .._decode.correlation_ids import Ids, Launches, Widener
from .._decode.kinds import Kinds
from .._decode.names import Described, Named, NameOf, Names
from .._decode.record import KernelMaker, Row, directions, kernel_rows
from .._decode.record import record as decode_record
from .._decode.walk import batches, numbers
from .._records.records import BlockRecord, Counters, GpuKernel, GpuSync, Path, Record
from .._records.work import WorkTable
from .block_totals import BlockTotals, Watched
from .ledger import Ledger
from .markers import MARKER_BYTES, Marker, OwnStream, on_own_streams
from .placement import HELPERS, Owners, Placer, Work
from .recent import Recent
from .same_kernels import SameKernels
from .threshold import Threshold
from .wait_lines import Lines

#: Device and host do not agree to the nanosecond; work that ends so much later than it was read is of another clock.
AHEAD_NS = 1_000_000_000
SLICE = 1280  # records decoded at a time: a buffer of kernels, well under a millisecond
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

_WITH_LINES = frozenset({"sync", "transfer"})  # what calls in which the host waits leave


class Limits(NamedTuple):
    """What is kept one by one."""

    threshold_ns: int = 100_000
    trace_all: bool = False
    max_per_second: int = 5_000
    max_records: int = 200_000  # in memory; the oldest are then only counted
    devices: frozenset[int] | None = None  # CUDA ordinals to look at; None: all
    kinds: frozenset[int] | None = None  # CUPTI's kinds to look at; others come where another copy asks for them
    max_rows: int | None = None  # of the table of all work; None: all stay


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
        watched: Watched | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.start_ns = start_ns
        self.marker = marker
        self.ledger = Ledger(self.limits.max_records, emit)  # what was kept and counted
        self.kept = self.ledger.kept
        self.threshold = Threshold(self.limits.threshold_ns, self.limits.max_per_second)
        self.work = WorkTable(self.limits.max_rows)  # all of it, however short
        self._kinds = Kinds(self.work)
        self._placer = Placer(self.ledger, self.threshold, occupancy, watched, self.work)
        self.attribution, self.watched = self._placer.attribution, self._placer.watched
        self.others_markers: frozenset[OwnStream] = frozenset()  # where other copies of gpusense mark their blocks
        self.launches = Launches()  # how much CUPTI slowed them
        self.lines = Lines()  # of synchronising calls; each comes before its records
        self.widener = Widener()  # of correlation ids
        self._early_markers: list[tuple[int, int, int]] = []  # time, token, id of those that came before a LIT's
        self._marker_context: int | None = None  # once a marker was met that is certainly one
        self._newest_before = 0  # the newest id as that LIT was made
        self._waiting: deque[Work] = deque()
        self._seen = self._invalid = self._pre_session = self._unknown = self.in_future = 0

    @property
    def owners(self) -> dict[int, Path]:
        """Graph node id → path of the block that captured it."""
        return self._placer.owners

    @owners.setter
    def owners(self, owners: dict[int, Path]) -> None:
        self._placer.owners = owners

    @property
    def recent(self) -> Recent | None:
        """What keeps all of it for some seconds; None: nothing does."""
        return self._placer.recent

    def keep_recent(self, keep_ns: int | None) -> None:
        """Keeps all of it for so long from now on; None: no longer."""
        placer = self._placer
        if keep_ns is None:
            placer.recent = None
        elif placer.recent is None:
            placer.recent = Recent(keep_ns, self.work)
        else:
            placer.recent.keep_ns = keep_ns

    @property
    def occupancy(self) -> Callable[[GpuKernel], float | None] | None:
        return self._placer.kernels.occupancy

    @occupancy.setter
    def occupancy(self, occupancy: Callable[[GpuKernel], float | None] | None) -> None:
        self._placer.kernels = KernelMaker(occupancy)

    def configure(self, limits: Limits) -> None:
        self.limits = limits
        self.threshold.configure(limits.threshold_ns, limits.max_per_second)
        self.ledger.limit(limits.max_records)

    def go_on_from(self, old: "Pipeline") -> None:
        """Blocks that are open stay open, and correlation ids keep their upper half."""
        self._placer.go_on_from(old._placer)
        self.attribution, self.watched = old.attribution, old.watched
        self.widener, self.lines, self._early_markers = old.widener, old.lines, old._early_markers

    # --- in ---------------------------------------------------------------------------------------------------------

    def feed(
        self,
        buffer: memoryview,
        thread: int,
        strides: Mapping[int, int],
        names: NameOf,
        *,
        now_ns: int = 0,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Decodes one buffer, in slices, with ``pause`` between the parts of the work: whoever else wants the GIL waits
        for the whole of one. The buffer is not needed afterwards. ``now_ns``: nothing in it ends later (0: not known).
        """
        offset, size = 0, len(buffer)
        launches = self.launches if self.launches.wanted else None
        while offset < size:
            found, tally = batches(buffer, strides, offset=offset, limit=SLICE, launches=launches, pause=pause)
            offset = tally.offset
            self._seen += tally.seen
            self._invalid += tally.invalid
            self._unknown += tally.unknown_kinds
            if pause is not None:
                pause()
            if self.attribution.light is not None:  # its marker may say that ids have begun anew
                found.sort(key=lambda batch: batch.kind != layouts.MEMSET)
            for batch in found:
                self._take(buffer, batch, thread, names, now_ns, pause)
            if pause is not None:
                pause()

    def boundary_after(self, event: Boundary, newest: int) -> None:
        """A block was opened or closed, where the newest correlation id at that moment was read: launches from the next
        id on come after it. ``newest`` has 32 bits, 0 where nothing was launched before."""
        if event.op == LIT and self.attribution.began_anew((newest + 1) & 0xFFFFFFFF):
            self.restart_ids()
        self.attribution.boundary(event, self.widener.widen_one((newest + 1) & 0xFFFFFFFF))

    def boundaries_after(self, items: Iterable[Placed]) -> None:
        """As :meth:`boundary_after` for many."""
        self.attribution.boundaries_after(items, self.widener)

    def boundary_marked(self, event: Boundary) -> None:
        """As :meth:`boundary_after`, where the record with its token is to say its place."""
        if event.op == LIT and self.attribution.light is None:
            self._newest_before = self.widener.newest
        self.attribution.boundary(event)

    def boundary_about(self, event: Boundary) -> None:
        """As :meth:`boundary_after`, where nothing could say its place."""
        place = self.attribution.unplaced
        self.attribution.boundary(event, self.widener.newest + 1 if place is None else place)

    def restart_ids(self) -> None:
        """The correlation ids that come begin anew."""
        self.widener.restart()
        self.lines.clear()

    def record(self, records: Iterable[Record | SameKernels], now_ns: int = 0) -> None:
        """Finished records of any source: threshold, counts, sinks."""
        self.threshold.refill(now_ns)
        placer, keep_all = self._placer, self.limits.trace_all
        for item in records:
            if type(item) is BlockRecord:
                self._seen += 1
                placer.finish_block(item, keep_all)
            elif isinstance(item, SameKernels):
                self._seen += len(item)
                placer.finish_all(item, keep_all)
            else:
                self._seen += 1
                placer.finish(item, keep_all)
        self.ledger.hand_on()

    def refuse(self, count: int) -> None:
        """Counts records that were seen and are impossible."""
        self._seen += count
        self._placer.invalid += count

    def cycle(
        self,
        now_ns: int,
        final: bool = False,
        *,
        patience_ns: int | None = None,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Attributes what can be attributed now and hands kept records on. ``final``: no marker will come any more.
        ``pause``: as for :meth:`feed`."""
        self.attribution.give_up(now_ns + 1 if final else now_ns - (patience_ns or MARKER_PATIENCE_NS))
        if self._early_markers and self.attribution.light is None:  # it was given up
            self._place_early_markers(0)
        limit = self.attribution.waiting_since()
        waiting = self._waiting
        for _ in range(len(waiting)):
            work = waiting.popleft()
            if limit is None or final or work.newest_ns < limit:
                self._placer.place(work, pause)
                self.ledger.sums.tidy(pause)
                if pause is not None:
                    pause()
            else:
                waiting.append(work)
        self.ledger.hand_on()
        self.watched.sweep()
        if self.recent is not None:
            self.recent.trim(now_ns)
        if self.work.crowded:
            self._tidy_work()

    def _tidy_work(self) -> None:
        waiting = self._waiting
        numbers = self.work.tidy({number for work in waiting for number in work.rows or ()})
        self._kinds.forget()
        if self.recent is not None:
            self.recent.renumbered()
        for at, work in enumerate(waiting):
            if work.rows is not None:
                waiting[at] = work._replace(rows=[numbers[number] for number in work.rows])

    # --- out --------------------------------------------------------------------------------------------------------

    def totals(self, block_id: int) -> BlockTotals | None:
        """What was launched inside a watched block so far; a copy."""
        totals = self.watched.get(block_id)
        return totals.copy() if totals is not None else None

    def counters(self) -> Counters:
        """Seen = kept + aggregated + invalid + pre-session, once nothing waits for its marker."""
        works = list(self._waiting)  # gpusense's threads go on taking and adding
        waiting = sum(work.batch.count for work in works if work.kind not in HELPERS)
        return Counters(
            seen=self._seen - waiting,
            kept=self.ledger.stored,
            aggregated=self.ledger.counted,
            invalid=self._invalid + self._placer.invalid + self.in_future,
            pre_session=self._pre_session + self._placer.unseen,
            ambiguous=self._placer.ambiguous,
            unknown_kinds=self._unknown,
            lost_markers=self.attribution.lost_markers,
            inherited=self._placer.inherited,
            in_future=self.in_future,
        )

    @property
    def idle(self) -> bool:
        """True when nothing waits for a marker."""
        return not self._waiting and self.attribution.waiting_since() is None

    # --- decode -----------------------------------------------------------------------------------------------------

    def _take(
        self,
        buffer: memoryview,
        batch: Batch,
        thread: int,
        names: NameOf,
        now_ns: int,
        pause: Callable[[], None] | None,
    ) -> None:
        if not self._wanted(batch.kind):
            self._leave_out(batch, ())
            return
        if self.others_markers and batch.kind == layouts.MEMSET:
            batch = self._without_others_markers(batch)
        if batch.kind == layouts.SYNCHRONIZATION:
            batch = self._without_own_waits(batch)
        if self.marker is not None and batch.kind == self.marker.kind:
            batch = self._markers(batch, thread)
        kind = _KIND_NAMES.get(batch.kind)
        if kind in HELPERS:
            batch = self._help(batch)
        if kind is None or not batch.count or not (batch := self._select(batch, now_ns)).count:
            return
        ids = self._ids(batch)
        known, short = _described(names, frozenset(batch.key)) if kind == "kernel" else ({}, {})
        lines = self.lines.of(batch.correlation) if self.lines and kind in _WITH_LINES else None
        if kind == "transfer":
            batch = batch.with_keys(directions(buffer, batch))
        elif kind == "sync" and lines is not None:
            batch = batch.with_keys(self.ledger.sums.keys_with_lines(batch.key, lines))
        slow = self._slow(batch, now_ns)
        kept: dict[int, Record] | dict[int, Row]
        if kind == "kernel":
            kept = kernel_rows(buffer, batch, slow, ids, lambda pointer: known.get(pointer) or names(pointer), pause)
        else:
            kept = _records(buffer, batch, slow, ids, names, lines)
        owners = self._owners(buffer, batch) if self._placer.owners else None
        self._kinds.know(known)
        rows = self._kinds.of(buffer, batch, thread, names, lines, owners)
        self._waiting.append(Work(kind, thread, batch, ids, short, kept, batch.latest, owners, rows))

    def _ids(self, batch: Batch) -> Ids:
        column = batch.ascending_ids()
        ids = self.widener.ascending(column) if column is not None else None
        return ids or self.widener.ids(batch.correlation)

    def _owners(self, buffer: memoryview, batch: Batch) -> Owners | None:
        """Who captured each record; None where that is known of none."""
        nodes = numbers(buffer, batch, "graph_node")
        if nodes is None or not any(nodes):
            return None
        find = self._placer.owners.get
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
        self.ledger.count_migrations(batch)
        return batch.pick(())

    def _markers(self, batch: Batch, thread: int) -> Batch:
        """Hands our own boundary calls to attribution; returns the batch without them."""
        marker = self.marker
        assert marker is not None
        others = []
        rows = zip(batch.key, batch.stream, batch.correlation, batch.thread, batch.start, strict=True)
        sizes = batch.bytes if batch.kind == layouts.MEMSET else [MARKER_BYTES] * batch.count
        for i, (key, stream, correlation, caller, start) in enumerate(rows):
            ours = (marker.tokens or key == marker.key) and (marker.stream is None or stream == marker.stream)
            if ours and marker.tokens:
                known = self._token(key, correlation)
                ours = known or (
                    # Other contexts, also of other devices, have streams with the same number.
                    marker.stream is not None
                    and sizes[i] == MARKER_BYTES
                    and self._own_context in (None, batch.context[i])
                )
                self._marker_context = batch.context[i] if known else self._marker_context
            elif ours:
                corr = self.widener.widen([correlation])[1]
                ours = self.attribution.marker(thread or caller, start, corr)
            if not ours:
                others.append(i)
        return self._leave_out(batch, others)

    def _token(self, token: int, correlation: int) -> bool:
        """The marker of a boundary has come; False if it is none of ours."""
        attribution, light = self.attribution, self.attribution.light
        if light is None or light.token != token:
            issued = attribution.issued_ns(token)
            if light is None or issued < attribution.light_since_ns:
                return attribution.token(token, self.widener.widen([correlation])[1])
            # Whether its id is of those that began anew is not known yet.
            self._early_markers.append((issued, token, correlation))
            return True
        if attribution.began_anew(correlation, self._newest_before):
            self._begin_anew(light)
        attribution.token(token, self.widener.widen([correlation])[1])
        self._place_early_markers(light.before_ns)
        return True

    def _place_early_markers(self, since_ns: int) -> None:
        """Of those made before ``since_ns`` nobody will know."""
        early, self._early_markers = self._early_markers, []
        for issued, token, correlation in early:
            if issued >= since_ns:
                self.attribution.token(token, self.widener.widen([correlation])[1])
            else:
                self.attribution.lose(token)

    def _begin_anew(self, light: Boundary) -> None:
        """Ids began anew before ``light``: also those of work that waits for it."""
        dark, since_ns = self.attribution.unplaced or 0, self.attribution.light_since_ns
        self.restart_ids()
        for at, work in enumerate(self._waiting):
            if work.batch.earliest >= light.before_ns:  # launched since, or just before
                self._waiting[at] = work._replace(ids=self.widener.ids(list(work.batch.correlation)))
            elif work.newest_ns >= since_ns:  # which of it is older nobody knows
                self._waiting[at] = work._replace(ids=Ids([dark] * work.batch.count, dark, dark, 0, True))

    @property
    def _own_context(self) -> int | None:
        """Of the markers, where it is known."""
        return self._marker_context or (self.marker.context if self.marker is not None else None)

    def _without_others_markers(self, batch: Batch) -> Batch:
        theirs = on_own_streams(self.others_markers, batch)
        if theirs is None:
            return batch
        rows = enumerate(zip(theirs, batch.bytes, strict=True))
        return self._leave_out(batch, [i for i, (their, size) in rows if not their or size != MARKER_BYTES])

    def _without_own_waits(self, batch: Batch) -> Batch:
        """A look at how far the stream of the markers has come leaves a record as a wait of the program does."""
        marker = self.marker
        if marker is None or marker.kind == batch.kind or marker.stream is None:
            return batch
        ours = on_own_streams({(self._own_context, marker.stream)}, batch)
        return self._leave_out(batch, [i for i, own in enumerate(ours) if not own]) if ours is not None else batch

    def _leave_out(self, batch: Batch, left: Sequence[int]) -> Batch:
        """Only ``left`` is work that this session sees."""
        if batch.kind in layouts.WORK_KINDS:
            self._seen -= batch.count - len(left)
        return batch if len(left) == batch.count else batch.pick(left)

    def _select(self, batch: Batch, now_ns: int) -> Batch:
        """Without work from before the session, from the future, and of devices that were not asked for."""
        if now_ns and batch.latest > now_ns + AHEAD_NS:
            good = [i for i, end in enumerate(batch.end) if end <= now_ns + AHEAD_NS]
            self.in_future += batch.count - len(good)
            batch = batch.pick(good)
            if not good:
                return batch
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

    def _slow(self, batch: Batch, now_ns: int) -> Sequence[int]:
        """Indices of the records to keep."""
        if batch.kind == layouts.DRIVER:
            return ()
        if self.limits.trace_all:
            return range(batch.count)
        threshold = self.threshold
        threshold.refill(now_ns)
        if batch.kind == layouts.MEMORY2:  # what is alive is only known from every one
            return [i for i in range(batch.count) if threshold.spend()]
        if not batch.reaches(threshold.effective_ns):
            return ()
        return threshold.choose(batch.duration, batch.longest)


def _described(names: NameOf, pointers: frozenset[int]) -> tuple[Mapping[int, Described], Mapping[int, Named]]:
    if isinstance(names, Names):
        return names.many(pointers)
    known = {pointer: names(pointer) for pointer in pointers}
    return known, {pointer: text[:2] for pointer, text in known.items()}


def _records(
    buffer: memoryview,
    batch: Batch,
    chosen: Sequence[int],
    ids: Ids,
    names: NameOf,
    lines: Sequence[str | None] | None,
) -> dict[int, Record]:
    made: dict[int, Record] = {}
    for i in chosen:
        item = decode_record(buffer, batch, i, names)._replace(correlation_id=ids.wide(i))
        made[i] = _with_line(item, lines[i]) if lines is not None else item
    return made


def _with_line(item: Any, line: str | None) -> Any:
    """A copy says it among its attributes: few are made by a call that waits."""
    if line is None:
        return item
    if type(item) is GpuSync:
        return item._replace(source_line=line)
    return item._replace(attributes={**(item.attributes or {}), "source_line": line})
