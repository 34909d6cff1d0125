"""Being called at the moment CUDA starts: the shared object that ``cuInit`` loads in this process and in its children.

The driver offers this to tools, by one variable of the environment. Nothing runs in a process that does not use CUDA,
and in one that does no launch comes before the call. Who has set the variable already keeps it.
"""

import os

from ..._capi.machine.shared_object import start_object

VARIABLE = "CUDA_INJECTION64_PATH"
_FILE = "gpusense-start.so"
NOTES = "unseen-"  # beginning of the names of files that processes leave which are not recorded


def install(folder: str, script: str, *, noting: bool = True) -> str:
    """Has each process that inherits this environment run ``script`` in Python when it starts CUDA; "" or why not.

    A process without Python leaves a file in ``folder`` instead where that is ``noting``, see :func:`notes`. Only
    before the program runs: later, another thread might be reading the environment.
    """
    holder = os.environ.get(VARIABLE)
    if holder and not is_ours(holder):
        return f"another tool has set {VARIABLE}={holder}"
    if not hasattr(os, "uname") or os.uname().sysname != "Linux":
        return "on this system CUDA does not tell when it starts"
    path = os.path.join(folder, _FILE)
    try:
        made = start_object(os.uname().machine, script, os.path.join(folder, f"{NOTES}XXXXXX") if noting else "")
        if made is None:
            return f"there is no code for {os.uname().machine}"
        _put(path, made)
    except (OSError, ValueError) as error:
        return str(error)
    os.environ[VARIABLE] = path
    return ""


def _put(path: str, content: bytes) -> None:
    """Whole, or not at all: other processes may load it at the same time."""
    try:
        with open(path, "rb") as file:
            if file.read() == content:
                return
    except FileNotFoundError:
        pass
    new = f"{path}.{os.getpid()}"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        os.replace(new, path)
    except OSError:
        if os.path.exists(new):
            os.unlink(new)
        raise


def is_ours(path: str) -> bool:
    """Whether that is what :func:`install` has set, here or in the process that started this one."""
    return os.path.basename(path) == _FILE


def notes(folder: str) -> list[tuple[str, str]]:
    """Path of the program, and why it is not recorded, of each process that has started CUDA all the same."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.startswith(NOTES):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                who, _, reason = file.read(4096).partition("\n")
            found.append((who.partition(" ")[2] or "?", reason.strip() or "it does not run Python"))
    return found
