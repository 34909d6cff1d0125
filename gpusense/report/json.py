"""A session as one JSON object of documented, versioned shape: everything the other reports show is in it."""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import filterfalse
from typing import IO, Any

from .._records.json_codec import encode, plain
from .._records.records import Aggregate, BlockRecord, Record
from ..analysis.backends import side_by_side
from ..analysis.blocks import BlockNode
from ..analysis.counters import block_shares, samplings_moved
from ..analysis.energy import energy
from ..analysis.facts import Facts
from ..analysis.findings import findings
from ..analysis.idle import DeviceIdle
from ..analysis.memory import memory
from ..analysis.operation import Operation
from ..analysis.program import Phase, Program, Steps
from ..analysis.ranks import collectives_of, ranks_of
from ..analysis.roofline import measured, roofline
from ..analysis.transfers import TransferGroup
from ..analysis.words import IDLE
from ..session import Session, _json
from . import json_stream
from .divisions import Division, divisions_of, operations_of
from .json_stream import Rows


def to_dict(session: Session) -> dict[str, Any]:
    """The whole session: what was recorded, as recorded, and what the analyses conclude from it.

    Times are nanoseconds (since the Unix epoch where they are moments), sizes bytes, shares 0…1. What is unknown is
    null.
    """
    return {name: list(value) if isinstance(value, Rows) else value for name, value in _members(session)}


def pieces(session: Session, *, portable: bool = False, indent: int | None = None) -> Iterator[str]:
    """The same as JSON text, in pieces: of what a session has many of, a few hundred rows are held at a time."""
    return json_stream.pieces(_members(session), portable=portable, indent=indent)


def _members(session: Session) -> Iterator[tuple[str, Any]]:
    """Names and values, one after the other, so that nothing is held longer than it takes to write it."""
    facts = session.once(Facts)
    found = [plain(finding._asdict()) for finding in session.once(findings)]
    yield "schema", _json.SCHEMA
    yield "meta", plain(session.meta)
    yield "duration_ns", session.duration_ns
    yield "window_ns", facts.window_ns or None
    yield "verdict", found[0]
    yield "findings", found
    divisions = divisions_of(session)
    yield "phases", [_phase(program, phase) for program in facts.programs for phase in program.phases]
    yield "steps", [_steps(program, program.steps) for program in facts.programs if program.steps is not None]
    yield "views", [_view(one) for one in divisions.all]
    yield "counters", encode(session.counters, full=True)
    yield "devices", [encode(device, full=True) for device in session.devices]
    yield "busy", [{**plain(time._asdict()), "busy_share": time.busy_share} for time in facts.times]
    yield "idle", [_idle(row) for row in facts.idle]
    yield "operations", [plain(row._asdict()) for row in session.once(operations_of)]
    yield "transfers", [_transfer(row) for row in facts.transfers]
    yield "blocks", Rows(filter(_is_block, session.records), _record, _DERIVED)
    yield "records", Rows(filterfalse(_is_block, session.records), _record, _DERIVED)
    yield "aggregates", Rows(session.aggregates, _aggregate)
    yield "analysis", _analysis(session, facts)
    yield "metrics", Rows(session.metrics, encode)
    yield "unseen", [encode(interval, full=True) for interval in session.unseen]
    yield _json.FIELD, _json.more(session)


def write(session: Session, target: "str | os.PathLike[str] | IO[str]", *, indent: int | None = None) -> None:
    """The report as JSON text, one line unless there is an ``indent``; names that are not UTF-8 are made readable."""
    from .files import output

    with output(target) as file:
        for piece in pieces(session, portable=True, indent=indent):
            file.write(piece)
        file.write("\n")


def _phase(program: Program, phase: Phase) -> dict[str, Any]:
    return {
        **phase._asdict(),
        "length_ns": phase.length_ns,
        "judged": phase.name == program.judged,
    }


def _steps(program: Program, steps: Steps) -> dict[str, Any]:
    return {"process": program.root, **steps._asdict(), "starts": list(steps.starts), "ends": list(steps.ends)}


def _view(one: Division) -> dict[str, Any]:
    """A device in a phase. Each share is of ``length_ns``."""

    def rows(sums: dict[str, int], **more: dict[str, int]) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "total_ns": spent,
                "share": one.share(spent),
                **{key: of.get(name, 0) for key, of in more.items()},
            }
            for name, spent in sums.items()
        ]

    empty = {name: spent for name, spent in one.parts.items() if name in IDLE}
    return {
        "process": one.program.root,
        "backend": one.key[0],
        "device": one.key[1],
        "phase": one.phase,
        "judged": one.judged,
        "length_ns": one.length_ns,
        "unseen_ns": one.unseen_ns,
        "busy_ns": one.busy_ns,
        "busy_share": one.busy_share,
        "parts": rows(one.parts),
        "causes": rows(empty, gaps=one.gaps),
        "families": rows(one.families()),
        "kernels": [_kernel(row) for row in one.operations if row.kind == "kernel"],
        "copies": [_kernel(row) for row in one.operations if row.kind != "kernel"],
    }


