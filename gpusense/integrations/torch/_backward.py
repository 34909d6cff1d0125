"""Blocks for backward passes: one around ``backward()`` on its caller's thread, and in it one a module with a block.

Autograd runs what a module recorded without a break, because it takes the newest node that is ready. That begins
where the node of the module's output runs and ends where the node of its input does, so two hooks on nodes suffice;
nothing is put into the graph, as module backward hooks would. The nodes run on the caller's thread (CPU) or on a thread
of autograd's own for each device; there the module's block gets the block of ``backward()`` as its parent.
"""

from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import Any

from ..._attribution.boundaries import FRAME_FOLLOWED, FRAME_OPENED, Frame
from ..._attribution.open_blocks import LAST_ID, Run, block_ids, innermost
from ..._runtime import threads
from .._hosts import Patches
from ._nodes import MAX_FLAT, MAX_INPUTS, NO_TENSORS, Hook, look
from ._state import State, around, frame_of

_MAX_HOOKS = 4  # that a module keeps: as many of its calls as wait for their backward pass, usually
_NOBODY = object()
_get_ident = threads.thread_id()


class Pass(Run):
    """A backward pass on one thread: what is open in it, as (the call in the forward pass, its frame here), outermost
    first. The last one may be apart in ``call`` and ``frame``, where it has no block yet."""

    __slots__ = ("before", "call", "open", "parent")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[Any, Frame]] = []
        self.call: Any = None
        self.parent: Any = _NOBODY  # frame of the module whose children's backward passes follow one another
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
        """What is apart joins the others in ``open``."""
        if self.call is not None:
            frame = self.frame
            while frame is not None and frame.place is not self.call.place:
                frame = frame.outer
            if frame is not None:
                self.open.append((self.call, frame))
            self.call, self.parent = None, _NOBODY

    def follow(self, call: Any) -> bool:
        """Whether ``call`` is the next one of siblings without blocks: then the last one's frame ends, and its own one
        begins. One entry in the queue and little else, because each hook runs this."""
        last: Any = self.frame
        if (
            not self.lean
            or self.parent is not call.outer
            or self.call is call
            or last is None
            or last.block is not None
        ):
            return False
        corr = self.newest()
        if corr > LAST_ID:
            return False
        frame = Frame.__new__(Frame)
        frame.number, frame.place, frame.block = next(block_ids), call.place, None
        frame.run, frame.outer = self, last.outer
        frame.start_ns, frame.corr = time_ns(), corr
        try:
            self.append((FRAME_FOLLOWED, last, frame.start_ns, corr, frame))
            self.frame, self.call = frame, call
        except BaseException:
            self.give_up(last, frame)
            self.call, self.parent = None, _NOBODY
            raise
        return True


