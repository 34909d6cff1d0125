"""Draws the dashboard: ``frame(state, width, height, theme)`` gives the lines of one screen. No terminal, no clock."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..._records.metrics import (
    Clocks,
    GpuMetrics,
    Health,
    Links,
    Memory,
    Pcie,
    Power,
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
    shortened,
    whole_percent_text,
)
from .processes import Facts
from .table import Row, chosen, rows, table
from .view import HELP, View

#: How far back the graphs reach.
HISTORY_S = 60
_LABEL = 7  # cells of the word before a line
_CURVE = 11  # cells of device and load before a curve of one line


class State(NamedTuple):
    """What there is to draw. ``histories`` holds samples, oldest first, of the devices that are drawn as curves."""

    latest: tuple[GpuMetrics, ...] = ()
    history: Sequence[GpuMetrics] = ()  # of the selected device
    selected: int = 0  # place in ``latest``
    now_ns: int = 0  # right edge of the graphs, on the samples' monotonic clock
    title: str = "gpusense top"
    notes: tuple[str, ...] = ()  # why there is nothing to draw, or what went wrong
    keys: tuple[str, ...] = ("q quit", "h keys", "p pause", "tab next GPU")
    allocations: str | None = None  # of a recorded session
    view: View = View()
    histories: Sequence[Sequence[GpuMetrics]] = ()  # of every device, for its curves
    facts: Mapping[int, Facts] | None = None  # of processes on this host; None: nothing is to be known


class Picture(NamedTuple):
    """The lines of a screen, and the view with no more scrolled than there is to scroll."""

    lines: list[str]
    view: View


class _Rest(NamedTuple):
    """What there was no room for."""

    gpus: int = 0
    above: int = 0  # processes, or lines of the overlay
    processes: int = 0
    lines: int = 0
    columns: int = 0

    def text(self, width: int) -> str:
        """In whole words where they fit; empty where nothing is missing."""
        known = [(count, name) for count, name in zip(self, self._fields, strict=True) if count]
        long = "  ".join(f"+{count:,} {_ONE[name] if count == 1 else _MANY[name]}" for count, name in known)
        return long if cells(long) <= width else " ".join(f"+{count}{_ONE[name][0].upper()}" for count, name in known)


_MANY = {"gpus": "GPUs", "above": "above", "processes": "processes", "lines": "lines", "columns": "columns"}
_ONE = {"gpus": "GPU", "above": "above", "processes": "process", "lines": "line", "columns": "column"}


class _Body(NamedTuple):
    lines: list[str]
    rest: _Rest = _Rest()
    first: int = 0  # process or line at the top, of those that scroll
    listed: int = 0  # processes that the filter leaves
    of: int = 0  # all of them


def frame(state: State, width: int, height: int, theme: Theme, graphs: "Kept | None" = None) -> list[str]:
    """The lines of :func:`picture`."""
    return picture(state, width, height, theme, graphs).lines


def picture(state: State, width: int, height: int, theme: Theme, graphs: "Kept | None" = None) -> Picture:
    """At most ``height`` lines of at most ``width`` cells; what has no room is left out, least important first, and
    counted in the last line.

    ``graphs``, passed again for the next picture, keeps what was drawn.
    """
    width, height = max(width, 1), max(height, 1)
    room = height - 2
    kept = graphs if graphs is not None else {}
    body = _body(state, width, room, theme, kept)
    foot = [_foot(state, body, width, theme)]
    if width < _ONE_LINE and (rest := body.rest.text(width)) and room > 1:
        body = _body(state, width, room - 1, theme, kept)
        rest = body.rest.text(width)
        foot = [_plain_line(rest, "dim", width, theme), *foot]
    lines = [_title(state, width, theme), *body.lines]
    lines = lines[: max(height - len(foot), 1)]
    if height > 2:
        lines += [""] * (height - len(foot) - len(lines))
        lines += foot
    if state.view.help is not None:
        return Picture(lines[:height], state.view._replace(help=body.first))
    return Picture(lines[:height], state.view._replace(first=body.first))


#: Terminals of fewer columns have what is missing in a line of its own, above the keys.
_ONE_LINE = 48


def _foot(state: State, body: _Body, width: int, theme: Theme) -> str:
    """The keys as far as they fit, and at the right what is missing."""
    view = state.view
    if view.typing is not None:
        words = shortened(view.words[-width:], max(width - 9, 1))
        return paint([("filter: ", "accent"), (f"{words}_", "title")], width, theme)
    rest = body.rest.text(width - 16) if width >= _ONE_LINE else ""
    left = width - (cells(rest) + 2 if rest else 0)
    if view.words:
        keys = (
            f'"{measurable(view.words)}": {count_text(body.listed, "process", "processes")} of {body.of}  Esc drops it'
        )
    else:
        keys = ""
        for key in state.keys:
            if cells(keys) + 2 + cells(key) > left and keys:
                break
            keys += ("  " if keys else "") + key
    if not rest:
        return _plain_line(keys, "dim", width, theme)
    keys = shortened(keys, left)
    return _plain_line(keys + " " * (width - cells(keys) - cells(rest)) + rest, "dim", width, theme)


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
    """Where it does not fit, first the program's name goes."""
    words = ["paused"] if state.view.paused else []
    words.append(count_text(len(state.latest), "GPU"))
    title = state.title
    for beginning in ("gpusense ", "top, ", "top", "replay "):
        if cells(theme.dot.join([title, *words])) > width:
            title = title.removeprefix(beginning)
    return paint([(theme.dot.join(filter(None, [title, *words])), "title")], width, theme)


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


