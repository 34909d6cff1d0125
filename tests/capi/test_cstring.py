"""C strings at addresses that may be stale."""

import ctypes
import mmap
import os
import sys

import pytest

from gpusense._capi import cstring

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/mem")


def place(text):
    buffer = ctypes.create_string_buffer(text)
    return buffer, ctypes.addressof(buffer)


NOTHING = {"without_file": lambda: None}
WAYS = [{}, {"path": "/nowhere"}, {"path": "/nowhere", **NOTHING}]


@pytest.mark.parametrize("way", WAYS, ids=["file", "system call", "memory"])
@pytest.mark.parametrize("text", [b"", b"axpy", b"\xff\xfe not UTF-8", b"x" * 255, b"x" * 256, b"x" * 5000])
def test_strings_are_read_to_their_end(way, text):
    reader = cstring.StringReader(**way)
    _keep, address = place(text)
    assert reader.read(address) == text
    assert reader.read(0) == b""


@needs_proc
def test_what_is_too_long_is_cut():
    _keep, address = place(b"y" * 100_000)
    assert cstring.read(address) == b"y" * cstring.MAX_BYTES


@needs_proc
@pytest.mark.parametrize("way", WAYS[:2], ids=["file", "system call"])
def test_a_string_that_runs_into_unmapped_memory_ends_there(way):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    base = libc.mmap(None, 3 * 4096, 3, 0x22, -1, 0)  # read and write; private and anonymous
    ctypes.memmove(base + 4090, b"abcdef", 6)
    assert libc.munmap(base + 4096, 4096) == 0
    reader = cstring.StringReader(**way)
    assert reader.read(base + 4090) == b"abcdef"
    assert reader.read(base + 4096) == b""
    assert reader.safe
    assert not cstring.StringReader("/nowhere", **NOTHING).safe


@needs_proc
def test_a_stale_address_is_survived_where_no_descriptor_is_left(run_python):
    """It was read straight from memory then, which ended the process."""
    done = run_python("""
import resource
from gpusense._capi import cstring
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print(cstring.read(0x10), cstring.StringReader().safe)
""")
    assert (done.returncode, done.stdout) == (0, "b'' True\n")


@needs_proc
def test_a_descriptor_that_the_program_closed_is_not_read(tmp_path):
    """A file that had got its number was read instead, at the place the address happens to be."""
    reader = cstring.StringReader()
    _keep, address = place(b"axpy")
    assert reader.read(address) == b"axpy"
    descriptor = reader._file
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    os.dup2(own, descriptor)
    assert reader.read(address) == b"axpy"
    for one in (own, descriptor, reader._file):
        os.close(one)


@needs_proc
def test_a_glance_sees_that_a_text_has_changed():
    long = b"n" * 9000
    _kept, addresses = zip(*map(place, [b"saxpy", long, b"k"]), strict=True)
    texts = {address: cstring.read(address) for address in addresses}
    same = cstring.Glance({**texts, 0: b"", 2**63: b"x"})
    assert same()
    for at, new, is_same in [
        (0, b"saxpz\0", False),
        (0, b"saxp\0", False),
        (0, b"saxpy\0", True),
        (2, b"m\0", False),
        (2, b"k\0", True),
        (1, b"m", False),
    ]:
        ctypes.memmove(addresses[at], new, len(new))
        assert same() is is_same
    assert cstring.Glance({})()


@needs_proc
def test_a_glance_survives_texts_that_are_gone_and_very_many():
    room = mmap.mmap(-1, 1 << 20)
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    texts = {base + 16 * number: b"kernel_%d" % number for number in range(3000)}
    for address, text in texts.items():
        ctypes.memmove(address, text + b"\0", len(text) + 1)
    assert cstring.Glance(texts)()
    ctypes.memmove(base + 16 * 2999, b"x", 1)
    assert not cstring.Glance(texts)()
    assert not cstring.Glance({0x10: b"gone"})()


def test_where_the_system_allows_no_glance_texts_are_believed(monkeypatch):
    monkeypatch.setattr(cstring, "_process_vm_readv", lambda: None)
    assert cstring.Glance({0x10: b"gone"})()
