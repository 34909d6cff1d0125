"""Which block captured a node of a CUDA graph, for the kernels that replay it.

While a capture is in progress nodes are noted in the order of their making, and how many there were by then at each
block's start and end. So launch order names the capturing block as it does for kernels, and each clone of a node
belongs to the block of its original. Nodes made before or beside a capture that was announced stay without owner.
"""

from typing import Any

from .._attribution.attributor import Attributor
from .._attribution.boundaries import CLOSE, OPEN, Boundary
from .._records.records import Path, Unavailable
from .._runtime import threads

_get_ident = threads.thread_id()


class GraphOwners:
    """Announce each capture with :meth:`capture_began`, and its end, after instantiation, with :meth:`capture_ended`.

    ``reason`` says why owners of the last capture are not known; ``overflowed`` counts nodes beyond the table.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._lock = threads.lock()
        self._depth = 0
        self._log: Any = None
        self._order = Attributor()
        self.reason = ""
        self.overflowed = 0

    def capture_began(self) -> bool:
        """On the capturing thread. False where nodes cannot be noted, with the ``reason``."""
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return self._log is not None
            capture = self._tracer.recorder.capture
            log = capture.node_log() if capture is not None else None
            absent = log.begin() if log is not None else Unavailable("cupti", "no GPU work is captured")
            if absent is not None:
                self.reason = absent.reason
                return False
            self.reason, self._log, self._order = "", log, Attributor()
            self._open(self._tracer.current_block())
            self._tracer.add_block_listener(self)
        return True

    def _open(self, block: Any) -> None:
        """The chain of blocks that are open already, outermost first."""
        if block is not None:
            self._open(block.outer)
            if block.end_ns is None:
                self.block_opened(block)

    def block_opened(self, block: Any) -> None:
        event = Boundary(OPEN, block.block_id, block.parent_id, _get_ident(), 0, 0, block.name)
        self._order.boundary(event, self._log.count())

    def block_closed(self, block: Any) -> None:
        self._order.boundary(Boundary(CLOSE, block.block_id, None, _get_ident(), 0, 0), self._log.count())

    def capture_ended(self) -> None:
        """On the capturing thread, when the graph is instantiated."""
        with self._lock:
            self._depth = max(0, self._depth - 1)
            if self._depth or self._log is None:
                return
            self._tracer.remove_block_listener(self)
            log, self._log = self._log, None
            nodes, overflowed = log.end()
            self.overflowed += overflowed
            recorder = self._tracer.recorder
            known, fresh = recorder.store.owners, dict[int, Path]()
            for index, node in enumerate(nodes):  # counted as they were made, also those without an id
                if not node.node_id:
                    continue
                if node.original_id:
                    owner = fresh.get(node.original_id) or known.get(node.original_id)
                else:
                    owner = self._owner(node.thread, index)
                if owner:
                    fresh[node.node_id] = owner
            recorder.own(fresh)

    def _owner(self, thread: int, index: int) -> Path:
        innermost, _ = self._order.resolve(thread, index)
        certain = self._order.common_ancestors(innermost) if innermost else ()
        return self._order.path(certain[0]) if certain else ()
