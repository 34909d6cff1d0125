"""What the rules take and what they give: results that several of them share, and findings."""

from functools import cached_property
from typing import Any, NamedTuple

from .._records.device_identity import card, device_text
from .._records.records import GpuAllocation
from .._records.work import WorkTable
from .._runtime.tables import escape
from .._runtime.text import printable
from ..session import Session
from .anomalies import Anomaly, anomalies
from .blocks import BlockNode, block_tree
from .busy import DeviceKey, DeviceTime, device_order, device_times, sweeps, unseen, window
from .calls import Calls, calls
from .coverage import Coverage, coverage
from .idle import DeviceIdle, handed_over, hosts_of, idle
from .intervals import Interval, intersect, union
from .launch import LaunchProfile, launches
from .operation import DEVICE_KINDS, Operation, operations
from .overlap import Overlap, overlap
from .phases import FirstCall, WarmUp, first_calls, warm_ups
from .processes import apart
from .program import Program, programs
from .sweep import Sweep
from .transfers import TransferGroup, transfers
from .view import View
from .waits import Wait, waits


class Finding(NamedTuple):
    """One observation. ``saving_ns`` is an upper bound of the time acting on it could give back; None if unknown."""

    kind: str  # "launch_bound", "nothing_seen", "pageable_copies", …
    title: str  # one sentence
    evidence: tuple[str, ...]  # with numbers and units
    fix: str
    confidence: str  # "high", "medium", "low"
    saving_ns: int | None = None
    phase: str = ""  # in which it holds: "steady", "run", "start-up"; "" where it is about the whole session
    where: str = ""  # the block, the line or the kernels that it is about
    share: float | None = None  # of the phase, 0…1; of what ``saving_ns`` could save
    step_ns: int | None = None  # of ``saving_ns`` in each step; None where there are no steps
    device: str = ""  # that it is about: "GPU 0", of a merged session "rank 1 · GPU 0"; "" where it is about all

    def __str__(self) -> str:
        """The title, what it rests on, and what to try, a line each."""
        parts = (self.title, *(f"  {line}" for line in self.evidence), f"  try: {self.fix}" if self.fix else "")
        return "\n".join(printable(part) for part in parts if part)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return self.as_html()

    def as_html(self) -> str:
        """The same as paragraphs."""
        title, *evidence, fix = map(escape, (self.title, *self.evidence, self.fix))
        listed = f"<ul>{''.join(f'<li>{line}</li>' for line in evidence)}</ul>" if evidence else ""
        return f"<p><b>{title}</b></p>{listed}" + (f"<p><b>Try:</b> {fix}</p>" if fix else "")


