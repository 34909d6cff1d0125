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
    rows = [row for folder in _runs.runs() if (row := _row(folder)) is not None]
    if arguments.json:
        sys.stdout.write(json.dumps({"schema": "gpusense.runs/1", "runs": rows}) + "\n")
        return 0
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["start_s"]))
        count = f"{row['sessions']} session{'s' if row['sessions'] > 1 else ''}"
        what = one_line(str(row["command"] or "?"), 60)
        sys.stdout.write(f"{when}  {size_text(row['bytes']):>8}  {count:<11} {what}\n    {row['folder']}\n")
    if not rows:
        sys.stderr.write("no run is kept yet; gpusense run keeps the last ten\n")
    return 0


def _row(folder: str) -> dict[str, Any] | None:
    """None where no session is in it, or not any more: another gpusense may be removing it."""
    facts, paths = _runs.described(folder), _runs.sessions(folder)
    try:
        start_s, size = os.stat(folder).st_mtime, sum(map(os.path.getsize, paths))
    except OSError:
        return None
    said = facts.get("start_s")
    return (
        {
            "folder": folder,
            "start_s": said if isinstance(said, (int, float)) and 0 < said < 1 << 32 else start_s,
            "bytes": size,
            "sessions": len(paths),
            "command": facts.get("command"),
            "label": facts.get("label"),
        }
        if paths
        else None
    )
