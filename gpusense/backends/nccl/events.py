"""What NCCL says of a collective, a send or a receive in its event descriptor, version by version.

Source: ncclProfilerEventDescr_v2_t to _v6_t of NCCL's ``plugins/profiler``. Pointers to text are to constants of NCCL,
or to the name of a communicator that lives as long as that; they are read while the process is there.
"""

import ctypes
import struct
from typing import NamedTuple

from ..._capi.machine import nccl_code as code
from ..._records.records import OF_PARTS


class Event(NamedTuple):
    """One descriptor. None: this version, or this kind, does not tell it."""

    function: str
    rank: int
    elements: int
    data_type: str | None
    sequence: int | None = None
    root: int | None = None
    peer: int | None = None
    algorithm: str | None = None
    protocol: str | None = None
    communicator: int | None = None
    communicator_name: str | None = None


class _Layout(NamedTuple):
    """Where the members lie. A pointer is a "Q"; what is not read is an "x"."""

    collective: struct.Struct  # rank, number, function, elements, root, type, channels, algorithm, protocol
    send: struct.Struct  # rank, function, type, elements, peer
    channels: int  # offset of their number; of a send below, 0 where there is none
    send_channels: int = 0
    names: struct.Struct | None = None  # name and number of the communicator, where each descriptor has them


_V4 = _Layout(struct.Struct("<16xi4xQQ16xQi4xQB7xQQ"), struct.Struct("<16xi4xQ8xQQi"), 80, 60)
_NAMES, _SEND = struct.Struct("<24xQQ"), struct.Struct("<16xi20xQ8xQQi")
_LAYOUTS = {
    2: _Layout(struct.Struct("<16xi20xQQ16xQi4xQ8xB7xQQ"), _SEND, 104, names=_NAMES),
    3: _Layout(struct.Struct("<16xi20xQQ16xQi4xQB7xQQ"), _SEND, 96, names=_NAMES),
    4: _V4,
    5: _V4,  # more comes behind
    6: _V4,
}
NEWEST = max(_LAYOUTS)
#: From this version on NCCL tells when channels begin and end.
TELLS_CHANNELS = 3
#: From this version on it tells of a communicator as it is made, and not with each collective.
TELLS_RANKS = 4

#: NCCL's names of types: ours, and bytes of an element.
_TYPES = {
    "ncclInt8": ("int8", 1),
    "ncclUint8": ("uint8", 1),
    "ncclInt32": ("int32", 4),
    "ncclUint32": ("uint32", 4),
    "ncclInt64": ("int64", 8),
    "ncclUint64": ("uint64", 8),
    "ncclFloat16": ("float16", 2),
    "ncclFloat32": ("float32", 4),
    "ncclFloat64": ("float64", 8),
    "ncclBfloat16": ("bfloat16", 2),
    "ncclFloat8e4m3": ("float8_e4m3", 1),
    "ncclFloat8e5m2": ("float8_e5m2", 1),
}
_WIDTHS = dict(_TYPES.values())
_constants: dict[int, str] = {}  # NCCL's, by their addresses: they stay where they are


def decode(raw: bytes, version: int) -> Event:
    """The descriptor of a collective, a send or a receive. ``raw``: at least EVENT_BYTES of it."""
    at = _LAYOUTS[version]
    communicator = name = None
    if at.names is not None:
        pointer, communicator = at.names.unpack_from(raw)
        name = _text(pointer) or None
    if is_collective(raw):
        rank, number, function, elements, root, kind, _, algorithm, protocol = at.collective.unpack_from(raw)
        return Event(
            *(_constant(function) or "collective", rank, elements, _data_type(kind), number, root, None),
            *(_constant(algorithm) or None, _constant(protocol) or None, communicator, name),
        )
    rank, function, kind, elements, peer = at.send.unpack_from(raw)
    function_name = _constant(function) or "send or receive"
    return Event(function_name, rank, elements, _data_type(kind), None, None, peer, None, None, communicator, name)


def is_collective(raw: bytes) -> bool:
    """Whether the descriptor is of a collective, and not of a send or a receive."""
    return bool(raw[0] & code.EVENT_COLLECTIVE)


def is_receive(raw: bytes, version: int) -> bool:
    """Whether the descriptor is of a receive."""
    return not is_collective(raw) and _constant(_LAYOUTS[version].send.unpack_from(raw)[1]) == "Recv"


def channels(raw: bytes, version: int) -> int:
    """How many channels will begin, at most before version 4; 0 where it is not known."""
    at = _LAYOUTS[version]
    place = at.channels if is_collective(raw) else at.send_channels
    return raw[place] if place else 0


def size(event: Event, ranks: int | None) -> int | None:
    """Bytes as NCCL's tests count them: of the whole that each rank ends or begins with."""
    width = _WIDTHS.get(event.data_type or "")
    if width is None:
        return None
    if event.function not in OF_PARTS:
        return event.elements * width
    return event.elements * width * ranks if ranks else None


def _constant(pointer: int) -> str:
    found = _constants.get(pointer)
    if found is None:
        found = _constants[pointer] = _text(pointer)
    return found


def _text(pointer: int) -> str:
    return ctypes.string_at(pointer).decode("utf-8", "replace") if pointer else ""


def _data_type(pointer: int) -> str | None:
    name = _constant(pointer)
    return _TYPES[name][0] if name in _TYPES else name or None
