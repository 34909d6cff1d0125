"""A session as text: the answer at the end of a run (at most fifteen lines) and the full report."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any

from .._runtime.text import count_text, one_line, percent_text, rate_text, size_text, time_text
from ..analysis.blocks import block_tree
from ..analysis.facts import Facts, Finding
from ..analysis.findings import ranked
from ..analysis.operation import DEVICE_KINDS, Operation
from ..analysis.unwritten import listed_text, untimed, untimed_text, unwritten
from ..analysis.waits import lines_missing
from ..session import Session
from . import identity
from .blocks import lines as block_lines
from .html.tables import small_tables
from .series import devices_seen
from .style import PLAIN, Style

#: The parts of a device's time, as they are called beside their length.
_PARTS = {
    "compute": "computes",
    "collective": "communicates only",
    "copy": "copies only",
    "synchronisation": "empty after the host waited",
    "host": "waits for the host",
    "no_work": "no work",
    "unattributed": "idle, reason unknown",
    "unseen": "not seen",
}
#: Counters that are shown where they are not 0.
_LOST = (
    *("dropped", "missed", "ambiguous", "foreign_buffers", "unknown_kinds", "lost_markers", "sink_errors"),
    *("failed_blocks", "shed_blocks", "ignored_records", "unsent_records", "unread_at_end"),
)
_MOST_LINES = 15
_TOP = 5
_MOST_ROWS = 50
_FIRST_COLUMN = 48
_COLUMNS = ("time %", "total", "calls", "avg", "med", "min", "max", "stddev", "bytes")
_WIDTHS = (7, 9, 10, 9, 9, 9, 9, 9, 9)
#: What a narrow screen goes without, first to last, so that so much of a name is shown.
_LEFT_OUT, _NAME = ("stddev", "min", "med", "bytes", "max", "avg"), 24


def summary(session: Session, style: Style = PLAIN, path: "str | None" = None, more: "str | None" = None) -> list[str]:
    """At most fifteen lines; the last, a command, is whole also where the screen is narrower.

    ``path`` is where the session was kept; None if it was not. ``more`` is a line to add.
    """
    facts = Facts(session)
    lines = [style.line(_head(session, facts, style), paint="bold")]
    waits = _waits(facts)
    if facts.device_operations:
        lines += [style.line(text) for text in (*_top(facts, _TOP - len(waits)), *_copies(facts))]
    lines += [style.line(text) for text in waits]
    lines += _verdict(ranked(facts)[0], style, _MOST_LINES - len(lines) - (4 if more else 3))
    last = (_counters(session), _overhead(session, facts), *([more] if more else ()))
    lines += [style.line(text, paint="dim") for text in last]
    shown = style.whole if path is not None else style.line  # advice may be cut off; a command to copy may not
    return [*lines, shown(f"next: {_next(path)}", paint="dim")]


def full(session: Session, style: Style = PLAIN) -> Iterator[str]:
    """Every section of the report, line by line."""
    facts = Facts(session)
    found = ranked(facts)
    yield style.line(_head(session, facts, style), paint="bold")
    yield from (style.line(text) for text in _about(session))
    yield ""
    yield from _verdict(found[0], style)
    yield from _others(found, style)
    for title, rows in (
        ("Devices", _devices(facts, style)),
        ("Operations on the device", _table(facts.device_operations, style.width)),
        ("Operations of the host", _table(_host_operations(facts), style.width)),
        *((table["title"], _aligned(table)) for table in small_tables(session, facts)),
        ("Waits by line", _missing_lines(session)),
        ("Blocks", block_lines(session, block_tree(session), style.width, _MOST_ROWS)),
        ("Hang", _hang(session)),
        ("Not seen", _unseen(session)),
        ("Damage", (one_line(sentence, 200) for sentence in session.meta.get("damage") or ())),
        ("Notes", (one_line(str(note), 200) for note in session.meta.get("notes") or ())),
    ):
        yield from _section(title, rows, style)
    yield ""
    yield style.line(_counters(session))
    yield style.line(_overhead(session, facts))


def write(session: Session, target: "str | os.PathLike[str] | IO[str]", style: Style = PLAIN) -> None:
    """The full report into a file."""
    from .files import output

    with output(target) as file:
        file.writelines(f"{line}\n" for line in full(session, style))


def _section(title: str, rows: "Iterator[str] | list[str]", style: Style) -> Iterator[str]:
    begun = False
    for row in rows:
        if not begun:
            begun = True
            yield ""
            yield style.line(title, paint="bold")
        yield style.line(f"  {row}")


# ---- head, counters, next


def _head(session: Session, facts: Facts, style: Style) -> str:
    devices = devices_seen(session)
    names = Counter(one_line(device.name, 40) for device in devices if _worked(facts, device))
    names = names or Counter([one_line(device.name, 40) for device in devices][:1])
    shown = [f"{count} × {name}" if count > 1 else name for name, count in names.items()]
    parts = [" + ".join(shown) or "no device seen", time_text(facts.window_ns)]
    if len(session.meta.get("processes") or ()) > 1:
        parts.insert(0, count_text(len(session.meta["processes"]), "process", "processes"))
    if facts.times:
        mean = sum(time.busy_share for time in facts.times) / len(facts.times)
        each = ", ".join(percent_text(time.busy_share) for time in facts.times[:8]) if len(facts.times) > 1 else ""
        of = " of the time seen" if _partly_seen(facts) else ""
        parts.append(f"GPU busy {percent_text(mean)}{f' ({each})' if each else ''}{of} [{style.bar(mean)}]")
    return f"gpusense: {' · '.join(parts)}"


def _partly_seen(facts: Facts) -> bool:
    """Whether capture was off for so long that it must be said beside each share."""
    return any(time.unseen_ns > 0.01 * time.window_ns for time in facts.times)


def _worked(facts: Facts, device: Any) -> bool:
    number = device.cuda_index if device.cuda_index is not None else device.index
    return any(time.device == number for time in facts.times)


def _counters(session: Session) -> str:
    lost = [(name.replace("_", " "), getattr(session.counters, name)) for name in _LOST]
    parts = [listed_text(session.counters), *(f"{name} {count:,}" for name, count in lost if count)]
    damage = session.meta.get("damage") or ()
    if damage:
        parts.append(f"damage: {one_line(str(damage[0]))}" + (f" and {len(damage) - 1} more" if damage[1:] else ""))
    parts += unwritten(session)
    parts += [untimed_text(session)] if untimed(session) else []
    if session.meta.get("complete") is False:
        parts.append("the program was killed or still runs")
    return f"records: {', '.join(parts)}"


def _hang(session: Session) -> Iterator[str]:
    for found in session.meta.get("hang") or ():
        process = f"{one_line(str(found['process']), 60)}: " if found.get("process") else ""
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
    found = session.meta.get("overhead") or {}
    spent = [
        (name, value)
        for name, value in found.items()
        if name.endswith("_ns") and name != "threshold_ns" and isinstance(value, int | float)
    ]
    if not spent:
        return "overhead of gpusense: not measured in this session"
    shown = ", ".join(f"{name[:-3].replace('_', ' ')} {time_text(value)}" for name, value in spent[:3])
    processes = max(1, len(session.meta.get("processes") or ()))  # whose times are summed up
    cpu_ns = sum(value for name, value in spent if name.endswith("cpu_ns"))
    share = cpu_ns / facts.window_ns / processes if facts.window_ns else None
    return f"overhead of gpusense: {shown} ({percent_text(share)} of the run)"


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
        facts.append("every record listed")
    elif threshold is not None:
        facts.append(f"listed one by one from {time_text(threshold)}")
    yield " · ".join(facts)
    backends = meta.get("backends") or {}
    if backends:
        yield "sources: " + ", ".join(one_line(f"{name} {text}") for name, text in backends.items())


# ---- findings


def _verdict(finding: Finding, style: Style, most: int = 99) -> list[str]:
    """Title, evidence and fix in at most ``most`` lines (three at least); evidence gets what the others leave."""
    title = _wrapped(style, f"verdict: {finding.title} ({finding.confidence} confidence)", min(2, most - 2), "yellow")
    fix = _wrapped(style, f"  try: {finding.fix}", 1 if most < 6 else 3, "green") if finding.fix else []
    room = max(1, most - len(title) - len(fix))
    because = _wrapped(style, f"  because {' '.join(finding.evidence)}", room) if finding.evidence else []
    return [*title, *because, *fix]


def _wrapped(style: Style, text: str, most: int, paint: str = "") -> list[str]:
    from textwrap import wrap

    indent = text[: len(text) - len(text.lstrip())]
    text = indent + one_line(text[len(indent) :], 2000)
    lines = wrap(text, style.width, max_lines=most, placeholder="…", subsequent_indent=indent + "  ")
    return [style.line(line, paint=paint) for line in lines]


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
            yield from _wrapped(style, f"also: {count_text(count, 'finding')} more like “{finding.title}”", 9)


def _also(finding: Finding, style: Style) -> Iterator[str]:
    saving = f" (up to {time_text(finding.saving_ns)})" if finding.saving_ns else ""
    yield from _wrapped(style, f"also: {finding.title}{saving}", 9)
    for sentence in finding.evidence:
        yield from _wrapped(style, f"  {sentence}", 9, "dim")
    if finding.fix:
        yield from _wrapped(style, f"  try: {finding.fix}", 9)


# ---- tables


def _top(facts: Facts, most: int) -> list[str]:
    kernels = [row for row in facts.device_operations if row.kind == "kernel"]
    if not kernels:
        return ["no kernel ran"]
    several = len({(row.backend, row.device) for row in kernels}) > 1
    lines = [f"{'time %':>8}{'total':>10}{'calls':>11}{'avg':>10}  {_called({row.backend for row in kernels})}"]
    lines += [
        f"{percent_text(row.share):>8}{time_text(row.total_ns):>10}{row.count:>11,}{time_text(row.avg_ns):>10}"
        f"  {_where(row) if several else ''}{one_line(row.name)}"
        for row in kernels[:most]
    ]
    return lines


def _called(backends: set[str]) -> str:
    """What runs on these backends' devices: wgpu times passes, which may have many kernels or none."""
    return "pass" if backends == {"wgpu"} else "kernel or pass" if "wgpu" in backends else "kernel"


