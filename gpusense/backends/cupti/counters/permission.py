"""Who may read hardware counters here, and what would change that. Reads files alone, and loads no library.

NVIDIA's driver keeps them for administrators unless it was told otherwise (its parameter RmProfilingAdminOnly, set by
``NVreg_RestrictProfilingToAdminUsers``); an administrator is who has the capability CAP_SYS_ADMIN.
"""

import os
from collections.abc import Mapping

from ...._records.records import Unavailable

_PARAMETERS = "/proc/driver/nvidia/params"
_STATUS = "/proc/self/status"
_SYS_ADMIN = 21  # capability.h

_DRIVER = (
    "on the host: put `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into a file of /etc/modprobe.d and load "
    "the driver again"
)
#: By :func:`container`.
_HINTS = {
    "kubernetes": "add SYS_ADMIN to securityContext.capabilities of the container where the cluster allows it; else "
    + _DRIVER,
    "docker": "start the container with `--cap-add=SYS_ADMIN`; or " + _DRIVER,
    "podman": "start the container with `--cap-add=SYS_ADMIN`, as root; or " + _DRIVER,
    "apptainer": "an unprivileged Apptainer gives no such right: " + _DRIVER,
    "": "run as root (`sudo -E`); or " + _DRIVER,
}


def refusal(root: str = "/") -> Unavailable | None:
    """Why the driver will refuse; None where it will not, or where the files do not say."""
    if not for_administrators(_read(root, _PARAMETERS)) or is_administrator(_read(root, _STATUS)):
        return None
    return Unavailable("counters", "the driver keeps hardware counters for administrators", hint(root))


def hint(root: str = "/") -> str:
    """What gives this process the right, in the words of where it runs."""
    return _HINTS[container(root, os.environ)]


def for_administrators(parameters: str) -> bool:
    """Whether the driver's parameters say so; False where they cannot be read."""
    return "RmProfilingAdminOnly: 1" in parameters


def is_administrator(status: str) -> bool:
    """Whether the process has CAP_SYS_ADMIN, from its status file."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _SYS_ADMIN & 1)
    return False


def container(root: str, environment: Mapping[str, str]) -> str:
    """Which of "kubernetes", "docker", "podman", "apptainer", or "" where nothing says that this is a container."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environment or "SINGULARITY_CONTAINER" in environment:
        return "apptainer"
    for name, mark in (("docker", ".dockerenv"), ("podman", "run/.containerenv")):
        if os.path.exists(os.path.join(root, mark)):
            return name
    return ""


def _read(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path.lstrip("/"))) as file:
            return file.read()
    except (OSError, ValueError):
        return ""
