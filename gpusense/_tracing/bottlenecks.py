"""Where the time goes, in one list: blocks, compute blocks and operations, longest first, each with what to try."""

from typing import Any, NamedTuple

from .._records.records import Path
from .._runtime.text import count_text, percent_text, time_text


class Bottleneck(NamedTuple):
    """One row of what took the most time. Of a block it is its own time, without the blocks inside."""

    name: str  # of a block its path: "step › load"
    kind: str  # "block", "compute", "kernel", "transfer", "memset", "sync", "syscall"
    total_ns: int
    count: int  # type: ignore[assignment]
    avg_ns: float
    share: float  # of what ``of`` says; above 1 where several threads do it at once
    suggestion: str
    of: str = "device time"  # or "run's wall time"
    path: Path = ()  # of a block


#: Below this share a row is not what to begin with.
_LITTLE = 0.1
_NOT_FIRST = "little to gain here"
#: Kernels that are shorter on average cost about as much to launch.
_SHORT_NS = 10_000
_MANY = 100
#: A block whose device time or waiting is more than this share of its own time is no work of the host.
_MOST = 0.5

_BY_FAMILY = {
    "matmul": "use a smaller type (bf16, fp8) and sizes that tensor cores take, or batch the products",
    "attention": "use a fused attention of a library, and a smaller type",
    "convolution": "use channels-last memory and a smaller type, and let the library choose its algorithm",
    "elementwise": "fuse it with its neighbours, as torch.compile does: it moves more than it computes",
    "reduction": "fuse it with what makes its input",
    "normalisation": "use a fused one of a library",
    "softmax": "fuse it with what makes its input",
    "copy": "keep one memory layout: it rearranges data that another kernel could read as they are",
    "optimizer": "use the fused or foreach form of the optimizer",
    "communication": "send it beside computing, in larger pieces, or send less",
}
_BY_KIND = {
    "transfer": "keep the data on the device, copy from pinned memory, or beside kernels",
    "memset": "reuse buffers instead of clearing them",
    "sync": "the host waits for the device here: do without .item() and .cpu() in the loop, or wait later",
    "compute": "work of the CPU: make it faster, or do it ahead of time on another thread",
    "syscall": "the operating system: ask for more at once, or on another thread",
}


def bottlenecks(session: Any, top_n: int = 5) -> list[Bottleneck]:
    """What took the most time, longest first."""
    from ..analysis.busy import window

    span = window(session)
    wall_ns = max(1, span[1] - span[0]) if span else 1
    rows = [*_blocks(session, wall_ns), *_operations(session, wall_ns)]
    rows.sort(key=lambda row: -row.total_ns)
    return rows[: max(0, top_n)]


def _blocks(session: Any, wall_ns: int) -> list[Bottleneck]:
    from ..analysis.facts import Facts

    rows = []
    for _, node in session.once(Facts).blocks.walk():
        times = node.times
        if not times.own_ns:
            continue
        share = times.own_ns / wall_ns
        if share < _LITTLE:
            advice = _NOT_FIRST
        elif times.wait_ns is not None and node.own_wait_ns > _MOST * times.own_ns:
            advice = "the host waits for the device in it: look at the kernels and waits inside"
        elif node.gpu_seen and node.own_gpu_ns > _MOST * times.own_ns:
            advice = "the device works on what it launches: look at its kernels"
        elif any(kind == "compute" for kind, _ in node.operations):
            advice = "work of the host: look at the compute blocks inside"
        else:
            advice = "work of the host: divide it with blocks inside, or ask a profiler of Python"
        rows.append(
            Bottleneck(
                name=" › ".join(times.path),
                kind="block",
                total_ns=times.own_ns,
                count=times.passes,
                avg_ns=times.own_ns / times.passes,
                share=share,
                suggestion=advice,
                of="run's wall time",
                path=times.path,
            )
        )
    return rows


def _operations(session: Any, wall_ns: int) -> list[Bottleneck]:
    from ..analysis.facts import Facts

    rows = []
    for row in session.once(Facts).operations:
        if not row.total_ns or row.name == "stream_wait_event":  # a stream waits there, not the host
            continue
        of = "device time" if row.timing == "device" else "run's wall time"
        share = row.share if row.timing == "device" else row.total_ns / wall_ns
        advice = _of_operation(row) if share >= _LITTLE else _NOT_FIRST
        rows.append(Bottleneck(row.name, row.kind, row.total_ns, row.count, row.avg_ns, share, advice, of))
    return rows


def _of_operation(row: Any) -> str:
    from ..analysis.families import family

    if row.kind != "kernel":
        return _BY_KIND.get(row.kind, "")
    if row.count >= _MANY and row.avg_ns < _SHORT_NS:
        return "many short calls: fuse or batch them, or replay them as a CUDA graph"
    return _BY_FAMILY.get(
        family(row.full_name or row.name), "look at this kernel: fuse it, batch it, or use a library's"
    )


def lines(rows: list[Bottleneck]) -> list[str]:
    """Two a row, numbered."""
    found = []
    for number, row in enumerate(rows, 1):
        spent = f"{time_text(row.total_ns)} in {count_text(row.count, *_CALLS.get(row.kind, ('call',)))}"
        found.append(f"{number}. {row.name} ({row.kind}): {spent}, {percent_text(row.share)} of the {row.of}")
        found += [f"   {row.suggestion}"] if row.suggestion else []
    return found or ["nothing was recorded"]


_CALLS = {"block": ("pass", "passes")}
