"""Values of samples from libnvperf_host, which has looked the names up once; CUPTI's function does so each time.

Believed only as long as it agrees with CUPTI: :meth:`Evaluator.agrees` compares the first samples of an image.
"""

import ctypes
import os
from ctypes import addressof, byref
from typing import Any

from ...._capi import nvperf
from ...._capi.binding import bind, missing
from ...._runtime.errors import GpuSenseError


class Evaluator:
    """Of a chip and its metrics, for one thread at a time. Raises :class:`GpuSenseError` where that cannot be."""

    def __init__(self, cupti_path: str, chip: str, metrics: tuple[str, ...], image: Any) -> None:
        path = os.path.join(os.path.dirname(os.path.realpath(cupti_path)), nvperf.LIBRARY)
        try:
            api = bind(ctypes.CDLL(path), nvperf.PROTOTYPES, path)  # CUPTI has loaded it before
        except OSError as error:
            raise GpuSenseError(str(error)) from None
        if missing(api):
            raise GpuSenseError(f"{path} lacks {missing(api)[0]}")
        self._api, self._image = api, image
        nvperf.ask(api, "NVPW_InitializeHost")
        name = chip.encode()
        wanted = nvperf.ask(api, nvperf.SCRATCH, pChipName=name)
        self._scratch = (ctypes.c_uint8 * wanted.scratchBufferSize)()
        scratch = {"pScratchBuffer": addressof(self._scratch), "scratchBufferSize": len(self._scratch)}
        made = nvperf.ask(api, nvperf.INITIALIZE, pChipName=name, **scratch)
        self._evaluator = made.pMetricsEvaluator
        self._requests = (nvperf.Request * len(metrics))()
        for metric, request in zip(metrics, self._requests, strict=True):
            nvperf.ask(
                api,
                "NVPW_MetricsEvaluator_ConvertMetricNameToMetricEvalRequest",
                pMetricsEvaluator=self._evaluator,
                pMetricName=metric.encode(),
                pMetricEvalRequest=ctypes.pointer(request),
                metricEvalRequestStructSize=nvperf.REQUEST_BYTES,
            )
        self._values = (ctypes.c_double * len(metrics))()
        self.parameters = nvperf.prepared(
            "NVPW_MetricsEvaluator_EvaluateToGpuValues",
            pMetricsEvaluator=self._evaluator,
            pMetricEvalRequests=self._requests,
            numMetricEvalRequests=len(metrics),
            metricEvalRequestStructSize=nvperf.REQUEST_BYTES,
            metricEvalRequestStrideSize=ctypes.sizeof(nvperf.Request),
            pCounterDataImage=addressof(image),
            counterDataImageSize=len(image),
            pMetricValues=self._values,
        )
        self.function = api.NVPW_MetricsEvaluator_EvaluateToGpuValues

    def agrees(self, cupti: Any, other: Any, count: int) -> bool:
        """Whether it says of the first ``count`` samples what the function ``cupti`` says with the structure
        ``other``, with one of the two ways to evaluate; that one is used from then on."""
        image = {"pCounterDataImage": addressof(self._image), "counterDataImageSize": len(self._image)}
        nvperf.ask(self._api, "NVPW_MetricsEvaluator_SetDeviceAttributes", pMetricsEvaluator=self._evaluator, **image)
        theirs = []
        for index in range(count):
            other.rangeIndex = index
            if cupti(byref(other)):
                return False
            theirs.append(other.pMetricValues[: len(self._values)])
        for isolated in (1, 0):
            self.parameters.isolated = isolated
            if all(map(self._same, range(count), theirs)):
                return True
        return False

    def _same(self, index: int, theirs: list[float]) -> bool:
        self.parameters.rangeIndex = index
        if self.function(byref(self.parameters)):
            return False
        return all(
            mine == their or (mine != mine and their != their) or abs(mine - their) <= 1e-9 * abs(their)
            for mine, their in zip(self._values, theirs, strict=True)
        )
