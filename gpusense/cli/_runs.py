"""The folder of a run, and the last runs that are kept in the user's cache.

Nothing here raises for a cache that is full, read-only, somebody else's or missing: the run is then kept nowhere.
"""

import json
import os
import time
from typing import Any, NamedTuple

from .._runtime import cache
from .._runtime.process import is_written
from .._tracing import run

MOST_RUNS, MOST_BYTES = 10, 1 << 30
MAIN = "main.gpusense"


class Folder(NamedTuple):
    """Where a run has its files. ``kept``: in the cache, to stay; else it goes with the run."""

    path: str
    kept: bool

    def remove(self) -> None:
        """Its files are of no use any more."""
        _removed(self.path)


def make(keep: bool) -> Folder | None:
    """A new, private folder, in the cache if that is wanted and can be; None where no file can be written at all."""
    home = cache.private(cache.RUNS) if keep else None
    if home is not None:
        prune(MOST_RUNS - 1)  # with the new one they are as many as are kept, also while it is written
        path = os.path.join(home, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        try:
            os.mkdir(path, 0o700)
            return Folder(path, True)
        except OSError:
            pass
    import tempfile

    try:
        return Folder(tempfile.mkdtemp(prefix="gpusense-"), False)
    except OSError:
        return None


def _removed(folder: str) -> None:
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:  # somebody has put a folder there, or removes it, too
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def runs() -> list[str]:
    """Folders of the kept runs, the newest last."""
    home = cache.folder(cache.RUNS)
    try:
        names = sorted(os.listdir(home)) if home is not None else []
    except OSError:
        return []
    return [os.path.join(home or "", name) for name in names if name[:1].isdigit()]


def last() -> str | None:
    """Folder of the newest run that holds a session."""
    return next((folder for folder in reversed(runs()) if sessions(folder)), None)


def sessions(folder: str) -> list[str]:
    """Session files of a run, that of the process that began it first."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(cache.SUFFIX)]
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names, key=lambda name: (name != MAIN, name))]


def described(folder: str) -> dict[str, Any]:
    """What was run, as the run itself has noted."""
    try:
        with open(os.path.join(folder, run.FILE), encoding="utf-8") as file:
            found = json.loads(file.read())["about"]
    except Exception:  # noqa: BLE001 - a damaged folder is one of which nothing is known
        return {}
    return found if isinstance(found, dict) else {}


def size_bytes(folder: str) -> int:
    """Of all its files."""
    return sum(_size(os.path.join(folder, name)) for name in os.listdir(folder))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def prune(most: int = MOST_RUNS) -> None:
    """Removes the oldest runs beyond what is kept; none that a process still writes."""
    total = 0
    for place, folder in enumerate(reversed(runs())):
        try:
            total += size_bytes(folder)
        except OSError:  # another gpusense removed it
            continue
        if (place >= most or total > MOST_BYTES) and not any(map(is_written, sessions(folder))):
            _removed(folder)
