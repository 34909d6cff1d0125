"""Types of command-line values, for argparse, what must hold between them, and the settings of a recording."""

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable
from typing import Any

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


def address(text: str) -> tuple[str, int]:
    """(host, port) of ":9400", "9400", "gpu7:9400" and "[::1]:9400"; without a host it is this machine alone."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise ArgumentTypeError(f"{text} is no address; say :9400, or 0.0.0.0:9400 for all networks")
    return host or "127.0.0.1", int(port)


def refuse_over_itself(target: str | None, sources: Iterable[str]) -> None:
    """Raises where ``target`` would replace the recording that it is made from."""
    from ..report.files import same_file

    for source in sources:
        if target is not None and same_file(target, source):
            raise GpuSenseError(f"{target}: is the session itself; give -o another path")


_SETTINGS = (
    *("threshold_us", "trace_all", "backends", "devices", "buffer_size", "kinds", "overhead_budget", "wgpu_copies"),
)


def add_output(parser: ArgumentParser, whose: str) -> None:
    """Where the session and the answer of a recording go; ``whose``: arguments are in it, a noun."""
    add = parser.add_argument
    add(
        "-o",
        "--output",
        metavar="PATH",
        help="keep the session in this file, readable to you alone, or a report: .html .json .pftrace and others; "
        "{pid} {rank} {host} {time} are filled in",
    )
    add("--open", action="store_true", help="show the page in the browser at the end")
    add("--no-keep", action="store_true", help="without -o: do not keep the session among the last ten runs")
    add("--label", metavar="TEXT", help="a name for this run, shown on every output")
    add("--no-arguments", action="store_true", help=f"do not keep the {whose}'s arguments, which may be private")
    add("--quiet", action="store_true", help="say nothing at the end")


def add_settings(parser: ArgumentParser) -> None:
    """What is recorded, and how; see :func:`chosen`."""
    add = parser.add_argument
    add("--trace-all", action="store_true", default=None, help="keep every record, however short")
    add("--threshold-us", type=microseconds, metavar="N", help="keep records of N µs and more (100)")
    add(
        "--kinds",
        type=names,
        metavar="A,B",
        help="more kinds of records: sync and allocation (as usual), sync_lines, …",
    )
    add("--sync-lines", action="store_true", help="also from which line of the program the host waits for the device")
    add("--backends", type=names, metavar="A,B", help="use only these sources, e.g. cupti,nvml")
    add("--devices", type=numbers, metavar="N,N", help="record only these CUDA devices")
    add("--buffer-size", type=size_bytes, metavar="BYTES", help="size of an activity buffer, e.g. 256K or 1M")


def chosen(settings: Namespace) -> dict[str, Any]:
    """Settings that were given. Waits and allocations are recorded, since the answer needs them, unless the user says
    otherwise."""
    given = {name: getattr(settings, name, None) for name in _SETTINGS}
    found = {name: value for name, value in given.items() if value is not None}
    if "kinds" not in found and "GPUSENSE_KINDS" not in os.environ:
        found["kinds"] = ("sync", "allocation")
    if settings.sync_lines:
        found["kinds"] = (*found.get("kinds", ()), "sync_lines")
    return found
