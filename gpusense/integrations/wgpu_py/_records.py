"""Records out of what the wrappers saw: names, times, attributes."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..._records import GpuKernel, GpuMemoryTransfer, GpuSync, Record
from ._device import DeviceTimer, Pass

#: Bits of WGPUBufferUsage and WGPUTextureUsage, under the names of the WebGPU specification.
BUFFER_USAGE = (
    "MAP_READ",
    "MAP_WRITE",
    "COPY_SRC",
    "COPY_DST",
    "INDEX",
    "VERTEX",
    "UNIFORM",
    "STORAGE",
    "INDIRECT",
    "QUERY_RESOLVE",
)
TEXTURE_USAGE = ("COPY_SRC", "COPY_DST", "TEXTURE_BINDING", "STORAGE_BINDING", "RENDER_ATTACHMENT")

#: How a copy's begin and end may contradict the host's times before it is taken for a wrong clock or unit.
SLACK_NS = 1_000_000

Timed = tuple[Pass, int, int, int]
Outcome = tuple[list[Record], dict[str, int]]


class Staged(NamedTuple):
    """One host-side transfer or wait, before it becomes a record."""

    method: str
    direction: Any  # None: a wait
    bytes: int
    start_ns: int
    end_ns: int
    label: str = ""
    usage: int = 0
    texture: bool = False
    wait_ns: int | None = None
    block: Any = None


def usage_text(usage: int, texture: bool = False) -> str | None:
    """``COPY_DST|STORAGE``; None for no bits."""
    key = (usage, texture)
    if key not in _texts:
        names = TEXTURE_USAGE if texture else BUFFER_USAGE
        _texts[key] = "|".join(name for bit, name in enumerate(names) if usage & (1 << bit)) or None
    return _texts[key]


_texts: dict[tuple[int, bool], str | None] = {}


def transfers(staged: Iterable[Staged]) -> list[Record]:
    """Host-side records: the time of the call, which for a write is the staging copy and not the bus."""
    made: list[Record] = []
    for item in staged:
        block = item.block
        path, block_id = (block.path, block.block_id) if block is not None else ((), None)
        name = f"{item.method}({item.label})" if item.label else item.method
        if item.direction is None:
            made.append(GpuSync(name, item.start_ns, item.end_ns, backend="wgpu", path=path, block_id=block_id))
            continue
        made.append(
            GpuMemoryTransfer(
                name,
                item.direction,
                item.bytes,
                item.start_ns,
                item.end_ns,
                backend="wgpu",
                label=item.label or None,
                usage=usage_text(item.usage, item.texture) if item.usage else None,
                wait_ns=item.wait_ns,
                timing="host",
                path=path,
                block_id=block_id,
            )
        )
    return made


def kernels(timer: DeviceTimer, timed: list[Timed], now_ns: int) -> Outcome:
    """Records of passes and GPU-side copies, and how many were refused by reason."""
    clock = timer.clock.clock
    if clock is None:
        return [], {timer.clock.reason: len(timed)}
    _teach(clock, timed)
    clock.anchor(now_ns)
    quality = clock.quality(now_ns)
    records: list[Record] = []
    refused: dict[str, int] = {}
    attributes: dict[tuple[Any, ...], dict[str, Any]] = {}
    for item, begin, end, seen_ns in timed:
        duration = clock.duration_ns(begin, end)
        if duration < 0:
            reason = "the pass ends before it begins"
        elif duration > seen_ns - item.submitted_ns + SLACK_NS:
            reason = "the pass is longer than the time between its submission and its end"
        else:
            start = clock.wall_ns(begin)
            assert start is not None
            records.append(_record(item, start, start + duration, quality, attributes, timer))
            continue
        refused[reason] = refused.get(reason, 0) + 1
    return records, refused


def _teach(clock: Any, timed: list[Timed]) -> None:
    """A few passes spread over the batch: each narrows the clock's bounds, all of them would only cost time."""
    step = max(1, len(timed) // 8)
    for item, begin, end, seen_ns in timed[::step]:
        if 0 <= clock.duration_ns(begin, end) <= seen_ns - item.submitted_ns + SLACK_NS:
            clock.observe(begin, end, item.submitted_ns, seen_ns)
    # The last to end is the one that bounds from above.
    item, begin, end, seen_ns = timed[-1]
    if 0 <= clock.duration_ns(begin, end) <= seen_ns - item.submitted_ns + SLACK_NS:
        clock.observe(begin, end, item.submitted_ns, seen_ns)


def _record(
    item: Pass,
    start: int,
    end: int,
    quality: dict[str, Any],
    cache: dict[tuple[Any, ...], dict[str, Any]],
    timer: DeviceTimer,
) -> Record:
    name, source = _name(item)
    block = item.block
    path, block_id = (block.path, block.block_id) if block is not None else ((), None)
    key = (item.kind, source, item.dispatches)
    attributes = cache.get(key)
    if attributes is None:
        attributes = {"operation": item.kind, "adapter": timer.info.get("device"), **quality}
        if item.bytes is None:
            attributes["label_source"] = source
        if item.dispatches:
            attributes["dispatches"] = item.dispatches
        cache[key] = attributes
    if item.bytes is not None:
        return GpuMemoryTransfer(
            f"{item.kind}({item.name})" if item.name else item.kind,
            "on_device",
            item.bytes,
            start,
            end,
            backend="wgpu",
            label=item.name or None,
            timing="device",
            path=path,
            block_id=block_id,
            attributes=attributes,
        )
    return GpuKernel(
        name,
        start,
        end,
        backend="wgpu",
        grid=_grid(item),
        label=name if source != "line" else None,
        path=path,
        block_id=block_id,
        attributes=attributes,
    )


def _grid(item: Pass) -> tuple[int, int, int] | None:
    """Workgroup counts of the only dispatch of a pass."""
    if item.dispatches != 1 or item.arguments is None:
        return None
    args, kwargs = item.arguments
    axes = [
        args[index] if len(args) > index else kwargs.get(f"workgroup_count_{axis}", 1)
        for index, axis in enumerate("xyz")
    ]
    return int(axes[0]), int(axes[1]), int(axes[2])


def _name(item: Pass) -> tuple[str, str]:
    """The best name and where it comes from: pass, encoder, pipeline, entry point, or the line that began the pass."""
    if item.name:
        return item.name, item.label_source
    pipeline = item.pipeline
    if pipeline is not None:
        label = pipeline.label
        if label:
            return label, "pipeline"
        entry = pipeline.__dict__.get("_gpusense_entry")
        if entry:
            return entry, "entry_point"
    if item.where is None:
        return item.kind, "kind"
    file, line = item.where
    return f"{item.kind}@{file.replace(chr(92), '/').rpartition('/')[2]}:{line}", "line"
