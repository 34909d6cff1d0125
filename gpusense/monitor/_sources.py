"""Every metrics source of this process, opened once, off the caller's thread, and joined to one view of the devices."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from .._records.device_identity import is_among, merged
from .._records.metrics import GpuMetrics, fill
from .._records.protocols import Backend
from .._records.records import DeviceInfo, Unavailable
from .._runtime import log, threads
from .._runtime.interrupts import is_the_programs
from ..backends import BACKENDS, names, open_backend

#: Between two looks for what was absent: as a driver starts, and once it has been looked for in vain.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 2.0, 60.0


class Merged:
    """One metrics source over all: a device known to several is one device."""

    checked = True  # the backends give no NaN

    def __init__(self, devices: tuple[DeviceInfo, ...], parts: dict[int, list[tuple[Any, DeviceInfo]]]) -> None:
        self._devices = devices
        self._parts = parts  # index → (source, the source's own entry)
        self._watching: list[Any] = []  # the sources that watch for events

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._devices

    def extend(self, other: "Merged") -> bool:
        """Takes over what ``other`` has, where that is what is here and something more."""
        if other.devices()[: len(self._devices)] != self._devices:
            return False
        self._devices, self._parts = other.devices(), other._parts
        if self._watching:
            self.watch()
        return True

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
            if hasattr(source, "watch") and source not in self._watching:
                self._watching.append(source)
                source.watch()

    def unwatch(self) -> None:
        watching, self._watching = self._watching, []
        for source in watching:
            source.unwatch()

    def _sources(self) -> list[Any]:
        return list({id(source): source for parts in self._parts.values() for source, _ in parts}.values())


class Opening:
    """The backends of this process, opened on a thread of its own: a driver that hangs never holds the caller.

    What was absent is looked for again, since drivers start late and cards are plugged in: for those who
    :meth:`follow`, and when somebody asks (:meth:`renew`), after pauses that grow to a minute.
    """

    def __init__(self) -> None:
        self.ready = threads.Event()
        self.backends: tuple[Backend | Unavailable, ...] = ()
        self._merged: Merged | None = None
        self._lock = threads.rlock()  # a signal handler may ask in the middle of an answer
        self._late: tuple[DeviceInfo, ...] = ()  # devices that came after the first
        self._asking = ""
        self._followers: tuple[Callable[[], None], ...] = ()
        self._changed = threads.Event()  # of the followers
        self._looking: Any = None  # the thread that looks again
        self._pause_s, self._due_s = _FIRST_LOOK_S, time.monotonic() + _FIRST_LOOK_S
        if threads.start(self._run, "gpusense-open") is None:  # the interpreter is ending
            self.backends = (Unavailable("monitor", "can't start new thread"),)
            self.ready.set()

    @property
    def problem(self) -> str | None:
        """What is still waited for, or None."""
        return None if self.ready.is_set() else f"{self._asking or 'a backend'} has not answered yet"

    def merged(self) -> Merged:
        """The joined view; the same object as long as its devices keep their places."""
        with self._lock:
            merged = self._merge()
            if self._merged is None or not self._merged.extend(merged):
                self._merged = merged
            return self._merged

    def renew(self, timeout_s: float) -> None:
        """Looks again where that is due; where there is no device yet, waits for the outcome."""
        with self._lock:
            if self._looking is not None or time.monotonic() < self._due_s:
                return
            self._looking = thread = threads.start(self._look_once, "gpusense-open")
        if thread is not None and not self.merged().devices():
            thread.join(timeout_s)

    def follow(self, follower: Callable[[], None]) -> None:
        """Calls ``follower()`` after new devices were found, on the thread that found them, until :meth:`leave`."""
        with self._lock:
            self._followers = (*self._followers, follower)
            if self._looking is None:
                self._looking = threads.start(self._run_looking, "gpusense-open")

    def leave(self, follower: Callable[[], None]) -> None:
        with self._lock:
            self._followers = tuple(one for one in self._followers if one != follower)
            self._changed.set()

    def join(self, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` for the thread that looks again, once nobody follows."""
        thread = self._looking
        if thread is not None and thread.ident != threads.thread_id()():
            thread.join(timeout_s)

    def _run(self) -> None:
        found = []
        for name in names("metrics"):
            self._asking = name
            found.append(open_backend(name))
        self.backends = tuple(found)
        self.ready.set()

    def _look_once(self) -> None:
        self._look()
        with self._lock:
            self._looking = None
            if self._followers:  # they came meanwhile
                self._looking = threads.start(self._run_looking, "gpusense-open")

    def _run_looking(self) -> None:
        while True:
            with self._lock:
                if not self._followers:
                    self._looking = None
                    return
                self._changed.clear()
            self._changed.wait(max(0.0, self._due_s - time.monotonic()))
            if time.monotonic() >= self._due_s and self._followers and self._look():
                for follower in self._followers:
                    follower()

    def _look(self) -> bool:
        """Opens what was absent and has the others look for new devices; whether there are any."""
        self.ready.wait()
        before = self.merged().devices()
        rows = [row for row in BACKENDS if "metrics" in row.roles]
        self.backends = tuple(
            known if row.costly else _again(row.name, known) for row, known in zip(rows, self.backends, strict=False)
        )
        found = not all(is_among(device, before) for device in self.merged().devices())
        if found:
            self.backends = tuple(_again(row.name, known) for row, known in zip(rows, self.backends, strict=False))
        self._pause_s = _FIRST_LOOK_S if found else min(2 * self._pause_s, _LONGEST_LOOK_S)
        self._due_s = time.monotonic() + self._pause_s
        return found

    def _merge(self) -> Merged:
        sources: dict[str, Any] = {b.name: b.metrics for b in self.backends if isinstance(b, Backend) and b.metrics}
        listed = {name: _devices(source) for name, source in sources.items()}
        devices = merged({"cuda": _cuda_devices(), **listed})
        parts = {
            device.index: known
            for device, entries in devices
            if (known := [(sources[name], entry) for name, entry in entries if name in sources])
        }
        return self._in_order(tuple(device for device, _ in devices if device.index in parts), parts)

    def _in_order(self, devices: tuple[DeviceInfo, ...], parts: dict[int, list[tuple[Any, DeviceInfo]]]) -> Merged:
        """A device that came later stands behind those that were there: who watches them knows them by their places."""
        known = self._merged.devices() if self._merged is not None else ()
        if known:
            self._late += tuple(device for device in devices if not is_among(device, (*known, *self._late)))
        if not self._late:
            return Merged(devices, parts)
        order = sorted(devices, key=lambda device: is_among(device, self._late))
        placed = tuple(device._replace(index=place) for place, device in enumerate(order))
        return Merged(placed, {place: parts[device.index] for place, device in enumerate(order)})


def _again(name: str, known: Backend | Unavailable) -> Backend | Unavailable:
    """The backend, opened where it was absent, with the devices that are there now."""
    if isinstance(known, Unavailable):
        return open_backend(name)
    try:
        getattr(known.metrics, "rescan", tuple)()
    except Exception as error:  # noqa: BLE001  the driver went away since it was opened
        log.debug("devices of %s: %s", name, error)
    return known


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
