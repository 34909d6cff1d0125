"""GPU work, visible from inside a Python process.

- Blocks: ``trace``, as in ``with trace("step") as block:``, then ``block.summary()``; ``compute_block``, of the CPU;
  ``measure``, whose passes the device counts exactly.
- Records that you time yourself: ``record_kernel``, ``record_transfer``, ``record_compute_block``.
- The tracer: ``get_tracer``, ``configure``, ``enable``, ``disable``, ``detach``, ``reset``, ``dump``.
- Devices: ``devices``, ``own_usage``; ``monitor.start_background(callback)`` samples them.
- Sessions: ``load``, ``Session``, what it answers (``Finding``, ``Operation``, ``Phase``, ``Steps``, ``Span``), and the
  records in it, ``GpuKernel`` and others.
- Submodules: ``cuda``, ``doctor``, ``exporters``, ``integrations``, ``monitor``, ``session``, ``testing``, ``wgpu``.

Nothing is loaded on import; without a GPU everything is a graceful no-op. Every function may be called from any thread.
Times are nanoseconds since the Unix epoch, sizes are bytes; what is unknown is None.
"""

import sys as _sys
from _thread import get_ident as _get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import cuda, doctor, exporters, integrations, monitor, session, testing, wgpu
    from ._records.counters import BlockCounters, CounterSample
    from ._records.metrics import GpuMetrics, OwnUsage
    from ._records.protocols import ActivitySource, Backend, DeviceSource, MetricsSource, RecordSource
    from ._records.records import (
        Aggregate,
        BlockRecord,
        ComputeBlock,
        Counters,
        DeviceBusy,
        DeviceInfo,
        Direction,
        GpuAllocation,
        GpuBlockTime,
        GpuCollective,
        GpuKernel,
        GpuMemoryTransfer,
        GpuMemset,
        GpuSync,
        Syscall,
        Unavailable,
        UnseenInterval,
    )
    from ._runtime.config import Settings
    from ._runtime.errors import BackendError, BackendUnavailable, ConfigurationError, GpuSenseError, SessionError
    from ._tracing.bottlenecks import Bottleneck
    from ._tracing.noop import NoopTracer
    from ._tracing.summary import BlockSummary, Launched
    from ._tracing.tracer import Tracer
    from ._tracing.types import Block
    from .analysis.facts import Finding
    from .analysis.operation import Operation
    from .analysis.program import Phase, Steps
    from .analysis.summary import BlockOperation, TraceSummary
    from .monitor import Monitor, Window
    from .report.spans import Span
    from .session import Session, load

if TYPE_CHECKING:  # what only signatures name
    from typing_extensions import Unpack

    from ._records.fields import ComputeFields, KernelFields, TransferFields

__version__ = "0.1.0"

__all__ = [
    "ActivitySource",
    "Aggregate",
    "Backend",
    "BackendError",
    "BackendUnavailable",
    "Block",
    "BlockCounters",
    "BlockOperation",
    "BlockRecord",
    "BlockSummary",
    "Bottleneck",
    "ComputeBlock",
    "ConfigurationError",
    "CounterSample",
    "Counters",
    "DeviceBusy",
    "DeviceInfo",
    "DeviceSource",
    "Direction",
    "Finding",
    "GpuAllocation",
    "GpuBlockTime",
    "GpuCollective",
    "GpuKernel",
    "GpuMemoryTransfer",
    "GpuMemset",
    "GpuMetrics",
    "GpuSenseError",
    "GpuSync",
    "Launched",
    "MetricsSource",
    "Monitor",
    "NoopTracer",
    "Operation",
    "OwnUsage",
    "Phase",
    "RecordSource",
    "Session",
    "SessionError",
    "Settings",
    "Span",
    "Steps",
    "Syscall",
    "TraceSummary",
    "Tracer",
    "Unavailable",
    "UnseenInterval",
    "Window",
    "__version__",
    "compute_block",
    "configure",
    "cuda",
    "detach",
    "devices",
    "disable",
    "doctor",
    "dump",
    "enable",
    "exporters",
    "get_tracer",
    "integrations",
    "load",
    "measure",
    "monitor",
    "own_usage",
    "record_compute_block",
    "record_kernel",
    "record_transfer",
    "reset",
    "session",
    "testing",
    "trace",
    "wgpu",
]

