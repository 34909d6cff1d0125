"""A session as text: the answer at the end of a run (about twenty lines) and the full report."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, Any

from .._records.device_identity import device_of
from .._runtime.text import count_text, one_line, percent_text, rate_text, sentence, size_text, time_text
from ..analysis.facts import Facts, Finding
from ..analysis.figures import FIGURES
from ..analysis.findings import findings
from ..analysis.operation import DEVICE_KINDS, WAYS, Operation, called
from ..analysis.program import INTERLUDE, START_UP
from ..analysis.ranks import notes_on, shown_text
from ..analysis.roofline import measured
from ..analysis.sampled import devices_seen
from ..analysis.unwritten import length_text, listed_text, notes_of, untimed, untimed_text, unwritten
from ..analysis.waits import lines_missing
from ..analysis.words import IDLE
from ..session import Session
from ..session._unrecorded import ended_text
from . import identity, unused
from .blocks import lines as block_lines
from .divisions import ALL, PARTS, Division, Divisions, divisions_of, phase_text, steps_text
from .html.tables import small_tables
from .style import PLAIN, Style
from .tracks import DIRECTIONS, label

#: Counters that are shown where they are not 0, with what each counts.
_LOST = {
    "dropped": ("record dropped by the driver", "records dropped by the driver"),
    "invalid": ("unreadable record", "unreadable records"),
    "missed": ("buffer request found none free", "buffer requests found none free"),
    "ambiguous": ("record of several possible blocks", "records of several possible blocks"),
    "foreign_buffers": ("buffer of another tool discarded", "buffers of another tool discarded"),
    "unknown_kinds": ("record of an unknown kind", "records of an unknown kind"),
    "lost_markers": ("block boundary lost", "block boundaries lost"),
    "sink_errors": ("error of a sink", "errors of sinks"),
    "failed_blocks": ("block failed", "blocks failed"),
    "shed_blocks": ("block left out", "blocks left out"),
    "ignored_records": ("manual record ignored", "manual records ignored"),
    "unsent_records": ("record not sent", "records not sent"),
    "unread_at_end": ("entry unread at the end", "entries unread at the end"),
}
_TOP = 5
_MOST_BLOCKS = 10  # of the summary
_EVIDENCE_LINES = 3  # of the summary
_MOST_NOTES, _MOST_CALLS = 3, 4
_MOST_MEASURED = 2  # blocks of the summary
_MOST_ROWS = 50
_FIRST_COLUMN = 48
_COLUMNS = ("", "total", "calls", "avg", "med", "min", "max", "stddev", "bytes")
_WIDTHS = (7, 9, 10, 9, 9, 9, 9, 9, 9)
#: Where nothing is cut.
_ANY_WIDTH = 10_000
_LONG = 2000  # characters of a sentence
#: Findings that are no conclusions, of which nobody need be sure.
_FACTS = ("nothing_seen", "damaged", "capture_off", "hang", "waited", "block_times")
_WORTH_SAYING_NS = 1_000_000
#: Beside the table of the phase that is judged, others are short.
_FEW_ROWS = 15
#: What a narrow screen goes without, first to last, so that so much of a name is shown.
_LEFT_OUT, _NAME = ("stddev", "min", "med", "bytes", "max", "avg"), 24


def summary(
    session: Session,
    style: Style = PLAIN,
    path: "str | None" = None,
    *,
    more: Iterable[str] = (),
    next_step: "str | None" = None,
) -> list[str]:
    """What a run did, in about twenty lines, of which tables alone are cut to a screen. Of a program that did not use
    a GPU a line says so, and its blocks follow.

    ``path`` is where the session was kept; None if it was not. ``more`` are sentences to add. The last line is a
    command: ``next_step``, or what ``path`` is read with.
    """
    facts = session.once(Facts)
    first = session.once(findings)[0]
    last = _last(next_step or _next(path), style)
    added = [line for text in more for line in style.wrapped(text)]
    if first.kind == "nothing_seen" and not first.fix:
        return _without_gpu(session, facts, first, style, added, last, path is not None)
    divisions = divisions_of(session)
    counted = [text for text in (_counters(session), _overhead(session, facts)) if text]
    told = *_copies(divisions), *_idle(divisions), *_waits(facts), *_host(facts), *_measured(session)
    return [
        *_heads(session, facts, divisions, style),
        *_verdict(first, style, most=_EVIDENCE_LINES),
        *map(style.line, _top(divisions)),
        *(line for text in _at_once(divisions) for line in style.wrapped(text, paint="dim")),
        *(() if facts.device_operations else _blocks(session, facts, style, why=first.kind == "block_times")),
        *(line for text in told for line in style.wrapped(text)),
        *(line for text in counted for line in style.wrapped(text, paint="dim")),
        *added,
        *last,
    ]


def _last(command: str, style: Style) -> list[str]:
    """What to do next: a command is of use only whole, a sentence is wrapped."""
    text = f"next: {command}"
    return style.wrapped(text, paint="dim") if "…" in text else [style.whole(text, paint="dim")]


def _blocks(session: Session, facts: Facts, style: Style, why: bool = False) -> list[str]:
    table = block_lines(session, facts.blocks, style.width, _MOST_BLOCKS, why=why)
    return [style.line(f"  {row}") for row in table]


def _without_gpu(
    session: Session, facts: Facts, finding: Finding, style: Style, added: "list[str]", last: "list[str]", kept: bool
) -> list[str]:
    """The program did not use a GPU, and nothing says that it should have: a sentence, its blocks and what is added."""
    counted = _counters(session)
    why = finding.title.partition(": ")[2].removesuffix(".")
    return [
        *unused.head(session, facts.window_ns, why, style),
        *_remarks(session, style),
        *_blocks(session, facts, style),
        *(line for text in _host(facts) for line in style.wrapped(text)),
        *(style.wrapped(counted, paint="dim") if counted else ()),
        *added,
        *(last if counted or kept else []),
    ]


def full(session: Session, style: Style = PLAIN) -> Iterator[str]:
    """Every section of the report, line by line."""
    facts, divisions = session.once(Facts), divisions_of(session)
    found = session.once(findings)
    yield from _heads(session, facts, divisions, style)
    yield from (line for text in _about(session) for line in style.wrapped(text))
    yield ""
    yield from _verdict(found[0], style)
    yield from _others(found, style)
    width = style.width if style.cuts else _ANY_WIDTH
    for title, rows in (
        ("Phases", _phases(divisions, style)),
        ("Devices", _devices(facts, divisions, style)),
        *_where(divisions, style),
        *_operations(divisions, width, style),
        ("Waits and other work of the host", _table(_host_operations(facts, divisions), width, "run")),
        *(
            (table["title"], chain(_aligned(table), _prose(table["remarks"], style)))
            for table in small_tables(session, facts)
        ),
        ("Measured blocks", _prose(map(str, session.once(measured)), style)),
        ("Waits by line", _prose(_missing_lines(session), style)),
        ("Blocks", block_lines(session, facts.blocks, width, _MOST_ROWS)),
        ("Hang", _prose(_hang(session), style)),
        ("Not seen", _prose(_unseen(session), style)),
        ("Damage", _prose((sentence(one_line(str(text), 400)) for text in session.meta.get("damage") or ()), style)),
        ("Notes", _prose((sentence(one_line(note, 400)) for note in _notes(session)), style)),
    ):
        yield from _section(title, rows, style)
    last = [text for text in (_counters(session), _overhead(session, facts)) if text]
    yield from (["", *(line for text in last for line in style.wrapped(text))] if last else ())


def write(session: Session, target: "str | os.PathLike[str] | IO[str]", style: Style = PLAIN) -> None:
    """The full report into a file."""
    from .files import output

    with output(target) as file:
        file.writelines(f"{line}\n" for line in full(session, style))


def _prose(rows: Iterable[str], style: Style) -> Iterator[str]:
    """Rows of a section that are sentences."""
    within = style._replace(width=style.width - 2)
    return (line for row in rows for line in within.wrapped(row))


def _section(title: str, rows: "Iterator[str] | list[str]", style: Style) -> Iterator[str]:
    begun = False
    for row in rows:
        if not begun:
            begun = True
            yield ""
            yield style.line(title, paint="bold")
        yield style.line(f"  {row}")


# ---- head, counters, next


def _heads(session: Session, facts: Facts, divisions: Divisions, style: Style) -> list[str]:
    """What ran, on what, and for how long; its phases, and how busy the device was in the one that matters."""
    devices = devices_seen(session)
    worked = {device_of(facts.session.devices, time.backend, time.device) for time in facts.times}
    brief = any(FIGURES in one for one in _processes(session))  # their devices worked, and their work is not here
    names = Counter(one_line(device.name, 40) for device in devices if brief or device in worked)
    names = names or Counter([one_line(device.name, 40) for device in devices][:1])
    shown = [f"{count} × {name}" if count > 1 else name for name, count in names.items()]
    none = "" if facts.device_operations else "no device seen"
    parts = [identity.script(session.meta), " + ".join(shown) or none, time_text(facts.window_ns or None)]
    if len(_processes(session)) > 1:
        parts.insert(1, count_text(len(_processes(session)), "process", "processes"))
    lines = style.wrapped(f"gpusense: {' · '.join(part for part in parts if part)}", paint="bold")
    busy = divisions.sentence()
    said = [text for text in (busy, shown_text(session)) if text]
    return [*lines, *_remarks(session, style), *(line for text in said for line in style.wrapped(text, paint="bold"))]


def _notes(session: Session) -> list[str]:
    """All that the session notes of itself, those of the processes it was merged of included."""
    merged = map(str, session.meta.get("notes") or () if _processes(session) else ())
    return [*notes_of(session), *merged, *notes_on(session)]


def _processes(session: Session) -> list[dict[str, Any]]:
    return [one for one in session.meta.get("processes") or () if isinstance(one, dict)]


def _remarks(session: Session, style: Style) -> Iterator[str]:
    """The first of the notes, below the title, where people look first."""
    found = notes_of(session)
    for note in found[:_MOST_NOTES]:
        yield from style.wrapped(sentence(one_line(note, 400)), paint="yellow")
    if len(found) > _MOST_NOTES:
        more = count_text(len(found) - _MOST_NOTES, "more note")
        yield style.line(f"{more}; see Notes in the full report.", paint="yellow")


def _counters(session: Session) -> str:
    lost = [(getattr(session.counters, name), words) for name, words in _LOST.items()]
    parts = [listed_text(session.counters), *(count_text(count, *words) for count, words in lost if count)]
    damage = session.meta.get("damage") or ()
    if damage:
        parts.append(f"damage: {one_line(str(damage[0]))}" + (f" and {len(damage) - 1} more" if damage[1:] else ""))
    parts += unwritten(session)
    parts += [untimed_text(session)] if untimed(session) else []
    if ended := ended_text(session.meta):
        parts.append(ended)
    return f"records: {', '.join(parts)}" if session.counters.seen or len(parts) > 1 else ""


def _hang(session: Session) -> Iterator[str]:
    for found in session.meta.get("hang") or ():
        process = f"{one_line(str(found['process']), 60)}: " if found.get("process") else ""
        if found.get("text"):
            yield one_line(f"{process}{found['text']}", _LONG) + ("; later it went on" if found.get("ended_ns") else "")
        else:
            yield f"{process}nothing completed for {found['after_s']:g} s although the device had work"
        for row in found["streams"]:
            done, running = row.get("last_completed") or {}, row.get("running") or {}
            newest = row.get("last_launched") or {}
            yield (
                f"  device {row['device']} stream {row['stream']}: "
                f"last completed {one_line(str(done.get('name')), 60)}, "
                f"running {one_line(str(running.get('name', 'not known')), 60)}, "
                f"last launched {one_line(str(newest.get('name', 'not known')), 60)}"
            )
        for stack in found["stacks"]:
            yield f"  thread {one_line(str(stack['name']), 60)} ({stack['thread']}), innermost first"
            yield from (f"    {one_line(frame, 200)}" for frame in stack["frames"])


def _overhead(session: Session, facts: Facts) -> str:
    """What gpusense itself took: processor time in the program, and time before its first line and after its last."""
    spent = facts.own_cpu_ns
    if not facts.device_operations or spent == 0:
        return ""
    if spent is None:
        return "gpusense's own use of the CPU was not measured"
    return f"gpusense used {time_text(spent)} of CPU ({percent_text(facts.own_share)} of the run){_beside(session)}"


def _beside(session: Session) -> str:
    """ "; and 310 ms before the program's first line"; "" where that is not known."""
    meta, parts = session.meta, []
    for first, last, what in (
        ("start_ns", "program_start_ns", "before the program's first line"),
        ("program_end_ns", "end_ns", "after its last"),
    ):
        low, high = meta.get(first), meta.get(last)
        if isinstance(low, int) and isinstance(high, int) and high - low >= _WORTH_SAYING_NS:
            parts.append(f"{time_text(high - low)} {what}")
    return f"; beside the run it took {' and '.join(parts)}" if parts else ""


def _next(path: "str | None") -> str:
    if path is None:
        return "gpusense run -o run.gpusense … keeps the session for gpusense report"
    import shlex

    return f"gpusense report {shlex.quote(path)} --html -o report.html"


def _about(session: Session) -> Iterator[str]:
    meta = session.meta
    yield from (one_line(line, 400) for line in identity.lines(meta))
    facts = [f"gpusense {one_line(str(meta.get('version', 'unknown')))}"]
    if meta.get("pid") is not None:
        facts.append(f"pid {meta['pid']}")
    threshold = meta.get("threshold_ns")
    if meta.get("trace_all"):
        facts.append("every record is listed")
    elif threshold is not None:
        facts.append(f"records of {time_text(threshold)} and more are listed, shorter ones summed")
    yield " · ".join(facts)
    backends = meta.get("backends") or {}
    if backends:
        yield "sources: " + ", ".join(one_line(f"{name} {text}") for name, text in backends.items())


# ---- findings


def _verdict(finding: Finding, style: Style, most: int = 99) -> list[str]:
    """Title, evidence and fix, whole; of the evidence as many sentences as ``most`` lines hold, and one at least."""
    sure = "" if finding.kind in _FACTS else f" ({finding.confidence} confidence)"
    title = style.wrapped(f"verdict: {one_line(finding.title, _LONG)}{sure}", paint="yellow")
    fix = style.wrapped(f"  try: {one_line(finding.fix, _LONG)}", paint="green") if finding.fix else []
    because: list[str] = []
    for number in range(1, len(finding.evidence) + 1):
        lines = style.wrapped(f"  because: {one_line(' '.join(finding.evidence[:number]), _LONG)}")
        if because and len(lines) > most:
            break
        because = lines
    return [*title, *because, *fix]


def _others(found: list[Finding], style: Style) -> Iterator[str]:
    """All but the first; of those of one kind, which many devices may have in common, a few."""
    shown = Counter([found[0].kind])
    for finding in found[1:]:
        shown[finding.kind] += 1
        if shown[finding.kind] <= _TOP:
            yield from _also(finding, style)
    more = [(finding, shown[finding.kind] - _TOP) for finding in {one.kind: one for one in reversed(found)}.values()]
    for finding, count in more:
        if count > 0:
            others = count_text(count, "more finding")
            yield from style.wrapped(f"also: {others} like “{one_line(finding.title, _LONG)}”")


def _also(finding: Finding, style: Style) -> Iterator[str]:
    saving = f" (up to {time_text(finding.saving_ns)})" if finding.saving_ns else ""
    yield from style.wrapped(f"also: {one_line(finding.title, _LONG)}{saving}")
    for one in finding.evidence:
        yield from style.wrapped(f"  {one_line(one, _LONG)}", paint="dim")
    if finding.fix:
        yield from style.wrapped(f"  try: {one_line(finding.fix, _LONG)}")


# ---- tables


def _top(divisions: Divisions, most: int = _TOP) -> list[str]:
    """The heaviest kernels of the phase that is judged."""
    judged = divisions.judged
    rows = [(mark, row) for mark, row in divisions.rows(judged) if row.kind == "kernel"]
    if not judged:
        return []
    if not rows:
        return [f"no {called({row.backend for one in judged for row in one.operations})} ran"]
    several = len(judged) > 1
    head = f"% of {judged[0].of}"
    wide = len(head) + 1
    lines = [f"{head:>{wide}}{'total':>10}{'calls':>11}{'avg':>10}  {called({row.backend for _, row in rows})}"]
    lines += [
        f"{percent_text(row.share):>{wide}}{time_text(row.total_ns):>10}{row.count:>11,}{time_text(row.avg_ns):>10}"
        f"  {mark if several else ''}{one_line(row.name)}"
        for mark, row in rows[:most]
    ]
    return lines


def _at_once(divisions: Divisions) -> list[str]:
    """Why shares of the phase that is judged are more than 100 % together."""
    return [sentence(text) for text in divisions.at_once(divisions.judged[0].phase)][:2] if divisions.judged else []


def _copies(divisions: Divisions) -> list[str]:
    copies = [(mark, row) for mark, row in divisions.rows(divisions.judged) if row.kind == "transfer"]
    if not copies:
        return []
    several = len(divisions.judged) > 1
    shown = [
        f"{mark if several else ''}{_way(row)} {percent_text(row.share)}, "
        f"{size_text(row.bytes)} in {count_text(row.count, 'copy', 'copies')} at {rate_text(row.bandwidth_bytes_per_s)}"
        for number, (mark, row) in enumerate(copies[:3])
        if not number or row.share >= 0.001
    ]
    return [f"copies, of the {divisions.judged[0].of}: {' · '.join(shown)}"]


def _way(row: Operation) -> str:
    """ "host to device"; the name of a copy that has its own."""
    return one_line(WAYS.get(row.name, row.name))


def _idle(divisions: Divisions) -> list[str]:
    """Why the device was idle in the phase that is judged."""
    shown = []
    for one in divisions.judged[:2]:
        parts = [(name, spent) for name, spent in one.parts.items() if name in IDLE and one.share(spent) >= 0.001]
        parts.sort(key=lambda part: -part[1])
        words = ", ".join(f"{IDLE[name]} {percent_text(one.share(spent))}" for name, spent in parts)
        if words:
            shown.append(f"{one.device} idle, of the {one.of}: {words}")
    return shown


def _waits(facts: Facts) -> list[str]:
    """Lines of the program from which most was waited; or why they are not known although they were asked for."""
    shown = [
        f"{time_text(wait.total_ns)} in {count_text(wait.count, 'call')} at {one_line(wait.source_line)}"
        for wait in facts.waits
        if wait.source_line
    ]
    if shown:
        return [f"waited {' · '.join(shown[:2])}"]
    return list(_missing_lines(facts.session))


#: What the program itself told or a tracer of the system saw of the host, and how it is called.
_OF_THE_HOST = {"compute": "CPU work", "syscall": "system calls"}


def _host(facts: Facts) -> list[str]:
    """ "system calls: read 1.20 ms in 100 calls · …": those that took most, a line a kind."""
    lines = []
    for kind, called_so in _OF_THE_HOST.items():
        rows = sorted((row for row in facts.operations if row.kind == kind), key=lambda row: -row.total_ns)
        shown = [
            f"{one_line(row.name, 60)} {time_text(row.total_ns)} in {count_text(row.count, 'call')}" for row in rows
        ]
        more = [f"{len(rows) - _MOST_CALLS:,} more"] if len(rows) > _MOST_CALLS else []
        lines += [f"{called_so}: {' · '.join([*shown[:_MOST_CALLS], *more])}"] if rows else []
    return lines


def _missing_lines(session: Session) -> Iterator[str]:
    reason = lines_missing(session)
    if reason:
        yield f"The lines that wait are not known: {one_line(reason, 300)}."


def _measured(session: Session) -> Iterator[str]:
    """The blocks that took the device longest of those that were measured."""
    rows = session.once(measured)
    yield from (f"measured {row}" for row in rows[:_MOST_MEASURED])
    if len(rows) > _MOST_MEASURED:
        yield f"… and {count_text(len(rows) - _MOST_MEASURED, 'more measured block')} in the full report"


def _host_operations(facts: Facts, divisions: Divisions) -> list[tuple[str, Operation]]:
    """What took time of the host, with what stands before its name: shares of the run, beside no share of a device."""
    whole = facts.window_ns
    rows = (row for row in facts.operations if row.kind not in DEVICE_KINDS or row.timing == "host")
    return [(divisions.mark(row), row._replace(share=row.total_ns / whole if whole else 0.0)) for row in rows]


def _columns(width: int, first: int) -> list[int]:
    """Which of the columns there is room for beside the name; ``first``: how wide the first is."""
    shown = list(range(len(_COLUMNS)))
    for title in _LEFT_OUT:
        if (
            2 + first - _WIDTHS[0] + sum(_WIDTHS[at] for at in shown) + 2 + _NAME <= width
        ):  # indents of section and name
            break
        shown.remove(_COLUMNS.index(title))
    return shown


def _table(rows: list[tuple[str, Operation]], width: int, of: str, most: int = _MOST_ROWS) -> Iterator[str]:
    """``rows``: each with what stands before its name; ``of``: what the shares are of, which the head of their column
    says."""
    if not rows:
        return
    heads = (f"% of {of}", *_COLUMNS[1:])
    widths = (max(_WIDTHS[0], len(heads[0])), *_WIDTHS[1:])
    shown = _columns(width, widths[0])
    yield "".join(f"{heads[at]:>{widths[at]}}" for at in shown) + "  name"
    for mark, row in rows[:most]:
        instants = row.kind == "allocation"
        cells = (
            percent_text(None if instants else row.share),
            time_text(None if instants else row.total_ns),
            f"{row.count:,}",
            time_text(None if instants else row.avg_ns),
            time_text(None if instants else row.median_ns),
            time_text(None if instants else row.min_ns),
            time_text(None if instants else row.max_ns),
            time_text(None if instants else row.std_ns),
            size_text(row.bytes) if row.bytes else "",
        )
        figures = "".join(f"{cells[at]:>{widths[at]}}" for at in shown)
        by_host = " (timed by the host)" if row.kind in DEVICE_KINDS and row.timing == "host" else ""
        yield f"{figures}  {mark}{_named(row)}{by_host}"
    if len(rows) > most:
        rest = rows[most:]
        yield f"… and {count_text(len(rest), 'more operation')}, {time_text(sum(row.total_ns for _, row in rest))}"


def _named(row: Operation) -> str:
    """ "gemm", "copies host to device", "copy: mesh", "memset", "wait: stream_synchronize"."""
    name = one_line(label(row.name))
    if row.kind == "kernel" or name in (row.kind, DIRECTIONS.get(row.name)):
        return name
    return f"{_KINDS.get(row.kind, row.kind)}: {name}"


#: What kinds are called.
_KINDS = {"transfer": "copy", "sync": "wait"}


def _phases(divisions: Divisions, style: Style) -> Iterator[str]:
    """Each phase of each device: how long, how busy, what it holds."""
    several = len({one.device for one in divisions.all}) > 1
    rows = [
        (
            ": ".join([one.device] * several + [phase_text(one.phase, one.program.steps)]),
            time_text(one.length_ns + one.unseen_ns),
            percent_text(one.busy_share),
            "; ".join(text for text in (_count(one), one.holds(), _not_seen(one)) if text),
        )
        for one in divisions.all
    ]
    if not rows:
        return
    wide, head = max(len(row[0]) for row in rows), f"{divisions.all[0].processor} busy"
    yield f"{'phase':<{wide}}{'length':>10}{head:>10}  most of it"
    for name, length, busy, holds in rows:
        yield f"{name:<{wide}}{length:>10}{busy:>10}  {holds}"
    yield from _prose([sentence(text) for text in (divisions.shared,) if text], style)
    yield from _prose(_at_once(divisions), style)


def _count(one: Division) -> str:
    """ "28 steps of 33.1 ms", "4 interruptions", "2 slow first steps"."""
    steps, program = one.program.steps, one.program
    if one.steps is not None:
        inner = f", each of {one.steps.inner} of {time_text(one.steps.inner_ns)}" if one.steps.inner else ""
        return steps_text(one.steps) + inner
    if one.phase == START_UP and steps is not None and steps.warm_up:
        return count_text(steps.warm_up, "slow first step")
    return count_text(len(program.spans(INTERLUDE)), "interruption") if one.phase == INTERLUDE else ""


def _not_seen(one: Division) -> str:
    return f"{time_text(one.unseen_ns)} of it not seen" if one.unseen_ns * 1000 > one.length_ns else ""


def _where(divisions: Divisions, style: Style) -> Iterator[tuple[str, Iterator[str]]]:
    """Of each device what its time went to in the phase that is judged: families of kernels, copies, idle time."""

    def rows(one: Division) -> Iterator[str]:
        steps, wide = one.steps, len(f"% of {one.of}")
        idle = {PARTS[name]: spent for name, spent in one.parts.items() if name in IDLE}
        yield f"{f'% of {one.of}':>{wide}}{'total':>10}{'each' if steps else '':>10}"
        for name, spent in {**one.families(), **idle}.items():
            each = time_text(spent / steps.number) if steps else ""
            yield f"{percent_text(one.share(spent)):>{wide}}{time_text(spent):>10}{each:>10}  {name}"

    for one in divisions.judged:
        told = _prose([sentence(one.at_once_with_idle)] if one.at_once_with_idle else [], style)
        yield f"Where the time went: {one.device}, {one.of}", chain(rows(one), told)


def _operations(divisions: Divisions, width: int, style: Style) -> Iterator[tuple[str, Iterator[str]]]:
    """A table a phase, that of the judged one first, and one of the whole run where that says more."""
    judged = [row for one in divisions.judged for row in one.operations]
    for phase in divisions.names:
        found = divisions.of(phase)
        rows = divisions.rows(found)
        first = found[0].judged or divisions.names == [ALL]
        if phase == ALL and not first and sum(row.count for _, row in rows) == sum(row.count for row in judged):
            continue
        name = phase_text(phase, found[0].program.steps)
        title = f"Operations on the device, {'whole ' if phase == ALL else ''}{name}"
        most = _MOST_ROWS if first else _FEW_ROWS
        together = _prose(map(sentence, divisions.at_once(phase)), style)
        yield title, chain(_table(rows, width, found[0].of, most), together)


def _devices(facts: Facts, divisions: Divisions, style: Style) -> Iterator[str]:
    """The whole run of each device: times that add up to it, and kernels and copies, which may overlap."""
    whole = {one.key: one for one in reversed(divisions.of(ALL))}
    for time in facts.times:
        one = whole.get((time.backend, time.device))
        if one is None:
            continue
        note = {"sum": " (upper bound: a sum of durations)"}.get(time.source, "")
        name = f"{one.text}: "
        yield (
            f"{name}busy {time_text(one.busy_ns)}, {percent_text(one.busy_share)} of the {one.of}{note}; "
            f"{'passes' if time.backend == 'wgpu' else 'kernels'} {time_text(time.kernel_ns)}, "
            f"copies {time_text(time.transfer_ns)}"
        )
        indent = " " * len(name)
        parts = indent + ", ".join(f"{PARTS[part]} {time_text(spent)}" for part, spent in one.parts.items())
        yield from _prose([parts], style)


def _aligned(table: dict[str, Any]) -> Iterator[str]:
    """A small table of the page: the first column flush left and bounded, the others flush right."""
    rows = [table["heads"], *table["rows"]]
    widths = [min(_FIRST_COLUMN, max(map(len, column))) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([one_line(first, _FIRST_COLUMN).ljust(widths[0]), *cells]).rstrip()
    if table["more"]:
        yield f"… and {table['more']:,} more"


def _unseen(session: Session) -> Iterator[str]:
    end = session.meta.get("end_ns")
    for off in session.unseen[:_MOST_ROWS]:
        yield f"{length_text(off, end)}: {one_line(off.reason, 300)}"
    if len(session.unseen) > _MOST_ROWS:
        yield f"… and {count_text(len(session.unseen) - _MOST_ROWS, 'more interval')}"
