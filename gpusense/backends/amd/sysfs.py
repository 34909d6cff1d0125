"""AMD GPUs from amdgpu's (and radeon's) text files: no library, no lock, no root, and a sleeping card stays asleep.

The unit of every file is amdgpu's documented one (Linux ``Documentation/gpu/amdgpu/thermal.rst``): microwatts,
millidegrees, hertz, bytes. ``clocks.graphics_mhz`` is the measured clock (hwmon ``freq1_input``); the active line of
``pp_dpm_sclk`` stands in where there is none, and its place gives ``performance_state``.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

from ..._records.metrics import GpuMetrics
from ..._records.protocols import Backend
from ..._records.records import DeviceInfo, Unavailable
from .. import sysfs
from ..drm.clients import Scanner
from ..sysfs import Reader
from . import sysfs_groups
from .sysfs_groups import Card, highest, levels

NAME = "amd_sysfs"
IDS = "/usr/share/libdrm/amdgpu.ids"


def open(root: str = "/sys", ids: str = IDS, proc: str = "/proc") -> Backend | Unavailable:
    """The backend over every AMD card below ``root``; ``ids`` is libdrm's list of product names, ``proc`` where
    processes are."""
    listed = sysfs.cards(root)
    if isinstance(listed, str):
        return Unavailable(NAME, listed, sysfs.NO_CARDS_HINT)
    source = AmdSysfsSource(root, ids, proc)
    if not source.devices():
        return Unavailable(NAME, f"none of the {len(listed)} cards in {root}/class/drm is an AMD GPU")
    version = sysfs.text_or_none(os.path.join(root, "module", "amdgpu", "version"))
    return Backend(NAME, version=version, devices=source, metrics=source)


class AmdSysfsSource:
    """Devices and samples. Each ``sample`` opens its files anew; nothing is kept between two but their places."""

    def __init__(self, root: str = "/sys", ids: str = IDS, proc: str = "/proc") -> None:
        self._root = root
        self._scanner = Scanner(proc)
        self._ids = ids
        self._cards: dict[str, Card] = {}
        self.rescan()

    def rescan(self) -> None:
        """Looks for cards again: after a hot plug, a driver reload, or when a sleeping card woke up."""
        listed = sysfs.cards(self._root)
        found = [] if isinstance(listed, str) else [card for name, folder in listed if (card := self._card(folder))]
        found.sort(key=lambda card: card.info.pci_bus_id or "")
        cards = sysfs.still_there(self._cards, {card.info.pci_bus_id or "": card for card in found})
        self._cards = {
            key: card._replace(info=card.info._replace(index=index)) for index, (key, card) in enumerate(cards.items())
        }

    def devices(self) -> tuple[DeviceInfo, ...]:
        return tuple(card.info for card in self._cards.values())

    def sample(self, device: DeviceInfo, lanes: Sequence[str] = ("fast", "medium")) -> GpuMetrics:
        started = time.monotonic_ns()
        state, groups, reasons, source_time = self._groups(device, lanes, started)
        ended = time.monotonic_ns()
        cost = ended - started
        return GpuMetrics(
            device,
            time.time_ns() - cost // 2,
            started + cost // 2,
            cost_ns=cost,
            source=NAME,
            source_time_ns=source_time,
            state=state,
            reasons=tuple(reasons.items()),
            **groups,
        )

    def _groups(
        self, device: DeviceInfo, lanes: Sequence[str], now: int
    ) -> tuple[str, dict[str, Any], dict[str, str], int | None]:
        card = self._cards.get(device.pci_bus_id or "")
        if card is None or not os.path.isdir(card.folder):
            return "lost", {}, _everything("lost: its folder in sysfs is gone"), None
        asleep = sysfs.sleeping(card.folder)
        if asleep:
            return "sleeping", {}, _everything(asleep), None
        card = self._awake(card)
        reader = Reader(card.folder)
        groups, source_time = sysfs_groups.read(card, reader, lanes)
        if "medium" in lanes:
            usage = self._scanner.usage(now, card.info.driver, card.info.pci_bus_id)
            groups["processes"] = usage.processes(reader, self._scanner.proc)
        return "ok", groups, sysfs.without_values(reader.reasons, groups), source_time

    def _awake(self, card: Card) -> Card:
        """``card``, described again where it slept when it was found or where its hwmon got another number."""
        if card.hwmon is not None and os.path.isdir(os.path.join(card.folder, card.hwmon)):
            return card
        if card.hwmon is None and not os.path.isdir(os.path.join(card.folder, "hwmon")):
            return card
        fresh = self._card(card.folder)
        if fresh is None:
            return card
        key = card.info.pci_bus_id or ""
        self._cards[key] = fresh._replace(info=fresh.info._replace(index=card.info.index))
        return self._cards[key]

    def _card(self, folder: str) -> Card | None:
        """The card behind a DRM device folder, or None for another vendor's. A sleeping one is named, not opened."""
        event = sysfs.uevent(folder)
        vendor, _, product = event.get("PCI_ID", "").lower().partition(":")
        if vendor != "1002":
            return None
        revision = sysfs.text_or_none(os.path.join(folder, "revision"))
        info = DeviceInfo(
            0,
            self._name(product, revision) or f"AMD GPU [1002:{product}]",
            "amd",
            NAME,
            pci_bus_id=event.get("PCI_SLOT_NAME", os.path.basename(os.path.realpath(folder))).lower(),
            driver=event.get("DRIVER"),
            sources=(NAME,),
        )
        if sysfs.sleeping(folder):
            return Card(info, folder, None, (), None, product)
        return _described(info, folder, product)

    def _name(self, product: str, revision: str | None) -> str | None:
        """The product name for a PCI id; where the revision is unknown, only if all revisions share one."""
        wanted = int(revision, 16) if revision and _is_hex(revision) else None
        names: dict[int, str] = {}
        for row in _rows(self._ids):
            if row[0] == product:
                names[int(row[1], 16)] = row[2]
        if wanted in names:
            return names[wanted]
        return names.popitem()[1] if len(set(names.values())) == 1 else None