#: Module → the public names that are loaded from it when somebody asks for one.
_SOURCES = {
    "_records.metrics": ("GpuMetrics", "OwnUsage"),
    "_records.protocols": ("ActivitySource", "Backend", "DeviceSource", "MetricsSource", "RecordSource"),
    "_records.counters": ("BlockCounters", "CounterSample"),
    "_records.records": (
        "Aggregate",
        "BlockRecord",
        "ComputeBlock",
        "Counters",
        "DeviceBusy",
        "DeviceInfo",
        "Direction",
        "GpuAllocation",
        "GpuBlockTime",
        "GpuCollective",
        "GpuKernel",
        "GpuMemoryTransfer",
        "GpuMemset",
        "GpuSync",
        "Syscall",
        "Unavailable",
        "UnseenInterval",
    ),
    "_runtime.config": ("Settings",),
    "_runtime.errors": ("BackendError", "BackendUnavailable", "ConfigurationError", "GpuSenseError", "SessionError"),
    "_tracing.block": ("Block",),
    "_tracing.noop": ("NoopTracer",),
    "_tracing.bottlenecks": ("Bottleneck",),
    "_tracing.summary": ("BlockSummary", "Launched"),
    "_tracing.tracer": ("Tracer",),
    "analysis.facts": ("Finding",),
    "analysis.operation": ("Operation",),
    "analysis.program": ("Phase", "Steps"),
    "analysis.summary": ("BlockOperation", "TraceSummary"),
    "integrations.ipython": ("load_ipython_extension", "unload_ipython_extension"),  # what %load_ext looks for
    "monitor": ("Monitor", "Window"),
    "report.spans": ("Span",),
    "session": ("Session", "load"),
}
_LAZY = {name: module for module, names in _SOURCES.items() for name in names}
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
    """What decides. A signal handler or finaliser that interrupts its import must not import it as well:
    that breaks the first import before Python 3.12."""
    thread = _get_ident()
    _importing.add(thread)
    try:
        from ._tracing import select
    finally:
        _importing.discard(thread)
    return select.control


def _decide() -> "Any":
    """The tracer, or None in the middle of the first decision."""
    if _get_ident() in _importing:
        return None
    try:
        return _selection().resolve()
    except (AttributeError, ImportError):  # a module of ours is only half imported
        return None
    except OSError as error:
        _pass_over(error)
        return None


def _pass_over(error: OSError) -> None:
    """No descriptor or memory is left for a file of ours: with the next use there may be. Raises any other error."""
    if error.errno not in (12, 23, 24):  # ENOMEM, ENFILE, EMFILE
        raise error


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


class _Unchanged:
    def __repr__(self) -> str:
        return "unchanged"


_UNCHANGED: "Any" = _Unchanged()

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike
    from typing import Any, Literal, NoReturn, overload

    from ._tracing.types import F, TimedBlock

    @overload
    def trace(name: F, /) -> F: ...
    @overload
    def trace(name: str | None = None, attributes: Mapping[str, Any] | None = None, links: Any = None) -> Block: ...
    def trace(name: Any = None, attributes: Any = None, links: Any = None) -> Any: ...
    @overload
    def measure(name: F, /) -> F: ...
    @overload
    def measure(name: str | None = None, attributes: Mapping[str, Any] | None = None) -> Block: ...
    def measure(name: Any = None, attributes: Any = None) -> Any: ...

else:

    def trace(name: "str | None" = None, attributes: "Mapping[str, Any] | None" = None, links: "Any" = None) -> "Block":
        """A block: ``with trace("step", {"batch": 64}) as block:``, or a decorator of functions and coroutines.

        What is launched inside belongs to it; ``block.summary()`` gives it. Never raises for a reason of gpusense's
        own, never waits for the device. ``attributes`` go into the record of the block. ``links``: OpenTelemetry span
        contexts that the block serves besides its parent. A :class:`Block`, or one that does nothing where nothing is
        recorded. Without ``name`` it is called after the function and the line that open it, "train (train.py:31)";
        ``@trace`` without parentheses names it after the function.
        """
        if type(name) is str:
            if attributes is None and links is None:
                return _active.named(name)
        elif callable(name):
            return _active.trace()(name)
        return _active.trace(name, attributes, links)

    def measure(name: "str | None" = None, attributes: "Mapping[str, Any] | None" = None) -> "Any":
        """A block whose every pass is counted exactly by the device: ``with measure("attention"):``, or a decorator.

        Tensor operations by type, bytes of the device's memory, and which roof the block is below: see
        ``Session.block_counters`` and the report. Each pass counts one set of counters, so let it run some times: the
        first says how busy tensor cores are, the following what they did. The program waits for the device where the
        block begins and ends; the first time, while the profiler is tried and switched on, a second or more. In a block
        that is being counted nothing else is. Where counters cannot be had it is :func:`trace`, and
        ``get_tracer().status().get("measured")`` says why. Never raises for a reason of gpusense's own.
        """
        return _active.measure()(name) if callable(name) else _active.measure(name, attributes)


