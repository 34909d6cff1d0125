"""NCCL's collectives in the session of the active tracer, from the first communicator that is made later."""

import os
import sys
from typing import Any

from .. import get_tracer
from .._capture.identity import rank_and_world
from .._records.records import Unavailable
from .._runtime import import_hook, log
from .._tracing import run
from ._hosts import unless_recording

#: Libraries that make communicators. The profiler has to be there before the first one is.
HOSTS = ("torch", "cupy")


def watch(tracer: Any) -> None:
    """:func:`instrument` as soon as one of the libraries that use NCCL has been imported."""
    if any(name in sys.modules for name in HOSTS):
        instrument(tracer)
        return

    def ready() -> None:
        instrument(tracer)

    for name in HOSTS:
        import_hook.watch(name, ready)


def instrument(tracer: Any = None) -> bool | Unavailable:
    """True where NCCL tells ``tracer`` (None: the active one) of its collectives from now on; else why not, which the
    session and ``tracer.status()`` say as well.

    Communicators that are there already tell nothing.
    """
    nothing = unless_recording("nccl")
    if nothing is not None:
        return nothing
    from ..backends.nccl import plugin
    from ..backends.nccl.source import NcclSource

    tracer = tracer or get_tracer()
    found = plugin.install()
    if not isinstance(found, plugin.Plugin):
        tracer.recorder.sources.absent["nccl"] = found
        log.debug("nccl: %s", found.reason)
        return found
    tracer.recorder.sources.absent.pop("nccl", None)
    if any(isinstance(source, NcclSource) for source in tracer.recorder.sources):
        return True
    source = NcclSource(found, os.environ.get(run.VARIABLE), rank_and_world()[0])
    tracer.add_source(source)
    tracer.add_watcher(source.poll)
    return True
