"""GPU work, visible from inside a Python process.

``with gpusense.trace("step") as block:`` then ``block.summary()``; ``gpusense.monitor.start_background(callback)``;
``gpusense.get_tracer()``. Nothing is loaded on import; without a GPU everything is a graceful no-op.
"""

from _thread import get_ident as _get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import cuda, doctor, exporters, integrations, monitor, testing, wgpu
    from ._records.metrics import GpuMetrics
    from ._records.records import (
        Aggregate,
        BlockRecord,
        ComputeBlock,
        Counters,
        DeviceInfo,
        GpuAllocation,
        GpuKernel,
        GpuMemoryTransfer,
        GpuMemset,
        GpuSync,
        Syscall,
        Unavailable,
    )
    from ._runtime.errors import BackendError, BackendUnavailable, GpuSenseError, SessionError
    from .session import Session, load

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "BackendError",
    "BackendUnavailable",
    "BlockRecord",
    "ComputeBlock",
    "Counters",
    "DeviceInfo",
    "GpuAllocation",
    "GpuKernel",
    "GpuMemoryTransfer",
    "GpuMemset",
    "GpuMetrics",
    "GpuSenseError",
    "GpuSync",
    "Session",
    "SessionError",
    "Syscall",
    "Unavailable",
    "__version__",
    "compute_block",
    "configure",
    "cuda",
    "detach",
    "devices",
    "disable",
    "doctor",
    "enable",
    "exporters",
    "get_tracer",
    "integrations",
    "load",
    "monitor",
    "own_usage",
    "record_compute_block",
    "record_kernel",
    "record_transfer",
    "reset",
    "testing",
    "trace",
    "wgpu",
]

_LAZY = {
    **dict.fromkeys(("BackendError", "BackendUnavailable", "GpuSenseError", "SessionError"), "_runtime.errors"),
    "GpuMetrics": "_records.metrics",
    **dict.fromkeys(
        (
            "Aggregate",
            "BlockRecord",
            "ComputeBlock",
            "Counters",
            "DeviceInfo",
            "GpuAllocation",
            "GpuKernel",
            "GpuMemoryTransfer",
            "GpuMemset",
            "GpuSync",
            "Syscall",
            "Unavailable",
        ),
        "_records.records",
    ),
    "Session": "session",
    "load": "session",
}
_MODULES = ("cuda", "doctor", "exporters", "integrations", "monitor", "session", "testing", "wgpu")


class _Undecided:
    """Stands in until the first use decides which tracer this process has."""

    def __getattr__(self, name: str) -> "Any":
        tracer = _decide()
        if tracer is None:
            return getattr(_Idle(), name)
        if _active is self:
            _activate(tracer)
        return getattr(_active, name)


_importing: "set[int]" = set()  # threads


def _selection() -> "Any":
    """The module that decides. A signal handler or finaliser that interrupts its import must not import it as well:
    that breaks the first import before Python 3.12."""
    thread = _get_ident()
    _importing.add(thread)
    try:
        from ._tracing import select
    finally:
        _importing.discard(thread)
    return select


def _decide() -> "Any":
    """The tracer, or None in the middle of the first decision."""
    if _get_ident() in _importing:
        return None
    try:
        return _selection().resolve()
    except (AttributeError, ImportError):  # a module of ours is only half imported
        return None


class _Idle:
    """For a signal handler or finaliser that interrupts the first use: as tracer and as block it does nothing."""

    def __getattr__(self, name: str) -> "Any":
        return self

    def __call__(self, *arguments: "Any", **_: "Any") -> "Any":
        return arguments[0] if arguments and callable(arguments[0]) else self

    def __enter__(self) -> "Any":
        return self

    def __exit__(self, *_: object) -> None:
        return None


_active: "Any" = _Undecided()


def _activate(tracer: "Any") -> None:
    global _active
    _active = tracer


def _active_tracer() -> "Any":
    return _active


if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import overload

    from ._records.metrics import OwnUsage
    from ._runtime.config import Settings
    from ._tracing.tracer import Tracer
    from ._tracing.types import Block, F
    from ._tracing.types import ComputeBlock as _ComputeBlock

    @overload
    def trace(name: F, /) -> F: ...
    @overload
    def trace(name: str | None = None, attributes: Mapping[str, Any] | None = None, links: Any = None) -> Block: ...
    def trace(name: Any = None, attributes: Any = None, links: Any = None) -> Any: ...
    def compute_block(
        name: str, elements: int | None = None, attributes: Mapping[str, Any] | None = None
    ) -> _ComputeBlock: ...

