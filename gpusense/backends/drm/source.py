"""Intel, nouveau, Arm, Qualcomm and Jetson GPUs from world-readable kernel files: no library, no root.

Load comes from the counters of DRM clients, which every user has for his own processes and root for all: where it is
given it is the share of the processes that may be seen. hwmon gives temperatures, fans and power, devfreq and the
drivers' own files the clocks, and ``meminfo`` the memory of devices that share the host's.
"""

import glob
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..._records.metrics import GpuMetrics, Memory, Power
from ..._records.protocols import Backend
from ..._records.records import DeviceInfo, Unavailable
from .. import sysfs
from ..sysfs import Reader
from . import groups as _drm_groups
from .clients import Scanner, Usage
from .groups import Unit

NAME = "drm_files"
#: Kernel drivers of real GPUs and their vendors. amdgpu and radeon belong to ``amd_sysfs``, nvidia to ``nvml``.
DRIVERS = {
    "i915": "intel",
    "xe": "intel",
    "nouveau": "nvidia",
    "nova": "nvidia",
    "panfrost": "arm",
    "panthor": "arm",
    "lima": "arm",
    "msm": "qualcomm",
    "msm_dpu": "qualcomm",
    "adreno": "qualcomm",
    "v3d": "broadcom",
    "etnaviv": "vivante",
    "asahi": "apple",
    "powervr": "imagination",
}
_JETSON_LOADS = ("devices/*{}*/load", "devices/platform/*{}*/load", "devices/platform/bus@0/*{}*/load")
_JETSON_NAMES = ("gpu", "ga10b", "gv11b", "gp10b", "gm20b")


def open(
    root: str = "/sys", proc: str = "/proc", clock: Callable[[], int] = time.monotonic_ns
) -> Backend | Unavailable:
    """The backend over every GPU below ``root`` that no vendor library serves; ``proc`` is where processes are."""
    source = DrmSource(root, proc, clock)
    if source.devices():
        return Backend(NAME, devices=source, metrics=source)
    listed = sysfs.cards(root)
    if isinstance(listed, str):
        return Unavailable(NAME, listed, sysfs.NO_CARDS_HINT)
    return Unavailable(NAME, f"none of the {len(listed)} cards in {root}/class/drm has a driver with metrics in files")


