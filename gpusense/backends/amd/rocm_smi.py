"""AMD GPUs through librocm_smi64: the second source, behind ``amd_sysfs``, for what the library alone knows.

Never initialised where no AMD GPU can be (``/sys/module/amdgpu`` and ``/sys/class/kfd`` first), where a card sleeps, or
where a child process that made the same calls did not come back. Its clock calls abort the process on a line they do
not understand (releases before 6.2, RDNA4 cards), so such files are recognised here and the call is not made.
"""

import os
import time
from collections.abc import Sequence
from ctypes import byref, c_uint16, c_uint32, c_uint64
from typing import Any

from ..._capi import rocm_smi as capi
from ..._capi.binding import bind
from ..._capi.libraries import ROCM_SMI
from ..._capi.loading import Loaded, load
from ..._records.metrics import Clocks, GpuMetrics, Pcie, Power
from ..._records.protocols import Backend
from ..._records.records import DeviceInfo, Unavailable
from .. import sysfs
from . import rocm_groups, rocm_selftest
from .rocm_groups import Calls
from .sysfs_groups import is_instinct, levels

NAME = "rocm_smi"
#: Everything :class:`RocmSmiSource` calls, with the arguments it uses: what the self-test tries.
_CALLS: tuple[tuple[str, tuple[int | None, ...]], ...] = (
    ("rsmi_dev_id_get", (None,)),
    ("rsmi_dev_name_get", (None, 256)),
    ("rsmi_dev_unique_id_get", (None,)),
    ("rsmi_dev_busy_percent_get", (None,)),
    ("rsmi_dev_memory_busy_percent_get", (None,)),
    *(
        (f"rsmi_dev_memory_{what}_get", (kind, None))
        for what in ("total", "usage")
        for kind in (capi.MEMORY_VRAM, capi.MEMORY_GTT)
    ),
    *(
        ("rsmi_dev_temp_metric_get", (sensor, metric, None))
        for _, sensor, metric in (*rocm_groups.TEMPERATURES, *rocm_groups.THRESHOLDS)
    ),
    ("rsmi_dev_power_get", (None, None)),
    ("rsmi_dev_power_ave_get", (0, None)),
    ("rsmi_dev_power_cap_get", (0, None)),
    ("rsmi_dev_energy_count_get", (None, None, None)),
    ("rsmi_dev_fan_rpms_get", (0, None)),
    ("rsmi_dev_fan_speed_get", (0, None)),
    ("rsmi_dev_fan_speed_max_get", (0, None)),
    ("rsmi_dev_pci_replay_counter_get", (None,)),
)
_CLOCK_CALLS: tuple[tuple[str, tuple[int | None, ...], str], ...] = (
    ("rsmi_dev_gpu_clk_freq_get", (capi.CLOCK_SYSTEM, None), "pp_dpm_sclk"),
    ("rsmi_dev_gpu_clk_freq_get", (capi.CLOCK_MEMORY, None), "pp_dpm_mclk"),
    ("rsmi_dev_pci_bandwidth_get", (None,), "pp_dpm_pcie"),
)


def open(root: str = "/sys", limit_s: float = 6.0) -> Backend | Unavailable:
    """The backend, after a test of the library in a child that may take ``limit_s`` (the library waits 5 s for a lock).

    ``root`` is where the checks look; the library itself always reads ``/sys``.
    """
    reason = _why_not(root)
    if reason:
        return Unavailable(NAME, reason)
    loaded = load(ROCM_SMI)
    if not isinstance(loaded, Loaded):
        return loaded
    tested = rocm_selftest.run(loaded.path, _self_test(root), limit_s)
    if isinstance(tested, Unavailable):
        return tested
    if not tested:
        return Unavailable(NAME, "the library lists no device: a card needs a readable node in /sys/class/kfd")
    api = bind(loaded.library, capi.ROCM_SMI, loaded.path)
    code = api.rsmi_init(0)
    if code:
        return Unavailable(NAME, f"rsmi_init: {capi.CODES.get(code, 'unknown code')} ({code})")
    source = RocmSmiSource(api, root)
    return Backend(NAME, loaded.path, _version(api), source, source)


def _why_not(root: str) -> str | None:
    for folder in ("module/amdgpu", "class/kfd"):
        path = os.path.join(root, folder)
        if not os.path.isdir(path):
            return f"no {path}: the amdgpu driver is not loaded"
    for address, folder in _amd_cards(root).items():
        asleep = sysfs.sleeping(folder)
        if asleep:
            return f"{address} is {asleep}; initialising the library could wake it"
    return None


