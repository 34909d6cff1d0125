"""What comparing the ranks of a job needs of each: a few figures and its collectives, instead of all its work."""

from collections.abc import Sequence
from typing import NamedTuple

from .._records.records import GpuCollective, Record
from .._records.work import WorkTable
from ..session import Session
from .anomalies import median
from .busy import columns, window
from .collectives import EXPOSED, exposed_of
from .families import is_collective
from .sampled import concerned
from .sweep import COLLECTIVE, COMPUTE, Columns, sweep

#: In ``meta`` of a session, or of one of its processes: its figures, because its work is not there.
FIGURES = "figures"


class Figures(NamedTuple):
    """Of one process; times are unions over its devices, each device's added up."""

    window_ns: int
    compute_ns: int
    collective_ns: int
    exposed_ns: int  # of communication: as long as nothing was computed beside
    busy_ns: int
    sm_mhz: float | None = None  # median of the samples of its devices
    summed: bool = False  # short kernels were only summed; computing time is a lower bound


def figures_of(session: Session) -> Figures:
    """Those that came with the session, or of its work."""
    given = session.meta.get(FIGURES)
    if isinstance(given, dict):
        *times, mhz, summed = map(given.get, Figures._fields)
        if {*map(type, times)} == {int}:
            return Figures._make((*times, mhz if isinstance(mhz, int | float) else None, summed is True))
    return _figures(session, list(columns(session.work.ordered()).values()))


def _figures(session: Session, devices: list[Columns]) -> Figures:
    span = window(session)
    computing = communicating = exposed = busy = 0
    for one in devices:
        parts = sweep(one, span or (one.starts[0], one.starts[0] + 1)).parts()
        computing += parts.compute
        communicating += parts.collective
        exposed += parts.collective_alone
        busy += parts.busy
    clocks = [
        sample.clocks.sm_mhz
        for card in (concerned(session) if session.metrics else ())
        for sample in card.samples
        if sample.clocks.sm_mhz is not None and (sample.utilization.gpu_percent or 0) > 0
    ]
    length = span[1] - span[0] if span else 0
    mhz = median(clocks) if clocks else None
    return Figures(length, computing, communicating, exposed, busy, mhz, bool(session.work.summed))


def brief(session: Session) -> Session:
    """A session without its work: its figures, and its collectives with how much of each was exposed. A hundredth of
    the memory, and all that is needed to compare it with other ranks."""
    devices = list(columns(session.work.ordered()).values())
    kept: list[Record] = [*with_exposed(session.collectives, devices)]
    if not kept:
        kept += [one for one in session.kernels if is_collective(one.full_name or one.name)]
    figures = _figures(session, devices)._asdict()
    return Session(
        meta={**session.meta, FIGURES: figures},
        devices=session.devices,
        records=kept,
        counters=session.counters,
        work=WorkTable(),
    )


def is_brief(session: Session) -> bool:
    """Whether it has figures in place of its work."""
    return isinstance(session.meta.get(FIGURES), dict)


def collectives_with_exposed(session: Session) -> list[GpuCollective]:
    """Those of one process, each with for how long no other kernel ran beside it, as far as that is known."""
    found = session.collectives
    if not found or is_brief(session):
        return found
    return with_exposed(found, list(columns(session.work.ordered()).values()))


def with_exposed(found: list[GpuCollective], devices: Sequence[Columns]) -> list[GpuCollective]:
    """Only where one device alone communicates: which one a collective is of is not said."""
    communicating = [one for one in devices if COLLECTIVE in one.classes_used]
    if len(communicating) != 1:
        return found
    (device,) = communicating
    times = {moment for one in found for moment in (one.device_start_ns, one.device_end_ns) if moment is not None}
    edges = sorted(times)
    if not edges:
        return found
    spent = dict(zip(edges, device.where([one == COMPUTE for one in device.classes]).up_to(edges), strict=True))
    made = []
    for one in found:
        start, end = one.device_start_ns, one.device_end_ns
        if start is not None and end is not None and exposed_of(one) is None:
            alone = end - start - (spent[end] - spent[start])
            one = one._replace(attributes={**(one.attributes or {}), EXPOSED: alone})
        made.append(one)
    return made
