"""Blocks for CuPy's ranges (``cupyx.profiler.time_range``), on request with the memory pool's bytes.

CuPy's kernels and copies are seen without this: it only says which of the program's ranges launched them.
"""

import sys
from typing import Any

from .._records.records import Unavailable
from ._hosts import Installed, imported, unless_recording
from ._ranges import RangeBlocks

_installed = Installed[RangeBlocks]()


def instrument(*, memory: bool = False) -> bool | Unavailable:
    """True when ``time_range`` opens blocks from now on, else why not. Twice is once.

    ``memory``: what the default memory pool uses and holds, and the default pinned pool's free blocks, as attributes
    at the end of each range.
    """
    if _installed.now is not None:
        return True
    try:
        import cupy
        from cupyx.profiler import time_range
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        return Unavailable("cupy", f"cupy cannot be imported: {type(error).__name__}: {error}")
    nothing = unless_recording("cupy")
    if nothing is not None:
        return nothing

    def pools() -> dict[str, Any]:
        pool = cupy.get_default_memory_pool()
        return {
            "cupy.memory.used_bytes": pool.used_bytes(),
            "cupy.memory.held_bytes": pool.total_bytes(),
            "cupy.memory.pinned_free_blocks": cupy.get_default_pinned_memory_pool().n_free_blocks(),
        }

    ranges = _installed.now = RangeBlocks("cupy", lambda range_: str(range_.message), pools if memory else None)
    ranges.install(time_range)
    return True


def uninstrument() -> None:
    """Puts ``time_range`` back."""
    ranges = _installed.take()
    if ranges is not None:
        ranges.remove()


def when_imported() -> bool:
    """For a poll: instruments once the program has imported CuPy and its profiler; then True."""
    if not imported("cupy", "get_default_memory_pool") or "cupyx.profiler" not in sys.modules:
        return False
    instrument()
    return True
