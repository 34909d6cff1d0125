"""Compare two sessions, or two sets of runs: counts exactly, times only where the difference is more than noise."""

import argparse
import sys

from ._arguments import refuse_over_itself, share


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help="session file, or several joined by commas: runs of one kind")
    parser.add_argument("after", metavar="B", help="likewise")
    parser.add_argument("--fail-over", type=share, metavar="10%", help="exit code 3 where something got worse by more")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--json", action="store_true", help="one JSON object")
    kinds.add_argument("--html", action="store_true", help="one offline HTML page")
    parser.add_argument("-o", "--output", metavar="PATH", help="where to write (standard output)")


def main(arguments: argparse.Namespace) -> int:
    """0, or 3 where ``--fail-over`` was passed and exceeded."""
    from .._capi import demangle
    from ..report import compare
    from ._sessions import loaded

    paths = [side.split(",") for side in (arguments.before, arguments.after)]
    refuse_over_itself(arguments.output, [path for side in paths for path in side])
    demangle.bring_in()
    before, after = ([loaded([path]) for path in side] for side in paths)
    return int(
        compare.command(
            before,
            after,
            fail_over=arguments.fail_over,
            form="json" if arguments.json else "html" if arguments.html else "text",
            target=arguments.output or sys.stdout,
        )
    )
