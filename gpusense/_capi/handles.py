"""What the operating system's loader knows: files mapped, handles of libraries already here, the path behind a handle.

Nothing here loads a library, and nothing starts a process.
"""

import ctypes
import os
import re
import sys
from typing import Any

_MACHINES = {3: "x86", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv", 21: "ppc64", 22: "s390"}


def mapped_files() -> list[str]:
    """Paths of the files mapped into this process; empty where the system has no such list."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            paths = {line.split(None, 5)[5].rstrip("\n") for line in lines if "/" in line}
    except OSError:
        return []
    return sorted(path.removesuffix(" (deleted)") for path in paths)


def already_loaded(name: str) -> ctypes.CDLL | None:
    """The library this process already has under ``name`` (a path or a bare name), else None."""
    if sys.platform == "win32":
        handle = ctypes.WinDLL("kernel32")["GetModuleHandleW"]
        handle.restype, handle.argtypes = ctypes.c_void_p, (ctypes.c_wchar_p,)
        module = handle(name)
        return ctypes.CDLL(name, handle=module) if module else None
    try:
        return ctypes.CDLL(name, mode=ctypes.DEFAULT_MODE | os.RTLD_NOLOAD)
    except (OSError, ValueError):
        return None


class _LinkMapHead(ctypes.Structure):
    """The two members every ``struct link_map`` begins with (link.h); the real one is longer, so never copy it."""

    _fields_ = (("l_addr", ctypes.c_void_p), ("l_name", ctypes.c_char_p))


_RTLD_DI_LINKMAP = 2


def path_of(library: ctypes.CDLL) -> str | None:
    """The file a handle was loaded from, as the loader itself names it; None where it does not say."""
    if sys.platform == "win32":
        text = ctypes.create_unicode_buffer(32768)
        call = ctypes.WinDLL("kernel32")["GetModuleFileNameW"]
        call.restype, call.argtypes = ctypes.c_uint32, (ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_uint32)
        return text.value if call(library._handle, text, len(text)) else None
    try:
        dlinfo: Any = ctypes.CDLL(None)["dlinfo"]
    except (AttributeError, OSError):  # macOS has none
        return None
    dlinfo.restype, dlinfo.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    link_map = ctypes.c_void_p()
    if dlinfo(library._handle, _RTLD_DI_LINKMAP, ctypes.byref(link_map)) != 0 or link_map.value is None:
        return None
    name = _LinkMapHead.from_address(link_map.value).l_name
    return os.fsdecode(name) if name else None


def loader_folders(environ: "os._Environ[str] | dict[str, str]", platform: str) -> list[str]:
    """Folders in which a bare name is looked up, without those that only the loader's cache knows."""
    if platform == "win32":
        root = environ.get("SystemRoot")
        return [os.path.join(root, "System32")] if root else []
    variable = "DYLD_LIBRARY_PATH" if platform == "darwin" else "LD_LIBRARY_PATH"
    named = [folder for folder in environ.get(variable, "").split(os.pathsep) if os.path.isabs(folder)]
    return [*named, "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"]


def cached_path(name: str, cache: str = "/etc/ld.so.cache") -> list[str]:
    """Paths that the dynamic loader's cache has for a bare name.

    Its string table holds each path whole and NUL-terminated, which is all that is read of it.
    """
    try:
        with open(cache, "rb") as file:
            data = file.read()
    except OSError:
        return []
    found = re.findall(rb"(/[^\0\n]*/" + re.escape(os.fsencode(name)) + rb")\0", data)
    return [os.fsdecode(path) for path in dict.fromkeys(found)]


def unfit(path: str) -> str | None:
    """Why the file at ``path`` cannot be a library of this process; None if nothing speaks against it.

    Looks at the first bytes, because glibc reports a library of another architecture as a missing file.
    """
    try:
        if os.path.isdir(path):
            return "is a folder, not a library"
        with open(path, "rb") as file:
            head = file.read(20)
        own = _own_head()
    except FileNotFoundError:
        return "no such file"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    if own is None:
        return None
    if head[:4] != b"\x7fELF" or len(head) < 20:
        return "is not a shared library"
    if (head[4:6], head[18:20]) != (own[4:6], own[18:20]):
        return f"is built for {_machine(head)}, this process is {_machine(own)}"
    return None


def _own_head() -> bytes | None:
    """The first bytes of the running program, or None where programs are not ELF files."""
    try:
        with open("/proc/self/exe", "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    return head if head[:4] == b"\x7fELF" else None


def _machine(head: bytes) -> str:
    order = "big" if head[5] == 2 else "little"
    number = int.from_bytes(head[18:20], order)  # type: ignore[arg-type]
    return f"{_MACHINES.get(number, f'machine {number}')} ({'64' if head[4] == 2 else '32'} bit)"
