"""The ranked findings of a run, and the one to act on."""

from collections.abc import Callable, Iterator

from ..session import Session
from . import rules_data, rules_device, rules_host
from .facts import Facts, Finding

#: What makes other findings worthless comes first whatever it could save.
_FIRST = ("hang", "nothing_seen", "capture_off", "damaged")
#: What is worth knowing and nothing to act on comes last.
_NOTES = ("capture_off_in_part", "data_lost", "untimed", "left_out", "ambiguous", "memory_full")

_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    *rules_data.RULES,
    *rules_host.RULES,
    *rules_device.RULES,
)


def findings(session: Session) -> list[Finding]:
    """Findings, what could save most first; what invalidates the others (nothing seen, a hang) before everything."""
    return ranked(Facts(session))


def ranked(facts: Facts) -> list[Finding]:
    """What :func:`findings` gives, for a caller that has :class:`Facts` already."""
    return sorted((finding for rule in _RULES for finding in rule(facts)), key=_rank)


def verdict(session: Session) -> Finding:
    """The one finding to act on. There always is one: a run without a problem has a finding that says so."""
    return findings(session)[0]


def _rank(finding: Finding) -> tuple[int, int, bool]:
    first = _FIRST.index(finding.kind) if finding.kind in _FIRST else len(_FIRST)
    return first, -(finding.saving_ns or 0), finding.kind in _NOTES
