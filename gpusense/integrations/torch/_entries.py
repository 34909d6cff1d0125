"""What the hooks of a module's children leave in a backward pass: entries, of which frames are made later.

A function of Python that autograd calls between long stretches of its own code takes 20 to 40 µs, since all that it
touches has left the caches. So while the children of one module follow one another in a pass, their hooks are *armed*:
they call no Python, but builtins that leave who was called, when, after which launch, and on which thread. Frames are
made of these entries by gpusense's thread before it looks at the queue, or by the pass's own before it does anything
else with its frames; a lock keeps the two apart.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from time import time_ns
from typing import Any

from ..._attribution.boundaries import CLOSE, FRAME_FOLLOWED, OPEN, RECORD, Frame
from ..._attribution.open_blocks import LAST_ID, Run, block_ids, innermost
from ..._runtime import log, process, threads
from ._nodes import Hook
from ._state import frame_of

_MAX_ASKED = 3  # times in a pass that somebody asks for a block, after which its hooks are armed no more
_NOBODY = object()


class Pass(Run):
    """A backward pass on one thread: what is open in it, as (the call in the forward pass, its frame here), outermost
    first. The last one may be apart in ``call`` and ``frame``, where it has no block yet."""

    __slots__ = ("armed", "asked", "before", "call", "done", "open", "parent")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[Any, Frame]] = []
        self.call: Any = None
        self.parent: Any = _NOBODY  # frame of the module whose children's backward passes follow one another
        self.armed: list[Hook] = []
        self.done: list[Hook] = []  # of them those that may go home
        self.asked = 0
        self.before: Any = _NOBODY  # the thread's innermost block, where another one stands in for the pass

    def lies_in(self, block: Any, before: Any) -> None:
        """The outermost frame lies in ``block``, the innermost one here, where ``before`` was."""
        self.begin(block, frame_of(block, None, self, None))
        if self.lean:
            self.before = before
        else:
            innermost.set(before)

    def over(self) -> None:
        """Nothing is open any more."""
        before, self.before = self.before, _NOBODY
        if before is not _NOBODY and innermost.get() is self.base:
            innermost.set(before)
        self.end()

    def apart(self, call: Any, frame: Frame) -> None:
        """``frame`` is innermost, of ``call``, and has no block."""
        self.frame, self.call, self.parent = frame, call, call.outer

    def gather(self) -> None:
        """What is apart comes to the rest."""
        if self.call is not None:
            frame = self.frame
            while frame is not None and frame.place is not self.call.place:
                frame = frame.outer
            if frame is not None:
                self.open.append((self.call, frame))
            self.call, self.parent = None, _NOBODY

    def follows(self, call: Any) -> bool:
        """Whether ``call`` is the next one of the children that follow one another, without a block so far."""
        last: Any = self.frame
        return self.parent is call.outer and self.call is not call and last is not None and last.block is None

    def follow(self, call: Any, now: int, corr: int) -> None:
        """The backward pass of the last one ends, and that of ``call`` begins."""
        last: Any = self.frame
        frame = Frame.__new__(Frame)
        frame.number, frame.place, frame.block = next(block_ids), call.place, None
        frame.run, frame.outer = self, last.outer
        frame.start_ns, frame.corr = now, corr
        try:
            if corr <= LAST_ID:
                self.append((FRAME_FOLLOWED, last, now, corr, frame))
            else:
                _lose(self, last, frame, now)
            self.frame, self.call = frame, call
        except BaseException:
            self.give_up(last, frame)
            self.call, self.parent = None, _NOBODY
            raise


class Entries:
    """Of all passes. ``comes_home()``: whether hooks that are called now may have another call; ``failed()`` is called
    in an ``except`` clause."""

    def __init__(self, passes: dict[int, Pass], comes_home: Callable[[], bool], failed: Callable[[], None]) -> None:
        self._passes = passes
        self._comes_home = comes_home
        self._failed = failed
        self._left: deque[tuple[Hook, int, int, int]] = deque()
        self._lock = threads.OwnedLock()
        self._times, self._threads = iter(time_ns, None), iter(threads.thread_id(), None)
        self._ids: Any = None, None
        self.active: set[Pass] = set()  # with armed hooks; there are no entries where it is empty
        self._strays = 0
        process.register(self)

    def arm(self, run: Pass, hook: Hook, siblings: Iterable[Hook]) -> None:
        """On the thread of ``run``, where ``hook`` was called, and its call is apart in ``run``."""
        if run.armed or self._strays or run.asked > _MAX_ASKED or run.call is not hook.call or not run.lean:
            return
        newest = run.newest
        if self._ids[0] is not newest:
            self._ids = newest, iter(newest, None)
        parent, device, armed = run.parent, hook.device, run.armed
        for other in siblings:
            if other.out and other.call.outer is parent and other is not hook and other.device == device:
                if other.newest is not newest:
                    rows = zip(repeat(other), self._times, self._ids[1], self._threads)
                    # Called with the gradient, which ``next`` takes for what it gives at the end of all entries: never.
                    other.quick, other.newest = partial(next, map(self._left.append, rows)), newest
                armed.append(other)
                other.calls[0] = other.quick
        if armed:
            self.active.add(run)
            run.ahead = partial(self.disarm, run, 1)
            if not run.lean:  # another thread has ended frames just now
                self.disarm(run)

    def disarm(self, run: Pass, asked: int = 0) -> None:
        """On any thread: frames are made of what there is, and the hooks of ``run`` run Python again."""
        run.asked += asked
        run.ahead = None
        armed, run.armed = run.armed, []
        for hook in armed:
            hook.calls[0] = hook.full
        self.bring()
        self.active.discard(run)
        done, run.done = run.done, []
        for hook in done:
            hook.go_home()

    def bring(self) -> None:
        """Makes frames of the entries. On any thread; nothing is raised but interrupts."""
        lock = self._lock
        if not self.active or lock.mine:  # a signal handler or finaliser in the middle of it
            return
        with lock:
            left, passes, home = self._left, self._passes, self._comes_home()
            for _ in range(len(left)):
                hook, now, corr, thread = left.popleft()
                try:
                    call = hook.call
                    run = passes.get(thread)
                    if run is None or not run.follows(call):
                        if run is None or run.call is not call:
                            self._stray()
                        continue
                    if home and hook.out:
                        run.done.append(hook)
                    run.follow(call, now, corr)
                except Exception:  # noqa: BLE001
                    self._failed()

    def _stray(self) -> None:
        """A module ran backward on another thread than its sibling, although their outputs were on one device."""
        self._strays += 1
        log.once("torch-strays", "gpusense: a module's backward pass ran on an unexpected thread and got no block")

    def at_exit(self) -> None: ...

    def after_fork_in_child(self) -> None:
        self._lock = threads.OwnedLock()
        self._left.clear()


def _lose(run: Pass, last: Frame, frame: Frame, now: int) -> None:
    """The newest id could not be read where ``last`` ended and ``frame`` began: the places of both are lost."""
    tracer = run.base.tracer
    thread, outer = run.thread, last.outer
    tracer.mark(_fails, CLOSE, last.number, None, thread, now, "")
    run.append((RECORD, last.record(now)))
    parent = outer.number if outer is not None else None
    tracer.mark(_fails, OPEN, frame.number, parent, thread, now, frame.place.name)


def _fails(_: int) -> bool:
    return True
