"""Memory that outlives the interpreter, and machine code in it. Mapped with libc, never unmapped."""

import ctypes
import os
import sys
from typing import Any

from ..binding import bind, prototypes

PAGE = 4096

_LIBC = prototypes(
    mmap=(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    mprotect=(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    madvise=(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
)
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE, _MAP_ANONYMOUS = 0x02, 0x20
_MFD_CLOEXEC, _MFD_EXEC = 1, 0x10
_FAILED = ctypes.c_void_p(-1).value


def libc() -> Any:
    return bind(ctypes.CDLL(None), _LIBC)


def libc_address(name: str) -> int:
    """Where a function of the C library begins."""
    return ctypes.cast(ctypes.CDLL(None)[name], ctypes.c_void_p).value or 0


def is_possible() -> bool:
    """Whether machine code is written for this system at all."""
    return sys.platform == "linux" and sys.maxsize > 2**32


def map_memory(size: int, flags: int = 0) -> int:
    """Address of ``size`` zero bytes. Raises ``OSError`` where there is no room."""
    protection, kind = _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS | flags
    address = libc().mmap(None, size, protection, kind, -1, 0)
    if address in (None, _FAILED):
        raise OSError(f"cannot map {size} bytes for the buffers of CUPTI")
    return int(address)


def map_code(image: bytes, mode: str) -> int:
    """Address of ``image``, at most a page, readable and executable. ``mode``: "memfd", or "mprotect" where that is
    refused. Raises ``OSError`` where the system does not allow it."""
    address = _map_memfd(image) if mode == "memfd" else _map_protected(image)
    _flush_instruction_cache(address, len(image))
    return address


def _map_memfd(image: bytes) -> int:
    try:
        handle = os.memfd_create("gpusense", _MFD_CLOEXEC | _MFD_EXEC)
    except OSError:  # Linux before 6.3 does not know the flag and needs none
        handle = os.memfd_create("gpusense", _MFD_CLOEXEC)
    try:
        os.write(handle, image)
        address = libc().mmap(None, PAGE, _PROT_READ | _PROT_EXEC, _MAP_PRIVATE, handle, 0)
    finally:
        os.close(handle)
    if address in (None, _FAILED):
        raise OSError("executable mapping refused")
    return int(address)


def _map_protected(image: bytes) -> int:
    address = map_memory(PAGE)
    ctypes.memmove(address, image, len(image))
    if libc().mprotect(address, PAGE, _PROT_READ | _PROT_EXEC) != 0:
        raise OSError("executable memory refused")
    return address


def _flush_instruction_cache(address: int, size: int) -> None:
    """Where data and instructions have separate caches: the compiler's helper knows how; without it the kernel's own
    flush at the first executable mapping of a fresh page has to do.
    """
    if os.uname().machine != "aarch64":
        return
    try:
        flush = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    except (OSError, AttributeError):
        return
    flush.restype = None
    flush.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    flush(address, address + size)
