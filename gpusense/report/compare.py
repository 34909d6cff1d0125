"""A comparison of runs as text, as JSON-ready data and as one offline HTML page."""

import os
from collections.abc import Callable, Sequence
from typing import IO, Any

from .._records.json_codec import dumps
from .._runtime.text import count_text, one_line, option_percent_text, size_text, time_text
from ..analysis.anomalies import median
from ..analysis.diff import CountChange, Diff, TimeChange, compare
from ..session import Session
from .files import output
from .html.page import escape, page_file, policy

_ROWS = 12
_PAGE_ROWS, _PAGE_NAMES = 200, 100
_SIGNS = {"more": "▲", "fewer": "▼", "slower": "▲", "faster": "▼"}


def command(
    before: Sequence[Session],
    after: Sequence[Session],
    *,
    fail_over: float | None,
    form: str,
    target: "str | os.PathLike[str] | IO[str]",
) -> int:
    """Compares, writes ``form`` "text", "json" or "html" to ``target``; 3 where ``fail_over`` was exceeded, else 0."""
    diff = compare(before, after)
    if form == "html":
        write(diff, target, over=fail_over)
    else:
        with output(target) as file:
            file.write(text(diff, over=fail_over) if form == "text" else json_text(diff, over=fail_over))
    return 3 if fail_over is not None and diff.failures(fail_over) else 0


def json_text(diff: Diff, *, over: float | None = None) -> str:
    """:func:`to_dict` as one line of JSON."""
    return dumps(to_dict(diff, over=over), portable=True) + "\n"


def to_dict(diff: Diff, *, over: float | None = None) -> dict[str, Any]:
    """Everything the comparison found; ``schema`` grows with what is in it. ``over`` adds the decision."""
    shown: dict[str, Any] = {
        "schema": 1,
        "runs": {"before": diff.runs[0], "after": diff.runs[1]},
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
        "times": [
            {
                "what": row.what,
                "kind": row.kind,
                "share": row.share,
                "samples": {"before": len(row.before), "after": len(row.after)},
                "before_median_ns": median(row.before),
                "after_median_ns": median(row.after),
                "change": row.change,
                "probability": row.probability,
                "basis": row.basis,
                "verdict": row.verdict,
            }
            for row in diff.times
        ],
        "appeared": list(diff.appeared),
        "vanished": list(diff.vanished),
        "notes": list(diff.notes),
    }
    if over is not None:
        shown["fail_over"] = over
        shown["failures"] = list(diff.failures(over))
    return shown


