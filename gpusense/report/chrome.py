"""Chrome trace-event JSON, for viewers that do not read native Perfetto traces.

Its times are microseconds in doubles, so they count from the start of the run, which stands in
``baseTimeNanoseconds``: absolute ones would lose their nanoseconds.
"""

import json
import os
from collections.abc import Iterator
from typing import IO, Any

from .._records.device_identity import card
from .._records.records import BlockRecord, GpuKernel, GpuMemoryTransfer
from .._runtime.text import well_formed
from ..analysis.busy import window
from ..session import Session
from . import identity
from .divisions import GAPS, divisions_of
from .files import output
from .perfetto import named, values_of
from .series import device_series
from .tracks import end_of, label, tracks


def write(session: Session, target: "str | os.PathLike[str] | IO[str]") -> None:
    """Writes the trace to a path or an open text file, one event a line."""
    whole = window(session)
    base = whole[0] if whole else session.meta.get("start_ns") or 0
    with output(target) as file:
        about = _json({"gpusense": session.meta.get("version") or "", "run": identity.line(session.meta)})
        file.write(f'{{"displayTimeUnit":"ns","baseTimeNanoseconds":{base},"otherData":{about},"traceEvents":[')
        mark = "\n"
        for event in events(session, base):
            file.write(mark + (event if isinstance(event, str) else _json(event)))
            mark = ",\n"
        file.write("\n]}\n")


def _json(event: dict[str, Any] | str) -> str:
    # Perfetto shows \\u escapes of names as they stand, so only what UTF-8 cannot hold is replaced.
    return well_formed(_encode(event))


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _micros(ns: int) -> float:
    return ns / 1000


def events(session: Session, base: int) -> Iterator[dict[str, Any] | str]:
    """Trace events: complete ones (as JSON text) on lanes that do not overlap, flows from blocks to their work,
    counters."""
    groups: dict[str, int] = {}
    blocks = {record.block_id: record for record in session.records if type(record) is BlockRecord}
    places: dict[int, tuple[int, int]] = {}
    flow = lane = 0
    divisions, told, program = divisions_of(session), set(), identity.program(session.meta)
    for track in tracks(session):  # host first: a flow needs the place of its block
        yield from _group(groups, track.group, program)
        process, lane = groups[track.group], lane + 1
        yield _named("thread_name", process, lane, track.name)
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": lane, "args": {"sort_index": lane}}
        slices = _Slices(base, process, lane)
        for record in track.records:
            yield slices.text(record)
            if type(record) is BlockRecord:
                places[record.block_id] = (process, lane)
            elif record.block_id in places and type(record) in (GpuKernel, GpuMemoryTransfer):
                flow += 1
                origin = blocks[record.block_id]
                yield _flow("s", flow, origin.start_ns - base, *places[origin.block_id])
                yield {**_flow("f", flow, record.start_ns - base, process, lane), "bp": "e"}
        of = None if track.device is None else card(*track.device)
        gaps = list(divisions.gaps(track.device)) if track.device is not None and of not in told else []
        told.add(of)
        if gaps:
            lane += 1
            yield _named("thread_name", process, lane, "idle: why")
            for gap in gaps:
                span = {"ts": _micros(gap.start_ns - base), "dur": _micros(gap.end_ns - gap.start_ns)}
                yield {"ph": "X", "name": GAPS[gap.cause], "pid": process, "tid": lane, **span}
    for one in device_series(session, held=True):
        yield from _group(groups, one.group)
        for time, value in one.points:
            if value == value:  # JSON has no NaN
                at = {"pid": groups[one.group], "ts": _micros(time - base)}
                yield {"ph": "C", "name": f"{one.name} ({one.unit})", **at, "args": {"value": value}}


def _group(groups: dict[str, int], name: str, program: str = "") -> Iterator[dict[str, Any]]:
    """``program``: in place of the name of the host."""
    if name not in groups:
        groups[name] = len(groups) + 1
        yield _named("process_name", groups[name], 0, program if name == "Host" else name)
        yield {"ph": "M", "name": "process_sort_index", "pid": groups[name], "args": {"sort_index": groups[name]}}


def _named(what: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}


class _Slices:
    """Complete events of one lane as text; what is the same in many of them is encoded once."""

    def __init__(self, base: int, process: int, lane: int) -> None:
        self._base = base
        self._place = f'"pid":{process},"tid":{lane},"ts":'
        self._known: dict[Any, tuple[str, str]] = {}

    def text(self, record: Any) -> str:
        start = record.start_ns
        facts = values_of(record)
        key = (type(record), record.name, facts) if facts[-1] is None else None  # attributes are no key
        around = self._known.get(key)
        if around is None:
            around = self._around(record, facts)
            if key is not None and len(self._known) < _MOST_KNOWN:
                self._known[key] = around
        before, after = around
        return f'{before}{_micros(start - self._base)!r},"dur":{_micros(end_of(record) - start)!r}{after}'

    def _around(self, record: Any, facts: tuple[Any, ...]) -> tuple[str, str]:
        shown = dict(named(type(record), facts))
        before = f'{{"ph":"X","name":{_json(label(record.name) or "(unnamed)")},{self._place}'
        return before, f',"args":{_json(shown)}}}' if shown else "}"


_MOST_KNOWN = 100_000


def _flow(phase: str, number: int, at: int, process: int, lane: int) -> dict[str, Any]:
    return {
        "ph": phase,
        "id": number,
        "name": "launch",
        "cat": "launch",
        "pid": process,
        "tid": lane,
        "ts": _micros(at),
    }
