"""NVML's facts: prototypes, struct layouts by offset, result codes and their classes, field ids, names of bits.

Offsets are the same in every header from 11.7 to 13.5 (checked by tests/backends/nvml/test_abi.py). Field ids above 198
moved between releases, except 202 and 204, and are not used.
"""

from ctypes import POINTER, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

from .binding import Prototypes, prototypes

_U32 = POINTER(c_uint)
_U64 = POINTER(c_ulonglong)
_TEXT = POINTER(c_char)
_DEVICE = c_void_p

#: Result type first. Struct pointers are ``c_void_p``: we pass plain buffers and read them by offset.
NVML: Prototypes = prototypes(
    nvmlInit_v2=(c_int,),
    nvmlInitWithFlags=(c_int, c_uint),
    nvmlShutdown=(c_int,),
    nvmlSystemGetDriverVersion=(c_int, _TEXT, c_uint),
    nvmlSystemGetNVMLVersion=(c_int, _TEXT, c_uint),
    nvmlDeviceGetCount_v2=(c_int, _U32),
    nvmlDeviceGetHandleByIndex_v2=(c_int, c_uint, POINTER(c_void_p)),
    nvmlDeviceGetHandleByUUID=(c_int, c_char_p, POINTER(c_void_p)),
    nvmlDeviceGetHandleByPciBusId_v2=(c_int, c_char_p, POINTER(c_void_p)),
    nvmlDeviceGetIndex=(c_int, _DEVICE, _U32),
    nvmlDeviceGetName=(c_int, _DEVICE, _TEXT, c_uint),
    nvmlDeviceGetUUID=(c_int, _DEVICE, _TEXT, c_uint),
    nvmlDeviceGetPciInfo_v3=(c_int, _DEVICE, c_void_p),
    nvmlDeviceGetCudaComputeCapability=(c_int, _DEVICE, POINTER(c_int), POINTER(c_int)),
    nvmlDeviceGetMemoryBusWidth=(c_int, _DEVICE, _U32),
    nvmlDeviceGetVirtualizationMode=(c_int, _DEVICE, _U32),
    nvmlDeviceGetMaxClockInfo=(c_int, _DEVICE, c_uint, _U32),
    nvmlDeviceGetMemoryInfo=(c_int, _DEVICE, c_void_p),
    nvmlDeviceGetMemoryInfo_v2=(c_int, _DEVICE, c_void_p),
    nvmlDeviceGetUtilizationRates=(c_int, _DEVICE, c_void_p),
    nvmlDeviceGetEncoderUtilization=(c_int, _DEVICE, _U32, _U32),
    nvmlDeviceGetDecoderUtilization=(c_int, _DEVICE, _U32, _U32),
    nvmlDeviceGetJpgUtilization=(c_int, _DEVICE, _U32, _U32),
    nvmlDeviceGetOfaUtilization=(c_int, _DEVICE, _U32, _U32),
    nvmlDeviceGetTemperature=(c_int, _DEVICE, c_uint, _U32),
    nvmlDeviceGetTemperatureV=(c_int, _DEVICE, c_void_p),
    nvmlDeviceGetTemperatureThreshold=(c_int, _DEVICE, c_uint, _U32),
    nvmlDeviceGetMarginTemperature=(c_int, _DEVICE, c_void_p),
    nvmlDeviceGetNumFans=(c_int, _DEVICE, _U32),
    nvmlDeviceGetFanSpeed=(c_int, _DEVICE, _U32),
    nvmlDeviceGetFanSpeed_v2=(c_int, _DEVICE, c_uint, _U32),
    nvmlDeviceGetFanSpeedRPM=(c_int, _DEVICE, c_void_p),
    nvmlDeviceGetPowerUsage=(c_int, _DEVICE, _U32),
    nvmlDeviceGetTotalEnergyConsumption=(c_int, _DEVICE, _U64),
    nvmlDeviceGetEnforcedPowerLimit=(c_int, _DEVICE, _U32),
    nvmlDeviceGetClockInfo=(c_int, _DEVICE, c_uint, _U32),
    nvmlDeviceGetPerformanceState=(c_int, _DEVICE, _U32),
    nvmlDeviceGetCurrentClocksEventReasons=(c_int, _DEVICE, _U64),
    nvmlDeviceGetCurrentClocksThrottleReasons=(c_int, _DEVICE, _U64),
    nvmlDeviceGetPcieThroughput=(c_int, _DEVICE, c_uint, _U32),
    nvmlDeviceGetCurrPcieLinkGeneration=(c_int, _DEVICE, _U32),
    nvmlDeviceGetCurrPcieLinkWidth=(c_int, _DEVICE, _U32),
    nvmlDeviceGetMaxPcieLinkGeneration=(c_int, _DEVICE, _U32),
    nvmlDeviceGetMaxPcieLinkWidth=(c_int, _DEVICE, _U32),
    nvmlDeviceGetPcieReplayCounter=(c_int, _DEVICE, _U32),
    nvmlDeviceGetFieldValues=(c_int, _DEVICE, c_int, c_void_p),
    nvmlDeviceGetComputeRunningProcesses_v3=(c_int, _DEVICE, _U32, c_void_p),
    nvmlDeviceGetComputeRunningProcesses_v2=(c_int, _DEVICE, _U32, c_void_p),
    nvmlDeviceGetComputeRunningProcesses=(c_int, _DEVICE, _U32, c_void_p),
    nvmlDeviceGetGraphicsRunningProcesses_v3=(c_int, _DEVICE, _U32, c_void_p),
    nvmlDeviceGetGraphicsRunningProcesses_v2=(c_int, _DEVICE, _U32, c_void_p),
    nvmlDeviceGetGraphicsRunningProcesses=(c_int, _DEVICE, _U32, c_void_p),
    nvmlDeviceGetMPSComputeRunningProcesses_v3=(c_int, _DEVICE, _U32, c_void_p),
    nvmlDeviceGetProcessUtilization=(c_int, _DEVICE, c_void_p, _U32, c_ulonglong),
    nvmlDeviceGetMigMode=(c_int, _DEVICE, _U32, _U32),
    nvmlDeviceGetMaxMigDeviceCount=(c_int, _DEVICE, _U32),
    nvmlDeviceGetMigDeviceHandleByIndex=(c_int, _DEVICE, c_uint, POINTER(c_void_p)),
    nvmlDeviceGetGpuInstanceId=(c_int, _DEVICE, _U32),
    nvmlDeviceGetComputeInstanceId=(c_int, _DEVICE, _U32),
    nvmlDeviceGetAttributes_v2=(c_int, _DEVICE, c_void_p),
    nvmlDeviceGetNvLinkState=(c_int, _DEVICE, c_uint, _U32),
    nvmlDeviceGetTotalEccErrors=(c_int, _DEVICE, c_uint, c_uint, _U64),
    nvmlDeviceGetRetiredPages_v2=(c_int, _DEVICE, c_uint, _U32, c_void_p, c_void_p),
    nvmlDeviceGetRemappedRows=(c_int, _DEVICE, c_void_p, c_void_p, c_void_p, c_void_p),
    nvmlGpmQueryDeviceSupport=(c_int, _DEVICE, c_void_p),
    nvmlGpmSampleAlloc=(c_int, POINTER(c_void_p)),
    nvmlGpmSampleFree=(c_int, c_void_p),
    nvmlGpmSampleGet=(c_int, _DEVICE, c_void_p),
    nvmlGpmMigSampleGet=(c_int, _DEVICE, c_uint, c_void_p),
    nvmlGpmMetricsGet=(c_int, c_void_p),
    nvmlEventSetCreate=(c_int, POINTER(c_void_p)),
    nvmlEventSetFree=(c_int, c_void_p),
    nvmlDeviceGetSupportedEventTypes=(c_int, _DEVICE, _U64),
    nvmlDeviceRegisterEvents=(c_int, _DEVICE, c_ulonglong, c_void_p),
    nvmlEventSetWait_v2=(c_int, c_void_p, c_void_p, c_uint),
)

