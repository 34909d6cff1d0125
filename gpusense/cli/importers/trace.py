"""What an importer found in a trace, and the session it makes. Pure.

Device work comes without blocks. It belongs to the block that was open where it was launched: the call with its
correlation id says on which thread and when. A launch on a thread without an open block (autograd's) belongs to the
only chain of blocks that was open, as in a run of gpusense.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from ..._aggregation.pipeline import Limits, Pipeline
from ..._decode.labels import label
from ..._records.records import (
    BlockRecord,
    Counters,
    DeviceInfo,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Path,
    UnseenInterval,
)
from ..._runtime.text import count_text
from ...session import Session
from .._call_places import CallPlaces, Span
from .collectives import TOLD, collective

Work = GpuKernel | GpuMemoryTransfer | GpuMemset

#: Of all that is kept until the session is made; what comes beyond is counted. About a kilobyte each.
MOST = 3_000_000
THRESHOLD_NS = 100_000
_LATEST_NS = 1 << 62
_YEAR_2000_NS = 946_684_800_000_000_000  # before it no trace was recorded: such times count from something else
_NAME = 8192  # characters of a kernel's name that are read
_NAMES = 1 << 28  # characters of all of them; what comes beyond is cut like the name of a block
_BLOCK_NAME = 200
_SORTS = 30  # of what is left out that are told apart
_THREADS = 10_000  # that have a name

#: Calls in which the host waits, by the part of their name behind "cuda", "cu" or "hip".
WAITS = {
    "DeviceSynchronize": "context_synchronize",
    "CtxSynchronize": "context_synchronize",
    "StreamSynchronize": "stream_synchronize",
    "EventSynchronize": "event_synchronize",
}


def wait_of(call: str) -> str | None:
    """``"cudaStreamSynchronize_v3020"`` → ``"stream_synchronize"``; None for a call in which the host does not wait."""
    name = call.partition("_")[0]
    for library in ("cuda", "hip", "cu"):
        if name.startswith(library):
            return WAITS.get(name.removeprefix(library))
    return None


class Call(NamedTuple):
    """Where something was launched."""

    thread: int
    start_ns: int
    bytes: int | None = None


class _Mark(NamedTuple):
    thread: int
    start_ns: int
    end_ns: int
    name: str
    attributes: dict[str, Any] | None


class Trace:
    """Filled by an importer, then asked for its :meth:`session`. ``left_out`` counts, by a plural name, what was in the
    file and is not in the session; ``notes`` are sentences."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.meta: dict[str, Any] = {}
        self.devices: dict[int, DeviceInfo] = {}
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        self.base_ns = 0  # what times are to be added to
        self.knows_calls = False  # calls of the host were recorded
        self.first_ns, self.last_ns = _LATEST_NS, -_LATEST_NS
        self._work: list[tuple[Work, Hashable]] = []
        self._calls: dict[Hashable, Call] = {}
        self._collectives: list[tuple[dict[str, Any], int, int, Hashable]] = []
        self._waits: dict[Hashable, tuple[GpuSync, int | None]] = {}
        self._marks: list[_Mark] = []
        self._labels: dict[str, str] = {}
        self._names_left = _NAMES
        self._threads: dict[str, int] = {}
        self._thread_names: dict[int, str] = {}

    def __len__(self) -> int:
        """Records so far."""
        return len(self._work) + len(self._collectives) + len(self._waits) + len(self._marks)

    # --- in ---------------------------------------------------------------------------------------------------------

    def see(self, start_ns: int, end_ns: int) -> bool:
        """Makes the run reach over a time; False, and counted, for one that cannot be."""
        if not -_LATEST_NS < start_ns <= end_ns < _LATEST_NS:
            self.leave_out("records with times that cannot be")
            return False
        self.first_ns = min(self.first_ns, start_ns)
        self.last_ns = max(self.last_ns, end_ns)
        return True

    def leave_out(self, what: str, count: int = 1) -> None:
        """Counts something that is not carried; ``what`` is plural, and may be of any number of sorts."""
        known = what in self.left_out or len(self.left_out) < _SORTS
        self.left_out[what if known else "things of other sorts"] += count

    def thread(self, key: Any) -> int:
        """The number of a thread: its own, or where it has none a negative one, given in turn."""
        if isinstance(key, int) and 0 <= key < _LATEST_NS:
            return key
        return self._threads.setdefault(repr(key)[:_BLOCK_NAME], -1 - len(self._threads))

    def name_thread(self, thread: int, name: str) -> None:
        if len(self._thread_names) < _THREADS:
            self._thread_names[thread] = name[:_BLOCK_NAME]

    def kernel_names(self, name: str) -> dict[str, Any]:
        """The fields of a kernel that tell its name."""
        full = name[: _NAME if self._names_left > 0 else _BLOCK_NAME]
        short = self._labels.get(full)
        if short is None:
            self._names_left -= len(full)
            short = self._labels[full] = label(full)
        return {"name": short, "full_name": full if full != short else None}

    def add(self, work: Work, launch: Hashable) -> None:
        """Work of a device; ``launch``: what its launching call is known by."""
        if self._fits() and self.see(work.start_ns, work.end_ns):
            self._work.append((work, launch))

    def add_collective(self, args: dict[str, Any], start_ns: int, end_ns: int, launch: Hashable) -> None:
        """What is told of a collective beside its kernel, see :func:`.collectives.collective`."""
        if self._fits():
            self._collectives.append(({name: args[name] for name in TOLD if name in args}, start_ns, end_ns, launch))

    def call(self, launch: Hashable, call: Call) -> None:
        """A call of the host that may have launched something."""
        self.knows_calls = True
        if len(self._calls) < MOST:
            self._calls[launch] = call

    def wait(self, wait: GpuSync, launch: Hashable, thread: int | None) -> None:
        """A wait of the host, by the call (with its thread) or by the driver's record of it, which has more."""
        self.knows_calls = True
        known = self._waits.get(launch)
        if known is not None and (wait.device is None or not self.see(wait.start_ns, wait.end_ns)):
            return
        if known is not None or (self._fits() and self.see(wait.start_ns, wait.end_ns)):
            self._waits[launch] = wait, thread if thread is not None else known[1] if known else None

    def block(
        self, thread: int, start_ns: int, end_ns: int, name: str, attributes: dict[str, Any] | None = None
    ) -> None:
        """Something that the program named, on a thread."""
        if self._fits() and self.see(start_ns, end_ns):
            self._marks.append(_Mark(thread, start_ns, end_ns, name[:_BLOCK_NAME] or "(unnamed)", attributes))

    def _fits(self) -> bool:
        if len(self) < MOST:
            return True
        self.leave_out(f"records beyond the first {MOST:,}")
        return False

    # --- out --------------------------------------------------------------------------------------------------------

    def session(self, threshold_ns: int | None, trace_all: bool, written_ns: int) -> Session:
        """All of it. ``written_ns``: when the file was written, for a trace that does not say when it was made."""
        threshold = THRESHOLD_NS if threshold_ns is None else threshold_ns
        shift = self._shift(written_ns)
        blocks = self._blocks(shift)
        places = CallPlaces()
        places.add(blocks, {mark.thread: mark.thread for mark in self._marks})
        threads = {block.thread for block in blocks}
        pipeline = Pipeline(Limits(threshold, trace_all, 1 << 62, max_records=1 << 62))
        pipeline.record(blocks)
        unplaced = inherited = 0
        for work, launch in self._work:
            call = self._calls.get(launch)
            span = None if call is None else places.at(call.thread, call.start_ns + shift)
            if call is None:
                unplaced += not work.path
            elif span is None and (span := _only_open(places, threads, call.start_ns + shift)) is not None:
                inherited += 1
            if type(work) is GpuMemoryTransfer and not work.bytes and call is not None and call.bytes:
                work = work._replace(bytes=call.bytes)
            pipeline.record([_at(work, span, shift)])
        for wait, thread in self._waits.values():
            span = None if thread is None else places.at(thread, wait.start_ns + shift)
            pipeline.record([_at(wait, span, shift)])
        for record, launch in self._told():
            call = self._calls.get(launch)
            at_ns = record.start_ns if call is None else call.start_ns
            span = None if call is None else places.at(call.thread, at_ns + shift)
            moved = _at(record._replace(start_ns=at_ns, end_ns=at_ns), span, shift)
            pipeline.record(
                [
                    moved._replace(
                        device_start_ns=record.device_start_ns + shift,
                        device_end_ns=record.device_end_ns + shift,
                        thread=None if call is None else call.thread,
                    )
                ]
            )
        if unplaced and blocks:
            self.notes.append(
                f"{count_text(unplaced, 'operation')} are in no block: the trace lacks what launched them"
            )
        counters = pipeline.counters()._replace(inherited=inherited)
        return self._made(pipeline, counters, threshold, trace_all, shift)

    def _told(self) -> Iterator[tuple[Any, Hashable]]:
        """Records of collectives, once it is known which rank the trace is of."""
        rank = self.meta.get("rank")
        for args, start_ns, end_ns, launch in self._collectives:
            record = collective(args, start_ns, end_ns, rank if isinstance(rank, int) else None)
            if record is not None:
                yield record, launch

    def _shift(self, written_ns: int) -> int:
        if self.first_ns > self.last_ns:
            return self.base_ns
        if self.first_ns + self.base_ns >= _YEAR_2000_NS and self.last_ns + self.base_ns < _LATEST_NS:
            return self.base_ns
        self.notes.append("the trace does not say when it was made: its end stands at the time its file was written")
        return max(written_ns - self.last_ns, 1 - self.first_ns)

    def _blocks(self, shift: int) -> list[BlockRecord]:
        """Marks of one thread lie in each other; those that overlap in another way stand beside each other."""
        found: list[BlockRecord] = []
        open_: dict[int, list[BlockRecord]] = {}
        for mark in sorted(self._marks, key=lambda mark: (mark.start_ns, -mark.end_ns)):
            stack = open_.setdefault(mark.thread, [])
            start, end = mark.start_ns + shift, mark.end_ns + shift
            while stack and stack[-1].end_ns < end:
                stack.pop()
            above = stack[-1] if stack else None
            path: Path = ((*above.path, mark.name) if above is not None else (mark.name,))[:64]
            number = len(found) + 1
            parent = above.block_id if above is not None else None
            found.append(BlockRecord(mark.name, number, parent, path, start, end, mark.thread, mark.attributes))
            stack.append(found[-1])
        return found

    def _made(self, pipeline: Pipeline, counters: Counters, threshold: int, trace_all: bool, shift: int) -> Session:
        from ... import __version__

        used = {work.device for work, _ in self._work if work.device is not None}
        devices = [self.devices.get(index) or _unknown_device(index, self.tool) for index in sorted(used)]
        meta: dict[str, Any] = {
            "version": __version__,
            "pid": None,
            "start_ns": self.first_ns + shift,
            "end_ns": self.last_ns + shift,
            "threshold_ns": threshold,
            "trace_all": trace_all,
            "mode": "import",
            "imported_from": self.tool,
            "backends": {},
            "rank": None,
            "world_size": None,
            "kinds": ["sync"] if self.knows_calls else [],
            "threads": [
                {"thread": thread, "native_id": thread, "name": name} for thread, name in self._thread_names.items()
            ],
            "notes": self._said(),
            "sources": {self.tool: dict(self.left_out)},
            **self.meta,
        }
        session = Session(
            meta=meta,
            devices=tuple(devices),
            records=list(pipeline.kept),
            aggregates=pipeline.ledger.aggregates(),
            busy=pipeline.ledger.busy(),
            unseen=[]
            if self._work
            else [UnseenInterval(self.first_ns + shift, None, f"no device work in the {self.tool} trace")],
            counters=counters,
        )
        session.take_work(pipeline.work)
        return session

    def what_was_left_out(self) -> str:
        """``"cpu_op events (40,506), …"``, the most first."""
        return ", ".join(f"{what} ({count:,})" for what, count in self.left_out.most_common())

    def _said(self) -> list[str]:
        """What whoever reads a report has to know of where it is from."""
        waits = "" if self.knows_calls else "; waits of the host are not known, because its calls were not recorded"
        said = [f"imported from {self.tool}: no device samples{waits}; nothing is known of the time outside the trace"]
        if self.left_out:
            said.append(f"not carried: {self.what_was_left_out()}")
        return [*said, *self.notes]


def _only_open(places: CallPlaces, threads: set[int], time_ns: int) -> Span | None:
    found = [span for span in (places.at(thread, time_ns) for thread in threads) if span is not None]
    return found[0] if len(found) == 1 else None


def _at(record: Any, span: Span | None, shift: int) -> Any:
    fields: dict[str, Any] = {"start_ns": record.start_ns + shift, "end_ns": record.end_ns + shift}
    if span is not None and not record.path:
        fields |= {"path": span.path, "block_id": span.block_id}
    return record._replace(**fields)


def _unknown_device(index: int, tool: str) -> DeviceInfo:
    return DeviceInfo(index, f"device {index} of the trace", "unknown", tool, cuda_index=index)


def vendor_of(name: str) -> str:
    """ "nvidia", "amd" … by what a device is called."""
    low = name.lower()
    for vendor, words in _VENDORS:
        if any(word in low for word in words):
            return vendor
    return "unknown"


_VENDORS = (
    ("amd", ("amd", "radeon", "instinct")),
    ("nvidia", ("nvidia", "tesla", "geforce", "quadro", "rtx", "titan")),
    ("intel", ("intel",)),
)
