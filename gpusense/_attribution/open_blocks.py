"""What is innermost on each thread and task: blocks, and frames, which become blocks when somebody asks for them.

A framework's modules lie between long runs of its own code, after which each object that is touched is slow to
reach: a block takes 4 µs in a loop, and 20 µs and more there. As a rule nobody asks for a module's block while it is
open. So it is a :class:`Frame`: one entry in the tracer's queue when it opens and one when it closes, of which
gpusense's thread makes boundaries and a record. Where something asks for the innermost block, as a block that opens
inside does, :func:`here` makes it one.
"""

from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from time import time_ns
from typing import Any

from .._runtime import threads
from .boundaries import CLOSE, FRAME_ENDED, PLACED, Frame, Item

#: The innermost open block of each thread and task, but for frames.
innermost: ContextVar[Any] = ContextVar("gpusense_block", default=None)
block_ids = count(1)
_tokens = count()

LAST_ID = 0xFFFFFFFF  # more from ``newest()``: it may have missed some

_get_ident = threads.thread_id()


def next_token() -> int:
    """Of a marker call: 32 bits, never 0."""
    return next(_tokens) % 0xFFFFFFFF + 1


class Run:
    """Frames of one thread: as long as a model runs forward on it, or a backward pass. Its thread alone uses it, but
    for :func:`end_frames`."""

    __slots__ = ("_around", "append", "base", "calls", "frame", "lean", "newest", "thread")

    def __init__(self) -> None:
        self.thread = _get_ident()
        self.frame: Frame | None = None  # the innermost one
        self.base: Any = None  # the innermost block among the frames: what ``innermost`` gives meanwhile
        self.lean = False  # whether frames may be opened, and closed, without a block
        self.calls = False  # that, for the calls of modules
        self.append: Callable[[Item], None] = _nothing
        self.newest: Callable[[], int] = _nought
        self._around: Run | None = None

    def begin(self, block: Any, frame: Frame, calls: bool = False) -> None:
        """What is opened on this thread inside ``block``, the innermost one with ``frame`` as its frame, may be frames
        from now on, where that is enough for its tracer. ``calls``: what modules open that are called."""
        tracer = getattr(block, "tracer", None)  # a block that does nothing has none
        ways = tracer.ways_of_frames(block) if tracer is not None else None
        if ways is not None:
            self.append, self.newest = ways
            self.frame, self.base, self.lean, self.calls = frame, block, True, calls
            self._around = running.get(self.thread)
            running[self.thread] = self

    def end(self) -> None:
        """No frame is open any more."""
        self.lean = self.calls = False
        self.frame = self.base = None
        if running.get(self.thread) is self:
            if self._around is not None:
                running[self.thread] = self._around
            else:
                del running[self.thread]
        self._around = None

    def close(self, frame: Frame) -> Any:
        """Closes ``frame``; where it is a block, or has to become one, gives that back, for the caller to close."""
        block = frame.block
        if block is None:
            if self.lean:
                end, corr = time_ns(), self.newest()
                if corr <= LAST_ID:
                    self.append((FRAME_ENDED, frame, end, corr))
                    self.frame = frame.outer
                    return None
            block = _become(frame)
        return block

    def block_of(self, frame: Frame) -> Any:
        """The block of ``frame``, which it has from now on."""
        return frame.block if frame.block is not None else _become(frame)

    def give_up(self, *frames: Frame) -> None:
        """After an interrupt: which of ``frames``, innermost last, are open is not known. None of them from now on."""
        now, corr = time_ns(), self.newest()
        self.lean = self.calls = False
        self.frame = frames[0].outer
        for frame in frames:
            self.append((PLACED, CLOSE, frame.number, None, self.thread, now, "", corr))


#: Of each thread, while it has one.
running: dict[int, Run] = {}


def _nothing(_: Any) -> None: ...


def _nought() -> int:
    return 0


def here() -> Any:
    """The innermost block of this thread or task; a frame becomes it."""
    block = innermost.get()
    if running:
        run = running.get(_get_ident())
        frame = _inside(run.frame, block) if run is not None else None
        if frame is not None:
            found = frame.block if frame.block is not None else _become(frame)
            if run is not None and run.base is block:
                run.base = found
            innermost.set(found)
            return found
    return block


def _inside(frame: Frame | None, block: Any) -> Frame | None:
    """Of ``frame`` and those around it the innermost one that was opened without a block where ``block`` was innermost:
    a task, or whoever else has a context of their own, may have opened blocks since, and may have asked before."""
    found = None
    while frame is not None and frame.block is not block:
        if frame.corr < 0:
            found = None
        elif found is None:
            found = frame
        frame = frame.outer
    return found if frame is not None else None


def _become(frame: Frame) -> Any:
    """The block of ``frame``, and blocks for what is around it."""
    frames: list[Frame] = []
    at = frame
    while at.block is None:
        frames.append(at)
        assert at.outer is not None  # the outermost one has a block
        at = at.outer
    outer = at.block
    for at in reversed(frames):
        block = type(outer)(outer.tracer, at.place.name, at.place.attributes, None)
        block.block_id, block.thread, block.start_ns, block.path = at.number, at.run.thread, at.start_ns, at.path
        block.outer, block.parent_id = outer, outer.block_id
        block.is_open = block.recorded = True
        at.block = outer = block
    return outer


def entered(block: Any) -> None:
    """A block became the innermost one of its thread or task, where threads have runs."""
    run = running.get(_get_ident())
    if run is None or run.base is not block.outer or run.frame is None:
        return
    frame = Frame.__new__(Frame)
    frame.place, frame.run, frame.outer, frame.corr = None, run, run.frame, -1
    frame.block, frame.number = block, block.block_id
    run.frame, run.base = frame, block


def left(block: Any) -> None:
    """A block has been closed, where threads have runs."""
    run = running.get(_get_ident())
    if run is None or run.base is not block:
        return
    frame = run.frame
    while frame is not None and frame.block is not block:
        frame = frame.outer
    if frame is not None:
        frame = run.frame = frame.outer
    while frame is not None and frame.block is None:
        frame = frame.outer
    run.base = frame.block if frame is not None else None


def end_frames() -> None:
    """From now on every thread opens blocks: blocks are placed in another way, or somebody listens."""
    for run in list(running.values()):
        run.lean = run.calls = False
