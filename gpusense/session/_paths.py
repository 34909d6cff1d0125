"""Where a session file is written: a new file, in one that is overwritten, or beside one until it is whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .._runtime.errors import SessionError
from . import _format as file

_FLAGS = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def kept_until_whole(path: str) -> Iterator[tuple[int, bool]]:
    """A descriptor of an empty file, and whether a session at ``path`` is to be replaced by what is written there: only
    once the body, which closes the descriptor, has ended without raising. A link stays one.
    """
    if not _holds_a_session(path):
        yield create(path), False
        return
    target = os.path.realpath(path)
    beside = f"{target}.{os.urandom(4).hex()}.part"
    old, fd = _both(path, beside)
    try:
        try:
            yield fd, True
        finally:
            os.close(old)
        os.replace(beside, target)
    except BaseException as error:
        _remove(beside)
        if isinstance(error, OSError):
            raise SessionError(f"{path}: {error.strerror}") from None
        raise


def _both(path: str, beside: str) -> tuple[int, int]:
    """Descriptors of the old file, claimed and seen to be the user's own, and of the new one."""
    try:
        old = claim(path)
        try:
            _make_private(old)
            return old, os.open(beside, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            os.close(old)
            raise
    except OSError as error:
        raise SessionError(f"{path}: nothing can be written in its place: {error.strerror}") from None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _holds_a_session(path: str) -> bool:
    """False where nothing is at ``path``, or an empty file. Raises where it holds anything else."""
    if not os.path.lexists(path):
        return False
    with file.open_file(path) as found:
        head = found.read(len(file.MAGIC))
    if head and head != file.MAGIC:
        raise SessionError(f"{path}: exists, is not a gpusense session and is not overwritten; give another path")
    return bool(head)


def create(path: str) -> int:
    """A descriptor of an empty file that only its owner can read.

    A new file is made with O_EXCL, so nothing planted at the path between check and use is followed. An existing
    session or empty file of the user's choice is overwritten; what holds anything else, belongs to somebody else or is
    no regular file is refused.
    """
    try:
        try:
            return _claimed(os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600), path)
        except FileExistsError:
            return _overwrite(path)
    except OSError as error:
        raise SessionError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SessionError(f"{path!r}: {error}") from None


def claim(path: str) -> int:
    """A descriptor of a file that is there; ``SessionError`` where another process writes it."""
    return _claimed(os.open(path, _FLAGS), path)


def _claimed(fd: int, path: str) -> int:
    """``fd``, which nobody else may write now: ranks that are given one path would overwrite each other's chunks."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise SessionError(f"{path}: another process is writing it; give each its own") from None
    except (ImportError, OSError):  # Windows, and file systems without locks
        pass
    return fd


def released(fd: int) -> None:
    """Ends the claim also for forked children, which would keep it as long as they live."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)
    except (ImportError, OSError):
        pass


def _overwrite(path: str) -> int:
    _holds_a_session(path)
    fd = claim(path)
    try:
        _make_private(fd)
        os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def _make_private(fd: int) -> None:
    if hasattr(os, "fchmod"):
        os.fchmod(fd, 0o600)
