"""Kernels of a replayed ``torch.cuda.CUDAGraph`` name the block that captured them: ``GpuKernel.owner``.

Opt-in, because it takes CUPTI's subscription from a capture's begin to its end: a profiler that starts meanwhile is
refused. Costs nothing a replay.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import get_tracer
from .._capture.graph_owners import GraphOwners
from .._records.records import Unavailable
from ._hosts import Installed, Patches, unless_recording


class _Instrumentation(NamedTuple):
    patches: Patches
    owners: GraphOwners


_installed = Installed[_Instrumentation]()


def instrument() -> "bool | Unavailable":
    """True once graphs captured from now on have owners, or why not. Graphs captured before stay without."""
    if _installed.now is not None:
        return True
    try:
        import torch
    except ImportError as error:
        return Unavailable("torch", f"torch cannot be imported: {error}")
    nothing = unless_recording("torch")
    if nothing is not None:
        return nothing
    patches, owners = Patches(), GraphOwners(get_tracer())
    graph = torch.cuda.CUDAGraph
    patches.wrap(graph, "capture_begin", lambda original: _begin(original, owners))
    patches.wrap(graph, "capture_end", lambda original: _end(original, owners))
    _installed.now = _Instrumentation(patches, owners)
    return True


def uninstrument() -> None:
    """Puts ``CUDAGraph`` back; graphs captured so far keep their owners."""
    installed = _installed.take()
    if installed is not None:
        installed.patches.undo()


def status() -> dict[str, Any]:
    """``reason`` why the last capture has no owners, "" where it has; ``overflowed`` nodes."""
    if _installed.now is None:
        return {"reason": "not instrumented", "overflowed": 0}
    owners = _installed.now.owners
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
