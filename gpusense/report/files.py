"""Opening what a renderer writes to: a path (written beside it, then moved into place) or an open file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any


@contextmanager
def output(target: "str | os.PathLike[str] | IO[Any]", *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file open for writing. A path appears only once it is complete; an open file is left open."""
    if not isinstance(target, (str, os.PathLike)):
        yield target
        return
    path = os.fspath(target)
    partial = f"{path}.{os.getpid()}.part"
    mode, encoding = ("wb", None) if binary else ("w", "utf-8")
    try:
        with open(partial, mode, encoding=encoding, newline=None if binary else "\n") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        try:
            os.unlink(partial)
        except OSError:
            pass
        raise
