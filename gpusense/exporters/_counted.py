"""What hardware counters of this process said last, in a device's sample: so exporters have it under the names that the
monitor's values have.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from .._records.counter_samples import AVERAGES, CounterColumns
from .._records.device_identity import device_of, known_as
from .._records.metrics import GpuMetrics
from .._records.records import DeviceInfo
from .._runtime import clock
from ..analysis.peaks import peaks

#: What was counted longer ago says nothing of now.
_FRESH_NS = 10_000_000_000
_SHARES = ("sm_active_percent", "sm_occupancy_percent", "tensor_percent", "graphics_engine_percent")


def with_counters(samples: Iterable[GpuMetrics], recorder: Any) -> list[GpuMetrics]:
    """``samples`` with the counters of ``recorder``, which know these values better; as they are where it has none."""
    found, now = list(samples), clock.now_ns()
    for number, columns in dict(getattr(recorder, "counted", None) or ()).items():
        if len(columns) and now - columns.end[-1] < _FRESH_NS:
            device = device_of(recorder.devices(), "cuda", number)
            for at, sample in enumerate(found):
                own = sample.device
                if own.cuda_index == number if device is None else known_as(own, (device,)) is not None:
                    found[at] = _filled(sample, device or own, _values(columns))
    return found


@lru_cache(maxsize=16)
def _values(columns: CounterColumns) -> dict[str, float]:
    """Averages, and amounts a second, of what was counted. OpenTelemetry asks once for each of its instruments."""
    found = {}
    lengths = [end - start for start, end in zip(columns.start, columns.end, strict=True)]
    for field, column in zip(columns.fields, columns.values, strict=True):
        known = [(value, length) for value, length in zip(column, lengths, strict=True) if value == value]
        spent = sum(length for _, length in known)
        if spent:
            shares = field in AVERAGES
            found[field] = sum(value * (length if shares else 1e9) for value, length in known) / spent
    return found


def _filled(sample: GpuMetrics, device: DeviceInfo, values: dict[str, float]) -> GpuMetrics:
    shares: dict[str, Any] = {name: values[name] for name in _SHARES if name in values}
    peak = peaks(device).bytes_per_s
    if peak and {"dram_read_bytes", "dram_write_bytes"} <= values.keys():
        shares["dram_bandwidth_percent"] = 100 * (values["dram_read_bytes"] + values["dram_write_bytes"]) / peak
    pcie, links = (_rates(values, link) for link in ("pcie", "nvlink"))
    return sample._replace(
        utilization=sample.utilization._replace(**shares),
        pcie=sample.pcie._replace(**pcie),
        links=sample.links._replace(**links),
    )


def _rates(values: dict[str, float], link: str) -> dict[str, Any]:
    named = {f"{way}_bytes_per_s": f"{link}_{way}_bytes" for way in ("rx", "tx")}
    return {rate: values[field] for rate, field in named.items() if field in values}
