"""One NVIDIA device: what it is, its handle, its state, and a sample of any lane."""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from .._capi import nvml as c
from .._metrics import GpuMetrics, without_values
from .._records import DeviceInfo
from . import _host
from .nvml_events import Events
from .nvml_lanes import PCIE_LANE, Fast, Medium, Shared, Slow
from .nvml_library import DeviceGone, LibraryGone, Nvml, NvmlError, as_text
from .nvml_reader import Packed, Reader

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_PATIENCE_S = 2.0  # for another thread that reads the same lane


def normal_bus_id(text: str) -> str:
    """ "00000000:1B:00.0" as the system writes it: "0000:1b:00.0"."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:] if domain[:-4].strip('0') == '' else domain}:{rest}"


def describe(nvml: Nvml, handle: int, index: int, nvml_index: int | None, code: int = 0) -> DeviceInfo:
    """What NVML knows about a device; with a result code instead of a handle, that it exists and does not answer."""
    if not handle:
        return DeviceInfo(
            index, "NVIDIA GPU", "nvidia", "nvml", nvml_index=nvml_index, details=(("error", c.code_name(code)),)
        )
    api = nvml.api
    memory = Packed(c.MEMORY)
    total = None if api.nvmlDeviceGetMemoryInfo(handle, memory.buffer) else memory.members()[0]
    bus = _bus_id(nvml, handle)
    name = nvml.text(api.nvmlDeviceGetName, handle) or "NVIDIA GPU"
    virtual = nvml.number(api.nvmlDeviceGetVirtualizationMode, handle) == 2
    unified = Shared(name, "").unified or total is None
    return DeviceInfo(
        index,
        name,
        "nvidia",
        "nvml",
        uuid=nvml.text(api.nvmlDeviceGetUUID, handle),
        pci_bus_id=bus and normal_bus_id(bus),
        memory_total_bytes=total if total and total < 1 << 50 else None,
        compute_capability=_capability(nvml, handle),
        clock_max_mhz=nvml.number(api.nvmlDeviceGetMaxClockInfo, handle, 1),
        memory_clock_max_mhz=nvml.number(api.nvmlDeviceGetMaxClockInfo, handle, 2),
        driver=nvml.version,
        nvml_index=nvml_index,
        kind="virtual" if virtual else "integrated" if unified else "discrete",
        memory_bus_width_bits=nvml.number(api.nvmlDeviceGetMemoryBusWidth, handle),
    )


def _bus_id(nvml: Nvml, handle: int) -> str | None:
    buffer = ctypes.create_string_buffer(c.PCI_INFO_BYTES + 256)
    if nvml.api.nvmlDeviceGetPciInfo_v3(handle, buffer) != c.SUCCESS:
        return None
    start, length = c.PCI_BUS_ID
    return as_text(buffer.raw[start : start + length])


def _capability(nvml: Nvml, handle: int) -> tuple[int, int] | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    code = nvml.api.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    return (major.value, minor.value) if code == c.SUCCESS else None


class Device:
    """Samples one device. Each lane has its own memory, so that lanes may run on different threads."""

    def __init__(self, nvml: Nvml, info: DeviceInfo, events: Events, *, sysfs: str, procfs: str) -> None:
        self.info = info
        self.handle = 0
        self._nvml = nvml
        self._events = events
        self._sysfs = sysfs
        self._shared = Shared(info.name, procfs)
        api = nvml.api
        self._fast = Fast(api, self._shared)
        self._lanes: dict[str, Reader] = {
            "fast": self._fast,
            "medium": Medium(api, self._shared),
            "slow": Slow(api, self._shared),
        }
        self._generation = 0
        self._life = 0  # what readers learned before a trouble is not believed after it
        self._may_sleep = _host.may_sleep(info.pci_bus_id, sysfs)
        self._trouble: tuple[str, str] | None = None  # (state, reason) while the device is not asked
        self._retry_ns = 0
        self._pause_s = _FIRST_PAUSE_S

    def watchable(self) -> int:
        """The handle to register for events, or 0: a device that sleeps or is lost is left alone."""
        if self._may_sleep and _host.asleep(self.info.pci_bus_id, self._sysfs) is not None:
            return 0
        try:
            self._attach()
        except NvmlError:
            return 0
        return self.handle

    def sample(self, lanes: Sequence[str]) -> GpuMetrics:
        start = time.monotonic_ns()
        bare = GpuMetrics(self.info, time.time_ns(), start, source="nvml")
        if self._may_sleep:
            why = _host.asleep(self.info.pci_bus_id, self._sysfs)
            if why is not None:
                return without_values(bare, "sleeping", why)
        if self._trouble is not None and start < self._retry_ns:
            return without_values(bare, *self._trouble)
        return self._ask(bare, lanes, start)

    def counter_period_s(self) -> float | None:
        peak = self._shared.pcie_peak
        if peak is None or not self._shared.wraps or not self._shared.pcie_by_field:
            return None
        return 0.8 * (1 << 32) / peak

    def _ask(self, bare: GpuMetrics, lanes: Sequence[str], start: int) -> GpuMetrics:
        try:
            try:
                self._attach()
                return self._read(bare, lanes, start)
            except LibraryGone as error:  # someone shut NVML down, or the driver was reloaded: once more from the start
                self._nvml.lost(self._generation, error.code)
                self._attach()
                return self._read(bare, lanes, start)
        except NvmlError as error:
            if isinstance(error, LibraryGone):
                self._nvml.lost(self._generation, error.code)
            self.handle = 0
            return self._set_trouble("lost", f"lost: {error}", start, bare)

    def _read(self, bare: GpuMetrics, lanes: Sequence[str], start: int) -> GpuMetrics:
        if "counters" in lanes:
            with self._fast.lock:
                self._fast.begin(self.handle, (self._generation, self._life))
                self._fast.read_counters(start)
        metrics = bare
        good = transient = odd = 0
        for lane, reader in self._lanes.items():
            if lane not in lanes:
                odd += reader.out_of_range
                continue
            if not reader.lock.acquire(timeout=_PATIENCE_S):
                return without_values(bare, "degraded", "stale: another thread still waits for the driver")
            try:
                reader.begin(self.handle, (self._generation, self._life))
                parts = reader.read(time.monotonic_ns(), "gpm" in lanes)
            finally:
                reader.lock.release()
            odd += reader.out_of_range
            metrics = _combine(metrics, parts, reader.reasons())
            good, transient = good + reader.good, transient + reader.transient
        if "slow" in lanes:
            metrics = self._xid(metrics)
        if not good and (transient or self._trouble is not None):
            why = next((why for _, why in metrics.reasons if why.startswith("stale")), "stale: no call succeeds")
            return self._set_trouble("degraded", why, start, bare)
        if good:
            self._trouble, self._pause_s = None, _FIRST_PAUSE_S
        cost = time.monotonic_ns() - start
        return metrics._replace(device=self.info, cost_ns=cost, time_ns=bare.time_ns + cost // 2, out_of_range=odd)

    def _xid(self, metrics: GpuMetrics) -> GpuMetrics:
        xid, count, why = self._events.last(self.handle)
        reasons = metrics.reasons
        if xid is None:
            reasons += (("health.last_xid", why or "unsupported: no Xid so far"),)
        if why is not None:
            reasons += (("health.xid_count", why),)
        return metrics._replace(health=metrics.health._replace(last_xid=xid, xid_count=count), reasons=reasons)

    def _attach(self) -> None:
        """Makes sure that the handle belongs to the library as initialised now."""
        generation = self._nvml.ready()
        if generation == self._generation and self.handle:
            return
        code, handle = self._find_handle()
        if code:
            gone = LibraryGone if code in c.LIBRARY_GONE else DeviceGone
            raise gone("nvmlDeviceGetHandle", code)
        self.handle, self._generation = handle, generation
        if self.info.uuid is None:  # it slept, or was lost, when the devices were listed
            known = describe(self._nvml, handle, self.info.index, self.info.nvml_index)
            self.info = known._replace(pci_bus_id=known.pci_bus_id or self.info.pci_bus_id)
            self._shared.identify(self.info.name)
        self._peak()

    def _find_handle(self) -> tuple[int, int]:
        nvml, info = self._nvml, self.info
        ways: list[tuple[Callable[..., int], Any]] = []
        if info.uuid is not None:
            ways.append((nvml.api.nvmlDeviceGetHandleByUUID, info.uuid.encode()))
        if info.pci_bus_id is not None:
            ways.append((nvml.api.nvmlDeviceGetHandleByPciBusId_v2, info.pci_bus_id.encode()))
        if not ways:
            ways.append((nvml.api.nvmlDeviceGetHandleByIndex_v2, info.nvml_index or 0))
        code = c.NOT_FOUND
        for function, key in ways:
            code, handle = nvml.handle(function, key)
            if not code:
                return 0, handle
        return code, 0

    def _peak(self) -> None:
        nvml, api = self._nvml, self._nvml.api
        generation = nvml.number(api.nvmlDeviceGetMaxPcieLinkGeneration, self.handle)
        width = nvml.number(api.nvmlDeviceGetMaxPcieLinkWidth, self.handle)
        if generation and width:
            self._shared.pcie_peak = PCIE_LANE.get(generation, 16e9) * width

    def _set_trouble(self, state: str, why: str, now_ns: int, bare: GpuMetrics | None = None) -> GpuMetrics:
        self._trouble = state, why
        self._life += 1
        self._retry_ns = now_ns + int(self._pause_s * 1e9)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        if bare is None:
            bare = GpuMetrics(self.info, time.time_ns(), now_ns, source="nvml")
        return without_values(bare, state, why)


def _combine(metrics: GpuMetrics, parts: dict[str, Any], reasons: tuple[tuple[str, str], ...]) -> GpuMetrics:
    """``metrics`` with the groups one lane read; groups of several lanes are joined field by field."""
    changed: dict[str, Any] = {"reasons": metrics.reasons + reasons if metrics.reasons else reasons}
    for name, part in parts.items():
        before = getattr(metrics, name)
        if isinstance(before, tuple) and hasattr(before, "_make") and any(value is not None for value in before):
            part = before._make([a if a is not None else b for a, b in zip(before, part, strict=True)])
        changed[name] = part
    return metrics._replace(**changed)
