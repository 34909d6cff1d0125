"""Blocks that are opened and closed by calls, for spans, ranges and modules of others: a tracer's part.

What runs at a boundary stands here in one function, although :class:`Block` has the same in several: blocks of a
framework's modules lie between long stretches of its own code, and each function of ours is then slow to reach.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any
from weakref import ref

from . import _native
from ._attribution import CLOSE, OPEN
from ._block import Block, block_ids, innermost

_get_ident = _native.thread_id()

LAST_ID = 0xFFFFFFFF  # more from ``newest()``: it may have missed some


class Scopes:
    """``_append`` puts what happens into the tracer's queue."""

    failed_blocks: int
    _recorder: Any
    _steps: Any
    _listeners: tuple[Any, ...]
    _append: Callable[[Any], None]
    _watched: dict[int, ref[Any]]

    def open_scope(self, name: Any, attributes: Any = None, key: Any = None, parent: Any = None) -> Block:
        """Opens a block without a ``with``, for spans of others; close it with :meth:`close_scope` on this thread.

        ``parent``: a block of another thread that this one belongs to.
        """
        recorder, outer = self._recorder, innermost.get()
        newest = recorder.newest
        if (
            newest is None
            or recorder.marker is None
            or self._steps is not None
            or self._listeners
            or parent is not None
            or outer is None
            or outer.end_ns is not None
            or not outer._sampled
            or type(name) is not str
        ):
            return self._open_slowly(name, attributes, parent)
        block = Block(self, name, attributes, None)  # type: ignore[arg-type]
        try:
            now = block.start_ns = time_ns()
            number, thread = next(block_ids), _get_ident()
            block.block_id, block.thread, block._outer, block.parent_id = number, thread, outer, outer.block_id
            block.path = (*outer.path, name)
            block._open = block._sampled = True
            innermost.set(block)
            if (corr := newest()) > LAST_ID:  # from now on it is another way, which this block's start takes, too
                innermost.set(outer)
                return self._open_slowly(name, attributes, None)
            self._append([OPEN, number, outer.block_id, thread, now, now, name, 0, corr])
        except Exception:  # noqa: BLE001 - whatever fails in us, the span of others goes on
            self.failed_blocks += 1
        except BaseException:  # an interrupt: nobody will have the block to close it
            block.__exit__(None, None, None)
            raise
        return block

    def _open_slowly(self, name: Any, attributes: Any, parent: Any) -> Block:
        if parent is not None:
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
        block.__exit__(None, None, None)

    def next_scope(self, block: Block, name: str, attributes: Any = None) -> Block:
        """Closes ``block`` of :meth:`open_scope` and opens another beside it, at one boundary of both; on this thread.

        What :meth:`close_scope` and :meth:`open_scope` do, with one look into CUPTI's buffers instead of two. ``block``
        itself may come back, as the next one.
        """
        recorder, now = self._recorder, time_ns()
        newest, outer = recorder.newest, block._outer
        if (
            newest is None
            or recorder.marker is None
            or self._steps is not None
            or self._listeners
            or not (block._open and block._sampled and innermost.get() is block)
            or block._tracer is not self  # type: ignore[comparison-overlap]
            or block.block_id in self._watched
            or outer is None
            or outer.end_ns is not None
            or (corr := newest()) > LAST_ID
        ):
            block.__exit__(None, None, None)
            return self.open_scope(name, attributes)
        # Nobody has asked for the block: it becomes the next one, for which nothing new needs to be made.
        old, number, thread = block.block_id, next(block_ids), block.thread
        ended = (
            *(old, None, thread, now, corr, block.name, block.parent_id, block.path, block.start_ns, thread),
            *(block.attributes, None, number, name),
        )
        try:
            block.block_id, block.start_ns, block.attributes = number, now, attributes
            block.name, block.path = name, (*outer.path, name)
            self._append(ended)
        except BaseException as error:  # an interrupt, most likely: nobody knows which of both is open
            block._open, block.end_ns = False, now
            innermost.set(outer)
            for closed in (old, number):
                self._append([CLOSE, closed, None, thread, now, now, "", 0, corr])
            if not isinstance(error, Exception):
                raise
            self.failed_blocks += 1
        return block
