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

#: The first pass that is counted: the one before it warms up. Then, until each set has had its turn, every second one,
#: so that blocks around and inside get theirs; then one in so many.
FIRST, AT_FIRST, EVERY = 2, 2, 100
#: A block whose last pass took longer is counted only where the program asks for that: all inside it would not be.
LONGEST_S = 2.0
#: What counting by turns may take of the program's time: so much at once, and this share of it.
AT_ONCE_S, SHARE = 2.0, 0.01
#: Paths of blocks that are followed; beyond it others are not counted.
MAX_PATHS = 10_000


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


class Turns:
    """Which passes of one block are counted, and with which set."""

    __slots__ = ("_missing", "_next", "_order", "_tensor", "passes")

    def __init__(self) -> None:
        self.passes = 0
        self._next = FIRST
        self._order: tuple[str, ...] = ()  # sets by turns
        self._missing: list[str] = []  # had no turn yet
        self._tensor: tuple[str, ...] = ()

    def due(self) -> bool:
        """Counts a pass; whether it is one to be measured. One that cannot be leaves that to the next."""
        self.passes += 1
        return self.passes >= self._next

    def choose(self, sets: tuple[str, ...], tensor: tuple[str, ...]) -> str:
        """The set whose turn it is, of those that a profiler has."""
        if not self._order:
            self._order, self._missing, self._tensor = sets, list(sets), tensor
        return self._missing[0] if self._missing else self._order[0]

    def counted(self, name: str, occurred: bool | None, without_tensor_cores: bool) -> None:
        """``occurred``: False where the set found nothing of what is its own, None where nobody knows. Sets that find
        nothing have no further turn."""
        if name in self._missing:
            self._missing.remove(name)
        if without_tensor_cores:
            self._missing = [one for one in self._missing if one not in self._tensor]
            self._order = tuple(one for one in self._order if one not in self._tensor)
        rest = tuple(one for one in self._order if one != name)
        self._order = rest if occurred is False and rest else (*rest, name)
        self._next = self.passes + (AT_FIRST if self._missing else EVERY)


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
        self._now: _Now | None = None
        self._profiler: Any = None  # of the pass that is counted
        self._lock = threads.lock()
        self._open: dict[int, int] = {}  # thread → blocks that are open on it
        self._long: set[tuple[str, ...]] = set()
        self._spent_s, self._since = 0.0, monotonic()
        self._reason = ""
        self.passes = self.lost = 0

    def status(self) -> dict[str, Any]:
        """ "counting" or "unavailable" with the ``reason``, and how many passes were counted and how many lost."""
        found: dict[str, Any] = {"state": "unavailable" if self._reason else "counting"}
        if self._reason:
            found["reason"] = self._reason
        return {**found, "passes": self.passes, "lost": self.lost, "spent_s": round(self._spent_s, 3)}

    # --- listening --------------------------------------------------------------------------------------------------

    def block_opened(self, block: Block) -> None:
        """Opens a range where it is the turn of this pass."""
        self._open[block.thread] = self._open.get(block.thread, 0) + 1
        now = self._now
        if now is not None and now.block.thread != block.thread:
            now.shared = True
        asked = type(block) is Measured
        if self._reason or not (asked or self.by_turns) or not self._is_due(block, asked) or now is not None:
            return
        if not self._lock.acquire(blocking=False):
            return
        began = perf_counter()
        try:
            if self._now is None:
                self._begin(block, asked)
        except Exception as error:
            if is_the_programs(error):
                raise
            self._give_up(error)
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
            self._give_up(error)
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
        due = turns.due()
        return asked or (due and block.path not in self._long and self._may_spend())

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
            self._refuse(found.reason)
            return
        turns = self._turns[block.path]
        name = turns.choose(found.sets, found.tensor)
        others = any(thread != block.thread for thread in list(self._open))
        if found.begin(name):
            self._profiler = found
            self._now = _Now(block, turns, name, others)

    def _end(self, now: _Now) -> None:
        profiler, block = self._profiler, now.block
        counted = profiler.end()
        if counted is None:
            self.lost += 1
            return
        self.passes += 1
        amounts = counted.amounts
        busy = amounts.get("tensor_percent")
        own = [value for _, value in counted.tensor_ops] if counted.tensor_ops else None
        links = [amounts[name] for name in ("nvlink_rx_bytes", "nvlink_tx_bytes") if name in amounts] or None
        values = own or links
        now.turns.counted(now.name, any(values) if values is not None else None, busy == 0.0)
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

    def _give_up(self, error: Exception) -> None:
        self._refuse(f"{error}" if str(error) else type(error).__name__)

    def _refuse(self, reason: str) -> None:
        self._reason = self._reason or reason
        log.once(f"measure {reason}", "gpusense: blocks are not measured: %s", reason)
