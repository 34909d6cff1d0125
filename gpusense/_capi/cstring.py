"""Reads C strings from addresses that may be stale, without risking the process."""

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from .._runtime import threads
from .._runtime.process import file_of

MAX_BYTES = 16 * 1024  # a mangled name of a heavily templated kernel; what is longer is cut
_PAGE = 4096
_VECTORS = 1024  # in one call


def _read_at() -> Any:
    """``pread`` with the GIL kept: it copies from memory, and in a busy program getting the GIL back costs far more."""
    try:
        function = ctypes.PyDLL(None)["pread64" if hasattr(ctypes.PyDLL(None), "pread64") else "pread"]
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = ctypes.c_ssize_t
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
    return function


def _identifier(file: int) -> Callable[[int], tuple[int, int] | None]:
    """As :func:`file_of`, with the GIL kept where that works with ``file``; see :func:`_read_at`."""
    try:
        function = ctypes.PyDLL(None).fstat
    except (OSError, AttributeError, TypeError):  # AttributeError: glibc has this function since 2.33
        return file_of
    function.argtypes = (ctypes.c_int, ctypes.c_void_p)
    room = ctypes.c_uint64 * 64  # more than any struct stat takes; they begin with st_dev and st_ino

    def identify(file: int) -> tuple[int, int] | None:
        found = room()
        return (found[0], found[1]) if function(file, found) == 0 else None

    return identify if identify(file) == file_of(file) else file_of


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@lru_cache(maxsize=1)
def _process_vm_readv() -> Any:
    """The system's function; None where it has or allows none."""
    try:
        function = ctypes.PyDLL(None)["process_vm_readv"]
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = ctypes.c_ssize_t
    vector = ctypes.POINTER(_Vector), ctypes.c_ulong
    function.argtypes = (ctypes.c_int, *vector, *vector, ctypes.c_ulong)
    known, room = ctypes.c_char(b"x"), ctypes.create_string_buffer(1)
    to, source = _Vector(ctypes.addressof(room), 1), _Vector(ctypes.addressof(known), 1)
    return function if function(os.getpid(), to, 1, source, 1, 0) == 1 else None


def _copy_from_process() -> Any:
    """What copies without a file; None where that cannot be done."""
    function = _process_vm_readv()

    def copy(size: int, pointer: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        to, source = _Vector(ctypes.addressof(buffer), size), _Vector(pointer, size)
        count = function(os.getpid(), to, 1, source, 1, 0)
        return buffer.raw[:count] if count > 0 else b""

    return copy if function is not None else None


class StringReader:
    """``read(pointer)`` → bytes up to the NUL. Through /proc/self/mem, where a bad address is an error and not a crash;
    where that file cannot be had (no /proc, no descriptor left), through a system call; where that is not allowed
    either, straight from memory.
    """

    def __init__(self, path: str = "/proc/self/mem", without_file: Callable[[], Any] = _copy_from_process) -> None:
        self._lock = threads.lock()
        self._pid = 0
        self._path = path
        self._file = -1
        self._identity: tuple[int, int] | None = None
        self._read_at = _read_at()
        self._identify: Callable[[int], tuple[int, int] | None] = file_of
        self._find_other = without_file
        self._other: Any = None

    @property
    def safe(self) -> bool:
        """Whether a bad address is survived."""
        return self._open() >= 0 or self._other is not None

    def read(self, pointer: int) -> bytes:
        """The string at ``pointer``; empty for NULL and, where that can be told, for an address that is not mapped."""
        if not 0 < pointer < 1 << 63:
            return b""
        file = self._open()
        if file < 0 and self._other is None:
            return ctypes.string_at(pointer)
        found = b""
        while len(found) < MAX_BYTES:
            # Never across a page: the next one may not be mapped.
            size = min(_PAGE - pointer % _PAGE, 256)
            part = self._copy(file, size, pointer) if file >= 0 else self._other(size, pointer)
            text, end, _ = part.partition(b"\0")
            found += text
            if end or not part:
                return found
            pointer += len(part)
        return found[:MAX_BYTES]

    def _copy(self, file: int, size: int, pointer: int) -> bytes:
        if self._read_at is None:
            try:
                return os.pread(file, size, pointer)
            except OSError:
                return b""
        buffer = ctypes.create_string_buffer(size)
        count = self._read_at(file, buffer, size, pointer)
        return buffer.raw[:count] if count > 0 else b""

    def _open(self) -> int:
        """The file of this process: a descriptor that a fork inherited shows the parent's memory, and one that the
        program closed may stand for a file of its own."""
        if self._pid != os.getpid() or (self._file >= 0 and self._identify(self._file) != self._identity):
            with self._lock:
                if self._pid != os.getpid() or self._identify(self._file) != self._identity:
                    try:
                        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                        os.pread(self._file, 1, ctypes.addressof(ctypes.c_char(b"x")))
                    except (OSError, AttributeError):
                        self._file = -1
                    self._identify = _identifier(self._file)
                    self._identity = self._identify(self._file)
                    if self._file < 0:
                        self._other = self._find_other()
                    self._pid = os.getpid()
        return self._file


class Glance:
    """Called, it says whether ``texts`` are still at their addresses, as far as each lies in the page in which it
    begins. One system call for all of them; where the system has or allows none, it says so of any."""

    __slots__ = ("_parts",)

    def __init__(self, texts: Mapping[int, bytes]) -> None:
        rows = [(at, (text + b"\0")[: _PAGE - at % _PAGE]) for at, text in texts.items() if text and 0 < at < 1 << 63]
        self._parts = [self._part(rows[first : first + _VECTORS]) for first in range(0, len(rows), _VECTORS)]

    def _part(self, rows: list[tuple[int, bytes]]) -> tuple[bytes, Any, Any, Any, int]:
        wanted = b"".join([text for _, text in rows])
        room = ctypes.create_string_buffer(len(wanted))
        source = (_Vector * len(rows))(*[_Vector(at, len(text)) for at, text in rows])
        return wanted, room, _Vector(ctypes.addressof(room), len(wanted)), source, len(rows)

    def __call__(self) -> bool:
        function = _process_vm_readv()
        if function is None:
            return True
        for wanted, room, to, source, count in self._parts:
            got = function(os.getpid(), to, 1, source, count, 0)
            if got != len(wanted) or room.raw != wanted:
                return False
        return True


read = StringReader().read
