"""The metric tables: name, instrument, unit, and how a device's sample, or a sum of collectives, gives the values.

Imports no OpenTelemetry.

``hw.*`` rows follow the semantic conventions word for word; what they do not name stands under ``gpu.*`` in UCUM units.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .._records.metrics import CollectiveTotals, GpuMetrics
from .._records.records import DeviceInfo

Value = tuple[float, dict[str, Any]]
STATES = ("ok", "degraded", "failed", "predicted_failure")
_STATE_OF = {"ok": "ok", "sleeping": "ok", "degraded": "degraded", "lost": "failed"}


class Instrument(NamedTuple):
    name: str
    kind: str  # "gauge", "counter" or "updowncounter"
    unit: str
    description: str
    read: Callable[[Any], Iterator[Value]]  # of a GpuMetrics, or of a CollectiveTotals


def hardware_id(device: DeviceInfo) -> str:
    """``hw.id``: the UUID exactly as NVML and DCGM write it, else the PCI address, else vendor and index."""
    return device.uuid or device.pci_bus_id or f"{device.vendor}-{device.index}"


def _gpu(sample: GpuMetrics, **more: Any) -> dict[str, Any]:
    device = sample.device
    return {"hw.id": hardware_id(device), "hw.name": device.name, "hw.vendor": device.vendor, **more}


def _part(sample: GpuMetrics, part: str, **more: Any) -> dict[str, Any]:
    """Attributes of a sensor or fan of the device: its own id, and the device as parent."""
    own = hardware_id(sample.device)
    return {"hw.id": f"{own}:{part}", "hw.parent": own, **more}


def _utilization(sample: GpuMetrics) -> Iterator[Value]:
    shares = sample.utilization
    for task, percent in (
        ("general", shares.gpu_percent),
        ("encoder", shares.encoder_percent),
        ("decoder", shares.decoder_percent),
    ):
        if percent is not None:
            yield percent / 100, _gpu(sample, **{"hw.gpu.task": task})


def _memory_usage(sample: GpuMetrics) -> Iterator[Value]:
    if sample.memory.used_bytes is not None:
        yield sample.memory.used_bytes, _gpu(sample)


def _memory_limit(sample: GpuMetrics) -> Iterator[Value]:
    if sample.memory.total_bytes is not None:
        yield sample.memory.total_bytes, _gpu(sample)


def _memory_utilization(sample: GpuMetrics) -> Iterator[Value]:
    used, total = sample.memory.used_bytes, sample.memory.total_bytes
    if used is not None and total:
        yield used / total, _gpu(sample)


def _temperature(sample: GpuMetrics) -> Iterator[Value]:
    thermal = sample.thermal
    for location, celsius in (
        ("gpu", thermal.gpu_celsius),
        ("memory", thermal.memory_celsius),
        ("hotspot", thermal.hotspot_celsius),
    ):
        if celsius is not None:
            yield celsius, _part(sample, f"temperature:{location}", **{"hw.sensor_location": location})


def _temperature_limit(sample: GpuMetrics) -> Iterator[Value]:
    thermal = sample.thermal
    for limit, celsius in (
        ("throttled", thermal.slowdown_celsius),
        ("high.critical", thermal.shutdown_celsius),
        ("high.degraded", thermal.max_operating_celsius),
    ):
        if celsius is not None:
            yield (
                celsius,
                _part(sample, "temperature:gpu", **{"hw.sensor_location": "gpu", "hw.limit_type": limit}),
            )


def _power(sample: GpuMetrics) -> Iterator[Value]:
    watts = sample.power.draw_watts if sample.power.draw_watts is not None else sample.power.average_watts
    if watts is not None:
        yield watts, _gpu(sample, **{"hw.type": "gpu"})


def _power_limit(sample: GpuMetrics) -> Iterator[Value]:
    if sample.power.limit_watts is not None:
        yield sample.power.limit_watts, _gpu(sample)


def _energy(sample: GpuMetrics) -> Iterator[Value]:
    if sample.power.energy_joules is not None:
        yield sample.power.energy_joules, _gpu(sample, **{"hw.type": "gpu"})


def _fan_speed(sample: GpuMetrics) -> Iterator[Value]:
    if sample.thermal.fan_rpm is not None:
        yield sample.thermal.fan_rpm, _part(sample, "fan")


def _fan_ratio(sample: GpuMetrics) -> Iterator[Value]:
    if sample.thermal.fan_percent is not None:
        yield sample.thermal.fan_percent / 100, _part(sample, "fan")


def _errors(sample: GpuMetrics) -> Iterator[Value]:
    health = sample.health
    for error, count in (
        ("corrected", health.ecc_corrected),
        ("uncorrected", health.ecc_uncorrected),
        ("xid", health.xid_count),
        ("pcie_replay", sample.pcie.replay_count),
    ):
        if count is not None:
            yield count, _gpu(sample, **{"hw.type": "gpu", "error.type": error})


def _status(sample: GpuMetrics) -> Iterator[Value]:
    current = _STATE_OF.get(sample.state)
    if current is not None:
        for state in STATES:
            yield int(state == current), _gpu(sample, **{"hw.type": "gpu", "hw.state": state})


def _clock(sample: GpuMetrics) -> Iterator[Value]:
    clocks = sample.clocks
    for domain, megahertz in (
        ("graphics", clocks.graphics_mhz),
        ("sm", clocks.sm_mhz),
        ("memory", clocks.memory_mhz),
        ("video", clocks.video_mhz),
    ):
        if megahertz is not None:
            yield megahertz * 1e6, _gpu(sample, **{"gpu.clock.domain": domain})


def _pcie(sample: GpuMetrics) -> Iterator[Value]:
    return _directions(sample, sample.pcie.rx_bytes_per_s, sample.pcie.tx_bytes_per_s)


def _nvlink(sample: GpuMetrics) -> Iterator[Value]:
    return _directions(sample, sample.links.rx_bytes_per_s, sample.links.tx_bytes_per_s)


def _directions(sample: GpuMetrics, received: float | None, sent: float | None) -> Iterator[Value]:
    for direction, rate in (("receive", received), ("transmit", sent)):
        if rate is not None:
            yield rate, _gpu(sample, **{"network.io.direction": direction})


def _activity(sample: GpuMetrics) -> Iterator[Value]:
    shares = sample.utilization
    for unit, percent in (
        ("memory_controller", shares.memory_controller_percent),
        ("sm", shares.sm_active_percent),
        ("sm_occupancy", shares.sm_occupancy_percent),
        ("tensor", shares.tensor_percent),
        ("dram", shares.dram_bandwidth_percent),
        ("jpeg", shares.jpeg_percent),
        ("ofa", shares.ofa_percent),
        ("graphics_engine", shares.graphics_engine_percent),
        ("fp64", shares.fp64_percent),
        ("fp32", shares.fp32_percent),
        ("fp16", shares.fp16_percent),
    ):
        if percent is not None:
            yield percent / 100, _gpu(sample, **{"gpu.unit": unit})


INSTRUMENTS = (
    Instrument("hw.gpu.utilization", "gauge", "1", "Share of time in which the task's engine was busy", _utilization),
    Instrument("hw.gpu.memory.usage", "updowncounter", "By", "Device memory in use", _memory_usage),
    Instrument("hw.gpu.memory.limit", "updowncounter", "By", "Device memory there is", _memory_limit),
    Instrument("hw.gpu.memory.utilization", "gauge", "1", "Share of the device memory in use", _memory_utilization),
    Instrument("hw.temperature", "gauge", "Cel", "Temperature at a sensor of the device", _temperature),
    Instrument("hw.temperature.limit", "gauge", "Cel", "Temperature at which the device acts", _temperature_limit),
    Instrument("hw.power", "gauge", "W", "Power drawn by the device", _power),
    Instrument("hw.energy", "counter", "J", "Energy used since the driver was loaded", _energy),
    Instrument("hw.fan.speed", "gauge", "rpm", "Fan speed", _fan_speed),
    Instrument("hw.fan.speed_ratio", "gauge", "1", "Fan speed as a share of its maximum", _fan_ratio),
    Instrument("hw.errors", "counter", "{error}", "Errors the device counted", _errors),
    Instrument("hw.status", "updowncounter", "1", "1 for the state the device is in, 0 for the others", _status),
    Instrument("gpu.clock.frequency", "gauge", "Hz", "Current clock of a domain", _clock),
    Instrument("gpu.power.limit", "gauge", "W", "Power the device may draw", _power_limit),
    Instrument("gpu.pcie.rate", "gauge", "By/s", "Bytes a second over PCI Express, seen from the device", _pcie),
    Instrument("gpu.nvlink.rate", "gauge", "By/s", "Bytes a second over all NVLinks, seen from the device", _nvlink),
    Instrument("gpu.unit.activity", "gauge", "1", "Share of time in which a unit of the device was active", _activity),
)


def _of(field: str, per: float = 1) -> Callable[[CollectiveTotals], Iterator[Value]]:
    def read(totals: CollectiveTotals) -> Iterator[Value]:
        value = getattr(totals, field)
        if value is None or (field == "time_ns" and not totals.timed):
            return
        about = {
            "gpu.collective.name": totals.name,
            "gpu.communicator.id": totals.communicator,
            "gpu.communicator.name": totals.communicator_name,
            "gpu.communicator.rank": totals.rank,
            "gpu.communicator.size": totals.ranks,
        }
        yield value if per == 1 else value / per, {key: told for key, told in about.items() if told is not None}

    return read


#: Of each function of NCCL in each communicator of this process.
COLLECTIVES = (
    Instrument("gpu.collective.count", "counter", "{collective}", "Collectives, sends and receives", _of("calls")),
    Instrument("gpu.collective.io", "counter", "By", "Bytes of them, as NCCL's tests count", _of("bytes")),
    Instrument("gpu.collective.time", "counter", "s", "Their time on the device, with waiting", _of("time_ns", 1e9)),
    Instrument(
        "gpu.collective.bus.bandwidth",
        "gauge",
        "By/s",
        "Bus bandwidth as NCCL's tests define it, over the last ten seconds or more; waiting counts as time",
        _of("bus_bandwidth"),
    ),
    Instrument(
        "gpu.collective.waiting.time",
        "gauge",
        "s",
        "For how long by now the device has been in the oldest that has not ended",
        _of("waiting_ns", 1e9),
    ),
)
