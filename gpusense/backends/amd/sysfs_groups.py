"""The metrics groups of one awake AMD card, each from the files below its device folder."""

import os
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._records.metrics import Clocks, Health, Memory, Pcie, Power, Thermal, Utilization
from ..._records.records import DeviceInfo
from .. import sysfs
from ..sysfs import Reader
from .gpu_metrics_table import GpuMetricsTable, decode

SENSORS = {"edge": "gpu_celsius", "junction": "hotspot_celsius", "mem": "memory_celsius"}
_HOTTEST, _STRONGEST = 150.0, 10_000.0  # °C and W beyond which a value is a driver's mistake


#: Instinct MI200 and later, by the start of their PCI device id: their energy counters count 2⁻¹⁶ J. On Radeon cards
#: the same counter has another unit (an RX 6900 XT at 36 W counts 33 a millisecond).
_INSTINCT = ("7408", "740c", "740f", "7410", "74a", "74b", "75a")
ENERGY_UNIT_JOULES = 2.0**-16


class Card(NamedTuple):
    """Where the files of one card lie and what never changes while its driver is bound."""

    info: DeviceInfo
    folder: str
    hwmon: str | None  # "hwmon/hwmon3"
    sensors: tuple[tuple[str, str], ...]  # (field, "temp1") …
    integrated: bool | None
    product: str  # PCI device id, "73bf"


def is_instinct(product: str) -> bool:
    """Whether the card's energy counter is known to count :data:`ENERGY_UNIT_JOULES`."""
    return product.startswith(_INSTINCT)


def read(card: Card, reader: Reader, lanes: Sequence[str]) -> tuple[dict[str, Any], int | None]:
    """The groups that ``lanes`` ask for, by name, and the driver's own time stamp. Only "slow" reads ``pcie_bw``."""
    fast, medium, slow = ("fast" in lanes, "medium" in lanes, "slow" in lanes)
    table = _table(reader) if fast else None
    groups: dict[str, Any] = {"memory": _memory(reader, fast, medium)._replace(unified=card.integrated)}
    if fast:
        groups["utilization"] = _utilization(reader, table)
        groups["clocks"] = _clocks(reader, card, table)
    groups["thermal"] = _thermal(reader, card, table, fast, medium)
    groups["power"] = _power(reader, card, table, fast, medium)
    if medium or slow:
        groups["pcie"] = _pcie(reader, medium, slow)
    if slow:
        groups["health"] = _health(reader)
    return groups, table.clock_ns if table else None


def _table(reader: Reader) -> GpuMetricsTable | None:
    """The firmware's table, read once a sample; its absence is the reason of the fields only it has."""
    path = os.path.join(reader.folder, "gpu_metrics")
    problem: str
    try:
        data = sysfs.read(path, 16384)
    except OSError as error:
        problem = sysfs.why(error, path)
    else:
        found = decode(data) if data else "gpu_metrics is empty"
        if not isinstance(found, str):
            lacks = "has no energy counter" if found.energy_counter is None else "counts energy in no known unit"
            reader.note("power.energy_joules", f"unsupported: gpu_metrics v{found.revision} {lacks}")
            if found.throttle_reasons is None:
                reader.note("clocks.throttle_reasons", f"unsupported: not in gpu_metrics v{found.revision}")
            return found
        problem = f"unsupported: {found}"
    for field in ("power.energy_joules", "clocks.throttle_reasons", "utilization.media_percent"):
        reader.note(field, problem)
    return None


def _utilization(reader: Reader, table: GpuMetricsTable | None) -> Utilization:
    busy = reader.number("utilization.gpu_percent", "gpu_busy_percent", high=100.0)
    memory = reader.number("utilization.memory_controller_percent", "mem_busy_percent", high=100.0)
    media = None
    if table is not None:
        if busy is None:
            busy = reader.within("utilization.gpu_percent", table.gfx_percent, 0, 100, "gpu_metrics")
        if memory is None:
            memory = reader.within(
                "utilization.memory_controller_percent", table.memory_controller_percent, 0, 100, "gpu_metrics"
            )
        media = reader.within("utilization.media_percent", table.media_percent, 0, 100, "gpu_metrics")
    if media is None:
        media = reader.number("utilization.media_percent", "vcn_busy_percent", high=100.0)
    both = "unsupported: the card counts encoding and decoding together, in media_percent"
    reader.note("utilization.encoder_percent", both)
    reader.note("utilization.decoder_percent", both)
    return Utilization(busy, memory, media_percent=media)


def _memory(reader: Reader, fast: bool, medium: bool) -> Memory:
    total = reader.whole("memory.total_bytes", "mem_info_vram_total") if fast or medium else None
    used = reader.whole("memory.used_bytes", "mem_info_vram_used") if fast else None
    free = None if total is None or used is None else max(total - used, 0)
    if free is None:
        reader.note("memory.free_bytes", "unsupported: needs the total and the used bytes")
    return Memory(
        total,
        used,
        free,
        shared_used_bytes=reader.whole("memory.shared_used_bytes", "mem_info_gtt_used") if fast else None,
        shared_total_bytes=reader.whole("memory.shared_total_bytes", "mem_info_gtt_total") if medium else None,
    )


