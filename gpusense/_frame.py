"""Draws the dashboard: ``frame(state, width, height, theme)`` gives the lines of one screen. No terminal, no clock."""

from collections.abc import Sequence
from typing import NamedTuple

from ._draw import (
    MIB,
    Line,
    Theme,
    bar,
    cells,
    load_style,
    pad,
    paint,
    paint_fitting,
    percent_text,
    printable,
    rate_text,
    size_text,
)
from ._metrics import GpuMetrics, ProcessUsage
from ._trails import Trails, dots

#: How far back the graphs reach.
HISTORY_S = 60
_LABEL = 7


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
    lines: list[Line | str] = [_title(state, width, theme)]  # a str is painted already
    if state.latest:
        lines += _body(state, width, height - 2, theme, trails or Trails())
    else:
        lines += _nothing(state, width)
    lines = lines[: max(height - 1, 1)]
    if height > 2:
        lines += [[] for _ in range(height - 1 - len(lines))]
        lines.append([(state.keys, "dim")])
    return [line if isinstance(line, str) else paint(line, width, theme) for line in lines[:height]]


def band(metrics: GpuMetrics) -> str | None:
    """COOL, WARM, HOT or CRITICAL by the device's own slowdown (else shutdown) temperature.

    CRITICAL begins at that threshold, HOT at 82 % and WARM at 59 % of it; a device without thresholds is measured
    against 85 °C, which makes that 70 and 50 °C.
    """
    celsius = metrics.thermal.gpu_celsius
    if celsius is None:
        return None
    limit = _hot_limit(metrics)
    if celsius >= limit:
        return "CRITICAL"
    return "HOT" if celsius >= limit * 70 / 85 else "WARM" if celsius >= limit * 50 / 85 else "COOL"


_BAND_STYLES = {"COOL": "good", "WARM": "warm", "HOT": "hot", "CRITICAL": "critical"}


def _hot_limit(metrics: GpuMetrics) -> float:
    return metrics.thermal.slowdown_celsius or metrics.thermal.shutdown_celsius or 85.0


def _title(state: State, width: int, theme: Theme) -> Line:
    count = len(state.latest)
    words = [state.title, f"{count} GPU{'' if count == 1 else 's'}"]
    if state.paused:
        words.append("paused")
    return [(theme.dot.join(words), "title")]


