"""Who may read hardware counters here, and what would change that. Reads files alone, and loads no library.

NVIDIA's driver keeps them for administrators unless it was told otherwise (its parameter RmProfilingAdminOnly, set by
``NVreg_RestrictProfilingToAdminUsers``); an administrator is who has the capability CAP_SYS_ADMIN. Under a server of
MPS all programs share its context, and what is counted in one cannot be told from the others'.
"""

import os
from collections.abc import Mapping

from ...._records.records import Unavailable

_PARAMETERS = "/proc/driver/nvidia/params"
_STATUS = "/proc/self/status"
_SYS_ADMIN = 21  # capability.h
_MPS, _MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"  # the folder where the variable is not set

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
    """Why counters will be refused; None where they will not, or where the files do not say."""
    shared = under_mps(root)
    if shared is not None:
        return shared
    if not for_administrators(_read(root, _PARAMETERS)) or is_administrator(_read(root, _STATUS)):
        return None
    return Unavailable("counters", "the driver keeps hardware counters for administrators", hint(root))


def under_mps(root: str = "/") -> Unavailable | None:
    """Why counters say nothing here: a server of CUDA MPS that this process would use; None where none runs."""
    folder = os.environ.get(_MPS) or _MPS_FOLDER
    if not os.path.exists(os.path.join(root, folder.lstrip("/"), "control")):
        return None
    pid = _read(root, f"{folder}/nvidia-cuda-mps-control.pid").strip()
    if pid.isdecimal() and not container(root, os.environ) and not os.path.exists(os.path.join(root, "proc", pid)):
        return None  # it was killed, and left its files; in a container its number may be that of another machine
    return Unavailable(
        "counters",
        f"this program runs under CUDA MPS ({folder}), whose server runs the work of all its programs in one context",
        "end it (`echo quit | nvidia-cuda-mps-control`), or name an empty folder in CUDA_MPS_PIPE_DIRECTORY",
    )


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
