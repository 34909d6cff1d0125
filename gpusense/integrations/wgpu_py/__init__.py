"""GPU pass times and transfers for every wgpu-py program: :func:`instrument` wraps wgpu-py's classes, no code changes.

What is timed and how, what the figures mean and what is refused stands in docs/explanation/wgpu.md.
"""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ... import enable, get_tracer
from ..._aggregation.same_kernels import expanded
from ..._attribution.open_blocks import here
from ..._records.protocols import RecordSource
from ..._records.records import Record, Unavailable
from ..._runtime import import_hook, log
from .._hosts import MARK, Installed, Patches

_MODULE = "wgpu.backends.wgpu_native._api"


class Statistics(NamedTuple):
    """What became of the passes and transfers since :func:`instrument`."""

    timed: int = 0  # passes and GPU-side copies with device times
    transfers: int = 0  # host-side transfers and map waits
    untimed: dict[str, int] = {}  # noqa: RUF012 - passes without a record, by reason
    not_run: int = 0  # passes that the program dropped unsubmitted: nothing is missing
    errors: int = 0
    clocks: tuple[tuple[str, str], ...] = ()  # (adapter, how its ticks reach the wall clock, or why they do not)


class _Instrumentation(NamedTuple):
    hooks: Any
    patches: Patches
    tracer: Any


_installed = Installed[_Instrumentation]()
_waiting = Installed[Any]()  # for the program to import wgpu


def instrument(
    *,
    copies: bool | None = None,
    when_imported: bool = False,
    emit: Callable[[list[Record]], Any] | None = None,
    block: Callable[[], Any] | None = None,
) -> bool | Unavailable:
    """True when wgpu-py's passes and transfers are recorded from now on, else why not. Twice is once.

    Devices made before are timed if they have the ``timestamp-query`` feature; later ones get it added where the
    adapter has it. ``copies`` also times copies between GPU resources and clears, two time stamps each; without it the
    setting ``wgpu_copies`` says whether. ``when_imported`` waits for the program to import wgpu and is true at once; a
    later call without it ends the waiting. ``emit(records)``, called on the program's threads and on one of
    gpusense's, and ``block()`` replace the tracer.
    """
    if _installed.now is not None:
        return _again(_installed.now, copies)
    if when_imported and _MODULE not in sys.modules:

        def ready() -> None:
            _waiting.take()
            answer = instrument(copies=copies, emit=emit, block=block)
            if isinstance(answer, Unavailable):
                _tell(answer)

        if _waiting.now is None:
            _waiting.now = import_hook.watch(_MODULE, ready)
        return True
    _watch_no_more()  # what is asked for now comes before what was to be done at the import, which may be ours
    api = _host_module()
    if isinstance(api, Unavailable):
        return api
    from ._hooks import Asked

    if emit is not None:
        return _install(api, Asked(block or _no_block, object, _always), bool(copies), _Receiver(emit))
    if not get_tracer().active and not enable():
        return Unavailable("wgpu_py", "gpusense is off (GPUSENSE=off)")
    tracer = get_tracer()
    wanted = tracer.config.backends
    if wanted is not None and "wgpu" not in wanted:
        return Unavailable("wgpu_py", f"the setting backends={','.join(wanted)} leaves wgpu out")
    near: Callable[[], Any] = here if block is None else object
    wanted_copies = tracer.config.wgpu_copies if copies is None else copies
    return _install(api, Asked(block or tracer.current_block, near, _recording), wanted_copies, tracer)


def _again(installed: _Instrumentation, copies: bool | None) -> bool:
    """Copies are timed from now on, too, if they are asked for; all else stays as it is."""
    if copies and not installed.hooks.copies:
        from . import _copies

        installed.hooks.copies = True
        _copies.install(installed.hooks, installed.patches)
    return True


def _tell(why: Unavailable) -> None:
    """Nobody looks at what an import has led to: the log says it, and the session."""
    from ...backends.wgpu.source import SOURCE

    log.once("wgpu refused", "wgpu is not traced: %s", why.reason)
    SOURCE.refused(why.reason)
    if get_tracer().active:
        get_tracer().add_source(SOURCE)


def _install(api: Any, asked: Any, copies: bool, tracer: Any) -> bool | Unavailable:
    """Wraps all of wgpu-py or nothing."""
    from ...backends.wgpu.source import SOURCE
    from . import _copies, _devices, _passes, _transfers
    from ._hooks import Hooks
    from ._host import Host

    patches = Patches()
    hooks = None
    try:
        hooks = Hooks(Host(api), SOURCE, asked, copies)
        _devices.install(hooks, patches)
        _passes.install(hooks, patches)
        _copies.install(hooks, patches)
        _transfers.install(hooks, patches)
    except Exception as error:  # noqa: BLE001 - a wgpu-py that is not as known
        patches.undo()
        if hooks is not None:
            hooks.close()
        reason = f"this version of wgpu-py does not fit gpusense: {type(error).__name__}: {error}"
        return Unavailable("wgpu_py", reason, "update gpusense")
    tracer.add_source(SOURCE)
    _installed.now = _Instrumentation(hooks, patches, tracer)
    return True


def uninstrument(timeout_s: float = 1.0) -> None:
    """Hands on what is pending, waiting for it at most ``timeout_s``, and puts wgpu-py's methods back."""
    installed = _installed.take()
    _watch_no_more()
    if installed is None:
        return
    installed.hooks.flush(timeout_s)
    installed.hooks.close()
    installed.tracer.remove_source(installed.hooks.source)
    installed.patches.undo()


def _watch_no_more() -> None:
    finder = _waiting.take()
    if finder is not None:
        finder.remove()


def flush(timeout_s: float = 1.0) -> bool:
    """Waits until everything submitted has been timed and handed on; False when that took too long."""
    installed = _installed.now
    return installed is None or bool(installed.hooks.flush(timeout_s))


def statistics() -> Statistics:
    """Counts since :func:`instrument`; all zero when not instrumented."""
    installed = _installed.now
    return Statistics() if installed is None else Statistics(**installed.hooks.status())


class _Receiver:
    """A source's receiver in place of a tracer: ``emit(records)`` gets what it hands on, one record each."""

    def __init__(self, emit: Callable[[list[Record]], Any]) -> None:
        self._emit = emit

    def add_source(self, source: RecordSource) -> None:
        source.start(lambda records: self._emit(expanded(records)))

    def remove_source(self, source: RecordSource) -> None:
        source.stop()


def _recording() -> bool:
    return bool(get_tracer().active)


def _always() -> bool:
    return True


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
    if hasattr(api.libf.wgpuQueueSubmit, MARK):
        return Unavailable("wgpu_py", "another copy of gpusense in this process times wgpu already")
    return api
