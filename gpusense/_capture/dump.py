"""What the flight recorder writes: an ordinary session file of the last seconds, with the reason in its ``meta``.

Every row goes out as it is held, in columns: a reader makes the records, and the program is held up least.
"""

import os
import time
from array import array
from collections.abc import Callable, Iterable
from itertools import compress
from typing import Any, NamedTuple

from .._aggregation.recent import Part, Recent, Rows
from .._aggregation.same_kernels import expanded
from .._records.records import KINDS, BlockRecord, Counters, GpuCollective, UnseenInterval
from .._records.work import COLUMNS, WITH_ROWS, WorkTable
from .._runtime import cache
from .._runtime.errors import SessionError
from .._runtime.text import count_text, time_text
from ..session import _format as file
from ..session._paths import kept_until_whole
from ..session._work_chunks import packed, packed_in_full
from ..session._writer import Writer
from .flight import Taken
from .store import Known

KEPT = 10  # files in the user's cache
_ROWS = 1 << 14  # in a chunk; what is longer keeps the GIL too long
_RECORDS = 64  # between two pauses
_MOST_NOTES = 3
_ROW_TYPES = frozenset(kind for kind, name in KINDS.items() if name in WITH_ROWS)


class Held(NamedTuple):
    """What goes into a dump, of the time from ``from_ns`` to ``until_ns``. ``lost``: by counter, what the driver and
    others lost then."""

    from_ns: int
    until_ns: int
    read: bool  # whether all work until then was
    parts: list[Part]
    gone_ns: int  # what ended up to here is not there, or not all of it
    lost: dict[str, int]


def held(recent: Recent, from_ns: int, until_ns: int, read: bool, lost: dict[str, int]) -> Held:
    """What ``recent`` has by now of that time."""
    parts = [part for part in recent.parts() if part.newest_ns >= from_ns]
    return Held(from_ns, until_ns, read, parts, recent.gone_ns, lost)


def write(path: str | None, what: Held, taken: Taken, known: Known, pause: Callable[[], None]) -> str:
    """Writes ``path``, or a file in the user's cache, of which the last :data:`KEPT` stay; gives its path. ``pause`` is
    called between the parts of the work. Raises ``SessionError`` where it cannot be written; no file is left then, but
    a session that ``path`` held before is.
    """
    target = os.path.abspath(path) if path is not None else _free_name()
    made = ""
    try:
        with kept_until_whole(target) as (fd, replaces):
            made = "" if replaces else target
            writer = Writer(target, max_bytes=None, fd=fd)
            try:
                _Dump(what, known, writer, pause).write(taken)
            finally:
                writer.close(end_ns=what.until_ns)
            if writer.failure:
                raise SessionError(f"{target}: {writer.failure}")
    except BaseException:
        if made:
            _remove(made)
        raise
    if path is None:
        _prune()
    return target


def _free_name() -> str:
    try:
        home = cache.make(cache.RUNS)
    except OSError as error:
        raise SessionError(f"{cache.folder(cache.RUNS)}: {error.strerror}") from None
    if home is None:
        where = cache.folder(cache.RUNS)
        why = "this user has no home folder; set XDG_CACHE_HOME to a folder"
        if where:
            why = f"{where} can be changed by other users; give it to this user alone (mode 700)"
        raise SessionError(why)
    name, more = f"{cache.FLIGHT}{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}", 1
    path = os.path.join(home, name + cache.SUFFIX)
    while os.path.lexists(path):
        more += 1
        path = os.path.join(home, f"{name}-{more}{cache.SUFFIX}")
    return path


