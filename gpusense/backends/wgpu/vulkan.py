"""Facts wgpu does not pass on, read from libvulkan: memory heaps and budgets, timestamp period, calibrated clock.

Reading facts makes an instance and no device (about 20 ms). A :class:`Calibrator` makes a device of its own on the
same card; it never touches the application's.
"""

import ctypes
import time
from collections.abc import Iterator
from ctypes import POINTER, addressof, byref, c_char_p, c_float, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from ..._capi import libraries
from ..._capi import vulkan as vk
from ..._capi.binding import bind, missing
from ..._capi.loading import load
from ..._records.records import Unavailable
from ..._runtime.errors import BackendError


class Heap(NamedTuple):
    """One Vulkan memory heap. Budget and usage are None without VK_EXT_memory_budget; usage is this process's."""

    size_bytes: int
    device_local: bool
    budget_bytes: int | None = None
    usage_bytes: int | None = None


class Card(NamedTuple):
    """One physical device as Vulkan describes it."""

    name: str
    vendor_id: int
    device_id: int
    timestamp_period_ns: float
    timestamp_valid_bits: int
    heaps: tuple[Heap, ...]
    pci_bus_id: str | None = None
    uuid: str | None = None  # of 32 hexadecimal digits with dashes, no prefix
    calibrated: bool = False  # has VK_EXT_calibrated_timestamps
    kind: str | None = None  # as in DeviceInfo


_KINDS = {1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}


class Sample(NamedTuple):
    """The device's and the wall clock at one moment, and how far apart the two readings may be."""

    ticks: int
    wall_ns: int
    deviation_ns: int


def cards() -> tuple[Card, ...] | Unavailable:
    """Every physical device, read afresh: budgets change from call to call."""
    api = _open()
    if not api:
        return api  # type: ignore[no-any-return]
    try:
        instance = _Instance(api)
    except BackendError as error:
        return Unavailable("vulkan", str(error))
    try:
        return tuple(_card(api, handle) for handle in instance.physical_devices())
    except BackendError as error:
        return Unavailable("vulkan", str(error))
    finally:
        instance.close()


def matching(found: tuple[Card, ...], vendor_id: int, device_id: int, name: str) -> tuple[Card, ...]:
    """The cards with these ids, distinguished by name where that helps; more than one only for identical cards."""
    same = tuple(card for card in found if (card.vendor_id, card.device_id) == (vendor_id, device_id))
    named = tuple(card for card in same if card.name == name)
    return named or same


class Calibrator:
    """Reads a card's time stamp counter and the host's clock at the same moment. Any thread, but not beside close()."""

    def __init__(self, api: Any, instance: "_Instance", device: c_void_p, read: Any) -> None:
        self._api, self._instance, self._device, self._read = api, instance, device, read
        self._domains = (vk.VkCalibratedTimestampInfoEXT * 2)(
            vk.VkCalibratedTimestampInfoEXT(vk.S_CALIBRATED_TIMESTAMP_INFO, None, vk.TIME_DOMAIN_DEVICE),
            vk.VkCalibratedTimestampInfoEXT(vk.S_CALIBRATED_TIMESTAMP_INFO, None, vk.TIME_DOMAIN_CLOCK_MONOTONIC),
        )

    def sample(self) -> Sample | None:
        """None when the driver refuses or the calibrator is closed."""
        stamps, deviation = (c_uint64 * 2)(), c_uint64()
        if not self._device.value or self._read(self._device, 2, self._domains, stamps, byref(deviation)) != 0:
            return None
        offset_ns, error_ns = _wall_minus_monotonic()
        return Sample(stamps[0], stamps[1] + offset_ns, deviation.value + error_ns)

    def close(self) -> None:
        device, self._device = self._device, c_void_p()
        if device.value:
            self._api.vkDestroyDevice(device, None)
            self._instance.close()


def calibrator(vendor_id: int, device_id: int, name: str) -> Calibrator | Unavailable:
    """A calibrated clock of the one card with these ids, or why there is none."""
    api = _open()
    if not api:
        return api  # type: ignore[no-any-return]
    instance = None
    try:
        instance = _Instance(api)
        made = _calibrator(api, instance, (vendor_id, device_id, name))
    except BackendError as error:
        made = Unavailable("vulkan", str(error))
    if not made and instance is not None:
        instance.close()
    return made


