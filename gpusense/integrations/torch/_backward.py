"""Blocks for backward passes: one around ``backward()`` on its caller's thread, and in it one a module with a block.

Autograd runs what a module recorded in one stretch, because it takes the newest node that is ready. The stretch begins
where the node of the module's output runs and ends where the node of its input does, so two hooks on nodes suffice;
nothing is put into the graph, as module backward hooks would. The nodes run on the caller's thread (CPU) or on a thread
of autograd's own for each device; there the module's block gets the block of ``backward()`` as its parent.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from .._patches import Patches, close_block
from ._state import State

_MAX_INPUTS = 4
_MAX_VALUES = 64  # of a call that are looked at for tensors: a list may be long, or hold itself


class _Begin:
    """Before the node of a module's output."""

    __slots__ = ("_backward", "_call")

    def __init__(self, backward: "Backward", call: Any) -> None:
        self._backward = backward
        self._call = call

    def __call__(self, *_: Any, **__: Any) -> None:
        if not self._backward.state.host.compiling():  # compiled autograd compiles hooks, too
            self._backward.enter(self._call)


class _End(_Begin):
    """Before the node of a module's input."""

    __slots__ = ()

    def __call__(self, *_: Any, **__: Any) -> None:
        if not self._backward.state.host.compiling():
            self._backward.leave(self._call)


class Backward:
    """See the module's head. ``local.stack`` of a thread: the open calls, outermost first, each with its block."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._runs: list[Any] = []  # open blocks of backward()

    def install(self, patches: Patches) -> None:
        autograd = self.state.host.torch.autograd
        for name in ("backward", "grad"):
            patches.wrap(autograd, name, self._wrap)

    def _wrap(self, original: Any) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.state.on["backward"]:
                return original(*args, **kwargs)
            run = self._begin_run()
            try:
                return original(*args, **kwargs)
            finally:
                if run is not None:
                    self._end_run(*run)

        return backward

    def _begin_run(self) -> tuple[Any, int | None, list[Any]] | None:
        state = self.state
        try:
            block, before = state.open_measured("backward")
            if block is None:
                return None
            outer = getattr(state.local, "stack", [])
            state.local.stack = []
            self._runs.append(block)
        except Exception:  # noqa: BLE001 - the program's backward pass goes on
            state.fail("backward")
            return None
        return block, before, outer

    def _end_run(self, block: Any, before: int | None, outer: list[Any]) -> None:
        try:
            self._finish()
            self.state.local.stack = outer
            self._runs.remove(block)
            self.state.close_measured(block, before)
        except Exception:  # noqa: BLE001
            self.state.fail("backward")

    # --- forward ----------------------------------------------------------------------------------------------------

    def watch(self, call: Any, args: Any, kwargs: Any, output: Any) -> None:
        """After the forward pass of ``call``: hooks on the nodes between which its backward pass will be."""
        state = self.state
        if not state.on["backward"] or not state.host.grad_enabled():
            return
        try:
            with state.host.unwatched():
                self._watch(call, (*args, *kwargs.values()), output)
        except Exception:  # noqa: BLE001
            state.fail("backward")

    def _watch(self, call: Any, inputs: tuple[Any, ...], output: Any) -> None:
        local, tensor = self.state.local, self.state.host.Tensor
        if type(output) is tensor:
            produced = _node(output)
        else:
            produced = next(self._nodes((output,), iter(range(_MAX_VALUES))), None)
        if produced is None:
            return
        produced.register_prehook(_Begin(self, call))
        if len(inputs) == 1 and type(inputs[0]) is tensor:
            node = _node(inputs[0])
            found: Iterable[Any] = (node,) if node is not None else ()
        else:
            found = islice(self._nodes(inputs, iter(range(_MAX_VALUES))), _MAX_INPUTS)
        before = getattr(local, "produced", None)
        for taken in found:
            # Where the module before it gave the input, the backward pass of that one begins there and ends this one.
            if taken is not produced and taken is not before:
                taken.register_prehook(_End(self, call))
        # The node, and all that it was made from, is held until the model's forward pass ends.
        local.produced = produced if call.parent is not None else None

    def _nodes(self, values: Any, left: Iterator[int]) -> Iterator[Any]:
        """Nodes of the tensors in ``values`` and in what these hold, as long as ``left`` gives something for each."""
        for value in values:
            if next(left, None) is None:
                return
            if isinstance(value, self.state.host.Tensor):
                node = _node(value)
                if node is not None:
                    yield node
            elif isinstance(value, (tuple, list)):
                yield from self._nodes(value, left)
            elif isinstance(value, dict):
                yield from self._nodes(value.values(), left)

    # --- on the thread that runs the nodes --------------------------------------------------------------------------

    def enter(self, call: Any) -> None:
        """The backward pass of ``call`` begins here: its block opens, inside those of the modules around it."""
        state = self.state
        if not state.on["backward"]:
            return
        try:
            stack = state.local.__dict__.setdefault("stack", [])
            if any(open_call is call for open_call, _ in stack):
                return  # its output is its last child's, whose hook on the same node came first and opened both
            chain = []
            link = call
            while link is not None:
                chain.append(link)
                link = link.parent
            chain.reverse()
            shared = 0
            while shared < min(len(stack), len(chain)) and stack[shared][0] is chain[shared]:
                shared += 1
            self._close_down_to(stack, shared)
            for link in chain[shared:]:
                if not self._open(stack, link):
                    return
        except Exception:  # noqa: BLE001
            state.fail("backward")

    def _open(self, stack: list[Any], call: Any) -> bool:
        parent = None
        if not stack:
            parent = self._run_of(call)
            self._close_at_the_end()
        block = self.state.open(call.place.name, call.place.attributes, parent)
        if block is None:
            return False
        stack.append((call, block))
        return True

    def _run_of(self, call: Any) -> Any:
        """The block of the ``backward()`` that runs this node, where it is of another thread."""
        import threading

        mine = threading.get_ident()
        runs = [run for run in self._runs if run.thread in (mine, call.thread)] or self._runs
        if len(runs) != 1 or runs[0].thread == mine:
            return None
        return runs[0]

    def _close_at_the_end(self) -> None:
        """Has autograd call :meth:`_finish` when the pass is over: the only way to act on its thread then."""
        queue = self.state.host.torch.autograd.Variable._execution_engine.queue_callback
        queue(self._finish)

    def leave(self, call: Any) -> None:
        """The backward pass of ``call`` is over."""
        try:
            stack = self.state.local.__dict__.get("stack") or ()
            for depth, (open_call, _) in enumerate(stack):
                if open_call is call:
                    self._close_down_to(stack, depth)
                    return
        except Exception:  # noqa: BLE001
            self.state.fail("backward")

    def _finish(self) -> None:
        try:
            self._close_down_to(self.state.local.__dict__.get("stack") or [], 0)
        except Exception:  # noqa: BLE001
            self.state.fail("backward")

    def _close_down_to(self, stack: Any, depth: int) -> None:
        while len(stack) > depth:
            close_block(stack.pop()[1])


def _node(tensor: Any) -> Any:
    """None also where torch refuses to tell, as for a view of what has been written to since."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None
