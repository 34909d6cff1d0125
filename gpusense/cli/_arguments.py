"""Types of command-line values, for argparse, and what must hold between them."""

from argparse import ArgumentTypeError
from collections.abc import Iterable

from .._runtime.errors import GpuSenseError


def microseconds(text: str) -> float:
    """A time from 0 on."""
    value = float(text)
    if not 0 <= value < 1e12:
        raise ArgumentTypeError(f"{text} is no time in microseconds")
    return value


def seconds(text: str) -> float:
    """A time from 0 on."""
    value = float(text.strip().removesuffix("s"))
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(f"{text} is no time in seconds")
    return value


def passes(text: str) -> tuple[int, int]:
    """(10, 20) for "10..20", (10, 10) for "10"; counted from 1."""
    first, _, last = text.partition("..")
    found = int(first), int(last or first)
    if not 1 <= found[0] <= found[1]:
        raise ArgumentTypeError(f"{text} are no passes; say 10..20")
    return found


def names(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(int(number) for number in text.split(","))


def size_bytes(text: str) -> int:
    """Bytes; K and M are 2¹⁰ and 2²⁰."""
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper())
    value = int(text[:-1] if unit else text) * (unit or 1)
    if value <= 0:
        raise ArgumentTypeError(f"{text} is no size")
    return value


def share(text: str) -> float:
    """0.1 for "10%", "10" and "0.1": a number above 1 is a percentage. What could be either is refused."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    value = float(number)
    if value == 1 and not percent:
        raise ArgumentTypeError(f"{text} could be 1% or 100%; say which")
    value = value / 100 if percent or value > 1 else value
    if not 0 <= value < 1e4:
        raise ArgumentTypeError(f"{text} is no share; say 10% or 0.1")
    return value


def refuse_over_itself(target: str | None, sources: Iterable[str]) -> None:
    """Raises where ``target`` would replace the recording that it is made from."""
    from ..report.files import same_file

    for source in sources:
        if target is not None and same_file(target, source):
            raise GpuSenseError(f"{target}: is the session itself; give -o another path")
