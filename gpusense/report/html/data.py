"""What the HTML page shows, as JSON-ready facts and binary columns."""

import math
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..._runtime.text import count_text, joules_text, one_line, percent_text, size_text, time_text
from ...analysis.blocks import BlockNode, block_tree
from ...analysis.busy import DeviceTime
from ...analysis.calls import Calls, grouped, ordered
from ...analysis.energy import energy
from ...analysis.facts import Facts, Finding
from ...analysis.findings import ranked
from ...analysis.idle import REASONS
from ...analysis.operation import DEVICE_KINDS, Operation
from ...analysis.unwritten import listed_text
from ...session import Session
from .. import identity
from ..blocks import tables as block_tables
from ..series import devices_seen
from ..tracks import group_name, label
from .charts import charts
from .events import Events, colour_word, events
from .tables import small_tables

#: Longest name on the page; the middle of a longer one is cut out.
NAME_LIMIT = 4096
_TABLE_LIMIT = 2_000
_UNSEEN_LIMIT = 100
_HISTOGRAMS = 12
_BINS = 28
_FLAME_LIMIT = 4_000
_FLAME_DEPTH = 64


class PageData(NamedTuple):
    """What the page carries: facts as JSON, and events as columns of numbers."""

    facts: dict[str, Any]
    columns: dict[str, "array[Any]"]


def page_data(session: Session, *, title: str = "", event_limit: int = 200_000) -> PageData:
    """Everything the page shows. Times are nanoseconds from the start of the run; the start itself is a string."""
    facts = Facts(session)
    found = ranked(facts)
    drawn = events(session, facts, event_limit)
    shown = facts.operations[:_TABLE_LIMIT]
    tree = block_tree(session)
    return PageData(
        {
            "schema": 1,
            "title": f"gpusense · {one_line(title)}" if title else "gpusense report",
            "subtitle": _subtitle(session, facts, title),
            "findings": [_finding(finding) for finding in found],
            "tiles": _tiles(session, facts),
            "breakdown": _breakdown(session, facts),
            "operations": [_operation(row, drawn.ranks) for row in shown],
            "more_operations": len(facts.operations) - len(shown),
            "histograms": _histograms(facts, shown),
            "timeline": drawn.facts,
            "tables": [*block_tables(session, tree), *small_tables(session, facts)],
            "flame": _flame(tree),
            "series": charts(session, drawn.start_ns),
            "seen": _seen(session),
            "window_ns": facts.window_ns,
        },
        _columns(drawn),
    )


def _identity(row: Operation | Calls) -> tuple[Any, ...]:
    return (row.kind, row.name, row.backend, row.device, row.direction)


def _columns(drawn: Events) -> dict[str, "array[Any]"]:
    return {"start": drawn.start, "length": drawn.length, "name": drawn.name, "path": drawn.path}


def _subtitle(session: Session, facts: Facts, title: str) -> str:
    devices = ", ".join(dict.fromkeys(one_line(device.name) for device in devices_seen(session))) or "no device"
    parts = [one_line(title)] if title else []
    parts += [devices, time_text(facts.window_ns), one_line(identity.line(session.meta), 400)]
    return " · ".join(part for part in parts if part)


def _finding(finding: Finding) -> dict[str, Any]:
    row = finding._asdict()
    row["saving"] = time_text(finding.saving_ns) if finding.saving_ns else ""
    return row


def _tiles(session: Session, facts: Facts) -> list[dict[str, str]]:
    kernels = [row for row in facts.operations if row.kind == "kernel"]
    calls, spent = sum(row.count for row in kernels), sum(row.total_ns for row in kernels)
    copies = [row for row in facts.operations if row.kind == "transfer"]
    size, copying = sum(row.bytes for row in copies), sum(row.total_ns for row in copies)
    busy = max(facts.times, key=lambda time: time.busy_ns, default=None)
    idle = max(facts.idle, key=lambda row: row.compute_ns, default=None)
    tiles = [
        _tile("Run", time_text(facts.window_ns), "no end recorded" if session.meta.get("end_ns") is None else ""),
        _tile(
            "GPU busy",
            percent_text(busy.busy_share if busy else None),
            _busy_note(busy, len(facts.times)),
        ),
        _tile("Kernels", f"{calls:,}", f"{time_text(spent / calls)} on average" if calls else "none seen"),
        _tile(
            "Copied",
            size_text(size),
            f"{count_text(sum(row.count for row in copies), 'copy', 'copies')}, {time_text(copying)}",
        ),
    ]  # fmt: skip
    if idle:
        waiting = idle.host_ns + idle.synchronisation_ns + idle.unattributed_ns
        share = waiting / idle.seen_ns if idle.seen_ns else None
        tiles.append(_tile("GPU waits for host", percent_text(share), time_text(waiting)))
    used = max((sample.memory.used_bytes or 0 for sample in session.metrics), default=0)
    if used:
        total = max(sample.memory.total_bytes or 0 for sample in session.metrics)
        tiles.append(_tile("Peak memory", size_text(used), f"of {size_text(total)}" if total else ""))
    tiles += [
        _tile("SM coverage", percent_text(row.estimated_sm_coverage), "estimated from launch sizes")
        for row in facts.coverage[:1]
        if row.considered_ns * 2 >= row.kernel_ns
    ]
    joules = [row.joules for row in energy(session) if row.joules is not None]
    if joules:
        tiles.append(_tile("Energy", joules_text(sum(joules)), "whole device, while sampled"))
    return tiles


