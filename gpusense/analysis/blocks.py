"""Blocks by path, as a tree: how long their passes took, how that time splits, and what was launched in each."""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from .._records.records import AT_MOST, BLOCKS, NOT_USED, OPEN_AT_END, Aggregate, BlockRecord, GpuBlockTime, Path
from .._records.work import WITH_ROWS, WorkTable
from ..session import Session
from .calls import timed_by_host
from .operation import DEVICE_KINDS, OPERATIONS, Spread, duration_ns, spread
from .unwritten import untimed_blocks

#: Kind of copies that the host timed: their bytes count, their time is none of the device.
HOST_TRANSFER = "host_transfer"
#: A stream waits there, not the host.
_NO_WAIT = ("sync", "stream_wait_event")
#: States of capture in which no work of a device can be seen.
_BLIND = (None, "unavailable", "armed", "off", BLOCKS)


class BlockTimes(NamedTuple):
    """One path in numbers. Times are nanoseconds and include blocks inside, but ``own_ns``; what is unknown is None.

    The time of the passes splits into ``wait_ns`` and ``host_ns``. What they launched may run later and beside each
    other, so that ``kernel_ns`` and ``transfer_ns``, sums over kernels and copies, can be more than it.
    """

    path: Path
    passes: int
    total_ns: int | None  # None where there is no pass of which a length is known, and so for all up to ``p95_ns``
    own_ns: int | None  # without blocks inside
    avg_ns: float | None
    min_ns: int | None
    max_ns: int | None
    std_ns: float | None
    median_ns: float | None  # None, too, where too many passes were only summed to know it exactly
    p95_ns: int | None
    kernel_ns: int | None  # None where no work of a device could be seen, and so for kernels and copies
    kernels: int | None
    transfer_ns: int | None  # copies, whoever timed them
    transfer_bytes: int | None
    wait_ns: int | None  # the host waited for a device; None where waits were not recorded
    host_ns: int | None  # the rest
    device_ns: int | None = None  # of all passes that the device timed; None where it timed none
    device_passes: int = 0  # how many that were, on the device that timed most
    device_at_most: int = 0  # and of how many of them it is a bound, because a stream was idle at one of their ends
    open_passes: int = 0  # that did not end: they count as far as is known, and times are at least what they seem

    @property
    def device_avg_ns(self) -> float | None:
        """Of one pass that the device timed."""
        return None if self.device_ns is None else self.device_ns / self.device_passes


