"""GPU time by block: a tree of paths, each with what was launched in it and below it."""

from typing import Any

from .._records import BlockRecord, Path
from ..session import Session
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
        #: (kind, name) → [calls, ns] of what was launched in this very block
        self.operations: dict[tuple[str, str], list[int]] = {}
        #: of what was replayed here from CUDA graphs: the block that captured it → [kernels, GPU ns]
        self.owners: dict[Path, list[int]] = {}
        self.passes = self.wall_ns = self.gpu_ns = self.kernels = 0
        self.own_kernels = self.own_kernel_ns = self.own_transfer_ns = self.own_bytes = self.own_sync_ns = 0

    @property
    def own_gpu_ns(self) -> int:
        return self.own_kernel_ns + self.own_transfer_ns

    def add(self, kind: str, name: str, count: int, spent: int, size: int, owner: Path | None) -> None:
        if owner is not None:
            captured = self.owners.setdefault(owner, [0, 0])
            captured[0] += count if kind == "kernel" else 0
            captured[1] += spent
        row = self.operations.setdefault((kind, name), [0, 0])
        row[0] += count
        row[1] += spent
        if kind == "kernel":
            self.own_kernels += count
            self.own_kernel_ns += spent
        elif kind in DEVICE_KINDS:
            self.own_transfer_ns += spent
            self.own_bytes += size
        elif kind == "sync":
            self.own_sync_ns += spent


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


def block_tree(session: Session) -> BlockNode:
    """The root (path ``()``); work launched outside any block is its own. Kept and counted work together."""
    tree = _Tree()
    record: Any
    for record in session.records:
        if type(record) is BlockRecord:
            node = tree.node(record.path)
            node.passes += 1
            node.wall_ns += duration_ns(record)
            continue
        kind = OPERATIONS.get(type(record))
        if kind is not None and kind != "allocation":
            size = getattr(record, "bytes", 0) or 0
            owner = getattr(record, "owner", None)
            tree.node(record.path).add(kind, record.name, 1, duration_ns(record), size, owner)
    for row in session.aggregates:
        if row.kind not in ("block", "allocation") and row.count:
            tree.node(row.path).add(row.kind, row.name, row.count, row.total_ns, row.bytes, row.owner)
    tree.add_up()
    return tree.root
