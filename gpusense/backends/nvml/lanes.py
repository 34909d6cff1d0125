"""The slower lanes of an NVIDIA device: which NVML call gives which metric, at what cost.

Costs on an H100 at a monitor's pace (µs a call): most 2–10, link width 100, each PCIe byte counter 280–420, replays
440, MIG mode 540, temperature margin 1,200, the first NVLink state 1,500, NVLink byte counters 1,300–2,800, process
shares 2,600, energy 4,200, and the PCIe throughput call 20,700 a direction, which is why a running monitor makes each
as rarely as its use allows. A reader's ``rest_ns`` says how long its last answer serves a monitor; whoever asks for one
sample gets everything anew.
"""

from typing import Any

from ..._capi import nvml as c
from ..._records.metrics import Health, Links, Memory, Pcie, Power, Thermal, Utilization
from ..._records.records import DeviceInfo
from .gpm import Gpm
from .mig import instances
from .processes import Processes
from .reader import ByteCounter, FieldBatch, Packed, Reader

Parts = dict[str, Any]

#: Bytes a second and lane of PCIe, by generation, after encoding.
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_PCIE_PEAK_AT_MOST = 16 * 16e9  # where the driver does not say what link there is
#: Devices that share the host's memory, by name and by compute capability: no other device has one of these. What NVML
#: answers about memory does not tell: a device with memory of its own may refuse, too.
_UNIFIED_NAMES = ("GB10", "Thor", "Orin", "Xavier", "Tegra", "Jetson", "DGX Spark")
_UNIFIED_CAPABILITIES = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0), (12, 1)})
_MODULE_NAMES = ("GH200", "GB200", "GB300")
_BOARD_REST_NS = 5_000_000_000
_RARE_REST_NS = 9_500_000_000  # every tenth second, even if that pass comes a moment early
_NVLINK_PEAK = 1.8e12  # bytes a second one way, more than any device so far; only a 32-bit counter could wrap
_ALWAYS_NS = 1 << 62
_THROUGHPUT_WINDOW_S = 0.02


def is_unified(name: str, capability: tuple[int, int] | None) -> bool:
    """Whether a device has no memory of its own."""
    return capability in _UNIFIED_CAPABILITIES or any(word in name for word in _UNIFIED_NAMES)


class Shared:
    """What the lanes of one device know of each other."""

    def __init__(self, info: DeviceInfo, procfs: str) -> None:
        self.identify(info)
        self.procfs = procfs
        self.pcie_peak: float | None = None  # bytes a second one way
        self.pcie_by_field = True
        self.pcie_by_gpm = False  # the fast lane has the rates from GPM: nobody need read the counters
        self.wraps = True  # the PCIe byte counters have 32 bits, as far as is known

    def identify(self, info: DeviceInfo) -> None:
        self.unified = is_unified(info.name, info.compute_capability)
        self.scope = "module" if any(word in info.name for word in _MODULE_NAMES) else "gpu"


class Traffic(Reader):
    """PCIe rates from the byte counters, over the longest interval in which no counter can have wrapped twice."""

    def __init__(self, api: Any, shared: Shared) -> None:
        super().__init__(api)
        self._shared = shared
        self.rest_ns = _ALWAYS_NS
        self.forget()

    def forget(self) -> None:
        super().forget()
        fields = {c.FIELD_PCIE_TX: ("pcie.tx_bytes_per_s", 0), c.FIELD_PCIE_RX: ("pcie.rx_bytes_per_s", 0)}
        self._batch = FieldBatch(fields)
        self._counters = {field: ByteCounter() for field in fields}

    def feed(self, now_ns: int) -> None:
        """Reads the counters, no more."""
        if self._shared.pcie_by_gpm:
            return
        for field, (value, bits) in self._batch.read(self).items():
            self._counters[field].add(int(value), bits, now_ns, self._shared.pcie_peak or _PCIE_PEAK_AT_MOST)
            self._shared.wraps = bits < 64
        self._shared.pcie_by_field = self.supported("pcie.rx_bytes_per_s")

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        if self._shared.pcie_by_gpm:
            return {}
        self.feed(now_ns)
        sent = self.rate("pcie.tx_bytes_per_s", self._counters[c.FIELD_PCIE_TX])
        received = self.rate("pcie.rx_bytes_per_s", self._counters[c.FIELD_PCIE_RX])
        if received is None and sent is None:
            return {}
        known = c.FIELD_PCIE_TX if received is None else c.FIELD_PCIE_RX
        return {
            "pcie": Pcie(
                rx_bytes_per_s=received,
                tx_bytes_per_s=sent,
                rate_window_s=self._counters[known].window_s,
                rate_monotonic_ns=now_ns,
            )
        }


