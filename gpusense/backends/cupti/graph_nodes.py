"""Notes the nodes of CUDA graphs while one is captured and instantiated.

That needs CUPTI's one subscription of the process, which other profilers want, too: it is held only from
:meth:`NodeLog.begin` to :meth:`NodeLog.end`, and where another holds it nothing is noted.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._capi import cupti
from ..._capi.machine import executable, mailbox_code
from ..._capi.machine import graph_code as code
from ..._records.records import Unavailable
from ..._runtime.errors import GpuSenseError

ROOM = 65_536  # nodes of one capture, clones included
_MAP_NORESERVE = 0x4000
#: A node is made, or cloned from another.
EVENTS = (
    (cupti.DOMAIN_RESOURCE, cupti.RESOURCE_GRAPHNODE_CREATED),
    (cupti.DOMAIN_RESOURCE, cupti.RESOURCE_GRAPHNODE_CLONED),
)


class Node(NamedTuple):
    """One node of a CUDA graph, as it was made."""

    node_id: int  # 0: CUPTI does not tell it
    original_id: int  # 0: it is no clone
    thread: int  # as threading.get_ident()


class NodeLog:
    """One table a process, mapped at the first use and never unmapped. Not for two captures at a time."""

    _words: Any = None
    _control = 0
    _function = 0
    _distance = 0

    def __init__(self, activity: Any) -> None:
        self._activity = activity
        self._unsubscribe: Callable[[], Any] | None = None

    def begin(self) -> Unavailable | None:
        """From now on nodes are noted; or why not."""
        get_id = self._activity.graph_node_id_function()
        if not get_id:
            return Unavailable("cupti", "this CUPTI does not tell the ids of graph nodes")
        if not self._function:
            absent = self._prepare()
            if absent is not None:
                return absent
        self._words[code.COUNT // 8] = 0
        self._words[code.GET_ID // 8] = get_id
        try:
            self._unsubscribe = self._activity.subscribe(self._function, self._control, EVENTS, "graph owners")
        except GpuSenseError as error:
            return Unavailable("cupti", str(error))
        return None

    @classmethod
    def _prepare(cls) -> Unavailable | None:
        native = executable.native(code.CODES)
        if native is None:
            return Unavailable("cupti", "owners of graph nodes need machine code; there is none for this system")
        numbers = code.CONTROL_BYTES // 8 + ROOM * code.ROW_NUMBERS
        try:
            function = executable.map_first(native.machine).address
            cls._distance = _distance_of_thread_ids()
            cls._control = executable.map_memory(numbers * 8, _MAP_NORESERVE)
        except OSError as error:
            return Unavailable("cupti", f"the owners of graph nodes cannot be recorded: {error}")
        cls._words = (ctypes.c_uint64 * numbers).from_address(cls._control)
        cls._words[code.ROOM // 8] = ROOM
        cls._words[code.TABLE // 8] = cls._control + code.CONTROL_BYTES
        cls._function = function
        return None

    def count(self) -> int:
        """How many nodes were noted so far."""
        return int(self._words[code.COUNT // 8])

    def end(self) -> tuple[list[Node], int]:
        """The nodes in the order of their making, and how many did not fit."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is None:
            return [], 0
        unsubscribe()
        count = self.count()
        first = code.CONTROL_BYTES // 8
        numbers = self._words[first : first + min(count, ROOM) * code.ROW_NUMBERS]
        rows = zip(numbers[0::4], numbers[1::4], numbers[2::4], strict=True)
        nodes = [Node(node, original, thread + self._distance) for node, original, thread in rows]
        return nodes, max(0, count - ROOM)


def _distance_of_thread_ids() -> int:
    native = executable.native(mailbox_code.CODES)
    assert native is not None  # as for the code of this module
    return executable.thread_distance(executable.map_first(native.machine).address + native.entries["thread"])
