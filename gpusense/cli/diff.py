"""Compare two sessions, or two sets of runs: counts exactly, times only where the difference is more than noise."""

import argparse
import glob
import os
import sys
from collections.abc import Sequence
from typing import Any

from .._runtime.errors import GpuSenseError
from .._runtime.text import count_text, terminal
from ..report.forms import chosen
from ._arguments import refuse_over_itself, share


def add_arguments(parser: argparse.ArgumentParser) -> None:
    several = "several are runs of one kind: joined by commas, or as 'runs/*.gpusense'"
    parser.add_argument("sides", metavar="SESSION", nargs="*", help=f"two session files, before and after; {several}")
    parser.add_argument(
        "--before", metavar="SESSION", nargs="+", default=[], help="the runs before; with --after, in place of SESSION"
    )
    parser.add_argument("--after", metavar="SESSION", nargs="+", default=[], help="the runs after")
    parser.add_argument(
        "--fail-over",
        type=share,
        metavar="10%",
        help="exit code 3 where something grew by more; 10%%, 10 and 0.1 are the same",
    )
    kinds = parser.add_mutually_exclusive_group()
    for form, what in (
        ("json", "one JSON object, schema gpusense.diff/1"),
        ("html", "one offline HTML page"),
        ("markdown", "a short table for a pull request"),
    ):
        kinds.add_argument(f"--{form}", dest="form", action="store_const", const=form, default=None, help=what)
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="where to write (standard output); .json, .html and .md choose the form"
    )


def main(arguments: argparse.Namespace) -> int:
    """0, or 3 where ``--fail-over`` was passed and exceeded."""
    from .._capi import demangle
    from ..report import compare

    paths = _sides(arguments.sides, arguments.before, arguments.after)
    sources = [path for side in paths for path in side]
    refuse_over_itself(arguments.output, sources)
    arguments.form = chosen(arguments.output, "text", ("text", "json", "html", "markdown"), arguments.form)
    target = _target(arguments)
    refuse_over_itself(target, sources)
    demangle.bring_in()
    before, after = ([_loaded(path) for path in side] for side in paths)
    code = int(
        compare.command(
            before,
            after,
            fail_over=arguments.fail_over,
            form=arguments.form,
            target=target or sys.stdout,
        )
    )
    if target is not None:
        sys.stderr.write(terminal(f"written: {target}\n"))
    return code


def _loaded(path: str) -> Any:
    """The session, which has the name that it was asked for by: one of several processes has none of its own."""
    from ._sessions import loaded

    session = loaded([path])
    session.meta.setdefault("path", os.path.normpath(path))
    return session


def _target(arguments: argparse.Namespace) -> str | None:
    """The path to write; None for standard output. What is for other programs is not poured over a terminal."""
    if arguments.output is None and arguments.form in ("json", "html") and sys.stdout.isatty():
        return f"diff.{arguments.form}"
    return None if arguments.output == "-" else arguments.output


def _sides(sides: Sequence[str], before: Sequence[str], after: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of both sides. Raises ``GpuSenseError`` where it is not clear which file is of which."""
    if sides and (before or after):
        raise GpuSenseError("give two sessions, or --before and --after, not both")
    if not sides and before and after:
        return _files(before), _files(after)
    if len(sides) != 2:
        hint = "; the shell made more of a pattern: put it in quotes, or use --before and --after" * (len(sides) > 2)
        given = count_text(len(sides), "session")
        raise GpuSenseError(f"name two sessions, the one before and the one after; {given} given{hint}")
    return _files(sides[:1]), _files(sides[1:])


def _files(words: Sequence[str]) -> list[str]:
    """Each word is a file, or several between commas, each of them a file or a pattern."""
    found: list[str] = []
    for word in words:
        for part in [word] if os.path.exists(word) else word.split(","):
            matching = [part] if os.path.exists(part) or not glob.has_magic(part) else sorted(glob.glob(part))
            if not matching:
                raise GpuSenseError(f"{part}: no file matches this pattern")
            found += matching
    return found
