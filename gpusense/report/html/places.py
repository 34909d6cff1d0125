"""Where on the timeline each row of the page is: of every operation, block, wait and gap its longest times.

Rows ask for a place and get its number; the page carries the places that were asked for, each once.
"""

from array import array
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from heapq import nlargest
from itertools import chain, islice
from operator import sub
from typing import Any

from ..._records.device_identity import card
from ..._records.records import Path
from ..._records.work import WITH_ROWS
from ..._runtime.text import one_line
from ...analysis.busy import DeviceKey
from ...analysis.facts import Facts, Finding
from ...analysis.operation import Operation
from ...analysis.ranks import job_of, ranks_of
from ...analysis.view import View
from ...analysis.words import copies_text
from ..divisions import GAPS, Divisions
from ..tracks import group_name, label

#: Times a place has: one of a few rows many, one of many rows few, and all together no more than a page can carry.
_MOST, _FEWEST, _TOGETHER = 60, 4, 20_000
_OF_A_BAR = 10  # of the flame graph, of which there are many
_NAME_LIMIT = 512  # as the timeline cuts names
#: Findings about empty times of a device, and what the gaps are called that they are about.
_CAUSES = {
    "launch_bound": "launch",
    "synchronising_call": "synchronising",
    "starved": "host",
    "periodic_stall": "host",
    "allocations": "allocation",
    "recompilation": "new",
}

_Times = tuple[int, int]  # start and end
_Rows = list[int]  # of the table of work
_What = tuple[str, str, "str | None", tuple[str, "int | None"]]  # kind, name, direction, card


