"""CUPTI's PM sampling of one device: the hardware counts, and notes its counters every so many nanoseconds.

No launch is touched. What cannot be undone is not done: CUPTI's profiler is initialised once a process and never
de-initialised, which crashes. Nothing here is called in a process of the user's before it went well in a child
(:mod:`.selftest`).
"""

import ctypes
from collections.abc import Callable
from ctypes import addressof, c_uint64, c_void_p, cast
from time import monotonic_ns
from typing import Any, NamedTuple

from ...._capi import cupti_profiler as capi
from ...._capi.cuda_facts import use_primary_context
from ...._capi.machine import executable, samples_code
from ...._runtime import log
from ...._runtime.errors import BackendError, GpuSenseError
from . import SAMPLED
from .evaluator import Evaluator
from .host import MetricSet, chip_of, in_one_pass, initialize, path_of
from .metrics import FIELDS

#: Samples in an image. One sample has about 20 kB there, all of which is written anew for each reading. What does not
#: fit is lost (measured: CUPTI 13.0, H200), so it must be read before it is full.
SAMPLES = 384
#: Of raw counts that wait to be read: at 1 kHz those of a few seconds.
HARDWARE_BYTES, MANY_HARDWARE_BYTES = 64 << 20, 256 << 20
#: Samples of which libnvperf_host must say what CUPTI says.
COMPARED = 32
#: Chips whose sampler counts cycles instead of nanoseconds; their system clock is near this.
BY_CYCLES, CYCLES_A_NS = ("TU", "GA100"), 1.3

#: Answers that may mean so: INVALID_CONTEXT, INVALID_OPERATION, NOT_INITIALIZED, UNKNOWN.
WANT_CONTEXT = (3, 7, 15, 999)

_code: int | None = None


def opened(
    api: Any, driver: Any, device: int, interval_ns: int, announce: Callable[[str], None] = lambda _: None
) -> "Sampler":
    """A sampler; where CUPTI wants a context of CUDA, the device's primary one is this thread's from now on."""
    try:
        return Sampler(api, device, interval_ns, announce)
    except BackendError as error:
        if error.code not in WANT_CONTEXT:
            raise
        announce("cuDevicePrimaryCtxRetain")
        if not use_primary_context(driver, device):
            raise
        return Sampler(api, device, interval_ns, announce)


class Samples(NamedTuple):
    """What one reading gave: the sampler's times, and a column for each field."""

    starts: list[int]
    ends: list[int]
    columns: list[list[float]]
    drained: bool  # whether that was all there was; else the image was full, and the rest is lost
    overflow: bool  # whether samples were lost before
    failed: int  # samples of which CUPTI did not tell the values
    decoded_ns: int  # by the monotonic clock: when all of these had ended