class Backward:
    """See the module's head."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._runs: list[Any] = []  # open blocks of backward()
        self._passes: dict[int, Pass] = {}  # of each thread that is in one
        self._keeping: list[bool] = []  # one for each open backward() that leaves its graph, which may be run again
        self._compiled = [True]  # not empty: a backward pass that is compiled may be under way
        self._engine = state.host.torch.autograd.Variable._execution_engine
        self.watch = self._watcher()

    def install(self, patches: Patches) -> None:
        """``backward()`` and ``grad()`` have blocks from now on."""
        autograd = self.state.host.torch.autograd
        for name, retain in (("backward", 2), ("grad", 3)):
            patches.wrap(autograd, name, partial(self._wrap, retain))

    def _wrap(self, retain: int, original: Any) -> Callable[..., Any]:
        """``retain``: which of the arguments is ``retain_graph``; ``create_graph`` is the next one."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.state.on["backward"]:
                return original(*args, **kwargs)
            run = self._begin_run((*args[retain : retain + 2], kwargs.get("retain_graph"), kwargs.get("create_graph")))
            try:
                return original(*args, **kwargs)
            finally:
                if run is not None:
                    self._end_run(*run)

        return backward

    def _begin_run(self, keep: tuple[Any, ...]) -> tuple[Any, int | None, Any, bool] | None:
        """``keep``: what says whether the graph is to be run again."""
        state = self.state
        try:
            keeps = any(keep)
            block, before = state.open_measured("backward")
            if block is None:
                return None
            outer = self._passes.pop(_get_ident(), None)
            self._compiled[:] = [True] if state.host.may_trace() else []
            self._runs.append(block)
            if keeps:
                self._keeping.append(True)
        except Exception:  # noqa: BLE001 - the program's backward pass goes on
            state.fail("backward")
            return None
        return block, before, outer, keeps

    def _end_run(self, block: Any, before: int | None, outer: Any, keeps: bool) -> None:
        try:
            self._finish()
            if keeps:
                self._keeping.pop()
            if outer is not None:
                self._passes[_get_ident()] = outer
            self._runs.remove(block)
            self.state.close_measured(block, before)
        except Exception:  # noqa: BLE001
            self.state.fail("backward")

    # --- forward ----------------------------------------------------------------------------------------------------

    def _watcher(self) -> Callable[..., None]:  # noqa: C901
        """What runs after the forward pass of a call: hooks on the nodes between which its backward pass will be.

        A closure reaches what it needs fastest.
        """
        state, host, lend = self.state, self.state.host, self._lend
        on, grad_enabled, modes, tensor = state.on, host.grad_enabled, host.modes, host.Tensor
        no_tensors, most = NO_TENSORS, MAX_FLAT

        def watch(call: Any, args: Any, kwargs: Any, output: Any) -> None:  # noqa: C901 - see the head of open_blocks
            if not on["backward"] or not grad_enabled():
                return
            try:
                if modes():
                    with host.unwatched():
                        self._watch(call, args, kwargs, output)
                    return
                here = call.run
                carrier = here.carrier
                # The usual case: one plain tensor out, and in none but what the module before has given.
                if type(output) is type(carrier) is tensor and len(args) + len(kwargs) <= most:
                    try:
                        produced, before = output.grad_fn, here.produced
                        for value in (*args, *kwargs.values()) if kwargs else args:
                            kind = type(value)
                            if kind is tensor:
                                node = value.grad_fn
                                if node is not None and node is not before:
                                    break
                            elif kind not in no_tensors:
                                break
                        else:
                            if produced is not None:
                                hooks = call.place.hooks
                                if hooks:
                                    hook = hooks.pop()
                                    hook.call, hook.out = call, True
                                    produced._register_hook_dict(hook.carrier)
                                else:
                                    lend(call, produced)
                                here.produced = produced if call.outer is not None else None
                            return
                    except (RuntimeError, IndexError):  # see _nodes; another thread took the last hook
                        pass
                self._watch(call, args, kwargs, output)
            except Exception:  # noqa: BLE001
                state.fail("backward")

        return watch

    def _watch(self, call: Any, args: Any, kwargs: Any, output: Any) -> None:
        produced, found = look(self.state.host, args, kwargs, output)
        if produced is None:
            return
        here = call.run
        self._attach(here, produced, partial(self._entered, Hook(call)))
        before = here.produced
        for node in found[:MAX_INPUTS]:
            # Where the module before it gave the input, the backward pass of that one begins there and ends this one.
            if node is not produced and node is not before:
                self._attach(here, node, partial(self.leave, call))
        # The node, and all that it was made from, is held until the model's forward pass ends.
        here.produced = produced if call.outer is not None else None

    def _lend(self, call: Any, produced: Any) -> None:
        """Gives ``produced``, the node of what ``call`` gave, a hook that the module is going to keep."""
        place = call.place
        carrier: Any = self.state.host.carrier() if place.made < _MAX_HOOKS else False
        if carrier is False:  # some of its graphs are never run
            self._attach(call.run, produced, partial(self._entered, Hook(call)))
            return
        hook = Hook(call, place.hooks)
        hook.carrier = carrier
        carrier._backward_hooks = {0: partial(self._entered, hook)}
        place.made += 1
        produced._register_hook_dict(carrier)

    def _attach(self, here: Any, node: Any, hook: Any) -> None:
        """``hook`` before ``node`` runs: by way of a tensor of ours, since ``register_prehook`` is mostly Python."""
        carrier = here.carrier
        if carrier is None:
            carrier = here.carrier = self.state.host.carrier()
        if carrier is False:
            node.register_prehook(hook)
            return
        carrier._backward_hooks = {0: hook}
        node._register_hook_dict(carrier)

    # --- on the thread that runs the nodes --------------------------------------------------------------------------

    def _entered(self, hook: Hook, *_: Any, **__: Any) -> None:
        """The backward pass of a call begins: its block opens, inside those of the modules around it."""
        state = self.state
        if (self._compiled and state.host.tracing()) or not state.on["backward"]:
            return
        try:
            call = hook.call
            if hook.out and self._comes_home():
                hook.go_home()
            run = self._passes.get(_get_ident())
            if run is None:
                run = self._passes[_get_ident()] = Pass()
            if run.parent is call:
                return  # its output is its last child's, whose hook on the same node came first and opened both
            if not run.follow(call):
                self._enter_anew(run, call)
        except Exception:  # noqa: BLE001
            state.fail("backward")

    def _comes_home(self) -> bool:
        """Whether a hook that was called may have its next call: its graph is not run again."""
        return bool(self._runs) and not self._keeping

    def _enter_anew(self, run: Pass, call: Any) -> None:
        run.gather()
        if run.open and any(open_call is call for open_call, _ in run.open):
            return  # its output is its last child's, whose hook on the same node came first and opened both
        chain = []
        link = call
        while link is not None:
            chain.append(link)
            link = around(link.outer)
        chain.reverse()
        shared = 0
        while shared < min(len(run.open), len(chain)) and run.open[shared][0] is chain[shared]:
            shared += 1
        if run.open:
            self._close_down_to(run, shared)
        for link in chain[shared:]:
            if not self._open(run, link):
                return

    def _open(self, run: Pass, call: Any) -> bool:
        place, outermost, parent = call.place, not run.open and run.call is None, None
        if outermost:
            parent = self._run_of(call)
            self._close_at_the_end()
            if not self._compiled:
                self._begin(run, parent)
        if run.lean and (place.steady or place.level == 1) and self._open_frame(run, call):
            return True
        run.gather()
        inside = run.frame
        block = self.state.open(place.name, place.attributes, parent)
        if block is None:
            if outermost:
                run.over()
            return False
        frame = frame_of(block, place, run, inside)
        if outermost and not run.lean and not self._compiled:
            run.begin(block, frame)
        run.frame = frame
        run.open.append((call, frame))
        return True

    def _begin(self, run: Pass, parent: Any) -> None:
        """Frames lie in the block of ``backward()``, where it is known: ``parent``, or this thread's innermost one."""
        here = innermost.get()
        if parent is not None:
            innermost.set(parent)
        elif here is None or here.thread != _get_ident() or here not in self._runs:
            return
        run.lies_in(innermost.get(), here)

    def _open_frame(self, run: Pass, call: Any) -> bool:
        corr = run.newest()
        if corr > LAST_ID or innermost.get() is not run.base or self.state.host.profiler._is_profiler_enabled:
            return False
        run.gather()
        frame = Frame.__new__(Frame)
        frame.number, frame.place, frame.block = next(block_ids), call.place, None
        frame.run, frame.outer = run, run.frame
        frame.start_ns, frame.corr = time_ns(), corr
        run.append((FRAME_OPENED, frame))
        run.apart(call, frame)
        return True

    def _run_of(self, call: Any) -> Any:
        """The block of the ``backward()`` that runs this node, where it is of another thread."""
        mine, runs = _get_ident(), self._runs
        if len(runs) > 1:
            runs = [run for run in runs if run.thread in (mine, call.run.thread)] or runs
        if len(runs) != 1 or runs[0].thread == mine:
            return None
        return runs[0]

    def _close_at_the_end(self) -> None:
        """Has autograd call :meth:`_finish` when the pass is over: the only way to act on its thread then."""
        self._engine.queue_callback(self._finish)

    def leave(self, call: Any, *_: Any, **__: Any) -> None:
        """The backward pass of ``call`` is over."""
        if self._compiled and self.state.host.tracing():
            return
        try:
            run = self._passes.get(_get_ident())
            if run is None:
                return
            run.gather()
            for depth, opened in enumerate(run.open):
                if opened[0] is call:
                    self._close_down_to(run, depth)
                    return
        except Exception:  # noqa: BLE001
            self.state.fail("backward")

    def _finish(self) -> None:
        try:
            run = self._passes.pop(_get_ident(), None)
            if run is not None:
                run.gather()
                self._close_down_to(run, 0)
        except Exception:  # noqa: BLE001
            self.state.fail("backward")

    def _close_down_to(self, run: Pass, depth: int) -> None:
        while len(run.open) > depth:
            frame = run.open.pop()[1]
            block = run.close(frame)
            if block is not None:
                block.__exit__(None, None, None)
            run.frame = frame.outer
        if not depth:
            run.over()