class _Instance:
    """A Vulkan instance of our own, without layers or extensions."""

    def __init__(self, api: Any) -> None:
        self.api, self.handle = api, c_void_p()
        application = vk.VkApplicationInfo(vk.S_APPLICATION_INFO, None, b"gpusense", 1, None, 0, vk.API_VERSION)
        info = vk.VkInstanceCreateInfo(vk.S_INSTANCE_CREATE_INFO, None, 0, ctypes.pointer(application))
        _check("vkCreateInstance", api.vkCreateInstance(byref(info), None, byref(self.handle)))

    def physical_devices(self) -> list[c_void_p]:
        count = c_uint32()
        _check("vkEnumeratePhysicalDevices", self.api.vkEnumeratePhysicalDevices(self.handle, byref(count), None))
        handles = (c_void_p * count.value)()
        code = self.api.vkEnumeratePhysicalDevices(self.handle, byref(count), handles)
        _check("vkEnumeratePhysicalDevices", code)
        return [c_void_p(handles[index]) for index in range(count.value)]

    def close(self) -> None:
        handle, self.handle = self.handle, c_void_p()
        if handle.value:
            self.api.vkDestroyInstance(handle, None)


def _open() -> Any:
    found = load(libraries.VULKAN)
    if isinstance(found, Unavailable):
        return found
    api = bind(found.library, vk.VULKAN, found.path)
    absent = missing(api)
    return Unavailable("vulkan", f"{found.path} lacks {', '.join(absent)}") if absent else api


def _card(api: Any, handle: c_void_p) -> Card:
    extensions = _extensions(api, handle)
    pci = vk.VkPhysicalDevicePCIBusInfoPropertiesEXT(vk.S_PCI_BUS_INFO)
    ids = vk.VkPhysicalDeviceIDProperties(vk.S_ID_PROPERTIES, addressof(pci) if vk.EXT_PCI in extensions else None)
    answer = vk.VkPhysicalDeviceProperties2(vk.S_PROPERTIES_2, addressof(ids))
    api.vkGetPhysicalDeviceProperties2(handle, byref(answer))
    facts = answer.properties
    digits = bytes(ids.deviceUUID).hex()
    address = f"{pci.pciDomain:04x}:{pci.pciBus:02x}:{pci.pciDevice:02x}.{pci.pciFunction:x}"
    return Card(
        name=facts.deviceName.decode("utf-8", "replace"),
        vendor_id=facts.vendorID,
        device_id=facts.deviceID,
        timestamp_period_ns=c_float.from_address(addressof(facts.limits) + vk.TIMESTAMP_PERIOD_OFFSET).value,
        timestamp_valid_bits=_valid_bits(api, handle),
        heaps=tuple(_heaps(api, handle, vk.EXT_BUDGET in extensions)),
        pci_bus_id=address if vk.EXT_PCI in extensions else None,
        uuid="-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])),
        calibrated=vk.EXT_CALIBRATED in extensions,
        kind=_KINDS.get(facts.deviceType),
    )


def _heaps(api: Any, handle: c_void_p, has_budget: bool) -> Iterator[Heap]:
    budget = vk.VkPhysicalDeviceMemoryBudgetPropertiesEXT(vk.S_MEMORY_BUDGET)
    answer = vk.VkPhysicalDeviceMemoryProperties2(vk.S_MEMORY_PROPERTIES_2, addressof(budget) if has_budget else None)
    api.vkGetPhysicalDeviceMemoryProperties2(handle, byref(answer))
    memory = answer.memoryProperties
    for index in range(min(memory.memoryHeapCount, 16)):
        heap = memory.memoryHeaps[index]
        yield Heap(
            size_bytes=heap.size,
            device_local=bool(heap.flags & vk.HEAP_DEVICE_LOCAL),
            budget_bytes=budget.heapBudget[index] if has_budget else None,
            usage_bytes=budget.heapUsage[index] if has_budget else None,
        )


