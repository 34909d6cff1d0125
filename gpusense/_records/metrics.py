"""Device metrics as NamedTuples: one :class:`GpuMetrics` a device and sample; unknown is ``None`` with a reason.

A reason begins with one of six words: ``unsupported`` (this device or driver has no such value), ``denied``,
``sleeping`` (asking would wake the device), ``lost``, ``stale`` (no fresh answer this time) or ``out of range`` (the
driver answered with something that cannot be). New fields go last in their group and have a default.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .records import DeviceInfo


class Utilization(NamedTuple):
    """Shares of time in percent, 0…100."""

    gpu_percent: float | None = None
    memory_controller_percent: float | None = None  # time the memory controller was busy; not how full the memory is
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    jpeg_percent: float | None = None
    ofa_percent: float | None = None
    sm_active_percent: float | None = None  # GPM, Hopper and later
    sm_occupancy_percent: float | None = None
    tensor_percent: float | None = None
    dram_bandwidth_percent: float | None = None
    media_percent: float | None = None  # video engines, where encoding and decoding are counted together
    fp64_percent: float | None = None  # GPM from here on; pipes without tensor operations
    fp32_percent: float | None = None
    fp16_percent: float | None = None
    graphics_engine_percent: float | None = None  # any compute or graphics work resident


class Memory(NamedTuple):
    """Device memory in bytes."""

    total_bytes: int | None = None
    used_bytes: int | None = None  # without the driver's reservation where that is known
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    shared_used_bytes: int | None = None  # GTT and other system memory mapped for the device
    shared_total_bytes: int | None = None
    unified: bool | None = None  # device and host share one memory


class Thermal(NamedTuple):
    """Temperatures in degrees Celsius, and the fan."""

    gpu_celsius: float | None = None
    memory_celsius: float | None = None
    hotspot_celsius: float | None = None
    slowdown_celsius: float | None = None  # thresholds
    shutdown_celsius: float | None = None
    max_operating_celsius: float | None = None
    fan_percent: float | None = None  # of the fan's maximum
    fan_rpm: float | None = None
    margin_celsius: float | None = None  # degrees left before the device slows itself down


class Power(NamedTuple):
    """Power in watts, energy in joules."""

    draw_watts: float | None = None
    average_watts: float | None = None
    limit_watts: float | None = None
    energy_joules: float | None = None  # counter since the driver was loaded
    draw_window_s: float | None = None  # 0: instantaneous; 1: mean of the last second
    energy_monotonic_ns: int | None = None  # when the counter was read
    #: "gpu"; "module" where the counter includes a CPU on the same module; "card"; "package": the chip of a card alone
    scope: str | None = None


class Clocks(NamedTuple):
    """Frequencies in MHz, and why they are lowered."""

    graphics_mhz: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    video_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    performance_state: int | None = None  # 0 is the fastest


class Pcie(NamedTuple):
    """The PCI Express link: generation, lanes, bytes a second."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    rx_bytes_per_s: float | None = None  # towards the device
    tx_bytes_per_s: float | None = None
    replay_count: int | None = None
    rate_window_s: float | None = None  # the seconds the two rates are a mean of
    rate_monotonic_ns: int | None = None  # when those ended; two samples with the same hold the same reading


class Links(NamedTuple):
    """NVLink, all links together."""

    nvlink_count: int | None = None  # links that are up
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None
    nvlink_total: int | None = None  # links the device has


class Health(NamedTuple):
    """Errors the device has counted, and what it did about them."""

    ecc_corrected: int | None = None  # since the driver was loaded
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    remapped_rows: int | None = None  # corrected and uncorrected together
    last_xid: int | None = None  # since the monitor started
    xid_count: int | None = None
    ecc_corrected_lifetime: int | None = None
    ecc_uncorrected_lifetime: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None


class ProcessUsage(NamedTuple):
    """What one process uses of one device, as the driver reports it."""

    pid: int
    memory_used_bytes: int | None = None
    gpu_percent: float | None = None
    name: str | None = None
    visible: bool | None = None  # False: the pid belongs to another pid namespace


class Instance(NamedTuple):
    """One MIG compute instance of a device."""

    uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    sm_count: int | None = None
    name: str | None = None
    sm_active_percent: float | None = None  # GPM, of the whole GPU instance


class OwnUsage(NamedTuple):
    """What this process itself uses of one device; None with a reason where nobody knows."""

    device: DeviceInfo
    pid: int
    memory_used_bytes: int | None = None
    gpu_percent: float | None = None
    reason: str | None = None


class GpuMetrics(NamedTuple):
    """What one device answered at one moment."""

    device: DeviceInfo
    time_ns: int  # wall clock, middle of the sample
    monotonic_ns: int
    sequence: int = 0
    cost_ns: int = 0  # what taking the sample cost
    source: str = ""
    source_time_ns: int | None = None  # the driver's own time stamp, where there is one
    state: str = "ok"  # "ok", "sleeping", "lost", "degraded"
    utilization: Utilization = Utilization()
    memory: Memory = Memory()
    thermal: Thermal = Thermal()
    power: Power = Power()
    clocks: Clocks = Clocks()
    pcie: Pcie = Pcie()
    links: Links = Links()
    health: Health = Health()
    processes: tuple[ProcessUsage, ...] | None = None
    reasons: tuple[tuple[str, str], ...] = ()  # ("power.draw_watts", "unsupported: …"); a group, or "*" for all
    instances: tuple[Instance, ...] | None = None  # MIG; None where MIG is off
    out_of_range: int = 0  # answers of this device dropped so far because they cannot be true
    gap_ns: int = 0  # time before this sample that nobody watched: suspend, a stopped process, a lost device

    def reason(self, field: str) -> str | None:
        """Why ``field`` ("power.draw_watts") is None; None where it has a value.

        Raises AttributeError for a field that does not exist.
        """
        group, _, name = field.partition(".")
        value = getattr(getattr(self, group), name) if name else getattr(self, group)
        if value is not None:
            return None
        for known, why in self.reasons:
            if known in (field, group, "*"):
                return why
        return "unsupported: this source does not report it"


