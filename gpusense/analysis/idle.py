"""Why a device did not compute: every nanosecond of the window gets one reason, and the parts add up to it."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from .._records.device_identity import card
from .._records.records import BlockRecord, ComputeBlock, GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync, Path, Record
from ..session import Session
from .busy import DeviceKey, DeviceTime, Timeline, device_times, timelines, unseen, window
from .intervals import Interval, complement, intersect, subtract, total, union

#: A gap that starts while the host waits for the device is the wait's cost up to this length: what the host needs to
#: fill the queue again. Beyond it the host did something else.
RESTART_NS = 1_000_000

REASONS = ("compute", "collective", "copy", "synchronisation", "host", "no_work", "unattributed", "unseen")


class Gap(NamedTuple):
    """An interval in which a device did not compute, and what it waited for."""

    start_ns: int
    end_ns: int
    reason: str  # "collective", "copy", "synchronisation", "host", "no_work", "unattributed", "unseen"


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
    unattributed_ns: int  # nobody knows: short work was only counted, or work that is not timed may have run
    gaps: tuple[Gap, ...]
    host_inside: tuple[tuple[Path, int], ...]  # innermost block of the host's part, most first
    unseen_ns: int = 0  # nothing is known, because capture was off

    @property
    def seen_ns(self) -> int:
        return self.window_ns - self.unseen_ns

    def part(self, reason: str) -> int:
        """The nanoseconds of one of :data:`REASONS`."""
        return int(getattr(self, f"{reason}_ns"))


def idle(
    session: Session, lines: dict[DeviceKey, Timeline] | None = None, times: list[DeviceTime] | None = None
) -> list[DeviceIdle]:
    """One :class:`DeviceIdle` a device that worked."""
    lines = timelines(session) if lines is None else lines
    whole = window(session)
    if whole is None:
        return []
    hosts: dict[frozenset[str] | None, _Host] = {}
    hosts_of = _by_process(session)
    owners = _owners(session)
    handed_over = _handed_over(session)
    rows = []
    times = device_times(session, lines) if times is None else times
    for time, line in zip(times, lines.values(), strict=True):
        key = card(time.backend, time.device)
        off = unseen(session, time.backend)
        if line.counted:
            rows.append(_counted(time, whole, off))
            continue
        roots = frozenset(owners[key]) if key in owners else None
        if roots not in hosts:
            names: Iterable[str | None] = hosts_of if roots is None else sorted(roots)
            hosts[roots] = _Host(chain.from_iterable(hosts_of.get(name, ()) for name in names))
        backs, handed = hosts[roots].backs.get(key, []), union(handed_over.get(key, ()))
        rows.append(_placed(time, line, whole, hosts[roots], backs, handed, off))
    return rows


def _owners(session: Session) -> dict[DeviceKey, set[str]]:
    """Which processes of a merged session used which device; empty for a session of one process."""
    owners: dict[DeviceKey, set[str]] = {}
    if session.meta.get("processes"):
        for record in session.records:
            if type(record) in (GpuKernel, GpuMemoryTransfer, GpuMemset) and record.path:
                owners.setdefault(card(record.backend, record.device), set()).add(record.path[0])  # type: ignore[union-attr]
    return owners


def _handed_over(session: Session) -> dict[DeviceKey, list[Interval]]:
    """When wgpu's devices had work that the host had submitted and that had not begun: then the host is not what they
    waited for. Copies, clears and uploads are not timed as a rule, and may have run."""
    found: dict[DeviceKey, list[Interval]] = {}
    for record in session.records:
        if type(record) is GpuKernel or type(record) is GpuMemoryTransfer:
            since = record.attributes.get("submitted_ns") if record.attributes else None
            if type(since) is int and since < record.start_ns:
                found.setdefault(card(record.backend, record.device), []).append((since, record.start_ns))
    return found


def _by_process(session: Session) -> dict[str | None, list[Record]]:
    """Records of the host's side, by the first element of its path: a merged session has as many as processes."""
    found: dict[str | None, list[Record]] = {}
    for record in session.records:
        of = type(record)
        if of is GpuSync or of is BlockRecord or of is ComputeBlock or of is GpuMemoryTransfer:
            found.setdefault(record.path[0] if record.path else None, []).append(record)
    return found


