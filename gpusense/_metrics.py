"""Device metrics as NamedTuples: one :class:`GpuMetrics` a device and sample; unknown is ``None`` with a reason."""

from typing import NamedTuple

from ._records import DeviceInfo


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


class Memory(NamedTuple):
    total_bytes: int | None = None
    used_bytes: int | None = None  # without the driver's reservation where that is known
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    shared_used_bytes: int | None = None  # GTT and other system memory mapped for the device
    shared_total_bytes: int | None = None
    unified: bool | None = None  # device and host share one memory


class Thermal(NamedTuple):
    gpu_celsius: float | None = None
    memory_celsius: float | None = None
    hotspot_celsius: float | None = None
    slowdown_celsius: float | None = None  # thresholds
    shutdown_celsius: float | None = None
    max_operating_celsius: float | None = None
    fan_percent: float | None = None  # of the fan's maximum
    fan_rpm: float | None = None


class Power(NamedTuple):
    draw_watts: float | None = None
    average_watts: float | None = None
    limit_watts: float | None = None
    energy_joules: float | None = None  # counter since the driver was loaded


class Clocks(NamedTuple):
    graphics_mhz: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    video_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    performance_state: int | None = None  # 0 is the fastest


class Pcie(NamedTuple):
    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    rx_bytes_per_s: float | None = None  # towards the device
    tx_bytes_per_s: float | None = None
    replay_count: int | None = None


class Links(NamedTuple):
    nvlink_count: int | None = None  # links that are up
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None


class Health(NamedTuple):
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    remapped_rows: int | None = None
    last_xid: int | None = None
    xid_count: int | None = None


class ProcessUsage(NamedTuple):
    pid: int
    memory_used_bytes: int | None = None
    gpu_percent: float | None = None
    name: str | None = None
    visible: bool | None = None  # False: the pid belongs to another pid namespace


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
    reasons: tuple[tuple[str, str], ...] = ()  # ("power.draw_watts", "unsupported: NOT_SUPPORTED (3)") …

    def reason(self, field: str) -> str | None:
        """Why ``field`` ("power.draw_watts") is None; None where it has a value."""
        group, _, name = field.partition(".")
        value = getattr(getattr(self, group), name) if name else getattr(self, group)
        if value is not None:
            return None
        for known, why in self.reasons:
            if known in (field, group):
                return why
        return "unsupported: this source does not report it"