def _busy_note(busy: DeviceTime | None, devices: int) -> str:
    if busy is None:
        return "no GPU work seen"
    return time_text(busy.busy_ns) + (f" on the busiest of {devices}" if devices > 1 else "")


def _tile(what: str, value: str, note: str) -> dict[str, str]:
    return {"label": what, "value": value, "note": note}


def _breakdown(session: Session, facts: Facts) -> list[dict[str, Any]]:
    return [
        {
            "device": group_name(session, (row.backend, row.device)),
            "window": row.window_ns,
            "parts": [[reason, row.part(reason)] for reason in REASONS if row.part(reason)],
        }
        for row in facts.idle
    ]


def _operation(row: Operation, ranks: dict[str, int]) -> dict[str, Any]:
    shown = row._asdict()
    timed = " (timed by the host)" if row.kind in DEVICE_KINDS and row.timing == "host" else ""
    shown["name"] = _name(row.name) + timed
    shown["colour"] = colour_word(row.kind, row.name, row.direction, ranks)
    shown["full_name"] = _name(row.full_name) if row.full_name else None
    return shown


def _name(text: str) -> str:
    return one_line(label(text), NAME_LIMIT)


def _histograms(facts: Facts, shown: list[Operation]) -> dict[int, dict[str, Any]]:
    """Durations of the heaviest device operations in logarithmic bins, by place in the table."""
    groups = grouped(facts.calls, _identity)
    return {
        at: _bins(ordered(groups[_identity(row)]))
        for at, row in enumerate(shown[:_HISTOGRAMS])
        if row.kind in DEVICE_KINDS and row.kept
    }


def _bins(values: list[int]) -> dict[str, Any]:
    low, high = max(1, min(values)), max(1, max(values))
    span = math.log(high / low) if high > low else 0.0
    counts = [0] * (_BINS if span else 1)
    for value in values:
        place = int(math.log(max(1, value) / low) / span * _BINS) if span else 0
        counts[min(place, len(counts) - 1)] += 1
    return {"low": low, "high": high, "counts": counts}


def _flame(root: BlockNode) -> dict[str, Any]:
    """The block tree as flat rows (parent, name, nanoseconds, kind), parents first; the light and the deep joined."""
    rows: list[list[Any]] = [[-1, "all GPU work", root.gpu_ns, "block"]]
    floor = root.gpu_ns // _FLAME_LIMIT
    queue: list[tuple[int, BlockNode]] = [(0, root)]
    for place, node in queue:
        rest = 0
        for child in node.children.values():
            if child.gpu_ns > floor and len(child.path) < _FLAME_DEPTH:
                queue.append((len(rows), child))
                rows.append([place, _name(child.name), child.gpu_ns, "block"])
            else:
                rest += child.gpu_ns
        for (kind, name), (_, spent, _) in node.operations.items():
            if kind not in DEVICE_KINDS:
                continue
            if spent > floor:
                rows.append([place, _name(name), spent, kind])
            else:
                rest += spent
        if rest:
            rows.append([place, "(others)", rest, "rest"])
    return {"rows": rows}


#: What a session says of its own cost, in words; anything else is shown as it is.
_COST = {
    "drain_cpu_ns": "CPU of the drain thread",
    "thread_cpu_ns": "CPU of the recording thread",
    "thread_s": "time it was at it",
    "budget": "overhead budget",
    "share": "cost when last reckoned",
    "left": "of it in launches while capture is paused",
    "observed": "share of the time observed",
    "threshold_ns": "threshold for it",
    "stays": "CUPTI stayed in the process",
}


def _cost(overhead: dict[str, Any]) -> Iterator[list[str]]:
    for name, value in overhead.items():
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


def _seen(session: Session) -> dict[str, Any]:
    meta, counters = session.meta, session.counters._asdict()
    return {
        "records": listed_text(session.counters),
        "counters": [
            [name.replace("_", " "), value] for name, value in counters.items() if value and name not in _LISTED
        ],
        "backends": [[one_line(str(name)), one_line(str(text))] for name, text in (meta.get("backends") or {}).items()],
        "version": one_line(str(meta.get("version", "unknown"))),
        "mode": one_line(str(meta.get("mode", ""))),
        "threshold": None if meta.get("trace_all") else time_text(meta.get("threshold_ns")),
        "overhead": list(_cost(meta.get("overhead") or {})),
        "unseen": [
            [off.start_ns - (meta.get("start_ns") or off.start_ns), one_line(off.reason)]
            for off in session.unseen[:_UNSEEN_LIMIT]
        ],
        "more_unseen": max(0, len(session.unseen) - _UNSEEN_LIMIT),
    }
