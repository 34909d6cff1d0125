"""What ``trace()`` and ``compute_block()`` give, and what runs on the program's threads where a block begins or ends.

Nothing of ours that fails in here reaches the program, and nothing waits.

Where the newest correlation id can be read, that is the place of a boundary among the launches; else a marker call is.
The test stands in four functions, three of them with all that they do in one piece: blocks of spans and ranges lie
between long runs of a framework's own code, and each function of ours is then slow to reach.

A signal handler of the program may run after any call in here, and what it raises is the program's: it passes, and the
block has its end all the same. So the end is left in the queue once, by this rule: between ``end_ns`` being set and the
item being left there is no call, and whoever finds ``end_ns`` None after an exception leaves it again.
"""

from collections import deque
from collections.abc import Callable
from time import time_ns
from typing import Any
from weakref import ref

from .._attribution.boundaries import (
    CLOSE,
    CLOSED,
    ENDED,
    GONE,
    LOST,
    MARKED,
    OPEN,
    PLACED,
    SWITCH,
    UNPLACED,
    Ended,
    Item,
    MarkerCall,
)
from .._attribution.open_blocks import (
    LAST_ID,
    block_ids,
    end_frames,
    entered,
    here,
    innermost,
    left,
    next_token,
    running,
)
from .._capture.recorder import Recorder
from .._records.records import OPEN_AT_END, Path
from .._records.validate import attributes_of
from .._runtime import log, threads
from .._runtime.config import Settings
from .._runtime.interrupts import from_the_start, is_the_programs
from .._runtime.text import time_text
from .decorator import compute_decorated, decorated
from .summary import block_summary
from .tasks import TaskSwitches

_get_ident = threads.thread_id()

#: Boundaries and records that wait for gpusense's thread; beyond this, blocks are not recorded but counted. Blocks in
#: others look at every 64th.
MAX_WAITING, _LOOK_EVERY = 200_000, 64
_SHOWN_S = 0.5  # that a notebook waits for what it shows of a block


class Block:
    """What ``trace()`` gives: a context manager and a decorator; afterwards the place to ask what was launched inside.

    ``block_id`` is unique in the process; ``path`` has the names of the enclosing blocks and its own, outermost first.
    Times are nanoseconds since the epoch; ``end_ns`` is None while the block is open.

    For the package: ``tracer``, whose block it is; ``outer``, the block around it; ``is_open``; ``recorded``, False
    where sampling left it out; ``totals`` of what was launched inside, with the id of the block that it was then;
    ``marked``: on which streams the device times it, while it is open.
    """

    __slots__ = (
        "__weakref__",
        "_template",
        "attributes",
        "block_id",
        "end_ns",
        "error",
        "is_open",
        "links",
        "marked",
        "name",
        "outer",
        "parent_id",
        "path",
        "recorded",
        "start_ns",
        "thread",
        "totals",
        "tracer",
    )

    def __init__(self, tracer: "Blocks", name: Any, attributes: Any, links: Any) -> None:
        self.tracer = tracer
        self.name = name
        self.attributes = attributes
        self.links = links
        self.block_id = self.start_ns = self.thread = 0
        self.end_ns: int | None = None
        self.error: str | None = None
        self.parent_id: int | None = None
        self.path: tuple[str, ...] = ()
        self.outer: Block | None = None
        self.recorded = False
        self.is_open = False
        self.totals: Any = None
        self.marked: Any = None
        self._template: Block | None = None  # the block that was entered while open, for which this one stands in

    def __enter__(self) -> "Block":  # noqa: PYI034 - typing.Self is of 3.11
        if self.is_open:  # entered twice by one thread, or shared by several
            other = Block(self.tracer, self.name, self.attributes, self.links)
            other._template = self
            try:
                other = other.__enter__()
            except BaseException:  # the program's, and it may come when that has returned
                other.__exit__(None, None, None)
                raise
            return other
        self.is_open = True
        try:
            self.tracer.begin(self)
            if self.recorded:
                self.tracer.watched[self.block_id] = ref(self)
        except BaseException as error:  # whatever fails in us, the program's block runs
            if not _failed_in_us(error):
                self.__exit__(None, None, None)  # ``with`` will not call it
                raise
            self.tracer.failed_blocks += 1
        return self

    @from_the_start
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            current = innermost.get()
            if current is not self and current is not None:
                self, current = _meant(self, current, kind)
            if not self.is_open:
                return
            self.is_open = False
            if kind is not None:
                self.error = kind.__name__
            if current is self:  # never Token.reset: it raises where a generator is finished in another context
                innermost.set(self.outer)
            if running:
                left(self)
            if self.recorded:
                self.tracer.end(self)
            else:
                self.end_ns = time_ns()
        except BaseException as error:  # as in __enter__
            if not self.ended_after(error, kind):
                raise

    def ended_after(self, error: BaseException, kind: type[BaseException] | None = None) -> bool:
        """Does what ``error`` has cut off of the end of this block; whether it is of no concern to the program."""
        try:
            if self.is_open:
                self.__exit__(kind)
            elif self.end_ns is None:
                if innermost.get() is self:
                    innermost.set(self.outer)
                if running:
                    left(self)
                if self.recorded:
                    self.tracer.end(self)
        except Exception as again:
            if is_the_programs(again):
                raise
        finally:
            if self.end_ns is None and not self.is_open:
                self.end_ns = time_ns()
        if not _failed_in_us(error):
            return False
        self.tracer.failed_blocks += 1
        return True

    def __call__(self, function: Any) -> Any:
        return decorated(function, self.name, self.attributes, self.links)

    def __repr__(self) -> str:
        if not self.block_id:
            return f"<Block {self.name!r}: not entered>"
        path = " › ".join(self.path)
        if self.end_ns is None:
            return f"<Block {path}: open for {time_text(time_ns() - self.start_ns)}>"
        return f"<Block {path}: {time_text(self.end_ns - self.start_ns)}{'' if self.recorded else ', not recorded'}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self.summary(_SHOWN_S)) if self._has_ended else repr(self))

    def _repr_html_(self) -> str | None:
        return self.summary(_SHOWN_S).as_html() if self._has_ended else None

    @property
    def _has_ended(self) -> bool:
        return self.recorded and self.end_ns is not None

    def wait(self, timeout_s: float = 5.0) -> bool:
        """Waits until the work launched inside has finished and been read; False where that did not happen in time."""
        settled: bool = self.tracer.recorder.settle(self, timeout_s)
        return settled

    def summary(self, timeout_s: float = 5.0) -> Any:
        """:class:`BlockSummary` of what was launched inside, after :meth:`wait`; says so where it is incomplete."""
        return block_summary(self, self.tracer.recorder, self.wait(timeout_s))


