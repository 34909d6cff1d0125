"""File mode: raw buffers go to a session file with the names they use; decoding is the reader's work.

Reading names takes the GIL briefly; compressing and writing do not.
"""

from collections.abc import Iterable
from time import monotonic, time_ns
from typing import Any

from .._aggregation.block_totals import BlockTotals
from .._aggregation.same_kernels import Alike, expanded
from .._attribution.attributor import Boundary
from .._attribution.crossings import AT_ONCE, Packer, taken_apart
from .._decode.names import MAX_NAMES, RECHECK_S, base_name, text
from .._decode.walk import name_pointers
from .._records.json_codec import block_text
from .._records.records import BlockRecord, Path, Record
from .._runtime import log, threads
from .._runtime.config import Settings
from ..session import _format as file
from ..session._following import Following
from ..session._writer import Writer
from .attachment import Capture
from .recorder import Recorder

LAYOUT_ID = 1
#: Between two looks for device samples: the monitor forgets what is older than its history. The first is the shortest.
FIRST_SAMPLES_S, SAMPLES_S = 0.1, 10.0
#: Boundaries are written with the next buffer or after this time; closed blocks after this time, or when there are that
#: many. Each write makes a busy thread of the program wait for the GIL a few times.
WRITE_S, WRITE_RECORDS = 0.5, 2000
#: Buffers are written together after this time, mostly those of one reading.
HOLD_S = 0.1


