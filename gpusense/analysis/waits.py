"""Waits of the host for the device, by the line of the program that made the call."""

from typing import NamedTuple

from .._records.records import GpuSync
from ..session import Session
from .operation import duration_ns

#: A stream waits there, not the host.
_NO_WAIT = "stream_wait_event"


class Wait(NamedTuple):
    """All waits from one line, those included that were only counted."""

    source_line: str | None  # "train.py:31 step"; None: not known
    count: int  # type: ignore[assignment]
    total_ns: int
    max_ns: int
    names: tuple[str, ...]  # "stream_synchronize", …

    @property
    def avg_ns(self) -> float:
        return self.total_ns / self.count if self.count else 0.0


def waits(session: Session) -> list[Wait]:
    """One row a line, by falling total time."""
    sums: dict[str | None, tuple[int, int, int, set[str]]] = {}

    def add(line: str | None, name: str, count: int, total: int, longest: int) -> None:
        before = sums.get(line, (0, 0, 0, set()))
        before[3].add(name)
        sums[line] = (before[0] + count, before[1] + total, max(before[2], longest), before[3])

    for record in session.records:
        if type(record) is GpuSync and record.name != _NO_WAIT:
            length = duration_ns(record)
            add(record.source_line, record.name, 1, length, length)
    for row in session.aggregates:
        if row.kind == "sync" and row.name != _NO_WAIT and row.count > 0:
            add(row.source_line, row.name, row.count, row.total_ns, row.max_ns)
    rows = [
        Wait(line, count, total, longest, tuple(sorted(names))) for line, (count, total, longest, names) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, -row.count, row.source_line is None, row.source_line or ""))


def lines_missing(session: Session) -> str:
    """Why lines that were asked for are not noted; "" where they are, or were not asked for."""
    noted = (session.meta.get("capture") or {}).get("sync_lines")
    if not isinstance(noted, dict) or noted.get("noted"):
        return ""
    return "" if noted.get("running") else str(noted.get("reason") or "")
