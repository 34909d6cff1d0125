"""The session file: append-only chunks that survive a crash, a full disk and damage. Writer and reader, no meaning.

The byte layout is documented in ``docs/reference/session-format.md``. The header of a chunk has its own checksum, so a
length can be trusted before the payload is read: damage inside a payload costs that chunk, damage in a header costs the
way to the next marker on the 8-byte grid, and reading stays linear in the size of the file whatever it contains.
"""

import os
import stat
import struct
import time
import zlib
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from ._errors import SessionError
from ._json import block_text, dumps, encode, loads, plain
from ._records import BlockRecord, Record

MAGIC = b"\x89GPUSNS\n"
MAJOR, MINOR = 1, 2
MARKER = b"\xf5gsC"
FILE_HEADER = struct.Struct("<8sHHI")  # magic, major, minor, crc32 of the twelve bytes before
HEADER = struct.Struct("<4sHHIIQI")  # marker, type, flags, stored length, length, sequence, crc32 of the stored payload
HEADER_SIZE = HEADER.size + 4  # and the crc32 of those 28 bytes
COMPRESSED = 1
#: Of a payload, before and after compression: a full activity buffer of the largest size, with its head, and with what
#: zlib adds to bytes that cannot be compressed.
MAX_CHUNK_BYTES = (64 << 20) + (64 << 10)
DEFAULT_MAX_BYTES = 1 << 30
ROWS_PER_CHUNK = 4096
_MAX_SENTENCES = 100
#: Compressing gives the GIL up and has to get it back, which a busy program feels: what is written beside a buffer is
#: only compressed where that makes a difference to the size of the file.
_WORTH_COMPRESSING, _WORTH_BESIDE = 128, 8 << 10
_IN_ONE_CALL = 1 << 20  # bytes that are copied in order to be compressed in one call
_KEEPS_GIL = 5 << 10  # bytes up to which zlib takes a checksum without giving the GIL up

META, NAME, LAYOUT, BUFFER, BOUNDARY, RECORDS, AGGREGATES, DEVICES, METRICS, COUNTERS, UNSEEN, BUSY, END, LINES = range(
    1, 15
)
#: Types whose number grows with the work recorded; they stop at the size cap, the others are always written.
BULK = frozenset({NAME, BUFFER, BOUNDARY, RECORDS, METRICS, LINES})
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
}
_NAME_ENTRY = struct.Struct("<QI")
_BUFFER_HEAD = struct.Struct("<QII")  # thread, layout id, reserved


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
        while position + _NAME_ENTRY.size <= len(payload):
            pointer, length = _NAME_ENTRY.unpack_from(payload, position)
            position += _NAME_ENTRY.size
            if position + length > len(payload):
                break
            found[pointer] = payload[position : position + length]
            position += length
        return found

    def buffer(self) -> "ActivityBuffer":
        """What a BUFFER chunk holds; ``ValueError`` if it is too short."""
        if len(self.payload) < _BUFFER_HEAD.size:
            raise ValueError(f"a buffer chunk of {len(self.payload)} bytes")
        thread, layout, _ = _BUFFER_HEAD.unpack_from(self.payload)
        return ActivityBuffer(thread, layout, memoryview(self.payload)[_BUFFER_HEAD.size :])


class ActivityBuffer(NamedTuple):
    """Raw activity records. ``thread`` asked for the buffer (0: unknown); ``layout`` is the id of a LAYOUT chunk."""

    thread: int
    layout: int
    data: memoryview