def compute_block(
    name: str, elements: "int | None" = None, attributes: "Mapping[str, Any] | None" = None
) -> "TimedBlock":
    """CPU or SIMD work on the same timeline, as a context manager or decorator. Never raises for a reason of gpusense's
    own.

    With ``elements``, how many items it handles, the record has a throughput.
    """
    return _active.compute_block(name, elements, attributes)  # type: ignore[no-any-return]


def record_kernel(
    name: str,
    start_ns: "int | None" = None,
    end_ns: "int | None" = None,
    *,
    duration_ns: "int | None" = None,
    **fields: "Unpack[KernelFields]",
) -> None:
    """One kernel or pass that you timed, in wall-clock nanoseconds (``time.time_ns()``).

    Two of ``start_ns``, ``end_ns`` and ``duration_ns`` are enough; an end that is not passed is now. ``fields`` are
    those of :class:`GpuKernel`. It belongs to the innermost block that is open here. A name that is no field raises
    ``TypeError``, also where nothing is recorded; a value that does not fit raises nothing: the record is left out and
    counted, and the reason logged once.
    """
    _active.record_kernel(name, start_ns, end_ns, duration_ns=duration_ns, **fields)


def record_transfer(
    name: str,
    direction: "Direction",
    bytes: int = 0,
    *,
    duration_ns: "int | None" = None,
    start_ns: "int | None" = None,
    end_ns: "int | None" = None,
    **fields: "Unpack[TransferFields]",
) -> None:
    """One copy that you timed: ``record_transfer("mesh", "cpu_to_gpu", bytes=10_485_760, duration_ns=25_000)``.

    Times and errors as for :func:`record_kernel`; ``fields`` are those of :class:`GpuMemoryTransfer`, of which
    ``timing`` is "host" unless it is passed.
    """
    times = {"duration_ns": duration_ns, "start_ns": start_ns, "end_ns": end_ns}
    _active.record_transfer(name, direction, bytes, **times, **fields)


def record_compute_block(
    name: str,
    start_ns: "int | None" = None,
    end_ns: "int | None" = None,
    elements: "int | None" = None,
    *,
    duration_ns: "int | None" = None,
    **fields: "Unpack[ComputeFields]",
) -> None:
    """CPU work that you timed, on the calling thread; ``elements`` items. Times and errors as for
    :func:`record_kernel`; ``fields`` are those of :class:`ComputeBlock`."""
    _active.record_compute_block(name, start_ns, end_ns, elements, duration_ns=duration_ns, **fields)


def get_tracer() -> "Tracer":
    """The tracer of this process: a :class:`Tracer`, or a :class:`NoopTracer` with the same methods, whose ``reason``
    says why nothing is recorded. The first use of gpusense decides which."""
    if type(_active) is _Undecided:
        tracer = _decide()
        if tracer is None:
            return _Idle()  # type: ignore[return-value]
        _activate(tracer)
    return _active  # type: ignore[no-any-return]