def _body(state: State, width: int, room: int, theme: Theme, graphs: "Kept") -> _Body:
    """At most ``room`` lines."""
    view = state.view
    if view.help is not None:
        return _help(view.help, width, room, theme)
    if not state.latest:
        return _Body(_nothing(state, width, theme))
    if view.page == "curves":
        return _curves(state, width, room, theme, graphs)
    if view.page == "processes":
        return _listed(state, width, room, theme)
    return _page(state, width, room, theme, graphs)


def _help(first: int, width: int, room: int, theme: Theme) -> _Body:
    keys = max(cells(key) for key, _ in HELP) + 2 if width >= 60 else 0
    lines = []
    for key, does in HELP:
        if keys:
            lines.append(paint([(f"{key:<{keys}}", "accent"), (does, "")], width, theme))
        else:
            lines += [_plain_line(text, "", width, theme) for text in _wrapped(f"{key}: {does}", width)]
    first = max(min(first, len(lines) - room), 0)
    shown = lines[first : first + max(room, 0)]
    return _Body(shown, _Rest(above=first, lines=len(lines) - len(shown) - first), first)


def _page(state: State, width: int, room: int, theme: Theme, graphs: "Kept") -> _Body:
    """Every device in a line, and one of them in full, with the processes on it."""
    view = state.view
    selected = min(state.selected, len(state.latest) - 1)
    metrics = state.latest[selected]
    lines: list[str] = []
    gpus = columns = 0
    if len(state.latest) > 1 and view.page != "device":
        lines, gpus, columns = _overview(state.latest, selected, width, room, theme)
    above = [_heading(metrics.device, width, theme)]
    above += [_plain_line(note, "warm", width, theme) for note in state.notes]
    if metrics.state != "ok":
        above.append(_plain_line(_trouble(metrics), "warm", width, theme))
    core, beside = _core(metrics, width, theme), _details(metrics, state.allocations, width, theme)
    users = _rows(state, (metrics,))
    left = room - len(lines)
    if left <= len(above):  # no heading stands alone
        hidden = _graphs(state, metrics, width, 0, theme, graphs)[1] + (0 if left else len(above) - 1)
        return _Body(lines, _Rest(gpus, 0, len(users), hidden + len(core) + len(beside), columns), listed=len(users))
    lines += above
    left -= len(above)
    few = 0 if metrics.processes is None else min(len(users) + 1, 6)
    shown = (core + beside)[: max(left - few, min(left, len(core)))]
    lines += shown
    left -= len(shown)
    few = min(few, left) if left > 1 or not users else 0
    drawn, curves = _graphs(state, metrics, width, min(left - few, 16), theme, graphs)
    lines += drawn
    below = _processes(state, users, left - len(drawn), width, theme, several=False)
    rest = _Rest(
        gpus,
        below.first,
        len(users) - below.listed - below.first,
        len(core) + len(beside) - len(shown) + curves,
        columns + below.rest.columns,
    )
    return _Body([*lines, *below.lines], rest, below.first, len(users), len(metrics.processes or ()))


def _listed(state: State, width: int, room: int, theme: Theme) -> _Body:
    """The processes of all devices."""
    users = _rows(state, state.latest)
    found = _processes(state, users, room, width, theme, several=len(state.latest) > 1)
    rest = _Rest(0, found.first, len(users) - found.listed - found.first, 0, found.rest.columns)
    return _Body(found.lines, rest, found.first, len(users), sum(len(one.processes or ()) for one in state.latest))


