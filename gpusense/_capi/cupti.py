"""The part of CUPTI that gpusense calls: prototypes and what each result code means for the reader (cupti.h, 11.7 on).

Only the first version of the activity interface: calls of the first and of the second cannot be mixed in one process.
"""

from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from .._runtime.errors import BackendError
from .binding import prototypes

PROTOTYPES = prototypes(
    cuptiGetVersion=(c_int, POINTER(c_uint32)),
    cuptiGetTimestamp=(c_int, POINTER(c_uint64)),
    cuptiActivityRegisterTimestampCallback=(c_int, c_void_p),
    cuptiFinalize=(c_int,),
    # activity
    cuptiActivityRegisterCallbacks=(c_int, c_void_p, c_void_p),
    cuptiActivityEnable=(c_int, c_int),
    cuptiActivityDisable=(c_int, c_int),
    cuptiActivityFlushAll=(c_int, c_uint32),
    cuptiActivityGetNextRecord=(c_int, c_void_p, c_size_t, POINTER(c_void_p)),
    cuptiActivityGetNumDroppedRecords=(c_int, c_void_p, c_uint32, POINTER(c_size_t)),
    cuptiActivityGetAttribute=(c_int, c_int, POINTER(c_size_t), c_void_p),
    cuptiActivitySetAttribute=(c_int, c_int, POINTER(c_size_t), c_void_p),
    cuptiActivityConfigureUnifiedMemoryCounter=(c_int, POINTER(c_uint32), c_uint32),  # four numbers a counter
    cuptiActivityGetStructSize=(c_int, c_int, c_uint32, POINTER(c_size_t)),  # 13.2
    cuptiActivityEnableLatencyTimestamps=(c_int, c_uint8),
    cuptiActivityEnableHWTrace=(c_int, c_uint8),  # 12.8
    cuptiActivityEnableDriverApi=(c_int, c_uint32, c_uint8),  # 12.5; (function id, on)
    cuptiActivityEnableRuntimeApi=(c_int, c_uint32, c_uint8),
    cuptiActivityPushExternalCorrelationId=(c_int, c_int, c_uint64),
    cuptiActivityPopExternalCorrelationId=(c_int, c_int, POINTER(c_uint64)),
    # callbacks
    cuptiSubscribe=(c_int, POINTER(c_void_p), c_void_p, c_void_p),
    cuptiUnsubscribe=(c_int, c_void_p),
    cuptiEnableCallback=(c_int, c_uint32, c_void_p, c_int, c_uint32),
    cuptiGetCallbackName=(c_int, c_int, c_uint32, POINTER(c_char_p)),
    cuptiGetContextId=(c_int, c_void_p, POINTER(c_uint32)),
    cuptiGetStreamIdEx=(c_int, c_void_p, c_void_p, c_uint8, POINTER(c_uint32)),
    # graphs
    cuptiGetGraphNodeId=(c_int, c_void_p, POINTER(c_uint64)),
    cuptiGetGraphId=(c_int, c_void_p, POINTER(c_uint32)),
    cuptiGetGraphExecId=(c_int, c_void_p, POINTER(c_uint32)),  # 12.3
)

#: Without these a library is not taken for a CUPTI that can trace.
REQUIRED = (
    "cuptiGetVersion",
    "cuptiGetTimestamp",
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityEnable",
    "cuptiActivityDisable",
    "cuptiActivityFlushAll",
    "cuptiActivityGetNextRecord",
    "cuptiActivityGetNumDroppedRecords",
)

FLUSH_FORCED = 1
ATTRIBUTE_PER_THREAD_BUFFER = 9  # uint8_t; 12.3, on by default since 13.0

#: Since this answer of cuptiGetVersion (CUDA 12.8 Update 1) a refused buffer request does not crash CUPTI.
VERSION_BEARS_REFUSAL = 27

#: Since this answer (CUDA 12.6) CUPTI may be taken out of a process that has CUDA graphs.
VERSION_BEARS_FINALIZE = 24

#: Since this answer (CUDA 13.0) a record is in its buffer, with the correlation id, before the launch returns.
VERSION_BEGINS_RECORDS = 130000

#: Since this answer (CUDA 13.4 Update 1) hardware events corrupt no memory.
VERSION_BEARS_EVENTS = 130401

ALL_DEVICES = 2  # scope of a unified-memory counter

MAX_LIMIT_REACHED = 12
MULTIPLE_SUBSCRIBERS = 39

DOMAIN_RESOURCE = 3
RESOURCE_GRAPHNODE_CREATED = 13
RESOURCE_GRAPHEXEC_CREATED = 18
RESOURCE_GRAPHNODE_CLONED = 20

