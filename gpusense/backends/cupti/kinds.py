"""Which of CUPTI's kinds of records are on: those that some member wants, but for those that are paused just now.

A kind is *paused* while it is off although it is wanted, because a member wants to see a part of the time only. The
lock is the hub's, and never held while CUPTI is called. Whoever changes what is to be on has it switched by
:meth:`Kinds.settle`: one thread at a time is at it, and looks again after each call.
"""

import time
from collections import Counter, deque
from typing import Any, Protocol

from ..._decode import layouts
from ..._runtime import log, threads
from ..._runtime.errors import BackendError

MAX_PAUSES = 1_000  # remembered for members that look late
SWITCH_WAIT_S = 2.0  # for another thread that switches: CUPTI may not come back

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
        self.held = False  # by another profiler: nothing is switched
        self._switches = switches
        self._switching = threads.rlock()
        self._wanted: Counter[int] = Counter()
        self._paused: frozenset[int] = frozenset()
        self._on: set[int] = set()  # as we have switched them
        self._worked: set[int] = set()  # wanted ones that were on once
        self._ended: set[int] = set()  # on, but CUPTI may have ended them together with another
        self._errors: dict[int, BackendError] = {}
        self._pauses: deque[Pause] = deque(maxlen=MAX_PAUSES)
        self._pause_count = 0

    def wanted(self) -> list[int]:
        """Kinds that some member wants."""
        return sorted(self._wanted)

    # --- members come and go ----------------------------------------------------------------------------------------

    def change(self, old: frozenset[int], new: frozenset[int]) -> None:
        """A member wants ``new`` from now on, and not ``old``. The caller holds the lock, and lets it :meth:`settle`
        afterwards."""
        for kind in new:  # what was refused is tried again
            self.refused.pop(kind, None)
        self._wanted.update(new)
        self._wanted.subtract(old)
        self._wanted += Counter()  # drops what fell to zero
        wanted = self._wanted.keys()
        self._worked &= wanted
        self._paused &= wanted
        self._end_pause()

    def refusal(self, kinds: frozenset[int]) -> BackendError | None:
        """After :meth:`settle`: why a member with ``kinds`` cannot go on: kernels were refused, or everything."""
        refused = sorted(kinds & self.refused.keys())
        fatal = layouts.CONCURRENT_KERNEL if layouts.CONCURRENT_KERNEL in refused else None
        if fatal is None and refused and len(refused) == len(kinds):
            fatal = refused[0]
        return self._errors[fatal] if fatal is not None else None

    def let_be(self) -> None:
        """All kinds stay as they are: another profiler may have them on. The caller holds the lock."""
        self.held = False
        self._on.clear()
        self._ended.clear()

    def switch_all_on(self) -> None:
        """After another profiler had CUPTI: nothing is paused. Raises :class:`BackendError` where CUPTI refuses."""
        with self.lock:
            self.let_be()
            self._paused = frozenset()
            self._end_pause()
        self.settle()
        failed = sorted(self._paused)
        if failed and failed[0] in self._errors:
            with self.lock:
                self.held, self._paused = True, frozenset()
            raise self._errors[failed[0]]

    # --- pauses -----------------------------------------------------------------------------------------------------

    def begin_pause(self, kinds: frozenset[int]) -> None:
        """From now on ``kinds`` are to be paused, and no others; :meth:`follow_pause` next. The caller holds the
        lock."""
        self._paused = kinds & frozenset(self._wanted)

    def follow_pause(self, began_ns: int, by: Wants | None) -> None:
        """Switches what changed, and remembers the pause or its end."""
        self.settle()
        with self.lock:
            self._end_pause()
            if self._paused and self.lasting is None:
                self.lasting = began_ns, None, by

    def pauses(self, after: int) -> tuple[int, list[Pause], Pause | None]:
        """How many pauses have ended so far, those after the first ``after``, and the one that lasts."""
        with self.lock:
            fresh = min(self._pause_count - after, len(self._pauses))
            return self._pause_count, list(self._pauses)[-fresh:] if fresh > 0 else [], self.lasting

    def _end_pause(self) -> None:
        """Where nothing is paused any more."""
        if self.lasting is not None and not self._paused:
            self._pauses.append((self.lasting[0], time.time_ns(), self.lasting[2]))
            self._pause_count += 1
            self.lasting = None

    # --- switching --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Switches kinds on and off until they are as they are to be by now, or another thread is seeing to it."""
        while self._next() is not None:
            if threads.mine(self._switching):
                return  # who is at it looks again
            try:
                if not self._switching.acquire(timeout=SWITCH_WAIT_S):
                    return
                while (step := self._next()) is not None:
                    self._switch(*step)
            finally:
                threads.give_back(self._switching)

    def _next(self) -> tuple[int, bool] | None:
        """A kind that is not as it is to be, and whether it goes on. What ended beside another goes off and on."""
        with self.lock:
            if self.held:
                return None
            wanted = self._wanted.keys() - self._paused - self.refused.keys()
            for kinds, on in ((self._on - wanted, False), (self._ended & self._on, False), (wanted - self._on, True)):
                if kinds:
                    return min(kinds), on
            return None

    def _switch(self, kind: int, on: bool) -> None:
        if on:
            self._enable(kind)
            return
        self.interrupted |= kind in layouts.DEFAULT_KINDS
        try:
            self._switches.disable(kind)
        except BackendError as error:
            log.debug("%s", error)
        with self.lock:
            self._on.discard(kind)
            if kind in self._ended:
                self._ended.discard(kind)
            elif kind in layouts.TIED_KINDS:
                self._ended |= layouts.TIED_KINDS & self._on

    def _enable(self, kind: int) -> None:
        try:
            self._switches.enable(kind)
        except BackendError as error:
            log.debug("%s", error)
            with self.lock:
                self._errors[kind] = error
                if kind in self._worked:  # once it cannot be switched on again it stays paused
                    self._paused |= {kind}
                else:
                    self.refused[kind] = str(error)
            return
        with self.lock:
            self._on.add(kind)
            self._worked.add(kind)

    def forget_in_child(self, lock: Any) -> None:
        self.lock, self._switching = lock, threads.rlock()