class Places:
    """``rows`` grows with each place that is asked for; times are nanoseconds from ``start_ns``."""

    def __init__(self, facts: Facts, divisions: Divisions, start_ns: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._facts, self._divisions, self._start_ns = facts, divisions, start_ns
        self._known: dict[Any, int | None] = {}
        self._limit = max(_FEWEST, min(_MOST, _TOGETHER // max(1, len(self._groups) + len(self._passes))))

    def operation(self, row: Operation, root: str | None = None) -> int | None:
        """Of its calls, those of one process where ``root`` names one; None where they were only summed."""
        device = None if row.kind == "sync" else (row.backend, row.device)
        return self._of(row.kind, row.name, row.direction, _where(row.kind, row.backend, row.device), device, root)

    def called(self, kind: str, name: str, device: int | None = None) -> int | None:
        """Of the calls of the heaviest operation of that name; on any device where none is given."""
        rows = (row for row in self._facts.operations if (row.kind, row.name) == (kind, name))
        return next((self.operation(row) for row in rows if device in (None, row.device)), None)

    def block(self, path: Path) -> int | None:
        """Of its passes; None where they were only summed."""
        if not path:
            return None
        return self._place(("block", path), path[-1], "pass", lambda: self._passes.get(path, ()), path=path[:-1])

    def within(self, path: Path, kind: str, name: str) -> int | None:
        """Of the calls that a block itself launched."""
        key = "within", path, kind, name
        mine = self._launched.get((path, kind, name), [])
        return self._place(key, label(name), "call", lambda: self._times(mine, _OF_A_BAR), len(mine), path=path)

    def first_call(self, kind: str, name: str, device: int | None) -> int | None:
        """Of the first call of an operation."""
        same = kind, name, device
        mine = [row for what, rows in self._groups.items() if (*what[:2], what[3][1]) == same for row in rows]
        first = sorted(mine, key=self._facts.work.start.__getitem__)[:1]
        group = self._group(("cuda", device))
        return self._place(("first", same), label(name), "call", lambda: self._times(first), len(mine), group)

    def first_passes(self, path: Path, count: int) -> int | None:
        """Of the first passes of a block."""
        mine = self._passes.get(path, [])
        if not path:
            return None
        times = sorted(mine)[:count]
        return self._place(("first", path), path[-1], "pass", lambda: times, len(mine), path=path[:-1])

    def moment(self, name: str, start_ns: int, end_ns: int, what: str) -> int | None:
        """Of one time of its own."""
        return self._place(("moment", name, start_ns), name, what, lambda: [(start_ns, end_ns)])

    def line(self, line: str | None) -> int | None:
        """Of the waits that began at this line of the program."""
        if line is None:
            return None
        names = {one.name for one in self._facts.work.kinds if one.source_line == line and one.kind == "sync"}
        name = f"{label(min(names))} at {line}" if len(names) == 1 else None
        mine = self._waits.get(line, [])
        return self._place(("line", line), name, "wait", lambda: self._times(mine), len(mine))

    def copies(
        self, direction: str, backend: str, device: int | None, source: str | None, destination: str | None
    ) -> int | None:
        """Of the copies of one direction between two kinds of memory."""
        what = "transfer", direction, card(backend, device), source, destination
        mine = self._ways.get(what, [])
        group = self._group((backend, device))
        return self._place(("way", what), label(direction), "copy", lambda: self._times(mine), len(mine), group)

    def finding(self, finding: Finding) -> int | None:
        """Of the gaps, copies, kernels or waits of ranks that it is about, on its device; else of the phase in which it
        holds."""
        cause, where = _CAUSES.get(finding.kind), finding.where
        if finding.kind == "late_rank":
            times = partial(self._waits_for, where)
            if (place := self._place(("late", where), f"waiting for {where}", "wait", times)) is not None:
                return place
        about = [views for views in self._divisions.views.values() if finding.device in ("", views[0].called)]
        device = about[0][0].key if finding.device and about else None
        if cause:
            key = "gap", cause, finding.device, finding.phase
            times = partial(self._gaps, about, cause, finding.phase)
            if (place := self._place(key, GAPS[cause], "gap", times, group=self._group(device))) is not None:
                return place
        for row in self._facts.device_operations:
            called = copies_text(row.direction or "") if row.kind == "transfer" else one_line(row.name, 60)
            here = device is None or card(row.backend, row.device) == card(*device)
            if here and where and where.partition(",")[0] == called:
                return self.operation(row)
        programs = [views[0].program for views in about]
        spans = [
            (phase.start_ns, phase.end_ns)
            for program in dict.fromkeys(programs)
            for phase in program.phases
            if phase.name == finding.phase
        ]
        return self._place(("phase", finding.phase, finding.device), None, "part", lambda: spans) if spans else None

    # ---- how a place is made

    def _of(
        self,
        kind: str,
        name: str,
        direction: str | None,
        where: tuple[str, int | None],
        device: DeviceKey | None,
        root: str | None,
    ) -> int | None:
        what, work = (kind, name, direction, where), self._facts.work
        if kind not in WITH_ROWS:
            return self._place((kind, name), label(name), "call", lambda: self._others.get((kind, name), ()))
        mine = self._groups.get(what, [])
        if root is not None:
            mine = [row for row in mine if work.paths[work.path[row]][:1] == (root,)]
        group, path = self._group(device), () if root is None else (root,)
        return self._place((what, root), label(name), "call", lambda: self._times(mine), len(mine), group, path)

    def _group(self, device: DeviceKey | None) -> str:
        """The group of a device's rows."""
        return "" if device is None else group_name(self._facts.session, device)

    def _place(
        self,
        key: Any,
        name: str | None,
        what: str,
        times: "Callable[[], Iterable[_Times]]",
        of: int | None = None,
        group: str = "",
        path: Path = (),
    ) -> int | None:
        """The number of a place, made of its longest times when it is asked for the first time. ``of``: how many there
        are, where these are not all. ``group``, ``path``: of the rows and of the blocks in which they are to be looked
        for: at the same time there may be others of that name."""
        if key in self._known:
            return self._known[key]
        found = list(times())
        number = self._known[key] = len(self.rows) if found else None
        if found:
            longest = sorted(nlargest(self._limit, found, key=_length))
            before = chain((self._start_ns,), (start for start, _ in longest))  # each start is told from the one before
            at = chain.from_iterable(
                (start - last, end - start) for (start, end), last in zip(longest, before, strict=False)
            )
            shown = None if name is None else one_line(name, _NAME_LIMIT)
            row = {"name": shown, "what": what, "of": len(found) if of is None else of, "at": list(at)}
            row |= {"group": group} if group else {}
            self.rows.append(row | ({"path": one_line(" › ".join(path), _NAME_LIMIT)} if path else {}))
        return number

    def _times(self, rows: _Rows, most: int = _MOST) -> list[_Times]:
        """Of the longest of some rows."""
        start, lengths, most = self._facts.work.start, self._lengths, min(most, self._limit)
        if len(rows) > most:
            floor = sorted(map(lengths.__getitem__, rows))[-most]
            longer = [row for row in rows if lengths[row] > floor]
            rows = longer + list(islice((row for row in rows if lengths[row] == floor), most - len(longer)))
        return [(start[row], start[row] + max(0, lengths[row])) for row in rows]

    @cached_property
    def _lengths(self) -> "array[int]":
        return array("q", map(sub, self._facts.work.end, self._facts.work.start))

    @cached_property
    def _groups(self) -> dict[_What, _Rows]:
        kinds = [
            (one.kind, one.name, one.direction, _where(one.kind, one.backend, one.device))
            for one in self._facts.work.kinds
        ]
        return self._grouped(lambda path, kind: kinds[kind])

    @cached_property
    def _ways(self) -> dict[tuple[Any, ...], _Rows]:
        kinds = [
            (one.kind, one.direction, card(one.backend, one.device), one.source, one.destination)
            for one in self._facts.work.kinds
        ]
        return self._grouped(lambda path, kind: kinds[kind])

    @cached_property
    def _launched(self) -> dict[tuple[Path, str, str], _Rows]:
        work = self._facts.work
        return self._grouped(lambda path, kind: (work.paths[path], work.kinds[kind].kind, work.kinds[kind].name))

    @cached_property
    def _waits(self) -> "dict[str | None, _Rows]":
        return self._grouped(lambda path, kind: self._facts.work.kinds[kind].source_line)

    def _grouped(self, key: Callable[[int, int], Any]) -> dict[Any, _Rows]:
        """Rows by what their path and their kind make together."""
        found: dict[Any, _Rows] = {}
        for (path, kind), rows in self._by_pair.items():
            found.setdefault(key(path, kind), []).extend(rows)
        return found

    @cached_property
    def _by_pair(self) -> dict[tuple[int, int], _Rows]:
        found: dict[tuple[int, int], _Rows] = {}
        work = self._facts.work
        for row, pair in enumerate(zip(work.path, work.kind, strict=True)):
            mine = found.get(pair)
            if mine is None:
                mine = found[pair] = []
            mine.append(row)
        return found

    @cached_property
    def _others(self) -> dict[tuple[str, str], list[_Times]]:
        """Of what has no rows, as work of the processor and calls of the system."""
        found: dict[tuple[str, str], list[_Times]] = {}
        for one in self._facts.calls:
            if one.kind not in WITH_ROWS:
                times = zip(one.records, one.lengths, strict=True)
                found.setdefault((one.kind, one.name), []).extend(
                    (record.start_ns, record.start_ns + length) for record, length in times
                )
        return found

    @cached_property
    def _passes(self) -> dict[Path, list[_Times]]:
        found: dict[Path, list[_Times]] = {}
        for record in self._facts.session.blocks:
            found.setdefault(record.path, []).append((record.start_ns, max(record.start_ns, record.end_ns)))
        return found

    def _waits_for(self, late: str) -> list[_Times]:
        """From the first rank's arrival to the last one's, of collectives in which a rank that is late came last."""
        answer, told = self._facts.session.once(ranks_of), self._facts.session.once(job_of).told
        if answer is None or told is None:
            return []
        places = {at for at, row in enumerate(answer.ranks) if row.name == late} or set(answer.together)
        return [(each.parts[0].start_ns, each.last.start_ns) for each in told.joined if each.last.process in places]

    @staticmethod
    def _gaps(about: list[list[View]], cause: str, phase: str) -> list[_Times]:
        """Of some devices, in the phase where it has any."""
        found: list[_Times] = []
        for views in about:
            gaps, of = views[0].walk.gaps, [view for view in views if view.name == phase and view.causes[cause].gaps]
            numbers = sorted({number for view in of or views for number in view.causes[cause].gaps})
            found += zip(map(gaps.start.__getitem__, numbers), map(gaps.end.__getitem__, numbers), strict=True)
        return found


def _length(times: _Times) -> int:
    return times[1] - times[0]


def _where(kind: str, backend: str, device: int | None) -> tuple[str, int | None]:
    """The card that work is on. A wait is the host's: its record need not say for which device."""
    return ("", None) if kind == "sync" else card(backend, device)
