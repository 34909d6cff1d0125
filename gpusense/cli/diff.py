"""Compare two sessions, or two sets of runs: counts exactly, times only where the difference is more than noise."""

import argparse
import sys

from ._arguments import share


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help="session file, or several joined by commas: runs of one kind")
    parser.add_argument("after", metavar="B", help="likewise")
    parser.add_argument("--fail-over", type=share, metavar="10%", help="exit code 3 where something got worse by more")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--html", action="store_true", help="one offline HTML page")
    parser.add_argument("-o", "--output", metavar="PATH", help="where to write (standard output)")


def main(arguments: argparse.Namespace) -> int:
    """0, or 3 where ``--fail-over`` was given and exceeded."""
    from .._capi import demangle
    from ..report import compare
    from ..session import load

    demangle.bring_in()
    before, after = ([load(path) for path in side.split(",")] for side in (arguments.before, arguments.after))
    return int(
        compare.command(
            before,
            after,
            fail_over=arguments.fail_over,
            form="json" if arguments.json else "html" if arguments.html else "text",
            target=arguments.output or sys.stdout,
        )
    )
