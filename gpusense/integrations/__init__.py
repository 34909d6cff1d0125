"""Other libraries' own words as blocks and records: modules of torch, ranges of CuPy and JAX, passes of wgpu-py, tests.

In comes a host that the program has imported, which is patched; out go blocks of the active tracer, and records through
a backend's source. Each module imports its host inside its functions. Programs and the command line import them, no
other room does.
"""

from collections.abc import Callable
from typing import Any

#: Integrations that look for their host among the imported modules: ``when_imported()`` is True once that is settled.
POLLED = ("torch", "cupy", "jax")


def watch(tracer: Any) -> None:
    """For ``gpusense run``: instruments each known library soon after the program has imported it."""
    for name in POLLED:
        tracer.add_watcher(_poll(name))
    from . import nccl, wgpu_py

    wgpu_py.instrument(when_imported=True)  # at the import itself: a device made before cannot be timed
    nccl.watch(tracer)  # likewise: before the first communicator


def _poll(name: str) -> Callable[[], bool]:
    import sys

    def poll() -> bool:
        if name not in sys.modules:
            return False
        module: Any = __import__(f"{__name__}.{name}", fromlist=["_"])
        return bool(module.when_imported())

    return poll
