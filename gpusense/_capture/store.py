"""What a recorder hands on: the two stores, live and file, do with it what follows."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from .._aggregation.block_totals import BlockTotals, Watched
from .._aggregation.same_kernels import SameKernels
from .._aggregation.threshold import Threshold
from .._attribution.boundaries import Boundary, PlacedItem
from .._decode.correlation_ids import Launches
from .._records.counter_samples import CounterColumns, CounterTable
from .._records.records import (
    Aggregate,
    BlockRecord,
    Counters,
    DeviceBusy,
    DeviceInfo,
    Path,
    Record,
    UnseenInterval,
)
from .._records.work import WorkTable
from .._runtime.config import Settings
from .attachment import Capture

if TYPE_CHECKING:
    from .._aggregation.recent import Recent
    from ..session import Session

MAX_OWNERS = 500_000  # of graph nodes; the oldest are then forgotten

Pause = Callable[[], None]


class Known(Protocol):
    """What a recorder knows of its session, for stores. Without the lock."""

    def meta(self) -> dict[str, Any]: ...
    def devices(self) -> tuple[DeviceInfo, ...]: ...
    def samples(self) -> list[Any]:
        """Device samples so far."""

    def of_old(self) -> list[Record]:
        """What sources tell of the time before, and of what is under way."""

    def all_unseen(self) -> list[UnseenInterval]: ...
    def counters(self) -> Counters: ...
    def snapshot(self) -> "Session":
        """All of it, with :meth:`Store.results`."""


Results = tuple[list[Record], list[Aggregate], list[DeviceBusy], WorkTable]


class Store(Protocol):
    """Called under the recorder's lock, but where it says otherwise: by one thread at a time."""

    mode: str  # of the session
    threshold: Threshold
    launches: Launches  # of the records that were read: what CUPTI added to them
    owners: dict[int, Path]  # graph node id → path of the block that captured it
    watched: Watched  # blocks that the program may ask

    @property
    def recent(self) -> "Recent | None":
        """The last seconds in full, as long as the settings want that and nothing else has them."""

    # --- settings

    def attached(self, capture: Capture) -> None:
        """Capture runs from now on, again perhaps, or blocks are marked from now on."""

    def configure(self, settings: Settings) -> None:
        """What follows is kept by ``settings``."""

    def reset(self, start_ns: int) -> None:
        """Nothing from before ``start_ns`` counts any more."""

    def own(self, owners: dict[int, Path]) -> None:
        """More of :attr:`owners`, before any of these nodes is replayed."""

    # --- in

    def add(self, view: memoryview, thread: int, pause: Pause) -> None:
        """A buffer of activity records, valid during the call. ``pause`` is called between the parts of the work."""

    def name(self, pointer: int) -> str:
        """Of a kernel in a buffer that was added."""

    def lines(self, rows: list[tuple[int, str]]) -> None:
        """Correlation ids and lines of synchronising calls whose records are not read yet."""

    def placed(self, items: list[PlacedItem]) -> list[BlockRecord]:
        """Boundaries where the newest correlation id was read; gives the records of blocks that ended there and are
        still to be recorded."""

    def boundary(self, event: Boundary, early: bool = False, newest: int | None = None) -> None:
        """Its place is where its token comes, if it has one; or behind the id ``newest``; else before all launches
        (``early``), or in the last time in which boundaries had no place."""

    def know(self, event: Boundary) -> None:
        """A boundary that may get its place later."""

    def lose(self, token: int) -> None:
        """No record will come for the boundary with this token."""

    def records(self, records: list[Record | SameKernels]) -> None:
        """Finished records, none perhaps: the end of what was in the queue."""

    def counter_samples(self, columns: CounterColumns) -> None:
        """Samples of hardware counters."""

    # --- cycles

    def may_wait(self, waiting: int, read: bool) -> bool:
        """Without the lock: whether the ``waiting`` items of the queue are of no use to anybody yet. ``read``: the
        newest correlation id is read, so no boundary waits for a marker."""

    def cycle(self, pause: Pause, final: bool = False) -> None:
        """What can be decided is decided and handed on; ``final``: it is the last time, and all of it is."""

    def flush(self) -> None:
        """Nothing waits to be written."""

    def beside(self, known: Known) -> None:
        """After each cycle, without the lock."""

    @property
    def idle(self) -> bool:
        """Without the lock: whether nothing waits for a marker."""

    # --- out

    def counters(self) -> Counters:
        """Without the lock."""

    def results(self) -> Results:
        """What is in memory: records, aggregates, busy devices, all work."""

    def counter_table(self) -> CounterTable:
        """What is in memory of the samples of counters; a copy."""

    def totals(self, block_id: int, lock: AbstractContextManager[None]) -> BlockTotals | None:
        """Without the lock, which it may take: what was launched inside a watched block so far; a copy."""

    def session(self, known: Known, each_block: bool = False) -> "Session":
        """Without the lock: all that was recorded; ``each_block``: as for :func:`gpusense.session.load`."""

    def note(self, known: Known) -> None:
        """Without the lock: what the session says of itself has changed."""

    def close(self, known: Known) -> None:
        """Without the lock, once: nothing follows."""

    def forget_in_child(self) -> None:
        """After a fork: nothing is the child's."""


def remember(known: dict[int, Path], owners: dict[int, Path]) -> None:
    """Adds ``owners`` to ``known``; the oldest are forgotten where that is too much."""
    known.update(owners)
    while len(known) > MAX_OWNERS:
        del known[next(iter(known))]
