"""What gpusense finds on this machine: every source, with the reason where it is absent, and a self-test on a GPU."""

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._records.records import DeviceInfo, Unavailable
from ._runtime.process import PATIENCE_S, answer
from ._runtime.threads import free_threaded


class Check(NamedTuple):
    """One line of the report. ``reason`` and ``hint`` say what is missing, or what is noteworthy, and what to do."""

    name: str
    available: bool
    reason: str = ""
    hint: str = ""
    library: str | None = None
    version: str | None = None


class SelfTest(NamedTuple):
    """``passed`` is None where there was nothing to test on. Expected: exactly one kernel and one copy."""

    passed: bool | None
    kernels: int
    transfers: int
    reason: str


_SILENT = f"has not answered for {PATIENCE_S:.0f} s"

#: Variables with which other tools load themselves into a CUDA program.
_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD")


def report() -> list[Check]:
    """Every backend, in the order they are asked, what can be measured without recording kernels, then what else
    capture depends on. Opens the backends; starts no capture."""
    checks = backends()
    return [*checks, *levels(checks), *environment()]


def backends() -> list[Check]:
    """Every source of devices, metrics or activity, in the order they are asked."""
    from .backends import BACKENDS

    return [_backend(row.name, _opened(row.name)) for row in BACKENDS]


def levels(checks: Sequence[Check]) -> list[Check]:
    """What an NVIDIA card tells without a record of each kernel, the least first, what would give the next, and whether
    it can time each kernel itself.

    Empty where ``checks``, of the backends, found no NVIDIA driver.
    """
    rows = {check.name: check for check in checks}
    if not (rows["cuda"].available or rows["nvml"].available):
        return []
    known = [device for device in devices(checks)[0] if device.vendor == "nvidia"]
    newest = max((device.compute_capability or (0, 0) for device in known), default=(0, 0))
    return [
        _block_times(rows["cuda"]),
        _averages(rows["nvml"], newest),
        _counters(rows["cupti"], newest),
        _hardware_events(rows["cupti"], newest),
    ]


def _block_times(cuda: Check) -> Check:
    from ._tracing.select import control

    how = "CUDA events at the edges of blocks: gpusense run --light"
    if control.settings().kernels == "blocks":
        how = "kernels='blocks': CUDA events at the edges of blocks, and kernels are not recorded"
    return Check("block times", cuda.available, how if cuda.available else cuda.reason)


def _averages(nvml: Check, newest: tuple[int, int]) -> Check:
    reason = nvml.reason
    if nvml.available:
        reason = "" if newest >= (9, 0) else "device averages of SMs, tensor cores and memory come with Hopper"
    how = "device averages of SMs, tensor cores and memory: gpusense monitor --gpm"
    return Check("averages", not reason, reason or how)


def _counters(cupti: Check, newest: tuple[int, int]) -> Check:
    from .backends.cupti.counters import host, permission

    if not cupti.available:
        return Check("counters", False, cupti.reason, cupti.hint)
    if newest < (7, 5):
        return Check("counters", False, "hardware counters over time come with Turing (compute capability 7.5)")
    for found in (permission.refusal(), host.open_api()):
        if isinstance(found, Unavailable):
            return Check("counters", False, found.reason, found.hint)
    return Check("counters", True, "hardware counters over time and by block: gpusense run --counters")


def _hardware_events(cupti: Check, newest: tuple[int, int]) -> Check:
    from .backends.cupti.hardware_events import lacking

    number = (cupti.version or "").strip(")").rpartition("(")[2]  # known where CUDA is live
    reason = lacking(newest, int(number) if number.isdecimal() else None) if cupti.available else cupti.reason
    how = "the device times each kernel, experimental, with CUDA 13.4 Update 1 or later: GPUSENSE_KERNELS=hardware"
    return Check("hardware events", not reason, reason or how)


def _opened(name: str) -> Any:
    """The backend, or why not; also where its driver does not return, which is when people ask."""
    from .backends import open_backend

    silent: Any = Unavailable(name, _SILENT, "its driver hangs: look for its errors in dmesg")
    return answer(lambda: open_backend(name), f"gpusense-doctor-{name}", silent)


def devices(checks: Sequence[Check] = ()) -> tuple[tuple[DeviceInfo, ...], tuple[str, ...]]:
    """As :func:`gpusense.devices`, and the names of the sources that have not answered, now or for ``checks``."""
    from .backends import all_devices

    return all_devices(without=[check.name for check in checks if check.reason == _SILENT])


def environment() -> list[Check]:
    """The interpreter, the platform, how CUPTI would call us, what other tools do here, and our variables."""
    from .backends.cupti.injection import is_ours

    checks = [_python(), _platform(), _callbacks(), _collectives()]
    for name in _INJECTIONS:
        value = os.environ.get(name)
        if value and not is_ours(value):
            checks.append(Check(name, True, f"{value} is loaded into CUDA programs; one profiler at a time can record"))
    return checks + _variables()