class Sampler:
    """Of one device (CUDA's number of it), from :meth:`start` to :meth:`end`. For one thread at a time.

    All methods raise :class:`BackendError` where CUPTI refuses. ``announce`` is told each step before it is done.
    """

    def __init__(
        self, api: Any, device: int, interval_ns: int, announce: Callable[[str], None] = lambda _: None
    ) -> None:
        self._api, self.device = api, device
        self._announce = announce
        self.running = False
        announce("cuptiProfilerInitialize")
        initialize(api)
        self.chip = chip_of(self._ask, device)
        metrics, names = in_one_pass(
            api, capi.PM_SAMPLING, self.chip, [names for names, _ in FIELDS.values()], self._available()
        )
        if metrics is None:
            raise BackendError("cuptiProfilerHostConfigAddMetrics", 27, f"{self.chip} cannot be sampled")
        self._metrics: MetricSet = metrics
        chosen = [field for field, name in zip(FIELDS, names, strict=True) if name is not None]
        self.fields = tuple(chosen)
        self._factors = [FIELDS[field][1] for field in chosen]
        self._sampler = self._ask("cuptiPmSamplingEnable", deviceIndex=device).pPmSamplingObject
        SAMPLED.add(device)
        try:
            self.configure(interval_ns)
            self._prepare()
        except BackendError:
            self.end()
            raise

    def _ask(self, name: str, **given: Any) -> Any:
        self._announce(name)
        return capi.ask(self._api, name, **given)

    def _available(self) -> Any | None:
        """Which counters nobody else has, as CUPTI wants to be told; None where it does not say."""
        try:
            size = self._ask("cuptiPmSamplingGetCounterAvailability", deviceIndex=self.device)
            image = capi.image(size.counterAvailabilityImageSize)
            self._ask(
                "cuptiPmSamplingGetCounterAvailability",
                deviceIndex=self.device,
                counterAvailabilityImageSize=len(image),
                pCounterAvailabilityImage=addressof(image),
            )
        except BackendError:
            return None
        return image

    def configure(self, interval_ns: int) -> None:
        """A sample lasts so long from the next :meth:`start` on."""
        cycles = self.chip.startswith(BY_CYCLES)
        self._ask(
            "cuptiPmSamplingSetConfig",
            pPmSamplingObject=self._sampler,
            configSize=len(self._metrics.config),
            pConfig=addressof(self._metrics.config),
            hardwareBufferSize=HARDWARE_BYTES if interval_ns >= 500_000 else MANY_HARDWARE_BYTES,
            samplingInterval=round(interval_ns * CYCLES_A_NS) if cycles else interval_ns,
            triggerMode=capi.CLOCK_INTERVAL if cycles else capi.TIME_INTERVAL,
            hwBufferAppendMode=capi.KEEP_OLDEST,
        )
        self.interval_ns = interval_ns

    def _prepare(self) -> None:
        metrics = self._metrics
        size = self._ask(
            "cuptiPmSamplingGetCounterDataSize",
            pPmSamplingObject=self._sampler,
            pMetricNames=metrics.names,
            numMetrics=len(metrics.metrics),
            maxSamples=SAMPLES,
        ).counterDataSize
        self._image = capi.image(size)
        place = {"pCounterDataImage": addressof(self._image), "counterDataImageSize": size}
        self._clear = capi.prepared(
            "cuptiPmSamplingCounterDataImageInitialize",
            pPmSamplingObject=self._sampler,
            counterDataSize=size,
            pCounterData=addressof(self._image),
        )
        self._decode = capi.prepared("cuptiPmSamplingDecodeData", pPmSamplingObject=self._sampler, **place)
        self._info = capi.prepared("cuptiPmSamplingGetCounterDataInfo", **place)
        times = capi.prepared("cuptiPmSamplingCounterDataGetSampleInfo", pPmSamplingObject=self._sampler, **place)
        self._evaluation = metrics.evaluation(self._image)
        self._rows = Rows(self._api, times, len(metrics.metrics), SAMPLES)
        self._rows.evaluate_with(self._api.cuptiProfilerHostEvaluateToGpuValues, self._evaluation)
        self._evaluator: Evaluator | None = None
        self._compared = False
        self._call("cuptiPmSamplingCounterDataImageInitialize", self._clear)

    def _call(self, name: str, parameters: Any) -> None:
        self._announce(name)
        capi.call(self._api, name, parameters)

    @property
    def image_bytes(self) -> int:
        """What the samples between two readings take."""
        return len(self._image)

    @property
    def by(self) -> str:
        """How samples are read: "machine code", or "ctypes" where that is refused."""
        return "machine code" if self._rows.in_one_call else "ctypes"

    @property
    def evaluated_by(self) -> str:
        """Whose function gives the values: "libnvperf_host", or "CUPTI", which takes ten times as long."""
        return "CUPTI" if self._evaluator is None else "libnvperf_host"

    def _compare(self, count: int) -> None:
        """From the first samples on libnvperf_host evaluates, if it agrees with CUPTI."""
        self._compared = True
        try:
            found = Evaluator(path_of(self._api), self.chip, self._metrics.metrics, self._image)
            if found.agrees(self._api.cuptiProfilerHostEvaluateToGpuValues, self._evaluation, min(count, COMPARED)):
                self._rows.evaluate_with(found.function, found.parameters)
                self._evaluator = found
        except GpuSenseError as error:
            log.once(f"nvperf {error}", "metrics are evaluated by CUPTI: %s", error)

    def start(self) -> None:
        self._ask("cuptiPmSamplingStart", pPmSamplingObject=self._sampler)
        self.running = True

    def stop(self) -> None:
        """What was counted until now can still be read."""
        if self.running:
            self.running = False
            self._ask("cuptiPmSamplingStop", pPmSamplingObject=self._sampler)

    def read(self) -> Samples:
        """The samples that have ended since the last reading, as many as an image holds."""
        self._call("cuptiPmSamplingDecodeData", self._decode)
        decoded_ns = monotonic_ns()
        self._call("cuptiPmSamplingGetCounterDataInfo", self._info)
        self._announce("cuptiProfilerHostEvaluateToGpuValues")
        count = min(int(self._info.numCompletedSamples), SAMPLES)
        if count and not self._compared:
            self._compare(count)
        starts, ends, columns, failed = self._rows.read(count)
        if count:
            self._call("cuptiPmSamplingCounterDataImageInitialize", self._clear)
        scaled = [
            column if factor == 1 else [value * factor for value in column]
            for column, factor in zip(columns, self._factors, strict=True)
        ]
        drained = self._decode.decodeStopReason != capi.DATA_FULL
        return Samples(starts, ends, scaled, drained, bool(self._decode.overflow), failed, decoded_ns)

    def end(self) -> None:
        """Gives the hardware back."""
        sampler, self._sampler = self._sampler, None
        if sampler:
            try:
                if self.running:
                    self.running = False
                    self._ask("cuptiPmSamplingStop", pPmSamplingObject=sampler)
            finally:
                self._ask("cuptiPmSamplingDisable", pPmSamplingObject=sampler)


