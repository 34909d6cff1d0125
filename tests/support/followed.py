"""What ``gpusense run`` has recorded of all processes of a program, and what a test says where something is missing."""

import os
import pathlib
from collections import Counter
from typing import Any

from gpusense.cli import _sessions


def whole(path: "str | os.PathLike[str]") -> Any:
    """The session at ``path`` with those of the processes that its program started."""
    return _sessions.loaded([str(path)])


def counts(session: Any) -> Counter[str]:
    """Kernels by name."""
    found = Counter(kernel.name for kernel in session.kernels)
    for row in session.aggregates:
        if row.kind == "kernel":
            found[row.name] += row.count
    return found


def kernels(session: Any) -> int:
    return sum(counts(session).values())


def nothing_lost(done: Any, path: pathlib.Path, *launched: int) -> Any:
    """The whole session of ``done``, a run that has ended, of which all processes together launched so many kernels,
    or one of these numbers."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    session = whole(path)
    told = "\n".join(
        [
            f"of {' or '.join(map(str, launched))} kernels {kernels(session)} are there: {dict(counts(session))}",
            *(f"not seen: {off}" for off in session.unseen),
            f"capture: {session.meta.get('capture')}",
            f"files: {sorted(entry.name for entry in path.parent.iterdir())}",
            done.stderr,
        ]
    )
    assert session.unseen == [], told
    assert kernels(session) in launched, told
    return session
