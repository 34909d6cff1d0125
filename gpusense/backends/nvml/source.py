"""NVIDIA devices through NVML: found, distinguished, sampled. ``open()`` wakes no sleeping device and never raises."""

import os
import time
from collections.abc import Sequence

from ..._capi import nvml as c
from ..._capi.libraries import NVML
from ..._capi.loading import load
from ..._records.metrics import GpuMetrics, without_values
from ..._records.protocols import Backend
from ..._records.records import DeviceInfo, Unavailable
from ..._runtime import threads
from ..sysfs import asleep, pci_gpus
from .device import Device, describe, normal_bus_id
from .events import Events
from .library import LibraryGone, Nvml, bound

_VENDOR = 0x10DE
_sources: "dict[tuple[str, str, str], NvmlSource]" = {}


def open(*, sysfs: str = "/sys", procfs: str = "/proc") -> Backend | Unavailable:
    """The backend, or why there is none. With every NVIDIA device asleep NVML is loaded but not initialised.

    The same library gives the same source each time, so that a process initialises NVML once.
    """
    loaded = load(NVML)
    if isinstance(loaded, Unavailable):
        return Unavailable("nvml", loaded.reason, loaded.hint)
    key = loaded.path, sysfs, procfs
    source = _sources.get(key)
    if source is None:
        nvml = Nvml(bound(loaded.library, loaded.path), loaded.path)
        source = _sources.setdefault(key, NvmlSource(nvml, sysfs=sysfs, procfs=procfs))
    try:
        source.rescan()
    except LibraryGone as error:
        return Unavailable("nvml", str(error), c.HINTS.get(error.code, ""))
    if not source.devices():
        return Unavailable("nvml", "the driver shows this process no device", c.HINTS[c.NO_PERMISSION])
    return Backend("nvml", loaded.path, source.version, devices=source, metrics=source)