NO_ATTACH = 2  # nvmlInitWithFlags: do not initialise any device yet

#: ``struct`` formats of what the calls above fill in; "x" is padding. Versioned structs begin with their version.
MEMORY = "<QQQ"  # total, free, used (reserved part included)
MEMORY_V2 = "<I4xQQQQ"  # version, total, reserved, free, used
UTILIZATION = "<II"  # gpu, memory
TEMPERATURE_V = "<IIi"  # version, sensor, degrees
MARGIN = "<Ii"  # version, degrees
FAN_RPM = "<III"  # version, fan, speed
PCI_BUS_ID = (36, 32)  # offset and length of the text in nvmlPciInfo_t, 68 bytes
PCI_INFO_BYTES = 68
FIELD_VALUE = "<IIqqIi8s"  # id, scope, timestamp µs, latency µs, value type, result, value
PROCESS = "<I4xQII"  # pid, memory, gpu instance, compute instance
PROCESS_V1 = "<I4xQ"
PROCESS_SAMPLE = "<I4xQIIII"  # pid, timestamp µs, SM, memory, encoder, decoder
ATTRIBUTES = "<8IQ"  # multiprocessors first, memory in MB last
EVENT = "<QQQII"  # device, type, data, gpu instance, compute instance
GPM_METRIC = "<Iid24x"  # id, result, value

