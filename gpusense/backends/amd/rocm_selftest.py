"""Tries librocm_smi in a child process, because it can abort its process, or wait for ever on a machine-wide lock.

A child that dies or hangs costs the caller nothing but the time limit; the last call it announced is the reason.
"""

import os
import sys
import time

from ..._capi import rocm_smi as capi
from ..._records.records import Unavailable

#: Announces each call before making it. Values of the calls do not matter here, only that they return.
_CHILD = """
import ctypes, json, sys
path, calls = sys.argv[1], json.loads(sys.argv[2])
def announce(text):
    print("gpusense " + text, flush=True)
announce("load")
library = ctypes.CDLL(path)
def call(name, *arguments):
    announce(name)
    try:
        function = library[name]
    except AttributeError:
        return 0
    return function(*arguments)
code = call("rsmi_init", ctypes.c_uint64(0))
if code:
    announce("code %d" % code)
    sys.exit(0)
count = ctypes.c_uint32()
call("rsmi_num_monitor_devices", ctypes.byref(count))
for device in range(count.value):
    bdf = ctypes.c_uint64()
    call("rsmi_dev_pci_id_get", ctypes.c_uint32(device), ctypes.byref(bdf))
    for name, arguments, skipped in calls:
        if bdf.value in skipped:
            continue
        passed = [ctypes.create_string_buffer(16384) if x is None else ctypes.c_uint64(x) for x in arguments]
        call(name, ctypes.c_uint32(device), *passed)
announce("devices %d" % count.value)
"""

#: (function, arguments after the device; None is an output, PCI ids of devices to leave out)
Call = tuple[str, tuple[int | None, ...], tuple[int, ...]]


def run(path: str, calls: list[Call], limit_s: float) -> int | Unavailable:
    """How many devices the library lists if every call returned in time, or what happened instead."""
    import json
    import subprocess

    python = sys.executable or ""
    if not os.path.basename(python).lower().startswith(("python", "pypy")):
        return Unavailable(
            "rocm_smi", f"no Python to test the library with: this process runs in {python or 'nothing'}"
        )
    started = time.monotonic()
    command = [python, "-I", "-S", "-c", _CHILD, path, json.dumps(calls)]
    try:
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        last = _announced(late.stdout)[-1]
        return Unavailable("rocm_smi", f"{last} did not return within {limit_s:g} s", _LOCK)
    except OSError as error:
        return Unavailable("rocm_smi", f"the library could not be tested: {error}")
    said = _announced(child.stdout)
    if child.returncode:
        return Unavailable("rocm_smi", f"{said[-1]} ended its process ({_ending(child.returncode)})", _INSTEAD)
    if said[-1].startswith("code "):
        waited = time.monotonic() - started > 4  # the library gives up on a lock after 5 s
        return Unavailable("rocm_smi", f"rsmi_init: {_name(said[-1])}", _LOCK if waited else _INSTEAD)
    return int(said[-1].removeprefix("devices "))


_INSTEAD = "amd_sysfs reads AMD GPUs instead"
_LOCK = "a program that died in librocm_smi may have left /dev/shm/rocm_smi_card* locked; removing them frees it"


def _announced(output: bytes | None) -> list[str]:
    lines = (output or b"").decode("utf-8", "replace").splitlines()
    return [line[9:] for line in lines if line.startswith("gpusense ")] or ["loading it"]


def _name(code: str) -> str:
    number = int(code.removeprefix("code "))
    return f"{capi.CODES.get(number, 'unknown code')} ({number})"


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
