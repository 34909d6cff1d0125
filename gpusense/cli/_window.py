"""Which part of a program is recorded: a stretch of time, or some passes of a block."""

from time import monotonic
from typing import Any

from .._runtime.text import count_text, one_line

_ATTACH_S = 1.0  # that the program waits between two passes


class Window:
    """The part of the program's time that is recorded, in seconds from its beginning; by gpusense's own thread, so to a
    tenth of a second."""

    def __init__(self, delay_s: float | None, duration_s: float | None) -> None:
        self._delay_s, self._duration_s = delay_s or 0.0, duration_s
        self._at = 0.0
        self._begun = self._over = False

    def begin(self, tracer: Any) -> None:
        """The program begins."""
        if not self._delay_s and self._duration_s is None:
            return
        self._at, self._begun = monotonic(), not self._delay_s
        if self._delay_s:
            tracer.disable()
        tracer.add_watcher(lambda: self._look(tracer))

    def end(self) -> None:
        """Nothing changes from now on."""
        self._over = True

    def _look(self, tracer: Any) -> bool:
        now = monotonic() - self._at
        if not self._begun and now >= self._delay_s and not self._over:
            self._begun = True
            tracer.enable()
        if self._duration_s is not None and now >= self._delay_s + self._duration_s and not self._over:
            self._over = True
            tracer.disable()
        return self._over or (self._begun and self._duration_s is None)


class Passes:
    """What the device does is recorded in passes ``first`` to ``last`` of the blocks of one name, counted from 1 as
    they end; blocks are recorded all the time. In the process that begins the run."""

    def __init__(self, name: str, passes: tuple[int, int]) -> None:
        self._name = name
        self._first, self._last = passes
        self._ended = 0
        self._tracer: Any = None

    def begin(self, tracer: Any) -> None:
        """The program begins."""
        self._tracer = tracer
        if self._first > 1:
            tracer.recorder.pause_capture()
        tracer.add_block_listener(self)

    def missed(self, session: Any) -> str:
        """What is not as it was asked for, since the block ended too seldom; else empty."""
        if self._ended >= self._first:
            return ""
        if self._ended:
            times = count_text(self._ended, "time")
            return f"--block {self._name}: it ended {times}, so --passes {self._first}..{self._last} was not reached"
        names = list(dict.fromkeys(block.name for block in session.blocks))
        known = f"; blocks: {', '.join(one_line(name, 40) for name in names[:5])}{', …' * (len(names) > 5)}"
        return f"--block {self._name}: no block of that name ended{known if names else ', nor any other'}"

    def block_opened(self, block: Any) -> None:
        """Capture was begun as the pass before ended, so that no launch of this one is early."""

    def block_closed(self, block: Any) -> None:
        """On the block's own thread."""
        if block.name != self._name:
            return
        self._ended += 1
        recorder = self._tracer.recorder
        if self._ended == self._first - 1:
            recorder.resume_capture()
            _attach(recorder)
        if self._ended == self._last:
            self._tracer.remove_block_listener(self)
            recorder.synchronise(2.0)
            recorder.pause_capture()


def _attach(recorder: Any) -> None:
    """Capture runs when this returns, where CUDA is live; later it begins as CUDA does."""
    capture, until = recorder.capture, monotonic() + _ATTACH_S
    while capture is not None and capture.waiting and capture.missed() and monotonic() < until:
        recorder.tick(0.0)
