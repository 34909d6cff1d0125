"""wgpu-py's own cffi binding, used for what must not pass through its Python classes.

Rule of this file: every call is one that cannot abort given what :mod:`._timer` guarantees — live handles of a device
that is neither destroyed nor lost, commands that ``finish()`` accepted, mapped data copied inside the map callback.
Callbacks run on whatever thread polls; they look up what to do by number. The closures behind them are never freed:
what was asked for before ``uninstrument()`` may be answered long after it.
"""

import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from ..._runtime import log

#: (query set, first query, count, offset in the resolve buffer)
Run = tuple[Any, int, int, int]

FEATURES = {
    "timestamp-query": "WGPUFeatureName_TimestampQuery",
    "timestamp-query-inside-encoders": "WGPUNativeFeature_TimestampQueryInsideEncoders",
}
WORK_DONE, MAP = "wgpuQueueOnSubmittedWorkDone", "wgpuBufferMapAsync"
USAGE_QUERY_RESOLVE, USAGE_COPY_SRC, USAGE_COPY_DST, USAGE_MAP_READ = 0x200, 0x4, 0x8, 0x1


class Handle:
    """A native object of ours. Quacks like wgpu-py's objects, whose functions read ``_internal``.

    ``keep``: what must outlive the native object, above all the device's error callbacks.
    """

    __slots__ = ("__weakref__", "_host", "_internal", "_keep", "_release", "kind")

    def __init__(self, host: "Host", kind: str, internal: Any, keep: Any) -> None:
        self._host = host
        self._internal = internal
        self._keep = keep
        self.kind, self._release = kind, getattr(host.lib, f"wgpu{kind}Release")
        host.handles.add(self)

    def __del__(self) -> None:
        if not self._host.exiting:  # wgpu-native's thread-locals may be gone by then (wgpu-native#512)
            self._release(self._internal)


class Pair:
    """A resolve buffer and the mappable buffer it is copied to."""

    __slots__ = ("mapped", "resolved", "size")

    def __init__(self, resolved: Handle, mapped: Handle, size: int) -> None:
        self.resolved, self.mapped, self.size = resolved, mapped, size


class Host:
    """``api``: the module ``wgpu.backends.wgpu_native._api``."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.ffi, self.lib, self.checked = api.ffi, api.lib, api.libf
        self.refusal = getattr(getattr(api, "classes", None), "GPUError", ())  # what wgpu-native answers to a mistake
        self._submit = api.libf.wgpuQueueSubmit  # without our wrapper, which is for the program's
        self.exiting = False
        self.handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._callbacks = _callbacks(api)
        self._encoder_info = self.ffi.new("WGPUCommandEncoderDescriptor *")

    def period_ns(self, queue: Any) -> float | None:
        """Nanoseconds a tick; None before wgpu-native 27.0.4."""
        try:
            return float(self.lib.wgpuQueueGetTimestampPeriod(queue)) or None
        except AttributeError:
            return None

    def share(self, kind: str, internal: Any, keep: Any) -> Handle | None:
        """One more reference to a native object of the program's; None before wgpu-native 24."""
        share = getattr(self.lib, f"wgpu{kind}AddRef", None)
        if share is None:
            return None
        share(internal)
        return Handle(self, kind, internal, keep)

    def has_feature(self, device: Any, name: str) -> bool:
        """Whether the native device has it: :attr:`GPUDevice.features` lists what its program asked for."""
        number = getattr(self.lib, FEATURES[name], None)
        return number is not None and bool(self.lib.wgpuDeviceHasFeature(device._internal, number))

    def query_set(self, device: Any, queries: int, keep: Any) -> Handle:
        """Of time stamps."""
        info = self.ffi.new("WGPUQuerySetDescriptor *")
        info.type, info.count = self.lib.WGPUQueryType_Timestamp, queries
        return Handle(self, "QuerySet", self.checked.wgpuDeviceCreateQuerySet(device, info), keep)

    def write_kinds(self) -> dict[str, str]:
        """The C type that says which queries a pass writes, by kind of pass; one for both since wgpu-native 29."""
        found = {}
        for kind in ("compute", "render"):
            field = dict(self.ffi.typeof(f"WGPU{kind.capitalize()}PassDescriptor").fields)["timestampWrites"]
            found[kind] = field.type.item.cname
        return found

    def writes(self, name: str, query_set: Handle, passes: int) -> tuple[Any, list[Any]]:
        """An array of that C type, which its owner keeps, and pointers into it: the n-th for the queries 2n, 2n + 1."""
        array = self.ffi.new(f"{name}[]", passes)
        pointers = [array + number for number in range(passes)]
        internal = query_set._internal
        for number, row in enumerate(pointers):
            row.querySet = internal
            row.beginningOfPassWriteIndex, row.endOfPassWriteIndex = 2 * number, 2 * number + 1
        return array, pointers

    def plain_passes(self, writes: list[Any]) -> tuple[Any, list[Any]]:
        """Descriptors of compute passes without a label, one for each of ``writes``, and what their owner keeps; None
        for each in a wgpu-py that :func:`._passes.plain_code` does not know."""
        text = getattr(self.api, "to_c_string_view", None)
        if text is None:
            return None, [None] * len(writes)
        array, label = self.ffi.new("WGPUComputePassDescriptor[]", len(writes)), text("")
        pointers = [array + number for number in range(len(writes))]
        for row, pointer in zip(pointers, writes, strict=True):
            row.label, row.timestampWrites = label, pointer
        return (array, label), pointers

    def pair(self, device: Any, size: int, keep: Any) -> Pair:
        """Buffers of ``size`` bytes."""
        resolved = self._buffer(device, size, USAGE_QUERY_RESOLVE | USAGE_COPY_SRC, keep)
        return Pair(resolved, self._buffer(device, size, USAGE_MAP_READ | USAGE_COPY_DST, keep), size)

    def write_timestamp(self, encoder: Any, query_set: Handle, index: int) -> None:
        """Between passes."""
        self.checked.wgpuCommandEncoderWriteTimestamp(encoder, query_set._internal, index)

    def resolve(
        self, device: Any, queue: Any, runs: Sequence[Run], pair: Pair, size: int, alive: Callable[[], bool]
    ) -> bool:
        """Submits a command buffer of ours that copies the queries to ``pair.mapped``. Raises before submitting.

        False, and nothing is submitted, when the device is not ``alive()`` any more: that submit would abort.
        """
        checked, lib = self.checked, self.lib
        encoder = checked.wgpuDeviceCreateCommandEncoder(device, self._encoder_info)
        try:
            resolved = pair.resolved._internal
            for query_set, first, number, offset in runs:
                checked.wgpuCommandEncoderResolveQuerySet(encoder, query_set, first, number, resolved, offset)
            checked.wgpuCommandEncoderCopyBufferToBuffer(encoder, resolved, 0, pair.mapped._internal, 0, size)
            command = checked.wgpuCommandEncoderFinish(encoder, self.ffi.NULL)
        finally:
            lib.wgpuCommandEncoderRelease(encoder)
        commands = self.ffi.new("WGPUCommandBuffer[]", [command])
        usable = alive()
        if usable:
            self._submit(queue, 1, commands)
        lib.wgpuCommandBufferRelease(command)
        return usable

    def when_done(self, queue: Any, action: Callable[[bool], None]) -> None:
        """``action(succeeded)`` once everything submitted so far has been executed."""
        self._callbacks.ask(WORK_DONE, (queue,), action)

    def read(
        self, buffer: Handle, size: int, alive: Callable[[], bool], action: Callable[[bytes | None], None]
    ) -> None:
        """``action(bytes)`` once ``buffer`` could be mapped, None when it could not; it is unmapped again.

        A map that succeeded is reported even after the device was destroyed, and to look at its data would then abort.
        """
        internal = buffer._internal

        def mapped(succeeded: bool) -> None:
            data = None
            if succeeded and alive():
                data = self.ffi.buffer(self.lib.wgpuBufferGetConstMappedRange(internal, 0, size), size)[:]
                self.lib.wgpuBufferUnmap(internal)
            action(data)

        self._callbacks.ask(MAP, (internal, 1, 0, size), mapped)

    def poll(self, device: Any, wait: bool = False) -> None:
        """Runs callbacks that are due; ``wait``: for all work that was submitted."""
        self.lib.wgpuDevicePoll(device, wait, self.ffi.NULL)

    def _buffer(self, device: Any, size: int, usage: int, keep: Any) -> Handle:
        info = self.ffi.new("WGPUBufferDescriptor *")
        info.size, info.usage = size, usage
        return Handle(self, "Buffer", self.checked.wgpuDeviceCreateBuffer(device, info), keep)


