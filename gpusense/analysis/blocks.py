"""GPU time by block: a tree of paths, each with what was launched in it and below it."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from .._records.records import BlockRecord, Path
from ..session import Session
from .calls import timed_by_host
from .operation import DEVICE_KINDS, OPERATIONS, duration_ns


class BlockNode:
    """One path. ``own_*`` is what was launched in this very block; ``gpu_ns`` and ``kernels`` include those inside.

    GPU times are sums of durations, so concurrent kernels count each; wall times are of finished passes.
    """

    __slots__ = (
        "children",
        "gpu_ns",
        "kernels",
        "name",
        "operations",
        "own_bytes",
        "own_kernel_ns",
        "own_kernels",
        "own_sync_ns",
        "own_transfer_ns",
        "owners",
        "parent",
        "passes",
        "path",
        "wall_ns",
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
        self.passes = self.wall_ns = self.gpu_ns = self.kernels = 0
        self.own_kernels = self.own_kernel_ns = self.own_transfer_ns = self.own_bytes = self.own_sync_ns = 0

    @property
    def own_gpu_ns(self) -> int:
        return self.own_kernel_ns + self.own_transfer_ns

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
        elif kind == HOST_TRANSFER:
            self.own_bytes += size
        elif kind in DEVICE_KINDS:
            self.own_transfer_ns += spent
            self.own_bytes += size
        elif kind == "sync":
            self.own_sync_ns += spent


#: Kind of copies that the host timed: their bytes count, their time is none of the device.
HOST_TRANSFER = "host_transfer"


class _Tree:
    def __init__(self) -> None:
        self.root = BlockNode((), None)
        self._known: dict[Path, BlockNode] = {(): self.root}
        self._order = [self.root]  # parents before children

    def node(self, path: Path) -> BlockNode:
        known = self._known.get(path)
        if known is not None:
            return known
        node = self.root
        for name in path:  # a loop: paths can be deeper than the interpreter's stack
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = BlockNode((*node.path, name), node)
                self._order.append(child)
            node = child
        self._known[path] = node
        return node

    def add_up(self) -> None:
        for node in reversed(self._order):
            node.gpu_ns += node.own_gpu_ns
            node.kernels += node.own_kernels
            if node.parent is not None:
                node.parent.gpu_ns += node.gpu_ns
                node.parent.kernels += node.kernels


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
    sums: dict[tuple[Any, ...], list[Any]] = {}  # equal calls of one block: node, calls, nanoseconds, bytes
    record: Any
    for record in session.records:
        of = type(record)
        if of is BlockRecord:
            node = tree.node(record.path)
            node.passes += 1
            node.wall_ns += duration_ns(record)
            continue
        facts = _FACTS.get(of)
        if facts is None:
            continue
        key = of, facts(record)
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
    for counted in session.aggregates:
        if counted.kind not in ("block", "allocation") and counted.count:
            kind = HOST_TRANSFER if timed_by_host(counted) else counted.kind
            tree.node(counted.path).add(
                kind, counted.name, counted.count, counted.total_ns, counted.bytes, counted.owner
            )
    tree.add_up()
    return tree.root