class _Host:
    """What the processes that feed a device did meanwhile."""

    def __init__(self, records: Iterable[Record]) -> None:
        waits: list[Interval] = []
        blocks: list[BlockRecord | ComputeBlock] = []
        self.backs: dict[DeviceKey, list[int]] = {}  # ends of copies to the host
        for record in records:
            if type(record) is GpuSync:
                if record.name.endswith("synchronize"):
                    waits.append((record.start_ns, record.end_ns))
            elif type(record) is GpuMemoryTransfer:
                if record.direction == "gpu_to_cpu":
                    self.backs.setdefault(card(record.backend, record.device), []).append(record.end_ns)
            elif type(record) is BlockRecord or type(record) is ComputeBlock:
                blocks.append(record)
        self.waits = union(waits)
        self.segments = innermost(blocks)
        for ends in self.backs.values():
            ends.sort()


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
        (),
        (),
        not_seen,
    )


def _placed(
    time: DeviceTime,
    line: Timeline,
    whole: Interval,
    host: _Host,
    backs: list[int],
    handed: list[Interval],
    off: list[Interval],
) -> DeviceIdle:
    rest = complement(line.compute, *whole)
    collective = intersect(rest, line.collective)
    copy = subtract(intersect(rest, line.transfer), collective)
    empty = subtract(subtract(rest, line.collective), line.transfer)
    gaps = [Gap(*span, "collective") for span in collective] + [Gap(*span, "copy") for span in copy]
    gaps += [Gap(*span, "unseen") for span in intersect(empty, off)]
    empty = subtract(empty, off)
    gaps += [Gap(*span, "unattributed") for span in intersect(empty, handed)]
    empty = subtract(empty, handed)
    inside = union((start, end) for start, end, _ in host.segments) or _span(time)
    for start, end in intersect(empty, inside):
        gaps += _reasons(start, end, host.waits, backs)
    gaps += [Gap(*span, "no_work") for span in subtract(empty, inside)]
    gaps.sort()
    parts = dict.fromkeys(REASONS, 0)
    for gap in gaps:
        parts[gap.reason] += gap.end_ns - gap.start_ns
    length = whole[1] - whole[0]
    waiting = [(gap.start_ns, gap.end_ns) for gap in gaps if gap.reason == "host"]
    return DeviceIdle(
        device=time.device,
        backend=time.backend,
        window_ns=length,
        compute_ns=length - total(rest),
        collective_ns=parts["collective"],
        copy_ns=parts["copy"],
        synchronisation_ns=parts["synchronisation"],
        host_ns=parts["host"],
        no_work_ns=parts["no_work"],
        unattributed_ns=parts["unattributed"],
        gaps=tuple(gaps),
        host_inside=_inside(waiting, host.segments),
        unseen_ns=parts["unseen"],
    )


def _span(time: DeviceTime) -> list[Interval]:
    return [(time.first_ns, time.last_ns)] if time.first_ns is not None and time.last_ns is not None else []


def _reasons(start: int, end: int, waits: list[Interval], backs: list[int]) -> list[Gap]:
    at = bisect_right(waits, (start, 1 << 63)) - 1
    waited_until = waits[at][1] if at >= 0 and waits[at][1] >= start else None
    if waited_until is None:
        back = bisect_right(backs, start) - 1
        waited_until = start if back >= 0 and backs[back] == start else None
    if waited_until is None:
        return [Gap(start, end, "host")]
    if end - start <= RESTART_NS or waited_until >= end:
        return [Gap(start, end, "synchronisation")]
    if waited_until <= start:
        return [Gap(start, end, "host")]
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


def _inside(host: list[Interval], segments: list[tuple[int, int, Path]]) -> tuple[tuple[Path, int], ...]:
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