class Medium(Reader):
    """What changes within seconds and costs little: two engines, fans, the speed of the link."""

    def __init__(self, api: Any) -> None:
        super().__init__(api)
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._fans: int | None = None

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        jpeg = self.first("utilization.jpeg_percent", self.api.nvmlDeviceGetJpgUtilization)
        ofa = self.first("utilization.ofa_percent", self.api.nvmlDeviceGetOfaUtilization)
        fan, rpm = self._read_fans()
        generation = self.u32("pcie.generation", self.api.nvmlDeviceGetCurrPcieLinkGeneration)
        return {
            "utilization": Utilization(
                jpeg_percent=self.within("utilization.jpeg_percent", jpeg, 0, 100),
                ofa_percent=self.within("utilization.ofa_percent", ofa, 0, 100),
            ),
            "thermal": Thermal(fan_percent=fan, fan_rpm=rpm),
            "pcie": Pcie(generation=self.count("pcie.generation", generation, 10)),
        }

    def _read_fans(self) -> tuple[float | None, float | None]:
        """The fastest fan. Percent is of the fan's maximum and may pass 100; passive cards have none."""
        if self._fans is None:
            self._fans = self.u32("~fans", self.api.nvmlDeviceGetNumFans)
        fans = self._fans
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


class Board(Reader):
    """What changes when somebody changes it: limits and thresholds, the width of the link."""

    def __init__(self, api: Any) -> None:
        super().__init__(api)
        self.rest_ns = _BOARD_REST_NS
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._fixed: dict[str, int] = {}

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        limit = self.u32("power.limit_watts", self.api.nvmlDeviceGetEnforcedPowerLimit)
        return {
            "thermal": self._read_thermal(),
            "power": Power(limit_watts=self.within("power.limit_watts", limit, 0, 20_000_000, 1e-3)),
            "pcie": self._read_pcie(),
        }

    def _once(self, field: str, function: Any, *arguments: int) -> int | None:
        """A value that does not change while the driver is loaded."""
        if field not in self._fixed:
            value = self.u32(field, function, *arguments)
            if value is None:
                return None
            self._fixed[field] = value
        return self._fixed[field]

    def _read_thermal(self) -> Thermal:
        call = self.api.nvmlDeviceGetTemperatureThreshold
        return Thermal(
            shutdown_celsius=self._threshold("thermal.shutdown_celsius", call, 0),
            slowdown_celsius=self._threshold("thermal.slowdown_celsius", call, 1),
            max_operating_celsius=self._threshold("thermal.max_operating_celsius", call, 3),
        )

    def _threshold(self, field: str, call: Any, which: int) -> float | None:
        return self.within(field, self._once(field, call, which), 1, 200)

    def _read_pcie(self) -> Pcie:
        api = self.api
        width = self.u32("pcie.width", api.nvmlDeviceGetCurrPcieLinkWidth)
        fastest = self._once("pcie.max_generation", api.nvmlDeviceGetMaxPcieLinkGeneration)
        widest = self._once("pcie.max_width", api.nvmlDeviceGetMaxPcieLinkWidth)
        return Pcie(
            width=self.count("pcie.width", width, 32),
            max_generation=self.count("pcie.max_generation", fastest, 10),
            max_width=self.count("pcie.max_width", widest, 32),
        )


class Rare(Reader):
    """What changes slowly and costs a millisecond a call: the temperature margin and the state of the NVLinks."""

    def __init__(self, api: Any) -> None:
        super().__init__(api)
        self.rest_ns = _RARE_REST_NS
        self._margin = Packed(c.MARGIN, c.VERSION_MARGIN)

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        margin = self.struct("thermal.margin_celsius", self.api.nvmlDeviceGetMarginTemperature, self._margin)
        celsius = self.within("thermal.margin_celsius", None if margin is None else margin[1], -200, 200)
        return {"thermal": Thermal(margin_celsius=celsius), "links": self._read_links()}

    def _read_links(self) -> Links:
        """How many NVLinks are up. The library says where the numbering ends; no header's constant does."""
        up = total = 0
        for link in range(c.LINKS_AT_MOST):
            code = self._link_state(link)
            if code is None:
                break
            total += 1
            up += code == 1
        return Links(nvlink_count=up, nvlink_total=total) if total else Links()

    def _link_state(self, link: int) -> int | None:
        field = "links.nvlink_count,links.nvlink_total"
        if link == 0:
            return self.u32(field, self.api.nvmlDeviceGetNvLinkState, link)
        code = self.api.nvmlDeviceGetNvLinkState(self.handle, link, self._at32)
        return self._u32.value if code == c.SUCCESS else None


