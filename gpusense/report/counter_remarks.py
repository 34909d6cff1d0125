"""What a reader of shares by block should know of the samples that they are from, in sentences."""

from collections.abc import Iterator

from .._records.device_identity import device_text
from .._runtime.text import count_text, one_line, time_text
from ..analysis.counter_sampling import missing_text, since_text
from ..analysis.counters import BlockShares, block_shares, samplings_moved, shares_over
from ..analysis.program import STEADY
from ..session import Session
from .divisions import divisions_of, phase_text

_MOST_NAMES, _MOST_REASONS = 4, 3
_ALL = "(all work)"


def told_shares(session: Session) -> list[BlockShares]:
    """The rows of "Counters by block": of the steps, of all work, and of each block of which something is known."""
    rows = session.once(block_shares)
    shown = [row if row.path else row._replace(path=(_ALL,)) for row in rows if row.reason is None or not row.path]
    return [*_of_steps(session), *shown]


def _of_steps(session: Session) -> Iterator[BlockShares]:
    """Of each device the time that the headline's shares are of."""
    for (root, (backend, device)), views in divisions_of(session).views.items():
        for view in views:
            if view.name == STEADY and backend == "cuda" and device is not None:
                name = f"(all {phase_text(STEADY, view.program.steps)})"
                row = shares_over(session, device, view.spans, (name,) if root is None else (root, name))
                if row is not None:
                    yield row


def remarks(session: Session) -> list[str]:
    """How each device was sampled, what is missing, and which blocks are not shown."""
    found, rows = [], session.once(block_shares)
    steps = dict.fromkeys(row.path[-1] for row in _of_steps(session))
    if steps:
        found.append(
            f"{', '.join(steps)}: the time of the steps, as in the headline. {_ALL}: from the device's first work to "
            "its last, with start-up and all pauses."
        )
    for one in samplings_moved(session):
        device = device_text(session.devices, "cuda", one.device)
        error = "an unknown time" if one.clock_error_ns is None else time_text(one.clock_error_ns)
        begin, end = (since_text(session, at) for at in (one.start_ns, one.end_ns))
        found.append(
            f"{device}: {count_text(one.samples, 'sample')} of {time_text(one.interval_ns)}, from {begin} to {end} "
            f"after the start; their times may be off by {error}."
        )
        missing = missing_text(session, one)
        found += [f"{device}: {missing}."] if missing else []
        found += _hidden(device, [row for row in rows if row.device == one.device])
    return found


def _hidden(device: str, rows: list[BlockShares]) -> Iterator[str]:
    """Which blocks have no figures and why."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.reason is not None:
            reasons.setdefault(row.reason, []).append(one_line(" › ".join(row.path)) if row.path else _ALL)
    told = [*reasons.items()]
    blocks = sum(bool(row.path) for row in rows)
    for reason, names in told[:_MOST_REASONS]:
        more = f" and {count_text(len(names) - _MOST_NAMES, 'more block')}" if len(names) > _MOST_NAMES else ""
        which = ", ".join(names[:_MOST_NAMES]) + more
        if len(names) == blocks > _MOST_NAMES and _ALL not in names:
            which = f"all {blocks} blocks"
        yield f"{device}, not shown: {which}. {reason[:1].upper()}{reason[1:]}."
    left = sum(len(names) for _, names in told[_MOST_REASONS:])
    if left:
        yield f"{device}, not shown either: {count_text(left, 'more block')}; the JSON report says why."
    if any(row.by == "host" for row in rows):
        yield (
            f"{device}: its work was not recorded, so a block has the time in which the program was in it. What the "
            "device does later counts for the block that is open then."
        )
