"""Which passes of blocks are counted exactly, and by what: each hundredth, and those that the program asks for.

The profiler waits for the device at both ends of a pass that it counts, and at no other time. Blocks inside one that is
being counted are not: it is one range at a time, of one thread. Nothing in here reaches the program.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Protocol

from .._records.counters import BlockCounters
from .._records.records import Unavailable
from .._runtime import log, threads
from .._runtime.interrupts import is_the_programs
from .block import Block
from .decorator import wrapped

#: The first pass that is counted: the one before it warms up. Then one in so many.
FIRST, EVERY = 2, 100
#: A block whose last pass took longer is counted only where the program asks for that: all inside it would not be.
LONGEST_S = 2.0
#: What counting by turns may take of the program's time: so much at once, and this share of it.
AT_ONCE_S, SHARE = 4.0, 0.01
#: After so many passes of blocks outside all others nobody waits for a block that has had none with the set that is on.
#: Later a set stays for so many.
LONGEST_STAY, LEAST_STAY = 50, EVERY
#: Paths of blocks that are followed; beyond it others are not counted.
MAX_PATHS = 10_000
#: Failures in a row after which it is given up: another profiler takes what there was along once.
MAX_FAILURES = 3


class Counting(Protocol):
    """A range profiler of one device; see :class:`~gpusense.backends.cupti.counters.ranges.RangeProfiler`."""

    device: int
    sets: tuple[str, ...]  # that count something on its chip, those that say most first
    tensor: tuple[str, ...]  # those of operations of tensor cores

    def begin(self, name: str) -> bool: ...
    def end(self) -> Any: ...


class Measured(Block):
    """What ``measure()`` gives: a block whose every pass is counted."""

    __slots__ = ()

    def __call__(self, function: Any) -> Any:
        from .. import measure

        label = self.name if self.name is not None else getattr(function, "__qualname__", repr(function))
        return wrapped(function, partial(measure, label, self.attributes))


class Sets:
    """Which set of counters is on. Another one costs the program a sixth of a second, so all blocks have their pass
    with one before the next is on: at first each set once, later those by turns that have found something."""

    def __init__(self, sets: tuple[str, ...], tensor: tuple[str, ...]) -> None:
        self.number = 0  # of changes
        self._all, self._tensor = sets, tensor
        self._found = set(sets[:2])  # what says how busy the device is, and with what, always has its turn
        self.again()

    def again(self) -> None:
        """Each set has its turn, whatever it found before."""
        self._round, self.first = list(self._all), True
        self._busy: bool | None = None  # whether tensor cores were at work, where that was counted
        self.number += 1

    @property
    def name(self) -> str:
        return self._round[0]

    def counted(self, occurred: bool | None, tensor_share: float | None) -> None:
        """``occurred``: whether a pass found something of what is the set's own, None where nobody knows."""
        if occurred:
            self._found.add(self.name)
        if tensor_share is not None:
            self._busy = bool(self._busy or tensor_share)

    def change(self) -> None:
        """The next set is on."""
        last = self._round.pop(0)
        if last == self._all[0] and self._busy is False:
            self._round = [name for name in self._round if name not in self._tensor]
        if not self._round:
            self._round, self.first = [name for name in self._all if name in self._found], False
        self.number += 1


class Turns:
    """Passes of one block, and when the last one was counted."""

    __slots__ = ("counted", "last", "passes", "with_set")

    def __init__(self) -> None:
        self.passes = self.counted = self.last = 0
        self.with_set = -1  # number of the set that it was counted with

    def due(self, number: int) -> bool:
        """Whether it is the turn of the pass that begins."""
        waits = self.with_set == number and self.passes < self.last + EVERY
        return self.passes >= FIRST and not waits


class _Now:
    """The pass that is being counted."""

    __slots__ = ("at", "block", "name", "shared", "turns")

    def __init__(self, block: Block, turns: Turns, name: str, shared: bool) -> None:
        self.block, self.turns, self.name, self.shared = block, turns, name, shared
        self.at = perf_counter()


