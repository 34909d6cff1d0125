"""The clock by which CUPTI stamps records, where another tool has given it one of its own.

torch.profiler gives it the processor's cycle counter, for good: once it has run, whoever captures next gets times that
are neither nanoseconds nor of any epoch. It gives its own anew when it begins again, so that it may be replaced.
"""

from functools import cache
from time import time_ns
from typing import Any

from ..._capi import cupti as capi
from ..._capi.machine import clock_code, executable
from ..._runtime.errors import BackendError

_AWAY_NS = 1_000_000_000  # two readings of the wall clock are never so far apart


def keep_wall_clock(api: Any, now_ns: int) -> bool:
    """Whether CUPTI's clock, which says ``now_ns``, had to be replaced. Raises :class:`BackendError` where it had to be
    and that is not possible: times would be wrong."""
    if abs(now_ns - time_ns()) < _AWAY_NS:
        return False
    call = "cuptiActivityRegisterTimestampCallback"
    if not api.cuptiActivityRegisterTimestampCallback:
        raise BackendError(call, 7, "another tool has given CUPTI a clock that is not the wall clock")
    capi.check(call, api.cuptiActivityRegisterTimestampCallback(_function()))
    return True


@cache
def _function() -> int:
    """Mapped once a process and immortal: CUPTI may call it until the process ends."""
    code = executable.native(clock_code.CODES)
    if code is None:
        raise BackendError(
            "clock", 7, "another tool has given CUPTI a clock of its own, which cannot be set back on this system"
        )
    try:
        return executable.map_first(clock_code.image(code, executable.libc_address("clock_gettime"))).address
    except OSError as error:
        raise BackendError("clock", 7, f"another tool has given CUPTI a clock of its own; ours: {error}") from None
