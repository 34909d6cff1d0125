"""What the parts share: options, the switch of each part, and the way a part ends after its first failure."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ... import _log
from .._patches import close_block, open_block

PARTS = ("modules", "backward", "ranges", "memory")


class Options(NamedTuple):
    """See :func:`instrument`."""

    depth: int = 2
    min_us: float = 100.0
    backward: bool = True
    ranges: bool = True
    memory: bool = False


class Host:
    """The torch of this process, by the few functions that the parts call."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.Tensor = torch.Tensor
        self.grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self.profiling: Callable[[], bool] = _profiling(torch)
        self.compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", _no)


def _no() -> bool:
    return False


def _profiling(torch: Any) -> Callable[[], bool]:
    """Whether torch.profiler is recording right now, for any thread: an explicit profiler is not to be disturbed."""
    profiler: Any = getattr(getattr(torch, "autograd", None), "profiler", None)
    return (lambda: bool(profiler._is_profiler_enabled)) if hasattr(profiler, "_is_profiler_enabled") else _no


class State:
    """One instrumentation. ``on[part]`` is false before it begins, after its end, and after its first failure."""

    def __init__(self, host: Host, options: Options) -> None:
        self.host = host
        self.options = options
        self.on = dict.fromkeys(PARTS, True)
        self.on["memory"] = options.memory
        self.on["backward"] = options.backward
        self.errors: list[str] = []
        self.local = threading.local()

    def fail(self, part: str) -> None:
        """In an ``except`` clause: the part ends; the program does not notice."""
        self.on[part] = False
        import sys

        error = sys.exc_info()[1]
        self.errors.append(f"{part}: {type(error).__name__}: {error}")
        _log.exception(f"torch {part}", f"gpusense: the torch integration's {part} failed once and was switched off")

    def end(self) -> None:
        self.on.update(dict.fromkeys(PARTS, False))

    def open(self, name: str, attributes: Any = None, parent: Any = None) -> Any:
        """A block, or None while torch.profiler records."""
        return None if self.host.profiling() else open_block(name, attributes, parent)

    def open_measured(self, name: str, attributes: Any = None) -> tuple[Any, int | None]:
        """As :meth:`open`, with the bytes that are allocated, where memory was asked for."""
        block = self.open(name, attributes)
        return block, self.memory()[0] if self.on["memory"] and block is not None else None

    def close_measured(self, block: Any, before: int | None, error: BaseException | None = None) -> None:
        if before is not None and self.on["memory"]:
            try:
                allocated, reserved, peak = self.memory()
                block.attributes = {
                    **(block.attributes or {}),
                    "torch.memory.allocated_bytes": allocated,
                    "torch.memory.allocated_change_bytes": (allocated or 0) - before,
                    "torch.memory.reserved_bytes": reserved,
                    "torch.memory.peak_bytes": peak,
                }
            except Exception:  # noqa: BLE001
                self.fail("memory")
        close_block(block, error)

    def memory(self) -> tuple[int | None, int | None, int | None]:
        """Bytes of the caching allocator on the current device: allocated, reserved, and the highest allocated since
        the program began or last reset it. Three times None where CUDA is not in use."""
        cuda = self.host.torch.cuda
        if not cuda.is_initialized():
            return None, None, None
        stats = cuda.memory_stats()
        return (
            stats.get("allocated_bytes.all.current"),
            stats.get("reserved_bytes.all.current"),
            stats.get("allocated_bytes.all.peak"),
        )
