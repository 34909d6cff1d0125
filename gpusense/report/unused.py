"""The answer to a run that used no GPU and recorded nothing: a line, for which no analysis is loaded."""

from .._records.records import BLOCKS, NO_GPU, NOT_USED, Counters
from .._runtime.text import time_text
from ..session import Session
from ..session._unrecorded import ENDED_BY
from . import identity
from .style import Style

#: Of ``meta``: where it has one of these there is more to say.
_TELLING = ("damage", "missing", "notes", "processes", "sources", "hang", "imported_from", ENDED_BY)


def answer(session: Session, style: Style) -> list[str]:
    """What :func:`~gpusense.report.text.summary` says of a session that is kept nowhere; empty where there may be more
    to say than that no GPU was used, and why."""
    meta = session.meta
    capture = meta.get("capture") or {}
    start = meta.get("program_start_ns") or meta.get("start_ns")
    end = meta.get("program_end_ns") or meta.get("end_ns")
    why = NOT_USED if capture.get("state") == "armed" else capture.get("reason")
    telling = any(map(meta.get, _TELLING)) or meta.get("only_devices") is not None or meta.get("complete") is False
    seen = capture.get("state") == BLOCKS or capture.get("cuda_live_ns") or "hardware_events" in capture
    if telling or seen or why not in (NO_GPU, NOT_USED):
        return []
    recorded = session.records or session.aggregates or len(session.work) or session.unseen or session.counter_samples
    if recorded or session.counters != Counters() or not (start and end and start < end):
        return []
    return head(session, end - start, why, style)


def head(session: Session, run_ns: int, why: str, style: Style) -> list[str]:
    """What ran, for how long, and why it did no work on a GPU."""
    parts = (identity.script(session.meta), time_text(run_ns or None))
    why += "; see gpusense doctor" if why == NO_GPU else ""
    return style.wrapped(f"gpusense: {' · '.join(filter(None, parts))} · no GPU work: {why}", paint="bold")
