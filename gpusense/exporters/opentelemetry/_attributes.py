"""Span names and attributes of every record type, cleaned so that a bad value costs itself only; imports no
OpenTelemetry.

Names stand in ``docs/reference/semconv.md``. A span carries at most :data:`MAX_ATTRIBUTES` of its record: what is
constant for a device or the process stands on the scope or the resource, and but for a few not on the span as well.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from operator import attrgetter
from typing import Any, NamedTuple

from ..._records.records import (
    BlockRecord,
    ComputeBlock,
    GpuAllocation,
    GpuCollective,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Record,
    Syscall,
)

MAX_ATTRIBUTES = 12
MAX_NAME = 120
MAX_TEXT = 1024
MAX_ITEMS = 32
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Attributes = dict[str, Any]
Redact = Callable[[str, Any], Any]


class Shape(NamedTuple):
    """What a record becomes: the span's name and attributes, cleaned and redacted, and how many values were lost."""

    name: str
    attributes: Attributes
    lost: int


def clean(value: Any) -> Any:
    """``value`` as the wire takes it, or None where it cannot be sent: NaN, an unknown type, a mixed sequence.

    Integers beyond 64 bits become hexadecimal text, numpy scalars Python ones, undecodable text is escaped, long text
    is cut at :data:`MAX_TEXT`. Raises nothing.
    """
    kind = type(value)
    if kind is str:
        return value if len(value) <= MAX_TEXT and value.isascii() else text(value, MAX_TEXT)
    if kind is bool:
        return value
    if kind is int:
        return value if INT64_MIN <= value <= INT64_MAX else text(hex(value), MAX_TEXT)
    if kind is float:
        return value if isfinite(value) else None
    return _clean_other(value)


