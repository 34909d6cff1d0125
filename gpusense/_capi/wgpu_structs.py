"""Structures of wgpu-native's C header, one set a family; names and fields are the header's own, in the header's order.

The three families differ in ways a wrong guess turns into memory corruption, so a family is chosen only for a major
version listed in :data:`FAMILIES`; ``tests/backends/wgpu/test_abi.py`` compares every size and offset with the wheel's
header.

- A, wgpu-native 0.19 and 22: C strings, plain callbacks, 32-bit flags.
- B, 24, 25 and 27: string views and callback-info structures by value, 64-bit flags, futures.
- C, 29: as B, with another instance descriptor, a longer adapter info, one timestamp-writes structure.
"""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_size_t, c_uint32, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

FAMILIES: dict[int, str] = {19: "A", 22: "A", 24: "B", 25: "B", 27: "B", 29: "C"}

SIZE_MAX = c_size_t(-1).value

Fields = tuple[tuple[str, Any], ...]


class WGPUStringView(Structure):
    """``length`` of SIZE_MAX means that ``data`` ends with NUL; ``data`` may be NULL."""

    _fields_ = (("data", c_void_p), ("length", c_size_t))

    def text(self) -> str:
        if not self.data:
            return ""
        size = -1 if self.length == SIZE_MAX else self.length
        return ctypes.string_at(self.data, size).decode("utf-8", "replace")


class WGPUChainedStruct(Structure):
    """First member of every extension structure."""


WGPUChainedStruct._fields_ = (("next", POINTER(WGPUChainedStruct)), ("sType", c_uint32))

NEXT = ("nextInChain", c_void_p)


def structures(major: int) -> SimpleNamespace:
    """Every structure and callback type the backend uses, for one supported major version."""
    family = FAMILIES[major]
    views = family != "A"
    made: dict[str, Any] = {"family": family, "views": views, "major": major}
    text = WGPUStringView if views else c_char_p
    flags = c_uint64 if views else c_uint32
    if views:
        made["WGPUStringView"] = WGPUStringView

    def add(name: str, *fields: tuple[str, Any]) -> Any:
        made[name] = type(name, (Structure,), {"_fields_": fields, "__doc__": f"{name} of family {family}."})
        return made[name]

    label = ("label", text)
    queue = add("WGPUQueueDescriptor", NEXT, label)
    add("WGPUInstanceDescriptor", *_instance(family, add))
    add("WGPUInstanceEnumerateAdapterOptions", NEXT, ("backends", flags))
    _adapter_info(major, text, add)
    add("WGPUDeviceDescriptor", *_device(major, label, queue, add))
    add("WGPUBufferDescriptor", NEXT, label, ("usage", flags), ("size", c_uint64), ("mappedAtCreation", c_uint32))
    add(
        "WGPUShaderSourceWGSL" if views else "WGPUShaderModuleWGSLDescriptor",
        ("chain", WGPUChainedStruct),
        ("code", text),
    )
    add("WGPUShaderModuleDescriptor", NEXT, label, *(() if views else (("hintCount", c_size_t), ("hints", c_void_p))))
    stage = add(
        "WGPUComputeState" if family == "C" else "WGPUProgrammableStageDescriptor",
        NEXT,
        ("module", c_void_p),
        ("entryPoint", text),
        ("constantCount", c_size_t),
        ("constants", c_void_p),
    )
    add("WGPUComputePipelineDescriptor", NEXT, label, ("layout", c_void_p), ("compute", stage))
    add(
        "WGPUBindGroupEntry",
        NEXT,
        ("binding", c_uint32),
        ("buffer", c_void_p),
        ("offset", c_uint64),
        ("size", c_uint64),
        ("sampler", c_void_p),
        ("textureView", c_void_p),
    )
    add(
        "WGPUBindGroupDescriptor",
        NEXT,
        label,
        ("layout", c_void_p),
        ("entryCount", c_size_t),
        ("entries", c_void_p),
    )
    add("WGPUCommandEncoderDescriptor", NEXT, label)
    add(
        "WGPUPassTimestampWrites" if family == "C" else "WGPUComputePassTimestampWrites",
        *((NEXT,) if family == "C" else ()),
        ("querySet", c_void_p),
        ("beginningOfPassWriteIndex", c_uint32),
        ("endOfPassWriteIndex", c_uint32),
    )
    add("WGPUComputePassDescriptor", NEXT, label, ("timestampWrites", c_void_p))
    add("WGPUQuerySetDescriptor", NEXT, label, ("type", c_uint32), ("count", c_uint32))
    _callbacks(family, made)
    return SimpleNamespace(**made)


