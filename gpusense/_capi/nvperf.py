"""What CUPTI's profiler evaluates metrics with: libnvperf_host, which lies beside libcupti (nvperf_host.h, 11.7 on).

CUPTI's own function takes the names of the metrics anew for each sample and looks them up, three microseconds a name.
Here they are looked up once.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_size_t, c_uint8, c_uint16, c_void_p
from typing import Any

from .._runtime.errors import BackendError
from .cupti_profiler import Parameters, filled, row

LIBRARY = "libnvperf_host.so"


class Request(ctypes.Structure):
    """A metric, looked up."""

    _fields_ = (("metricIndex", c_size_t), ("metricType", c_uint8), ("rollupOp", c_uint8), ("submetric", c_uint16))


#: As NVIDIA's macro reckons it: without the padding behind.
REQUEST_BYTES = Request.submetric.offset + Request.submetric.size


#: Of these two, for metrics of a whole device, the header comes with NVIDIA's Nsight Perf SDK alone.
SCRATCH = "NVPW_Device_MetricsEvaluator_CalculateScratchBufferSize"
INITIALIZE = "NVPW_Device_MetricsEvaluator_Initialize"

#: Function → its structure, with NVIDIA's names of all members.
FUNCTIONS: dict[str, type[Parameters]] = {
    "NVPW_InitializeHost": row("NVPW_InitializeHost_Params"),
    SCRATCH: row(
        "NVPW_Device_MetricsEvaluator_CalculateScratchBufferSize_Params",
        pChipName=c_char_p,
        scratchBufferSize=c_size_t,
    ),
    INITIALIZE: row(
        "NVPW_Device_MetricsEvaluator_Initialize_Params",
        pScratchBuffer=c_void_p,
        scratchBufferSize=c_size_t,
        pChipName=c_char_p,
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
        pMetricsEvaluator=c_void_p,
    ),
    "NVPW_MetricsEvaluator_ConvertMetricNameToMetricEvalRequest": row(
        "NVPW_MetricsEvaluator_ConvertMetricNameToMetricEvalRequest_Params",
        pMetricsEvaluator=c_void_p,
        pMetricName=c_char_p,
        pMetricEvalRequest=POINTER(Request),
        metricEvalRequestStructSize=c_size_t,
    ),
    "NVPW_MetricsEvaluator_SetDeviceAttributes": row(
        "NVPW_MetricsEvaluator_SetDeviceAttributes_Params",
        pMetricsEvaluator=c_void_p,
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
    ),
    "NVPW_MetricsEvaluator_EvaluateToGpuValues": row(
        "NVPW_MetricsEvaluator_EvaluateToGpuValues_Params",
        pMetricsEvaluator=c_void_p,
        pMetricEvalRequests=POINTER(Request),
        numMetricEvalRequests=c_size_t,
        metricEvalRequestStructSize=c_size_t,
        metricEvalRequestStrideSize=c_size_t,
        pCounterDataImage=c_void_p,
        counterDataImageSize=c_size_t,
        rangeIndex=c_size_t,
        isolated=c_uint8,
        pMetricValues=POINTER(c_double),
    ),
}

PROTOTYPES = {name: (c_int, (POINTER(structure),)) for name, structure in FUNCTIONS.items()}


def prepared(name: str, **given: Any) -> Any:
    """The structure of a function, ready to be passed as often as wanted."""
    return filled(FUNCTIONS[name], **given)


def ask(api: Any, name: str, **given: Any) -> Any:
    """Calls a function with these members of its structure, and gives that back with what was filled in.

    Raises :class:`BackendError` where it refuses, :class:`MissingSymbol` where the library does not have it.
    """
    parameters = prepared(name, **given)
    code = getattr(api, name)(byref(parameters))
    if code:
        raise BackendError(name, code, "refused")
    return parameters