class Writer:
    """Appends chunks to a new file of mode 0600. Any thread may append; each chunk is one write.

    Only opening raises (``SessionError``). Afterwards nothing does: on a full disk or an I/O error writing ends,
    ``failure`` says why, and ``bytes_dropped`` counts the payload that was not stored. Once the file has grown to
    ``max_bytes`` the bulk types are dropped and counted likewise; the small ones are still written. A forked child
    writes nothing.
    """

    def __init__(
        self,
        path: "str | os.PathLike[str]",
        *,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = os.path.abspath(path)  # the program may change its folder
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.bytes_dropped = 0
        self.capped_at_ns: int | None = None
        self.failure: str | None = None
        self._clock = clock
        self._lock = allocate_lock()
        self._pid = os.getpid()
        self._sequence = 0
        self._held: list[bytes] = []  # chunks that go with the next one, in one write
        self._held_length = 0
        self._fd: int | None = _create(os.fspath(path))
        self._identity = _identity(self._fd)
        head = FILE_HEADER.pack(MAGIC, MAJOR, MINOR, 0)[:12]
        self._write(head + zlib.crc32(head).to_bytes(4, "little"))

    def append(self, kind: int, *parts: "bytes | memoryview", compress: bool = True, hold: bool = False) -> bool:
        """Whether a chunk with the concatenated ``parts`` was written. Compression and writing release the GIL.

        With ``hold`` it is written with the next one: each return to Python makes a busy thread of the program wait.
        """
        length = sum(len(part) for part in parts)
        if self._refuses(kind, length):
            return False
        compress = compress and length > (_WORTH_BESIDE if hold else _WORTH_COMPRESSING)
        try:
            stored = _deflate(parts) if compress else b"".join(parts)
        except MemoryError:
            return self._drop(length)
        flags = COMPRESSED if compress else 0
        checksum = _checksum(stored)
        padding = bytes(-len(stored) % 8)
        with self._lock:
            if self._is_over(kind, HEADER_SIZE + len(stored) + len(padding) + sum(map(len, self._held))):
                self.bytes_dropped += length
                return False
            header = HEADER.pack(MARKER, kind, flags, len(stored), length, self._sequence, checksum)
            own = zlib.crc32(header).to_bytes(4, "little")
            self._held += (header, own, stored, padding)
            self._held_length += length
            self._sequence += 1
            return hold or self._write_held()

    def release(self) -> bool:
        """Writes what is held."""
        if self._refuses(0, 0):
            return False
        with self._lock:
            return not self._held or self._fd is None or self._write_held()

    def _write_held(self) -> bool:
        held, length = self._held, self._held_length
        self._held, self._held_length = [], 0
        if self._write(b"".join(held)):
            return True
        self._sequence -= len(held) // 4
        self.bytes_dropped += length
        return False

    def json(self, kind: int, value: Any) -> bool:
        return self.append(kind, dumps(plain(value)).encode("ascii"))

    def records(self, records: Sequence[Record]) -> bool:
        if not all(type(record) is BlockRecord for record in records):
            return self.rows(RECORDS, records)
        written = True  # a framework's modules make many of them
        for first in range(0, len(records), ROWS_PER_CHUNK):
            texts = ",".join([block_text(record) for record in records[first : first + ROWS_PER_CHUNK]])  # type: ignore[arg-type]
            written &= self.append(RECORDS, f"[{texts}]".encode("ascii"))
        return written

    def plain_rows(self, kind: int, rows: list[Any], hold: bool = False) -> bool:
        """As :meth:`rows`, for lists of numbers, text and None alone; ``hold`` as for :meth:`append`."""
        written = True
        for first in range(0, len(rows), ROWS_PER_CHUNK):
            written &= self.append(kind, dumps(rows[first : first + ROWS_PER_CHUNK]).encode("ascii"), hold=hold)
        return written

    def rows(self, kind: int, items: Iterable[Any]) -> bool:
        """NamedTuples or lists as chunks of JSON arrays; whether all were written."""
        written, rows = True, []
        for item in items:
            rows.append(encode(item) if hasattr(item, "_fields") else plain(item))
            if len(rows) == ROWS_PER_CHUNK:
                written &= self.append(kind, dumps(rows).encode("ascii"))
                rows = []
        return written & self.append(kind, dumps(rows).encode("ascii")) if rows else written

    def names(self, names: dict[int, bytes]) -> bool:
        """Kernel names by address; they hold for the buffers that follow, until an address is named again."""
        parts = [part for at, name in names.items() for part in (_NAME_ENTRY.pack(at, len(name)), name)]
        return self.append(NAME, *parts)

    def layout(self, identity: int, strides: dict[int, int], **facts: Any) -> bool:
        """How long a record of each kind is in the buffers that name ``identity``, and what else decoding needs."""
        return self.json(LAYOUT, {"id": identity, "strides": strides, **facts})

    def buffer(self, data: "bytes | memoryview", *, thread: int = 0, layout: int = 0) -> bool:
        return self.append(BUFFER, _BUFFER_HEAD.pack(thread & (1 << 64) - 1, layout, 0), data)

    def close(self, **facts: Any) -> None:
        """Writes the END chunk, with what was lost, and closes. A second call does nothing."""
        if self._fd is None or os.getpid() != self._pid:
            return
        end = {"bytes_dropped": self.bytes_dropped, "capped_at_ns": self.capped_at_ns, "max_bytes": self.max_bytes}
        failure, self.failure = self.failure, None  # a small chunk may still fit where a large one did not
        self.json(END, {"end_ns": self._clock(), **end, "failure": failure, **facts})
        with self._lock:
            self.failure = failure or self.failure
            fd, self._fd = self._fd, None
        try:
            if fd is not None:
                _released(fd)
                os.close(fd)
        except OSError as error:
            self.failure = self.failure or str(error)

    def _refuses(self, kind: int, length: int) -> bool:
        if os.getpid() != self._pid:  # first: the lock may be held for ever in a forked child
            return True
        if self._fd is None or self.failure or length > MAX_CHUNK_BYTES or (self.capped_at_ns and kind in BULK):
            self._drop(length)
            return True
        return False

    def _drop(self, length: int) -> bool:
        with self._lock:
            self.bytes_dropped += length
        return False

    def _is_over(self, kind: int, size: int) -> bool:
        if self._fd is None or self.failure:
            return True
        if self.max_bytes is None or kind not in BULK or self.size_bytes + size <= self.max_bytes:
            return False
        if self.capped_at_ns is None:
            self.capped_at_ns = self._clock()
        return True

    def _write(self, data: bytes) -> bool:
        assert self._fd is not None
        if _identity(self._fd) != self._identity:
            # Programs that become daemons close every descriptor, and a file of theirs may have this number now.
            self.failure, self._fd = f"the program closed its descriptor after {self.size_bytes} bytes", None
            return False
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self.failure = f"{error.strerror} after {self.size_bytes} bytes"
            self._undo()
            return False
        except BaseException:  # an interrupt between two halves of a chunk
            self._undo()
            raise
        self.size_bytes += len(data)
        return True

    def _undo(self) -> None:
        """Lets the file end with a whole chunk again, where it is a file."""
        assert self._fd is not None
        try:
            os.ftruncate(self._fd, self.size_bytes)
            os.lseek(self._fd, self.size_bytes, os.SEEK_SET)
        except OSError:
            pass


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
        self._file = _open_file(self.path)
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
            self.damage.append(f"{self._faults - _MAX_SENTENCES} more faults")

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

    def _headers(self, *, note: bool) -> Iterator[tuple[int, int, int, int, int, int, int]]:
        offset = FILE_HEADER.size
        while offset < self._size:
            header = self._read_header(offset)
            if header is None:
                found = self._next_marker(offset + 8)
                if note:
                    self._note_gap(offset, found)
                offset = found
                continue
            kind, flags, stored, length, sequence, checksum = header
            end = offset + HEADER_SIZE + stored
            if end > self._size:
                if note:
                    self._note(f"the file is cut inside the chunk {TYPES.get(kind, kind)} at offset {offset}")
                return
            yield offset, kind, flags, stored, length, sequence, checksum
            offset = end + -end % 8

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


def _open_file(path: str) -> BinaryIO:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SessionError(f"{path}: not a regular file")
        return open(path, "rb")
    except OSError as error:
        raise SessionError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise SessionError(f"{path!r}: {error}") from None


def _parse_header(raw: bytes) -> tuple[int, int, int, int, int, int] | None:
    if len(raw) < HEADER_SIZE or not raw.startswith(MARKER):
        return None
    if zlib.crc32(raw[: HEADER.size]) != int.from_bytes(raw[HEADER.size : HEADER_SIZE], "little"):
        return None
    _, kind, flags, stored, length, sequence, checksum = HEADER.unpack_from(raw)
    return kind, flags, stored, length, sequence, checksum


def _checksum(data: bytes) -> int:
    """The crc32; of what is not long without giving the GIL up."""
    if len(data) <= _KEEPS_GIL or len(data) > 16 * _KEEPS_GIL:
        return zlib.crc32(data)
    checksum, view = 0, memoryview(data)
    for begin in range(0, len(data), _KEEPS_GIL):
        checksum = zlib.crc32(view[begin : begin + _KEEPS_GIL], checksum)
    return checksum


def _deflate(parts: "Sequence[bytes | memoryview]") -> bytes:
    if sum(map(len, parts)) <= _IN_ONE_CALL:
        return zlib.compress(b"".join(parts), 1)
    stream = zlib.compressobj(1)
    pieces = [stream.compress(part) for part in parts]
    pieces.append(stream.flush())
    return b"".join(pieces)


def _inflate(data: bytes, length: int) -> bytes:
    """The decompressed bytes, at most one more than ``length``; empty where ``data`` is no zlib stream."""
    try:
        return zlib.decompressobj().decompress(data, length + 1)
    except zlib.error:
        return b""


def _identity(fd: int) -> tuple[int, int] | None:
    """What file a descriptor stands for; None for none."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _create(path: str) -> int:
    """A descriptor of an empty file that only its owner can read.

    A new file is made with O_EXCL, so nothing planted at the path between check and use is followed. An existing
    session or empty file of the user's choice is overwritten; what holds anything else, belongs to somebody else or is
    no regular file is refused.
    """
    flags = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        try:
            return _claimed(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), path)
        except FileExistsError:
            return _overwrite(path, flags)
    except OSError as error:
        raise SessionError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SessionError(f"{path!r}: {error}") from None


def _claimed(fd: int, path: str) -> int:
    """``fd``, which nobody else may write now: ranks that are given one path would overwrite each other's chunks."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise SessionError(f"{path}: another process is writing it; give each its own") from None
    except (ImportError, OSError):  # Windows, and file systems without locks
        pass
    return fd


def _released(fd: int) -> None:
    """Ends the claim also for forked children, which would keep it as long as they live."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)
    except (ImportError, OSError):
        pass


def _overwrite(path: str, flags: int) -> int:
    with _open_file(path) as file:
        head = file.read(len(MAGIC))
    if head and head != MAGIC:
        raise SessionError(f"{path}: exists and is not a gpusense session; not overwritten")
    fd = _claimed(os.open(path, flags), path)
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(fd, 0o600)
        os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd
