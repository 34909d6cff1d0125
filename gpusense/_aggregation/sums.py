"""Durations on their way into sums. Pure.

A sum over one long list costs a tenth of sums over many short ones, and a block of a training step has few records of
each name. So durations are only appended at first, by place and key (the address of a kernel's name, a copy's
direction), and summed up when there are many, when a name moves, or when someone asks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from .._decode.names import Named
from .._records.records import Path
from .groups import Groups, row_of

#: Path, kind, device, stream, owner: what records that are summed up together share.
Spot = tuple[Path, str, int | None, int | None, Path | None]
#: ``name(kind, key) → (name, direction or None)``
Name = Callable[[str, int], tuple[str, str | None]]

#: Kind and name, durations, bytes together.
NamedRow = tuple[tuple[str, str], list[int], int]

MAX_NAMES = MAX_LINES = 20_000
LINE_SHIFT = 8  # a wait's key: its type, and above that the number of the line it was made from
FOLD_AT = 32_768  # durations held; then all but a part of them are summed up, since many of a name at once cost less
KEPT = 4  # that part is one in so many
PIECE = 2_048  # durations are summed up at once: a part of a millisecond


class Sums:
    """Durations that wait to be added to ``groups``."""

    __slots__ = ("_bytes", "_groups", "_held", "_lines", "_name", "_names", "_texts", "_waiting")

    def __init__(self, groups: Groups, name: Name) -> None:
        self._groups = groups
        self._name = name
        self._names: dict[int, Named] = {}
        self._lines: dict[str, int] = {}
        self._texts: list[str] = []  # of the lines, by number less one
        self._waiting: dict[Spot, defaultdict[int, list[int]]] = {}  # durations by key
        self._bytes: dict[Spot, defaultdict[int, int]] = {}
        self._held = 0  # durations

    def know(self, names: Mapping[int, Named]) -> None:
        """Kernel names by address, from now on; an address may get another name when a module is unloaded."""
        known = self._names
        if not names.items() <= known.items():
            if len(known) > MAX_NAMES or any(known.get(pointer, name) != name for pointer, name in names.items()):
                self.fold()
                known.clear()
            known.update(names)

    def name(self, kind: str, key: int) -> tuple[str, str | None]:
        if kind == "kernel":
            return self._named(key)[0], None
        return self._name(kind, key & (1 << LINE_SHIFT) - 1 if kind == "sync" else key)

    def _named(self, key: int) -> Named:
        return self._names.get(key, ("?", None))

    def by_name(
        self, kind: str, keys: list[int], durations: list[int], sizes: Iterable[int] = ()
    ) -> Iterator[NamedRow]:
        """Records of one kind by what they are called now."""
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for key, duration in zip(keys, durations, strict=True):
            groups[key].append(duration)
        bytes_of: defaultdict[int, int] = defaultdict(int)
        for key, size in zip(keys, sizes, strict=False):
            bytes_of[key] += size
        for key, members in groups.items():
            yield (kind, self.name(kind, key)[0]), members, bytes_of[key]

    def keys_with_lines(self, types: Iterable[int], lines: Iterable[str | None]) -> list[int]:
        """Keys of waits that are summed up by line, too."""
        numbers = self._lines
        for line in set(lines).difference(numbers):
            if line is not None and len(numbers) < MAX_LINES:
                self._texts.append(line)
                numbers[line] = len(self._texts)
        found = [numbers.get(line, 0) if line is not None else 0 for line in lines]
        return [kind | number << LINE_SHIFT for kind, number in zip(types, found, strict=True)]

    def add(self, spot: Spot, keys: list[int], durations: list[int], sizes: list[int] | None = None) -> None:
        """Appends the durations of records of one place; ``sizes``: their bytes."""
        self._held += len(durations)
        by_key = self._waiting.get(spot)
        if by_key is None:
            by_key = self._waiting[spot] = defaultdict(list)
        for key, duration in zip(keys, durations, strict=True):
            by_key[key].append(duration)
        if sizes is not None:
            bytes_of = self._bytes.get(spot)
            if bytes_of is None:
                bytes_of = self._bytes[spot] = defaultdict(int)
            for key, size in zip(keys, sizes, strict=True):
                bytes_of[key] += size

    def tidy(self, pause: Callable[[], None] | None) -> None:
        """After durations were appended: sums up what there is too much, with ``pause`` before each part of it."""
        if self._held <= FOLD_AT:
            return
        while self._held > FOLD_AT // KEPT and self._waiting:
            if pause is not None:
                pause()
            self._fold_some(PIECE)
        if not self._waiting:  # Ctrl-C may have come between counting them and appending them
            self._held = 0

    def fold(self) -> None:
        """Adds everything to the groups."""
        while self._waiting:
            self._fold_some(FOLD_AT)
        self._held = 0

    def _fold_some(self, count: int) -> None:
        """Adds so many durations to the groups, those of the place first that was first."""
        while count > 0 and self._waiting:
            spot, by_key = next(iter(self._waiting.items()))
            sizes = self._bytes.get(spot)
            while count > 0 and by_key:
                key, durations = by_key.popitem()
                if len(durations) > count:
                    by_key[key] = durations[count:]
                    del durations[count:]
                count -= len(durations)
                self._held -= len(durations)
                self._add(spot, key, durations, sizes.pop(key, 0) if sizes is not None else 0)
            if not by_key:
                del self._waiting[spot]
                self._bytes.pop(spot, None)

    def _add(self, spot: Spot, key: int, durations: list[int], size: int) -> None:
        path, kind, device, stream, owner = spot
        name, direction = self.name(kind, key)
        full = self._named(key)[1] if kind == "kernel" else None
        line = self._texts[(key >> LINE_SHIFT) - 1] if kind == "sync" and key >> LINE_SHIFT else None
        self._groups.add_row(
            (path, kind, name, "cuda", device, stream, direction, line, owner, "device", full), row_of(durations, size)
        )
