"""Types of command-line values, for argparse, what must hold between them, and the settings of a recording."""

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable
from typing import Any, NoReturn

from .._runtime.errors import GpuSenseError


class Parser(ArgumentParser):
    """Takes options by their whole names, and suggests the one that was meant for one it does not know."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        super().__init__(**settings)

    def options(self) -> dict[str, str]:
        """What each option does, by its name."""
        return {option: action.help or "" for action in self._actions for option in action.option_strings}

    def with_value(self) -> set[str]:
        """Options that are followed by a word which belongs to them."""
        return {option for action in self._actions if action.nargs is None for option in action.option_strings}

    def meant(self, own: list[str], word: str) -> str:
        """ "--counters=50Hz" where the last of the options takes a value by "=" alone, and this word looks like one."""
        last = next((one for one in self._actions if one.nargs == "?" and own and own[-1] in one.option_strings), None)
        if last is None or "." in word or "/" in word:
            return ""
        try:
            return f"{own[-1]}={last.type(word) if callable(last.type) else word}"
        except ArgumentTypeError:
            return ""

    def words(self) -> list[str]:
        """What may stand for the arguments that are no options, where that is not any word."""
        return [str(word) for action in self._actions if not action.option_strings for word in action.choices or ()]

    def error(self, message: str) -> NoReturn:
        from difflib import get_close_matches

        unknown = message.removeprefix("unrecognized arguments: ")
        word, _, _ = unknown.partition(" ")[0].partition("=")
        if unknown == message or not word.startswith("--"):
            super().error(message)
        near = get_close_matches(word, self.options(), n=1)
        super().error(f"{message}; did you mean {near[0]}?" if near else message)


def _number(text: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number; say {example}") from None


def microseconds(text: str) -> float:
    """A time from 0 on."""
    value = _number(text, "50 for 50 µs")
    if not 0 <= value < 1e12:
        raise ArgumentTypeError(f"{text!r} is not a time in microseconds; say 50 for 50 µs")
    return value


def seconds(text: str) -> float:
    """A time from 0 on."""
    value = _number(text.strip().removesuffix("s"), "1.5 for 1.5 s")
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(f"{text!r} is not a time in seconds; say 1.5 for 1.5 s")
    return value


def passes(text: str) -> tuple[int, int]:
    """(10, 20) for "10..20", (10, 10) for "10"; counted from 1."""
    first, _, last = text.partition("..")
    try:
        found = int(first), int(last or first)
    except ValueError:
        found = 0, 0
    if not 1 <= found[0] <= found[1]:
        raise ArgumentTypeError(f"{text!r} are not passes; say 10..20, counted from 1")
    return found


def names(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} are not device numbers; say 0 or 0,1") from None


def size_bytes(text: str) -> int:
    """Bytes; K and M are 2¹⁰ and 2²⁰."""
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper())
    digits = text[:-1] if unit else text
    value = int(digits) * (unit or 1) if digits.isdecimal() else 0
    if value <= 0:
        raise ArgumentTypeError(f"{text!r} is not a size; say 256K or 1M")
    return value


def share(text: str) -> float:
    """0.1 for "10%", "10" and "0.1": a number above 1 is a percentage. What could be either is refused."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    value = _number(number, "10% or 0.1")
    if value == 1 and not percent:
        raise ArgumentTypeError(f"{text!r} could be 1% or 100%; say which")
    value = value / 100 if percent or value > 1 else value
    if not 0 <= value < 1e4:
        raise ArgumentTypeError(f"{text!r} is not a share; say 10% or 0.1")
    return value


def address(text: str) -> tuple[str, int]:
    """(host, port) of ":9400", "9400", "gpu7:9400" and "[::1]:9400"; without a host it is this machine alone."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise ArgumentTypeError(f"{text} is not an address; say :9400, or 0.0.0.0:9400 for all networks")
    return host or "127.0.0.1", int(port)


def rate(text: str) -> str:
    """A rate of samples, as the setting has it."""
    from .._runtime.config import check

    try:
        found: str = check("counters", text) or "off"
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return found


def refuse_over_itself(target: str | None, sources: Iterable[str]) -> None:
    """Raises where ``target`` would replace the recording that it is made from."""
    from ..report.files import same_file

    for source in sources:
        if target is not None and same_file(target, source):
            raise GpuSenseError(f"{target} is the session itself; give -o another path")


_SETTINGS = (
    *("threshold_us", "trace_all", "backends", "devices", "buffer_size", "kinds", "overhead_budget", "wgpu_copies"),
    "counters",
    "kernels",
)


def add_output(parser: ArgumentParser, whose: str) -> None:
    """Where the session and the answer of a recording go; ``whose``: arguments are in it, a noun."""
    add = parser.add_argument
    add(
        "-o",
        "--output",
        metavar="PATH",
        help="keep the session in this file, readable only by you, or a report: .html .json .pftrace and others; "
        "{pid} {rank} {host} {time} are filled in",
    )
    add("--open", action="store_true", help="show the page in the browser at the end")
    add("--no-keep", action="store_true", help="without -o: do not keep the session among the last ten runs")
    add("--label", metavar="TEXT", help="a name for this run, shown on every output")
    add("--no-arguments", action="store_true", help=f"do not keep the {whose}'s arguments, which may be private")
    add("-q", "--quiet", action="store_true", help="say nothing at the end")


def add_settings(parser: ArgumentParser) -> None:
    """What is recorded, and how; see :func:`chosen`."""
    add = parser.add_argument
    add(
        "--light",
        dest="kernels",
        action="store_const",
        const="blocks",
        help="record no kernels: the device times only blocks, which costs next to nothing",
    )
    add("--trace-all", action="store_true", default=None, help="list all work one by one, however short")
    add(
        "--threshold-us",
        type=microseconds,
        metavar="N",
        help="list one by one what takes N µs or more (100); sum up the rest",
    )
    add(
        "--kinds",
        type=names,
        metavar="A,B",
        help="what else to record: sync,allocation (as usual), sync_lines, launch, unified_memory",
    )
    add("--sync-lines", action="store_true", help="also say which line of the program waits for the GPU")
    add(
        "--counters",
        nargs="?",
        const="auto",
        type=rate,
        metavar="RATE",
        help="also what the hardware counts over time: tensor cores, memory, links (100Hz; others by --counters=1kHz); "
        "--counters=exact: exactly, in some passes of each block",
    )
    add("--backends", type=names, metavar="A,B", help="use only these sources, e.g. cupti,nvml")
    add("--devices", type=numbers, metavar="N,N", help="record only these CUDA devices")
    add(
        "--buffer-size",
        type=size_bytes,
        metavar="BYTES",
        help="size of one buffer for records, e.g. 256K or 1M; more if records are dropped",
    )


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