def _prune() -> None:
    """Leaves the newest; another process may do the same."""
    for path in cache.flights()[:-KEPT]:
        _remove(path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


class _Dump:
    """One dump on its way into a file."""

    def __init__(self, what: Held, known: Known, writer: Writer, pause: Callable[[], None]) -> None:
        self._what, self._known, self._writer, self._pause = what, known, writer, pause
        self._count = self._ambiguous = self._before = self._start_ns = 0
        self._newest_ns = 0  # that a row ended
        self._meant: WorkTable | None = None  # whose kinds and paths the rows mean
        self._rows = WorkTable()  # of which a reader makes records
        self._collectives: set[Any] = set()  # that are written
        self._finished = WorkTable()  # rows of records that are there themselves
        self._runs: tuple[array[int], array[int], dict[int, tuple[int, ...]]] = (array("q"), array("q"), {})

    def write(self, taken: Taken) -> None:
        what, known, writer = self._what, self._known, self._writer
        meta = known.meta()
        wanted_ns = max(what.from_ns, meta["start_ns"])
        start_ns = self._start_ns = max(wanted_ns, what.gone_ns)
        missing_ns = start_ns - wanted_ns
        writer.json(file.META, meta | {
            "start_ns": start_ns, "end_ns": what.until_ns, "trace_all": True, "decided": True, "overhead": {},
            "flight": {
                "reasons": [reason._asdict() | {"text": reason.text} for reason in taken.reasons],
                "missing_ns": missing_ns,
                "passed_over": taken.passed_over,
                "passed_over_worst": taken.worst.text if taken.worst is not None else None,
            },
            "notes": list(_notes(taken, missing_ns)),
        })  # fmt: skip
        writer.rows(file.DEVICES, known.devices())
        parts = what.parts
        parts.reverse()
        while parts:  # what was written need not be held any longer
            content = parts.pop().content
            if isinstance(content, Rows):
                self._add(content)
            else:
                self._write_finished(expanded(content))
            self._pause()
        self._write_rows()
        self._write_old()
        for payload in packed(self._finished):
            writer.append(file.WORK, *payload)
            self._pause()
        writer.rows(file.METRICS, (sample for sample in known.samples() if sample.time_ns >= start_ns))
        writer.rows(file.UNSEEN, self._unseen(start_ns))
        writer.rows(file.COUNTERS, [self._counters()])

    def _add(self, rows: Rows) -> None:
        if rows.table is not self._meant:
            self._write_rows()
            self._meant, self._rows = rows.table, rows.table.empty()
        self._newest_ns = max(self._newest_ns, max(rows.columns[1], default=0))
        starts, start_ns, until_ns = rows.columns[0], self._start_ns, self._what.until_ns
        if starts and not start_ns <= min(starts) <= max(starts) <= until_ns:
            self._before += sum(start < start_ns for start in starts)
            rows = _chosen(rows, [start_ns <= start <= until_ns for start in starts])
        self._count += len(rows.columns[0])
        counts, blocks, ambiguous = self._runs
        ambiguous.update({number + len(counts): found for number, found in rows.ambiguous.items()})
        self._ambiguous += sum(rows.counts[number] for number in rows.ambiguous)
        counts.extend(rows.counts)
        blocks.extend(rows.blocks)
        self._rows.take(rows.columns)
        if len(self._rows) >= _ROWS:
            self._write_rows()

    def _write_rows(self) -> None:
        rows, runs = self._rows, self._runs
        if len(rows):
            self._rows, self._runs = rows.empty(), (array("q"), array("q"), {})
            self._writer.append(file.WORK, *packed_in_full(rows, *runs))

    def _write_finished(self, records: list[Any]) -> None:
        for first in range(0, len(records), _RECORDS):
            some = []
            for record in records[first : first + _RECORDS]:
                at = record.end_ns if type(record) is BlockRecord else record.start_ns
                if self._start_ns <= at <= self._what.until_ns:
                    some.append(record)
                    if type(record) is GpuCollective:
                        self._collectives.add(_identity(record))
                    if type(record) in _ROW_TYPES:
                        self._finished.add(record)
                elif at < self._start_ns:
                    self._before += 1
            self._count += len(some)
            self._writer.records(some)
            self._pause()

    def _write_old(self) -> None:
        """What led to a hang may be older than the time that a dump is of, and what hangs has not ended."""
        some = [record for record in self._known.of_old() if _identity(record) not in self._collectives]
        self._count += len(some)
        for first in range(0, len(some), _RECORDS):
            self._writer.records(some[first : first + _RECORDS])
            self._pause()

    def _unseen(self, start_ns: int) -> list[UnseenInterval]:
        found = [one for one in self._known.all_unseen() if one.end_ns is None or one.end_ns > start_ns]
        if not self._what.read:
            since_ns = min(max(self._newest_ns, start_ns), self._what.until_ns)
            found.append(UnseenInterval(since_ns, None, "not all of it was read when this was written"))
        return found

    def _counters(self) -> Counters:
        seen = self._count + self._before
        return Counters(
            seen=seen, kept=self._count, pre_session=self._before, ambiguous=self._ambiguous, **self._what.lost
        )


def _identity(record: Any) -> tuple[Any, ...]:
    """What tells one from others that are alike: above all when its launch began and ended."""
    return record.name, record.start_ns, record.end_ns, getattr(record, "rank", None)


def _chosen(rows: Rows, those: list[bool]) -> Rows:
    """Some of them."""
    counts, at = array("q"), 0
    for count in rows.counts:
        counts.append(sum(those[at : at + count]))
        at += count
    columns = tuple(
        array(code, compress(column, those)) for (_, code), column in zip(COLUMNS, rows.columns, strict=True)
    )
    return rows._replace(columns=columns, counts=counts)


def _notes(taken: Taken, missing_ns: int) -> Iterable[str]:
    reasons = taken.reasons
    for reason in reasons[:_MOST_NOTES]:
        yield f"written because {reason.text}"
    if len(reasons) > _MOST_NOTES:
        yield f"written also for {count_text(len(reasons) - _MOST_NOTES, 'more reason')} at the same time"
    if missing_ns:
        yield f"not seen: the first {time_text(missing_ns)} of the time before, for which there was no room in memory"
    if taken.worst is not None:
        passed_over = count_text(taken.passed_over, "reason")
        yield f"{passed_over} made no dump since the one before; the worst: {taken.worst.text}"
