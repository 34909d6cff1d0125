"""C strings at addresses that may be stale."""

import ctypes
import sys

import pytest

from gpusense._capi import cstring

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/mem")


def place(text):
    buffer = ctypes.create_string_buffer(text)
    return buffer, ctypes.addressof(buffer)


@pytest.mark.parametrize("path", ["/proc/self/mem", "/nowhere"])
@pytest.mark.parametrize("text", [b"", b"axpy", b"\xff\xfe not UTF-8", b"x" * 255, b"x" * 256, b"x" * 5000])
def test_strings_are_read_to_their_end(path, text):
    reader = cstring.StringReader(path)
    _keep, address = place(text)
    assert reader.read(address) == text
    assert reader.read(0) == b""


@needs_proc
def test_what_is_too_long_is_cut():
    _keep, address = place(b"y" * 100_000)
    assert cstring.read(address) == b"y" * cstring.MAX_BYTES


@needs_proc
def test_a_string_that_runs_into_unmapped_memory_ends_there():
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    base = libc.mmap(None, 3 * 4096, 3, 0x22, -1, 0)  # read and write; private and anonymous
    ctypes.memmove(base + 4090, b"abcdef", 6)
    assert libc.munmap(base + 4096, 4096) == 0
    reader = cstring.StringReader()
    assert reader.read(base + 4090) == b"abcdef"
    assert reader.read(base + 4096) == b""
    assert reader.safe
    assert not cstring.StringReader("/nowhere").safe
