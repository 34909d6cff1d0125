"""Draws the dashboard: ``frame(state, width, height, theme)`` gives the lines of one screen. No terminal, no clock."""

from collections.abc import Sequence
from typing import NamedTuple

from ..._records.metrics import (
    Clocks,
    GpuMetrics,
    Health,
    Links,
    Memory,
    Pcie,
    Power,
    ProcessUsage,
    Thermal,
    Utilization,
)
from ..._records.records import DeviceInfo
from ..._runtime.text import count_text, gib_number, mib_number, rate_text
from .graphs import Graphs, dots
from .paint import (
    Line,
    Segment,
    Theme,
    bar,
    cells,
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
_LABEL = 7  # cells of the word before a line


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


def frame(state: State, width: int, height: int, theme: Theme, graphs: Graphs | None = None) -> list[str]:
    """At most ``height`` lines of at most ``width`` cells; what has no room is left out, least important first.

    ``graphs``, passed again for the next picture, keeps what was drawn.
    """
    width, height = max(width, 1), max(height, 1)
    lines = [_title(state, width, theme)]
    if state.latest:
        lines += _body(state, width, height - 2, theme, graphs or Graphs())
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
    celsius, limit = metrics.thermal.gpu_celsius, _hot_limit(metrics)
    if celsius is None:
        return None
    if celsius >= limit:
        return "CRITICAL"
    return "HOT" if celsius >= limit * 70 / 85 else "WARM" if celsius >= limit * 50 / 85 else "COOL"


_BAND_STYLES = {"COOL": "good", "WARM": "warm", "HOT": "hot", "CRITICAL": "critical"}


def _hot_limit(metrics: GpuMetrics) -> float:
    return metrics.thermal.slowdown_celsius or metrics.thermal.shutdown_celsius or 85.0


def _plain_line(text: str, style: str, width: int, theme: Theme) -> str:
    return paint([(text, style)], width, theme)


def _title(state: State, width: int, theme: Theme) -> str:
    words = [state.title, count_text(len(state.latest), "GPU")]
    if state.paused:
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


def _body(state: State, width: int, height: int, theme: Theme, graphs: Graphs) -> list[str]:
    selected = min(state.selected, len(state.latest) - 1)
    metrics = state.latest[selected]
    lines: list[str] = []
    if len(state.latest) > 1:
        lines += _overview(state.latest, selected, width, max(min(len(state.latest), height // 3), 1), theme)
    lines.append(_heading(metrics.device, width, theme))
    lines += [_plain_line(note, "warm", width, theme) for note in state.notes]
    if metrics.state != "ok":
        lines.append(_plain_line(_trouble(metrics), "warm", width, theme))
    core, beside = _core(metrics, width, theme), _details(metrics, state.allocations, width, theme)
    room = height - len(lines) - len(core)
    shown = beside[: max(room, 0)]
    lines += core + shown
    room -= len(shown)
    users = metrics.processes
    few = 0 if users is None else min(len(users) + 1, 6)
    drawn = _graphs(state, metrics, width, min(max(room - few, 0), 16), theme, graphs)
    lines += drawn
    lines += _processes(users, room - len(drawn), width, theme)
    return lines


def _trouble(metrics: GpuMetrics) -> str:
    return metrics.reasons[0][1] if metrics.reasons else metrics.state


def _overview(latest: tuple[GpuMetrics, ...], selected: int, width: int, rows: int, theme: Theme) -> list[str]:
    """One row a device, scrolled so that the selected one shows; the last row says how many there are no rows for."""
    hidden = 0
    if len(latest) > rows > 1:
        rows -= 1
        hidden = len(latest) - rows
    first = min(max(selected - rows + 1, 0), max(len(latest) - rows, 0))
    names = min(max([cells(m.device.name) for m in latest]), max(width - 52, 0))
    lines = []
    for place in range(first, min(first + rows, len(latest))):
        metrics = latest[place]
        head = _overview_head(place == selected, metrics.device, names, theme)
        if metrics.state != "ok":
            lines.append(paint([*head, (metrics.state, "warm")], width, theme))
            continue
        lines.append(paint([*head, *_overview_values(metrics, width, theme)], width, theme))
    return [*lines, _more(hidden, "GPUs", width, theme)] if hidden else lines


def _overview_head(selected: bool, device: DeviceInfo, names: int, theme: Theme) -> tuple[Segment, ...]:
    mark = (">" if theme.ascii else "▶") if selected else " "
    head = (f"{mark}{device.index:<2} ", "accent" if selected else "")
    return (head, (pad(device.name, names) + " ", "")) if names >= 4 else (head,)


def _overview_values(metrics: GpuMetrics, width: int, theme: Theme) -> Line:
    busy, memory, celsius = metrics.utilization.gpu_percent, metrics.memory, metrics.thermal.gpu_celsius
    watts = metrics.power.draw_watts
    small = max(min(width // 10, 12), 0) if width >= 60 else 0
    load = load_style(busy)
    used = _percent_of(memory.used_bytes, memory.total_bytes)
    heat = theme.none if celsius is None else f"{celsius:.0f}{theme.degree}"
    return [
        (f"{whole_percent_text(busy, theme):>5} ", load),
        (bar(_share(busy), small, theme), load),
        (f" {_memory_text(memory, theme):>15}", load_style(used)),
        (f"{heat:>7}", _BAND_STYLES.get(band(metrics) or "", "dim")),
        (f"{theme.none if watts is None else f'{watts:.0f} W':>7}", "dim" if watts is None else ""),
    ]


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
    rows = [
        ("GPU", busy, _or_why(metrics, "utilization.gpu_percent", whole_percent_text(busy, theme)), load_style(busy)),
        ("MEM", used, _or_why(metrics, "memory.used_bytes", _full_memory_text(memory, theme)), load_style(used)),
        ("PWR", draw_percent, _or_why(metrics, "power.draw_watts", _power_text(power)), load_style(draw_percent)),
        (
            "TEMP",
            heat,
            _or_why(metrics, "thermal.gpu_celsius", f"{thermal.gpu_celsius or 0:.0f}{theme.degree} {word}"),
            _BAND_STYLES.get(word or "", "dim"),
        ),
    ]
    room = min(max([cells(value) for _, _, value, _ in rows]), max(width - _LABEL, 0))
    length = width - _LABEL - room - 1
    return [
        *[_gauge(*row, length, width, theme) for row in rows],
        _clock_row(metrics.clocks, metrics.device.clock_max_mhz, width, theme),
        _pcie_row(metrics.pcie, width, theme),
    ]


def _gauge(label: str, percent: float | None, value: str, style: str, length: int, width: int, theme: Theme) -> str:
    drawn = bar(_share(percent), length, theme) + " " if length >= 4 else ""
    return paint([(f"{label:<{_LABEL}}", "title"), (drawn, style), (value, style)], width, theme)


def _or_why(metrics: GpuMetrics, field: str, text: str) -> str:
    """``text``, or the first word of why ``field`` has no value."""
    why = metrics.reason(field)
    return text if why is None else why.partition(":")[0]


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _percent_of(used: int | None, total: int | None) -> float | None:
    return None if used is None or not total else used / total * 100


def _memory_text(memory: Memory, theme: Theme) -> str:
    used, total = memory.used_bytes, memory.total_bytes
    if used is None:
        return theme.none
    return f"{gib_number(used)}/{gib_number(total)} GiB" if total else f"{gib_number(used)} GiB"


def _full_memory_text(memory: Memory, theme: Theme) -> str:
    text, percent = _memory_text(memory, theme), _percent_of(memory.used_bytes, memory.total_bytes)
    return text if percent is None else f"{text} {percent:.0f} %" + (" shared" if memory.unified else "")


def _power_text(power: Power) -> str:
    limit = f"/{power.limit_watts:.0f}" if power.limit_watts else ""
    return f"{power.draw_watts or 0:.0f}{limit} W"


# ---- lines of text below the bars: each only where something is known


def _details(metrics: GpuMetrics, allocations: str | None, width: int, theme: Theme) -> list[str]:
    """Rows that are there only where something is known, most wanted first."""
    rows = (
        _use_row(metrics.utilization, width, theme),
        _heat_row(metrics.thermal, width, theme),
        _power_row(metrics.power, width, theme),
        _shared_row(metrics.memory, width, theme),
        _link_row(metrics.links, width, theme),
        _text_row("alloc", [allocations], [], width, theme) if allocations else None,
        _health_row(metrics.health, metrics.pcie.replay_count, width, theme),
    )
    return [row for row in rows if row is not None]


def _text_row(label: str, words: list[str], alarms: list[str], width: int, theme: Theme) -> str:
    """As many of ``words`` as fit whole; alarms are shown in any case, cut if they must be."""
    line: Line = [(f"{label:<{_LABEL}}", "title" if label.isupper() or label == "PCIe" else "dim")]
    alarm = "held back: " + ", ".join(alarms) if alarms else ""
    room = width - _LABEL - (min(cells(alarm), width // 2) + 3 if alarm else 0)
    kept = list(words)
    while len(kept) > 1 and cells(theme.dot.join(kept)) > room:
        kept.pop()
    line.append((theme.dot.join(kept) or theme.none, "" if kept else "dim"))
    if alarm:
        line += [(theme.dot, "dim"), (alarm, "warm")]
    return paint(line, width, theme)


def _clock_row(clocks: Clocks, fastest_mhz: float | None, width: int, theme: Theme) -> str:
    words = []
    if clocks.graphics_mhz is not None:
        most = f" of {fastest_mhz:.0f}" if fastest_mhz else ""
        words.append(f"{clocks.graphics_mhz:.0f}{most} MHz")
    if clocks.sm_mhz is not None and clocks.sm_mhz != clocks.graphics_mhz:
        words.append(f"SM {clocks.sm_mhz:.0f} MHz")
    if clocks.memory_mhz is not None:
        words.append(f"memory {clocks.memory_mhz:.0f} MHz")
    if clocks.video_mhz:
        words.append(f"video {clocks.video_mhz:.0f} MHz")
    if clocks.performance_state is not None:
        words.append(f"P{clocks.performance_state}")
    return _text_row("CLK", words, _held_back(clocks), width, theme)


def _held_back(clocks: Clocks) -> list[str]:
    """What keeps the clocks down; doing nothing, and a limit that a user set, are no complaint."""
    calm = ("idle", "gpu_idle", "none", "application_clocks", "applications_clocks_setting")
    return [reason for reason in clocks.throttle_reasons or () if reason not in calm]


def _pcie_row(pcie: Pcie, width: int, theme: Theme) -> str:
    words = []
    times = "x" if theme.ascii else "×"
    if pcie.generation is not None and pcie.width is not None:
        link = f"gen {pcie.generation} {times}{pcie.width}"
        best = f"gen {pcie.max_generation} {times}{pcie.max_width}" if pcie.max_generation and pcie.max_width else link
        words.append(link if best == link else f"{link} of {best}")
    if pcie.rx_bytes_per_s is not None:
        words.append(f"in {rate_text(pcie.rx_bytes_per_s)}")
    if pcie.tx_bytes_per_s is not None:
        words.append(f"out {rate_text(pcie.tx_bytes_per_s)}")
    return _text_row("PCIe", words, [], width, theme)


def _use_row(use: Utilization, width: int, theme: Theme) -> str | None:
    engines = (
        ("SM", use.sm_active_percent),
        ("occupancy", use.sm_occupancy_percent),
        ("tensor", use.tensor_percent),
        ("DRAM", use.dram_bandwidth_percent),
        ("mem ctrl", use.memory_controller_percent),
        ("enc", use.encoder_percent),
        ("dec", use.decoder_percent),
        ("jpeg", use.jpeg_percent),
        ("video", use.media_percent),
    )
    words = [f"{name} {value:.0f} %" for name, value in engines if value is not None]
    return _text_row("use", words, [], width, theme) if words else None


def _heat_row(thermal: Thermal, width: int, theme: Theme) -> str | None:
    heat = (
        ("hotspot", thermal.hotspot_celsius, theme.degree),
        ("memory", thermal.memory_celsius, theme.degree),
        ("slows at", thermal.slowdown_celsius, theme.degree),
        ("fan", thermal.fan_percent, " %"),
        ("fan", thermal.fan_rpm, " rpm"),
    )
    words = [f"{name} {value:.0f}{unit}" for name, value, unit in heat if value is not None]
    return _text_row("heat", words, [], width, theme) if words else None


def _power_row(power: Power, width: int, theme: Theme) -> str | None:
    average, joules = power.average_watts, power.energy_joules
    words = [f"average {average:.0f} W"] if average is not None and average != power.draw_watts else []
    words += [f"energy {joules / 3.6e6:.2f} kWh"] if joules is not None else []
    return _text_row("power", words, [], width, theme) if words else None


def _shared_row(memory: Memory, width: int, theme: Theme) -> str | None:
    used, total, reserved = memory.shared_used_bytes, memory.shared_total_bytes, memory.reserved_bytes
    words = []
    if used is not None:
        words.append(f"of the system {gib_number(used)}" + (f"/{gib_number(total)}" if total else "") + " GiB")
    if reserved:
        words.append(f"reserved {mib_number(reserved)} MiB")
    return _text_row("mem", words, [], width, theme) if words else None


def _link_row(links: Links, width: int, theme: Theme) -> str | None:
    words = [f"NVLink {links.nvlink_count} up"] if links.nvlink_count else []
    if links.rx_bytes_per_s is not None:
        words.append(f"in {rate_text(links.rx_bytes_per_s)}")
    if links.tx_bytes_per_s is not None:
        words.append(f"out {rate_text(links.tx_bytes_per_s)}")
    return _text_row("link", words, [], width, theme) if words else None


def _health_row(health: Health, replays: int | None, width: int, theme: Theme) -> str | None:
    counts = (
        ("uncorrected memory errors", health.ecc_uncorrected),
        ("retired pages", health.retired_pages),
        ("remapped rows", health.remapped_rows),
        ("PCIe replays", replays),
    )
    words = [f"{value} {name}" for name, value in counts if value]
    words += [f"Xid {health.last_xid}"] if health.last_xid is not None else []
    return _text_row("health", words, [], width, theme) if words else None


def _processes(users: tuple[ProcessUsage, ...] | None, room: int, width: int, theme: Theme) -> list[str]:
    """The rows that there is room for; the last says how many more there are."""
    if users is None or room < 1:
        return []
    if not users:
        return [paint([("no process uses it, as far as this user may see", "dim")], width, theme)]
    names = max(width - 28, 0)
    lines = [paint([(f"{'PID':>8} {pad('PROCESS', names)} {'MEMORY':>9} {'GPU':>6}", "dim")], width, theme)]
    shown = users if len(users) < room else users[: max(room - 2, 0)]
    lines += [paint([(_process_text(usage, names, theme), "")], width, theme) for usage in shown]
    if len(shown) == len(users):
        return lines
    return [*lines[: room - 1], _more(len(users) - len(shown), "processes", width, theme)]


def _more(count: int, what: str, width: int, theme: Theme) -> str:
    return _plain_line(f"    +{count} more {what}", "dim", width, theme)


def _process_text(usage: ProcessUsage, names: int, theme: Theme) -> str:
    name = usage.name or ("another pid namespace" if usage.visible is False else theme.none)
    size = theme.none if usage.memory_used_bytes is None else f"{mib_number(usage.memory_used_bytes)} MiB"
    return f"{usage.pid:>8} {pad(name, names)} {size:>9} {whole_percent_text(usage.gpu_percent, theme):>6}"


# ---- graphs


def _graphs(state: State, metrics: GpuMetrics, width: int, height: int, theme: Theme, graphs: Graphs) -> list[str]:
    """The last minute of load, memory, power and temperature, as many as have values and room."""
    columns = width - _LABEL
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
    found = graphs.codes(key, state.history, state.now_ns, readers, columns * side, side, HISTORY_S)
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


def _graph(name: str, codes: bytes, rows: int, theme: Theme) -> tuple[str, ...]:
    return tuple(
        paint_fitting([(f"{'' if row else name:<{_LABEL}}", "dim")], theme) + paint_run(line, theme)
        for row, line in enumerate(dots(codes, rows, theme))
    )


def _axis(columns: int, width: int, theme: Theme) -> str:
    ago = f"{HISTORY_S} s ago"
    gap = columns - len(ago) - 3
    return paint([(" " * _LABEL + ago + " " * max(gap, 1) + "now", "dim")], width, theme)


def _most_watts(metrics: GpuMetrics, history: Sequence[GpuMetrics]) -> float:
    """What the graph of power calls full: the limit, or where there is none the most of the last minute."""
    if metrics.power.limit_watts:
        return metrics.power.limit_watts
    return max((sample.power.draw_watts or 0.0 for sample in history), default=0.0) or 1.0
