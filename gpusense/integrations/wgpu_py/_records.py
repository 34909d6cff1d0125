"""Records out of what the wrappers saw: names, times, attributes."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from ..._aggregation.same_kernels import SameKernels
from ..._capi.wgpu_usage import usage_text
from ..._records.records import GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync, Record
from ._batch import AT, BLOCK, BYTES, CLEAR, CODE, DISPATCHES, GRID, KIND, NAME, SOURCE, Pass, Timed, whole
from ._gpu_clock import GpuClock
from ._timer import DeviceTimer

TOO_LONG = "the pass is longer than the time between its submission and its end"
#: How a copy's begin and end may contradict the host's times before it is taken for a wrong clock or unit.
SLACK_NS = 1_000_000

#: What there is to tell, passes as columns where nothing else is among them, and how many were refused by reason.
Outcome = tuple[list[Record | SameKernels], dict[str, int]]


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
    timer: Any = None  # of the device; None where that is not known


_make: Callable[[Any, Any], Any] = tuple.__new__  # of a record out of a row that is known to be complete


def _places(kind: Any, *names: str) -> list[int]:
    return [kind._fields.index(name) for name in names]


_T_BYTES, _T_START, _T_END, _T_WAIT = _places(GpuMemoryTransfer, "bytes", "start_ns", "end_ns", "wait_ns")


def transfers(staged: Iterable[tuple[Any, ...]]) -> list[Record]:
    """Host-side records of :class:`Staged`: the time of the call, which for a write is the staging copy and no bus."""
    made: list[Record] = []
    rows: dict[tuple[Any, ...], list[Any]] = {}  # of a program's transfers most are like one before
    numbers: dict[int, int | None] = {}
    for method, direction, size, start, end, label, usage, texture, wait, block, timer in staged:
        if id(timer) not in numbers:
            numbers[id(timer)] = None if timer is None else timer.number()
        number = numbers[id(timer)]
        if direction is None:
            path, block_id = _place(block)
            name = f"{method}({label})" if label else method
            made.append(GpuSync(name, start, end, device=number, backend="wgpu", path=path, block_id=block_id))
            continue
        key = (method, label, usage, texture, id(block), number)
        row = rows.get(key)
        if row is None:
            row = rows[key] = _transfer_row(method, direction, label, usage, texture, block, number)
        row[_T_BYTES], row[_T_START], row[_T_END], row[_T_WAIT] = size, start, end, wait
        made.append(_make(GpuMemoryTransfer, row))
    return made


def _transfer_row(
    method: str, direction: Any, label: str, usage: int, texture: bool, block: Any, device: int | None
) -> list[Any]:
    path, block_id = _place(block)
    return list(
        GpuMemoryTransfer(
            f"{method}({label})" if label else method,
            direction,
            0,
            0,
            0,
            device=device,
            backend="wgpu",
            label=label or None,
            usage=usage_text(usage, texture) if usage else None,
            timing="host",
            path=path,
            block_id=block_id,
        )
    )


def kernels(timer: DeviceTimer, chunk: Timed, now_ns: int) -> Outcome:
    """Passes and GPU-side copies on the wall clock, in order of their starts."""
    clock, batch = timer.clock.clock, chunk.batch
    if clock is None:
        return [], {timer.clock.reason: len(batch)}
    _teach(clock, chunk)
    clock.anchor(now_ns)
    starts, durations = clock.columns(chunk.begins, chunk.ends)
    if not starts:
        return [], {"no pass tells where this device's clock stands": len(batch)}
    which, submitted = batch.which, batch.submitted
    latest = chunk.seen_ns + SLACK_NS
    refused: dict[str, int] = {}
    if min(durations) < 0 or max(durations) > latest - max(submitted):  # else none can be refused
        good = []
        for at, (duration, since) in enumerate(zip(durations, submitted, strict=True)):
            if 0 <= duration <= latest - since:
                good.append(at)
            else:
                reason = "the pass ends before it begins" if duration < 0 else TOO_LONG
                refused[reason] = refused.get(reason, 0) + 1
        if not good:
            return [], refused
        columns = (which, starts, durations, submitted)
        which, starts, durations, submitted = ([column[at] for at in good] for column in columns)
    common, device = {"adapter": timer.info.get("device"), **clock.quality(now_ns)}, timer.number()
    if all(timed[BYTES] is None for timed in batch.kinds):
        passes = [_kernel(timed, common, device) for timed in batch.kinds]
        return [SameKernels(passes, which, starts, durations, submitted)], refused
    kinds: list[Any] = [(_kernel if timed[BYTES] is None else _copy)(timed, common, device) for timed in batch.kinds]
    rows = zip([kinds[at] for at in which], starts, durations, submitted, strict=True)
    records = [
        kind._replace(
            start_ns=start, end_ns=start + duration, attributes={**(kind.attributes or {}), "submitted_ns": since}
        )
        for kind, start, duration, since in rows
    ]
    records.sort(key=_start)
    return records, refused


_start = attrgetter("start_ns")


def _teach(clock: GpuClock, chunk: Timed) -> None:
    """A few passes spread over the chunk and its last one: each narrows the clock's bounds, all of them would cost."""
    submitted, seen = chunk.batch.submitted, chunk.seen_ns
    count = len(submitted)
    for index in {*range(0, count, max(1, count // 8)), count - 1}:
        begin, end = chunk.begins[index], chunk.ends[index]
        if 0 <= clock.duration_ns(begin, end) <= seen - submitted[index] + SLACK_NS:
            clock.observe(begin, end, submitted[index], seen)


def _kernel(timed: Pass, common: dict[str, Any], device: int | None) -> GpuKernel:
    """Everything of a pass's record but its times."""
    name, source = timed[NAME], timed[SOURCE]
    attributes = {"operation": timed[KIND], "label_source": source, **common}
    if source == "line":
        name, line = _fallback(timed)
        attributes |= {"line": line} if line else {"label_source": "kind"}
    if timed[DISPATCHES]:
        attributes["dispatches"] = timed[DISPATCHES]
    path, block_id = _place(timed[BLOCK])
    return GpuKernel(
        name,
        0,
        0,
        device=device,
        backend="wgpu",
        grid=whole(timed[GRID]) if timed[DISPATCHES] == 1 and timed[GRID] else None,  # type: ignore[arg-type]
        label=name if attributes["label_source"] not in ("line", "kind") else None,
        path=path,
        block_id=block_id,
        attributes=attributes,
    )


def _place(block: Any) -> tuple[tuple[str, ...], int | None]:
    """Path and id of a block; neither for one that sampling left out."""
    if block is None or not getattr(block, "recorded", True):
        return (), None
    return block.path, block.block_id


def _copy(timed: Pass, common: dict[str, Any], device: int | None) -> GpuMemoryTransfer | GpuMemset:
    """Everything of a copy's or a clear's record but its times."""
    path, block_id = _place(timed[BLOCK])
    name = f"{timed[KIND]}({timed[NAME]})" if timed[NAME] else timed[KIND]
    if timed[KIND] == CLEAR:
        return GpuMemset(
            *(name, timed[BYTES], 0, 0, device, "wgpu"),
            value=0,
            path=path,
            block_id=block_id,
            attributes={"operation": timed[KIND], **common},
        )
    return GpuMemoryTransfer(
        name,
        "on_device",
        timed[BYTES],
        0,
        0,
        device=device,
        backend="wgpu",
        label=timed[NAME] or None,
        timing="device",
        path=path,
        block_id=block_id,
        attributes={"operation": timed[KIND], **common},
    )


def _fallback(timed: Pass) -> tuple[str, str]:
    """A name for a pass without one, and the line that began it, where that is known: that line in the program's own
    code; of a library the function, whose line is another one in the next version and says nothing here."""
    code, at = timed[CODE], timed[AT]
    lines = code.co_lines() if code is not None else ()
    line = next((line for first, end, line in lines if first <= at < end and line is not None), None)
    if code is None or line is None:
        return timed[KIND] + (timed[NAME] or ""), ""
    path = code.co_filename.replace(chr(92), "/")
    where = f"{path.rpartition('/')[2]}:{line}"
    library = "/site-packages/" in path or "/dist-packages/" in path
    place = getattr(code, "co_qualname", code.co_name) if library else where
    return f"{timed[KIND]}@{place}{timed[NAME] or ''}", where
