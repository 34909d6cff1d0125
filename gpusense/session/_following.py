"""A session file as it is written: what blocks launched, for who asks them meanwhile.

In file mode nothing is decoded, and nothing loaded that decodes, until somebody asks a block what was launched inside;
from then on each question reads what was written since.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .._aggregation.block_totals import Watched
from .._runtime import threads
from .._runtime.clock import now_ns
from .._runtime.errors import SessionError
from . import _format as file

if TYPE_CHECKING:
    from ._replay import Replay

#: No work is as long: all of it is counted, and next to nothing kept.
_NEVER_NS, _KEPT = 1 << 62, 1

_Found = TypeVar("_Found")


class Following:
    """Adds to the totals of ``watched`` blocks. Any thread may call; the one that asks decodes."""

    def __init__(self, path: str, watched: Watched) -> None:
        self._path, self._watched = path, watched
        self._replay: Replay | None = None  # before the first question
        self._at = file.FILE_HEADER.size
        self._lock = threads.rlock()

    def bring_up_to_date(self, then: Callable[[], _Found]) -> _Found:
        """Adds what is new, and returns what ``then`` gives before anybody else adds."""
        if threads.mine(self._lock):  # a signal handler or finaliser asks while this thread reads
            return then()
        with self._lock:
            from ._replay import HANDLERS, Replay

            if self._replay is None:
                self._replay = Replay(_NEVER_NS, trace_all=False, max_records=_KEPT, watched=self._watched)
            replay = self._replay
            try:
                replay.names.new_buffer()  # names may have become readable meanwhile
                replay.until_ns = now_ns()
                with file.Reader(self._path) as reader:
                    for chunk, behind in reader.begin_at(self._at, HANDLERS):
                        self._at = behind
                        if chunk is not None:
                            replay.take(chunk)
            except SessionError:  # the file is gone: nothing is new
                pass
            replay.pipeline.cycle(now_ns())
            return then()