def _valid_bits(api: Any, handle: c_void_p) -> int:
    """Of the first queue family, which is the one wgpu uses; 0 when it has no time stamps."""
    count = c_uint32()
    api.vkGetPhysicalDeviceQueueFamilyProperties(handle, byref(count), None)
    families = (vk.VkQueueFamilyProperties * count.value)()
    api.vkGetPhysicalDeviceQueueFamilyProperties(handle, byref(count), families)
    return families[0].timestampValidBits if count.value else 0


def _extensions(api: Any, handle: c_void_p) -> set[bytes]:
    count = c_uint32()
    api.vkEnumerateDeviceExtensionProperties(handle, None, byref(count), None)
    rows = (vk.VkExtensionProperties * count.value)()
    api.vkEnumerateDeviceExtensionProperties(handle, None, byref(count), rows)
    return {row.extensionName for row in rows[: count.value]}


def _calibrator(api: Any, instance: _Instance, wanted: tuple[int, int, str]) -> Calibrator | Unavailable:
    handles = instance.physical_devices()
    found = [_card(api, handle) for handle in handles]
    same = matching(tuple(found), *wanted)
    if not same:
        return Unavailable("vulkan", f"Vulkan does not list {wanted[2]}")
    if len(same) > 1:
        return Unavailable("vulkan", f"{len(same)} cards are called {wanted[2]}: which one's clock to read is unknown")
    if not same[0].calibrated:
        return Unavailable("vulkan", f"{same[0].name} has no {vk.EXT_CALIBRATED.decode()}")
    handle = handles[found.index(same[0])]
    if vk.TIME_DOMAIN_CLOCK_MONOTONIC not in _time_domains(api, instance, handle):
        return Unavailable("vulkan", f"{same[0].name} cannot be calibrated against CLOCK_MONOTONIC")
    device = _device(api, handle)
    address = api.vkGetDeviceProcAddr(device, b"vkGetCalibratedTimestampsEXT")
    if not address:
        api.vkDestroyDevice(device, None)
        return Unavailable("vulkan", f"{same[0].name} has no vkGetCalibratedTimestampsEXT")
    return Calibrator(api, instance, device, vk.GET_CALIBRATED(address))


def _time_domains(api: Any, instance: _Instance, handle: c_void_p) -> list[int]:
    address = api.vkGetInstanceProcAddr(instance.handle, b"vkGetPhysicalDeviceCalibrateableTimeDomainsEXT")
    if not address:
        return []
    ask = vk.GET_TIME_DOMAINS(address)
    count = c_uint32()
    ask(handle, byref(count), None)
    domains = (c_uint32 * count.value)()
    ask(handle, byref(count), domains)
    return list(domains)


def _device(api: Any, handle: c_void_p) -> c_void_p:
    device, priority = c_void_p(), c_float(0.0)
    queue = vk.VkDeviceQueueCreateInfo(vk.S_DEVICE_QUEUE_CREATE_INFO, None, 0, 0, 1, ctypes.pointer(priority))
    names = (c_char_p * 1)(vk.EXT_CALIBRATED)
    info = vk.VkDeviceCreateInfo(vk.S_DEVICE_CREATE_INFO)
    info.queueCreateInfoCount, info.pQueueCreateInfos = 1, ctypes.pointer(queue)
    info.enabledExtensionCount = 1
    info.ppEnabledExtensionNames = ctypes.cast(names, POINTER(c_char_p))
    _check("vkCreateDevice", api.vkCreateDevice(handle, byref(info), None, byref(device)))
    return device


def _wall_minus_monotonic() -> tuple[int, int]:
    """Offset between the two host clocks and half the width of the tightest of three brackets, in nanoseconds."""
    best: tuple[int, int] | None = None
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[1] * 2:
            best = (wall - (before + after) // 2, (after - before + 1) // 2)
    assert best is not None
    return best


def _check(call: str, code: int) -> None:
    if code < 0:
        names = {-1: "out of host memory", -3: "initialization failed", -7: "extension not present", -9: "no driver"}
        raise BackendError(call, code, names.get(code, "failed"))
