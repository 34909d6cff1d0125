"""One CUPTI activity record to one of our record types, with every field it has. Pure; never ctypes.

Kernels to keep are *rows* between the buffer they come in and their block: all of a record that has to be read at once.
A record is made when everything about it is known: making one again for each thing that is learned costs more than all
else that is done with it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from .._records.records import Direction, GpuAllocation, GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync, Path
from . import layouts
from .batch import Batch
from .correlation_ids import Ids
from .names import Described, NameOf

Activity = GpuKernel | GpuMemoryTransfer | GpuMemset | GpuSync | GpuAllocation

Raw = tuple[Any, ...]  # every field of a record, in the order of its layout
_Raw = dict[str, Any]

#: The fields of a kernel, its name, its correlation id.
Row = tuple[Raw, Described, int]

AT_ONCE = 128  # rows, without a pause
MAX_LAUNCHES = 4_096  # whose occupancy is remembered

_make: Any = tuple.__new__  # of a record out of fields that are known to be complete

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
_PEER = DIRECTIONS.index("gpu_to_gpu")

_KERNELS = frozenset({layouts.CONCURRENT_KERNEL, layouts.KERNEL})
_FIELDS = [field.name for field in layouts.KERNEL_LAYOUT.fields]
#: Where these are among the fields of a kernel.
REGISTERS, START, END, DEVICE, CORRELATION, NAME = map(
    _FIELDS.index, ("registers", "start", "end", "device", "correlation", "name")
)
BLOCK_AND_SHARED = slice(_FIELDS.index("block_x"), _FIELDS.index("dynamic_shared") + 1)

_LATE_KERNEL_FIELDS = tuple(field.name for field in layouts.KERNEL_LAYOUT.fields if field.since)


class Home(NamedTuple):
    """The block that a record belongs to."""

    path: Path = ()
    block_id: int | None = None
    ambiguous: tuple[int, ...] = ()


NOWHERE = Home()


def record(buffer: memoryview, batch: Batch, i: int, names: NameOf, **fields: Any) -> Activity:
    """Record ``i`` of ``batch`` with every field it has; ``fields`` are set over it (path, correlation_id, …).

    Raises ``ValueError`` for kinds that do not become records of a session.
    """
    kind, stride, offset = batch.kind, batch.stride, batch.offsets[i]
    if kind in _KERNELS:
        raw = layouts.unpacker(kind, stride).struct.unpack_from(buffer, offset)
        item = kernel(raw, names(raw[NAME]), raw[CORRELATION] or None)
        return item._replace(**fields) if fields else item
    build = _BUILDERS.get(kind)
    if build is None:
        raise ValueError(f"records of kind {kind} are helpers, not work")
    return build(unpack(buffer, kind, stride, offset), names, fields)


def unpack(buffer: memoryview, kind: int, stride: int, offset: int) -> _Raw:
    """Every field of one record by our name for it, unchanged; late fields only where ``stride`` has them."""
    reader = layouts.unpacker(kind, stride)
    return dict(zip(reader.names, reader.struct.unpack_from(buffer, offset), strict=True))


def _number(value: int | None) -> int | None:
    return None if value == layouts.NOT_APPLICABLE else value


def _attributes(raw: _Raw, **more: Any) -> dict[str, Any] | None:
    """What few records have and no field stands for; zeros mean that they do not have it."""
    more["source_graph"] = raw.get("source_graph")
    more["source_graph_node"] = raw.get("source_graph_node")
    return {name: value for name, value in more.items() if value} or None


def kernel(
    raw: Raw,
    text: Described,
    correlation_id: int | None,
    occupancy: float | None = None,
    is_slow: bool = False,
    home: Home = NOWHERE,
) -> GpuKernel:
    """The kernel with these fields, as read from its record, and this name."""
    # Made by position and at once, unlike the other kinds: this is the record a session keeps most of.
    (
        _kind, registers, start, end, device, context, stream, grid_x, grid_y, grid_z, block_x, block_y, block_z,
        static_shared, dynamic_shared, local_per_thread, _correlation, _pointer, queued, submitted, graph_node, graph,
        *late,
    ) = raw  # fmt: skip
    attributes = None
    if queued or submitted:
        attributes = _kernel_attributes(queued, submitted, late)
    elif late and (known := _late_attributes(*late)):
        attributes = known.copy()
    name, full_name, raw_name = text
    fields = (
        name, start, end, device, "cuda", context, stream, (grid_x, grid_y, grid_z), (block_x, block_y, block_z),
        registers, static_shared, dynamic_shared, local_per_thread, correlation_id, graph or None, graph_node or None,
        full_name, raw_name, None, None, occupancy, is_slow, *home, None, attributes,
    )  # fmt: skip
    return _make(GpuKernel, fields)  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def _late_attributes(*late: int) -> dict[str, Any] | None:
    return _kernel_attributes(0, 0, late)


def _kernel_attributes(queued: int, submitted: int, late: Sequence[int]) -> dict[str, Any] | None:
    raw = dict(zip(_LATE_KERNEL_FIELDS, late, strict=False))
    cluster = (raw.pop("cluster_x", 0), raw.pop("cluster_y", 0), raw.pop("cluster_z", 0))
    return _attributes(
        raw,
        cluster=cluster if max(cluster) > 1 else None,
        priority=raw.get("priority"),
        queued_ns=queued,
        submitted_ns=submitted,
    )


def _direction(copy: int, source: int, destination: int, on_one_device: bool) -> Direction:
    """By the kinds of the copy and of both memories."""
    if copy == layouts.COPY_PEER and on_one_device:
        return "on_device"
    known = layouts.COPY_DIRECTIONS.get(copy)
    if known is not None:
        return known
    to_host = destination in layouts.HOST_MEMORY
    if source in layouts.HOST_MEMORY:
        return "cpu_to_cpu" if to_host else "cpu_to_gpu"
    return "gpu_to_cpu" if to_host else "on_device"


def _is_on_one_device(raw: _Raw) -> bool:
    return "source_device" in raw and raw["source_device"] == raw["destination_device"]


def directions(buffer: memoryview, batch: Batch) -> list[int]:
    """Of a batch of copies, each as its number in :data:`DIRECTIONS`."""
    (words,) = batch.shape

    def number(word: int, on_one_device: bool) -> int:
        return DIRECTIONS.index(_direction(word >> 32 & 0xFF, word >> 40 & 0xFF, word >> 48 & 0xFF, on_one_device))

    known = {word: number(word, False) for word in set(words)}
    found = [known[word] for word in words] if len(known) > 1 else [known[words[0]]] * batch.count
    if batch.kind == layouts.MEMCPY2:  # no column has both devices
        rows = zip(found, words, batch.offsets, strict=True)
        found = [
            number(word, _is_on_one_device(unpack(buffer, batch.kind, batch.stride, at))) if one == _PEER else one
            for one, word, at in rows
        ]
    return found


def _transfer(raw: _Raw, _names: NameOf, fields: _Raw) -> GpuMemoryTransfer:
    direction = _direction(raw["copy_kind"], raw["source_kind"], raw["destination_kind"], _is_on_one_device(raw))
    copies = raw.get("copy_count", 0)
    values = {
        "name": direction,
        "direction": direction,
        "bytes": raw["bytes"],
        "start_ns": raw["start"],
        "end_ns": raw["end"],
        "device": raw["device"],
        "context": raw["context"],
        "stream": raw["stream"],
        "correlation_id": raw["correlation"] or None,
        "source": layouts.MEMORY_KINDS.get(raw["source_kind"]),
        "destination": layouts.MEMORY_KINDS.get(raw["destination_kind"]),
        "source_device": _number(raw.get("source_device")),
        "destination_device": _number(raw.get("destination_device")),
        "graph_id": raw["graph"] or None,
        "graph_node_id": raw["graph_node"] or None,
        "attributes": _attributes(raw, copy_count=copies if copies > 1 else None),
    }
    values.update(fields)
    return GpuMemoryTransfer(**values)


def _memset(raw: _Raw, _names: NameOf, fields: _Raw) -> GpuMemset:
    values = {
        "name": "memset",
        "bytes": raw["bytes"],
        "start_ns": raw["start"],
        "end_ns": raw["end"],
        "device": raw["device"],
        "context": raw["context"],
        "stream": raw["stream"],
        "correlation_id": raw["correlation"] or None,
        "value": raw["value"],
        "memory": layouts.MEMORY_KINDS.get(raw["memory_kind"]),
        "graph_id": raw["graph"] or None,
        "graph_node_id": raw["graph_node"] or None,
        "attributes": _attributes(raw),
    }
    values.update(fields)
    return GpuMemset(**values)


def _sync(raw: _Raw, _names: NameOf, fields: _Raw) -> GpuSync:
    values = {
        "name": layouts.SYNC_TYPES.get(raw["type"], f"synchronize_{raw['type']}"),
        "start_ns": raw["start"],
        "end_ns": raw["end"],
        "context": _number(raw["context"]),
        "stream": _number(raw["stream"]),
        "correlation_id": raw["correlation"] or None,
        "event_id": _number(raw["event"]),
        "attributes": _attributes(raw, result=raw.get("result")),
    }
    values.update(fields)
    return GpuSync(**values)


def _allocation(raw: _Raw, names: NameOf, fields: _Raw) -> GpuAllocation:
    values = {
        "name": {layouts.ALLOCATION: "alloc", layouts.RELEASE: "free"}.get(raw["operation"], "unknown"),
        "bytes": raw["bytes"],
        "start_ns": raw["time"],
        "address": raw["address"],
        "device": _number(raw["device"]),
        "context": _number(raw["context"]),
        "stream": _number(raw["stream"]),
        "correlation_id": raw["correlation"] or None,
        "memory": layouts.MEMORY_KINDS.get(raw["memory_kind"]),
        "attributes": _attributes(
            raw,
            variable=names(raw["name"])[0] if raw["name"] else None,
            is_async=bool(raw["is_async"]),
            pool=raw["pool_address"] if raw["pool_type"] else None,
        ),
    }
    values.update(fields)
    return GpuAllocation(**values)


_BUILDERS: dict[int, Callable[[_Raw, NameOf, _Raw], Activity]] = {
    layouts.MEMCPY: _transfer,
    layouts.MEMCPY2: _transfer,
    layouts.MEMSET: _memset,
    layouts.SYNCHRONIZATION: _sync,
    layouts.MEMORY2: _allocation,
}


def kernel_rows(
    buffer: memoryview,
    batch: Batch,
    chosen: Sequence[int],
    ids: Ids,
    names: NameOf,
    pause: Callable[[], None] | None,
) -> dict[int, Row]:
    """Those at the indices ``chosen``, which ascend, of a batch of kernels; by index."""
    read = layouts.unpacker(batch.kind, batch.stride).struct.unpack_from
    corrs, base = ids.corrs, ids.base
    rows: dict[int, Row] = {}
    for at, (i, offset) in enumerate(zip(chosen, batch.offsets_at(chosen), strict=True), 1):
        raw = read(buffer, offset)
        rows[i] = raw, names(raw[NAME]), corrs[i] + base
        if pause is not None and not at % AT_ONCE:
            pause()
    return rows


class KernelMaker:
    """Makes records of rows. ``occupancy`` says a kernel's by its device, block, registers and shared memory."""

    __slots__ = ("_known", "occupancy")

    def __init__(self, occupancy: Callable[[GpuKernel], float | None] | None) -> None:
        self.occupancy = occupancy
        self._known: dict[tuple[Any, ...], float | None] = {}

    def make(self, rows: Iterable[Row], slow_ns: int, home: Home) -> list[GpuKernel]:
        """The records of kernels of one block; those of ``slow_ns`` and more are slow."""
        known, made = self._known, []
        for raw, name, correlation in rows:
            launch = raw[DEVICE], raw[REGISTERS], raw[BLOCK_AND_SHARED]
            share = known[launch] if launch in known else self._work_out(launch, raw, name)
            made.append(kernel(raw, name, correlation, share, raw[END] - raw[START] >= slow_ns, home))
        return made

    def _work_out(self, launch: tuple[Any, ...], raw: Raw, name: Described) -> float | None:
        found = self.occupancy(kernel(raw, name, None)) if self.occupancy is not None else None
        if len(self._known) >= MAX_LAUNCHES:
            self._known.clear()
        self._known[launch] = found
        return found
