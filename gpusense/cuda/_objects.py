"""The driver once it is initialised, and the objects that live in it: device, stream, event, buffer, pinned memory."""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from typing import Any

from .._capi import cuda as capi
from .._capi.binding import bind
from .._capi.cuda_facts import MemoryInfo, count, describe, lacking, memory_info_here
from .._capi.libraries import CUDA
from .._capi.loading import load
from .._records.records import DeviceInfo, Unavailable
from .._runtime.errors import BackendUnavailable, GpuSenseError


class Driver:
    """The initialised driver and the primary contexts this module holds until the process ends."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.contexts: dict[int, c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        """One driver function by its table name; raises :class:`BackendError` unless it answers 0."""
        capi.check(name.removesuffix("_v2"), getattr(self.api, name)(*arguments))

    def context(self, ordinal: int) -> c_void_p:
        """The primary context of a device, retained at the first use until the process ends."""
        with self.lock:
            if ordinal not in self.contexts:
                context = c_void_p()
                self.call("cuDevicePrimaryCtxRetain", byref(context), ordinal)
                self.contexts[ordinal] = context
            return self.contexts[ordinal]


_driver_lock = threading.Lock()
_initialised: Driver | None = None


def driver() -> Driver:
    """The driver, loaded and initialised by the first call. Raises in a child forked after that."""
    global _initialised
    with _driver_lock:
        if _initialised is None:
            _initialised = _initialise()
        if _initialised.pid != os.getpid():
            raise GpuSenseError("CUDA was initialised before this process was forked, and does not survive that")
        return _initialised


def _initialise() -> Driver:
    loaded = load(CUDA)
    if isinstance(loaded, Unavailable):
        raise BackendUnavailable(str(loaded))
    api = bind(loaded.library, capi.PROTOTYPES, loaded.path)
    names = lacking(api)
    if names or not api.cuInit:
        raise BackendUnavailable(f"{loaded.path} lacks {', '.join(names) or 'cuInit'}: not a CUDA driver")
    capi.check("cuInit", api.cuInit(0))
    return Driver(api)


def current_device() -> int:
    """Ordinal of the device whose context is current on the calling thread; 0, CUDA's default, where none is."""
    ordinal = ctypes.c_int()
    return ordinal.value if driver().api.cuCtxGetDevice(byref(ordinal)) == 0 else 0


class Device:
    """One CUDA device by its ordinal in this process. IndexError where there is no such device."""

    def __init__(self, ordinal: int = 0) -> None:
        cuda = driver()
        found = count(cuda.api)
        if not 0 <= ordinal < found:
            raise IndexError(f"there is no CUDA device {ordinal}: this process sees {found}")
        self.ordinal = ordinal
        self.info: DeviceInfo = describe(cuda.api, ordinal)

    def __repr__(self) -> str:
        return f"Device({self.ordinal}: {self.info.name})"

    @property
    def name(self) -> str:
        """As the driver gives it, "NVIDIA H100 80GB HBM3"."""
        return self.info.name

    @property
    def uuid(self) -> str | None:
        """As nvidia-smi prints it: ``GPU-…``, or ``MIG-…`` for a slice."""
        return self.info.uuid

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """Major and minor, (9, 0)."""
        return self.info.compute_capability

    @property
    def multiprocessor_count(self) -> int | None:
        """Streaming multiprocessors that CUDA may use."""
        return self.info.sm_count

    @property
    def clock_rate_mhz(self) -> float | None:
        """The highest SM clock, not the present one."""
        return self.info.clock_max_mhz

    @property
    def memory_clock_rate_mhz(self) -> float | None:
        """The highest memory clock, not the present one."""
        return self.info.memory_clock_max_mhz

    def memory_info(self) -> MemoryInfo:
        """Free and total bytes as CUDA counts them; nvidia-smi's total also holds what the driver reserves."""
        with self.current() as cuda:
            return memory_info_here(cuda.api)

    def synchronize(self) -> None:
        """Waits until all work of the primary context is done."""
        with self.current() as cuda:
            cuda.call("cuCtxSynchronize")

    @contextmanager
    def current(self) -> Iterator[Driver]:
        """The primary context current on this thread; afterwards what was current before."""
        cuda = driver()
        cuda.call("cuCtxPushCurrent_v2", cuda.context(self.ordinal))
        try:
            yield cuda
        finally:
            cuda.api.cuCtxPopCurrent_v2(None)


def device_of(device: "Device | int | None") -> Device:
    """A device by itself or its ordinal; None: the current one."""
    return device if isinstance(device, Device) else Device(current_device() if device is None else device)


