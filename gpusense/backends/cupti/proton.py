"""Triton Proton beside gpusense: one libcupti for both, and no buffer of ours with CUPTI when Proton takes it.

Proton brings a libcupti of its own, and CUPTI refuses a subscriber that comes through a second copy (error 39), even
where nobody subscribes any more. With the same library it works, but then CUPTI returns our buffers to Proton, which
frees them. So Proton is pointed to our library before it loads its own, and its calls that take CUPTI are preceded by
one that lets go of it. Proton reads where its library is when it starts, from ``triton.knobs``; the environment is left
alone, because other threads may be reading it.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from ..._capi.interpreter import interpreter_dict
from ..._runtime import import_hook, log, process
from . import broker

#: Where Proton looks for ``libcupti.so`` in place of the copy that it brings.
VARIABLE = "TRITON_CUPTI_LIB_PATH"
HOLDER = "Triton Proton"

_MODULE = "triton.profiler.profile"
_TAKERS = ("start", "activate", "activate_all")  # of its library: what may take CUPTI
_KNOBS = ("cupti_lib_dir", "cupti_lib_blackwell_dir", "cupti_path", "cupti_dir")  # of the releases so far
_LIBRARY = "libcupti.so"  # the only name that Proton asks for


class _Attention:
    """Once a process."""

    def __init__(self) -> None:
        self.pays = False
        self.folder: str | None = None

    def attend(self, path: str | None) -> None:
        if self.pays or path is None:
            return
        self.pays = True
        if _MODULE in sys.modules:
            self.arrange(path)
        elif import_hook.importable("triton"):
            import_hook.watch(_MODULE, lambda: self.arrange(path))

    def arrange(self, path: str) -> None:
        library = getattr(sys.modules[_MODULE], "libproton", None)
        for name in _TAKERS:
            original = getattr(library, name, None)
            if original is not None:
                setattr(library, name, _preceded(original))
        knobs = getattr(sys.modules.get("triton.knobs"), "proton", None)
        known = set().union(*map(vars, type(knobs).__mro__))  # asked of the class, a knob raises
        unset = [name for name in _KNOBS if name in known and name not in vars(knobs)]
        if not unset or VARIABLE in os.environ:
            return
        folder = folder_of(path)
        if folder is None:
            return
        if folder != os.path.dirname(path):
            self.folder = folder
            process.register(self)
        vars(knobs).update(dict.fromkeys(unset, folder))

    def at_exit(self) -> None:
        if self.folder is not None:
            remove(self.folder)

    def after_fork_in_child(self) -> None:
        self.folder = None  # the parent's to remove


_attention = _Attention()


def attend(path: str | None) -> None:
    """Prepares for a Proton that the program uses already or imports later. ``path``: the libcupti in use."""
    try:
        _attention.attend(path)
    except Exception:  # noqa: BLE001 - Triton's insides change
        log.exception("proton", "the libcupti for Triton Proton could not be set; it may fail with CUPTI error 39")


def _preceded(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(*args: Any, **kwargs: Any) -> Any:
        step_aside()
        return original(*args, **kwargs)

    take.__doc__ = original.__doc__
    return take


def step_aside() -> None:
    """Whatever copies of gpusense capture in this process let go of CUPTI; they come back when Proton has ended."""
    try:
        place = interpreter_dict()
        shared = place.get(broker.KEY) if isinstance(place, dict) else None
        go = shared.get("step_aside") if shared is not None and shared["pid"] == os.getpid() else None
        if go is not None:
            go(f"another profiler, {HOLDER}, holds CUPTI")
    except Exception:  # noqa: BLE001 - on a thread of the program, in a call of another tool
        log.exception("proton", "CUPTI could not be given up for Triton Proton")


# --- the library ----------------------------------------------------------------------------------------------------


def folder_of(path: str) -> str | None:
    """A folder in which the library at ``path`` has the name that Proton asks for: its own, or one made with a link,
    for :func:`remove`. None where that is not possible."""
    if not os.path.isabs(path):
        return None
    if os.path.basename(path) == _LIBRARY:
        return os.path.dirname(path)
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="gpusense-")
    except OSError:
        return None
    try:
        os.symlink(path, os.path.join(folder, _LIBRARY))
    except OSError:
        remove(folder)
        return None
    return folder


def remove(folder: str) -> None:
    """Removes what :func:`folder_of` made."""
    try:
        os.unlink(os.path.join(folder, _LIBRARY))
        os.rmdir(folder)
    except OSError:
        pass
