"""What all monitors of this process share: the open drivers, one sampler for each device, and the monitor in force."""

from typing import Any

from .._records.protocols import MetricsSource
from .._records.records import DeviceInfo
from .._runtime import log, process, threads
from ._sampler import Clock, DeviceSampler, Listener
from ._sources import Opening

EXIT_S = 0.2  # that the interpreter's end waits for a driver call under way


class Shared:
    """One for the process. A forked child begins anew, with the drivers unopened. Methods may be called from any
    thread."""

    def __init__(self) -> None:
        #: Asked instead of the drivers; set by :mod:`..testing`.
        self.replacement: MetricsSource | None = None
        self._begin()
        process.register(self)

    def _begin(self) -> None:
        #: Reentrant: a signal handler or finaliser of the program may ask or stop a monitor in the middle of a call.
        self.lock = threads.rlock()
        #: The monitor started last, while it runs.
        self.current: Any = None
        self.samplers: dict[tuple[int, DeviceInfo], DeviceSampler] = {}
        self._opening: Opening | None = None

    def opening(self) -> Opening:
        """The drivers of this machine, which begin to be opened with the first call."""
        with self.lock:
            if self._opening is None:
                self._opening = Opening()
            return self._opening

    def source(self, timeout: float) -> MetricsSource | None:
        """What devices are sampled from; None where a driver has not answered within ``timeout`` seconds (logged)."""
        if self.replacement is not None:
            return self.replacement
        opening = self.opening()
        if not opening.ready.wait(timeout):
            log.once("monitor slow open", "the monitor: %s", opening.problem)
            return None
        opening.renew(timeout)
        return opening.merged()

    def attach(self, listener: Listener, source: MetricsSource, device: DeviceInfo, clock: Clock) -> DeviceSampler:
        """The sampler of ``device``, which serves ``listener`` too from now on. Raises RuntimeError where no thread can
        be started. Call with the lock held."""
        key = id(source), device
        sampler = self.samplers.get(key)
        if sampler is None:
            lanes = next((other.lanes for other in self.samplers.values() if other.key[0] == id(source)), None)
            sampler = DeviceSampler(source, device, clock, *listener.lanes_ns, lanes)
        sampler.attach(listener)
        self.samplers[key] = sampler
        return sampler

    def leave(self, listener: Listener, sampler: DeviceSampler) -> None:
        """``sampler`` serves ``listener`` no more, and ends with its last one."""
        with self.lock:
            if sampler.retire(listener) and self.samplers.get(sampler.key) is sampler:
                del self.samplers[sampler.key]

    def after_fork_in_child(self) -> None:
        self._begin()

    def at_exit(self) -> None:
        """Each monitor has ended itself by now: they register later, and the last goes first."""
        if self._opening is not None:
            self._opening.join(EXIT_S)


shared = Shared()