class BlockNode:
    """One path. ``own_*`` is what was launched in this very block, other sums include those inside.

    GPU times are sums of durations, so concurrent kernels count each; ``gpu_ns`` is kernels, copies and memsets.
    """

    __slots__ = (
        *(
            "attributes",
            "children",
            "counted",
            "device_lengths",
            "device_sums",
            "inside_ns",
            "lengths",
            "name",
            "open_passes",
            "operations",
            "owners",
            "parent",
            "path",
        ),
        *("own_bytes", "own_kernel_ns", "own_kernels", "own_sync_ns", "own_transfer_ns", "own_wait_ns"),
        *("gpu_ns", "kernel_ns", "kernels", "transfer_bytes", "transfer_ns", "wait_ns"),
        *("copies_seen", "gpu_seen", "waits_seen"),
    )

    def __init__(self, path: Path, parent: "BlockNode | None") -> None:
        self.path = path
        self.name = path[-1] if path else ""
        self.parent = parent
        self.children: dict[str, BlockNode] = {}
        #: (kind, name) → [calls, ns, bytes] of what was launched in this very block
        self.operations: dict[tuple[str, str], list[int]] = {}
        #: of what was replayed here from CUDA graphs: the block that captured it → [kernels, GPU ns]
        self.owners: dict[Path, list[int]] = {}
        self.lengths: list[int] = []  # of passes that are listed
        self.open_passes = 0  # of these, such as did not end
        self.counted: list[Aggregate] = []  # of those that were only summed
        self.inside_ns = 0  # of passes, in which a block inside was open
        self.device_lengths: list[int] = []  # of passes that the device timed and that are listed
        #: device → [passes, ns, passes of which that is a bound], as the device timed them
        self.device_sums: dict[int | None, list[int]] = {}
        self.attributes: dict[str, Any] | None = None  # of the last pass that had some
        self.own_kernels = self.own_kernel_ns = self.own_transfer_ns = self.own_bytes = 0
        self.own_sync_ns = self.own_wait_ns = 0
        self.gpu_ns = self.kernel_ns = self.kernels = self.transfer_ns = self.transfer_bytes = self.wait_ns = 0
        self.gpu_seen = self.copies_seen = self.waits_seen = False

    @property
    def own_gpu_ns(self) -> int:
        return self.own_kernel_ns + self.own_transfer_ns

    @property
    def times(self) -> BlockTimes:
        """The path in numbers, in which what could not be seen is None."""
        passes: Spread | None = None
        if (self.lengths or self.counted) and (self.wall_ns or not self.open_passes):
            passes = spread(sorted(self.lengths), self.counted)
        total = passes.total_ns if passes else None
        wait = self.wait_ns if self.waits_seen else None
        return BlockTimes(
            path=self.path,
            passes=self.passes,
            total_ns=total,
            own_ns=None if total is None else self.own_ns,
            avg_ns=passes.avg_ns if passes else None,
            min_ns=passes.min_ns if passes else None,
            max_ns=passes.max_ns if passes else None,
            std_ns=passes.std_ns if passes else None,
            median_ns=passes.median_ns if passes else None,
            p95_ns=passes.p95_ns if passes else None,
            kernel_ns=self.kernel_ns if self.gpu_seen else None,
            kernels=self.kernels if self.gpu_seen else None,
            transfer_ns=self.transfer_ns if self.copies_seen else None,
            transfer_bytes=self.transfer_bytes if self.copies_seen else None,
            wait_ns=wait,
            host_ns=None if total is None or wait is None else max(0, total - wait),
            device_ns=sum(row[1] for row in self.device_sums.values()) if self.device_sums else None,
            device_passes=max((row[0] for row in self.device_sums.values()), default=0),
            device_at_most=max((row[2] for row in self.device_sums.values()), default=0),
            open_passes=self.open_passes,
        )

    def add_device_time(self, device: int | None, timing: str, passes: int, spent: int) -> None:
        """How long ``passes`` of this block took on a device."""
        row = self.device_sums.setdefault(device, [0, 0, 0])
        row[0] += passes
        row[1] += spent
        row[2] += passes if timing == AT_MOST else 0

    @property
    def wall_ns(self) -> int:
        """Of all finished passes."""
        return sum(self.lengths) + sum(row.total_ns for row in self.counted)

    @property
    def own_ns(self) -> int:
        """The same without the blocks inside."""
        return max(0, self.wall_ns - self.inside_ns)

    @property
    def passes(self) -> int:
        return len(self.lengths) + sum(row.count for row in self.counted)

    def walk(self) -> "Iterator[tuple[int, BlockNode]]":
        """What is inside, with its depth: parents first, and of those beside each other the longest."""
        waiting = [(0, node) for node in self._longest_last()]
        while waiting:
            depth, node = waiting.pop()
            yield depth, node
            waiting += [(depth + 1, child) for child in node._longest_last()]

    def _longest_last(self) -> "list[BlockNode]":
        return sorted(self.children.values(), key=lambda node: (node.wall_ns, node.gpu_ns))

    def add(self, kind: str, name: str, count: int, spent: int, size: int, owner: Path | None) -> None:
        """Adds ``count`` calls of one operation launched in this very block, ``spent`` nanoseconds in all."""
        if owner is not None:
            captured = self.owners.setdefault(owner, [0, 0])
            captured[0] += count if kind == "kernel" else 0
            captured[1] += spent
        row = self.operations.setdefault((kind, name), [0, 0, 0])
        row[0] += count
        row[1] += spent
        row[2] += size
        if kind == "kernel":
            self.own_kernels += count
            self.own_kernel_ns += spent
        elif kind == "sync":
            self.own_sync_ns += spent
            self.own_wait_ns += spent if (kind, name) != _NO_WAIT else 0
        elif kind in DEVICE_KINDS or kind == HOST_TRANSFER:
            self.own_transfer_ns += spent if kind != HOST_TRANSFER else 0
            self.own_bytes += size
            if kind != "memset":
                self.transfer_ns += spent
                self.transfer_bytes += size

    def add_up(self) -> None:
        """Adds what was launched here to what is inside, and both to the parent."""
        self.gpu_ns += self.own_gpu_ns
        self.kernel_ns += self.own_kernel_ns
        self.kernels += self.own_kernels
        self.wait_ns += self.own_wait_ns
        above = self.parent
        if above is not None:
            for name in ("gpu_ns", "kernel_ns", "kernels", "transfer_ns", "transfer_bytes", "wait_ns"):
                setattr(above, name, getattr(above, name) + getattr(self, name))


