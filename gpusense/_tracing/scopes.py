"""Blocks that are opened and closed by calls, for spans, ranges and modules of others: a tracer's part.

What runs at a boundary stands here in one function, although :class:`Block` has the same in several: blocks of a
framework's modules lie between long stretches of its own code, and each function of ours is then slow to reach.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any
from weakref import ref

from .._attribution.boundaries import ENDED, OPEN, PLACED, Item
from .._attribution.open_blocks import LAST_ID, block_ids, entered, here, innermost, left, running
from .._runtime import threads
from .block import Block

_get_ident = threads.thread_id()

#: Boundaries and records that wait for gpusense's thread; beyond this, blocks are not recorded but counted.
MAX_WAITING = 200_000


class Scopes:
    """``_append`` puts what happens into the tracer's queue."""

    config: Any
    failed_blocks: int
    _recorder: Any
    _steps: Any
    _listeners: tuple[Any, ...]
    _append: Callable[[Item], None]
    _watched: dict[int, ref[Any]]

    def open_scope(self, name: Any, attributes: Any = None, key: Any = None, parent: Any = None) -> Block:
        """Opens a block without a ``with``, for spans of others; close it with :meth:`close_scope` on this thread.

        ``parent``: a block of another thread that this one belongs to.
        """
        recorder = self._recorder
        outer: Block | None = here() if running else innermost.get()
        newest = recorder.newest
        if (
            newest is None
            or recorder.marker is None
            or self._steps is not None
            or self._listeners
            or parent is not None
            or type(name) is not str
            or not (
                outer.end_ns is None and outer._sampled
                if outer is not None
                else self.config.sample_rate >= 1.0 and len(recorder.events) <= MAX_WAITING
            )
        ):
            return self._open_slowly(name, attributes, parent)
        block = Block.__new__(Block)  # and what its constructor does
        block._tracer, block.name, block.attributes, block.links = self, name, attributes, None  # type: ignore[assignment]
        block.end_ns = block.error = block._totals = block._template = None
        block._open = False
        try:
            now = block.start_ns = time_ns()
            number, thread = next(block_ids), _get_ident()
            block.block_id, block.thread, block._outer = number, thread, outer
            if outer is not None:
                block.parent_id, block.path = outer.block_id, (*outer.path, name)
            else:
                block.parent_id, block.path = None, (name,)
            block._open = block._sampled = True
            innermost.set(block)
            if (corr := newest()) > LAST_ID:  # from now on it is another way, which this block's start takes, too
                innermost.set(outer)
                return self._open_slowly(name, attributes, None)
            if running:
                entered(block)
            self._append((PLACED, OPEN, number, block.parent_id, thread, now, name, corr))
            return block  # in here: an interrupt may come at any line
        except Exception:  # noqa: BLE001 - whatever fails in us, the span of others goes on
            self.failed_blocks += 1
        except BaseException:  # an interrupt: nobody will have the block to close it
            block.__exit__(None, None, None)
            raise
        return block

    def _open_slowly(self, name: Any, attributes: Any, parent: Any) -> Block:
        if isinstance(parent, Block):  # else it was given while nothing was recorded
            innermost.set(parent)
            if self._steps is not None:
                self._steps.here()
        block = Block(self, name, attributes, None)  # type: ignore[arg-type]
        block._open = True
        try:  # as __enter__ does, which would be one call more
            block._enter()
        except Exception:  # noqa: BLE001
            self.failed_blocks += 1
        except BaseException:
            block.__exit__(None, None, None)
            raise
        return block

    def close_scope(self, block: Any) -> None:
        """Closes a block of :meth:`open_scope`; a second time does nothing."""
        recorder, attributes = self._recorder, block.attributes
        newest = recorder.newest
        if (
            newest is None
            or recorder.marker is None
            or self._steps is not None
            or self._listeners
            or not (attributes is None or type(attributes) is dict)
            or innermost.get() is not block
            or not (block._open and block._sampled)
            or (corr := newest()) > LAST_ID
        ):
            block.__exit__(None, None, None)
            return
        try:
            block._open = False
            innermost.set(block._outer)
            if running:
                left(block)
            end = block.end_ns = time_ns()
            self._append((
                ENDED, None, _get_ident(), corr, block.name, block.block_id, block.parent_id, block.path,
                block.start_ns, end, block.thread, None if attributes is None else attributes.copy(), block.error,
            ))  # fmt: skip
        except Exception:  # noqa: BLE001 - as in open_scope
            self.failed_blocks += 1
        finally:
            if block.end_ns is None:
                block.end_ns = time_ns()

    def ways_of_frames(self, block: Block) -> tuple[Callable[[Item], None], Callable[[], int]] | None:
        """For frames inside ``block``: where they are left, and what gives the newest correlation id; None where only
        blocks will do."""
        recorder = self._recorder
        newest = recorder.newest
        if (
            newest is None
            or recorder.marker is None
            or self._steps is not None
            or self._listeners
            or not (block._open and block._sampled and innermost.get() is block)
        ):
            return None
        return self._append, newest
