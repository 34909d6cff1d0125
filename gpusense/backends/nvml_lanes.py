"""The three lanes of an NVIDIA device: which NVML call gives which metric, at what cost.

Costs on an H100 (µs a call): most 1–2, memory 10, link width 32, both PCIe byte counters 158; energy 2,400 and the PCIe
throughput call 20,700 a direction, which is why those two stand in the slow lane alone.
"""

from collections.abc import Callable
from typing import Any

from .._capi import nvml as c
from .._metrics import Clocks, Health, Links, Memory, Pcie, Power, Thermal, Utilization
from . import _host
from .nvml_gpm import Gpm
from .nvml_mig import instances
from .nvml_processes import Processes
from .nvml_reader import ByteCounter, FieldBatch, Packed, Reader

Parts = dict[str, Any]

#: Bytes a second and lane of PCIe, by generation, after encoding.
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_MEMORY_LIMIT = 1 << 50
_UNIFIED_NAMES = ("GB10", "Thor", "Orin", "Xavier", "Tegra", "Jetson", "DGX Spark")
_MODULE_NAMES = ("GH200", "GB200", "GB300")


class Shared:
    """What the lanes of one device tell each other."""

    def __init__(self, name: str, procfs: str) -> None:
        self.identify(name)
        self.procfs = procfs
        self.pcie_peak: float | None = None  # bytes a second one way
        self.pcie_by_field = True
        self.wraps = False  # the PCIe byte counters have 32 bits

    def identify(self, name: str) -> None:
        self.unified = any(word in name for word in _UNIFIED_NAMES)
        self.scope = "module" if any(word in name for word in _MODULE_NAMES) else "gpu"


