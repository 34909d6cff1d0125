"""Turn session files into text, JSON, HTML, a Perfetto or Chrome trace, a flame graph; several files are merged."""

import argparse
import gc
import os
import stat
import sys
from typing import Any

from .._runtime.text import terminal
from ..report.forms import FORMS, OF_A_SESSION, SESSION, chosen, writer
from ._arguments import microseconds, refuse_over_itself
from ._outputs import empty_text, filled, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sessions",
        nargs="*",
        metavar="SESSION",
        help="session file, JSON report, or folder of a run; several become one report; none: the last kept run",
    )
    kinds = parser.add_mutually_exclusive_group()
    for name, form in FORMS.items():
        kinds.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=form.what)
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="where to write; the suffix chooses the format: .html .json .pftrace .trace.json .speedscope.json "
        ".folded, or .gpusense for a session; '-' is standard output. Without it pages, traces and profiles are "
        "written beside the session, and the rest to standard output",
    )
    parser.add_argument("--open", action="store_true", help="show the page in the browser")
    parser.add_argument(
        "--threshold-us", type=microseconds, metavar="N", help="list one by one what takes N µs or more (as recorded)"
    )
    parser.add_argument("--trace-all", action="store_true", help="list all work of the file one by one")


def main(arguments: argparse.Namespace) -> int:
    """0, also for a damaged file that could be read in part: the report says what is missing."""
    searched = gc.isenabled()
    gc.disable()  # hardly anything of a session is garbage before the report is written
    try:
        return _report(arguments)
    finally:
        if searched:
            gc.enable()


def _report(arguments: argparse.Namespace) -> int:
    from .._capi import demangle
    from ._sessions import OF_ALL_WORK, last, loaded

    sessions = arguments.sessions or [last()]
    opens = "html" if arguments.open and arguments.output is None else "text"
    form = chosen(arguments.output, opens, OF_A_SESSION, arguments.format)
    target = _target(arguments.output, form, sessions)
    refuse_over_itself(target, sessions)
    demangle.bring_in()
    whole = form == "session" or form in OF_ALL_WORK
    session = loaded(sessions, whole, threshold_us=arguments.threshold_us, trace_all=arguments.trace_all)
    if form == "text" and target is None:
        _text(session)
    else:
        elsewhere = arguments.output is None and _is_a_file(sys.stdout)
        _written(session, form, target, "; nothing went to standard output (-o - writes there)" * elsewhere)
    if arguments.open and target is not None:
        show(target)
    return 0


def _written(session: Any, form: str, target: str | None, more: str) -> None:
    write = writer(form)
    if target is None:
        write(session, sys.stdout.buffer if form == "perfetto" else sys.stdout)
        return
    replaced = form not in ("text", "session") and os.path.isfile(target) and os.path.getsize(target)
    write(session, target)
    sys.stderr.write(terminal(f"written: {target}{' (replaced)' if replaced else ''}{empty_text(target)}{more}\n"))


def _is_a_file(stream: Any) -> bool:
    """Whether somebody has redirected ``stream`` into a file, and may look for the report there."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _target(path: str | None, name: str, sessions: list[str]) -> str | None:
    """The path to write; None for standard output."""
    if path is not None:
        return None if path == "-" else filled(path)
    form = FORMS.get(name)
    if form is None or not (form.beside or sys.stdout.isatty()):
        return None  # what another program reads goes to it; a terminal is none
    if os.path.isdir(sessions[0]):
        return os.path.join(sessions[0], f"page{form.suffixes[0]}")
    stems = [path.removesuffix(SESSION).removesuffix(".json") for path in sessions]
    common = os.path.commonprefix(stems)  # noqa: RUF071  # letters are meant
    common = common.rstrip("0123456789").removesuffix("rank").rstrip("._-")
    stem = common if len(stems) > 1 and os.path.basename(common) else stems[0]
    return stem + form.suffixes[0]


def _text(session: Any) -> None:
    from ..report import text
    from ..report.style import style_of

    for line in text.full(session, style_of(sys.stdout)):
        sys.stdout.write(f"{line}\n")
