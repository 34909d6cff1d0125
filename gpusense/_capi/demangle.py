"""Readable C++ names through the C++ runtime's own ``__cxa_demangle``, where a runtime is."""

import ctypes
import sys
from collections.abc import Iterable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from time import monotonic
from typing import Any

from .binding import bind, prototypes
from .libraries import CPP_RUNTIME
from .loading import Loaded, load

_RUNTIME = prototypes(__cxa_demangle=(c_void_p, c_char_p, c_void_p, POINTER(c_size_t), POINTER(c_int)))
_LIBC = prototypes(free=(None, c_void_p))
_LONGEST = 65536  # a longer name is damage; demangling is worse than linear in places
_CACHE_SIZE = 8192

_cache: dict[str, str] = {}
_functions: tuple[Any, Any] | None = None
_CHILD_S = 10.0  # that a child process may take
_LOOK_AGAIN_S = 1.0  # a look at what is mapped takes a millisecond, and there is one for each new name
_look_at = 0.0


def demangle(name: str, *, may_load: bool = False) -> str | None:
    """The readable form of an Itanium-mangled ``name``; None where it is not one or no C++ runtime is there.

    GNU's runtime refuses names beyond about 1,000 characters, which big templates reach: None again.

    Uses the runtime already in the process. ``may_load`` allows to bring one in: right for a process of our own, wrong
    inside somebody's program, where a framework may want to load its own later. Safe from several threads.
    """
    if not name.startswith("_Z") or len(name) > _LONGEST or not name.isascii() or "\0" in name:
        return None
    known = _cache.get(name)
    if known is None:
        functions = _resolve(may_load)
        known = _call(functions, name) if functions else None
        if known is None:
            return None
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[name] = known
    return known


def is_ready() -> bool:
    """Whether a runtime was found: what has no readable form then, has none."""
    return _functions is not None


def bring_in() -> None:
    """Brings a C++ runtime into this process, so that every later name is readable. For a process of our own."""
    _resolve(may_load=True)


def learn(names: Iterable[str]) -> None:
    """Makes ``names`` readable where no C++ runtime is in this process, by way of a child process that brings one in:
    a framework may want to load its own here later. Takes as long as Python takes to start, and helps or does not.
    """
    unknown = sorted({name for name in names if name.startswith("_Z") and name not in _cache})[:_CACHE_SIZE]
    if not unknown or _resolve(may_load=False):
        return
    import subprocess

    from .._runtime import child

    if not child.can_run():
        return
    try:
        done = child.run(__name__, stdin="\0".join(unknown).encode("utf-8", "replace"), timeout_s=_CHILD_S)
    except (OSError, subprocess.SubprocessError):
        return
    readable = done.stdout.decode("utf-8", "replace").split("\0")
    if done.returncode == 0 and len(readable) == len(unknown):
        _cache.update({name: text for name, text in zip(unknown, readable, strict=True) if text})


def main() -> int:
    """What the child does: names from standard input to readable ones, or to nothing, each ended by a NUL."""
    bring_in()
    names = sys.stdin.buffer.read().decode("utf-8", "replace").split("\0")
    sys.stdout.buffer.write("\0".join(demangle(name) or "" for name in names).encode("utf-8", "replace"))
    return 0


def _call(functions: tuple[Any, Any], name: str) -> str | None:
    run, free = functions
    status = c_int()
    address = run(name.encode("ascii"), None, None, ctypes.byref(status))
    if not address:
        return None
    try:
        return ctypes.string_at(address).decode("utf-8", "replace") if status.value == 0 else None
    finally:
        free(address)  # the runtime allocates the answer with malloc


def _resolve(may_load: bool) -> tuple[Any, Any] | None:
    global _functions, _look_at
    if _functions is None:
        if not may_load and monotonic() < _look_at:
            return None
        _look_at = monotonic() + _LOOK_AGAIN_S
        loaded = load(CPP_RUNTIME, only_mapped=not may_load)
        if not isinstance(loaded, Loaded):
            return None
        run = bind(loaded.library, _RUNTIME).__cxa_demangle
        free = bind(ctypes.CDLL(None), _LIBC).free
        if not run or not free:
            return None
        _functions = run, free
    return _functions
