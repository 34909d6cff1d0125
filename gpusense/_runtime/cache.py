"""The user's cache: what gpusense keeps there, where nobody else can write.

Nothing here raises for a cache that is full, read-only, somebody else's or missing.
"""

import os


def folder(name: str) -> str | None:
    """Path of the folder ``name``, whether it is there or not; None where this user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "gpusense", name)


def private(name: str) -> str | None:
    """As :func:`folder`, and it is there; None where it cannot be made, or others may write in it."""
    path = folder(name)
    try:
        if path is not None:
            os.makedirs(path, 0o700, exist_ok=True)
            return path if _is_private(path) else None
    except OSError:
        pass
    return None


def _is_private(path: str) -> bool:
    """Whether it is this user's own and nobody else writes there; under sudo HOME may be another's."""
    if not hasattr(os, "geteuid"):
        return True
    found = os.stat(path)
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022