def _thermal(reader: Reader, card: Card, table: GpuMetricsTable | None, fast: bool, medium: bool) -> Thermal:
    values: dict[str, float | None] = {}
    hwmon = card.hwmon or "hwmon"
    for field, sensor in card.sensors if fast else ():
        # Cards whose memory has no sensor answer 0 for it.
        low = 1.0 if field == "memory_celsius" else -50.0
        values[field] = reader.number(f"thermal.{field}", f"{hwmon}/{sensor}_input", 1e3, low, _HOTTEST)
    if fast and table is not None:
        spare = (table.edge_celsius, table.hotspot_celsius, table.memory_celsius)
        for field, value in zip(SENSORS.values(), spare, strict=True):
            if field not in values:
                values[field] = reader.within(f"thermal.{field}", value, 1.0, _HOTTEST, "gpu_metrics")
    edge = dict(card.sensors).get("gpu_celsius")
    if medium:
        values["fan_rpm"] = reader.number("thermal.fan_rpm", f"{hwmon}/fan1_input")
        values["fan_percent"] = _fan_percent(reader, hwmon)
        if edge:
            values["slowdown_celsius"] = reader.number(
                "thermal.slowdown_celsius", f"{hwmon}/{edge}_crit", 1e3, 1.0, _HOTTEST
            )
            values["shutdown_celsius"] = reader.number(
                "thermal.shutdown_celsius", f"{hwmon}/{edge}_emergency", 1e3, 1.0, _HOTTEST
            )
    for field in SENSORS.values():
        if values.get(field) is None:
            reader.note(f"thermal.{field}", "unsupported: the card has no such sensor")
    return Thermal(**values)


def _fan_percent(reader: Reader, hwmon: str) -> float | None:
    power = reader.number("thermal.fan_percent", f"{hwmon}/pwm1")
    limit = reader.number("thermal.fan_percent", f"{hwmon}/pwm1_max") if power is not None else None
    return None if power is None or not limit else power / limit * 100.0


def _power(reader: Reader, card: Card, table: GpuMetricsTable | None, fast: bool, medium: bool) -> Power:
    hwmon = card.hwmon or "hwmon"
    draw = average = energy = None
    if fast:
        draw = reader.number("power.draw_watts", f"{hwmon}/power1_input", 1e6, 0.0, _STRONGEST)
        average = reader.number("power.average_watts", f"{hwmon}/power1_average", 1e6, 0.0, _STRONGEST)
        if table is not None:
            energy = table.energy_joules
            if energy is None and table.energy_counter is not None and is_instinct(card.product):
                energy = table.energy_counter * ENERGY_UNIT_JOULES
            draw = table.current_watts if draw is None else draw
            average = table.average_watts if average is None else average
        # Cards before Instinct MI300 and the APUs have the average alone.
        draw = average if draw is None else draw
    limit = reader.number("power.limit_watts", f"{hwmon}/power1_cap", 1e6, 0.0, _STRONGEST) if medium else None
    read_ns = None if energy is None else time.monotonic_ns()
    return Power(draw, average, limit, energy, energy_monotonic_ns=read_ns)


def _clocks(reader: Reader, card: Card, table: GpuMetricsTable | None) -> Clocks:
    hwmon = card.hwmon or "hwmon"
    graphics = reader.clock("clocks.graphics_mhz", f"{hwmon}/freq1_input", 1e6)
    memory = reader.clock("clocks.memory_mhz", f"{hwmon}/freq2_input", 1e6)
    steps = levels(reader.text("clocks.performance_state", "pp_dpm_sclk"))
    places = [(place, level[1]) for place, level in enumerate(steps)]
    active = _active(reader, "clocks.performance_state", "pp_dpm_sclk", places)
    if active is not None and _is_unknown(reader, "clocks.graphics_mhz", graphics):
        graphics = _running(reader, "clocks.graphics_mhz", "pp_dpm_sclk", steps[active][0])
    if _is_unknown(reader, "clocks.memory_mhz", memory):
        memory = _level(reader, "clocks.memory_mhz", "pp_dpm_mclk")
    video = _level(reader, "clocks.video_mhz", "pp_dpm_vclk")
    if table is not None:
        graphics = table.graphics_mhz if _is_unknown(reader, "clocks.graphics_mhz", graphics) else graphics
        memory = table.memory_mhz if _is_unknown(reader, "clocks.memory_mhz", memory) else memory
        video = table.video_mhz if _is_unknown(reader, "clocks.video_mhz", video) else video
    return Clocks(
        graphics,
        memory_mhz=memory,
        video_mhz=video,
        throttle_reasons=table.throttle_reasons if table else None,
        performance_state=None if active is None else len(steps) - 1 - active,
    )


def _is_unknown(reader: Reader, field: str, mhz: float | None) -> bool:
    """False also for a clock that is known to stand still."""
    return mhz is None and not reader.reasons.get(field, "").startswith("sleeping")


