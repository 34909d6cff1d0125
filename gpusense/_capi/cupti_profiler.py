"""CUPTI's profiler: sets of metrics, counters over time, counters of ranges (12.6 on).

Each function takes one structure that begins with its own size, up to the end of the last member that the caller knows;
:func:`ask` fills that in. Nothing here is called by tracing.

From cupti_profiler_host.h, cupti_pmsampling.h and cupti_range_profiler.h; ``tests/backends/cupti/test_profiler.py``
compiles them and compares.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

from . import cupti

RANGE_PROFILER, PM_SAMPLING = 0, 1  # CUpti_ProfilerType
TIME_INTERVAL = 1  # CUpti_PmSampling_TriggerMode: nanoseconds; not on Turing and GA100
CLOCK_INTERVAL = 0  # cycles of the system clock, whose frequency varies
DATA_FULL, END_OF_RECORDS = 1, 2  # CUpti_PmSampling_DecodeStopReason
KEEP_OLDEST = 0  # CUpti_PmSampling_HardwareBuffer_AppendMode
USER_RANGE, USER_REPLAY = 2, 3  # CUpti_ProfilerRange, CUpti_ProfilerReplayMode

_NAMES = POINTER(c_char_p)


class Parameters(ctypes.Structure):
    """What every structure begins with."""

    _fields_ = (("structSize", c_size_t), ("pPriv", c_void_p))


def row(c_name: str, **members: Any) -> type[Parameters]:
    """The structure of a function, with its members behind what every one begins with."""
    return type(c_name, (Parameters,), {"_fields_": tuple(members.items())})


#: Function → its structure, with NVIDIA's names of all members.
FUNCTIONS: dict[str, type[Parameters]] = {
    "cuptiProfilerInitialize": row("CUpti_Profiler_Initialize_Params"),
    "cuptiDeviceGetChipName": row("CUpti_Device_GetChipName_Params", deviceIndex=c_size_t, pChipName=c_char_p),
    # sets of metrics
    "cuptiProfilerHostGetSupportedChips": row(
        "CUpti_Profiler_Host_GetSupportedChips_Params", numChips=c_size_t, ppChipNames=_NAMES
    ),
    "cuptiProfilerHostInitialize": row(
        "CUpti_Profiler_Host_Initialize_Params",
        profilerType=c_int,
        pChipName=c_char_p,
        pCounterAvailabilityImage=c_void_p,
        pHostObject=c_void_p,
    ),
    "cuptiProfilerHostDeinitialize": row("CUpti_Profiler_Host_Deinitialize_Params", pHostObject=c_void_p),
    "cuptiProfilerHostConfigAddMetrics": row(
        "CUpti_Profiler_Host_ConfigAddMetrics_Params", pHostObject=c_void_p, ppMetricNames=_NAMES, numMetrics=c_size_t
    ),
    "cuptiProfilerHostGetConfigImageSize": row(
        "CUpti_Profiler_Host_GetConfigImageSize_Params", pHostObject=c_void_p, configImageSize=c_size_t
    ),
    "cuptiProfilerHostGetConfigImage": row(
        "CUpti_Profiler_Host_GetConfigImage_Params",
        pHostObject=c_void_p,
        configImageSize=c_size_t,
        pConfigImage=c_void_p,
    ),
    "cuptiProfilerHostGetNumOfPasses": row(
        "CUpti_Profiler_Host_GetNumOfPasses_Params",
        configImageSize=c_size_t,
        pConfigImage=c_void_p,
        numOfPasses=c_size_t,
    ),
    "cuptiProfilerHostEvaluateToGpuValues": row(
        "CUpti_Profiler_Host_EvaluateToGpuValues_Params",
        pHostObject=c_void_p,
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
        rangeIndex=c_size_t,
        ppMetricNames=_NAMES,
        numMetrics=c_size_t,
        pMetricValues=POINTER(c_double),
    ),
    # counters over time
    "cuptiPmSamplingGetCounterAvailability": row(
        "CUpti_PmSampling_GetCounterAvailability_Params",
        deviceIndex=c_size_t,
        counterAvailabilityImageSize=c_size_t,
        pCounterAvailabilityImage=c_void_p,
    ),
    "cuptiPmSamplingEnable": row("CUpti_PmSampling_Enable_Params", deviceIndex=c_size_t, pPmSamplingObject=c_void_p),
    "cuptiPmSamplingDisable": row("CUpti_PmSampling_Disable_Params", pPmSamplingObject=c_void_p),
    "cuptiPmSamplingSetConfig": row(
        "CUpti_PmSampling_SetConfig_Params",
        pPmSamplingObject=c_void_p,
        configSize=c_size_t,
        pConfig=c_void_p,
        hardwareBufferSize=c_size_t,
        samplingInterval=c_uint64,
        triggerMode=c_int,
        hwBufferAppendMode=c_int,
    ),
    "cuptiPmSamplingStart": row("CUpti_PmSampling_Start_Params", pPmSamplingObject=c_void_p),
    "cuptiPmSamplingStop": row("CUpti_PmSampling_Stop_Params", pPmSamplingObject=c_void_p),
    "cuptiPmSamplingDecodeData": row(
        "CUpti_PmSampling_DecodeData_Params",
        pPmSamplingObject=c_void_p,
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
        decodeStopReason=c_int,
        overflow=c_uint8,
    ),
    "cuptiPmSamplingGetCounterDataSize": row(
        "CUpti_PmSampling_GetCounterDataSize_Params",
        pPmSamplingObject=c_void_p,
        pMetricNames=_NAMES,
        numMetrics=c_size_t,
        maxSamples=c_uint32,
        counterDataSize=c_size_t,
    ),
    "cuptiPmSamplingCounterDataImageInitialize": row(
        "CUpti_PmSampling_CounterDataImage_Initialize_Params",
        pPmSamplingObject=c_void_p,
        counterDataSize=c_size_t,
        pCounterData=c_void_p,
    ),
    "cuptiPmSamplingGetCounterDataInfo": row(
        "CUpti_PmSampling_GetCounterDataInfo_Params",
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
        numTotalSamples=c_size_t,
        numPopulatedSamples=c_size_t,
        numCompletedSamples=c_size_t,
    ),
    "cuptiPmSamplingCounterDataGetSampleInfo": row(
        "CUpti_PmSampling_CounterData_GetSampleInfo_Params",
        pPmSamplingObject=c_void_p,
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
        sampleIndex=c_size_t,
        startTimestamp=c_uint64,
        endTimestamp=c_uint64,
    ),
    # counters of ranges
    "cuptiRangeProfilerEnable": row("CUpti_RangeProfiler_Enable_Params", ctx=c_void_p, pRangeProfilerObject=c_void_p),
    "cuptiRangeProfilerDisable": row("CUpti_RangeProfiler_Disable_Params", pRangeProfilerObject=c_void_p),
    "cuptiRangeProfilerSetConfig": row(
        "CUpti_RangeProfiler_SetConfig_Params",
        pRangeProfilerObject=c_void_p,
        configSize=c_size_t,
        pConfig=c_void_p,
        counterDataImageSize=c_size_t,
        pCounterDataImage=c_void_p,
        range=c_int,
        replayMode=c_int,
        maxRangesPerPass=c_size_t,
        numNestingLevels=c_uint16,
        minNestingLevel=c_uint16,
        passIndex=c_size_t,
        targetNestingLevel=c_uint16,
    ),
    "cuptiRangeProfilerStart": row("CUpti_RangeProfiler_Start_Params", pRangeProfilerObject=c_void_p),
    "cuptiRangeProfilerStop": row(
        "CUpti_RangeProfiler_Stop_Params",
        pRangeProfilerObject=c_void_p,
        passIndex=c_size_t,
        targetNestingLevel=c_size_t,
        isAllPassSubmitted=c_uint8,
    ),
    "cuptiRangeProfilerPushRange": row(
        "CUpti_RangeProfiler_PushRange_Params", pRangeProfilerObject=c_void_p, pRangeName=c_char_p
    ),
    "cuptiRangeProfilerPopRange": row("CUpti_RangeProfiler_PopRange_Params", pRangeProfilerObject=c_void_p),
    "cuptiRangeProfilerDecodeData": row(
        "CUpti_RangeProfiler_DecodeData_Params", pRangeProfilerObject=c_void_p, numOfRangeDropped=c_size_t
    ),
    "cuptiRangeProfilerGetCounterDataSize": row(
        "CUpti_RangeProfiler_GetCounterDataSize_Params",
        pRangeProfilerObject=c_void_p,
        pMetricNames=_NAMES,
        numMetrics=c_size_t,
        maxNumOfRanges=c_size_t,
        maxNumRangeTreeNodes=c_uint32,
        counterDataSize=c_size_t,
    ),
    "cuptiRangeProfilerCounterDataImageInitialize": row(
        "CUpti_RangeProfiler_CounterDataImage_Initialize_Params",
        pRangeProfilerObject=c_void_p,
        counterDataSize=c_size_t,
        pCounterData=c_void_p,
    ),
    "cuptiRangeProfilerGetCounterDataInfo": row(
        "CUpti_RangeProfiler_GetCounterDataInfo_Params",
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
        numTotalRanges=c_size_t,
    ),
    "cuptiRangeProfilerCounterDataGetRangeInfo": row(
        "CUpti_RangeProfiler_CounterData_GetRangeInfo_Params",
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
        rangeIndex=c_size_t,
        rangeDelimiter=c_char_p,
        rangeName=c_char_p,
    ),
}

PROTOTYPES = {name: (c_int, (POINTER(structure),)) for name, structure in FUNCTIONS.items()}


def prepared(name: str, **given: Any) -> Any:
    """The structure of a function, ready to be passed as often as wanted."""
    return filled(FUNCTIONS[name], **given)


def filled(structure: type[Parameters], **given: Any) -> Any:
    """A structure with these members and its own size."""
    parameters = structure(**given)
    parameters.structSize = size(structure)
    return parameters


def ask(api: Any, name: str, **given: Any) -> Any:
    """Calls a function with these members of its structure, and gives that back with what CUPTI filled in.

    Raises :class:`BackendError` where CUPTI refuses, :class:`MissingSymbol` where it does not have the function.
    """
    parameters = prepared(name, **given)
    call(api, name, parameters)
    return parameters


def call(api: Any, name: str, parameters: Any) -> None:
    """Calls a function with its prepared structure. Raises as :func:`ask` does."""
    cupti.check(name, getattr(api, name)(byref(parameters)))


def size(structure: type[Parameters]) -> int:
    """As CUPTI's own macros reckon it: up to the end of the last member, without the padding behind."""
    name = (structure._fields_ or Parameters._fields_)[-1][0]
    last = getattr(structure, name)
    return int(last.offset + last.size)


def image(count: int) -> Any:
    """So many bytes of zeros, for CUPTI to fill in; ``ctypes.addressof`` says where."""
    return (c_uint8 * count)()


def strings(names: tuple[str, ...]) -> Any:
    """An array of C strings. It has to live as long as CUPTI may read it."""
    return (c_char_p * len(names))(*(name.encode() for name in names))