class _Callbacks:
    """One closure a kind of callback, and what each of its calls is to do."""

    def __init__(self, api: Any) -> None:
        self.ffi, self.lib, self.checked = api.ffi, api.lib, api.libf
        self._actions: dict[int, Callable[[bool], None]] = {}
        self._numbers = count(1)
        self._plain = len(self.ffi.typeof(getattr(self.lib, WORK_DONE)).args) == 3
        self._success = 0 if self._plain else 1
        self._closures = {name: self._closure(getattr(self.lib, name)) for name in (WORK_DONE, MAP)}

    def ask(self, name: str, arguments: tuple[Any, ...], action: Callable[[bool], None]) -> None:
        """Calls the function ``name``; ``action(succeeded)`` runs when it answers, on whatever thread polls."""
        function = getattr(self.checked, name)
        info_type, callback = self._closures[name]
        number = next(self._numbers)
        self._actions[number] = action
        token = self.ffi.cast("void *", number)
        try:
            if self._plain:
                function(*arguments, callback, token)
                return
            info = self.ffi.new(f"{info_type.cname} *")
            info.mode = self.lib.WGPUCallbackMode_AllowProcessEvents
            info.callback, info.userdata1 = callback, token
            function(*arguments, info[0])
        except Exception:
            self._actions.pop(number, None)
            raise

    def _closure(self, function: Any) -> tuple[Any, Any]:
        """The callback-info type of a function (None in the first family) and one closure for all its calls."""
        arguments = self.ffi.typeof(function).args
        if self._plain:
            return None, self.ffi.callback(arguments[-2], self._called)
        info = arguments[-1]
        return info, self.ffi.callback(dict(info.fields)["callback"].type, self._called)

    def _called(self, status: int, *rest: Any) -> None:
        """Every callback: (status[, message], userdata) or (status[, message], userdata1, userdata2)."""
        try:
            number = int(self.ffi.cast("uintptr_t", rest[-1] if self._plain else rest[-2]))
            action = self._actions.pop(number, None)
            if action is not None:
                action(int(status) == self._success)
        except Exception:  # noqa: BLE001 - cffi would print it into the program's stderr
            log.exception("wgpu callback", "a callback of wgpu failed inside gpusense")


#: By wgpu-py's backend module: held until the process ends.
_made: list[tuple[Any, _Callbacks]] = []


def _callbacks(api: Any) -> _Callbacks:
    found = next((callbacks for known, callbacks in _made if known is api), None)
    if found is None:
        found = _Callbacks(api)
        _made.append((api, found))
    return found