def _collectives() -> Check:
    """Whether NCCL can tell of its collectives, or another profiler has that place."""
    from .backends.nccl.plugin import why_not

    absent = why_not()
    if absent is not None:
        return Check("collectives", False, absent.reason, absent.hint)
    return Check("collectives", True, "NCCL 2.24 or later tells of them under gpusense run")


def _variables() -> list[Check]:
    """Each variable of ours that is set, with its value, or why it has no effect."""
    from ._capi.libraries import LIBRARIES
    from ._runtime import config

    known = {
        "GPUSENSE",
        "GPUSENSE_KEEP",  # of gpusense run
        "GPUSENSE_RUN",  # by which a process finds the run that it belongs to
        *(f"GPUSENSE_{name.upper()}" for name in config.Settings._fields),
        *(x.env for x in LIBRARIES),
    }
    ignored = {problem.partition("=")[0]: problem for problem in config.from_environment()[1]}
    checks = []
    for name in sorted(name for name in os.environ if name.startswith("GPUSENSE")):
        wrong = ignored.get(name)
        if name not in known and not name.startswith("GPUSENSE_OTEL"):
            wrong = f"{name}={os.environ[name]!r} is ignored: no setting has this name{_near(name, known)}"
        checks.append(Check(name, wrong is None, wrong or os.environ[name]))
    return checks


def _near(name: str, known: set[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def selftest(device: int = 0) -> SelfTest:
    """Launches one kernel and one copy on a real GPU and counts what is recorded of them."""
    from ._runtime.errors import GpuSenseError

    try:
        session, status = _traced(device)
    except GpuSenseError as error:
        return SelfTest(None, 0, 0, f"nothing could be launched: {error}")
    kernels, transfers = len(session.kernels), len(session.transfers)
    if (kernels, transfers) == (1, 1):
        return SelfTest(True, 1, 1, "one kernel and one copy were launched and recorded")
    why = f"; capture was {status.get('state')}" + (f": {status['reason']}" if status.get("reason") else "")
    return SelfTest(
        False, kernels, transfers, f"one kernel and one copy were launched, {kernels} and {transfers} recorded{why}"
    )


def wgpu_selftest() -> str:
    """Whether wgpu computes and times here, in words; tried in a child process."""
    from .backends.wgpu.source import self_test

    found = self_test()
    if isinstance(found, Unavailable):
        return f"self-test not possible: {found.reason}"
    word = "passed" if found["correct"] else "FAILED: the result is wrong"
    return f"self-test {word}, on {found['adapter']} through {found['backend']}"


def _traced(device: int) -> tuple[Any, dict[str, Any]]:
    from ._tracing.select import control
    from .cuda import _workload

    runs = []

    def ready() -> None:
        runs.append(control.start_session(mode="live", trace_all=True))
        with runs[0].tracer.trace("selftest"):  # capture attaches at the latest when a block is opened
            pass

    try:
        _workload.selftest(ready, device)
    except BaseException:
        for run in runs:
            run.finish()
        raise
    session = runs[0].finish()
    return session, session.meta.get("capture") or {}


def _backend(name: str, found: Any) -> Check:
    if isinstance(found, Unavailable):
        return Check(name, False, found.reason, found.hint)
    return Check(name, True, library=found.library, version=found.version)


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    implementation = sys.implementation.name
    reason = hint = ""
    if implementation != "cpython":
        reason = f"capture needs CPython; this is {implementation}"
    elif free_threaded():
        reason, hint = "capture is not supported by a free-threaded Python", "run with the usual build of Python"
    return Check("python", not reason, reason, hint, library=sys.executable, version=version)


def _platform() -> Check:
    import platform

    text = f"{platform.system()} {platform.release()} {platform.machine()}"
    reason = hint = ""
    if "microsoft" in platform.release().lower():
        reason, hint = "WSL: kernels are recorded only where the Windows driver allows it", "gpusense doctor --selftest"
    elif sys.platform == "darwin":
        reason = "macOS has no CUDA; kernels are not recorded here"
    return Check("platform", True, reason, hint, version=text)


def _callbacks() -> Check:
    """How CUPTI would hand over its buffers: machine code, which never waits for the GIL, or ctypes callbacks."""
    try:
        from .backends.cupti.mailbox import Mailbox

        made = Mailbox(count=2, size=4096)
    except (ImportError, OSError, AttributeError) as error:
        return Check("callbacks", False, f"{type(error).__name__}: {error}")
    hint = "launches may wait for the GIL; allow executable memory for this process" if made.mode == "ctypes" else ""
    return Check("callbacks", True, made.reason, hint, version=made.mode)
