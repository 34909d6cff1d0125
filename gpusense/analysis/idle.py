"""Why a device did not compute: every nanosecond of the window gets one reason, and the parts add up to it."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import NamedTuple

from .._records.device_identity import card
from .._records.records import BlockRecord, ComputeBlock, GpuKernel, GpuMemoryTransfer, Path
from .._records.work import WorkTable
from ..session import Session
from .busy import DeviceKey, DeviceTime, device_times, sweeps, unseen, window
from .intervals import Interval, subtract, total, union
from .sweep import Sweep

#: A gap that starts while the host waits for the device is the wait's cost up to this length: what the host needs to
#: fill the queue again. Beyond it the host did something else.
RESTART_NS = 1_000_000

REASONS = ("compute", "collective", "copy", "synchronisation", "host", "no_work", "unattributed", "unseen")


class Gap(NamedTuple):
    """An interval in which a device had nothing to do, and why."""

    start_ns: int
    end_ns: int
    reason: str  # "synchronisation", "host", "no_work", "unattributed", "unseen"


class Gaps:
    """Many gaps in their order, as columns: a tuple each would cost more memory than all else that is known of them.

    Most have one reason. Of the few that are cut, by the end of a block or of a wait, ``pieces`` has the parts.
    """

    __slots__ = ("_codes", "_ends", "_starts", "pieces")

    def __init__(self, starts: Sequence[int] = (), ends: Sequence[int] = (), reason: str = "host") -> None:
        self._starts, self._ends = starts, ends
        self._codes = bytearray((REASONS.index(reason),)) * len(starts)
        self.pieces: dict[int, list[Gap]] = {}

    def __len__(self) -> int:
        return len(self._starts) + len(self.pieces)

    def __iter__(self) -> Iterator[Gap]:
        reasons = map(REASONS.__getitem__, self._codes)
        yield from self.pieces.get(-1, ())
        for at, gap in enumerate(map(Gap, self._starts, self._ends, reasons)):
            if at in self.pieces:
                yield from self.pieces[at]
            else:
                yield gap
        yield from self.pieces.get(len(self._starts), ())

    def fill(self, spans: Iterable[Interval], reason: str) -> set[int]:
        """Says of all gaps within ``spans`` why they are; returns those that lie only in part within one."""
        code, cut = REASONS.index(reason), set()
        for low, high in spans:
            first, last = bisect_left(self._starts, low), bisect_right(self._ends, high)
            if last > first:
                self._codes[first:last] = bytes((code,)) * (last - first)
            for at in (first - 1, last):
                if 0 <= at < len(self._starts) and self._starts[at] < high and self._ends[at] > low:
                    cut.add(at)
        return cut

    def at(self, number: int) -> Interval:
        """When one was."""
        return self._starts[number], self._ends[number]

    def starting(self, low: int, high: int) -> range:
        """Those that begin between two moments, these included."""
        return range(bisect_left(self._starts, low), bisect_right(self._starts, high))

    def is_(self, number: int, reason: str) -> bool:
        """Whether that is the reason of one."""
        return self._codes[number] == REASONS.index(reason)

    def set(self, number: int, reason: str) -> None:
        """Says of one why it is."""
        self._codes[number] = REASONS.index(reason)

    def total(self, reason: str, least_ns: int = 0) -> int:
        """How long those of one reason are together, as far as each has ``least_ns``."""
        return sum(end - start for start, end in self.spans(reason) if end - start >= least_ns)

    def spans(self, reason: str) -> Iterator[Interval]:
        """Start and end of those of one reason, but for the pieces in no order."""
        code, pieces = REASONS.index(reason), self.pieces
        mask = [own == code for own in self._codes]
        for at in pieces:
            if 0 <= at < len(mask):
                mask[at] = False
        yield from compress(zip(self._starts, self._ends, strict=True), mask)
        for parts in pieces.values():
            yield from ((gap.start_ns, gap.end_ns) for gap in parts if gap.reason == reason)


class DeviceIdle(NamedTuple):
    """``window_ns`` of one device, divided: the parts sum to it exactly."""

    device: int | None
    backend: str
    window_ns: int
    compute_ns: int  # at least one kernel that is not a collective ran
    collective_ns: int  # nothing but collectives (and copies) ran
    copy_ns: int  # nothing but copies and memsets ran
    synchronisation_ns: int  # empty, because the host had waited for the device before launching more
    host_ns: int  # empty, because the host launched nothing
    no_work_ns: int  # empty outside any block; without blocks: before the first and after the last work
    unattributed_ns: int  # nobody knows: there are sums alone, or work that is not timed may have run
    gaps: Gaps  # none where single ones are not known
    host_inside: tuple[tuple[Path, int], ...]  # innermost block of the host's part, most first
    unseen_ns: int = 0  # nothing is known, because capture was off

    @property
    def seen_ns(self) -> int:
        return self.window_ns - self.unseen_ns

    def part(self, reason: str) -> int:
        """The nanoseconds of one of :data:`REASONS`."""
        return int(getattr(self, f"{reason}_ns"))


def idle(
    session: Session, walks: dict[DeviceKey, Sweep] | None = None, times: list[DeviceTime] | None = None
) -> list[DeviceIdle]:
    """One :class:`DeviceIdle` a device that worked within the run."""
    walks = sweeps(session) if walks is None else walks
    whole = window(session)
    if whole is None:
        return []
    hosts, handed = hosts_of(session), handed_over(session)
    rows = []
    for time in device_times(session, walks) if times is None else times:
        key = (time.backend, time.device)
        off = unseen(session, key)
        if time.source != "records":
            rows.append(_counted(time, whole, off))
        elif walks[key].first_ns is not None:  # else all of it, recorded by hand, is from before or after the run
            rows.append(_placed(time, walks[key], whole, hosts(key), handed.get(card(*key), []), off))
    return rows


class Host:
    """What the processes that feed a device did meanwhile."""

    def __init__(self, work: WorkTable, rows: Iterable[int], blocks: "Iterable[BlockRecord | ComputeBlock]") -> None:
        kinds = work.kinds
        waited = bytes(one.kind == "sync" and one.name.endswith("synchronize") for one in kinds)
        back = bytes(one.kind == "transfer" and one.direction == "gpu_to_cpu" for one in kinds)
        waits: list[Interval] = []
        backs: dict[DeviceKey, set[int]] = {}  # ends of copies to the host, by card
        for row in rows:
            kind = work.kind[row]
            if waited[kind]:
                waits.append((work.start[row], work.end[row]))
            elif back[kind]:
                backs.setdefault(card(kinds[kind].backend, kinds[kind].device), set()).add(work.end[row])
        self.waits = union(waits)
        self.backs = backs
        self.segments = innermost(blocks)
        self.inside = union((start, end) for start, end, _ in self.segments)


def hosts_of(session: Session) -> Callable[[DeviceKey], Host]:
    """The host of each device: of a merged session the processes that used it."""
    work = session.work
    merged = bool(session.meta.get("processes"))
    roots = [path[0] if merged and path else None for path in work.paths]
    telling = bytes(
        (one.kind == "sync" or one.direction == "gpu_to_cpu") and one.kind != "memset" for one in work.kinds
    )
    rows: dict[str | None, array[int]] = {}
    users: dict[DeviceKey, set[str | None]] = {}
    keys: list[DeviceKey] = [card(one.backend, one.device) for one in work.kinds]
    if merged:
        for kind, path in work.pairs():
            if work.kinds[kind].kind != "sync":
                users.setdefault(keys[kind], set()).add(roots[path])
    for row in compress(range(len(work)), map(telling.__getitem__, work.kind)):
        rows.setdefault(roots[work.path[row]], array("I")).append(row)
    blocks: dict[str | None, list[BlockRecord | ComputeBlock]] = {}
    for record in session.records:
        if type(record) is BlockRecord or type(record) is ComputeBlock:
            root = record.path[0] if merged and record.path else None
            blocks.setdefault(root, []).append(record)
    known: dict[frozenset[str | None], Host] = {}

    def host(key: DeviceKey) -> Host:
        mine = frozenset(users.get(card(*key)) or (None,))
        if mine not in known:
            known[mine] = Host(
                work,
                chain.from_iterable(rows.get(root, ()) for root in mine),
                chain.from_iterable(blocks.get(root, ()) for root in mine),
            )
        return known[mine]

    return host


def handed_over(session: Session) -> dict[DeviceKey, list[Interval]]:
    """When wgpu's devices had work that the host had submitted and that had not begun, by card: then the host is not
    what they waited for. Copies, clears and uploads are not timed as a rule, and may have run."""
    found: dict[DeviceKey, list[Interval]] = {}
    for record in session.records:
        if type(record) is GpuKernel or type(record) is GpuMemoryTransfer:
            since = record.attributes.get("submitted_ns") if record.attributes else None
            if type(since) is int and since < record.start_ns:
                found.setdefault(card(record.backend, record.device), []).append((since, record.start_ns))
    return {key: union(spans) for key, spans in found.items()}


def _counted(time: DeviceTime, whole: Interval, off: list[Interval]) -> DeviceIdle:
    length = whole[1] - whole[0]
    first = max(whole[0], time.first_ns if time.first_ns is not None else whole[0])
    last = min(whole[1], time.last_ns if time.last_ns is not None else whole[1])
    busy = min(time.busy_ns, length)
    compute = min(time.kernel_ns, busy)
    outside = subtract(subtract([whole], off), [(first, last)] if last > first else [])
    no_work = min(total(outside), length - busy)
    not_seen = min(total(off), length - busy - no_work)
    return DeviceIdle(
        time.device,
        time.backend,
        length,
        compute,
        0,
        busy - compute,
        0,
        0,
        no_work,
        length - busy - no_work - not_seen,
        Gaps(),
        (),
        not_seen,
    )


def _placed(
    time: DeviceTime, walk: Sweep, whole: Interval, host: Host, handed: list[Interval], off: list[Interval]
) -> DeviceIdle:
    parts, first, last = walk.parts(), walk.first_ns, walk.last_ns
    assert first is not None
    assert last is not None
    inside = host.inside or [(first, last)]
    backs = host.backs.get(card(time.backend, time.device), set())
    gaps = Gaps(walk.gaps.start, walk.gaps.end, "no_work")
    cut = gaps.fill(inside, "host") | gaps.fill(handed, "unattributed") | gaps.fill(off, "unseen")
    for start, end in host.waits:
        for at in gaps.starting(start, end):
            if gaps.is_(at, "host"):
                _waited(gaps, at, end, cut)
    for end in backs:
        for at in gaps.starting(end, end):
            if gaps.is_(at, "host"):
                _waited(gaps, at, end, cut)
    spans = {at: gaps.at(at) for at in sorted(cut)}
    for at, (start, end) in {-1: (whole[0], first), **spans, len(walk.gaps.start): (last, whole[1])}.items():
        gaps.pieces[at] = _pieces(start, end, off, handed, inside, host.waits, backs)
    length = whole[1] - whole[0]
    sums = {reason: gaps.total(reason) for reason in REASONS[3:]}
    return DeviceIdle(
        device=time.device,
        backend=time.backend,
        window_ns=length,
        compute_ns=parts.compute,
        collective_ns=parts.collective_alone,
        copy_ns=parts.copy_alone,
        synchronisation_ns=sums["synchronisation"],
        host_ns=sums["host"],
        no_work_ns=sums["no_work"],
        unattributed_ns=sums["unattributed"],
        gaps=gaps,
        host_inside=inside_blocks(sorted(gaps.spans("host")), host.segments) if host.segments else (),
        unseen_ns=sums["unseen"],
    )


def _waited(gaps: Gaps, at: int, until: int, cut: set[int]) -> None:
    """The host had waited for the device until then, as the gap began."""
    start, end = gaps.at(at)
    if end - start <= RESTART_NS or until >= end:
        gaps.set(at, "synchronisation")
    elif until > start:
        cut.add(at)


def _pieces(
    start: int,
    end: int,
    off: list[Interval],
    handed: list[Interval],
    inside: list[Interval],
    waits: list[Interval],
    backs: set[int],
) -> list[Gap]:
    """A gap, cut into what has one reason."""
    found: list[Gap] = []
    for low, high, hidden in _cut(start, end, off):
        for begin, stop, given in [(low, high, False)] if hidden else _cut(low, high, handed):
            if hidden or given:
                found.append(Gap(begin, stop, "unseen" if hidden else "unattributed"))
                continue
            for first, last, wanted in _cut(begin, stop, inside):
                found += _reasons(first, last, waits, backs) if wanted else [Gap(first, last, "no_work")]
    return found


def _cut(start: int, end: int, cuts: list[Interval]) -> list[tuple[int, int, bool]]:
    """A span in pieces, with whether each lies in one of ``cuts``."""
    pieces, place = [], max(0, bisect_right(cuts, (start, 1 << 63)) - 1)
    while start < end:
        low, high = cuts[place] if place < len(cuts) else (end, end)
        if start < low:
            pieces.append((start, min(low, end), False))
            start = min(low, end)
        elif start < high:
            pieces.append((start, min(high, end), True))
            start = min(high, end)
        else:
            place += 1
    return pieces


def _reasons(start: int, end: int, waits: list[Interval], backs: set[int]) -> list[Gap]:
    at = bisect_right(waits, (start, 1 << 63)) - 1
    waited_until = waits[at][1] if at >= 0 and waits[at][1] >= start else None
    if waited_until is None and start in backs:
        waited_until = start
    if waited_until is None or (waited_until <= start and end - start > RESTART_NS):
        return [Gap(start, end, "host")]
    if end - start <= RESTART_NS or waited_until >= end:
        return [Gap(start, end, "synchronisation")]
    return [Gap(start, waited_until, "synchronisation"), Gap(waited_until, end, "host")]


def innermost(blocks: "Iterable[BlockRecord | ComputeBlock]") -> list[tuple[int, int, Path]]:
    """Disjoint intervals with the path of the latest opened block still open in each."""
    ordered = sorted(blocks, key=lambda block: (block.start_ns, -block.end_ns))
    found: list[tuple[int, int, Path]] = []
    stack: list[tuple[int, Path]] = []
    at = 0

    def advance(until: int) -> None:
        nonlocal at
        while stack and at < until:
            end, path = stack[-1]
            if end > at:
                stop = min(end, until)
                found.append((at, stop, path))
                at = stop
            if end <= at:
                stack.pop()
        at = max(at, until)

    for block in ordered:
        if block.end_ns <= block.start_ns:
            continue
        advance(block.start_ns)
        path = block.path if type(block) is BlockRecord else (*block.path, block.name)
        stack.append((block.end_ns, path))
    if stack:
        advance(max(end for end, _ in stack))
    return found


def inside_blocks(host: list[Interval], segments: list[tuple[int, int, Path]]) -> tuple[tuple[Path, int], ...]:
    spent: dict[Path, int] = {}
    i = j = 0
    while i < len(host) and j < len(segments):
        start, end, path = segments[j]
        common = min(host[i][1], end) - max(host[i][0], start)
        if common > 0:
            spent[path] = spent.get(path, 0) + common
        if host[i][1] < end:
            i += 1
        else:
            j += 1
    return tuple(sorted(spent.items(), key=lambda item: -item[1]))
