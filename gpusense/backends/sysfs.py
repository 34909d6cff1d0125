"""What /sys and /proc say without waking a device: small kernel files, one open and one ``read`` each, and a sentence
for everything that cannot be had. Roots are arguments, so that tests lay out their own.
"""

import errno
import os
from collections.abc import Iterable
from typing import Any

_UNSUPPORTED = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EOPNOTSUPP, errno.ENODATA, errno.ENOSYS, errno.ENXIO)
_DENIED = (errno.EACCES, errno.EPERM)
_SLEEPING = ("suspended", "suspending", "resuming")
_OFF = ("D3hot", "D3cold")
_PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # by GT/s
#: Inode of the machine's first pid namespace, a constant of the Linux kernel (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


def read(path: str, size: int = 4096) -> bytes:
    """What one ``read`` of ``path`` gives: sysfs makes its answer at the first one, a second may be another answer."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        return os.read(handle, size)
    finally:
        os.close(handle)


def text_or_none(path: str) -> str | None:
    """The stripped text of ``path``; None where it cannot be read or is empty."""
    try:
        return read(path).rstrip(b"\0").decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def why(error: OSError, path: str) -> str:
    """The reason class and the cause: "unsupported: no file fan1_input"."""
    name = os.path.basename(path)
    if error.errno == errno.ENOENT:
        return f"unsupported: no file {name}"
    if error.errno == errno.ENODEV:
        return f"lost: {name} answers {errno.errorcode[errno.ENODEV]}"
    kind = "denied" if error.errno in _DENIED else "unsupported" if error.errno in _UNSUPPORTED else "stale"
    return f"{kind}: {name} answers {errno.errorcode.get(error.errno or 0, 'an unknown error')}"


def sleeping(device_folder: str) -> str | None:
    """Why the PCI device below ``device_folder`` must not be touched, or None. Reads nothing that would wake it."""
    status = text_or_none(os.path.join(device_folder, "power", "runtime_status"))
    if status in _SLEEPING:
        return f"sleeping: power/runtime_status is {status}"
    state = text_or_none(os.path.join(device_folder, "power_state"))
    if state in _OFF:
        return f"sleeping: power_state is {state}"
    return None


def uevent(device_folder: str) -> dict[str, str]:
    """The ``KEY=value`` lines of a device's ``uevent``; the kernel answers from memory."""
    lines = (text_or_none(os.path.join(device_folder, "uevent")) or "").splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines) if value}


#: What to do where :func:`cards` has no list.
NO_CARDS_HINT = "load the card's kernel driver; in a container, let it see /sys/class/drm"


def cards(root: str) -> list[tuple[str, str]] | str:
    """(name, device folder) of every DRM card, in the order of their numbers, or why there is no list."""
    folder = os.path.join(root, "class", "drm")
    try:
        names = [name for name in os.listdir(folder) if name.startswith("card") and name[4:].isdigit()]
    except OSError:
        return f"no {folder}: the kernel has no graphics driver loaded, or this container hides it"
    return [(name, os.path.join(folder, name, "device")) for name in sorted(names, key=lambda name: int(name[4:]))]


