"""What sessions call their kernels: their labels, and more of the name where two kernels would be called the same."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._decode.labels import distinct, label
from .._records.records import GpuKernel
from ._session import Session

#: Name and full name → what to call it instead.
_Changes = dict[tuple[str, str], str]


def tell_apart(session: Session) -> None:
    """Renames kernels of ``session``, kept and summed up, so that no two full names share a name.

    What analyses and reports group by name is then grouped by full name. A session that is loaded again keeps its
    names. Names of older versions, which had no arguments, stay: their sums do not say which full name they are of.
    """
    if changes := _changes([session]):
        session.records[:] = _renamed(session.records, changes)
        session.aggregates[:] = _renamed(session.aggregates, changes)
        if session.has_work:
            session.take_work(session.work.renamed(changes))


def alike(sides: Sequence[Sequence[Session]]) -> list[list[Session]]:
    """The same sessions, in which a kernel of one full name has one name in all of them; as they are where it has."""
    changes = _changes([session for side in sides for session in side])
    return [[_renamed_copy(session, changes) if changes else session for session in side] for side in sides]


def _renamed_copy(session: Session, changes: _Changes) -> Session:
    fields = {name: getattr(session, name) for name in Session.__slots__ if not name.startswith("_")}
    for name in ("records", "aggregates"):
        fields[name] = _renamed(fields[name], changes)
    return Session(**fields, work=session.work.renamed(changes) if session.has_work else None)


def _changes(sessions: Iterable[Session]) -> _Changes:
    given = {(row.name, row.full_name) for session in sessions for row in _kernels(session)}
    called = distinct(full for _, full in given)
    return {(name, full): called[full] for name, full in given if called[full] != name and _is_label(name, full)}


def _kernels(session: Session) -> Iterator[Any]:
    """Rows that have a full name."""
    yield from (row for row in session.records if type(row) is GpuKernel and row.full_name)
    yield from (row for row in session.aggregates if row.full_name)
    yield from (row for row in session.work.kinds if row.full_name) if session.has_work else ()


def _renamed(rows: list[Any], changes: _Changes) -> list[Any]:
    names = [changes.get((row.name, getattr(row, "full_name", None))) for row in rows]  # type: ignore[arg-type]
    return [row if name is None else row._replace(name=name) for row, name in zip(rows, names, strict=True)]


def _is_label(name: str, full_name: str) -> bool:
    return name == label(full_name) or any(sign in name for sign in ("<", "::", " #"))
