"""The user's cache: what gpusense keeps there, where nobody else can write."""

import os

#: The folder of runs that are kept, and of what the flight recorder writes.
RUNS = "runs"
#: Names of what the flight recorder writes; a run has a folder, whose name begins with a digit.
FLIGHT, SUFFIX = "flight-", ".gpusense"


def folder(name: str) -> str | None:
    """Path of the folder ``name``, whether it is there or not; None where this user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "gpusense", name)


def make(name: str) -> str | None:
    """As :func:`folder`, and it is there; None where others may write in it. Raises ``OSError`` where it cannot be
    made."""
    path = folder(name)
    if path is None:
        return None
    os.makedirs(path, 0o700, exist_ok=True)
    return path if _is_private(path) else None


def private(name: str) -> str | None:
    """As :func:`make`; None also where it cannot be made: a cache that is full, read-only or somebody else's."""
    try:
        return make(name)
    except OSError:
        return None


def _is_private(path: str) -> bool:
    """Whether it is this user's own and nobody else writes there; under sudo HOME may be another's."""
    if not hasattr(os, "geteuid"):
        return True
    found = os.stat(path)
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def flights() -> list[str]:
    """What the flight recorder wrote, the newest last."""
    home = folder(RUNS)
    try:
        names = os.listdir(home) if home is not None else []
    except OSError:
        return []
    paths = [os.path.join(home or "", name) for name in names if name.startswith(FLIGHT) and name.endswith(SUFFIX)]
    return sorted(paths, key=lambda path: (_written_ns(path), path))


def _written_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:  # another process has removed it
        return 0