class FileRecorder(Recorder):
    """Writes ``path`` as the program runs; :meth:`session` reads it back."""

    mode = "file"

    def __init__(self, settings: Settings, capture: Capture | None, path: str) -> None:
        super().__init__(settings, capture)
        self.writer = Writer(path, max_bytes=settings.file_limit_bytes)
        self.writer.json(file.META, {**self.meta(), "end_ns": None})
        self._known: dict[int, bytes] = {}
        self._checked: set[int] = set()
        self._check_at = 0.0
        self._others_markers: frozenset[int] = frozenset()  # as the file says
        self._kept_to = 0  # monotonic time of the newest device sample in the file
        self._samples_wait_s, self._samples_at = FIRST_SAMPLES_S, 0.0
        self._keeping = threads.lock()
        self._rows: list[list[Any]] = []  # boundaries that wait, and those where the newest id was read
        self._packer = Packer()
        self._blocks: list[str] = []  # not written yet; texts, made as they come: all at once would keep the GIL long
        self._records: list[Record] = []  # of other kinds
        self._write_at = 0.0
        self._hold_to: float | None = None  # when buffers that wait are written
        self._following: Following | None = Following(self.writer.path, self.pipeline.watched)

    def _attached(self) -> None:
        capture = self.capture
        assert capture is not None
        self._write_layout(capture)
        self.writer.rows(file.DEVICES, self.devices())

    def _write_layout(self, capture: Capture) -> None:
        self._others_markers = capture.sharing.others_markers
        self.writer.layout(
            LAYOUT_ID,
            capture.strides,
            marker=list(capture.marker_shape or ()),
            kinds=sorted(capture.kinds or ()),
            others_markers=sorted(self._others_markers),
            epoch=self._epoch,
        )

    def _place(self, event: Boundary, corr: int | None) -> None:
        self._write_boundaries()
        self.writer.rows(file.BOUNDARY, [[*event, corr]])

    def _read(self, buffer: memoryview, thread: int) -> None:
        capture = self.capture
        assert capture is not None
        fresh = {}
        now = monotonic()
        if now > self._check_at:
            self._check_at = now + RECHECK_S
            self._checked.clear()
        if len(self._known) > MAX_NAMES:  # of modules that are gone, most of them; the others are written again
            self._known.clear()
            self._checked.clear()
        launches = self.pipeline.launches if self.pipeline.launches.wanted else None
        for pointer in name_pointers(buffer, capture.strides, launches).difference(self._checked):
            text = capture.name(pointer)
            self._checked.add(pointer)
            if self._known.get(pointer) != text:
                fresh[pointer] = self._known[pointer] = text
        if fresh:
            self.writer.names(fresh, hold=True)
        if capture.sharing.others_markers != self._others_markers:
            self._write_layout(capture)
        if self._hang is not None:
            self._hang.read(buffer, capture.strides, self._name, capture.marker_shape)
        self.writer.buffer(buffer, thread=thread, layout=LAYOUT_ID, hold=True)
        self._hold_to = self._hold_to or now + HOLD_S
        self._release_in_time()

    def _release_in_time(self) -> None:
        """Under the lock."""
        if self._hold_to is not None and monotonic() >= self._hold_to:
            self._hold_to = None
            self.writer.release()

    def _lines(self, rows: list[tuple[int, str]]) -> None:
        self.writer.rows(file.LINES, rows)

    def _name(self, pointer: int) -> str:
        return base_name(text(self._known.get(pointer, b""))) or "?"

    def _keep_evidence(self) -> None:
        with self._lock:
            self._write_all()
        self.writer.json(file.META, {**self.meta(), "end_ns": None})

    def _manual(self, records: Iterable[Record | Alike]) -> None:
        kept = expanded(records)
        for record in kept:
            if type(record) is BlockRecord:
                self._blocks.append(block_text(record))
            else:
                self._records.append(record)
        self._delivery.put(kept)
        if len(self._blocks) + len(self._records) >= WRITE_RECORDS:
            self._write_records()

    def _write_records(self) -> None:
        blocks, records, self._blocks, self._records = self._blocks, self._records, [], []
        if blocks:
            self.writer.texts(file.RECORDS, blocks)
        if records:
            self.writer.rows(file.RECORDS, records)

    def _place_after(self, crossings: list[Any]) -> list[Any]:
        if self._rows:
            self._write_boundaries()
        for first in range(0, len(crossings), AT_ONCE):
            self._blocks += map(block_text, self._packer.add(crossings[first : first + AT_ONCE]))
            if self._packer.full:
                self._write_boundaries()
        if self._delivery.awaited:
            self._delivery.put([*taken_apart(crossings)[1]])
        return []

    def _boundary(self, item: list[Any]) -> None:
        if item[7] or self.capture is None:
            if self._packer:
                self._write_boundaries()
            self._rows.append([*item, None if item[7] else 0])
        else:
            super()._boundary(item)

    def _consume(self, most: int | None = None) -> None:
        super()._consume(most)
        self._write_boundaries()

    def _write_boundaries(self) -> None:
        """With what is written next; each write makes a busy thread of the program wait for the GIL."""
        rows, self._rows = self._rows, []
        if rows:
            self.writer.plain_rows(file.BOUNDARY, rows, hold=True)
        if self._packer:
            self.writer.append(file.BLOCKS, *self._packer.take(), hold=True)

    def _write_all(self) -> None:
        """Everything there is goes to the file. Under the lock."""
        self._consume()
        self._write_records()
        self.writer.release()
        self._hold_to = None
        self._write_at = monotonic() + WRITE_S

    def reconfigure(self, settings: Settings) -> None:
        """What was recorded so far is kept or counted by the settings of before, what follows by those of now."""
        with self._lock:
            self._write_all()
        super().reconfigure(settings)
        self.writer.json(file.META, {**self.meta(), "end_ns": None})

    def reset(self) -> None:
        """What the file holds so far is passed over when it is read."""
        with self._lock:
            self._write_all()
        super().reset()
        self.writer.json(file.META, {**self.meta(), "end_ns": None})

    def own(self, owners: dict[int, Path]) -> None:
        super().own(owners)
        self.writer.json(file.META, {"graph_owners": _written(owners)})

    def meta(self) -> dict[str, Any]:
        return {**super().meta(), "graph_owners": _written(self.pipeline.owners)}

    def end_results(self, deliver: bool = True) -> None:
        ended = self._end_ns is not None
        super().end_results(deliver)
        if ended:
            return
        self._keep_samples()
        self._write_records()
        self.writer.json(file.META, self.meta())
        self.writer.rows(file.DEVICES, self.devices())
        self.writer.rows(file.UNSEEN, self.unseen_stretches())
        lost = {"bytes_dropped": self.writer.bytes_dropped, "bytes_too_long": self.writer.bytes_too_long}
        self.writer.rows(file.COUNTERS, [self.counters()._replace(**lost)])
        self.writer.close(end_ns=self._end_ns or time_ns())

    def _may_wait(self) -> bool:
        few = len(self.events) < WRITE_RECORDS and not self._delivery.awaited
        return few and self.newest is not None and monotonic() < self._write_at

    def _digest(self) -> None:
        super()._digest()
        self._write_all()

    def _round(self, lazily: bool) -> None:
        super()._round(lazily)
        if self._hold_to is not None:
            with self._lock:
                self._release_in_time()
        if monotonic() >= self._samples_at and self._end_ns is None:
            self._keep_samples()
            self._samples_at = monotonic() + self._samples_wait_s

    def _keep_samples(self) -> None:
        """The samples that the file does not have yet. Raises nothing."""
        if not self._keeping.acquire(timeout=0.5):  # another thread is at it
            return
        try:
            known = self.samples()
            fresh = [sample for sample in known if sample.monotonic_ns > self._kept_to]
            if fresh:
                self._kept_to = max(sample.monotonic_ns for sample in fresh)
                self.writer.rows(file.METRICS, fresh)
            # Soon again where much of the history is new: the monitor forgets fast, or has just begun.
            change = 2.0 if len(fresh) * 4 <= len(known) else 0.5
            self._samples_wait_s = min(SAMPLES_S, max(FIRST_SAMPLES_S, self._samples_wait_s * change))
        except Exception:  # noqa: BLE001 - a source of samples never reaches the program
            log.exception("samples", "gpusense: device samples could not be kept")
        finally:
            self._keeping.release()

    def block_totals(self, block: Any) -> BlockTotals | None:
        """From what the file holds by now; the first question reads all of it."""
        ask = super().block_totals
        if self._following is None:
            return ask(block)
        self._bring_up_to_date()
        return self._following.bring_up_to_date(lambda: ask(block))

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._following = None

    def _bring_up_to_date(self) -> None:
        if self._end_ns is None and not self._lock.mine:
            with self._lock:
                self._write_all()

    def session(self) -> Any:
        """What the file holds by now."""
        from ..session import ended_early, load

        if self._end_ns is None:
            self._keep_samples()
        self._bring_up_to_date()
        session = load(self.writer.path)
        damage = session.meta.setdefault("damage", [])
        if self.writer.failure and (early := ended_early(self.writer.failure)) not in damage:  # END did not fit
            damage.append(early)
        return session


def _written(owners: dict[int, Path]) -> dict[str, list[str]]:
    return {str(node): list(path) for node, path in list(owners.items())}