class Meter:
    """A listener of blocks. ``record`` takes finished records. ``find(patiently)`` gives the profiler for the calling
    thread, None where there is none yet; patiently it waits for one. ``by_turns``: passes are counted that nobody asked
    for.
    """

    def __init__(self, record: Callable[[Any], None], find: Callable[[bool], "Counting | Unavailable | None"]) -> None:
        self.by_turns = False
        self._record, self._find = record, find
        self._turns: dict[tuple[str, ...], Turns] = {}
        self._sets: Sets | None = None  # once there is a profiler
        self._waiting: set[tuple[str, ...]] = set()  # paths that had no pass with the set that is on
        self._stay = 0  # passes of blocks outside all others with it
        self._now: _Now | None = None
        self._profiler: Any = None  # of the pass that is counted
        self._lock = threads.lock()
        self._open: dict[int, int] = {}  # thread → blocks that are open on it
        self._long: set[tuple[str, ...]] = set()
        self._spent_s, self._since = 0.0, monotonic()
        self._reason, self._failures = "", 0
        self.passes = self.lost = 0

    def status(self) -> dict[str, Any]:
        """ "counting", "waiting" or "unavailable" with the ``reason``, and how many passes were counted and how many
        lost."""
        state = "unavailable" if self._failures >= MAX_FAILURES else "waiting" if self._sets is None else "counting"
        found: dict[str, Any] = {"state": state}
        if self._reason or state == "waiting":
            found["reason"] = self._reason or "no block that is to be counted has used the GPU yet"
        return {**found, "passes": self.passes, "lost": self.lost, "spent_s": round(self._spent_s, 3)}

    # --- listening --------------------------------------------------------------------------------------------------

    def block_opened(self, block: Block) -> None:
        """Opens a range where it is the turn of this pass."""
        self._open[block.thread] = self._open.get(block.thread, 0) + 1
        now = self._now
        if now is not None and now.block.thread != block.thread:
            now.shared = True
        asked = type(block) is Measured
        if self._failures >= MAX_FAILURES or not (asked or self.by_turns):
            return
        if not self._is_due(block, asked) or now is not None or not self._lock.acquire(blocking=False):
            return
        began = perf_counter()
        try:
            if self._now is None:
                self._begin(block, asked)
        except Exception as error:
            if is_the_programs(error):
                raise
            self._fail(error)
        finally:
            self._lock.release()
            self._spent_s += perf_counter() - began

    def block_closed(self, block: Block) -> None:
        """Closes its range."""
        self._open[block.thread] = max(0, self._open.get(block.thread, 0) - 1)
        if not self._open[block.thread]:
            del self._open[block.thread]  # threads come and go
        now = self._now
        if now is None or now.block is not block:
            if block.end_ns is not None and block.end_ns - block.start_ns > LONGEST_S * 1e9:
                self._is_long(block.path)
            return
        began = perf_counter()
        try:
            self._end(now)
        except Exception as error:
            if is_the_programs(error):
                raise
            self.lost += 1
            self._fail(error)
        finally:
            self._now = None
            self._spent_s += perf_counter() - began

    # --- one pass ---------------------------------------------------------------------------------------------------

    def _is_due(self, block: Block, asked: bool) -> bool:
        turns = self._turns.get(block.path)
        if turns is None:
            if len(self._turns) >= MAX_PATHS and not asked:
                return False
            turns = self._turns[block.path] = Turns()
            self._waiting.add(block.path)
        turns.passes += 1
        self._stay += block.parent_id is None
        self._change(turns if asked else None)
        number = self._sets.number if self._sets is not None else 0
        return asked or (turns.due(number) and block.path not in self._long and self._may_spend())

    def _change(self, asked: Turns | None) -> None:
        """Another set is on once all blocks had their pass with this one, as far as they come again; for a block that
        the program asked for each set once at least, one after the other."""
        sets = self._sets
        if sets is None or self._now is not None:
            return
        if asked is not None and not asked.counted and not sets.first:
            sets.again()
        elif asked is not None and asked.with_set == sets.number and sets.first:
            sets.change()
        else:
            waits = self._waiting - self._long and self._stay < LONGEST_STAY
            if not self._stay or waits or not (sets.first or (self._stay >= LEAST_STAY and self._may_spend())):
                return
            sets.change()
        self._stay, self._waiting = 0, set(self._turns)

    def _may_spend(self) -> bool:
        return self._spent_s < AT_ONCE_S + SHARE * (monotonic() - self._since)

    def _is_long(self, path: tuple[str, ...]) -> None:
        if len(self._long) < MAX_PATHS:
            self._long.add(path)

    def _begin(self, block: Block, asked: bool) -> None:
        found = self._find(asked)
        if found is None:
            return
        if isinstance(found, Unavailable):
            self._failures = MAX_FAILURES
            self._refuse(found.reason)
            return
        if self._sets is None:
            self._sets = Sets(found.sets, found.tensor)
        others = any(thread != block.thread for thread in list(self._open))
        if found.begin(self._sets.name):
            self._profiler = found
            self._now = _Now(block, self._turns[block.path], self._sets.name, others)

    def _end(self, now: _Now) -> None:
        profiler, block, sets = self._profiler, now.block, self._sets
        counted = profiler.end()
        if counted is None:
            self.lost += 1
            return
        self.passes += 1
        self._failures, self._reason = 0, ""
        amounts = counted.amounts
        own = [value for _, value in counted.tensor_ops]
        own += [amounts[name] for name in ("nvlink_rx_bytes", "nvlink_tx_bytes") if name in amounts]
        if sets is not None:
            sets.counted(any(own) if own else None, amounts.get("tensor_percent"))
            now.turns.last, now.turns.with_set = now.turns.passes, sets.number
            now.turns.counted += 1
        self._waiting.discard(block.path)
        self._record(
            BlockCounters(
                block.name,
                block.start_ns,
                block.end_ns or block.start_ns,
                profiler.device,
                counted.device_ns,
                now.name,
                counted.tensor_ops,
                counted.flops,
                shared=now.shared,
                path=block.path,
                block_id=block.block_id,
                **amounts,
            )
        )

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._refuse(f"{error}" if str(error) else type(error).__name__)

    def _refuse(self, reason: str) -> None:
        self._reason = reason
        log.once(f"measure {reason}", "blocks are not measured: %s", reason)
