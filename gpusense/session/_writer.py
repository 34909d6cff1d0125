"""Writes session files; :mod:`_format` has the format and reads them."""

import os
import zlib
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._records.json_codec import block_text, dumps, encode, loads, plain
from .._records.records import BlockRecord, Record
from .._runtime.clock import now_ns
from .._runtime.errors import SessionError
from .._runtime.process import file_of
from .._runtime.text import size_text
from . import _format as file
from ._block_chunks import halves
from ._paths import claim, create, released

DEFAULT_MAX_BYTES = 1 << 30
ROWS_PER_CHUNK = 4096
#: Compressing gives the GIL up and has to get it back, which a busy program feels: what is written beside a buffer is
#: only compressed where that makes a difference to the size of the file.
_WORTH_COMPRESSING, _WORTH_BESIDE = 128, 8 << 10
_MOST_HELD = 1 << 20  # bytes in the file
_IN_ONE_CALL = 1 << 20  # bytes that are copied in order to be compressed in one call
_ROOM, _PLACES = 384, 32  # bytes that END needs, and the last chunks, in whose place it is where it does not fit
_KEEPS_GIL = 5 << 10  # bytes up to which zlib takes a checksum without giving the GIL up


class Writer:
    """Appends chunks to a new file of mode 0600. Any thread may append; each chunk is one write.

    Only opening raises (``SessionError``). Afterwards nothing does: on a full disk or an I/O error writing ends,
    ``failure`` says why, and ``bytes_dropped`` counts the payload that was not stored. Once the file has grown to
    ``max_bytes`` the bulk types are dropped and counted likewise; the small ones are still written. What is too long
    for a chunk is dropped, too, and also counted in ``bytes_too_long``. A forked child writes nothing. ``fd``: an empty
    file that is written instead of one at ``path``.
    """

    def __init__(
        self,
        path: "str | os.PathLike[str]",
        *,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        clock: Callable[[], int] = now_ns,
        fd: int | None = None,
    ) -> None:
        self.path = os.path.abspath(path)  # the program may change its folder
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.bytes_dropped = self.bytes_too_long = 0
        self.capped_at_ns: int | None = None
        self.failure: str | None = None
        self._why = ("", "")
        self._clock = clock
        self._lock = allocate_lock()
        self._pid = os.getpid()
        self._sequence = 0
        self._held: list[tuple[bytes, int]] = []  # chunks that go with the next one in one write, length of the payload
        self._held_bytes = 0
        self._last: deque[tuple[int, int]] = deque(maxlen=_PLACES)  # of chunks in the file, and lengths of payloads
        self._fd: int | None = create(os.fspath(path)) if fd is None else fd
        self._identity = file_of(self._fd)
        head = file.FILE_HEADER.pack(file.MAGIC, file.MAJOR, file.MINOR, 0)[:12]
        self._write(head + zlib.crc32(head).to_bytes(4, "little"))

    def append(self, kind: int, *parts: "bytes | memoryview", compress: bool = True, hold: bool = False) -> bool:
        """Whether a chunk with the concatenated ``parts`` was written. Compression and writing release the GIL.

        With ``hold`` it is written with the next one, or once a megabyte is held: each return to Python makes a busy
        thread of the program wait.
        """
        length = sum(len(part) for part in parts)
        if self._refuses(kind, length):
            return False
        compress = compress and length > (_WORTH_BESIDE if hold and kind != file.BUFFER else _WORTH_COMPRESSING)
        try:
            stored = _deflate(parts) if compress else b"".join(parts)
        except MemoryError:
            return self._drop(length)
        checksum = _checksum(stored)
        with self._lock:
            size = file.HEADER_SIZE + len(stored) + -len(stored) % 8
            if self._is_over(kind, self._held_bytes + size):
                self.bytes_dropped += length
                return False
            self._held.append((_chunk(kind, stored, compress, length, self._sequence, checksum), length))
            self._held_bytes += size
            self._sequence += 1
            return (hold and self._held_bytes < _MOST_HELD) or self._write_held()

    def release(self) -> bool:
        """Writes what is held."""
        if self._refuses(0, 0):
            return False
        with self._lock:
            return not self._held or self._fd is None or self._write_held()

    def _write_held(self) -> bool:
        held, size, before = self._held, self._held_bytes, self.size_bytes
        self._held, self._held_bytes = [], 0
        try:
            if self._write(b"".join([chunk for chunk, _ in held])):
                at = before
                for chunk, length in held:
                    at = self._note_last(chunk, length, at)
                return True
            self._write_what_fits(held)
            self._fails(*self._why)  # after so much more
        except BaseException:  # an interrupt, or no memory
            if self.size_bytes == before:  # nothing of it is in the file
                self._held, self._held_bytes = held, size
            elif self.failure:
                self._give_up(held)
            raise
        self._give_up(held)
        return not held

    def _note_last(self, chunk: bytes, length: int, offset: int) -> int:
        self._last.append((offset, length))
        return offset + len(chunk)

    def _write_what_fits(self, held: list[tuple[bytes, int]]) -> None:
        """On a full disk: the first of the chunks, and the first rows of the one that does not fit, as chunks."""
        number = self._sequence - len(held)
        while held and self._fd is not None:
            kind, payload = file.taken_apart(held[0][0])
            number, left = self._write_parts(kind, payload, number)
            if left:
                held[0] = b"", left
                break
            del held[0]
        self._sequence = number + len(held)

    def _write_parts(self, kind: int, payload: bytes, number: int) -> tuple[int, int]:
        """The number of the next chunk, and how many bytes of this one did not fit."""
        waiting = [payload]
        while waiting:
            part = waiting.pop()
            stored = zlib.compress(part, 1)
            if self._write_before_end(_chunk(kind, stored, True, len(part), number, zlib.crc32(stored)), len(part)):
                number += 1
                continue
            halves = _halves(kind, part) if self._fd is not None else None
            if halves is None:
                return number, len(part) + sum(map(len, waiting))
            waiting += reversed(halves)
        return number, 0

    def _write_before_end(self, chunk: bytes, length: int) -> bool:
        """Where room for END is left behind it."""
        written = self._write(chunk + bytes(_ROOM))
        if written:
            self.size_bytes -= _ROOM
            self._undo()
            self._note_last(chunk, length, self.size_bytes - len(chunk))
        return written

    def _give_up(self, held: list[tuple[bytes, int]]) -> None:
        self._sequence -= len(held)
        self.bytes_dropped += sum(length for _, length in held)

    def json(self, kind: int, value: Any) -> bool:
        return self.append(kind, dumps(plain(value)).encode("ascii"))

    def records(self, records: Sequence[Record]) -> bool:
        if not all(type(record) is BlockRecord for record in records):
            return self.rows(file.RECORDS, records)
        return self.texts(file.RECORDS, [block_text(record) for record in records])  # type: ignore[arg-type]

    def texts(self, kind: int, texts: Sequence[str]) -> bool:
        """As :meth:`rows`, for rows that are JSON already."""
        return self._in_chunks(kind, texts, lambda some: f"[{','.join(some)}]")

    def plain_rows(self, kind: int, rows: list[Any], hold: bool = False) -> bool:
        """As :meth:`rows`, for lists of numbers, text and None alone; ``hold`` as for :meth:`append`."""
        return self._in_chunks(kind, rows, dumps, hold)

    def rows(self, kind: int, items: Iterable[Any]) -> bool:
        """NamedTuples or lists as chunks of JSON arrays; whether all were written."""
        written, rows = True, []
        for item in items:
            rows.append(encode(item) if hasattr(item, "_fields") else plain(item))
            if len(rows) == ROWS_PER_CHUNK:
                written &= self._in_chunks(kind, rows, dumps)
                rows = []
        return written & self._in_chunks(kind, rows, dumps)

    def _in_chunks(
        self, kind: int, rows: Sequence[Any], written_out: Callable[[Sequence[Any]], str], hold: bool = False
    ) -> bool:
        """As many as rows with long text need; one row that is too much for a chunk is dropped."""
        written = True
        waiting = [rows[first : first + ROWS_PER_CHUNK] for first in range(0, len(rows), ROWS_PER_CHUNK)]
        waiting.reverse()
        while waiting:
            some = waiting.pop()
            payload = written_out(some).encode("ascii")
            if len(payload) > file.MAX_CHUNK_BYTES and len(some) > 1:
                half = len(some) // 2
                waiting += (some[half:], some[:half])
            else:
                written &= self.append(kind, payload, hold=hold)
        return written

    def names(self, names: dict[int, bytes], hold: bool = False) -> bool:
        """Kernel names by address; they hold for the buffers that follow, until an address is named again. ``hold`` as
        for :meth:`append`."""
        parts = [part for at, name in names.items() for part in (file.NAME_ENTRY.pack(at, len(name)), name)]
        return self.append(file.NAME, *parts, hold=hold)

    def layout(self, identity: int, strides: dict[int, int], **facts: Any) -> bool:
        """How long a record of each kind is in the buffers that name ``identity``, and what else decoding needs."""
        return self.json(file.LAYOUT, {"id": identity, "strides": strides, **facts})

    def buffer(self, data: "bytes | memoryview", *, thread: int = 0, layout: int = 0, hold: bool = False) -> bool:
        return self.append(file.BUFFER, file.BUFFER_HEAD.pack(thread & (1 << 64) - 1, layout, 0), data, hold=hold)

    def close(self, **facts: Any) -> None:
        """Writes the END chunk, with what was lost, and closes. A second call does nothing."""
        if self._fd is None or os.getpid() != self._pid:
            return
        failure, self.failure = self.failure, None  # a small chunk may still fit where a large one did not
        facts = {"end_ns": self._clock(), "failure": failure, **facts}
        fits = self.append(file.END, self._end(facts))
        with self._lock:
            self.failure = failure or self.failure
            if not fits and self._fd is not None:
                self._end_over_the_last({**facts, "failure": self.failure})
            fd, self._fd = self._fd, None
        try:
            if fd is not None:
                released(fd)
                os.close(fd)
        except OSError as error:
            self.failure = self.failure or str(error)

    def _end(self, facts: dict[str, Any]) -> bytes:
        names = ("bytes_dropped", "bytes_too_long", "capped_at_ns", "max_bytes")
        return dumps(plain({**{name: getattr(self, name) for name in names}, **facts})).encode("ascii")

    def _end_over_the_last(self, facts: dict[str, Any]) -> None:
        """Where no more fits, in the place of the last chunks: without it nobody would know that the disk was full."""
        assert self._fd is not None
        while self._last:
            offset, length = self._last.pop()
            self._sequence -= 1
            self.bytes_dropped += length
            payload = self._end(facts)
            chunk = _chunk(file.END, payload, False, len(payload), self._sequence, zlib.crc32(payload))
            if offset + len(chunk) <= self.size_bytes:
                try:
                    os.lseek(self._fd, offset, os.SEEK_SET)
                    os.write(self._fd, chunk)
                    os.ftruncate(self._fd, offset + len(chunk))
                except OSError:
                    pass
                return

    def forget_in_child(self) -> None:
        """The file is the parent's; a child that keeps it open would claim it beyond the parent's end."""
        fd, self._fd = self._fd, None
        if fd is not None and file_of(fd) == self._identity:
            os.close(fd)

    def _refuses(self, kind: int, length: int) -> bool:
        if os.getpid() != self._pid:  # first: the lock may be held for ever in a forked child
            return True
        if (
            self._fd is None
            or self.failure
            or length > file.MAX_CHUNK_BYTES
            or (self.capped_at_ns and kind in file.BULK)
        ):
            self._drop(length)
            if self._fd is not None and length > file.MAX_CHUNK_BYTES:
                self.bytes_too_long += length
            return True
        return False

    def _drop(self, length: int) -> bool:
        with self._lock:
            self.bytes_dropped += length
        return False

    def _is_over(self, kind: int, size: int) -> bool:
        if self._fd is None or self.failure:
            return True
        if self.max_bytes is None or kind not in file.BULK or self.size_bytes + size <= self.max_bytes:
            return False
        if self.capped_at_ns is None:
            self.capped_at_ns = self._clock()
        return True

    def _write(self, data: bytes) -> bool:
        assert self._fd is not None
        if file_of(self._fd) != self._identity:
            # Programs that become daemons close every descriptor, and a file of theirs may have this number now.
            self._fd = self._opened_again()
            if self._fd is None:
                self._fails("the program closed its descriptor", " and left no way back to it")
                return False
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            self.size_bytes += len(data)
        except OSError as error:
            self._fails(error.strerror or str(error))
            self._undo()
            return False
        except BaseException:  # an interrupt between two halves of a chunk
            self._undo()
            raise
        return True

    def _fails(self, why: str, then: str = "") -> None:
        self._why = why, then
        self.failure = f"{why} after {size_text(self.size_bytes)}{then}"

    def _opened_again(self) -> int | None:
        """Another descriptor; None where the file is no longer at its path, or another process claims it."""
        try:
            fd = claim(self.path)
        except (OSError, SessionError):
            return None
        if file_of(fd) == self._identity:
            os.lseek(fd, self.size_bytes, os.SEEK_SET)
            return fd
        os.close(fd)
        return None

    def _undo(self) -> None:
        """Lets the file end with a whole chunk again, where it is a file."""
        assert self._fd is not None
        try:
            os.ftruncate(self._fd, self.size_bytes)
            os.lseek(self._fd, self.size_bytes, os.SEEK_SET)
        except OSError:
            pass


