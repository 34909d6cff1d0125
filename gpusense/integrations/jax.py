"""Blocks for JAX's ranges: ``jax.profiler.TraceAnnotation``, ``StepTraceAnnotation`` and ``annotate_function``.

JAX dispatches asynchronously, but its kernels are launched while the annotated call runs, or by a thread of the runtime
soon after: those count as launched by whatever block is open then. Names of kernels are XLA's names of its fusions;
``jax.named_scope`` names operations inside the compiler and is not visible to the driver.
"""

from collections.abc import Callable
from typing import Any

from .._records.records import Unavailable
from ._hosts import Installed, imported, unless_recording
from ._ranges import RangeBlocks

_NAME = "_gpusense_name"
_installed = Installed[RangeBlocks]()


def instrument() -> bool | Unavailable:
    """True when annotations open blocks from now on, else why not. Twice is once."""
    if _installed.now is not None:
        return True
    try:
        from jax.profiler import TraceAnnotation
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        return Unavailable("jax", f"jax cannot be imported: {type(error).__name__}: {error}")
    nothing = unless_recording("jax")
    if nothing is not None:
        return nothing
    ranges = _installed.now = RangeBlocks("jax", lambda range_: str(vars(range_).get(_NAME, "annotation")), None)
    ranges.patches.wrap(TraceAnnotation, "__init__", _remember_name)
    ranges.install(TraceAnnotation)
    return True


def _remember_name(original: Any) -> Callable[..., Any]:
    """The object itself does not tell its name."""

    def __init__(range_: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        original(range_, name, *args, **kwargs)
        vars(range_)[_NAME] = name

    return __init__


def uninstrument() -> None:
    """Puts the annotations back."""
    ranges = _installed.take()
    if ranges is not None:
        ranges.remove()


def when_imported() -> bool:
    """For a poll: instruments once the program has imported JAX; then True."""
    if not imported("jax", "profiler"):
        return False
    instrument()
    return True
