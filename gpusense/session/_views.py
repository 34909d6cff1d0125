"""What a session answers of itself: the one module of its room that asks the rooms above, analysis and report.

They are imported when they are asked, so that writing and reading files loads none of them; what a copy for libraries
comes without, by name. Nobody but ``_session`` calls in here; ADR 33 has the reasons.
"""

import io
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._runtime import package
from .._runtime.tables import Table

if TYPE_CHECKING:
    from .. import BlockOperation, Finding, Operation, Phase, Session, Span, Steps, TraceSummary


def summary(session: "Session") -> "TraceSummary":
    from ..analysis.summary import TraceSummary

    return session.once(TraceSummary.of)


def findings(session: "Session") -> "tuple[Finding, ...]":
    from ..analysis.facts import Findings
    from ..analysis.findings import findings

    return Findings(session.once(findings))


def phases(session: "Session") -> "tuple[Phase, ...]":
    from ..analysis.facts import Facts

    return Table(phase for program in session.once(Facts).programs for phase in program.phases)


def steps(session: "Session") -> "Steps | None":
    from ..analysis.facts import Facts

    return next((one.steps for one in session.once(Facts).programs if one.steps is not None), None)


def block_table(session: "Session") -> "tuple[BlockOperation, ...]":
    from ..analysis.summary import block_operations

    return Table(session.once(block_operations))


def operations(session: "Session") -> "tuple[Operation, ...]":
    from ..report.divisions import operations_of

    return Table(session.once(operations_of))


def timeline(session: "Session") -> "tuple[Span, ...]":
    from ..report.spans import spans

    made = Timeline(spans(session))
    made.session = session
    return made


class Timeline(Table[Any]):
    """Spans, which a notebook draws."""

    session: "Session"

    def _repr_html_(self) -> str:
        return str(_renderer("notebook").frame(self.session))


def to_dict(session: "Session") -> dict[str, Any]:
    from ..report import json

    return json.to_dict(session)


def to_html(session: "Session", path: Any) -> str | None:
    target = io.StringIO() if path is None else path
    _renderer("html.page").write(session, target)
    return target.getvalue() if path is None else None


def to_perfetto(session: "Session", path: Any) -> bytes | None:
    target = io.BytesIO() if path is None else path
    _renderer("perfetto").write(session, target)
    return target.getvalue() if path is None else None


def to_dataframe(session: "Session", kind: str) -> Any:
    return _renderer("frames").dataframe(session, kind)


def save(session: "Session", path: Any) -> None:
    _renderer("forms").save(session, path)


def answer(session: "Session") -> str | None:
    """For a notebook; None in a copy that comes without."""
    try:
        return str(_renderer("notebook").answer(session))
    except ModuleNotFoundError:
        return None


def answer_lines(session: "Session") -> list[str]:
    """The same as text."""
    try:
        return list(_renderer("notebook").lines(session))
    except ModuleNotFoundError:
        return [repr(session)]


def _renderer(name: str) -> Any:
    """A module of ``report``; those that write pages are left out of a copy for libraries, which is said."""
    try:
        return import_module(f"..report.{name}", __package__)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(package.NAME):
            raise
        raise ModuleNotFoundError(f"this copy of the package comes without report/{name}", name=error.name) from None
