"""Shared objects (ELF, 64 bit) as bytes: the one that CUDA loads when it starts, the code of :mod:`start_code` and what
the loader needs to give it its addresses; and one of variables, which others find by name. Pure: no library is called.

Every symbol that the first one asks for is weak, so that it loads into any process, with Python or without.
"""

import struct
from collections.abc import Sequence

from . import start_code

ENTRY = "InitializeInjection"
#: In the file and in memory alike. Pages of 64 KiB, the largest that Linux has.
TEXT, DATA = 0x1000, 0x1000 + start_code.DATA
_SCRIPT, _END, _PAGE = TEXT + start_code.SCRIPT, DATA + 0x1000, 0x10000
_DYNAMIC, _NOTE = DATA + 0x100, DATA + start_code.NOTE
MOST_SCRIPT_BYTES, MOST_NOTE_BYTES = DATA - _SCRIPT - 1, _END - _NOTE - 1

#: Number of the processor, and of the relocation that writes a symbol's address.
_MACHINES = {"x86_64": (62, 6), "aarch64": (183, 1025)}
_LOAD, _DYNAMIC_SEGMENT, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _RUN = 4, 2, 1
_HASH, _STRINGS, _SYMBOLS, _RELOCATIONS = 4, 5, 6, 7  # entries of the dynamic section
_RELOCATION_BYTES, _RELOCATION_SIZE, _STRING_BYTES, _SYMBOL_SIZE = 8, 9, 10, 11
_GLOBAL_FUNCTION, _GLOBAL_OBJECT, _WEAK = 0x12, 0x11, 0x20
#: Where the dynamic section of an object of variables lies.
_VARIABLES = 0x100


def start_object(machine: str, script: str, note: str) -> bytes | None:
    """The file for ``machine`` (as ``os.uname`` names it); None where there is no code for it.

    Its entry has Python run ``script``. In a process without Python a new file at ``note``, a path that ends with
    ``XXXXXX``, gets a line with the number and the name of the process; none where it is "". Raises ``ValueError``
    where one is too long.
    """
    if machine not in _MACHINES:
        return None
    source, path = script.encode(), note.encode("utf-8", "surrogateescape")
    if len(source) > MOST_SCRIPT_BYTES or len(path) > MOST_NOTE_BYTES or b"\0" in source + path:
        raise ValueError("the script or the path of the note is too long")
    image = bytearray(_END)

    def put(at: int, data: bytes) -> int:
        image[at : at + len(data)] = data
        return at + len(data)

    put(TEXT, start_code.CODES[machine].machine)
    put(_SCRIPT, source)
    put(_NOTE, path)
    names = (ENTRY, *start_code.SYMBOLS)
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    places = [strings.index(b"\0" + name.encode() + b"\0") + 1 for name in names]
    tables = _align(put(0x200, _hash(len(names) + 1)))
    symbols = tables
    tables = _align(put(symbols, _symbols(places)))
    relocations = tables
    tables = _align(put(relocations, _relocations(_MACHINES[machine][1])))
    put(tables, strings)
    rows = (
        (_HASH, 0x200),
        (_STRINGS, tables),
        (_STRING_BYTES, len(strings)),
        (_SYMBOLS, symbols),
        (_SYMBOL_SIZE, 24),
        (_RELOCATIONS, relocations),
        (_RELOCATION_BYTES, 24 * len(start_code.SYMBOLS)),
        (_RELOCATION_SIZE, 24),
        (0, 0),
    )
    put(_DYNAMIC, b"".join(struct.pack("<QQ", *row) for row in rows))
    segments = (
        _segment(_LOAD, _READ | _RUN, 0, DATA, _PAGE),
        _segment(_LOAD, _READ | _WRITE, DATA, _END - DATA, _PAGE),
        _segment(_DYNAMIC_SEGMENT, _READ | _WRITE, _DYNAMIC, 16 * len(rows), 8),
        _segment(_STACK, _READ | _WRITE, 0, 0, 16),
    )
    put(0, _head(machine, segments))
    return bytes(image)


def data_object(machine: str, names: Sequence[str], size: int) -> bytes | None:
    """A file that defines a variable of ``size`` zero bytes under each name, for whoever loads it to fill in.

    None where the loader of ``machine`` is not known.
    """
    if machine not in _MACHINES:
        return None
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    places = [strings.index(b"\0" + name.encode() + b"\0") + 1 for name in names]
    hashes = 0x200
    symbols = _align(hashes + len(_hash(len(names) + 1)))
    data = _align(symbols + 24 * (len(names) + 1) + len(strings))
    rows = (
        (_HASH, hashes),
        (_STRINGS, symbols + 24 * (len(names) + 1)),
        (_STRING_BYTES, len(strings)),
        (_SYMBOLS, symbols),
        (_SYMBOL_SIZE, 24),
        (0, 0),
    )
    end = data + size * len(names)
    segments = (
        _segment(_LOAD, _READ | _WRITE, 0, end, _PAGE),
        _segment(_DYNAMIC_SEGMENT, _READ | _WRITE, _VARIABLES, 16 * len(rows), 8),
        _segment(_STACK, _READ | _WRITE, 0, 0, 16),
    )
    image = bytearray(end)
    variables = [
        struct.pack("<IBBHQQ", place, _GLOBAL_OBJECT, 0, 1, data + size * n, size) for n, place in enumerate(places)
    ]
    for at, part in (
        (0, _head(machine, segments)),
        (_VARIABLES, b"".join(struct.pack("<QQ", *row) for row in rows)),
        (hashes, _hash(len(names) + 1)),
        (symbols, bytes(24) + b"".join(variables) + strings),
    ):
        image[at : at + len(part)] = part
    return bytes(image)


def _head(machine: str, segments: Sequence[bytes]) -> bytes:
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, _MACHINES[machine][0], 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    return head + b"".join(segments)


def _align(at: int) -> int:
    return at + -at % 8


def _segment(kind: int, flags: int, at: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)


def _hash(symbols: int) -> bytes:
    """One bucket, in which every symbol follows the one before."""
    return struct.pack(f"<{3 + symbols}I", 1, symbols, 1, *((n + 1) % symbols if n else 0 for n in range(symbols)))


def _symbols(names: Sequence[int]) -> bytes:
    entry, *missing = names
    found = [bytes(24), struct.pack("<IBBHQQ", entry, _GLOBAL_FUNCTION, 0, 1, TEXT, 0)]
    return b"".join([*found, *(struct.pack("<IBBHQQ", name, _WEAK, 0, 0, 0, 0) for name in missing)])


def _relocations(kind: int) -> bytes:
    """The address of the n-th of SYMBOLS goes to the n-th place of the data."""
    count = range(len(start_code.SYMBOLS))
    return b"".join(struct.pack("<QQq", DATA + 8 * n, (n + 2) << 32 | kind, 0) for n in count)
