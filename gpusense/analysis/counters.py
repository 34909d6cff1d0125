"""What the chip did inside each block: samples of hardware counters, over the time in which a device did its work.

A sample knows of no block. The device does work of a block from the first piece of it to the last, before it does that
of another one of the same process. A sample at an edge is of the neighbour, too, and nobody knows how much of it. Where
that could change a share by two points at most, it counts in proportion. Where it could change more, only samples count
that lie wholly in one pass, if there are enough. Else nothing is shown, and why. Where two blocks, or two processes,
have work on a device at the same time, the counters are of both, and that is said.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from math import nan
from typing import Any, NamedTuple

from .._records.counter_samples import AVERAGES, CounterColumns
from .._records.device_identity import device_of
from .._records.records import KINDS, BlockRecord, Path
from .._records.work import WorkTable
from .._runtime.text import count_text, time_text
from ..session import Session
from .anomalies import median
from .counter_sampling import Sampling, sampled_columns, samplings, told_error_ns, usual_ns
from .facts import Facts
from .peaks import peaks
from .sampled import sampled

#: Fewer samples than this say nothing of a block.
LEAST_SAMPLES = 5
#: By so much of the whole a share may be wrong at most because of samples at edges, for these to count.
MOST_UNSURE = 0.02
#: Where they do not, the others must be of so much of the time in which the block was sampled.
LEAST_SHARE = 0.5
#: Rates that may be asked for instead, and what they are in samples a second.
_RATES = {"1kHz": 1_000, "2kHz": 2_000, "5kHz": 5_000, "10kHz": 10_000, "20kHz": 20_000}
#: Of the time of a block, from which on work of others beside it is told.
SHARED = 0.02
#: Around kernels that are compared with samples, at least; and how many such comparisons make up for one another.
AROUND_NS = 6_000_000
_LEAST_CENTRES, _MOST_CENTRES = 5, 300

Stretch = tuple[int, int]


class BlockShares(NamedTuple):
    """The counters of one path of blocks on one device, all its passes together, with the blocks inside.

    Shares are in percent of what the units of the whole device could have done in this time. What was not measured is
    None; where nothing of it can be told, :attr:`reason` says why.
    """

    path: Path  # (): all work of the device
    device: int  # CUDA ordinal
    samples: float  # that are of it, in part too
    sampled_ns: int  # the time of these, of ``device_ns``
    device_ns: int  # from the first to the last of its work on the device, pauses inside included
    by: str  # "device"; where its work was not recorded "events" at the edges, or "host": from opening to closing
    shared: tuple[str, ...] = ()  # whose work is in it, too
    graphics_engine_percent: float | None = None
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_percent: float | None = None
    copy_engine_percent: float | None = None
    sm_clock_mhz: float | None = None
    dram_read_bytes: float | None = None  # in the sampled time, as all amounts
    dram_write_bytes: float | None = None
    l2_bytes: float | None = None
    pcie_rx_bytes: float | None = None
    pcie_tx_bytes: float | None = None
    nvlink_rx_bytes: float | None = None
    nvlink_tx_bytes: float | None = None
    dispatches: float | None = None
    dram_peak_bytes_per_s: float | None = None  # what the device can move at most
    moved_ns: int | None = None  # samples were moved back so far, to agree with the records of the device's kernels
    reason: str | None = None  # why nothing is told of it

    def per_second(self, *fields: str) -> float | None:
        """Of the amounts in these fields together; None where one was not measured."""
        amounts = [getattr(self, field) for field in fields]
        if None in amounts or not self.sampled_ns:
            return None
        return float(sum(amounts)) * 1e9 / self.sampled_ns

    @property
    def dram_bytes_per_s(self) -> float | None:
        """Read and written."""
        return self.per_second("dram_read_bytes", "dram_write_bytes")

    @property
    def dram_percent(self) -> float | None:
        """Of what the memory can move at most."""
        rate, peak = self.dram_bytes_per_s, self.dram_peak_bytes_per_s
        return None if rate is None or not peak else 100 * rate / peak


class Sum(NamedTuple):
    """What samples say of some time."""

    ns: int = 0  # that was sampled
    samples: float = 0.0
    values: dict[str, float] = {}  # noqa: RUF012 - of each field; never changed


_Place = tuple[int, float, int, float]  # the sample it begins in, and how much of that lies before; the same of its end


class Integral:
    """Sums over time of a device's samples, so that a question of any stretch takes two look-ups."""

    def __init__(self, columns: CounterColumns, late_ns: int | None = None, error_ns: int | None = None) -> None:
        """``late_ns``: by how much the times of the samples are too late, and ``error_ns`` how far from the true ones
        they may be then; None where that is not known."""
        self.columns, self.late_ns, self.error_ns = columns, late_ns, error_ns
        lengths = [end - start for start, end in zip(columns.start, columns.end, strict=True)]
        self._time = [0, *accumulate(lengths)]
        self._sums: dict[str, list[float]] = {}
        for field, values in zip(columns.fields, columns.values, strict=True):
            known = [value if value == value else 0.0 for value in values]
            if any(value == value for value in values):
                if field in AVERAGES:
                    known = [value * length for value, length in zip(known, lengths, strict=True)]
                self._sums[field] = [0.0, *accumulate(known)]

    @property
    def fields(self) -> list[str]:
        """Those that have a value in some sample."""
        return list(self._sums)

    def over(self, stretches: Iterable[Stretch]) -> Sum:
        """All of their time; samples at an edge count in proportion."""
        return self._sum(self._places(stretches))

    def own(self, stretches: Iterable[Stretch]) -> list[Stretch] | str:
        """Of these stretches the parts that samples tell of, and of nothing beside them; or why they do not.

        A sample at an edge may have counted the neighbour's work alone, and so may one as near as the clock's error.
        """
        passes = list(stretches)
        places = self._places(passes)
        seen_ns, seen = self._amount(places)
        if seen < LEAST_SAMPLES:
            return f"only {count_text(int(seen), 'sample')} in its time" if seen >= 1 else "no sample in its time"
        if self._unsure_ns(places) <= MOST_UNSURE * seen_ns:
            return passes
        whole = self._whole(passes)
        own_ns, own = self._amount(self._places(whole))
        if own >= LEAST_SAMPLES and own_ns >= LEAST_SHARE * seen_ns:
            return whole
        return self._too_short(sorted(end - start for start, end in passes))

    def _whole(self, stretches: list[Stretch]) -> list[Stretch]:
        """From the first to the last sample that lies in each of them, wherever the clock's error puts it."""
        starts, ends = self.columns.start, self.columns.end
        late, error = self.late_ns or 0, self.error_ns or 0
        rows = (
            (bisect_left(starts, first + late + error), bisect_right(ends, last + late - error) - 1)
            for first, last in stretches
        )
        return [(starts[first] - late, ends[last] - late) for first, last in rows if first <= last]

    def _unsure_ns(self, places: list[_Place]) -> float:
        """Time that at most is counted for the wrong side of an edge: of a sample that lies half in it, a quarter."""
        columns, found = self.columns, 2.0 * (self.error_ns or 0) * len(places)
        for row, part, last, last_part in places:
            inner = ((row, last_part - part),) if row == last else ((row, 1 - part), (last, last_part))
            found += sum(share * (1 - share) * (columns.end[at] - columns.start[at]) for at, share in inner)
        return found

    @cached_property
    def interval_ns(self) -> int:
        """The median length of a sample."""
        return usual_ns(self.columns)

    def _too_short(self, passes: list[int]) -> str:
        usual, error = passes[len(passes) // 2], self.error_ns or 0

        def fits(length_ns: float) -> bool:
            inner = usual - 2 * error - length_ns  # in which whole samples lie, on an average
            return inner >= LEAST_SHARE * usual and inner * len(passes) >= LEAST_SAMPLES * length_ns

        return f"passes hold too few samples of {time_text(self.interval_ns)}: {_rate(fits)}"

    def _places(self, stretches: Iterable[Stretch]) -> list[_Place]:
        starts, ends, late = self.columns.start, self.columns.end, self.late_ns or 0

        def place(time: int) -> tuple[int, float]:
            time += late
            row = bisect_right(starts, time) - 1
            if row < 0:
                return 0, 0.0
            return row, min(1.0, (time - starts[row]) / max(1, ends[row] - starts[row]))

        return [(*place(first), *place(last)) for first, last in stretches] if len(starts) else []

    def _amount(self, places: list[_Place]) -> tuple[float, float]:
        """Nanoseconds that were sampled, and in how many samples."""
        return _total(self._time, places), sum(last + last_part - row - part for row, part, last, last_part in places)

    def _sum(self, places: list[_Place]) -> Sum:
        spent, count = self._amount(places)
        if spent <= 0:
            return Sum()
        values = {field: _total(sums, places) for field, sums in self._sums.items()}
        averaged = {field: value / spent if field in AVERAGES else value for field, value in values.items()}
        return Sum(round(spent), count, averaged)


def _total(sums: "list[int] | list[float]", places: list[_Place]) -> float:
    found = 0.0
    for row, part, last, last_part in places:
        found += sums[last] - sums[row]
        found += (sums[last + 1] - sums[last]) * last_part - (sums[row + 1] - sums[row]) * part
    return found


def integrals(session: Session) -> dict[int, Integral]:
    """One a device that was sampled."""
    return {device: Integral(part, *_clock(session, part)) for device, part in sampled_columns(session).items()}


def samplings_moved(session: Session) -> list[Sampling]:
    """One a device that was sampled, with its clock as the device's work shows it, where it does."""
    clocks = session.once(integrals)
    return [
        one._replace(clock_error_ns=clocks[one.device].error_ns, moved_ns=clocks[one.device].late_ns)
        for one in samplings(session)
    ]


def _clock(session: Session, columns: CounterColumns) -> tuple[int | None, int | None]:
    """By how much samples are later than the kernels that they are of, and the error of that; where it cannot be told
    None, and the error that the sampler told.

    Kernels that the device did alone, with nothing before and behind, have a centre in time, and so have the counts of
    the samples around them. Half of them differ by less than the error.
    """
    unmoved = None, told_error_ns(session, columns.device)
    busy = columns.column("graphics_engine_percent") or columns.column("sm_active_percent")
    if busy is None or not len(columns):
        return unmoved
    usual = usual_ns(columns)
    around = max(3 * usual, AROUND_NS)
    found = []
    for start, end, centre in _alone(session, columns.device, 2 * around):
        first, last = (bisect_left(columns.start, time) for time in (start - around, end + around))
        weights = [(busy[row] * (columns.end[row] - columns.start[row])) for row in range(first, last)]
        if first and last < len(columns) and sum(weights) > 0:
            moments = (
                weight * ((columns.start[row] + columns.end[row]) / 2 - start)
                for row, weight in zip(range(first, last), weights, strict=True)
            )
            found.append(sum(moments) / sum(weights) + start - centre)
        if len(found) == _MOST_CENTRES:
            break
    if len(found) < _LEAST_CENTRES:
        return unmoved
    late = median(found)
    spread = median(abs(one - late) for one in found)
    agree = spread < max(usual / 4, 100_000) and abs(late) < around / 2
    return (round(late), round(spread)) if agree else unmoved


def _alone(session: Session, device: int, pause_ns: int) -> Iterator[tuple[int, int, float]]:
    """Start, end and centre of kernels that follow one another, where the device did none for so long around them."""
    work = session.once(Facts).work
    mine = {number for number, kind in enumerate(work.kinds) if kind.device == device and kind.kind == "kernel"}
    begin = last = 0
    weight = moment = 0.0
    paused = False
    for kind, start, end in zip(work.kind, work.start, work.end, strict=True):
        if kind not in mine or start <= 0:
            continue
        if start - last >= pause_ns:
            if paused and weight:
                yield begin, last, begin + moment / weight
            paused, begin, weight, moment = True, start, 0.0, 0.0
        free = max(start, last) if weight else start  # of kernels beside each other the time counts once
        if end > free:
            weight += end - free
            moment += (end - free) * ((free + end) / 2 - begin)
        last = max(last, end)


def block_shares(session: Session) -> list[BlockShares]:
    """A row for each path and device with work, parents first; nothing where nothing was sampled."""
    rows: list[BlockShares] = []
    for device, integral in session.once(integrals).items():
        stretches, by = device_stretches(session, device)
        others = _others(session, device)
        together, busy = _together(stretches, session), None
        for path, (spans, beside_ns) in stretches.items():
            spent = sum(last - first for first, last in spans)
            own = integral.own(spans)
            if not isinstance(own, str) and own != spans and by == "device":
                busy = busy or busy_before(session, device)
                own = _unlike(spans, own, busy, integral.interval_ns) or own
            if isinstance(own, str):
                rows.append(BlockShares(path, device, 0, 0, spent, by, reason=own))
                continue
            beside = ("other processes",) if path[:1] in together else others
            shared = (*(("other blocks",) if path and beside_ns > SHARED * spent else ()), *beside)
            rows.append(_summed(session, BlockShares(path, device, 0, 0, spent, by, shared), integral, own))
    order = session.once(_places)
    return sorted(rows, key=lambda row: (row.device, order.get(row.path, 0)))


def shares_over(session: Session, device: int, spans: Sequence[Stretch], path: Path = ()) -> BlockShares | None:
    """All that a device counted in some time, whosever work it was; None where its samples do not say enough of it."""
    integral = session.once(integrals).get(device)
    own = integral.own(spans) if integral is not None else ""
    if integral is None or isinstance(own, str):
        return None
    row = BlockShares(
        path, device, 0, 0, sum(last - first for first, last in spans), "device", _others(session, device)
    )
    return _summed(session, row, integral, own)


def _summed(session: Session, row: BlockShares, integral: Integral, own: Iterable[Stretch]) -> BlockShares:
    """The row with what the samples of its own time say."""
    found, card = integral.over(own), device_of(session.devices, "cuda", row.device)
    peak = peaks(card).bytes_per_s if card is not None else None
    fields: dict[str, Any] = {**found.values, "dram_peak_bytes_per_s": peak, "moved_ns": integral.late_ns}
    return row._replace(samples=found.samples, sampled_ns=found.ns, **fields)


def _unlike(passes: list[Stretch], own: list[Stretch], busy: Callable[[int], int], sample_ns: int) -> str:
    """Why the rest of the passes does not stand for all of them, as far as the records of kernels tell; "" where it
    does."""
    shares = [
        sum(busy(last) - busy(first) for first, last in spans) / sum(last - first for first, last in spans)
        for spans in (passes, own)
    ]
    if abs(shares[0] - shares[1]) <= MOST_UNSURE:
        return ""
    usual = sorted(last - first for first, last in passes)[len(passes) // 2]
    hint = _rate(lambda interval_ns: interval_ns / 2 <= MOST_UNSURE * usual)
    return (
        f"passes begin or end unlike their middle, and samples of {time_text(sample_ns)} are too coarse for it: {hint}"
    )


def busy_before(session: Session, device: int) -> Callable[[int], int]:
    """How long the device had run kernels by some time."""
    work = session.once(Facts).work
    kinds = {number for number, kind in enumerate(work.kinds) if kind.device == device and kind.kind == "kernel"}
    starts, ends, sums = array("q"), array("q"), array("q", [0])
    for kind, start, end in zip(work.kind, work.start, work.end, strict=True):
        if kind in kinds and start > 0 and (not ends or end > ends[-1]):
            starts.append(max(start, ends[-1]) if ends else start)
            ends.append(end)
            sums.append(sums[-1] + ends[-1] - starts[-1])

    def before(time: int) -> int:
        row = bisect_right(starts, time) - 1
        return sums[row] + min(time, ends[row]) - starts[row] if row >= 0 else 0

    return before


def _rate(fits: Callable[[float], bool]) -> str:
    """What to do for samples of a length that fits."""
    found = next((rate for rate, hertz in _RATES.items() if fits(1e9 / hertz)), None)
    return f"ask for --counters={found}" if found else "measure() counts them exactly"


def _places(session: Session) -> dict[Path, int]:
    """Of each path in the table of blocks; 0 is before all."""
    return {node.path: place for place, (_, node) in enumerate(session.once(Facts).blocks.walk(), 1)}


def device_stretches(session: Session, device: int) -> tuple[dict[Path, tuple[list[Stretch], int]], str]:
    """For each path when the device did its work, and for how long another's beside it; and by what that is known."""
    found = _by_work(session, device)
    if found:
        return found, "device"
    timed = _by_records(session, lambda record: KINDS[type(record)] == "block_time" and record.device == device)
    return (timed, "events") if timed else (_by_records(session, lambda record: type(record) is BlockRecord), "host")


class _Run:
    """Work of one path that is not over yet."""

    __slots__ = ("beside_ns", "end", "spans", "start", "turn")

    def __init__(self) -> None:
        self.spans: list[Stretch] = []
        self.beside_ns = self.start = self.end = 0
        self.turn = -2  # the last turn in which the device did work of it

    def close(self) -> None:
        if self.turn >= 0:
            self.spans.append((self.start, self.end))


def _by_work(session: Session, device: int) -> dict[Path, tuple[list[Stretch], int]]:
    """By process, as if it were alone: of others the device's times are known in a merged session alone."""
    work = session.once(Facts).work
    kinds = {
        number
        for number, kind in enumerate(work.kinds)
        if kind.device == device and kind.kind != "sync" and kind.timing == "device"
    }
    used = {path for kind, path in work.pairs() if kind in kinds}
    if not session.meta.get("processes"):
        return _runs(_turns(work, kinds, used), work.paths)
    found: dict[Path, tuple[list[Stretch], int]] = {}
    for root in sorted({work.paths[number][:1] for number in used}):
        mine = {number for number in used if work.paths[number][:1] == root}
        runs = _runs(_turns(work, kinds, mine), work.paths)
        whole = [*found.get((), ([], 0))[0], *runs.pop(())[0]]
        found |= {(): ([(min(whole)[0], max(end for _, end in whole))], 0), **runs}
    return found


def _runs(turns: Iterable[tuple[int, int, int]], paths: Sequence[Path]) -> dict[Path, tuple[list[Stretch], int]]:
    """Work in the order of its starts, in turns of one path each: a path goes on while the turns are inside it."""
    runs: dict[Path, _Run] = {}
    inside: dict[int, list[_Run]] = {}  # number of a path → itself and the paths around it
    before_end, before = 0, list[_Run]()
    for turn, (number, start, end) in enumerate(turns):
        mine = inside.get(number)
        if mine is None:
            path = paths[number]
            mine = [runs.setdefault(path[:length], _Run()) for length in range(len(path) + 1)]
            inside[number] = mine
        for run in mine:
            if run.turn != turn - 1:  # it is its turn again, after another's
                run.close()
                run.start, run.end = start, start
                run.beside_ns += max(0, min(before_end, end) - start)
            run.turn, run.end = turn, max(run.end, end)
        for run in before:
            if run.turn != turn:  # another's turn now, and work of it may still go on
                run.beside_ns += max(0, min(run.end, end) - start)
        before, before_end = mine, max(before_end, end)
    for run in runs.values():
        run.close()
    return {path: (run.spans, run.beside_ns) for path, run in runs.items()}


def _turns(work: WorkTable, kinds: Container[int], of: Container[int]) -> Iterator[tuple[int, int, int]]:
    """(number of the path, start, end) of work that follows one another in one path."""
    path, begin, last = -1, 0, 0
    for kind, place, start, end in zip(work.kind, work.path, work.start, work.end, strict=True):
        if kind not in kinds or place not in of or start <= 0:  # 0: when it ran is not known
            continue
        if place == path:
            last = max(last, end)
            continue
        if path >= 0:
            yield path, begin, last
        path, begin, last = place, start, end
    if path >= 0:
        yield path, begin, last


def _together(stretches: dict[Path, tuple[list[Stretch], int]], session: Session) -> set[Path]:
    """The processes of a merged session that had work on the device at the same time as another one."""
    roots = {path: spans for path, (spans, _) in stretches.items() if len(path) == 1}
    times = {path: (spans[0][0], spans[-1][1]) for path, spans in roots.items()}
    return {
        path
        for path, (start, end) in (times if session.meta.get("processes") else {}).items()
        for other, (first, last) in times.items()
        if other != path and min(end, last) - max(start, first) > SHARED * (end - start)
    }


def _by_records(session: Session, of: Callable[[Any], bool]) -> dict[Path, tuple[list[Stretch], int]]:
    """The time of some records by their paths, where the device's work was not recorded."""
    found: dict[Path, list[Stretch]] = {}
    for record in filter(of, session.records):
        found.setdefault(record.path, []).append((record.start_ns, record.end_ns))
    return {path: (_joined(spans), 0) for path, spans in found.items()}


def _joined(spans: list[Stretch]) -> list[Stretch]:
    """Without overlaps, in order."""
    joined: list[Stretch] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _others(session: Session, device: int) -> tuple[str, ...]:
    """Processes of others that the monitor saw at work on the device."""
    mine = {session.meta.get("pid"), *(one.get("pid") for one in session.meta.get("processes") or ())}
    working = (
        process.pid not in mine and process.visible is not False
        for one in sampled(session)
        if one.number == device
        for sample in one.samples
        for process in sample.processes or ()
        if process.gpu_percent
    )
    return ("other processes",) if any(working) else ()


def series(
    session: Session, most: int = 20_000, buckets: int = 2_400, held: bool = False
) -> Iterator[tuple[int, str, str, list[tuple[int, float]]]]:
    """(device, what, unit, points) for charts: every sample, or averages over equal times where there are very many.

    ``held``: every sample from its start on, and NaN from where nothing is known.
    """
    for device, integral in session.once(integrals).items():
        for field, (label, unit) in CHARTS.items():
            if field in integral.fields:
                yield device, label, unit, _held(integral, field) if held else _points(integral, field, most, buckets)


#: Field → what a chart of it is called, and the unit: amounts are drawn as rates.
CHARTS = {
    "sm_active_percent": ("SM active", "%"),
    "tensor_percent": ("Tensor pipe active", "%"),
    "sm_occupancy_percent": ("SM occupancy", "%"),
    "dram_read_bytes": ("DRAM read", "B/s"),
    "dram_write_bytes": ("DRAM written", "B/s"),
    "l2_bytes": ("L2", "B/s"),
    "pcie_rx_bytes": ("PCIe to GPU", "B/s"),
    "pcie_tx_bytes": ("PCIe to host", "B/s"),
    "nvlink_rx_bytes": ("NVLink received", "B/s"),
    "nvlink_tx_bytes": ("NVLink sent", "B/s"),
    "copy_engine_percent": ("Copy engine active", "%"),
    "sm_clock_mhz": ("SM clock", "MHz"),
}


def _rates(integral: Integral, field: str) -> Iterator[tuple[int, int, float]]:
    """Start, end, and the average or the amount a second."""
    columns, late = integral.columns, integral.late_ns or 0
    average, values = field in AVERAGES, columns.column(field)
    assert values is not None
    for start, end, value in zip(columns.start, columns.end, values, strict=True):
        yield start - late, end - late, value if average else value * 1e9 / max(1, end - start)


def _held(integral: Integral, field: str) -> list[tuple[int, float]]:
    points: list[tuple[int, float]] = []
    last = None
    for start, end, value in _rates(integral, field):
        if last is not None and start > last:
            points.append((last, nan))
        points.append((start, value))
        last = end
    return points if last is None else [*points, (last, nan)]


def _points(integral: Integral, field: str, most: int, buckets: int) -> list[tuple[int, float]]:
    columns, average, late = integral.columns, field in AVERAGES, integral.late_ns or 0
    if len(columns) <= most:
        return [((start + end) // 2, value) for start, end, value in _rates(integral, field) if value == value]
    begin, length = columns.start[0] - late, columns.end[-1] - columns.start[0]
    points = []
    for number in range(buckets):
        first, last = begin + length * number // buckets, begin + length * (number + 1) // buckets
        spent, _, values_of = integral.over([(first, last)])
        if spent * 2 > last - first:
            value = values_of[field]
            points.append(((first + last) // 2, value if average else value * 1e9 / spent))
    return points
