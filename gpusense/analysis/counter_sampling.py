"""How well a device's counters were sampled: how often, what is missing and why, and how well its clock is known."""

from collections.abc import Iterator
from operator import sub
from typing import Any, NamedTuple

from .._records.counter_samples import CounterColumns
from .._runtime.text import one_line, time_text
from ..session import Session

#: Of the time from the first to the last sample, from which on missing ones change figures of a report.
WORTH_TELLING = 0.05


class Sampling(NamedTuple):
    """The samples of one device. What is missing lies between two of them."""

    device: int  # CUDA ordinal
    samples: int  # that were read
    interval_ns: int  # the median length of one
    start_ns: int  # of the first, by the session's clock
    end_ns: int  # of the last
    gaps: int = 0  # places where samples are missing
    missing_samples: int = 0  # as many as would have been there
    missing_ns: int = 0  # of all gaps together
    longest_gap_ns: int = 0  # of these the longest
    longest_gap_at_ns: int | None = None  # where it begins
    why: tuple[str, ...] = ()  # there are gaps, as far as the process told
    clock_error_ns: int | None = None  # by which samples may lie off the times of the device's work
    moved_ns: int | None = None  # they were moved back so far, to agree with the records of its kernels


def sampled_columns(session: Session) -> dict[int, CounterColumns]:
    """By device; of one whose fields have changed, those of the most samples."""
    found: dict[int, CounterColumns] = {}
    for part in session.counter_samples.parts():
        if len(part) > len(found.get(part.device, ())):
            found[part.device] = part
    return found


def usual_ns(columns: CounterColumns) -> int:
    """The median length of a sample."""
    lengths: list[int] = sorted(map(sub, columns.end, columns.start))
    return lengths[len(lengths) // 2]


def told_error_ns(session: Session, device: int) -> int | None:
    """By how much samples may lie off, as those who sampled the device told; None where nobody knows."""
    told = [one.get("clock_error_ns") for one in _told(session, device)]
    return max((error for error in told if isinstance(error, int)), default=None)


def _told(session: Session, device: int) -> Iterator[dict[str, Any]]:
    """What each process told of its sampling of the device."""
    sources = session.meta.get("sources")
    for name, told in sources.items() if isinstance(sources, dict) else ():
        devices = told.get("devices") if str(name).endswith("counters") and isinstance(told, dict) else None
        one = devices.get(str(device)) if isinstance(devices, dict) else None
        if isinstance(one, dict):
            yield one


def samplings(session: Session) -> list[Sampling]:
    """One a device that was sampled; the clock as its sampler told it."""
    found = []
    for device, columns in sorted(sampled_columns(session).items()):
        gaps = [gap for gap in _gaps(columns) if _in_one_process(session, *gap)]
        longest = max(gaps, key=lambda gap: gap[1], default=None)
        found.append(
            Sampling(
                *(device, len(columns), usual_ns(columns), columns.start[0], columns.end[-1]),
                gaps=len(gaps),
                missing_samples=sum(count for _, _, count in gaps),
                missing_ns=sum(length for _, length, _ in gaps),
                longest_gap_ns=longest[1] if longest else 0,
                longest_gap_at_ns=longest[0] if longest else None,
                why=tuple(dict.fromkeys(_reasons(session, device))) if gaps else (),
                clock_error_ns=told_error_ns(session, device),
            )
        )
    return found


def _gaps(columns: CounterColumns) -> Iterator[tuple[int, int, int]]:
    """Where each begins, how long it is, and how many samples would have been in it."""
    before = columns.start[0]
    for start, end in zip(columns.start, columns.end, strict=True):
        count = round((start - before) / max(1, end - start))
        if count:
            yield before, start - before, count
        before = end


def _in_one_process(session: Session, begin: int, length: int, _: int) -> bool:
    """Between two processes of a merged session nothing is missing."""
    times = [(one.get("start_ns") or 0, one.get("end_ns") or 0) for one in session.meta.get("processes") or ()]
    return not times or any(start <= begin and begin + length <= end for start, end in times)


def _reasons(session: Session, device: int) -> Iterator[str]:
    for told in _told(session, device):
        reasons = told.get("gap_reasons")
        yield from (one_line(str(reason), 200) for reason in (reasons if isinstance(reasons, dict) else ()))


def missing_text(session: Session, one: Sampling) -> str:
    """ "12 of 739 samples are missing, 12.0 ms, all of it 432 ms after the start: …"; "" where none are."""
    if not one.gaps:
        return ""
    which = "all of it" if one.gaps == 1 else f"at {one.gaps} places, {time_text(one.longest_gap_ns)} of it"
    return (
        f"{one.missing_samples:,} of {one.samples + one.missing_samples:,} samples are missing, "
        f"{time_text(one.missing_ns)}, {which} {since_text(session, one.longest_gap_at_ns or 0)} after the start: "
        + (", or ".join(one.why) or "it is not known why")
    )


def since_text(session: Session, at_ns: int) -> str:
    """ "432 ms": after the session's start."""
    return time_text(at_ns - (session.meta.get("start_ns") or 0))
