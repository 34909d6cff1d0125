"""Which program, machine and software a session is of. Loads nothing and calls no library."""

import os
import re
import sys
from typing import Any

#: Modules that work with GPUs and say their version.
_FRAMEWORKS = ("torch", "jax", "cupy", "tensorflow", "numba", "triton", "wgpu")
#: How launchers say a process's rank in its job, and how many there are: torchrun, Open MPI, PMIx, MPICH, Slurm.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_DRIVER = "/proc/driver/nvidia/version"


def host() -> str | None:
    """The machine's name."""
    return os.uname().nodename or None if hasattr(os, "uname") else os.environ.get("COMPUTERNAME")


def rank_and_world() -> tuple[int | None, int | None]:
    """Rank and world size of this process, as its launcher says them; None for both outside a job."""
    for rank_name, world_name in _LAUNCHERS:
        rank, world = os.environ.get(rank_name, ""), os.environ.get(world_name, "")
        if rank.isdigit() and world.isdigit():
            return int(rank), int(world)
    return None, None


def frameworks() -> dict[str, str]:
    """Name and version of what the program has imported to work with GPUs."""
    found = {}
    for name in _FRAMEWORKS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def driver(path: str = _DRIVER) -> str | None:
    """Version of NVIDIA's kernel module, such as "580.159.04"; None where there is none."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", file.read(4096))
    except OSError:
        return None
    return found[0] if found else None


def facts(cuda: tuple[int, int] | None) -> dict[str, Any]:
    """For ``meta``. ``cuda``: the newest version that the driver supports, where that is known."""
    return {
        "host": host(),
        "python": sys.version.split()[0],
        "frameworks": frameworks(),
        "driver": driver(),
        "cuda": f"{cuda[0]}.{cuda[1]}" if cuda is not None else None,
    }
