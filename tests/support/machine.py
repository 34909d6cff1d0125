"""What tests need of the machine: compilers, assemblers. Skipped elsewhere, a failure in CI."""

import importlib.util
import os
import pathlib
import platform
import shutil
import struct
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parents[1]
ROOT = HERE.parent
FAKES = HERE / "fakes"


def require(condition: object, what: str) -> None:
    """Skips on a developer's machine, fails in CI: a test skipped everywhere is a failure."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must have {what}")
    pytest.skip(f"needs {what}")


def skip_without(library: str) -> None:
    """Skips where a child cannot import ``library``. Not imported here: some change the process that imports them."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")


def find_compiler() -> list[str] | None:
    """The command that compiles C here: ``$CC``, cc, gcc, clang, or the one in the ziglang wheel."""
    if os.environ.get("CC"):
        return os.environ["CC"].split()
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return [path]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return None
    return [sys.executable, "-m", "ziglang", "cc"]


NATIVE = platform.machine() if sys.platform == "linux" else None


def assembler(machine: str) -> list[str] | None:
    """A command that assembles for ``machine``: binutils, LLVM, or the clang in the ziglang wheel."""
    names = [f"{machine}-linux-gnu-as", *(["as"] if machine == NATIVE else [])]
    for path in filter(None, map(shutil.which, names)):
        return [path]
    if shutil.which("llvm-mc"):
        return ["llvm-mc", "-filetype=obj", f"-triple={machine}-linux-gnu"]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return None
    return [sys.executable, "-m", "ziglang", "cc", "-c", "-target", f"{machine}-linux-gnu"]


def built_for(machine: str, compiler: list[str]) -> tuple[list[str], list[str]]:
    """What builds a C program for ``machine``, and what runs it: an emulator for another machine's; skips without."""
    if machine == NATIVE:
        return compiler, []
    emulator, cross = shutil.which(f"qemu-{machine}"), shutil.which(f"{machine}-linux-gnu-gcc")
    if sys.platform != "linux" or emulator is None or cross is None:
        pytest.skip(f"needs qemu-user and a cross compiler for {machine}")  # in CI, too: the native one must run
    return [cross, "-static"], [emulator]


def assembled(machine: str, assembly: str, folder: pathlib.Path) -> tuple[bytes, dict[str, int]]:
    """The code and the symbols that ``assembly`` becomes."""
    command = assembler(machine)
    require(command, f"an assembler for {machine}")
    assert command is not None
    source, target = folder / "code.s", folder / "code.o"
    source.write_text(assembly)
    subprocess.run([*command, "-o", str(target), str(source)], check=True, timeout=120)
    return text_and_symbols(target)


def text_and_symbols(path: pathlib.Path) -> tuple[bytes, dict[str, int]]:
    """The .text section and the symbols of a 64-bit ELF object."""
    raw = path.read_bytes()
    assert raw[:5] == b"\x7fELF\x02"
    (table,) = struct.unpack_from("<Q", raw, 40)
    size, count, names_at = struct.unpack_from("<HHH", raw, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", raw, table + size * i) for i in range(count)]

    def string(section, offset):
        begin = sections[section][4] + offset
        return raw[begin : raw.index(b"\0", begin)].decode()

    text, symbols = b"", {}
    for name, kind, _, _, offset, length, link, *_ in sections:
        if string(names_at, name) == ".text":
            text = raw[offset : offset + length]
        if kind == 2:
            for at in range(offset, offset + length, 24):
                number, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", raw, at)
                symbols[string(link, number)] = value
    return text, symbols


def warns_of_threads(version: tuple[int, ...]) -> bool:
    """Whether a fork of this Python warns of threads that were there, and not of those that its hooks start again.

    3.13.0 to 3.13.9 and 3.14.0 count after the hooks, so ending a thread for the fork does not help there.
    """
    return version >= (3, 12) and not (3, 13) <= version < (3, 13, 10) and version != (3, 14, 0)
