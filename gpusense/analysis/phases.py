"""First calls (compilation, autotuning, warm-up) apart from the steady state."""

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

from .._records.records import BlockRecord, Path
from ..session import Session
from .anomalies import median
from .calls import Calls, calls, duration_ns, grouped, ordered


class FirstCall(NamedTuple):
    """A first call that took at least twice as long as the later ones usually do."""

    kind: str
    name: str
    device: int | None
    first_ns: int
    steady_ns: float  # median of the later calls
    calls: int

    @property
    def excess_ns(self) -> int:
        return self.first_ns - round(self.steady_ns)


class WarmUp(NamedTuple):
    """The slow first passes of a repeated block."""

    path: Path
    passes: int  # how many came before the steady state
    of: int
    warm_up_ns: int  # their wall time
    steady_ns: float  # median wall time of a pass after them
    total_ns: int  # wall time of all passes
    until_ns: int  # when the last slow pass had ended

    @property
    def excess_ns(self) -> int:
        return self.warm_up_ns - round(self.steady_ns * self.passes)


def first_calls(
    session: Session, minimum_calls: int = 5, minimum_ns: int = 10_000, groups: list[Calls] | None = None
) -> list[FirstCall]:
    """Operations whose earliest kept call took ≥ 2 × the median of the later ones and ≥ ``minimum_ns`` more."""
    kept = [group for group in (calls(session) if groups is None else groups) if group.kind != "allocation"]
    found = []
    for (kind, name, _, device), same in grouped(kept, attrgetter("kind", "name", "backend", "device")).items():
        lengths = ordered(same)
        if len(lengths) < minimum_calls:
            continue
        _, first = min(group.first for group in same)
        place = bisect_left(lengths, first)
        steady = median(lengths[:place] + lengths[place + 1 :])
        if first >= 2 * steady and first - steady >= minimum_ns:
            found.append(FirstCall(kind, name, device, first, steady, len(lengths)))
    return sorted(found, key=lambda row: -row.excess_ns)


def warm_ups(session: Session, minimum_passes: int = 5) -> list[WarmUp]:
    """Blocks of at least ``minimum_passes`` passes whose first ones took ≥ 1.5 × the median of the second half."""
    passes: dict[Path, list[tuple[int, int]]] = {}
    for record in session.records:
        if type(record) is BlockRecord:
            passes.setdefault(record.path, []).append((record.start_ns, duration_ns(record)))
    found = []
    for path, spans in passes.items():
        if len(spans) < minimum_passes:
            continue
        spans.sort()
        lengths = [length for _, length in spans]
        steady = median(lengths[len(lengths) // 2 :])
        slow = 0
        while slow < len(lengths) // 2 and lengths[slow] >= 1.5 * steady:
            slow += 1
        if slow:
            found.append(
                WarmUp(path, slow, len(lengths), sum(lengths[:slow]), steady, sum(lengths), sum(spans[slow - 1]))
            )
    return sorted(found, key=lambda row: -row.excess_ns)