def _clean_other(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return _sequence(value)
    if isinstance(value, (bytes, bytearray)):
        return text(bytes(value[:MAX_TEXT]).decode("utf-8", "backslashreplace"), MAX_TEXT)
    for base, plainly in _PLAINLY:
        if isinstance(value, base):
            return clean(plainly(value))
    try:
        plain = value.item()
    except Exception:  # noqa: BLE001 - no scalar, an array of many elements, or a foreign method of the same name
        return None
    return clean(plain) if type(plain) in (bool, int, float, str) else None


#: Enums and other subclasses become what they hold, whatever they say of themselves.
_PLAINLY: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


def _sequence(values: Any) -> list[Any] | None:
    cleaned = [clean(value) for value in values[:MAX_ITEMS]]
    kinds = {type(value) for value in cleaned}
    return cleaned if len(kinds) <= 1 and not kinds & {type(None), list} else None


def text(value: Any, limit: int) -> str:
    """``value`` as text that encodes to UTF-8, at most ``limit`` characters. What is beyond them is not looked at."""
    shown = value if isinstance(value, str) else str(value)
    if len(shown) > limit:
        shown = shown[: limit + 1]
    if not shown.isascii():
        shown = shown.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(shown) > limit:
        return shown[: limit - 1] + "…" if limit > 0 else ""
    return shown if type(shown) is str else str.__str__(shown)


def nanoseconds(value: Any) -> int | None:
    """A time as a positive integer the wire takes; None for anything that is not one."""
    if type(value) is not int:
        try:
            value = int(value)
        except (TypeError, ValueError, OverflowError):
            return None
    return value if 0 < value <= INT64_MAX else None


def shape(
    record: Record, redact: Redact | None = None, extra: Attributes | None = None, max_text: int = MAX_TEXT
) -> Shape:
    """The span of one record. ``extra`` goes before what may be cut at the limit."""
    prefix, pairs = _SHAPES[type(record)]
    attributes, lost = _gather(record, pairs, extra, redact)
    attributes = shortened(attributes, max_text)
    name = text(record.name, MAX_NAME)
    if redact is not None:
        name, failed = _redacted_name(redact, name)
        lost += failed
    return Shape(_join(prefix, name), attributes, lost)


def text_limit(environ: Mapping[str, str]) -> int:
    """Characters of a text: :data:`MAX_TEXT`, or fewer where ``OTEL_…ATTRIBUTE_VALUE_LENGTH_LIMIT`` says so."""
    for name in ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"):
        value = environ.get(name, "").strip()
        if value.isdecimal():
            return min(int(value), MAX_TEXT)
    return MAX_TEXT


def shortened(attributes: Attributes, max_text: int) -> Attributes:
    """``attributes`` with every text cut at ``max_text``."""
    if max_text >= MAX_TEXT:
        return attributes
    return {key: _shortened(value, max_text) for key, value in attributes.items()}


def _shortened(value: Any, max_text: int) -> Any:
    if type(value) is str:
        return text(value, max_text)
    return [_shortened(item, max_text) for item in value] if type(value) is list else value


#: Everything a kernel's attributes are made of.
_KERNEL_KEY = attrgetter(
    "name", "full_name", "raw_name", "stream", "grid", "block", "is_slow", "static_shared_bytes",
    "dynamic_shared_bytes", "registers_per_thread", "occupancy", "elements", "owner", "graph_id", "backend", "device",
)  # fmt: skip


class Shapes:
    """:func:`shape` that remembers: a program launches the same few kernels again and again."""

    def __init__(self, redact: Redact | None, max_text: int = MAX_TEXT, limit: int = 4096) -> None:
        self._redact = redact
        self._max_text = max_text
        self._limit = limit
        self._known: dict[Any, Shape] = {}

    def forget(self) -> None:
        """What ``where`` says of a device may be another thing from now on."""
        self._known.clear()

    def of(self, record: Record, where: Attributes, extra: Attributes | None = None) -> Shape:
        """``where``: attributes of the record's device, sent as they are."""
        if type(record) is not GpuKernel or extra or record.attributes:
            return self._new(record, where, extra)
        key = _KERNEL_KEY(record)
        try:
            known = self._known.get(key)
        except TypeError:  # something in it cannot be a key: a list, an array
            return self._new(record, where)
        if known is None:
            if len(self._known) >= self._limit:
                self._known.clear()
            known = self._known[key] = self._new(record, where)._replace(lost=0)
        return known

    def _new(self, record: Record, where: Attributes, extra: Attributes | None = None) -> Shape:
        made = shape(record, self._redact, extra, self._max_text)
        made.attributes.update(shortened(where, self._max_text))
        return made


def operation(record: Record) -> str:
    """The value of ``gpu.operation`` for a record."""
    return _OPERATIONS[type(record)]


def prefixed(record: Record, redact: Redact | None = None) -> str:
    """The span name of ``record`` alone."""
    name = text(record.name, MAX_NAME)
    return _join(_SHAPES[type(record)][0], name if redact is None else _redacted_name(redact, name)[0])


def apply_redaction(redact: Redact | None, attributes: Attributes) -> tuple[Attributes, int]:
    """Attributes as ``redact(key, value)`` leaves them; None, an error or a bad value takes the attribute away."""
    if redact is None:
        return attributes, 0
    kept: Attributes = {}
    lost = 0
    for key, value in attributes.items():
        try:
            replaced = clean(redact(key, value))
        except Exception:  # noqa: BLE001 - the user's hook; what it cannot judge is not sent
            replaced, lost = None, lost + 1
        if replaced is not None:
            kept[key] = replaced
    return kept, lost


def _gather(
    record: Record, pairs: Callable[[Any], Iterator[tuple[str, Any]]], extra: Attributes | None, redact: Redact | None
) -> tuple[Attributes, int]:
    attributes: Attributes = {"gpu.operation": _OPERATIONS[type(record)]}
    lost = 0
    if extra:
        attributes.update(extra)
    for key, value in pairs(record):
        if value is None:
            continue
        cleaned = clean(value)
        if cleaned is None:
            lost += 1
        elif len(attributes) < MAX_ATTRIBUTES:
            attributes[key] = cleaned
    if record.attributes:
        lost += _add_users(attributes, record.attributes)
    if redact is not None:
        attributes, failed = apply_redaction(redact, attributes)
        lost += failed
    return attributes, lost


def _add_users(attributes: Attributes, users: Any) -> int:
    """Adds the application's own attributes up to the limit; returns how many could not be sent."""
    lost = 0
    try:
        items = list(users.items())
    except Exception:  # noqa: BLE001 - not a mapping
        return 1
    for key, value in items:
        if value is None:
            continue
        fits = len(attributes) < MAX_ATTRIBUTES and isinstance(key, str) and bool(key)
        cleaned = clean(value) if fits else None
        if cleaned is None:
            lost += 1
        else:
            attributes[text(key, MAX_NAME)] = cleaned
    return lost


def _redacted_name(redact: Redact, name: str) -> tuple[str, int]:
    try:
        replaced = redact("span.name", name)
    except Exception:  # noqa: BLE001 - the user's hook; what it cannot judge is not sent
        return "", 1
    return ("", 0) if replaced is None else (text(replaced, MAX_NAME), 0)


def _join(prefix: str, name: str) -> str:
    if not prefix:
        return name or "block"
    return f"{prefix}: {name}" if name else prefix


def _kernel(record: GpuKernel) -> Iterator[tuple[str, Any]]:
    yield "gpu.kernel.name", record.full_name or record.raw_name or record.name
    yield "gpu.stream.id", record.stream
    yield "gpu.kernel.grid", _extent(record.grid)
    yield "gpu.kernel.block", _extent(record.block)
    yield "gpu.is_slow", record.is_slow
    if record.static_shared_bytes is not None or record.dynamic_shared_bytes is not None:
        yield "gpu.kernel.shared_memory", _sum(record.static_shared_bytes, record.dynamic_shared_bytes)
    yield "gpu.kernel.registers", record.registers_per_thread
    yield "gpu.kernel.occupancy", record.occupancy
    yield "gpu.elements", record.elements
    yield from _graph(record)


def _extent(sizes: Any) -> Any:
    """ "128,1,1": an array of three costs the encoder four values instead of one."""
    return None if sizes is None else ",".join(map(str, sizes))


def _graph(record: Any) -> Iterator[tuple[str, Any]]:
    if record.owner:
        yield "gpu.graph.owner", "/".join(map(str, record.owner))
    yield "gpu.graph.id", record.graph_id


def _transfer(record: GpuMemoryTransfer) -> Iterator[tuple[str, Any]]:
    yield "gpu.transfer.direction", record.direction
    yield "gpu.transfer.bytes", record.bytes
    yield "gpu.transfer.bandwidth", _bandwidth(record)
    yield "gpu.stream.id", record.stream
    yield "gpu.is_slow", record.is_slow
    yield "gpu.transfer.usage", record.usage
    yield "gpu.transfer.source", record.source
    yield "gpu.transfer.destination", record.destination
    yield "gpu.transfer.destination_device", record.destination_device
    if record.timing != "device":
        yield "gpu.transfer.timing", record.timing
    yield from _graph(record)


def _memset(record: GpuMemset) -> Iterator[tuple[str, Any]]:
    yield "gpu.memset.bytes", record.bytes
    yield "gpu.stream.id", record.stream
    yield "gpu.is_slow", record.is_slow
    yield from _graph(record)


def _sync(record: GpuSync) -> Iterator[tuple[str, Any]]:
    yield "gpu.stream.id", record.stream
    yield "gpu.is_slow", record.is_slow
    if record.source_line:
        path, _, place = str(record.source_line).rpartition(":")
        line, _, function = place.partition(" ")
        yield "code.file.path", path or record.source_line
        yield "code.line.number", int(line) if line.isdecimal() else None
        yield "code.function.name", function or None


def _allocation(record: GpuAllocation) -> Iterator[tuple[str, Any]]:
    yield "gpu.allocation.bytes", record.bytes
    yield "gpu.stream.id", record.stream
    yield "gpu.allocation.memory", record.memory


def _collective(record: GpuCollective) -> Iterator[tuple[str, Any]]:
    yield "gpu.communicator.id", record.communicator
    yield "gpu.communicator.name", record.communicator_name
    yield "gpu.communicator.rank", record.rank
    yield "gpu.communicator.size", record.ranks
    yield "gpu.collective.sequence", record.sequence
    yield "gpu.collective.peer", record.peer
    yield "gpu.collective.bytes", record.bytes
    yield "gpu.collective.data_type", record.data_type
    yield "gpu.collective.algorithm", record.algorithm
    yield "gpu.collective.protocol", record.protocol


def hang_attributes(found: Mapping[str, Any], wait: Mapping[str, Any]) -> Attributes:
    """Of the evidence of a hang; ``wait``: in what, for another process."""
    about = {
        "gpusense.hang.text": found.get("text")
        or f"nothing completed for {found['after_s']:g} s although there was work",
        "gpusense.hang.absent": wait.get("absent") or None,
        "gpu.collective.name": wait.get("name"),
        "gpu.collective.sequence": wait.get("sequence"),
        "gpu.communicator.id": wait.get("communicator"),
        "gpu.communicator.rank": wait.get("rank"),
        "gpu.communicator.size": wait.get("ranks"),
    }
    return {key: cleaned for key, value in about.items() if (cleaned := clean(value)) is not None}


def _compute(record: ComputeBlock) -> Iterator[tuple[str, Any]]:
    yield "compute.elements", record.elements
    yield "compute.is_slow", record.is_slow
    yield "thread.id", record.thread


def _block(record: BlockRecord) -> Iterator[tuple[str, Any]]:
    yield "thread.id", record.thread


def _syscall(record: Syscall) -> Iterator[tuple[str, Any]]:
    yield "thread.id", record.thread
    yield "syscall.result", record.result


def _sum(first: Any, second: Any) -> Any:
    try:
        return (first or 0) + (second or 0)
    except TypeError:
        return first


def _bandwidth(record: GpuMemoryTransfer) -> float | None:
    """Bytes a second."""
    try:
        duration = record.end_ns - record.start_ns
        return record.bytes * 1e9 / duration if duration > 0 else None
    except (TypeError, OverflowError):
        return None


_SHAPES: dict[type, tuple[str, Callable[[Any], Iterator[tuple[str, Any]]]]] = {
    GpuKernel: ("gpu_kernel", _kernel),
    GpuMemoryTransfer: ("gpu_transfer", _transfer),
    GpuMemset: ("gpu_memset", _memset),
    GpuSync: ("gpu_sync", _sync),
    GpuAllocation: ("gpu_allocation", _allocation),
    GpuCollective: ("gpu_collective", _collective),
    ComputeBlock: ("compute_block", _compute),
    BlockRecord: ("", _block),
    Syscall: ("syscall", _syscall),
}

#: Classes of the records that get a span of their own; counters of blocks are no work.
SPANNED = frozenset(_SHAPES)

_OPERATIONS: dict[type, str] = {
    GpuKernel: "kernel",
    GpuMemoryTransfer: "transfer",
    GpuMemset: "memset",
    GpuSync: "sync",
    GpuAllocation: "allocation",
    GpuCollective: "collective",
    ComputeBlock: "compute",
    BlockRecord: "block",
    Syscall: "syscall",
}