class DrmSource:
    """Devices and samples. Rates need two samples of the same lane; the first says so."""

    def __init__(self, root: str = "/sys", proc: str = "/proc", clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._root = root
        self._clock = clock
        self._proc = proc
        self._scanner = Scanner(proc)
        self._energy: dict[str, tuple[str, int, float]] = {}  # device → counter, when it last moved, joules
        self._units: dict[str, Unit] = {}
        self.rescan()

    def rescan(self) -> None:
        """Looks for devices again."""
        listed = sysfs.cards(self._root)
        found = [] if isinstance(listed, str) else [unit for name, folder in listed if (unit := _drm_unit(folder))]
        found += _jetson_units(self._root)
        taken = {os.path.realpath(unit.folder) for unit in found}
        found += [unit for unit in _devfreq_units(self._root) if os.path.realpath(unit.folder) not in taken]
        units = sysfs.still_there(self._units, {_key(unit.info): unit for unit in found})
        self._units = {
            key: unit._replace(info=unit.info._replace(index=index)) for index, (key, unit) in enumerate(units.items())
        }

    def devices(self) -> tuple[DeviceInfo, ...]:
        return tuple(unit.info for unit in self._units.values())

    def sample(self, device: DeviceInfo, lanes: Sequence[str] = ("fast", "medium")) -> GpuMetrics:
        started = self._clock()
        if "anew" in lanes:  # nobody watched: an energy from before would be that of the time since
            self._energy.pop(_key(device), None)
        state, groups, reasons = self._groups(device, lanes, started)
        cost = self._clock() - started
        return GpuMetrics(
            device,
            time.time_ns() - cost // 2,
            started + cost // 2,
            cost_ns=cost,
            source=NAME,
            state=state,
            reasons=tuple(reasons.items()),
            **groups,
        )

    def _groups(self, device: DeviceInfo, lanes: Sequence[str], now: int) -> tuple[str, dict[str, Any], dict[str, str]]:
        unit = self._units.get(_key(device))
        everything = ("utilization", "memory", "thermal", "power", "clocks", "pcie", "links", "health", "processes")
        if unit is None or not os.path.isdir(unit.folder):
            return "lost", {}, dict.fromkeys(everything, "lost: its folder in sysfs is gone")
        asleep = sysfs.sleeping(unit.folder)
        if asleep:
            return "sleeping", {}, dict.fromkeys(everything, asleep)
        unit = self._awake(unit)
        reader = Reader(unit.folder)
        fast, medium = "fast" in lanes, "medium" in lanes
        usage = self._usage(unit, reader, now) if medium and unit.kind == "drm" else None
        groups: dict[str, Any] = {}
        if usage is not None:
            groups["processes"] = usage.processes(reader, self._proc)
        if fast or usage is not None:
            groups["utilization"] = _drm_groups.utilization(unit, reader, usage)
            groups["memory"] = self._memory(unit, reader, usage)
        if fast:
            groups["thermal"] = _drm_groups.thermal(unit, reader)
            groups["power"] = self._power(unit, reader, now)
            groups["clocks"] = _drm_groups.clocks(unit, reader)
        if medium and unit.info.pci_bus_id:
            groups["pcie"] = _drm_groups.pcie(unit, reader)
        return "ok", groups, sysfs.without_values(reader.reasons, groups)

    def _usage(self, unit: Unit, reader: Reader, now: int) -> Usage:
        usage = self._scanner.usage(now, unit.driver, unit.info.pci_bus_id)
        if usage.shares is None:
            reader.note("utilization.gpu_percent", "stale: a share of time needs two samples")
        return usage

    def _awake(self, unit: Unit) -> Unit:
        """``unit``, described again where it slept when it was found or where its hwmon got another number."""
        if unit.kind != "drm" or os.path.isdir(os.path.join(unit.folder, unit.hwmon or "hwmon")) == bool(unit.hwmon):
            return unit
        fresh = _drm_unit(unit.folder)
        if fresh is not None:
            unit = fresh._replace(info=fresh.info._replace(index=unit.info.index))
            self._units[_key(unit.info)] = unit
        return unit

    def _memory(self, unit: Unit, reader: Reader, usage: Usage | None) -> Memory:
        if unit.info.kind == "integrated":
            return _drm_groups.host_memory(reader, self._proc)
        reader.note("memory.used_bytes", "unsupported: no client that may be seen reports device memory")
        return Memory(
            unit.info.memory_total_bytes,
            usage.memory(True) if usage else None,
            shared_used_bytes=usage.memory(False) if usage else None,
            unified=False,
        )

    def _power(self, unit: Unit, reader: Reader, now: int) -> Power:
        """Watts from hwmon; where the driver only counts energy (i915, xe), its increase since the sample before.

        The counter of the card where it counts, else that of the package: the chip without the card's memory.
        """
        if unit.kind == "jetson":
            return Power(_drm_groups.rail_watts(self._root, reader))
        hwmon = unit.hwmon or "hwmon"
        draw = reader.number("power.draw_watts", f"{hwmon}/power1_input", 1e6)
        number, scope, energy = _drm_groups.energy(unit, reader)
        average = None if energy is None else self._average(unit, reader, number, energy, now)
        if draw is None and average is None and energy is not None:
            reader.reasons["power.draw_watts"] = reader.reasons["power.average_watts"]
        limits = (f"{hwmon}/power{number}_max", f"{hwmon}/power{number}_cap")
        return Power(
            average if draw is None else draw,
            average,
            reader.first("power.limit_watts", limits, 1e6, 1e-6),
            energy,
            energy_monotonic_ns=None if energy is None else now,
            scope=scope,
        )

    def _average(self, unit: Unit, reader: Reader, number: str, energy: float, now: int) -> float | None:
        """Watts since the counter last moved."""
        field, counter = "power.average_watts", f"energy{number}_input"
        last, then, before = self._energy.get(_key(unit.info), ("", now, energy))
        if last == number and energy == before and now > then:  # no powered card draws nothing
            reader.note(field, f"stale: {counter} has not moved for {(now - then) / 1e9:.1f} s")
            return None
        self._energy[_key(unit.info)] = (number, now, energy)
        if last != number or energy < before or now <= then:
            reader.note(field, "stale: a difference of energies needs two samples")
            return None
        return reader.within(field, (energy - before) / (now - then) * 1e9, 0.0, _drm_groups.STRONGEST, counter)


def _key(info: DeviceInfo) -> str:
    return info.pci_bus_id or dict(info.details).get("sysfs", "")


def _drm_unit(folder: str) -> Unit | None:
    event = sysfs.uevent(folder)
    driver = event.get("DRIVER", "")
    vendor = DRIVERS.get(driver)
    if vendor is None:
        return None
    pci = event.get("PCI_SLOT_NAME", "").lower() or None
    identity = event.get("PCI_ID", event.get("OF_COMPATIBLE_0", driver)).lower()
    kind = _kind(vendor, pci)
    info = DeviceInfo(
        0,
        f"{vendor.capitalize()} GPU [{identity}]",
        vendor,
        NAME,
        pci_bus_id=pci,
        driver=driver,
        kind=kind,
        sources=(NAME,),
        details=(("load", "share of the processes this user may see"), ("sysfs", os.path.realpath(folder))),
    )
    if sysfs.sleeping(folder):
        return Unit(info, folder, "drm", driver)
    total = sysfs.text_or_none(os.path.join(os.path.dirname(folder), "lmem_total_bytes"))
    if total and total.isdigit():
        info = info._replace(memory_total_bytes=int(total), kind="discrete")
    hwmon = sorted(glob.glob(os.path.join(glob.escape(folder), "hwmon", "hwmon*")))
    if not hwmon:
        return Unit(info, folder, "drm", driver)
    return Unit(
        info,
        folder,
        "drm",
        driver,
        os.path.relpath(hwmon[0], folder),
        _sensors(hwmon[0]),
        fans=tuple(
            os.path.basename(path) for path in sorted(glob.glob(os.path.join(glob.escape(hwmon[0]), "fan*_input")))
        ),
        energies=_energies(hwmon[0]),
    )


def _kind(vendor: str, pci: str | None) -> str:
    if pci is None:
        return "integrated"
    # Intel's integrated GPU has been function 0000:00:02.0 since there was one.
    return "integrated" if vendor == "intel" and pci.startswith("0000:00:") else "discrete"


def _sensors(hwmon: str) -> tuple[tuple[str, str], ...]:
    """(field, "temp1") for the sensors of a hwmon folder, by label where there are labels."""
    fields = {"pkg": "gpu_celsius", "vram": "memory_celsius"}
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(hwmon), "temp*_input"))):
        sensor = os.path.basename(path)[:-6]
        label = sysfs.text_or_none(os.path.join(hwmon, sensor + "_label"))
        field = "gpu_celsius" if label is None and sensor == "temp1" else fields.get(label or "")
        if field:
            found.append((field, sensor))
    return tuple(found)


