"""Wrappers around transfers: the host's time of each call, its bytes, label and usage.

A write's time is the copy into staging memory, not the bus. A read waits for its data by mapping a buffer: how long is
taken from there, so that its record can say which part was waiting, and nobody waits twice.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any

from .._hosts import Patches
from ._hooks import ATTRIBUTE, STAGE, Hooks
from ._records import Staged


def install(hooks: Hooks, patches: Patches) -> None:
    api = hooks.host.api
    patches.wrap(api.GPUQueue, "write_buffer", lambda function: _write_buffer(hooks, function))
    patches.wrap(api.GPUQueue, "write_texture", lambda function: _write_texture(hooks, function))
    patches.wrap(api.GPUQueue, "read_buffer", lambda function: _read(hooks, function, "read_buffer", _buffer_of))
    patches.wrap(api.GPUQueue, "read_texture", lambda function: _read(hooks, function, "read_texture", _texture_of))
    patches.wrap(api.GPUBuffer, "read_mapped", lambda function: _read_mapped(hooks, function))
    patches.wrap(api.GPUBuffer, "write_mapped", lambda function: _write_mapped(hooks, function))
    for name in ("map", "map_sync"):  # wgpu-py up to 0.26; later every wait is a promise's
        patches.wrap(api.GPUBuffer, name, lambda function: _map(hooks, function))
    promise = getattr(api, "GPUPromise", None)
    if promise is not None:
        patches.wrap(promise, "_sync_wait", lambda function: _promise_wait(hooks, function))


def size_of(data: Any) -> int:
    """Bytes of what the program wrote or read."""
    if type(data) is bytes or type(data) is bytearray:
        return len(data)
    size = getattr(data, "nbytes", None)
    return size if type(size) is int else memoryview(data).nbytes


def _write_buffer(hooks: Hooks, function: Any) -> Any:
    staged, near, block = hooks.staged, hooks.near, hooks.block
    put = staged.append

    def write_buffer(self: Any, buffer: Any, buffer_offset: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if not hooks.on:
            return function(self, buffer, buffer_offset, data, *args, **kwargs)
        if args or kwargs:
            start = time_ns()
            result = function(self, buffer, buffer_offset, data, *args, **kwargs)
            end = time_ns()
        else:
            start = time_ns()
            result = function(self, buffer, buffer_offset, data)
            end = time_ns()
        try:
            number = len(data) if type(data) is bytes else size_of(data)
            if args or kwargs:
                size = args[1] if len(args) > 1 else kwargs.get("size")
                offset = args[0] if args else kwargs.get("data_offset", 0)
                number = int(size) if size else number - int(offset)
            # A plain tuple in the order of Staged, and no call: programs write a buffer several times a draw.
            current = near() and block()
            timer = getattr(self._device, ATTRIBUTE, None)
            label, usage = buffer._label, buffer._usage
            put(("write_buffer", "cpu_to_gpu", number, start, end, label, usage, False, None, current, timer))
            number = len(staged)
            if number == 1 or number >= STAGE:
                hooks.staged_some(number)
        except Exception:  # noqa: BLE001
            hooks.fail("write_buffer")
        return result

    return write_buffer


def _write_texture(hooks: Hooks, function: Any) -> Any:
    def write_texture(self: Any, destination: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if not hooks.on:
            return function(self, destination, data, *args, **kwargs)
        start = time_ns()
        result = function(self, destination, data, *args, **kwargs)
        end = time_ns()
        try:
            texture = destination["texture"]
            usage = int(texture.usage)
            hooks.stage(
                Staged(
                    "write_texture",
                    "cpu_to_gpu",
                    size_of(data),
                    start,
                    end,
                    texture.label,
                    usage,
                    True,
                    None,
                    hooks.block(),
                    getattr(self._device, ATTRIBUTE, None),
                )
            )
        except Exception:  # noqa: BLE001
            hooks.fail("write_texture")
        return result

    return write_texture


def _read(hooks: Hooks, function: Any, method: str, source_of: Callable[[Any, Any], Any]) -> Any:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hooks.on or hooks.here.quiet:
            return function(self, *args, **kwargs)
        try:
            source = source_of(args, kwargs)
            usage = int(source.usage)
        except Exception:  # noqa: BLE001 - the program's mistake, for wgpu-py to report
            return function(self, *args, **kwargs)
        start = time_ns()
        hooks.here.waited_ns = 0
        hooks.here.quiet = True
        try:
            result = function(self, *args, **kwargs)
        finally:
            hooks.here.quiet = False
        end = time_ns()
        try:
            texture = method == "read_texture"
            hooks.stage(
                Staged(
                    method,
                    "gpu_to_cpu",
                    size_of(result),
                    start,
                    end,
                    source.label,
                    usage,
                    texture,
                    hooks.here.waited_ns,
                    hooks.block(),
                    getattr(self._device, ATTRIBUTE, None),
                )
            )
        except Exception:  # noqa: BLE001
            hooks.fail(method)
        return result

    return read


def _buffer_of(args: Any, kwargs: Any) -> Any:
    return args[0] if args else kwargs.get("buffer")


def _texture_of(args: Any, kwargs: Any) -> Any:
    return (args[0] if args else kwargs["source"])["texture"]


def _read_mapped(hooks: Hooks, function: Any) -> Any:
    def read_mapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Without a copy nothing is transferred.
        if not hooks.on or hooks.here.quiet or not kwargs.get("copy", True):
            return function(self, *args, **kwargs)
        start = time_ns()
        result = function(self, *args, **kwargs)
        _mapped(hooks, self, "read_mapped", "gpu_to_cpu", result, start)
        return result

    return read_mapped


def _write_mapped(hooks: Hooks, function: Any) -> Any:
    def write_mapped(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        start = time_ns()
        result = function(self, data, *args, **kwargs)
        if hooks.on:
            _mapped(hooks, self, "write_mapped", "cpu_to_gpu", data, start)
        return result

    return write_mapped


def _mapped(hooks: Hooks, buffer: Any, method: str, direction: str, data: Any, start: int) -> None:
    end = time_ns()
    try:
        usage = int(buffer.usage)
        size, timer = size_of(data), getattr(buffer._device, ATTRIBUTE, None)
        hooks.stage(Staged(method, direction, size, start, end, buffer.label, usage, False, None, hooks.block(), timer))
    except Exception:  # noqa: BLE001
        hooks.fail(method)


def _map(hooks: Hooks, function: Any) -> Any:
    def map_buffer(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (
            _waiting(hooks, self.label, function, self, args, kwargs) if hooks.on else function(self, *args, **kwargs)
        )

    return map_buffer


def _promise_wait(hooks: Hooks, function: Any) -> Any:
    def sync_wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hooks.on and getattr(self, "_title", "") == "buffer.map":
            return _waiting(hooks, "", function, self, args, kwargs)
        return function(self, *args, **kwargs)

    return sync_wait


def _waiting(hooks: Hooks, label: str, function: Any, self: Any, args: Any, kwargs: Any) -> Any:
    """Waits for a buffer to be mapped: a record of its own, or a part of the read that it is made for."""
    here, start = hooks.here, time_ns()
    if here.quiet:
        try:
            return function(self, *args, **kwargs)
        finally:
            here.waited_ns += time_ns() - start
    here.quiet = True
    try:
        result = function(self, *args, **kwargs)
    finally:
        here.quiet = False
    try:
        hooks.stage(Staged("map_buffer", None, 0, start, time_ns(), label, block=hooks.block()))
    except Exception:  # noqa: BLE001
        hooks.fail("map_buffer")
    return result