class Owned:
    """Something the driver made and has to release; released at the latest with the object.

    A failure to release is silent: after the process's CUDA has ended, or in a forked child, there is nothing to do.
    """

    _release = ""  # table name of the function that takes the handle

    def __init__(self, device: Device, handle: Any) -> None:
        self.device = device
        self._handle = handle

    def close(self) -> None:
        """Releases it now; a second time does nothing."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is None:
            return
        try:
            with self.device.current() as cuda:
                getattr(cuda.api, self._release)(handle)
        except GpuSenseError:
            pass

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # noqa: BLE001 — at interpreter exit anything may be gone
            pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def use(self) -> Any:
        if self._handle is None:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._handle


class Stream(Owned):
    """A queue of device work that runs in order."""

    _release = "cuStreamDestroy_v2"

    def __init__(self, device: "Device | int | None" = None) -> None:
        device, handle = device_of(device), c_void_p()
        with device.current() as cuda:
            cuda.call("cuStreamCreate", byref(handle), 0)
        super().__init__(device, handle)

    def synchronize(self) -> None:
        """Waits until everything queued so far is done."""
        with self.device.current() as cuda:
            cuda.call("cuStreamSynchronize", self.use())


class Event(Owned):
    """A point in a stream that the device time-stamps when it gets there."""

    _release = "cuEventDestroy_v2"

    def __init__(self, device: "Device | int | None" = None) -> None:
        device, handle = device_of(device), c_void_p()
        with device.current() as cuda:
            cuda.call("cuEventCreate", byref(handle), 0)
        super().__init__(device, handle)

    def record(self, stream: Stream | None = None) -> None:
        """Places it at the end of ``stream``, or of the default stream."""
        with self.device.current() as cuda:
            cuda.call("cuEventRecord", self.use(), stream_handle(stream))

    def synchronize(self) -> None:
        """Waits until the device has reached it."""
        with self.device.current() as cuda:
            cuda.call("cuEventSynchronize", self.use())

    def elapsed_ns(self, since: "Event") -> int:
        """Device time from ``since`` to this event, both reached; resolution about 500 ns."""
        milliseconds = ctypes.c_float()
        with self.device.current() as cuda:
            cuda.call("cuEventElapsedTime", byref(milliseconds), since.use(), self.use())
        return round(milliseconds.value * 1e6)


def stream_handle(stream: Stream | None) -> Any:
    """What the driver takes for a stream; None: the default one."""
    return None if stream is None else stream.use()


class Buffer(Owned):
    """``nbytes`` of device memory. Copies wait for their end."""

    _release = "cuMemFree_v2"

    def __init__(self, nbytes: int, device: "Device | int | None" = None) -> None:
        if nbytes <= 0:
            raise ValueError(f"a buffer of {nbytes} bytes")
        device, address = device_of(device), ctypes.c_uint64()
        with device.current() as cuda:
            cuda.call("cuMemAlloc_v2", byref(address), nbytes)
        super().__init__(device, address.value)
        self.nbytes = nbytes

    @classmethod
    def of(cls, data: Any, device: "Device | int | None" = None) -> "Buffer":
        """A buffer that holds a copy of ``data``, any object with the buffer protocol."""
        buffer = cls(memoryview(data).nbytes, device)
        buffer.copy_from(data)
        return buffer

    @property
    def address(self) -> int:
        """The device address, as kernels take it."""
        return int(self.use())

    def copy_from(self, data: Any) -> None:
        """Fills the beginning of the buffer from host memory. ValueError where ``data`` is longer than the buffer."""
        view = memoryview(data)
        self._fits(view.nbytes)
        if not view.nbytes:
            return
        source = (
            bytes(view) if view.readonly or not view.contiguous else (ctypes.c_ubyte * view.nbytes).from_buffer(view)
        )
        with self.device.current() as cuda:
            cuda.call("cuMemcpyHtoD_v2", self.address, source, view.nbytes)

    def copy_to(self, target: Any) -> None:
        """Copies the beginning of the buffer into writable host memory, as much as fits there."""
        view = memoryview(target)
        self._fits(view.nbytes)
        if not view.nbytes:
            return
        with self.device.current() as cuda:
            array = (ctypes.c_ubyte * view.nbytes).from_buffer(view)
            cuda.call("cuMemcpyDtoH_v2", array, self.address, view.nbytes)

    def copy_from_buffer(self, source: "Buffer") -> None:
        """Copies all of ``source`` on the device. ValueError where that is longer than this buffer."""
        self._fits(source.nbytes)
        with self.device.current() as cuda:
            cuda.call("cuMemcpyDtoD_v2", self.address, source.address, source.nbytes)

    def to_bytes(self) -> bytes:
        """The whole content."""
        host = bytearray(self.nbytes)
        self.copy_to(host)
        return bytes(host)

    def fill(self, value: int = 0) -> None:
        """Sets every byte to ``value``, 0…255."""
        if not 0 <= value <= 255:
            raise ValueError(f"{value} is not a byte")
        with self.device.current() as cuda:
            cuda.call("cuMemsetD8_v2", self.address, value, self.nbytes)

    def free(self) -> None:
        """Same as :meth:`close`."""
        self.close()

    def _fits(self, nbytes: int) -> None:
        if nbytes > self.nbytes:
            raise ValueError(f"{nbytes} bytes do not fit a buffer of {self.nbytes}")


class PinnedMemory(Owned):
    """``nbytes`` of host memory that the device reaches directly; lives as long as it or a view of it."""

    _release = "cuMemFreeHost"

    def __init__(self, nbytes: int, device: "Device | int | None" = None) -> None:
        if nbytes <= 0:
            raise ValueError(f"pinned memory of {nbytes} bytes")
        device, handle = device_of(device), c_void_p()
        with device.current() as cuda:
            cuda.call("cuMemHostAlloc", byref(handle), nbytes, 0)
        super().__init__(device, handle)
        self.nbytes = nbytes

    def view(self) -> memoryview:
        """The memory, writable. A view used after :meth:`close` is an error CUDA cannot catch."""
        array = (ctypes.c_ubyte * self.nbytes).from_address(self.use().value)
        array.owner = self  # type: ignore[attr-defined]  # keeps the memory while a view is held
        return memoryview(array).cast("B")
