"""Numbers as people read them: three significant figures, decimal units, ``None`` as a dash."""

from .._runtime.text import count_text as count_text

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def _three(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def time_text(ns: "float | None") -> str:
    """``12_300`` → "12.3 µs"."""
    if ns is None:
        return "–"
    if ns < 0:
        return "-" + time_text(-ns)
    for scale, unit in _TIMES:
        if ns >= scale * 0.9995:
            return f"{_three(ns / scale)} {unit}"
    return f"{ns:.0f} ns"


def size_text(size: "float | None") -> str:
    """``1_500_000`` → "1.50 MB" (10⁶)."""
    if size is None:
        return "–"
    for scale, unit in _SIZES:
        if size >= scale * 0.9995:
            return f"{_three(size / scale)} {unit}"
    return f"{size:.0f} B"


def rate_text(bytes_per_s: "float | None") -> str:
    return "–" if bytes_per_s is None else f"{size_text(bytes_per_s)}/s"


def percent_text(share: "float | None") -> str:
    """``0.123`` → "12 %"; one decimal below ten."""
    if share is None:
        return "–"
    percent = share * 100
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def share_text(share: float) -> str:
    """``0.005`` → "0.5%", ``0.1`` → "10%": as it is given on a command line, and never "0%" for more than nothing."""
    return f"{share * 100:.0f}%" if share >= 0.1 else f"{share * 100:.2g}%"


def device_text(device: "int | None", backend: str) -> str:
    return f"GPU {device}" if device is not None else f"the {backend} device"


def clean(text: str, limit: int = 120) -> str:
    """``text`` on one line, control characters made visible, the middle cut out beyond ``limit`` characters."""
    text = "".join(char if char.isprintable() else "�" for char in text) or "(unnamed)"
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"
