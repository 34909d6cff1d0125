"""A comparison of runs as text, as Markdown for a pull request, as JSON-ready data and as one offline HTML page."""

import os
from collections.abc import Callable, Sequence
from typing import IO, Any

from .._records.json_codec import dumps
from .._runtime.text import count_text, one_line, option_percent_text, percent_text, rate_text, size_text, time_text
from ..analysis.anomalies import median
from ..analysis.diff import CountChange, Diff, TimeChange, compare
from ..analysis.diff_counters import CounterChange
from ..analysis.operation import WAYS
from ..analysis.significance import DECISIVE_RUNS, EFFECT, LEVEL
from ..session import Session
from .files import output
from .html.page import escape, page_file, policy

SCHEMA = "gpusense.diff/1"
_ROWS = 12
_SHORT_ROWS = 5
_PAGE_ROWS, _PAGE_NAMES = 200, 100
_SIGNS = {"more": "▲", "fewer": "▼", "slower": "▲", "faster": "▼", "higher": "▲", "lower": "▼"}


def command(
    before: Sequence[Session],
    after: Sequence[Session],
    *,
    fail_over: float | None,
    form: str,
    target: "str | os.PathLike[str] | IO[str]",
) -> int:
    """Compares, writes ``form`` "text", "markdown", "json" or "html" to ``target``; 3 where ``fail_over`` was exceeded,
    else 0."""
    diff = compare(before, after)
    if form == "html":
        write(diff, target, over=fail_over)
    else:
        made = {"text": text, "markdown": markdown, "json": json_text}[form]
        with output(target) as file:
            file.write(made(diff, over=fail_over))
    return 3 if fail_over is not None and diff.failures(fail_over) else 0


def json_text(diff: Diff, *, over: float | None = None) -> str:
    """:func:`to_dict` as one line of JSON."""
    return dumps(to_dict(diff, over=over), portable=True) + "\n"


def to_dict(diff: Diff, *, over: float | None = None) -> dict[str, Any]:
    """Everything the comparison found. ``over`` adds the decision."""
    shown: dict[str, Any] = {
        "schema": SCHEMA,
        "runs": {"before": diff.runs[0], "after": diff.runs[1]},
        "names": {"before": list(diff.names[0]), "after": list(diff.names[1])},
        "conclusion": conclusion(diff, over),
        "conditions": list(diff.conditions),
        "counts": [
            {
                "what": row.what,
                "total": row.total,
                "before": list(row.before),
                "after": list(row.after),
                "change": row.change,
                "verdict": row.verdict,
            }
            for row in diff.counts
        ],
        "times": [_time(row) for row in diff.times],
        "blocks": [_time(row) for row in diff.blocks],
        "counters": [_counter(row) for row in diff.counters],
        "appeared": list(diff.appeared),
        "vanished": list(diff.vanished),
        "notes": list(diff.notes),
    }
    if over is not None:
        shown["fail_over"] = over
        shown["failures"] = list(diff.failures(over))
    return shown


def _time(row: TimeChange) -> dict[str, Any]:
    return {
        "what": row.what,
        "kind": row.kind,
        "share": row.share,
        "samples": {"before": len(row.before), "after": len(row.after)},
        "before_median_ns": median(row.before),
        "after_median_ns": median(row.after),
        "change": row.change,
        "effect_ns": row.effect_ns,
        "probability": row.probability,
        "basis": row.basis,
        "decides": row.decides,
        "verdict": row.verdict,
    }


def _counter(row: CounterChange) -> dict[str, Any]:
    return {
        "block": list(row.block),
        "device": row.device,
        "figure": row.figure,
        "unit": row.unit,
        "samples": {"before": row.samples[0], "after": row.samples[1]},
        "before_mean": row.means[0],
        "after_mean": row.means[1],
        "before_deviation": row.deviations[0],
        "after_deviation": row.deviations[1],
        "change": row.change,
        "probability": row.probability,
        "basis": row.basis,
        "verdict": row.verdict,
    }


