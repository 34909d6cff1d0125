"""Turn another tool's trace into a session, or add it to one."""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from .._runtime.errors import GpuSenseError, SessionError
from .._runtime.text import count_text
from ._arguments import microseconds
from ._call_places import CallPlaces

_DEFAULT_NS = 100_000
_AT_ONCE = 10_000  # lines: what is only counted of them is not kept
_LONGEST_LINE = 1 << 20  # what is longer is no line of strace's: the rest of it is not read


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
    target = _Into(load(arguments.into) if arguments.into is not None else None, arguments)
    with _open(arguments.file) as file:
        lines = _lines(file)
        while part := list(islice(lines, _AT_ONCE)):
            target.take(parser.feed(part))
    counters = parser.counters()
    if not parser.calls:
        no = f"no system call in {count_text(counters['lines'], 'line')}"
        no += f": {why}" if (why := parser.why_not()) else ""
        sys.stderr.write(f"gpusense import: {no}; record with strace -f -ttt -T\n")
        return 1
    session = target.finish()
    session.meta.setdefault("sources", {})["strace"] = counters
    try:
        save(session, arguments.output)
    except SessionError as error:
        raise GpuSenseError(str(error)) from None
    noted = ", ".join(f"{count} {name}" for name, count in counters.items() if count and name not in ("lines", "calls"))
    sys.stderr.write(
        f"{arguments.output}: {count_text(parser.calls - target.outside, 'call')}"
        + (f", {target.outside} outside the session" if target.outside else "")
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


def _lines(file: Any) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        yield line
        while line and not line.endswith("\n"):
            line = file.readline(_LONGEST_LINE)


class _Into:
    """What calls are added to, by the rules of every recording: long ones stay one by one, the others are counted."""

    def __init__(self, session: Any, arguments: argparse.Namespace) -> None:
        """``session``: None for a new one, of the time of the calls."""
        from .._aggregation.pipeline import Limits, Pipeline

        self._is_new = session is None
        self._session = session or _new()
        self._start_ns, self._end_ns = self._session.meta.get("start_ns") or 0, self._session.meta.get("end_ns")
        self._places = _places(self._session)
        limits = Limits(_threshold_ns(arguments, self._session), arguments.trace_all, 1 << 62, max_records=1 << 62)
        self._pipeline = Pipeline(limits)
        self.outside = 0  # calls before or behind the session

    def take(self, calls: list[Any]) -> None:
        if self._is_new:
            self._reach(calls)
        else:
            start, end, count = self._start_ns, self._end_ns, len(calls)
            calls = [call for call in calls if call.start_ns >= start and (end is None or call.end_ns <= end)]
            self.outside += count - len(calls)
            calls = self._places.placed(calls)
        self._pipeline.record(calls)

    def _reach(self, calls: list[Any]) -> None:
        meta = self._session.meta
        for call in calls:
            meta["pid"] = meta["pid"] or call.thread
            meta["start_ns"] = min(meta["start_ns"] or call.start_ns, call.start_ns)
            meta["end_ns"] = max(meta["end_ns"] or call.end_ns, call.end_ns)

    def finish(self) -> Any:
        """The session, with all of them."""
        session, counted = self._session, self._pipeline.counters()
        session.records.extend(self._pipeline.kept)
        session.aggregates.extend(self._pipeline.ledger.aggregates())
        before = session.counters
        session.counters = before._replace(
            seen=before.seen + counted.seen,
            kept=before.kept + counted.kept,
            aggregated=before.aggregated + counted.aggregated,
            invalid=before.invalid + counted.invalid,
        )
        return session


def _threshold_ns(arguments: argparse.Namespace, session: Any) -> int:
    if arguments.threshold_us is not None:
        return round(float(arguments.threshold_us) * 1000)
    return int(session.meta.get("threshold_ns") or _DEFAULT_NS)


def _new() -> Any:
    from .. import __version__
    from ..session import Session

    return Session(
        meta={
            "version": __version__,
            "pid": None,
            "start_ns": None,
            "end_ns": None,
            "threshold_ns": _DEFAULT_NS,
            "trace_all": False,
            "mode": "import",
            "backends": {},
            "rank": None,
            "world_size": None,
        }
    )


def _places(session: Any) -> CallPlaces:
    """The blocks of ``session``, where its threads are known by both numbers."""
    numbers: dict[int, set[int]] = {}
    for row in session.meta.get("threads") or ():
        if row.get("native_id") is not None:
            numbers.setdefault(row["thread"], set()).add(row["native_id"])
    places = CallPlaces()
    places.add(session.blocks, {thread: min(found) for thread, found in numbers.items() if len(found) == 1})
    return places
