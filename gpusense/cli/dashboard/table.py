"""The table of processes: which rows, in which order, in which columns, as lines of text. Pure."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from ..._records.metrics import GpuMetrics
from ..._runtime.text import gib_number, mib_number
from .paint import Line, Theme, pad, paint, shortened, whole_percent_text
from .processes import Facts

_SHORTEST_COMMAND = 10
_NOTHING = Facts()


class Row(NamedTuple):
    """One process on one device."""

    pid: int
    user: str | None
    gpu: int
    gpu_memory: int | None
    gpu_percent: float | None
    cpu_percent: float | None
    host_memory: int | None
    running: float | None
    command: str | None


class _Column(NamedTuple):
    head: str
    room: int
    text: Callable[[Any, Theme], str]
    rank: int  # which goes first where the terminal is narrow: the highest
    largest_first: bool = True
    host: bool = False  # known from the system, not from the driver


def _percent(value: float | None, theme: Theme) -> str:
    return whole_percent_text(value, theme)


def _amount(size: float | None, theme: Theme) -> str:
    if size is None:
        return theme.none
    return f"{mib_number(size)} MiB" if size < 99_999.5 * 2**20 else f"{gib_number(size)} GiB"


def _span(seconds: float | None, theme: Theme) -> str:
    """``3725`` → "1:02:05", with days from the first on."""
    if seconds is None:
        return theme.none
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}h"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _word(value: object, theme: Theme) -> str:
    return theme.none if value is None else str(value)


_COLUMNS = {
    "pid": _Column("PID", 8, _word, 0, largest_first=False),
    "user": _Column("USER", 8, _word, 6, largest_first=False, host=True),
    "gpu": _Column("GPU", 4, _word, 4, largest_first=False),
    "gpu_memory": _Column("GPU MEM", 9, _amount, 2),
    "gpu_percent": _Column("GPU %", 6, _percent, 3),
    "cpu_percent": _Column("CPU %", 7, _percent, 5, host=True),
    "host_memory": _Column("HOST MEM", 9, _amount, 7, host=True),
    "running": _Column("TIME", 8, _span, 8, host=True),
    "command": _Column("COMMAND", _SHORTEST_COMMAND, _word, 1, largest_first=False),
}
#: What processes can be sorted by.
COLUMNS = tuple(_COLUMNS)
DEFAULT_SORT = "gpu_memory"
_LEFT = ("user", "command")  # text; numbers stand at the right of their column


def rows(samples: Sequence[GpuMetrics], facts: Mapping[int, Facts]) -> list[Row]:
    """Every process on the devices of ``samples``, with what is known of it on the host."""
    found = []
    for sample in samples:
        for usage in sample.processes or ():
            known = facts.get(usage.pid, _NOTHING)
            found.append(
                Row(
                    usage.pid,
                    known.user,
                    sample.device.index,
                    usage.memory_used_bytes,
                    usage.gpu_percent,
                    known.cpu_percent,
                    known.memory_bytes,
                    known.running_s,
                    known.command or usage.name or ("another pid namespace" if usage.visible is False else None),
                )
            )
    return found


def chosen(found: Sequence[Row], words: str, sort: str, reverse: bool) -> list[Row]:
    """Those with ``words`` in them, in order of the column ``sort``; unknown last, whichever way round."""
    words = words.casefold()
    if words:
        found = [row for row in found if words in _text(row)]
    read: Callable[[Row], Any] = attrgetter(sort)
    known = sorted([row for row in found if read(row) is not None], key=lambda row: (row.pid, row.gpu))
    known.sort(key=read, reverse=_COLUMNS[sort].largest_first != reverse)
    return known + [row for row in found if read(row) is None]


def _text(row: Row) -> str:
    return f"{row.pid} {row.user or ''} {row.command or ''}".casefold()


class Table(NamedTuple):
    lines: list[str]
    first: int  # row at the top
    shown: int
    columns: int  # that there was no room for


def table(
    listed: Sequence[Row],
    room: int,
    width: int,
    theme: Theme,
    *,
    first: int = 0,
    sort: str = DEFAULT_SORT,
    reverse: bool = False,
    several: bool = False,
    host: bool = False,
) -> Table:
    """At most ``room`` lines, the first names the columns; ``several``: with the device; ``host``: what is of it."""
    wanted = [name for name, one in _COLUMNS.items() if (several or name != "gpu") and (host or not one.host)]
    names, widths = _fitting(wanted, sort, width)
    shown = min(max(room - 1, 0), len(listed))
    first = max(min(first, len(listed) - shown), 0)
    if not shown:
        return Table([], first, 0, 0)
    mark = theme.down if _COLUMNS[sort].largest_first != reverse else theme.up
    head = [_cell(name, _COLUMNS[name].head + (mark if name == sort else ""), widths[name]) for name in names]
    lines = [_line([(" ".join(head), "dim")], width, theme)]
    for row in listed[first : first + shown]:
        cells = [_cell(name, _COLUMNS[name].text(getattr(row, name), theme), widths[name]) for name in names]
        lines.append(_line([(" ".join(cells), "")], width, theme))
    return Table(lines, first, shown, len(wanted) - len(names))


def _fitting(wanted: Sequence[str], sort: str, width: int) -> tuple[list[str], dict[str, int]]:
    """The columns that there is room for, and how wide each is: pid and command, that of the order, the others."""
    left = width + 1
    kept: set[str] = set()
    for name in sorted(wanted, key=lambda name: (name not in ("pid", "command"), name != sort, _COLUMNS[name].rank)):
        if kept and _COLUMNS[name].room + 1 > left:
            break
        left -= _COLUMNS[name].room + 1
        kept.add(name)
    widths = {name: _COLUMNS[name].room for name in kept}
    if "command" in kept:
        widths["command"] += max(left, 0)
    return [name for name in wanted if name in kept], widths


def _cell(name: str, text: str, room: int) -> str:
    return pad(text, room) if name in _LEFT else shortened(text, room).rjust(room)


def _line(line: Line, width: int, theme: Theme) -> str:
    return paint([(text.rstrip(), style) for text, style in line], width, theme)