def text(diff: Diff, *, over: float | None = None, width: int = 100) -> str:
    """The comparison in lines of at most ``width`` characters, without colours. The last says what came of it."""
    lines = [_runs(diff), *(f"  {line}" for line in _sides(diff))]
    lines += [""] * bool(diff.conditions) + [f"Differs: {line}" for line in diff.conditions]
    lines += ["", "Counts (exact)"]
    rows = [(_named(row.what), *_before_after(row), _change(row), row.verdict) for row in _counts(diff)]
    lines += _aligned(rows, width) or ["  none recorded"]
    lines += _more(sum(not row.total for row in diff.counts) - _ROWS)
    for title, times in (("Times (medians)", diff.times), ("Blocks (median of a pass)", diff.blocks)):
        if times or times is diff.times:
            lines += ["", title]
            rows = [(_named(row.what), *_before_after(row), _change(row), _sure(row)) for row in times[:_ROWS]]
            lines += _aligned(rows, width) or ["  none recorded"]
            lines += _more(len(times) - _ROWS)
    if diff.counters:
        lines += ["", f"Counters by block ({_spread(diff)})"]
        lines += _aligned([_counted(diff, row) for row in diff.counters[:_ROWS]], width)
        lines += _more(len(diff.counters) - _ROWS)
    for label, names in (("Only after", diff.appeared), ("Only before", diff.vanished)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            lines += ["", f"{label}: {', '.join(one_line(_named(name), 60) for name in names[:5])}{more}"]
    lines += [""] * bool(diff.notes) + [f"Note: {note}" for note in diff.notes]
    failures = diff.failures(over) if over is not None else ()
    if failures:
        lines += ["", f"Grew by more than {option_percent_text(over or 0)}:" if not diff.blind else "Does not pass:"]
        lines += [f"  {failure}" for failure in failures]
    else:
        lines += ["", conclusion(diff, over)]
    return "\n".join(_wrap(lines, width)) + "\n"


def markdown(diff: Diff, *, over: float | None = None) -> str:
    """For a pull request: the conclusion, what decided, and a short table; the rest folded away."""
    failures = diff.failures(over) if over is not None else ()
    shown: list[CountChange | TimeChange] = [row for row in diff.counts if row.total]
    shown += diff.times[:_SHORT_ROWS]
    shown += diff.blocks[:_SHORT_ROWS]
    mark = "" if over is None else "❌ " if failures else "✅ "
    lines = [f"### {mark}gpusense: {_inert(conclusion(diff, over))}", ""]
    lines += [f"- {_code(failure)}" for failure in failures] + [""] * bool(failures)
    lines += ["| | before | after | change | |", "|---|---:|---:|---:|---|"]
    for row in shown:
        what = _named(row.what if isinstance(row, CountChange) else row.called)
        said = row.verdict if isinstance(row, CountChange) else _sure(row)
        lines.append(f"| {_code(what)} | {' | '.join(_before_after(row))} | {_change(row)} | {said} |")
    changed = [row for row in diff.counters if row.verdict in _SIGNS][:_SHORT_ROWS]
    for what, before, after, change, said in (_counted(diff, row) for row in changed):
        lines.append(f"| {_code(what)} | {before} | {after} | {change} | {said} |")
    lines += [""] * bool(diff.conditions) + [f"- {_inert(line)}" for line in diff.conditions]
    lines += ["", "<details><summary>Runs and notes</summary>", ""]
    for label, names in (("Only after", diff.appeared), ("Only before", diff.vanished)):
        lines += [f"- {label}: {_code(_named(name))}" for name in names[:_ROWS]]
        lines += [f"- {label}: {len(names) - _ROWS:,} more"] if len(names) > _ROWS else []
    lines += [f"- {_inert(line)}" for line in (*_sides(diff), *diff.notes)]
    return "\n".join([*lines, "", "</details>"]) + "\n"


def _code(name: str) -> str:
    """A name as code in a table of Markdown, in which nothing is markup, a link or a mention."""
    return "`" + one_line(name, 120).replace("`", "'").replace("|", "\\|") + "`"


def _inert(line: str) -> str:
    """Text in which a name that somebody gave makes no markup."""
    shown = escape(one_line(line, 400))
    return "".join(f"&#{ord(char)};" if char in "`*_[]|@~\\" else char for char in shown)


def _named(what: str) -> str:
    """What is compared, where copies are called by their direction."""
    calls, of, name = what.rpartition("calls of ")
    return one_line(f"{calls}{of}copies {WAYS[name]}" if name in WAYS else what)


def _runs(diff: Diff) -> str:
    return f"{count_text(diff.runs[0], 'run')} before, {diff.runs[1]} after"


def _sides(diff: Diff) -> list[str]:
    """ "before: main (before-1.gpusense), before-2.gpusense", where runs have names."""
    shown = []
    for side, runs in zip(("before", "after"), diff.names, strict=True):
        known = [name for name in runs if name]
        more = f" and {len(known) - _SHORT_ROWS} more" if len(known) > _SHORT_ROWS else ""
        if known:
            shown.append(f"{side}: {', '.join(known[:_SHORT_ROWS])}{more}")
    return shown


def write(diff: Diff, target: "str | os.PathLike[str] | IO[str]", *, over: float | None = None) -> None:
    """Writes one HTML file without script."""
    style = page_file("page.css")
    counts = _table(
        ("Count", "Before", "After", "Change", "Verdict"),
        [(_named(row.what), *_before_after(row), _change(row), row.verdict) for row in _counts(diff)],
        sum(not row.total for row in diff.counts) - _ROWS,
    )
    times, blocks = map(_times, (diff.times, diff.blocks))
    counters = ""
    if diff.counters:
        table = _table(
            ("Block and counter", "Before", "After", "Change", "Verdict", "p", "Samples"),
            [
                (
                    *_counted(diff, row),
                    "–" if row.probability is None else f"{row.probability:.2g}",
                    f"{row.samples[0]:,} / {row.samples[1]:,}",
                )
                for row in diff.counters[:_PAGE_ROWS]
            ],
            len(diff.counters) - _PAGE_ROWS,
        )
        counters = f"<section><h2>Counters by block <small>{escape(_spread(diff))}</small></h2>{table}</section>"
    failures = diff.failures(over) if over is not None else ()
    names = "".join(
        f"<section><h2>{label}</h2><ul>{_items([*shown, *_more(len(found) - _PAGE_NAMES)])}</ul></section>"
        for label, found in (("Only after", diff.appeared), ("Only before", diff.vanished))
        if (shown := [_named(name) for name in found[:_PAGE_NAMES]])
    )
    notes = _items((*failures, *diff.conditions, *diff.notes))
    runs = "; ".join((_runs(diff), *_sides(diff)))
    result = escape(conclusion(diff, over))
    with output(target) as file:
        file.write(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy(style))}">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>gpusense comparison</title><style>{style}</style></head>