def _energies(hwmon: str) -> tuple[tuple[str, str], ...]:
    scopes = {"card": "card", "pkg": "package", None: "gpu"}
    found = []
    for path in glob.glob(os.path.join(glob.escape(hwmon), "energy*_input")):
        number = os.path.basename(path)[len("energy") : -len("_input")]
        scope = scopes.get(sysfs.text_or_none(os.path.join(hwmon, f"energy{number}_label")))
        if scope is not None:
            found.append((number, scope))
    return tuple(sorted(found, key=lambda one: (tuple(scopes.values()).index(one[1]), one[0])))


def _jetson_units(root: str) -> list[Unit]:
    for pattern in _JETSON_LOADS:
        for name in _JETSON_NAMES:
            for load in sorted(glob.glob(os.path.join(glob.escape(root), pattern.format(name)))):
                folder = os.path.dirname(load)
                model = sysfs.text_or_none(os.path.join(root, "firmware", "devicetree", "base", "model"))
                info = DeviceInfo(
                    0,
                    model or "NVIDIA Jetson GPU",
                    "nvidia",
                    NAME,
                    kind="integrated",
                    sources=(NAME,),
                    details=(("sysfs", os.path.realpath(folder)),),
                )
                return [Unit(info, folder, "jetson", "", load=load)]
    return []


def _devfreq_units(root: str) -> list[Unit]:
    """GPUs of drivers outside DRM (vendors' Mali and Adreno ones) that scale their clock through devfreq."""
    found = []
    for entry in sorted(glob.glob(os.path.join(glob.escape(root), "class", "devfreq", "*"))):
        name = os.path.basename(entry)
        if not any(word in name for word in ("gpu", "mali", "kgsl")):
            continue
        folder = os.path.join(entry, "device")
        info = DeviceInfo(
            0,
            f"GPU {name}",
            "arm" if "mali" in name else "unknown",
            NAME,
            kind="integrated",
            sources=(NAME,),
            details=(("sysfs", os.path.realpath(folder)),),
        )
        load = os.path.join(entry, "load")
        found.append(Unit(info, folder, "devfreq", "", load=load if os.path.exists(load) else None))
    return found
