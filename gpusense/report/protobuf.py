"""Protocol-buffer wire format without a library: varints, and fields of the three wire types a trace needs.

Encoding: https://protobuf.dev/programming-guides/encoding/ — a key is ``number << 3 | type``; type 0 is a varint, 1 is
eight bytes, 2 is a length and that many bytes.
"""

import struct

from .._runtime.text import well_formed

_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")


def varint(value: int) -> bytes:
    """``value`` ≥ 0 in groups of seven bits, lowest first."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field; negative numbers as 64-bit two's complement."""
    return varint(field << 3) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def fixed64(field: int, value: int) -> bytes:
    """A field of eight bytes."""
    return varint(field << 3 | 1) + _FIXED64.pack(value)


def double(field: int, value: float) -> bytes:
    """A field of a floating-point number."""
    return varint(field << 3 | 1) + _DOUBLE.pack(value)


def message(field: int, body: bytes) -> bytes:
    """A field of bytes or of an inner message."""
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    """A string field."""
    return message(field, well_formed(value).encode())
