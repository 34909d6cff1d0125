"""GPU pass times and transfers for every wgpu-py program: :func:`instrument` wraps wgpu-py's classes, no code changes.

What is timed and how, what the figures mean and what is refused stands in docs/explanation/wgpu.md.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._attribution.open_blocks import here
from ..._records.records import Record, Unavailable
from ..._runtime import package
from .._hosts import MARK, Patches

_MODULE = "wgpu.backends.wgpu_native._api"


class Statistics(NamedTuple):
    """What became of the passes and transfers since :func:`instrument`."""

    timed: int = 0  # passes and GPU-side copies with device times
    transfers: int = 0  # host-side transfers and map waits
    untimed: dict[str, int] = {}  # noqa: RUF012 - passes without a record, by reason
    errors: int = 0
    clocks: tuple[tuple[str, str], ...] = ()  # (adapter, how its ticks reach the wall clock, or why they do not)


class _State:
    hooks: Any = None
    patches: Any = None
    finder: Any = None


def instrument(
    *,
    copies: bool = False,
    when_imported: bool = False,
    emit: Callable[[list[Record]], Any] | None = None,
    block: Callable[[], Any] | None = None,
) -> bool | Unavailable:
    """True when wgpu-py's passes and transfers are recorded from now on, else why not. Twice is once.

    Devices made before are timed if they have the ``timestamp-query`` feature; later ones get it added where the
    adapter has it. ``copies`` also times copies between GPU resources, two time stamps each. ``when_imported`` waits
    for the program to import wgpu and is true at once; a later call without it ends the waiting. ``emit(records)`` and
    ``block()`` replace the tracer.
    """
    if _State.hooks is not None:
        return True
    if when_imported and _MODULE not in sys.modules:
        from ..._runtime.import_hook import watch

        def ready() -> None:
            _State.finder = None
            instrument(copies=copies, emit=emit, block=block)

        if _State.finder is None:
            _State.finder = watch(_MODULE, ready)
        return True
    _watch_no_more()  # what is asked for now comes before what was to be done at the import, which may be ours
    api = _host_module()
    if isinstance(api, Unavailable):
        return api
    tracer: Any = None
    near: Callable[[], Any] = object
    if emit is None:
        tracer = _live_tracer()
        if tracer is None:
            return Unavailable("wgpu_py", "gpusense is off (GPUSENSE=off)")
        wanted = tracer.config.backends
        if wanted is not None and "wgpu" not in wanted:
            return Unavailable("wgpu_py", f"the setting backends={','.join(wanted)} leaves wgpu out")
        emit = _to_active_tracer()
        if block is None:
            block, near = tracer.current_block, here
    return _install(api, emit, block or _no_block, copies, tracer, near)


def _install(
    api: Any,
    emit: Callable[[list[Record]], Any],
    block: Callable[[], Any],
    copies: bool,
    tracer: Any,
    near: Callable[[], Any],
) -> bool | Unavailable:
    """Wraps all of wgpu-py or nothing."""
    from . import _copies, _devices, _passes, _transfers
    from ._hooks import Hooks
    from ._host import Host

    patches = Patches()
    hooks = None
    try:
        hooks = Hooks(Host(api), emit, block, copies, tracer, near)
        _devices.install(hooks, patches)
        _passes.install(hooks, patches)
        _copies.install(hooks, patches)
        _transfers.install(hooks, patches)
    except Exception as error:  # noqa: BLE001 - a wgpu-py that is not as known
        patches.undo()
        if hooks is not None:
            hooks.close()
        reason = f"this wgpu-py is not as known: {type(error).__name__}: {error}"
        return Unavailable("wgpu_py", reason, "update gpusense")
    _State.hooks, _State.patches = hooks, patches
    return True


def uninstrument(timeout_s: float = 1.0) -> None:
    """Hands on what is pending, waiting for it at most ``timeout_s``, and puts wgpu-py's methods back."""
    hooks, _State.hooks = _State.hooks, None
    _watch_no_more()
    if hooks is None:
        return
    hooks.flush(timeout_s)
    hooks.close()
    _State.patches.undo()


def _watch_no_more() -> None:
    finder, _State.finder = _State.finder, None
    if finder is not None:
        finder.remove()


def flush(timeout_s: float = 1.0) -> bool:
    """Waits until everything submitted has been timed and handed on; False when that took too long."""
    hooks = _State.hooks
    return True if hooks is None else hooks.flush(timeout_s)


def statistics() -> Statistics:
    """Counts since :func:`instrument`; all zero when not instrumented."""
    hooks = _State.hooks
    return Statistics() if hooks is None else Statistics(**hooks.status())


def _package() -> Any:
    return importlib.import_module(package.NAME)


def _live_tracer() -> Any:
    """The active tracer; a live one is made where none was. None under ``GPUSENSE=off``."""
    package = _package()
    if not package.get_tracer().active and not package.enable():
        return None
    return package.get_tracer()


def _to_active_tracer() -> Callable[[list[Record]], Any]:
    """Whatever tracer is the active one when records arrive."""
    package = _package()
    return lambda records: package.get_tracer().record(records)


def _no_block() -> None:
    return None


def _host_module() -> Any:
    """wgpu-py's native backend, of a wgpu-native whose functions are known."""
    try:
        if _MODULE not in sys.modules and importlib.util.find_spec("wgpu") is None:
            return Unavailable("wgpu_py", "wgpu is not installed", "pip install wgpu")
        api = importlib.import_module(_MODULE)
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        return Unavailable("wgpu_py", f"wgpu cannot be imported: {type(error).__name__}: {error}")
    from ..._capi.wgpu import decode_version
    from ..._capi.wgpu_structs import FAMILIES

    version = decode_version(api.lib.wgpuGetVersion())
    if version.major not in FAMILIES:
        return Unavailable("wgpu_py", f"wgpu-native {version} is not known to gpusense", "update gpusense")
    needed = ("ffi", "lib", "libf", "error_handler", "GPUAdapter", "GPUDevice", "GPUQueue", "GPUBuffer", "GPUQuerySet")
    absent = [name for name in needed if not hasattr(api, name)]
    if absent:
        return Unavailable("wgpu_py", f"this wgpu-py has no {', '.join(absent)}", "update gpusense")
    if hasattr(api.GPUQueue.submit, MARK):
        return Unavailable("wgpu_py", "another copy of gpusense in this process times wgpu already")
    return api
