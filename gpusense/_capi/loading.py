"""Finds and loads a vendor library; every step that fails leaves a sentence, and the sentences are the reason.

Never uses ``ctypes.util`` (it starts processes), never closes a library, never loads one that only imports asked for.
"""

import ctypes
import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .._records import Unavailable
from .libraries import Library


class Loaded(NamedTuple):
    """A library in this process: the ctypes handle (kept for ever), its path where known, and how it was found."""

    library: ctypes.CDLL
    path: str
    how: str  # "env", "mapped", "loader", "wheel", "folder"


class Search(NamedTuple):
    """What a search may look at; tests replace the parts."""

    row: Library
    environ: "os._Environ[str] | dict[str, str]"
    platform: str
    sys_path: Sequence[str]
    maps: Callable[[], Sequence[str]]
    notes: list[str]


_handles: dict[str, Loaded] = {}


def load(row: Library, *, only_mapped: bool = False) -> Loaded | Unavailable:
    """The library of ``row``, or why there is none. ``only_mapped`` accepts only a copy this process already has."""
    key = f"{row.name}|{only_mapped}|{os.environ.get(row.env, '') if row.env else ''}"
    known = _handles.get(key)
    if known is not None:
        return known
    search = Search(row, os.environ, sys.platform, tuple(sys.path), mapped_files, [])
    found = find(search, only_mapped=only_mapped)
    if found is not None:
        _handles[key] = found
        return found
    return Unavailable(row.name, "; ".join(search.notes) or f"no candidate is known for {sys.platform}", _hint(row))


def find(search: Search, *, only_mapped: bool = False) -> Loaded | None:
    """The first candidate that loads; each failure is appended to ``search.notes``."""
    row = search.row
    override = (row.env and search.environ.get(row.env)) or ""
    if override:
        return _open(search, override, "env", f"{row.env}={override}")
    for path in _mapped(search):
        found = _open(search, path, "mapped", path, mode_noload=True)
        if found:
            return found
    if only_mapped:
        search.notes.append(f"{row.name} is not loaded in this process")
        return None
    for how, candidates in (
        ("env", _fallback(search)),
        ("wheel", _wheel_files(search)),
        ("loader", _sonames(search)),
        ("folder", _folder_files(search)),
    ):
        for candidate in candidates:
            found = _open(search, candidate, how, candidate)
            if found:
                return found
    return None


def mapped_files() -> list[str]:
    """Paths of the files mapped into this process; empty where the system has no such list."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            paths = {line.split(None, 5)[5].rstrip("\n") for line in lines if "/" in line}
    except OSError:
        return []
    return sorted(path.removesuffix(" (deleted)") for path in paths)


def _mapped(search: Search) -> Iterator[str]:
    if not search.row.mapped:
        return
    for path in search.maps():
        if os.path.basename(path).startswith(search.row.mapped):
            yield path


def _sonames(search: Search) -> Iterator[str]:
    row = search.row
    table = {"linux": row.linux, "win32": row.win32, "darwin": row.darwin}
    names = table.get(search.platform, ())
    if not names:
        search.notes.append(f"{row.name} does not exist on {search.platform}")
    for name in names:
        filled = _fill(name, search)
        if filled:
            yield filled


def _wheel_files(search: Search) -> Iterator[str]:
    suffixes = {"win32": (".dll",), "darwin": (".dylib",)}.get(search.platform, ())
    for folder in search.sys_path:
        if not folder or not os.path.isdir(folder):
            continue
        for pattern in search.row.wheel_globs:
            for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern)), reverse=True):
                if not suffixes or path.endswith(suffixes):
                    yield path


def _folder_files(search: Search) -> Iterator[str]:
    for pattern in search.row.folder_globs:
        filled = _fill(pattern, search)
        if filled:
            yield from sorted(glob.glob(filled), reverse=True)


def _fallback(search: Search) -> Iterator[str]:
    value = search.row.env_fallback and search.environ.get(search.row.env_fallback)
    if value:
        yield value


def _fill(pattern: str, search: Search) -> str | None:
    """``{VARIABLE}`` at the start of a pattern replaced from the environment; None where it is not set."""
    if not pattern.startswith("{"):
        return pattern
    name, _, rest = pattern[1:].partition("}")
    value = search.environ.get(name)
    return value + rest if value else None


def _open(search: Search, target: str, how: str, shown: str, *, mode_noload: bool = False) -> Loaded | None:
    reason = _refuse(target)
    if reason:
        search.notes.append(f"{shown}: {reason}")
        return None
    mode = ctypes.DEFAULT_MODE | (getattr(os, "RTLD_NOLOAD", 0) if mode_noload else 0)
    try:
        library = ctypes.CDLL(target, mode=mode)
    except (OSError, ValueError) as error:  # ValueError: an embedded NUL in a path from the environment
        if not mode_noload:
            search.notes.append(_sentence(shown, error))
        return None
    return Loaded(library, _path_of(library, target, search), how)


def _refuse(target: str) -> str | None:
    """Why a path must not be loaded at all."""
    if "/stubs/" in target.replace("\\", "/"):
        return "a stub library for linking, not a driver"
    if os.path.isabs(target) and os.path.isdir(target):
        return "is a folder"
    return None


def _sentence(shown: str, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(shown) else f"{shown}: {text}"


def _path_of(library: ctypes.CDLL, target: str, search: Search) -> str:
    """The file behind a handle opened by bare name, as the process's own mappings show it."""
    if os.path.isabs(target):
        return target
    for path in search.maps():
        if os.path.basename(path).startswith(target):
            return path
    return library._name or target


def _hint(row: Library) -> str:
    if row.driver:
        return "install the vendor's driver, or run where one is"
    return f"install it, or name its path in {row.env}" if row.env else ""
