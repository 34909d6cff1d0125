"""Machine code on its way into memory: for which systems there is some, and in which ways it is mapped."""

import ctypes
import os
import platform
import sys
import types

import pytest

from gpusense._capi.machine import executable, mailbox_code

NATIVE = mailbox_code.CODES.get(platform.machine()) if sys.platform == "linux" else None
native = pytest.mark.skipif(NATIVE is None, reason="machine code is for Linux on x86-64 and aarch64")


@pytest.mark.parametrize(
    ("system", "size", "machine", "there"),
    [
        ("linux", 2**63 - 1, "x86_64", True),
        ("linux", 2**63 - 1, "aarch64", True),
        ("linux", 2**63 - 1, "riscv64", False),
        ("linux", 2**31 - 1, "x86_64", False),  # a 32-bit Python
        ("darwin", 2**63 - 1, "x86_64", False),
        ("win32", 2**63 - 1, "x86_64", False),
    ],
)
def test_code_is_for_some_systems(monkeypatch, system, size, machine, there):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(sys, "maxsize", size)
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine=machine), raising=False)
    found = executable.native(mailbox_code.CODES)
    assert (found is mailbox_code.CODES[machine]) if there else found is None


@native
@pytest.mark.parametrize("mode", executable.MODES)
def test_mapped_code_runs(mode):
    address, used, reason = executable.map_first(NATIVE.machine, (mode,))
    assert (used, reason) == (mode, "")
    call = ctypes.CFUNCTYPE(ctypes.c_uint64)(address + NATIVE.entries["thread"])
    assert call() == call() != 0


@native
def test_the_next_way_is_taken_with_the_reason_of_the_first(monkeypatch):
    def refuse(*_):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    assert executable.map_first(NATIVE.machine)[1:] == ("mprotect", "memfd: not here")
    monkeypatch.delattr(os, "memfd_create")  # a Python built without it
    assert executable.map_first(NATIVE.machine).reason.startswith("memfd: ")
    monkeypatch.setattr(executable, "_PROT_EXEC", 0x1000)  # the kernel answers EINVAL
    with pytest.raises(OSError, match=r"memfd: .*; mprotect: executable memory refused"):
        executable.map_first(NATIVE.machine)


def test_no_way_at_all_is_a_reason():
    with pytest.raises(OSError, match="switched off"):
        executable.map_first(b"", ())


@native
def test_memory_is_zero_and_refused_where_there_is_no_room():
    address = executable.map_memory(executable.PAGE)
    assert ctypes.string_at(address, executable.PAGE) == bytes(executable.PAGE)
    with pytest.raises(OSError, match="cannot map"):
        executable.map_memory(1 << 60)


@native
def test_a_function_of_the_c_library_has_an_address():
    pid = ctypes.CFUNCTYPE(ctypes.c_int)(executable.libc_address("getpid"))
    assert pid() == os.getpid()
