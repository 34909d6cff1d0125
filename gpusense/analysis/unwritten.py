"""What should be in a session and is not: what did not get into its file, and what could not be recorded."""

from .._records import Counters
from ..session import Session
from .words import count_text, size_text


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
        return "after an error"  # which is named as damage
    if end.get("capped_at_ns") is not None:
        return "beyond the file's cap"
    return "not in the file"


def absent_text(counters: Counters) -> str:
    """What the program made itself and is not here; empty where nothing is missing."""
    rows = (
        (counters.failed_blocks + counters.shed_blocks, "block"),
        (counters.ignored_records, "record given by hand", "records given by hand"),
    )
    return " and ".join(count_text(*row) for row in rows if row[0])