def _trouble(metrics: GpuMetrics) -> str:
    return metrics.reasons[0][1] if metrics.reasons else metrics.state


def _overview(
    latest: tuple[GpuMetrics, ...], selected: int, width: int, rows: int, theme: Theme
) -> tuple[list[str], int, int]:
    """One line a device, scrolled so that the selected one shows; the devices and columns there was no room for."""
    shown = min(len(latest), max(rows, 1))
    first = min(max(selected - shown + 1, 0), len(latest) - shown)
    names = _names(latest, width)
    drawn = [
        _overview_line(latest[place], place == selected, width, names, theme) for place in range(first, first + shown)
    ]
    return [line for line, _ in drawn], len(latest) - shown, max(missing for _, missing in drawn)


def _names(latest: tuple[GpuMetrics, ...], width: int) -> int:
    """Cells for the names of devices."""
    return min(max([cells(measurable(metrics.device.name)) for metrics in latest]), max(width - 61, 0))


def _overview_line(metrics: GpuMetrics, marked: bool, width: int, names: int, theme: Theme) -> tuple[str, int]:
    """A device in one line, and how many columns it has no room for."""
    head = _overview_head(marked, metrics.device, names, theme)
    if metrics.state != "ok":
        return paint([*head, (metrics.state, "warm")], width, theme), 0
    values, missing = _overview_values(metrics, width, width - sum(cells(text) for text, _ in head), theme)
    return paint([*head, *values], width, theme), missing


def _overview_head(selected: bool, device: DeviceInfo, names: int, theme: Theme) -> tuple[Segment, ...]:
    mark = (">" if theme.ascii else "▶") if selected else " "
    head = (f"{mark}{device.index:<2} ", "accent" if selected else "")
    return (head, (pad(device.name, names) + " ", "")) if names >= 4 else (head,)


