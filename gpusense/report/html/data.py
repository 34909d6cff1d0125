"""What the HTML page shows, as JSON-ready facts and packed columns."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..._records.device_identity import device_of, device_text
from ..._runtime.text import (
    count_text,
    joules_text,
    one_line,
    percent_text,
    rate_text,
    sentence,
    size_text,
    time_text,
)
from ...analysis.blocks import BlockNode
from ...analysis.energy import energy
from ...analysis.facts import Facts, Finding
from ...analysis.findings import findings
from ...analysis.operation import DEVICE_KINDS, Operation, called
from ...analysis.peaks import peaks
from ...analysis.ranks import notes_on, shown_text
from ...analysis.roofline import MeasuredBlock, measured, rate_of
from ...analysis.sampled import concerned, devices_seen
from ...analysis.unwritten import length_text, listed_text, notes_of
from ...analysis.words import IDLE
from ...session import Session
from .. import identity
from ..blocks import tables as block_tables
from ..divisions import ALL, PARTS, Division, Divisions, divisions_of, phase_text
from ..tracks import group_name, label
from .charts import charts
from .events import colour_word, events
from .matrix import matrix
from .places import Places
from .tables import small_tables

#: Longest name on the page; the middle of a longer one is cut out.
NAME_LIMIT = 4096
_TABLE_LIMIT = 2_000
_UNSEEN_LIMIT = 100
_HISTOGRAMS = 12
_NOTES = 5
_BINS = 28
_FLAME_LIMIT = 4_000
_FLAME_DEPTH = 64
_MOST_POINTS = 40  # of a roofline


class PageData(NamedTuple):
    """What the page carries: facts as JSON, and the packed columns of its timeline."""

    facts: dict[str, Any]
    events: bytearray


def page_data(session: Session, *, title: str = "", event_limit: int = 2_000_000) -> PageData:
    """Everything the page shows. Times are nanoseconds from the start of the run; the start itself is a string."""
    facts, divisions = session.once(Facts), divisions_of(session)
    found = session.once(findings)
    tree = facts.blocks
    drawn = events(session, facts, divisions, event_limit)
    places = Places(facts, divisions, drawn.start_ns)
    phases = [_phase(session, facts, divisions, name, drawn.ranks, places) for name in divisions.names] or [
        {"name": ALL, "label": "run", "judged": True, "note": "", "tiles": _run_tiles(session, facts)}
    ]
    host = [row for row in facts.operations if row.kind not in DEVICE_KINDS or row.timing == "host"]
    whole = facts.window_ns
    return PageData(
        {
            "schema": 1,
            "title": f"gpusense · {one_line(title)}" if title else "gpusense report",
            "subtitle": _subtitle(session, facts, title),
            "sentence": " · ".join(filter(None, (divisions.sentence(), shown_text(session)))),
            "notes": [sentence(one_line(note, 400)) for note in (*notes_of(session), *notes_on(session))[:_NOTES]],
            "took": _took(facts, tree),
            "findings": [_finding(finding, divisions, places) for finding in found],
            "phases": phases,
            "words": PARTS,
            "host": [
                _operation(session, row._replace(share=row.total_ns / whole if whole else 0.0), drawn.ranks, places)
                for row in host[:_TABLE_LIMIT]
            ],
            "more_host": max(0, len(host) - _TABLE_LIMIT),
            "timeline": drawn.facts,
            "tables": [*block_tables(session, tree, places.block), *small_tables(session, facts, places)],
            "matrix": matrix(session, places),
            "flame": _flame(tree, places),
            "series": charts(session, drawn.start_ns),
            "roofline": _rooflines(session, places),
            "seen": _seen(session),
            "window_ns": facts.window_ns,
            "places": places.rows,  # all that was asked for above
        },
        drawn.data,
    )


def _phase(
    session: Session, facts: Facts, divisions: Divisions, name: str, ranks: dict[str, int], places: Places
) -> dict[str, Any]:
    """What the page shows of one phase: of every device together."""
    found = divisions.of(name)
    told = [
        one for one in found if one.program is found[0].program
    ]  # of several processes the headline's, if it has it
    owner = _owner(divisions, found[0])
    rows = sorted(
        ((row, one.program.root) for one in found for row in one.operations),
        key=lambda of: (-of[0].total_ns, -of[0].count, of[0].name),
    )
    shown = rows[:_TABLE_LIMIT]
    steps = found[0].steps
    length = _length(told) if steps is None else f"{steps.number:,} × {time_text(steps.median_ns)}"
    judged = any(one.judged for one in found) or divisions.names == [ALL]
    return {
        "name": name,
        "label": "whole run" if name == ALL else phase_text(name, found[0].program.steps),
        "of": found[0].of,
        "judged": judged,
        "at_once": "; ".join(divisions.at_once(name)),
        "shared": divisions.shared if any(one.shared for one in found) else "",
        "note": owner + length if name != ALL or not owner else time_text(facts.window_ns),
        "tiles": _tiles(session, facts, told, owner),
        "breakdown": [
            {
                "device": group_name(session, one.key)
                + ("" if one.program.root is None else f" · {one.program.root}")
                + (" (shared)" if one.shared else ""),
                "window": one.length_ns,
                "steps": None if one.steps is None else one.steps.number,
                "parts": list(one.parts.items()),
                "families": list(one.families().items()),
                "at_once": sentence(one.at_once_with_idle) if one.at_once_with_idle else "",
            }
            for one in found
        ],
        "operations": [_operation(session, row, ranks, places, root) for row, root in shown],
        "more_operations": len(rows) - len(shown),
        "histograms": {
            at: _bins(values)
            for at, (row, _) in enumerate(shown[:_HISTOGRAMS])
            if (values := divisions.lengths(name, row))
        },
    }


def _rooflines(session: Session, places: Places) -> list[dict[str, Any]]:
    """Of each device its roofs and the measured blocks that have a place below them, with the ends of both axes."""
    by_device: dict[int | None, list[MeasuredBlock]] = {}
    for row in session.once(measured):
        if row.intensity:
            by_device.setdefault(row.device, []).append(row)
    return [_roofline(session, device, rows[:_MOST_POINTS], places) for device, rows in by_device.items()]


def _roofline(session: Session, device: int | None, rows: list[MeasuredBlock], places: Places) -> dict[str, Any]:
    top = peaks(device_of(session.devices, "cuda", device))
    used = {(rate.type, rate.tensor) for row in rows for rate in row.operations if rate.per_s}
    kinds = [(name, per_s, True) for name, per_s in top.tensor] + [(name, per_s, False) for name, per_s in top.others]
    roofs = [
        {"said": f"{name}{'' if tensor else ' without tensor cores'} {rate_of(per_s, name)}", "per_s": per_s}
        for name, per_s, tensor in kinds
        if (name, tensor) in used
    ]
    points = [
        {
            "name": one_line(row.path[-1], 80),
            "intensity": row.intensity,
            "per_s": row.operations_per_s,
            "roof": row.roof,
            "said": _said(row),
            "place": places.block(row.path),
        }
        for row in rows
    ]
    across = [row.intensity or 1.0 for row in rows]
    ridges = [per_s / top.bytes_per_s for name, per_s, tensor in kinds if (name, tensor) in used and top.bytes_per_s]
    up = [row.operations_per_s or 1.0 for row in rows]
    highest = [per_s for name, per_s, tensor in kinds if (name, tensor) in used]
    return {
        "device": device_text(session.devices, "cuda", device),
        "bytes_per_s": top.bytes_per_s,
        "memory": f"DRAM {rate_text(top.bytes_per_s)}" if top.bytes_per_s else "",
        "roofs": roofs,
        "points": points,
        "intensity": [_decade(min(*across, *ridges, 1.0), -1), _decade(max(*across, *ridges, 10.0), 1)],
        "rate": [_decade(min(up), -1), _decade(max(*up, *highest, 1.0), 1)],
    }


def _decade(value: float, way: int) -> float:
    """The power of ten below or above, with some room."""
    power = math.log10(value) + 0.1 * way
    return float(10.0 ** (math.ceil(power) if way > 0 else math.floor(power)))


def _said(row: MeasuredBlock) -> list[str]:
    """Of a point, in lines."""
    name, _, what = str(row).partition(": ")
    busy = "" if row.busy is None else f", of which the device worked {percent_text(row.busy)}"
    passes = f"{count_text(row.passes, 'pass', 'passes')} measured, {time_text(row.device_ns)} each{busy}"
    return [name, what, passes]


def _subtitle(session: Session, facts: Facts, title: str) -> str:
    devices = ", ".join(dict.fromkeys(one_line(device.name) for device in devices_seen(session))) or "no device"
    parts = [one_line(title)] if title else []
    parts += [devices, time_text(facts.window_ns), one_line(identity.line(session.meta), 400)]
    return " · ".join(part for part in parts if part)


def _finding(finding: Finding, divisions: Divisions, places: Places) -> dict[str, Any]:
    row = finding._asdict()
    row["place"] = places.finding(finding)
    row["saving"] = time_text(finding.saving_ns) if finding.saving_ns else ""
    found = divisions.of(finding.phase)
    row["of"] = phase_text(finding.phase, found[0].program.steps) if found else ""  # "" where none can be shown
    return row


def _took(facts: Facts, root: BlockNode) -> list[str]:
    """What a program without any work of a device spent its time on, in sentences; none where there are no blocks."""

    def longest(of: BlockNode) -> list[BlockNode]:
        return sorted((node for node in of.children.values() if node.passes), key=lambda node: -node.wall_ns)

    def told(node: BlockNode) -> str:
        return f"“{one_line(node.name, 60)}” {time_text(node.wall_ns)} ({count_text(node.passes, 'call')})"

    outer = longest(root)
    if facts.device_operations or not outer:
        return []
    most, inside = outer[0], ", ".join(map(told, longest(outer[0])[:4]))
    told_first = f"“{one_line(most.name, 60)}” took {time_text(most.wall_ns)} in {count_text(most.passes, 'call')}."
    lines = [f"The run took {time_text(facts.window_ns)}."]
    lines += [f"Beside it: {', '.join(map(told, outer[1:4]))}."] if outer[1:] else []
    return [told_first, *lines, *([f"In it: {inside}."] if inside else [])]


def _length(found: list[Division]) -> str:
    return time_text(max(one.length_ns + one.unseen_ns for one in found))


def _owner(divisions: Divisions, one: Division) -> str:
    """ "rank 3 · "; "" where one process alone worked."""
    return f"{one_line(one.program.root or '', 40)} · " if len(divisions.programs) > 1 else ""


def _run_tiles(session: Session, facts: Facts, note: str = "") -> list[dict[str, str]]:
    note = "no end recorded" if session.meta.get("end_ns") is None else note
    return [_tile("Run", time_text(facts.window_ns) if facts.window_ns else "–", note)]


def _tiles(session: Session, facts: Facts, found: list[Division], owner: str) -> list[dict[str, str]]:
    """Figures of one phase of a process, whose notes begin with its name where there are several (``owner``); of
    several devices the busiest one's, where they are shares."""
    whole, steps = found[0].phase == ALL, found[0].steps
    busy = max(found, key=lambda one: one.busy_share)
    of = busy.of + (f"; the busiest of {len(found)}: {busy.text if owner else busy.device}" if len(found) > 1 else "")
    of += " (all processes')" if busy.shared else ""
    rows = [row for one in found for row in one.operations]
    names = {row.backend for row in rows if row.kind == "kernel"} or {row.backend for row in rows}
    kernels, copies = ([row for row in rows if row.kind == kind] for kind in ("kernel", "transfer"))
    calls, spent = sum(row.count for row in kernels), sum(row.total_ns for row in kernels)
    size, copying = sum(row.bytes for row in copies), sum(row.total_ns for row in copies)
    if steps is not None:
        each = f"median of {steps.number:,}, ± {time_text(steps.spread_ns)}"
        tiles = [_tile("Each launch" if steps.name == "launch" else "Each step", time_text(steps.median_ns), each)]
    elif whole:
        tiles = []
    else:
        tiles = [_tile("Length", _length(found), "")]
    tiles += [
        _tile(f"{busy.processor} busy", percent_text(busy.busy_share), f"{time_text(busy.busy_ns)} of the {of}"),
        _tile(_RAN[called(names)], f"{calls:,}", f"{time_text(spent / calls)} on average" if calls else "none seen"),
        _tile(
            "Copied",
            size_text(size),
            f"{count_text(sum(row.count for row in copies), 'copy', 'copies')}, {time_text(copying)}",
        ),
    ]
    idle = {name: spent for name, spent in busy.parts.items() if name in IDLE and name != "none"}
    if idle:
        name, lost = max(idle.items(), key=lambda item: item[1])
        share = percent_text(busy.share(sum(idle.values())))
        tiles.append(_tile(f"{busy.processor} idle", share, f"most: {IDLE[name]}, {time_text(lost)}"))
    tiles = [{**tile, "note": f"{owner}{tile['note']}".removesuffix(" · ")} for tile in tiles]
    if not whole:
        return tiles
    return [*_run_tiles(session, facts, "all processes" if owner else ""), *tiles, *_whole_tiles(session)]


