"""Turn session files into text, JSON, HTML, a Perfetto or Chrome trace, a flame graph; several files are merged."""

import argparse
import sys
from typing import Any

from ._arguments import microseconds

#: option → (module below ``report``, its function, whether what it writes is for a terminal, what it is)
_FORMATS = {
    "json": ("json", "write", True, "one JSON object, schema gpusense.report/1"),
    "html": ("html", "write", False, "one offline HTML page"),
    "perfetto": ("perfetto", "write", False, "a native Perfetto trace for ui.perfetto.dev"),
    "chrome": ("chrome", "write", False, "a Chrome JSON trace"),
    "flamegraph": ("flamegraph", "write", True, "collapsed stacks, in microseconds"),
    "speedscope": ("flamegraph", "write_speedscope", False, "a profile for speedscope.app"),
}
_SUFFIXES = {
    "html": ".html",
    "perfetto": ".pftrace",
    "chrome": ".trace.json",
    "speedscope": ".speedscope.json",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sessions", nargs="+", metavar="SESSION", help="session file; several become one report")
    kinds = parser.add_mutually_exclusive_group()
    for name, (_, _, _, what) in _FORMATS.items():
        kinds.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=what)
    parser.add_argument("-o", "--output", metavar="PATH", help="where to write; '-' is standard output")
    parser.add_argument(
        "--threshold-us", type=microseconds, metavar="N", help="keep one by one from N µs (as recorded)"
    )
    parser.add_argument("--trace-all", action="store_true", help="keep every record of the file one by one")


def main(arguments: argparse.Namespace) -> int:
    """0, also for a damaged file that could be read in part: the report says what is missing."""
    from ..session import load, merge

    session = merge(
        [load(path, threshold_us=arguments.threshold_us, trace_all=arguments.trace_all) for path in arguments.sessions]
    )
    target = _target(arguments)
    if arguments.format is None:
        _text(session, target)
        return 0
    module, function, _, _ = _FORMATS[arguments.format]
    from importlib import import_module

    write: Any = getattr(import_module(f"...report.{module}", __name__), function)
    if target is None:
        write(session, sys.stdout.buffer if arguments.format == "perfetto" else sys.stdout)
    else:
        write(session, target)
        sys.stderr.write(f"{target}\n")
    return 0


def _target(arguments: argparse.Namespace) -> str | None:
    """The path to write; None for standard output."""
    if arguments.output is not None:
        return None if arguments.output == "-" else str(arguments.output)
    if arguments.format is None or _FORMATS[arguments.format][2]:
        return None
    first = str(arguments.sessions[0])
    return first.removesuffix(".gpusense") + _SUFFIXES[arguments.format]


def _text(session: Any, target: str | None) -> None:
    from ..report import text
    from ..report.style import PLAIN, style_of

    if target is not None:
        text.write(session, target, PLAIN._replace(width=_WIDE))
        sys.stderr.write(f"{target}\n")
        return
    style = style_of(sys.stdout)
    if not sys.stdout.isatty():
        style = style._replace(width=max(style.width, _WIDE))
    for line in text.full(session, style):
        sys.stdout.write(f"{line}\n")


_WIDE = 240  # where nothing is a screen, names are not cut to one
