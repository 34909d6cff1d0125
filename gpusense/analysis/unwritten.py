"""What a session lists, what it has only as sums, and what should be in it and is not, in words."""

from typing import Any

from .._records.device_identity import device_text
from .._records.records import Counters, UnseenInterval
from .._runtime.text import count_text, size_text, time_text
from ..session import Session
from ..session._unrecorded import ENDED_BY
from .counter_sampling import WORTH_TELLING, missing_text, samplings


def unwritten(session: Session) -> list[str]:
    """ "1.50 MB beyond the file's cap" and the like; empty where all was written."""
    counters = session.counters
    found = [
        (counters.bytes_dropped - counters.bytes_too_long, _why(session)),
        (counters.bytes_too_long, "too long for one chunk of the file"),
    ]
    return [f"{size_text(size)} {why}" for size, why in found if size > 0]


def _why(session: Session) -> str:
    end = session.meta.get("file") or {}
    if end.get("failure"):
        return "after an error"  # which is named as damage
    if end.get("capped_at_ns") is not None:
        return "beyond the file's cap"
    return "not in the file"


def listed_text(counters: Counters) -> str:
    """ "134 listed, 4,740 short ones summed": what became of the records that were read."""
    parts = (
        (counters.aggregated, count_text(counters.aggregated, "short one") + " summed"),
        (counters.invalid, f"{counters.invalid:,} invalid"),
        (counters.pre_session, f"{counters.pre_session:,} from before"),
    )
    return ", ".join([f"{counters.kept:,} listed", *(text for count, text in parts if count)])


def absent_text(counters: Counters) -> str:
    """What the program made itself and is not here; empty where nothing is missing."""
    rows = (
        (counters.failed_blocks + counters.shed_blocks, "block"),
        (counters.ignored_records, "manual record"),
        (counters.unread_at_end, "last entry", "last entries"),
    )
    return " and ".join(count_text(*row) for row in rows if row[0])


def length_text(off: UnseenInterval, end_ns: int | None) -> str:
    """ "6.06 ms"; "40.0 ms, to the end" of what went on when the session ended at ``end_ns``."""
    last = off.end_ns if off.end_ns is not None else end_ns
    parts = [time_text(max(0, last - off.start_ns))] if last is not None else []
    return ", ".join([*parts, "to the end"] if off.end_ns is None else parts)


def notes_of(session: Session) -> list[str]:
    """What is missing, and what each process noted: why its file was written, which work is not in it."""
    found = [str(note) for note in session.meta.get("missing") or ()]
    processes = [one for one in session.meta.get("processes") or () if isinstance(one, dict)]
    for one in processes:
        found += [f"{one.get('root')}: {note}" for note in (*_ended(one), *(one.get("notes") or ()))]
    found += [*sampling_notes(session), *timing_notes(session), *_without_times(session)]
    return found + ([] if processes else [*_ended(session.meta), *map(str, session.meta.get("notes") or ())])


#: What may have sent the signal, or what to do about it.
_SIGNALS = {
    "SIGKILL": "sent by somebody, or by a system that is short of memory",
    **dict.fromkeys(
        ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"), "a crash: gpusense run -X faulthandler says where"
    ),
}


def _ended(meta: dict[str, Any]) -> list[str]:
    """How a program ended that had no say in it."""
    how = meta.get(ENDED_BY)
    if not isinstance(how, str):
        return []
    more = f", {_SIGNALS[how]}" if how in _SIGNALS else ""
    return [f"the program was ended by {how}{more}; some of what it did in its last second may be missing"]


def sampling_notes(session: Session) -> list[str]:
    """Why counters that were asked for are not there, or not as they were asked for."""
    notes = []
    sources = session.meta.get("sources")
    for name, told in sources.items() if isinstance(sources, dict) else ():
        who, _, what = str(name).rpartition(": ")
        if what != "counters" or not isinstance(told, dict):
            continue
        if told.get("state") == "unavailable":
            notes.append(f"{f'{who}: ' if who else ''}no hardware counters: {told.get('reason')}")
        devices = told.get("devices")
        for number, one in devices.items() if isinstance(devices, dict) else ():
            if one.get("samples") == 0:
                notes.append(f"hardware counters of GPU {number}: no sample could be read")
    return notes + [
        f"hardware counters of {device_text(session.devices, 'cuda', one.device)}: {missing_text(session, one)}"
        for one in samplings(session)
        if one.missing_ns > WORTH_TELLING * (one.end_ns - one.start_ns)
    ]


