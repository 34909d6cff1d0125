"""The same operation on several backends or devices, side by side."""

from typing import NamedTuple

from ..session import Session
from .operation import Operation, operations


class SideBySide(NamedTuple):
    """One operation wherever it ran, fastest first."""

    kind: str
    name: str
    sides: tuple[Operation, ...]

    @property
    def ratio(self) -> float | None:
        """Average of the slowest side over that of the fastest."""
        fastest = self.sides[0].avg_ns
        return self.sides[-1].avg_ns / fastest if fastest else None


def side_by_side(session: Session, table: list[Operation] | None = None) -> list[SideBySide]:
    """Operations that ran on more than one backend or device, heaviest first.

    Kernels go by name and copies by direction; compute blocks count as the CPU's version of a kernel of that name.
    """
    groups: dict[tuple[str, str], list[Operation]] = {}
    for row in operations(session) if table is None else table:
        kind = "kernel" if row.kind == "compute" else row.kind
        if kind in ("kernel", "transfer", "memset"):
            groups.setdefault((kind, row.direction or row.name), []).append(row)
    found = [
        SideBySide(kind, name, tuple(sorted(rows, key=lambda row: row.avg_ns)))
        for (kind, name), rows in groups.items()
        if len({(row.backend, row.device) for row in rows}) > 1
    ]
    return sorted(found, key=lambda pair: -sum(row.total_ns for row in pair.sides))
