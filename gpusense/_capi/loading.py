"""Finds and loads a vendor library; every step that fails leaves a sentence, and the sentences are the reason.

Never uses ``ctypes.util`` (it starts processes), never closes a library, never loads one that only imports asked for.
"""

import ctypes
import glob
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from .._records.records import Unavailable
from . import handles
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
    max_major: int | None = None  # of the CUDA toolkit a candidate belongs to

    def note(self, shown: str, reason: str) -> None:
        self.notes.append(f"{shown}: {reason}".replace("\0", "\\0"))


_handles: dict[tuple[object, ...], Loaded] = {}
_SYSTEMS = {"linux": "Linux", "win32": "Windows", "darwin": "macOS"}


def load(row: Library, *, only_mapped: bool = False, max_major: int | None = None) -> Loaded | Unavailable:
    """The library of ``row``, or why there is none.

    ``only_mapped`` accepts only a copy this process already has and loads nothing. ``max_major`` bars copies that
    belong to a CUDA toolkit of a later major version, as the driver's version does; a copy already in the process and
    one named by the environment variable are exempt. The answer is kept, a failure is not.
    """
    search = Search(row, os.environ, sys.platform, tuple(sys.path), handles.mapped_files, [], max_major)
    key = (row.name, only_mapped, max_major, _override(search))
    known = _handles.get(key)
    if known is not None:
        return known
    found = find(search, only_mapped=only_mapped)
    if found is None:
        return _unavailable(search)
    _handles[key] = found
    return found


def locate(row: Library) -> str | Unavailable:
    """Path of the file that :func:`load` would take, found without loading anything."""
    return locate_in(Search(row, os.environ, sys.platform, tuple(sys.path), handles.mapped_files, []))


def find(search: Search, *, only_mapped: bool = False) -> Loaded | None:
    """The first candidate that loads; each failure is appended to ``search.notes``."""
    override = _override(search)
    if override:
        shown = f"{search.row.env}={override}"
        return _take_mapped(search, override, "env", shown) if only_mapped else _open(search, override, "env", shown)
    found = _find_mapped(search)
    if found is not None:
        return found
    if only_mapped:
        search.notes.append(f"{search.row.name} is not loaded in this process")
        return None
    return next(filter(None, (_open(search, path, how, path) for how, path in _candidates(search))), None)


def locate_in(search: Search) -> str | Unavailable:
    """As :func:`locate`, by what a search has to go by."""
    override = _override(search)
    if override:
        reason = _refuse(override)
        if reason is None:
            return override
        search.note(f"{search.row.env}={override}", reason)
        return _unavailable(search)
    for path in _mapped_paths(search):
        if _refuse_stub(path) is None:
            return path
    for _, candidate in _candidates(search):
        for path in _places(search, candidate):
            reason = _refuse(path)
            if reason is None:
                return path
            search.note(path, reason)
    return _unavailable(search)


def _candidates(search: Search) -> Iterable[tuple[str, str]]:
    """(how, path or bare name) in the order to try, those of too new a toolkit left out."""
    steps = (("env", _fallback), ("wheel", _wheel_files), ("loader", _sonames), ("folder", _folder_files))
    every = itertools.chain.from_iterable(zip(itertools.repeat(how), step(search)) for how, step in steps)
    if not search.row.major:
        return every
    allowed = [candidate for candidate in every if _allowed(search, candidate[1])]
    major = toolkit_in_use(search)
    if major is not None:
        allowed.sort(key=lambda candidate: _distance(_major(search.row, candidate[1]), major))
    return allowed


def _allowed(search: Search, path: str) -> bool:
    major = _major(search.row, path)
    if major is None or search.max_major is None or major <= search.max_major:
        return True
    search.note(path, f"belongs to CUDA {major}, the driver supports {search.max_major}")
    return False


def _distance(major: int | None, wanted: int) -> int:
    """0 for the toolkit the process uses, 1 where the name does not say, 2 for another."""
    return 1 if major is None else 0 if major == wanted else 2


def _major(row: Library, path: str) -> int | None:
    found = re.search(row.major, path.replace("\\", "/"))
    return int(found[1]) if found else None


def toolkit_in_use(search: Search) -> int | None:
    """Major version of the CUDA toolkit this process works with: its libcudart, else the installed torch's."""
    for path in search.maps():
        found = re.match(r"libcudart(?:-[0-9a-f]+)?\.so\.(\d+)", os.path.basename(path))
        if found:
            return int(found[1])
    for folder in _folders(search):
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8", errors="replace") as file:
                text = file.read(8192)
        except OSError:
            continue
        found = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)", text, re.MULTILINE)
        return int(found[1]) if found else None
    return None


