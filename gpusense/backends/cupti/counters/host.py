"""Sets of metrics: which the hardware counts together, what the profiler is given to count them, and what it counted.

Nothing here needs a device. The name of its chip says enough, and the counters that others have not taken.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from time import sleep
from typing import Any

from ...._capi import cupti_profiler as capi
from ...._capi import loading
from ...._capi.binding import bind, missing
from ...._capi.libraries import CUPTI
from ...._records.records import Unavailable
from ...._runtime import threads
from ...._runtime.errors import BackendError
from ... import cuda

_CHIP_TRIES, _CHIP_WAIT_S = 40, 0.05  # two seconds

_lock = threads.lock()
_apis: dict[str, Any] = {}
_initialized = False


def open_api() -> Any | Unavailable:
    """The profiler's functions of the libcupti this process uses, bound once; why there are none. Nothing is called."""
    driver = cuda.SOURCE.driver_version()
    loaded = loading.load(CUPTI, max_major=driver[0] if driver else None)
    if not isinstance(loaded, loading.Loaded):
        return loaded
    api = bind_api(loaded.library, loaded.path)
    lacking = missing(api)
    if lacking:
        return Unavailable("counters", f"{loaded.path} lacks {lacking[0]}", "use the libcupti of CUDA 12.6 or later")
    return api


def path_of(api: Any) -> str:
    """Of the library that :func:`open_api` found."""
    return next((path for path, known in _apis.items() if known is api), "")


def bind_api(library: Any, path: str) -> Any:
    """The profiler's functions of a loaded libcupti, bound once."""
    with _lock:
        return _apis.setdefault(path, bind(library, capi.PROTOTYPES, path))


def initialize(api: Any) -> None:
    """Once a process, before a device is asked. There is no way back: de-initialising twice crashes, and another
    profiler in the process may have done so. Raises :class:`BackendError`."""
    global _initialized
    with _lock:
        if not _initialized:
            capi.ask(api, "cuptiProfilerInitialize")
            _initialized = True


def chips(api: Any) -> list[str]:
    """All that this CUPTI has metrics for."""
    told = capi.ask(api, "cuptiProfilerHostGetSupportedChips")
    return [told.ppChipNames[number].decode() for number in range(told.numChips)]


def chip_of(ask: Callable[..., Any], device: int) -> str:
    """The name of a device's chip, by which its metrics are known. ``ask``: as :func:`cupti_profiler.ask`, bound.

    CUPTI has answered "Unknown" for a moment in one of two starts on an H200, so it is asked for a while.
    """
    for _ in range(_CHIP_TRIES):
        name: str = ask("cuptiDeviceGetChipName", deviceIndex=device).pChipName.decode()
        if name != "Unknown":
            return name
        sleep(_CHIP_WAIT_S)
    raise BackendError("cuptiDeviceGetChipName", 15, "CUPTI does not know the chip of this device")


class MetricSet:
    """Metrics that are counted together, for one chip and one of CUPTI's two profilers.

    Making one raises :class:`BackendError` where CUPTI refuses: it does not know a metric, or the metrics cannot be
    configured together. For one thread at a time. :meth:`close` it, or CUPTI keeps it for as long as the process lives.
    """

    def __init__(
        self, api: Any, profiler: int, chip: str, metrics: Iterable[str], availability: Any | None = None
    ) -> None:
        self.metrics = tuple(metrics)
        self._api = api
        self._availability = availability  # of the counters that can be had on this device, as CUPTI gave it
        place = None if availability is None else ctypes.addressof(availability)
        self.names = capi.strings(self.metrics)  # for functions that ask for the names again
        self.host = capi.ask(
            api,
            "cuptiProfilerHostInitialize",
            profilerType=profiler,
            pChipName=chip.encode(),
            pCounterAvailabilityImage=place,
        ).pHostObject
        try:
            self._configure()
        except BackendError:
            self.close()
            raise

    def _configure(self) -> None:
        count = len(self.metrics)
        capi.ask(
            self._api,
            "cuptiProfilerHostConfigAddMetrics",
            pHostObject=self.host,
            ppMetricNames=self.names,
            numMetrics=count,
        )
        size = capi.ask(self._api, "cuptiProfilerHostGetConfigImageSize", pHostObject=self.host).configImageSize
        self.config = capi.image(size)  # what the profiler is given
        given = {"configImageSize": size, "pConfigImage": ctypes.addressof(self.config)}
        capi.ask(self._api, "cuptiProfilerHostGetConfigImage", pHostObject=self.host, **given)
        #: How often the work would have to be run to count all of it.
        self.passes = int(capi.ask(self._api, "cuptiProfilerHostGetNumOfPasses", **given).numOfPasses)
        self._values = (ctypes.c_double * count)()

    def evaluation(self, image: Any) -> Any:
        """The structure to evaluate one sample or range of ``image`` with, whose ``rangeIndex`` is to be set each
        time. Values come into its ``pMetricValues``, in the order of :attr:`metrics`."""
        return capi.prepared(
            "cuptiProfilerHostEvaluateToGpuValues",
            pHostObject=self.host,
            pCounterDataImage=ctypes.addressof(image),
            counterDataImageSize=len(image),
            ppMetricNames=self.names,
            numMetrics=len(self.metrics),
            pMetricValues=self._values,
        )

    def evaluate(self, image: Any, index: int) -> dict[str, float]:
        """Metric → value of one sample or range. Raises :class:`BackendError`."""
        parameters = self.evaluation(image)
        parameters.rangeIndex = index
        capi.call(self._api, "cuptiProfilerHostEvaluateToGpuValues", parameters)
        return dict(zip(self.metrics, self._values, strict=True))

    def close(self) -> None:
        """Gives CUPTI's part of it back. Nothing can be evaluated any more."""
        host, self.host = self.host, None
        if host:
            self._api.cuptiProfilerHostDeinitialize(
                ctypes.byref(capi.prepared("cuptiProfilerHostDeinitialize", pHostObject=host))
            )


def in_one_pass(
    api: Any, profiler: int, chip: str, wanted: Sequence[Sequence[str]], availability: Any | None = None
) -> tuple[MetricSet | None, tuple[str | None, ...]]:
    """A set with as many as fit one pass, and which name was taken for each that is wanted; None: none.

    ``wanted``: names for each, the best first; what stands first is more important. Names that the chip does not have
    are passed over.
    """

    def made(names: Sequence[str]) -> MetricSet | None:
        try:
            found = MetricSet(api, profiler, chip, names, availability)
        except BackendError:
            return None
        if found.passes == 1:
            return found
        found.close()
        return None

    every = [names[0] for names in wanted]
    whole = made(every)
    if whole is not None:
        return whole, tuple(every)
    taken: list[str] = []
    chosen: list[str | None] = []
    for names in wanted:
        chosen.append(None)
        for name in names:
            trial = made([*taken, name])
            if trial is not None:
                trial.close()
                taken.append(name)
                chosen[-1] = name
                break
    return (made(taken) if taken else None), tuple(chosen)
