"""The ranked findings of a run, and the one to act on."""

from collections.abc import Callable, Iterator

from .._records.records import LOADER
from .._runtime.text import count_text, percent_text
from ..session import Session
from . import rules_data, rules_device, rules_host, rules_ranks
from .facts import Facts, Finding

#: What makes other findings worthless comes first whatever it could save.
_FIRST = ("hang", "waited", "nothing_seen", "capture_off", "damaged", "block_times")
#: What is worth knowing and nothing to act on comes last.
_LAST = ("copies_only", "nothing_to_gain")
#: What is said where nothing is wrong that is worth a tenth of a step, and nowhere else.
_ALONE = ("nothing_to_gain", "device_bound")
#: Beside a start-up that takes most of the run, less than this share of the steps is not the first thing to say.
_MUCH = 0.1
#: A start-up that is so much of the run comes before all that could be saved in the rest.
_NEARLY_ALL = 0.97
#: What happens once is the first thing to say where it is so much of the loop's time.
_MOST = 0.5
#: What follows from another finding, and is not said beside it, unless it is twice as much or a DataLoader's doing.
_EXPLAINS = {
    "shared_device": ("starved", "launch_bound", "periodic_stall", "no_demand", "anomalies", "nothing_to_gain"),
    "late_rank": (
        "starved",
        "synchronising_call",
        "launch_bound",
        "exposed_collectives",
        "periodic_stall",
        "no_demand",
        "anomalies",
    ),
    "slow_links": ("exposed_collectives",),
    "devices_take_turns": ("starved", "synchronising_call", "launch_bound", "imbalance", "nothing_to_gain"),
}
_NOTES = (
    *("anomalies", "damaged_in_part", "capture_off_in_part", "data_lost", "untimed", "left_out", "ambiguous"),
    "memory_full",
)

#: Of what is as grave the first one is said first: who did not come, before whose device hung.
_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    *rules_ranks.RULES,
    *rules_data.RULES,
    *rules_host.RULES,
    *rules_device.RULES,
)


def findings(session: Session) -> list[Finding]:
    """Findings, what could save most first; what invalidates the others (nothing seen, a hang) before everything."""
    return ranked(session.once(Facts))


def ranked(facts: Facts) -> list[Finding]:
    """What :func:`findings` gives, for a caller that has :class:`Facts` already."""
    found = sorted((_named(finding) for rule in _RULES for finding in rule(facts)), key=_rank)
    found = _one_for_all(found)
    for cause, explained in _EXPLAINS.items():
        share = max((one.share or 0.0 for one in found if one.kind == cause), default=0.0)
        if share >= _MUCH:
            found = [
                one
                for one in found
                if one.kind not in explained or (one.share or 0.0) > 2 * share or LOADER in one.where
            ]
    return [finding for finding in found if finding.kind not in _ALONE or found[0] is finding] or found


def _named(finding: Finding) -> Finding:
    """Of a merged session the title names the process, with its device."""
    process, _, device = finding.device.rpartition(" · ")
    if not process:
        return finding
    name, title = finding.device[:1].upper() + finding.device[1:], finding.title
    own = title.startswith(f"{device} ")
    return finding._replace(title=name + title[len(device) :] if own else f"{name}: {title}")


#: The loop stops, once or often: what one rank meets once, another may meet in pieces.
_SAME = {"interruption": "periodic_stall"}


def _one_for_all(found: list[Finding]) -> list[Finding]:
    """The same cause on several devices, or in several ranks of a job, is one finding: where it costs most."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for one in found:
        kind = _SAME.get(one.kind, one.kind)
        alike.setdefault((kind, one.phase, "" if kind == "startup" else one.fix), []).append(one)
    joined = []
    for first, *others in alike.values():
        shares = ", ".join(percent_text(one.share) for one in others[:8] if one.share is not None)
        more = f"The same on {count_text(len(others), 'other device or rank', 'other devices or ranks')}: {shares}."
        joined.append(first._replace(evidence=(*first.evidence, more)) if shares else first)
        joined += [] if shares else others
    return sorted(joined, key=_rank)


def verdict(session: Session) -> Finding:
    """The one finding to act on. There always is one: a run without a problem has a finding that says so."""
    return findings(session)[0]


def _rank(finding: Finding) -> tuple[int, float, int]:
    """What can be saved in the phase that matters comes first; then a start-up that takes most of the run, what is
    little, and what is no fault. Within these by share, and then by time."""
    if finding.kind in _FIRST:
        return _FIRST.index(finding.kind) - len(_FIRST), 0.0, 0
    if finding.kind == "device_bound":  # before what is little
        return 2, -1.0, 0
    if finding.kind in _NOTES:
        tier = 5
    elif finding.kind in _LAST:
        tier = 3 + _LAST.index(finding.kind)
    elif finding.kind == "startup":
        tier = 0 if (finding.share or 0.0) >= _NEARLY_ALL else 1 if finding.saving_ns else 5
    elif finding.kind == "interruption":  # of which nobody knows how often a longer run has it
        share = finding.share or 0.0
        tier = 0 if share >= _MOST else 1
        if share < 2 * _MUCH:
            return 2, 0.0, 0
    else:
        tier = 0 if finding.share is not None and finding.share >= _MUCH else 2
    first = finding.kind in ("late_rank", "slow_links") and tier == 0  # before what else costs time on each rank
    return tier, -(finding.share or 0.0) - first, -(finding.saving_ns or 0)
