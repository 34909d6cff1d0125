"""Exact attribution of tasks: a boundary wherever a thread goes on in another block than it was in.

asyncio runs each step of a task, and each callback, as a ``Handle`` that holds its context; trio tells an instrument
before each step. The context says in which block the step is. Where that is not the block in which the thread was
last, a switch is marked as the start and the end of a block are. A thread whose steps are not seen, or no longer, is
left to launch order. Whatever fails in here is passed over: a step runs as it would without us.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from .._attribution.boundaries import LEAVE, SWITCH
from .._attribution.open_blocks import innermost
from .._runtime import log, threads
from .._runtime.interrupts import is_the_programs

#: ``mark(op, thread, inside)``: SWITCH or LEAVE, see :class:`Boundary`. False where there is no room for more.
Mark = Callable[[int, int, int | None], bool]


class TaskSwitches:
    """Follows the threads that run tasks. ``mark`` is called on the thread that it names, but from :meth:`off`."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._get_ident = threads.thread_id()
        #: Thread → the block its launches belong to; only threads whose steps are seen.
        self._inside: dict[int, int] = {}
        self._changing = threads.rlock()
        self._patches: list[_Patch] = []
        self._trio: _TrioSwitches | None = None
        self.active = self._ended = False

    # --- on and off -------------------------------------------------------------------------------------------------

    def on(self) -> None:
        """Follows asyncio where the program has imported it; call it now and then. :meth:`opens` looks for trio."""
        with self._changing:
            if self._ended:
                return
            self.active = True
            if self._patches and all(patch.holds() for patch in self._patches):
                return
            self._put_back()
            events, loops = sys.modules.get("asyncio.events"), sys.modules.get("asyncio.base_events")
            handle, loop = getattr(events, "Handle", None), getattr(loops, "BaseEventLoop", None)
            if handle is None or loop is None:
                return
            self._patches.append(_Patch(handle, "_run", self._running))
            if sys.version_info >= (3, 12):  # a task may begin inside the call that makes it
                self._patches.append(_Patch(loop, "create_task", self._creating))

    def off(self) -> None:
        """Puts back what :meth:`on` replaced; launch order decides again."""
        with self._changing:
            self.active = False
            self._put_back()

    def _put_back(self) -> None:
        for patch in self._patches:
            patch.undo()
        self._patches = []
        for thread in list(self._inside):
            self._forget(thread)

    def end(self, mark: Mark) -> None:
        """As :meth:`off`, for good, with another ``mark``: CUDA may not answer, or this is a forked child."""
        self._changing = threads.rlock()
        self._mark, self._ended = mark, True
        self.off()

    # --- blocks, from their tracer ----------------------------------------------------------------------------------

    def opens(self, block: Any) -> None:
        """Before the boundary of ``block`` is marked on its thread."""
        thread, outer = block.thread, _innermost_id(block.outer)
        if thread not in self._inside and not self._joins_trio(thread, outer):
            return
        if self._inside[thread] == outer:
            self._inside[thread] = block.block_id
        else:  # something went on in another context without a step
            self._forget(thread)

    def closes(self, block: Any) -> int | None:
        """As :meth:`opens`: the block that its thread is in afterwards, 0: none; None where order decides."""
        thread = self._get_ident()
        before = self._inside.get(thread)
        if before is None:
            return None
        after = _innermost_id(innermost.get())
        if before in (block.block_id, after):
            self._inside[thread] = after
            return after
        self._forget(thread)
        return None

    def here(self) -> None:
        """The context of this thread was changed, or may have been: where its steps are followed, it is looked at."""
        thread = self._get_ident()
        before = self._inside.get(thread)
        if before is not None:
            inside = _innermost_id(innermost.get())
            if inside != before:
                self._switch(thread, inside)

    # --- steps ------------------------------------------------------------------------------------------------------

    def begins(self, context: Any) -> None:
        """A step in ``context`` is about to run on this thread."""
        block = context.get(innermost)
        inside = 0 if block is None else _innermost_id(block)
        thread = self._get_ident()
        if self._inside.get(thread) != inside:
            self._switch(thread, inside)

    def enters(self, context: Any) -> None:
        """As :meth:`begins`, within a step of this thread."""
        if self._get_ident() in self._inside:
            self.begins(context)

    def leaves(self) -> None:
        """No step follows on this thread for now; called in its own context."""
        thread = self._get_ident()
        if self._inside.pop(thread, None) is not None:
            self._mark(LEAVE, thread, _innermost_id(innermost.get()))

    def _switch(self, thread: int, inside: int) -> None:
        if self._mark(SWITCH, thread, inside):
            self._inside[thread] = inside
        if not self.active or self._inside.get(thread) != inside:  # switched off meanwhile; or no room
            self._forget(thread)

    def _forget(self, thread: int) -> None:
        """Leaves a thread to launch order."""
        if self._inside.pop(thread, None) is not None:
            self._mark(SWITCH, thread, None)

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def _running(self, original: Callable[[Any], Any], patch: "_Patch") -> Callable[[Any], Any]:
        def _run(self: Any) -> Any:
            if not patch.active:
                return original(self)
            try:
                begins(self._context)
            except Exception as error:
                if is_the_programs(error):
                    raise
                log.exception("step", "a step of an asyncio or trio task could not be followed")
            try:
                result = original(self)
            except BaseException:  # the loop ends
                leaves()
                raise
            if getattr(self._loop, "_stopping", True):  # or it is one of another make, which says nothing
                leaves()
            return result

        begins, leaves = self.begins, _guarded(self.leaves)
        return _run

    def _creating(self, original: Callable[..., Any], patch: "_Patch") -> Callable[..., Any]:
        def create_task(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not patch.active:
                return original(self, *args, **kwargs)
            context = kwargs.get("context")
            if context is not None:
                enters(context)
            try:
                return original(self, *args, **kwargs)
            finally:
                here()

        enters, here = _guarded(self.enters), _guarded(self.here)
        return create_task

    # --- trio -------------------------------------------------------------------------------------------------------

    def _joins_trio(self, thread: int, inside: int) -> bool:
        """Whether this thread runs trio, whose steps are followed from now on."""
        lowlevel = sys.modules.get("trio.lowlevel")
        if lowlevel is None or not self.active:
            return False
        if self._trio is None:
            self._trio = _TrioSwitches(self, lowlevel)
        try:
            lowlevel.add_instrument(self._trio)
        except RuntimeError:  # this thread runs no trio
            return False
        self._switch(thread, inside)
        return thread in self._inside


class _TrioSwitches:
    """An instrument of trio, one for all of its runs."""

    def __init__(self, switches: TaskSwitches, lowlevel: Any) -> None:
        self._switches = switches
        self._lowlevel = lowlevel
        self._begins = _guarded(switches.begins)
        self._leaves = _guarded(switches.leaves)

    def before_task_step(self, task: Any) -> None:
        if self._switches.active:
            self._begins(task.context)
        else:
            self._lowlevel.remove_instrument(self)

    def after_run(self) -> None:
        self._leaves()


class _Patch:
    """A method of a class, replaced. What another tool has put over it stays, and ours below only passes through."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any, "_Patch"], Callable[..., Any]]) -> None:
        self._owner = owner
        self._name = name
        self._original = vars(owner)[name]
        self._wrapper = functools.wraps(self._original)(make(self._original, self))
        self.active = True
        setattr(owner, name, self._wrapper)

    def holds(self) -> bool:
        """False, and this one is over, where somebody put the original back."""
        if vars(self._owner)[self._name] is self._original:
            self.active = False
        return self.active

    def undo(self) -> None:
        self.active = False
        if vars(self._owner)[self._name] is self._wrapper:
            setattr(self._owner, self._name, self._original)


def _innermost_id(block: Any) -> int:
    """The id of the innermost block that is open and recorded; 0: none."""
    while block is not None and (block.end_ns is not None or not block.recorded):
        block = block.outer
    return block.block_id if block is not None else 0


def _guarded(action: Callable[..., Any]) -> Callable[..., Any]:
    """``action`` that raises nothing."""

    def guarded(*args: Any) -> Any:
        try:
            return action(*args)
        except Exception as error:
            if is_the_programs(error):
                raise
            log.exception("step", "a step of an asyncio or trio task could not be followed")
            return None

    return guarded