def _find_mapped(search: Search) -> Loaded | None:
    for path in itertools.chain(_sonames(search, quiet=True), _mapped_paths(search)):
        found = _take_mapped(search, path, "mapped")
        if found is not None:
            return found
    return None


def _take_mapped(search: Search, target: str, how: str, shown: str = "") -> Loaded | None:
    """``shown``: name it in the notes as missing; without it only a stub leaves a note."""
    library = handles.already_loaded(target)
    if library is None:
        if shown:
            search.note(shown, "is not loaded in this process")
        return None
    return _checked(search, Loaded(library, handles.path_of(library) or target, how))


def _open(search: Search, target: str, how: str, shown: str) -> Loaded | None:
    reason = _refuse(target)
    if reason is not None:
        search.note(shown, reason)
        return None
    try:
        library = ctypes.CDLL(target)
    except (OSError, ValueError) as error:
        text = str(error)
        search.note(shown, text.removeprefix(f"{target}: "))
        return None
    return _checked(search, Loaded(library, handles.path_of(library) or target, how))


def _checked(search: Search, loaded: Loaded) -> Loaded | None:
    """A bare name may have led to a stub; only the loaded path shows that."""
    reason = _refuse_stub(loaded.path)
    if reason is None:
        return loaded
    search.note(loaded.path, reason)
    return None


def _refuse(target: str) -> str | None:
    """Why a path must not be loaded at all; a bare name is the loader's business."""
    if "\0" in target:
        return "has a NUL character in its path"
    reason = _refuse_stub(target)
    if reason is None and os.path.dirname(target):
        reason = handles.unfit(target)
    return reason


def _refuse_stub(path: str) -> str | None:
    return "is a stub for linking, not a driver" if "/stubs/" in path.replace("\\", "/") else None


def _mapped_paths(search: Search) -> Iterator[str]:
    for path in search.maps() if search.row.mapped else ():
        if os.path.basename(path).startswith(search.row.mapped):
            yield path


def _sonames(search: Search, quiet: bool = False) -> Iterator[str]:
    row = search.row
    names = {"linux": row.linux, "win32": row.win32, "darwin": row.darwin}.get(search.platform, ())
    if not names and not quiet:
        search.notes.append(f"{row.name} does not exist on {_SYSTEMS.get(search.platform, search.platform)}")
    for name in names:
        filled = _fill(name, search)
        if filled:
            yield filled


def _wheel_files(search: Search) -> Iterator[str]:
    for folder in _folders(search):
        for pattern in search.row.wheel_globs:
            for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern)), reverse=True):
                if _suits(path, search.platform):
                    yield path


def _folder_files(search: Search) -> Iterator[str]:
    for pattern in search.row.folder_globs:
        filled = _fill(pattern, search)
        if filled:
            yield from (path for path in sorted(glob.glob(filled), reverse=True) if _suits(path, search.platform))


def _folders(search: Search) -> Iterator[str]:
    """Absolute ``sys.path`` folders: a library must never come out of the working directory by accident."""
    return (folder for folder in search.sys_path if os.path.isabs(folder) and os.path.isdir(folder))


def _suits(path: str, platform: str) -> bool:
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(platform, ".so")
    return path.endswith(suffix) or (suffix == ".so" and ".so." in os.path.basename(path))


def _fallback(search: Search) -> Iterator[str]:
    value = search.row.env_fallback and search.environ.get(search.row.env_fallback)
    if value:
        yield value


def _override(search: Search) -> str:
    return (search.row.env and search.environ.get(search.row.env)) or ""


def _places(search: Search, candidate: str) -> list[str]:
    """The files a candidate may stand for: itself, or where the loader would find the bare name."""
    if os.path.dirname(candidate):
        return [candidate]
    folders = handles.loader_folders(search.environ, search.platform)
    cached = handles.cached_path(candidate) if search.platform == "linux" else []
    found = [
        path for path in (*(os.path.join(folder, candidate) for folder in folders), *cached) if os.path.exists(path)
    ]
    if not found:
        search.note(candidate, "not found in any folder that the system's loader searches")
    return found


def _fill(pattern: str, search: Search) -> str | None:
    """``{VARIABLE}`` at the start of a pattern replaced from the environment; None where it is not set."""
    if not pattern.startswith("{"):
        return pattern
    name, _, rest = pattern[1:].partition("}")
    value = search.environ.get(name)
    return value + rest if value else None


def _unavailable(search: Search) -> Unavailable:
    row = search.row
    system = _SYSTEMS.get(search.platform, search.platform)
    return Unavailable(row.name, "; ".join(search.notes) or f"no place is known for it on {system}", _hint(search))


def _hint(search: Search) -> str:
    row = search.row
    if _override(search):
        return f"correct or unset {row.env}"
    if row.driver:
        return "install the vendor's driver, or use a machine that has one"
    return f"install it, or name its path in {row.env}" if row.env else ""
