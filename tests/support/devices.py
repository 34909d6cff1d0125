"""Devices without devices: a scripted libnvidia-ml, trees of ``/sys`` and ``/proc``, samples by script, monitors."""

import ctypes
import math
import os
import pathlib
import subprocess
import sys
import threading

from gpusense import monitor, testing
from gpusense._records.metrics import (
    Clocks,
    GpuMetrics,
    Links,
    Memory,
    Pcie,
    Power,
    ProcessUsage,
    Thermal,
    Utilization,
)
from gpusense._records.protocols import Backend
from gpusense._records.records import DeviceInfo
from gpusense.backends.nvml import source as nvml

EVERYTHING = ("fast", "medium", "slow")


def without_symbols(library: bytes, names: tuple[str, ...]) -> bytes:
    """The same library with some names gone from its dynamic symbol table, the first place a name stands in."""
    for name in names:
        found = b"\0" + name.encode() + b"\0"
        assert found in library, name
        library = library.replace(found, b"\0" + b"X" + name[1:].encode() + b"\0", 1)
    return library


class FakeNvml:
    """One copy of the fake library, loaded in this process; every copy has its own script and counts."""

    def __init__(self, built: pathlib.Path, folder: pathlib.Path, lacks: tuple[str, ...] = ()) -> None:
        """``lacks``: functions that this driver does not export."""
        self.path = str(folder / "libnvidia-ml.so.1")
        pathlib.Path(self.path).write_bytes(without_symbols(built.read_bytes(), lacks))
        self.library = ctypes.CDLL(self.path)
        self.sysfs = folder / "sys"
        self.procfs = folder / "proc"
        for name in ("fake_calls", "fake_all_calls"):
            self.library[name].restype = ctypes.c_long
        self.library.fake_calls.argtypes = (ctypes.c_char_p,)
        self.library.fake_calls.restype = ctypes.c_long
        self.library.fake_all_calls.restype = ctypes.c_long
        self.library.fake_code.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int)
        self.library.fake_value.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_ulonglong)

    def code(self, function: str, code: int, device: int = -1, after: int = 0) -> None:
        """``function`` answers ``code`` once it has succeeded ``after`` more times; "*": every function of a device."""
        self.library.fake_code(function.encode(), device, after, code)

    def value(self, what: str, value: int, device: int = -1) -> None:
        self.library.fake_value(what.encode(), device, value % (1 << 64))

    def slow(self, function: str, milliseconds: int) -> None:
        self.library.fake_slow(function.encode(), milliseconds)

    def devices(self, count: int) -> None:
        self.library.fake_devices(count)

    def name(self, device: int, raw: bytes) -> None:
        self.library.fake_name(device, raw, len(raw))

    def uuid(self, device: int, text: str) -> None:
        self.library.fake_uuid(device, text.encode())

    def calls(self, function: str | None = None) -> int:
        return self.library.fake_all_calls() if function is None else self.library.fake_calls(function.encode())

    def references(self) -> int:
        return self.library.fake_references()

    def flags(self) -> int:
        return self.library.fake_flags()

    def shut_down(self) -> None:
        """As a rude library in the same process would."""
        self.library.nvmlShutdown()

    def open(self):
        return nvml.open(sysfs=str(self.sysfs), procfs=str(self.procfs))

    def source(self):
        backend = self.open()
        assert isinstance(backend, Backend), backend
        return backend.metrics

    def sample(self, device: int = 0, lanes=EVERYTHING):
        source = self.source()
        return source.sample(source.devices()[device], lanes)

    def pci(self, bus: str, *, status: str = "active", control: str = "auto", power: str = "D0") -> pathlib.Path:
        """A PCI display device of NVIDIA's in this fake's own /sys."""
        folder = self.sysfs / "bus" / "pci" / "devices" / bus
        (folder / "power").mkdir(parents=True, exist_ok=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
        (folder / "power" / "runtime_status").write_text(status + "\n")
        (folder / "power" / "control").write_text(control + "\n")
        (folder / "power_state").write_text(power + "\n")
        return folder


AMD_FILES = {
    "revision": "0xc1",
    "gpu_busy_percent": "42",
    "mem_busy_percent": "17",
    "mem_info_vram_total": "17163091968",
    "mem_info_vram_used": "4290772992",
    "mem_info_gtt_total": "8000000000",
    "mem_info_gtt_used": "120000000",
    "pp_dpm_sclk": "0: 500Mhz\n1: 1800Mhz *\n2: 2575Mhz",
    "pp_dpm_mclk": "0: 96Mhz\n1: 456Mhz\n2: 1000Mhz *",
    "pp_dpm_pcie": "0: 2.5GT/s, x1 81Mhz\n1: 16.0GT/s, x16 619Mhz *",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "pcie_bw": "1000 500 256",
    "pcie_replay_count": "3",
    "power/runtime_status": "active",
    "power_state": "D0",
    "unique_id": "00c0ffee00c0ffee",
    "vbios_version": "000-MADE-UP",  # librocm_smi lists no card without one
}
AMD_HWMON = {
    "name": "amdgpu",
    "temp1_label": "edge",
    "temp1_input": "55000",
    "temp1_crit": "100000",
    "temp1_emergency": "105000",
    "temp2_label": "junction",
    "temp2_input": "67000",
    "temp3_label": "mem",
    "temp3_input": "61000",
    "power1_average": "203000000",
    "power1_cap": "300000000",
    "fan1_input": "1450",
    "pwm1": "102",
    "pwm1_max": "255",
    "in0_label": "vddgfx",
    "freq1_label": "sclk",
    "freq1_input": "1795000000",
    "freq2_label": "mclk",
    "freq2_input": "1000000000",
}


class Tree:
    """A ``/sys`` under ``root``. Files keep the shape of the kernel's: one value and a newline."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self._hwmons = 0
        for folder in ("class/drm", "class/hwmon", "class/kfd/kfd/topology/nodes", "module/amdgpu", "bus/pci/devices"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def write(self, path: str, text: "str | bytes") -> pathlib.Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
        return target

    def card(
        self,
        number: int = 0,
        pci: str = "0000:03:00.0",
        driver: str = "amdgpu",
        pci_id: str = "1002:73BF",
        files: "dict[str, str | bytes] | None" = None,
        hwmon: "dict[str, str] | None" = None,
        behind: "dict[str, dict[str, str]] | None" = None,
    ) -> pathlib.Path:
        """One PCI GPU as DRM card ``number``; returns its device folder. ``behind``: the bridges on the way to it."""
        place = "devices/pci0000:00"
        for bridge, texts in (behind or {}).items():
            place += f"/{bridge}"
            for name, text in texts.items():
                self.write(f"{place}/{name}", text)
        place += f"/{pci}"
        vendor, _, product = pci_id.partition(":")
        self.write(
            f"{place}/uevent",
            f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_ID={pci_id}\nPCI_SUBSYS_ID=1002:0E3A\nPCI_SLOT_NAME={pci}",
        )
        for name, value in (("vendor", vendor), ("device", product)):
            self.write(f"{place}/{name}", f"0x{value.lower()}")
        for name, text in (files or {}).items():
            self.write(f"{place}/{name}", text)
        if hwmon:
            for name, text in hwmon.items():
                self.write(f"{place}/hwmon/hwmon{self._hwmons}/{name}", text)
            self._link(f"{place}/hwmon/hwmon{self._hwmons}/device", self.root / place)
            self._link(f"class/hwmon/hwmon{self._hwmons}", self.root / place / f"hwmon/hwmon{self._hwmons}")
            self._hwmons += 1
        card = f"{place}/drm/card{number}"
        self.write(f"{card}/dev", f"226:{number}")
        self._link(f"{card}/device", self.root / place)
        self._link(f"class/drm/card{number}", self.root / card)
        self._link(f"bus/pci/devices/{pci}", self.root / place)
        return self.root / place

    def amd(self, number: int = 0, pci: str = "0000:03:00.0", **changes: "str | bytes | None") -> pathlib.Path:
        """An AMD card with everything; ``changes`` replaces files (``__`` for a slash), None leaves one out."""
        renamed = {name.replace("__", "/"): text for name, text in changes.items()}
        files = {**AMD_FILES, **{name: text for name, text in renamed.items() if not name.startswith("hwmon/")}}
        hwmon = {**AMD_HWMON, **{name[6:]: text for name, text in renamed.items() if name.startswith("hwmon/")}}
        return self.card(
            number,
            pci,
            files={name: text for name, text in files.items() if text is not None},
            hwmon={name: str(text) for name, text in hwmon.items() if text is not None},
        )

    def kfd(self, cards: "dict[str, int]") -> None:
        """The compute topology of ``cards`` (PCI address → DRM number), without which librocm_smi lists none."""
        top = "class/kfd/kfd/topology"
        self.write(f"{top}/generation_id", "1")
        self.write(f"{top}/system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0")
        self._node(0, "0", {"cpu_cores_count": 4, "simd_count": 0})
        for place, (pci, number) in enumerate(cards.items(), 1):
            domain, bus, rest = pci.split(":")
            device, function = rest.split(".")
            location = (int(bus, 16) << 8) | (int(device, 16) << 3) | int(function, 16)
            self._node(
                place,
                str(4000 + place),
                {
                    "cpu_cores_count": 0,
                    "simd_count": 80,
                    "vendor_id": 0x1002,
                    "location_id": location,
                    "domain": int(domain, 16),
                    "drm_render_minor": 128 + number,
                    "hive_id": 0,
                    "unique_id": place,
                    "simd_arrays_per_engine": 1,
                    "array_count": 4,
                    "cu_per_simd_array": 10,
                    "simd_per_cu": 2,
                    "io_links_count": 0,
                },
            )

    def _node(self, number: int, gpu: str, properties: "dict[str, int]") -> None:
        node = f"class/kfd/kfd/topology/nodes/{number}"
        self.write(f"{node}/gpu_id", gpu)
        self.write(f"{node}/name", "made up")
        self.write(f"{node}/properties", "\n".join(f"{key} {value}" for key, value in properties.items()))
        for name in ("io_links", "caches", "mem_banks"):
            (self.root / node / name).mkdir()

    def _link(self, path: str, target: pathlib.Path) -> None:
        """A relative link, so that the tree works wherever it is mounted."""
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))


class Proc:
    """A ``/proc`` with processes that hold GPU descriptors."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / "meminfo").write_text("MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:    4000000 kB\n")

    def client(
        self, pid: int, descriptor: int, fdinfo: str, name: str = "app", node: str = "/dev/dri/renderD128"
    ) -> None:
        folder = self.root / str(pid)
        for sub in ("fd", "fdinfo"):
            (folder / sub).mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_text(name + "\n")
        link = folder / "fd" / str(descriptor)
        link.unlink(missing_ok=True)
        link.symlink_to(node)
        (folder / "fdinfo" / str(descriptor)).write_text(fdinfo)


_ENTER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result:
        print(what, os.strerror(ctypes.get_errno()), file=sys.stderr)
        sys.exit(77)
uid, gid = os.geteuid(), os.getegid()
if libc.unshare(0x20000):  # CLONE_NEWNS; where that is not allowed, inside a user namespace of our own
    check(libc.unshare(0x20000 | 0x10000000), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
check(libc.mount(b"none", b"/", None, 0x44000, None), "private /")  # MS_REC | MS_PRIVATE
check(libc.mount(os.fsencode(sys.argv[1]), b"/sys", None, 0x1000, None), "bind over /sys")  # MS_BIND
check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None), "tmpfs over /dev/shm")
os.execv(sys.argv[2], sys.argv[2:])
"""


def run_over_sys(
    root: pathlib.Path, command: "list[str]", timeout: float = 60, env: "dict[str, str] | None" = None
) -> "subprocess.CompletedProcess[str] | None":
    """Runs ``command`` where ``root`` is ``/sys``; None where this machine allows no mount namespace."""
    done = subprocess.run(
        [sys.executable, "-c", _ENTER, str(root), *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=env,
    )
    return None if done.returncode == 77 else done


SECOND = 1_000_000_000
GIB = 2**30


def device(index: int, name: str = "NVIDIA H100 80GB HBM3", **fields) -> DeviceInfo:
    address = f"0000:{0x1B + index:02x}:00.0"
    return DeviceInfo(index, name, "nvidia", "nvml", pci_bus_id=address, driver="550.54", clock_max_mhz=1980, **fields)


def sample(index: int = 0, time_ns: int = 0, busy: float | None = 77, **fields) -> GpuMetrics:
    values = {
        "device": device(index),
        "utilization": Utilization(busy, 39, sm_active_percent=61.5, tensor_percent=38),
        "memory": Memory(80 * GIB, (10 + 8 * index) * GIB, reserved_bytes=500 << 20),
        "thermal": Thermal(64, 70, 73, 87, 92, fan_percent=40),
        "power": Power(350, 340, 700, energy_joules=3.6e6),
        "clocks": Clocks(1755, 1755, 2619, throttle_reasons=("power_cap",), performance_state=0),
        "pcie": Pcie(5, 16, 5, 16, 1.2e9, 3e8),
        "links": Links(18, 4e9, 3e9),
        "processes": (ProcessUsage(1234, 9 * GIB, 61.0, "python", True),),
        **fields,
    }
    return GpuMetrics(time_ns=time_ns, monotonic_ns=time_ns, source="script", **values)


class ScriptedMonitor:
    """``latest`` and ``history`` as a running monitor has them, two samples a second, load as a slow sine."""

    problem = None

    def __init__(self, devices: int, clock) -> None:
        self._devices = devices
        self._clock = clock

    def latest(self):
        return tuple(self._at(index, self._clock()) for index in range(self._devices))

    def history(self, seconds, device=None):
        now = self._clock()
        times = range(now - int(seconds * SECOND), now + 1, SECOND // 2)
        return tuple(self._at(getattr(device, "index", device) or 0, time_ns) for time_ns in times)

    def _at(self, index, time_ns):
        return sample(index, time_ns, 50 + 45 * math.sin(time_ns / SECOND / 9 + index))


BUSY = {"utilization.gpu_percent": 90.0, "power.draw_watts": 300.0, "power.draw_window_s": 0.0}


class Rig:
    """A scripted source, a manual clock and the monitors started on them, which end with the test."""

    def __init__(self, count: int = 1) -> None:
        self.clock = testing.ManualClock()
        self.source = testing.ScriptedSource(count, clock=self.clock)
        for index in range(count):
            self.source.set(index, BUSY)
        self.started: list[monitor.Monitor] = []

    def start(self, callback=None, **more) -> monitor.Monitor:
        self.started.append(monitor.start_background(callback, source=self.source, clock=self.clock, **more))
        return self.started[-1]

    def lanes(self, lane: str) -> int:
        return sum(lane in lanes for _, lanes in self.source.calls)


def wait_until(condition) -> None:
    waiting = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it did not happen")
