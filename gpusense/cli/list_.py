"""List the runs that are kept, and what flight recorders have written, the newest last, each with where it lies."""

import argparse
import json
import os
import sys
import time
from typing import Any

from .._runtime import cache
from .._runtime.text import count_text, one_line, size_text
from . import _runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, schema gpusense.runs/1")


def main(arguments: argparse.Namespace) -> int:
    """0, also where no run is kept, which is said."""
    rows = [row for folder in _runs.runs() if (row := _row(folder)) is not None]
    dumps = [_dump(path) for path in cache.flights()]
    if arguments.json:
        sys.stdout.write(json.dumps({"schema": "gpusense.runs/1", "runs": rows, "dumps": dumps}) + "\n")
        return 0
    for row in rows:
        count = count_text(row["sessions"], "session")
        _show(row["start_s"], row["bytes"], count, one_line(str(row["command"] or "?"), 60), row["folder"])
    for row in dumps:
        _show(row["end_s"], row["bytes"], "dump", one_line(row["reason"] or "?", 100), row["path"])
    if not rows and not dumps:
        sys.stderr.write("No run is kept yet; gpusense run keeps the last ten.\n")
    return 0


def _show(at_s: float | None, size: int, count: str, what: str, where: str) -> None:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s)) if at_s else "?"
    sys.stdout.write(f"{when}  {size_text(size):>8}  {count:<11} {what}\n    {where}\n")


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


def _dump(path: str) -> dict[str, Any]:
    """Of a file of a flight recorder, from the first of its chunks."""
    from ..session import _format as file

    found: dict[str, Any] = {"path": path, "end_s": None, "bytes": 0, "pid": None, "reason": None}
    try:
        found["bytes"] = os.path.getsize(path)
        with file.Reader(path) as reader:
            meta = next(iter(reader)).json()
        reason = str(meta["flight"]["reasons"][0]["text"])
        found |= {"end_s": meta["end_ns"] / 1e9, "pid": meta["pid"], "reason": reason}
    except Exception:  # noqa: BLE001 - a damaged file is one of which nothing is known
        pass
    return found
