"""What the system knows of a process: its user, time on the CPU, memory, age and command, from ``/proc``.

For processes of this pid namespace on Linux. Elsewhere, and where a file cannot be read, nothing is known.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

_REST_S = 2.0
_MOST = 1000  # processes; nobody reads more, and each costs three files
_LONGEST = 4096  # bytes of a command line


class Facts(NamedTuple):
    """One process on the host."""

    user: str | None = None
    cpu_percent: float | None = None  # of one core, between the last two looks
    memory_bytes: int | None = None  # resident
    running_s: float | None = None
    command: str | None = None  # foreign text


class _Look(NamedTuple):
    at_s: float
    started: int  # ticks after boot: a later process of the same pid has another
    ticks: int  # on the CPU so far
    facts: Facts


class Host:
    """Looks at processes; at most every two seconds at the same one. For one thread."""

    def __init__(self, procfs: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        self._procfs = procfs
        self._clock = clock
        self._looks: dict[int, _Look] = {}
        self._users: dict[str, str] = {}
        sysconf = getattr(os, "sysconf", None)
        self._tick_s = 1 / sysconf("SC_CLK_TCK") if sysconf else 0.01
        self._page = sysconf("SC_PAGE_SIZE") if sysconf else 4096

    def facts(self, pids: Iterable[int]) -> dict[int, Facts]:
        """Of each process that can be looked at; those not asked about are forgotten."""
        now, looks = self._clock(), {}
        for pid in list(dict.fromkeys(pids))[:_MOST]:
            before = self._looks.get(pid)
            look = before if before is not None and now - before.at_s < _REST_S else self._look(pid, now, before)
            if look is not None:
                looks[pid] = look
        self._looks = looks
        return {pid: look.facts for pid, look in looks.items()}

    def _look(self, pid: int, now: float, before: _Look | None) -> _Look | None:
        fields = self._read(pid, "stat").rpartition(")")[2].split()  # a process may have ")" in its name
        try:
            ticks, started, pages = int(fields[11]) + int(fields[12]), int(fields[19]), int(fields[21])
        except (IndexError, ValueError):
            return None
        if before is not None and before.started != started:
            before = None
        percent = None
        if before is not None and now > before.at_s:
            percent = max(ticks - before.ticks, 0) * self._tick_s / (now - before.at_s) * 100
        facts = Facts(
            before.facts.user if before is not None else self._user(pid),
            percent,
            pages * self._page,
            self._age(started),
            self._command(pid),
        )
        return _Look(now, started, ticks, facts)

    def _user(self, pid: int) -> str | None:
        """By its status: the folder of a process that may not be dumped is root's, whoever runs it."""
        lines = self._read(pid, "status").splitlines()
        ids = next((line.split()[1:] for line in lines if line.startswith("Uid:")), [])
        if len(ids) < 2:
            return None
        if ids[1] not in self._users:
            self._users[ids[1]] = _name_of(ids[1])
        return self._users[ids[1]]

    def _age(self, started: int) -> float | None:
        try:
            with open(os.path.join(self._procfs, "uptime"), encoding="ascii") as file:
                return max(float(file.read().split()[0]) - started * self._tick_s, 0.0)
        except (OSError, ValueError, IndexError):
            return None

    def _command(self, pid: int) -> str | None:
        """Its words, the first without its folder; None where it has none (a thread of the kernel)."""
        program, *words = self._read(pid, "cmdline").rstrip("\0").split("\0")
        return " ".join([program.rpartition("/")[2] or program, *words]).strip() or None

    def _read(self, pid: int, name: str) -> str:
        try:
            with open(os.path.join(self._procfs, str(pid), name), "rb") as file:
                return file.read(_LONGEST).decode("utf-8", "replace")
        except OSError:
            return ""


def _name_of(uid: str) -> str:
    try:
        import pwd

        return pwd.getpwuid(int(uid)).pw_name
    except (ImportError, KeyError, ValueError, OverflowError):
        return uid
