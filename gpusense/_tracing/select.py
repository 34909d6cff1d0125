"""Which tracer is active: decided on first use, swapped as an instance, never asked about on the path of a block."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._records.records import DeviceInfo, Unavailable
from .._runtime import config, log, package
from .._runtime.config import Settings
from .._runtime.errors import GpuSenseError
from . import noop

_OFF = "gpusense is off"
_layers = config.Layers()
_lock: Any = None
_tracer: Any = None  # the live one, kept while disabled
_forked = ""  # why capture is not possible in this process, where it was forked from one that captured
_sinks: list[Callable[..., Any]] = []  # that wait for a live one
#: Called with each live tracer that is made, before its first block; a forked child makes one of its own.
followers: list[Callable[[Any], None]] = []
_disabled = False  # before there was anything to disable


def _guard() -> Any:
    global _lock
    if _lock is None:
        from .._runtime.threads import OwnedLock

        _lock = OwnedLock()
    return _lock


def settings() -> Settings:
    """The settings in force, environment first."""
    resolved = _layers.resolve()
    for problem in _layers.problems:
        log.once(problem, "gpusense: %s", problem)
    return resolved


def possible() -> Unavailable | None:
    """None where a source of GPU work could be in this process; else why not. Loads nothing, starts nothing."""
    for name in ("GPUSENSE_LIBCUDA", "GPUSENSE_LIBCUPTI"):
        if os.environ.get(name):
            return None
    if sys.platform == "linux":
        if any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/proc/driver/nvidia")):
            return None
        from .._capi.handles import mapped_files
        from .._capi.libraries import CUDA

        if any(os.path.basename(path).startswith(CUDA.mapped) for path in mapped_files()):
            return None
        return Unavailable("cuda", "no NVIDIA device node and no CUDA driver library in this process")
    if sys.platform == "win32":
        root = os.environ.get("SYSTEMROOT", "C:/Windows")
        if os.path.exists(os.path.join(root, "System32", "nvcuda.dll")):
            return None
        return Unavailable("cuda", "nvcuda.dll is not installed")
    return Unavailable("cuda", f"there is no CUDA driver for {sys.platform}")


def resolve() -> Any:
    """The tracer of this process, made on first use: a NoopTracer with the reason where that fails.

    None to a finaliser or signal handler that runs on this thread in the middle of the decision.
    """
    guard = _guard()
    if guard.mine:
        return None
    with guard:
        try:
            return _tracer if _tracer is not None else _make()
        except Exception as error:  # noqa: BLE001 - trace() never raises
            log.exception("resolve", "gpusense: nothing is recorded")
            return noop.NoopTracer(f"gpusense could not start: {type(error).__name__}: {error}", Settings())


def _make() -> Any:
    global _tracer
    wanted = settings()
    if wanted.mode == "off":
        return noop.NoopTracer("gpusense is off (GPUSENSE=off)", wanted)
    if _disabled:
        return noop.NoopTracer(_DISABLED, wanted)
    absent = _absent()
    if absent is not None and wanted.mode != "on":
        return noop.NoopTracer(f"nothing to record: {absent.reason}", wanted)
    made = _live(wanted, absent is None)
    if made._worker.started:
        _tracer = made
        return made
    return noop.NoopTracer("no thread can be started to record with", wanted)


def _absent() -> Unavailable | None:
    return Unavailable("cupti", _forked) if _forked else possible()


def _live(wanted: Settings, capture: bool) -> Any:
    from .._capture.attachment import Capture
    from .._capture.recorder import Recorder
    from .tracer import Tracer

    left_out = _left_out(wanted) if capture else ""
    recorder = Recorder(wanted, Capture(wanted) if capture and not left_out else None)
    recorder.absent = _forked or left_out or recorder.absent
    tracer = Tracer(wanted, recorder)
    _hand_sinks(tracer)
    for follower in followers:
        try:
            follower(tracer)
        except Exception:  # noqa: BLE001, PERF203 - the tracer works without
            log.exception(f"follower {follower!r}", "gpusense: a new tracer could not be followed")
    return tracer


def _left_out(wanted: Settings) -> str:
    """Why kernels are not to be captured although they could be; empty where they are."""
    if wanted.backends is None or "cupti" in wanted.backends:
        return ""
    return f"the setting backends={','.join(wanted.backends) or '()'} leaves out cupti"


def _hand_sinks(tracer: Any) -> None:
    while _sinks:
        tracer.add_sink(_sinks.pop(0))


def configure(defaults: bool = False, sinks: Sequence[Callable[..., Any]] | None = None, **changes: Any) -> Settings:
    """See :func:`gpusense.configure`."""
    checked = {name: config.check(name, value) for name, value in changes.items()}
    sinks = _checked_sinks(sinks)
    layer = _layers.host if defaults else _layers.application
    before = dict(layer)
    layer.update(checked)
    resolved = settings()
    if resolved.strict and resolved.backends is not None:
        try:
            _require(resolved.backends)
        except GpuSenseError:  # nothing has changed, or every later call would raise as well
            layer.clear()
            layer.update(before)
            raise
    _rebuild(resolved, sinks)
    return resolved


def _checked_sinks(sinks: Any) -> list[Callable[..., Any]]:
    found = list(sinks) if isinstance(sinks, (list, tuple, set)) else [] if sinks is None else [sinks]
    for sink in found:
        if not callable(sink):
            raise config.ConfigurationError(f"sinks must be callables that get lists of records, not {sink!r}")
    return found


def _require(names: Sequence[str]) -> None:
    from .._runtime.errors import BackendUnavailable

    for name in names:
        state = open_backend(name)
        if not state:
            raise BackendUnavailable(str(state))


def _rebuild(resolved: Settings, sinks: Sequence[Callable[..., Any]]) -> None:
    """The live tracer goes on with the new settings and keeps what it has; without one, one may be made now."""
    from .. import _activate, _active_tracer

    _sinks.extend(sinks)
    if resolved.mode == "off":
        if _tracer is not None:
            disable()
        _activate(noop.NoopTracer(_OFF, resolved))
    elif _tracer is not None:
        was_off = getattr(_active_tracer(), "reason", None) == _OFF
        _tracer.reconfigure(resolved)
        if was_off:
            enable()
    else:
        made = resolve()
        if made is not None:  # else this interrupted the first decision, which goes on
            _activate(made)
    if _tracer is not None:
        _hand_sinks(_tracer)


def enable() -> bool:
    """The live tracer becomes the active one, also where no source is there; False under ``GPUSENSE=off``."""
    global _tracer, _disabled
    from .. import _activate

    wanted = settings()
    if wanted.mode == "off":
        return False
    _disabled = False
    guard = _guard()
    if guard.mine:  # a signal handler or finaliser in the middle of the decision
        return False
    with guard:  # while it is made, too: a second one would go on capturing beside the first
        if _tracer is None:
            made = _live(wanted, _absent() is None)
            if not made._worker.started:
                return False
            _tracer = made
    _tracer._recorder.resume_capture()
    _tracer._follow_steps()
    _activate(_tracer)
    return True


def disable() -> None:
    """The NoopTracer becomes the active one; capture ends, what was recorded stays in the live tracer."""
    global _disabled
    from .. import _activate

    live = _tracer
    if live is None:
        _disabled = True  # the first use must not turn recording on
        made = resolve()
        if made is not None:  # as in _rebuild
            _activate(made)
        return
    live._recorder.pause_capture()
    live._follow_steps()
    _activate(_Disabled(live))


def detach(without_graphs: bool = False) -> Unavailable | None:
    """See :func:`gpusense.detach`."""
    live = _tracer
    if live is None:
        return None
    capture = live._recorder.capture
    # Asked first: what follows interrupts it.
    reason = capture.keeps_cupti() if capture is not None and not without_graphs else ""
    if not live._recorder.synchronise(2.0):
        reason = "the device still works; CUPTI must not be taken away meanwhile"
    disable()
    if capture is None:
        return None
    reason = reason or capture.detach()
    return Unavailable("detach", reason, "recording is disabled all the same") if reason else None


_DISABLED = "recording is disabled; enable() goes on"


class _Disabled(noop.NoopTracer):
    """While disabled: blocks do nothing, results are those of before."""

    def __init__(self, live: Any) -> None:
        super().__init__(_DISABLED, live.config)
        self._live = live

    def session(self) -> Any:
        return self._live.session()

    def summary(self) -> Any:
        return self._live.summary()

    def bottlenecks(self, top_n: int = 5) -> list[Any]:
        return list(self._live.bottlenecks(top_n))

    def add_sink(self, sink: Any) -> None:
        self._live.add_sink(sink)

    def remove_sink(self, sink: Any) -> None:
        self._live.remove_sink(sink)

    def reset(self) -> None:
        self._live.reset()


def forget_in_child(tracer: Any) -> None:
    """After a fork the tracer of the parent is useless in the child.

    Where the parent had no CUDA the child decides anew. Else it cannot use CUDA itself, and there is something to
    record only where blocks are wanted without a GPU.
    """
    global _lock, _tracer, _forked
    _lock = None
    if _tracer is not tracer:
        return
    from .. import _activate, _active_tracer, _Undecided

    was_active, _tracer = _active_tracer() is tracer, None
    recorder = tracer._recorder
    if recorder.mode == "file":
        _forked = "this process was forked from one that gpusense run records"
    elif recorder.capture is not None and recorder.capture.cuda_was_live:
        _forked = "this process was forked from one that used CUDA, which does not work in it"
    if not was_active:
        return
    if _forked and settings().mode != "on":
        _activate(noop.NoopTracer(_forked, tracer.config))
    else:
        _activate(_Undecided())


def start_session(mode: str = "file", path: str | None = None, **changes: Any) -> Any:
    """For ``gpusense run``: an active tracer that records into ``path``; ``finish()`` gives the session."""
    global _tracer
    from .. import _activate
    from .._capture.attachment import Capture
    from .._capture.file_store import FileRecorder
    from .._capture.recorder import Recorder
    from .tracer import Tracer

    _layers.application.update({name: config.check(name, value) for name, value in changes.items()})
    wanted = settings()._replace(mode="on")
    absent = possible()
    left_out = _left_out(wanted) if absent is None else ""
    capture = Capture(wanted) if absent is None and not left_out else None
    recorder: Recorder
    if mode == "file":
        if path is None:
            raise ValueError("a session file needs a path")
        recorder = FileRecorder(wanted, capture, path)
    else:
        recorder = Recorder(wanted, capture)
    recorder.absent = left_out or recorder.absent
    tracer = Tracer(wanted, recorder)
    if not tracer._worker.started:
        raise GpuSenseError("no thread can be started to record with")
    _tracer = tracer
    _activate(_tracer)
    return _Run(_tracer, path if mode == "file" else None)


class _Run:
    """A session being recorded by ``gpusense run``."""

    def __init__(self, tracer: Any, path: str | None) -> None:
        self.tracer = tracer
        self.path = path

    def finish(self) -> Any:
        """The whole session, after a bounded wait for what the device still does."""
        tracer = self.tracer
        recorder = tracer._recorder
        recorder.synchronise(2.0)
        tracer.close()
        return recorder.session()


def open_backend(name: str) -> Any:
    """The backend of that name, or an Unavailable that says why not."""
    from ..backends import BACKENDS

    for known, module in BACKENDS:
        if known == name:
            try:
                return __import__(f"{package.NAME}.backends.{module}", fromlist=["open"]).open()
            except ModuleNotFoundError as error:
                return Unavailable(name, f"this copy comes without it: {error}")
            except Exception as error:  # noqa: BLE001 - a broken vendor library is an absence with a reason
                return Unavailable(name, f"{type(error).__name__}: {error}")
    return Unavailable(name, "no backend has this name", ", ".join(known for known, _ in BACKENDS))


def devices() -> tuple[DeviceInfo, ...]:
    """See :func:`gpusense.devices`."""
    found, silent = ask_for_devices()
    for name in silent:
        log.once(f"silent {name}", "gpusense: %s has not answered; its devices are left out", name)
    return found


def ask_for_devices(without: Sequence[str] = ()) -> tuple[tuple[DeviceInfo, ...], tuple[str, ...]]:
    """The devices, and the names of the sources whose driver has not answered. Those of ``without`` did not
    before, and are not asked.
    """
    from .._records import device_identity
    from .._runtime import process

    def ask(name: str) -> tuple[DeviceInfo, ...] | None:
        if name in without:
            return None
        return process.answer(lambda: _devices_of(name), f"gpusense-devices-{name}", None)

    answers = {name: ask(name) for name in ("cuda", "nvml", "amd_sysfs", "rocm_smi", "drm_files", "wgpu")}
    merged = device_identity.merge({name: found for name, found in answers.items() if found})
    return merged, tuple(name for name, found in answers.items() if found is None)


def _devices_of(name: str) -> tuple[DeviceInfo, ...]:
    """What one source lists; nothing where it is not there or fails."""
    backend = open_backend(name)
    if not backend or backend.devices is None:
        return ()
    try:
        return tuple(backend.devices.devices())
    except Exception as error:  # noqa: BLE001
        log.debug("devices of %s: %s", name, error)
        return ()