class Findings(tuple[Finding, ...]):
    """Findings, the one to act on first; a notebook shows their sentences."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("\n".join(map(str, self)))

    def _repr_html_(self) -> str:
        return "".join(finding.as_html() for finding in self)


class Facts:
    """A session and what was computed from it so far, each result on first use."""

    def __init__(self, session: Session, roots: "list[str] | None" = None) -> None:
        """``roots``: of the processes whose facts these are, where others are of the same merged session."""
        self.session, self._roots = session, roots

    @cached_property
    def window_ns(self) -> int:
        """0 where nothing was recorded."""
        whole = window(self.session)
        return whole[1] - whole[0] if whole else 0

    @cached_property
    def own_cpu_ns(self) -> int | None:
        """Processor time of gpusense itself in the program, of all processes; None where it was not measured."""
        found = self.session.meta.get("overhead")
        spent = [
            value
            for name, value in (found if isinstance(found, dict) else {}).items()
            if name.endswith("cpu_ns") and isinstance(value, int | float)
        ]
        return round(sum(spent)) if spent else None

    @cached_property
    def own_share(self) -> float | None:
        """The same of the run, 1 for one core of each process; None where it is not known."""
        if self.own_cpu_ns is None or not self.window_ns:
            return None
        processes = sum(isinstance(one, dict) for one in self.session.meta.get("processes") or ())
        return self.own_cpu_ns / self.window_ns / max(1, processes)

    @cached_property
    def work(self) -> WorkTable:
        """All work in the order of starts."""
        return self.session.work.ordered()

    @cached_property
    def _parts(self) -> "list[Facts]":
        """Of a merged session those of each of its processes, as far as they shared no device; of others itself."""
        parts = apart(self.session) if self._roots is None else []
        return [Facts(session, roots) for roots, session in parts] if len(parts) > 1 else [self]

    @cached_property
    def programs(self) -> list[Program]:
        """One a process, each divided into phases."""
        if self._parts != [self]:
            return [program for part in self._parts for program in part.programs]
        return programs(self.session, self.work, self._roots)

    @cached_property
    def walks(self) -> dict[DeviceKey, Sweep]:
        """Each device's work, divided at the edges of all phases. Rows are those of the work of its views."""
        if self._parts != [self]:
            found = {key: walk for part in self._parts for key, walk in part.walks.items()}
            return {key: found[key] for key in sorted(found, key=device_order)}
        edges = {edge for one in self.programs for phase in one.phases for edge in (phase.start_ns, phase.end_ns)}
        return sweeps(self.session, self.work, edges)

    @cached_property
    def calls(self) -> list[Calls]:
        return calls(self.session)

    @cached_property
    def operations(self) -> list[Operation]:
        return operations(self.session, groups=self.calls)

    @cached_property
    def device_operations(self) -> list[Operation]:
        """Operations that occupy a device."""
        return [row for row in self.operations if row.kind in DEVICE_KINDS]

    @cached_property
    def views(self) -> list[View]:
        """Each device in the phase in which time can be saved, busiest first. Of a merged session one a process."""
        found = self._own_views() if self._parts == [self] else [view for part in self._parts for view in part.views]
        return sorted((view for view in found if view.rows), key=lambda view: -view.parts.busy)

    def _own_views(self) -> list[View]:
        host, session = hosts_of(self.session), self.session
        holes = [(hole.start_ns, hole.end_ns) for hole in self.work.holes]
        handed = handed_over(session)
        moments: dict[int | None, list[int]] = {}
        for record in session.allocations:
            if waits_for_device(record):
                moments.setdefault(record.device, []).append(record.start_ns)
        return [
            View(
                *(
                    program,
                    key,
                    device_text(session.devices, *key),
                    walk,
                    self.work,
                    host(key),
                    union([*unseen(session, key), *holes, *_unknown(walk, handed.get(card(*key), []))]),
                ),
                sorted(moments.get(key[1], ())),
            )
            for program in self.programs
            for key, walk in self.walks.items()
        ]

    @property
    def feeding(self) -> list[View]:
        """Of each process the device that works most: another one may stand empty because it waits for that one."""
        first: dict[int, View] = {}
        for view in self.views:
            first.setdefault(id(view.program), view)
        return list(first.values())

    @cached_property
    def blocks(self) -> BlockNode:
        """The root of the tree of blocks."""
        return block_tree(self.session)

    @cached_property
    def times(self) -> list[DeviceTime]:
        return device_times(self.session, self.walks)

    @cached_property
    def idle(self) -> list[DeviceIdle]:
        return idle(self.session, self.walks, self.times)

    @cached_property
    def overlap(self) -> list[Overlap]:
        return overlap(self.session, self.walks, self.times)

    @cached_property
    def launches(self) -> list[LaunchProfile]:
        return launches(self.session, self.walks, self.times, self.calls)

    @cached_property
    def transfers(self) -> list[TransferGroup]:
        return transfers(self.session)

    @cached_property
    def waits(self) -> list[Wait]:
        return waits(self.session)

    @cached_property
    def anomalies(self) -> list[Anomaly]:
        return anomalies(self.session, groups=self.calls)

    @cached_property
    def coverage(self) -> list[Coverage]:
        return coverage(self.session)

    @cached_property
    def warm_ups(self) -> list[WarmUp]:
        return warm_ups(self.session)

    @cached_property
    def first_calls(self) -> list[FirstCall]:
        return first_calls(self.session, groups=self.calls)


def loads_module(record: GpuAllocation) -> bool:
    """Whether it is that of a variable of a module, whose kernels are loaded then."""
    return (record.memory or "").endswith("_static")


def waits_for_device(record: GpuAllocation) -> bool:
    """Whether memory was allocated or released by a call that may: not from a pool, nor as a module was loaded."""
    return not (record.attributes or {}).get("is_async") and not loads_module(record)


def _unknown(walk: Sweep, handed: list[Interval]) -> list[Interval]:
    """Of the times in which a device had work that had not begun, those in which nothing ran that was timed: what it
    did then is not known."""
    return intersect(handed, list(zip(walk.gaps.start, walk.gaps.end, strict=True))) if handed else []
