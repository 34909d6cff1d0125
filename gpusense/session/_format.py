"""The session file: append-only chunks that survive a crash, a full disk and damage. The format and its reader, which
knows no meaning; :mod:`_writer` writes.

The byte layout is documented in ``docs/reference/session-format.md``. The header of a chunk has its own checksum, so a
length can be trusted before the payload is read: damage inside a payload costs that chunk, damage in a header costs the
way to the next marker on the 8-byte grid, and reading stays linear in the size of the file whatever it contains.
"""

import os
import stat
import struct
import zlib
from collections.abc import Container, Iterator
from typing import Any, BinaryIO, NamedTuple

from .._records.json_codec import loads
from .._runtime.errors import SessionError
from .._runtime.text import count_text, decoded

MAGIC = b"\x89GPUSNS\n"
MAJOR, MINOR = 1, 6
MARKER = b"\xf5gsC"
FILE_HEADER = struct.Struct("<8sHHI")  # magic, major, minor, crc32 of the twelve bytes before
HEADER = struct.Struct("<4sHHIIQI")  # marker, type, flags, stored length, length, sequence, crc32 of the stored payload
HEADER_SIZE = HEADER.size + 4  # and the crc32 of those 28 bytes
COMPRESSED = 1
#: Of a payload, before and after compression: a full activity buffer of the largest size, with its head, and with what
#: zlib adds to bytes that cannot be compressed.
MAX_CHUNK_BYTES = (64 << 20) + (64 << 10)
_MAX_SENTENCES = 100

(
    META, NAME, LAYOUT, BUFFER, BOUNDARY, RECORDS, AGGREGATES, DEVICES, METRICS, COUNTERS, UNSEEN, BUSY, END, LINES,
    BLOCKS, WORK, SAMPLES,
) = range(1, 18)  # fmt: skip
#: Types whose number grows with the work recorded; they stop at the size cap, the others are always written.
BULK = frozenset({NAME, BUFFER, BOUNDARY, RECORDS, METRICS, LINES, BLOCKS, WORK, SAMPLES})
TYPES = {
    META: "META",
    NAME: "NAME",
    LAYOUT: "LAYOUT",
    BUFFER: "BUFFER",
    BOUNDARY: "BOUNDARY",
    RECORDS: "RECORDS",
    AGGREGATES: "AGGREGATES",
    DEVICES: "DEVICES",
    METRICS: "METRICS",
    COUNTERS: "COUNTERS",
    UNSEEN: "UNSEEN",
    BUSY: "BUSY",
    END: "END",
    LINES: "LINES",
    BLOCKS: "BLOCKS",
    WORK: "WORK",
    SAMPLES: "SAMPLES",
}
NAME_ENTRY = struct.Struct("<QI")
BUFFER_HEAD = struct.Struct("<QII")  # thread, layout id, reserved


class Chunk(NamedTuple):
    """One intact chunk. ``payload`` is decompressed; ``offset`` is where its header begins in the file."""

    type: int
    offset: int
    sequence: int
    payload: bytes

    def json(self) -> Any:
        """The value of a JSON chunk; ``ValueError`` if it is none."""
        return loads(self.payload)

    def names(self) -> dict[int, bytes]:
        """Kernel names by address, of a NAME chunk; what is cut off at its end is left out."""
        found, position, payload = {}, 0, self.payload
        while position + NAME_ENTRY.size <= len(payload):
            pointer, length = NAME_ENTRY.unpack_from(payload, position)
            position += NAME_ENTRY.size
            if position + length > len(payload):
                break
            found[pointer] = payload[position : position + length]
            position += length
        return found

    def buffer(self) -> "ActivityBuffer":
        """What a BUFFER chunk holds; ``ValueError`` if it is too short."""
        if len(self.payload) < BUFFER_HEAD.size:
            raise ValueError(f"a buffer chunk of {len(self.payload)} bytes")
        thread, layout, _ = BUFFER_HEAD.unpack_from(self.payload)
        return ActivityBuffer(thread, layout, memoryview(self.payload)[BUFFER_HEAD.size :])


class ActivityBuffer(NamedTuple):
    """Raw activity records. ``thread`` asked for the buffer (0: unknown); ``layout`` is the id of a LAYOUT chunk."""

    thread: int
    layout: int
    data: memoryview


