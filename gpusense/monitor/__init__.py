"""Watches devices from inside the process: ``snapshot()`` now, ``start_background()`` for history and callbacks.

Everything here works without a GPU: there are then no devices, and :func:`sources` says why.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple

from .._records import device_identity
from .._records.metrics import Clocks as Clocks
from .._records.metrics import CollectiveTotals as CollectiveTotals
from .._records.metrics import GpuMetrics, OwnUsage
from .._records.metrics import Health as Health
from .._records.metrics import Instance as Instance
from .._records.metrics import Links as Links
from .._records.metrics import Memory as Memory
from .._records.metrics import Pcie as Pcie
from .._records.metrics import Power as Power
from .._records.metrics import ProcessUsage as ProcessUsage
from .._records.metrics import Thermal as Thermal
from .._records.metrics import Utilization as Utilization
from .._records.protocols import Backend, MetricsSource
from .._records.records import DeviceInfo, Unavailable
from .._runtime import log, package, process, threads
from ._callbacks import Dispatcher
from ._history import History
from ._history import Statistic as Statistic
from ._history import Window as Window
from ._sampler import SECOND, Clock, DeviceSampler, SamplerStats, ask
from ._shared import EXIT_S, shared
from ._sources import Opening

#: One device or several, each as an index, a UUID or its beginning, a PCI address or an entry of
#: :func:`gpusense.devices`, or "visible" for those that CUDA_VISIBLE_DEVICES shows. None: all.
Devices = int | str | DeviceInfo | Iterable[int | str | DeviceInfo] | None

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.005, 1e9
_COROUTINE = 0x80  # inspect.CO_COROUTINE, without what inspect costs


class MonitorStats(NamedTuple):
    """What monitoring itself did and cost. ``samplers`` are shared with other monitors of the same devices."""

    samples: int  # taken into this monitor's history
    ticks: int
    late: int  # began more than a tenth of the interval after their deadline
    skipped: int  # deadlines that passed while an earlier tick ran
    mean_cost_ns: float  # of one sample, wall time
    max_cost_ns: int
    callbacks: int
    callbacks_dropped: int
    callback_errors: int
    callback_ns: int
    samplers: tuple[SamplerStats, ...] = ()


class _Settings(NamedTuple):
    """The arguments of :func:`start_background` that a monitor lives by, as they were passed: in seconds."""

    callback: Callable[[GpuMetrics], object] | None
    on_error: Callable[[BaseException], object] | None
    interval: float
    history: int
    medium_interval: float
    slow_interval: float
    process_interval: float
    gpm: bool
    pcie: str
    clock: Clock

    def validate(self) -> None:
        """Raises ValueError or TypeError for what makes no sense."""
        lanes = (self.medium_interval, self.slow_interval, self.process_interval)
        for name, value in (("interval", self.interval), *(("a lane's interval", lane) for lane in lanes)):
            if not (isinstance(value, (int, float)) and value >= _SHORTEST_INTERVAL_S):
                raise ValueError(f"{name} must be at least {_SHORTEST_INTERVAL_S} seconds, not {value!r}")
            if value > _LONGEST_INTERVAL_S:
                raise ValueError(f"{name} must be at most {_LONGEST_INTERVAL_S:.0e} seconds, not {value!r}")
        if not isinstance(self.history, int) or not 1 <= self.history <= sys.maxsize:
            raise ValueError(f"history must be a positive number of samples, not {self.history!r}")
        _check_callable("callback", self.callback)
        _check_callable("on_error", self.on_error)
        if self.pcie not in ("sampled", "continuous"):
            raise ValueError(f'pcie must be "sampled" or "continuous", not {self.pcie!r}')


class Monitor(History):
    """A running monitor; made by :func:`start_background`. Every method may be called from any thread.

    As a context manager it stops at the end of the block. In a forked child it is over, and its history stays.
    """

    def __init__(self, settings: _Settings) -> None:
        clock = settings.clock
        super().__init__(settings.history, int(settings.interval * SECOND), clock)
        self.lanes_ns = int(settings.medium_interval * SECOND), int(settings.slow_interval * SECOND)
        self.process_ns = int(settings.process_interval * SECOND)
        self.gpm = settings.gpm
        self.continuous = settings.pcie == "continuous"
        #: Why no samples arrive (a driver that does not answer, a device name that fits none), or None.
        self.problem: str | None = None
        self._samplers: list[DeviceSampler] = []
        self._final: MonitorStats | None = None
        self._follows: tuple[Opening, Devices] | None = None
        self._dispatcher: Dispatcher | None = None
        if settings.callback is not None:
            self._dispatcher = Dispatcher(settings.callback, settings.on_error, monotonic_ns=clock.monotonic_ns)

    @property
    def running(self) -> bool:
        """False after :meth:`stop` and in a forked child."""
        return not self._stopped

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices being watched."""
        return tuple(sampler.device for sampler in self._samplers)

    def stats(self) -> MonitorStats:
        """Ticks, losses and cost so far; after ``stop()`` those until then."""
        if self._final is not None:
            return self._final
        each = tuple(sampler.stats() for sampler in self._samplers)
        samples = sum(one.samples for one in each)
        calls = self._dispatcher
        return MonitorStats(
            samples=self._taken,
            ticks=sum(one.ticks for one in each),
            late=sum(one.late for one in each),
            skipped=sum(one.skipped for one in each),
            mean_cost_ns=sum(one.mean_cost_ns * one.samples for one in each) / samples if samples else 0.0,
            max_cost_ns=max((one.max_cost_ns for one in each), default=0),
            callbacks=calls.calls if calls else 0,
            callbacks_dropped=calls.dropped if calls else 0,
            callback_errors=calls.errors if calls else 0,
            callback_ns=calls.spent_ns if calls else 0,
            samplers=each,
        )

    def stop(self, timeout: float = 2.0) -> None:
        """Ends sampling for this monitor; its history stays readable. No callback begins after this returns.

        May be called again, from any thread, and from the callback. Waits up to ``timeout`` seconds for a callback
        or driver calls that are under way.
        """
        deadline_s = time.monotonic() + timeout
        with self._lock:
            samplers = [] if self._stopped else self._samplers
            self._stopped = True
        if self._dispatcher is not None:
            self._dispatcher.stop(timeout)
        if self._follows is not None:
            self._follows[0].leave(self._adopt)
        self._final = self._final or self.stats()
        for sampler in samplers:
            shared.leave(self, sampler)
        for sampler in samplers:
            sampler.join(deadline_s)
        if shared.current is self:
            shared.current = None

    def __enter__(self) -> "Monitor":  # noqa: PYI034  (typing.Self is Python 3.11)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def accept(self, sample: GpuMetrics) -> None:
        """Takes one sample from a sampler; not for users."""
        with self._lock:
            if self._stopped:
                return
            self._remember(sample)
        if self._dispatcher is not None:
            self._dispatcher.put(sample)

    def _begin(self, source: MetricsSource, wanted: Devices) -> None:
        try:
            if self._dispatcher is not None:
                self._dispatcher.start()
            for device in _chosen(source, wanted):
                self._attach(source, device)
        except RuntimeError as error:  # the interpreter is ending and starts no more threads
            self.problem = str(error)
            return
        self.problem = None

    def _attach(self, source: MetricsSource, device: DeviceInfo) -> None:
        with shared.lock, self._lock:
            if self._stopped:
                return
            sampler = shared.attach(self, source, device, self._clock)
            self._samplers.append(sampler)
            if self._stopped:  # by a signal handler on this thread, which could not know of this sampler yet
                shared.leave(self, sampler)

    def _begin_later(self, opening: Opening, wanted: Devices) -> None:
        opening.ready.wait()
        try:
            self._begin(opening.merged(), wanted)
        except ValueError as error:
            self.problem = str(error)
        self._follow(opening, wanted)

    def _follow(self, opening: Opening, wanted: Devices) -> None:
        """Watches devices that come later, too."""
        with self._lock:
            if not self._stopped:
                self._follows = opening, wanted
                opening.follow(self._adopt)

    def _adopt(self) -> None:
        if self._follows is None or self._stopped:
            return
        opening, wanted = self._follows
        try:
            for device in _chosen(source := opening.merged(), wanted):
                if not device_identity.is_among(device, self.devices):
                    self._attach(source, device)
        except (RuntimeError, ValueError) as error:
            log.debug("new devices are not watched: %s", error)

    def at_exit(self) -> None:
        """Ends sampling without waiting for a driver call under way; NVML is left to the end of the process."""
        self.stop(timeout=EXIT_S)

    def after_fork_in_child(self) -> None:
        """The child has none of our threads: this monitor is over, its history stays."""
        self._lock = threads.rlock()
        self._stopped = True
        self._dispatcher = self._follows = None
        self.problem = "this process was forked; start a monitor of its own"


