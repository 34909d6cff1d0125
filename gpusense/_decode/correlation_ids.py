"""Correlation ids as records have them, 32 bits, and as attribution orders them, 64 bits. Pure.

What they say of launches is here, too: how much longer these took because CUPTI recorded them.
"""

from collections.abc import Sequence
from typing import NamedTuple

#: From docs/results/overhead.md: steps of 28 to 38 ms with 870 launches take 10 % longer on H200s while CUPTI records
#: them than without CUPTI in the process. A loop in C that only launches is slowed by a third of this.
LAUNCH_NS = 3_500
#: The share of it that stays while CUPTI's kinds are off: 5 to 7 % of that step.
LEFT = 0.6
#: Of each further record of one launch, as nodes of a graph have. Not measured by itself: replays of 24 kernels take
#: 7 % longer there, so a node costs far less than a launch.
FURTHER_NS = 150


class Ids(NamedTuple):
    """Correlation ids of the records of a batch, 64 bits wide."""

    corrs: Sequence[int]
    low: int  # the lowest
    high: int
    base: int = 0  # to be added to each of ``corrs``
    ascend: bool = False  # none is lower than the one before; False: not known

    def wide(self, i: int) -> int:
        return self.corrs[i] + self.base


class Widener:
    """32-bit correlation ids to 64 bits: each is taken as the nearest one to the newest seen."""

    __slots__ = ("newest",)

    def __init__(self) -> None:
        self.newest = 0

    def restart(self) -> None:
        """The ids that come begin anew, and are later than all so far."""
        self.newest = (self.newest | 0xFFFFFFFF) + 1

    def widen_one(self, corr: int) -> int:
        """As :meth:`widen`."""
        newest = self.newest
        wide = (newest & ~0xFFFFFFFF) + corr
        if 0 <= wide - newest < 0x80000000:
            self.newest = wide
            return wide
        return wide if -0x80000000 < wide - newest < 0 else self.widen([corr])[1]

    def _base(self, low: int, high: int) -> int | None:
        """What makes ids from ``low`` to ``high`` wide, where that is the same for all."""
        base = self.newest & ~0xFFFFFFFF
        reference = self.newest & 0xFFFFFFFF
        if high - low < 0x80000000 and abs(low - reference) < 0x80000000 and abs(high - reference) < 0x80000000:
            self.newest = max(self.newest, base + high)
            return base
        return None

    def ascending(self, corrs: Sequence[int]) -> Ids | None:
        """Ids of which none is lower than the one before, at least one, where one number makes all of them wide."""
        low, high = corrs[0], corrs[-1]
        base = self._base(low, high)
        return Ids(corrs, base + low, base + high, base, True) if base is not None else None

    def ids(self, corrs: list[int]) -> Ids:
        """Ids in any order, at least one."""
        ordered = sorted(corrs)
        low, high = ordered[0], ordered[-1]
        base = self._base(low, high)
        if base is None:
            return Ids(*self.widen(corrs))
        return Ids(corrs, base + low, base + high, base, ordered == corrs)

    def widen(self, corrs: list[int]) -> tuple[list[int], int, int]:
        """The wide ids, the lowest and the highest of them; ``corrs`` must not be empty."""
        ordered = sorted(corrs)  # most are, and then this is faster than looking for both ends
        low, high = ordered[0], ordered[-1]
        one = self._base(low, high)
        if one is not None:
            return (corrs if one == 0 else [one + corr for corr in corrs]), one + low, one + high
        base = self.newest & ~0xFFFFFFFF
        wide = []
        for corr in corrs:
            candidate = base + corr
            if candidate - self.newest > 0x80000000 and base:
                candidate -= 0x100000000
            elif self.newest - candidate > 0x80000000:
                candidate += 0x100000000
            wide.append(candidate)
        low, high = min(wide), max(wide)
        self.newest = max(self.newest, high)
        return wide, low, high


class Launches:
    """What CUPTI adds to the program's launches, estimated from their records: no thread of ours spends it.

    Adds up how much longer the launches took whose records are read while that is ``wanted``.
    """

    __slots__ = ("_slowed_ns", "graphs", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        #: Whether one launch had several records of a kind, as only a graph of several nodes has; in file mode also
        #: whether a record names a node.
        self.graphs = False
        self._slowed_ns = 0

    def add(self, ids: list[int]) -> None:
        """Correlation ids of records of one kind."""
        launches = len(set(ids))
        self.graphs |= launches < len(ids)
        self._slowed_ns += launches * LAUNCH_NS + (len(ids) - launches) * FURTHER_NS

    def take(self) -> int:
        """Nanoseconds since the last call."""
        found, self._slowed_ns = self._slowed_ns, 0
        return found
