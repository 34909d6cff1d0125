"""The timeline's events as columns; beyond a limit short neighbours are joined, and the page says how."""

from array import array
from typing import Any

from ..._records.device_identity import card
from ..._records.records import KINDS
from ..._runtime.text import count_text, one_line, time_text
from ...analysis.busy import columns, window
from ...analysis.facts import Facts
from ...analysis.families import is_collective
from ...analysis.operation import DEVICE_KINDS
from ...session import Session
from ..divisions import GAPS, Divisions, Gap, phase_text
from ..tracks import end_of, label, levels, tracks

#: Kernels with a colour of their own, heaviest first; the others share one.
RANKED_COLOURS = 8
_COPY_COLOURS = {"cpu_to_gpu": "up", "gpu_to_cpu": "down"}
#: Rows beyond this are not drawn; the page says how many.
_ROW_LIMIT = 240
_DEPTH_LIMIT = 32
_NAME_LIMIT = 512
#: Phases, and steps, that are drawn.
_BAND_LIMIT = 20_000
#: Beyond so many gaps those below the resolution are left out.
_GAP_LIMIT = 50_000
_JOINED = 0xFFFFFFFF


class Events:
    """Columns of all rows one after another; ``facts`` says where each row begins."""

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.start = array("d")  # nanoseconds from start_ns
        self.length = array("d")
        self.name = array("I")  # place in names; 0xffffffff for joined events
        self.path = array("I")  # place in paths; for joined events how many they are
        self.names: list[str] = []
        self.colours: list[str] = []
        self.paths: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.ranks: dict[str, int] = {}  # heaviest kernels → number of their colour
        self._records: dict[tuple[str, str, str | None, str | None], int] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._paths: dict[tuple[str, ...], int] = {}

    def row(self, group: str, name: str, *, busy: bool) -> None:
        """Begins a row; ``busy``: its events are work of a device."""
        self.rows.append({"group": group, "name": name, "at": len(self.start), "busy": busy})

    def add(self, start: int, end: int, name: int, path: int) -> None:
        """Adds an event to the row begun last; times in nanoseconds since the epoch."""
        self.start.append(start - self.start_ns)
        self.length.append(end - start)
        self.name.append(name)
        self.path.append(path)

    def name_id(self, name: str, colour: str) -> int:
        """The place of a name with its colour."""
        found = self._names.get((name, colour))
        if found is None:
            found = self._names[name, colour] = len(self.names)
            self.names.append(one_line(name, _NAME_LIMIT))
            self.colours.append(colour)
        return found

    def record_id(self, record: Any, ranks: dict[str, int]) -> int:
        """The place of a record's name."""
        kind, direction = KINDS[type(record)], getattr(record, "direction", None)
        line = getattr(record, "source_line", None)
        found = self._records.get((kind, record.name, direction, line))
        if found is None:
            colour = colour_word(kind, record.name, direction, ranks)
            name = label(record.name) + (f" at {line}" if line else "")
            found = self._records[kind, record.name, direction, line] = self.name_id(name, colour)
        return found

    def path_id(self, path: tuple[str, ...]) -> int:
        """The place of a block's path."""
        found = self._paths.get(path)
        if found is None:
            found = self._paths[path] = len(self.paths)
            self.paths.append(one_line(" › ".join(path), _NAME_LIMIT) if path else "")
        return found


