"""The NVML library of this process: initialised when first needed, again after a fork or after someone shut it down."""

import ctypes
import os
from typing import Any

from ..._capi import nvml as c
from ..._capi.binding import bind, missing
from ..._runtime import threads
from ..._runtime.text import decoded, printable


class Absent:
    """Stands in for a function that this driver lacks: false, and answers FUNCTION_NOT_FOUND."""

    argtypes = ()

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __bool__(self) -> bool:
        return False

    def __call__(self, *_arguments: object) -> int:
        return c.FUNCTION_NOT_FOUND


def bound(library: ctypes.CDLL, path: str) -> Any:
    """Every function of the table, so that calling one never raises."""
    api = bind(library, c.NVML, path)
    for name in missing(api):
        setattr(api, name, Absent(name))
    return api


class NvmlError(Exception):
    """An NVML call failed in a way that ends the sample: the device or the whole library is gone."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {c.code_name(code)}")
        self.code = code


class DeviceGone(NvmlError):
    """This device does not answer any more; others may."""


class LibraryGone(NvmlError):
    """NVML was shut down under us, or the driver was reloaded."""


class Nvml:
    """One loaded library. ``generation`` grows with every initialisation; handles of an older one are void."""

    def __init__(self, api: Any, path: str, version: str | None = None) -> None:
        self.api = api
        self.path = path
        self.version = version
        self.generation = 0
        #: False while some device of the machine sleeps: plain initialisation would attach to it and wake it. Without
        #: attaching, driver 580 counts no device at all, so it is not done where nothing sleeps.
        self.attach = True
        self._lock: Any = threads.rlock()  # a signal handler may ask in the middle of a question
        self._lock_pid = os.getpid()
        self._pid = 0

    def ready(self) -> int:
        """The current generation, initialising if need be; raises :class:`LibraryGone` with the driver's code.

        A forked child initialises its own copy and never shuts down what it inherited.
        """
        pid = os.getpid()
        if self._pid == pid:
            return self.generation
        with self._guard():
            if self._pid != pid:
                self._initialise()
                self._pid = pid
                self.generation += 1
        return self.generation

    def lost(self, generation: int, code: int) -> None:
        """Called with the generation in which a call said that the library is gone; the next ``ready`` starts anew."""
        with self._guard():
            if generation != self.generation or self._pid != os.getpid():
                return
            if code != c.UNINITIALIZED:
                self.api.nvmlShutdown()
            self._pid = 0

    def close(self) -> None:
        """Balances our own initialisation, once. The library stays loaded."""
        with self._guard():
            if self._pid == os.getpid():
                self.api.nvmlShutdown()
            self._pid = 0

    def _guard(self) -> Any:
        """The lock; a new one in a forked child, where a thread of the parent may have left it held for ever."""
        if self._lock_pid != os.getpid():
            self._lock, self._lock_pid = threads.rlock(), os.getpid()
        return self._lock

    def _initialise(self) -> None:
        flags = 0 if self.attach else c.NO_ATTACH
        call, code = "nvmlInit_v2", c.FUNCTION_NOT_FOUND
        if self.attach:
            code = self.api.nvmlInit_v2()
        if code == c.FUNCTION_NOT_FOUND and self.api.nvmlInitWithFlags:
            call = "nvmlInitWithFlags"
            code = self.api.nvmlInitWithFlags(flags)
        if code in c.ABSENT | c.REFUSED and not self.attach:  # a driver without the flag
            call = "nvmlInit_v2"
            code = self.api.nvmlInit_v2()
        if code != c.SUCCESS:
            raise LibraryGone(call, code)

    def count(self) -> int:
        """How many devices the driver counts; raises :class:`LibraryGone` where it does not answer."""
        value = ctypes.c_uint()
        code = self.api.nvmlDeviceGetCount_v2(ctypes.byref(value))
        if code != c.SUCCESS:
            raise LibraryGone("nvmlDeviceGetCount_v2", code)
        return value.value

    def text(self, function: Any, *handle: Any, size: int = 96) -> str | None:
        """A string the library writes: bounded, never trusted to end or to be UTF-8; None where the call fails."""
        buffer = ctypes.create_string_buffer(size)
        return as_text(buffer.raw) if function(*handle, buffer, size) == c.SUCCESS else None

    def number(self, function: Any, *arguments: Any) -> int | None:
        """An unsigned int the library writes, or None where the call fails for any reason."""
        value = ctypes.c_uint()
        return value.value if function(*arguments, ctypes.byref(value)) == c.SUCCESS else None

    def handle(self, function: Any, *arguments: Any) -> tuple[int, int]:
        """(result code, handle). The handle is 0 unless the code is SUCCESS, and 0 is never passed on."""
        value = ctypes.c_void_p()
        code = function(*arguments, ctypes.byref(value))
        if code == c.SUCCESS and not value.value:
            return c.NOT_FOUND, 0
        return code, (value.value or 0) if code == c.SUCCESS else 0


def as_text(raw: bytes) -> str | None:
    """The bytes up to the first NUL as text without control characters; None where nothing is left."""
    return printable(decoded(raw.split(b"\0", 1)[0])).strip() or None
