"""Findings about the data itself: nothing seen, capture off, records lost, file damaged."""

from collections.abc import Callable, Iterator

from .._records.records import BUDGET
from .._runtime.text import count_text, percent_text, time_text
from .facts import Facts, Finding
from .intervals import Interval, intersect, total, union
from .unwritten import absent_text, ignored, untimed, untimed_text, untraced, unwritten, without_work

#: Of the phase that is judged: less of it unseen changes nothing.
_WORTH = 0.05


def nothing_seen(facts: Facts) -> Iterator[Finding]:
    """No kernel and no copy: say why, never look like success."""
    if facts.device_operations:
        return
    session = facts.session
    capture = session.meta.get("capture") or {}
    live_ns = capture.get("cuda_live_ns")
    reasons = list(dict.fromkeys(off.reason for off in session.unseen))
    chosen = session.meta.get("only_devices")
    if chosen is not None:
        reasons.insert(0, f"the setting devices={','.join(map(str, chosen)) or '()'} leaves out all others")
    lost = [
        (session.counters.dropped, "dropped by the driver"),
        (session.counters.missed, "lost because no buffer was free"),
        (session.counters.invalid, "unreadable"),
        (session.counters.pre_session, "from before the session"),
    ]
    reasons += [f"{count_text(count, 'record')} {what}" for count, what in lost if count]
    reasons += [f"{count_text(count, 'pass', 'passes')} not timed: {why}" for why, count in untimed(session).items()]
    reasons += untraced(session) + without_work(session)
    why = capture.get("reason") or session.meta.get("reason")  # the second where there was no tracer
    if not reasons and isinstance(why, str):
        reasons.append(why)
    if not session.records and not session.aggregates and not live_ns:
        title = "Nothing was recorded"
    elif live_ns:
        title = f"CUDA was live for {time_text(live_ns)} and no GPU work was seen"
    else:
        title = "No GPU work was seen"
    title += f": {reasons[0]}." if reasons else "."
    backends = session.meta.get("backends") or {}
    evidence = [f"Backends in use: {', '.join(f'{name} {text}' for name, text in backends.items()) or 'none'}."]
    evidence += [f"Also: {reason}." for reason in reasons[1:]]
    if not reasons:
        evidence.append("The session gives no reason: the program may not have used a GPU.")
    yield Finding(
        "nothing_seen",
        title,
        tuple(evidence),
        "Run `gpusense doctor --selftest`: it says which library, driver or permission is missing.",
        "high" if reasons else "medium",
    )


def hang(facts: Facts) -> Iterator[Finding]:
    """Nothing completed although the device had work."""
    for found in facts.session.meta.get("hang") or ():
        running = [
            f"Running on device {row['device']}, stream {row['stream']}: {row['running']['name']}."
            for row in found["streams"]
            if row.get("running")
        ]
        last = [
            f"Last completed on device {row['device']}, stream {row['stream']}: {row['last_completed']['name']}."
            for row in found["streams"]
            if row.get("last_completed")
        ]
        ended = "; later it went on" if found.get("ended_ns") else ""
        process = f" of {found['process']}" if found.get("process") else ""
        yield Finding(
            "hang",
            f"The GPU{process} hung: nothing completed for {found['after_s']:g} s although it had work{ended}.",
            (*running, *last),
            "Read the Python stacks under Hang in the full report; compare the stuck kernel across ranks.",
            "high",
        )


def capture_off(facts: Facts) -> Iterator[Finding]:
    """Intervals in which work could have happened unseen: of the run where they are half of it, else of the phase that
    is judged. One without a reason was over before the first launch."""
    if not facts.device_operations:
        return
    end, spans = facts.session.meta.get("end_ns"), dict[str, list[Interval]]()
    for off in facts.session.unseen:
        if off.reason:
            stop = off.end_ns if off.end_ns is not None else end
            spans.setdefault(off.reason, []).append((off.start_ns, max(stop or 0, off.start_ns)))
    # What a budget leaves out is spread over the run and was asked for: what is left speaks for it.
    unasked = total(union(span for reason, found in spans.items() if BUDGET not in reason for span in found))
    most = bool(unasked) and 2 * unasked >= facts.window_ns
    everything = union(span for found in spans.values() for span in found)
    of = everything if most else union(span for view in facts.feeding for span in view.spans)
    unseen, whole = total(intersect(everything, of)), facts.window_ns if most else total(of)
    if not unseen or unseen < _WORTH * whole:
        return
    phase = "run" if most else "steps" if facts.views[0].told is not None else "time at work"
    lengths = {reason: total(intersect(union(found), of)) for reason, found in spans.items()}
    longest_first = sorted(filter(lengths.get, lengths), key=lambda reason: -lengths[reason])
    yield Finding(
        "capture_off" if most else "capture_off_in_part",
        f"Capture was off for {time_text(unseen)} ({percent_text(unseen / whole if whole else 0.0)} of the {phase}): "
        f"{longest_first[0]}.",
        tuple(f"{time_text(lengths[reason])}: {reason}." for reason in longest_first),
        "Numbers below cover the rest of the run only.",
        "high",
    )


