"""Tries the profilers of a device in a child process: some releases of CUPTI crash there (13.5 did), or never return.

A child that dies or hangs costs the program nothing but the time; the last call that it announced is the reason. What
went well is not tried again in this process, nor by others of the user's with the same driver, library and device.
"""

import os
import sys
import time
from typing import Any

from ...._capi import cuda as cuda_capi
from ...._capi import cuda_facts
from ...._records.records import Unavailable
from ...._runtime import cache, child
from ...._runtime.errors import GpuSenseError
from . import permission

LIMIT_S = 20.0
SAMPLER, RANGES = "sampler", "range profiler"  # what is tried
#: That the child waits for its first two samples.
_SAMPLES_S = 3.0
_INTERVAL_NS = 1_000_000
_INJECTION = "CUDA_INJECTION64_PATH"  # another tool's, or a run's: not into the child

_passed: set[str] = set()


def passed(path: str, device: int, identity: str, limit_s: float = LIMIT_S, what: str = SAMPLER) -> Unavailable | None:
    """None where the sampler of ``device``, or ``what``, works in a child; else what happened. ``path``: of libcupti.
    ``identity``: of driver and device, so that what went well is known again."""
    shared = permission.under_mps()
    if shared is not None:
        return shared
    key = _key(path, identity if what == SAMPLER else f"{identity} {what}")
    if key in _passed or _known(key):
        _passed.add(key)
        return None
    refused = _try(path, device, limit_s, what)
    if refused is None:
        _passed.add(key)
        _remember(key)
    return refused


def _try(path: str, device: int, limit_s: float, what: str) -> Unavailable | None:
    import subprocess

    if not child.can_run():
        return Unavailable(
            "counters", f"no Python to try the {what} with: this process runs in {sys.executable or 'nothing'}"
        )
    try:
        done = child.run(__name__, path, str(device), what, timeout_s=limit_s)
    except subprocess.TimeoutExpired as late:
        last = _announced(late.stdout)
        return Unavailable(
            "counters", f"tried in a child process, {last} did not return within {limit_s:g} s", "try another libcupti"
        )
    except OSError as error:
        return Unavailable("counters", f"the {what} could not be tried: {error}")
    last = _announced(done.stdout)
    if last == "passed":
        return None
    if done.returncode < 0 or not last.startswith("refused "):
        ending = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return Unavailable(
            "counters",
            f"tried in a child process, {last} ended it ({ending}): {path} cannot read counters here",
            "use the libcupti of another CUDA release, as GPUSENSE_LIBCUPTI names it",
        )
    return Unavailable("counters", last.removeprefix("refused "))


def main(path: str, device: str, what: str = SAMPLER) -> int:
    """In the child: enables, counts, reads and ends, each call announced before it is made."""
    os.environ.pop(_INJECTION, None)
    try:
        (_sample if what == SAMPLER else _count)(path, int(device))
    except GpuSenseError as error:
        _announce(f"refused {error}")
    else:
        _announce("passed")
    os._exit(0)  # what CUPTI does at the end of a process is not what is tried


def _opened(path: str) -> tuple[Any, Any]:
    """CUPTI's profiler and an initialised driver."""
    import ctypes

    from ...._capi.binding import bind
    from ...._capi.libraries import CUDA
    from ...._capi.loading import Loaded, load
    from . import host

    _announce("loading CUDA")
    driver = load(CUDA)
    if not isinstance(driver, Loaded):
        raise GpuSenseError(driver.reason)
    cuda: Any = bind(driver.library, cuda_capi.PROTOTYPES, driver.path)
    _announce("cuInit")
    cuda_capi.check("cuInit", cuda.cuInit(0))
    _announce(f"loading {path}")
    return host.bind_api(ctypes.CDLL(path), path), cuda


def _count(path: str, device: int) -> None:
    """Two ranges with different sets, around a memset."""
    from ctypes import byref, c_uint64, c_void_p

    from . import ranges

    api, cuda = _opened(path)
    context, memory = c_void_p(), c_uint64()
    _announce("cuDevicePrimaryCtxRetain")
    cuda_capi.check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    cuda_capi.check("cuCtxPushCurrent", cuda.cuCtxPushCurrent_v2(context))
    cuda_capi.check("cuMemAlloc", cuda.cuMemAlloc_v2(byref(memory), 1 << 20))
    profiler = ranges.RangeProfiler(api, cuda, context.value or 0, device, _announce)
    for name in profiler.sets[:2]:
        begun = profiler.begin(name)
        cuda_capi.check("cuMemsetD8", cuda.cuMemsetD8_v2(memory, 0, 1 << 20))
        if not begun or profiler.end() is None:
            raise GpuSenseError(f"a range around a memset counted nothing with {name}")


def _sample(path: str, device: int) -> None:
    from ...._runtime.errors import BackendError
    from .sampler import opened

    api, cuda = _opened(path)
    sampler = opened(api, cuda, device, _INTERVAL_NS, _announce)
    sampler.start()
    deadline, seen = time.monotonic() + _SAMPLES_S, 0
    while seen < 2:
        time.sleep(0.02)
        seen += len(sampler.read().starts)
        if time.monotonic() > deadline:
            raise BackendError("cuptiPmSamplingDecodeData", 13, f"{seen} samples came in {_SAMPLES_S:g} s")
    sampler.stop()
    sampler.end()


def _announce(text: str) -> None:
    sys.stdout.write(f"gpusense {text}\n")
    sys.stdout.flush()


def _announced(output: bytes | None) -> str:
    lines = (output or b"").decode("utf-8", "replace").splitlines()
    said = [line.removeprefix("gpusense ") for line in lines if line.startswith("gpusense ")]
    return said[-1] if said else "starting Python"


def identity(api: Any, device: int) -> str:
    """What the answer depends on besides the library: the driver and the device."""
    version = cuda_facts.version_of(api)
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            driver = file.readline().strip()
    except OSError:
        driver = ""
    return f"{version} {driver} {cuda_facts.uuid(api, device)}"


def _key(path: str, identity: str) -> str:
    from zlib import crc32

    try:
        found = os.stat(path)
        library = f"{path} {found.st_size} {found.st_mtime_ns}"
    except OSError:
        library = path
    return f"{crc32(f'{library} {identity}'.encode()):08x}"


def _known(key: str) -> bool:
    folder = cache.folder("counters")
    return folder is not None and os.path.exists(os.path.join(folder, key))


def _remember(key: str) -> None:
    folder = cache.private("counters")
    if folder is not None:
        try:
            with open(os.path.join(folder, key), "w", encoding="ascii"):
                pass
        except OSError:
            pass