#: Rows in JSON, which are whole one by one.
_ROWS = (file.BOUNDARY, file.RECORDS, file.METRICS, file.LINES)


def _halves(kind: int, payload: bytes) -> tuple[bytes, bytes] | None:
    """The rows of a chunk as two; None of one row, and of what has none."""
    if kind == file.BLOCKS:
        return halves(payload)
    rows = loads(payload) if kind in _ROWS else ()
    half = len(rows) // 2
    return (dumps(rows[:half]).encode("ascii"), dumps(rows[half:]).encode("ascii")) if half else None


def add_meta(path: str, facts: dict[str, Any]) -> None:
    """Has the file of a program that could not end it say ``facts``, too; one that has an END stays as it is. Raises
    ``SessionError`` or ``OSError``."""
    fd = claim(path)
    try:
        with file.Reader(path) as reader:
            if reader.has(file.END):
                return
            offset, number = reader.end()
        payload = dumps(plain(facts)).encode("ascii")
        os.ftruncate(fd, offset)
        os.lseek(fd, offset, os.SEEK_SET)
        os.write(fd, _chunk(file.META, payload, False, len(payload), number, _checksum(payload)))
    finally:
        os.close(fd)


def _chunk(kind: int, stored: bytes, compressed: bool, length: int, sequence: int, checksum: int) -> bytes:
    flags = file.COMPRESSED if compressed else 0
    header = file.HEADER.pack(file.MARKER, kind, flags, len(stored), length, sequence, checksum)
    return b"".join((header, zlib.crc32(header).to_bytes(4, "little"), stored, bytes(-len(stored) % 8)))


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
