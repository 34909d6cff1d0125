"""wgpu-native's functions and constants for each family of :mod:`wgpu_structs`; the version word; vendor names.

Never declared here, because they abort the process in some supported version: ``wgpuInstanceWaitAny`` and
``wgpuBufferGetMapState``. ``wgpuSetLogCallback`` is process-global and belongs to the application.
"""

import ctypes
from ctypes import POINTER, c_float, c_size_t, c_uint32, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any, NamedTuple

from .._records.records import Unavailable
from .binding import Prototypes, bind, prototypes
from .wgpu_structs import FAMILIES, WGPUStringView, structures

UNDEFINED_INDEX = 0xFFFFFFFF
ALLOW_SPONTANEOUS = 3  # WGPUCallbackMode: callbacks run inside whatever call finds them ready
MAP_READ = 1

USAGE_MAP_READ, USAGE_COPY_SRC, USAGE_COPY_DST = 0x1, 0x4, 0x8
USAGE_STORAGE, USAGE_QUERY_RESOLVE = 0x80, 0x200

BACKEND_NAMES = {
    0: "Undefined",
    1: "Null",
    2: "WebGPU",
    3: "D3D11",
    4: "D3D12",
    5: "Metal",
    6: "Vulkan",
    7: "OpenGL",
    8: "OpenGLES",
}

VENDORS = {
    0x10DE: "nvidia",
    0x1002: "amd",
    0x1022: "amd",
    0x8086: "intel",
    0x106B: "apple",
    0x10005: "mesa",  # software rasterisers
    0x1414: "microsoft",
    0x13B5: "arm",
    0x5143: "qualcomm",
    0x1010: "imagination",
    0x14E4: "broadcom",
}


class Version(NamedTuple):
    """``wgpuGetVersion`` as numbers. Before 22 the word was 0.major.minor.patch."""

    parts: tuple[int, int, int, int]
    major: int

    def __str__(self) -> str:
        return ".".join(map(str, self.parts))


class Api(NamedTuple):
    """One loaded wgpu-native: typed functions, structures and the constants that differ between versions."""

    version: Version
    functions: Any
    structs: SimpleNamespace
    timestamp_feature: int
    timestamp_query_type: int
    success: int  # value of every …Status_Success
    wgsl_stype: int
    adapter_types: dict[int, str]


def decode_version(word: int) -> Version:
    """The answer of ``wgpuGetVersion``."""
    parts = ((word >> 24) & 255, (word >> 16) & 255, (word >> 8) & 255, word & 255)
    return Version(parts, parts[0] or parts[1])


def open_api(library: ctypes.CDLL, path: str) -> Api | Unavailable:
    """The functions of a loaded library, or why it must not be called."""
    probe = bind(library, prototypes(wgpuGetVersion=(c_uint32,)), path)
    if not probe.wgpuGetVersion:
        return Unavailable("wgpu", f"{path} has no wgpuGetVersion: not wgpu-native")
    version = decode_version(probe.wgpuGetVersion())
    if version.major not in FAMILIES:
        known = ", ".join(str(major) for major in sorted(FAMILIES))
        return Unavailable(
            "wgpu",
            f"wgpu-native {version} has an unknown ABI (known majors: {known})",
            "a wrong guess would corrupt memory; use a wgpu wheel from 0.15 on, or update gpusense",
        )
    structs = structures(version.major)
    views = structs.views
    shift = 1 if views else 0
    return Api(
        version=version,
        functions=bind(library, _prototypes(structs), path),
        structs=structs,
        timestamp_feature=9 if structs.family == "C" else 3,
        timestamp_query_type=1 + shift,
        success=shift,
        wgsl_stype=2 if views else 6,
        adapter_types={shift: "discrete", 1 + shift: "integrated", 2 + shift: "cpu"},
    )


def read_text(value: Any) -> str:
    """A string out of either family's structures."""
    if isinstance(value, WGPUStringView):
        return value.text()
    return (value or b"").decode("utf-8", "replace")


