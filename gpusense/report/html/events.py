"""The timeline's rows as packed columns; beyond a limit short neighbours are joined, and the page says how."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

from ..._records import lanes
from ..._records.device_identity import card
from ..._records.records import KINDS, BlockRecord, Path
from ..._records.work import WITH_ROWS, WorkKind, WorkTable
from ..._runtime.text import count_text, one_line, size_text, time_text
from ...analysis.busy import window
from ...analysis.facts import Facts
from ...analysis.families import is_collective
from ...analysis.rows import Rows
from ...analysis.words import WHY_IDLE
from ...session import Session
from ..divisions import GAPS, Divisions, Gap, phase_text
from ..tracks import Track, WorkTrack, dealt, end_of, label, levels, thread_names, tracks, work_tracks
from .packing import packed

#: Kernels with a colour of their own, heaviest first; the others share one.
RANKED_COLOURS = 8
_COPY_COLOURS = {"cpu_to_gpu": "up", "gpu_to_cpu": "down"}
#: Rows beyond this are not drawn; the page says how many.
_ROW_LIMIT = 240
_DEPTH_LIMIT = 32
_NAME_LIMIT = 512
#: Phases that are drawn.
_BAND_LIMIT = 20_000
#: Beyond so many gaps those below the resolution are left out.
_GAP_LIMIT = 2_000_000
#: Kinds of work beyond this have no details.
_DETAILED = 5_000
#: Times of damaged records are no farther away than this: differences then fit into 64 bits.
_FAR = 1 << 61
_JOINED = "short ones, joined"


class Line(NamedTuple):
    """What stands in one row: records, or rows of the table of work by their numbers."""

    group: str
    name: str
    device: tuple[str, int | None] | None
    records: list[Any]
    rows: "Sequence[int] | None" = None

    @property
    def number(self) -> int:
        """How many events it has."""
        return len(self.records if self.rows is None else self.rows)


class Columns(NamedTuple):
    """A row's events, in order and without overlap; times in nanoseconds since the Unix epoch."""

    start: "array[int]"
    end: "array[int]"
    name: "array[int]"  # place in names; 0 for joined events
    path: "array[int]"  # place in paths; for joined events how many they are
    launch: "array[int]"  # number of the block that launched it, from 1; 0: not known
    size: "array[int]"  # bytes that are moved

    @classmethod
    def empty(cls) -> "Columns":
        return cls(*(array("q") for _ in cls._fields))


class Events:
    """Packed columns of all rows one after another; ``facts`` says where each row begins."""

    def __init__(self, start_ns: int, ranks: dict[str, int]) -> None:
        self.start_ns = start_ns
        self.data = bytearray()
        self.count = 0
        self.names = [_JOINED]
        self.colours = ["joined"]
        self.details = [""]
        self.paths: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.ranks = ranks  # heaviest kernels → number of their colour
        self.large = Columns.empty()  # of the largest row of the device that is drawn, and the row's number
        self.largest: int | None = None
        self.blocks: dict[int, int] = {}  # of each block that is drawn its number, from 1
        self._names: dict[tuple[str, str, str], int] = {}
        self._paths: dict[Path, int] = {}

    def row(self, group: str, name: str, columns: Columns, *, busy: bool, after: "int | None" = None) -> None:
        """Adds a row; ``busy``: its events are work of a device. ``after``: a row between whose events its own mostly
        are; only where they are not, the page has their times."""
        columns = _apart(columns)
        start, end, *others = columns
        gaps = array("q", (0,)) if start else array("q")
        gaps.extend(lanes.lengths(memoryview(end)[:-1], memoryview(start)[1:]))
        lengths, codes = lanes.lengths(start, end), []
        if after is not None:
            codes = [_between(columns, self.large)]
            for at in lanes.places(bytes(map((1).__ne__, codes[0]))):
                gaps[at] = lengths[at] = 0
        parts = [packed(gaps), packed(lengths), *(packed(one, alike=True) for one in [*others, *codes])]
        self.rows.append(
            {
                "group": group,
                "name": name,
                "at": self.count,
                "from": start[0] - self.start_ns if start else 0,
                "shapes": [part.shape for part in parts],
                "busy": busy,
                **({} if after is None else {"after": after}),
            }
        )
        if busy and len(start) >= len(self.large.start):
            self.large, self.largest = columns, len(self.rows) - 1
        self.count += len(start)
        for part in parts:
            self.data += part.data

    def name_id(self, name: str, colour: str, detail: str = "") -> int:
        """The place of a name with its colour and what else is known of it."""
        found = self._names.get((name, colour, detail))
        if found is None:
            found = self._names[name, colour, detail] = len(self.names)
            self.names.append(one_line(name, _NAME_LIMIT))
            self.colours.append(colour)
            self.details.append(one_line(detail, 2 * _NAME_LIMIT) if detail else "")
        return found

    def path_id(self, path: Path) -> int:
        """The place of a block's path."""
        found = self._paths.get(path)
        if found is None:
            found = self._paths[path] = len(self.paths)
            self.paths.append(one_line(" › ".join(path), _NAME_LIMIT) if path else "")
        return found


