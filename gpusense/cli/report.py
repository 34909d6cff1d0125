"""Turn session files into text, JSON, HTML, a Perfetto or Chrome trace, a flame graph; several files are merged."""

import argparse
import sys
from importlib import import_module
from typing import Any, NamedTuple

from .._runtime.text import terminal
from ._arguments import microseconds, refuse_over_itself


class _Format(NamedTuple):
    module: str  # below ``report``
    what: str
    suffix: str | None = None  # of the file beside the session; None: goes to standard output
    function: str = "write"


_FORMATS = {
    "json": _Format("json", "one JSON object, schema gpusense.report/1"),
    "html": _Format("html.page", "one offline HTML page", ".html"),
    "perfetto": _Format("perfetto", "a native Perfetto trace for ui.perfetto.dev", ".pftrace"),
    "chrome": _Format("chrome", "a Chrome JSON trace", ".trace.json"),
    "flamegraph": _Format("flamegraph", "collapsed stacks, in microseconds"),
    "speedscope": _Format("flamegraph", "a profile for speedscope.app", ".speedscope.json", "write_speedscope"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sessions", nargs="+", metavar="SESSION", help="session file; several become one report")
    kinds = parser.add_mutually_exclusive_group()
    for name, form in _FORMATS.items():
        kinds.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=form.what)
    parser.add_argument("-o", "--output", metavar="PATH", help="where to write; '-' is standard output")
    parser.add_argument(
        "--threshold-us", type=microseconds, metavar="N", help="keep one by one from N µs (as recorded)"
    )
    parser.add_argument("--trace-all", action="store_true", help="keep every record of the file one by one")


def main(arguments: argparse.Namespace) -> int:
    """0, also for a damaged file that could be read in part: the report says what is missing."""
    from .._capi import demangle
    from ..session import load, merge

    target = _target(arguments)
    refuse_over_itself(target, arguments.sessions)
    demangle.bring_in()
    session = merge(
        [load(path, threshold_us=arguments.threshold_us, trace_all=arguments.trace_all) for path in arguments.sessions]
    )
    if arguments.format is None:
        _text(session, target)
        return 0
    form = _FORMATS[arguments.format]
    write: Any = getattr(import_module(f"...report.{form.module}", __name__), form.function)
    if target is not None:
        write(session, target)
        sys.stderr.write(terminal(f"{target}\n"))
    elif arguments.format == "perfetto":
        write(session, sys.stdout.buffer)
    else:
        write(session, sys.stdout)
    return 0


def _target(arguments: argparse.Namespace) -> str | None:
    """The path to write; None for standard output."""
    if arguments.output is not None:
        return None if arguments.output == "-" else str(arguments.output)
    suffix = _FORMATS[arguments.format].suffix if arguments.format else None
    return suffix and str(arguments.sessions[0]).removesuffix(".gpusense") + suffix


def _text(session: Any, target: str | None) -> None:
    from ..report import text
    from ..report.style import PLAIN, style_of

    if target is not None:
        text.write(session, target, PLAIN._replace(width=_WIDE))
        sys.stderr.write(terminal(f"{target}\n"))
        return
    style = style_of(sys.stdout)
    if not sys.stdout.isatty():
        style = style._replace(width=max(style.width, _WIDE))
    for line in text.full(session, style):
        sys.stdout.write(f"{line}\n")


_WIDE = 240  # where nothing is a screen, names are not cut to one
