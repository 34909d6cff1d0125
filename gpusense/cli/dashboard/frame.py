"""Draws the dashboard: ``frame(state, width, height, theme)`` gives the lines of one screen. No terminal, no clock.

Lines are made by functions of the values they show, which keep what they made last: a picture costs what has changed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..._records.metrics import GpuMetrics, Power
from ..._records.records import DeviceInfo
from ..._runtime.text import count_text
from .frame_rows import LABEL, clock_row, details, pcie_row, processes
from .graphs import Trails, dots
from .paint import (
    Line,
    Segment,
    Theme,
    bar,
    cells,
    gib_text,
    load_style,
    measurable,
    pad,
    paint,
    paint_fitting,
    paint_run,
    whole_percent_text,
)

#: How far back the graphs reach.
HISTORY_S = 60


class State(NamedTuple):
    """What there is to draw. ``history`` holds samples of the selected device, oldest first."""

    latest: tuple[GpuMetrics, ...] = ()
    history: Sequence[GpuMetrics] = ()
    selected: int = 0  # place in ``latest``
    now_ns: int = 0  # right edge of the graphs, on the samples' monotonic clock
    title: str = "gpusense top"
    paused: bool = False
    notes: tuple[str, ...] = ()  # why there is nothing to draw, or what went wrong
    keys: str = "q quit  p pause  tab next GPU"
    allocations: str | None = None  # of a recorded session


def frame(state: State, width: int, height: int, theme: Theme, trails: Trails | None = None) -> list[str]:
    """At most ``height`` lines of at most ``width`` cells; what has no room is left out, least important first.

    ``trails``, given again for the next picture, keeps what the graphs have drawn.
    """
    width, height = max(width, 1), max(height, 1)
    lines = [_title(state.title, len(state.latest), state.paused, width, theme)]
    if state.latest:
        lines += _body(state, width, height - 2, theme, trails or Trails())
    else:
        lines += _nothing(state, width, theme)
    lines = lines[: max(height - 1, 1)]
    if height > 2:
        lines += [""] * (height - 1 - len(lines))
        lines.append(_plain_line(state.keys, "dim", width, theme))
    return lines[:height]


def band(metrics: GpuMetrics) -> str | None:
    """COOL, WARM, HOT or CRITICAL by the device's own slowdown (else shutdown) temperature.

    CRITICAL begins at that threshold, HOT at 82 % and WARM at 59 % of it; a device without thresholds is measured
    against 85 °C, which makes that 70 and 50 °C.
    """
    return _band(metrics.thermal.gpu_celsius, _hot_limit(metrics))


def _band(celsius: float | None, limit: float) -> str | None:
    if celsius is None:
        return None
    if celsius >= limit:
        return "CRITICAL"
    return "HOT" if celsius >= limit * 70 / 85 else "WARM" if celsius >= limit * 50 / 85 else "COOL"


_BAND_STYLES = {"COOL": "good", "WARM": "warm", "HOT": "hot", "CRITICAL": "critical"}


def _hot_limit(metrics: GpuMetrics) -> float:
    return metrics.thermal.slowdown_celsius or metrics.thermal.shutdown_celsius or 85.0


@lru_cache(maxsize=32)
def _plain_line(text: str, style: str, width: int, theme: Theme) -> str:
    return paint([(text, style)], width, theme)


@lru_cache(maxsize=4)
def _title(title: str, count: int, paused: bool, width: int, theme: Theme) -> str:
    words = [title, count_text(count, "GPU")]
    if paused:
        words.append("paused")
    return paint([(theme.dot.join(words), "title")], width, theme)


def _nothing(state: State, width: int, theme: Theme) -> list[str]:
    lines = ["", _plain_line("no GPU to watch", "warm", width, theme)]
    for note in state.notes:
        lines += [_plain_line(text, "dim", width, theme) for text in _wrapped(note, width)]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in measurable(text).split():
        if line and cells(line) + 1 + cells(word) > width:
            lines.append(line)
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def _body(state: State, width: int, height: int, theme: Theme, trails: Trails) -> list[str]:
    selected = min(state.selected, len(state.latest) - 1)
    metrics = state.latest[selected]
    lines: list[str] = []
    if len(state.latest) > 1:
        lines += _overview(state.latest, selected, width, max(min(len(state.latest), height // 3), 1), theme)
    lines.append(_heading(metrics.device, width, theme))
    lines += [_plain_line(note, "warm", width, theme) for note in state.notes]
    if metrics.state != "ok":
        lines.append(_plain_line(_trouble(metrics), "warm", width, theme))
    core, beside = _core(metrics, width, theme), details(metrics, state.allocations, width, theme)
    room = height - len(lines) - len(core)
    shown = beside[: max(room, 0)]
    lines += core + shown
    room -= len(shown)
    users = processes(metrics.processes, width, theme)
    graphs = _graphs(state, metrics, width, min(max(room - min(len(users), 6), 0), 16), theme, trails)
    lines += graphs
    lines += users[: max(room - len(graphs), 0)]
    return lines


def _trouble(metrics: GpuMetrics) -> str:
    return metrics.reasons[0][1] if metrics.reasons else metrics.state


def _overview(latest: tuple[GpuMetrics, ...], selected: int, width: int, rows: int, theme: Theme) -> list[str]:
    """One row a device, scrolled so that the selected one shows."""
    first = min(max(selected - rows + 1, 0), max(len(latest) - rows, 0))
    names = min(max([cells(m.device.name) for m in latest]), max(width - 52, 0))
    lines = []
    for place in range(first, min(first + rows, len(latest))):
        metrics = latest[place]
        head = _overview_head(place == selected, metrics.device.index, metrics.device.name, names, theme)
        if metrics.state != "ok":
            lines.append(paint([*head, (metrics.state, "warm")], width, theme))
            continue
        memory, celsius = metrics.memory, metrics.thermal.gpu_celsius
        lines.append(
            _overview_row(
                metrics.utilization.gpu_percent,
                memory.used_bytes,
                memory.total_bytes,
                celsius,
                _hot_limit(metrics),
                metrics.power.draw_watts,
                head,
                width,
                theme,
            )
        )
    return lines


@lru_cache(maxsize=64)
def _overview_head(selected: bool, index: int, name: str, names: int, theme: Theme) -> tuple[Segment, ...]:
    mark = (">" if theme.ascii else "▶") if selected else " "
    head = (f"{mark}{index:<2} ", "accent" if selected else "")
    return (head, (pad(name, names) + " ", "")) if names >= 4 else (head,)


@lru_cache(maxsize=128)
def _overview_load(busy: float | None, small: int, theme: Theme) -> tuple[Segment, ...]:
    load = load_style(busy)
    return (f"{whole_percent_text(busy, theme):>5} ", load), (bar(_share(busy), small, theme), load)


@lru_cache(maxsize=128)
def _overview_heat(celsius: float | None, limit: float, theme: Theme) -> Segment:
    text = theme.none if celsius is None else f"{celsius:.0f}{theme.degree}"
    return f"{text:>7}", _BAND_STYLES.get(_band(celsius, limit) or "", "dim")


@lru_cache(maxsize=64)
def _overview_row(
    busy: float | None,
    used: int | None,
    total: int | None,
    celsius: float | None,
    limit: float,
    watts: float | None,
    head: tuple[Segment, ...],
    width: int,
    theme: Theme,
) -> str:
    small = max(min(width // 10, 12), 0) if width >= 60 else 0
    line = [
        *head,
        *_overview_load(busy, small, theme),
        (f" {_memory_text(used, total, theme):>15}", load_style(_percent_of(used, total))),
        _overview_heat(celsius, limit, theme),
        (f"{theme.none if watts is None else f'{watts:.0f} W':>7}", "dim" if watts is None else ""),
    ]
    return paint(line, width, theme)


@lru_cache(maxsize=16)
def _heading(device: DeviceInfo, width: int, theme: Theme) -> str:
    dash = "-" if theme.ascii else "─"
    facts = [device.pci_bus_id, device.driver and f"driver {device.driver}", device.kind]
    right = theme.dot.join(fact for fact in facts if fact)
    left = f"{device.index} {measurable(device.name)} "
    rule = width - cells(left) - cells(right) - 1
    line: Line = [(dash + " ", "dim"), (left, "accent")]
    if rule < 2:
        line.append((dash * max(width - cells(left) - 2, 0), "dim"))
    else:
        line += [(dash * (rule - 2) + " ", "dim"), (right, "dim")]
    return paint(line, width, theme)


def _core(metrics: GpuMetrics, width: int, theme: Theme) -> list[str]:
    busy = metrics.utilization.gpu_percent
    power, thermal, memory = metrics.power, metrics.thermal, metrics.memory
    used = _percent_of(memory.used_bytes, memory.total_bytes)
    draw_percent = (
        power.draw_watts / power.limit_watts * 100 if power.draw_watts is not None and power.limit_watts else None
    )
    word = band(metrics)
    heat = None if thermal.gpu_celsius is None else thermal.gpu_celsius / _hot_limit(metrics) * 100
    full = _full_memory_text(memory.used_bytes, memory.total_bytes, memory.unified, theme)
    rows = [
        ("GPU", busy, _or_why(metrics, "utilization.gpu_percent", whole_percent_text(busy, theme)), load_style(busy)),
        ("MEM", used, _or_why(metrics, "memory.used_bytes", full), load_style(used)),
        ("PWR", draw_percent, _or_why(metrics, "power.draw_watts", _power_text(power)), load_style(draw_percent)),
        (
            "TEMP",
            heat,
            _or_why(metrics, "thermal.gpu_celsius", f"{thermal.gpu_celsius or 0:.0f}{theme.degree} {word}"),
            _BAND_STYLES.get(word or "", "dim"),
        ),
    ]
    room = min(max([cells(value) for _, _, value, _ in rows]), max(width - LABEL, 0))
    length = width - LABEL - room - 1
    return [
        *[_gauge(*row, length, width, theme) for row in rows],
        clock_row(metrics.clocks, metrics.device.clock_max_mhz, width, theme),
        pcie_row(metrics.pcie, width, theme),
    ]


@lru_cache(maxsize=32)
def _gauge(label: str, percent: float | None, value: str, style: str, length: int, width: int, theme: Theme) -> str:
    drawn = bar(_share(percent), length, theme) + " " if length >= 4 else ""
    return paint([(f"{label:<{LABEL}}", "title"), (drawn, style), (value, style)], width, theme)


def _or_why(metrics: GpuMetrics, field: str, text: str) -> str:
    """``text``, or the first word of why ``field`` has no value."""
    why = metrics.reason(field)
    return text if why is None else why.partition(":")[0]


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _percent_of(used: int | None, total: int | None) -> float | None:
    return None if used is None or not total else used / total * 100


def _memory_text(used: int | None, total: int | None, theme: Theme) -> str:
    if used is None:
        return theme.none
    return f"{gib_text(used)}/{gib_text(total)} GiB" if total else f"{gib_text(used)} GiB"


def _full_memory_text(used: int | None, total: int | None, unified: bool | None, theme: Theme) -> str:
    text = _memory_text(used, total, theme)
    if used is None or not total:
        return text
    return f"{text} {used / total * 100:.0f} %" + (" shared" if unified else "")


def _power_text(power: Power) -> str:
    limit = f"/{power.limit_watts:.0f}" if power.limit_watts else ""
    return f"{power.draw_watts or 0:.0f}{limit} W"


def _graphs(state: State, metrics: GpuMetrics, width: int, height: int, theme: Theme, trails: Trails) -> list[str]:
    """The last minute of load, memory, power and temperature, as many as have values and room."""
    columns = width - LABEL
    if height < 2 or columns < 8 or not state.history:
        return []
    most, hot = _most_watts(metrics, state.history), _hot_limit(metrics)
    readers = (
        lambda sample: sample.utilization.gpu_percent,
        lambda sample: _percent_of(sample.memory.used_bytes, sample.memory.total_bytes),
        lambda sample: None if (watts := sample.power.draw_watts) is None else watts / most * 100,
        lambda sample: None if (degrees := sample.thermal.gpu_celsius) is None else degrees / hot * 100,
    )
    side = 1 if theme.ascii else 2  # points a cell
    key = metrics.device, most, hot
    found = trails.codes(key, state.history, state.now_ns, readers, columns * side, side, HISTORY_S)
    known = [(name, codes) for name, codes in zip(_GRAPHS, found, strict=True) if codes.strip(b"\0")]
    known = known[: height - 1]
    if not known:
        return []
    rows = max(min((height - 1) // len(known), 4), 1)
    lines: list[str] = []
    for name, codes in known:
        lines += _graph(name, codes, rows, theme)
    lines.append(_axis(columns, width, theme))
    return lines


_GRAPHS = ("gpu", "mem", "power", "temp")


@lru_cache(maxsize=8)
def _graph(name: str, codes: bytes, rows: int, theme: Theme) -> tuple[str, ...]:
    """A value that stands still gives the same parts, and what was painted of them."""
    return tuple(
        paint_fitting([(f"{'' if row else name:<{LABEL}}", "dim")], theme) + paint_run(line, theme)
        for row, line in enumerate(dots(codes, rows, theme))
    )


@lru_cache(maxsize=4)
def _axis(columns: int, width: int, theme: Theme) -> str:
    ago = f"{HISTORY_S} s ago"
    gap = columns - len(ago) - 3
    return paint([(" " * LABEL + ago + " " * max(gap, 1) + "now", "dim")], width, theme)


def _most_watts(metrics: GpuMetrics, history: Sequence[GpuMetrics]) -> float:
    """What the graph of power calls full: the limit, or where there is none the most of the last minute."""
    if metrics.power.limit_watts:
        return metrics.power.limit_watts
    return max((sample.power.draw_watts or 0.0 for sample in history), default=0.0) or 1.0
