"""Runs your own kernels without a toolkit: device facts, PTX compiled by the driver, and launches that return metrics.

Unlike everything else in gpusense, this module loads libcuda and initialises CUDA, because running kernels is what it
is asked to do: a process that has used it cannot use CUDA in children it forks. It works in each device's primary
context, the one CUDA's runtime and the frameworks use, made current only for the length of a call. Every object may be
used from any thread. Failures raise :class:`~gpusense.BackendError`; a machine without CUDA raises
:class:`~gpusense.BackendUnavailable`, except from :func:`cuda_available` and :func:`device_count`, which answer.
"""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_void_p
from typing import Any, NamedTuple

from .._capi import cuda as capi
from .._capi.cuda_facts import MemoryInfo, count
from .._records.records import Dim3
from .._runtime.errors import BackendError, GpuSenseError
from . import _ptx
from ._objects import (
    Buffer,
    Device,
    Driver,
    Event,
    Owned,
    PinnedMemory,
    Stream,
    current_device,
    device_of,
    driver,
    stream_handle,
)

__all__ = [
    "Buffer",
    "CompileError",
    "Device",
    "Event",
    "Function",
    "KernelMetrics",
    "MemoryInfo",
    "Module",
    "PinnedMemory",
    "Stream",
    "cuda_available",
    "current_device",
    "device_count",
    "launch_instrumented",
]


class CompileError(BackendError):
    """The driver refused a PTX text; ``log`` is its compiler's output, also part of the message."""

    def __init__(self, call: str, code: int, log: str) -> None:
        super().__init__(call, code, capi.error_text(code) + (f"\n{log}\n" if log else ""))
        self.log = log

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.call, self.code, self.log)


class KernelMetrics(NamedTuple):
    """One launch, timed between two events on its stream.

    ``event_time_ns`` includes the launch's own latency on the device, so it exceeds what a profiler gives by a few
    microseconds; its resolution is about half a microsecond. ``occupancy`` is the theoretical one, 0…1, as the driver
    computes it.
    """

    name: str
    event_time_ns: int
    grid: Dim3
    block: Dim3
    static_shared_bytes: int
    dynamic_shared_bytes: int
    registers_per_thread: int
    local_bytes_per_thread: int
    blocks_per_sm: int
    occupancy: float
    device: int


def cuda_available() -> bool:
    """Whether CUDA can be used here: the driver loads and initialises, and shows at least one device. Never raises."""
    return device_count() > 0


def device_count() -> int:
    """Number of devices CUDA shows this process; 0 without CUDA."""
    try:
        return count(driver().api)
    except GpuSenseError:
        return 0


