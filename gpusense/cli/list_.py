"""List the runs that are kept, and what flight recorders have written, the newest last, each with where it lies."""

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
    dumps = [_dump(path) for path in _runs.flights()]
    if arguments.json:
        sys.stdout.write(json.dumps({"schema": "gpusense.runs/1", "runs": rows, "dumps": dumps}) + "\n")
        return 0
    for row in rows:
        count = f"{row['sessions']} session{'s' if row['sessions'] > 1 else ''}"
        _show(row["start_s"], row["bytes"], count, one_line(row["command"] or "?", 60), row["folder"])
    for row in dumps:
        _show(row["end_s"], row["bytes"], "dump", one_line(row["reason"] or "?", 100), row["path"])
    if not rows and not dumps:
        sys.stderr.write("no run is kept yet; gpusense run keeps the last ten\n")
    return 0


def _show(at_s: float | None, size: int, count: str, what: str, where: str) -> None:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s)) if at_s else "?"
    sys.stdout.write(f"{when}  {size_text(size):>8}  {count:<11} {what}\n    {where}\n")


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
