"""Numbers and foreign text as people read them. Pure.

Numbers have three significant figures and decimal units; what is unknown is a dash.
"""

from collections.abc import Iterable

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
UNKNOWN = "–"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """``(8412, "kernel")`` → "8,412 kernels"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def time_text(ns: float | None) -> str:
    """``12_300`` → "12.3 µs"."""
    if ns is None:
        return UNKNOWN
    if ns < 0:
        return "-" + time_text(-ns)
    for scale, unit in _TIMES:
        if ns >= scale * 0.9995:
            return f"{_three(ns / scale)} {unit}"
    return f"{ns:.0f} ns"


def size_text(size: float | None) -> str:
    """``1_500_000`` → "1.50 MB" (10⁶)."""
    if size is None:
        return UNKNOWN
    for scale, unit in _SIZES:
        if size >= scale * 0.9995:
            return f"{_three(size / scale)} {unit}"
    return f"{size:.0f} B"


def gib_number(size: float) -> str:
    """GiB (2³⁰) whatever the size, the number alone: "12.0/80.0 GiB" is made of two."""
    return f"{size / 2**30:.1f}"


def mib_number(size: float) -> str:
    """MiB (2²⁰) whatever the size, the number alone, without decimals."""
    return f"{size / 2**20:.0f}"


def rate_text(bytes_per_s: float | None) -> str:
    """``1_500_000`` → "1.50 MB/s"."""
    return UNKNOWN if bytes_per_s is None else f"{size_text(bytes_per_s)}/s"


def percent_text(share: float | None) -> str:
    """``0.123`` → "12 %"; one decimal below ten."""
    if share is None:
        return UNKNOWN
    percent = share * 100
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def option_percent_text(share: float) -> str:
    """``0.005`` → "0.5%", ``0.1`` → "10%": as it is written on a command line, and never "0%" for more than nothing."""
    return f"{share * 100:.0f}%" if share >= 0.1 else f"{share * 100:.2g}%"


def joules_text(joules: float) -> str:
    """``1_500`` → "1.50 kJ"."""
    return f"{joules / 1000:.2f} kJ" if joules >= 999.5 else f"{joules:.3g} J"


def flops_text(per_s: float | None) -> str:
    """``67e12`` → "67 Tflop/s"."""
    if per_s is None:
        return UNKNOWN
    return f"{per_s / 1e12:.3g} Tflop/s" if per_s >= 1e12 else f"{per_s / 1e9:.3g} Gflop/s"


def _three(value: float) -> str:
    if value >= 99.95:  # below it a number rounds to fewer than a hundred
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def decoded(raw: bytes | str) -> str:
    """A name that a driver or compiler gave as text; what is not UTF-8 becomes U+FFFD."""
    return raw if isinstance(raw, str) else raw.decode("utf-8", "replace")


def printable(text: str, instead: str = "\ufffd") -> str:
    """``text`` with ``instead`` for each character that moves a cursor, ends a line or cannot be encoded."""
    return text if text.isprintable() else "".join([char if char.isprintable() else instead for char in text])


def one_line(text: str, limit: int = 120) -> str:
    """``text`` as :func:`printable`, the middle cut out beyond ``limit`` characters; "(unnamed)" for none."""
    text = printable(text) or "(unnamed)"
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 5", "ranks 0 to 6 and 9": as short for a thousand as for ten."""
    stretches: list[list[int]] = []
    for rank in sorted(ranks):
        if stretches and rank == stretches[-1][1] + 1:
            stretches[-1][1] = rank
        else:
            stretches.append([rank, rank])
    texts = [text for a, b in stretches for text in ([f"{a} to {b}"] if b > a + 1 else map(str, range(a, b + 1)))]
    shown = texts if len(texts) <= 5 else [*texts[:4], f"{len(texts) - 4:,} more ranges"]
    listed = f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)
    return f"rank{'' if listed.isdigit() else 's'} {listed}"


def sentence(text: str) -> str:
    """``text`` with a capital at its beginning and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?', '…')) else '.'}"


def terminal(text: str) -> str:
    """``text`` as lines that a terminal shows and does not obey: a blank for each kind of blank, U+FFFD for what moves
    a cursor, turns the direction of writing or cannot be encoded."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c == "\n" else " " if c.isspace() else "\ufffd" for c in text])


def well_formed(text: str) -> str:
    """``text`` as strict readers of UTF-8, JSON and protobuf take it: U+FFFD for each lone surrogate."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encodable(text: str, encoding: str) -> str:
    """``text`` with a question mark for each character that ``encoding`` lacks."""
    return text.encode(encoding, "replace").decode(encoding, "replace")
