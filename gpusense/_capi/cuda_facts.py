"""What a CUDA driver says of its devices, by its bound functions; no question here needs or makes a context."""

import ctypes
from ctypes import byref
from typing import Any, NamedTuple

from .._records.records import DeviceInfo
from .._runtime.errors import BackendError
from . import cuda as capi


class MemoryInfo(NamedTuple):
    """Device memory as the driver counts it; ``total`` is less than the board's by what the driver reserves."""

    free_bytes: int
    total_bytes: int


def lacking(api: Any) -> list[str]:
    """Functions without which a library is not taken for a CUDA driver."""
    return [name for name in capi.REQUIRED if not getattr(api, name)]


def version_of(api: Any) -> tuple[int, int] | None:
    """(major, minor) of the newest CUDA the driver supports."""
    value = ctypes.c_int()
    if api.cuDriverGetVersion(byref(value)) != 0 or value.value <= 0:
        return None
    return value.value // 1000, value.value % 1000 // 10


def count(api: Any) -> int:
    """How many devices this process sees; 0 where the driver does not say."""
    value = ctypes.c_int()
    return value.value if api.cuDeviceGetCount(byref(value)) == 0 else 0


def describe(api: Any, ordinal: int) -> DeviceInfo:
    """All the driver says of one device without a context; a question it does not answer leaves None."""
    known = {name: capi.attribute(api, number, ordinal) for name, number in _ATTRIBUTES.items()}
    major, minor, integrated = known.pop("major"), known.pop("minor"), known.pop("integrated")
    total = ctypes.c_size_t()
    version = version_of(api)
    return DeviceInfo(
        index=ordinal,
        name=_text(api.cuDeviceGetName, ordinal) or "unknown NVIDIA device",
        vendor="nvidia",
        backend="cuda",
        uuid=uuid(api, ordinal),
        pci_bus_id=pci_bus_id(_text(api.cuDeviceGetPCIBusId, ordinal)),
        memory_total_bytes=total.value if api.cuDeviceTotalMem_v2(byref(total), ordinal) == 0 else None,
        compute_capability=(major, minor) if major is not None and minor is not None else None,
        sm_count=known["sm_count"],
        clock_max_mhz=_mhz(known["clock_khz"]),
        memory_clock_max_mhz=_mhz(known["memory_clock_khz"]),
        driver=f"CUDA {version[0]}.{version[1]}" if version else None,
        cuda_index=ordinal,
        kind=None if integrated is None else "integrated" if integrated else "discrete",
        threads_per_sm=known["threads_per_sm"],
        shared_memory_per_sm_bytes=known["shared_memory_per_sm"],
        registers_per_sm=known["registers_per_sm"],
        memory_bus_width_bits=known["bus_width"],
        sources=("cuda",),
        details=tuple((name, str(known[name])) for name in _DETAILS if known[name] is not None),
    )


_ATTRIBUTES = {
    "major": capi.COMPUTE_CAPABILITY_MAJOR,
    "minor": capi.COMPUTE_CAPABILITY_MINOR,
    "integrated": capi.INTEGRATED,
    "sm_count": capi.SM_COUNT,
    "clock_khz": capi.CLOCK_RATE_KHZ,
    "memory_clock_khz": capi.MEMORY_CLOCK_RATE_KHZ,
    "bus_width": capi.MEMORY_BUS_WIDTH_BITS,
    "threads_per_sm": capi.THREADS_PER_SM,
    "shared_memory_per_sm": capi.SHARED_MEMORY_PER_SM,
    "registers_per_sm": capi.REGISTERS_PER_SM,
    "blocks_per_sm": capi.BLOCKS_PER_SM,
    "registers_per_block": capi.REGISTERS_PER_BLOCK,
    "threads_per_block": capi.MAX_THREADS_PER_BLOCK,
    "shared_memory_per_block_optin_bytes": capi.SHARED_MEMORY_PER_BLOCK_OPTIN,
    "reserved_shared_memory_per_block_bytes": capi.RESERVED_SHARED_MEMORY_PER_BLOCK,
    "l2_cache_bytes": capi.L2_CACHE_BYTES,
    "warp_size": capi.WARP_SIZE,
}
#: Facts that only this backend has, passed on by name in ``DeviceInfo.details``.
_DETAILS = tuple(_ATTRIBUTES)[10:]


