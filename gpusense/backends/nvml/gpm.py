"""GPM: what the SMs, the tensor cores and the memory really did between two samples (Hopper and later, on request).

It shares the performance counters with DCGM and profilers, so it is read only in the "gpm" lane.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from ..._capi import nvml as c
from .reader import Reader

#: The driver refreshes its counters every 100 ms; closer samples give nothing new.
_CLOSEST_NS = 100_000_000
_LINK_IDS = {c.GPM_NVLINK_RX: "rx_bytes_per_s", c.GPM_NVLINK_TX: "tx_bytes_per_s"}
_PCIE_IDS = {c.GPM_PCIE_RX: "rx_bytes_per_s", c.GPM_PCIE_TX: "tx_bytes_per_s"}
_IDS = (*c.GPM_PERCENT, *_LINK_IDS, *_PCIE_IDS)
FIELDS = ",".join(f"utilization.{name}" for name in c.GPM_PERCENT.values())


class Counters:
    """Two driver samples that alternate, and the metrics between them."""

    def __init__(self, api: Any, take: Callable[[ctypes.c_void_p], int]) -> None:
        self._api = api
        self._take = take
        self._samples: list[ctypes.c_void_p] = []
        self._taken_ns: int | None = None
        self.window_s = 0.0  # between the two samples
        self._metric = struct.Struct(c.GPM_METRIC)
        self._buffer = ctypes.create_string_buffer(c.GPM_BYTES)

    def read(self, now_ns: int) -> tuple[int, dict[int, float] | None]:
        """(result code, metric id → value); no values before the second sample or within 100 ms of the last."""
        code = self._allocate()
        if code or (self._taken_ns is not None and now_ns - self._taken_ns < _CLOSEST_NS):
            return code, None
        before = self._taken_ns
        self._samples.reverse()
        code = self._take(self._samples[1])
        if code:
            self._taken_ns = None
            return code, None
        self._taken_ns = now_ns
        if before is None:
            return 0, None
        self.window_s = (now_ns - before) / 1e9
        return self._between()

    def close(self) -> None:
        for sample in self._samples:
            self._api.nvmlGpmSampleFree(sample)
        self._samples = []
        self._taken_ns = None

    def _allocate(self) -> int:
        while len(self._samples) < 2:
            sample = ctypes.c_void_p()
            code: int = self._api.nvmlGpmSampleAlloc(ctypes.byref(sample))
            if code:
                return code
            self._samples.append(sample)
        return 0

    def _between(self) -> tuple[int, dict[int, float] | None]:
        size = self._metric.size
        struct.pack_into("<IIQQ", self._buffer, 0, 1, len(_IDS), self._samples[0].value, self._samples[1].value)
        for place, metric in enumerate(_IDS):
            self._metric.pack_into(self._buffer, 24 + place * size, metric, c.UNKNOWN, 0.0)
        code = self._api.nvmlGpmMetricsGet(self._buffer)
        if code:
            return code, None
        values = {}
        for place in range(len(_IDS)):
            metric, result, value = self._metric.unpack_from(self._buffer, 24 + place * size)
            if result == c.SUCCESS:
                values[metric] = value
        return 0, values


class Gpm:
    """The device's own counters, and one pair for each MIG GPU instance."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._device: Counters | None = None
        self._instances: dict[int, Counters] = {}
        self._last: dict[str, float] = {}
        self._last_links: dict[str, float] = {}
        self._last_pcie: dict[str, Any] = {}

    def read(self, now_ns: int) -> tuple[dict[str, float], dict[str, float], dict[str, Any]]:
        """(fields of Utilization in percent, of Links and of Pcie in bytes a second); empty where not supported."""
        reader = self._reader
        if reader.why(FIELDS) is not None or not self._supported():
            return {}, {}, {}
        if self._device is None:
            api, handle = reader.api, reader.handle
            self._device = Counters(api, lambda sample: int(api.nvmlGpmSampleGet(handle, sample)))
        code, values = self._device.read(now_ns)
        if code:
            reader.fail(FIELDS, code, "nvmlGpmSampleGet")
            return {}, {}, {}
        if values is not None:
            self._keep(values, self._device.window_s, now_ns)
        elif not self._last:
            reader.odd(FIELDS, "stale: GPM needs two samples 100 ms apart")
        return self._last, self._last_links, self._last_pcie

    def instance(self, instance: int, now_ns: int) -> float | None:
        """SM activity of one MIG GPU instance in percent; None until there are two samples."""
        if self._reader.why("~gpm_mig") is not None:
            return None
        counters = self._instances.get(instance)
        if counters is None:
            api, handle = self._reader.api, self._reader.handle
            counters = Counters(api, lambda sample: int(api.nvmlGpmMigSampleGet(handle, instance, sample)))
            self._instances[instance] = counters
        code, values = counters.read(now_ns)
        if code:
            self._reader.fail("~gpm_mig", code, "nvmlGpmMigSampleGet")
        value = (values or {}).get(2)
        return value if value is not None and 0 <= value <= 100 else None

    def renewed(self) -> "Gpm":
        """One that knows nothing yet; the driver's samples are given back, where it still knows them."""
        if not self._reader.reborn:
            self.close()
        return Gpm(self._reader)

    def close(self) -> None:
        for counters in (self._device, *self._instances.values()):
            if counters is not None:
                counters.close()
        self._device, self._instances = None, {}

    def _supported(self) -> bool:
        if self._device is not None:
            return True
        reader = self._reader
        answer = (ctypes.c_uint * 2)(1, 0)
        code = reader.api.nvmlGpmQueryDeviceSupport(reader.handle, answer)
        if code or not answer[1]:
            reader.fail(FIELDS, code or c.NOT_SUPPORTED, "nvmlGpmQueryDeviceSupport")
            return False
        return True

    def _keep(self, values: dict[int, float], window_s: float, now_ns: int) -> None:
        self._last = {}
        for metric, name in c.GPM_PERCENT.items():
            # Ratios of two counters may exceed 100 by rounding.
            value = self._reader.within(f"utilization.{name}", values.get(metric), 0, 101)
            if value is not None:
                self._last[name] = min(value, 100.0)
        self._last_links = self._rates("links", _LINK_IDS, values)
        self._last_pcie = self._rates("pcie", _PCIE_IDS, values)
        if self._last_pcie:
            self._last_pcie.update(rate_window_s=window_s, rate_monotonic_ns=now_ns)

    def _rates(self, group: str, names: dict[int, str], values: dict[int, float]) -> dict[str, Any]:
        rates = {}
        for metric, name in names.items():
            rate = self._reader.within(f"{group}.{name}", values.get(metric), 0, 1e8, 1 << 20)
            if rate is not None:
                rates[name] = rate
        return rates