def still_there(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What was ``known`` (things with a device ``folder``, by name) with what was ``found``, where that is new or the
    folder has another name. What has gone stays, as lost."""
    fresh = {name: one for name, one in found.items() if name not in known or not os.path.isdir(known[name].folder)}
    return {**known, **fresh}


def pcie_generation(speed: str | float | None) -> int | None:
    """Of a link by its speed in GT/s; None where that is none of a generation's."""
    try:
        return _PCIE_GENERATIONS.get(float(speed or 0))
    except ValueError:
        return None


# -- the system: which devices there are, whether they sleep, whose pids, how much memory ------------------------------


def _pci_folder(pci_bus_id: str, sysfs: str) -> str:
    return os.path.join(sysfs, "bus", "pci", "devices", pci_bus_id)


def asleep(pci_bus_id: str | None, sysfs: str = "/sys") -> str | None:
    """Why the device must not be touched now ("sleeping: …"), or None where it is awake or unknown."""
    return None if pci_bus_id is None else sleeping(_pci_folder(pci_bus_id, sysfs))


def may_sleep(pci_bus_id: str | None, sysfs: str = "/sys") -> bool:
    """False where the system never suspends this device: power/control is "on", as on servers, or absent."""
    if pci_bus_id is None:
        return False
    return text_or_none(os.path.join(_pci_folder(pci_bus_id, sysfs), "power", "control")) not in ("on", None)


def never_sleeps(pci_bus_id: str | None, procfs: str = "/proc") -> bool:
    """Whether NVIDIA's driver says that it does not power this device down at run time: "Disabled", "Not supported".

    Distributions set power/control to "auto" on servers too, where it then means nothing.
    """
    if pci_bus_id is None:
        return False
    said = text_or_none(os.path.join(procfs, "driver", "nvidia", "gpus", pci_bus_id, "power")) or ""
    key, _, state = said.partition("\n")[0].partition(":")
    return key == "Runtime D3 status" and state.strip().startswith(("Disabled", "Not supported"))


def pci_gpus(vendor: int, sysfs: str = "/sys") -> list[str]:
    """PCI addresses of the display devices (class 03) of one vendor, in order; empty where /sys does not show them."""
    try:
        names = sorted(os.listdir(_pci_folder("", sysfs)))
    except OSError:
        return []
    return [name for name in names if _is_gpu(_pci_folder(name, sysfs), f"0x{vendor:04x}")]


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


# -- the fields of one sample ------------------------------------------------------------------------------------------


def without_values(reasons: dict[str, str], groups: dict[str, Any]) -> dict[str, str]:
    """``reasons`` less those of fields that another file gave a value after all."""
    return {field: reason for field, reason in reasons.items() if _value(groups, field) is None}


def _value(groups: dict[str, Any], field: str) -> Any:
    group, _, name = field.partition(".")
    return getattr(groups.get(group), name, None) if name else groups.get(group)


#: More than any file of the kernel says: 64 bits.
_MOST = 2.0**64


class Reader:
    """Reads files of one folder for one sample and keeps, under the field each was for, why it has no value."""

    __slots__ = ("folder", "reasons")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.reasons: dict[str, str] = {}

    def text(self, field: str, name: str) -> str | None:
        path = os.path.join(self.folder, name)
        try:
            found = read(path).rstrip(b"\0").decode("utf-8", "replace").strip()
        except OSError as error:
            self.reasons[field] = why(error, path)
            return None
        if not found:
            self.reasons[field] = f"unsupported: {os.path.basename(name)} is empty"
        return found or None

    def number(self, field: str, name: str, per: float = 1.0, low: float = 0.0, high: float = _MOST) -> float | None:
        """The first word of ``name`` divided by ``per``, if it is a number within ``low`` and ``high``."""
        found = self.text(field, name)
        if found is None:
            return None
        try:
            value = float(found.split(None, 1)[0])
        except ValueError:
            self.reasons[field] = f"out of range: {os.path.basename(name)} says {found[:40]!r}"
            return None
        return self.within(field, value / per, low, high, os.path.basename(name))

    def first(
        self, field: str, names: Iterable[str], per: float = 1.0, low: float = 0.0, high: float = _MOST
    ) -> float | None:
        """:meth:`number` of the first of ``names`` that has one."""
        for name in names:
            value = self.number(field, name, per, low, high)
            if value is not None:
                return value
        return None

    def whole(self, field: str, name: str) -> int | None:
        value = self.number(field, name)
        return None if value is None else int(value)

    def within(self, field: str, value: float | None, low: float, high: float, source: str) -> float | None:
        """``value`` where it is plausible; a driver's sentinel becomes None with the reason."""
        if value is None:
            return None
        if low <= value <= high:
            return value
        self.reasons[field] = f"out of range: {source} says {value:g}"
        return None

    def clock(self, field: str, name: str, per: float = 1.0) -> float | None:
        """:meth:`number` of a clock in MHz. Drivers say 0 while it stands still: that is no frequency."""
        value = self.number(field, name, per)
        if value == 0:
            self.reasons[field] = f"sleeping: {os.path.basename(name)} is 0, the clock stands still"
            return None
        return value

    def note(self, field: str, reason: str) -> None:
        self.reasons.setdefault(field, reason)