def uuid(api: Any, ordinal: int) -> str | None:
    """``GPU-…`` as NVML and nvidia-smi write it; ``MIG-…`` where this process has a slice of a device.

    The second form of the call names the slice, the first the whole device; they differ only then.
    """
    device, part = capi.Uuid(), capi.Uuid()
    known = bool(api.cuDeviceGetUuid) and api.cuDeviceGetUuid(byref(device), ordinal) == 0
    if api.cuDeviceGetUuid_v2 and api.cuDeviceGetUuid_v2(byref(part), ordinal) == 0:
        return uuid_text(bytes(part), "MIG" if known and bytes(device) != bytes(part) else "GPU")
    return uuid_text(bytes(device)) if known else None


def uuid_text(raw: bytes, prefix: str = "GPU") -> str:
    text = raw.hex()
    return "-".join((prefix, text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def pci_bus_id(text: str | None) -> str | None:
    """``0000:1b:00.0``: lower case, domain of four digits (NVML writes eight, with leading zeros)."""
    if not text or text.count(":") != 2:
        return None
    domain, rest = text.lower().split(":", 1)
    return f"{domain.lstrip('0') or '0':0>4}:{rest}"


def has_context(api: Any, ordinal: int) -> bool:
    """Whether this process has the primary context of a device; False where the driver does not say."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    return api.cuDevicePrimaryCtxGetState(ordinal, byref(flags), byref(active)) == 0 and bool(active.value)


def use_primary_context(api: Any, ordinal: int) -> bool:
    """Whether the device's primary context, which is made if need be, is the calling thread's from now on."""
    context = ctypes.c_void_p()
    retained = api.cuDevicePrimaryCtxRetain(byref(context), ordinal) == 0
    return bool(retained and api.cuCtxPushCurrent_v2(context) == 0)


def memory_info_without_context(api: Any, ordinal: int) -> MemoryInfo:
    """Asked in the calling thread's context if that is on the device, else in its primary context if one is active.

    Raises :class:`BackendError` where neither is so, because asking would take a new context.
    """
    current = ctypes.c_int(-1)
    if api.cuCtxGetDevice(byref(current)) == 0 and current.value == ordinal:
        return memory_info_here(api)
    flags, active = ctypes.c_uint(), ctypes.c_int()
    capi.check("cuDevicePrimaryCtxGetState", api.cuDevicePrimaryCtxGetState(ordinal, byref(flags), byref(active)))
    if not active.value:
        raise BackendError("cuMemGetInfo", 201, f"device {ordinal} has no active context, and none is made to ask")
    context = ctypes.c_void_p()
    capi.check("cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain(byref(context), ordinal))
    try:
        capi.check("cuCtxPushCurrent", api.cuCtxPushCurrent_v2(context))
        try:
            return memory_info_here(api)
        finally:
            api.cuCtxPopCurrent_v2(None)
    finally:
        api.cuDevicePrimaryCtxRelease_v2(ordinal)


def memory_info_here(api: Any) -> MemoryInfo:
    """Of the device whose context is current. Raises :class:`BackendError`."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    capi.check("cuMemGetInfo", api.cuMemGetInfo_v2(byref(free), byref(total)))
    return MemoryInfo(free.value, total.value)


def _text(call: Any, ordinal: int) -> str | None:
    buffer = ctypes.create_string_buffer(256)
    if not call or call(buffer, len(buffer), ordinal) != 0:
        return None
    return buffer.value.decode("utf-8", "replace")


def _mhz(khz: int | None) -> float | None:
    return khz / 1000 if khz else None
