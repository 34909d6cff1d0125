"""Settings: one NamedTuple, resolved from the environment over the application over the host library."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .errors import ConfigurationError

#: The rows of ``backends.BACKENDS`` in their order, first believed first; also those that this copy comes without.
BACKEND_NAMES = ("cuda", "cupti", "nvml", "amd_sysfs", "rocm_smi", "drm_files", "wgpu")
KIND_NAMES = ("sync", "allocation", "unified_memory", "launch", "sync_lines")

#: Settings that are one word of these.
_CHOICES = {
    "mode": ("off", "auto", "on"),
    "attribution": ("order", "exact"),
    "kernels": ("every", "blocks", "hardware"),
}
_MODES = {**dict.fromkeys(("off", "0", "false", "no"), "off"), **dict.fromkeys(("on", "1", "true", "yes"), "on")}
_MODE_WORDS = "it must be off, auto or on"


class Settings(NamedTuple):
    """Resolved settings. Units stand in the names; each has a variable ``GPUSENSE_<NAME IN CAPITALS>``."""

    mode: str = "auto"  # "off", "auto", "on"; variable GPUSENSE
    threshold_us: float = 100.0  # kept one by one from here on; below only counted
    trace_all: bool = False  # keep everything one by one
    devices: tuple[int, ...] | None = None  # CUDA ordinals; None: all
    backends: tuple[str, ...] | None = None  # names as in doctor; None: all
    sample_rate: float = 1.0  # share of root blocks that are opened
    kinds: tuple[str, ...] = ()  # more record kinds: "sync", "sync_lines", "allocation", "unified_memory", "launch"
    buffer_size: int = 256 * 1024  # bytes of one CUPTI buffer
    buffers: int = 128  # how many of them at most
    max_records_per_second: int = 5_000  # kept; beyond it the threshold rises
    max_records: int = 200_000  # kept in memory; older ones are then only counted
    overhead_budget: float | None = None  # share of wall time gpusense may cost; None: no limit
    detach_in_pauses: bool = False  # True: the program has no CUDA graphs, so pauses of the budget take CUPTI out
    hang_after: float | None = None  # seconds without progress after which evidence is recorded
    file_limit_bytes: int = 4 * 1024**3  # at this size a session file ends growing
    line_packages: tuple[str, ...] = ()  # installed packages whose lines count as the program's, for "sync_lines"
    strict: bool = False  # configure() raises for a backend that is asked for and not there
    attribution: str = "order"  # "exact": also switches between tasks are marked
    wgpu_copies: bool = False  # copies between resources of the GPU and clears are timed, too
    flight_recorder: float | None = None  # seconds kept in full detail, to be written when something goes wrong
    flight_factor: float = 2.0  # a block that takes so many times its 99th percentile is written
    flight_signal: bool = False  # SIGUSR2 has it written, too
    counters: str | None = None  # "auto", a rate as "1kHz": sampled over time; "exact": of blocks; None: none
    #: "blocks": no kernel is recorded; the device times the blocks, at next to no cost. "hardware", experimental: as
    #: "every", timed by the events of the device itself, which Blackwell and later have.
    kernels: str = "every"

    @property
    def threshold_ns(self) -> int:
        """As records have their times."""
        return round(self.threshold_us * 1000)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("it must be a number") from None


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("it must be yes or no")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _optional_float(text: str) -> float | None:
    return None if text.strip().lower() in ("", "none", "off") else _float(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "threshold_us": _float,
    "trace_all": _boolean,
    "devices": lambda text: tuple(_int(word) for word in _words(text)),
    "backends": _words,
    "sample_rate": _float,
    "kinds": _words,
    "buffer_size": _int,
    "buffers": _int,
    "max_records_per_second": _int,
    "max_records": _int,
    "overhead_budget": _optional_float,
    "detach_in_pauses": _boolean,
    "hang_after": _optional_float,
    "file_limit_bytes": _int,
    "line_packages": _words,
    "strict": _boolean,
    "attribution": lambda text: text.strip().lower(),
    "wgpu_copies": _boolean,
    "flight_recorder": _optional_float,
    "flight_factor": _float,
    "flight_signal": _boolean,
    "counters": str,
    "kernels": lambda text: text.strip().lower(),
}

#: Of counters: what CUPTI's sampler can do without running out of memory.
RATES_HZ = (1, 20_000)

_YES_OR_NO = frozenset(name for name, parse in _PARSERS.items() if parse is _boolean)
_NONE_IS_OFF = frozenset(name for name, parse in _PARSERS.items() if parse is _optional_float) | {"devices", "backends"}

_RANGES: dict[str, tuple[float, float]] = {
    "threshold_us": (0, 1e12),
    "sample_rate": (0, 1),
    "buffer_size": (4096, 64 * 1024 * 1024),
    "buffers": (2, 4096),
    "max_records_per_second": (1, 10**9),
    "max_records": (1, 10**9),
    "overhead_budget": (0.0001, 1),
    "hang_after": (0.1, 1e9),
    "flight_recorder": (0.1, 3600),
    "flight_factor": (1, 1e9),
    "file_limit_bytes": (64 * 1024, 1 << 62),
}


def mode(environ: Mapping[str, str] | None = None) -> str:
    """``GPUSENSE`` as "off", "auto" or "on"; anything else counts as "auto"."""
    word = (environ if environ is not None else os.environ).get("GPUSENSE", "auto").strip().lower()
    return _MODES.get(word, "auto")


def is_off(text: str) -> bool:
    """Whether the value of a variable says no."""
    return _MODES.get(text.strip().lower()) == "off"


def from_environment(environ: Mapping[str, str] | None = None) -> tuple[dict[str, Any], list[str]]:
    """Settings named in the environment, and a sentence for each that cannot be used (it is then ignored)."""
    environ = environ if environ is not None else os.environ
    found: dict[str, Any] = {}
    word = environ.get("GPUSENSE", "").strip().lower()
    problems = [] if word in ("", "auto") or word in _MODES else [f"GPUSENSE={word!r} is ignored: {_MODE_WORDS}"]
    for name, parse in _PARSERS.items():
        text = environ.get(f"GPUSENSE_{name.upper()}")
        if text is None:
            continue
        try:
            found[name] = check(name, parse(text))
        except ValueError as error:
            problems.append(f"GPUSENSE_{name.upper()}={text!r} is ignored: {error}")
    return found, problems


def check(name: str, value: Any) -> Any:
    """``value`` in the type of the setting ``name``; raises :class:`ConfigurationError` saying what would be right."""
    if name not in Settings._fields:
        raise _unknown("setting", name, Settings._fields)
    if name in _CHOICES:
        *most, last = map(repr, _CHOICES[name])
        if value not in _CHOICES[name]:
            raise ConfigurationError(f"{name} must be {', '.join(most)} or {last}, not {value!r}")
        return value
    if name == "counters":
        return _counters(value)
    if value is None and name in _NONE_IS_OFF:
        return None
    if name in ("devices", "backends", "kinds", "line_packages"):
        return _sequence(name, value)
    if name in _YES_OR_NO:
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name} must be True or False, not {value!r}")
        return value
    return _number(name, value)


def _unknown(what: str, name: str, known: Sequence[str]) -> ConfigurationError:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    return ConfigurationError(f"unknown {what} {name!r}; known: {', '.join(known)}{hint}")


def _sequence(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, int)):
        value = (value,)
    try:
        items = tuple(value)
    except TypeError:
        raise ConfigurationError(f"{name} must be a sequence, not {value!r}") from None
    kind: type = int if name == "devices" else str
    for item in items:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise ConfigurationError(f"{name} must hold {'names' if kind is str else 'whole numbers'}, not {item!r}")
    known = {"kinds": KIND_NAMES, "backends": BACKEND_NAMES}.get(name, items)
    unknown = [item for item in items if item not in known]
    if unknown:
        raise _unknown(name.removesuffix("s"), unknown[0], known)
    if name == "devices" and min(items, default=0) < 0:
        raise ConfigurationError(f"devices must hold numbers from 0 on, not {min(items)}")
    if name == "kinds" and "sync_lines" in items and "sync" not in items:
        items = (*items, "sync")
    return items


def _counters(value: Any) -> str | None:
    """ "auto", "exact", or the rate as it is written shortest; None for off."""
    word = "auto" if value is True else "off" if value is None or value is False else value
    if not isinstance(word, str):
        raise ConfigurationError(f"counters must be True, False, a rate as '1kHz' or 'exact', not {value!r}")
    word = word.strip()
    if word.lower() in _MODES or word == "":
        word = "auto" if _MODES.get(word.lower()) == "on" else "off"
    if word.lower() in ("off", "none"):
        return None
    if word.lower() in ("auto", "exact"):
        return word.lower()
    rate = sampling_rate(word)
    if rate is None or not RATES_HZ[0] <= rate <= RATES_HZ[1]:
        raise ConfigurationError(
            f"counters must be on, off, exact or a rate from {RATES_HZ[0]}Hz to {RATES_HZ[1] // 1000}kHz, not {value!r}"
        )
    return f"{rate / 1000:g}kHz" if rate >= 1000 else f"{rate:g}Hz"


def sampling_rate(text: str) -> float | None:
    """Samples a second, of a rate as "1kHz", "100Hz" or "100"; None for what is none."""
    word = text.strip().lower().removesuffix("hz")
    factor = 1000 if word.endswith("k") else 1
    try:
        return float(word.removesuffix("k")) * factor
    except ValueError:
        return None


def _number(name: str, value: Any) -> Any:
    wanted = float if _PARSERS[name] in (_float, _optional_float) else int
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Not zero for infinity, and for what is no number.
    if not number or value - value != 0 or (wanted is int and value != int(value)):
        raise ConfigurationError(f"{name} must be a number, not {value!r}")
    low, high = _RANGES[name]
    if not low <= value <= high:
        raise ConfigurationError(f"{name} must lie in {low:g}…{high:g}, not {value!r}")
    return wanted(value)


def _asks_for_auto(environ: Mapping[str, str] | None) -> bool:
    """GPUSENSE=auto is the environment's word, unlike a variable that is not set or makes no sense."""
    return (environ if environ is not None else os.environ).get("GPUSENSE", "").strip().lower() == "auto"


class Layers:
    """What each party asked for: environment over application over host library over defaults."""

    __slots__ = ("application", "host", "problems")

    def __init__(self) -> None:
        self.host: dict[str, Any] = {}
        self.application: dict[str, Any] = {}
        self.problems: list[str] = []

    def resolve(self, environ: Mapping[str, str] | None = None) -> Settings:
        """The settings that result, and anew in ``problems`` why variables of the environment have no effect."""
        environment, self.problems = from_environment(environ)
        merged = {**self.host, **self.application, **environment}
        word = mode(environ)
        if word != "auto" or _asks_for_auto(environ):
            merged["mode"] = word
        return Settings(**merged)