class _Tree:
    def __init__(self) -> None:
        self.root = BlockNode((), None)
        self._known: dict[Path, BlockNode] = {(): self.root}
        self.order = [self.root]  # parents before children

    def node(self, path: Path) -> BlockNode:
        known = self._known.get(path)
        if known is not None:
            return known
        node = self.root
        for name in path:  # a loop: paths can be deeper than the interpreter's stack
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = BlockNode((*node.path, name), node)
                self.order.append(child)
            node = child
        self._known[path] = node
        return node


#: Class of a call → its path, name and, where it has one, owner.
_FACTS: dict[Any, Callable[[Any], tuple[Any, ...]]] = {
    of: attrgetter("path", "name", *(field for field in ("timing", "owner") if field in of._fields))
    for of, kind in OPERATIONS.items()
    if kind != "allocation"
}
_SIZED = {of for of in _FACTS if "bytes" in of._fields}


def block_tree(session: Session) -> BlockNode:
    """The root (path ``()``); work launched outside any block is its own. Kept and counted work together."""
    tree = _Tree()
    rows = session.has_work and session.work.complete
    if rows:  # which know the blocks of all work, also where there were too many for a sum of each
        _take_work(tree, session.work)
    _take_calls(tree, session.records, frozenset(of for of in _FACTS if not rows or OPERATIONS[of] not in WITH_ROWS))
    _take_passes(tree, [record for record in session.records if type(record) is BlockRecord])
    _take_device_times(tree, session.records)
    for counted in session.aggregates:
        if counted.count <= 0 or counted.kind == "allocation":
            continue
        if counted.kind == "block":
            node = tree.node((*counted.path, counted.name))
            node.counted.append(counted)
            if node.parent is not None:
                node.parent.inside_ns += counted.total_ns
        elif counted.kind == "block_time":
            tree.node(counted.path).add_device_time(counted.device, counted.timing, counted.count, counted.total_ns)
        elif not (rows and counted.kind in WITH_ROWS):
            kind = HOST_TRANSFER if timed_by_host(counted) else counted.kind
            tree.node(counted.path).add(
                kind, counted.name, counted.count, counted.total_ns, counted.bytes, counted.owner
            )
    for node in reversed(tree.order):
        node.add_up()
    _tell_what_was_seen(tree, session)
    return tree.root


def sees_work(state: Any) -> bool:
    """Whether work of a device would have been seen in this ``state`` of capture."""
    return state not in _BLIND


def times_blocks(session: Session) -> bool:
    """Whether the device was to time blocks, and no kernel was recorded: in a process of this session at least."""
    capture = session.meta.get("capture") or {}
    return any(one.get("state") == BLOCKS for one in (capture, *capture.values()) if isinstance(one, dict))


def why_unknown(session: Session, field: str) -> str:
    """Why a field of :class:`BlockTimes` is None; "" where nothing but missing passes makes it so."""
    if field in ("median_ns", "p95_ns"):
        return "too many passes were only summed"
    if field == "device_ns":
        if not times_blocks(session):
            return "the device was not asked; configure(kernels='blocks') has it time blocks"
        return next(iter(untimed_blocks(session)), "the device was not used in them")
    if field in ("kernel_ns", "kernels", "transfer_ns", "transfer_bytes"):
        return _blind_because(session)
    if field in ("wait_ns", "host_ns"):
        if times_blocks(session):
            return _blind_because(session)
        if "sync" in (session.meta.get("kinds") or ()):
            return _blind_because(session)
        if "imported_from" in session.meta:
            return "the imported trace has no calls of the host"
        return "waits were not recorded; configure(kinds=('sync',)) records them"
    return ""


def _blind_because(session: Session) -> str:
    found = session.meta.get("capture") or {}
    reason = NOT_USED if found.get("state") == "armed" else found.get("reason") or session.meta.get("reason")
    begins = session.meta.get("complete") is False and found.get("state") == "armed"  # what it says is of its beginning
    if session.meta.get("damage") or begins:
        reason = "the session file does not say"
    return str(reason or "no work of a device was recorded")