def events(session: Session, facts: Facts, divisions: Divisions, limit: int) -> Events:
    """Rows for the steps, every track and, below each device, for the reasons it was idle."""
    whole = window(session)
    made = Events(whole[0] if whole else session.meta.get("start_ns") or 0, _ranks(facts))
    made.path_id(())
    steps = _step_row(made, divisions)
    work = facts.work
    lines, skipped = _lines(session, work)
    total = sum(line.number for line in lines)
    floor, joined, short_gaps = _floor(lines, work, limit, total), 0, 0
    resolution = max(1, facts.window_ns // 8192)
    skipped += max(0, len(lines) - _ROW_LIMIT)
    lines = _chosen(lines)
    works = _Work(session, work, made)
    for at, line in enumerate(lines):
        columns = _of_records(made, line.records) if line.rows is None else works.columns(line.rows)
        if floor:
            joined += _join(columns, floor, resolution)
            made.blocks.clear()  # whose numbers have changed
        made.row(line.group, line.name, columns, busy=line.device is not None)
        following = lines[at + 1].device if at + 1 < len(lines) else None
        if line.device is not None and (following is None or card(*line.device) != card(*following)):
            short_gaps += _gap_row(made, line.group, divisions.gaps(line.device), resolution)
            made.large, made.largest = Columns.empty(), None
    made.facts = {
        "start_ns": str(made.start_ns),
        "span": facts.window_ns,
        "rows": made.rows,
        "names": made.names,
        "colours": made.colours,
        "details": made.details,
        "paths": made.paths,
        "count": made.count,
        "events": total,
        "note": _note(session, work, total, joined, floor, skipped, time_text(resolution) if short_gaps else ""),
        "unseen": _unseen(session, made.start_ns, facts.window_ns),
        "holes": [[low - made.start_ns, high - made.start_ns, rows] for low, high, rows in work.holes],
        "phases": _phases(divisions, made.start_ns),
        "steps": steps,
    }
    return made


def _apart(columns: Columns) -> Columns:
    """The same where no event ends before it begins, or before the one before it does. Of records made by hand, and of
    steps whose work overlaps, one may."""
    start, end = columns.start, columns.end
    if 1 in lanes.less(end, start) or 1 in lanes.less(memoryview(start)[1:], memoryview(end)[:-1]):
        start, end, last = array("q"), array("q"), columns.start[0]
        for begin, until in zip(columns.start, columns.end, strict=True):
            start.append(max(begin, last))
            last = max(start[-1], until)
            end.append(last)
    return columns._replace(start=start, end=end)


def _between(columns: Columns, others: Columns) -> "array[int]":
    """Of each event that is exactly between two of ``others`` twice the number of these which are skipped since the one
    before it; else 1."""
    found, at, last, most = array("q"), 0, -1, len(others.start) - 1
    ends, starts = others.end, others.start
    for begin, until in zip(columns.start, columns.end, strict=True):
        while at < most and ends[at] < begin:
            at += 1
        if last < at < most and ends[at] == begin and starts[at + 1] == until:
            found.append(2 * (at - last - 1))
            last = at
        else:
            found.append(1)
    return found


def _step_row(made: Events, divisions: Divisions) -> bool:
    """A row of the steps of the process whose device is busiest; whether there are any."""
    program = next(iter(divisions.programs), None)
    if program is None or program.steps is None:
        return False
    steps = program.steps
    starts, ends = array("q", steps.starts), array("q", steps.ends)
    name, zeros = made.name_id(steps.name, "block"), array("q", bytes(8 * len(starts)))
    columns = Columns(starts, ends, array("q", (name,)) * len(starts), zeros, zeros, zeros)
    owner = f" of {one_line(program.root or '', 40)}" if len(divisions.programs) > 1 else ""
    made.row("", ("launches" if steps.name == "launch" else "steps") + owner, columns, busy=False)
    return True


def _phases(divisions: Divisions, start_ns: int) -> list[list[Any]]:
    """The phases of that process, as a band over the timeline."""
    program = next(iter(divisions.programs), None)
    phases = () if program is None else program.phases[:_BAND_LIMIT]
    return [
        [
            one.name,
            phase_text(one.name, program.steps if program else None),
            one.start_ns - start_ns,
            one.end_ns - start_ns,
        ]
        for one in phases
    ]


def _lines(session: Session, work: WorkTable) -> tuple[list[Line], int]:
    """Every row, and how many were left out: those of deep nesting, and of too many tracks."""
    found, left_out = work_tracks(session, work)
    lines: list[Line] = []
    order: list[Track | WorkTrack] = [*tracks(session, work=False), *found]
    for track in sorted(order, key=lambda one: one.place):
        if isinstance(track, Track):
            rows = levels(track.records) if track.nested else [track.records]
            left_out += max(0, len(rows) - _DEPTH_LIMIT)
            for depth, records in enumerate(rows[:_DEPTH_LIMIT]):
                lines.append(Line(track.group, "" if depth or track.lane else track.name, track.device, records))
            continue
        for lane, mine in enumerate(dealt(track.rows.of(work.start), track.rows.of(work.end))):
            numbers = track.rows if isinstance(mine, range) else array("I", map(track.rows.__getitem__, mine))
            lines.append(Line(track.group, "" if lane else track.name, track.device, [], numbers))
    return lines, left_out


def _chosen(lines: list[Line]) -> list[Line]:
    """As many rows as a page can show: at least half of them are the devices', where these have so many."""
    hosts = [line for line in lines if line.device is None]
    devices = lines[len(hosts) :]
    hosts = hosts[: max(_ROW_LIMIT - len(devices), _ROW_LIMIT // 2)]
    return hosts + devices[: _ROW_LIMIT - len(hosts)]


def _ranks(facts: Facts) -> dict[str, int]:
    names: dict[str, int] = {}
    for row in facts.device_operations:
        if (
            row.kind == "kernel"
            and not is_collective(row.full_name or row.name)
            and row.name not in names
            and len(names) < RANKED_COLOURS
        ):
            names[row.name] = len(names)
    return names


def colour_word(kind: str, name: str, direction: str | None, ranks: dict[str, int]) -> str:
    """A word for the palette: "k0"…"k7" for the heaviest kernels, "kernel", "collective", "up", "down", …"""
    if kind == "kernel":
        if name in ranks:
            return f"k{ranks[name]}"
        return "collective" if is_collective(name) else "kernel"
    if kind == "transfer":
        return _COPY_COLOURS.get(direction or "", "copy")
    return {
        "memset": "memset",
        "collective": "collective",
        "sync": "synchronisation",
        "block": "block",
        "compute": "cpu",
    }.get(kind, "other")


def _of(column: "array[int]", rows: "Sequence[int]") -> "array[int]":
    """A column's values of some rows."""
    return rows.of(column) if isinstance(rows, Rows) else array(column.typecode, map(column.__getitem__, rows))


def _floor(lines: list[Line], work: WorkTable, limit: int, total: int) -> int:
    """Shortest length that is drawn one by one: 0, or such that about half the limit is as long."""
    if total <= limit:
        return 0
    lengths: array[int] = array("q")
    for line in lines:
        if line.rows is None:
            lengths.extend(min(end_of(record) - record.start_ns, _FAR) for record in line.records)
        else:
            lengths.extend(lanes.lengths(_of(work.start, line.rows), _of(work.end, line.rows)))
    ordered: list[int] = sorted(lengths, reverse=True)
    return ordered[max(1, limit // 2) - 1] + 1


def _of_records(made: Events, records: list[Any]) -> Columns:
    """Blocks, compute blocks and system calls, which have no row in the table of work."""
    start, end, name, path, launch, size = columns = Columns.empty()
    for record in records:
        if type(record) is BlockRecord:
            made.blocks[record.block_id] = made.count + len(start) + 1
        start.append(min(max(record.start_ns, -_FAR), _FAR))
        end.append(min(max(end_of(record), -_FAR), _FAR))
        kind = KINDS[type(record)]
        error = getattr(record, "error", None)
        name.append(
            made.name_id(record.name, colour_word(kind, record.name, None, {}), f"left by {error}" if error else "")
        )
        path.append(made.path_id(record.path))
        launch.append(0)
        size.append(0)
    return columns


class _Work:
    """Columns of rows of the table of work."""

    def __init__(self, session: Session, work: WorkTable, made: Events) -> None:
        self._session, self._work, self._made = session, work, made
        self._threads = thread_names(session)
        #: By start and order of the launch, of what is listed, the block that launched it.
        self._blocks: dict[tuple[int, int], int] = {}
        for record in session.records:
            if KINDS[type(record)] in WITH_ROWS and record.block_id and not record.ambiguous:  # type: ignore[union-attr]
                self._blocks[record.start_ns, record.correlation_id or 0] = record.block_id  # type: ignore[union-attr]
        detailed = len(work.kinds) <= _DETAILED
        self._names = array("q", bytes(8 * len(work.kinds)))
        for number in set(work.kind):
            self._names[number] = self._name(work.kinds[number], detailed)
        self._paths = array("q", [made.path_id(path) for path in work.paths])

    def columns(self, rows: "Sequence[int]") -> Columns:
        work = self._work
        start, end = _of(work.start, rows), _of(work.end, rows)
        name = array("q", map(self._names.__getitem__, _of(work.kind, rows)))
        path = array("q", map(self._paths.__getitem__, _of(work.path, rows)))
        launch = array("q", bytes(8 * len(start)))
        if self._blocks:
            of, drawn = self._blocks.get, self._made.blocks.get
            known = map(of, zip(start, _of(work.order, rows), strict=True))
            launch = array("q", [drawn(block, 0) if block else 0 for block in known])
        return Columns(start, end, name, path, launch, _of(work.size, rows))

    def _name(self, kind: WorkKind, detailed: bool) -> int:
        name = label(kind.name) + (f" at {kind.source_line}" if kind.source_line else "")
        return self._made.name_id(
            name,
            colour_word(kind.kind, kind.name, kind.direction, self._made.ranks),
            " · ".join(self._details(kind)) if detailed else "",
        )

    def _details(self, kind: WorkKind) -> Iterator[str]:
        if kind.full_name and kind.full_name != kind.name:
            yield kind.full_name
        if kind.grid:
            yield "grid " + " × ".join(map(str, kind.grid))
        if kind.block:
            yield "block " + " × ".join(map(str, kind.block))
        if kind.registers_per_thread:
            yield f"{kind.registers_per_thread} registers"
        if kind.shared_bytes:
            yield f"{size_text(kind.shared_bytes)} shared"
        if kind.source or kind.destination:
            yield f"{kind.source or '?'} → {kind.destination or '?'}"
        if kind.thread is not None:
            thread = self._threads.get(("Host", kind.thread), f"thread {kind.thread}")
            yield f"{'called' if kind.kind == 'sync' else 'launched'} by {thread}"
        if kind.owner:
            yield f"captured in {' › '.join(kind.owner)}"


def _join(columns: Columns, floor: int, resolution: int) -> int:
    """Makes of each run of short events one, a few pixels wide; returns how many were joined."""
    made, joined, run = Columns.empty(), 0, list[int]()  # start, end, count

    def close() -> None:
        if run:
            for column, value in zip(made, (run[0], run[1], 0, run[2], 0, 0), strict=True):
                column.append(value)
            run.clear()

    for event in zip(*columns, strict=True):
        start, end = event[0], event[1]
        if end - start >= floor:
            close()
            for column, value in zip(made, event, strict=True):
                column.append(value)
            continue
        joined += 1
        if run and start - run[1] <= resolution and end - run[0] <= 4 * resolution:
            run[1:] = max(run[1], end), run[2] + 1
            continue
        close()
        run[:] = start, end, 1
    close()
    for column, new in zip(columns, made, strict=True):
        column[:] = new
    return joined


def _gap_row(made: Events, group: str, gaps: Iterable[Gap], resolution: int) -> int:
    """Adds why a device was empty; returns how many gaps were too short to draw in a large run."""
    start, end, name = parts = array("q"), array("q"), array("q")
    for begin, until, cause in gaps:
        start.append(begin)
        end.append(until)
        name.append(made.name_id(GAPS[cause], f"gap-{cause}", WHY_IDLE.get(cause, "")))
    if not start:
        return 0
    count = len(start)
    if count > _GAP_LIMIT:
        long = lanes.above(lanes.lengths(start, end), max(0, resolution - 1))
        start, end, name = (array("q", compress(column, long)) for column in parts)
    zeros = array("q", bytes(8 * len(start)))
    columns = Columns(start, end, name, zeros, zeros, zeros)
    made.row(group, "idle: why", columns, busy=False, after=made.largest)
    return count - len(start)


def _note(session: Session, work: WorkTable, total: int, joined: int, floor: int, skipped: int, gap_floor: str) -> str:
    parts = []
    if joined:
        parts.append(
            f"{count_text(total, 'record')}: {joined:,} shorter than {time_text(floor)} are drawn joined with their "
            "neighbours (grey). Every number on this page counts all of them."
        )
    if gap_floor:
        parts.append(f"Idle gaps shorter than {gap_floor} are not drawn.")
    if skipped:
        parts.append(f"{count_text(skipped, 'row')} of the timeline not drawn.")
    gone = sum(hole.rows for hole in work.holes)
    if gone:
        parts.append(f"{count_text(gone, 'operation')} of a long run are known only as sums: when they ran is hatched.")
    short = sum(row.count for row in session.aggregates if row.kind not in WITH_ROWS) + work.summed
    if short:
        below = time_text(session.meta.get("threshold_ns"))
        only = count_text(short, f"operation below {below} is", f"operations below {below} are")
        parts.append(f"{only} not drawn: the session has their sums, and not when each ran.")
    return " ".join(parts)


def _unseen(session: Session, start_ns: int, span: int) -> list[list[Any]]:
    return [
        [off.start_ns - start_ns, off.end_ns - start_ns if off.end_ns is not None else span, one_line(off.reason)]
        for off in session.unseen[:1000]
    ]
