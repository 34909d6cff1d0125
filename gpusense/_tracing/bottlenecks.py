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
#: Kernels that are shorter on average cost about as much to launch.
_SHORT_NS = 10_000
_MANY = 100
#: A block whose device time or waiting is more than this share of its own time is no work of the host.
_MOST = 0.5

_BY_FAMILY = {
    "matmul": "Use a smaller type (bf16, fp8) and sizes that tensor cores take, or batch the products.",
    "attention": "Use a fused attention of a library, and a smaller type.",
    "convolution": "Use channels-last memory and a smaller type, and let the library choose its algorithm.",
    "elementwise": "Fuse it with its neighbours, as torch.compile does: it moves more than it computes.",
    "reduction": "Fuse it with the kernel that makes its input.",
    "normalisation": "Use a fused one of a library.",
    "softmax": "Fuse it with the kernel that makes its input.",
    "copy": "Keep one memory layout: it rearranges data that another kernel could read as they are.",
    "optimizer": "Use the fused or foreach form of the optimizer.",
    "communication": "Communicate while you compute, in larger pieces, or less.",
}
_BY_KIND = {
    "transfer": "Keep the data on the device, or copy from pinned memory while kernels run.",
    "memset": "Reuse buffers instead of clearing them.",
    "sync": "Do without .item(), .cpu() and synchronize() in the loop, or wait later: the host waits here.",
    "compute": "Make this work of the CPU faster, or do it ahead of time on another thread.",
    "syscall": "Ask the operating system for more at once, or on another thread.",
}


def bottlenecks(session: Any, top_n: int = 5) -> list[Bottleneck]:
    """What took the most time, longest first."""
    from heapq import nlargest
    from operator import itemgetter

    from ..analysis.busy import window
    from ..analysis.facts import Facts

    facts, span = session.once(Facts), window(session)
    wall_ns = max(1, span[1] - span[0]) if span else 1
    # Only of those that are shown is worked out what to try, which takes longer than all the rest.
    found: list[Any] = [(node.own_ns, _block, node) for _, node in facts.blocks.walk() if node.own_ns]
    # A stream waits in stream_wait_event, not the host.
    operations = [row for row in facts.operations if row.total_ns and row.name != "stream_wait_event"]
    found += [(row.total_ns, _operation, row) for row in operations]
    longest = nlargest(max(0, top_n), found, key=itemgetter(0))
    return [make(row, wall_ns) for _, make, row in longest]


def _block(node: Any, wall_ns: int) -> Bottleneck:
    times = node.times
    share = times.own_ns / wall_ns
    if times.wait_ns is not None and node.own_wait_ns > _MOST * times.own_ns:
        advice = "Look at the kernels and waits inside: the host waits for the device in it."
    elif node.gpu_seen and node.own_gpu_ns > _MOST * times.own_ns:
        advice = "Look at its kernels: the device works on them all the while."
    elif any(kind == "compute" for kind, _ in node.operations):
        advice = "Look at the compute blocks inside: this is work of the host."
    else:
        advice = "Divide it with blocks inside, or ask a profiler of Python: this is work of the host."
    return Bottleneck(
        name=" › ".join(times.path),
        kind="block",
        total_ns=times.own_ns,
        count=times.passes,
        avg_ns=times.own_ns / times.passes,
        share=share,
        suggestion=_advice(advice, share),
        of="run's wall time",
        path=times.path,
    )


def _operation(row: Any, wall_ns: int) -> Bottleneck:
    of = "device time" if row.timing == "device" else "run's wall time"
    share = row.share if row.timing == "device" else row.total_ns / wall_ns
    suggestion = _advice(_of_operation(row), share)
    return Bottleneck(row.name, row.kind, row.total_ns, row.count, row.avg_ns, share, suggestion, of)


def _advice(text: str, share: float) -> str:
    """With what it can gain, where that is little."""
    return f"{text} At most {percent_text(share)} can be gained." if text and share < _LITTLE else text


def _of_operation(row: Any) -> str:
    from ..analysis.families import family

    if row.kind != "kernel":
        return _BY_KIND.get(row.kind, "")
    if row.count >= _MANY and row.avg_ns < _SHORT_NS:
        return "Fuse or batch these many short calls, or replay them as a CUDA graph."
    return _BY_FAMILY.get(family(row.full_name or row.name), "Fuse it, batch it, or use a library's kernel for it.")


def lines(rows: list[Bottleneck]) -> list[str]:
    """Two a row, numbered."""
    from ..analysis.operation import WAYS

    found = []
    for number, row in enumerate(rows, 1):
        spent = f"{time_text(row.total_ns)} in {count_text(row.count, *_CALLS.get(row.kind, ('call',)))}"
        kind = _CALLED.get(row.kind, row.kind)
        name = WAYS.get(row.name, row.name)
        what = name if name == kind else f"{name} ({kind})"
        found.append(f"{number}. {what}: {spent}, {percent_text(row.share)} of the {row.of}")
        found += [f"   {row.suggestion}"] if row.suggestion else []
    return found or ["Nothing was recorded."]


_CALLS = {"block": ("pass", "passes"), "transfer": ("copy", "copies")}
_CALLED = {"transfer": "copy", "sync": "wait", "compute": "CPU work", "syscall": "system call"}
