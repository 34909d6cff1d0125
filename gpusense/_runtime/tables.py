"""Rows as tables, for notebooks and terminals: NamedTuples whose fields have units in their names.

Pure; imports nothing beyond ``html`` when it is asked for some. Whatever a program named passes through :func:`escape`.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from .text import UNKNOWN, one_line, percent_text, printable, rate_text, size_text, time_text

T = TypeVar("T")
_SHOWN = 20

#: Of rows with these fields, the columns that are shown, with their heads.
_COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "Operation": (
        *(("share", "share"), ("total_ns", "total"), ("count", "calls"), ("avg_ns", "avg"), ("median_ns", "p50")),
        *(("p95_ns", "p95"), ("max_ns", "max"), ("bytes", "bytes"), ("kind", "kind"), ("device", "device")),
        ("name", "name"),
    ),
    "BlockOperation": (
        *(("total_ns", "total"), ("own_ns", "own"), ("count", "calls"), ("avg_ns", "avg"), ("median_ns", "p50")),
        *(
            ("p95_ns", "p95"),
            ("device_ns", "device"),
            ("gpu_ns", "GPU"),
            ("kernel_count", "kernels"),
            ("transfer_ns", "copies"),
        ),
        *(("transfer_bytes", "bytes"), ("wait_ns", "waits"), ("path", "block")),
    ),
    "BlockShares": (
        *(("device_ns", "time"), ("sm_active_percent", "SM"), ("tensor_percent", "tensor")),
        *(("dram_bytes_per_s", "DRAM"), ("dram_percent", "of peak"), ("device", "device"), ("path", "block")),
    ),
    "Launched": (
        *(("total_ns", "total"), ("count", "calls"), ("avg_ns", "avg"), ("min_ns", "min"), ("max_ns", "max")),
        *(("bytes", "bytes"), ("kind", "kind"), ("name", "name")),
    ),
    "Phase": (("length_ns", "length"), ("process", "process"), ("name", "phase")),
    "Span": (
        *(("start_ns", "start"), ("duration_ns", "length"), ("kind", "kind"), ("device", "device")),
        *(("bytes", "bytes"), ("path", "block"), ("name", "name")),
    ),
}
#: Times of blocks that are at least so long where some did not end.
_GROWS = frozenset({"total_ns", "own_ns", "avg_ns", "median_ns", "p95_ns"})
_LEFT = frozenset({"kind", "device", "name", "block", "phase", "process"})


class Table(tuple[T, ...]):
    """Rows that a notebook shows as a table; otherwise the tuple that it is."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return table(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("(…)" if cycle else "\n".join(lines(self)))


def escape(text: object) -> str:
    """Text for HTML: markup inert, control characters and lone surrogates replaced."""
    from html import escape

    return escape(printable(str(text)))


def table(rows: Sequence[Any], most: int = _SHOWN) -> str:
    """The first rows as HTML."""
    heads, cells = _cells(rows, most)
    if not cells:
        return "<p>nothing</p>"

    def row(tag: str, texts: Sequence[str]) -> str:
        sides = ("left" if head in _LEFT else "right" for head in heads)
        shown = (
            f'<{tag} style="white-space:nowrap;text-align:{side}">{escape(text)}</{tag}>'
            for side, text in zip(sides, texts, strict=True)
        )
        return f"<tr>{''.join(shown)}</tr>"

    more = f"<p>… and {len(rows) - most:,} more</p>" if len(rows) > most else ""
    body = "".join(row("td", texts) for texts in cells)
    head = f"<thead>{row('th', heads)}</thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>{more}"


def lines(rows: Sequence[Any], most: int = _SHOWN) -> list[str]:
    """The same as text."""
    heads, cells = _cells(rows, most)
    if not cells:
        return ["nothing"]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    found = [
        "  ".join(
            text.ljust(width) if head in _LEFT else text.rjust(width)
            for head, text, width in zip(heads, texts, widths, strict=True)
        ).rstrip()
        for texts in (heads, *cells)
    ]
    return found + [f"… and {len(rows) - most:,} more"] * (len(rows) > most)


def _cells(rows: Sequence[Any], most: int) -> tuple[list[str], list[list[str]]]:
    """The heads and the cells of the columns that have a value."""
    if not rows:
        return [], []
    of = type(rows[0])
    columns = _COLUMNS.get(of.__name__) or tuple((name, name) for name in of._fields)
    first = min(row.start_ns for row in rows) if of.__name__ == "Span" else 0
    cells = [
        [_at_least(name, row) + _cell(name, getattr(row, name), first) for row in rows[:most]] for name, _ in columns
    ]
    shown = [at for at, column in enumerate(cells) if {*column} - {"", UNKNOWN}]
    return [columns[at][1] for at in shown], list(map(list, zip(*(cells[at] for at in shown), strict=True)))


def _at_least(name: str, row: Any) -> str:
    has_no_end = bool(getattr(row, "open_count", 0)) and name in _GROWS
    return "≥" if has_no_end and getattr(row, name) else ""


def _cell(name: str, value: Any, first: int) -> str:
    if value is None:
        return UNKNOWN
    if name == "start_ns":
        return f"+{time_text(value - first)}"
    if name.endswith("_ns"):
        return time_text(value)
    if name == "share":
        return percent_text(value)
    if name.endswith("_percent"):
        return percent_text(value / 100)
    if name.endswith("bytes_per_s"):
        return rate_text(value)
    if name.endswith("bytes"):
        return size_text(value) if value else ""
    if name == "path":
        return one_line(" › ".join(value), 80) if value else ""
    return f"{value:,}" if type(value) is int and name != "device" else one_line(str(value), 100)