def timing_notes(session: Session) -> list[str]:
    """Why hardware events that were asked for do not time the work."""
    capture = session.meta.get("capture") or {}
    notes = []
    for who, one in {"": capture, **capture}.items():
        if isinstance(one, dict) and not one.get("hardware_events", True):
            notes.append(f"{f'{who}: ' if who else ''}no hardware events: {one.get('hardware_events_reason')}")
    return notes


def _without_times(session: Session) -> list[str]:
    """Of how many collectives NCCL gave no times, or those of others."""
    reasons: dict[str, int] = {}
    sources = session.meta.get("sources")
    for name, told in sources.items() if isinstance(sources, dict) else ():
        found = told.get("without_times") if isinstance(told, dict) and str(name).endswith("nccl") else None
        for why, count in found.items() if isinstance(found, dict) else ():
            reasons[why] = reasons.get(why, 0) + count
    return [
        f"{count_text(count, 'collective lacks', 'collectives lack')} times of the device: {why}"
        for why, count in reasons.items()
    ]


def ignored(session: Session) -> dict[str, int]:
    """Manual records whose values did not fit, by reason, most first."""
    return _by_reason(session, "ignored")


def untimed(session: Session) -> dict[str, int]:
    """Passes that ran without being timed, by reason, most first: of them there are no records."""
    return _by_reason(session, "untimed")


def _by_reason(session: Session, what: str) -> dict[str, int]:
    reasons: dict[str, int] = {}
    for _, source in _sources(session):
        found = source.get(what)
        for reason, count in (found if isinstance(found, dict) else {}).items():
            reasons[str(reason)] = reasons.get(str(reason), 0) + count
    return dict(sorted(reasons.items(), key=lambda row: -row[1]))


def untraced(session: Session) -> list[str]:
    """ "wgpu is not traced: …" for each source of work that was wanted and refused."""
    rows = [(name, row.get("reason")) for name, row in _sources(session) if name.rpartition(": ")[2] != "counters"]
    return [f"{name} is not traced: {reason}" for name, reason in rows if isinstance(reason, str)]


def without_work(session: Session) -> list[str]:
    """Sources that were traced and had nothing to time, so that their absence says something about the program."""
    rows = [name for name, row in _sources(session) if row.get("timed") == 0 and not row.get("untimed")]
    return [f"{name} was traced, and the program submitted no pass" for name in rows]


def _sources(session: Session) -> list[tuple[str, dict[str, Any]]]:
    """Those that give records of work."""
    rows = (session.meta.get("sources") or {}).items()
    return [(name, row) for name, row in rows if isinstance(row, dict) and not name.endswith(BLOCK_TIMES)]


#: The source that has the device time blocks, as sessions name it; of a merged one behind the process's root.
BLOCK_TIMES = "block_times"


def untimed_blocks(session: Session) -> dict[str, int]:
    """Passes of blocks that the device did not time, by reason, most first."""
    reasons: dict[str, int] = {}
    for name, source in (session.meta.get("sources") or {}).items():
        rows = source.get("untimed") if name.endswith(BLOCK_TIMES) and isinstance(source, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and isinstance(row.get("count"), int):
                reasons[str(row.get("reason"))] = reasons.get(str(row.get("reason")), 0) + row["count"]
    return dict(sorted(reasons.items(), key=lambda row: -row[1]))


def untimed_text(session: Session) -> str:
    """ "2,952 wgpu passes were not timed"; empty where all were."""
    count = sum(untimed(session).values())
    return f"{count_text(count, 'wgpu pass was', 'wgpu passes were')} not timed" if count else ""
