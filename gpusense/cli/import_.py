"""Turn another tool's trace into a session, or add it to one."""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from .._runtime.errors import GpuSenseError, SessionError
from .._runtime.text import count_text, terminal
from ..report.forms import chosen
from ._arguments import microseconds
from ._call_places import CallPlaces

_DEFAULT_NS = 100_000
_AT_ONCE = 10_000  # lines: what is only counted of them is not kept
_LONGEST_LINE = 1 << 20  # what is longer is no line of strace's: the rest of it is not read
_HEAD = 4096  # bytes that tell what a file is

#: What is known by its content, and how to make it.
_KNOWN = (
    ("torch.profiler", "prof.export_chrome_trace('trace.json.gz'), or what tensorboard_trace_handler writes"),
    ("Nsight Systems", "nsys export --type sqlite -o report.sqlite report.nsys-rep"),
    ("Triton Proton", "proton.start('profile', data='trace') writes profile.chrome_trace"),
    ("strace", "strace -f -ttt -T -o trace.txt python train.py"),
)


_COUNTED = {
    "kernel": ("kernel",),
    "transfer": ("copy", "copies"),
    "memset": ("memset",),
    "sync": ("wait",),
    "collective": ("collective",),
    "block": ("block",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "It knows a file by its content: " + "; ".join(f"{tool} ({how})" for tool, how in _KNOWN) + "."
    file = "another tool's trace; - is standard input; without one, what is known and how to make it"
    parser.add_argument("words", nargs="*", metavar="FILE", help=file)
    parser.add_argument("-o", "--output", metavar="PATH", help="the session file to write (FILE.gpusense)")
    parser.add_argument(
        "--into", metavar="SESSION", help="strace: add the calls made during this session to its records"
    )
    parser.add_argument(
        "--pid", type=int, metavar="N", help="strace: the traced process, where the lines do not name it"
    )
    parser.add_argument(
        "--threshold-us", type=microseconds, metavar="N", help="list one by one what takes N µs or more (100)"
    )
    parser.add_argument("--trace-all", action="store_true", help="list everything one by one")


def main(arguments: argparse.Namespace) -> int:
    """0; 1 where the file holds nothing to import. What could not be carried is counted on stderr."""
    words = arguments.words
    if not words:
        print("gpusense import FILE [-o PATH] reads what these write:\n")
        for tool, how in _KNOWN:
            print(f"  {tool:<15} {how}")
        return 0
    is_strace = words[0] == "strace" and len(words) == 2
    if len(words) > 1 + is_strace:
        raise GpuSenseError("one file at a time; gpusense report takes the sessions of several together")
    path = words[-1]
    chosen(arguments.output, "session", ("session",))
    if arguments.output is None:
        arguments.output = _output(path)
    with _open(path) as file:
        read = _strace if is_strace else _reader(path, file.peek(_HEAD)[:_HEAD])
        if read is not _strace and (arguments.into is not None or arguments.pid is not None):
            raise GpuSenseError("--into and --pid are for traces of strace")
        return read(path, file, arguments)


def _output(path: str) -> str:
    """Beside nothing of that name: only a name that was given is written over."""
    name = re.sub(r"(\.pt)?(\.trace)?(\.json|\.sqlite|\.chrome_trace|\.txt)?(\.gz)?$", "", os.path.basename(path))
    output = f"{'trace' if path == '-' else name}.gpusense"
    if os.path.exists(output):
        raise GpuSenseError(f"{output} is there already; -o names another")
    return output


def _open(path: str) -> Any:
    if path != "-":
        return open(path, "rb")
    if sys.stdin is None:
        raise GpuSenseError("standard input is closed")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _reader(path: str, head: bytes) -> Callable[[str, Any, argparse.Namespace], int]:
    """What reads a file that begins so."""
    from ..session._format import MAGIC
    from .importers.nsight import HEAD

    if head.startswith(HEAD):
        return _nsight
    if head.startswith(MAGIC):
        raise GpuSenseError(f"{path}: this is a session already: gpusense report {path}")
    if head.startswith(b"\x1f\x8b"):
        return _chrome
    if re.match(rb"(\xef\xbb\xbf)?\s*(\{|\[\s*(\{|\]|\Z))", head):
        return _chrome
    if re.search(rb"\d\.\d{3,9} |= (-?\d|\?|0x)|<unfinished|exited with|% time", head) and b"\0" not in head:
        return _strace
    if path.endswith((".nsys-rep", ".qdrep", ".qdstrm")):
        raise GpuSenseError(f"{path}: export it first: nsys export --type sqlite {path}")
    tools = ", ".join(tool for tool, _ in _KNOWN)
    raise GpuSenseError(f"{path}: this is not a trace of {tools}; gpusense import without a file says how to make one")


# ---- traces of devices


def _chrome(path: str, file: Any, arguments: argparse.Namespace) -> int:
    """Event by event: only what a session holds is kept in memory, and no more of it than ``trace.MOST``."""
    from .importers.chrome_json import Damaged, texts, values
    from .importers.kineto import Hatchet, Ours, Reader

    reader = Reader()
    try:
        for name, value in values(texts(file)):
            reader.take(name, value)
    except Hatchet:
        how = "it has sums and no times: record with proton.start(name, data='trace')"
        raise GpuSenseError(f"{path}: this is a hatchet profile of Proton; {how}") from None
    except Ours:
        where = "gpusense report reads the session or the JSON report of the run, and ui.perfetto.dev shows a trace"
        raise GpuSenseError(f"{path}: gpusense wrote this file: {where}") from None
    except Damaged as error:
        if not len(reader.trace):
            raise GpuSenseError(f"{path}: {error}") from None
        reader.trace.notes.append(
            f"the file is damaged ({error}); {count_text(reader.events, 'event')} before it were read"
        )
    return _save(path, reader.trace, arguments)


def _nsight(path: str, _file: Any, arguments: argparse.Namespace) -> int:
    from .importers.nsight import read

    if path == "-":
        raise GpuSenseError("a database cannot be read from a pipe; name the file")
    return _save(path, read(path), arguments)


def _save(path: str, trace: Any, arguments: argparse.Namespace) -> int:
    from ..session import save

    if not len(trace):
        left_out = f"; not carried: {trace.what_was_left_out()}" if trace.left_out else ""
        _say(f"{path}: it holds no kernel, copy, wait or annotation{left_out}")
        return 1
    threshold = None if arguments.threshold_us is None else round(float(arguments.threshold_us) * 1000)
    written_ns = os.stat(path).st_mtime_ns if path != "-" else 0
    session = trace.session(threshold, arguments.trace_all, written_ns)
    session.meta["run"] = {"label": f"{os.path.basename(path)} ({trace.tool})"}
    try:
        save(session, arguments.output)
    except SessionError as error:
        raise GpuSenseError(str(error)) from None
    work = session.work
    counts = Counter(work.kinds[number].kind for number in work.kind)
    counts["block"] = len(session.blocks)
    counts["collective"] = len(session.collectives)
    named = (count_text(counts[kind], *words) for kind, words in _COUNTED.items() if counts[kind])
    sys.stderr.write(f"{arguments.output}: {', '.join(named)}\n")
    for note in session.meta["notes"]:
        _say(note)
    return 0


def _say(text: str) -> None:
    sys.stderr.write(terminal(f"gpusense import: {text}") + "\n")


# ---- system calls


def _strace(path: str, file: Any, arguments: argparse.Namespace) -> int:
    import io

    from ..session import load, save
    from .importers.strace import Parser

    parser = Parser(arguments.pid)
    target = _Into(load(arguments.into) if arguments.into is not None else None, arguments)
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace")  # whatever the locale says
    lines = _lines(text)
    while part := list(islice(lines, _AT_ONCE)):
        target.take(parser.feed(part))
    text.detach()
    counters = parser.counters()
    if not parser.calls:
        no = f"no system call in {count_text(counters['lines'], 'line')}"
        no += f": {why}" if (why := parser.why_not()) else ""
        _say(f"{no}; record with strace -f -ttt -T")
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
