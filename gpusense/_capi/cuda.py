"""The part of the CUDA driver API that gpusense calls: prototypes, attribute numbers, error names (cuda.h, 11.7 on).

Where the name without a suffix is the 32-bit or an older form, the table binds the ``_v2`` symbol. Handles are
``c_void_p``, device addresses ``c_uint64``.
"""

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

from .._runtime.errors import BackendError
from .binding import prototypes

Uuid = c_ubyte * 16

PROTOTYPES = prototypes(
    cuInit=(c_int, c_uint),
    cuDriverGetVersion=(c_int, POINTER(c_int)),
    # devices: none of these needs a context
    cuDeviceGetCount=(c_int, POINTER(c_int)),
    cuDeviceGet=(c_int, POINTER(c_int), c_int),
    cuDeviceGetName=(c_int, POINTER(c_char), c_int, c_int),
    cuDeviceGetUuid=(c_int, POINTER(Uuid), c_int),
    cuDeviceGetUuid_v2=(c_int, POINTER(Uuid), c_int),
    cuDeviceGetPCIBusId=(c_int, POINTER(c_char), c_int, c_int),
    cuDeviceTotalMem_v2=(c_int, POINTER(c_size_t), c_int),
    cuDeviceGetAttribute=(c_int, POINTER(c_int), c_int, c_int),
    # contexts
    cuDevicePrimaryCtxGetState=(c_int, c_int, POINTER(c_uint), POINTER(c_int)),
    cuDevicePrimaryCtxRetain=(c_int, POINTER(c_void_p), c_int),
    cuDevicePrimaryCtxRelease_v2=(c_int, c_int),
    cuCtxGetCurrent=(c_int, POINTER(c_void_p)),
    cuCtxGetDevice=(c_int, POINTER(c_int)),
    cuCtxGetId=(c_int, c_void_p, POINTER(c_uint64)),  # 12.0
    cuCtxPushCurrent_v2=(c_int, c_void_p),
    cuCtxPopCurrent_v2=(c_int, POINTER(c_void_p)),
    cuCtxSynchronize=(c_int,),
    cuThreadExchangeStreamCaptureMode=(c_int, POINTER(c_int)),
    # memory
    cuMemGetInfo_v2=(c_int, POINTER(c_size_t), POINTER(c_size_t)),
    cuMemAlloc_v2=(c_int, POINTER(c_uint64), c_size_t),
    cuMemFree_v2=(c_int, c_uint64),
    cuMemHostAlloc=(c_int, POINTER(c_void_p), c_size_t, c_uint),
    cuMemFreeHost=(c_int, c_void_p),
    cuMemcpyHtoD_v2=(c_int, c_uint64, c_void_p, c_size_t),
    cuMemcpyDtoH_v2=(c_int, c_void_p, c_uint64, c_size_t),
    cuMemcpyDtoD_v2=(c_int, c_uint64, c_uint64, c_size_t),
    cuMemsetD32Async=(c_int, c_uint64, c_uint, c_size_t, c_void_p),
    cuMemsetD8_v2=(c_int, c_uint64, c_ubyte, c_size_t),
    # modules and launches
    cuModuleLoadDataEx=(c_int, POINTER(c_void_p), c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p)),
    cuModuleUnload=(c_int, c_void_p),
    cuModuleGetFunction=(c_int, POINTER(c_void_p), c_void_p, c_char_p),
    cuFuncGetAttribute=(c_int, POINTER(c_int), c_int, c_void_p),
    cuFuncSetAttribute=(c_int, c_void_p, c_int, c_int),
    cuLaunchKernel=(c_int, c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
    cuOccupancyMaxActiveBlocksPerMultiprocessor=(c_int, POINTER(c_int), c_void_p, c_int, c_size_t),
    # streams and events
    cuStreamCreate=(c_int, POINTER(c_void_p), c_uint),
    cuStreamDestroy_v2=(c_int, c_void_p),
    cuStreamSynchronize=(c_int, c_void_p),
    cuStreamQuery=(c_int, c_void_p),
    cuStreamWaitEvent=(c_int, c_void_p, c_void_p, c_uint),
    cuStreamIsCapturing=(c_int, c_void_p, POINTER(c_int)),
    cuEventCreate=(c_int, POINTER(c_void_p), c_uint),
    cuEventRecord=(c_int, c_void_p, c_void_p),
    cuEventQuery=(c_int, c_void_p),
    cuEventSynchronize=(c_int, c_void_p),
    cuEventElapsedTime=(c_int, POINTER(c_float), c_void_p, c_void_p),
    cuEventDestroy_v2=(c_int, c_void_p),
)

