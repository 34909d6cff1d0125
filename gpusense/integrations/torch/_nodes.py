"""Nodes of autograd's graph: where a module's backward pass begins and ends, and what they are given to call."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from ._state import Host

MAX_INPUTS = 4
_MAX_VALUES = 64  # of a call that are looked at for tensors: a list may be long, or hold itself
MAX_FLAT = 16  # arguments of a call that is looked at the short way: plain tensors, and what holds none
NO_TENSORS = frozenset({bool, float, int, str, type(None)})


class Hook:
    """What a node is given to call: where the backward pass of ``call`` begins.

    Making one takes longer than all else that is done for a node, so a module keeps those that have been called
    (``home``) for its next calls. One whose graph is kept, to be run again, or is never run, does not come back.
    """

    __slots__ = ("call", "carrier", "home", "out")

    def __init__(self, call: Any, home: "list[Hook] | None" = None) -> None:
        self.call = call
        self.carrier: Any = None  # the tensor whose hooks nodes take over
        self.home = home
        self.out = home is not None  # a node has it, and has not called it

    def go_home(self) -> None:
        """The module may use it again."""
        self.out = False
        if self.home is not None:
            self.home.append(self)


def look(host: Host, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[Any, list[Any]]:
    """The node of the first tensor in ``output``, and those of the tensors in the arguments."""
    tensor = host.Tensor
    if type(output) is tensor and len(args) + len(kwargs) <= MAX_FLAT:
        try:
            produced, found = output.grad_fn, []
            for value in (*args, *kwargs.values()) if kwargs else args:
                kind = type(value)
                if kind is tensor:
                    node = value.grad_fn
                    if node is not None:
                        found.append(node)
                elif kind not in NO_TENSORS:
                    break
            else:
                return produced, found
        except RuntimeError:  # see _node
            pass
    with host.unwatched():
        produced = next(_nodes(tensor, (output,), iter(range(_MAX_VALUES))), None)
        inputs = (*args, *kwargs.values())
        return produced, [*islice(_nodes(tensor, inputs, iter(range(_MAX_VALUES))), MAX_INPUTS)]


def _nodes(tensor_type: Any, values: Any, left: Iterator[int]) -> Iterator[Any]:
    """Nodes of the tensors in ``values`` and in what these hold, as long as ``left`` gives something for each."""
    for value in values:
        if next(left, None) is None:
            return
        if isinstance(value, tensor_type):
            node = _node(value)
            if node is not None:
                yield node
        elif isinstance(value, (tuple, list)):
            yield from _nodes(tensor_type, value, left)
        elif isinstance(value, dict):
            yield from _nodes(tensor_type, value.values(), left)


def _node(tensor: Any) -> Any:
    """None also where torch refuses to tell, as for a view of what has been written to since."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None