def _overview_values(metrics: GpuMetrics, width: int, room: int, theme: Theme) -> tuple[Line, int]:
    """Those that have room, most wanted first, and how many have none."""
    busy, memory, celsius = metrics.utilization.gpu_percent, metrics.memory, metrics.thermal.gpu_celsius
    watts, users = metrics.power.draw_watts, metrics.processes
    small = max(min(width // 10, 12), 0) if width >= 60 else 0
    load = load_style(busy)
    used = _percent_of(memory.used_bytes, memory.total_bytes)
    heat = theme.none if celsius is None else f"{celsius:.0f}{theme.degree}"
    columns = (
        (f"{_memory_text(memory, theme):>16}", load_style(used)),
        (f"{heat:>7}", _BAND_STYLES.get(band(metrics) or "", "dim")),
        (f"{theme.none if watts is None else f'{watts:.0f} W':>7}", "dim" if watts is None else ""),
        (f"{theme.none if users is None else f'{len(users)} proc':>9}", "dim"),
    )
    line: Line = [(f"{whole_percent_text(busy, theme):>5}", load)]
    if small:
        line.append((" " + bar(_share(busy), small, theme), load))
    left = room - sum(cells(text) for text, _ in line)
    for text, style in columns:
        if cells(text) <= left:
            left -= cells(text)
            line.append((text, style))
    return line, len(columns) + 1 + bool(small) - len(line)


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
    while len(kept) > 1 and cells(theme.dot.join(kept)) > room - (3 if len(kept) < len(words) else 0):
        kept.pop()
    line.append((theme.dot.join(kept) or theme.none, "" if kept else "dim"))
    if len(kept) < len(words):
        line.append((f" +{len(words) - len(kept)}", "dim"))
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


def _rows(state: State, samples: Sequence[GpuMetrics]) -> list[Row]:
    """The processes on the devices of ``samples`` that the user wants to see, in the order wanted."""
    view = state.view
    return chosen(rows(samples, state.facts or {}), view.words, view.sort, view.reverse)


def _processes(state: State, users: list[Row], room: int, width: int, theme: Theme, *, several: bool) -> _Body:
    """The rows that there is room for; ``listed`` counts them."""
    view = state.view
    samples = state.latest if several else (state.latest[min(state.selected, len(state.latest) - 1)],)
    if room < 1 or all(sample.processes is None for sample in samples):
        if room < 1 or view.page != "processes":
            return _Body([])
        return _Body([_plain_line(_or_why(samples[0], "processes", ""), "dim", width, theme)])
    if not users:
        none = "no process has this text" if view.words else "no process uses it, as far as this user may see"
        return _Body([_plain_line(none, "dim", width, theme)])
    found = table(
        users,
        room,
        width,
        theme,
        first=view.first,
        sort=view.sort,
        reverse=view.reverse,
        several=several,
        host=state.facts is not None,
    )
    return _Body(found.lines, _Rest(columns=found.columns), found.first, found.shown)


# ---- graphs


#: The graphs of each device that was drawn.
Kept = dict[DeviceInfo, Graphs]


def _graphs(
    state: State, metrics: GpuMetrics, width: int, height: int, theme: Theme, kept: Kept
) -> tuple[list[str], int]:
    """The last minute of load, memory, power and temperature, those with values and room; how many have none."""
    columns = width - _LABEL
    if columns < 8 or not state.history:
        return [], 0
    known = _known(metrics, state.history, state.now_ns, columns, theme, kept)
    fitting = known[: max(height - 1, 0)]
    if not fitting:
        return [], len(known)
    lines = _stacked(fitting, height - 1, theme)
    lines.append(_axis(columns, width, theme))
    return lines, len(known) - len(fitting)


def _known(
    metrics: GpuMetrics, history: Sequence[GpuMetrics], now_ns: int, columns: int, theme: Theme, kept: Kept
) -> list[tuple[str, bytes]]:
    """Name and parts of each graph that has a value."""
    most, hot = _most_watts(metrics, history), _hot_limit(metrics)
    readers = (
        lambda sample: sample.utilization.gpu_percent,
        lambda sample: _percent_of(sample.memory.used_bytes, sample.memory.total_bytes),
        lambda sample: None if (watts := sample.power.draw_watts) is None else watts / most * 100,
        lambda sample: None if (degrees := sample.thermal.gpu_celsius) is None else degrees / hot * 100,
    )
    side = 1 if theme.ascii else 2  # points a cell
    graphs = kept.setdefault(metrics.device, Graphs())
    found = graphs.codes((most, hot), history, now_ns, readers, columns * side, side, HISTORY_S)
    return [(name, codes) for name, codes in zip(_GRAPHS, found, strict=True) if codes.strip(b"\0")]


def _stacked(known: list[tuple[str, bytes]], room: int, theme: Theme) -> list[str]:
    rows = max(min(room // len(known), 4), 1)
    return [line for name, codes in known for line in _graph(name, codes, rows, theme)]


def _curves(state: State, width: int, room: int, theme: Theme, kept: Kept) -> _Body:
    """All devices as curves: in one line each of its load, in more of its memory, power and temperature, too."""
    latest = state.latest
    each = max((room - 1) // len(latest), 1)  # lines; one is left for the axis
    shown = min(len(latest), max(room, 1) if each == 1 else (room - 1) // each)
    selected = min(state.selected, len(latest) - 1)
    first = min(max(selected - shown + 1, 0), len(latest) - shown)
    lines: list[str] = []
    hidden = dropped = 0
    columns = max(width - (_LABEL if each > 1 else _CURVE), 1)
    for place in range(first, first + shown):
        metrics, history = latest[place], state.histories[place] if place < len(state.histories) else ()
        known = _known(metrics, history, state.now_ns, columns, theme, kept) if history else []
        if each == 1:
            lines.append(_curve(metrics, place == selected, known[:1], width, theme))
        else:
            line, missing = _overview_line(metrics, place == selected, width, _names(latest, width), theme)
            dropped = max(dropped, missing)
            lines.append(line)
            lines += _stacked(known[: each - 1], each - 1, theme) if known else []
        hidden += max(len(known) - max(each - 1, 1), 0)
    if len(lines) < room and each > 1:
        lines.append(_axis(columns, width, theme))
    return _Body(lines, _Rest(len(latest) - shown, 0, 0, hidden, dropped))


def _curve(metrics: GpuMetrics, marked: bool, known: list[tuple[str, bytes]], width: int, theme: Theme) -> str:
    """Load in one line: the device, its last minute, the number."""
    (head,) = _overview_head(marked, metrics.device, 0, theme)
    busy = metrics.utilization.gpu_percent
    now = f"{whole_percent_text(busy, theme):>6} " if metrics.state == "ok" else f" {metrics.state} "
    line = paint([head, (now, load_style(busy))], width, theme)
    drawn = [paint_run(line, theme) for _, codes in known for line in dots(codes, 1, theme)]
    return line + "".join(drawn)


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
