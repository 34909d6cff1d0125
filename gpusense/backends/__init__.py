"""Where facts come from: the one table of backends, how one is opened, and the devices over all of them.

A backend comes in as a module of this room with ``open()``. Out go a :class:`Backend` with its parts, or an
:class:`Unavailable` that says why not. Any room above may import this one; nothing of a vendor is loaded before it is
asked for.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from .._records.device_identity import merge
from .._records.protocols import Backend
from .._records.records import DeviceInfo, Unavailable
from .._runtime import log
from .._runtime.interrupts import is_the_programs
from .._runtime.process import answer


class Row(NamedTuple):
    """One backend: ``open()`` of ``module`` (below this room) gives a Backend that may have the parts ``roles``."""

    name: str
    module: str
    roles: tuple[str, ...]  # fields of Backend: "devices", "metrics", "activity"
    costly: bool = False  # opened again only where another has found a new device: it starts a process


#: In the order they are asked. The first that knows a device is believed, and sampled in every lane; others fill gaps.
#: Settings lie below this room: a new name stands in ``config.BACKEND_NAMES``, too.
BACKENDS = (
    Row("cuda", "cuda", ("devices",)),
    Row("cupti", "cupti.activity", ("activity",)),
    Row("nvml", "nvml.source", ("devices", "metrics")),
    Row("amd_sysfs", "amd.sysfs", ("devices", "metrics")),
    Row("rocm_smi", "amd.rocm_smi", ("devices", "metrics"), costly=True),
    Row("drm_files", "drm.source", ("devices", "metrics")),
    Row("wgpu", "wgpu.source", ("devices",)),
)


def names(role: str) -> tuple[str, ...]:
    """The backends that may have this part, in the order they are asked."""
    return tuple(row.name for row in BACKENDS if role in row.roles)


def open_backend(name: str) -> Backend | Unavailable:
    """The backend of that name, or why not. Never raises; may take as long as its driver does."""
    module = next((row.module for row in BACKENDS if row.name == name), None)
    if module is None:
        return Unavailable(name, "no backend has this name", ", ".join(row.name for row in BACKENDS))
    try:
        found: Backend | Unavailable = import_module(f".{module}", __name__).open()
    except ModuleNotFoundError as error:
        ours = str(error.name).startswith(f"{__name__}.")
        return Unavailable(name, "not part of this copy of the package" if ours else str(error))
    except Exception as error:  # a broken vendor library is an absence with a reason
        if is_the_programs(error):
            raise
        log.exception(f"open {name}", "backend %s failed to open", name)
        return Unavailable(name, f"{type(error).__name__}: {error}")
    return found


def all_devices(without: Sequence[str] = ()) -> tuple[tuple[DeviceInfo, ...], tuple[str, ...]]:
    """Every physical device once, and the names of the backends whose driver has not answered in time.

    Those of ``without`` did not answer before, and are not asked.
    """

    def ask(name: str) -> tuple[DeviceInfo, ...] | None:
        return None if name in without else answer(lambda: _devices_of(name), f"gpusense-devices-{name}", None)

    answers = {name: ask(name) for name in names("devices")}
    merged = merge({name: found for name, found in answers.items() if found})
    return merged, tuple(name for name, found in answers.items() if found is None)


def devices() -> tuple[DeviceInfo, ...]:
    """See :func:`gpusense.devices`."""
    found, silent = all_devices()
    for name in silent:
        log.once(f"silent {name}", "%s has not answered; its devices are left out", name)
    return found


def _devices_of(name: str) -> tuple[DeviceInfo, ...]:
    """What one backend lists; nothing where it is not there or fails."""
    backend = open_backend(name)
    if isinstance(backend, Unavailable) or backend.devices is None:
        return ()
    try:
        return tuple(backend.devices.devices())
    except Exception as error:  # the driver went away since it was opened
        if is_the_programs(error):
            raise
        log.debug("devices of %s: %s", name, error)
        return ()
