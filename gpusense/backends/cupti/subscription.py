"""CUPTI has one subscription a process: asking whether it is free, and holding it."""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_void_p
from typing import Any

from ..._capi import cupti as capi
from ..._runtime import threads

_QUESTION_S = 1.0


class Subscription:
    """CUPTI's one subscription of the process, where it is ours: who asks meanwhile must not see another profiler."""

    def __init__(self) -> None:
        self._lock = threads.lock()
        self.held = False

    def ask(self, api: Any) -> int:
        """CUPTI's answer to a subscriber that is taken and given back at once; 0, too, where we have one."""
        if not api.cuptiSubscribe:
            return 0
        # With a limit: a library that does not come back from one question must not hold all who ask.
        locked = self._lock.acquire(timeout=_QUESTION_S)
        try:
            if self.held:
                return 0
            # The function is never called, since no domain is enabled; it only must not be NULL.
            subscriber, function = c_void_p(), ctypes.cast(api.cuptiGetVersion, c_void_p)
            code: int = api.cuptiSubscribe(byref(subscriber), function, None)
            if code == 0:
                api.cuptiUnsubscribe(subscriber)
            return code
        finally:
            if locked:
                self._lock.release()

    def take(self, api: Any, callback: int, data: int | None) -> tuple[c_void_p, Callable[[], None]]:
        """A subscriber that lasts, and what gives it back. Raises :class:`BackendError` where CUPTI refuses."""
        subscriber = c_void_p()
        locked = self._lock.acquire(timeout=_QUESTION_S)
        try:
            capi.check("cuptiSubscribe", api.cuptiSubscribe(byref(subscriber), callback, data))
            self.held = True
        finally:
            if locked:
                self._lock.release()
        given_back: list[bool] = []

        def give_back() -> None:
            if not given_back:
                given_back.append(True)
                api.cuptiUnsubscribe(subscriber)
                self.held = False

        return subscriber, give_back


#: The one of this process, as this copy of the package has it.
SUBSCRIPTION = Subscription()