class Fast(Reader):
    """Utilization, memory, temperature, power, clocks, PCIe and NVLink rates: what changes within 100 ms."""

    def __init__(self, api: Any, shared: Shared) -> None:
        super().__init__(api)
        self._shared = shared
        self._utilization = Packed(c.UTILIZATION)
        self._memory = Packed(c.MEMORY_V2, c.VERSION_MEMORY_V2)
        self._memory_v1 = Packed(c.MEMORY)
        self._temperature = Packed(c.TEMPERATURE_V, c.VERSION_TEMPERATURE, 0)
        self._pcie_fields = {
            c.FIELD_PCIE_TX: ("pcie.tx_bytes_per_s", 0),
            c.FIELD_PCIE_RX: ("pcie.rx_bytes_per_s", 0),
        }
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._batch = FieldBatch(
            {
                c.FIELD_POWER_INSTANT: ("~power_instant", 0),
                c.FIELD_POWER_AVERAGE: ("power.average_watts", 0),
                c.FIELD_MEMORY_TEMPERATURE: ("thermal.memory_celsius", 0),
                c.FIELD_NVLINK_TX_KIB: ("links.tx_bytes_per_s", c.ALL_LINKS),
                c.FIELD_NVLINK_RX_KIB: ("links.rx_bytes_per_s", c.ALL_LINKS),
                **self._pcie_fields,
            }
        )
        self._counter_batch = FieldBatch(self._pcie_fields)
        self._counters = {
            c.FIELD_PCIE_TX: ByteCounter(),
            c.FIELD_PCIE_RX: ByteCounter(),
            c.FIELD_NVLINK_TX_KIB: ByteCounter(1024),
            c.FIELD_NVLINK_RX_KIB: ByteCounter(1024),
        }
        self._throttle: dict[int, tuple[str, ...]] = {}
        self._gpm = Gpm(self)

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        fields = self._batch.read(self)
        self._count_bytes(fields, now_ns)
        sms: Parts = {}
        links: Parts = {}
        if gpm:
            sms, links = self._gpm.read(now_ns)
        return {
            "utilization": self._read_utilization()._replace(**sms),
            "memory": self._read_memory(),
            "thermal": self._read_thermal(fields),
            "power": self._read_power(fields),
            "clocks": self._read_clocks(),
            "pcie": Pcie(
                rx_bytes_per_s=self._rate("pcie.rx_bytes_per_s", c.FIELD_PCIE_RX),
                tx_bytes_per_s=self._rate("pcie.tx_bytes_per_s", c.FIELD_PCIE_TX),
            ),
            "links": Links(
                rx_bytes_per_s=self._rate("links.rx_bytes_per_s", c.FIELD_NVLINK_RX_KIB),
                tx_bytes_per_s=self._rate("links.tx_bytes_per_s", c.FIELD_NVLINK_TX_KIB),
            )._replace(**links),
            "source_time_ns": self._batch.time_us * 1000 or None,
        }

    def read_counters(self, now_ns: int) -> None:
        """The PCIe byte counters alone, often enough that 32 bits never wrap twice unseen."""
        self._count_bytes(self._counter_batch.read(self), now_ns)

    def _count_bytes(self, fields: dict[int, tuple[int | float, int]], now_ns: int) -> None:
        for field, counter in self._counters.items():
            if field in fields:
                value, bits = fields[field]
                pcie = field in self._pcie_fields
                counter.add(int(value), bits, now_ns, self._shared.pcie_peak if pcie else None)
                if pcie:
                    self._shared.wraps = bits < 64
        self._shared.pcie_by_field = self.supported("pcie.rx_bytes_per_s")

    def _rate(self, field: str, counter: int) -> float | None:
        if self.why(field) is not None:
            return None
        value, why = self._counters[counter].rate()
        if value is None:
            self.odd(field, why)
            return None
        return self.within(field, value, 0, 1e13)

    def _read_utilization(self) -> Utilization:
        field = "utilization.gpu_percent,utilization.memory_controller_percent"
        both = self.struct(field, self.api.nvmlDeviceGetUtilizationRates, self._utilization)
        gpu, controller = both or (None, None)
        encoder = self.first("utilization.encoder_percent", self.api.nvmlDeviceGetEncoderUtilization)
        decoder = self.first("utilization.decoder_percent", self.api.nvmlDeviceGetDecoderUtilization)
        return Utilization(
            gpu_percent=self.within("utilization.gpu_percent", gpu, 0, 100),
            memory_controller_percent=self.within("utilization.memory_controller_percent", controller, 0, 100),
            encoder_percent=self.within("utilization.encoder_percent", encoder, 0, 100),
            decoder_percent=self.within("utilization.decoder_percent", decoder, 0, 100),
        )

    def _read_memory(self) -> Memory:
        if self._shared.unified:
            return self._unified()
        two = self.struct("~memory_v2", self.api.nvmlDeviceGetMemoryInfo_v2, self._memory)
        if two is not None:
            _, total, reserved, free, used = two
        else:
            one = self.struct("memory", self.api.nvmlDeviceGetMemoryInfo, self._memory_v1)
            if one is None:
                return self._unified() if "NOT_SUPPORTED" in (self.why("memory") or "") else Memory()
            total, free, used = one
            reserved = None
            self.odd("memory.reserved_bytes", "unsupported: this driver counts the reserved memory as used")
        ceiling = min(total, _MEMORY_LIMIT) if total else _MEMORY_LIMIT
        return Memory(
            total_bytes=self.count("memory.total_bytes", total, _MEMORY_LIMIT),
            used_bytes=self.count("memory.used_bytes", used, ceiling),
            free_bytes=self.count("memory.free_bytes", free, ceiling),
            reserved_bytes=self.count("memory.reserved_bytes", reserved, ceiling),
            unified=False,
        )

    def _unified(self) -> Memory:
        """Device and host share one memory: the driver says "not supported", or a number that is not the whole."""
        system = _host.meminfo(self._shared.procfs)
        if system is None:
            return Memory(unified=True)
        total, available = system
        return Memory(total_bytes=total, used_bytes=total - available, free_bytes=available, unified=True)

    def _read_thermal(self, fields: dict[int, tuple[int | float, int]]) -> Thermal:
        field = "thermal.gpu_celsius"
        new = self.struct("~temperature_v", self.api.nvmlDeviceGetTemperatureV, self._temperature)
        degrees = new[2] if new is not None else self.u32(field, self.api.nvmlDeviceGetTemperature, 0)
        memory = fields.get(c.FIELD_MEMORY_TEMPERATURE, (None, 0))[0]
        if memory == 0:  # boards without the sensor answer SUCCESS and 0
            self.odd("thermal.memory_celsius", "unsupported: this board has no memory sensor")
            memory = None
        return Thermal(
            gpu_celsius=self.within(field, degrees, -60, 200),
            memory_celsius=self.within("thermal.memory_celsius", memory, -60, 200),
        )

    def _read_power(self, fields: dict[int, tuple[int | float, int]]) -> Power:
        instant = fields.get(c.FIELD_POWER_INSTANT, (None, 0))[0]
        average = fields.get(c.FIELD_POWER_AVERAGE, (None, 0))[0]
        window: float | None = 0.0
        if instant is None:
            instant = self.u32("power.draw_watts", self.api.nvmlDeviceGetPowerUsage)
            # Documented as a mean of one second on Ampere and later except GA100, which has no average field either.
            window = None if instant is None else 1.0 if average is not None else None
        return Power(
            draw_watts=self.within("power.draw_watts", instant, 0, 20_000_000, 1e-3),
            average_watts=self.within("power.average_watts", average, 0, 20_000_000, 1e-3),
            draw_window_s=window,
            scope=self._shared.scope,
        )

    def _read_clocks(self) -> Clocks:
        call = self.api.nvmlDeviceGetClockInfo
        state = self.u32("clocks.performance_state", self.api.nvmlDeviceGetPerformanceState)
        if state == c.PERFORMANCE_STATE_UNKNOWN:
            self.odd("clocks.performance_state", "unsupported: the driver does not know the state")
            state = None
        return Clocks(
            graphics_mhz=self._mhz("clocks.graphics_mhz", call, 0),
            sm_mhz=self._mhz("clocks.sm_mhz", call, 1),
            memory_mhz=self._mhz("clocks.memory_mhz", call, 2),
            video_mhz=self._mhz("clocks.video_mhz", call, 3),
            throttle_reasons=self._throttle_reasons(),
            performance_state=self.count("clocks.performance_state", state, 15),
        )

    def _mhz(self, field: str, call: Callable[..., int], clock: int) -> float | None:
        return self.within(field, self.u32(field, call, clock), 0, 50_000)

    def _throttle_reasons(self) -> tuple[str, ...] | None:
        field = "clocks.throttle_reasons"
        mask = self.u64("~event_reasons", self.api.nvmlDeviceGetCurrentClocksEventReasons)
        if mask is None:
            mask = self.u64(field, self.api.nvmlDeviceGetCurrentClocksThrottleReasons)
        if mask is None:
            return None
        words = self._throttle.get(mask)
        if words is None:
            if len(self._throttle) > 256:
                self._throttle.clear()
            words = self._throttle[mask] = c.throttle_words(mask)
        return words