def _running(reader: Reader, field: str, name: str, mhz: float) -> float | None:
    if not mhz:
        reader.reasons[field] = f"sleeping: the active level of {name} is 0, the clock stands still"
    return mhz or None


def _level(reader: Reader, field: str, name: str) -> float | None:
    steps = levels(reader.text(field, name))
    mhz: float | None = _active(reader, field, name, steps)
    return None if mhz is None else _running(reader, field, name, mhz)


def _active(reader: Reader, field: str, name: str, marked: Sequence[tuple[Any, bool]]) -> Any:
    """What the line marked as the active one says. Some firmware marks several: where they differ, nobody knows."""
    found = {value for value, is_active in marked if is_active}
    if len(found) == 1:
        return found.pop()
    if found:
        reader.reasons[field] = f"out of range: {name} marks {len(found)} levels as active"
    elif marked:
        reader.reasons[field] = f"unsupported: {name} marks no active level"
    return None


def levels(text: str | None) -> list[tuple[float, bool]]:
    """(MHz, active) of a ``pp_dpm_*`` file, slowest first. ``S:`` lines name the clock of deep sleep, not a level."""
    found = []
    for line in (text or "").splitlines():
        number, _, rest = line.partition(":")
        clock = rest.strip().rstrip("*").strip().lower()
        if number.strip().isdigit() and clock.endswith("mhz") and clock[:-3].isdigit():
            found.append((float(clock[:-3]), rest.rstrip().endswith("*")))
    return found


def highest(clocks: list[tuple[float, bool]]) -> float | None:
    return max(mhz for mhz, _ in clocks) if clocks else None


def _pcie(reader: Reader, medium: bool, slow: bool) -> Pcie:
    values: dict[str, Any] = {}
    if medium:
        links = _links(reader.text("pcie.generation", "pp_dpm_pcie"))
        active = _active(reader, "pcie.generation", "pp_dpm_pcie", [(link[:2], link[2]) for link in links])
        if active is not None:
            values["generation"], values["width"] = active
        elif any(link[2] for link in links):
            reader.note("pcie.width", reader.reasons["pcie.generation"])
        else:
            values["generation"], values["width"] = _port(reader, "", "current")
        values["max_generation"], values["max_width"] = links[-1][:2] if links else _port(reader, "max_", "max")
    if slow:
        values["rx_bytes_per_s"], values["tx_bytes_per_s"] = _throughput(reader)
        values["replay_count"] = reader.whole("pcie.replay_count", "pcie_replay_count")
    return Pcie(**values)


def _links(text: str | None) -> list[tuple[int | None, int, bool]]:
    """(generation, lanes, active) of ``pp_dpm_pcie``: the link of the slot, as the firmware trained it.

    ``current_link_speed`` is that of the GPU's own port, which on cards since Navi is a switch inside the card.
    """
    found = []
    for line in (text or "").splitlines():
        match = re.match(r"\d+:\s*([\d.]+)GT/s,\s*x(\d+)", line.strip())
        if match:
            found.append((sysfs.pcie_generation(match[1]), int(match[2]), line.rstrip().endswith("*")))
    return found


def _port(reader: Reader, prefix: str, file: str) -> tuple[int | None, int | None]:
    speed = reader.text(f"pcie.{prefix}generation", f"{file}_link_speed")
    generation = sysfs.pcie_generation((speed or "").partition(" ")[0])
    if speed and generation is None:
        reader.reasons[f"pcie.{prefix}generation"] = f"out of range: {file}_link_speed says {speed[:40]!r}"
    width = reader.number(f"pcie.{prefix}width", f"{file}_link_width", low=1, high=32)
    return generation, None if width is None else int(width)


def _throughput(reader: Reader) -> tuple[float | None, float | None]:
    """Bytes a second to and from the card. The kernel counts packets for a full second while the read waits, and
    names the largest payload of one: the products are upper bounds."""
    found = (reader.text("pcie.rx_bytes_per_s", "pcie_bw") or "").split()
    if len(found) == 3 and all(word.isdigit() for word in found):
        received, sent, payload = (int(word) for word in found)
        return float(received * payload), float(sent * payload)
    reader.note("pcie.rx_bytes_per_s", "unsupported: pcie_bw is not three numbers")
    reader.note("pcie.tx_bytes_per_s", reader.reasons["pcie.rx_bytes_per_s"])
    return None, None


def _health(reader: Reader) -> Health:
    """Memory errors since the driver was loaded, where the card counts them ("ue: 0", "ce: 0")."""
    lines = (reader.text("health.ecc_uncorrected", "ras/umc_err_count") or "").splitlines()
    counts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    reader.note("health.ecc_corrected", reader.reasons.get("health.ecc_uncorrected", "unsupported: no count"))
    corrected, uncorrected = (int(counts[key]) if counts.get(key, "").isdigit() else None for key in ("ce", "ue"))
    return Health(ecc_corrected=corrected, ecc_uncorrected=uncorrected)