def start_background(
    callback: Callable[[GpuMetrics], object] | None = None,
    interval: float = 0.1,
    devices: Devices = None,
    history: int = 600,
    on_error: Callable[[BaseException], object] | None = None,
    *,
    medium_interval: float = 1.0,
    slow_interval: float = 10.0,
    process_interval: float = 10.0,
    gpm: bool = False,
    pcie: str = "sampled",
    open_timeout: float = 2.0,
    source: MetricsSource | None = None,
    clock: Clock | None = None,
) -> Monitor:
    """A running :class:`Monitor`; ``callback(metrics)`` is called once a device and sample, on a thread of its own.

    ``interval``: seconds between samples (at least 0.005). ``history``: samples kept for each device. ``devices``: all
    by default, or indices, UUIDs or their beginnings, PCI addresses, entries of :func:`gpusense.devices`, or "visible"
    for those CUDA_VISIBLE_DEVICES shows. What costs more or changes less is read every ``medium_interval`` and
    ``slow_interval`` seconds. ``process_interval``: how many seconds old the list of processes may be. ``gpm`` adds SM,
    tensor and memory activity on Hopper and later. ``pcie="continuous"`` measures all PCIe traffic where "sampled"
    looks at 25 ms every 2 s, because reading a byte counter costs 0.2 ms on an H100; ``metrics.pcie.rate_window_s``
    says what a rate is the mean of. ``source`` is sampled in place of this machine's devices, by ``clock``; both are
    for tests.

    ``callback`` is never called twice at once. Where it is slower than the samples, the oldest waiting one is dropped
    and counted. What it raises goes to ``on_error`` (to the log by default), once in ten seconds for each type of
    exception, and sampling goes on.

    Returns within ``open_timeout`` seconds even if a driver hangs: ``monitor.problem`` then says so, and sampling
    begins when it answers.

    Raises ValueError for an interval or history that makes no sense, and for a device name that fits none; TypeError
    for a callback that cannot be called, or is ``async def`` (it would have to be awaited, and nobody does).
    """
    settings = _Settings(
        callback=callback,
        on_error=on_error,
        interval=interval,
        history=history,
        medium_interval=medium_interval,
        slow_interval=slow_interval,
        process_interval=process_interval,
        gpm=gpm,
        pcie=pcie,
        clock=clock or Clock(),
    )
    settings.validate()
    monitor = Monitor(settings)
    source = source or shared.replacement
    opening = None if source is not None else shared.opening()
    if opening is not None and opening.ready.wait(open_timeout):
        source = opening.merged()
    if source is not None:
        _chosen(source, devices)
    process.register(monitor)
    shared.current = monitor
    if source is not None:
        monitor._begin(source, devices)
        if opening is not None:
            monitor._follow(opening, devices)
    elif opening is not None:
        monitor.problem = opening.problem or "no answer yet"
        log.once("monitor slow open", "the monitor: %s; sampling begins when it does", monitor.problem)
        threads.start(lambda: monitor._begin_later(opening, devices), "gpusense-open")
    return monitor


