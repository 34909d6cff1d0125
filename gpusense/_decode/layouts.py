"""Where the fields of CUPTI's activity records lie: one offset table a record kind, for CUDA 11.7 and later. Pure data.

Only members that are read are listed. Records are packed, aligned to 8, and lie back to back; within a kind a field
never moves, new ones are appended. So the tables hold for every release, and the *stride* that the loaded library
uses, measured at start, says which late fields exist. ``sizes`` names the release that first used each stride.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from .._records.records import Direction

MEMCPY = 1
MEMSET = 2
KERNEL = 3  # never enabled: CUPTI serialises every kernel of the process to time it
DRIVER = 4
RUNTIME = 5
DEVICE = 8
CONTEXT = 9
CONCURRENT_KERNEL = 10
OVERHEAD = 17
MEMCPY2 = 22  # between two devices
UNIFIED_MEMORY_COUNTER = 25
SYNCHRONIZATION = 38
EXTERNAL_CORRELATION = 39
MEMORY2 = 49

#: Disabling one of them may end the others without a word: in CUDA 13.0 memsets end with copies.
TIED_KINDS = frozenset({MEMCPY, MEMSET, MEMCPY2})
DEFAULT_KINDS = (CONCURRENT_KERNEL, MEMCPY, MEMCPY2, MEMSET)

#: Their records are in a buffer, as of CUDA 13, when the call returns, so that its correlation id can be read then.
WRITTEN_BY_CALL = frozenset((*DEFAULT_KINDS, KERNEL, SYNCHRONIZATION, MEMORY2, DRIVER))

#: Kinds that become records of a session; the others only help to interpret them.
WORK_KINDS = frozenset({KERNEL, CONCURRENT_KERNEL, MEMCPY, MEMCPY2, MEMSET, SYNCHRONIZATION, MEMORY2})

#: What more can be asked for, by the name of the setting. Of the driver's functions, those that launch.
_MORE_KINDS = {
    "sync": SYNCHRONIZATION,
    "allocation": MEMORY2,
    "unified_memory": UNIFIED_MEMORY_COUNTER,
    "launch": DRIVER,
}


def chosen(names: Iterable[str]) -> frozenset[int]:
    """The kinds that are always recorded, and those that ``names`` add."""
    return frozenset((*DEFAULT_KINDS, *(_MORE_KINDS[name] for name in names if name in _MORE_KINDS)))


#: In a context, stream, device or event number: the field does not apply to this record.
NOT_APPLICABLE = 0xFFFFFFFF

COPY_UNKNOWN = 0
COPY_DIRECTIONS: dict[int, Direction] = {
    1: "cpu_to_gpu",
    2: "gpu_to_cpu",
    3: "cpu_to_gpu",  # to an array
    4: "gpu_to_cpu",  # from an array
    5: "on_device",  # array to array
    6: "on_device",  # array to linear memory
    7: "on_device",  # linear memory to array
    8: "on_device",
    9: "cpu_to_cpu",
    10: "gpu_to_gpu",
}
COPY_PEER = 10

MEMORY_KINDS = {
    1: "pageable",
    2: "pinned",
    3: "device",
    4: "array",
    5: "managed",
    6: "device_static",
    7: "managed_static",
}
HOST_MEMORY = frozenset({1, 2})

EVENT_SYNCHRONIZE = 1
STREAM_WAIT_EVENT = 2  # one stream waits, the host does not
STREAM_SYNCHRONIZE = 3
CONTEXT_SYNCHRONIZE = 4
SYNC_TYPES = {
    EVENT_SYNCHRONIZE: "event_synchronize",
    STREAM_WAIT_EVENT: "stream_wait_event",
    STREAM_SYNCHRONIZE: "stream_synchronize",
    CONTEXT_SYNCHRONIZE: "context_synchronize",
}

ALLOCATION = 1
RELEASE = 2

UNIFIED_MEMORY_FAULTS = frozenset({3, 4})  # counters whose value is no number of bytes
UNIFIED_MEMORY_COUNTERS = {
    1: "bytes_cpu_to_gpu",
    2: "bytes_gpu_to_cpu",
    3: "cpu_page_faults",
    4: "gpu_page_faults",
    5: "thrashing",
    6: "throttling",
    7: "remote_map",
    8: "bytes_gpu_to_gpu",
}

EXTERNAL_CUSTOM2 = 5  # the external-correlation kind that no framework in reach uses; torch has 3 and 4


#: Functions of the driver that launch work, by the id in their records.
LAUNCH_CALLS = {
    307: "cuLaunchKernel",
    442: "cuLaunchKernel_ptsz",
    514: "cuGraphLaunch",
    515: "cuGraphLaunch_ptsz",
    652: "cuLaunchKernelEx",
    653: "cuLaunchKernelEx_ptsz",
}


class Field(NamedTuple):
    name: str
    offset: int
    code: str  # as in the struct module
    since: str = ""  # first CUDA release, where that is later than 11.7

    @property
    def end(self) -> int:
        return self.offset + struct.calcsize("<" + self.code)


class Layout(NamedTuple):
    name: str
    sizes: tuple[tuple[str, int], ...]  # (first CUDA release, stride), oldest first
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)


def _fields(*rows: tuple[str, int, str] | tuple[str, int, str, str]) -> tuple[Field, ...]:
    return (Field("kind", 0, "I"), *(Field(*row) for row in rows))


KERNEL_LAYOUT = Layout(
    "kernel",
    (("11.7", 176), ("11.8", 200), ("12.0", 208), ("13.0", 216), ("13.1", 224), ("13.3", 232), ("13.4", 248)),
    _fields(
        ("registers", 6, "H"),
        ("start", 16, "Q"),
        ("end", 24, "Q"),
        ("device", 40, "I"),
        ("context", 44, "I"),
        ("stream", 48, "I"),
        ("grid_x", 52, "i"),
        ("grid_y", 56, "i"),
        ("grid_z", 60, "i"),
        ("block_x", 64, "i"),
        ("block_y", 68, "i"),
        ("block_z", 72, "i"),
        ("static_shared", 76, "i"),
        ("dynamic_shared", 80, "i"),
        ("local_per_thread", 84, "I"),
        ("correlation", 92, "I"),
        ("name", 104, "Q"),
        ("queued", 120, "Q"),  # 0 unless latency timestamps are on
        ("submitted", 128, "Q"),
        ("graph_node", 144, "Q"),
        ("graph", 156, "I"),
        ("cluster_x", 176, "I", "11.8"),
        ("cluster_y", 180, "I", "11.8"),
        ("cluster_z", 184, "I", "11.8"),
        ("priority", 216, "i", "13.1"),
        ("source_graph", 232, "I", "13.4"),
        ("source_graph_node", 240, "Q", "13.4"),
    ),
)

MEMCPY_LAYOUT = Layout(
    "memcpy",
    (("11.7", 88), ("12.8", 96), ("13.4", 112)),
    _fields(
        ("copy_kind", 4, "B"),
        ("source_kind", 5, "B"),
        ("destination_kind", 6, "B"),
        ("bytes", 8, "Q"),
        ("start", 16, "Q"),
        ("end", 24, "Q"),
        ("device", 32, "I"),
        ("context", 36, "I"),
        ("stream", 40, "I"),
        ("correlation", 44, "I"),
        ("graph_node", 64, "Q"),
        ("graph", 72, "I"),
        ("copy_count", 88, "Q", "12.8"),
        ("source_graph", 96, "I", "13.4"),
        ("source_graph_node", 104, "Q", "13.4"),
    ),
)

MEMCPY2_LAYOUT = Layout(
    "memcpy2",
    (("11.7", 96),),
    _fields(
        ("copy_kind", 4, "B"),
        ("source_kind", 5, "B"),
        ("destination_kind", 6, "B"),
        ("bytes", 8, "Q"),
        ("start", 16, "Q"),
        ("end", 24, "Q"),
        ("device", 32, "I"),
        ("context", 36, "I"),
        ("stream", 40, "I"),
        ("source_device", 44, "I"),
        ("destination_device", 52, "I"),
        ("correlation", 60, "I"),
        ("graph_node", 72, "Q"),
        ("graph", 80, "I"),
    ),
)

MEMSET_LAYOUT = Layout(
    "memset",
    (("11.7", 88), ("13.4", 104)),
    _fields(
        ("value", 4, "I"),
        ("bytes", 8, "Q"),
        ("start", 16, "Q"),
        ("end", 24, "Q"),
        ("device", 32, "I"),
        ("context", 36, "I"),
        ("stream", 40, "I"),
        ("correlation", 44, "I"),
        ("memory_kind", 50, "H"),
        ("graph_node", 64, "Q"),
        ("graph", 72, "I"),
        ("source_graph", 88, "I", "13.4"),
        ("source_graph_node", 96, "Q", "13.4"),
    ),
)

SYNCHRONIZATION_LAYOUT = Layout(
    "synchronization",
    (("11.7", 40), ("12.8", 56)),
    _fields(
        ("type", 4, "I"),
        ("start", 8, "Q"),
        ("end", 16, "Q"),
        ("correlation", 24, "I"),
        ("context", 28, "I"),
        ("stream", 32, "I"),
        ("event", 36, "I"),
        ("event_sync", 40, "Q", "12.8"),
        ("result", 48, "I", "12.8"),
    ),
)

MEMORY2_LAYOUT = Layout(
    "memory2",
    (("11.7", 120), ("12.6", 128)),
    _fields(
        ("operation", 4, "I"),
        ("memory_kind", 8, "I"),
        ("correlation", 12, "I"),
        ("address", 16, "Q"),
        ("bytes", 24, "Q"),
        ("time", 32, "Q"),
        ("process", 48, "I"),
        ("device", 52, "I"),
        ("context", 56, "I"),
        ("stream", 60, "I"),
        ("name", 64, "Q"),
        ("is_async", 72, "I"),
        ("pool_type", 80, "I"),
        ("pool_address", 88, "Q"),
        ("pool_used", 112, "Q"),
        ("source", 120, "Q", "12.6"),
    ),
)

EXTERNAL_CORRELATION_LAYOUT = Layout(
    "external_correlation",
    (("11.7", 24),),
    _fields(("external_kind", 4, "I"), ("external_id", 8, "Q"), ("correlation", 16, "I")),
)

API_LAYOUT = Layout(
    "api",
    (("11.7", 40),),
    _fields(
        ("cbid", 4, "I"),
        ("start", 8, "Q"),
        ("end", 16, "Q"),
        ("process", 24, "I"),
        ("thread", 28, "I"),
        ("correlation", 32, "I"),
        ("result", 36, "I"),
    ),
)

OVERHEAD_LAYOUT = Layout(
    "overhead",
    (("11.7", 40), ("12.3", 48), ("12.4", 56)),
    _fields(
        ("overhead_kind", 4, "I"),
        ("object_kind", 8, "I"),
        ("process", 12, "I"),
        ("thread", 16, "I"),  # where object_kind is a thread
        ("start", 24, "Q"),
        ("end", 32, "Q"),
        ("correlation", 40, "I", "12.3"),
    ),
)

UNIFIED_MEMORY_COUNTER_LAYOUT = Layout(
    "unified_memory_counter",
    (("11.7", 64), ("12.8", 104)),
    _fields(
        ("counter", 4, "I"),
        ("value", 8, "Q"),
        ("start", 16, "Q"),
        ("end", 24, "Q"),  # 0 for counters that are instants
        ("address", 32, "Q"),
        ("source_device", 40, "I"),
        ("destination_device", 44, "I"),
        ("stream", 48, "I"),
        ("process", 52, "I"),
        ("flags", 56, "I"),
    ),
)

DEVICE_LAYOUT = Layout(
    "device",
    (("11.7", 176), ("12.2", 184), ("13.2", 192)),
    _fields(
        ("flags", 4, "I"),
        ("memory_bandwidth_kb_per_s", 8, "Q"),
        ("memory_bytes", 16, "Q"),
        ("core_clock_khz", 36, "I"),
        ("copy_engines", 40, "I"),
        ("sm_count", 44, "I"),
        ("warps_per_sm", 52, "I"),
        ("blocks_per_sm", 56, "I"),
        ("shared_per_sm", 60, "I"),
        ("registers_per_sm", 64, "I"),
        ("capability_major", 104, "I"),
        ("capability_minor", 108, "I"),
        ("id", 112, "I"),
        ("uuid", 120, "16s"),
        ("name", 136, "Q"),
        ("is_visible", 144, "B"),
        ("is_mig", 145, "B"),
        ("gpu_instance", 152, "I"),
        ("compute_instance", 156, "I"),
        ("mig_uuid", 160, "16s"),
    ),
)

CONTEXT_LAYOUT = Layout(
    "context",
    (("11.7", 16), ("12.4", 24), ("12.5", 32), ("13.1", 40)),
    _fields(
        ("context", 4, "I"),
        ("device", 8, "I"),
        ("null_stream", 14, "H"),
        ("parent", 16, "I", "12.4"),
        ("is_green", 20, "B", "12.4"),
        ("process", 32, "Q", "13.1"),
    ),
)

LAYOUTS: dict[int, Layout] = {
    MEMCPY: MEMCPY_LAYOUT,
    MEMSET: MEMSET_LAYOUT,
    KERNEL: KERNEL_LAYOUT,
    DRIVER: API_LAYOUT,
    RUNTIME: API_LAYOUT,
    DEVICE: DEVICE_LAYOUT,
    CONTEXT: CONTEXT_LAYOUT,
    CONCURRENT_KERNEL: KERNEL_LAYOUT,
    OVERHEAD: OVERHEAD_LAYOUT,
    MEMCPY2: MEMCPY2_LAYOUT,
    UNIFIED_MEMORY_COUNTER: UNIFIED_MEMORY_COUNTER_LAYOUT,
    SYNCHRONIZATION: SYNCHRONIZATION_LAYOUT,
    EXTERNAL_CORRELATION: EXTERNAL_CORRELATION_LAYOUT,
    MEMORY2: MEMORY2_LAYOUT,
}


class Unpacker(NamedTuple):
    """``struct`` for the fields that a record of one stride has, and their names in that order."""

    struct: struct.Struct
    names: tuple[str, ...]


@cache
def unpacker(kind: int, stride: int) -> Unpacker:
    """What reads one record of ``kind`` whole; late fields are left out where ``stride`` is too short for them."""
    present = [field for field in LAYOUTS[kind].fields if field.end <= stride]
    text, at = "<", 0
    for field in present:
        text += f"{field.offset - at}x{field.code}"
        at = field.end
    return Unpacker(struct.Struct(text), tuple(field.name for field in present))


def correlation_places(strides: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Of each kind its size, and where in it the correlation id of the call that wrote it is; 0 where none is."""
    return {
        kind: (size, next(field.offset for field in LAYOUTS[kind].fields if field.name == "correlation"))
        if kind in WRITTEN_BY_CALL
        else (size, 0)
        for kind, size in strides.items()
    }


def minimum_stride(kind: int) -> int:
    """The shortest record of ``kind`` any supported release has; 8 for a kind that is only stepped over."""
    layout = LAYOUTS.get(kind)
    return layout.sizes[0][1] if layout else 8