def data_lost(facts: Facts) -> Iterator[Finding]:
    """Records that existed and are not here."""
    counters = facts.session.counters
    evidence = [
        f"{count_text(count, one)} {what}."
        for count, one, what in (
            (counters.dropped, "record", "dropped by the driver"),
            (counters.missed, "buffer request", "found no free buffer"),
            (counters.invalid, "record", "unreadable and left out"),
            (counters.unknown_kinds, "record", "of a kind this version does not read"),
            (counters.lost_markers, "block boundary", "not found among the records"),
        )
        if count
    ]
    evidence += [f"Not written: {lost}." for lost in unwritten(facts.session)]
    lost = counters.dropped + counters.invalid
    if not evidence or not facts.device_operations:
        return
    share = lost / (counters.seen + counters.dropped) if counters.seen + counters.dropped else 0.0
    yield Finding(
        "data_lost",
        f"Some records are missing ({percent_text(share)} of those known of): totals are lower bounds.",
        tuple(evidence),
        "Raise --buffer-size or the file's size cap, or trace a shorter part of the run.",
        "high",
    )


def not_timed(facts: Facts) -> Iterator[Finding]:
    """Passes that ran and have no time, so that no record of them exists."""
    reasons = untimed(facts.session)
    for refusal in untraced(facts.session) if facts.device_operations else ():
        yield Finding("untimed", f"{refusal}.", (), "`gpusense doctor` says which versions are there.", "high")
    if reasons and facts.device_operations:
        yield Finding(
            "untimed",
            f"{untimed_text(facts.session)}: GPU times and counts are lower bounds.",
            tuple(f"{count_text(count, 'pass', 'passes')}: {reason}." for reason, count in reasons.items()),
            "docs/explanation/wgpu.md says of each reason when that is; submitting fewer passes at a time helps most.",
            "high",
        )


def left_out(facts: Facts) -> Iterator[Finding]:
    """Blocks and manual records that could not be recorded, and why."""
    counters, why = facts.session.counters, ignored(facts.session)
    evidence = [
        f"{count_text(count, one)} {what}."
        for count, one, what in (
            (counters.shed_blocks, "block", "left out with all inside, because too much waited to be recorded"),
            (counters.failed_blocks, "block", "not recorded or in part, because something failed inside gpusense"),
            (counters.ignored_records - sum(why.values()), "manual record", "ignored, because its values do not fit"),
            (counters.unread_at_end, "entry", "of blocks and records not read, because the end took too long"),
        )
        if count > 0
    ]
    evidence += [f"{count_text(count, 'manual record')} ignored: {reason}." for reason, count in why.items()]
    if evidence:
        yield Finding(
            "left_out",
            f"{absent_text(counters)} could not be recorded.",
            tuple(evidence),
            "The log says what failed or did not fit; sample_rate opens fewer blocks.",
            "high",
        )


def damaged(facts: Facts) -> Iterator[Finding]:
    """Parts of the session file that could not be read."""
    sentences = facts.session.meta.get("damage") or ()
    if sentences:
        yield Finding(
            "damaged",
            f"The session file is damaged in {count_text(len(sentences), 'place')}: what was readable is shown.",
            tuple(str(sentence) for sentence in sentences[:10]),
            "Copy the file again, or record again; a program that was killed leaves only its last part missing.",
            "high",
        )


def ambiguous(facts: Facts) -> Iterator[Finding]:
    """Records without a single block."""
    count = facts.session.counters.ambiguous
    if count:
        yield Finding(
            "ambiguous",
            f"{count_text(count, 'record')} could belong to several open blocks.",
            ("They are in every total, and in no single block's time.",),
            "Turn on exact attribution where blocks of several threads or tasks overlap.",
            "high",
        )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    hang,
    nothing_seen,
    damaged,
    capture_off,
    data_lost,
    not_timed,
    left_out,
    ambiguous,
)
