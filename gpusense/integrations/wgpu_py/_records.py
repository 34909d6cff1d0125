"""Records out of what the wrappers saw: names, times, attributes."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from ..._capi.wgpu_usage import usage_text
from ..._records import GpuKernel, GpuMemoryTransfer, GpuSync, Record
from ..._wgpu_clock import GpuClock
from ._device import DeviceTimer
from ._pass import Pass, Timed

TOO_LONG = "the pass is longer than the time between its submission and its end"
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


_make: Callable[[Any, Any], Any] = tuple.__new__  # of a record out of a row that is known to be complete


def _places(kind: Any, *names: str) -> list[int]:
    return [kind._fields.index(name) for name in names]


_T_BYTES, _T_START, _T_END, _T_WAIT = _places(GpuMemoryTransfer, "bytes", "start_ns", "end_ns", "wait_ns")


def transfers(staged: Iterable[tuple[Any, ...]]) -> list[Record]:
    """Host-side records of :class:`Staged`: the time of the call, which for a write is the staging copy and no bus."""
    made: list[Record] = []
    rows: dict[tuple[Any, ...], list[Any]] = {}  # of a program's transfers most are like one before
    for method, direction, size, start, end, label, usage, texture, wait, block in staged:
        if direction is None:
            path, block_id = _place(block)
            name = f"{method}({label})" if label else method
            made.append(GpuSync(name, start, end, backend="wgpu", path=path, block_id=block_id))
            continue
        key = (method, label, usage, texture, id(block))
        row = rows.get(key)
        if row is None:
            row = rows[key] = _transfer_row(method, direction, label, usage, texture, block)
        row[_T_BYTES], row[_T_START], row[_T_END], row[_T_WAIT] = size, start, end, wait
        made.append(_make(GpuMemoryTransfer, row))
    return made


def _transfer_row(method: str, direction: Any, label: str, usage: int, texture: bool, block: Any) -> list[Any]:
    path, block_id = _place(block)
    return list(
        GpuMemoryTransfer(
            f"{method}({label})" if label else method,
            direction,
            0,
            0,
            0,
            backend="wgpu",
            label=label or None,
            usage=usage_text(usage, texture) if usage else None,
            timing="host",
            path=path,
            block_id=block_id,
        )
    )


def kernels(timer: DeviceTimer, chunk: Timed, now_ns: int) -> Outcome:
    """Records of passes and GPU-side copies, and how many were refused by reason."""
    clock = timer.clock.clock
    if clock is None:
        return [], {timer.clock.reason: len(chunk.passes)}
    _teach(clock, chunk)
    clock.anchor(now_ns)
    starts, durations = clock.columns(chunk.begins, chunk.ends)
    if not starts:
        return [], {"no pass tells where this device's clock stands": len(chunk.passes)}
    common = {"adapter": timer.info.get("device"), **clock.quality(now_ns)}
    latest = chunk.seen_ns + SLACK_NS
    records: list[Record] = []
    refused: dict[str, int] = {}
    rows: dict[tuple[Any, ...], list[Any]] = {}  # of a program's passes most are like one before
    make, start_at, end_at = _make, _START, _END
    for item, start, duration in zip(chunk.passes, starts, durations, strict=True):
        if not 0 <= duration <= latest - item.submitted_ns:
            reason = "the pass ends before it begins" if duration < 0 else TOO_LONG
            refused[reason] = refused.get(reason, 0) + 1
        elif item.bytes is not None:
            records.append(_copy(item, start, start + duration, {"operation": item.kind, **common}))
        else:
            place = item.name or (id(item.code), item.at)  # the passes hold what has these ids
            key = (place, item.kind, item.label_source, item.dispatches, item.grid, id(item.block))
            row = rows.get(key)
            if row is None:
                row = rows[key] = _kernel_row(item, common)
            row[start_at], row[end_at] = start, start + duration
            records.append(make(GpuKernel, row))
    if starts != sorted(starts):  # queries are lent out in a ring, so a chunk may begin in the middle of time
        records.sort(key=_start)
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


_START, _END = _places(GpuKernel, "start_ns", "end_ns")


def _kernel_row(item: Pass, common: dict[str, Any]) -> list[Any]:
    """Everything of a pass's record but its times."""
    name, source = (item.name, item.label_source) if item.name else _fallback(item)
    attributes = {"operation": item.kind, "label_source": source, **common}
    if item.dispatches:
        attributes["dispatches"] = item.dispatches
    path, block_id = _place(item.block)
    return list(
        GpuKernel(
            name,
            0,
            0,
            backend="wgpu",
            grid=tuple(map(int, item.grid)) if item.dispatches == 1 and item.grid else None,  # type: ignore[arg-type]
            label=name if source != "line" else None,
            path=path,
            block_id=block_id,
            attributes=attributes,
        )
    )


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


def _fallback(item: Pass) -> tuple[str, str]:
    """A name for a pass without one, and where it comes from: the line that began the pass."""
    code, at = item.code, item.at if item.code is not None else 0
    lines = code.co_lines() if code is not None else ()
    line = next((line for first, end, line in lines if first <= at < end and line is not None), None)
    if code is None or line is None:
        return item.kind, "kind"
    return f"{item.kind}@{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}:{line}", "line"
