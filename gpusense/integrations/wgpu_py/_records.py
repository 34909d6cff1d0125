"""Records out of what the wrappers saw: names, times, attributes."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from ..._capi.wgpu_usage import usage_text
from ..._records import GpuKernel, GpuMemoryTransfer, GpuSync, Record
from ..._wgpu_clock import GpuClock
from ._device import DeviceTimer, Pass, Timed

#: How a copy's begin and end may contradict the host's times before it is taken for a wrong clock or unit.
SLACK_NS = 1_000_000

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


def transfers(staged: Iterable[Staged]) -> list[Record]:
    """Host-side records: the time of the call, which for a write is the staging copy and not the bus."""
    made: list[Record] = []
    for item in staged:
        path, block_id = _place(item.block)
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


def kernels(timer: DeviceTimer, chunk: Timed, now_ns: int) -> Outcome:
    """Records of passes and GPU-side copies, and how many were refused by reason."""
    clock = timer.clock.clock
    if clock is None:
        return [], {timer.clock.reason: len(chunk.passes)}
    _teach(clock, chunk)
    clock.anchor(now_ns)
    times = clock.times(chunk.begins, chunk.ends)
    if not times:
        return [], {"no pass tells where this device's clock stands": len(chunk.passes)}
    common = {"adapter": timer.info.get("device"), **clock.quality(now_ns)}
    latest = chunk.seen_ns + SLACK_NS
    records: list[Record] = []
    refused: dict[str, int] = {}
    attributes: dict[tuple[Any, ...], dict[str, Any]] = {}
    for item, (start, duration) in zip(chunk.passes, times, strict=True):
        if duration < 0:
            reason = "the pass ends before it begins"
        elif duration > latest - item.submitted_ns:
            reason = "the pass is longer than the time between its submission and its end"
        else:
            records.append(_record(item, start, start + duration, common, attributes))
            continue
        refused[reason] = refused.get(reason, 0) + 1
    records.sort(key=_start)  # queries are lent out in a ring, so a chunk may begin in the middle of time
    return records, refused


_start = attrgetter("start_ns")


def _teach(clock: GpuClock, chunk: Timed) -> None:
    """A few passes spread over the chunk and its last one: each narrows the clock's bounds, all of them would cost."""
    count = len(chunk.passes)
    seen = chunk.seen_ns
    for index in {*range(0, count, max(1, count // 8)), count - 1}:
        begin, end, submitted = chunk.begins[index], chunk.ends[index], chunk.passes[index].submitted_ns
        if 0 <= clock.duration_ns(begin, end) <= seen - submitted + SLACK_NS:
            clock.observe(begin, end, submitted, seen)


#: A kernel's row with everything that is the same for all passes, and where the rest goes.
_KERNEL = list(GpuKernel("", 0, 0, backend="wgpu"))
_AT = {name: index for index, name in enumerate(GpuKernel._fields)}
_NAME, _START, _END, _GRID, _LABEL = (_AT[name] for name in ("name", "start_ns", "end_ns", "grid", "label"))
_PATH, _BLOCK, _ATTRIBUTES = (_AT[name] for name in ("path", "block_id", "attributes"))


def _record(
    item: Pass, start: int, end: int, common: dict[str, Any], cache: dict[tuple[Any, ...], dict[str, Any]]
) -> Record:
    if item.bytes is not None:
        return _copy(item, start, end, {"operation": item.kind, **common})
    name, source = (item.name, item.label_source) if item.name else _fallback(item)
    dispatches = item.dispatches
    key = (item.kind, source, dispatches)
    attributes = cache.get(key)
    if attributes is None:
        attributes = cache[key] = {"operation": item.kind, "label_source": source, **common}
        if dispatches:
            attributes["dispatches"] = dispatches
    row = _KERNEL.copy()
    row[_NAME], row[_START], row[_END], row[_ATTRIBUTES] = name, start, end, attributes
    if dispatches == 1 and item.arguments is not None:
        row[_GRID] = _grid(*item.arguments)
    if source != "line":
        row[_LABEL] = name
    if item.block is not None:
        row[_PATH], row[_BLOCK] = _place(item.block)
    return GpuKernel._make(row)


def _place(block: Any) -> tuple[tuple[str, ...], int | None]:
    """Path and id of a block; neither for one that sampling left out."""
    if block is None or not getattr(block, "_sampled", True):
        return (), None
    return block.path, block.block_id


def _copy(item: Pass, start: int, end: int, attributes: dict[str, Any]) -> Record:
    path, block_id = _place(item.block)
    return GpuMemoryTransfer(
        f"{item.kind}({item.name})" if item.name else item.kind,
        "on_device",
        item.bytes or 0,
        start,
        end,
        backend="wgpu",
        label=item.name or None,
        timing="device",
        path=path,
        block_id=block_id,
        attributes=attributes,
    )


def _grid(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int]:
    """Workgroup counts as the program gave them."""
    if not kwargs:
        x, y, z = (*args, 1, 1)[:3]
        return int(x), int(y), int(z)
    axes = [args[at] if len(args) > at else kwargs.get(f"workgroup_count_{axis}", 1) for at, axis in enumerate("xyz")]
    return int(axes[0]), int(axes[1]), int(axes[2])


def _fallback(item: Pass) -> tuple[str, str]:
    """A name for a pass without one, and where it comes from: the line that began the pass."""
    if item.where is None:
        return item.kind, "kind"
    file, line = item.where
    return f"{item.kind}@{file.replace(chr(92), '/').rpartition('/')[2]}:{line}", "line"