VERSION_MEMORY_V2 = 0x02000028
VERSION_TEMPERATURE = 0x0100000C
VERSION_MARGIN = 0x01000008
VERSION_FAN = 0x0100000C

#: nvmlValueType_t → struct format of the 8-byte union.
VALUE_FORMATS = {0: "<d", 1: "<I4x", 2: "<Q", 3: "<Q", 4: "<q", 5: "<i4x", 6: "<H6x"}
VALUE_BITS = {1: 32, 2: 64, 3: 64, 6: 16}

FIELD_MEMORY_TEMPERATURE = 82
FIELD_NVLINK_TX_KIB, FIELD_NVLINK_RX_KIB = 138, 139
FIELD_POWER_AVERAGE, FIELD_POWER_INSTANT = 185, 186
FIELD_PCIE_TX, FIELD_PCIE_RX = 197, 198
ALL_LINKS = ALL_BITS = 0xFFFFFFFF

EVENT_XID = 8
PERFORMANCE_STATE_UNKNOWN = 32
LINKS_AT_MOST = 64  # a bound for loops that end at INVALID_ARGUMENT; the headers say 12, 18 and 36

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 2, 3, 4
NOT_FOUND, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, TIMEOUT = 6, 7, 9, 10
FUNCTION_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, UNKNOWN = 13, 15, 18, 999

CODES = {
    0: "SUCCESS",
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    999: "UNKNOWN",
}

ABSENT = frozenset({13, 25, 26})  # this library has no such call, or not in this form
REFUSED = frozenset({2, 3, 22, 24})  # this device does not answer that as it is now
GONE = frozenset({15, 16, 28})  # this device
LIBRARY_GONE = frozenset({1, 9, 18})  # shut down by someone else, or the driver was reloaded under us

HINTS = {
    4: "the device files are not readable by this user or in this container",
    9: "the NVIDIA kernel driver is not loaded",
    12: "the driver's libraries are incomplete",
    17: "the operating system blocked the request; in a container, start it with GPU access again",
    18: "driver and library differ in version: reboot, or reload the kernel driver after the update",
    999: "the driver answered UNKNOWN; in a container this follows a lost device cgroup: start it again",
}

#: Bits of nvmlClocksEventReasons as words. Unknown bits are kept as "bit_0x800".
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}

#: GPM metric id → field of ``Utilization``; all percent.
GPM_PERCENT = {
    1: "graphics_engine_percent",
    2: "sm_active_percent",
    3: "sm_occupancy_percent",
    5: "tensor_percent",
    10: "dram_bandwidth_percent",
    11: "fp64_percent",
    12: "fp32_percent",
    13: "fp16_percent",
}
GPM_PCIE_TX, GPM_PCIE_RX, GPM_NVLINK_RX, GPM_NVLINK_TX = 20, 21, 60, 61  # MiB/s
#: nvmlGpmMetricsGet_t grows with every header (19,104 bytes in 13.5) while its version stays 1.
GPM_BYTES = 24 + 40 * 640


def code_name(code: int) -> str:
    """``NOT_SUPPORTED (3)``; codes of future drivers have a number alone."""
    return f"{CODES.get(code, 'code')} ({code})"


def throttle_words(mask: int) -> tuple[str, ...]:
    """The set bits as words, lowest first."""
    words = []
    while mask:
        bit = mask & -mask
        words.append(THROTTLE_REASONS.get(bit, f"bit_{bit:#x}"))
        mask ^= bit
    return tuple(words)