#: Code → (CUPTI's name for it, what it means and what to do). CUPTI's own texts may fail to come, and say less.
RESULTS: dict[int, tuple[str, str]] = {
    1: ("INVALID_PARAMETER", "the library does not know this argument"),
    2: ("INVALID_DEVICE", "the library does not know this device"),
    3: ("INVALID_CONTEXT", "no context of CUDA is current, or it is gone"),
    7: ("INVALID_OPERATION", "not possible now; another profiler may be in the middle of its set-up"),
    8: ("OUT_OF_MEMORY", "the process is out of memory"),
    9: ("HARDWARE", "the device answered with a hardware error; look for Xid messages in the kernel log"),
    10: ("PARAMETER_SIZE_NOT_SUFFICIENT", "this CUPTI has another form of the call"),
    11: ("API_NOT_IMPLEMENTED", "this CUPTI does not implement the call; a newer CUDA toolkit may"),
    12: ("MAX_LIMIT_REACHED", "the end was reached"),
    13: ("NOT_READY", "CUPTI is not ready yet; this is tried again"),
    14: ("NOT_COMPATIBLE", "another profiler in this process uses CUPTI's second interface; the two cannot be mixed"),
    15: ("NOT_INITIALIZED", "CUPTI does not work with this driver; one at least as new as the CUDA toolkit is needed"),
    17: ("INVALID_METRIC_NAME", "this chip does not count that"),
    18: ("QUEUE_EMPTY", "nothing is recorded yet"),
    21: ("INVALID_KIND", "this CUPTI does not know the record kind"),
    23: ("DISABLED", "profiling is switched off for this device or process"),
    26: ("HARDWARE_BUSY", "the profiling hardware is in use by another profiler; stop that one"),
    27: ("NOT_SUPPORTED", "not supported on this device or system"),
    28: ("UM_PROFILING_NOT_SUPPORTED", "unified memory cannot be profiled on this system"),
    29: ("UM_PROFILING_NOT_SUPPORTED_ON_DEVICE", "unified memory cannot be profiled on this device"),
    31: ("UM_PROFILING_NOT_SUPPORTED_WITH_MPS", "unified memory cannot be profiled under MPS"),
    33: ("VIRTUALIZED_DEVICE_NOT_SUPPORTED", "this virtual GPU does not allow tracing; ask for a profile that does"),
    35: (
        "INSUFFICIENT_PRIVILEGES",
        (
            "the driver lets only administrators profile; load it with NVreg_RestrictProfilingToAdminUsers=0, or give "
            "the container CAP_SYS_ADMIN (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
        ),
    ),
    36: ("OLD_PROFILER_API_INITIALIZED", "another profiler in this process uses the old profiler interface"),
    38: ("LEGACY_PROFILER_NOT_SUPPORTED", "the old profiler interface does not support this device"),
    39: ("MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "another profiler holds CUPTI; tracing goes on when it ends"),
    40: (
        "VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
        "profiling is not enabled for this virtual GPU; enable it in the hypervisor",
    ),
    41: ("CONFIDENTIAL_COMPUTING_NOT_SUPPORTED", "profiling is not possible in confidential computing mode"),
    42: ("CMP_DEVICE_NOT_SUPPORTED", "mining processors cannot be profiled"),
    43: ("MIG_DEVICE_NOT_SUPPORTED", "this MIG slice cannot be profiled"),
    44: ("SLI_DEVICE_NOT_SUPPORTED", "devices joined by SLI cannot be profiled; switch SLI off"),
    45: (
        "WSL_DEVICE_NOT_SUPPORTED",
        (
            "this device cannot be profiled under WSL; update the Windows driver and switch developer mode on in the "
            "NVIDIA control panel"
        ),
    ),
    46: ("INVALID_CHIP_NAME", "this CUPTI does not know the chip; that of a newer CUDA toolkit may"),
    47: ("HES_TRACE_NOT_SUPPORTED_ON_MPS", "hardware event tracing is not possible under MPS"),
    999: (
        "UNKNOWN",
        "CUPTI failed without a reason; most often the driver is older than this CUPTI, or CUDA is not initialised",
    ),
}


def text(code: int) -> str:
    """``NAME: what it means and what to do``."""
    name, meaning = RESULTS.get(code, ("UNLISTED", "a code that this version of gpusense does not know"))
    return f"{name}: {meaning}"


def check(call: str, code: int) -> None:
    """Raises :class:`BackendError` for any answer but success."""
    if code != 0:
        raise BackendError(call, code, text(code))
