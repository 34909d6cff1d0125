"""What the parts share: options, the switch of each part, and the way a part ends after its first failure."""

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from ..._attribution.boundaries import Frame
from ..._attribution.open_blocks import Run
from ..._runtime import log
from .._hosts import close_block, open_block

#: How a DataLoader's last wait and a checkpoint's early stop end: by design.
_NO_ERRORS = frozenset({"StopIteration", "_StopRecomputationError"})
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
        #: Its ``_is_profiler_enabled``: torch.profiler records right now, for any thread, and is not to be disturbed.
        self.profiler: Any = _profiler(torch)
        compiler = getattr(torch, "compiler", None)
        self.compiling: Callable[[], bool] = getattr(compiler, "is_compiling", _no)
        #: The same for hooks on nodes, which compiled autograd compiles, too.
        self.tracing: Callable[[], bool] = getattr(compiler, "is_dynamo_compiling", self.compiling)
        #: In it the program's tensor classes and function modes are not told that we look at a tensor.
        self.unwatched: Callable[[], Any] = getattr(torch._C, "DisableTorchFunction", nullcontext)
        #: Whether there is a function mode; a plain tensor is looked at without telling anyone where there is none.
        self.modes: Callable[[], bool] = getattr(torch._C, "_is_torch_function_mode_enabled", _yes)

    @staticmethod
    def may_trace() -> bool:
        """False where no compiled autograd is on: asked once a backward pass, so that not each hook needs to ask."""
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        return compiled is not None and bool(getattr(compiled, "compiled_autograd_enabled", True))

    def carrier(self) -> Any:
        """A tensor whose hooks a node of the graph takes over; False where this torch does not do so."""
        try:
            with self.unwatched():
                carrier = self.torch.empty(0, device="cpu")
                leaf = self.torch.empty(0, device="cpu", requires_grad=True)
                carrier._backward_hooks = {0: _nothing}
                (leaf * 1).grad_fn._register_hook_dict(carrier)
        except Exception:  # noqa: BLE001
            return False
        return carrier


def _nothing(_: Any) -> None: ...


def _no() -> bool:
    return False


def _yes() -> bool:
    return True


class _NoProfiler:
    _is_profiler_enabled = False


def _profiler(torch: Any) -> Any:
    profiler: Any = getattr(getattr(torch, "autograd", None), "profiler", None)
    return profiler if hasattr(profiler, "_is_profiler_enabled") else _NoProfiler


class Thread(Run):
    """What is open on a thread. ``frame``: of the innermost module with a block, or of a block inside it."""

    __slots__ = ("carrier", "nvtx", "produced")

    def __init__(self) -> None:
        super().__init__()
        self.carrier: Any = None  # a tensor whose hooks nodes take over
        self.nvtx: list[Any] = []  # blocks of open ranges
        self.produced: Any = None  # the node of the last module's output, until the model's forward pass ends


def frame_of(block: Any, place: Any, run: Run, outer: Frame | None) -> Frame:
    """Of a block that is open."""
    frame = Frame.__new__(Frame)
    frame.place, frame.run, frame.outer, frame.corr = place, run, outer, -1
    frame.block, frame.number = block, block.block_id
    return frame


def around(frame: Frame | None) -> Frame | None:
    """``frame``, or the nearest one outside it that is a module's."""
    while frame is not None and frame.place is None:
        frame = frame.outer
    return frame


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = Thread()


class State:
    """One instrumentation. ``on[part]`` is false before it begins, after its end, and after its first failure.

    What runs for each module of a model calls as little as possible: it lies between long parts of torch's own
    code, after which each function of Python is slow to reach.
    """

    def __init__(self, host: Host, options: Options) -> None:
        self.host = host
        self.options = options
        self.on = dict.fromkeys(PARTS, True)
        self.on["memory"] = options.memory
        self.on["backward"] = options.backward
        self.errors: list[str] = []
        self.local = _Local()

    def fail(self, part: str) -> None:
        """In an ``except`` clause: the part ends; the program does not notice."""
        self.on[part] = False
        error = sys.exc_info()[1]
        self.errors.append(f"{part}: {type(error).__name__}: {error}")
        log.exception(f"torch {part}", f"the torch integration's {part} failed once and was switched off")

    def end(self) -> None:
        """Every part ends; what is open is still closed."""
        self.on.update(dict.fromkeys(PARTS, False))

    def open(self, name: str, attributes: Any = None, parent: Any = None) -> Any:
        """A block, or None while torch.profiler records."""
        if self.host.profiler._is_profiler_enabled:
            return None
        return open_block(name, attributes, parent)

    def open_measured(self, name: str, attributes: Any = None) -> tuple[Any, int | None]:
        """As :meth:`open`, with the bytes that are allocated, where memory was asked for."""
        if self.host.profiler._is_profiler_enabled:
            return None, None
        block = open_block(name, attributes)
        return block, self.memory()[0] if self.on["memory"] else None

    def close_measured(self, block: Any, before: int | None, error: BaseException | None = None) -> None:
        """Ends a block of :meth:`open_measured`, which gave ``before``, on the thread that opened it."""
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
        tracer = getattr(block, "tracer", None)  # a block that does nothing has none
        if error is None and tracer is not None:
            tracer.close_scope(block)
        else:
            self.close(block, error)

    def close(self, block: Any, error: BaseException | None = None) -> None:
        """Ends a block; how a host ends things by design is no error."""
        close_block(block, None if type(error).__name__ in _NO_ERRORS else error)

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