_RAN = {"kernel": "Kernels", "pass": "Passes", "kernel or pass": "Kernels and passes"}


def _whole_tiles(session: Session) -> Iterator[dict[str, str]]:
    """What is known of the whole run alone."""
    cards = concerned(session)
    peaks = [(sample.memory.used_bytes or 0, sample, card) for card in cards for sample in card.samples]
    used, fullest, card = max(peaks, key=lambda one: one[0], default=(0, None, None))
    if used and fullest is not None and card is not None:
        total = fullest.memory.total_bytes
        parts = [f"of {size_text(total)}"] * bool(total) + [card.text] * (len(cards) > 1)
        yield _tile("Peak memory", size_text(used), ", ".join(parts))
    joules = [row.joules for row in energy(session) if row.joules is not None and row.worked is not False]
    if joules:
        whole = "whole device" if len(joules) == 1 else f"{len(joules)} whole devices"
        yield _tile("Energy", joules_text(sum(joules)), f"{whole}, while sampled")


def _tile(what: str, value: str, note: str) -> dict[str, str]:
    return {"label": what, "value": value, "note": note}


def _operation(
    session: Session, row: Operation, ranks: dict[str, int], places: Places, root: str | None = None
) -> dict[str, Any]:
    """``root``: of the process whose calls a row counts, where others are in the session."""
    shown = row._asdict()
    shown["place"] = places.operation(row, root)
    shown["what"] = called({row.backend}) if row.kind == "kernel" else row.kind
    known = row.kind in DEVICE_KINDS or row.device is not None
    shown["card"] = device_text(session.devices, row.backend, row.device) if known else "–"
    shown["card"] = shown["card"] if root is None else f"{one_line(root, 40)} · {shown['card']}"
    timed = " (timed by the host)" if row.kind in DEVICE_KINDS and row.timing == "host" else ""
    shown["name"] = _name(row.name) + timed
    shown["colour"] = colour_word(row.kind, row.name, row.direction, ranks)
    shown["full_name"] = _name(row.full_name) if row.full_name else None
    return shown