class Module(Owned):
    """A loaded PTX text."""

    _release = "cuModuleUnload"

    def __init__(self, device: Device, handle: Any, entries: dict[str, tuple[_ptx.Parameter, ...]]) -> None:
        super().__init__(device, handle)
        self._entries = entries

    @classmethod
    def from_ptx(cls, text: str, device: "Device | int | None" = None) -> "Module":
        """The kernels of a PTX text, compiled by the driver. :class:`CompileError` has the compiler's log."""
        if "\0" in text:
            raise ValueError("a PTX text has no NUL characters")
        entries, device, handle = _ptx.entries(text), device_of(device), c_void_p()
        log = ctypes.create_string_buffer(16384)
        options = (ctypes.c_int * 2)(capi.JIT_ERROR_LOG_BUFFER, capi.JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        with device.current() as cuda:
            code = cuda.api.cuModuleLoadDataEx(byref(handle), text.encode(), 2, options, values)
        if code:
            raise CompileError("cuModuleLoadDataEx", code, log.value.decode("utf-8", "replace").strip())
        return cls(device, handle, entries)

    def function(self, name: str) -> "Function":
        """The kernel called ``name``. KeyError, naming those there are, for another."""
        if name not in self._entries:
            raise KeyError(f"no kernel {name!r} in this module, only {', '.join(sorted(self._entries)) or 'none'}")
        handle = c_void_p()
        with self.device.current() as cuda:
            cuda.call("cuModuleGetFunction", byref(handle), self.use(), name.encode())
        return Function(self, name, handle, self._entries[name])


class Function:
    """One kernel of a module: what the compiler made of it, and :meth:`launch`."""

    def __init__(self, module: Module, name: str, handle: Any, parameters: tuple[_ptx.Parameter, ...]) -> None:
        self.module = module
        self.device = module.device
        self.name = name
        self.parameters = parameters
        self._handle = handle
        self.registers_per_thread = self._attribute(capi.FUNCTION_REGISTERS)
        self.static_shared_bytes = self._attribute(capi.FUNCTION_SHARED_BYTES)
        self.local_bytes_per_thread = self._attribute(capi.FUNCTION_LOCAL_BYTES)
        self.max_threads_per_block = self._attribute(capi.FUNCTION_MAX_THREADS_PER_BLOCK)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        with self.device.current() as cuda:
            cuda.call("cuFuncGetAttribute", byref(value), number, self._handle)
        return value.value

    def blocks_per_sm(self, threads: int, shared_bytes: int = 0) -> int:
        """Blocks of ``threads`` that one SM holds at a time, as the driver computes it."""
        blocks = ctypes.c_int()
        with self.device.current() as cuda:
            self._allow_shared(cuda, shared_bytes)
            cuda.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), self._handle, threads, shared_bytes)
        return blocks.value

    def occupancy(self, threads: int, shared_bytes: int = 0) -> float:
        """Share of an SM's warps that blocks of ``threads`` can keep resident, 0…1."""
        warps = (self.device.info.threads_per_sm or 0) // 32
        return self.blocks_per_sm(threads, shared_bytes) * -(-threads // 32) / warps if warps else 0.0

    def launch(
        self,
        grid: "int | Sequence[int]",
        block: "int | Sequence[int]",
        args: Sequence[Any] = (),
        shared_bytes: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Queues the kernel and returns. ``args`` are checked against the kernel's parameters.

        Numbers are packed as the PTX declares them, a :class:`Buffer` gives its address; whatever is passed must live
        until the kernel has run.
        """
        self._launch(_dim3(grid, "grid"), _dim3(block, "block"), args, shared_bytes, stream)

    def _launch(self, grid: Dim3, block: Dim3, args: Sequence[Any], shared_bytes: int, stream: Stream | None) -> None:
        if shared_bytes < 0:
            raise ValueError(f"{shared_bytes} bytes of shared memory")
        values = [value.address if isinstance(value, Buffer) else value for value in args]
        packed = [ctypes.create_string_buffer(raw, len(raw)) for raw in _ptx.pack(self.name, self.parameters, values)]
        pointers = (c_void_p * max(len(packed), 1))(*map(ctypes.addressof, packed))
        self.module.use()
        with self.device.current() as cuda:
            self._allow_shared(cuda, shared_bytes)
            cuda.call(
                "cuLaunchKernel", self._handle, *grid, *block, shared_bytes, stream_handle(stream), pointers, None
            )

    def _allow_shared(self, cuda: Driver, shared_bytes: int) -> None:
        """More dynamic shared memory than every device has must be asked for, kernel by kernel."""
        if shared_bytes > 48 * 1024 - self.static_shared_bytes:
            cuda.call("cuFuncSetAttribute", self._handle, capi.FUNCTION_MAX_DYNAMIC_SHARED_BYTES, shared_bytes)


def launch_instrumented(
    function: Function,
    grid: "int | Sequence[int]",
    block: "int | Sequence[int]",
    args: Sequence[Any] = (),
    shared_bytes: int = 0,
    stream: Stream | None = None,
) -> KernelMetrics:
    """Launches a kernel, waits for it, and gives back how long it took and what it used.

    ``grid`` and ``block`` are one to three numbers, ``shared_bytes`` the dynamic shared memory of a block. An error in
    the kernel itself surfaces here, as the wait's.
    """
    grid, block = _dim3(grid, "grid"), _dim3(block, "block")
    threads = block[0] * block[1] * block[2]
    device = function.device
    with Event(device) as start, Event(device) as end:
        start.record(stream)
        function._launch(grid, block, args, shared_bytes, stream)
        end.record(stream)
        end.synchronize()
        elapsed = end.elapsed_ns(start)
    return KernelMetrics(
        name=function.name,
        event_time_ns=elapsed,
        grid=grid,
        block=block,
        static_shared_bytes=function.static_shared_bytes,
        dynamic_shared_bytes=shared_bytes,
        registers_per_thread=function.registers_per_thread,
        local_bytes_per_thread=function.local_bytes_per_thread,
        blocks_per_sm=function.blocks_per_sm(threads, shared_bytes),
        occupancy=function.occupancy(threads, shared_bytes),
        device=device.ordinal,
    )


def _dim3(value: "int | Sequence[int]", what: str) -> Dim3:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(numbers) <= 3 or not all(isinstance(number, int) and 0 < number < 2**31 for number in numbers):
        raise ValueError(f"{what} must be one to three positive numbers, not {value!r}")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z
