"""Finds the range profiler of a process: tried in a child first, enabled where the first block is to be measured."""

from collections.abc import Callable
from ctypes import byref, c_int, c_void_p
from functools import partial
from typing import Any

from ...._records.records import Unavailable
from ...._runtime import threads
from ...._runtime.errors import BackendError
from ... import cuda
from ..synchronize import contexts, relaxed
from . import SAMPLED, host, selftest
from .ranges import RangeProfiler


class Finder:
    """Finds the profiler for the thread that calls it: one in a process, of the first context that asks.

    ``errand``: has another thread do something, and says whether it will.
    """

    def __init__(self, errand: Callable[[Callable[[], None]], bool]) -> None:
        self._errand = errand
        self._profiler: RangeProfiler | None = None
        self._refused: Unavailable | None = None
        self._lock = threads.lock()
        self._trying = self._tried = False

    def __call__(self, patiently: bool) -> RangeProfiler | Unavailable | None:
        """None while CUDA is not used here, in a context of another device, and while the profiler is tried in a child
        process, for which ``patiently`` waits."""
        driver = cuda.SOURCE.api()
        context = context_of(driver) if driver is not None and cuda.SOURCE.is_live() else None
        if self._refused is not None or context is None:
            return self._refused
        if self._profiler is not None:
            return self._profiler if self._profiler.context == context else None
        device = device_of(driver, context)
        if not self._tried:
            if patiently:
                self._try(device)
            elif not self._trying:
                self._trying = True
                if not self._errand(partial(self._try, device)):
                    self._refused = Unavailable("counters", "there is no thread to try the profiler on")
            if not self._tried:
                return self._refused
        if device in SAMPLED:
            return Unavailable("counters", "the device's counters are sampled over time, and nothing else counts then")
        found = opened(driver, context, device)
        if isinstance(found, Unavailable):
            self._refused = found
        else:
            self._profiler = found
        return found

    def _try(self, device: int) -> None:
        with self._lock:
            if not self._tried:
                self._refused = tried(device)
                self._tried = self._refused is None


def tried(device: int) -> Unavailable | None:
    """None where the profiler counts ranges in a child process; else what happened."""
    api = host.open_api()
    if isinstance(api, Unavailable):
        return api
    identity = selftest.identity(cuda.SOURCE.api(), device)
    return selftest.passed(host.path_of(api), device, identity, what=selftest.RANGES)


def context_of(driver: Any) -> int | None:
    """That of this thread; where it has none, the only one that there is."""
    context = c_void_p()
    if driver.cuCtxGetCurrent(byref(context)) == 0 and context.value:
        return context.value
    found = contexts(driver)
    return found[0] if len(found) == 1 else None


def device_of(driver: Any, context: int) -> int:
    """CUDA's number of the device of a context."""
    device = c_int()
    with relaxed(driver, context) as pushed:
        return device.value if pushed and driver.cuCtxGetDevice(byref(device)) == 0 else 0


def opened(driver: Any, context: int, device: int) -> RangeProfiler | Unavailable:
    """The profiler of a context that exists; why there is none."""
    api = host.open_api()
    if isinstance(api, Unavailable):
        return api
    try:
        return RangeProfiler(api, driver, context, device)
    except BackendError as error:
        return Unavailable("counters", str(error))
