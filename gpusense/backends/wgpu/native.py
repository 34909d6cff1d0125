"""A small wgpu client over ctypes: adapters, and a self-test that computes, times and reads back.

Rule of this file: anything a driver or wgpu-native may answer with an abort happens in a child process
(:mod:`.child`). Handles are checked before use (NULL aborts), errors are looked at before every submit (a
submit with an error aborts), mapped data is copied inside the map callback (asking for it later may abort).
"""

import array
import ctypes
import time
from collections.abc import Iterator
from ctypes import byref, c_void_p, cast, sizeof
from typing import Any

from ..._capi.wgpu import (
    ALLOW_SPONTANEOUS,
    BACKEND_NAMES,
    MAP_READ,
    RELEASED,
    USAGE_COPY_DST,
    USAGE_COPY_SRC,
    USAGE_MAP_READ,
    USAGE_QUERY_RESOLVE,
    USAGE_STORAGE,
    Api,
    read_text,
)
from ..._capi.wgpu_structs import WGPUStringView
from ..._runtime.errors import GpuSenseError

#: Every element walks ROUNDS steps of a linear congruential generator, which no driver can skip and Python can check.
ROUNDS = 64
ELEMENTS = 1 << 14
SHADER = """
@group(0) @binding(0) var<storage, read_write> data: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = data[id.x];
    for (var i = 0u; i < 64u; i++) { x = x * 1664525u + 1013904223u; }
    data[id.x] = x;
}
"""


class SelfTestFailed(GpuSenseError):
    """A step of the self-test gave no handle, an error, or a wrong value."""