class Reader:
    """Iterates the intact chunks of a file, in order; what is damaged or unknown becomes a sentence in ``damage``.

    Opening raises ``SessionError`` where the file is no session, of a later major version, or cannot be read. Memory is
    bounded by one chunk. ``complete`` is true once the END chunk was met: without one the program was killed, or is
    still running, and what it had written is whole all the same.
    """

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self.path = os.fspath(path)
        self.damage: list[str] = []
        self.complete = False
        self._faults = 0
        self._file = open_file(self.path)
        self._size = os.fstat(self._file.fileno()).st_size
        try:
            self.version, self._head_is_whole = self._check_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "Reader":  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def has(self, kind: int) -> bool:
        """Whether some chunk is of this type; looks at headers alone."""
        return any(found == kind for _, found, *_ in self._headers(note=False))

    def last(self, kind: int) -> Chunk | None:
        """The last chunk of this type that is whole; looks at headers alone until then."""
        places = [(at, *rest) for at, found, *rest in self._headers(note=False) if found == kind]
        for offset, flags, stored, length, sequence, checksum in reversed(places):
            payload = self._payload(offset, flags, stored, length, checksum)
            if payload is not None:
                return Chunk(kind, offset, sequence, payload)
        return None

    def __iter__(self) -> Iterator[Chunk]:
        self.damage.clear()
        self._faults = 0
        if not self._head_is_whole:
            self._note("the file header is damaged; its version is unknown")
        expected, faults = 0, 0
        for offset, kind, flags, stored, length, sequence, checksum in self._headers(note=True):
            if sequence != expected and faults == self._faults:
                self._note(f"chunks {expected} to {sequence - 1} are missing before offset {offset}")
            expected, faults = sequence + 1, self._faults
            if kind not in TYPES:
                self._note(f"a chunk of type {kind} at offset {offset} is unknown to this version and was skipped")
                continue
            payload = self._payload(offset, flags, stored, length, checksum)
            if payload is not None:
                self.complete = self.complete or kind == END
                yield Chunk(kind, offset, sequence, payload)
        if self._faults > _MAX_SENTENCES:
            self.damage.append(count_text(self._faults - _MAX_SENTENCES, "more fault"))

    def kernel_names(self) -> Iterator[str]:
        """As the driver gave them; of other chunks the headers alone are looked at."""
        for chunk, _ in self.begin_at(FILE_HEADER.size, (NAME,)):
            yield from map(decoded, chunk.names().values() if chunk is not None else ())

    def begin_at(self, offset: int, kinds: Container[int]) -> Iterator[tuple[Chunk | None, int]]:
        """The whole chunks from ``offset`` on, each with the offset behind it; None for one that is damaged or of none
        of ``kinds``. For a file that is still being written: what is not whole yet ends it."""
        for at, kind, flags, stored, length, sequence, checksum in self._headers(note=False, offset=offset):
            payload = self._payload(at, flags, stored, length, checksum) if kind in kinds else None
            yield Chunk(kind, at, sequence, payload) if payload is not None else None, _behind(at, stored)

    def end(self) -> tuple[int, int]:
        """Where one more chunk would begin, and its number; looks at headers alone."""
        offset, number = FILE_HEADER.size, 0
        for at, _, _, stored, _, sequence, _ in self._headers(note=False):
            offset, number = _behind(at, stored), sequence + 1
        return offset, number

    def _check_header(self) -> tuple[tuple[int, int], bool]:
        head = self._file.read(FILE_HEADER.size)
        if len(head) == FILE_HEADER.size:
            magic, major, minor, checksum = FILE_HEADER.unpack(head)
            if magic == MAGIC and zlib.crc32(head[:12]) == checksum:
                if major > MAJOR:
                    raise SessionError(
                        f"{self.path}: session format {major}.{minor}; this gpusense reads up to {MAJOR}.x"
                    )
                return (major, minor), True
        if not self._read_header(FILE_HEADER.size):
            raise SessionError(f"{self.path}: {'not a gpusense session file' if head else 'is empty'}")
        return (MAJOR, MINOR), False

    def _headers(
        self, *, note: bool, offset: int = FILE_HEADER.size
    ) -> Iterator[tuple[int, int, int, int, int, int, int]]:
        while offset < self._size:
            header = self._read_header(offset)
            if header is None:
                found = self._next_marker(offset + 8)
                if note:
                    self._note_gap(offset, found)
                offset = found
                continue
            kind, flags, stored, length, sequence, checksum = header
            if offset + HEADER_SIZE + stored > self._size:
                if note:
                    self._note(f"the file is cut inside the chunk {TYPES.get(kind, kind)} at offset {offset}")
                return
            yield offset, kind, flags, stored, length, sequence, checksum
            offset = _behind(offset, stored)

    def _read_header(self, offset: int) -> tuple[int, int, int, int, int, int] | None:
        self._file.seek(offset)
        return _parse_header(self._file.read(HEADER_SIZE))

    def _next_marker(self, offset: int) -> int:
        """Offset of the next intact header on the grid, or the size of the file."""
        step = 1 << 16
        while offset < self._size:
            self._file.seek(offset)
            block = self._file.read(step + HEADER_SIZE - 8)
            at = block.find(MARKER)
            while 0 <= at < step:
                if at % 8 == 0 and _parse_header(block[at : at + HEADER_SIZE]):
                    return offset + at
                at = block.find(MARKER, at + 1)
            offset += step
        return self._size

    def _payload(self, offset: int, flags: int, stored: int, length: int, checksum: int) -> bytes | None:
        if max(stored, length) > MAX_CHUNK_BYTES:
            self._note(f"the chunk at offset {offset} declares {max(stored, length)} bytes and was skipped")
            return None
        self._file.seek(offset + HEADER_SIZE)
        data = self._file.read(stored)
        if zlib.crc32(data) != checksum:
            self._note(f"the chunk at offset {offset} is damaged: {stored} bytes do not match their checksum")
            return None
        if flags & COMPRESSED:
            data = _inflate(data, length)
        if len(data) != length:
            self._note(f"the chunk at offset {offset} does not hold the {length} bytes it declares")
            return None
        return data

    def _note_gap(self, offset: int, found: int) -> None:
        if found < self._size:
            self._note(f"{found - offset} bytes at offset {offset} are damaged and were skipped")
        else:
            self._note(f"the last {self._size - offset} bytes, from offset {offset}, hold no whole chunk")

    def _note(self, sentence: str) -> None:
        self._faults += 1
        if self._faults <= _MAX_SENTENCES:
            self.damage.append(sentence)


