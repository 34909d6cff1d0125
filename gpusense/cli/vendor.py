"""Copy gpusense into another package, or check such a copy for drift.

Pure file work. The stamp of a copy is a ``sha256sum`` file: ``sha256sum -c VENDORED`` checks it without gpusense.
"""

import argparse
import os
import sys
from typing import NamedTuple

from .. import __version__
from .._runtime import package
from .._runtime.errors import GpuSenseError
from .._runtime.text import count_text, terminal

STAMP = "VENDORED"
LICENSE = "LICENSE"
_LICENSE_MARK = "the gpusense authors"

#: Never copied: the run that ``gpusense demo`` shows where there is no GPU.
RECORDED = "cli/_demo.gpusense"

#: What ``--core`` leaves out, files and folders by how they begin: tracing, capture, monitoring and JSON stay.
NOT_CORE = (
    "__main__.py",
    "_capi/vulkan.py",
    "_capi/wgpu",
    "analysis/conditions.py",
    "analysis/diff",
    "analysis/significance.py",
    "backends/wgpu/",
    "cli/",
    "cuda/",
    "doctor.py",
    "exporters/",
    "integrations/",
    "report/",
    "testing.py",
    "wgpu.py",
)

#: What stays of those folders all the same.
CORE = tuple(
    f"report/{name}.py"
    for name in ("__init__", "blocks", "divisions", "files", "json", "json_stream", "spans", "style")
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("destination", metavar="DEST", help="the folder that becomes the copy, e.g. mylib/_gpusense")
    parser.add_argument("--core", action="store_true", help="only what tracing, capture and monitoring need")
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit code 1 if DEST was edited, or with --core has more than the core",
    )


def main(arguments: argparse.Namespace) -> int:
    """0; with ``--check`` 1 where the copy differs from its stamp. Bad destinations are errors (2)."""
    if arguments.check:
        return _print_check(arguments.destination, arguments.core)
    stamp = copy(arguments.destination, arguments.core)
    what = "core" if stamp.core else "all"
    files = count_text(len(stamp.files), "file")
    where = terminal(arguments.destination)
    sys.stderr.write(f"{where}: gpusense {stamp.version}, {files} ({what}), {stamp.content[:12]}\n")
    return 0


def _print_check(destination: str, core: bool) -> int:
    stamp, difference = check(destination)
    whole = core and not stamp.core
    if whole:
        sys.stdout.write("whole package, not the core\n")
    for label, paths in zip(("changed", "missing", "added"), difference, strict=True):
        for path in paths:
            sys.stdout.write(terminal(f"{label}: {path}\n"))
    state = "was edited" if difference else "is as it was copied"
    newer = "" if stamp.content == upstream(stamp.core) else f"; this is gpusense {__version__}, with other content"
    sys.stderr.write(terminal(f"{destination}: gpusense {stamp.version}, {state}{newer}\n"))
    return 1 if difference or whole else 0


class VendorError(GpuSenseError):
    """A copy cannot be made or checked."""


class Stamp(NamedTuple):
    """What a copy says of itself. ``content`` is the hash over all of its files."""

    version: str
    core: bool
    content: str
    files: dict[str, str]  # path → sha256


class Difference(NamedTuple):
    """How a copy differs from its stamp; empty where it does not."""

    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.missing or self.added)


def names(core: bool = False, folder: str | None = None) -> list[str]:
    """Paths of the files of a copy, below the package folder, with ``/``; without licence and stamp."""
    root = folder if folder is not None else _here()
    found = []
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in files:
            path = os.path.relpath(os.path.join(place, name), root).replace(os.sep, "/")
            if not name.endswith((".pyc", ".pyo")) and path not in (RECORDED, STAMP, LICENSE):
                found.append(path)
    return sorted(path for path in found if not core or path in CORE or not path.startswith(NOT_CORE))


def copy(destination: str, core: bool = False) -> Stamp:
    """Makes ``destination`` a copy of this package, in place of an unmodified older one.

    Raises :class:`VendorError` where something else stands there, or a copy that was edited.
    """
    destination = os.path.realpath(destination)  # a link to a folder stays a link
    _refuse_to_overwrite(destination)
    contents = {path: _read(os.path.join(_here(), *path.split("/"))) for path in names(core)}
    contents[LICENSE] = _license()
    stamp = _stamp(contents, core)
    beside = f"{destination}.new"  # an older copy goes once the new one is whole
    if os.path.lexists(beside):
        raise VendorError(f"{beside} is in the way: delete it")
    try:
        _write(beside, {**contents, STAMP: _text(stamp).encode()})
    except BaseException:
        _remove(beside)
        raise
    _remove(destination)
    os.rename(beside, destination)
    return stamp


