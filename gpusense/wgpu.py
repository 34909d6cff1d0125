"""Explicit helpers for wgpu-py code: traced transfers, a scope for passes, what Vulkan knows of memory, a self-test.

They work with and without :func:`gpusense.integrations.wgpu_py.instrument`; with it a transfer is recorded once, under
the label given here. Objects are wgpu-py's own: anything wgpu-py raises comes through. Times are the host's.
"""

from time import time_ns
from typing import Any

from . import get_tracer
from ._capi.wgpu_usage import usage_text
from ._records.records import GpuSync, Unavailable
from .backends.wgpu import source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._records.records import Direction
    from .backends.wgpu.vulkan import Card

__all__ = ["cards", "scope", "self_test", "traced_map_buffer", "traced_read_buffer", "traced_write_buffer"]


def scope(label: str) -> Any:
    """A block for a group of passes: those begun inside belong to it, whenever they run."""
    return get_tracer().trace(label)


def traced_write_buffer(queue: Any, buffer: Any, offset: int, data: Any, label: str | None = None) -> None:
    """``queue.write_buffer(buffer, offset, data)``, recorded as a transfer of ``len(data)`` bytes.

    The time is that of the copy into staging memory: the transfer itself happens at the next submit.
    """
    write = _unwrapped(queue.write_buffer)
    start = time_ns()
    write(buffer, offset, data)
    end = time_ns()
    _record("write_buffer", label, "cpu_to_gpu", memoryview(data).nbytes, (start, end), buffer)


def traced_read_buffer(
    queue: Any, buffer: Any, label: str | None = None, offset: int = 0, size: int | None = None
) -> Any:
    """The bytes of ``queue.read_buffer(buffer, offset, size)``, recorded with how much of the time was waiting.

    Waits for earlier work first, as the read itself would.
    """
    start = time_ns()
    _wait(buffer)
    waited = time_ns()
    with _Quiet():
        data = queue.read_buffer(buffer, offset, size)
    end = time_ns()
    _record("read_buffer", label, "gpu_to_cpu", data.nbytes, (start, end), buffer, wait_ns=waited - start)
    return data


def traced_map_buffer(buffer: Any, label: str | None = None, mode: str = "READ") -> Any:
    """``buffer``, mapped: polls until it is. Recorded as a wait. Read or write it with wgpu-py's methods, unmap it."""
    start = time_ns()
    with _Quiet():
        if hasattr(buffer, "map_async") and not hasattr(buffer, "map_sync"):
            buffer.map_async(mode).sync_wait()
        elif hasattr(buffer, "map_sync"):
            buffer.map_sync(mode)
        else:
            buffer.map(mode)
    end = time_ns()
    block = get_tracer().current_block()
    name = _named("map_buffer", label, buffer)
    place = (block.path, block.block_id) if block is not None else ((), None)
    get_tracer().record([GpuSync(name, start, end, backend="wgpu", path=place[0], block_id=place[1])])
    return buffer


def cards() -> "tuple[Card, ...] | Unavailable":
    """Every card as Vulkan sees it now: heaps with size, budget and this process's usage, tick length, PCI address.

    Takes some 20 ms: ask once a second at most. Budgets are None where the driver lacks VK_EXT_memory_budget.
    """
    from .backends.wgpu import vulkan

    return vulkan.cards()


def self_test(timeout_s: float = 20.0) -> dict[str, Any] | Unavailable:
    """Whether this machine computes, times and reads back through wgpu, tried in a child process; see the backend's."""
    return source.self_test(timeout_s)


def _unwrapped(method: Any) -> Any:
    """A bound method of the host, without our wrapper around it."""
    function = getattr(method, "__func__", None)
    inner = getattr(function, "_gpusense_original", None)
    return method if inner is None else inner.__get__(method.__self__)


class _Quiet:
    """Inside, instrumented transfers are not recorded on this thread: the helper does it."""

    def __enter__(self) -> None:
        self._before, source.SOURCE.here.quiet = source.SOURCE.here.quiet, True

    def __exit__(self, *_: object) -> None:
        source.SOURCE.here.quiet = self._before


def _wait(buffer: Any) -> None:
    device = buffer._device
    (getattr(device, "_poll_wait", None) or device._poll)()


def _named(method: str, label: str | None, buffer: Any) -> str:
    known = label or buffer.label
    return f"{method}({known})" if known else method


def _record(
    method: str,
    label: str | None,
    direction: "Direction",
    size: int,
    times: tuple[int, int],
    buffer: Any,
    **fields: Any,
) -> None:
    get_tracer().record_transfer(
        _named(method, label, buffer),
        direction,
        size,
        start_ns=times[0],
        end_ns=times[1],
        backend="wgpu",
        label=label or buffer.label or None,
        usage=usage_text(int(buffer.usage)),
        **fields,
    )
