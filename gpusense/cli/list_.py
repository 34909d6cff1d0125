"""List the runs that are kept, the newest last, with what was run and where each lies."""

import argparse
import json
import os
import sys
import time
from typing import Any

from .._runtime.text import one_line, size_text
from . import _runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, schema gpusense.runs/1")


def main(arguments: argparse.Namespace) -> int:
    """0, also where no run is kept, which is said."""
    rows = [_row(folder) for folder in _runs.runs() if _runs.sessions(folder)]
    if arguments.json:
        sys.stdout.write(json.dumps({"schema": "gpusense.runs/1", "runs": rows}) + "\n")
        return 0
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["start_s"])) if row["start_s"] else "?"
        count = f"{row['sessions']} session{'s' if row['sessions'] > 1 else ''}"
        what = one_line(row["command"] or "?", 60)
        sys.stdout.write(f"{when}  {size_text(row['bytes']):>8}  {count:<11} {what}\n    {row['folder']}\n")
    if not rows:
        sys.stderr.write("no run is kept yet; gpusense run keeps the last ten\n")
    return 0


def _row(folder: str) -> dict[str, Any]:
    facts = _runs.described(folder)
    return {
        "folder": folder,
        "start_s": facts.get("start_s") or os.stat(folder).st_mtime,
        "bytes": sum(map(os.path.getsize, _runs.sessions(folder))),
        "sessions": len(_runs.sessions(folder)),
        "command": facts.get("command"),
        "label": facts.get("label"),
    }
