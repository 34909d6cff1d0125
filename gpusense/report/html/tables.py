"""The page's smaller tables, each only where the session has what it needs: text cells, ready to show."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..._records.device_identity import card, device_text
from ..._runtime.text import (
    count_text,
    flops_text,
    joules_text,
    one_line,
    percent_text,
    rate_text,
    size_text,
    time_text,
)
from ...analysis.anomalies import median
from ...analysis.backends import side_by_side
from ...analysis.collectives import Row, slow_links
from ...analysis.energy import energy
from ...analysis.facts import Facts
from ...analysis.memory import memory
from ...analysis.operation import Operation
from ...analysis.ranks import Ranks, RankTime, collectives_of, job_of, name_of, names_text, ranks_of
from ...analysis.roofline import intensity_text, measured, rate_of, roofline, told
from ...session import Session
from ..counter_remarks import remarks, told_shares
from ..tracks import DIRECTIONS, label
from .places import Places

_ROWS = 20
_COUNTED, _ENERGY = "Counters by block", "Energy by block"
#: A column that says this in all rows is left out.
_NOTHING = frozenset({"–", ""})
#: So many ranks have a row each; of more those that are alike have one.
_EACH_RANK = 8


class _Row(NamedTuple):
    cells: tuple[str, ...]
    place: "Callable[[Places], int | None] | None" = None  # where on the timeline it is


_Rows = list[_Row]


def small_tables(session: Session, facts: Facts, places: Places | None = None) -> list[dict[str, Any]]:
    """Tables with at least one row, each with a title, a note, heads and rows; with ``places`` where these are."""
    used: tuple[Any, ...] = (*facts.times, *facts.transfers, *_timed_by_host(facts))
    several = len({card(one.backend, one.device) for one in used}) > 1
    device = ("Device",) if several else ()
    makers: tuple[tuple[str, str, tuple[str, ...], Callable[[], _Rows]], ...] = (
        (
            "Copies",
            "rate: of all copies of the row; fastest: of the best single one; link: what the hardware can do",
            ("Direction", *device, "Memory", "Calls", "Bytes", "Time", "Rate", "Fastest", "Link"),
            lambda: _copies(facts, several),
        ),
        (
            "Waits by line",
            "lines of the program that made the host wait for the device",
            ("Line", "Calls", "Time", "Average", "Longest"),
            lambda: _waits(facts),
        ),
        (
            "Warm-up",
            "first: that call or pass; then: what later ones usually take; cost: how much longer the first took",
            ("What", "First", "Then", "Calls", "Cost"),
            lambda: _warm_up(facts, several),
        ),
        (
            _COUNTED,
            "sampled: of the time from first to last work; of peak: of what memory can move; shared: work of others",
            ("Block", "Device", "Sampled", "SM", "Tensor", "DRAM", "Of peak", "PCIe", "Shared with"),
            lambda: _counters(session),
        ),
        (
            "Memory by block",
            "memory that each block allocated on the device",
            ("Block", "Device", "At the peak", "Own peak", "Never released"),
            lambda: _memory(session),
        ),
        (
            _ENERGY,
            "what the whole device used while the block was open; sampled: of that time, passes with samples in them",
            ("Block", "Device", "Energy", "Passes", "Each", "Sampled"),
            lambda: _energy(session),
        ),
        (
            "Measured blocks",
            "counted by the device; rates and shares are of the time in which it worked, % of what it can do at most",
            (
                *("Block", *device, "Passes", "Each", "Worked", "Operations", "of peak", "DRAM", "of peak"),
                *("Intensity", "SM", "Tensor", "Roof"),
            ),
            lambda: _measured(session, several) if places is not None else [],
        ),
        (
            "Roofline",
            "work given as attributes, against what the device can do at most in single precision",
            ("What", "Intensity", "Reached", "Attainable", "Share", "Bound by"),
            lambda: _roofline(session),
        ),
        (
            "Ranks",
            "exposed: communicates while nothing is computed; ranks that hardly differ share a row of medians",
            ("Rank", "Computes", "Communicates", "Exposed", "Waits for others", "Arrives last", "Clock apart"),
            lambda: _ranks(session),
        ),
        (
            "Collectives",
            "time: from the last rank's arrival on where all ranks are here, else with waiting; bus: as NCCL tests it",
            ("Collective", "Ranks", "Bytes", "Algorithm", "Calls", "Time", "Bus", "Exposed", "Waited", "Comes last"),
            lambda: _collectives(session),
        ),
        (
            "Side by side",
            "the same operation on several backends",
            ("Operation", "Where", "Calls", "Average", "Total"),
            lambda: _backends(session, facts),
        ),
    )
    tables = []
    for title, note, heads, make in makers:
        rows = make()
        if rows:
            shown = rows[:_ROWS]
            told = {_COUNTED: remarks, _ENERGY: _energy_remarks}.get(title, lambda _: [])(session)
            columns = [*zip(heads, *(row.cells for row in shown), strict=True)]
            said = [column for column in columns if not _NOTHING.issuperset(column[1:])]
            heads, *cells = zip(*said, strict=True)
            table: dict[str, Any] = {"title": title, "note": note, "heads": heads, "rows": cells}
            if places is not None:
                table["places"] = [row.place(places) if row.place is not None else None for row in shown]
            tables.append({**table, "remarks": told, "more": len(rows) - len(shown)})
    return tables


def _copies(facts: Facts, several: bool) -> _Rows:
    """``several``: with the device whose copies a row counts."""
    rows: _Rows = []
    for row in facts.transfers:
        pair = "" if row.source_device is None else f" {row.source_device} → {row.destination_device}"
        memory_kind = " → ".join(kind for kind in (row.source, row.destination) if kind) or "–"
        cells = (
            DIRECTIONS.get(row.direction, one_line(row.direction)) + pair,
            *((device_text(facts.session.devices, row.backend, row.device),) if several else ()),
            one_line(memory_kind),
            f"{row.count:,}",
            size_text(row.bytes),
            time_text(row.total_ns),
            rate_text(row.bandwidth_bytes_per_s),
            rate_text(row.peak_bytes_per_s),
            rate_text(row.link_bytes_per_s),
        )
        where = partial(
            Places.copies,
            direction=row.direction,
            backend=row.backend,
            device=row.device,
            source=row.source,
            destination=row.destination,
        )
        rows.append(_Row(cells, where))
    for copy in _timed_by_host(facts):  # whose time is the call's, and no rate
        what = f"{DIRECTIONS.get(copy.direction or '', 'copies')}: {one_line(copy.name)}"
        device = (device_text(facts.session.devices, copy.backend, copy.device),) if several else ()
        unknown = ("–",) * 3
        counted = (f"{copy.count:,}", size_text(copy.bytes), time_text(copy.total_ns))
        rows.append(_Row((what, *device, "–", *counted, *unknown), partial(Places.operation, row=copy)))
    return rows


def _timed_by_host(facts: Facts) -> list[Operation]:
    return [row for row in facts.operations if row.kind == "transfer" and row.timing == "host" and row.bytes]


def _waits(facts: Facts) -> _Rows:
    if not any(wait.source_line for wait in facts.waits):
        return []
    return [
        _Row(
            (
                one_line(wait.source_line or "(not known)"),
                f"{wait.count:,}",
                time_text(wait.total_ns),
                time_text(wait.avg_ns),
                time_text(wait.max_ns),
            ),
            partial(Places.line, line=wait.source_line),
        )
        for wait in facts.waits
    ]


def _warm_up(facts: Facts, several: bool) -> _Rows:
    """``several``: with the device of a first call."""
    devices = facts.session.devices
    rows: _Rows = [
        _Row(
            (
                f"{one_line(' › '.join(row.path))}, {row.passes} of {count_text(row.of, 'pass', 'passes')}",
                time_text(row.warm_up_ns / row.passes),
                time_text(row.steady_ns),
                f"{row.of:,}",
                time_text(row.excess_ns),
            ),
            partial(Places.first_passes, path=row.path, count=row.passes),
        )
        for row in facts.warm_ups
    ]
    return rows + [
        _Row(
            (
                one_line(label(row.name))
                + (f" on {device_text(devices, 'cuda', row.device)}" if several and row.device is not None else ""),
                time_text(row.first_ns),
                time_text(row.steady_ns),
                f"{row.calls:,}",
                time_text(row.excess_ns),
            ),
            partial(Places.first_call, kind=row.kind, name=row.name, device=row.device),
        )
        for row in facts.first_calls
    ]


def _counters(session: Session) -> _Rows:
    def share(percent: float | None) -> str:
        return percent_text(None if percent is None else percent / 100)

    return [
        _Row(
            (
                one_line(" › ".join(row.path)),
                device_text(session.devices, "cuda", row.device),
                f"{time_text(row.sampled_ns)} of {time_text(row.device_ns)}",
                share(row.sm_active_percent),
                share(row.tensor_percent),
                rate_text(row.dram_bytes_per_s),
                share(row.dram_percent),
                rate_text(row.per_second("pcie_rx_bytes", "pcie_tx_bytes")),
                ", ".join(row.shared),
            ),
            partial(Places.block, path=row.path),
        )
        for row in told_shares(session)
    ]


def _memory(session: Session) -> _Rows:
    return [
        _Row(
            (
                one_line(" › ".join(block.path)) if block.path else "(outside any block)",
                device_text(session.devices, device.backend, device.device),
                size_text(block.at_peak_bytes),
                size_text(block.peak_bytes),
                size_text(block.held_bytes),
            ),
            partial(Places.block, path=block.path),
        )
        for device in memory(session)
        for block in device.blocks
    ]


def _energy(session: Session) -> _Rows:
    return [
        _Row(
            (
                one_line(" › ".join(block.path)),
                device.card,
                f"{'≈' * block.estimated}{joules_text(block.joules)}",
                f"{block.passes:,}",
                "–" if block.estimated else joules_text(block.joules_per_pass),
                percent_text(block.sampled_share),
            ),
            partial(Places.block, path=block.path),
        )
        for device in energy(session)
        for block in device.blocks
        if block.sampled_share > 0
    ]


def _energy_remarks(session: Session) -> list[str]:
    blocks = [block for device in energy(session) for block in device.blocks]
    unknown = sum(block.sampled_share == 0 for block in blocks)
    return [
        *(
            ["≈: most passes are shorter than the time between two samples: power around them times their time."]
            if any(block.estimated and block.sampled_share for block in blocks)
            else []
        ),
        *(
            [f"{count_text(unknown, 'block')} had no sample in any pass: what the device used then is not known."]
            if unknown
            else []
        ),
    ]


def _roofline(session: Session) -> _Rows:
    return [
        _Row(
            (
                one_line(point.name),
                "–" if point.intensity is None else f"{point.intensity:.3g} flop/B",
                flops_text(point.flops_per_s),
                flops_text(point.attainable_flops_per_s),
                percent_text(point.share),
                point.bound or "–",
            ),
            partial(Places.called, kind="kernel", name=point.name),
        )
        for point in roofline(session)
    ]


def _measured(session: Session, several: bool) -> _Rows:
    return [
        _Row(
            (
                one_line(row.name),
                *((device_text(session.devices, "cuda", row.device),) if several else ()),
                f"{row.passes:,}",
                time_text(row.device_ns),
                percent_text(row.busy),
                " + ".join(f"{rate_of(one.per_s, one.type)} {one.type}" for one in told(row.operations)) or "–",
                percent_text(row.compute_share),
                rate_text(row.bytes_per_s),
                percent_text(row.memory_share),
                "–" if row.intensity is None else intensity_text(row.intensity),
                percent_text(row.sm_active),
                percent_text(row.tensor_active),
                row.roof or "–",
            ),
            partial(Places.block, path=row.path),
        )
        for row in session.once(measured)
    ]


def _ranks(session: Session) -> _Rows:
    answer = session.once(ranks_of)
    if answer is None:
        return []
    groups: Sequence[Sequence[int]] = [(at,) for at in range(len(answer.ranks))]
    if len(groups) > _EACH_RANK:
        groups = answer.alike
    return [_Row(_rank_cells([answer.ranks[at] for at in mine])) for mine in groups]


def _rank_cells(rows: Sequence[RankTime]) -> tuple[str, ...]:
    """Of a rank; of several the median, where they are not alike with the least and the most."""
    offsets = [row.clock_offset_ns for row in rows if row.clock_offset_ns is not None]
    matched = max(row.collectives for row in rows)
    return (
        one_line(names_text(rows), 60),
        _times([row.compute_ns for row in rows]),
        _times([row.collective_ns for row in rows]),
        _times([row.collective_exposed_ns for row in rows]),
        _times([row.waited_ns for row in rows if row.collectives]),
        f"{sum(row.last_arrivals for row in rows):,} of {matched:,}",
        time_text(max(offsets, key=abs, default=None)),
    )


def _times(values: Sequence[int]) -> str:
    """The median; "1.20 s (1.00 to 1.40 s)" of values that differ by a tenth or more."""
    if not values:
        return time_text(None)
    middle, low, high = median(values), min(values), max(values)
    usual = time_text(middle)
    return usual if high - low < 0.1 * middle or len(values) == 1 else f"{usual} ({time_text(low)} – {time_text(high)})"


def _collectives(session: Session) -> _Rows:
    rows = session.once(collectives_of)
    if not rows:
        return []
    these = session.once(job_of)
    names = [one_line(name_of(*pair), 40) for pair in zip(these.sessions, these.numbers, strict=True)]
    slow = {id(each.row): each.usual_ns for each in slow_links(rows)}
    answer = session.once(ranks_of)
    return [
        _Row(
            (
                f"Send, {names[row.ends[0]]} to {names[row.ends[1]]}" if row.ends[1:] else one_line(row.name),
                _members(row, answer),
                size_text(row.bytes),
                one_line(" ".join(filter(None, (row.algorithm, row.protocol))) or "–"),
                f"{row.calls:,}",
                time_text(row.typical_ns) + (f" (others {time_text(slow[id(row)])})" if id(row) in slow else ""),
                rate_text(row.bus_bandwidth),
                _exposed(row),
                time_text(row.waited_ns),
                _last(row, names),
            )
        )
        for row in rows
    ]


def _members(row: Row, answer: Ranks | None) -> str:
    """How many; which, where they are not all of the job."""
    name = f" in {one_line(row.communicator_name, 40)}" if row.communicator_name else ""
    if row.communicators > 1:
        others, count = count_text(row.communicators - 1, "other"), count_text(row.communicators, "communicator")
        name = f"{name} and {others}" if name else f" in {count}"
    if answer is None or len(row.members) in (0, len(answer.ranks)):
        return f"{row.ranks or '–'}{name}"
    return f"{row.ranks or '–'}{name}: {one_line(names_text([answer.ranks[at] for at in row.members]), 40)}"


def _exposed(row: Row) -> str:
    """The part of the time for which nothing was computed beside."""
    whole = (row.exposed_ns or 0) + (row.hidden_ns or 0)
    return "–" if row.exposed_ns is None or not whole else percent_text(row.exposed_ns / whole)


def _last(row: Row, names: Sequence[str]) -> str:
    """Who comes last, unless that is one as often as another."""
    if row.last_share is None or row.last_process is None:
        return "–"
    if row.calls > 1 and row.last_share <= max(0.1, 2 / max(2, len(row.members))) and len(row.members) > 2:
        return f"each at times ({percent_text(row.last_share)} at most)"
    return f"{names[row.last_process]}: {percent_text(row.last_share)}"


def _backends(session: Session, facts: Facts) -> _Rows:
    return [
        _Row(
            (
                DIRECTIONS.get(pair.name, one_line(pair.name)),
                row.backend if row.device is None else f"{row.backend} {row.device}",
                f"{row.count:,}",
                time_text(row.avg_ns),
                time_text(row.total_ns),
            ),
            partial(Places.operation, row=row),
        )
        for pair in side_by_side(session, facts.operations)
        if len({row.backend for row in pair.sides}) > 1
        for row in pair.sides
    ]
