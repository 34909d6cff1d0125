"""What ``trace()`` and ``compute_block()`` give: they run on the program's threads and tell their tracer.

Nothing of ours that fails in here reaches the program, and nothing waits.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any, Protocol
from weakref import ref

from .._attribution.boundaries import Item
from .._attribution.open_blocks import block_ids, entered, here, innermost, left, running
from .._runtime import threads

_get_ident = threads.thread_id()


class Keeper(Protocol):
    """What blocks ask of their tracer."""

    failed_blocks: int
    _recorder: Any
    _watched: dict[int, ref[Any]]  # blocks that the program has, and may ask what was launched inside

    def _sample(self) -> bool: ...
    def _opened(self, block: "Block") -> None: ...
    def _closed(self, block: "Block") -> None: ...
    def close_scope(self, block: "Block") -> None: ...
    def ways_of_frames(self, block: "Block") -> tuple[Callable[[Item], None], Callable[[], int]] | None: ...
    def record_compute_block(
        self, name: Any, start_ns: int, end_ns: int, elements: int | None, *, attributes: Any
    ) -> None: ...


class Block:
    """What ``trace()`` gives: a context manager and a decorator; afterwards the place to ask what was launched inside.

    ``block_id`` is unique in the process; ``path`` has the names of the enclosing blocks and its own, outermost first.
    Times are nanoseconds since the epoch; ``end_ns`` is None while the block is open.
    """

    __slots__ = (
        "__weakref__",
        "_open",
        "_outer",
        "_sampled",
        "_template",
        "_totals",
        "_tracer",
        "attributes",
        "block_id",
        "end_ns",
        "error",
        "links",
        "name",
        "parent_id",
        "path",
        "start_ns",
        "thread",
    )

    def __init__(self, tracer: Keeper, name: Any, attributes: Any, links: Any) -> None:
        self._tracer = tracer
        self.name = name
        self.attributes = attributes
        self.links = links
        self.block_id = self.start_ns = self.thread = 0
        self.end_ns: int | None = None
        self.error: str | None = None
        self.parent_id: int | None = None
        self.path: tuple[str, ...] = ()
        self._outer: Block | None = None
        self._sampled = False
        self._open = False
        self._totals: Any = None  # of what was launched inside, with the id of the block that it was then
        self._template: Block | None = None  # the block that was entered while open, for which this one stands in

    def __enter__(self) -> "Block":  # noqa: PYI034 - typing.Self is of 3.11
        if self._open:  # entered twice by one thread, or shared by several
            other = Block(self._tracer, self.name, self.attributes, self.links)
            other._template = self
            return other.__enter__()
        self._open = True
        try:
            self._enter()
            if self._sampled:
                self._tracer._watched[self.block_id] = ref(self)
        except Exception:  # noqa: BLE001 - whatever fails in us, the program's block runs
            self._tracer.failed_blocks += 1
        except BaseException:  # an interrupt: ``with`` will not call __exit__
            self.__exit__(None, None, None)
            raise
        return self

    def _enter(self) -> None:
        self.end_ns = None
        self._sampled = False
        outer: Block | None = here() if running else innermost.get()
        while outer is not None and outer.end_ns is not None:  # left behind in this context by another one
            outer = outer._outer
        if self.block_id and outer is not None:  # used before: then it may enclose what now encloses it
            outer = outer._unless_inside(self)
        self._outer = outer
        self.block_id = next(block_ids)
        self.error = None
        self.thread = _get_ident()
        innermost.set(self)
        if running:
            entered(self)
        name = self.name = self.name if type(self.name) is str else str(self.name)
        if outer is None:
            self.parent_id = None
            self.path = (name,)
            sampled = self._tracer._sample()
        else:
            self.parent_id = outer.block_id
            self.path = (*outer.path, name)
            sampled = outer._sampled
        if sampled:
            self._tracer._opened(self)
        else:
            self.start_ns = time_ns()

    def _unless_inside(self, other: "Block") -> "Block | None":
        block: Block | None = self
        while block is not None:
            if block is other:
                return None
            block = block._outer
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        current = innermost.get()
        if current is not self and current is not None and current._template is self:
            current.__exit__(kind)
            return
        if not self._open:
            return
        try:
            self._open = False
            if kind is not None:
                self.error = kind.__name__
            if current is self:  # never Token.reset: it raises where a generator is finished in another context
                innermost.set(self._outer)
            if running:
                left(self)
            if self._sampled:
                self._tracer._closed(self)
            else:
                self.end_ns = time_ns()
        except Exception:  # noqa: BLE001 - as in __enter__
            self._tracer.failed_blocks += 1
        finally:
            if self.end_ns is None:
                self.end_ns = time_ns()

    def __call__(self, function: Any) -> Any:
        from .decorator import decorated

        return decorated(function, self.name, self.attributes, self.links)

    def wait(self, timeout_s: float = 5.0) -> bool:
        """Waits until the work launched inside has finished and been read; False where that did not happen in time."""
        settled: bool = self._tracer._recorder.settle(self, timeout_s)
        return settled

    def summary(self, timeout_s: float = 5.0) -> Any:
        """:class:`BlockSummary` of what was launched inside, after :meth:`wait`; says so where it is incomplete."""
        from .summary import block_summary

        return block_summary(self, self._tracer._recorder, self.wait(timeout_s))


class TimedBlock:
    """CPU work on the timeline; see :meth:`Tracer.compute_block`."""

    __slots__ = ("_attributes", "_elements", "_name", "_start", "_tracer")

    def __init__(self, tracer: Keeper, name: Any, elements: int | None, attributes: Any) -> None:
        self._tracer = tracer
        self._name = name
        self._elements = elements
        self._attributes = attributes

    def __enter__(self) -> "TimedBlock":  # noqa: PYI034 - typing.Self is of 3.11
        self._start = time_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._tracer.record_compute_block(
            self._name, self._start, time_ns(), self._elements, attributes=self._attributes
        )

    def __call__(self, function: Any) -> Any:
        from .decorator import compute_decorated

        return compute_decorated(function, self._name, self._elements, self._attributes)