def text(diff: Diff, *, over: float | None = None, width: int = 100) -> str:
    """The comparison in lines of at most ``width`` characters, without colours."""
    lines = [f"{count_text(diff.runs[0], 'run')} before, {diff.runs[1]} after", "", "Counts (exact)"]
    rows = [
        (
            one_line(row.what),
            _amount(row.what)(median(row.before)),
            _amount(row.what)(median(row.after)),
            _change(row),
            row.verdict,
        )
        for row in _counts(diff)
    ]
    lines += _aligned(rows, width) if rows else ["  none recorded"]
    lines += _more(sum(not row.total for row in diff.counts) - _ROWS)
    lines += ["", "Times (medians)"]
    lines += _aligned(
        [
            (one_line(row.what), time_text(median(row.before)), time_text(median(row.after)), _change(row), _sure(row))
            for row in diff.times[:_ROWS]
        ],
        width,
    ) or ["  none recorded"]
    lines += _more(len(diff.times) - _ROWS)
    for label, names in (("Only after", diff.appeared), ("Only before", diff.vanished)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            lines += ["", f"{label}: {', '.join(one_line(name, 60) for name in names[:5])}{more}"]
    lines += [""] * bool(diff.notes) + [f"Note: {note}" for note in diff.notes]
    if over is not None:
        failures = diff.failures(over)
        head = f"Grew by more than {option_percent_text(over)}:" if not diff.blind else "Does not pass:"
        lines += ["", head if failures else f"Nothing grew by more than {option_percent_text(over)}."]
        lines += [f"  {failure}" for failure in failures]
    return "\n".join(_wrap(lines, width)) + "\n"


def write(diff: Diff, target: "str | os.PathLike[str] | IO[str]", *, over: float | None = None) -> None:
    """Writes one HTML file without script."""
    style = page_file("page.css")
    counts = _table(
        ("Count", "Before", "After", "Change", "Verdict"),
        [
            (
                row.what,
                _amount(row.what)(median(row.before)),
                _amount(row.what)(median(row.after)),
                _change(row),
                row.verdict,
            )
            for row in _counts(diff)
        ],
        sum(not row.total for row in diff.counts) - _ROWS,
    )
    times = _table(
        ("Time", "Before", "After", "Change", "Verdict", "p", "Samples"),
        [
            (
                row.what,
                time_text(median(row.before)),
                time_text(median(row.after)),
                _change(row),
                row.verdict,
                "–" if row.probability is None else f"{row.probability:.2g}",
                f"{len(row.before)} / {len(row.after)} {row.basis if row.basis != 'untested' else 'runs'}",
            )
            for row in diff.times[:_PAGE_ROWS]
        ],
        len(diff.times) - _PAGE_ROWS,
    )
    failures = diff.failures(over) if over is not None else ()
    verdict = _headline(diff, failures, over)
    names = "".join(
        f"<section><h2>{label}</h2><ul>{_items([*found[:_PAGE_NAMES], *_more(len(found) - _PAGE_NAMES)])}</ul>"
        "</section>"
        for label, found in (("Only after", diff.appeared), ("Only before", diff.vanished))
        if found
    )
    notes = _items((*failures, *diff.notes))
    with output(target) as file:
        file.write(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy(style))}">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>gpusense comparison</title><style>{style}</style></head>
<body><header><h1>gpusense</h1><p>{count_text(diff.runs[0], "run")} before, {diff.runs[1]} after</p></header><main>
<section id="verdict"><h2>Comparison</h2><p class="sentence">{escape(verdict)}</p><ul>{notes}</ul></section>
<section><h2>Counts <small>exact on any machine</small></h2>{counts}</section>
<section><h2>Times <small>a verdict only where chance is ruled out</small></h2>{times}</section>
{names}</main></body></html>
""")


def _items(lines: Sequence[str]) -> str:
    return "".join(f"<li>{escape(one_line(line, 400))}</li>" for line in lines)


def _headline(diff: Diff, failures: Sequence[str], over: float | None) -> str:
    if diff.blind:
        return f"{diff.blind[0].upper()}{diff.blind[1:]}."
    if failures:
        return f"{count_text(len(failures), 'figure')} grew by more than {option_percent_text(over or 0)}."
    slower = [row for row in diff.times if row.verdict == "slower" and row.basis == "runs"]
    faster = [row for row in diff.times if row.verdict == "faster" and row.basis == "runs"]
    changed = [row for row in diff.counts if row.total and row.verdict in ("more", "fewer")]
    if slower or faster:
        return f"{count_text(len(slower), 'time')} slower and {len(faster)} faster beyond chance."
    if changed:
        return f"{count_text(len(changed), 'count')} changed; no time changed beyond chance."
    return "No difference shown."


def _counts(diff: Diff) -> list[CountChange]:
    totals = [row for row in diff.counts if row.total]
    return totals + [row for row in diff.counts if not row.total][:_ROWS]


def _amount(what: str) -> Callable[[float], str]:
    return size_text if what.startswith("bytes") else lambda value: f"{value:,.0f}"


def _change(row: CountChange | TimeChange) -> str:
    change = row.change
    if change is None:
        return "new" if any(row.after) else "–"
    return f"{change:+.1%}".replace("%", " %") if change else "="


def _sure(row: TimeChange) -> str:
    if row.probability is None:
        return row.verdict
    basis = ", calls" if row.basis == "calls" else ""
    return f"{row.verdict} (p {row.probability:.2g}{basis})"


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
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(_SIGNS.get(cell, ''))} {escape(one_line(cell, 400))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    more = "".join(f"<p class='note'>{line.strip()}</p>" for line in _more(left_out))
    table = f"<table class='plain'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='table'>{table}</div>{more}"
