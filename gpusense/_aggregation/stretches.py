"""Names of kernels in stretches that come again: programs launch the same kernels in the same order, step by step and
layer by layer. Pure.

A stretch is the bytes of its keys. Durations of equal stretches can be put one behind the other without a look at any
key, and told apart by key when there are many, a place in the stretch at a time.

Where stretches begin depends on what is in them, not on where a batch or a block begins: behind each occurrence of two
bytes, the same byte of two keys that follow each other. So a sequence is cut at the same places when it comes again.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import MutableMapping
from itertools import accumulate, pairwise
from typing import NamedTuple

ITEM_BYTES = 8  # of a key, and of a duration
SHORTEST, LONGEST = 16, 128  # records of a stretch that is worth it, on average
TYPICAL = 48
_LOOKED_AT = 512  # keys, for bytes to cut at
PATIENCE = 64  # batches until the next look, where there were no such bytes
MAX_KEYS = 32_768  # of stretches whose keys are remembered
_FEW = 4  # so many equal stretches are told apart at once


#: The bytes of a stretch, by its keys before the mark.
_WITH_MARK = range(2 * ITEM_BYTES, 2**62, ITEM_BYTES).__getitem__


class Stretches(NamedTuple):
    """The keys of a batch, cut into stretches."""

    keys: bytes
    durations: bytes
    parts: list[bytes]
    ends: list[int]  # of the parts, in bytes

    def between(self, low: int, high: int) -> list[bytes]:
        """The stretches of the records from ``low`` to ``high``."""
        keys, ends = self.keys, self.ends
        low *= ITEM_BYTES
        high *= ITEM_BYTES
        first = bisect_right(ends, low)
        last = bisect_left(ends, high, first)
        begin = ends[first - 1] if first else 0
        if first == last:
            return [keys[low:high]]
        parts = self.parts[first : last + 1]
        if begin != low:
            parts[0] = keys[low : ends[first]]
        if ends[last] != high:
            parts[-1] = keys[ends[last - 1] : high]
        return parts


class Cutter:
    """Cuts the keys of batches, and remembers which keys are in a stretch."""

    __slots__ = ("_byte", "_held", "_known", "_mark", "_most", "_once", "_patience", "_sets", "_within")

    def __init__(self) -> None:
        self._byte = 0  # of a key
        self._mark = b""  # these bytes of two keys end a stretch
        self._patience = 0
        self._known: dict[bytes, frozenset[int]] = {}
        self._sets: dict[frozenset[int], frozenset[int]] = {}  # one object each: then no two are compared
        self._most: frozenset[int] = frozenset()  # of the last batch's
        self._within: set[frozenset[int]] = set()  # have no other keys than that
        self._once: set[bytes] = set()  # stretches that came once: many never come again
        self._held = 0  # bytes of stretches, about

    def cut(self, keys: bytes, durations: bytes) -> Stretches:
        """The records with these keys and durations, eight bytes each."""
        count = len(keys) // ITEM_BYTES
        if count <= SHORTEST:
            return Stretches(keys, durations, [keys], [len(keys)])
        column = keys[self._byte :: ITEM_BYTES]
        if not self._mark or not _good(column.count(self._mark), count):
            if self._patience > 0:
                self._patience -= 1
                return Stretches(keys, durations, [keys], [len(keys)])
            self._patience = PATIENCE
            self._choose(keys)
            if not self._mark:
                return Stretches(keys, durations, [keys], [len(keys)])
            column = keys[self._byte :: ITEM_BYTES]
        ends = list(accumulate(map(_WITH_MARK, map(len, column.split(self._mark)))))
        ends.pop()  # no mark is behind the last
        if ends[-1] < len(keys):
            ends.append(len(keys))
        parts = [keys[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return Stretches(keys, durations, parts, ends)

    def _choose(self, keys: bytes) -> None:
        """Looks for bytes that make stretches of a good length."""
        self._mark = b""
        best = LONGEST
        for byte in range(3):
            column = keys[byte : _LOOKED_AT * ITEM_BYTES : ITEM_BYTES]
            for (first, second), found in Counter(pairwise(column)).items():
                off = abs(len(column) // found - TYPICAL)
                if off < best and _good(found, len(column)):
                    best, self._byte, self._mark = off, byte, bytes((first, second))

    def distinct(self, stretches: Stretches) -> frozenset[int]:
        """All keys."""
        parts = set(stretches.parts)
        try:
            found = set(map(self._known.__getitem__, parts))
        except KeyError:
            found = self._learn(parts)
        most = max(found, key=len)
        if most is not self._most:
            self._most, self._within = most, {most}
        rest = found - self._within
        if not all(map(most.issuperset, rest)):
            return most.union(*rest)
        self._within |= rest
        return most

    def _learn(self, parts: set[bytes]) -> set[frozenset[int]]:
        """The keys of each part that is known, and of the others together: these are known the next time but one."""
        if self._held > MAX_KEYS * ITEM_BYTES:
            self._forget()
        known, once = self._known, self._once
        unknown = parts.difference(known)
        for part in unknown & once:
            known[part] = self._one(_keys(part))
        once ^= unknown
        joined = b"".join(unknown)
        self._held += len(joined)
        found = set(map(known.__getitem__, parts - unknown))
        if self._most not in found or not self._most.issuperset(memoryview(joined).cast("Q").tolist()):
            found.add(self._one(_keys(joined)))
        return found

    def _one(self, keys: frozenset[int]) -> frozenset[int]:
        return self._sets.setdefault(keys, keys)

    def _forget(self) -> None:
        self._known.clear()
        self._sets.clear()
        self._once.clear()
        self._most, self._within = frozenset(), set()
        self._held = 0


def _good(found: int, count: int) -> bool:
    """Whether so many stretches in so many records are worth it."""
    return found * SHORTEST <= count <= found * LONGEST


def _keys(stretch: bytes) -> frozenset[int]:
    return frozenset(memoryview(stretch).cast("Q").tolist())


def spread(stretch: bytes, packed: bytearray, into: MutableMapping[int, list[int]]) -> None:
    """Adds the durations of equal stretches, one behind the other, to the lists of their keys."""
    keys = memoryview(stretch).cast("Q").tolist()
    width = len(keys)
    durations = memoryview(packed).cast("Q").tolist()
    times = len(durations) // width
    if times < _FEW:
        for key, duration in zip(keys * times, durations, strict=True):
            into[key].append(duration)
    else:
        for place, key in enumerate(keys):
            into[key] += durations[place::width]
