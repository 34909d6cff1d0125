"""Blocks for what a torch program does: modules forward and backward, optimizer steps, DataLoader waits, ranges.

Needs torch at :func:`instrument` only. Nothing is hooked before that, and nothing after :func:`uninstrument`. What is
seen and what is not stands in docs/howto/torch.md.
"""

from typing import Any, NamedTuple

from ... import get_tracer
from ..._records.records import Unavailable
from .._hosts import Installed, Patches, imported, unless_recording


class Statistics(NamedTuple):
    """What became of the instrumentation."""

    roots: int = 0  # models that were found or named
    too_short: tuple[str, ...] = ()  # modules whose calls were too short for a block of their own
    errors: tuple[str, ...] = ()  # parts that failed once and were switched off


class _Instrumentation(NamedTuple):
    """The parts, made when torch is there."""

    state: Any
    patches: Patches
    modules: Any
    backward: Any


_installed = Installed[_Instrumentation]()


def instrument(
    model: Any = None,
    *,
    depth: int = 2,
    min_us: float = 100.0,
    backward: bool = True,
    ranges: bool = True,
    memory: bool = False,
) -> bool | Unavailable:
    """True when blocks are opened for torch from now on, else why not. Called twice it changes nothing but ``model``.

    ``model`` is named at once; other models when they are first called. ``depth``: levels of modules with a block, the
    model itself being 1. ``min_us``: a module below the model whose forward pass takes the host less than that on
    average gets no block of its own after ten calls. ``backward``: blocks for backward passes and the modules in them.
    ``ranges``: blocks for ``record_function``, NVTX ranges, compiled functions, optimizer steps and DataLoader waits.
    ``memory``: the caching allocator's bytes as attributes of models, backward passes and ranges (0.1 ms each).
    While torch.profiler records, no block is opened.
    """
    installed = _installed.now
    if installed is not None:
        if model is not None:
            installed.modules.add_root(model)
        return True
    torch = _torch()
    if isinstance(torch, Unavailable):
        return torch
    nothing = unless_recording("torch")
    if nothing is not None:
        return nothing
    from ._backward import Backward
    from ._modules import Modules
    from ._ranges import Ranges
    from ._state import Host, Options, State

    state = State(Host(torch), Options(depth, min_us, backward, ranges, memory))
    patches, passes = Patches(), Backward(state)
    modules = Modules(state, passes.watch)
    if model is not None:
        modules.add_root(model)
    modules.install(patches)
    if backward:
        passes.install(patches)
    if ranges:
        Ranges(state).install(patches)
    _installed.now = _Instrumentation(state, patches, modules, passes)
    return True


def uninstrument() -> None:
    """Puts everything back. Hooks on graphs that were recorded before do nothing from now on."""
    installed = _installed.take()
    if installed is None:
        return
    installed.state.end()
    installed.modules.uninstall(installed.patches)
    installed.patches.undo()


def statistics() -> Statistics:
    """What was found since :func:`instrument`."""
    installed = _installed.now
    if installed is None:
        return Statistics()
    modules = installed.modules
    return Statistics(modules.roots, (*modules.too_short,), (*installed.state.errors,))


def when_imported() -> bool:
    """For a poll: instruments once the program has imported torch; True when there is nothing more to wait for.

    Where the device times blocks, models have blocks and their modules have none: each costs some microseconds.
    """
    if not imported("torch", "optim"):
        return False
    instrument(depth=1 if get_tracer().config.kernels == "blocks" else 2)
    return True


def _torch() -> Any:
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        return Unavailable("torch", f"torch cannot be imported: {type(error).__name__}: {error}", "pip install torch")
    if not hasattr(torch.autograd, "profiler"):
        return Unavailable("torch", "this torch has no torch.autograd.profiler", "update torch")
    return torch
