"""CUPTI records as bytes, for tests of what follows decoding. Sizes are those of CUDA 11.7."""

import struct

KERNEL = struct.Struct("<IBBHIIQQQIIIiiiiiiiiIIIqQQQQBBBBIQIIQII")
MEMCPY = struct.Struct("<IBBBBQQQIIIIIIQQIIII")
API = struct.Struct("<IIQQIIII")
SYNC = struct.Struct("<IIQQIIII")
STRIDES = {10: KERNEL.size, 1: MEMCPY.size, 4: API.size, 38: SYNC.size}
T0 = 1_764_280_000_000_000_000
MARKER_CBID = 2


def kernel(start, end, correlation=1, *, name=0x100, stream=7, device=0, context=1, block=(128, 1, 1), registers=32):
    return KERNEL.pack(
        10, 0, 0, registers, 0, 0, start, end, end, device, context, stream, 4, 1, 1, *block, 0, 0, 0, 0, correlation,
        0, name, *(0,) * 14,
    )  # fmt: skip


def memcpy(start, end, correlation=1, *, copy=1, size=4096, stream=7, device=0, kinds=(1, 3)):
    return MEMCPY.pack(1, copy, *kinds, 0, size, start, end, device, 1, stream, correlation, 0, 0, 0, 0, 0, 0, 0, 0)


def marker(start, correlation, thread):
    return API.pack(4, MARKER_CBID, start, start + 100, 1, thread & 0xFFFFFFFF, correlation & 0xFFFFFFFF, 0)


def sync(start, end, correlation=1, *, kind=3, stream=7):
    return SYNC.pack(38, kind, start, end, correlation, 1, stream, 0xFFFFFFFF)


def view(*records):
    return memoryview(b"".join(records))