class Medium(Reader):
    """Limits, thresholds, link, fans, processes, MIG instances: what changes within seconds."""

    def __init__(self, api: Any, shared: Shared) -> None:
        super().__init__(api)
        self._shared = shared
        self._margin = Packed(c.MARGIN, c.VERSION_MARGIN)
        self._processes = Processes(self, shared.procfs)
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._fixed: dict[str, int | None] = {}
        self._gpm = Gpm(self)

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        jpeg = self.first("utilization.jpeg_percent", self.api.nvmlDeviceGetJpgUtilization)
        ofa = self.first("utilization.ofa_percent", self.api.nvmlDeviceGetOfaUtilization)
        limit = self.u32("power.limit_watts", self.api.nvmlDeviceGetEnforcedPowerLimit)
        processes = self._processes.read()
        parts: Parts = {
            "utilization": Utilization(
                jpeg_percent=self.within("utilization.jpeg_percent", jpeg, 0, 100),
                ofa_percent=self.within("utilization.ofa_percent", ofa, 0, 100),
            ),
            "thermal": self._read_thermal(),
            "power": Power(limit_watts=self.within("power.limit_watts", limit, 0, 20_000_000, 1e-3)),
            "pcie": self._read_pcie(),
            "links": self._read_links(),
            "processes": processes,
            "instances": instances(self, self._gpm if gpm else None, now_ns),
        }
        if self._shared.unified and processes is not None:
            known = [row.memory_used_bytes for row in processes if row.memory_used_bytes is not None]
            parts["memory"] = Memory(shared_used_bytes=sum(known))
        return parts

    def _once(self, field: str, function: Any, *arguments: int) -> int | None:
        """A value that does not change while the driver is loaded."""
        if field not in self._fixed:
            value = self.u32(field, function, *arguments)
            if value is None and self.supported(field):
                return None
            self._fixed[field] = value
        return self._fixed[field]

    def _read_thermal(self) -> Thermal:
        call = self.api.nvmlDeviceGetTemperatureThreshold
        margin = self.struct("thermal.margin_celsius", self.api.nvmlDeviceGetMarginTemperature, self._margin)
        fan, rpm = self._read_fans()
        return Thermal(
            shutdown_celsius=self._threshold("thermal.shutdown_celsius", call, 0),
            slowdown_celsius=self._threshold("thermal.slowdown_celsius", call, 1),
            max_operating_celsius=self._threshold("thermal.max_operating_celsius", call, 3),
            fan_percent=fan,
            fan_rpm=rpm,
            margin_celsius=self.within("thermal.margin_celsius", None if margin is None else margin[1], -200, 200),
        )

    def _threshold(self, field: str, call: Any, which: int) -> float | None:
        return self.within(field, self._once(field, call, which), 1, 200)

    def _read_fans(self) -> tuple[float | None, float | None]:
        """The fastest fan. Percent is of the fan's maximum and may pass 100; passive cards have none."""
        fans = self._once("~fans", self.api.nvmlDeviceGetNumFans)
        if fans == 0:
            for field in ("thermal.fan_percent", "thermal.fan_rpm"):
                self.odd(field, "unsupported: this board has no fan of its own")
            return None, None
        percent, rpm = [], []
        for fan in range(min(fans or 1, 16)):
            speed = self.u32("thermal.fan_percent", self.api.nvmlDeviceGetFanSpeed_v2, fan)
            if speed is not None:
                percent.append(speed)
            layout = Packed(c.FAN_RPM, c.VERSION_FAN, fan)
            turns = self.struct("thermal.fan_rpm", self.api.nvmlDeviceGetFanSpeedRPM, layout)
            if turns is not None:
                rpm.append(turns[2])
        return (
            self.within("thermal.fan_percent", max(percent, default=None), 0, 300),
            self.within("thermal.fan_rpm", max(rpm, default=None), 0, 100_000),
        )

    def _read_pcie(self) -> Pcie:
        api = self.api
        generation = self.u32("pcie.generation", api.nvmlDeviceGetCurrPcieLinkGeneration)
        width = self.u32("pcie.width", api.nvmlDeviceGetCurrPcieLinkWidth)
        fastest = self._once("pcie.max_generation", api.nvmlDeviceGetMaxPcieLinkGeneration)
        widest = self._once("pcie.max_width", api.nvmlDeviceGetMaxPcieLinkWidth)
        return Pcie(
            generation=self.count("pcie.generation", generation, 10),
            width=self.count("pcie.width", width, 32),
            max_generation=self.count("pcie.max_generation", fastest, 10),
            max_width=self.count("pcie.max_width", widest, 32),
        )

    def _read_links(self) -> Links:
        """How many NVLinks are up. The library says where the numbering ends; no header's constant does."""
        up = total = 0
        for link in range(c.LINKS_AT_MOST):
            code = self._link_state(link)
            if code is None:
                break
            total += 1
            up += code
        return Links(nvlink_count=up, nvlink_total=total) if total else Links()

    def _link_state(self, link: int) -> int | None:
        field = "links.nvlink_count,links.nvlink_total"
        if link == 0:
            return self.u32(field, self.api.nvmlDeviceGetNvLinkState, link)
        code = self.api.nvmlDeviceGetNvLinkState(self.handle, link, self._at32)
        return self._u32.value if code == c.SUCCESS else None