def _write(destination: str, contents: dict[str, bytes]) -> None:
    for path, content in contents.items():
        target = os.path.join(destination, *path.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)


def check(destination: str) -> tuple[Stamp, Difference]:
    """The stamp of a copy and how the copy differs from it; :class:`VendorError` where there is no copy."""
    stamp = read_stamp(destination)
    there = {*names(folder=destination)}
    if os.path.exists(os.path.join(destination, LICENSE)):
        there.add(LICENSE)
    changed = [
        path
        for path in sorted(there & set(stamp.files))
        if _hash(_read(os.path.join(destination, *path.split("/")))) != stamp.files[path]
    ]
    missing, added = sorted(set(stamp.files) - there), sorted(there - set(stamp.files))
    return stamp, Difference(tuple(changed), tuple(missing), tuple(added))


def upstream(core: bool) -> str:
    """The content hash that a copy made now would have."""
    contents = {path: _read(os.path.join(_here(), *path.split("/"))) for path in names(core)}
    return _stamp({**contents, LICENSE: _license()}, core).content


def read_stamp(destination: str) -> Stamp:
    """The stamp in ``destination``; raises :class:`VendorError` where there is none or it cannot be read."""
    path = os.path.join(destination, STAMP)
    try:
        lines = _read(path).decode("utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        why = f"it has no file {STAMP}" if os.path.isdir(destination) else "there is no such folder"
        raise VendorError(f"{destination} is not a vendored copy: {why}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise VendorError(f"{path} cannot be read: {why}") from None
    head = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
    files = {path: digest for digest, _, path in (line.partition("  ") for line in lines if line[:1] != "#") if path}
    if not {"version", "files", "content"} <= set(head) or not files:
        raise VendorError(f"{path} is not a stamp that this version reads")
    if _content(files) != head["content"]:
        raise VendorError(f"{path} was edited: its lines do not have the hash it names")
    return Stamp(head["version"], head["files"] == "core", head["content"], files)


def _here() -> str:
    return package.FOLDER


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _hash(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def _content(files: dict[str, str]) -> str:
    return _hash("".join(f"{digest}  {path}\n" for path, digest in sorted(files.items())).encode())


def _stamp(contents: dict[str, bytes], core: bool) -> Stamp:
    files = {path: _hash(content) for path, content in sorted(contents.items())}
    return Stamp(__version__, core, _content(files), files)


def _text(stamp: Stamp) -> str:
    head = [
        "# A copy of gpusense; do not edit. sha256sum -c VENDORED checks it.",
        f"# version: {stamp.version}",
        f"# files: {'core' if stamp.core else 'all'}",
        f"# content: {stamp.content}",
    ]
    return "\n".join([*head, *(f"{digest}  {path}" for path, digest in sorted(stamp.files.items()))]) + "\n"


def _license() -> bytes:
    """The licence: in this folder (a copy), in the wheel's metadata, or beside the package (a checkout)."""
    parent = os.path.dirname(_here())
    for place in (_here(), os.path.join(parent, f"gpusense-{__version__}.dist-info", "licenses"), parent):
        try:
            content = _read(os.path.join(place, LICENSE))
        except OSError:
            continue
        if _LICENSE_MARK.encode() in content:
            return content
    raise VendorError(f"the licence file is not beside the package {_here()}; copy from a wheel or a checkout")


def _refuse_to_overwrite(destination: str) -> None:
    here = os.path.realpath(_here())
    if destination == here:
        raise VendorError(f"{destination} is this package itself")
    if destination.startswith(here + os.sep):
        raise VendorError(f"{destination} lies inside this package, and would be copied with it from then on")
    if not os.path.lexists(destination) or (os.path.isdir(destination) and not os.listdir(destination)):
        return
    if not os.path.isdir(destination):
        raise VendorError(f"{destination} exists and is not a folder")
    _, difference = check(destination)
    if difference:
        raise VendorError(f"{destination} was edited ({_some(difference)}): save your changes, delete the folder")


def _some(difference: Difference) -> str:
    paths = (*difference.changed, *difference.missing, *difference.added)
    return ", ".join(paths[:3]) + (" …" if len(paths) > 3 else "")


def _remove(destination: str) -> None:
    import shutil

    if os.path.isdir(destination):
        shutil.rmtree(destination)
