"""Records of one kind as columns, kept as the bytes they were until someone asks for numbers. Pure.

Making a Python number of every time stamp costs more than all that is done with it. So columns are packed bytes, turned
into lists on demand, and the times are judged all at once: as one long number with 64 bits for each record (a *lane*),
whose subtraction is that of every lane as long as no lane borrows from the next.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from operator import le, sub
from typing import Any, NamedTuple

#: Nothing on a device lasts thirty days; CUPTI's broken time stamps differ by decades.
LONGEST_NS = 30 * 24 * 3600 * 10**9
#: Times beyond a signed 64-bit nanosecond clock are garbage.
LATEST_NS = 2**63 - 1
MOST_LANES = 2048  # longer columns are judged number by number

#: Words of a record that say with its key how it was launched, as many as its kind has: see ``columns.SHAPES``.
SHAPE = tuple(f"shape {number}" for number in range(6))

_COLUMNS = (
    *("start", "end", "duration", "correlation", "device", "context", "stream", "key", "bytes", "thread"),
    *SHAPE,
)


class Runs(NamedTuple):
    """Where records of one kind follow each other: in words of a piece of the buffer, which begins at ``origin``."""

    origin: int  # bytes from the start of the buffer
    begins: list[int]
    ends: list[int]

    def count(self, stride: int) -> int:
        return (sum(self.ends) - sum(self.begins)) * 4 // stride


class Packed(NamedTuple):
    """A column as bytes."""

    data: bytes
    code: str  # as in the struct module
    none: int | None = None  # the number that stands for None

    def numbers(self) -> memoryview:
        return memoryview(self.data).cast(self.code)  # type: ignore[call-overload, no-any-return]

    def values(self) -> list[int] | list[None]:
        values: list[int] = self.numbers().tolist()
        if self.none is not None and self.none in values:
            return [None if value == self.none else value for value in values]  # type: ignore[return-value]
        return values


#: What columns hold that have one value, and the bytes of the others.
PackedColumns = tuple[dict[str, "int | None"], list[bytes]]


class Batch:
    """Records of one kind as columns of equal length, in the order of the buffer.

    ``key`` says what was done: name pointer for kernels, copy kind, memset value, synchronisation type, operation of an
    allocation, external id, API function id, overhead kind, counter kind. Where the kind has no such field, ``device``,
    ``context`` and ``stream`` hold None, ``bytes`` and ``thread`` 0. Kinds without times have ``start`` = ``end`` =
    0, instants have ``end`` = ``start``. Correlation ids have 32 bits, as in the record; 0 is unknown.
    """

    __slots__ = (
        "_lanes",
        "_lists",
        "_offsets",
        "_packed",
        "_runs",
        "count",
        "kind",
        "same",
        "sequential",
        "stride",
    )

    def __init__(
        self,
        kind: int,
        stride: int,
        count: int,
        runs: Runs | None,
        same: dict[str, int | None],
        packed: dict[str, Packed],
        lists: dict[str, list[int] | list[None]] | None = None,
    ) -> None:
        self.kind = kind
        self.stride = stride
        self.count = count
        self.same = same  # columns that hold one value
        self.sequential = False  # none begins before the one before it has ended
        self._runs = runs
        self._offsets: list[int] | None = None
        self._packed = packed
        self._lists = lists or {}
        self._lanes: int | None = None  # all durations

    # --- columns ----------------------------------------------------------------------------------------------------

    def _list(self, name: str) -> list[int]:
        values = self._lists.get(name)
        if values is None:
            one: list[Any] = [self.same[name]] * self.count if name in self.same else self._packed[name].values()
            values = self._lists[name] = one
        return values  # type: ignore[return-value]

    @property
    def offsets(self) -> Sequence[int]:
        """Bytes from the start of the buffer."""
        if self._offsets is None:
            origin, begins, ends = self._runs or (0, [], [])
            runs, stride = zip(begins, ends, strict=True), self.stride
            self._offsets = [at for begin, end in runs for at in range(origin + begin * 4, origin + end * 4, stride)]
        return self._offsets

    def packed(self, names: Iterable[str]) -> "PackedColumns | None":
        """Some columns; None where not all of them are at hand as bytes."""
        fixed, data = {}, []
        for name in names:
            if name in self.same:
                fixed[name] = self.same[name]
            elif name in self._packed:
                data.append(self._packed[name].data)
            else:
                return None
        return (fixed, data) if data else None

    def offsets_at(self, indices: Iterable[int]) -> list[int]:
        """As :attr:`offsets` of the records at ``indices``, which ascend."""
        if self._offsets is not None or self._runs is None:
            return list(map(self.offsets.__getitem__, indices))
        origin, begins, ends = self._runs
        runs, found, stride = zip(begins, ends, strict=True), [], self.stride
        base = last = 0
        for i in indices:
            while i >= last:  # the next run
                begin, end = next(runs)
                base = origin + begin * 4 - last * stride
                last += (end - begin) * 4 // stride
            found.append(base + i * stride)
        return found

    @property
    def start(self) -> list[int]:
        return self._list("start")

    @property
    def end(self) -> list[int]:
        return self._list("end")

    @property
    def duration(self) -> list[int]:
        if "duration" not in self._lists and "duration" not in self.same:
            if self._lanes is not None:
                packed = self._lanes.to_bytes(8 * self.count, "little")
                self._lists["duration"] = memoryview(packed).cast("Q").tolist()
            else:
                self._lists["duration"] = list(map(sub, self.end, self.start))
        return self._list("duration")

    @property
    def correlation(self) -> list[int]:
        return self._list("correlation")

    @property
    def device(self) -> list[int] | list[None]:
        return self._list("device")

    @property
    def context(self) -> list[int] | list[None]:
        return self._list("context")

    @property
    def stream(self) -> list[int] | list[None]:
        return self._list("stream")

    @property
    def key(self) -> list[int]:
        return self._list("key")

    @property
    def bytes(self) -> list[int]:
        return self._list("bytes")

    @property
    def thread(self) -> list[int]:
        return self._list("thread")

    @property
    def shape(self) -> list[list[int]]:
        """Columns of the words that tell with :attr:`key` how each was launched."""
        return [self._list(name) for name in SHAPE if name not in self.same]

    # --- what is known without numbers -----------------------------------------------------------------------------

    def uniform(self, name: str) -> bool:
        """Whether a column holds one value."""
        if name in self.same:
            return True
        values: list[int] = self._list(name)
        return values[0] == values[-1] and values.count(values[0]) == len(values)

    @property
    def earliest(self) -> int:
        """The first start."""
        times = self._packed.get("start")
        return times.numbers()[0] if self.sequential and times else min(self.start)

    @property
    def latest(self) -> int:
        """The last end."""
        times = self._packed.get("end")
        return times.numbers()[-1] if self.sequential and times else max(self.end)

    @property
    def longest(self) -> int:
        return max(self.duration)

    @property
    def total(self) -> int:
        """All durations together."""
        if self._lanes is None or "duration" in self._lists:
            return sum(self.duration)
        total = self._lanes
        for bits, mask in _HALVES:  # the upper half of the lanes onto the lower; no sum has more than 64 bits
            total = (total >> bits) + (total & mask)
        return total

    def reaches(self, duration_ns: int) -> bool:
        """Whether one of the records lasts that long."""
        if self._lanes is not None and duration_ns > 0 and not self._lanes & _from(duration_ns.bit_length() - 1):
            return False
        return self.longest >= duration_ns

    def times(self) -> tuple[Sequence[int], Sequence[int]]:
        """Starts and ends, in little memory where nobody is going to look at most of them."""
        if self.sequential and "start" in self._packed:
            return self._packed["start"].numbers(), self._packed["end"].numbers()
        return self.start, self.end

    def ids(self) -> list[int]:
        """The correlation ids, of records that have such. The list is not kept."""
        if "correlation" in self.same:
            return []
        column = self._packed.get("correlation")
        return column.numbers().tolist() if column is not None else self.correlation

    def ascending_ids(self) -> memoryview | None:
        """The correlation ids, if none is lower than the one before it; None may mean that nobody looked."""
        column = self._packed.get("correlation")
        if column is None or self.count > MOST_LANES:
            return None
        ids = int.from_bytes(column.data, "little")
        following = ids >> 32 | int.from_bytes(column.data[-4:], "little") << 32 * (self.count - 1)
        steps = following - ids
        if steps < 0 or (following ^ ids ^ steps) & _LOWEST_OF_32:
            return None
        return column.numbers()

    # --- others made of it ------------------------------------------------------------------------------------------

    def judged(self) -> "Batch":
        """Without the records whose times cannot be. Kinds without times pass."""
        if "start" in self.same:
            return self
        if "start" in self._packed and self.count <= MOST_LANES and self._judge():
            return self
        start, duration = self.start, self.duration
        # end = 0 shows as a negative duration, since start is not 0.
        good = [s > 0 and s + d <= LATEST_NS and 0 <= d <= LONGEST_NS for s, d in zip(start, duration, strict=True)]
        batch = self if all(good) else self.pick([i for i, fine in enumerate(good) if fine])
        batch.sequential = batch is self and all(map(le, self.end, islice(start, 1, None)))
        return batch

    def _judge(self) -> bool:
        """True if no time is impossible; False leaves it open."""
        starts, ends = self._packed["start"].data, self._packed["end"].data
        begin, end = int.from_bytes(starts, "little"), int.from_bytes(ends, "little")
        lengths = end - begin
        first, last = int.from_bytes(starts[:8], "little"), int.from_bytes(ends[-8:], "little")
        gaps = (begin >> 64 | last << 64 * (self.count - 1)) - end
        short = lengths >= 0 and gaps >= 0 and not (lengths | gaps) & _from(LONGEST_NS.bit_length() - 1)
        if short and 0 < first < _EARLY and last <= LATEST_NS:
            # Each time is the one before it and a length or a gap, and all of these do not come to 64 bits together: no
            # lane borrows from the next, and no time is later than the last.
            self._lanes, self.sequential = lengths, True
            return True
        # A lane that borrows from the next has its highest bit set then, since none had it before.
        if lengths < 0 or (begin | end) & _from(63) or lengths & _from(LONGEST_NS.bit_length() - 1):
            return False
        in_order = gaps >= 0 and not gaps & _from(63)
        if bytes(8) in (starts[:8] if in_order else starts):
            return False
        self._lanes, self.sequential = lengths, in_order
        return True

    def pick(self, indices: Sequence[int]) -> "Batch":
        """The records at ``indices``, which ascend."""
        lists: dict[str, list[int] | list[None]] = {}
        for name in _COLUMNS:
            if name not in self.same:
                column: list[int] = self._list(name) if name in SHAPE else getattr(self, name)
                lists[name] = [column[i] for i in indices]
        made = Batch(self.kind, self.stride, len(indices), None, self.same, {}, lists)
        offsets = self.offsets
        made._offsets = [offsets[i] for i in indices]
        return made

    def with_keys(self, keys: list[int]) -> "Batch":
        lists = {**self._lists, "key": keys}
        packed = {name: column for name, column in self._packed.items() if name != "key"}
        batch = Batch(self.kind, self.stride, self.count, self._runs, self.same, packed, lists)
        batch._lanes, batch._offsets, batch.sequential = self._lanes, self._offsets, self.sequential
        return batch


def _every(lane: int, width: int) -> int:
    """A number with ``lane`` in each lane of ``width`` bytes."""
    return int.from_bytes(lane.to_bytes(width, "little") * MOST_LANES, "little")


#: Where the difference of two numbers differs from both in the lowest bit of a lane, the lane below has borrowed.
_LOWEST_OF_32 = _every(1, 4)


#: A start from which on two times :data:`MOST_LANES` lengths and gaps do not come to 64 bits.
_EARLY = 2**64 - 2 * MOST_LANES * 2 ** (LONGEST_NS.bit_length() - 1)


#: Bits and mask of half the lanes, of half of these, and so on to one.
_HALVES = [(64 * n, 2 ** (64 * n) - 1) for n in (MOST_LANES >> i for i in range(1, MOST_LANES.bit_length()))]


@lru_cache(maxsize=16)
def _from(bit: int) -> int:
    """A number with the bits from ``bit`` on set in each lane of 64 bits."""
    return _every(2**64 - 2**bit, 8)