def snapshot(devices: Devices = None, *, gpm: bool = False, timeout: float = 5.0) -> tuple[GpuMetrics, ...]:
    """One full sample of every device (or of those named), now; empty without devices.

    Rates need two readings: the first snapshot of a process has none, and says so. Empty also where a driver did not
    answer within ``timeout`` seconds (logged). Raises ValueError for a device name that fits none.
    """
    source = shared.source(timeout)
    if source is None:
        return ()
    lanes = ("fast", "medium", "slow", *(("gpm",) if gpm else ()))
    return tuple(ask(source, device, lanes, Clock()) for device in _chosen(source, devices))


def own_usage(*, timeout: float = 5.0) -> tuple[OwnUsage, ...]:
    """What this process itself uses of every device: memory and, where the driver reports it, its share of the SMs.

    None with a reason where the driver's process list cannot be joined to this process: in a container its pids are
    the host's.
    """
    pid = os.getpid()
    source = shared.source(timeout)
    if source is None:
        return ()
    return tuple(_own(source.sample(device, ("medium",)), pid) for device in source.devices())


def sources(timeout: float = 5.0) -> tuple[Backend | Unavailable, ...]:
    """Every metrics backend of this process: open, or unavailable with the reason."""
    opening = shared.opening()
    if not opening.ready.wait(timeout):
        return (Unavailable("monitor", opening.problem or "not open yet"),)
    return opening.backends