def _name(text: str) -> str:
    return one_line(label(text), NAME_LIMIT)


def _bins(values: "Sequence[int]") -> dict[str, Any]:
    """How long single calls took, in logarithmic bins. ``values`` are in order."""
    low, high = max(1, values[0]), max(1, values[-1])
    span = math.log(high / low) if high > low else 0.0
    counts = [0] * (_BINS if span else 1)
    for value in values:
        place = int(math.log(max(1, value) / low) / span * _BINS) if span else 0
        counts[min(place, len(counts) - 1)] += 1
    return {"low": low, "high": high, "counts": counts}


def _flame(root: BlockNode, places: Places) -> dict[str, Any]:
    """The block tree as flat rows (parent, name, nanoseconds, kind), parents first; the light and the deep joined.

    Without any work of a device it is the time for which blocks were open."""
    device = root.gpu_ns > 0
    whole = root.gpu_ns if device else sum(child.wall_ns for child in root.children.values())
    rows: list[list[Any]] = [[-1, "all GPU work" if device else "all blocks", whole, "block"]]
    where: list[int | None] = [None]
    floor = whole // _FLAME_LIMIT
    queue: list[tuple[int, BlockNode]] = [(0, root)]
    for place, node in queue:
        rest = 0
        for child in node.children.values():
            spent = child.gpu_ns if device else child.wall_ns
            if spent > floor and len(child.path) < _FLAME_DEPTH:
                queue.append((len(rows), child))
                rows.append([place, _name(child.name), spent, "block"])
                where.append(places.block(child.path))
            else:
                rest += spent
        for (kind, name), (_, spent, _) in node.operations.items() if device else ():
            if kind not in DEVICE_KINDS:
                continue
            if spent > floor:
                rows.append([place, _name(name), spent, kind])
                where.append(places.within(node.path, kind, name))
            else:
                rest += spent
        if rest:
            rows.append([place, "(others)", rest, "rest"])
            where.append(None)
    return {"rows": rows, "places": where, "of": "device time" if device else "time"}