def configure(
    defaults: bool = False,
    sinks: "Callable[[list[Any]], Any] | Sequence[Callable[[list[Any]], Any]] | None" = None,
    *,
    mode: "Literal['off', 'auto', 'on']" = _UNCHANGED,
    threshold_us: float = _UNCHANGED,
    trace_all: bool = _UNCHANGED,
    devices: "Iterable[int] | int | None" = _UNCHANGED,
    backends: "Iterable[str] | str | None" = _UNCHANGED,
    sample_rate: float = _UNCHANGED,
    kinds: "Iterable[str] | str" = _UNCHANGED,
    buffer_size: int = _UNCHANGED,
    buffers: int = _UNCHANGED,
    max_records_per_second: int = _UNCHANGED,
    max_records: int = _UNCHANGED,
    overhead_budget: "float | None" = _UNCHANGED,
    detach_in_pauses: bool = _UNCHANGED,
    hang_after: "float | None" = _UNCHANGED,
    file_limit_bytes: int = _UNCHANGED,
    line_packages: "Iterable[str] | str" = _UNCHANGED,
    strict: bool = _UNCHANGED,
    attribution: "Literal['order', 'exact']" = _UNCHANGED,
    wgpu_copies: bool = _UNCHANGED,
    flight_recorder: "float | None" = _UNCHANGED,
    flight_factor: float = _UNCHANGED,
    flight_signal: bool = _UNCHANGED,
    counters: "bool | str | None" = _UNCHANGED,
    kernels: "Literal['every', 'blocks', 'hardware']" = _UNCHANGED,
    **unknown: "NoReturn",
) -> "Settings":
    """Changes the settings that are passed and gives the resolved :class:`Settings`, which says what each means, in
    which unit, and its default. The environment has the last word. What was recorded stays.

    ``sinks``: callables that get lists of finished records, on their own thread. ``defaults=True`` is for libraries:
    the application's own calls win over it. Raises :class:`ConfigurationError` for unknown names and impossible values,
    and under ``strict=True`` :class:`BackendUnavailable` for a backend that was asked for and is not there; nothing has
    changed then.
    """
    passed = locals()
    changes = {name: passed[name] for name in passed if passed[name] is not _UNCHANGED}
    del changes["defaults"], changes["sinks"], changes["unknown"]
    return _selection().configure(defaults, sinks, **changes, **unknown)  # type: ignore[no-any-return]


def enable() -> bool:
    """Records from now on, for the whole process, also where no GPU is there; False under ``GPUSENSE=off``."""
    try:
        return _selection().enable()  # type: ignore[no-any-return]
    except OSError as error:
        _pass_over(error)
        return False


def disable() -> None:
    """Stops recording, for the whole process, until :func:`enable`; what was recorded stays readable."""
    try:
        _selection().disable()
    except OSError as error:  # nothing was recorded so far
        _pass_over(error)


def detach(*, without_graphs: bool = False) -> "Unavailable | None":
    """None once recording is disabled and CUPTI is out of this process, else :class:`Unavailable` with the reason.

    Disabling leaves CUPTI's hooks in each launch, one to two microseconds. Detaching removes them, waits for the device
    (two seconds at most), and must not run beside launches of other threads. Call it while gpusense records, in place
    of :func:`disable`: once work went unrecorded with CUPTI in the process, it is refused, because replays of CUDA
    graphs may then fail after it, unless ``without_graphs`` says that the program has none. Also refused while another
    profiler or another copy of gpusense uses CUPTI, with work outstanding, and before CUDA 12.6. :func:`enable`
    attaches anew.
    """
    try:
        return _selection().detach(without_graphs)  # type: ignore[no-any-return]
    except OSError as error:  # nothing was recorded so far
        _pass_over(error)
        return None


def reset() -> None:
    """Forgets everything recorded so far."""
    _active.reset()


def dump(path: "str | PathLike[str] | None" = None) -> "str | None":
    """Writes the last seconds, in full detail, to a session file and gives its path, once it is there.

    Only with ``configure(flight_recorder=10.0)``, which keeps them in memory. Without ``path`` it goes to the user's
    cache, where ``gpusense list`` shows the last ten. None where nothing was written:
    ``get_tracer().status().get("flight_recorder")`` says why. gpusense's own thread writes; the caller waits for it,
    ten seconds at most.
    """
    written = _active.dump(path)
    return written if isinstance(written, str) else None


def devices() -> "tuple[DeviceInfo, ...]":
    """``tuple[DeviceInfo, ...]``: every physical GPU of every vendor, once; empty without one. Initialises no CUDA.

    Where a driver hangs its devices are left out after some seconds, which is logged once.
    """
    try:
        from . import backends

        return backends.devices()
    except OSError as error:
        _pass_over(error)
        return ()


def own_usage() -> "tuple[OwnUsage, ...]":
    """What this process itself uses of each device, as far as the driver reports it: a tuple of :class:`OwnUsage`."""
    try:
        from . import monitor

        return monitor.own_usage()
    except OSError as error:
        _pass_over(error)
        return ()


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
    return sorted({*__all__, *_MODULES})


def _announce() -> None:
    """Under ``GPUSENSE=on`` capture begins as CUDA does, also before the first use. Nothing is loaded to see it, so the
    words for "on" are those of ``_runtime/config`` once more."""
    os = _sys.modules.get("os")
    if os is not None and os.environ.get("GPUSENSE", "").strip().lower() in ("on", "1", "true", "yes"):
        from ._tracing import start

        start.announce()


_announce()
