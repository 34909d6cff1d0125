"""Parts of a session as a data frame of pandas or polars. Neither is imported before somebody asks for one."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from operator import attrgetter, sub
from types import NoneType
from typing import Any

from .._records.counter_samples import FIELDS
from .._records.counters import BlockCounters
from .._records.json_codec import dumps, plain
from .._records.metrics import GpuMetrics
from .._records.records import BlockRecord, ComputeBlock, GpuAllocation, Syscall
from .._records.work import WorkKind
from ..analysis.counters import BlockShares, block_shares
from ..analysis.facts import Finding
from ..analysis.operation import Operation
from ..analysis.program import Phase
from ..analysis.summary import BlockOperation
from ..session import Session
from .spans import Span

_LIBRARIES = ("pandas", "polars")
#: What has rows of the table of all work, by the name that a program asks for.
_WORK = {"kernels": "kernel", "transfers": "transfer", "memsets": "memset", "syncs": "sync"}
#: Records of the host and of memory.
_RECORDS: dict[str, Any] = {
    "passes": BlockRecord,
    "compute_blocks": ComputeBlock,
    "allocations": GpuAllocation,
    "syscalls": Syscall,
    "block_counters": BlockCounters,
}
#: What a session concludes: the class of the rows, and what gives them.
_ANSWERS: dict[str, tuple[Any, Callable[[Session], Sequence[Any]]]] = {
    "operations": (Operation, Session.operations),
    "blocks": (BlockOperation, Session.block_table),
    "counters": (BlockShares, lambda session: session.once(block_shares)),
    "phases": (Phase, lambda session: session.phases),
    "findings": (Finding, Session.findings),
    "timeline": (Span, Session.timeline),
}
KINDS = (*_ANSWERS, *_WORK, *_RECORDS, "metrics", "counter_samples")


def dataframe(session: Session, kind: str) -> Any:
    """A frame whose rows are what ``kind`` says, one of :data:`KINDS`."""
    if kind not in KINDS:
        raise ValueError(f"to_dataframe() knows no {kind!r}; there are {', '.join(KINDS)}")
    library = _library()
    if kind in _WORK:
        columns = _work(session, _WORK[kind])
    elif kind == "metrics":
        columns = _metrics(session)
    elif kind == "counter_samples":
        columns = _counter_samples(session)
    elif kind in _RECORDS:
        columns = _rows(_RECORDS[kind], [record for record in session.records if type(record) is _RECORDS[kind]])
    else:
        of, rows = _ANSWERS[kind]
        columns = _rows(of, rows(session))
    made = _pandas if library.__name__ == "pandas" else _polars
    return made(library, columns)


def _library() -> Any:
    """The one that the program uses already, else the one that is installed."""
    for name in _LIBRARIES:
        if sys.modules.get(name) is not None:
            return sys.modules[name]
    for name in _LIBRARIES:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:  # noqa: PERF203 - one of two
            if error.name != name:  # it is there, and what it needs is not
                raise
    raise ModuleNotFoundError(
        "to_dataframe() needs pandas or polars, and neither is installed: pip install pandas", name="pandas"
    )


def _rows(of: Any, rows: Sequence[Any]) -> dict[str, list[Any]]:
    names = [*of._fields]
    if "duration_ns" not in names and hasattr(of, "duration_ns"):
        names.insert(names.index("end_ns") + 1, "duration_ns")
    return {name: [_cell(name, getattr(row, name)) for row in rows] for name in names}


def _work(session: Session, kind: str) -> dict[str, list[Any]]:
    work, wanted = session.work, [one.kind == kind for one in session.work.kinds]
    at = [row for row, number in enumerate(work.kind) if wanted[number]]
    start, end = [work.start[row] for row in at], [work.end[row] for row in at]
    columns: dict[str, list[Any]] = {
        "start_ns": start,
        "end_ns": end,
        "duration_ns": [last - first for first, last in zip(start, end, strict=True)],
    }
    for name in WorkKind._fields:
        if name != "kind":
            cells = [_cell(name, getattr(one, name)) for one in work.kinds]
            columns[name] = [cells[work.kind[row]] for row in at]
    paths = [_cell("path", path) for path in work.paths]
    columns["path"] = [paths[work.path[row]] for row in at]
    columns["bytes"] = [work.size[row] for row in at]
    columns["correlation_id"] = [work.order[row] or None for row in at]
    return columns


def _metrics(session: Session) -> dict[str, list[Any]]:
    """A row a sample, groups as "power.draw_watts"; lists of processes and reasons are left out."""
    names = [f"device.{name}" for name in ("name", "uuid", "index")]
    for name, empty in GpuMetrics._field_defaults.items():
        if hasattr(empty, "_fields"):
            names += [f"{name}.{field}" for field in empty._fields]
        elif name not in ("processes", "instances", "reasons"):
            names.append(name)
    names[3:3] = ["time_ns", "monotonic_ns"]
    return {name: [_cell(name, value) for value in map(attrgetter(name), session.metrics)] for name in names}


def _counter_samples(session: Session) -> dict[str, list[Any]]:
    """Column by column: there are some hundred thousand rows."""
    columns: dict[str, list[Any]] = {name: [] for name in ("device", "start_ns", "end_ns", "duration_ns", *FIELDS)}
    for part in session.counter_samples.parts():
        columns["device"] += [part.device] * len(part)
        columns["start_ns"] += part.start
        columns["end_ns"] += part.end
        columns["duration_ns"] += map(sub, part.end, part.start)
        for name in FIELDS:
            values = part.column(name)
            columns[name] += [None] * len(part) if values is None else (None if one != one else one for one in values)
    return columns


def _cell(name: str, value: Any) -> Any:
    """``value`` as one thing: paths are "step/forward", sentences a text; what else has parts is JSON."""
    if value is None or type(value) in (int, float, str, bool):
        return value
    if name in ("path", "owner"):
        return "/".join(value)
    if name == "evidence":
        return " ".join(value)
    return dumps(plain(value))


def _pandas(pandas: Any, columns: dict[str, list[Any]]) -> Any:
    """Whole numbers of which some are not known stay whole numbers: as floats, large ones would lose digits."""
    return pandas.DataFrame(
        {
            name: pandas.array(values, dtype="Int64") if {*map(type, values)} == {int, NoneType} else values
            for name, values in columns.items()
        }
    )


def _polars(polars: Any, columns: dict[str, list[Any]]) -> Any:
    return polars.DataFrame(columns, strict=False)