else:

    def trace(name: "Any" = None, attributes: "Any" = None, links: "Any" = None) -> "Any":
        """A block: ``with trace("step", {"batch": 64}) as block:``, or a decorator of functions and coroutines.

        What is launched inside belongs to it; ``block.summary()`` tells it. Never raises for a reason of gpusense's
        own, never waits for the device. ``attributes`` go into the record of the block. ``links``: OpenTelemetry span
        contexts that the block serves besides its parent. A :class:`Block`, or one that does nothing where nothing is
        recorded. ``@trace`` without parentheses names the block after the function.
        """
        if type(name) is not str and callable(name):
            return _active.trace()(name)
        return _active.trace(name, attributes, links)

    def compute_block(name: "Any", elements: "Any" = None, attributes: "Any" = None) -> "Any":
        """CPU or SIMD work on the same timeline, as a context manager or decorator.

        With ``elements``, how many items it handles, the record has a throughput.
        """
        return _active.compute_block(name, elements, attributes)


def record_kernel(name: str, start_ns: "Any" = None, end_ns: "Any" = None, **fields: "Any") -> None:
    """One kernel timed by the caller, in wall-clock nanoseconds or by ``duration_ns``.

    See :meth:`Tracer.record_kernel`.
    """
    _active.record_kernel(name, start_ns, end_ns, **fields)


def record_transfer(name: str, direction: str, bytes: int = 0, **fields: "Any") -> None:
    """One copy timed by the caller: ``record_transfer("mesh", "cpu_to_gpu", bytes=10_485_760, duration_ns=25_000)``.

    See :meth:`Tracer.record_transfer`.
    """
    _active.record_transfer(name, direction, bytes, **fields)


def record_compute_block(
    name: str, start_ns: "Any" = None, end_ns: "Any" = None, elements: "Any" = None, **fields: "Any"
) -> None:
    """CPU work timed by the caller; see :meth:`Tracer.record_compute_block`."""
    _active.record_compute_block(name, start_ns, end_ns, elements, **fields)


def get_tracer() -> "Tracer":
    """The tracer of this process: a :class:`Tracer`, or a :class:`NoopTracer` with the same methods."""
    if type(_active) is _Undecided:
        tracer = _decide()
        if tracer is None:
            return _Idle()  # type: ignore[return-value]
        _activate(tracer)
    return _active  # type: ignore[no-any-return]


def configure(defaults: bool = False, sinks: "Any" = None, **settings: "Any") -> "Settings":
    """Changes settings and gives the resolved :class:`Settings`; the environment has the last word.

    ``threshold_us=100``, ``trace_all=False``, ``devices=None``, ``backends=None``, ``sample_rate=1.0``, ``kinds=()``,
    ``buffer_size``, ``buffers``, ``max_records_per_second``, ``overhead_budget``, ``detach_in_rests``, ``hang_after``,
    ``strict``, ``mode``, ``attribution="order"``; ``sinks``: callables that get lists of finished
    records. ``defaults=True`` is for libraries: the application's own calls win over it. Raises
    :class:`ConfigurationError` for unknown names and impossible values, and under ``strict=True``
    :class:`BackendUnavailable` for a backend that was asked for and is not there.
    """
    return _selection().configure(defaults, sinks, **settings)  # type: ignore[no-any-return]


def enable() -> bool:
    """Records from now on, also where no GPU is there; False under ``GPUSENSE=off``."""
    return _selection().enable()  # type: ignore[no-any-return]


def disable() -> None:
    """Stops recording; what was recorded stays readable."""
    _selection().disable()


def detach(*, without_graphs: bool = False) -> "Unavailable | None":
    """None once recording is disabled and CUPTI is out of this process, else :class:`Unavailable` with the reason.

    Disabling leaves CUPTI's hooks in each launch, one to two microseconds. Detaching removes them, waits for the device
    (two seconds at most), and must not run beside launches of other threads. Call it while gpusense records, in place
    of :func:`disable`: once work went unrecorded with CUPTI in the process, it is refused, because replays of CUDA
    graphs may then fail after it, unless ``without_graphs`` says that the program has none. Also refused while another
    profiler or another copy of gpusense uses CUPTI, with work outstanding, and before CUDA 12.6. :func:`enable`
    attaches anew.
    """
    return _selection().detach(without_graphs)  # type: ignore[no-any-return]


def reset() -> None:
    """Forgets everything recorded so far."""
    _active.reset()


def devices() -> "tuple[DeviceInfo, ...]":
    """``tuple[DeviceInfo, ...]``: every physical GPU of every vendor, once; empty without one. Initialises no CUDA.

    Where a driver hangs its devices are left out after some seconds, which is logged once.
    """
    from . import backends

    return backends.devices()


def own_usage() -> "tuple[OwnUsage, ...]":
    """What this process itself uses of each device, as far as the driver tells: a tuple of :class:`OwnUsage`."""
    from . import monitor

    return monitor.own_usage()


def __getattr__(name: str) -> "Any":
    module = _LAZY.get(name)
    if module is not None:
        value = getattr(__import__(f"{__name__}.{module}", fromlist=[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return __import__(f"{__name__}.{name}", fromlist=["_"])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
