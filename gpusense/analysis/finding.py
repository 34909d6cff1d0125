"""What an analysis concludes: one sentence, its evidence, a fix."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One observation. ``saving_ns`` is an upper bound of the time acting on it could give back; None if unknown."""

    kind: str  # "launch_bound", "nothing_seen", "pageable_copies", …
    title: str  # one sentence
    evidence: tuple[str, ...]  # with numbers and units
    fix: str
    confidence: str  # "high", "medium", "low"
    saving_ns: int | None = None
