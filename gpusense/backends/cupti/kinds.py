"""Which of CUPTI's kinds of records are on: those that some member wants, but for those that are paused just now.

A kind is *paused* while it is off although it is wanted, because a member wants to see a part of the time only. The
lock is the hub's, and never held while CUPTI is called.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Protocol

from ..._decode import layouts
from ..._runtime import log
from ..._runtime.errors import BackendError

MAX_PAUSES = 1_000  # remembered for members that look late

#: What a member asks of all and reports to them, as builtins that it changes in place; see ``sharing``. A member
#: without is of a version that does not look at those of others.
Wants = dict[str, Any]
#: Nanoseconds since the epoch, the second None while it lasts; and the wants of who asked for it.
Pause = tuple[int, int | None, Wants | None]


class Switches(Protocol):
    """Where kinds are switched. Calls that CUPTI refuses raise :class:`BackendError`."""

    def enable(self, kind: int) -> None: ...
    def disable(self, kind: int) -> None: ...


class Kinds:
    """Kinds counted by the members that want them. ``lock`` guards them, what is paused, and who the members are."""

    def __init__(self, switches: Switches, lock: Any) -> None:
        self.lock = lock
        self.refused: dict[int, str] = {}  # and what CUPTI said
        self.lasting: Pause | None = None  # the one that lasts
        self.interrupted = False  # whether work of the device went unrecorded since CUPTI came into the process
        self._switches = switches
        self._wanted: Counter[int] = Counter()
        self._paused: frozenset[int] = frozenset()
        self._pauses: deque[Pause] = deque(maxlen=MAX_PAUSES)
        self._pause_count = 0

    def wanted(self) -> list[int]:
        """Kinds that some member wants."""
        return sorted(self._wanted)

    # --- members come and go ----------------------------------------------------------------------------------------

    def claim(self, kinds: frozenset[int]) -> None:
        """Switches on what a new member is the first to want. Raises :class:`BackendError` where kernels are refused,
        or everything; the member has to be released then, too."""
        with self.lock:
            new = sorted(kind for kind in kinds if not self._wanted[kind])
            self._wanted.update(kinds)
        errors: dict[int, BackendError] = {}
        for kind in new:
            try:
                self._switches.enable(kind)
                self.refused.pop(kind, None)
            except BackendError as error:  # noqa: PERF203 - a handful of kinds
                errors[kind] = error
        for kind, refusal in errors.items():
            self.refused[kind] = str(refusal)
            if kind == layouts.CONCURRENT_KERNEL or len(errors) == len(kinds):
                raise refusal

    def release(self, kinds: frozenset[int]) -> list[int]:
        """A member goes; gives what nobody wants any more, for :meth:`switch_off`. The caller holds the lock."""
        self._wanted.subtract(kinds)
        unused = [kind for kind in kinds if self._wanted[kind] <= 0]
        self._paused -= frozenset(unused)
        self._wanted += Counter()  # drops what fell to zero
        return unused

    def switch_off(self, unused: list[int]) -> None:
        """Kinds that nobody wants any more."""
        for kind in unused:
            if kind not in self.refused:
                self._disable(kind)
        self._renew_beside(unused)

    def switch_all_on(self) -> None:
        """After another profiler had CUPTI: nothing is paused. Raises :class:`BackendError` where CUPTI refuses."""
        with self.lock:
            kinds = self.wanted()
            self._paused = frozenset()
            self._end_pause()
        for kind in kinds:
            if kind not in self.refused:
                self._switches.enable(kind)

    # --- pauses -----------------------------------------------------------------------------------------------------

    def begin_pause(self, kinds: frozenset[int]) -> frozenset[int]:
        """From now on ``kinds`` are to be paused, and no others; gives what that changes, for :meth:`follow_pause`. The
        caller holds the lock."""
        paused = kinds & frozenset(self._wanted)
        changed, self._paused = paused ^ self._paused, paused
        return changed

    def follow_pause(self, changed: frozenset[int], began_ns: int, by: Wants | None) -> None:
        """Switches what changed, and remembers the pause or its end."""
        self._apply(changed)
        with self.lock:
            if not self._paused:
                self._end_pause()
            elif self.lasting is None:
                self.lasting = began_ns, None, by

    def pauses(self, after: int) -> tuple[int, list[Pause], Pause | None]:
        """How many pauses have ended so far, those after the first ``after``, and the one that lasts."""
        with self.lock:
            fresh = min(self._pause_count - after, len(self._pauses))
            return self._pause_count, list(self._pauses)[-fresh:] if fresh > 0 else [], self.lasting

    def _end_pause(self) -> None:
        if self.lasting is not None:
            self._pauses.append((self.lasting[0], time.time_ns(), self.lasting[2]))
            self._pause_count += 1
            self.lasting = None

    # --- switching --------------------------------------------------------------------------------------------------

    def _apply(self, kinds: frozenset[int]) -> None:
        """Kinds on or off as they are to be by now: another thread may want the opposite meanwhile. One that cannot be
        switched on stays paused."""
        for kind in sorted(kinds):
            off = None
            while off != (kind in self._paused):
                off = kind in self._paused
                if off:
                    self._disable(kind)
                elif self._wanted[kind] and kind not in self.refused and not self._enable(kind):
                    self._paused |= {kind}
                    break
        self._renew_beside(kinds & self._paused)

    def _renew_beside(self, disabled: Iterable[int]) -> None:
        """Off and on again what CUPTI may have ended together with ``disabled``."""
        ended = layouts.TIED_KINDS.intersection(disabled)
        for kind in layouts.TIED_KINDS - ended if ended else ():
            if self._wanted[kind] and kind not in self.refused and kind not in self._paused:
                self._disable(kind)
                self._apply(frozenset((kind,)))

    def _enable(self, kind: int) -> bool:
        try:
            self._switches.enable(kind)
        except BackendError as error:
            log.debug("%s", error)
            return False
        return True

    def _disable(self, kind: int) -> None:
        self.interrupted |= kind in layouts.DEFAULT_KINDS
        try:
            self._switches.disable(kind)
        except BackendError as error:
            log.debug("%s", error)
