"""Opening what a renderer writes to: a path (written beside it, then moved into place) or an open file."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any


@contextmanager
def output(target: "str | os.PathLike[str] | IO[Any]", *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file open for writing. A path appears only once it is complete; an open file is left open.

    A link stays one: what it points to is replaced. A device or pipe (``/dev/stdout``, ``>(gzip)``) is written to.
    """
    if not isinstance(target, (str, os.PathLike)):
        yield target
        return
    mode, encoding = ("wb", None) if binary else ("w", "utf-8")
    newline = None if binary else "\n"
    path = os.fspath(target)
    if _is_special(path):
        with open(path, mode, encoding=encoding, newline=newline) as file:
            yield file
        return
    path = os.path.realpath(path)
    partial = f"{path}.{os.getpid()}.part"
    try:
        file = open(partial, mode, encoding=encoding, newline=newline)  # noqa: SIM115 - what opening raises is handled alone
    except OSError as error:  # of a name that nobody gave
        error.filename = target
        raise
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
