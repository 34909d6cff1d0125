"""What the program's threads leave in the recorder's queue, and what gpusense's own thread makes of it. Pure.

Each item is a plain tuple, and its first field is its kind. A thread of the program appends it as a literal: whatever
is called there, a constructor too, is time of the program. The types below say what the fields are; a checker holds
whoever leaves an item, and whoever takes one apart, to them.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

from .._records.records import BlockRecord, Path

#: What happens at a boundary, see :class:`Boundary`.
CLOSE: Final = 0
OPEN: Final = 1
SWITCH: Final = 2
LEAVE: Final = 3
#: Of no block and no thread: boundaries have no place from here on, and from here on they have one again.
DARK: Final = 4
LIT: Final = 5
#: A thread has ended; one that begins later may have its id.
GONE: Final = 6

#: A call that has not returned yet is taken to end within this time after it began.
OPEN_ENDED_NS = 50_000_000


class Boundary(NamedTuple):
    """A block was opened or closed, or a thread went on in another one. ``before_ns`` and ``after_ns`` bracket the
    marker call.

    Where switches between tasks are seen, ``parent_id`` of CLOSE and SWITCH is the block that the thread is in from
    here on (0: none), until a SWITCH with None: from then on order decides, with all that is open. LEAVE: order
    decides, and of the blocks of the thread only ``parent_id`` and those around it count as open.

    What was launched between DARK and LIT is not seen: blocks began and ended there, and nobody knows where.
    """

    op: int
    block_id: int  # 0 where nothing is opened or closed
    parent_id: int | None
    thread: int
    before_ns: int
    after_ns: int
    name: str = ""
    token: int = 0  # what the marker call carries into its record; 0: none


class MarkerCall:
    """The call that marks a boundary and carries ``token`` into its record. ``ended_ns``: 0 until it has returned."""

    __slots__ = ("ended_ns", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.ended_ns = 0


class Frame:
    """One open scope of a :class:`Run`: of a module, with what it is (``place.name``, ``place.attributes``), or of a
    block that was opened inside the run, without a place.

    ``block``: None until somebody asks. ``number``: its id. ``corr``: the newest correlation id when it opened, or -1
    where it had a block from the start. Made by ``Frame.__new__``: a constructor is one function more where it counts.
    """

    __slots__ = ("before", "block", "corr", "number", "outer", "place", "run", "start_ns")
    place: Any
    run: Any
    outer: "Frame | None"
    block: Any
    number: int
    start_ns: int
    corr: int
    before: Any  # for the integration

    @property
    def path(self) -> Path:
        """Names, outermost first."""
        if self.block is not None:
            found: Path = self.block.path
            return found
        around = self.outer.path if self.outer is not None else ()
        return (*around, self.place.name)

    def record(self, end_ns: int) -> BlockRecord:
        """Of the block that it would have been; it lies in another one."""
        outer: Any = self.outer
        place = self.place
        return BlockRecord(
            place.name, self.number, outer.number, self.path, self.start_ns, end_ns, self.run.thread, place.attributes
        )


# --- kinds of items ---------------------------------------------------------------------------------------------------

PLACED: Final = 0
ENDED: Final = 1
FRAME_OPENED: Final = 2
FRAME_ENDED: Final = 3
FRAME_FOLLOWED: Final = 4
LAST_PLACED: Final = FRAME_FOLLOWED  # up to here: where the newest correlation id was read
MARKED: Final = 5
UNPLACED: Final = 6
LOST: Final = 7
CLOSED: Final = 8
RECORD: Final = 9

#: A boundary: op, block, parent, thread, time and name as in :class:`Boundary`, newest correlation id. Launches from
#: the next id on come after it.
Placed = tuple[Literal[0], int, int, int | None, int, int, str, int]
#: A block ended: ``parent_id`` and thread of the boundary, newest id, and the fields of the block's record.
Ended = tuple[
    Literal[1], int | None, int, int, str, int, int | None, Path, int, int, int, dict[str, Any] | None, str | None
]
FrameOpened = tuple[Literal[2], Frame]
#: With time and newest id.
FrameEnded = tuple[Literal[3], Frame, int, int]
#: The same, with the frame that was opened in its place.
FrameFollowed = tuple[Literal[4], Frame, int, int, Frame]
#: A boundary with a marker: op, block, parent, thread, time and name, and the call, which may not have returned yet.
Marked = tuple[Literal[5], int, int, int | None, int, int, str, MarkerCall]
#: A boundary where nothing could say its place: op, block, parent, thread, time, name.
Unplaced = tuple[Literal[6], int, int, int | None, int, int, str]
#: The marker call with this token failed: no record will come.
Lost = tuple[Literal[7], int]
#: A block whose end is an item of its own: the fields of its record.
Closed = tuple[Literal[8], str, int, int | None, Path, int, int, int, dict[str, Any] | None, str | None]
#: A finished record that the program made, or several in one.
Recorded = tuple[Literal[9], Any]

PlacedItem = Placed | Ended | FrameOpened | FrameEnded | FrameFollowed
Item = PlacedItem | Marked | Unplaced | Lost | Closed | Recorded


def taken_apart(items: Iterable[PlacedItem]) -> tuple[list[Placed], list[BlockRecord]]:
    """Boundaries, each with the newest id before it, and the records of the blocks that ended."""
    rows: list[Placed] = []
    records: list[BlockRecord] = []
    for item in items:
        if item[0] == PLACED:
            rows.append(item)
        elif item[0] == ENDED:
            _, inside, here, newest, *fields = item
            record = BlockRecord._make(fields)
            rows.append((PLACED, CLOSE, record.block_id, inside, here, record.end_ns, "", newest))
            records.append(record)
        elif item[0] == FRAME_OPENED:
            frame = item[1]
            rows.append(_opened(frame, frame.start_ns, frame.corr))
        else:
            frame, end, newest = item[1:4]
            rows.append((PLACED, CLOSE, frame.number, None, frame.run.thread, end, "", newest))
            records.append(frame.record(end))
            if item[0] == FRAME_FOLLOWED:
                rows.append(_opened(item[4], end, newest))
    return rows, records


def _opened(frame: Frame, start_ns: int, newest: int) -> Placed:
    outer = frame.outer
    parent = outer.number if outer is not None else None
    return PLACED, OPEN, frame.number, parent, frame.run.thread, start_ns, frame.place.name, newest


def boundary_of(item: Marked | Unplaced) -> Boundary:
    """The boundary of an item without a newest id; where that is one with a marker, it has a token."""
    op, block, parent, thread, before_ns, name = item[1:7]
    after_ns = before_ns + OPEN_ENDED_NS
    if item[0] == UNPLACED:
        return Boundary(op, block, parent, thread, before_ns, after_ns, name)
    call = item[7]
    return Boundary(op, block, parent, thread, before_ns, call.ended_ns or after_ns, name, call.token)


def on_clock(item: Any, of: Callable[[int], int]) -> Any:
    """``item`` with its times by another clock; none ends before it starts. A boundary with a marker: see
    :func:`boundary_on_clock`."""
    kind = item[0]
    if kind in (PLACED, UNPLACED):
        return (*item[:5], of(item[5]), *item[6:])
    if kind == ENDED:
        return (*item[:8], *_span_on_clock(item[8], item[9], of), *item[10:])
    if kind == CLOSED:
        return (*item[:5], *_span_on_clock(item[5], item[6], of), *item[7:])
    if kind == FRAME_OPENED:
        item[1].start_ns = of(item[1].start_ns)
    elif kind in (FRAME_ENDED, FRAME_FOLLOWED):
        end = max(of(item[2]), item[1].start_ns)
        if kind == FRAME_FOLLOWED:
            item[4].start_ns = end
        return (*item[:2], end, *item[3:])
    elif kind == RECORD and hasattr(item[1], "start_ns"):
        return RECORD, item[1]._replace(start_ns=of(item[1].start_ns), end_ns=of(item[1].end_ns))
    return item


def _span_on_clock(start_ns: int, end_ns: int, of: Callable[[int], int]) -> tuple[int, int]:
    start = of(start_ns)
    return start, max(start, of(end_ns))


def boundary_on_clock(event: Boundary, of: Callable[[int], int]) -> Boundary:
    """As :func:`on_clock`."""
    before = of(event.before_ns)
    open_ended = event.after_ns == event.before_ns + OPEN_ENDED_NS
    after = before + OPEN_ENDED_NS if open_ended else max(before, of(event.after_ns))
    return event._replace(before_ns=before, after_ns=after)


def record_of(item: Closed | Recorded) -> Any:
    """The finished record of an item, or several in one."""
    return BlockRecord._make(item[1:]) if item[0] == CLOSED else item[1]