def _prototypes(structs: SimpleNamespace) -> Prototypes:
    handle = c_void_p
    flags = c_uint64 if structs.views else c_uint32
    table = prototypes(
        wgpuCreateInstance=(handle, POINTER(structs.WGPUInstanceDescriptor)),
        wgpuInstanceEnumerateAdapters=(
            c_size_t,
            handle,
            POINTER(structs.WGPUInstanceEnumerateAdapterOptions),
            POINTER(handle),
        ),
        wgpuAdapterHasFeature=(c_uint32, handle, c_uint32),
        wgpuDeviceGetQueue=(handle, handle),
        wgpuDevicePoll=(c_uint32, handle, c_uint32, c_void_p),
        wgpuDeviceCreateBuffer=(handle, handle, POINTER(structs.WGPUBufferDescriptor)),
        wgpuDeviceCreateShaderModule=(handle, handle, POINTER(structs.WGPUShaderModuleDescriptor)),
        wgpuDeviceCreateComputePipeline=(handle, handle, POINTER(structs.WGPUComputePipelineDescriptor)),
        wgpuDeviceCreateBindGroup=(handle, handle, POINTER(structs.WGPUBindGroupDescriptor)),
        wgpuDeviceCreateQuerySet=(handle, handle, POINTER(structs.WGPUQuerySetDescriptor)),
        wgpuDeviceCreateCommandEncoder=(handle, handle, POINTER(structs.WGPUCommandEncoderDescriptor)),
        wgpuComputePipelineGetBindGroupLayout=(handle, handle, c_uint32),
        wgpuCommandEncoderBeginComputePass=(handle, handle, POINTER(structs.WGPUComputePassDescriptor)),
        wgpuComputePassEncoderSetPipeline=(None, handle, handle),
        wgpuComputePassEncoderSetBindGroup=(None, handle, c_uint32, handle, c_size_t, c_void_p),
        wgpuComputePassEncoderDispatchWorkgroups=(None, handle, c_uint32, c_uint32, c_uint32),
        wgpuComputePassEncoderEnd=(None, handle),
        wgpuCommandEncoderResolveQuerySet=(None, handle, handle, c_uint32, c_uint32, handle, c_uint64),
        wgpuCommandEncoderCopyBufferToBuffer=(None, handle, handle, c_uint64, handle, c_uint64, c_uint64),
        wgpuCommandEncoderFinish=(handle, handle, c_void_p),
        wgpuQueueSubmit=(None, handle, c_size_t, POINTER(handle)),
        wgpuQueueWriteBuffer=(None, handle, handle, c_uint64, c_void_p, c_size_t),
        wgpuQueueGetTimestampPeriod=(c_float, handle),  # exported from 27.0.4
        wgpuBufferGetConstMappedRange=(c_void_p, handle, c_size_t, c_size_t),
        wgpuBufferUnmap=(None, handle),
    )
    table.update(_requests(structs, handle, flags))
    for name in RELEASED:
        table[f"wgpu{name}Release"] = (None, (handle,))
    return table


def _requests(structs: SimpleNamespace, handle: Any, flags: Any) -> Prototypes:
    """Where the families differ: adapter facts and everything with a callback."""
    if structs.major == 19:
        info = prototypes(
            wgpuAdapterGetProperties=(None, handle, POINTER(structs.WGPUAdapterProperties)),
            wgpuDeviceSetUncapturedErrorCallback=(None, handle, structs.on_error, c_void_p),
        )
    else:
        info = prototypes(
            wgpuAdapterGetInfo=(c_uint32 if structs.views else None, handle, POINTER(structs.WGPUAdapterInfo)),
            wgpuAdapterInfoFreeMembers=(None, structs.WGPUAdapterInfo),
        )
    device = POINTER(structs.WGPUDeviceDescriptor)
    if not structs.views:
        return info | prototypes(
            wgpuAdapterRequestDevice=(None, handle, device, structs.on_device, c_void_p),
            wgpuBufferMapAsync=(None, handle, flags, c_size_t, c_size_t, structs.on_map, c_void_p),
            wgpuQueueOnSubmittedWorkDone=(None, handle, structs.on_work_done, c_void_p),
        )
    return info | prototypes(
        wgpuAdapterRequestDevice=(c_uint64, handle, device, structs.WGPURequestDeviceCallbackInfo),
        wgpuBufferMapAsync=(c_uint64, handle, flags, c_size_t, c_size_t, structs.WGPUBufferMapCallbackInfo),
        wgpuQueueOnSubmittedWorkDone=(c_uint64, handle, structs.WGPUQueueWorkDoneCallbackInfo),
    )


#: Kinds of object with a ``wgpu…Release`` function, in the order in which a client lets go of them.
RELEASED = (
    "ComputePassEncoder",
    "CommandBuffer",
    "CommandEncoder",
    "QuerySet",
    "BindGroup",
    "BindGroupLayout",
    "Buffer",
    "ComputePipeline",
    "ShaderModule",
    "Queue",
    "Device",
    "Adapter",
    "Instance",
)
