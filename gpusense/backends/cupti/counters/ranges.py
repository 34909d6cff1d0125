"""Exact counters of a range of the program: CUPTI's Range Profiler with ranges of the user, one pass, nothing replayed.

Each pass of a block is counted by one set of metrics, which the hardware takes in one pass. All sets have the time, the
memory and how busy the multiprocessors are; each adds what needs counters of its own, such as the tensor operations of
one type. The first configuration after enabling stays: another one is accepted, and what the first did not have comes
back as no number (CUPTI 13.0, driver 580). So the profiler is enabled anew for another set, which takes 150 ms.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int
from typing import Any, NamedTuple

from ...._capi import cupti_profiler as capi
from ...._runtime.errors import BackendError
from ...block_times.hosts import Hosts
from .. import other_profilers
from ..synchronize import relaxed
from . import COUNTED, host

_NAME = b"block"
_GONE = 999  # another profiler has taken CUPTI out of the process, and what we had of it
_DEFAULT = (1, 2)  # CUstream: the default stream that waits for others, and that of the thread


def _operations(*factors: str) -> tuple[str, ...]:
    """Names of metrics of tensor operations by their factors. Of what takes two passes, recent chips have another
    form that takes one."""
    names = tuple(f"sm__ops_path_tensor_{one}" for one in factors)
    return tuple(f"{name}{form}.sum" for name in names for form in ("", "_realtime"))


#: What every set counts, most important first: field of the result → names of the metric, by chip.
_ALWAYS: dict[str, tuple[str, ...]] = {
    "graphics_engine_percent": ("gr__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "dram_read_bytes": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "dram_write_bytes": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    "sm_active_percent": ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "sm_clock_hz": ("sm__cycles_elapsed.avg.per_second",),
    "l2_bytes": ("lts__t_bytes.sum",),
}
_TIME = {"device_ns": ("gpu__time_duration.sum",)}  # without which nothing else is a rate
#: What one set counts beside that. Tensor operations of each type take counters of their own.
ACTIVITY, PIPES, LINKS = "activity", "pipes", "links"
_SETS: dict[str, dict[str, tuple[str, ...]]] = {
    ACTIVITY: {
        "tensor_percent": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",),
        "double": ("sm__thread_inst_executed_pipe_fp64_pred_on.sum", "sm__inst_executed_pipe_fp64.sum"),
    },
    PIPES: {
        "fma": ("sm__thread_inst_executed_pipe_fma_pred_on.sum", "sm__inst_executed_pipe_fma.sum"),
        "half": (
            "sm__thread_inst_executed_pipe_fma_type_fp16_pred_on.sum",
            "sm__thread_inst_executed_pipe_fp16_pred_on.sum",
        ),
    },
    "bf16": {"bf16": _operations("src_bf16_dst_fp32")},
    "fp16": {"fp16": _operations("src_fp16", "src_fp16_dst_fp32", "src_fp16_bf16_tf32_dst_fp32", "op_hgmma_src_fp16")},
    "fp16 mma": {"fp16 mma": _operations("op_hmma_src_fp16_dst_fp32")},
    "tf32": {"tf32": _operations("src_tf32_dst_fp32")},
    "fp8": {"fp8": _operations("src_fp8", "src_fp8_dst_fp32", "src_fp4_fp6_fp8_dst_fp32")},
    "fp4": {"fp4": _operations("src_fp4_dst_fp32")},
    "int8": {"int8": _operations("src_int8", "op_igmma_src_int8", "src_int8_sparsity_off")},
    "int8 mma": {"int8 mma": _operations("op_imma_src_int8_sparsity_off")},
    "fp64": {"fp64": _operations("src_fp64")},
    LINKS: {"nvlink_rx_bytes": ("nvlrx__bytes.sum",), "nvlink_tx_bytes": ("nvltx__bytes.sum",)},
}
#: Hopper has two kinds of instructions for these types, each with counters of its own: the second is worth a set where
#: the first counts one kind alone.
_SECOND = {"fp16 mma": ("fp16", "_hgmma_"), "int8 mma": ("int8", "_igmma_")}
SETS = tuple(_SETS)
#: Those of tensor operations.
TENSOR = tuple(name for name in SETS if name not in (ACTIVITY, PIPES, LINKS))
#: Counted by the warp, of 32 threads.
_BY_WARP = ("sm__inst_executed_pipe_fma.sum", "sm__inst_executed_pipe_fp64.sum")


class Counted(NamedTuple):
    """What one range counted; None and a missing type are what was not."""

    device_ns: int | None
    tensor_ops: tuple[tuple[str, float], ...]
    flops: tuple[tuple[str, float], ...]
    amounts: dict[str, float]  # fields of :class:`BlockCounters` by their names


class _Set:
    """One set of metrics, and where CUPTI writes what it counts."""

    def __init__(self, name: str, metrics: host.MetricSet, fields: dict[str, str]) -> None:
        self.name, self.metrics = name, metrics
        self.fields = fields  # → the metric that was taken for it
        self.image: Any = None


def chosen(api: Any, chip: str, name: str, availability: Any | None = None) -> "_Set | None":
    """What of a set fits one pass on a chip; None where that is nothing of what is its own."""
    own = _SETS[name]
    wanted = {**_TIME, **own, **_ALWAYS}
    found, taken = host.in_one_pass(api, capi.RANGE_PROFILER, chip, list(wanted.values()), availability)
    known = {field: metric for field, metric in zip(wanted, taken, strict=True) if metric is not None}
    if found is None:
        return None
    if "device_ns" not in known or not own.keys() & known.keys():
        found.close()
        return None
    return _Set(name, found, known)


def read(fields: dict[str, str], values: dict[str, float]) -> Counted:
    """The values of metrics in the words of records; what is no number was not counted."""
    known = {
        field: values[metric] * (32 if metric in _BY_WARP else 1)
        for field, metric in fields.items()
        if values.get(metric, -1.0) >= 0 and values[metric] != float("inf")
    }
    length = known.pop("device_ns", None)
    clock = known.pop("sm_clock_hz", None)
    if clock:
        known["sm_clock_mhz"] = clock / 1e6
    tensor = tuple((name, known.pop(name)) for name in TENSOR if name in known)
    flops = []
    fma, half = known.pop("fma", None), known.pop("half", None)
    if half is not None:
        flops.append(("fp16", 4 * half))  # pairs
    if fma is not None:
        of_half = half if half is not None and "pipe_fma" in fields["half"] else 0.0
        flops.append(("fp32", 2 * max(0.0, fma - of_half)))
    if "double" in known:
        flops.append(("fp64", 2 * known.pop("double")))
    return Counted(round(length) if length is not None else None, tensor, tuple(flops), known)


class RangeProfiler:
    """CUPTI's Range Profiler on one context. One thread at a time; from :meth:`begin` to :meth:`end` the range is that
    thread's. Both raise :class:`BackendError`, after which the next range begins with nothing. ``announce`` is told
    each step before it is done."""

    def __init__(
        self, api: Any, driver: Any, context: int, device: int, announce: Callable[[str], None] = lambda _: None
    ) -> None:
        self.context, self.device = context, device
        self._api, self._driver, self._announce = api, driver, announce
        self._sets: dict[str, _Set | None] = {}
        self._object: Any = None  # while it is enabled
        self._configured: _Set | None = None
        self._failed = self._running = False
        self._hosts = Hosts(_nothing, _nothing, _nothing)
        announce("cuptiProfilerInitialize")
        host.initialize(api)
        self.chip = host.chip_of(self._ask, device)
        #: Those that count something on this chip.
        self.sets = tuple(name for name in SETS if self._set(name) is not None)
        self.tensor = tuple(name for name in self.sets if name in TENSOR)
        if not self.sets:
            raise BackendError("cuptiProfilerHostConfigAddMetrics", 27, f"this CUPTI counts nothing on {self.chip}")

    def _ask(self, name: str, **given: Any) -> Any:
        self._announce(name)
        try:
            return capi.ask(self._api, name, **given)
        except BackendError as error:
            lost, self._object = self._object, None
            self._configured, self._running, self._failed = None, False, True
            if lost is not None and error.code != _GONE:
                self._api.cuptiRangeProfilerDisable(
                    ctypes.byref(capi.prepared("cuptiRangeProfilerDisable", pRangeProfilerObject=lost))
                )
            raise

    def begin(self, name: str) -> bool:
        """Waits for the device and opens a range that counts the set; False where that cannot be done now. A set that
        is not the last one's takes 150 ms, and the first one up to a second."""
        found = self._set(name)
        if found is None or other_profilers.running() is not None or not self._synchronised():
            return False
        if found is self._configured:
            self._empty(found)
        else:
            self._change(found)
        self._ask("cuptiRangeProfilerStart", pRangeProfilerObject=self._object)
        self._ask("cuptiRangeProfilerPushRange", pRangeProfilerObject=self._object, pRangeName=_NAME)
        self._running = True
        return True

    def end(self) -> Counted | None:
        """Waits for the device, closes the range and gives what it counted; None where the device has failed or the
        range is lost."""
        found, running = self._configured, self._running
        if found is None or not running:
            return None
        self._running = False
        well = self._synchronised()
        self._ask("cuptiRangeProfilerPopRange", pRangeProfilerObject=self._object)
        whole = self._ask("cuptiRangeProfilerStop", pRangeProfilerObject=self._object).isAllPassSubmitted
        dropped = self._ask("cuptiRangeProfilerDecodeData", pRangeProfilerObject=self._object).numOfRangeDropped
        told = {"pCounterDataImage": ctypes.addressof(found.image), "counterDataImageSize": len(found.image)}
        count = self._ask("cuptiRangeProfilerGetCounterDataInfo", **told).numTotalRanges
        if not well or not whole or dropped or count != 1:
            return None
        return read(found.fields, found.metrics.evaluate(found.image, 0))

    def _set(self, name: str) -> _Set | None:
        if name not in self._sets:
            first, mark = _SECOND.get(name, ("", ""))
            other = self._set(first) if first else None
            wanted = not first or (other is not None and mark in other.fields[first])
            self._sets[name] = chosen(self._api, self.chip, name) if wanted else None
        return self._sets[name]

    def _change(self, found: _Set) -> None:
        """The hardware is set up to count this set, and no other until the next change."""
        if self._object is not None:
            self._configured, before = None, self._object
            self._object = None
            self._ask("cuptiRangeProfilerDisable", pRangeProfilerObject=before)
        if self._failed:
            self._ask("cuptiProfilerInitialize")
        self._object = self._ask("cuptiRangeProfilerEnable", ctx=self.context).pRangeProfilerObject
        COUNTED.add(self.device)
        metrics = found.metrics
        size = self._ask(
            "cuptiRangeProfilerGetCounterDataSize",
            pRangeProfilerObject=self._object,
            pMetricNames=metrics.names,
            numMetrics=len(metrics.metrics),
            maxNumOfRanges=1,
            maxNumRangeTreeNodes=1,
        ).counterDataSize
        found.image = capi.image(size)
        self._empty(found)
        self._ask(
            "cuptiRangeProfilerSetConfig",
            pRangeProfilerObject=self._object,
            configSize=len(metrics.config),
            pConfig=ctypes.addressof(metrics.config),
            counterDataImageSize=size,
            pCounterDataImage=ctypes.addressof(found.image),
            range=capi.USER_RANGE,
            replayMode=capi.USER_REPLAY,
            maxRangesPerPass=1,
            numNestingLevels=1,
            minNestingLevel=1,
            passIndex=0,
            targetNestingLevel=1,
        )
        self._configured, self._failed = found, False

    def _empty(self, found: _Set) -> None:
        """Nothing is in its image."""
        self._ask(
            "cuptiRangeProfilerCounterDataImageInitialize",
            pRangeProfilerObject=self._object,
            counterDataSize=len(found.image),
            pCounterData=ctypes.addressof(found.image),
        )

    def _synchronised(self) -> bool:
        """Waits for the streams that this thread launches on, as far as they are known; not where one is captured."""
        driver = self._driver
        with relaxed(driver, self.context) as pushed:
            streams = {*_DEFAULT, *(one.stream for one in self._hosts.streams(()).streams if one.stream)}
            if not pushed or any(is_captured(driver, stream) for stream in streams):
                return False
            return not any(driver.cuStreamSynchronize(stream) for stream in streams)


def is_captured(driver: Any, stream: int) -> bool:
    """Whether nothing may be waited for on a stream: it is being captured, or another one that waits for it. Also where
    nobody knows."""
    status = c_int()
    ask = driver.cuStreamIsCapturing
    return not ask or bool(ask(stream, byref(status)) or status.value)


def _nothing() -> None:
    """Nobody need know that a thread goes on to another stream."""
