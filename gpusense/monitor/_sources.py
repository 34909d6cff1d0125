"""Every metrics source of this process, opened once, off the caller's thread, and joined to one view of the devices."""

from collections.abc import Sequence
from typing import Any

from .._records.device_identity import merge, same
from .._records.metrics import GpuMetrics, fill
from .._records.protocols import Backend
from .._records.records import DeviceInfo, Unavailable
from .._runtime import threads
from .._runtime.interrupts import is_the_programs
from ..backends import names, open_backend


class Merged:
    """One metrics source over all: a device known to several is one device."""

    checked = True  # the backends give no NaN

    def __init__(self, devices: tuple[DeviceInfo, ...], parts: dict[int, list[tuple[Any, DeviceInfo]]]) -> None:
        self._devices = devices
        self._parts = parts  # index → (source, the source's own entry)

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._devices

    def sample(self, device: DeviceInfo, lanes: Sequence[str] = ("fast", "medium")) -> GpuMetrics:
        """The first source's sample; what it lacks comes from the others, which are asked in the slower lanes only."""
        (first, own), *others = self._parts[device.index]
        found: GpuMetrics = first.sample(own, lanes)
        slower = [lane for lane in lanes if lane in ("medium", "slow")]
        if slower and found.state == "ok":
            for source, entry in others:
                found = fill(found, source.sample(entry, ("fast", *slower)))
        return found._replace(device=device)

    def counter_period_s(self, device: DeviceInfo) -> float | None:
        source, own = self._parts[device.index][0]
        return source.counter_period_s(own) if hasattr(source, "counter_period_s") else None

    def watch(self) -> None:
        for source in self._sources():
            if hasattr(source, "watch"):
                source.watch()

    def unwatch(self) -> None:
        for source in self._sources():
            if hasattr(source, "unwatch"):
                source.unwatch()

    def _sources(self) -> list[Any]:
        return list({id(source): source for parts in self._parts.values() for source, _ in parts}.values())


class Opening:
    """The backends of this process, opened on a thread of its own: a driver that hangs never holds the caller."""

    def __init__(self) -> None:
        self.ready = threads.Event()
        self.backends: tuple[Backend | Unavailable, ...] = ()
        self._merged: Merged | None = None
        self._lock = threads.rlock()  # a signal handler may ask in the middle of an answer
        self._asking = ""
        if threads.start(self._run, "gpusense-open") is None:  # the interpreter is ending
            self.backends = (Unavailable("monitor", "can't start new thread"),)
            self.ready.set()

    @property
    def problem(self) -> str | None:
        """What is still waited for, or None."""
        return None if self.ready.is_set() else f"{self._asking or 'a backend'} has not answered yet"

    def merged(self) -> Merged:
        """The joined view; the same object as long as the devices and their order are the same."""
        with self._lock:
            merged = self._merge()
            if self._merged is None or self._merged.devices() != merged.devices():
                self._merged = merged
            return self._merged

    def _run(self) -> None:
        found = []
        for name in names("metrics"):
            self._asking = name
            found.append(open_backend(name))
        self.backends = tuple(found)
        self.ready.set()

    def _merge(self) -> Merged:
        sources: dict[str, Any] = {b.name: b.metrics for b in self.backends if isinstance(b, Backend) and b.metrics}
        listed = {name: _devices(source) for name, source in sources.items()}
        devices = merge({"cuda": _cuda_devices(), **listed})
        parts: dict[int, list[tuple[Any, DeviceInfo]]] = {}
        for device in devices:
            every = [(sources[name], entry) for name, entries in listed.items() for entry in entries]
            known = [part for part in every if same(device, part[1])]
            if not known:  # an entry without address or UUID stands for itself
                known = [part for part in every if part[1].name == device.name]
            if known:
                parts[device.index] = known
        sampled = tuple(device for device in devices if device.index in parts)
        return Merged(sampled, parts)


def _devices(source: Any) -> tuple[DeviceInfo, ...]:
    try:
        return tuple(source.devices())
    except Exception as error:  # the driver went away since it was opened
        if is_the_programs(error):
            raise
        return ()


def _cuda_devices() -> tuple[DeviceInfo, ...]:
    """CUDA's own list and order where it is live; nothing is loaded or initialised for it."""
    try:
        from ..backends import cuda
    except ImportError:  # a copy of the package without it
        return ()
    return _devices(cuda.SOURCE)
