"""Memory that outlives the interpreter, and machine code in it. Mapped with libc, never unmapped."""

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..._runtime import threads
from ..binding import bind, prototypes

PAGE = 4096

#: Ways to executable memory, the better one first.
MODES = ("memfd", "mprotect")

_LIBC = prototypes(
    mmap=(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    mprotect=(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    madvise=(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
)
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE, _MAP_ANONYMOUS = 0x02, 0x20
_MFD_CLOEXEC, _MFD_EXEC = 1, 0x10
_FAILED = ctypes.c_void_p(-1).value


class Code(NamedTuple):
    """Machine code for one processor, at most a page of it."""

    machine: bytes
    assembly: str  # the complete source, for ``as``, ``llvm-mc`` or ``clang``
    entries: Mapping[str, int]  # where each function begins


class Mapped(NamedTuple):
    """Where an image lies, in which of :data:`MODES`, and why in no better one ("" where there is none)."""

    address: int
    mode: str
    reason: str


def libc() -> Any:
    """The functions of the C library that are used here."""
    return bind(ctypes.CDLL(None), _LIBC)


def libc_address(name: str) -> int:
    """Where a function of the C library begins."""
    return ctypes.cast(ctypes.CDLL(None)[name], ctypes.c_void_p).value or 0


def native(codes: Mapping[str, Code]) -> Code | None:
    """The code for this processor and system; None where none is written."""
    return codes.get(os.uname().machine) if sys.platform == "linux" and sys.maxsize > 2**32 else None


def map_memory(size: int, flags: int = 0) -> int:
    """Address of ``size`` zero bytes. Raises ``OSError`` where there is no room."""
    protection, kind = _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS | flags
    address = libc().mmap(None, size, protection, kind, -1, 0)
    if address in (None, _FAILED):
        raise OSError(f"cannot map {size} bytes for the buffers of CUPTI")
    return int(address)


def thread_distance(entry: int) -> int:
    """What ``threading.get_ident()`` is above the thread pointer that the function at ``entry`` gives: nothing with
    glibc on x86-64, and always the same elsewhere."""
    return threads.thread_id()() - int(ctypes.PYFUNCTYPE(ctypes.c_uint64)(entry)())


def map_first(image: bytes, modes: Sequence[str] = MODES) -> Mapped:
    """``image`` mapped in the first way that the system allows; ``OSError`` with every reason where none is."""
    reasons: list[str] = []
    for mode in modes:
        try:
            return Mapped(map_code(image, mode), mode, "; ".join(reasons))
        except (OSError, AttributeError) as error:  # noqa: PERF203 - AttributeError: Python without memfd_create
            reasons.append(f"{mode}: {error}")
    raise OSError("; ".join(reasons) or "switched off")


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