#: The groups of a :class:`GpuMetrics` and the empty value of each, shared so that ``is`` tells "nothing was read".
GROUPS: dict[str, Any] = {
    name: GpuMetrics._field_defaults[name]
    for name in ("utilization", "memory", "thermal", "power", "clocks", "pcie", "links", "health")
}


def without_values(metrics: GpuMetrics, state: str, why: str) -> GpuMetrics:
    """``metrics`` with every value gone, in ``state``, for one reason."""
    gone: dict[str, Any] = {**GROUPS, "processes": None, "instances": None}
    return metrics._replace(state=state, reasons=(("*", why),), **gone)


def finite(metrics: GpuMetrics) -> GpuMetrics:
    """``metrics`` with every NaN and infinity gone, for a reason: nothing that computes or draws need expect one.

    Raises TypeError for what is no GpuMetrics.
    """
    if not isinstance(metrics, tuple) or not hasattr(metrics, "utilization"):
        raise TypeError(f"sample() gave {metrics!r:.80}, not a GpuMetrics")
    for group, empty in GROUPS.items():
        values = getattr(metrics, group)
        if values is empty:
            continue
        wrong = {
            name: None
            for name, value in zip(values._fields, values, strict=True)
            if isinstance(value, float) and not -math.inf < value < math.inf
        }
        if wrong:
            reasons = tuple((f"{group}.{name}", f"out of range: {getattr(values, name)}") for name in wrong)
            changed: dict[str, Any] = {group: values._replace(**wrong), "reasons": reasons + metrics.reasons}
            metrics = metrics._replace(**changed)
    return metrics


_PLACE_OF = {name: place for place, name in enumerate(GpuMetrics._fields)}
_PLACES = [(_PLACE_OF[name], empty) for name, empty in GROUPS.items()]
_MEMORY, _UNIFIED = _PLACE_OF["memory"], Memory._fields.index("unified")
#: "power.draw_watts" → (place of its group, its place there)
_PLACES_OF_FIELDS = {
    f"{name}.{field}": (_PLACE_OF[name], place)
    for name, empty in GROUPS.items()
    for place, field in enumerate(empty._fields)
}


def unanswered(sample: Sequence[Any], reasons: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Those of ``reasons`` whose field has no value in ``sample``, a :class:`GpuMetrics` or its values."""
    kept = []
    for reason in reasons:
        group, place = _PLACES_OF_FIELDS.get(reason[0], (None, 0))
        if group is not None:
            value = sample[group][place]
        else:
            value = sample[_PLACE_OF[reason[0]]] if reason[0] in ("processes", "instances") else None
        if value is None:
            kept.append(reason)
    return reasons if len(kept) == len(reasons) else tuple(kept)


def fill(newer: GpuMetrics, older: GpuMetrics, **changed: Any) -> GpuMetrics:
    """``newer`` with what it lacks taken from ``older``, another lane or another source of the same device, and with
    ``changed`` in place.

    Where one speaks of the device's own memory and the other of memory shared with the host, that of ``newer`` stands.
    """
    values: list[Any] = list(newer)
    for place, empty in _PLACES:
        theirs: Any = older[place]
        if theirs is empty:
            continue
        ours = values[place]
        if ours is empty:
            values[place] = theirs
        elif None in ours and (place != _MEMORY or _is_same_memory(ours, theirs)):
            values[place] = ours._make([a if a is not None else b for a, b in zip(ours, theirs, strict=True)])
    if newer.processes is None and older.processes is not None:
        changed["processes"] = older.processes
    if newer.instances is None and older.instances is not None:
        changed["instances"] = older.instances
    for name, value in changed.items():
        values[_PLACE_OF[name]] = value
    reasons = newer.reasons if older.reasons is newer.reasons else newer.reasons + older.reasons
    if reasons:
        values[_PLACE_OF["reasons"]] = unanswered(values, reasons)
    return GpuMetrics._make(values)


def _is_same_memory(one: Memory, other: Memory) -> bool:
    return one[_UNIFIED] is None or other[_UNIFIED] is None or one[_UNIFIED] == other[_UNIFIED]


class CollectiveTotals(NamedTuple):
    """The calls of one function of NCCL in one communicator, as one rank in this process has seen them so far."""

    name: str  # NCCL's name of the function: "AllReduce", "Send", …
    communicator: str | None  # NCCL's number of it, 16 digits of hexadecimal
    communicator_name: str | None = None
    rank: int | None = None  # in the communicator
    ranks: int | None = None
    calls: int = 0  # that have ended, or of whose end NCCL tells nothing
    bytes: int | None = None  # of all calls, as NCCL's tests count; None: the size of none is known
    timed: int = 0  # calls whose time is known
    time_ns: int = 0  # of those on the device, all together; waiting for other ranks is part of it
    bus_bandwidth: float | None = None  # bytes a second as NCCL's tests define it, over the last ten seconds or more
    waiting_ns: int | None = None  # for how long by now the device has been in the oldest that has not ended