class Client:
    """One instance of wgpu-native and what was made from it. :meth:`close` releases all; nothing runs at exit."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.errors: list[str] = []
        self._held: dict[str, list[int]] = {name: [] for name in RELEASED}
        self._alive: list[Any] = []  # callbacks and text that C may still point at
        self.instance = self._own("Instance", api.functions.wgpuCreateInstance(byref(self._new("InstanceDescriptor"))))

    def adapters(self) -> list[dict[str, Any]]:
        """One entry an adapter and backend, with its ``handle``."""
        enumerate_adapters = self.api.functions.wgpuInstanceEnumerateAdapters
        count = enumerate_adapters(self.instance, None, None)
        handles = (c_void_p * count)()
        count = min(count, enumerate_adapters(self.instance, None, handles))
        return [self._describe(self._own("Adapter", handles[index])) for index in range(count)]

    def self_test(self, adapter: int) -> dict[str, Any]:
        """Computes on ``adapter`` with GPU time stamps and provokes a survivable validation error.

        Raises :class:`SelfTestFailed` with the step that failed.
        """
        functions = self.api.functions
        device = self._request_device(adapter)
        queue = self._own("Queue", functions.wgpuDeviceGetQueue(device))
        period = functions.wgpuQueueGetTimestampPeriod
        size = 4 * ELEMENTS
        data = self._buffer(device, USAGE_STORAGE | USAGE_COPY_SRC | USAGE_COPY_DST, size)
        back = self._buffer(device, USAGE_MAP_READ | USAGE_COPY_DST, size)
        resolved = self._buffer(device, USAGE_QUERY_RESOLVE | USAGE_COPY_SRC, 256)
        stamps = self._buffer(device, USAGE_MAP_READ | USAGE_COPY_DST, 256)
        queries = self._create(device, "QuerySet", "QuerySetDescriptor", type=self.api.timestamp_query_type, count=2)
        command = self._encode(device, data, back, resolved, stamps, queries)
        source = array.array("I", range(ELEMENTS))
        start = time.perf_counter_ns()
        functions.wgpuQueueWriteBuffer(queue, data, 0, source.buffer_info()[0], size)
        write_ns = time.perf_counter_ns() - start
        self._check("recording")
        functions.wgpuQueueSubmit(queue, 1, byref(c_void_p(command)))
        result = array.array("I", self._read(device, back, size))
        begin, end = array.array("Q", self._read(device, stamps, 16))
        return {
            "correct": all(result[index] == expected(index) for index in (0, 5, ELEMENTS - 1)),
            "gpu_ticks": end - begin,
            "timestamp_period_ns": float(period(queue)) if period else None,
            "write_buffer_ns": write_ns,
            "bytes": size,
            "validation_error_survived": self._provoke_error(device),
        }

    def close(self) -> None:
        """Releases every handle, dependants first."""
        for name in RELEASED:
            release = getattr(self.api.functions, f"wgpu{name}Release")
            while self._held[name]:
                release(self._held[name].pop())

    def _describe(self, handle: int) -> dict[str, Any]:
        functions, structs = self.api.functions, self.api.structs
        if structs.major == 19:
            info = structs.WGPUAdapterProperties()
            functions.wgpuAdapterGetProperties(handle, byref(info))
            name, driver, text = info.name, info.vendorName, info.driverDescription
        else:
            info = structs.WGPUAdapterInfo()
            functions.wgpuAdapterGetInfo(handle, byref(info))
            name, driver, text = info.device, info.vendor, info.description
        found = {
            "handle": handle,
            "name": read_text(name),
            "driver": read_text(driver),
            "driver_info": read_text(text),
            "vendor_id": info.vendorID,
            "device_id": info.deviceID,
            "backend": BACKEND_NAMES.get(info.backendType, f"backend {info.backendType}"),
            "type": self.api.adapter_types.get(info.adapterType),
            "timestamp_query": bool(functions.wgpuAdapterHasFeature(handle, self.api.timestamp_feature)),
        }
        if structs.major != 19:
            functions.wgpuAdapterInfoFreeMembers(info)
        return found

    def _request_device(self, adapter: int) -> int:
        """A device with timestamp queries, and with both error callbacks: without them an error aborts."""
        functions, structs = self.api.functions, self.api.structs
        answer: list[Any] = []
        features = (ctypes.c_uint32 * 1)(self.api.timestamp_feature)
        descriptor = self._new("DeviceDescriptor", requiredFeatureCount=1, requiredFeatures=cast(features, c_void_p))
        if structs.views:
            on_device = structs.on_device(lambda status, device, message, *_: answer.extend((status, device)))
            on_error = structs.on_error(lambda _device, _kind, message, *_: self.errors.append(message.text()))
            on_lost = structs.on_lost(lambda _device, _reason, message, *_: self.errors.append(message.text()))
            descriptor.uncapturedErrorCallbackInfo.callback = cast(on_error, c_void_p)
            descriptor.deviceLostCallbackInfo.callback = cast(on_lost, c_void_p)
            descriptor.deviceLostCallbackInfo.mode = ALLOW_SPONTANEOUS
            info = self._callback_info("RequestDevice", on_device)
            functions.wgpuAdapterRequestDevice(adapter, byref(descriptor), info)
        else:
            on_device = structs.on_device(lambda status, device, message, _: answer.extend((status, device)))
            on_error = structs.on_error(lambda _kind, message, _: self.errors.append(read_text(message)))
            on_lost = structs.on_lost(lambda _reason, message, _: self.errors.append(read_text(message)))
            descriptor.deviceLostCallback = cast(on_lost, c_void_p)
            if structs.major >= 22:
                descriptor.uncapturedErrorCallbackInfo.callback = cast(on_error, c_void_p)
            functions.wgpuAdapterRequestDevice(adapter, byref(descriptor), on_device, None)
        self._alive += [on_device, on_error, on_lost]
        if not answer or answer[0] != self.api.success:
            raise SelfTestFailed(f"request device: status {answer[0] if answer else 'none'}")
        device = self._own("Device", answer[1])
        if structs.major == 19:
            functions.wgpuDeviceSetUncapturedErrorCallback(device, on_error, None)
        return device

    def _encode(self, device: int, data: int, back: int, resolved: int, stamps: int, queries: int) -> int:
        functions, structs = self.api.functions, self.api.structs
        code = self._new("ShaderSourceWGSL" if structs.views else "ShaderModuleWGSLDescriptor", code=self._text(SHADER))
        code.chain.sType = self.api.wgsl_stype
        module = self._create(device, "ShaderModule", "ShaderModuleDescriptor", nextInChain=ctypes.addressof(code))
        description = self._new("ComputePipelineDescriptor")
        description.compute.module = module
        description.compute.entryPoint = self._text("main")
        pipeline = self._own("ComputePipeline", functions.wgpuDeviceCreateComputePipeline(device, byref(description)))
        layout = self._own("BindGroupLayout", functions.wgpuComputePipelineGetBindGroupLayout(pipeline, 0))
        entry = self._new("BindGroupEntry", buffer=data, size=4 * ELEMENTS)
        group = self._create(
            device,
            "BindGroup",
            "BindGroupDescriptor",
            layout=layout,
            entryCount=1,
            entries=ctypes.addressof(entry),
        )
        encoder = self._create(device, "CommandEncoder", "CommandEncoderDescriptor")
        writes = self._new(
            "PassTimestampWrites" if structs.family == "C" else "ComputePassTimestampWrites",
            querySet=queries,
            beginningOfPassWriteIndex=0,
            endOfPassWriteIndex=1,
        )
        pass_descriptor = self._new("ComputePassDescriptor", timestampWrites=ctypes.addressof(writes))
        work = self._own(
            "ComputePassEncoder", functions.wgpuCommandEncoderBeginComputePass(encoder, byref(pass_descriptor))
        )
        functions.wgpuComputePassEncoderSetPipeline(work, pipeline)
        functions.wgpuComputePassEncoderSetBindGroup(work, 0, group, 0, None)
        functions.wgpuComputePassEncoderDispatchWorkgroups(work, ELEMENTS // 64, 1, 1)
        functions.wgpuComputePassEncoderEnd(work)
        functions.wgpuComputePassEncoderRelease(self._held["ComputePassEncoder"].pop())  # finish() needs it gone
        functions.wgpuCommandEncoderResolveQuerySet(encoder, queries, 0, 2, resolved, 0)
        functions.wgpuCommandEncoderCopyBufferToBuffer(encoder, resolved, 0, stamps, 0, 16)
        functions.wgpuCommandEncoderCopyBufferToBuffer(encoder, data, 0, back, 0, 4 * ELEMENTS)
        return self._own("CommandBuffer", functions.wgpuCommandEncoderFinish(encoder, None))

    def _read(self, device: int, buffer: int, size: int, timeout_s: float = 20.0) -> bytes:
        functions, structs = self.api.functions, self.api.structs
        answer: list[Any] = []

        def mapped(status: int, *_: Any) -> None:
            data = None
            if status == self.api.success:
                data = ctypes.string_at(functions.wgpuBufferGetConstMappedRange(buffer, 0, size), size)
                functions.wgpuBufferUnmap(buffer)
            answer.extend((status, data))

        callback = structs.on_map(mapped)
        self._alive.append(callback)
        if structs.views:
            functions.wgpuBufferMapAsync(buffer, MAP_READ, 0, size, self._callback_info("BufferMap", callback))
        else:
            functions.wgpuBufferMapAsync(buffer, MAP_READ, 0, size, callback, None)
        deadline = time.monotonic() + timeout_s
        while not answer and time.monotonic() < deadline:
            functions.wgpuDevicePoll(device, 1, None)
        self._check("map")
        if not answer or answer[1] is None:
            raise SelfTestFailed(f"map: status {answer[0] if answer else 'none'}")
        return bytes(answer[1])

    def _provoke_error(self, device: int) -> bool:
        """A buffer that is mappable and a storage buffer is invalid; the answer must be an error, not an abort."""
        before = len(self.errors)
        descriptor = self._new("BufferDescriptor", usage=USAGE_MAP_READ | USAGE_STORAGE, size=16)
        handle = self.api.functions.wgpuDeviceCreateBuffer(device, byref(descriptor))
        if handle:
            self._own("Buffer", handle)
        self.api.functions.wgpuDevicePoll(device, 1, None)
        survived = len(self.errors) > before
        del self.errors[before:]
        return survived

    def _buffer(self, device: int, usage: int, size: int) -> int:
        return self._create(device, "Buffer", "BufferDescriptor", usage=usage, size=size)

    def _create(self, device: int, kind: str, descriptor: str, **members: Any) -> int:
        """``wgpuDeviceCreate<kind>``."""
        create = getattr(self.api.functions, f"wgpuDeviceCreate{kind}")
        return self._own(kind, create(device, byref(self._new(descriptor, **members))))

    def _new(self, name: str, **members: Any) -> Any:
        """A structure with a valid label; it and its text stay alive as long as this client."""
        made = getattr(self.api.structs, f"WGPU{name}")()
        known = {field[0] for field in made._fields_}
        if "label" in known:
            made.label = self._text("gpusense")
        if "defaultQueue" in known:
            made.defaultQueue.label = self._text("gpusense")
        for member, value in members.items():
            setattr(made, member, value)
        self._alive.append(made)
        return made

    def _text(self, text: str) -> Any:
        raw = text.encode()
        if not self.api.structs.views:
            return raw
        buffer = ctypes.create_string_buffer(raw)
        self._alive.append(buffer)
        return WGPUStringView(ctypes.addressof(buffer), len(raw))

    def _callback_info(self, name: str, callback: Any) -> Any:
        info = getattr(self.api.structs, f"WGPU{name}CallbackInfo")
        return info(None, ALLOW_SPONTANEOUS, cast(callback, c_void_p), None, None)

    def _own(self, kind: str, handle: int | None) -> int:
        if not handle:
            raise SelfTestFailed(f"{kind}: no handle; {'; '.join(self.errors) or 'no error was reported'}")
        self._held[kind].append(handle)
        return handle

    def _check(self, step: str) -> None:
        if self.errors:
            raise SelfTestFailed(f"{step}: {'; '.join(self.errors)}")


def expected(value: int) -> int:
    """What the shader makes of ``value``."""
    for _ in range(ROUNDS):
        value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
    return value


def preferred(adapters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Adapters that can be timed, the real and native ones first."""
    kinds = {"discrete": 0, "integrated": 1, "cpu": 3}
    usable = [adapter for adapter in adapters if adapter["timestamp_query"]]
    yield from sorted(usable, key=lambda one: (kinds.get(one["type"], 2), rank(one["backend"])))


def rank(backend: str) -> int:
    """Order of preference of one card's backends."""
    return {"Vulkan": 0, "Metal": 0, "D3D12": 1, "D3D11": 2}.get(backend, 3)


assert sizeof(WGPUStringView) == 2 * sizeof(c_void_p)