class NvmlSource:
    """Devices and samples. Different devices, and different lanes of one device, may be sampled from different threads.

    ``sample`` never raises: a device that is asleep, lost or refused is a sample in that state, asked again with
    growing pauses.
    """

    def __init__(self, nvml: Nvml, *, sysfs: str = "/sys", procfs: str = "/proc") -> None:
        self._nvml = nvml
        self._sysfs = sysfs
        self._procfs = procfs
        self._devices: dict[str, Device] | None = None
        self._lock = threads.rlock()
        self._pid = os.getpid()
        self._events = Events(nvml.api)

    @property
    def version(self) -> str | None:
        """The driver's version, once NVML has been initialised."""
        return self._nvml.version

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Every NVIDIA device of the machine that this process may see, in NVML's order, sleeping ones last.

        Raises :class:`LibraryGone` where NVML cannot be initialised.
        """
        return tuple(device.info for device in self._known().values())

    def rescan(self) -> None:
        """Looks for devices that have come since. Those that were known stay, also where they are lost now.

        Raises :class:`LibraryGone` where NVML cannot be initialised.
        """
        known = self._known()
        if known and not set(pci_gpus(_VENDOR, self._sysfs)) - {device.info.pci_bus_id for device in known.values()}:
            return
        with self._lock:
            found = self._find()
            lost = {device.info.nvml_index for device in known.values() if device.info.pci_bus_id is None}
            fresh = [
                device
                for device in found.values()
                if self._device(device.info) is None and device.info.nvml_index not in lost
            ]
            for place, device in enumerate(fresh, len(known)):
                device.info = device.info._replace(index=place)
            self._devices = {**known, **{_key(device.info): device for device in fresh}}

    def sample(self, device: DeviceInfo, lanes: Sequence[str] = ("fast", "medium")) -> GpuMetrics:
        """Lanes: "fast", "medium", "slow", "counters" (only feeds the PCIe rate) and, on request, "gpm" beside one.

        With "lean" beside them, as a running monitor asks, "fast" leaves the PCIe counters alone and "medium" repeats
        PCIe rates, processes and what changes by hand, unless "pcie" or "processes" asks for them. "anew" comes after a
        time in which nobody watched: nothing is repeated, and no rate reaches back before it.
        """
        try:
            known = self._device(device)
        except LibraryGone as error:
            return self._nothing(device, f"lost: {error}")
        if known is None:
            return self._nothing(device, "lost: this process sees no such device")
        return known.sample(lanes)

    def counter_period_s(self, device: DeviceInfo) -> float | None:
        """How often "counters" must be read so that no byte counter wraps twice unseen; None where none can."""
        known = self._device(device)
        return known.counter_period_s() if known is not None else None

    def watch(self) -> None:
        """Begins to count Xid errors on a thread of its own; ``unwatch`` as often as this."""
        try:
            handles = [handle for device in self._known().values() if (handle := device.watchable())]
        except LibraryGone:
            handles = []
        self._events.watch(handles)

    def unwatch(self) -> None:
        self._events.unwatch()

    def close(self) -> None:
        """Balances our nvmlInit. The next call initialises again."""
        self._nvml.close()

    def _device(self, info: DeviceInfo) -> Device | None:
        key, known = _key(info), self._known()
        # One that was lost or asleep when it was listed has got its name since.
        return known.get(key) or next((one for one in known.values() if _key(one.info) == key), None)

    def _known(self) -> dict[str, Device]:
        if self._pid != os.getpid():  # a forked child: no thread of ours is here, locks may be held for ever
            self._pid = os.getpid()
            self._lock = threads.rlock()
            self._events = Events(self._nvml.api)
            self._devices = None
        devices = self._devices
        if devices is None:
            with self._lock:
                devices = self._devices
                if devices is None:
                    devices = self._devices = self._find()
        return devices

    def _find(self) -> dict[str, Device]:
        found = pci_gpus(_VENDOR, self._sysfs)
        sleeping = [bus for bus in found if asleep(bus, self._sysfs)]
        awake = [bus for bus in found if bus not in sleeping]
        infos: list[DeviceInfo] = []
        if awake or not sleeping:
            self._nvml.attach = not sleeping
            self._nvml.ready()
            infos = self._by_address(awake) if sleeping else self._by_index()
        for bus in sleeping:
            infos.append(DeviceInfo(len(infos), "NVIDIA GPU (asleep)", "nvidia", "nvml", pci_bus_id=bus))
        return {
            _key(info): Device(self._nvml, info, self._events, sysfs=self._sysfs, procfs=self._procfs) for info in infos
        }

    def _by_index(self) -> list[DeviceInfo]:
        nvml = self._nvml
        infos: list[DeviceInfo] = []
        self._versions()
        for index in range(nvml.count()):
            code, handle = nvml.handle(nvml.api.nvmlDeviceGetHandleByIndex_v2, index)
            if code == c.NO_PERMISSION:
                continue  # counted by the driver, but another container's
            infos.append(describe(nvml, handle, len(infos), index, code))
        return infos

    def _by_address(self, addresses: list[str]) -> list[DeviceInfo]:
        """As :meth:`_by_index` without touching the devices that sleep."""
        nvml = self._nvml
        infos: list[DeviceInfo] = []
        self._versions()
        for address in addresses:
            code, handle = nvml.handle(nvml.api.nvmlDeviceGetHandleByPciBusId_v2, address.encode())
            if code in (c.NO_PERMISSION, c.NOT_FOUND):
                continue
            index = nvml.number(nvml.api.nvmlDeviceGetIndex, handle) if handle else None
            infos.append(describe(nvml, handle, len(infos), index, code)._replace(pci_bus_id=normal_bus_id(address)))
        return infos

    def _versions(self) -> None:
        self._nvml.version = self._nvml.text(self._nvml.api.nvmlSystemGetDriverVersion)

    def _nothing(self, device: DeviceInfo, why: str) -> GpuMetrics:
        bare = GpuMetrics(device, time.time_ns(), time.monotonic_ns(), source="nvml")
        return without_values(bare, "lost", why)


def _key(device: DeviceInfo) -> str:
    """By the address: boards in a series may have been given one UUID."""
    return device.pci_bus_id or device.uuid or f"nvml:{device.nvml_index}"
