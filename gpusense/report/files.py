"""Opening what a renderer writes to: a path (written beside it, then moved into place) or an open file."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from .._runtime.errors import NotWritten


@contextmanager
def output(target: "str | os.PathLike[str] | IO[Any]", *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file open for writing. A path appears only once it is complete; an open file is left open.

    A link stays one: what it points to is replaced. A device or pipe (``/dev/stdout``, ``>(gzip)``) is written to.
    What keeps a path from being written is raised as :class:`NotWritten`.
    """
    if not isinstance(target, (str, os.PathLike)):
        yield target
        return
    try:
        with _path(target, binary) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _not_written(os.fspath(target), error) from error


def _not_written(target: str, error: OSError) -> NotWritten:
    folder = os.path.dirname(os.path.abspath(target))
    why = error.strerror or str(error)
    if os.path.isdir(target):
        why = "it is a folder"
    elif isinstance(error, FileNotFoundError) and not os.path.isdir(folder):
        why = f"there is no folder {folder}"
    made = NotWritten(f"{target}: cannot be written: {why}")
    made.errno = error.errno
    return made


@contextmanager
def _path(target: "str | os.PathLike[str]", binary: bool) -> Iterator[IO[Any]]:
    mode, encoding = ("wb", None) if binary else ("w", "utf-8")
    newline = None if binary else "\n"
    path = os.fspath(target)
    if _is_special(path):
        with open(path, mode, encoding=encoding, newline=newline) as file:
            yield file
        return
    path = os.path.realpath(path)
    partial = f"{path}.{os.getpid()}.part"
    file = open(partial, mode, encoding=encoding, newline=newline)  # noqa: SIM115 - nothing to remove where this raises
    try:
        with file:
            yield file
        os.replace(partial, path)
    except BaseException:
        try:
            os.unlink(partial)
        except OSError:
            pass
        raise


def _is_special(path: str) -> bool:
    """Whether ``path`` is there and no regular file; a folder is refused by opening it."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def same_file(one: str, other: str) -> bool:
    """Whether two paths name one file that is there."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False