#: What a session says of its own cost, in words; anything else is shown as it is.
_COST = {
    "drain_cpu_ns": "CPU time of reading records",
    "thread_cpu_ns": "CPU time of storing them",
    "answers_cpu_ns": "CPU time of reading them back for the program",
    "thread_s": "its thread was awake for",
    "budget": "overhead budget",
    "share": "overhead when last measured",
    "left": "of it in launches while capture is paused",
    "observed": "share of the time observed",
    "threshold_ns": "threshold that this took",
    "stays": "CUPTI stayed in the process",
}


def _cost(overhead: dict[str, Any]) -> Iterator[list[str]]:
    for name, value in overhead.items():
        if name in _COST and not value:
            continue
        label = _COST.get(name) or one_line(str(name)).replace("_", " ")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
            shown = one_line(str(value))
        elif name.endswith("_ns"):
            shown = time_text(value)
        elif name.endswith("_s"):
            shown = time_text(value * 1e9)
        else:
            shown = percent_text(value) if name in _COST else str(value)
        yield [label, shown]


#: Counters that ``listed_text`` shows.
_LISTED = ("seen", "kept", "aggregated", "invalid", "pre_session")
#: Where the name of a counter says too little.
_COUNTERS = {"inherited": "launched by threads without blocks, given to the block that was open"}


def _seen(session: Session) -> dict[str, Any]:
    meta, counters = session.meta, session.counters._asdict()
    return {
        "records": listed_text(session.counters),
        "counters": [
            [_COUNTERS.get(name, name.replace("_", " ")), value]
            for name, value in counters.items()
            if value and name not in _LISTED
        ],
        "backends": [[one_line(str(name)), one_line(str(text))] for name, text in (meta.get("backends") or {}).items()],
        "version": one_line(str(meta.get("version", "unknown"))),
        "mode": one_line(str(meta.get("mode", ""))),
        "threshold": None if meta.get("trace_all") else time_text(meta.get("threshold_ns")),
        "overhead": list(_cost(meta.get("overhead") or {})),
        "unseen": [
            [
                off.start_ns - (meta.get("start_ns") or off.start_ns),
                length_text(off, meta.get("end_ns")),
                one_line(off.reason),
            ]
            for off in session.unseen[:_UNSEEN_LIMIT]
        ],
        "more_unseen": max(0, len(session.unseen) - _UNSEEN_LIMIT),
    }