def _rows(path: str) -> list[tuple[str, str, str]]:
    """(device, revision, product) rows of libdrm's list; an absent or broken file gives none."""
    try:
        lines = sysfs.read(path, 1 << 22).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    cells = [[cell.strip() for cell in line.split(",", 2)] for line in lines]
    return [(row[0].lower(), row[1], row[2]) for row in cells if len(row) == 3 and _is_hex(row[1])]


def _is_hex(text: str) -> bool:
    try:
        int(text, 16)
    except ValueError:
        return False
    return True


def _described(info: DeviceInfo, folder: str, product: str) -> Card:
    hwmon = _first_hwmon(folder)
    sensors: list[tuple[str, str]] = []
    labels: dict[str, str] = {}
    if hwmon:
        for name in sorted(os.listdir(os.path.join(folder, hwmon))):
            if name.endswith("_label"):
                labels[name[:-6]] = sysfs.text_or_none(os.path.join(folder, hwmon, name)) or ""
        sensors = [
            (sysfs_groups.SENSORS[label], name) for name, label in labels.items() if label in sysfs_groups.SENSORS
        ]
        if not sensors:  # radeon labels nothing and has one sensor
            sensors = [("gpu_celsius", "temp1")]
    # Only an APU has a voltage rail of its own for the north bridge.
    integrated = "vddnb" in labels.values() if info.driver == "amdgpu" and labels else None
    total = sysfs.text_or_none(os.path.join(folder, "mem_info_vram_total"))
    details = [
        (name, value)
        for name in ("unique_id", "vbios_version")
        if (value := sysfs.text_or_none(os.path.join(folder, name)))
    ]
    info = info._replace(
        name=sysfs.text_or_none(os.path.join(folder, "product_name")) or info.name,
        memory_total_bytes=int(total) if total and total.isdigit() else None,
        clock_max_mhz=highest(levels(sysfs.text_or_none(os.path.join(folder, "pp_dpm_sclk")))),
        memory_clock_max_mhz=highest(levels(sysfs.text_or_none(os.path.join(folder, "pp_dpm_mclk")))),
        kind=None if integrated is None else "integrated" if integrated else "discrete",
        details=tuple(details),
    )
    return Card(info, folder, hwmon, tuple(sensors), integrated, product)


def _first_hwmon(folder: str) -> str | None:
    try:
        names = [name for name in os.listdir(os.path.join(folder, "hwmon")) if name.startswith("hwmon")]
    except OSError:
        return None
    return os.path.join("hwmon", min(names)) if names else None


def _everything(reason: str) -> dict[str, str]:
    groups = ("utilization", "memory", "thermal", "power", "clocks", "pcie", "links", "health", "processes")
    return dict.fromkeys(groups, reason)
