"""Calls into librocm_smi for one device and sample, and the metrics groups made of them."""

from ctypes import byref, c_char, c_float, c_int, c_int64, c_uint16, c_uint32, c_uint64
from typing import Any

from ..._capi import rocm_smi as capi
from ..._records.metrics import Memory, Thermal, Utilization
from .sysfs_groups import ENERGY_UNIT_JOULES

TEMPERATURES = (
    ("gpu_celsius", capi.SENSOR_EDGE, capi.TEMPERATURE_CURRENT),
    ("hotspot_celsius", capi.SENSOR_JUNCTION, capi.TEMPERATURE_CURRENT),
    ("memory_celsius", capi.SENSOR_MEMORY, capi.TEMPERATURE_CURRENT),
)
THRESHOLDS = (
    ("slowdown_celsius", capi.SENSOR_EDGE, capi.TEMPERATURE_CRITICAL),
    ("shutdown_celsius", capi.SENSOR_EDGE, capi.TEMPERATURE_EMERGENCY),
)


#: (library index, field) → when it is asked again, after 1, 2, 4 … 256 seconds, and how often it was refused.
Refusals = dict[tuple[int, str], tuple[int, int]]
_REFUSED_NS, _LONGEST_DOUBLINGS = 1_000_000_000, 8


class Calls:
    """Calls for one device and sample; a failing one leaves its code as the reason of the field it was for."""

    def __init__(self, api: Any, place: int, refusals: Refusals, now_ns: int = 0) -> None:
        self._api = api
        self._place = place
        self._refusals = refusals
        self._now_ns = now_ns
        self.reasons: dict[str, str] = {}

    def ask(self, field: str, name: str, *arguments: Any) -> bool:
        """Whether the call answered; what it wrote lies where the arguments point."""
        key = (self._place, field)
        due_ns, refused = self._refusals.get(key, (0, 0))
        if field and self._now_ns < due_ns:
            self.reasons[field] = f"unsupported: {name} said so before"
            return False
        function = getattr(self._api, name)
        if not function:
            self.reasons[field] = f"unsupported: the library has no {name}"
            return False
        code: int = function(self._place, *arguments)
        if code == 0:
            self._refusals.pop(key, None)
            return True
        if code in capi.REFUSED:
            self._refusals[key] = self._now_ns + (_REFUSED_NS << min(refused, _LONGEST_DOUBLINGS)), refused + 1
        kind = "unsupported" if code in capi.REFUSED else "denied" if code == capi.DENIED else "stale"
        self.reasons[field] = f"{kind}: {name}: {capi.CODES.get(code, 'unknown code')} ({code})"
        return False

    def value(
        self, field: str, name: str, arguments: tuple[int, ...], kind: Any, most: float = float("inf")
    ) -> int | None:
        """The one output of a call; None with the reason where it fails or says what cannot be."""
        output = kind()
        if not self.ask(field, name, *arguments, byref(output)):
            return None
        value: int = output.value
        if value > most or value == (1 << 8 * _size(kind)) - 1:
            self.reasons[field] = f"out of range: {name} gave {value}"
            return None
        return value

    def name(self) -> str | None:
        buffer = (c_char * 256)()
        if not self.ask("", "rsmi_dev_name_get", buffer, len(buffer)):
            return None
        text: str = buffer.value.decode("utf-8", "replace").strip()
        return None if text.startswith("0x") else text or None  # a bare id is no name


def _size(kind: Any) -> int:
    return {c_uint16: 2, c_uint32: 4}.get(kind, 8)


def utilization(calls: Calls) -> Utilization:
    memory = "rsmi_dev_memory_busy_percent_get"
    return Utilization(
        calls.value("utilization.gpu_percent", "rsmi_dev_busy_percent_get", (), c_uint32, 100),
        calls.value("utilization.memory_controller_percent", memory, (), c_uint32, 100),
    )


def memory(calls: Calls, fast: bool, medium: bool) -> Memory:
    def size(field: str, what: str, kind: int) -> int | None:
        return calls.value(f"memory.{field}", f"rsmi_dev_memory_{what}_get", (kind,), c_uint64)

    total = size("total_bytes", "total", capi.MEMORY_VRAM) if fast or medium else None
    used = size("used_bytes", "usage", capi.MEMORY_VRAM) if fast else None
    return Memory(
        total,
        used,
        None if total is None or used is None else max(total - used, 0),
        shared_used_bytes=size("shared_used_bytes", "usage", capi.MEMORY_GTT) if fast else None,
        shared_total_bytes=size("shared_total_bytes", "total", capi.MEMORY_GTT) if medium else None,
    )


def thermal(calls: Calls, fast: bool, medium: bool) -> Thermal:
    values: dict[str, float | None] = {}
    for field, sensor, metric in (*(TEMPERATURES if fast else ()), *(THRESHOLDS if medium else ())):
        milli = calls.value(f"thermal.{field}", "rsmi_dev_temp_metric_get", (sensor, metric), c_int64, 150_000)
        values[field] = milli / 1e3 if milli else None
        if milli == 0:
            calls.reasons[f"thermal.{field}"] = "out of range: rsmi_dev_temp_metric_get gave 0"
    if medium:
        rpm = calls.value("thermal.fan_rpm", "rsmi_dev_fan_rpms_get", (0,), c_int64)
        speed = calls.value("thermal.fan_percent", "rsmi_dev_fan_speed_get", (0,), c_int64)
        most = calls.value("thermal.fan_percent", "rsmi_dev_fan_speed_max_get", (0,), c_uint64) if speed else None
        values["fan_rpm"] = rpm
        values["fan_percent"] = 0.0 if speed == 0 else speed / most * 100 if speed and most else None
    return Thermal(**values)


def watts(calls: Calls, version_6: bool) -> tuple[float | None, float | None]:
    """(drawn now, average), as far as the card has them."""
    average = calls.value("power.average_watts", "rsmi_dev_power_ave_get", (0,), c_uint64)
    draw = None
    if version_6:
        power, kind = c_uint64(), c_int()
        if calls.ask("power.draw_watts", "rsmi_dev_power_get", byref(power), byref(kind)):
            if kind.value == capi.POWER_CURRENT:
                draw = power.value / 1e6
            elif kind.value == capi.POWER_AVERAGE and average is None:
                average = power.value
    else:
        calls.reasons["power.draw_watts"] = "unsupported: this release knows only the average"
    return draw, None if average is None else average / 1e6


def joules(calls: Calls) -> float | None:
    count, resolution, stamp = c_uint64(), c_float(), c_uint64()
    name = "rsmi_dev_energy_count_get"
    if not calls.ask("power.energy_joules", name, byref(count), byref(resolution), byref(stamp)):
        return None
    return count.value * ENERGY_UNIT_JOULES