<body><header><h1>gpusense</h1><p>{escape(one_line(runs, 1000))}</p></header><main>
<section id="verdict"><h2>Comparison</h2><p class="sentence">{result}</p><ul>{notes}</ul></section>
<section><h2>Counts <small>exact on any machine</small></h2>{counts}</section>
<section><h2>Times <small>a verdict only where chance is ruled out</small></h2>{times}</section>
<section><h2>Blocks <small>the median of a pass; what changed most itself first</small></h2>{blocks}</section>
{counters}
{names}</main></body></html>
""")


def _items(lines: Sequence[str]) -> str:
    return "".join(f"<li>{escape(one_line(line, 400))}</li>" for line in lines)


def _times(times: Sequence[TimeChange]) -> str:
    return _table(
        ("Time", "Before", "After", "Change", "Verdict", "p", "Samples"),
        [
            (
                _named(row.what),
                *_before_after(row),
                _change(row),
                f"{_verdict(row)}{'' if row.decides or row.probability is None else _HERE}",
                "–" if row.probability is None else f"{row.probability:.2g}",
                f"{len(row.before):,} / {len(row.after):,} {row.basis if row.basis != 'untested' else 'runs'}",
            )
            for row in times[:_PAGE_ROWS]
        ],
        len(times) - _PAGE_ROWS,
    )


#: Beside a verdict that decides nothing: it is about single calls or passes, or a small share of the time.
_HERE = " in these runs"


def conclusion(diff: Diff, over: float | None = None) -> str:
    """What came of the comparison, in sentences that no row contradicts. With ``over`` it is the decision."""
    if diff.blind:
        return f"{diff.blind[0].upper()}{diff.blind[1:]}."
    failures = diff.failures(over) if over is not None else ()
    if failures:
        return f"{count_text(len(failures), 'figure')} grew by more than {option_percent_text(over or 0)}."
    if over is not None:
        return f"{_no_count(diff, over)}{_no_time(diff, over)}{_here(diff)}"
    changed = [row for row in diff.counts if row.total and row.verdict in ("more", "fewer")]
    counts = f"{count_text(len(changed), 'count')} changed" if changed else "No count changed"
    if not diff.times_were_judged:
        return f"{counts}; {_not_judged(diff)}{_here(diff)}"
    slower, faster = (
        [row for row in (*diff.times, *diff.blocks) if row.verdict == word and row.decides]
        for word in ("slower", "faster")
    )
    if not slower and not faster:
        return f"{counts}; no time changed beyond chance{_here(diff)}"
    return f"{counts}; {count_text(len(slower), 'time')} slower and {len(faster)} faster beyond chance{_here(diff)}"


def _no_count(diff: Diff, over: float) -> str:
    """ "No count grew by more than 10%", and which rows above seem to say otherwise."""
    grown = [row for row in diff.counts if median(row.after) > median(row.before) * (1 + over)]
    shares = option_percent_text(over)
    if not grown:
        return f"No count grew by more than {shares}"
    calls = sum(not row.total for row in grown)
    unsure = sum(row.total and row.verdict == "varies" for row in grown)
    once = len(grown) - calls - unsure  # recorded on one side only: other totals would be failures
    but = [
        f"{count_text(calls, 'operation')} had more calls" if calls else "",
        f"{count_text(unsure, 'total varies', 'totals vary')} from run to run" if unsure else "",
        f"{count_text(once, 'total was', 'totals were')} recorded on one side only" if once else "",
    ]
    return f"No total count grew by more than {shares} ({', '.join(filter(None, but))})"


def _no_time(diff: Diff, over: float) -> str:
    if not diff.times_were_judged:
        return f"; {_not_judged(diff)}"
    return f"; no time grew by more than {option_percent_text(over)} beyond chance"


def _not_judged(diff: Diff) -> str:
    few = min(diff.runs)
    return f"times were not judged with {count_text(few, 'run')} a side ({DECISIVE_RUNS} are needed)"


def _here(diff: Diff) -> str:
    """The end of the sentence, and what is slower without deciding."""
    rows = [row for row in (*diff.times, *diff.blocks) if row.verdict == "slower" and not row.decides]
    if not rows:
        return "."
    named = ", ".join(f"{one_line(_named(row.called), 60)} ({_change(row)})" for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    why = "too small to decide" if diff.times_were_judged else "by single calls and passes"
    return f". Slower in these runs, {why}: {named}{more}."


def _counts(diff: Diff) -> list[CountChange]:
    totals = [row for row in diff.counts if row.total]
    return totals + [row for row in diff.counts if not row.total][:_ROWS]


def _amount(what: str) -> Callable[[float], str]:
    return size_text if what.startswith("bytes") else lambda value: f"{value:,.0f}"


def _before_after(row: CountChange | TimeChange) -> tuple[str, str]:
    shown = _amount(row.what) if isinstance(row, CountChange) else time_text
    return shown(median(row.before)), shown(median(row.after))


def _change(row: CountChange | TimeChange | CounterChange) -> str:
    change = row.change
    if change is None:
        return "new" if any(row.after) else "–"
    shown = f"{change:+.1%}".replace("%", " %")
    return "=" if not change else "0.0 %" if abs(change) < 0.0005 else shown


def _counted(diff: Diff, row: CounterChange) -> tuple[str, ...]:
    """The cells of a row: what, before, after, change and verdict."""
    block = one_line(" › ".join(row.block)) if row.block else "all work"
    several = len({one.device for one in diff.counters}) > 1
    before, after = (_mean(row.unit, *side) for side in zip(row.means, row.deviations, strict=True))
    points = row.means[1] - row.means[0]
    return (
        f"{block}{f' · GPU {row.device}' if several else ''}: {row.figure}",
        *(before, after),
        f"{points:+.1f} points" if row.unit == "%" and points else _change(row),
        _verdict(row) + (_HERE if row.verdict in _SIGNS and row.basis != "runs" else ""),
    )


def _mean(unit: str, mean: float, deviation: float | None) -> str:
    """ "1.99 ± 0.03 TB/s"."""
    shown = {"B/s": rate_text(mean), "%": percent_text(mean / 100)}.get(unit, f"{mean:,.0f} {unit}")
    number, _, scaled = shown.partition(" ")
    value = float(number.replace(",", ""))
    if deviation is None or not value:
        return shown
    return f"{number} ± {deviation * value / mean:,.{len(number.partition('.')[2])}f} {scaled}"


def _spread(diff: Diff) -> str:
    """What stands behind the ± of counters."""
    of = "from run to run" if diff.times_were_judged else "between parts of a block's time"
    return f"averages ± deviation {of}"


def _sure(row: TimeChange) -> str:
    if row.probability is None:
        return row.verdict
    if row.decides or row.verdict not in _SIGNS:
        return f"{_verdict(row)} (p {row.probability:.2g})"
    samples = f", {min(len(row.before), len(row.after))} {row.basis}" if row.basis in ("calls", "passes") else ""
    return f"{row.verdict}{_HERE} (p {row.probability:.2g}{samples})"


def _verdict(row: TimeChange | CounterChange) -> str:
    """In words that a small p does not contradict: what is sure may be too small to be called a difference."""
    sure = row.probability is not None and row.probability <= LEVEL
    return row.verdict if row.verdict in _SIGNS or not sure else f"less than {EFFECT * 100:g} %"


def _more(count: int) -> list[str]:
    return [f"  … and {count:,} more"] * (count > 0)


def _aligned(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    widths[0] = max(8, min(widths[0], width - sum(widths[1:]) - 2 * len(widths)))
    return [
        "  "
        + "  ".join(
            one_line(cell, widths[at]).ljust(widths[at]) if at in (0, len(row) - 1) else cell.rjust(widths[at])
            for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def _wrap(lines: list[str], width: int) -> list[str]:
    wrapped: list[str] = []
    for line in lines:
        while len(line) > width:
            cut = line.rfind(" ", 20, width)
            cut = cut if cut > 0 else width
            wrapped.append(line[:cut])
            line = "    " + line[cut:].lstrip()
        wrapped.append(line)
    return wrapped


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]], left_out: int) -> str:
    if not rows:
        return "<p class='quiet'>None recorded.</p>"
    head = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in heads)
    signs = {f"{word}{end}": sign for word, sign in _SIGNS.items() for end in ("", _HERE)}
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(signs.get(cell, ''))} {escape(one_line(cell, 400))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    more = "".join(f"<p class='note'>{line.strip()}</p>" for line in _more(left_out))
    table = f"<table class='plain'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='table' tabindex='0'>{table}</div>{more}"
