"""Which values of a sample become which metrics: OpenTelemetry's names as its Collector writes them for Prometheus, or
DCGM's fields. Pure.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ... import __version__
from ..._records.metrics import CollectiveTotals, GpuMetrics
from ..._runtime import log
from .._instruments import COLLECTIVES, INSTRUMENTS, Instrument, Value
from ._text import Family

#: What a unit of the conventions is called at the end of a name.
_UNITS = {
    "By": "bytes",
    "By/s": "bytes_per_second",
    "Cel": "celsius",
    "Hz": "hertz",
    "J": "joules",
    "W": "watts",
    "rpm": "rpm",
    "s": "seconds",
}


def families(samples: Iterable[GpuMetrics], names: str, collectives: Iterable[CollectiveTotals] = ()) -> list[Family]:
    """Every metric of ``samples``, whose devices differ, and of ``collectives``, for which DCGM has no names. Raises
    ValueError for unknown ``names``."""
    if names not in NAMES:
        raise ValueError(f"names must be one of {', '.join(NAMES)}, not {names!r}")
    rows, sums = list(samples), list(collectives) if names == "gpusense" else []
    about = Family("gpusense_build_info", "gauge", "", "Version of gpusense", [({"version": __version__}, 1)])
    of_sums = [_family(_of_conventions(row), sums) for row in COLLECTIVES] if sums else []
    return [about, *(_family(make, rows) for make in NAMES[names]), *of_sums]


class _Metric:
    """A family without rows, and how a sample gives them."""

    __slots__ = ("help", "kind", "name", "read", "unit")

    def __init__(self, name: str, kind: str, unit: str, text: str, read: Callable[[Any], Iterator[Value]]) -> None:
        self.name = name
        self.kind = kind
        self.unit = unit
        self.help = text
        self.read = read


def _family(metric: _Metric, samples: Sequence[Any]) -> Family:
    found: dict[tuple[tuple[str, str], ...], tuple[dict[str, str], float]] = {}
    for sample in samples:
        try:
            values = list(metric.read(sample))
        except Exception:  # noqa: BLE001 - one device's odd value must not cost the others
            log.exception(f"prometheus-{metric.name}", "the metric %s is left out", metric.name)
            continue
        for value, attributes in values:
            labels = {key.replace(".", "_"): str(text) for key, text in attributes.items() if text is not None}
            found.setdefault(tuple(labels.items()), (labels, value))
    return Family(metric.name, metric.kind, metric.unit, metric.help, list(found.values()))


def _of_conventions(row: Instrument) -> _Metric:
    unit = _UNITS.get(row.unit, "ratio" if row.unit == "1" and row.kind == "gauge" else "")
    name = row.name.replace(".", "_")
    name = name if not unit or name.endswith(f"_{unit}") else f"{name}_{unit}"
    if row.kind == "counter":
        return _Metric(f"{name}_total", "counter", unit, row.description, row.read)
    return _Metric(name, "gauge", unit, row.description, row.read)


def _of_dcgm(kind: str, field: str, path: str, scale: float, text: str) -> _Metric:
    group, _, name = path.partition(".")

    def read(sample: GpuMetrics) -> Iterator[Value]:
        value = getattr(getattr(sample, group), name)
        if value is not None:
            yield (value if scale == 1 else round(value * scale, 6)), _dcgm_labels(sample)

    return _Metric(f"DCGM_FI_{field}", kind, "", text, read)


def _dcgm_labels(sample: GpuMetrics) -> dict[str, Any]:
    device = sample.device
    index = device.index if device.nvml_index is None else device.nvml_index
    domain, colon, rest = (device.pci_bus_id or "").partition(":")
    return {
        "gpu": index,
        "UUID": device.uuid,
        "pci_bus_id": f"{domain:0>8}:{rest}".upper() if colon else None,
        "device": f"nvidia{index}" if device.vendor == "nvidia" else None,
        "modelName": device.name,
        "Hostname": platform.node() or None,
    }


#: DCGM's field, ours, factor, meaning.
_GAUGES = (
    ("DEV_SM_CLOCK", "clocks.sm_mhz", 1, "SM clock frequency (in MHz)"),
    ("DEV_MEM_CLOCK", "clocks.memory_mhz", 1, "Memory clock frequency (in MHz)"),
    ("DEV_MEMORY_TEMP", "thermal.memory_celsius", 1, "Memory temperature (in C)"),
    ("DEV_GPU_TEMP", "thermal.gpu_celsius", 1, "GPU temperature (in C)"),
    ("DEV_FAN_SPEED", "thermal.fan_percent", 1, "Fan speed (in % of its maximum)"),
    ("DEV_POWER_USAGE", "power.draw_watts", 1, "Power draw (in W)"),
    ("DEV_POWER_MGMT_LIMIT", "power.limit_watts", 1, "Power limit (in W)"),
    ("DEV_GPU_UTIL", "utilization.gpu_percent", 1, "GPU utilization (in %)"),
    ("DEV_MEM_COPY_UTIL", "utilization.memory_controller_percent", 1, "Time the memory was read or written (in %)"),
    ("DEV_ENC_UTIL", "utilization.encoder_percent", 1, "Encoder utilization (in %)"),
    ("DEV_DEC_UTIL", "utilization.decoder_percent", 1, "Decoder utilization (in %)"),
    ("DEV_PSTATE", "clocks.performance_state", 1, "Performance state, 0 is the fastest"),
    ("DEV_XID_ERRORS", "health.last_xid", 1, "The last XID error"),
    ("DEV_FB_FREE", "memory.free_bytes", 2**-20, "Device memory free (in MiB)"),
    ("DEV_FB_USED", "memory.used_bytes", 2**-20, "Device memory used (in MiB)"),
    ("DEV_FB_RESERVED", "memory.reserved_bytes", 2**-20, "Device memory reserved (in MiB)"),
    ("DEV_FB_TOTAL", "memory.total_bytes", 2**-20, "Device memory there is (in MiB)"),
    ("PROF_GR_ENGINE_ACTIVE", "utilization.graphics_engine_percent", 0.01, "Share of time with any work resident"),
    ("PROF_SM_ACTIVE", "utilization.sm_active_percent", 0.01, "Share of cycles an SM has a warp assigned"),
    ("PROF_SM_OCCUPANCY", "utilization.sm_occupancy_percent", 0.01, "Share of warps resident on an SM"),
    ("PROF_PIPE_TENSOR_ACTIVE", "utilization.tensor_percent", 0.01, "Share of cycles the tensor pipe is active"),
    ("PROF_PIPE_FP64_ACTIVE", "utilization.fp64_percent", 0.01, "Share of cycles the FP64 pipe is active"),
    ("PROF_PIPE_FP32_ACTIVE", "utilization.fp32_percent", 0.01, "Share of cycles the FP32 pipe is active"),
    ("PROF_PIPE_FP16_ACTIVE", "utilization.fp16_percent", 0.01, "Share of cycles the FP16 pipe is active"),
    ("PROF_DRAM_ACTIVE", "utilization.dram_bandwidth_percent", 0.01, "Share of cycles device memory is accessed"),
    ("PROF_PCIE_RX_BYTES", "pcie.rx_bytes_per_s", 1, "Bytes a second received over PCIe"),
    ("PROF_PCIE_TX_BYTES", "pcie.tx_bytes_per_s", 1, "Bytes a second sent over PCIe"),
    ("PROF_NVLINK_RX_BYTES", "links.rx_bytes_per_s", 1, "Bytes a second received over NVLink"),
    ("PROF_NVLINK_TX_BYTES", "links.tx_bytes_per_s", 1, "Bytes a second sent over NVLink"),
)
_COUNTERS = (
    ("DEV_TOTAL_ENERGY_CONSUMPTION", "power.energy_joules", 1e3, "Energy since the driver was loaded (in mJ)"),
    ("DEV_PCIE_REPLAY_COUNTER", "pcie.replay_count", 1, "PCIe retries"),
    ("DEV_ECC_SBE_VOL_TOTAL", "health.ecc_corrected", 1, "Corrected errors since the driver was loaded"),
    ("DEV_ECC_DBE_VOL_TOTAL", "health.ecc_uncorrected", 1, "Uncorrected errors since the driver was loaded"),
    ("DEV_ECC_SBE_AGG_TOTAL", "health.ecc_corrected_lifetime", 1, "Corrected errors of the device's life"),
    ("DEV_ECC_DBE_AGG_TOTAL", "health.ecc_uncorrected_lifetime", 1, "Uncorrected errors of the device's life"),
)

#: What the metrics may be called.
NAMES = {
    "gpusense": tuple(map(_of_conventions, INSTRUMENTS)),
    "dcgm": (
        *(_of_dcgm("gauge", *row) for row in _GAUGES),
        *(_of_dcgm("counter", *row) for row in _COUNTERS),
    ),
}
