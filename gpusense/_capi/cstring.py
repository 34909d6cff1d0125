"""Reads C strings from addresses that may be stale, without risking the process."""

import ctypes
import os
import threading
from typing import Any

MAX_BYTES = 16 * 1024  # a mangled name of a heavily templated kernel; what is longer is cut
_PAGE = 4096


def _read_at() -> Any:
    """``pread`` with the GIL kept: it copies from memory, and in a busy program getting the GIL back costs far more."""
    try:
        function = ctypes.PyDLL(None)["pread64" if hasattr(ctypes.PyDLL(None), "pread64") else "pread"]
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = ctypes.c_ssize_t
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
    return function


class StringReader:
    """``read(pointer)`` → bytes up to the NUL. Through /proc/self/mem, where a bad address is an error and not a crash;
    where that file cannot be had, straight from memory.
    """

    def __init__(self, path: str = "/proc/self/mem") -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._path = path
        self._file = -1
        self._read_at = _read_at()

    @property
    def safe(self) -> bool:
        """Whether a bad address is survived."""
        return self._open() >= 0

    def read(self, pointer: int) -> bytes:
        """The string at ``pointer``; empty for NULL and, where that can be told, for an address that is not mapped."""
        if not 0 < pointer < 1 << 63:
            return b""
        file = self._open()
        if file < 0:
            return ctypes.string_at(pointer)
        found = b""
        while len(found) < MAX_BYTES:
            # Never across a page: the next one may not be mapped.
            size = min(_PAGE - pointer % _PAGE, 256)
            part = self._copy(file, size, pointer)
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
        """The file of this process: a descriptor that a fork inherited shows the parent's memory."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    try:
                        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                        os.pread(self._file, 1, ctypes.addressof(ctypes.c_char(b"x")))
                    except (OSError, AttributeError):
                        self._file = -1
                    self._pid = os.getpid()
        return self._file


read = StringReader().read
