"""What NCCL says of a collective, a send or a receive in its event descriptor, version by version.

Source: ncclProfilerEventDescr_v2_t to _v6_t of NCCL's ``plugins/profiler``. Pointers to text are to constants of NCCL,
or to the name of a communicator that lives as long as that; they are read while the process is there.
"""

import ctypes
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
    """Where the members lie, from the beginning of the descriptor; 0 where there is none."""

    sequence: int
    function: int
    elements: int
    root: int
    data_type: int
    channels: int
    algorithm: int
    protocol: int
    send_function: int
    send_data_type: int
    send_elements: int
    peer: int
    send_channels: int
    name: int = 0
    id: int = 0


_V4 = _Layout(24, 32, 56, 64, 72, 80, 88, 96, 24, 40, 48, 56, 60)
_LAYOUTS = {
    2: _Layout(40, 48, 72, 80, 88, 104, 112, 120, 40, 56, 64, 72, 0, name=24, id=32),
    3: _Layout(40, 48, 72, 80, 88, 96, 104, 112, 40, 56, 64, 72, 0, name=24, id=32),
    4: _V4,
    5: _V4,  # more comes behind
    6: _V4,
}
NEWEST = max(_LAYOUTS)
#: From this version on NCCL tells when channels begin and end.
TELLS_CHANNELS = 3
#: From this version on it tells of a communicator as it is made, and not with each collective.
TELLS_RANKS = 4
_RANK = 16

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


def decode(raw: bytes, version: int) -> Event:
    """The descriptor of a collective, a send or a receive. ``raw``: at least EVENT_BYTES of it."""
    at, collective = _LAYOUTS[version], is_collective(raw)
    return Event(
        _text(raw, at.function if collective else at.send_function)
        or ("collective" if collective else "send or receive"),
        _int(raw, _RANK),
        elements=_long(raw, at.elements if collective else at.send_elements),
        data_type=_data_type(_text(raw, at.data_type if collective else at.send_data_type)),
        sequence=_long(raw, at.sequence) if collective else None,
        root=_int(raw, at.root) if collective else None,
        peer=None if collective else _int(raw, at.peer),
        algorithm=_text(raw, at.algorithm) or None if collective else None,
        protocol=_text(raw, at.protocol) or None if collective else None,
        communicator=_long(raw, at.id) if at.id else None,
        communicator_name=_text(raw, at.name) or None if at.name else None,
    )


def is_collective(raw: bytes) -> bool:
    """Whether the descriptor is of a collective, and not of a send or a receive."""
    return bool(raw[0] & code.EVENT_COLLECTIVE)


def channels(raw: bytes, version: int) -> int:
    """How many channels will begin, at most before version 4; 0 where it is not known."""
    at = _LAYOUTS[version]
    place = at.channels if is_collective(raw) else at.send_channels
    return raw[place] if place else 0


def size(event: Event, ranks: int | None) -> int | None:
    """Bytes as NCCL's tests count them: of the whole that each rank ends or begins with."""
    width = next((width for name, width in _TYPES.values() if name == event.data_type), None)
    if width is None:
        return None
    if event.function not in OF_PARTS:
        return event.elements * width
    return event.elements * width * ranks if ranks else None


def _int(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 4], "little", signed=True)


def _long(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 8], "little")


def _text(raw: bytes, at: int) -> str:
    pointer = _long(raw, at)
    return ctypes.string_at(pointer).decode("utf-8", "replace") if pointer else ""


def _data_type(name: str) -> str | None:
    return _TYPES[name][0] if name in _TYPES else name or None
