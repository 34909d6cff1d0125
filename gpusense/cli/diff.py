"""Compare two sessions, or two sets of runs: counts exactly, times only where the difference is more than noise."""

import argparse
import sys
from typing import Any

from ._arguments import share

FAILED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help="session file, or several joined by commas: runs of one program")
    parser.add_argument("after", metavar="B", help="likewise")
    parser.add_argument("--fail-over", type=share, metavar="10%%", help="exit code 3 where something grew by more")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", dest="form", action="store_const", const="json", help="one JSON object")
    forms.add_argument("--html", dest="form", action="store_const", const="html", help="one offline HTML page")
    parser.add_argument("-o", "--output", metavar="PATH", help="where to write (standard output)")


def main(arguments: argparse.Namespace) -> int:
    """0, or 3 where ``--fail-over`` was given and something grew by more."""
    from ..analysis.diff import compare

    found = compare(_load(arguments.before), _load(arguments.after))
    _write(found, arguments)
    return FAILED if arguments.fail_over is not None and found.failures(arguments.fail_over) else 0


def _load(paths: str) -> list[Any]:
    from ..session import load

    return [load(path) for path in paths.split(",")]


def _write(found: Any, arguments: argparse.Namespace) -> None:
    from .._json import dumps, plain
    from ..report import compare
    from ..report.files import output
    from ..report.style import style_of

    target = arguments.output or sys.stdout
    over = arguments.fail_over
    if arguments.form == "html":
        compare.write(found, target, over=over)
        return
    if arguments.form == "json":
        text = dumps(plain(compare.to_dict(found, over=over)), portable=True) + "\n"
    else:
        style = style_of(sys.stdout)
        text = style.fit(compare.text(found, over=over, width=style.width))
    with output(target) as file:
        file.write(text)
