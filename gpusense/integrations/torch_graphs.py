"""Kernels of a replayed ``torch.cuda.CUDAGraph`` name the block that captured them: ``GpuKernel.owner``.

Opt-in, because it takes CUPTI's subscription from a capture's begin to its end: a profiler that starts meanwhile is
refused. Costs nothing a replay.
"""

from collections.abc import Callable
from typing import Any

from .._capture.graph_owners import GraphOwners
from .._records.records import Unavailable
from ._patches import Patches, live_tracer, reason_for_nothing

_active: list[tuple[Patches, GraphOwners]] = []


def instrument() -> "bool | Unavailable":
    """True once graphs captured from now on have owners, or why not. Graphs captured before stay without."""
    if _active:
        return True
    try:
        import torch
    except ImportError as error:
        return Unavailable("torch", f"torch cannot be imported: {error}")
    tracer = live_tracer()
    if tracer is None:
        return Unavailable("torch", reason_for_nothing())
    patches, owners = Patches(), GraphOwners(tracer)
    graph = torch.cuda.CUDAGraph
    patches.wrap(graph, "capture_begin", lambda original: _begin(original, owners))
    patches.wrap(graph, "capture_end", lambda original: _end(original, owners))
    _active.append((patches, owners))
    return True


def uninstrument() -> None:
    while _active:
        _active.pop()[0].undo()


def status() -> dict[str, Any]:
    """``reason`` why the last capture has no owners, "" where it has; ``overflowed`` nodes."""
    if not _active:
        return {"reason": "not instrumented", "overflowed": 0}
    owners = _active[0][1]
    return {"reason": owners.reason, "overflowed": owners.overflowed}


def _begin(original: Callable[..., Any], owners: GraphOwners) -> Callable[..., Any]:
    def capture_begin(*args: Any, **kwargs: Any) -> Any:
        owners.capture_began()
        try:
            return original(*args, **kwargs)
        except BaseException:
            owners.capture_ended()
            raise

    return capture_begin


def _end(original: Callable[..., Any], owners: GraphOwners) -> Callable[..., Any]:
    def capture_end(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            owners.capture_ended()

    return capture_end
