"""MIG: the compute instances a device is cut into, each with its own memory."""

import ctypes
import struct

from ..._capi import nvml as c
from ..._records.metrics import Instance
from .gpm import Gpm
from .library import as_text
from .reader import Reader

_MOST = 64


def instances(reader: Reader, gpm: Gpm | None = None, now_ns: int = 0) -> tuple[Instance, ...] | None:
    """Every MIG device below this one; None where MIG is off or unknown to the device."""
    mode = reader.pair("instances", reader.api.nvmlDeviceGetMigMode)
    if mode is None:
        return None
    if mode[0] != 1:
        reader.odd("instances", "unsupported: MIG is off")
        return None
    most = reader.u32("instances", reader.api.nvmlDeviceGetMaxMigDeviceCount) or 0
    found = []
    for place in range(min(most, _MOST)):
        handle = ctypes.c_void_p()
        # The numbering has holes: NOT_FOUND is an empty place, not the end.
        code = reader.api.nvmlDeviceGetMigDeviceHandleByIndex(reader.handle, place, ctypes.byref(handle))
        if code == c.SUCCESS and handle.value:
            found.append(_instance(reader, handle.value, gpm, now_ns))
    return tuple(found)


def _instance(reader: Reader, handle: int, gpm: Gpm | None, now_ns: int) -> Instance:
    api = reader.api
    gpu = _number(api.nvmlDeviceGetGpuInstanceId, handle)
    memory = _struct(api.nvmlDeviceGetMemoryInfo, handle, c.MEMORY)
    attributes = _struct(api.nvmlDeviceGetAttributes_v2, handle, c.ATTRIBUTES)
    total, free, used = memory if memory and memory[0] < 1 << 50 and memory[2] <= memory[0] else (None, None, None)
    return Instance(
        uuid=_text(api.nvmlDeviceGetUUID, handle),
        gpu_instance=gpu,
        compute_instance=_number(api.nvmlDeviceGetComputeInstanceId, handle),
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=free,
        sm_count=attributes[0] if attributes else None,
        name=_text(api.nvmlDeviceGetName, handle),
        sm_active_percent=gpm.instance(gpu, now_ns) if gpm is not None and gpu is not None else None,
    )


def _number(function: object, handle: int) -> int | None:
    value = ctypes.c_uint()
    if function(handle, ctypes.byref(value)) == c.SUCCESS and value.value != c.ALL_BITS:  # type: ignore[operator]
        return value.value
    return None


def _text(function: object, handle: int) -> str | None:
    buffer = ctypes.create_string_buffer(96)
    if function(handle, buffer, 96) == c.SUCCESS:  # type: ignore[operator]
        return as_text(buffer.raw)
    return None


def _struct(function: object, handle: int, layout: str) -> tuple[int, ...] | None:
    buffer = ctypes.create_string_buffer(struct.calcsize(layout) + 256)
    if function(handle, buffer) == c.SUCCESS:  # type: ignore[operator]
        return struct.unpack_from(layout, buffer)
    return None
