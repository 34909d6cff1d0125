"""Another process of a Linux machine, as far as it can be attached to: what it runs, whose it is, why it refuses."""

import os
import re
import sys

_PYTHON = re.compile(r"(?:^|/)(?:lib)?python(\d)\.(\d+)")
_FIRST = (3, 14)  # with sys.remote_exec
_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_SCOPES = {
    "1": "kernel.yama.ptrace_scope is 1, so only root and the process that started it may",
    "2": "kernel.yama.ptrace_scope is 2, so only root may",
    "3": "kernel.yama.ptrace_scope is 3, so nobody may",
}


def started(pid: int) -> str | None:
    """What tells the process from a later one of the same number; None once it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def python_of(pid: int) -> tuple[int, int] | None:
    """Version of the CPython that it runs, by the files that it has mapped; None where it runs none, or that is not
    known. Raises PermissionError where nobody but its user may look."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:
            paths = [os.readlink(f"/proc/{pid}/exe"), *(line.split(None, 5)[5] for line in lines if "/" in line)]
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = next(filter(None, map(_PYTHON.search, paths)), None)
    return (int(found[1]), int(found[2])) if found else None


def command_of(pid: int) -> list[str]:
    """Its words; none where they are not known."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def owner_of(pid: int) -> tuple[int, int] | None:
    """Its user and group; None where they are not known."""
    try:
        found = os.stat(f"/proc/{pid}")
    except OSError:
        return None
    return found.st_uid, found.st_gid


def refusal(pid: int) -> str:
    """Why it cannot be attached to, as far as that can be seen from outside; empty where it may well be."""
    if sys.platform != "linux":
        return "attaching is for Linux, where kernels are traced"
    if started(pid) is None:
        return f"there is no process {pid}"
    if pid == os.getpid():
        return f"process {pid} is this command itself"
    try:
        theirs = python_of(pid)
    except PermissionError:
        return denied(pid)
    ours = sys.version_info[:2]
    if theirs is None:
        name = (command_of(pid) or ["?"])[0]
        return f"process {pid} ({os.path.basename(name)}) runs no Python"
    runs = f"process {pid} runs Python {_text(theirs)}, and"
    if theirs < _FIRST:
        return (
            f"{runs} only Python {_text(_FIRST)} and later can be attached to; "
            "gpusense run records a program from its beginning, with any Python"
        )
    if ours != theirs:
        need = f"attaching needs Python {_text(_FIRST)} or later" if ours < _FIRST else "both sides must be the same"
        return f"{runs} this is {_text(ours)}: {need}; python{_text(theirs)} -m gpusense attach {pid}"
    if _elsewhere(pid):
        return f"process {pid} sees other files than this one, as in a container; run gpusense attach in there"
    return ""


def _elsewhere(pid: int) -> bool:
    try:
        return any(
            os.readlink(f"/proc/{pid}/{what}") != os.readlink(f"/proc/self/{what}") for what in ("ns/mnt", "root")
        )
    except OSError:
        return False


def sentence(pid: int, error: Exception) -> str:
    """Why ``sys.remote_exec`` has failed with ``error``."""
    if isinstance(error, PermissionError):
        return denied(pid)
    text = str(error)
    if "not enabled" in text:
        return (
            f"process {pid} does not let itself be attached to: it was started with PYTHON_DISABLE_REMOTE_DEBUG or "
            "-X disable-remote-debug, or its Python was built so"
        )
    if started(pid) is None:
        return f"process {pid} has ended"
    return f"process {pid} cannot be attached to: {text}"


def denied(pid: int) -> str:
    """Whose process it is, and what the system wants of who looks into it."""
    owner = owner_of(pid)
    me = os.geteuid()
    if owner is not None and owner[0] != me and me != 0:
        return f"process {pid} is {_user(owner[0])}'s, and you are {_user(me)}: attach as that user, or as root"
    try:
        with open(_SCOPE, encoding="ascii") as file:
            rule = _SCOPES.get(file.read().strip())
    except OSError:
        rule = None
    rule = rule or "CAP_SYS_PTRACE is missing, as in a container without --cap-add=SYS_PTRACE"
    return f"the system does not let this command look into process {pid}: {rule}"


def _user(uid: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"user {uid}"


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
