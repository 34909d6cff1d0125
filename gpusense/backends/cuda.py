"""CUDA as seen from outside: is it live, which driver, which devices.

Never loads libcuda, calls cuInit or makes a context. "Live" means that the program itself has loaded libcuda and
initialised it. Until then there is nothing to see, and asking would change what the program does: a process in which
CUDA was initialised cannot use it in forked children.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref
from typing import Any

from .._capi import cuda as capi
from .._capi.binding import bind
from .._capi.cuda_facts import (
    MemoryInfo,
    count,
    describe,
    has_context,
    lacking,
    memory_info_without_context,
    version_of,
)
from .._capi.handles import already_loaded
from .._capi.libraries import CUDA
from .._capi.loading import Loaded, load, locate
from .._records.occupancy import Limits
from .._records.protocols import Backend
from .._records.records import DeviceInfo, Unavailable
from .._runtime.errors import BackendError

#: A look through all mappings costs up to a millisecond in a big process: after each in vain the next comes later.
_RESCAN_S, _LONGEST_RESCAN_S = 0.1, 10.0
_ASK_LOADER_S = 0.005  # asking the loader for the bare name costs some 50 µs


class CudaSource:
    """The devices of a live CUDA, and nothing before that. Safe from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._api: Any = None
        self._clock = clock
        self._next_scan = self._next_question = float("-inf")
        self._rescan_s = _RESCAN_S
        self._starting = 0

    def api(self) -> Any:
        """The driver's functions if libcuda is in this process, else None. Cheap enough for every block start."""
        if self._api is None and self._look_now():
            loaded = load(CUDA, only_mapped=True)
            api = bind(loaded.library, capi.PROTOTYPES, loaded.path) if isinstance(loaded, Loaded) else None
            if api is not None and not lacking(api):
                self._api = api
            else:
                self._next_scan = self._clock() + self._rescan_s
                self._rescan_s = min(self._rescan_s * 2, _LONGEST_RESCAN_S)
        return self._api

    def _look_now(self) -> bool:
        """Often by the loader's own list of names, now and then through all mappings (another name, a deleted file)."""
        now = self._clock()
        if now >= self._next_scan:
            return True
        if now < self._next_question:
            return False
        self._next_question = now + _ASK_LOADER_S
        override = os.environ.get(CUDA.env)
        names = (override,) if override else {"linux": CUDA.linux, "win32": CUDA.win32}.get(sys.platform, ())
        return any(already_loaded(name) is not None for name in names)

    def is_live(self) -> bool:
        """Whether the program has initialised CUDA: libcuda is mapped, and counting devices succeeds. Also within
        :meth:`starting`."""
        api = self.api()
        return api is not None and bool(self._starting or api.cuDeviceGetCount(byref(ctypes.c_int())) == 0)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """The program is in the middle of ``cuInit``, which counts as live: there CUPTI may be called."""
        self._starting += 1
        self._next_scan = float("-inf")
        try:
            yield
        finally:
            self._starting -= 1

    def driver_version(self) -> tuple[int, int] | None:
        """(major, minor) of the newest CUDA the driver supports; None while libcuda is not in this process."""
        api = self.api()
        return version_of(api) if api is not None else None

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices CUDA shows this process, by its own ordinals; none while CUDA is not live."""
        return (
            tuple(describe(self._api, ordinal) for ordinal in range(count(self._api)))
            if self.is_live() and not self._starting
            else ()
        )

    def in_use(self) -> list[int]:
        """The devices on which this process has its primary context; none is made for the question."""
        return [info.index for info in self.devices() if has_context(self._api, info.index)]

    def limits(self, ordinal: int) -> Limits | None:
        """What bounds occupancy on a device; None while CUDA is not live or where it does not say."""
        return Limits.of(describe(self._api, ordinal)) if self.is_live() else None

    def memory_info(self, ordinal: int) -> MemoryInfo | Unavailable:
        """Free and total memory of a device, asked in a context that already exists: none is made for the question."""
        if not self.is_live():
            return Unavailable("cuda", "CUDA is not initialised in this process")
        try:
            return memory_info_without_context(self._api, ordinal)
        except BackendError as error:
            return Unavailable("cuda", str(error))


#: The one source of this process: :func:`open` hands it out, and the question whether CUDA is live goes here.
SOURCE = CudaSource()


def open() -> Backend | Unavailable:
    """The backend if the driver's library is in this process or could be loaded; nothing is loaded to find out."""
    loaded = load(CUDA, only_mapped=True)
    if isinstance(loaded, Unavailable):
        path = locate(CUDA)
        return path if isinstance(path, Unavailable) else Backend("cuda", path, devices=SOURCE)
    api = bind(loaded.library, capi.PROTOTYPES, loaded.path)
    names = lacking(api)
    if names:
        return Unavailable("cuda", f"{loaded.path} lacks {', '.join(names)}: no CUDA driver, or one before CUDA 11.7")
    version = version_of(api)
    return Backend("cuda", loaded.path, f"CUDA {version[0]}.{version[1]}" if version else None, devices=SOURCE)
