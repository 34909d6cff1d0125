"""The folder in the user's cache where runs are kept, and what the flight recorder writes."""

import os


def folder() -> str | None:
    """The folder of all that is kept, whether it is there or not; None where this user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return os.path.join(base, "gpusense", "runs")


def make() -> str | None:
    """The folder, which is there now and this user's own; None where it is not, or another may write there. Raises
    ``OSError`` where it cannot be made."""
    home = folder()
    if home is None:
        return None
    os.makedirs(home, 0o700, exist_ok=True)
    return home if _is_private(home) else None


def _is_private(path: str) -> bool:
    """Whether it is this user's own and nobody else writes there; under sudo HOME may be another's."""
    if not hasattr(os, "geteuid"):
        return True
    found = os.stat(path)
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


#: Names of what the flight recorder writes; a run has a folder, whose name begins with a digit.
FLIGHT, SUFFIX = "flight-", ".gpusense"


def flights(home: str) -> list[str]:
    """What the flight recorder wrote into ``home``, the newest last."""
    names = [name for name in os.listdir(home) if name.startswith(FLIGHT) and name.endswith(SUFFIX)]
    return sorted((os.path.join(home, name) for name in names), key=lambda path: (_written_ns(path), path))


def _written_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:  # another process has removed it
        return 0
