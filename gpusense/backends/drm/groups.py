"""The metrics groups of GPUs that have no vendor library, each from the files of its driver."""

import glob
import os
from typing import NamedTuple

from ..._records.metrics import Clocks, Memory, Pcie, Thermal, Utilization
from ..._records.records import DeviceInfo
from .. import sysfs
from ..sysfs import Reader
from .clients import Usage

#: Engine classes by what they are for; every other one computes or draws.
_MEDIA = ("video", "video-enhance", "vcs", "vecs")
_COPY = ("copy", "bcs", "dma")
_HOTTEST, STRONGEST = 150.0, 10_000.0  # °C and W beyond which a value is a driver's mistake


class Unit(NamedTuple):
    """One device: ``kind`` says which files it has ("drm", "jetson", "devfreq")."""

    info: DeviceInfo
    folder: str  # of the device
    kind: str
    driver: str
    hwmon: str | None = None
    sensors: tuple[tuple[str, str], ...] = ()
    load: str | None = None  # file with the load in per mille, or "37@800000000Hz"
    fans: tuple[str, ...] = ()  # "fan1_input" …
    energies: tuple[tuple[str, str], ...] = ()  # (number of the counter, its scope), the widest first


def utilization(unit: Unit, reader: Reader, usage: Usage | None) -> Utilization:
    """Load from the driver's file or, for DRM drivers, the busiest class of engines that compute or draw."""
    if unit.kind != "drm":
        return Utilization(_load(unit, reader))
    totals = usage.engine_totals() if usage else {}
    work = [percent for engine, percent in totals.items() if engine not in (*_MEDIA, *_COPY, "enc", "dec", "jpeg")]
    media = [percent for engine, percent in totals.items() if engine in _MEDIA]
    reader.note("utilization.gpu_percent", "unsupported: no process that may be seen has engine counters on this GPU")
    return Utilization(
        max(work) if work else None,
        encoder_percent=totals.get("enc"),
        decoder_percent=totals.get("dec"),
        jpeg_percent=totals.get("jpeg"),
        media_percent=max(media) if media else None,
    )


def _load(unit: Unit, reader: Reader) -> float | None:
    """Jetson says per mille; vendors' devfreq drivers "37@800000000Hz" or a bare percentage."""
    if unit.load is None:
        reader.note("utilization.gpu_percent", "unsupported: its devfreq device has no load file")
        return None
    found = reader.text("utilization.gpu_percent", unit.load)
    number = (found or "").partition("@")[0].rstrip("%").strip()
    if not number.isdigit():
        if found:
            reader.reasons["utilization.gpu_percent"] = f"out of range: load says {found[:40]!r}"
        return None
    percent = int(number) / 10 if unit.kind == "jetson" else float(number)
    return reader.within("utilization.gpu_percent", percent, 0, 100, "load")


def host_memory(reader: Reader, proc: str) -> Memory:
    """Total and available memory of the host, which the device shares."""
    text = reader.text("memory.total_bytes", os.path.join(proc, "meminfo")) or ""
    sizes = {key: value.split() for key, _, value in (line.partition(":") for line in text.splitlines())}
    total, available = (
        int(words[0]) * 1024 if (words := sizes.get(key)) and words[0].isdigit() else None
        for key in ("MemTotal", "MemAvailable")
    )
    used = None if total is None or available is None else total - available
    return Memory(total, used, available, unified=True)


def thermal(unit: Unit, reader: Reader) -> Thermal:
    if unit.kind == "jetson":
        return Thermal(_zone(unit, reader))
    hwmon = unit.hwmon or "hwmon"
    values: dict[str, float | None] = {}
    for field, sensor in unit.sensors:
        values[field] = reader.number(f"thermal.{field}", f"{hwmon}/{sensor}_input", 1e3, 1.0, _HOTTEST)
        if field == "gpu_celsius":
            for name, suffix in (("slowdown_celsius", "crit"), ("shutdown_celsius", "emergency")):
                values[name] = reader.number(f"thermal.{name}", f"{hwmon}/{sensor}_{suffix}", 1e3, 1.0, _HOTTEST)
    reader.note("thermal.gpu_celsius", "unsupported: its driver has no temperature in hwmon")
    speeds = [reader.number("thermal.fan_rpm", f"{hwmon}/{fan}") for fan in unit.fans]
    reader.note("thermal.fan_rpm", "unsupported: its driver has no fan in hwmon")
    return Thermal(**values, fan_rpm=max((speed for speed in speeds if speed is not None), default=None))


def _zone(unit: Unit, reader: Reader) -> float | None:
    """Temperature of the thermal zone named after the GPU ("GPU-therm", "gpu-thermal")."""
    root = unit.folder.partition(f"{os.sep}devices{os.sep}")[0]
    for kind in sorted(glob.glob(os.path.join(glob.escape(root), "class", "thermal", "thermal_zone*", "type"))):
        if (sysfs.text_or_none(kind) or "").lower().startswith("gpu"):
            return reader.number("thermal.gpu_celsius", kind[:-4] + "temp", 1e3, 1.0, _HOTTEST)
    reader.note("thermal.gpu_celsius", "unsupported: no thermal zone is named after the GPU")
    return None


