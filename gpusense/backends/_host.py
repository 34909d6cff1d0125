"""What the system's own files say: is a PCI device asleep, how much memory is there, who is process 4711.

Plain reads of /sys and /proc. None of them wakes a device. Roots are arguments, so that tests lay out their own.
"""

import os

#: Inode of the machine's first pid namespace, a constant of the Linux kernel (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


def read(path: str) -> str | None:
    """The file's text without the line end, or None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    except OSError:
        return None


def asleep(pci_bus_id: str | None, sysfs: str = "/sys") -> str | None:
    """Why the device must not be touched now ("runtime_status is suspended"), or None where it is awake or unknown."""
    if pci_bus_id is None:
        return None
    folder = f"{sysfs}/bus/pci/devices/{pci_bus_id}"
    status = read(f"{folder}/power/runtime_status")
    if status in ("suspended", "suspending"):
        return f"runtime_status is {status}"
    state = read(f"{folder}/power_state")
    if state in ("D3hot", "D3cold"):
        return f"power_state is {state}"
    return None


def may_sleep(pci_bus_id: str | None, sysfs: str = "/sys") -> bool:
    """False where the system never suspends this device at run time (power/control is "on", the default of servers)."""
    if pci_bus_id is None:
        return False
    return read(f"{sysfs}/bus/pci/devices/{pci_bus_id}/power/control") != "on"


def pci_gpus(vendor: int, sysfs: str = "/sys") -> list[str]:
    """PCI addresses of the display devices (class 03) of one vendor, in order; empty where /sys does not show them."""
    folder = f"{sysfs}/bus/pci/devices"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    wanted = f"0x{vendor:04x}"
    return [
        name
        for name in names
        if read(f"{folder}/{name}/vendor") == wanted and (read(f"{folder}/{name}/class") or "").startswith("0x03")
    ]


def meminfo(procfs: str = "/proc") -> tuple[int, int] | None:
    """(total, available) bytes of the system's memory."""
    values = {}
    for line in (read(f"{procfs}/meminfo") or "").splitlines():
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
        return os.stat(f"{procfs}/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return None


def process_name(pid: int, procfs: str = "/proc") -> str | None:
    """The kernel's short name (15 characters) of a process of this pid namespace; None where there is none."""
    return read(f"{procfs}/{pid}/comm") or None
