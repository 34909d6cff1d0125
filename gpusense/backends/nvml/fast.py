"""The fast lane of an NVIDIA device: one list of prepared calls that write into one block of memory, read as a whole.

After a pause of 100 ms nothing of ours is in the processor's caches, and a tick costs what it touches: calls are bound
and laid out once, and groups whose bytes did not change are handed out again.
"""

import ctypes
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from ..._capi import nvml as c
from ..._records.metrics import Clocks, Links, Memory, Pcie, Power, Thermal, Utilization
from ..sysfs import meminfo
from .gpm import Gpm
from .lanes import Parts, Shared
from .reader import FieldBatch, Fields, Reader

#: What the calls write: utilization, encoder, decoder and their windows, four clocks, performance state, temperature,
#: event reasons, temperature V, memory V2, memory V1. Spare bytes follow a struct, should a newer driver write more.
_BLOCK = struct.Struct("<II II II IIII I I Q II i 68x I4x QQQQ 64x QQQ 64x".replace(" ", ""))
_UTILIZATION, _ENCODER, _DECODER, _CLOCKS, _STATE, _DEGREES, _REASONS = 0, 8, 16, 24, 40, 44, 48
_DEGREES_V, _MEMORY_V2, _MEMORY_V1 = 56, 136, 240
_MEMORY_LIMIT = 1 << 50
_START = (*(0,) * 13, c.VERSION_TEMPERATURE, 0, 0, c.VERSION_MEMORY_V2, *(0,) * 7)

#: (field, call, its name, what to ask instead where it is refused).
Row = tuple[str, Callable[[], int], str, Any]