def _amd_cards(root: str) -> dict[str, str]:
    """PCI address → device folder of every AMD card."""
    listed = sysfs.cards(root)
    found = {}
    for _, folder in () if isinstance(listed, str) else listed:
        event = sysfs.uevent(folder)
        if event.get("PCI_ID", "").startswith("1002:"):
            found[event.get("PCI_SLOT_NAME", "").lower()] = folder
    return found


def _self_test(root: str) -> list[rocm_selftest.Call]:
    calls: list[rocm_selftest.Call] = [(name, arguments, ()) for name, arguments in _CALLS]
    for name, arguments, file in _CLOCK_CALLS:
        left_out = tuple(_bdf(address) for address, folder in _amd_cards(root).items() if not _understood(folder, file))
        calls.append((name, arguments, left_out))
    return calls


def _bdf(address: str) -> int:
    domain, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    return int(domain, 16) << 32 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)


def _understood(folder: str, file: str) -> bool:
    """Whether every line of a ``pp_dpm_*`` file has the form the library's parser asserts."""
    text = sysfs.text_or_none(os.path.join(folder, file)) or ""
    lines = text.splitlines()
    if file == "pp_dpm_pcie":
        return bool(lines) and all(line[:1].isdigit() and "GT/s, x" in line for line in lines)
    return bool(lines) and len(levels(text)) == len(lines)


def _version(api: Any) -> str:
    buffer = capi.new_buffer()
    named = capi.version_text(buffer.raw) if api.rsmi_version_get and not api.rsmi_version_get(buffer) else "unnamed"
    return f"{named} by its own word, structs of ROCm {'6 and later' if capi.is_version_6(api) else '5'}"


