"""Copy gpusense into another package, or check such a copy for drift."""

import argparse
import sys

from .. import __version__
from .._runtime.text import count_text
from . import _copy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("destination", metavar="DEST", help="the folder that becomes the copy, e.g. mylib/_gpusense")
    parser.add_argument("--core", action="store_true", help="only what tracing, capture and monitoring need")
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; fail where DEST was edited, with --core also where it is more than that",
    )


def main(arguments: argparse.Namespace) -> int:
    """0; with ``--check`` 1 where the copy differs from its stamp. Bad destinations are errors (2)."""
    if arguments.check:
        return _check(arguments.destination, arguments.core)
    stamp = _copy.copy(arguments.destination, arguments.core)
    what = "core" if stamp.core else "all"
    files = count_text(len(stamp.files), "file")
    sys.stderr.write(f"{arguments.destination}: gpusense {stamp.version}, {files} ({what}), {stamp.content[:12]}\n")
    return 0


def _check(destination: str, core: bool) -> int:
    stamp, difference = _copy.check(destination)
    whole = core and not stamp.core
    if whole:
        sys.stdout.write("whole package, not the core\n")
    for label, paths in zip(("changed", "missing", "added"), difference, strict=True):
        for path in paths:
            sys.stdout.write(f"{label}: {path}\n")
    state = "was edited" if difference else "is as it was copied"
    newer = (
        "" if stamp.content == _copy.upstream(stamp.core) else f"; this is gpusense {__version__}, with other content"
    )
    sys.stderr.write(f"{destination}: gpusense {stamp.version}, {state}{newer}\n")
    return 1 if difference or whole else 0
