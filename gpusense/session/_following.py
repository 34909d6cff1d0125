"""What was launched inside blocks, from a session file that is still being written.

In file mode nothing is decoded until somebody asks a block; from then on each question reads what was written since.
"""

from collections.abc import Callable
from time import time_ns
from typing import TypeVar

from .._aggregation.block_totals import Watched
from .._runtime import threads
from .._runtime.errors import SessionError
from . import _format as file
from ._replay import HANDLED, Replay

_Found = TypeVar("_Found")
#: No work is as long: all of it is counted, and next to nothing kept.
_NEVER_NS, _KEPT = 1 << 62, 1


class Following:
    """Adds to the totals of ``watched`` blocks. Any thread may call; the one that asks decodes."""

    def __init__(self, path: str, watched: Watched) -> None:
        self._path = path
        self._replay = Replay(_NEVER_NS, trace_all=False, max_records=_KEPT, watched=watched)
        self._at = file.FILE_HEADER.size
        self._lock = threads.OwnedLock()

    def bring_up_to_date(self, then: Callable[[], _Found]) -> _Found:
        """Adds what is new, and returns what ``then`` gives before anybody else adds."""
        if self._lock.mine:  # a signal handler or finaliser asks while this thread reads
            return then()
        with self._lock:
            try:
                with file.Reader(self._path) as reader:
                    for chunk, behind in reader.begin_at(self._at, HANDLED):
                        self._at = behind
                        if chunk is not None:
                            self._replay.take(chunk)
            except SessionError:  # the file is gone: nothing is new
                pass
            self._replay.pipeline.cycle(time_ns())
            return then()