class Mig(Reader):
    """The MIG instances: at every pass where there are any, else whether there are, rarely."""

    def __init__(self, api: Any) -> None:
        super().__init__(api)
        self._gpm = Gpm(self)
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._gpm = self._gpm.renewed()

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        found = instances(self, self._gpm if gpm else None, now_ns)
        self.rest_ns = 0 if found else _RARE_REST_NS
        return {"instances": found}


class Users(Reader):
    """The processes on the device: the dearest list there is, read on request or when the monitor says so."""

    def __init__(self, api: Any, shared: Shared) -> None:
        super().__init__(api)
        self._shared = shared
        self.rest_ns = _ALWAYS_NS
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._processes = Processes(self, self._shared.procfs)

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        rows = self._processes.read(now_ns, _RARE_REST_NS if self.lean else 0)
        parts: Parts = {"processes": rows}
        if self._shared.unified and rows is not None:
            known = [row.memory_used_bytes for row in rows if row.memory_used_bytes is not None]
            parts["memory"] = Memory(shared_used_bytes=sum(known))
        return parts


class Slow(Reader):
    """Energy, NVLink rates, error counters, remapped rows, and the PCIe call that takes 20 ms: what may block."""

    def __init__(self, api: Any, shared: Shared) -> None:
        super().__init__(api)
        self._shared = shared
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._batch = FieldBatch(
            {
                c.FIELD_NVLINK_TX_KIB: ("links.tx_bytes_per_s", c.ALL_LINKS),
                c.FIELD_NVLINK_RX_KIB: ("links.rx_bytes_per_s", c.ALL_LINKS),
            }
        )
        self._sent, self._received = ByteCounter(1024), ByteCounter(1024)

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        energy = self.u64("power.energy_joules", self.api.nvmlDeviceGetTotalEnergyConsumption)
        joules = self.within("power.energy_joules", energy, 0, 1 << 62, 1e-3)
        parts: Parts = {
            "power": Power(energy_joules=joules, energy_monotonic_ns=None if joules is None else now_ns),
            "links": self._read_links(now_ns),
            "pcie": self._read_pcie(now_ns),
            "health": self._read_health(),
        }
        return parts

    def _read_links(self, now_ns: int) -> Links:
        """Rates over the time since the last pass."""
        fields = self._batch.read(self)
        for field, counter in ((c.FIELD_NVLINK_TX_KIB, self._sent), (c.FIELD_NVLINK_RX_KIB, self._received)):
            if field in fields:
                value, bits = fields[field]
                counter.add(int(value), bits, now_ns, _NVLINK_PEAK)
        return Links(
            rx_bytes_per_s=self.rate("links.rx_bytes_per_s", self._received),
            tx_bytes_per_s=self.rate("links.tx_bytes_per_s", self._sent),
        )

    def _read_pcie(self, now_ns: int) -> Pcie:
        replays = self.u32("pcie.replay_count", self.api.nvmlDeviceGetPcieReplayCounter)
        sent = received = None
        if not self._shared.pcie_by_field:
            call = self.api.nvmlDeviceGetPcieThroughput
            sent = self.u32("pcie.tx_bytes_per_s", call, 0)
            received = self.u32("pcie.rx_bytes_per_s", call, 1)
        return Pcie(
            rx_bytes_per_s=self.within("pcie.rx_bytes_per_s", received, 0, 1e9, 1000),
            tx_bytes_per_s=self.within("pcie.tx_bytes_per_s", sent, 0, 1e9, 1000),
            replay_count=self.count("pcie.replay_count", replays, c.ALL_BITS - 1),
            rate_window_s=None if received is None else _THROUGHPUT_WINDOW_S,
            rate_monotonic_ns=None if received is None else now_ns,
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
        field = ",".join(f"health.{name}" for name in names)
        rows = self.four(field, self.api.nvmlDeviceGetRemappedRows)
        return None if rows is None or self.within(field, max(rows), 0, c.ALL_BITS - 1) is None else rows

    def _retired(self) -> int | None:
        """Pages retired for single-bit (cause 0) and double-bit (1) errors; asked with room for none."""
        total = 0
        for cause in (0, 1):
            pages = self.how_many("health.retired_pages", self.api.nvmlDeviceGetRetiredPages_v2, cause)
            if pages is None:
                return None
            total += pages
        return total
