"""What did not get into the session file, with the reason."""

from ..session import Session
from .words import size_text


def unwritten(session: Session) -> list[str]:
    """ "1.50 MB beyond the file's cap" and the like; empty where all was written."""
    counters = session.counters
    found = [
        (counters.bytes_dropped - counters.bytes_too_long, _why(session)),
        (counters.bytes_too_long, "too long for one chunk of the file"),
    ]
    return [f"{size_text(size)} {why}" for size, why in found if size > 0]


def _why(session: Session) -> str:
    end = session.meta.get("file") or {}
    if end.get("failure"):
        return f"after writing had ended: {end['failure']}"
    if end.get("capped_at_ns") is not None:
        return "beyond the file's cap"
    return "not in the file"
