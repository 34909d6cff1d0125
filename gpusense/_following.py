"""What was launched inside blocks, from a session file that is still being written.

In file mode nothing is decoded until somebody asks a block; from then on each question reads what was written since.
"""

from collections.abc import Iterator
from time import time_ns

from . import _native
from . import _sessionfile as file
from ._errors import SessionError
from ._replay import HANDLED, Replay
from ._tally import Watched

#: No work is as long: all of it is counted, and next to nothing kept.
_NEVER_NS, _KEPT = 1 << 62, 1


class Following:
    """Adds to the totals of ``watched`` blocks. Any thread may call; the one that asks decodes."""

    def __init__(self, path: str, watched: Watched) -> None:
        self._path = path
        self._replay = Replay(_NEVER_NS, trace_all=False, max_records=_KEPT, watched=watched)
        self._at = file.FILE_HEADER.size
        self._lock = _native.OwnedLock()

    def read(self) -> None:
        """Adds what is new."""
        if self._lock.mine:  # a signal handler or finaliser asks while this thread reads
            return
        with self._lock:
            try:
                with file.Reader(self._path) as reader:
                    for chunk in self._new(reader):
                        self._replay.take(chunk)
            except SessionError:  # the file is gone: nothing is new
                pass
            self._replay.pipeline.cycle(time_ns())

    def _new(self, reader: file.Reader) -> Iterator[file.Chunk]:
        while (header := reader._read_header(self._at)) is not None:
            kind, flags, stored, length, sequence, checksum = header
            at, end = self._at, self._at + file.HEADER_SIZE + stored
            if end > reader._size:  # not whole yet
                return
            self._at = end + -end % 8
            payload = reader._payload(at, flags, stored, length, checksum) if kind in HANDLED else None
            if payload is not None:
                yield file.Chunk(kind, at, sequence, payload)
