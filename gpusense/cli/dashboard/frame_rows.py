"""The dashboard's lines of text below the bars: clocks, link, engines, heat, health, processes; each painted and kept.

A line is a function of the values that it shows, so that one which stands still is not made again.
"""

from functools import lru_cache

from ..._records.metrics import Clocks, GpuMetrics, Health, Links, Pcie, Power, ProcessUsage, Thermal, Utilization
from ..._runtime.text import rate_text
from .paint import Line, Theme, cells, gib_text, mib_text, pad, paint, whole_percent_text

LABEL = 7  # cells of the word before a line


def details(metrics: GpuMetrics, allocations: str | None, width: int, theme: Theme) -> list[str]:
    """Rows that are there only where something is known, most wanted first."""
    memory = metrics.memory
    rows = (
        _use_row(metrics.utilization, width, theme),
        _heat_row(metrics.thermal, width, theme),
        _power_row(metrics.power, width, theme),
        _shared_row(memory.shared_used_bytes, memory.shared_total_bytes, memory.reserved_bytes, width, theme),
        _link_row(metrics.links, width, theme),
        _text_row("alloc", [allocations], [], width, theme) if allocations else None,
        _health_row(metrics.health, metrics.pcie.replay_count, width, theme),
    )
    return [row for row in rows if row is not None]


def _text_row(label: str, words: list[str], alarms: list[str], width: int, theme: Theme) -> str:
    """As many of ``words`` as fit whole; alarms are shown in any case, cut if they must be."""
    line: Line = [(f"{label:<{LABEL}}", "title" if label.isupper() or label == "PCIe" else "dim")]
    alarm = "held back: " + ", ".join(alarms) if alarms else ""
    room = width - LABEL - (min(cells(alarm), width // 2) + 3 if alarm else 0)
    kept = list(words)
    while len(kept) > 1 and cells(theme.dot.join(kept)) > room:
        kept.pop()
    line.append((theme.dot.join(kept) or theme.none, "" if kept else "dim"))
    if alarm:
        line += [(theme.dot, "dim"), (alarm, "warm")]
    return paint(line, width, theme)


@lru_cache(maxsize=16)
def clock_row(clocks: Clocks, fastest_mhz: float | None, width: int, theme: Theme) -> str:
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
    """What keeps the clocks down; doing nothing, or being told to, is no complaint."""
    calm = ("idle", "gpu_idle", "none", "application_clocks", "applications_clocks_setting")
    return [reason for reason in clocks.throttle_reasons or () if reason not in calm]


@lru_cache(maxsize=16)
def pcie_row(pcie: Pcie, width: int, theme: Theme) -> str:
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


@lru_cache(maxsize=16)
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


@lru_cache(maxsize=16)
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


@lru_cache(maxsize=16)
def _power_row(power: Power, width: int, theme: Theme) -> str | None:
    average, joules = power.average_watts, power.energy_joules
    words = [f"average {average:.0f} W"] if average is not None and average != power.draw_watts else []
    words += [f"energy {joules / 3.6e6:.2f} kWh"] if joules is not None else []
    return _text_row("power", words, [], width, theme) if words else None


@lru_cache(maxsize=16)
def _shared_row(used: int | None, total: int | None, reserved: int | None, width: int, theme: Theme) -> str | None:
    words = []
    if used is not None:
        words.append(f"of the system {gib_text(used)}" + (f"/{gib_text(total)}" if total else "") + " GiB")
    if reserved:
        words.append(f"reserved {mib_text(reserved)} MiB")
    return _text_row("mem", words, [], width, theme) if words else None


@lru_cache(maxsize=16)
def _link_row(links: Links, width: int, theme: Theme) -> str | None:
    words = [f"NVLink {links.nvlink_count} up"] if links.nvlink_count else []
    if links.rx_bytes_per_s is not None:
        words.append(f"in {rate_text(links.rx_bytes_per_s)}")
    if links.tx_bytes_per_s is not None:
        words.append(f"out {rate_text(links.tx_bytes_per_s)}")
    return _text_row("link", words, [], width, theme) if words else None


@lru_cache(maxsize=16)
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


@lru_cache(maxsize=8)
def processes(processes: tuple[ProcessUsage, ...] | None, width: int, theme: Theme) -> tuple[str, ...]:
    if processes is None:
        return ()
    if not processes:
        return (paint([("no process uses it, as far as this user may see", "dim")], width, theme),)
    names = max(width - 28, 0)
    head = paint([(f"{'PID':>8} {pad('PROCESS', names)} {'MEMORY':>9} {'GPU':>6}", "dim")], width, theme)
    return head, *[paint([(_process_text(usage, names, theme), "")], width, theme) for usage in processes]


def _process_text(usage: ProcessUsage, names: int, theme: Theme) -> str:
    name = usage.name or ("another pid namespace" if usage.visible is False else theme.none)
    size = theme.none if usage.memory_used_bytes is None else f"{mib_text(usage.memory_used_bytes)} MiB"
    return f"{usage.pid:>8} {pad(name, names)} {size:>9} {whole_percent_text(usage.gpu_percent, theme):>6}"
