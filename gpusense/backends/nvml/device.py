"""One NVIDIA device: what it is, its handle, its state, and a sample of any lane."""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..._capi import nvml as c
from ..._records.metrics import GpuMetrics, unanswered, without_values
from ..._records.records import DeviceInfo
from ..._runtime import log
from ..sysfs import asleep, may_sleep, never_sleeps
from .events import Events
from .fast import Fast
from .lanes import PCIE_LANE, Board, Medium, Mig, Rare, Shared, Slow, Traffic, Users, is_unified
from .library import DeviceGone, LibraryGone, Nvml, NvmlError, as_text
from .reader import Packed, Reader

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_PATIENCE_S = 2.0  # for another thread that reads the same lane

Step = tuple[Reader, bool]  # and whether its last answer may be repeated


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
    answer = api.nvmlDeviceGetMemoryInfo(handle, memory.buffer)
    total = None if answer else memory.members()[0]
    bus = _bus_id(nvml, handle)
    name = nvml.text(api.nvmlDeviceGetName, handle) or "NVIDIA GPU"
    capability = _capability(nvml, handle)
    virtual = nvml.number(api.nvmlDeviceGetVirtualizationMode, handle) == 2
    unified = is_unified(name, capability)
    return DeviceInfo(
        index,
        name,
        "nvidia",
        "nvml",
        uuid=nvml.text(api.nvmlDeviceGetUUID, handle),
        pci_bus_id=bus and normal_bus_id(bus),
        memory_total_bytes=total if total and total < 1 << 50 else None,
        compute_capability=capability,
        clock_max_mhz=nvml.number(api.nvmlDeviceGetMaxClockInfo, handle, 1),
        memory_clock_max_mhz=nvml.number(api.nvmlDeviceGetMaxClockInfo, handle, 2),
        driver=nvml.version,
        nvml_index=nvml_index,
        kind="virtual" if virtual else "integrated" if unified else None if answer else "discrete",  # lost, or refused
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
        self._handle = 0
        self._nvml = nvml
        self._events = events
        self._sysfs = sysfs
        self._shared = Shared(info, procfs)
        api = nvml.api
        self._fast, self._traffic = Fast(api, self._shared), Traffic(api, self._shared)
        self._medium, self._seldom = Medium(api), (Board(api), Rare(api), Mig(api))
        self._users, self._slow = Users(api, self._shared), Slow(api, self._shared)
        self._readers = (self._fast, self._traffic, self._medium, *self._seldom, self._users, self._slow)
        self._plans: dict[tuple[str, ...], tuple[Step, ...]] = {}
        self._generation = 0
        self._life = 0  # what readers learned before a trouble, a sleep or a gap is not believed after it
        self._may_sleep = may_sleep(info.pci_bus_id, sysfs) and not never_sleeps(info.pci_bus_id, procfs)
        self._slept = False
        self._trouble: tuple[str, str] | None = None  # (state, reason) while the device is not asked
        self._retry_ns = 0
        self._pause_s = _FIRST_PAUSE_S

    def watchable(self) -> int:
        """The handle to register for events, or 0: a device that sleeps or is lost is left alone."""
        if self._may_sleep and asleep(self.info.pci_bus_id, self._sysfs) is not None:
            return 0
        try:
            return self._attach()
        except NvmlError:
            return 0

    def sample(self, lanes: Sequence[str]) -> GpuMetrics:
        start, wall = time.monotonic_ns(), time.time_ns()
        if self._may_sleep:
            why = asleep(self.info.pci_bus_id, self._sysfs)
            if why is not None:
                self._slept = True
                return self._nothing("sleeping", why, start, wall)
        if self._slept or "anew" in lanes:
            self._slept = False
            self._life += 1
        trouble = self._trouble
        if trouble is not None and start < self._retry_ns:
            return self._nothing(*trouble, start, wall)
        try:
            try:
                return self._read(self._attach(), lanes, start, wall)
            except LibraryGone as error:  # someone shut NVML down, or the driver was reloaded: once more from the start
                self._nvml.lost(self._generation, error.code)
                return self._read(self._attach(), lanes, start, wall)
        except NvmlError as error:
            if isinstance(error, LibraryGone):
                self._nvml.lost(self._generation, error.code)
            self._handle = 0
            return self._set_trouble("lost", f"lost: {error}", start, wall)

    def counter_period_s(self) -> float | None:
        shared = self._shared
        if shared.pcie_peak is None or not shared.wraps or not shared.pcie_by_field or shared.pcie_by_gpm:
            return None
        return 0.8 * (1 << 32) / shared.pcie_peak

    def _read(self, handle: int, lanes: Sequence[str], start: int, wall: int) -> GpuMetrics:
        """One pass over the lanes. ``handle`` stays what it was at the start: another lane may lose the device."""
        life = self._generation, self._life
        values: dict[str, Any] = {}
        reasons: tuple[tuple[str, str], ...] = ()
        gpm, feeding, lean = "gpm" in lanes, "counters" in lanes, "lean" in lanes
        for reader, may_rest in self._plans.get(key := tuple(lanes)) or self._plan(key):
            if not reader.lock.acquire(timeout=_PATIENCE_S):
                return self._nothing("degraded", "stale: another thread still waits for the driver", start, wall)
            try:
                now = time.monotonic_ns()
                if not (may_rest and reader.rests(handle, life, now)):
                    reader.begin(handle, life, now)
                    reader.lean = lean
                    if feeding and reader is self._traffic:
                        self._traffic.feed(now)
                        continue
                    reader.parts, reader.read_ns = reader.read(now, gpm), now
                _add(values, reader.parts or {})
                reasons = reasons + reader.reasons() if reasons else reader.reasons()
            finally:
                reader.lock.release()
        if "fast" in lanes:  # of the others too little is asked to distinguish a dead driver from an odd device
            if not self._fast.good and (self._fast.transient or self._trouble is not None):
                why = next((why for _, why in reasons if why.startswith("stale")), "stale: no call succeeds")
                return self._set_trouble("degraded", why, start, wall)
            self._trouble, self._pause_s = None, _FIRST_PAUSE_S
        if "slow" in lanes:
            reasons = self._add_xid(values, reasons, handle)
        cost = time.monotonic_ns() - start
        sample = GpuMetrics(
            self.info,
            wall + cost // 2,
            start,
            cost_ns=cost,
            source="nvml",
            reasons=reasons,
            out_of_range=sum([reader.out_of_range for reader in self._readers]),
            **values,
        )
        # What one reader lacks another may have: the PCIe rates come from three.
        return sample if len(lanes) == 1 else sample._replace(reasons=unanswered(sample, reasons))

    def _plan(self, lanes: tuple[str, ...]) -> tuple[Step, ...]:
        """What these lanes read: all that is in them or, with "lean", what is dear only where it is named."""
        lean, fast, medium = "lean" in lanes, "fast" in lanes, "medium" in lanes
        steps: list[Step] = [(self._fast, False)] if fast else []
        if "pcie" in lanes or "counters" in lanes or (fast and not lean):
            steps.append((self._traffic, False))
        elif medium and lean:
            steps.append((self._traffic, True))
        if medium:
            steps += [(self._medium, False), *((reader, lean) for reader in self._seldom)]
            steps.append((self._users, lean and "processes" not in lanes))
        if "slow" in lanes:
            steps.append((self._slow, False))
        return self._plans.setdefault(lanes, tuple(steps))

    def _add_xid(
        self, values: dict[str, Any], reasons: tuple[tuple[str, str], ...], handle: int
    ) -> tuple[tuple[str, str], ...]:
        xid, count, why = self._events.last(handle)
        values["health"] = values["health"]._replace(last_xid=xid, xid_count=count)
        if xid is None:
            reasons += (("health.last_xid", why or "unsupported: no Xid so far"),)
        return reasons if why is None else (*reasons, ("health.xid_count", why))

    def _attach(self) -> int:
        """The handle, found anew if it belongs to an earlier life of the library."""
        generation, handle = self._nvml.ready(), self._handle
        if generation == self._generation and handle:
            return handle
        code, handle = self._find_handle()
        if code:
            gone = LibraryGone if code in c.LIBRARY_GONE else DeviceGone
            raise gone("nvmlDeviceGetHandle", code)
        self._handle, self._generation = handle, generation
        if self.info.uuid is None:  # it slept, or was lost, when the devices were listed
            known = describe(self._nvml, handle, self.info.index, self.info.nvml_index)
            self.info = known._replace(pci_bus_id=known.pci_bus_id or self.info.pci_bus_id)
            self._shared.identify(self.info)
        nvml, api = self._nvml, self._nvml.api
        fastest = nvml.number(api.nvmlDeviceGetMaxPcieLinkGeneration, handle)
        width = nvml.number(api.nvmlDeviceGetMaxPcieLinkWidth, handle)
        if fastest and width:
            self._shared.pcie_peak = PCIE_LANE.get(fastest, 16e9) * width
        return handle

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
            if not code and self._is_here(handle):
                return 0, handle
        return code or c.NOT_FOUND, 0

    def _is_here(self, handle: int) -> bool:
        """False for another board with the same UUID."""
        bus = _bus_id(self._nvml, handle) if self.info.pci_bus_id is not None else None
        return bus is None or normal_bus_id(bus) == self.info.pci_bus_id

    def _set_trouble(self, state: str, why: str, now_ns: int, wall_ns: int) -> GpuMetrics:
        """Leaves the device alone for a while, longer each time, and forgets what the lanes learned. Logged once."""
        log.once(f"{self.info.uuid} {state}", "%s %s is %s", self.info.name, self.info.pci_bus_id, why)
        self._trouble = state, why
        self._life += 1
        self._retry_ns = now_ns + int(self._pause_s * 1e9)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return self._nothing(state, why, now_ns, wall_ns)

    def _nothing(self, state: str, why: str, now_ns: int, wall_ns: int) -> GpuMetrics:
        return without_values(GpuMetrics(self.info, wall_ns, now_ns, source="nvml"), state, why)


def _add(values: dict[str, Any], parts: dict[str, Any]) -> None:
    """Adds the groups that one lane read; a group of several lanes is joined field by field."""
    for name, part in parts.items():
        before = values.get(name)
        if before is not None and hasattr(before, "_make"):
            part = before._make([a if a is not None else b for a, b in zip(before, part, strict=True)])
        values[name] = part