#: What a library must export to be taken for a CUDA driver at all.
REQUIRED = ("cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2")

# CUdevice_attribute
MAX_THREADS_PER_BLOCK = 1
SHARED_MEMORY_PER_BLOCK = 8
WARP_SIZE = 10
REGISTERS_PER_BLOCK = 12
CLOCK_RATE_KHZ = 13
SM_COUNT = 16
INTEGRATED = 18
MEMORY_CLOCK_RATE_KHZ = 36
MEMORY_BUS_WIDTH_BITS = 37
L2_CACHE_BYTES = 38
THREADS_PER_SM = 39
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
SHARED_MEMORY_PER_SM = 81
REGISTERS_PER_SM = 82
SHARED_MEMORY_PER_BLOCK_OPTIN = 97
BLOCKS_PER_SM = 106
RESERVED_SHARED_MEMORY_PER_BLOCK = 111

# CUfunction_attribute
FUNCTION_MAX_THREADS_PER_BLOCK = 0
FUNCTION_SHARED_BYTES = 1
FUNCTION_LOCAL_BYTES = 3
FUNCTION_REGISTERS = 4
FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8

# CUjit_option
JIT_ERROR_LOG_BUFFER = 5
JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6

NOT_INITIALIZED = 3

#: CUresult names, without the prefix they share, for drivers that answer no name.
ERRORS: dict[int, str] = {
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    3: "NOT_INITIALIZED",
    4: "DEINITIALIZED",
    34: "STUB_LIBRARY",
    46: "DEVICE_UNAVAILABLE",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    102: "DEVICE_NOT_LICENSED",
    200: "INVALID_IMAGE",
    201: "INVALID_CONTEXT",
    209: "NO_BINARY_FOR_GPU",
    214: "ECC_UNCORRECTABLE",
    218: "INVALID_PTX",
    221: "JIT_COMPILER_NOT_FOUND",
    222: "UNSUPPORTED_PTX_VERSION",
    223: "JIT_COMPILATION_DISABLED",
    304: "OPERATING_SYSTEM",
    400: "INVALID_HANDLE",
    500: "NOT_FOUND",
    600: "NOT_READY",
    700: "ILLEGAL_ADDRESS",
    701: "LAUNCH_OUT_OF_RESOURCES",
    702: "LAUNCH_TIMEOUT",
    709: "CONTEXT_IS_DESTROYED",
    710: "ASSERT",
    715: "ILLEGAL_INSTRUCTION",
    716: "MISALIGNED_ADDRESS",
    719: "LAUNCH_FAILED",
    800: "NOT_PERMITTED",
    801: "NOT_SUPPORTED",
    802: "SYSTEM_NOT_READY",
    803: "SYSTEM_DRIVER_MISMATCH",
    804: "COMPAT_NOT_SUPPORTED_ON_DEVICE",
    900: "STREAM_CAPTURE_UNSUPPORTED",
    901: "STREAM_CAPTURE_INVALIDATED",
    906: "STREAM_CAPTURE_IMPLICIT",
    999: "UNKNOWN",
}

#: What to do about the codes a user can do something about.
HINTS: dict[int, str] = {
    3: "the driver was not initialised",
    34: "a stub library was loaded in place of the driver",
    100: "no GPU is visible: see CUDA_VISIBLE_DEVICES and the container's device settings",
    222: "the driver is older than the PTX",
    802: "the system is not ready: is the fabric manager running?",
    803: "kernel module and libcuda are of different versions: reboot, or reload the module",
    804: "the forward-compatibility libcuda does not support this GPU",
    999: "see the kernel log for messages of the NVIDIA module",
}


def check(call: str, code: int) -> None:
    """Raises :class:`BackendError` with the vendor's name of ``code``, unless it is 0."""
    if code:
        raise BackendError(call, code, error_text(code))


def error_text(code: int) -> str:
    """``NO_DEVICE, no GPU is visible: …`` for 100; "unknown error" for a code of the future."""
    name = ERRORS.get(code, "unknown error")
    hint = HINTS.get(code)
    return f"{name}, {hint}" if hint else name


def attribute(api: object, number: int, device: int) -> int | None:
    """One device attribute, or None where this driver does not know it."""
    value = ctypes.c_int()
    code = api.cuDeviceGetAttribute(ctypes.byref(value), number, device)  # type: ignore[attr-defined]
    return value.value if code == 0 else None
