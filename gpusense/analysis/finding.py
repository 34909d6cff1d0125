"""What a run's records say, as sentences with numbers, ranked by the time each could save."""

from typing import NamedTuple

from ..session import Session


class Finding(NamedTuple):
    """One observation. ``saving_ns`` is an upper bound of device or wall time it could give back, None if unknown."""

    kind: str  # "launch_bound", "nothing_seen", "pageable_copies", …
    title: str  # one sentence
    evidence: tuple[str, ...]  # with numbers and units
    fix: str
    confidence: str  # "high", "medium", "low"
    saving_ns: int | None = None


def findings(session: Session) -> list[Finding]:
    """Findings, what could save most first; what invalidates the rest (nothing seen, data lost) before everything."""
    return []


def verdict(session: Session) -> Finding:
    """The one finding to act on. Always one: a run without a problem has a finding that says so."""
    found = findings(session)
    return found[0] if found else Finding("nothing", "Nothing was recorded.", (), "", "low")