def _take_work(tree: _Tree, work: WorkTable) -> None:
    sums: dict[tuple[int, int], list[int]] = {}
    for key, start, end, size in zip(
        zip(work.path, work.kind, strict=True), work.start, work.end, work.size, strict=True
    ):
        row = sums.get(key)
        if row is None:
            row = sums[key] = [0, 0, 0]
        row[0] += 1
        row[1] += end - start
        row[2] += size
    for (path, number), row in sums.items():
        kind = work.kinds[number]
        timed = HOST_TRANSFER if kind.kind == "transfer" and kind.timing == "host" else kind.kind
        tree.node(work.paths[path]).add(timed, kind.name, row[0], row[1], row[2], kind.owner)


def _take_calls(tree: _Tree, records: Iterable[Any], wanted: frozenset[Any]) -> None:
    sums: dict[tuple[Any, ...], list[Any]] = {}  # equal calls of one block: node, calls, nanoseconds, bytes
    for record in records:
        of = type(record)
        if of not in wanted:
            continue
        key = of, _FACTS[of](record)
        row = sums.get(key)
        if row is None:
            row = sums[key] = [tree.node(record.path), 0, 0, 0]
        row[1] += 1
        row[2] += duration_ns(record)
        if of in _SIZED:
            row[3] += record.bytes or 0
    for (of, (_, name, *others)), (node, count, spent, size) in sums.items():
        kind = HOST_TRANSFER if "host" in others[:1] else OPERATIONS[of]
        node.add(kind, name, count, spent, size, others[-1] if "owner" in of._fields else None)


def _take_passes(tree: _Tree, passes: list[BlockRecord]) -> None:
    """Lengths of passes, and how much of each lies in passes inside it, which may go on beside each other."""
    ends: dict[Any, int] = {record.block_id: record.end_ns for record in passes}
    until: dict[Any, int] = {}  # of each pass that has others inside: up to when they have been added
    nodes: dict[Path, BlockNode] = {}
    for path, start, end, outer, attributes in map(_PASS, sorted(passes, key=attrgetter("start_ns"))):
        node = nodes.get(path)
        if node is None:
            node = nodes[path] = tree.node(path)
        node.lengths.append(end - start if end > start else 0)
        if attributes is not None:
            node.attributes = attributes
            node.open_passes += OPEN_AT_END in attributes
        above = node.parent
        if above is None:
            continue
        outer = above.path if outer is None else outer
        before, last = until.get(outer, start), ends.get(outer, end)
        start, end = (before if before > start else start), (last if last < end else end)  # noqa: FURB136 - 200,000 times
        if end > start:
            above.inside_ns += end - start
            until[outer] = end


def _take_device_times(tree: _Tree, records: Iterable[Any]) -> None:
    for record in records:
        if type(record) is GpuBlockTime:
            node = tree.node(record.path)
            node.add_device_time(record.device, record.timing, 1, record.duration_ns)
            node.device_lengths.append(record.duration_ns)


_PASS = attrgetter("path", "start_ns", "end_ns", "parent_id", "attributes")


def _tell_what_was_seen(tree: _Tree, session: Session) -> None:
    """Of a merged session each process for itself: one may have had no driver."""
    processes = [one for one in session.meta.get("processes") or () if isinstance(one, dict)]
    roots = {one.get("root") for one in processes} if len(processes) > 1 else set()
    capture = session.meta.get("capture") or {}
    asked = "sync" in (session.meta.get("kinds") or ())
    for node in tree.order:
        above = node.parent
        if above is not None and (above.parent is not None or node.name not in roots):
            node.gpu_seen, node.copies_seen, node.waits_seen = above.gpu_seen, above.copies_seen, above.waits_seen
            continue
        mine = capture.get(node.name) if above is not None else capture
        state = mine.get("state") if isinstance(mine, dict) else None
        node.gpu_seen = node.gpu_ns > 0 or node.kernels > 0 or sees_work(state)
        node.copies_seen = node.gpu_seen or node.transfer_ns > 0 or node.transfer_bytes > 0
        node.waits_seen = (asked and node.gpu_seen) or node.wait_ns > 0