class Fast(Reader):
    """Utilization, memory, temperature, power, clocks: what changes within 100 ms and costs little."""

    def __init__(self, api: Any, shared: Shared) -> None:
        super().__init__(api)
        self._shared = shared
        self._block = ctypes.create_string_buffer(_BLOCK.size)
        self._start = _BLOCK.pack(*_START)
        self._gpm = Gpm(self)
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._batch = FieldBatch(
            {
                c.FIELD_POWER_INSTANT: ("~power_instant", 0),
                c.FIELD_POWER_AVERAGE: ("power.average_watts", 0),
                c.FIELD_MEMORY_TEMPERATURE: ("thermal.memory_celsius", 0),
            }
        )
        self._throttle: dict[int, tuple[str, ...]] = {}
        self._gpm = self._gpm.renewed()
        self._plan: list[Row] = []
        self._planned = -1  # the version of what is silent that the plan was made for
        self._seen: tuple[Any, ...] = ()
        self._utilization, self._clocks = Utilization(), Clocks()
        self._memory = Memory()
        self._degrees: int | None = None

    def read(self, now_ns: int, gpm: bool = False) -> Parts:
        fields = self._batch.read(self)
        block = self._ask()
        if block != self._seen or self._reasons is None:
            self._convert(block)
        parts: Parts = {
            "utilization": self._utilization,
            "memory": self._unified() if self._shared.unified else self._memory,
            "thermal": self._read_thermal(fields),
            "power": self._read_power(fields),
            "clocks": self._clocks,
            "source_time_ns": self._batch.time_us * 1000 or None,
        }
        if gpm:
            self._add_gpm(parts, now_ns)
        else:
            self._shared.pcie_by_gpm = False
        return parts

    # -- asking --------------------------------------------------------------------------------------------------

    def _ask(self) -> tuple[Any, ...]:
        """Makes every call that is not silent; what they wrote, all of it."""
        if self._planned != self.version:
            self._prepare()
        block, silent = self._block, self._silent
        ctypes.memmove(block, self._start, _BLOCK.size)
        for field, call, name, other in self._plan:
            code = call()
            while code:
                self.fail(field, code, name)
                if other is None or other[0] in silent:
                    break
                field, call, name, other = other
                code = call()
            else:
                self.good += 1
        return _BLOCK.unpack_from(block)

    def _prepare(self) -> None:
        self._planned = self.version
        self._plan = []
        for row in self._rows():
            way: Row | None = row
            while way is not None and way[0] in self._silent:
                way = way[3]
            if way is not None:
                self._plan.append(way)

    def _rows(self) -> list[Row]:
        word, wide, place = self._word, self._wide, ctypes.addressof(self._block)
        memory = self._row("memory", "nvmlDeviceGetMemoryInfo", place + _MEMORY_V1)
        degrees = self._row("thermal.gpu_celsius", "nvmlDeviceGetTemperature", 0, word(_DEGREES))
        throttled = self._row("clocks.throttle_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", wide(_REASONS))
        rows = [
            self._row(
                "utilization.gpu_percent,utilization.memory_controller_percent",
                "nvmlDeviceGetUtilizationRates",
                place + _UTILIZATION,
            ),
            self._row("~memory_v2", "nvmlDeviceGetMemoryInfo_v2", place + _MEMORY_V2, other=memory),
            self._row(
                "utilization.encoder_percent", "nvmlDeviceGetEncoderUtilization", word(_ENCODER), word(_ENCODER + 4)
            ),
            self._row(
                "utilization.decoder_percent", "nvmlDeviceGetDecoderUtilization", word(_DECODER), word(_DECODER + 4)
            ),
            self._row("~temperature_v", "nvmlDeviceGetTemperatureV", place + _DEGREES_V, other=degrees),
            self._row("clocks.performance_state", "nvmlDeviceGetPerformanceState", word(_STATE)),
            self._row("~event_reasons", "nvmlDeviceGetCurrentClocksEventReasons", wide(_REASONS), other=throttled),
        ]
        for which, name in enumerate(("graphics", "sm", "memory", "video")):
            rows.append(self._row(f"clocks.{name}_mhz", "nvmlDeviceGetClockInfo", which, word(_CLOCKS + 4 * which)))
        return rows[:1] + rows[2:] if self._shared.unified else rows

    def _row(self, field: str, name: str, *arguments: Any, other: Row | None = None) -> Row:
        function = getattr(self.api, name)
        return field, partial(function, self.handle, *arguments), name, other

    def _word(self, place: int) -> Any:
        return ctypes.byref(ctypes.c_uint.from_buffer(self._block, place))

    def _wide(self, place: int) -> Any:
        return ctypes.byref(ctypes.c_ulonglong.from_buffer(self._block, place))

    # -- reading what was written --------------------------------------------------------------------------------

    def _convert(self, block: tuple[Any, ...]) -> None:
        self._seen = block
        gpu, controller, encoder, _, decoder, _, graphics, sm, memory, video, state, old, mask, _, _, new = block[:16]
        percent, mhz = self._percent, self._mhz
        both = self._known("utilization.gpu_percent,utilization.memory_controller_percent")
        self._utilization = Utilization(
            gpu_percent=percent("utilization.gpu_percent", gpu) if both else None,
            memory_controller_percent=percent("utilization.memory_controller_percent", controller) if both else None,
            encoder_percent=percent("utilization.encoder_percent", encoder),
            decoder_percent=percent("utilization.decoder_percent", decoder),
        )
        if not self._shared.unified:
            self._memory = self._read_memory(block)
        self._degrees = self._either("~temperature_v", new, "thermal.gpu_celsius", old)
        self._clocks = Clocks(
            graphics_mhz=mhz("clocks.graphics_mhz", graphics),
            sm_mhz=mhz("clocks.sm_mhz", sm),
            memory_mhz=mhz("clocks.memory_mhz", memory),
            video_mhz=mhz("clocks.video_mhz", video),
            throttle_reasons=self._words(self._either("~event_reasons", mask, "clocks.throttle_reasons", mask)),
            performance_state=self._read_state(state),
        )

    def _known(self, field: str) -> bool:
        return field not in self._silent

    def _either(self, field: str, value: int, other: str, instead: int) -> int | None:
        return value if field not in self._silent else instead if other not in self._silent else None

    def _percent(self, field: str, value: int) -> float | None:
        return self.within(field, value, 0, 100, 1.0) if field not in self._silent else None

    def _mhz(self, field: str, value: int) -> float | None:
        if field in self._silent:
            return None
        if value == 0:
            self.odd(field, "sleeping: the clock stands still")
            return None
        return self.within(field, value, 1, 50_000, 1.0)

    def _read_state(self, state: int) -> int | None:
        if not self._known("clocks.performance_state"):
            return None
        if state == c.PERFORMANCE_STATE_UNKNOWN:
            self.odd("clocks.performance_state", "unsupported: the driver does not know the state")
            return None
        return self.count("clocks.performance_state", state, 15)

    def _words(self, mask: int | None) -> tuple[str, ...] | None:
        if mask is None:
            return None
        words = self._throttle.get(mask)
        if words is None:
            if len(self._throttle) > 256:
                self._throttle.clear()
            words = self._throttle[mask] = c.throttle_words(mask)
        return words

    def _read_memory(self, block: tuple[Any, ...]) -> Memory:
        if self._known("~memory_v2"):
            total, reserved, free, used = block[17:21]
        elif self._known("memory"):
            total, free, used = block[21:]
            reserved = None
            self.odd("memory.reserved_bytes", "unsupported: this driver counts the reserved memory as used")
        else:
            return Memory()
        ceiling = min(total, _MEMORY_LIMIT) if total else _MEMORY_LIMIT
        return Memory(
            total_bytes=self.count("memory.total_bytes", total, _MEMORY_LIMIT),
            used_bytes=self.count("memory.used_bytes", used, ceiling),
            free_bytes=self.count("memory.free_bytes", free, ceiling),
            reserved_bytes=self.count("memory.reserved_bytes", reserved, ceiling),
            unified=False,
        )

    def _unified(self) -> Memory:
        """The memory that device and host share: the driver refuses, or has a number that is not the whole."""
        system = meminfo(self._shared.procfs)
        if system is None:
            return Memory(unified=True)
        total, available = system
        return Memory(total_bytes=total, used_bytes=total - available, free_bytes=available, unified=True)

    def _read_thermal(self, fields: Fields) -> Thermal:
        memory = fields.get(c.FIELD_MEMORY_TEMPERATURE, (None, 0))[0]
        if memory == 0:  # boards without the sensor answer SUCCESS and 0
            self.odd("thermal.memory_celsius", "unsupported: this board has no memory sensor")
            memory = None
        return Thermal(
            gpu_celsius=self.celsius("thermal.gpu_celsius", self._degrees),
            memory_celsius=self.celsius("thermal.memory_celsius", memory),
        )

    def _read_power(self, fields: Fields) -> Power:
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

    def _add_gpm(self, parts: Parts, now_ns: int) -> None:
        activity, links, pcie = self._gpm.read(now_ns)
        self._shared.pcie_by_gpm = bool(pcie)
        parts["utilization"] = parts["utilization"]._replace(**activity)
        if links:
            parts["links"] = Links(
                rx_bytes_per_s=links.get("rx_bytes_per_s"), tx_bytes_per_s=links.get("tx_bytes_per_s")
            )
        if pcie:
            parts["pcie"] = Pcie(**pcie)