def _copies(facts: Facts) -> list[str]:
    copies = [row for row in facts.device_operations if row.kind == "transfer"]
    if not copies:
        return ["no copies"]
    several = len({(row.backend, row.device) for row in facts.device_operations}) > 1
    shown = [
        f"{_where(row) if several else ''}{row.direction or one_line(row.name)} {size_text(row.bytes)} "
        f"in {row.count:,} at {rate_text(row.bandwidth_bytes_per_s)}"
        for row in sorted(copies, key=lambda row: -row.bytes)[:3]
    ]
    return [f"copies: {' · '.join(shown)}"]


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


def _missing_lines(session: Session) -> Iterator[str]:
    reason = lines_missing(session)
    if reason:
        yield f"lines of waits are not known: {one_line(reason, 300)}"


def _host_operations(facts: Facts) -> list[Operation]:
    return [row for row in facts.operations if row.kind not in DEVICE_KINDS]


def _columns(width: int) -> list[int]:
    """Which of the columns there is room for beside the name."""
    shown = list(range(len(_COLUMNS)))
    for title in _LEFT_OUT:
        if 2 + sum(_WIDTHS[at] for at in shown) + 2 + _NAME <= width:  # with the indents of section and name
            break
        shown.remove(_COLUMNS.index(title))
    return shown


