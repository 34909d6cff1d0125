"""Where a record belongs: gives work the block that launched it, then keeps or counts it. Pure.

Decoded work comes as columns, of which a few records were chosen to be kept; records that are complete already, one by
one or alike. Used by one thread at a time.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any, NamedTuple

from .._attribution.attributor import Attributor, Ids, Leaves
from .._attribution.timelines import OUTSIDE
from .._decode.batch import Batch
from .._decode.drafts import AT_ONCE, Draft, Drafts
from .._records.records import KINDS, BlockRecord, GpuKernel, Path, Record
from .ledger import WITH_BYTES, Ledger, Owners, grouped
from .same_kernels import Alike
from .stretches import Stretches
from .sums import BlockTotals, Spot, Watched
from .threshold import Threshold

MAX_CONTEXTS = 4_096  # whose device is remembered; a program may make new ones again and again
HELPERS = frozenset({"launch", "unified_memory"})  # summed up, and not counted among the records seen

#: Innermost candidate blocks, and whether the launching thread only inherited them.
Place = tuple[Leaves, bool]


class Work(NamedTuple):
    """One decoded batch that waits for its markers."""

    kind: str
    thread: int
    batch: Batch
    ids: Ids
    names: Mapping[int, str]
    kept: dict[int, Record] | dict[int, Draft]  # index in the batch → what to keep, still without its block
    newest_ns: int  # nothing in it ended later
    owners: Owners | None = None  # where some of it was captured in a block
    stretches: Stretches | None = None  # the names of kernels

    def columns(self) -> list[list[int]]:
        """Keys, durations and, where it has such, bytes."""
        batch = self.batch
        return [batch.key, batch.duration, batch.bytes] if self.kind in WITH_BYTES else [batch.key, batch.duration]


class Placer:
    """Puts work into ``ledger``, under its block. Says of how many records that was uncertain, and how many made no
    sense."""

    def __init__(
        self,
        ledger: Ledger,
        threshold: Threshold,
        occupancy: Callable[[GpuKernel], float | None] | None = None,
        watched: Watched | None = None,
    ) -> None:
        self.attribution = Attributor()
        self.watched = watched if watched is not None else Watched()
        self.owners: dict[int, Path] = {}  # graph node id → path of the block that captured it
        self.drafts = Drafts(occupancy)
        self.ambiguous = self.inherited = self.invalid = 0
        self._ledger = ledger
        self._threshold = threshold
        self._contexts: dict[int, int] = {}  # context → device

    def go_on_from(self, old: "Placer") -> None:
        """Blocks that are open stay open."""
        self.attribution, self.watched, self.owners = old.attribution, old.watched, old.owners

    # --- decoded work -----------------------------------------------------------------------------------------------

    def place(self, work: Work, pause: Callable[[], None] | None = None) -> None:
        """Keeps what was chosen of ``work`` and counts the rest; all markers of its blocks have come, or never will.
        ``pause``: see :meth:`Pipeline.feed`."""
        batch = work.batch
        self._learn_devices(batch)
        if work.kind == "kernel":
            self._ledger.piles.know(work.names)
        if work.kind in ("kernel", "transfer", "memset"):
            self._ledger.occupy(work.kind == "kernel", batch)
        where = self._where(batch) if work.owners is None else None
        if where is not None and not work.kept and not self.watched:
            self._place_unasked(work, where)
        elif work.kept:
            self._place_some(work, where, pause)
        else:
            self._place_all(work, where)

    def _place_all(self, work: Work, where: tuple[int | None, int | None] | None) -> None:
        """As :meth:`place` for work that is only counted."""
        spots = self._ledger.spots(work.batch, self._contexts, work.owners) if where is None else None
        alike = (where, work.stretches) if where is not None and work.stretches is not None else None
        for low, high, place in self.attribution.segments(work.thread, *work.ids):
            if alike is None or not self._count_alike(place, *alike, low, high):
                rows = [column[low:high] for column in work.columns()]
                self._count(work.kind, place, where, spots[low:high] if spots is not None else None, *rows)

    def _place_some(
        self, work: Work, where: tuple[int | None, int | None] | None, pause: Callable[[], None] | None
    ) -> None:
        """As :meth:`place` for work of which some is kept."""
        spots = self._ledger.spots(work.batch, self._contexts, work.owners) if where is None else None
        counted = bytearray(b"\1") * work.batch.count
        for i in work.kept:
            counted[i] = 0
        alike = (where, work.stretches) if where is not None and work.stretches is not None else None
        columns, chosen = work.columns(), list(work.kept)
        places: list[tuple[int, int, Place]] = []  # of ``chosen`` the first in a block, and the one behind the last
        first = 0
        for low, high, place in self.attribution.segments(work.thread, *work.ids):
            last = bisect_left(chosen, high, first)
            if last > first:
                places.append((first, last, place))
                first = last
            elif alike is not None and self._count_alike(place, *alike, low, high):
                continue
            mask = counted[low:high]
            rows = [list(compress(column[low:high], mask)) for column in columns]
            if rows[0]:
                apart = list(compress(spots[low:high], mask)) if spots is not None else None
                self._count(work.kind, place, where, apart, *rows)
        self._keep_placed(work, places, pause)

    def _keep_placed(self, work: Work, places: list[tuple[int, int, Place]], pause: Callable[[], None] | None) -> None:
        items: list[Any] = list(work.kept.values())
        interrupt = None
        for first, last, place in places:
            for at in range(first, last, AT_ONCE):
                part = items[at : min(at + AT_ONCE, last)]
                if work.kind == "kernel":
                    self._keep_kernels(part, *place)
                else:
                    for item in part:
                        self._keep(item, *place)
                if pause is not None and len(part) == AT_ONCE:
                    try:
                        pause()
                    except BaseException as error:  # noqa: BLE001 - once the rest is kept
                        interrupt, pause = error, None
        if interrupt is not None:
            raise interrupt

    def _place_unasked(self, work: Work, where: tuple[int | None, int | None]) -> None:
        """As :meth:`place` for work that is only counted, in blocks that nobody may ask."""
        path_of, piles, kind, count = self.attribution.path, self._ledger.piles, work.kind, work.batch.count
        append: Callable[[Spot, Any, int, int], None]
        rows: Any
        if work.stretches is not None:
            append, rows = piles.appending(count), work.stretches
        else:
            append, rows = piles.appending_rows(count), work.columns()
        device, stream = where
        for low, high, (leaves, inherited) in self.attribution.segments(work.thread, *work.ids):
            if len(leaves) == 1:
                leaf = leaves[0]
                path = path_of(leaf) if leaf else ()
                if inherited:
                    self.inherited += high - low
            else:
                path = self._blocks(leaves)[0]
                if leaves:
                    self.ambiguous += high - low
            append((path, kind, device, stream, None), rows, low, high)
        if kind not in HELPERS:
            self._ledger.counted += count

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
        device, context, known = batch.device[0], batch.context[0], self._contexts
        if device is not None and context is not None and context not in known:
            known[context] = device
            if len(known) > MAX_CONTEXTS:
                del known[next(iter(known))]

    def _count_alike(
        self, place: Place, where: tuple[int | None, int | None], stretches: Stretches, low: int, high: int
    ) -> bool:
        """As :meth:`_count` for the kernels from ``low`` to ``high``; False if that takes a look at each."""
        leaves, inherited = place
        watched = self.watched
        path, blocks = self._inside(leaves)
        if watched:
            if any(watched.get(block) is not None for block in blocks):
                return False
            self._watch_ambiguous(leaves, blocks, high - low)
        if len(leaves) > 1:
            self.ambiguous += high - low
        elif inherited and leaves:
            self.inherited += high - low
        ledger = self._ledger
        ledger.counted += high - low
        ledger.piles.extend((path, "kernel", *where, None), stretches, low, high)
        return True

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
        path, blocks = self._inside(leaves)
        if kind not in HELPERS:
            self._ledger.counted += len(durations)
        if len(leaves) > 1:
            self.ambiguous += len(durations)
        elif inherited and leaves:
            self.inherited += len(durations)
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

    def _inside(self, leaves: Leaves) -> tuple[Path, tuple[int, ...]]:
        """As :meth:`_blocks`; without the blocks where nobody may ask them."""
        if len(leaves) == 1 and leaves[0] and not self.watched:
            return self.attribution.path(leaves[0]), ()
        return self._blocks(leaves)

    def _blocks(self, leaves: Leaves) -> tuple[Path, tuple[int, ...]]:
        """Path of the innermost certain block, and it with all its ancestors."""
        if not leaves or leaves == (OUTSIDE,):
            return (), ()
        blocks = self.attribution.chain(leaves[0]) if len(leaves) == 1 else self.attribution.common_ancestors(leaves)
        return (self.attribution.path(blocks[0]) if blocks else ()), blocks

    def _watch(self, item: Any, blocks: tuple[int, ...], leaves: Leaves, inherited: bool) -> None:
        """As :meth:`_watch_groups` for one record."""
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

    def _keep_kernels(self, drafts: list[Draft], leaves: Leaves, inherited: bool) -> None:
        """As :meth:`_keep` for kernels of one block."""
        path, blocks = self._blocks(leaves)
        block_id, ambiguous = blocks[0] if blocks else None, leaves if len(leaves) > 1 else ()
        if ambiguous:
            self.ambiguous += len(drafts)
        elif inherited and leaves:
            self.inherited += len(drafts)
        made: list[Any] = self.drafts.made(drafts, self._threshold.chosen_ns, path, block_id, ambiguous)
        if self.owners:
            made = [
                item._replace(owner=owner_of(item, self.owners)) if item.graph_node_id is not None else item
                for item in made
            ]
        if self.watched and leaves:
            for item in made:
                self._watch(item, blocks, leaves, inherited)
        self._ledger.store_all(made)

    def _keep(self, item: Any, leaves: Leaves, inherited: bool) -> None:
        path, blocks = self._blocks(leaves)
        changes: dict[str, Any] = {"path": path, "block_id": blocks[0] if blocks else None}
        if len(leaves) > 1:
            self.ambiguous += 1
            changes["ambiguous"] = leaves
        elif inherited and leaves:
            self.inherited += 1
        if hasattr(item, "is_slow"):
            changes["is_slow"] = item.end_ns - item.start_ns >= self._threshold.chosen_ns
        if item.device is None and item.context is not None:
            changes["device"] = self._contexts.get(item.context)
        if self.owners and getattr(item, "graph_node_id", None) is not None:
            changes["owner"] = owner_of(item, self.owners)
        item = item._replace(**changes)
        if self.watched and leaves:
            self._watch(item, blocks, leaves, inherited)
        self._ledger.store(item)

    # --- finished records -------------------------------------------------------------------------------------------

    def finish(self, item: Any, keep_all: bool) -> None:
        """A record that is complete already: keeps it or counts it."""
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
        if kind != "block" and item.block_id is not None and self.watched:
            self._watch(item, self.attribution.chain(item.block_id), (item.block_id,), False)
        if kind in ("kernel", "transfer") and getattr(item, "timing", "device") == "device":
            self._ledger.occupy_once(item.backend, item.device, kind == "kernel", item.start_ns, item.end_ns)
        wanted = keep_all or kind in ("block", "allocation") or duration >= self._threshold.effective_ns
        if wanted and (keep_all or self._threshold.spend()):
            self._ledger.store(item)
        else:
            self._ledger.demote(item)

    def finish_block(self, item: BlockRecord, keep_all: bool) -> None:
        """As :meth:`finish`, for blocks: a framework's modules make many."""
        if item.end_ns < item.start_ns or item.start_ns <= 0:
            self.invalid += 1
            return
        if not item.path:
            item = item._replace(path=self.attribution.path(item.block_id))
        if keep_all or self._threshold.spend():
            self._ledger.store(item)
        else:
            self._ledger.demote(item)

    def finish_all(self, columns: Alike, keep_all: bool) -> None:
        """As :meth:`finish` does for each of them."""
        if keep_all or not columns.sound:
            for item in columns.records():
                self.finish(item, keep_all)
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
        columns.settle(self._threshold, self._threshold.chosen_ns, self._ledger)


def owner_of(item: Any, owners: Mapping[int, Path]) -> Path | None:
    """The block that captured a graph node, by its own id or, where the record has it, that of its source (13.4)."""
    return owners.get(item.graph_node_id) or owners.get((item.attributes or {}).get("source_graph_node", 0))
