"""What a session answers of itself: the one module of its room that asks the rooms above, analysis and report.

They are imported when they are asked, so that writing and reading files loads none of them. Nobody but ``_session``
calls in here; ADR 33 has the reasons.
"""

import io
from typing import TYPE_CHECKING, Any

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
    from ..report.notebook import Timeline
    from ..report.spans import spans

    return Timeline(spans(session), session)


def to_dict(session: "Session") -> dict[str, Any]:
    from ..report import json

    return json.to_dict(session)


def to_html(session: "Session", path: Any) -> str | None:
    from ..report.html import page

    target = io.StringIO() if path is None else path
    page.write(session, target)
    return target.getvalue() if path is None else None


def to_perfetto(session: "Session", path: Any) -> bytes | None:
    from ..report import perfetto

    target = io.BytesIO() if path is None else path
    perfetto.write(session, target)
    return target.getvalue() if path is None else None


def to_dataframe(session: "Session", kind: str) -> Any:
    from ..report.frames import dataframe

    return dataframe(session, kind)


def save(session: "Session", path: Any) -> None:
    from ..report.forms import save

    save(session, path)


def answer(session: "Session") -> str:
    from ..report import notebook

    return notebook.answer(session)


def answer_lines(session: "Session") -> list[str]:
    from ..report import notebook

    return notebook.lines(session)
