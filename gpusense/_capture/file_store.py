"""File mode: raw buffers go to a session file with the names they use; decoding is the reader's work.

Reading names takes the GIL briefly; compressing and writing do not.
"""

from contextlib import AbstractContextManager
from time import monotonic
from typing import Any

from .._aggregation.block_totals import BlockTotals, Watched
from .._aggregation.markers import OwnStream
from .._aggregation.same_kernels import SameKernels, expanded
from .._aggregation.threshold import Threshold
from .._attribution.boundaries import Boundary, PlacedItem, taken_apart
from .._decode.correlation_ids import Launches
from .._decode.labels import label
from .._decode.names import MAX_NAMES, RECHECK_S, Texts
from .._decode.walk import name_pointers
from .._records.counter_samples import CounterColumns, CounterTable, packed
from .._records.json_codec import block_text
from .._records.records import BlockRecord, Counters, Path, Record
from .._records.work import WorkTable
from .._runtime import log, threads
from .._runtime.config import Settings
from .._runtime.errors import SessionError
from ..session import Session, load
from ..session import _format as file
from ..session._block_chunks import AT_ONCE, Packer
from ..session._builder import ended_early
from ..session._following import Following
from ..session._writer import Writer
from .attachment import Capture
from .sinks import Sinks
from .store import Known, Pause, Results, remember

LAYOUT_ID = 1
#: Between two looks for device samples: the monitor forgets what is older than its history. The first is the shortest.
FIRST_SAMPLES_S, SAMPLES_S = 0.1, 10.0
#: Boundaries are written with the next buffer or after this time; closed blocks after this time, or when there are that
#: many. Each write makes a busy thread of the program wait for the GIL a few times.
WRITE_S, WRITE_RECORDS = 0.5, 2000
#: Buffers are written together after this time, mostly those of one reading.
HOLD_S = 0.1