class Rows:
    """Times and values of all samples of an image, in one call where machine code is possible."""

    def __init__(self, api: Any, times: Any, metrics: int, most: int) -> None:
        self._api, self._times, self._metrics = api, times, metrics
        self._width = 2 + metrics
        self._rows = (c_uint64 * (self._width * most))()
        self._control = (c_uint64 * (samples_code.CONTROL_BYTES // 8))()
        address = _address()
        #: One call for all samples of an image.
        self.in_one_call = address is not None
        if address is None:
            return
        self._read = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p)(address)
        self._control[samples_code.VALUE_COUNT // 8] = metrics
        self._set(
            (samples_code.TIMES_CALL, _function(api.cuptiPmSamplingCounterDataGetSampleInfo)),
            (samples_code.TIMES_PARAMETERS, addressof(times)),
            (samples_code.TIMES_INDEX, addressof(times) + type(times).sampleIndex.offset),
            (samples_code.TIMES, addressof(times) + type(times).startTimestamp.offset),
        )

    def _set(self, *words: tuple[int, int]) -> None:
        for place, value in words:
            self._control[place // 8] = value

    def evaluate_with(self, function: Any, parameters: Any) -> None:
        """Values come from ``function(parameters)``, a structure with ``rangeIndex`` and ``pMetricValues``."""
        self._evaluate, self._values = function, parameters
        self._set(
            (samples_code.VALUES_CALL, _function(function)),
            (samples_code.VALUES_PARAMETERS, addressof(parameters)),
            (samples_code.VALUES_INDEX, addressof(parameters) + type(parameters).rangeIndex.offset),
            (samples_code.VALUES, addressof(parameters.pMetricValues.contents)),
        )

    def read(self, count: int) -> tuple[list[int], list[int], list[list[float]], int]:
        """Starts, ends, a column for each metric, and how many of the first ``count`` could not be read."""
        done, failed = self._in_one_call(count) if self.in_one_call else self._one_by_one(count)
        if not done:
            return [], [], [[] for _ in range(self._width - 2)], failed
        raw = memoryview(ctypes.string_at(self._rows, done * self._width * 8))
        numbers, values = raw.cast("Q"), raw.cast("d")
        columns: list[Any] = [values[place :: self._width].tolist() for place in range(2, self._width)]
        return numbers[:: self._width].tolist(), numbers[1 :: self._width].tolist(), columns, failed

    def _in_one_call(self, count: int) -> tuple[int, int]:
        words, failed = self._control, 0
        begin = words[samples_code.ROWS // 8] = addressof(self._rows)
        words[samples_code.NEXT // 8], words[samples_code.END // 8] = 0, count
        while words[samples_code.NEXT // 8] < count and self._read(addressof(words)):
            words[samples_code.NEXT // 8] += 1  # this one is refused; the next may not be
            failed += 1
        return int(words[samples_code.ROWS // 8] - begin) // (8 * self._width), failed

    def _one_by_one(self, count: int) -> tuple[int, int]:
        times, values, failed, width = self._times, self._values, 0, self._width
        done = 0
        for index in range(count):
            times.sampleIndex = values.rangeIndex = index
            if self._api.cuptiPmSamplingCounterDataGetSampleInfo(times) or (self._evaluate(values)):
                failed += 1
                continue
            at = addressof(self._rows) + done * width * 8
            ctypes.memmove(at, addressof(times) + type(times).startTimestamp.offset, 16)
            ctypes.memmove(at + 16, values.pMetricValues, 8 * self._metrics)
            done += 1
        return done, failed


def _address() -> int | None:
    """Of the machine code, mapped once a process; None where the system or the processor does not allow it."""
    global _code
    if _code is None:
        code = executable.native(samples_code.CODES)
        if code is None:
            return None
        try:
            _code = executable.map_first(code.machine).address + code.entries["read"]
        except OSError:
            return None
    return _code


def _function(function: Any) -> int:
    return cast(function, c_void_p).value or 0