def _table(rows: list[Operation], width: int) -> Iterator[str]:
    if not rows:
        return
    shown = _columns(width)
    yield "".join(f"{_COLUMNS[at]:>{_WIDTHS[at]}}" for at in shown) + "  name"
    for row in rows[:_MOST_ROWS]:
        cells = (
            percent_text(row.share),
            time_text(row.total_ns),
            f"{row.count:,}",
            time_text(row.avg_ns),
            time_text(row.median_ns),
            time_text(row.min_ns),
            time_text(row.max_ns),
            time_text(row.std_ns),
            size_text(row.bytes) if row.bytes else "",
        )
        kind = "" if row.kind == "kernel" else f"{row.kind}: "
        if row.kind in DEVICE_KINDS and row.timing == "host":
            kind = f"{row.kind} (host): "
        yield ("".join(f"{cells[at]:>{_WIDTHS[at]}}" for at in shown) + f"  {_where(row)}{kind}{one_line(row.name)}")
    if len(rows) > _MOST_ROWS:
        rest = rows[_MOST_ROWS:]
        yield f"… and {count_text(len(rest), 'more operation')}, {time_text(sum(row.total_ns for row in rest))}"


def _where(row: Operation) -> str:
    return "" if row.device is None else f"[{row.device}] "


def _devices(facts: Facts, style: Style) -> Iterator[str]:
    from textwrap import wrap

    room = style.width - 2  # beside what indents a section
    divided = {(row.backend, row.device): row for row in facts.idle}
    for time in facts.times:
        name = f"{time.backend} {'–' if time.device is None else time.device}: "
        note = {"sum": " (upper bound: a sum of durations)"}.get(time.source, "")
        yield (
            f"{name}busy {time_text(time.busy_ns)}, {percent_text(time.busy_share)}{note}; "
            f"{'passes' if time.backend == 'wgpu' else 'kernels'} {time_text(time.kernel_ns)}, "
            f"copies {time_text(time.transfer_ns)}"
        )
        row = divided.get((time.backend, time.device))
        if row is not None:
            parts = [f"{words} {time_text(row.part(part))}" for part, words in _PARTS.items() if row.part(part)]
            yield from wrap(", ".join(parts), room, initial_indent=" " * len(name), subsequent_indent=" " * len(name))


def _aligned(table: dict[str, Any]) -> Iterator[str]:
    """A small table of the page: the first column flush left and bounded, the others flush right."""
    rows = [table["heads"], *table["rows"]]
    widths = [min(_FIRST_COLUMN, max(map(len, column))) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([one_line(first, _FIRST_COLUMN).ljust(widths[0]), *cells])
    if table["more"]:
        yield f"… and {table['more']:,} more"


def _unseen(session: Session) -> Iterator[str]:
    end = session.meta.get("end_ns")
    for off in session.unseen[:_MOST_ROWS]:
        stop = off.end_ns if off.end_ns is not None else end
        length = "until the end" if stop is None else time_text(stop - off.start_ns)
        yield f"{length}: {one_line(off.reason, 300)}"
    if len(session.unseen) > _MOST_ROWS:
        yield f"… and {count_text(len(session.unseen) - _MOST_ROWS, 'more interval')}"