_KERNEL = (
    "name",
    "full_name",
    "kind",
    "direction",
    "count",
    "total_ns",
    "avg_ns",
    "median_ns",
    "min_ns",
    "max_ns",
    "bytes",
    "share",
)


def _kernel(row: Operation) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _KERNEL}


def _is_block(record: Record) -> bool:
    return type(record) is BlockRecord


def _record(record: Record) -> dict[str, Any]:
    return {**encode(record, full=True), **{name: figure(record) for name, figure in _DERIVED.items()}}


_DERIVED: dict[str, Callable[[Any], Any]] = {"duration_ns": lambda record: record.end_ns - record.start_ns}


def _transfer(row: TransferGroup) -> dict[str, Any]:
    return {**plain(row._asdict()), "bandwidth_bytes_per_s": row.bandwidth_bytes_per_s}


def _aggregate(row: Aggregate) -> dict[str, Any]:
    return {**encode(row, full=True), "avg_ns": row.avg_ns, "std_ns": row.std_ns}


def _analysis(session: Session, facts: Facts) -> dict[str, list[Any]]:
    """What is concluded beside the findings, as the analyses give it; a list is empty where its records are absent."""
    parts: dict[str, Iterable[Any]] = {
        "overlap": facts.overlap,
        "launches": facts.launches,
        "waits": facts.waits,
        "coverage": facts.coverage,
        "memory": memory(session),
        "energy": energy(session),
        "roofline": roofline(session),
        "measured_blocks": session.once(measured),
        "counters": session.once(block_shares),
        "counter_sampling": samplings_moved(session),
        "first_calls": facts.first_calls,
        "warm_ups": facts.warm_ups,
        "backends": side_by_side(session, facts.operations),
        "anomalies": facts.anomalies,
        "ranks": filter(None, [session.once(ranks_of)]),
        "collectives": session.once(collectives_of),
    }
    shown = {name: [_row(row) for row in rows] for name, rows in parts.items()}
    return {**shown, "block_tree": list(_block_tree(facts.blocks))}


def _row(value: Any) -> Any:
    """A row of an analysis with every field, those equal to their default too, and the figures derived from them."""
    if not isinstance(value, tuple):
        return plain(value)
    names = getattr(value, "_fields", None)
    if names is None:
        return [_row(item) for item in value]
    derived = [name for name, member in vars(type(value)).items() if isinstance(member, property)]
    return {name: _row(getattr(value, name)) for name in (*names, *derived)}


def _block_tree(root: BlockNode) -> Iterator[dict[str, Any]]:
    """One row a path, parents first; the root, with path ``[]``, is everything, and its own what no block launched."""
    waiting = [root] if root.children or root.operations else []
    for node in waiting:
        waiting += node.children.values()
        times, seen = node.times, node.gpu_seen
        shown = times._asdict()
        yield {
            "path": list(shown.pop("path")),
            "passes": shown.pop("passes"),
            "wall_ns": shown.pop("total_ns"),
            "gpu_ns": node.gpu_ns if seen else None,
            "own_gpu_ns": node.own_gpu_ns if seen else None,
            "own_kernels": node.own_kernels if seen else None,
            "own_kernel_ns": node.own_kernel_ns if seen else None,
            "own_transfer_ns": node.own_transfer_ns if seen else None,
            "own_bytes": node.own_bytes if times.transfer_bytes is not None else None,
            "own_sync_ns": node.own_sync_ns if node.own_sync_ns or times.wait_ns is not None else None,
            **shown,
            "operations": [
                {"kind": kind, "name": name, "count": count, "total_ns": spent}
                for (kind, name), (count, spent, _) in node.operations.items()
            ],
            "owners": [
                {"path": list(path), "kernels": kernels, "gpu_ns": spent}
                for path, (kernels, spent) in node.owners.items()
            ],
        }


def _idle(row: DeviceIdle) -> dict[str, Any]:
    shown = row._asdict()
    del shown["gaps"]  # as many as kernels; records give them
    shown["host_inside"] = [{"path": path, "time_ns": spent} for path, spent in row.host_inside]
    return dict(plain(shown))