def collectives() -> tuple[CollectiveTotals, ...]:
    """Sums of NCCL's collectives in this process so far, by function and communicator. They are made where gpusense
    hands the collectives on, ten times a second, whether anybody keeps records of them or not. None where NCCL tells
    nothing: :func:`gpusense.integrations.nccl.instrument` says why. Any thread may ask.
    """
    source = sys.modules.get(f"{package.NAME}.backends.nccl.source")  # not loaded: nothing is told
    return source.totals() if source is not None else ()


def current() -> Monitor | None:
    """The monitor started last, while it runs; None otherwise."""
    found: Monitor | None = shared.current
    return found


def _chosen(source: MetricsSource, wanted: Devices) -> tuple[DeviceInfo, ...]:
    def instances(device: DeviceInfo) -> list[str]:
        found = ask(source, device, ("medium",), Clock()).instances
        return [one.uuid for one in found or () if one.uuid is not None]

    return device_identity.chosen(wanted, source.devices(), os.environ.get(_VISIBLE), instances)


def why_none() -> tuple[Unavailable, ...]:
    """Why there is no device of those that were asked for; not for users."""
    source = shared.source(0.0)  # whoever asks has waited
    count = len(source.devices()) if source is not None else 0
    shown = os.environ.get(_VISIBLE)
    if count and shown is not None:  # then "visible" was asked for
        devices = "the device" if count == 1 else f"any of the {count} devices"
        return (Unavailable(_VISIBLE, f"{shown!r} does not show {devices} of this machine"),)
    return tuple(one for one in sources() if isinstance(one, Unavailable))


def _own(sample: GpuMetrics, pid: int) -> OwnUsage:
    if sample.processes is None:
        return OwnUsage(sample.device, pid, reason=sample.reason("processes"))
    for row in sample.processes:
        if row.pid == pid and row.visible is not False:
            why = (
                "unsupported: the driver does not say how much a process uses"
                if row.memory_used_bytes is None
                else None
            )
            return OwnUsage(sample.device, pid, row.memory_used_bytes, row.gpu_percent, why)
    if any(row.visible is False and row.name is None for row in sample.processes):
        return OwnUsage(sample.device, pid, reason="denied: the driver's pids belong to another pid namespace")
    return OwnUsage(sample.device, pid, memory_used_bytes=0)


def _check_callable(name: str, passed: object) -> None:
    if passed is None:
        return
    if not callable(passed):
        raise TypeError(f"{name} must be callable, not {passed!r}")
    if getattr(getattr(passed, "__code__", None), "co_flags", 0) & _COROUTINE:
        raise TypeError(f"{name} must not be a coroutine function: it is called on a thread, and nobody would await it")