class Slow(Reader):
    """Energy, error counters, remapped rows, and the PCIe call that takes 20 ms: what may block."""

    def __init__(self, api: Any, shared: Shared) -> None:
        super().__init__(api)
        self._shared = shared

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        del gpm
        energy = self.u64("power.energy_joules", self.api.nvmlDeviceGetTotalEnergyConsumption)
        joules = self.within("power.energy_joules", energy, 0, 1 << 62, 1e-3)
        parts: Parts = {
            "power": Power(energy_joules=joules, energy_monotonic_ns=None if joules is None else now_ns),
            "pcie": self._read_pcie(),
            "health": self._read_health(),
        }
        return parts

    def _read_pcie(self) -> Pcie:
        replays = self.u32("pcie.replay_count", self.api.nvmlDeviceGetPcieReplayCounter)
        sent = received = None
        if not self._shared.pcie_by_field:
            call = self.api.nvmlDeviceGetPcieThroughput
            sent = self.u32("pcie.tx_bytes_per_s", call, 0)
            received = self.u32("pcie.rx_bytes_per_s", call, 1)
        return Pcie(
            rx_bytes_per_s=self.within("pcie.rx_bytes_per_s", received, 0, 1e9, 1000),
            tx_bytes_per_s=self.within("pcie.tx_bytes_per_s", sent, 0, 1e9, 1000),
            replay_count=self.count("pcie.replay_count", replays),
        )

    def _read_health(self) -> Health:
        rows = self._remapped()
        return Health(
            ecc_corrected=self._ecc("health.ecc_corrected", 0, 0),
            ecc_uncorrected=self._ecc("health.ecc_uncorrected", 1, 0),
            ecc_corrected_lifetime=self._ecc("health.ecc_corrected_lifetime", 0, 1),
            ecc_uncorrected_lifetime=self._ecc("health.ecc_uncorrected_lifetime", 1, 1),
            retired_pages=self._retired(),
            remapped_rows=rows and rows[0] + rows[1],
            remapped_rows_uncorrected=rows and rows[1],
            remap_pending=rows and bool(rows[2]),
            remap_failed=rows and bool(rows[3]),
        )

    def _ecc(self, field: str, kind: int, counter: int) -> int | None:
        return self.count(field, self.u64(field, self.api.nvmlDeviceGetTotalEccErrors, kind, counter))

    def _remapped(self) -> tuple[int, int, int, int] | None:
        names = ("remapped_rows", "remapped_rows_uncorrected", "remap_pending", "remap_failed")
        return self.four(",".join(f"health.{name}" for name in names), self.api.nvmlDeviceGetRemappedRows)

    def _retired(self) -> int | None:
        """Pages retired for single-bit (cause 0) and double-bit (1) errors; asked with room for none."""
        total = 0
        for cause in (0, 1):
            pages = self.how_many("health.retired_pages", self.api.nvmlDeviceGetRetiredPages_v2, cause)
            if pages is None:
                return None
            total += pages
        return total
