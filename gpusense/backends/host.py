"""What the system says without waking a device: which PCI devices there are, whose pids, how much memory.

Plain reads of /sys and /proc. Roots are arguments, so that tests lay out their own.
"""

import os

from .sysfs import sleeping, text_or_none

#: Inode of the machine's first pid namespace, a constant of the Linux kernel (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


def _folder(pci_bus_id: str, sysfs: str) -> str:
    return os.path.join(sysfs, "bus", "pci", "devices", pci_bus_id)


def asleep(pci_bus_id: str | None, sysfs: str = "/sys") -> str | None:
    """Why the device must not be touched now ("sleeping: …"), or None where it is awake or unknown."""
    return None if pci_bus_id is None else sleeping(_folder(pci_bus_id, sysfs))


def may_sleep(pci_bus_id: str | None, sysfs: str = "/sys") -> bool:
    """False where the system never suspends this device: power/control is "on", as on servers, or absent."""
    if pci_bus_id is None:
        return False
    return text_or_none(os.path.join(_folder(pci_bus_id, sysfs), "power", "control")) not in ("on", None)


def never_sleeps(pci_bus_id: str | None, procfs: str = "/proc") -> bool:
    """Whether NVIDIA's driver says that it does not power this device down at run time: "Disabled", "Not supported".

    Distributions set power/control to "auto" on servers too, where it then means nothing.
    """
    if pci_bus_id is None:
        return False
    told = text_or_none(os.path.join(procfs, "driver", "nvidia", "gpus", pci_bus_id, "power")) or ""
    key, _, state = told.partition("\n")[0].partition(":")
    return key == "Runtime D3 status" and state.strip().startswith(("Disabled", "Not supported"))


def pci_gpus(vendor: int, sysfs: str = "/sys") -> list[str]:
    """PCI addresses of the display devices (class 03) of one vendor, in order; empty where /sys does not show them."""
    try:
        names = sorted(os.listdir(_folder("", sysfs)))
    except OSError:
        return []
    return [name for name in names if _is_gpu(_folder(name, sysfs), f"0x{vendor:04x}")]


def _is_gpu(folder: str, vendor: str) -> bool:
    kind = text_or_none(os.path.join(folder, "class")) or ""
    return kind.startswith("0x03") and text_or_none(os.path.join(folder, "vendor")) == vendor


def meminfo(procfs: str = "/proc") -> tuple[int, int] | None:
    """(total, available) bytes of the system's memory."""
    values = {}
    for line in (text_or_none(os.path.join(procfs, "meminfo")) or "").splitlines():
        key, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            values[key] = int(number[0]) * 1024
    total = values.get("MemTotal")
    available = values.get("MemAvailable", values.get("MemFree"))
    return (total, available) if total and available is not None else None


def sees_host_pids(procfs: str = "/proc") -> bool | None:
    """True where this process lives in the machine's first pid namespace, so that a driver's pids are ours too.

    In any other namespace a pid from the driver may name a foreign process here. None where the system has no
    namespaces to ask about.
    """
    try:
        return os.stat(os.path.join(procfs, "self", "ns", "pid")).st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return None


def process_name(pid: int, procfs: str = "/proc") -> str | None:
    """The kernel's short name (15 characters) of a process of this pid namespace; None where there is none."""
    return text_or_none(os.path.join(procfs, str(pid), "comm"))