class TimedBlock:
    """CPU work on the timeline; see :meth:`Tracer.compute_block`. ``record``: its tracer's ``record_compute_block``."""

    __slots__ = ("_attributes", "_elements", "_name", "_record", "_start")

    def __init__(self, record: Callable[..., None], name: Any, elements: int | None, attributes: Any) -> None:
        self._record = record
        self._name = name
        self._elements = elements
        self._attributes = attributes

    def __enter__(self) -> "TimedBlock":  # noqa: PYI034 - typing.Self is of 3.11
        self._start = time_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._record(self._name, self._start, time_ns(), self._elements, attributes=self._attributes)

    def __call__(self, function: Any) -> Any:
        return compute_decorated(function, self._name, self._elements, self._attributes)


def _text(name: Any) -> str:
    if name is not None:
        return str(name)
    from .caller import called_from

    return called_from()


class _ThreadEnd:
    """Goes with its thread, and says so then: a later thread may get the same id."""

    tell: Callable[[int], None] | None = None
    thread = 0

    def __del__(self) -> None:
        if self.tell is not None:
            self.tell(self.thread)


class Blocks:
    """The blocks of a tracer: what happens to them goes into the queue of its ``recorder``.

    ``watched``: blocks that the program has, and may ask what was launched inside; by id.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.config = settings
        self.recorder = recorder
        self.watched: dict[int, ref[Any]] = recorder.store.watched.blocks
        self.failed_blocks = 0
        self._append: Callable[[Item], None] = recorder.events.append
        self._listeners: tuple[Any, ...] = ()
        self._tasks: TaskSwitches | None = None  # with exact attribution
        self._share = 1 - 1e-9  # so that the first block is opened
        self._shed = threads.Count()
        self._crowded = False  # at the last look whether there is room for more
        self._each_thread = threads.local()  # ``end``: of a thread that opened a block outside all others

    # --- with -------------------------------------------------------------------------------------------------------

    def begin(self, block: Block) -> None:
        """``block`` becomes the innermost one of this thread or task."""
        block.end_ns = None
        block.recorded = False
        outer: Block | None = here() if running else innermost.get()
        while outer is not None and outer.end_ns is not None:  # left behind in this context by another one
            outer = outer.outer
        if block.block_id and outer is not None:  # used before: then it may enclose what now encloses it
            outer = _unless_inside(outer, block)
        block.outer = outer
        number = block.block_id = next(block_ids)
        block.error = None
        thread = block.thread = _get_ident()
        innermost.set(block)
        if running:
            entered(block)
        name = block.name = block.name if type(block.name) is str else _text(block.name)
        if outer is None:
            parent = block.parent_id = None
            block.path = (name,)
            recorded = self._root(thread)
        else:
            parent = block.parent_id = outer.block_id
            block.path = (*outer.path, name)
            has_room = not self._crowded and number % _LOOK_EVERY
            recorded = outer.recorded and bool(has_room or self._has_room())
        if not recorded:
            block.start_ns = time_ns()
            return
        if self.recorder.armed:
            self.recorder.poke()
        if self._tasks is not None:
            self._tasks.opens(block)
        now = block.start_ns = time_ns()
        block.recorded = True
        self._boundary(OPEN, number, parent, thread, now, name)
        for listener in self._listeners:
            try:
                listener.block_opened(block)
            except Exception as error:  # noqa: BLE001, PERF203 - a listener never reaches the program
                self._raised(listener, error)

    def end(self, block: Block) -> None:
        """A recorded block has been closed; it may be on another thread than its own."""
        recorder = self.recorder
        if recorder.armed:  # what was launched inside may already be recorded
            recorder.poke()
        inside = self._tasks.closes(block) if self._tasks is not None else None
        thread = _get_ident()
        marker, newest = recorder.marker, recorder.newest
        end = time_ns()
        attributes = block.attributes
        if not self._listeners and marker is not None and newest is not None and (corr := newest()) <= LAST_ID:
            if attributes is not None:
                attributes = attributes.copy() if type(attributes) is dict else _owned(attributes)
            item: Ended = (  # one thing, of which gpusense's thread makes the record
                ENDED, inside, thread, corr, block.name, block.block_id, block.parent_id, block.path, block.start_ns,
                end, block.thread, attributes, block.error,
            )  # fmt: skip
            block.end_ns = end
            self._append(item)
            return
        end = self._boundary(CLOSE, block.block_id, inside, thread, end, "")
        block.end_ns = end
        attributes = None
        try:
            for listener in self._listeners:
                try:
                    listener.block_closed(block)
                except Exception as error:  # noqa: BLE001, PERF203 - as in begin
                    self._raised(listener, error)
            if block.attributes is not None:
                attributes = _owned(block.attributes)
        finally:
            self._append((
                CLOSED, block.name, block.block_id, block.parent_id, block.path, block.start_ns, end, block.thread,
                attributes, block.error,
            ))  # fmt: skip

    def _end_open(self) -> list[Path]:
        """The blocks of the program that are open still, as they began: each is recorded as ended now, and says so. No
        block of this tracer is recorded from here on."""
        events, self._append = self.recorder.events, deque[Any](maxlen=0).append
        end, left = time_ns(), []
        for found in self.watched.copy().values():
            block = found()
            if block is not None and block.recorded and block.end_ns is None:
                left.append(block)
        left.sort(key=lambda block: block.block_id)
        for block in left:
            own = None if block.attributes is None else _owned(block.attributes)
            attributes = {**(own or {}), OPEN_AT_END: True}
            events.append((
                CLOSED, block.name, block.block_id, block.parent_id, block.path, block.start_ns,
                max(end, block.start_ns), block.thread, attributes, block.error,
            ))  # fmt: skip
        return [block.path for block in left]

    def _has_room(self) -> bool:
        self._crowded = len(self.recorder.events) > MAX_WAITING
        if self._crowded:
            self._shed.add()
        return not self._crowded

    def _root(self, thread: int) -> bool:
        """Whether a block outside all others is recorded. Its thread is followed to its end from then on."""
        if not hasattr(self._each_thread, "end"):
            self._follow(thread)
        if len(self.recorder.events) > MAX_WAITING:
            return self._has_room()
        rate = self.config.sample_rate
        if rate >= 1.0:
            return True
        self._share += rate
        if self._share < 1.0:
            return False
        self._share -= 1.0
        return True

    # --- spans and ranges of others ---------------------------------------------------------------------------------

    def open_scope(self, name: Any, attributes: Any = None, key: Any = None, parent: Any = None) -> Block:
        """Opens a block without a ``with``, for spans of others; close it with :meth:`close_scope` on this thread.

        ``parent``: a block of another thread that this one belongs to.
        """
        recorder = self.recorder
        outer: Block | None = here() if running else innermost.get()
        newest = recorder.newest
        if (
            newest is None
            or recorder.marker is None
            or self._tasks is not None
            or self._listeners
            or parent is not None
            or type(name) is not str
            or not (outer.end_ns is None and outer.recorded if outer is not None else self.config.sample_rate >= 1.0)
            or len(recorder.events) > MAX_WAITING
        ):
            return self._open_slowly(name, attributes, parent)
        block = Block.__new__(Block)  # and what its constructor does
        block.tracer, block.name, block.attributes, block.links = self, name, attributes, None
        block.end_ns = block.error = block.totals = block.marked = block._template = None
        block.is_open = False
        try:
            now = block.start_ns = time_ns()
            number, thread = next(block_ids), _get_ident()
            block.block_id, block.thread, block.outer = number, thread, outer
            if outer is not None:
                block.parent_id, block.path = outer.block_id, (*outer.path, name)
            else:
                block.parent_id, block.path = None, (name,)
                if not hasattr(self._each_thread, "end"):
                    self._follow(thread)
            block.is_open = block.recorded = True
            innermost.set(block)
            if (corr := newest()) > LAST_ID:  # from now on it is another way, which this block's start takes, too
                innermost.set(outer)
                return self._open_slowly(name, attributes, None)
            if running:
                entered(block)
            self._append((PLACED, OPEN, number, block.parent_id, thread, now, name, corr))
            return block  # in here: an interrupt may come at any line
        except BaseException as error:  # whatever fails in us, the span of others goes on
            if not _failed_in_us(error):
                block.__exit__(None, None, None)  # nobody will have the block to close it
                raise
            self.failed_blocks += 1
        return block

    def _open_slowly(self, name: Any, attributes: Any, parent: Any) -> Block:
        if isinstance(parent, Block):  # else it was opened while nothing was recorded
            innermost.set(parent)
            if self._tasks is not None:
                self._tasks.here()
        block = Block(self, name, attributes, None)
        block.is_open = True
        try:  # as __enter__ does, which would be one call more
            self.begin(block)
        except BaseException as error:
            if not _failed_in_us(error):
                block.__exit__(None, None, None)
                raise
            self.failed_blocks += 1
        return block

    @from_the_start
    def close_scope(self, block: Any) -> None:
        """Closes a block of :meth:`open_scope`; a second time does nothing."""
        try:
            recorder, attributes = self.recorder, block.attributes
            newest = recorder.newest
            if (
                newest is None
                or recorder.marker is None
                or self._tasks is not None
                or self._listeners
                or not (attributes is None or type(attributes) is dict)
                or innermost.get() is not block
                or not (block.is_open and block.recorded)
                or (corr := newest()) > LAST_ID
            ):
                block.__exit__(None, None, None)
                return
            block.is_open = False
            innermost.set(block.outer)
            if running:
                left(block)
            end = time_ns()
            item: Ended = (
                ENDED, None, _get_ident(), corr, block.name, block.block_id, block.parent_id, block.path,
                block.start_ns, end, block.thread, None if attributes is None else attributes.copy(), block.error,
            )  # fmt: skip
            block.end_ns = end
            self._append(item)
        except BaseException as error:  # as in open_scope
            if not (isinstance(block, Block) and block.ended_after(error)):
                raise

    def ways_of_frames(self, block: Block) -> tuple[Callable[[Item], None], Callable[[], int]] | None:
        """For frames inside ``block``: where they are left, and what gives the newest correlation id; None where only
        blocks will do."""
        recorder = self.recorder
        newest = recorder.newest
        if (
            newest is None
            or recorder.marker is None
            or self._tasks is not None
            or self._listeners
            or not (block.is_open and block.recorded and innermost.get() is block)
        ):
            return None
        return self._append, newest

    # --- boundaries -------------------------------------------------------------------------------------------------

    def _boundary(self, op: int, block_id: int, parent_id: int | None, thread: int, now_ns: int, name: str) -> int:
        """Leaves a boundary in the queue, see :class:`Boundary`; gives its time, after the marker where it has one."""
        recorder = self.recorder
        marker, newest = recorder.marker, recorder.newest
        if marker is None:
            self._append((UNPLACED, op, block_id, parent_id, thread, now_ns, name))
        elif newest is not None and (corr := newest()) <= LAST_ID:
            self._append((PLACED, op, block_id, parent_id, thread, now_ns, name, corr))
        else:
            return self._mark(marker, op, block_id, parent_id, thread, now_ns, name)
        return now_ns

    def _mark(
        self,
        marker: Callable[[int], Any],
        op: int,
        block_id: int,
        parent_id: int | None,
        thread: int,
        before_ns: int,
        name: str,
    ) -> int:
        """Leaves a boundary in the queue, around a call of ``marker``; gives the time after it."""
        token = next_token()
        call = MarkerCall(token)
        # Before the call: its record may be read before it returns.
        self._append((MARKED, op, block_id, parent_id, thread, before_ns, name, call))
        failed: Any = True
        try:
            failed = marker(token)
        finally:
            call.ended_ns = time_ns()
            if failed:
                self._append((LOST, token))
        return call.ended_ns

    def _follow(self, thread: int) -> None:
        """The calling thread opened a block outside all others for the first time."""
        self.recorder.thread_names.look(thread)  # it may be gone before the next look at all
        if not threads.ends_with_python():
            self._each_thread.end = None
            return
        end = self._each_thread.end = _ThreadEnd()
        end.thread = thread
        end.tell = self._thread_ended  # an interrupt may have come before

    def _thread_ended(self, thread: int) -> None:
        """Called on it, at its end."""
        try:
            self._boundary(GONE, 0, None, thread, time_ns(), "")
        except Exception:  # noqa: BLE001 - the thread ends all the same
            self.failed_blocks += 1

    def _switched(self, op: int, thread: int, inside: int | None) -> bool:
        """Launches of ``thread`` belong to another block from now on; see :data:`Mark`."""
        if op == SWITCH and inside is not None and len(self.recorder.events) > MAX_WAITING:
            return False
        self._boundary(op, 0, inside, thread, time_ns(), "")
        return True

    def _switched_unmarked(self, op: int, thread: int, inside: int | None) -> bool:
        self._append((UNPLACED, op, 0, inside, thread, time_ns(), ""))
        return True

    # --- listeners --------------------------------------------------------------------------------------------------

    def add_block_listener(self, listener: Any) -> None:
        """``listener.block_opened(block)`` and ``.block_closed(block)`` on the block's own thread from now on. One that
        raises is removed, which is logged."""
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)
            end_frames()

    def remove_block_listener(self, listener: Any) -> None:
        """Calls ``listener`` no more."""
        self._listeners = tuple(known for known in self._listeners if known is not listener)

    def _raised(self, listener: Any, error: Exception) -> None:
        if is_the_programs(error):
            raise error
        self.remove_block_listener(listener)
        log.exception(f"listener {listener!r}", "a block listener raised and was removed")


def _failed_in_us(error: BaseException) -> bool:
    """Whether ``error`` never reaches the program: not what it throws into its own threads."""
    return isinstance(error, Exception) and not is_the_programs(error)


def _meant(block: Block, inner: Block, kind: type[BaseException] | None) -> tuple[Block, Any]:
    """What is to end where ``block`` is left and ``inner`` is the innermost one, and which that is then.

    It may stand in for ``block``. Where an exception leaves ``block``, what is open in it was interrupted before it
    could end, and ends now.
    """
    if inner._template is block:
        return inner, inner
    if kind is not None:
        over: list[Block] = []
        at: Block | None = inner
        while at is not None and at is not block:
            over.append(at)
            at = at.outer
        for one in over if at is block else ():
            if one.thread == _get_ident():
                one.__exit__(kind)
    return block, innermost.get()


def _unless_inside(block: Block, other: Block) -> Block | None:
    """``block``, or None where that is ``other`` or inside it."""
    at: Block | None = block
    while at is not None:
        if at is other:
            return None
        at = at.outer
    return block


def _owned(attributes: Any) -> dict[Any, Any] | None:
    """A copy for a record, because the program may go on with its own; None of what is no mapping, which is said."""
    try:
        return attributes_of(attributes)
    except Exception as error:
        if is_the_programs(error):
            raise
        log.once("attributes", "attributes of a block are left out: %s: %s", type(error).__name__, error)
        return None