class RocmSmiSource:
    """Devices and samples, keyed by PCI address: the library's own order changes between releases."""

    def __init__(self, api: Any, root: str = "/sys") -> None:
        self._api = api
        self._version_6 = capi.is_version_6(api)
        self._pid = os.getpid()
        self._folders = _amd_cards(root)
        self._refusals: rocm_groups.Refusals = {}
        self._products: dict[str, str] = {}
        self._places: dict[str, int] = {}
        self._infos = self._discover()

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._infos

    def sample(self, device: DeviceInfo, lanes: Sequence[str] = ("fast", "medium")) -> GpuMetrics:
        started = time.monotonic_ns()
        state, groups, reasons = self._groups(device.pci_bus_id or "", lanes, started)
        cost = time.monotonic_ns() - started
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

    def _discover(self) -> tuple[DeviceInfo, ...]:
        count = c_uint32()
        self._api.rsmi_num_monitor_devices(byref(count))
        infos = []
        for place in range(count.value):
            calls = Calls(self._api, place, {})
            bdf = calls.value("", "rsmi_dev_pci_id_get", (), c_uint64)
            if bdf is None or capi.pci_address(bdf) in self._places:
                continue  # a partition of a card already there
            address = capi.pci_address(bdf)
            product = calls.value("", "rsmi_dev_id_get", (), c_uint16)
            self._products[address] = f"{product or 0:04x}"
            self._places[address] = place
            infos.append(
                DeviceInfo(
                    0,
                    calls.name() or f"AMD GPU [1002:{self._products[address]}]",
                    "amd",
                    NAME,
                    pci_bus_id=address,
                    memory_total_bytes=calls.value("", "rsmi_dev_memory_total_get", (capi.MEMORY_VRAM,), c_uint64),
                    sources=(NAME,),
                )
            )
        infos.sort(key=lambda info: info.pci_bus_id or "")
        return tuple(info._replace(index=index) for index, info in enumerate(infos))

    def _groups(self, address: str, lanes: Sequence[str], now_ns: int) -> tuple[str, dict[str, Any], dict[str, str]]:
        place = self._places.get(address)
        if place is None:
            return "lost", {}, _everything("lost: the library does not list it")
        if os.getpid() != self._pid:
            # The library's locks belong to the parent; a call here could wait for ever.
            return "lost", {}, _everything("lost: opened before a fork")
        folder = self._folders.get(address, "")
        asleep = sysfs.sleeping(folder) if folder else None
        if asleep:
            return "sleeping", {}, _everything(asleep)
        calls = Calls(self._api, place, self._refusals, now_ns)
        fast, medium, slow = ("fast" in lanes, "medium" in lanes, "slow" in lanes)
        groups: dict[str, Any] = {"memory": rocm_groups.memory(calls, fast, medium)}
        if fast:
            groups["utilization"] = rocm_groups.utilization(calls)
            groups["clocks"] = self._clocks(calls, folder)
        groups["thermal"] = rocm_groups.thermal(calls, fast, medium)
        groups["power"] = self._power(calls, address, fast, medium)
        groups["pcie"] = self._pcie(calls, folder, medium, slow)
        return "ok", groups, sysfs.without_values(calls.reasons, groups)

    def _clocks(self, calls: Calls, folder: str) -> Clocks:
        found = []
        for field, kind, file in (
            ("clocks.graphics_mhz", capi.CLOCK_SYSTEM, "pp_dpm_sclk"),
            ("clocks.memory_mhz", capi.CLOCK_MEMORY, "pp_dpm_mclk"),
        ):
            table = self._levels(calls, field, folder, file, "rsmi_dev_gpu_clk_freq_get", kind)
            if table is not None and not table[1]:
                calls.reasons[field] = "sleeping: rsmi_dev_gpu_clk_freq_get gave 0, the clock stands still"
            found.append(table[1] / 1e6 if table is not None and table[1] else None)
        return Clocks(found[0], memory_mhz=found[1])

    def _levels(
        self, calls: Calls, field: str, folder: str, file: str, name: str, *arguments: int
    ) -> tuple[bytes, int, int] | None:
        """(struct, hertz of the active level, its place); not asked where the file would make the library abort."""
        if not _understood(folder, file):
            calls.reasons[field] = f"unsupported: {file} has a form that {name} cannot be trusted with"
            return None
        buffer = capi.new_buffer()
        if not calls.ask(field, name, *arguments, buffer):
            return None
        read = capi.frequencies(buffer.raw, self._version_6)
        if isinstance(read, str):
            calls.reasons[field] = f"out of range: {name} gave {read}"
            return None
        return buffer.raw, read[0][read[1]], read[1]

    def _power(self, calls: Calls, address: str, fast: bool, medium: bool) -> Power:
        draw = average = energy = None
        if fast:
            draw, average = rocm_groups.watts(calls, self._version_6)
            if is_instinct(self._products[address]):
                energy = rocm_groups.joules(calls)
            else:
                calls.reasons["power.energy_joules"] = "unsupported: the library gives one unit for cards that differ"
        cap = calls.value("power.limit_watts", "rsmi_dev_power_cap_get", (0,), c_uint64) if medium else None
        return Power(
            average if draw is None else draw,
            average,
            None if cap is None else cap / 1e6,
            energy,
            energy_monotonic_ns=None if energy is None else time.monotonic_ns(),
        )

    def _pcie(self, calls: Calls, folder: str, medium: bool, slow: bool) -> Pcie:
        values: dict[str, Any] = {}
        if medium:
            table = self._levels(calls, "pcie.generation", folder, "pp_dpm_pcie", "rsmi_dev_pci_bandwidth_get")
            if table is not None:
                values["generation"] = sysfs.pcie_generation(table[1] / 1e9)
                values["width"] = capi.lanes(table[0], self._version_6, table[2]) or None
        if slow:
            sent, received, largest = c_uint64(), c_uint64(), c_uint64()
            name = "rsmi_dev_pci_throughput_get"  # waits a second
            asked = calls.ask("pcie.rx_bytes_per_s", name, byref(sent), byref(received), byref(largest))
            if asked and largest.value:
                values["rx_bytes_per_s"] = float(received.value * largest.value)
                values["tx_bytes_per_s"] = float(sent.value * largest.value)
            elif asked:  # an empty pcie_bw is answered with success and three zeros
                calls.reasons["pcie.rx_bytes_per_s"] = f"out of range: {name} gave packets of 0 bytes"
            values["replay_count"] = calls.value("pcie.replay_count", "rsmi_dev_pci_replay_counter_get", (), c_uint64)
        return Pcie(**values)


def _everything(reason: str) -> dict[str, str]:
    groups = ("utilization", "memory", "thermal", "power", "clocks", "pcie", "links", "health", "processes")
    return dict.fromkeys(groups, reason)
