"""Findings about the data itself: nothing seen, capture off, records lost, file damaged."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._records.records import BUDGET, NO_GPU, NOT_USED
from .._runtime.text import count_text, one_line, percent_text, sentence, time_text
from ..session import Session
from ..session._builder import ENDED_EARLY
from ..session._unrecorded import ended_text
from .blocks import BlockNode, times_blocks
from .facts import Facts, Finding
from .intervals import Interval, intersect, total, union
from .processes import processes_of
from .ranks import ranks_of
from .unwritten import (
    absent_text,
    ignored,
    untimed,
    untimed_blocks,
    untimed_text,
    untraced,
    unwritten,
    without_work,
)

#: Of the phase that is judged: less of it unseen changes nothing.
_WORTH = 0.05


def nothing_seen(facts: Facts) -> Iterator[Finding]:
    """No kernel and no copy: say why, never look like success. A program that did not use CUDA needs no advice."""
    session = facts.session
    if facts.device_operations or session.meta.get("damage") or times_blocks(session):
        return
    captures = _captures(session)
    live_ns = sum(capture.get("cuda_live_ns") or 0 for capture in captures)
    reasons = _losses(session)
    could = any(one.get("state") != "unavailable" for one in captures)
    if not reasons and session.meta.get("complete") is False and could and not processes_of(session):
        reasons = [f"{ended_text(session.meta)}, and nothing of its work on a GPU was written until then"]
    idle = session.meta.get("reason")  # where there was no tracer
    without = [
        NOT_USED if one.get("state") == "armed" else one.get("reason") or idle
        for one in captures
        if one.get("state") != "stopped"  # at the end, as it should
    ]
    tool = session.meta.get("imported_from")
    unused = not (tool or reasons or live_ns) and set(without) <= {NO_GPU, NOT_USED}
    reasons = reasons or [str(reason) for reason in dict.fromkeys(without) if reason]
    title = "No GPU work was seen" if unused or session.records or session.aggregates else "Nothing was recorded"
    launched = bool(reasons or not live_ns)
    if live_ns:
        title = f"CUDA was in use for {time_text(live_ns)} and no GPU work was seen"
    if not launched:
        title = f"CUDA was initialised for {time_text(live_ns)}, and nothing was launched"
    title += f": {reasons[0]}." if reasons else "."
    backends = session.meta.get("backends") or {}
    evidence = [f"Sources in use: {', '.join(f'{name} {text}' for name, text in backends.items())}."] * bool(backends)
    if tool:
        evidence = [f"The session is a trace of {tool}."]
    evidence += [f"Also: {reason}." for reason in reasons[1:]]
    if not reasons:
        evidence.append(
            "The session gives no reason: the program may not have used a GPU."
            if launched
            else "Capture was on. A program that only compiles, or only asks for devices, launches nothing."
        )
    yield Finding(
        "nothing_seen",
        title,
        () if unused else tuple(evidence),
        "" if unused else _OF_THE_TOOL if tool else _advice(reasons, _DOCTOR if launched else _EXPECTED),
        "high" if reasons else "medium",
    )


#: The device's share of a block, below which the host is what takes the time.
_SLOW_HOST = 0.7
_MORE = (
    "Record kernels, copies and waits of some steps: gpusense run without --light, or "
    "`gpusense.configure(kernels='every')`."
)
_TIMED = 3  # blocks that are evidence


def block_times(facts: Facts) -> Iterator[Finding]:
    """What can be said where the device timed blocks and no kernel was recorded: which block, and device or host."""
    session = facts.session
    if facts.device_operations or not times_blocks(session):
        return
    nodes = [node for _, node in facts.blocks.walk() if node.device_sums]
    missed = [
        f"{count_text(count, 'pass', 'passes')} not timed: {why}." for why, count in untimed_blocks(session).items()
    ]
    if not nodes:
        why = next(iter(untimed_blocks(session)), "the program opened none while it used the device")
        yield Finding("block_times", f"The device timed no block: {why}.", tuple(missed), _MORE, "high")
        return
    outermost = [node for node in nodes if not (node.parent and node.parent.device_sums)]
    whole = max(outermost, key=lambda node: node.wall_ns)
    inner = max((node for node in nodes if _inside(node, whole)), key=_own_device_ns)
    rest = sorted(nodes, key=lambda node: -(node.times.device_ns or 0))[:_TIMED]
    share = (whole.times.device_avg_ns or 0.0) / (whole.times.avg_ns or 1.0)
    at_most = "at most " if whole.times.device_at_most else ""
    if share <= _SLOW_HOST:
        title = f"The device was in {_block(whole)} for {at_most}{percent_text(share)} of its time: the host is slower."
    elif 2 * whole.times.device_at_most > whole.times.device_passes:
        of = f"{whole.times.device_at_most:,} of {count_text(whole.times.device_passes, 'pass', 'passes')}"
        title = f"The device had nothing to do as {_block(whole)} began or ended, in {of}: it waited for the host."
    else:
        title = f"Most of the device's time is in {_block(inner)}: {_device_text(inner)}."
    evidence = [f"{_block(node)}: {_device_text(node)}, {time_text(node.times.avg_ns)} on the host." for node in rest]
    evidence.append("Kernels are not recorded; a block's time on the device holds what it waited for between them.")
    yield Finding("block_times", title, (*evidence, *missed), _MORE, "high", where=" › ".join(inner.path))


def _inside(node: BlockNode, outer: BlockNode) -> bool:
    return node.path[: len(outer.path)] == outer.path


def _own_device_ns(node: BlockNode) -> int:
    """Without blocks inside."""
    return (node.times.device_ns or 0) - sum(child.times.device_ns or 0 for child in node.children.values())


def _block(node: BlockNode) -> str:
    return f"block {one_line(' › '.join(node.path), 80)}"


def _device_text(node: BlockNode) -> str:
    times = node.times
    return f"{'at most ' if times.device_at_most else ''}{time_text(times.device_avg_ns)} a pass on the device"


#: What makes capture see more, by a part of the reason why it did not.
_ADVICE = {
    "ended before capture": "Begin earlier (a shorter --delay, a block that is reached) or let the program run longer.",
    "before": "Start the program with gpusense run, or call `gpusense.enable()` before its first use of CUDA.",
    "disabled": "Leave recording on, or take the time between disable() and enable() out of what you compare.",
    "budget": "Allow more overhead, or record fewer kinds, if you need more of the run.",
    "profiler": "Run one profiler at a time; `gpusense doctor` names what it finds in the way.",
    "leaves out": "Change that setting.",
    "No space": "Free space on that disk, or give -o a place on another one.",
    "too large": "Raise the limit for the size of files (ulimit -f), or record less: a shorter part, no --trace-all.",
    "quota": "Free space within your quota, or give -o a place on another disk.",
    "closed its descriptor": "Let the program close no file that it has not opened, or record with --live.",
    "by SIGTERM": "Leave that signal to gpusense: the program has set it back to its default.",
    **dict.fromkeys(
        ("killed", "ended by"),
        "If somebody kills it, let it be SIGTERM, with which it ends its file. If it crashes, "
        "`gpusense run -X faulthandler …` says where.",
    ),
}
_OF_THE_TOOL = (
    "Let that tool record the GPU, too: ProfilerActivity.CUDA in torch.profiler, nsys profile --trace=cuda,nvtx."
)
_EXPECTED = "If you expected work: `gpusense doctor --selftest` says whether capture can see any."
_DOCTOR = "Run `gpusense doctor --selftest`: it says which library, driver or permission is missing."


def _advice(reasons: Sequence[str], otherwise: str) -> str:
    """What to do about the first of the reasons."""
    return next((advice for part, advice in _ADVICE.items() if reasons and part in reasons[0]), otherwise)


def _captures(session: Session) -> list[dict[str, Any]]:
    """What became of capture in the process, or in each of a merged session."""
    found = session.meta.get("capture") or {}
    roots = [one.get("root") for one in session.meta.get("processes") or () if isinstance(one, dict)]
    return [found[root] for root in roots if isinstance(found.get(root), dict)] or [found]


def _losses(session: Session) -> list[str]:
    """What kept work out of the session although there may have been some."""
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
    return reasons + untraced(session) + without_work(session)


def hang(facts: Facts) -> Iterator[Finding]:
    """Nothing completed although the device had work, or it waited to the end for another process. What ranks of a job
    wait for together is said once, with who did not come (:mod:`.rules_ranks`)."""
    answer = facts.session.once(ranks_of)
    missing = answer.missing if answer is not None else ()
    said = {(each.key.communicator, each.key.sequence) for each in missing}
    waiting = {answer.ranks[each.processes[rank]].name for each in missing for rank in each.present} if answer else ()
    for found in facts.session.meta.get("hang") or ():
        wait, text = found.get("wait") or {}, found.get("text")
        alone = not text and not found.get("ended_ns") and found.get("process") in waiting
        if alone or (wait.get("communicator"), wait.get("sequence")) in said:
            continue
        if text:
            if not found.get("ended_ns"):
                yield Finding(
                    "waited",
                    sentence(one_line(str(text), 400)),
                    ("So it was to the end of what was recorded.",),
                    "Read under Hang in the full report where the Python threads were, above all of who did not come.",
                    "high",
                )
            continue
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
    phase = "run" if most else "steps" if facts.views[0].told is not None else "main part"
    lengths = {reason: total(intersect(union(found), of)) for reason, found in spans.items()}
    longest_first = sorted(filter(lengths.get, lengths), key=lambda reason: -lengths[reason])
    yield Finding(
        "capture_off" if most else "capture_off_in_part",
        f"Capture was off for {time_text(unseen)} ({percent_text(unseen / whole if whole else 0.0)} of the {phase}): "
        f"{longest_first[0]}.",
        (
            *(f"{time_text(lengths[reason])}: {reason}." for reason in longest_first if lengths[reason] != unseen),
            "The numbers cover only the rest.",
        ),
        _advice(longest_first, "Record again without that, if you need the whole run."),
        "high",
    )


_ONE_CLOCK = "If they are of a source of your own: give its records times of one clock, time.time_ns()."
#: So small a share of the records changes no figure that is shown; the report's last lines count them all the same.
_FEW_LOST = 0.0005


def data_lost(facts: Facts) -> Iterator[Finding]:
    """Records that existed and are not here."""
    counters = facts.session.counters
    hung = any(found.get("streams") and not found.get("ended_ns") for found in facts.session.meta.get("hang") or ())
    invalid = "unreadable, or ended before it started, and left out"
    evidence = [
        f"{count_text(count, one)} {what}."
        for count, one, what in (
            (counters.dropped, "record", "dropped by the driver"),
            (counters.missed, "buffer request", "found no free buffer"),
            (counters.invalid, "record", f"{invalid}: work that hangs has no end" if hung else invalid),
            (counters.unknown_kinds, "record", "of a kind this version does not read"),
            (counters.lost_markers, "block boundary", "not found among the records"),
        )
        if count
    ]
    fixes = [
        (counters.dropped or counters.missed, "Raise --buffer-size, or trace a shorter part of the run."),
        (unwritten(facts.session), "Raise the file's size cap (file_limit_bytes), or trace a shorter part of the run."),
        (counters.lost_markers, "Report it if it happens again: `gpusense doctor --json` belongs to it."),
        (counters.unknown_kinds, "A later gpusense may know these records."),
        (counters.invalid, "" if hung else _ONE_CLOCK),
    ]
    if not any(ENDED_EARLY in str(text) for text in facts.session.meta.get("damage") or ()):
        evidence += [f"Not written: {lost}." for lost in unwritten(facts.session)]
    lost = counters.dropped + counters.invalid
    share = lost / (counters.seen + counters.dropped) if counters.seen + counters.dropped else 0.0
    few = share < _FEW_LOST
    alone = len(evidence) == bool(counters.dropped) + bool(counters.invalid)  # nothing else is missing
    if not evidence or (few and alone) or not facts.device_operations:
        return
    of_known = "" if few else f" ({percent_text(share)} of those known)"
    yield Finding(
        "data_lost",
        f"Some records are missing{of_known}: totals are lower bounds.",
        tuple(evidence),
        next(fix for lost, fix in fixes if lost),
        "high",
    )


def not_timed(facts: Facts) -> Iterator[Finding]:
    """Passes that ran and have no time, so that no record of them exists."""
    reasons = untimed(facts.session)
    for refusal in untraced(facts.session) if facts.device_operations else ():
        yield Finding("untimed", f"{refusal}.", (), "Run `gpusense doctor`: it says which versions are there.", "high")
    if reasons and facts.device_operations:
        yield Finding(
            "untimed",
            f"{untimed_text(facts.session)}: GPU times and counts are lower bounds.",
            tuple(f"{count_text(count, 'pass', 'passes')}: {reason}." for reason, count in reasons.items()),
            "Submit fewer passes at a time, which helps most; docs/explanation/wgpu.md tells of each reason.",
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
    fixes = (
        (
            counters.shed_blocks,
            "Lower sample_rate, or open fewer blocks: they came faster than they are recorded.",
        ),
        (counters.failed_blocks or counters.unread_at_end, "Read the log: it says what failed."),
        (counters.ignored_records, "Correct these calls: each reason stands here, with the first call that had it."),
    )
    if evidence:
        yield Finding(
            "left_out",
            f"{absent_text(counters)} could not be recorded.",
            tuple(evidence),
            " ".join(fix for count, fix in fixes if count),
            "high",
        )


def damaged(facts: Facts) -> Iterator[Finding]:
    """Parts of the session file that were not written, or could not be read."""
    sentences = [one_line(str(text), 200) for text in facts.session.meta.get("damage") or ()]
    unread = [text for text in sentences if ENDED_EARLY not in text]
    early = [text for text in sentences if ENDED_EARLY in text]
    rest = "what was readable is shown" if facts.device_operations else "what was readable holds no GPU work"
    if early:
        yield Finding(
            "damaged",
            sentence(f"{early[0]}; what came before is shown"),
            tuple(map(sentence, (*early[1:], *(f"not written: {lost}" for lost in unwritten(facts.session))))),
            _advice(early, "Look after the disk, or give -o a place on another one."),
            "high",
        )
    if unread:
        # Of a job the other files are whole, and what they say is not worthless.
        several = len(processes_of(facts.session)) > 2 and bool(facts.device_operations)
        which = "Of the session files some are" if several else "The session file is"
        yield Finding(
            "damaged_in_part" if several else "damaged",
            f"{which} damaged in {count_text(len(unread), 'place')}: {rest}.",
            (
                *map(sentence, unread[:10]),
                "A program that was killed leaves only its last part missing.",
            ),
            "Copy the file again, or record the run again.",
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
            "Set attribution='exact' where blocks of several threads or tasks overlap.",
            "high",
        )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    hang,
    nothing_seen,
    block_times,
    damaged,
    capture_off,
    data_lost,
    not_timed,
    left_out,
    ambiguous,
)