def struct_types(space: SimpleNamespace) -> dict[str, Any]:
    """The structures among :func:`structures`, by name: what the header test walks over."""
    return {name: kind for name, kind in vars(space).items() if name.startswith("WGPU")}


def _instance(family: str, add: Any) -> Fields:
    if family == "A":
        return (NEXT,)
    if family == "B":
        features = add(
            "WGPUInstanceCapabilities",
            NEXT,
            ("timedWaitAnyEnable", c_uint32),
            ("timedWaitAnyMaxCount", c_size_t),
        )
        return (NEXT, ("features", features))
    return (
        NEXT,
        ("requiredFeatureCount", c_size_t),
        ("requiredFeatures", c_void_p),
        ("requiredLimits", c_void_p),
    )


def _adapter_info(major: int, text: Any, add: Any) -> None:
    if major == 19:
        add(
            "WGPUAdapterProperties",
            NEXT,
            ("vendorID", c_uint32),
            ("vendorName", text),
            ("architecture", text),
            ("deviceID", c_uint32),
            ("name", text),
            ("driverDescription", text),
            ("adapterType", c_uint32),
            ("backendType", c_uint32),
        )
        return
    subgroups = (("subgroupMinSize", c_uint32), ("subgroupMaxSize", c_uint32)) if major >= 29 else ()
    add(
        "WGPUAdapterInfo",
        NEXT,
        ("vendor", text),
        ("architecture", text),
        ("device", text),
        ("description", text),
        ("backendType", c_uint32),
        ("adapterType", c_uint32),
        ("vendorID", c_uint32),
        ("deviceID", c_uint32),
        *subgroups,
    )


def _device(major: int, label: tuple[str, Any], queue: Any, add: Any) -> Fields:
    head: Fields = (
        NEXT,
        label,
        ("requiredFeatureCount", c_size_t),
        ("requiredFeatures", c_void_p),
        ("requiredLimits", c_void_p),
        ("defaultQueue", queue),
    )
    if major < 24:
        lost: Fields = (("deviceLostCallback", c_void_p), ("deviceLostUserdata", c_void_p))
        if major < 22:
            return (*head, *lost)
        error = add("WGPUUncapturedErrorCallbackInfo", NEXT, ("callback", c_void_p), ("userdata", c_void_p))
        return (*head, *lost, ("uncapturedErrorCallbackInfo", error))
    end = (("callback", c_void_p), ("userdata1", c_void_p), ("userdata2", c_void_p))
    for name in ("RequestDevice", "BufferMap", "QueueWorkDone"):
        add(f"WGPU{name}CallbackInfo", NEXT, ("mode", c_uint32), *end)
    lost_info = add("WGPUDeviceLostCallbackInfo", NEXT, ("mode", c_uint32), *end)
    error = add("WGPUUncapturedErrorCallbackInfo", NEXT, *end)
    return (*head, ("deviceLostCallbackInfo", lost_info), ("uncapturedErrorCallbackInfo", error))


def _callbacks(family: str, made: dict[str, Any]) -> None:
    """``on_…`` callback types; their trailing arguments are one userdata in family A and two later."""
    if family == "A":
        made["on_device"] = CFUNCTYPE(None, c_uint32, c_void_p, c_char_p, c_void_p)
        made["on_map"] = CFUNCTYPE(None, c_uint32, c_void_p)
        made["on_error"] = CFUNCTYPE(None, c_uint32, c_char_p, c_void_p)
        made["on_lost"] = CFUNCTYPE(None, c_uint32, c_char_p, c_void_p)
        made["on_work_done"] = CFUNCTYPE(None, c_uint32, c_void_p)
        return
    made["on_device"] = CFUNCTYPE(None, c_uint32, c_void_p, WGPUStringView, c_void_p, c_void_p)
    made["on_map"] = CFUNCTYPE(None, c_uint32, WGPUStringView, c_void_p, c_void_p)
    made["on_error"] = CFUNCTYPE(None, c_void_p, c_uint32, WGPUStringView, c_void_p, c_void_p)
    made["on_lost"] = made["on_error"]
    done = (WGPUStringView,) if family == "C" else ()
    made["on_work_done"] = CFUNCTYPE(None, c_uint32, *done, c_void_p, c_void_p)
