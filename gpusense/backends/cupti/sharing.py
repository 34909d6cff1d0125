"""What the copies of gpusense in one process have in common, beside the buffers, and how they come to terms. Pure.

Each copy has a dict of builtins that the others read: what it wants of all (``overhead_budget``: the smallest holds;
``buffer_bytes``: the smallest holds) and what it reports (``spent_ns``: CPU time of its own threads since it joined;
``kinds``; ``marker_stream`` and ``marker_context``: where its blocks are marked). ``follow(resumes, reason)`` is called
as another copy gives CUPTI up to another profiler, or takes it up again. A copy that is alone agrees with itself.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..._aggregation.markers import OwnStream
from ..._decode import layouts
from ..._runtime.clock import SESSION


class Agreement(NamedTuple):
    """``budget``: the smallest of all, None: no limit. ``spent_ns``: CPU time of all copies and of the thread that they
    share. ``leads``: this copy switches capture on and off for all."""

    budget: float | None
    spent_ns: int
    leads: bool


class Pause(NamedTuple):
    """Capture was off, or still is where ``end_ns`` is None, because of a budget. By the session's clock."""

    start_ns: int
    end_ns: int | None
    ours: bool  # on behalf of this copy


class Sharing:
    """One copy's part. Used by its recording thread, but for :attr:`others_markers`."""

    def __init__(self) -> None:
        self._wants: dict[str, Any] = {}
        self._shared: dict[str, Any] = {}
        self._pauses = 0  # so many have been reported
        self._spent_before_ns: int | None = None

    def begin(self, kinds: Iterable[int], buffer_bytes: int) -> dict[str, Any]:
        """What this copy wants as it joins."""
        self._spent_before_ns = None
        self._wants.update(kinds=sorted(kinds), buffer_bytes=buffer_bytes, spent_ns=0)
        return self._wants

    def met(self, shared: dict[str, Any]) -> None:
        """This copy has joined; what was off before is not reported to it."""
        self._shared = shared
        pauses = shared.get("pauses")
        self._pauses = pauses(0)[0] if pauses is not None else 0

    def marks(self, context: int | None, stream: int | None) -> None:
        """On which stream this copy marks its blocks, for the others; None: on none of its own. ``context``: where
        that is known."""
        self._wants.update(marker_context=context, marker_stream=stream)

    def _everyone(self) -> list[dict[str, Any]]:
        wants: Callable[[], list[dict[str, Any]]] | None = self._shared.get("wants")
        return [known for known in wants() if known is not self._wants] if wants is not None else []

    @property
    def others_markers(self) -> frozenset[OwnStream]:
        """Where other copies mark their blocks: no work of the program."""
        found = ((known.get("marker_context"), known.get("marker_stream")) for known in self._everyone())
        return frozenset((context, stream) for context, stream in found if stream is not None)

    @property
    def alone(self) -> bool:
        """Whether no other copy captures."""
        return not self._everyone()

    # --- the budget -------------------------------------------------------------------------------------------------

    def agree(self, budget: float | None, spent_ns: int) -> Agreement:
        """Of all copies. ``budget`` and ``spent_ns``: this copy's own, and the CPU time of its own threads so far."""
        if self._spent_before_ns is None:
            self._spent_before_ns = spent_ns
        self._wants.update(overhead_budget=budget, spent_ns=spent_ns - self._spent_before_ns)
        wants = self._shared.get("wants")
        everyone = wants() if wants is not None else []
        if not any(known is self._wants for known in everyone):  # not there, or not any more
            everyone = [self._wants]
        smallest = min((share for known in everyone if (share := known.get("overhead_budget"))), default=None)
        leader = next((known for known in everyone if known.get("overhead_budget") == smallest), None)
        drain = self._shared.get("cpu_ns")
        spent = sum(known.get("spent_ns") or 0 for known in everyone) + (drain() if drain is not None else 0)
        return Agreement(smallest, spent, leader is self._wants)

    def pause_kinds(self, wanted: bool) -> bool:
        """Records of work off or on for all copies, while markers of blocks go on; False where that is not possible:
        where another profiler has CUPTI, or a copy would not know of it."""
        change = self._shared.get("pause_kinds")
        if change is None or "pauses" not in self._shared:
            return False
        kinds = {kind for known in (self._wants, *self._everyone()) for kind in known.get("kinds", ())}
        return bool(change(kinds - {layouts.MEMSET} if wanted else (), self._wants))

    def pauses(self) -> tuple[list[Pause], Pause | None]:
        """What ended since the last call, and what lasts."""
        pauses = self._shared.get("pauses")
        if pauses is None:
            return [], None
        self._pauses, ended, lasting = pauses(self._pauses)
        mine, of = self._wants, SESSION.of_wall  # copies tell each other what the wall clock said
        return (
            [Pause(of(start), of(end), by is mine) for start, end, by in ended],
            Pause(of(lasting[0]), None, lasting[2] is mine) if lasting is not None else None,
        )
