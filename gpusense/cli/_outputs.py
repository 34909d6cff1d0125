"""What ``-o`` means: the names in a path, and where a report goes that was asked for."""

import os
from typing import Any

from .._capture.identity import rank_and_world
from .._runtime.errors import GpuSenseError
from .._runtime.process import is_written
from ..report.forms import OF_A_SESSION, chosen, writer

#: The command that is named last where the session is among the last runs.
KEPT = "gpusense report --html (kept; see gpusense list)"


def no_folder(path: str) -> str:
    """What is said where a file cannot be made, since its folder is not there."""
    return f"{path}: there is no folder {os.path.dirname(os.path.abspath(path))}"


def filled(path: str, pid: int | None = None) -> str:
    """``path`` with ``{pid}`` (also ``%p``), ``{rank}``, ``{host}`` and ``{time}`` filled in. ``pid``: of the process
    that is recorded, where that is another one.

    Several ranks that were given one plain name each get their own. ``{rank}`` is the process's number outside a
    launcher. Raises :class:`GpuSenseError` for any other name in braces.
    """
    import time
    from string import Formatter

    rank = rank_and_world()[0]
    facts = {
        "pid": str(pid or os.getpid()),
        "rank": str(pid or os.getpid() if rank is None else rank),
        "host": os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "host"),
        "time": time.strftime("%Y%m%d-%H%M%S"),
    }
    path = path.replace("%p", "{pid}")
    try:
        names = {name for _, name, _, _ in Formatter().parse(path) if name is not None}
        result = path.format_map(facts) if names <= facts.keys() else None
    except ValueError:
        result = None
    if result is None:
        known = ", ".join(f"{{{name}}}" for name in facts)
        raise GpuSenseError(f"{path}: braces in a name stand for a fact of the run: {known}")
    return beside(result, f"rank{rank}") if rank is not None and not names & {"pid", "rank"} else result


def beside(path: str, who: str) -> str:
    """``run.rank1.gpusense`` for ``run.gpusense``: the same for another process."""
    head, name = os.path.split(path)
    stem, dot, suffix = name.partition(".") if not name.startswith(".") else (name, "", "")
    return os.path.join(head, f"{stem}.{who}{dot}{suffix}")


def report_form(path: str | None) -> str | None:
    """The report that a recording is to leave at ``path``; None where that is the session itself. Raises as
    :func:`~gpusense.report.forms.chosen`."""
    form = chosen(path, "session", OF_A_SESSION)
    return None if form == "session" else form


def set_aside(path: str) -> str | None:
    """Where the session that ``path`` holds has been moved to, so that it is not lost; None where it holds none, or one
    that a process still writes."""
    from ..session import _format

    try:
        with open(path, "rb") as file:
            holds = file.read(len(_format.MAGIC)) == _format.MAGIC
    except OSError:
        return None
    if not holds or is_written(path):
        return None
    target, number = os.path.realpath(path), 1
    while os.path.lexists(beside(target, f"old{number}")):
        number += 1
    moved = beside(target, f"old{number}")
    os.rename(target, moved)
    return moved


def written(session: Any, target: str | None, form: str | None, kept: str | None, opens: bool) -> list[str]:
    """Writes the report that was asked for; where it is, a line each. ``kept``: file or folder of the session;
    ``opens``: a page is to be shown, which lies beside it unless it is what was asked for."""
    if opens and form != "html" and kept is not None:
        target, form = f"{kept}.html" if os.path.isfile(kept) else os.path.join(kept, "page.html"), "html"
    if target is None or form is None:
        return []
    again = " (replaced)" if os.path.lexists(target) else ""
    try:
        writer(form)(session, target)
    except OSError as error:
        why = f"{target}: {error.strerror}" if error.strerror else str(error)  # a writer of reports names the place
        return [f"Not written: {why}. The session is kept, and gpusense report writes it again."]
    if opens:
        show(target)
    return [f"written: {target}{again}{empty_text(target)}"]


def empty_text(target: str) -> str:
    """Why a file that was written has nothing in it, as stacks of no work on a device; "" where it has something."""
    empty = os.path.isfile(target) and not os.path.getsize(target)
    return " (empty: the session has no work of a device)" if empty else ""


def show(path: str) -> None:
    """Opens a page in the browser, where there is one."""
    import pathlib
    import webbrowser

    try:
        webbrowser.open(pathlib.Path(path).resolve().as_uri())
    except Exception:  # noqa: BLE001 - a browser that does not start is its own business
        pass