def _nothing(state: State, width: int) -> list[Line]:
    lines: list[Line] = [[], [("no GPU to watch", "warm")]]
    for note in state.notes:
        lines += [[(text, "dim")] for text in _wrapped(note, width)]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in printable(text).split():
        if line and cells(line) + 1 + cells(word) > width:
            lines.append(line)
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def _body(state: State, width: int, height: int, theme: Theme, trails: Trails) -> list[Line | str]:
    selected = min(state.selected, len(state.latest) - 1)
    metrics = state.latest[selected]
    lines: list[Line | str] = []
    if len(state.latest) > 1:
        lines += _overview(state.latest, selected, width, max(min(len(state.latest), height // 3), 1), theme)
    lines.append(_heading(metrics, width, theme))
    lines += [[(note, "warm")] for note in state.notes]
    if metrics.state != "ok":
        lines.append([(_trouble(metrics), "warm")])
    core, details = _core(metrics, width, theme), _details(metrics, state, width, theme)
    room = height - len(lines) - len(core)
    shown = details[: max(room, 0)]
    lines += core + shown
    room -= len(shown)
    processes = _processes(metrics, width, theme)
    graphs = _graphs(state, metrics, width, min(max(room - min(len(processes), 6), 0), 16), theme, trails)
    lines += graphs
    lines += processes[: max(room - len(graphs), 0)]
    return lines


def _trouble(metrics: GpuMetrics) -> str:
    return metrics.reasons[0][1] if metrics.reasons else metrics.state


def _overview(latest: tuple[GpuMetrics, ...], selected: int, width: int, rows: int, theme: Theme) -> list[Line]:
    """One row a device, scrolled so that the selected one shows."""
    first = min(max(selected - rows + 1, 0), max(len(latest) - rows, 0))
    names = min(max(cells(m.device.name) for m in latest), max(width - 52, 0))
    lines: list[Line] = []
    for place, metrics in list(enumerate(latest))[first : first + rows]:
        mark = (">" if theme.ascii else "▶") if place == selected else " "
        busy, watts = metrics.utilization.gpu_percent, metrics.power.draw_watts
        line: Line = [(f"{mark}{metrics.device.index:<2} ", "accent" if place == selected else "")]
        if names >= 4:
            line.append((pad(metrics.device.name, names) + " ", ""))
        if metrics.state != "ok":
            lines.append([*line, (metrics.state, "warm")])
            continue
        small = max(min(width // 10, 12), 0) if width >= 60 else 0
        line += [
            (f"{percent_text(busy, theme):>5} ", load_style(busy)),
            (bar(_share(busy), small, theme), load_style(busy)),
        ]
        line.append((f" {_memory_text(metrics, theme):>15}", load_style(_used_percent(metrics))))
        celsius = metrics.thermal.gpu_celsius
        style = _BAND_STYLES.get(band(metrics) or "", "dim")
        line.append((f"{theme.none if celsius is None else f'{celsius:.0f}{theme.degree}':>7}", style))
        line.append((f"{theme.none if watts is None else f'{watts:.0f} W':>7}", "dim" if watts is None else ""))
        lines.append(line)
    return lines


def _heading(metrics: GpuMetrics, width: int, theme: Theme) -> Line:
    device = metrics.device
    dash = "-" if theme.ascii else "─"
    facts = [device.pci_bus_id, device.driver and f"driver {device.driver}", device.kind]
    right = theme.dot.join(fact for fact in facts if fact)
    left = f"{device.index} {printable(device.name)} "
    rule = width - cells(left) - cells(right) - 1
    if rule < 2:
        return [(dash + " ", "dim"), (left, "accent"), (dash * max(width - cells(left) - 2, 0), "dim")]
    return [(dash + " ", "dim"), (left, "accent"), (dash * (rule - 2) + " ", "dim"), (right, "dim")]


def _core(metrics: GpuMetrics, width: int, theme: Theme) -> list[Line]:
    busy = metrics.utilization.gpu_percent
    used, power, thermal = _used_percent(metrics), metrics.power, metrics.thermal
    draw_percent = (
        power.draw_watts / power.limit_watts * 100 if power.draw_watts is not None and power.limit_watts else None
    )
    word = band(metrics)
    heat = None if thermal.gpu_celsius is None else thermal.gpu_celsius / _hot_limit(metrics) * 100
    rows = [
        ("GPU", busy, _or_why(metrics, "utilization.gpu_percent", percent_text(busy, theme)), load_style(busy)),
        ("MEM", used, _or_why(metrics, "memory.used_bytes", _memory_text(metrics, theme, True)), load_style(used)),
        ("PWR", draw_percent, _or_why(metrics, "power.draw_watts", _power_text(metrics)), load_style(draw_percent)),
        (
            "TEMP",
            heat,
            _or_why(metrics, "thermal.gpu_celsius", f"{thermal.gpu_celsius or 0:.0f}{theme.degree} {word}"),
            _BAND_STYLES.get(word or "", "dim"),
        ),
    ]
    room = min(max(cells(value) for _, _, value, _ in rows), max(width - _LABEL, 0))
    length = width - _LABEL - room - 1
    lines: list[Line] = []
    for label, percent, value, style in rows:
        drawn = bar(_share(percent), length, theme) + " " if length >= 4 else ""
        lines.append([(f"{label:<{_LABEL}}", "title"), (drawn, style), (value, style)])
    lines.append(_text_row("CLK", _clock_words(metrics), _held_back(metrics), width, theme))
    lines.append(_text_row("PCIe", _pcie_words(metrics, theme), [], width, theme))
    return lines


def _details(metrics: GpuMetrics, state: State, width: int, theme: Theme) -> list[Line]:
    """Rows that are there only where something is known, most wanted first."""
    use, thermal, power, memory = metrics.utilization, metrics.thermal, metrics.power, metrics.memory
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
    heat = (
        ("hotspot", thermal.hotspot_celsius, theme.degree),
        ("memory", thermal.memory_celsius, theme.degree),
        ("slows at", thermal.slowdown_celsius, theme.degree),
        ("fan", thermal.fan_percent, " %"),
        ("fan", thermal.fan_rpm, " rpm"),
    )
    rows = [
        ("use", [f"{name} {value:.0f} %" for name, value in engines if value is not None]),
        ("heat", [f"{name} {value:.0f}{unit}" for name, value, unit in heat if value is not None]),
        ("power", _power_words(power.average_watts, power.draw_watts, power.energy_joules)),
        ("mem", _shared_words(memory.shared_used_bytes, memory.shared_total_bytes, memory.reserved_bytes)),
        ("link", _link_words(metrics)),
        ("alloc", [state.allocations] if state.allocations else []),
        ("health", _health_words(metrics)),
    ]
    return [_text_row(label, words, [], width, theme) for label, words in rows if words]


def _text_row(label: str, words: list[str], alarms: list[str], width: int, theme: Theme) -> Line:
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
    return line


def _or_why(metrics: GpuMetrics, field: str, text: str) -> str:
    """``text``, or the first word of why ``field`` has no value."""
    why = metrics.reason(field)
    return text if why is None else why.partition(":")[0]


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _used_percent(metrics: GpuMetrics) -> float | None:
    used, total = metrics.memory.used_bytes, metrics.memory.total_bytes
    return None if used is None or not total else used / total * 100


def _memory_text(metrics: GpuMetrics, theme: Theme, long: bool = False) -> str:
    used, total = metrics.memory.used_bytes, metrics.memory.total_bytes
    if used is None:
        return theme.none
    if not total:
        return f"{size_text(used)} GiB"
    text = f"{size_text(used)}/{size_text(total)} GiB"
    if not long:
        return text
    return f"{text} {used / total * 100:.0f} %" + (" shared" if metrics.memory.unified else "")


def _power_text(metrics: GpuMetrics) -> str:
    power = metrics.power
    limit = f"/{power.limit_watts:.0f}" if power.limit_watts else ""
    return f"{power.draw_watts or 0:.0f}{limit} W"


def _power_words(average: float | None, draw: float | None, joules: float | None) -> list[str]:
    words = [f"average {average:.0f} W"] if average is not None and average != draw else []
    return words + ([f"energy {joules / 3.6e6:.2f} kWh"] if joules is not None else [])


def _clock_words(metrics: GpuMetrics) -> list[str]:
    clocks, device = metrics.clocks, metrics.device
    words = []
    if clocks.graphics_mhz is not None:
        most = f" of {device.clock_max_mhz:.0f}" if device.clock_max_mhz else ""
        words.append(f"{clocks.graphics_mhz:.0f}{most} MHz")
    if clocks.sm_mhz is not None and clocks.sm_mhz != clocks.graphics_mhz:
        words.append(f"SM {clocks.sm_mhz:.0f} MHz")
    if clocks.memory_mhz is not None:
        words.append(f"memory {clocks.memory_mhz:.0f} MHz")
    if clocks.video_mhz:
        words.append(f"video {clocks.video_mhz:.0f} MHz")
    if clocks.performance_state is not None:
        words.append(f"P{clocks.performance_state}")
    return words


def _held_back(metrics: GpuMetrics) -> list[str]:
    """What keeps the clocks down; doing nothing, or being told to, is no complaint."""
    calm = ("idle", "gpu_idle", "none", "application_clocks", "applications_clocks_setting")
    return [reason for reason in metrics.clocks.throttle_reasons or () if reason not in calm]


def _pcie_words(metrics: GpuMetrics, theme: Theme) -> list[str]:
    pcie = metrics.pcie
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
    return words


def _shared_words(used: int | None, total: int | None, reserved: int | None) -> list[str]:
    words = []
    if used is not None:
        words.append(f"of the system {size_text(used)}" + (f"/{size_text(total)}" if total else "") + " GiB")
    if reserved:
        words.append(f"reserved {size_text(reserved, MIB)} MiB")
    return words


def _link_words(metrics: GpuMetrics) -> list[str]:
    links = metrics.links
    words = [f"NVLink {links.nvlink_count} up"] if links.nvlink_count else []
    if links.rx_bytes_per_s is not None:
        words.append(f"in {rate_text(links.rx_bytes_per_s)}")
    if links.tx_bytes_per_s is not None:
        words.append(f"out {rate_text(links.tx_bytes_per_s)}")
    return words


def _health_words(metrics: GpuMetrics) -> list[str]:
    health = metrics.health
    counts = (
        ("uncorrected memory errors", health.ecc_uncorrected),
        ("retired pages", health.retired_pages),
        ("remapped rows", health.remapped_rows),
        ("PCIe replays", metrics.pcie.replay_count),
    )
    words = [f"{value} {name}" for name, value in counts if value]
    return words + ([f"Xid {health.last_xid}"] if health.last_xid is not None else [])


def _graphs(
    state: State, metrics: GpuMetrics, width: int, height: int, theme: Theme, trails: Trails
) -> list[Line | str]:
    """The last minute of load, memory, power and temperature, as many as have values and room."""
    columns = width - _LABEL
    if height < 2 or columns < 8 or not state.history:
        return []
    most, hot = _most_watts(metrics, state.history), _hot_limit(metrics)
    readers = (
        lambda sample: sample.utilization.gpu_percent,
        _used_percent,
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
    lines: list[Line | str] = []
    for name, codes in known:
        for row, line in enumerate(dots(codes, rows, theme)):
            lines.append(paint_fitting([(f"{'' if row else name:<{_LABEL}}", "dim"), *line], theme))
    ago = f"{HISTORY_S} s ago"
    gap = columns - len(ago) - 3
    lines.append([(" " * _LABEL + ago + " " * max(gap, 1) + "now", "dim")])
    return lines


_GRAPHS = ("gpu", "mem", "power", "temp")


def _most_watts(metrics: GpuMetrics, history: Sequence[GpuMetrics]) -> float:
    """What the graph of power calls full: the limit, or where there is none the most of the last minute."""
    if metrics.power.limit_watts:
        return metrics.power.limit_watts
    return max((sample.power.draw_watts or 0.0 for sample in history), default=0.0) or 1.0


def _processes(metrics: GpuMetrics, width: int, theme: Theme) -> list[Line]:
    if metrics.processes is None:
        return []
    if not metrics.processes:
        return [[("no process uses it, as far as this user may see", "dim")]]
    names = max(width - 28, 0)
    lines: list[Line] = [[(f"{'PID':>8} {pad('PROCESS', names)} {'MEMORY':>9} {'GPU':>6}", "dim")]]
    return lines + [[(_process_text(usage, names, theme), "")] for usage in metrics.processes]


def _process_text(usage: ProcessUsage, names: int, theme: Theme) -> str:
    name = usage.name or ("another pid namespace" if usage.visible is False else theme.none)
    size = theme.none if usage.memory_used_bytes is None else f"{usage.memory_used_bytes / MIB:.0f} MiB"
    return f"{usage.pid:>8} {pad(name, names)} {size:>9} {percent_text(usage.gpu_percent, theme):>6}"