class FileStore:
    """A :class:`~store.Store`: writes ``path`` as the program runs; :meth:`session` reads it back."""

    mode = "file"

    def __init__(self, path: str, settings: Settings, capture: Capture | None, sinks: Sinks, start_ns: int) -> None:
        self.writer = Writer(path, max_bytes=settings.file_limit_bytes)
        self.owners: dict[int, Path] = {}
        self.watched = Watched()
        self._settings = settings
        self._capture = capture
        self._sinks = sinks
        self._known: dict[int, bytes] = {}  # names in the file
        self._texts = Texts()
        self._check_at = 0.0
        self._others_markers: frozenset[OwnStream] = frozenset()  # as the file says
        self._kept_to = 0  # monotonic time of the newest device sample in the file
        self._samples_wait_s, self._samples_at = FIRST_SAMPLES_S, 0.0
        self._keeping = threads.lock()
        self._rows: list[list[Any]] = []  # boundaries that wait, and those where the newest id was read
        self._packer = Packer()
        self._blocks: list[str] = []  # not written yet; texts, made as they come: all at once would keep the GIL long
        self._records: list[Record] = []  # of other kinds
        self._write_at = 0.0
        self._hold_to: float | None = None  # when buffers that wait are written
        self._closed = False
        self._following: Following | None = Following(self.writer.path, self.watched)
        self.reset(start_ns)

    # --- settings ---------------------------------------------------------------------------------------------------

    def attached(self, capture: Capture) -> None:
        # Needed when a block is asked: by then the program may have changed folders, limits or what can be imported.
        from ..session import _replay  # noqa: F401

        self._write_boundaries()
        self._write_layout(capture)
        self.writer.rows(file.DEVICES, capture.devices())

    def _write_layout(self, capture: Capture) -> None:
        self._others_markers = capture.sharing.others_markers
        self.writer.layout(
            LAYOUT_ID,
            capture.strides,
            marker=list(capture.marker_shape or ()),
            kinds=sorted(capture.kinds or ()),
            others_markers=sorted({stream for _, stream in self._others_markers}),
            others_contexts=sorted(own for own in self._others_markers if own[0] is not None),
            epoch=capture.epoch,
        )

    def configure(self, settings: Settings) -> None:
        """What was recorded so far is kept or counted by the settings of before, what follows by those of now."""
        self._settings = settings
        self.threshold.configure(settings.threshold_ns, settings.max_records_per_second)

    def reset(self, start_ns: int) -> None:
        """What the file holds so far is passed over when it is read."""
        self.threshold = Threshold(self._settings.threshold_ns, self._settings.max_records_per_second)
        self.launches = Launches()

    def own(self, owners: dict[int, Path]) -> None:
        remember(self.owners, owners)
        self.writer.json(file.META, {"graph_owners": _written(owners)})

    # --- in ---------------------------------------------------------------------------------------------------------

    def add(self, view: memoryview, thread: int, pause: Pause) -> None:
        capture = self._capture
        assert capture is not None
        fresh = {}
        now = monotonic()
        if now > self._check_at:
            self._check_at = now + RECHECK_S
            self._texts.forget()
        if len(self._known) > MAX_NAMES:  # of modules that are gone, most of them; the others are written again
            self._known.clear()
            self._texts.forget()
        launches = self.launches if self.launches.wanted else None
        pointers = frozenset(name_pointers(view, capture.strides, launches))
        for pointer, name in self._texts.fresh(pointers, capture.name, capture.glance).items():
            if self._known.get(pointer) != name:
                fresh[pointer] = self._known[pointer] = name
        if fresh:
            self.writer.names(fresh, hold=True)
        if capture.sharing.others_markers != self._others_markers:
            self._write_layout(capture)
        self.writer.buffer(view, thread=thread, layout=LAYOUT_ID, hold=True)
        self._hold_to = self._hold_to or now + HOLD_S
        self._release_in_time()

    def _release_in_time(self) -> None:
        if self._hold_to is not None and monotonic() >= self._hold_to:
            self._hold_to = None
            self.writer.release()

    def name(self, pointer: int) -> str:
        known = self._known.get(pointer)
        return label(known) if known else "?"

    def lines(self, rows: list[tuple[int, str]]) -> None:
        self.writer.rows(file.LINES, rows)

    def placed(self, items: list[PlacedItem]) -> list[BlockRecord]:
        if self._rows:
            self._write_boundaries()
        for first in range(0, len(items), AT_ONCE):
            self._blocks += map(block_text, self._packer.add(items[first : first + AT_ONCE]))
            if self._packer.full:
                self._write_boundaries()
        if self._sinks.awaited:
            self._sinks.put([*taken_apart(items)[1]])
        return []

    def boundary(self, event: Boundary, early: bool = False, newest: int | None = None) -> None:
        if self._packer:
            self._write_boundaries()
        if newest is not None:
            self._rows.append([*event, None, newest])
        else:
            self._rows.append([*event, None if event.token else 0 if early else 1])

    def know(self, event: Boundary) -> None:
        """A record says the path of its block."""

    def lose(self, token: int) -> None:
        """A reader gives the boundary up as it is the last one without a record."""

    def records(self, records: list[Record | SameKernels]) -> None:
        if records:
            kept = expanded(records)
            for record in kept:
                if type(record) is BlockRecord:
                    self._blocks.append(block_text(record))
                else:
                    self._records.append(record)
            self._sinks.put(kept)
            if len(self._blocks) + len(self._records) >= WRITE_RECORDS:
                self._write_records()
        self._write_boundaries()

    def _write_records(self) -> None:
        blocks, records, self._blocks, self._records = self._blocks, self._records, [], []
        if blocks:
            self.writer.texts(file.RECORDS, blocks)
        if records:
            self.writer.rows(file.RECORDS, records)

    def _write_boundaries(self) -> None:
        """With what is written next; each write makes a busy thread of the program wait for the GIL."""
        rows, self._rows = self._rows, []
        if rows:
            self.writer.plain_rows(file.BOUNDARY, rows, hold=True)
        if self._packer:
            self.writer.append(file.BLOCKS, *self._packer.take(), hold=True)

    def counter_samples(self, columns: CounterColumns) -> None:
        for parts in packed(columns):
            self.writer.append(file.SAMPLES, *parts, hold=True)
        self._hold_to = self._hold_to or monotonic() + HOLD_S

    # --- cycles -----------------------------------------------------------------------------------------------------

    def may_wait(self, waiting: int, read: bool) -> bool:
        few = waiting < WRITE_RECORDS and not self._sinks.awaited
        return few and read and monotonic() < self._write_at

    def cycle(self, pause: Pause, final: bool = False) -> None:
        self.watched.sweep()
        self.flush()

    def flush(self) -> None:
        self._write_records()
        self.writer.release()
        self._hold_to = None
        self._write_at = monotonic() + WRITE_S

    def beside(self, known: Known) -> None:
        if not self._closed:
            self._release_in_time()
            if monotonic() >= self._samples_at:
                self._keep_samples(known)
                self._samples_at = monotonic() + self._samples_wait_s

    def _keep_samples(self, known: Known) -> None:
        """The samples that the file does not have yet. Raises nothing."""
        if not self._keeping.acquire(timeout=0.5):  # another thread is at it
            return
        try:
            samples = known.samples()
            fresh = [sample for sample in samples if sample.monotonic_ns > self._kept_to]
            if fresh:
                self._kept_to = max(sample.monotonic_ns for sample in fresh)
                self.writer.rows(file.METRICS, fresh)
            # Soon again where much of the history is new: the monitor forgets fast, or has just begun.
            change = 2.0 if len(fresh) * 4 <= len(samples) else 0.5
            self._samples_wait_s = min(SAMPLES_S, max(FIRST_SAMPLES_S, self._samples_wait_s * change))
        except Exception:  # noqa: BLE001 - a source of samples never reaches the program
            log.exception("samples", "device samples could not be kept")
        finally:
            self._keeping.release()

    @property
    def recent(self) -> None:
        """The file has all of it."""

    @property
    def idle(self) -> bool:
        return True

    # --- out --------------------------------------------------------------------------------------------------------

    def counters(self) -> Counters:
        """Of what the file does not have; a reader counts the rest."""
        return Counters(bytes_dropped=self.writer.bytes_dropped, bytes_too_long=self.writer.bytes_too_long)

    def results(self) -> Results:
        return [], [], [], WorkTable()

    def counter_table(self) -> CounterTable:
        return CounterTable()

    def totals(self, block_id: int, lock: AbstractContextManager[None]) -> BlockTotals | None:
        """From what the file holds by now; the first question reads all of it."""

        def ask() -> BlockTotals | None:
            totals = self.watched.get(block_id)
            return totals.copy() if totals is not None else None

        return self._following.bring_up_to_date(ask) if self._following is not None else ask()

    def session(self, known: Known, each_block: bool = False) -> Session:
        """What the file holds by now."""
        if not self._closed:
            self._keep_samples(known)
        try:
            session = load(self.writer.path, each_block=each_block)
        except SessionError as error:
            if self.writer.failure:  # not even its beginning fitted
                raise SessionError(f"{self.writer.path}: {self.writer.failure}") from error
            raise
        if not self._closed:  # what is written at the end alone
            from ..session._replay import with_recorders  # load() has it

            session.counters = with_recorders(session.counters, known.counters())
            session.unseen = known.all_unseen()
        damage = session.meta.setdefault("damage", [])
        if self.writer.failure and (early := ended_early(self.writer.failure)) not in damage:  # END did not fit
            damage.append(early)
        return session

    def note(self, known: Known) -> None:
        self.writer.json(file.META, {**self._meta(known), "end_ns": None})

    def _meta(self, known: Known) -> dict[str, Any]:
        return {**known.meta(), "graph_owners": _written(self.owners)}

    def close(self, known: Known) -> None:
        self._keep_samples(known)
        self._closed = True
        self._write_records()
        meta = self._meta(known)
        self.writer.json(file.META, meta)
        self.writer.rows(file.DEVICES, known.devices())
        self.writer.rows(file.UNSEEN, known.all_unseen())
        self.writer.rows(file.COUNTERS, [known.counters()])
        self.writer.close(end_ns=meta["end_ns"])

    def forget_in_child(self) -> None:
        self._following = None
        self.writer.forget_in_child()


def _written(owners: dict[int, Path]) -> dict[str, list[str]]:
    return {str(node): list(path) for node, path in list(owners.items())}
