"""Where a record belongs: gives work the block that launched it, then keeps or counts it. Pure.

Decoded work comes as columns, of which a few records were chosen to be kept; finished records come one by one or as
columns, too. Used by one thread at a time.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from typing import Any, NamedTuple

from .._attribution.attributor import Attributor
from .._attribution.timelines import OUTSIDE, Candidates
from .._decode.batch import Batch
from .._decode.correlation_ids import Ids
from .._decode.names import Named
from .._decode.record import AT_ONCE, Home, KernelMaker, Row
from .._records.records import ALWAYS_LISTED, KINDS, BlockRecord, GpuKernel, Path, Record
from .._records.work import WITH_ROWS, WorkTable, kind_of_record
from .block_totals import BLOCK_TIME, Watched
from .ledger import Ledger
from .recent import Recent
from .same_kernels import SameKernels
from .sums import NamedRow
from .threshold import Threshold

MAX_CONTEXTS = 4_096  # whose device is remembered; a program may make new ones again and again
HELPERS = frozenset({"launch", "unified_memory"})  # summed up, and not counted among the records seen
WITH_BYTES = frozenset({"transfer", "memset", "allocation"})

#: For each record of a batch the path of the block that captured it, where it is a node of a replayed graph.
Owners = list[Path | None]
#: Device, stream and owner.
Where = tuple[int | None, int | None, Path | None]
#: Innermost candidate blocks, and whether the launching thread only inherited them.
Place = tuple[Candidates, bool]


class Work(NamedTuple):
    """One decoded batch that waits for its markers."""

    kind: str
    thread: int
    batch: Batch
    ids: Ids
    names: Mapping[int, Named]
    kept: dict[int, Record] | dict[int, Row]  # index in the batch → what to keep, still without its block
    newest_ns: int  # nothing in it ended later
    owners: Owners | None = None  # where some of it was captured in a block
    rows: Sequence[int] | None = None  # kind of each in the table of all work, where it has rows


class Placer:
    """Puts work into ``ledger``, under its block. Says of how many records that was uncertain, and how many made no
    sense."""

    def __init__(
        self,
        ledger: Ledger,
        threshold: Threshold,
        occupancy: Callable[[GpuKernel], float | None] | None = None,
        watched: Watched | None = None,
        table: WorkTable | None = None,
    ) -> None:
        self.table = WorkTable() if table is None else table
        self.attribution = Attributor()
        self.watched = watched or Watched()
        self.owners: dict[int, Path] = {}  # graph node id → path of the block that captured it
        self.kernels = KernelMaker(occupancy)
        self.recent: Recent | None = None  # keeps all of it for some seconds, where that is wanted
        self.ambiguous = self.inherited = self.invalid = self.unseen = 0
        self._ledger = ledger
        self._threshold = threshold
        self._contexts: dict[int | None, int] = {}  # context → device

    def go_on_from(self, old: "Placer") -> None:
        """Blocks that are open stay open."""
        self.attribution, self.watched, self.owners = old.attribution, old.watched, old.owners

    # --- decoded work -----------------------------------------------------------------------------------------------

    def place(self, work: Work, pause: Callable[[], None] | None = None) -> None:
        """Keeps what was chosen of ``work`` and counts the others; all markers of its blocks have come, or never will.
        ``pause``: see :meth:`Pipeline.feed`."""
        if self.attribution.unseen(work.ids.low, work.ids.high):
            work = self._seen(work)
            if not work.batch.count:
                return
        batch, kind, ledger = work.batch, work.kind, self._ledger
        self._learn_devices(batch)
        if kind == "kernel":
            ledger.sums.know(work.names)
        if kind in ("kernel", "transfer", "memset"):
            ledger.occupy(kind == "kernel", batch)
        where = self._shared_where(batch) if work.owners is None else None
        columns = self._columns(work, where)
        counted = bytearray(b"\1") * batch.count
        for i in work.kept:
            counted[i] = 0
        indices, items, first = list(work.kept), list(work.kept.values()), 0
        chosen: list[tuple[Place, list[Any]]] = []
        runs: list[tuple[int, Candidates]] = []
        for low, high, place in self.attribution.segments(work.thread, *work.ids):
            runs.append((high - low, place[0]))
            rows = [column[low:high] for column in columns]
            last = bisect_left(indices, high, first)
            if last > first:
                chosen.append((place, items[first:last]))
                first, mask = last, counted[low:high]
                rows = [list(compress(row, mask)) for row in rows]
            if rows[0]:
                self._count(kind, place, where, rows)
        if kind not in HELPERS:
            ledger.counted += batch.count - len(work.kept)
        self._add_rows(work, runs)
        self._keep(kind, chosen, pause)

    def _add_rows(self, work: Work, runs: list[tuple[int, Candidates]]) -> None:
        """Adds a batch to the table of all work; ``runs``: how many in a row have which innermost candidates."""
        if work.rows is not None:
            (corrs, base), batch = (work.ids.corrs, work.ids.base), work.batch
            orders = map(base.__add__, corrs) if base else corrs
            sizes = batch.bytes if work.kind in WITH_BYTES else None
            paths = [(count, self._path_number(innermost)) for count, innermost in runs]
            columns = self.table.append(work.rows, paths, *batch.times(), orders, sizes)
            if self.recent is not None:
                blocks = [(count, *self._block(innermost)) for count, innermost in runs]
                self.recent.add_rows(columns, blocks, work.newest_ns)

    def _path_number(self, innermost: Candidates) -> int:
        blocks = self._certain(innermost)
        return self.table.path_of(self.attribution.path(blocks[0])) if blocks else 0

    def _block(self, innermost: Candidates) -> tuple[int, Candidates]:
        """The id of the block that certainly holds what is in ``innermost``, or 0, and the candidates for a smaller
        one."""
        blocks = self._certain(innermost)
        return blocks[0] if blocks else OUTSIDE, innermost if len(innermost) > 1 else ()

    def _columns(self, work: Work, where: Where | None) -> list[list[Any]]:
        """Of what is counted; with device, stream and owner of each, where these differ."""
        batch = work.batch
        columns: list[list[Any]] = [batch.key, batch.duration]
        if work.kind in WITH_BYTES:
            columns.append(batch.bytes)
        if where is None:
            columns.append(self._each_where(batch, work.owners))
        return columns

    def _seen(self, work: Work) -> Work:
        """Without what was launched while boundaries had no place."""
        ids, unseen = work.ids, self.attribution.unseen
        wide = [corr + ids.base for corr in ids.corrs]
        seen = [i for i, corr in enumerate(wide) if not unseen(corr, corr)]
        if work.kind not in HELPERS:
            self.unseen += work.batch.count - len(seen)
        corrs = [wide[i] for i in seen]
        return work._replace(
            batch=work.batch.pick(seen),
            ids=Ids(corrs, min(corrs, default=0), max(corrs, default=0), 0, ids.ascend),
            kept={at: work.kept[i] for at, i in enumerate(seen) if i in work.kept},  # type: ignore[arg-type]
            owners=[work.owners[i] for i in seen] if work.owners is not None else None,
            rows=[work.rows[i] for i in seen] if work.rows is not None else None,
        )

    def _shared_where(self, batch: Batch) -> Where | None:
        """Of all records, or None where they differ."""
        if not (batch.uniform("device") and batch.uniform("stream")):
            return None
        device = batch.device[0]
        if device is None and batch.context[0] is not None and batch.uniform("context"):
            device = self._contexts.get(batch.context[0])
        return device, batch.stream[0], None

    def _each_where(self, batch: Batch, owners: Owners | None) -> list[Where]:
        devices: list[Any] = batch.device
        if None in devices:  # a record of such a kind may name its context only
            pairs = zip(devices, batch.context, strict=True)
            devices = [self._contexts.get(context) if device is None else device for device, context in pairs]
        return list(zip(devices, batch.stream, owners or repeat(None), strict=False))

    def _learn_devices(self, batch: Batch) -> None:
        """Synchronisations name a context only; work in the same context says its device."""
        device, context, known = batch.device[0], batch.context[0], self._contexts
        if device is not None and context is not None and context not in known:
            known[context] = device
            if len(known) > MAX_CONTEXTS:
                del known[next(iter(known))]

    def _count(self, kind: str, place: Place, where: Where | None, rows: list[list[Any]]) -> None:
        """Counts records that share their block. ``where`` None: the last of their columns says it."""
        innermost, inherited = place
        blocks = self._certain(innermost)
        path, sums = self.attribution.path(blocks[0]) if blocks else (), self._ledger.sums
        if inherited or len(innermost) > 1:
            self._note(place, blocks, len(rows[0]))
        for each, part in ((where, rows),) if where is not None else _divided(rows):
            sums.add((path, kind, *each), *part)
            if self.watched.blocks:
                self.watched.extend(blocks, sums.by_name(kind, *part), inherited)

    def _certain(self, innermost: Candidates) -> tuple[int, ...]:
        """The innermost block that holds all of ``innermost``, and its ancestors where somebody may ask them."""
        if len(innermost) > 1:
            return self.attribution.common_ancestors(innermost)
        if not innermost or innermost[0] == OUTSIDE:
            return ()
        return self.attribution.chain(innermost[0]) if self.watched.blocks else innermost

    def _note(self, place: Place, certain: tuple[int, ...], count: int) -> None:
        """Notes how sure the place of ``count`` records is."""
        innermost, inherited = place
        if len(innermost) > 1:
            self.ambiguous += count
            if self.watched.blocks:
                candidates = {block for one in innermost for block in self.attribution.chain(one)}
                for totals in self.watched.among(candidates.difference(certain)):
                    totals.ambiguous += count
        elif inherited and innermost:
            self.inherited += count

    def _keep(self, kind: str, chosen: list[tuple[Place, list[Any]]], pause: Callable[[], None] | None) -> None:
        """Keeps what was chosen in each of some places."""
        interrupt = None
        for place, items in chosen:
            for at in range(0, len(items), AT_ONCE):
                part = items[at : at + AT_ONCE]
                self._keep_some(kind, part, place)
                if pause is not None and len(part) == AT_ONCE:
                    try:
                        pause()
                    except BaseException as error:  # noqa: BLE001 - once all are kept
                        interrupt, pause = error, None
        if interrupt is not None:
            raise interrupt

    def _keep_some(self, kind: str, items: list[Any], place: Place) -> None:
        innermost, inherited = place
        blocks = self._certain(innermost)
        self._note(place, blocks, len(items))
        path, block_id = (self.attribution.path(blocks[0]), blocks[0]) if blocks else ((), None)
        home = Home(path, block_id, innermost if len(innermost) > 1 else ())
        made: list[Any]
        if kind == "kernel":
            made = self.kernels.make(items, self._threshold.chosen_ns, home)
        else:
            made = [self._completed(item, home) for item in items]
        if self.owners:
            made = [with_owner(item, self.owners) for item in made]
        if self.watched.blocks:
            self.watched.extend(blocks, map(_row_of, made), inherited)
        if self.recent is not None and kind not in WITH_ROWS:
            for item in made:
                self.recent.add(item)
        self._ledger.store(made)

    def _completed(self, item: Any, home: Home) -> Any:
        """A record that is no kernel, with all that is known of it now."""
        changes: dict[str, Any] = home._asdict()
        if hasattr(item, "is_slow"):
            changes["is_slow"] = item.end_ns - item.start_ns >= self._threshold.chosen_ns
        if item.device is None and item.context is not None:
            changes["device"] = self._contexts.get(item.context)
        return item._replace(**changes)

    # --- finished records -------------------------------------------------------------------------------------------

    def finish(self, item: Any, keep_all: bool) -> None:
        """A record of work that is complete already: keeps it or counts it."""
        duration = item.end_ns - item.start_ns
        kind = KINDS[type(item)]
        if duration < 0 or item.start_ns <= 0:
            self.invalid += 1
            return
        if item.block_id is not None and not item.path:
            item = item._replace(path=self.attribution.path(item.block_id))
        slow = duration >= self._threshold.chosen_ns
        if getattr(item, "is_slow", slow) is not slow:
            item = item._replace(is_slow=slow)
        if item.block_id is not None and self.watched.blocks:
            # What a block took on the device holds what is inside it.
            blocks = (item.block_id,) if kind == BLOCK_TIME else self.attribution.chain(item.block_id)
            self.watched.extend(blocks, [_row_of(item)])
        if kind in WITH_ROWS:
            self.table.add(item)
        if self.recent is not None:
            self.recent.add(item)
        if kind in ("kernel", "transfer", "memset") and getattr(item, "timing", "device") == "device":
            self._ledger.occupy_times(item.backend, item.device, kind == "kernel", [item.start_ns], [item.end_ns])
        wanted = keep_all or kind in ALWAYS_LISTED or duration >= self._threshold.effective_ns
        if wanted and (keep_all or self._threshold.spend()):
            self._ledger.store((item,))
        else:
            self._ledger.demote(item)

    def finish_block(self, item: BlockRecord, keep_all: bool) -> None:
        """As :meth:`finish`, in half the time: a framework's modules make thousands of blocks a second."""
        if item.end_ns < item.start_ns or item.start_ns <= 0:
            self.invalid += 1
            return
        if not item.path:
            item = item._replace(path=self.attribution.path(item.block_id))
        if self.recent is not None:
            self.recent.add(item)
        if keep_all or self._threshold.spend():
            self._ledger.store((item,))
        else:
            self._ledger.demote(item)

    def finish_all(self, columns: SameKernels, keep_all: bool) -> None:
        """As :meth:`finish` does for each of them."""
        if keep_all or not columns.sound:
            for item in columns.records():
                self.finish(item, keep_all)
            return
        for at, kind in enumerate(columns.kinds):
            if kind.block_id is not None and not kind.path:
                columns.kinds[at] = kind._replace(path=self.attribution.path(kind.block_id))
        if self.watched.blocks:
            for kind, durations in columns.by_kind([]):
                if kind.block_id is not None:
                    row = ("kernel", kind.name), durations, 0
                    self.watched.extend(self.attribution.chain(kind.block_id), [row])
        ledger, slow_ns, first = self._ledger, self._threshold.chosen_ns, columns.kinds[0]
        ledger.occupy_times(first.backend, first.device, True, columns.starts, columns.ends)
        self._add_columns(columns)
        if self.recent is not None:
            self.recent.add(columns)
        kept = self._threshold.slow(columns.durations, max(columns.durations))
        ledger.store([item._replace(is_slow=item.end_ns - item.start_ns >= slow_ns) for item in columns.at(kept)])
        for kind, durations in columns.by_kind(kept):
            ledger.count_like(kind, durations)

    def _add_columns(self, columns: SameKernels) -> None:
        table = self.table
        numbers = [table.kind_of(kind_of_record(kind)) for kind in columns.kinds]
        paths = [table.path_of(kind.path) for kind in columns.kinds]
        table.append(
            [numbers[which] for which in columns.which],
            ((1, paths[which]) for which in columns.which),
            columns.starts,
            columns.ends,
        )


def _divided(rows: list[list[Any]]) -> Iterator[tuple[Where, list[list[int]]]]:
    """Columns by device, stream and owner, which are the last of them."""
    *columns, wheres = rows
    indices: defaultdict[Where, list[int]] = defaultdict(list)
    for i, where in enumerate(wheres):
        indices[where].append(i)
    for where, chosen in indices.items():
        yield where, [list(map(column.__getitem__, chosen)) for column in columns]


def _row_of(item: Any) -> NamedRow:
    kind = KINDS[type(item)]
    return (
        (kind, item.timing if kind == BLOCK_TIME else item.name),
        [item.end_ns - item.start_ns],
        getattr(item, "bytes", 0),
    )


def with_owner(item: Any, owners: Mapping[int, Path]) -> Any:
    """The record with the block that captured it, if it is a node of a replayed graph: the one of the node's own id or,
    where the record has it, of its source (13.4)."""
    node = getattr(item, "graph_node_id", None)
    if not owners or node is None:
        return item
    source = (item.attributes or {}).get("source_graph_node", 0)
    return item._replace(owner=owners.get(node) or owners.get(source))