def rail_watts(root: str, reader: Reader) -> float | None:
    """Volts times amperes of the supply rail whose label names the GPU, measured by the board's INA3221."""
    for label in sorted(glob.glob(os.path.join(glob.escape(root), "class", "hwmon", "hwmon*", "in*_label"))):
        if "GPU" in (sysfs.text_or_none(label) or ""):
            place = os.path.basename(label)[2:-6]
            folder = os.path.dirname(label)
            volts = reader.number("power.draw_watts", f"{folder}/in{place}_input", 1e3)
            amperes = reader.number("power.draw_watts", f"{folder}/curr{place}_input", 1e3)
            return None if volts is None or amperes is None else volts * amperes
    reader.note("power.draw_watts", "unsupported: no supply rail is named after the GPU")
    return None


def energy(unit: Unit, reader: Reader) -> tuple[str, str | None, float | None]:
    """(number, scope, joules) of the first counter that counts; some cards have one that stands at 0."""
    field = "power.energy_joules"
    for number, scope in unit.energies:
        joules = reader.number(field, f"{unit.hwmon}/energy{number}_input", 1e6)
        if joules:
            return number, scope, joules
        if joules == 0:
            reader.reasons[field] = f"unsupported: energy{number}_input stands at 0"
    reader.note(field, "unsupported: its driver has no energy counter in hwmon")
    return "1", None, None


def clocks(unit: Unit, reader: Reader) -> Clocks:
    field = "clocks.graphics_mhz"
    devfreq = sorted(glob.glob(os.path.join(glob.escape(unit.folder), "devfreq", "*", "cur_freq")))
    if devfreq:
        return Clocks(reader.clock(field, os.path.relpath(devfreq[0], unit.folder), 1e6))
    if unit.driver == "xe":
        folder = "tile0/gt0/freq0"
        return Clocks(
            reader.clock(field, f"{folder}/act_freq"),
            throttle_reasons=_throttle(reader, f"{folder}/throttle/status", f"{folder}/throttle/reason_"),
        )
    if unit.driver == "i915":
        card = os.path.dirname(unit.folder)  # i915 puts them beside the link to the device
        gt = f"{card}/gt/gt0"
        newer = f"{gt}/rps_act_freq_mhz"
        return Clocks(
            reader.clock(field, newer if os.path.exists(newer) else f"{card}/gt_act_freq_mhz"),
            throttle_reasons=_throttle(
                reader, f"{card}/gt/gt0/throttle_reason_status", f"{card}/gt/gt0/throttle_reason_"
            ),
        )
    reader.note(field, f"unsupported: {unit.driver or 'its driver'} has no clock in a file")
    return Clocks()


def _throttle(reader: Reader, status: str, prefix: str) -> tuple[str, ...] | None:
    """Names of the reasons that are 1; nothing more is read while the status says 0."""
    state = reader.number("clocks.throttle_reasons", status)
    if not state:
        return None if state is None else ()
    paths = sorted(glob.glob(os.path.join(glob.escape(reader.folder), prefix) + "*"))
    names = [os.path.basename(path).rpartition("reason_")[2] for path in paths if sysfs.text_or_none(path) == "1"]
    return tuple(name for name in names if name != "status") or ("unnamed",)


def pcie(unit: Unit, reader: Reader) -> Pcie:
    port = ""
    if unit.info.vendor == "intel" and _is_inner_link(unit.folder):
        upstream = _card_port(unit.folder)
        if upstream is None:
            for field in ("generation", "width", "max_generation", "max_width"):
                reader.note(f"pcie.{field}", "unsupported: its bridge at the slot is hidden")
            return Pcie()
        port = upstream + os.sep
    speed = reader.number("pcie.generation", f"{port}current_link_speed")
    fastest = reader.number("pcie.max_generation", f"{port}max_link_speed")
    width = reader.number("pcie.width", f"{port}current_link_width", low=1, high=32)
    widest = reader.number("pcie.max_width", f"{port}max_link_width", low=1, high=32)
    return Pcie(
        sysfs.pcie_generation(speed),
        None if width is None else int(width),
        sysfs.pcie_generation(fastest),
        None if widest is None else int(widest),
    )


def _is_inner_link(folder: str) -> bool:
    """Whether it is that of an Arc chip to the bridge on its own card: generation 1, one lane, whatever the slot."""
    speed, width = (sysfs.text_or_none(os.path.join(folder, f"current_link_{name}")) for name in ("speed", "width"))
    return (speed or "").startswith("2.5 ") and width == "1"


def _card_port(folder: str) -> str | None:
    """Where the card meets its slot: the upstream port of Intel's bridge, two folders above the chip's."""
    chip = os.path.realpath(folder)
    downstream = os.path.dirname(chip)
    upstream = os.path.dirname(downstream)
    return upstream if _is_intel_bridge(downstream) and _is_intel_bridge(upstream) else None


def _is_intel_bridge(folder: str) -> bool:
    kind, vendor = (sysfs.text_or_none(os.path.join(folder, name)) for name in ("class", "vendor"))
    return (kind or "").startswith("0x0604") and vendor == "0x8086"
