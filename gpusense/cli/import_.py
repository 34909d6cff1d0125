"""Turn another tool's trace into a session, or add it to one."""

import argparse
import sys
from typing import Any

from .._runtime.errors import GpuSenseError, SessionError
from .._runtime.text import count_text
from ._arguments import microseconds
from ._call_places import CallPlaces

_DEFAULT_NS = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="tool", required=True, metavar="TOOL", help="what wrote the file")
    strace = kinds.add_parser("strace", help="what strace -f -ttt -T -o FILE wrote", allow_abbrev=False)
    strace.add_argument("file", metavar="FILE", help="strace's output; - is standard input")
    strace.add_argument("-o", "--output", metavar="PATH", required=True, help="the session file to write")
    strace.add_argument("--into", metavar="SESSION", help="add the calls made during this session to its records")
    strace.add_argument("--pid", type=int, metavar="N", help="the traced process, where the lines do not name it")
    strace.add_argument("--threshold-us", type=microseconds, metavar="N", help="keep one by one from N µs (100)")
    strace.add_argument("--trace-all", action="store_true", help="keep every call one by one")


def main(arguments: argparse.Namespace) -> int:
    """0; 1 where the file holds no system call. What could not be read is counted on stderr."""
    from ..session import load, save
    from ._strace import Parser

    parser = Parser(arguments.pid)
    with _open(arguments.file) as lines:
        calls = parser.feed(lines)
    counters = parser.counters()
    if not calls:
        no = f"no system call in {count_text(counters['lines'], 'line')}"
        no += f": {why}" if (why := parser.why_not()) else ""
        sys.stderr.write(f"gpusense import: {no}; record with strace -f -ttt -T\n")
        return 1
    if arguments.into is None:
        session, outside = _new(calls), 0
    else:
        session = load(arguments.into)
        calls, outside = _during(session, calls)
        calls = _in_blocks(session, calls)
    _add(session, calls, _threshold_ns(arguments, session), arguments.trace_all)
    session.meta.setdefault("sources", {})["strace"] = counters
    try:
        save(session, arguments.output)
    except SessionError as error:
        raise GpuSenseError(str(error)) from None
    noted = ", ".join(f"{count} {name}" for name, count in counters.items() if count and name not in ("lines", "calls"))
    sys.stderr.write(
        f"{arguments.output}: {count_text(len(calls), 'call')}"
        + (f", {outside} outside the session" if outside else "")
        + (f" ({noted})" if noted else "")
        + "\n"
    )
    return 0


def _open(path: str) -> Any:
    if path != "-":
        return open(path, encoding="utf-8", errors="replace")
    if sys.stdin is None:
        raise GpuSenseError("standard input is closed")
    return open(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False)  # whatever the locale says


def _threshold_ns(arguments: argparse.Namespace, session: Any) -> int:
    if arguments.threshold_us is not None:
        return round(float(arguments.threshold_us) * 1000)
    return int(session.meta.get("threshold_ns") or _DEFAULT_NS)


def _new(calls: list[Any]) -> Any:
    from .. import __version__
    from ..session import Session

    start, end = min(call.start_ns for call in calls), max(call.end_ns for call in calls)
    return Session(
        meta={
            "version": __version__,
            "pid": calls[0].thread,
            "start_ns": start,
            "end_ns": end,
            "threshold_ns": _DEFAULT_NS,
            "trace_all": False,
            "mode": "import",
            "backends": {},
            "rank": None,
            "world_size": None,
        }
    )


def _during(session: Any, calls: list[Any]) -> tuple[list[Any], int]:
    """The calls in the time of ``session``, and how many others there were."""
    start, end = session.meta.get("start_ns") or 0, session.meta.get("end_ns")
    inside = [call for call in calls if call.start_ns >= start and (end is None or call.end_ns <= end)]
    return inside, len(calls) - len(inside)


def _in_blocks(session: Any, calls: list[Any]) -> list[Any]:
    """``calls`` with the blocks of ``session`` that they were made in, where its threads are known by both numbers."""
    numbers: dict[int, set[int]] = {}
    for row in session.meta.get("threads") or ():
        if row.get("native_id") is not None:
            numbers.setdefault(row["thread"], set()).add(row["native_id"])
    places = CallPlaces()
    places.add(session.blocks, {thread: min(found) for thread, found in numbers.items() if len(found) == 1})
    return places.placed(calls)


def _add(session: Any, calls: list[Any], threshold_ns: int, trace_all: bool) -> None:
    """Keeps long calls one by one and counts the others, by the rules of every recording."""
    from .._aggregation.pipeline import Limits, Pipeline

    pipeline = Pipeline(Limits(threshold_ns, trace_all, max_per_second=1 << 62, max_records=1 << 62))
    pipeline.record(calls)
    counted = pipeline.counters()
    session.records.extend(pipeline.kept)
    session.aggregates.extend(pipeline.ledger.aggregates())
    before = session.counters
    session.counters = before._replace(
        seen=before.seen + counted.seen,
        kept=before.kept + counted.kept,
        aggregated=before.aggregated + counted.aggregated,
        invalid=before.invalid + counted.invalid,
    )
