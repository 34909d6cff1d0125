"""Waits for the devices of this process with a time limit, for results that were asked for; never on a block's path."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_uint, c_void_p
from typing import Any

from ..._capi.cuda_facts import count
from ..._runtime import threads
from .. import cuda

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def synchronise(timeout_s: float, elsewhere: Callable[[Callable[[], None]], bool] = lambda action: False) -> bool:
    """True once everything launched so far has finished; False where that takes longer or a device answers an error.

    The wait happens on a thread of its own, in relaxed capture mode, so that it can neither hang the caller nor
    invalidate a stream capture of another thread. ``elsewhere(action)`` has it done by a thread that is there already:
    since Python 3.12 none can be started any more when the interpreter ends.
    """
    done = threads.Bell()
    results = _begin(done, elsewhere)
    return results is not None and done.wait(timeout_s) and results == [True]


def ask() -> Callable[[], bool]:
    """Begins to wait; the function given back says whether the wait has ended, for whatever reason."""
    results = _begin(threads.Bell(), lambda action: False)
    return lambda: results is None or bool(results)


def _begin(done: threads.Bell, elsewhere: Callable[[Callable[[], None]], bool]) -> list[bool] | None:
    """What will hold the answer once ``done`` rings; None where nobody can wait."""
    results: list[bool] = []
    api = cuda.SOURCE.api()
    found = contexts(api) if api is not None and cuda.SOURCE.is_live() else []

    def wait() -> None:
        good = False
        try:
            good = all(_wait_in(api, context) for context in found)
        finally:
            results.append(good)
            done.set()

    if not found:
        wait()
    elif threads.start(wait, "gpusense wait") is None and not elsewhere(wait):
        return None
    return results


def contexts(api: Any) -> list[int]:
    """The context of this thread and the primary contexts that are active; none is made."""
    found: list[int] = []
    context = c_void_p()
    if api.cuCtxGetCurrent(byref(context)) == 0 and context.value:
        found.append(context.value)
    for ordinal in range(count(api)):
        flags, active = c_uint(), c_int()
        if api.cuDevicePrimaryCtxGetState(ordinal, byref(flags), byref(active)) != 0 or not active.value:
            continue
        if api.cuDevicePrimaryCtxRetain(byref(context), ordinal) == 0:
            api.cuDevicePrimaryCtxRelease_v2(ordinal)  # active anyway: only its handle was wanted
            if context.value and context.value not in found:
                found.append(context.value)
    return found


@contextmanager
def relaxed(api: Any, context: int) -> Iterator[bool]:
    """``context`` current, and calls allowed that would break a stream capture of this thread; whether that worked."""
    mode = c_int(RELAXED)
    if api.cuThreadExchangeStreamCaptureMode:
        api.cuThreadExchangeStreamCaptureMode(byref(mode))
    pushed = api.cuCtxPushCurrent_v2(context) == 0
    try:
        yield pushed
    finally:
        if pushed:
            api.cuCtxPopCurrent_v2(byref(c_void_p()))
        if api.cuThreadExchangeStreamCaptureMode:
            api.cuThreadExchangeStreamCaptureMode(byref(mode))  # back to what it was


def _wait_in(api: Any, context: int) -> bool:
    with relaxed(api, context) as pushed:
        return pushed and bool(api.cuCtxSynchronize() == 0)