def taken_apart(chunk: bytes) -> tuple[int, bytes]:
    """Type and payload of a chunk as it is written."""
    _, kind, flags, stored, *_ = HEADER.unpack_from(chunk)
    data = chunk[HEADER_SIZE : HEADER_SIZE + stored]
    return kind, zlib.decompress(data) if flags & COMPRESSED else data


def is_json(path: "str | os.PathLike[str]") -> bool:
    """Whether a file begins as JSON does. What cannot be read, or only once, is none."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as found:
            return found.read(64).lstrip().startswith(b"{")
    except OSError:
        return False


def open_file(path: str) -> BinaryIO:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SessionError(f"{path}: not a regular file")
        return open(path, "rb")
    except OSError as error:
        raise SessionError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise SessionError(f"{path!r}: {error}") from None


def _behind(offset: int, stored: int) -> int:
    """Where the chunk after that at ``offset`` begins."""
    end = offset + HEADER_SIZE + stored
    return end + -end % 8


def _parse_header(raw: bytes) -> tuple[int, int, int, int, int, int] | None:
    if len(raw) < HEADER_SIZE or not raw.startswith(MARKER):
        return None
    if zlib.crc32(raw[: HEADER.size]) != int.from_bytes(raw[HEADER.size : HEADER_SIZE], "little"):
        return None
    _, kind, flags, stored, length, sequence, checksum = HEADER.unpack_from(raw)
    return kind, flags, stored, length, sequence, checksum


def _inflate(data: bytes, length: int) -> bytes:
    """The decompressed bytes, at most one more than ``length``; empty where ``data`` is no zlib stream."""
    try:
        return zlib.decompressobj().decompress(data, length + 1)
    except zlib.error:
        return b""