def events(session: Session, facts: Facts, divisions: Divisions, limit: int) -> Events:
    """Rows for every track and, below each device, for the reasons it was idle."""
    whole = window(session)
    made = Events(whole[0] if whole else session.meta.get("start_ns") or 0)
    ranks = made.ranks = _ranks(facts)
    lines, deep = _lines(session)
    total = sum(len(records) for _, _, _, records in lines)
    floor, joined, short_gaps = _floor(lines, limit, total), 0, 0
    resolution = max(1, facts.window_ns // 8192)
    short = _short(facts)
    skipped = max(0, len(lines) - _ROW_LIMIT) + deep
    lines = _chosen(lines)
    for at, (group, name, device, records) in enumerate(lines):
        made.row(group, name, busy=device is not None)
        joined += _fill(made, records, ranks, floor, resolution)
        following = lines[at + 1][2] if at + 1 < len(lines) else None
        if device is not None and (following is None or card(*device) != card(*following)):
            if card(*device) in short:
                made.row(group, "all work, joined", busy=False)
                made.rows[-1]["map"] = True  # which knows more than the rows of listed work
                _joined(made, facts, short[card(*device)], resolution)
            short_gaps += _gap_row(made, group, list(divisions.gaps(device)), resolution)
    made.facts = {
        "start_ns": str(made.start_ns),
        "span": facts.window_ns,
        "rows": made.rows,
        "names": made.names,
        "colours": made.colours,
        "paths": made.paths,
        "events": total,
        "note": _note(session, total, joined, floor, skipped, time_text(resolution) if short_gaps else "", bool(short)),
        "unseen": _unseen(session, made.start_ns, facts.window_ns),
        **_phases(divisions, made.start_ns),
    }
    return made


def _phases(divisions: Divisions, start_ns: int) -> dict[str, Any]:
    """The phases as a band over the timeline, and where each step begins: of the process whose device is busiest."""
    program = next(iter(divisions.programs), None)
    if program is None:
        return {"phases": [], "steps": []}
    steps = program.steps
    spans = [
        [phase.name, phase_text(phase.name, steps), phase.start_ns - start_ns, phase.end_ns - start_ns]
        for phase in program.phases
    ]
    starts = [start - start_ns for start in steps.starts] if steps is not None else []
    return {"phases": spans[:_BAND_LIMIT], "steps": starts if len(starts) <= _BAND_LIMIT else []}


def _short(facts: Facts) -> "dict[tuple[str, int | None], list[int]]":
    """Rows of each card with work that is summed and not listed: of those cards all rows, else none."""
    if not facts.session.counters.aggregated or facts.work.summed:
        return {}
    summed = {card(row.backend, row.device) for row in facts.session.aggregates if row.kind in DEVICE_KINDS}
    return {card(*key): list(one.rows) for key, one in columns(facts.work).items() if card(*key) in summed}


def _joined(made: Events, facts: Facts, rows: list[int], resolution: int) -> None:
    """All work of a device, short work too: what is less than a few pixels apart becomes one event."""
    starts, ends, run = facts.work.start, facts.work.end, list[int]()
    for row in rows:
        start, end = starts[row], ends[row]
        if run and end <= run[1]:
            run[2] += 1
            continue
        if run and start - run[1] <= resolution and end - run[0] <= 4 * resolution:
            run[1], run[2] = max(run[1], end), run[2] + 1
            continue
        _close(made, run)
        run = [max(start, run[1]) if run else start, end, 1]
    _close(made, run)


_Line = tuple[str, str, "tuple[str, int | None] | None", list[Any]]


def _lines(session: Session) -> tuple[list[_Line], int]:
    """(group, label, device, records) of every row, and how many rows of deep nesting were left out."""
    lines: list[_Line] = []
    deep = 0
    for track in tracks(session):
        rows = levels(track.records) if track.nested else [track.records]
        deep += max(0, len(rows) - _DEPTH_LIMIT)
        for depth, records in enumerate(rows[:_DEPTH_LIMIT]):
            lines.append((track.group, "" if depth or track.lane else track.name, track.device, records))
    return lines, deep


def _chosen(lines: list[_Line]) -> list[_Line]:
    """As many rows as a page can show: at least half of them are the devices', where these have so many."""
    hosts = [line for line in lines if line[2] is None]
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
    return {"memset": "memset", "sync": "synchronisation", "block": "block", "compute": "cpu"}.get(kind, "other")


def _floor(lines: list[tuple[str, str, Any, list[Any]]], limit: int, total: int) -> int:
    """Shortest length that is drawn one by one: 0, or such that about half the limit is as long."""
    if total <= limit:
        return 0
    lengths: array[int] = array("q", (end_of(record) - record.start_ns for line in lines for record in line[3]))
    ordered: list[int] = sorted(lengths, reverse=True)
    return ordered[max(1, limit // 2) - 1] + 1


def _fill(made: Events, records: list[Any], ranks: dict[str, int], floor: int, resolution: int) -> int:
    """Adds a row's events; returns how many were joined. Runs of short ones become one event a few pixels wide."""
    joined = 0
    run: list[int] = []  # start, end, count
    for record in records:
        start, end = record.start_ns, end_of(record)
        if end - start < floor:
            joined += 1
            if run and start - run[1] <= resolution and end - run[0] <= 4 * resolution:
                run[1], run[2] = max(run[1], end), run[2] + 1
                continue
            _close(made, run)
            run = [start, end, 1]
            continue
        _close(made, run)
        run = []
        made.add(start, end, made.record_id(record, ranks), made.path_id(record.path))
    _close(made, run)
    return joined


def _close(made: Events, run: list[int]) -> None:
    if run:
        made.add(run[0], run[1], _JOINED, run[2])


def _gap_row(made: Events, group: str, gaps: list[Gap], resolution: int) -> int:
    """Adds why a device was empty; returns how many gaps were too short to draw in a large run."""
    if not gaps:
        return 0
    made.row(group, "idle: why", busy=False)
    nowhere, left_out = made.path_id(()), 0
    floor = resolution if len(gaps) > _GAP_LIMIT else 0
    for gap in gaps:
        if gap.end_ns - gap.start_ns >= floor:
            name = made.name_id(GAPS[gap.cause], f"gap-{gap.cause}")
            made.add(gap.start_ns, gap.end_ns, name, nowhere)
        else:
            left_out += 1
    return left_out


def _note(session: Session, total: int, joined: int, floor: int, skipped: int, gap_floor: str, drawn: bool) -> str:
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
    short, below = session.counters.aggregated, time_text(session.meta.get("threshold_ns"))
    if short:
        only = count_text(short, f"operation below {below} is", f"operations below {below} are")
        where = "in the row “all work, joined” alone" if drawn else "not drawn"
        parts.append(f"{only} {where}; `gpusense report --html --trace-all` draws each of a file that has them.")
    return " ".join(parts)


def _unseen(session: Session, start_ns: int, span: int) -> list[list[Any]]:
    return [
        [off.start_ns - start_ns, off.end_ns - start_ns if off.end_ns is not None else span, one_line(off.reason)]
        for off in session.unseen[:1000]
    ]
