"""The live tracer: what the program calls. Blocks are in ``_block``, the thread that moves all along in ``_worker``."""

import sys
from collections import deque
from collections.abc import Callable
from itertools import count
from time import time_ns
from typing import TYPE_CHECKING, Any, overload

from .._attribution.attributor import CLOSE, OPEN, SWITCH
from .._attribution.open_blocks import LAST_ID, end_frames, running
from .._capture.recorder import Recorder
from .._capture.worker import Worker
from .._records.records import BlockRecord, Record
from .._records.validate import attributes_of
from .._runtime import log, package, process, threads
from .._runtime.config import Settings
from . import scopes
from .block import Block, TimedBlock
from .manual import ByHand
from .scopes import Scopes
from .tasks import Steps

if TYPE_CHECKING:
    from os import PathLike

    from ..session import Session
    from .summary import Bottleneck, TraceSummary

_tokens = count(1)
_get_ident = threads.thread_id()

#: A call that has not returned yet is taken to end within this time after it began.
OPEN_ENDED_NS = 50_000_000
#: Ending capture, and handing out what is left: no exit takes longer because of us.
END_CAPTURE_S, END_RESULTS_S = 1.2, 0.8


class Tracer(Scopes, ByHand):
    """Records what this process does. All methods may be called from any thread and none raises into the program
    for a reason of gpusense's own."""

    active = True

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.config = settings
        self.metrics_source: Any = None
        self._recorder: Recorder = recorder
        self._watched = recorder.pipeline.watched.blocks
        self._append = recorder.events.append
        self._listeners: tuple[Any, ...] = ()
        self._share = 1 - 1e-9  # so that the first block is opened
        self.failed_blocks = self.ignored_records = 0
        self._shed = threads.Count()
        self._left_behind = False
        self._steps: Steps | None = None  # of tasks, with exact attribution
        self._worker = Worker(recorder)
        recorder.wake = self._worker.wake
        recorder.metrics_source = self._metrics
        recorder.elsewhere = self._worker.errand
        recorder.on_own_thread = self._worker.is_current
        recorder.left_out = self._left_out
        process.register(self)
        self._worker.start()
        self._follow_steps()

    def _metrics(self) -> Any:
        """The monitor whose samples belong to this session: the one that was set, or the one that runs."""
        module = sys.modules.get(f"{package.NAME}.monitor")
        return self.metrics_source or (module.current() if module is not None else None)

    # --- blocks -----------------------------------------------------------------------------------------------------

    def trace(self, name: Any = None, attributes: Any = None, links: Any = None) -> Block:
        """A block named ``name``; use it with ``with`` or as a decorator. See :func:`gpusense.trace`."""
        return Block(self, name, attributes, links)

    def compute_block(self, name: Any, elements: int | None = None, attributes: Any = None) -> TimedBlock:
        """CPU or SIMD work as a context manager; ``elements`` gives a throughput."""
        return TimedBlock(self, name, elements, attributes)

    def add_block_listener(self, listener: Any) -> None:
        """``listener.block_opened(block)`` and ``.block_closed(block)`` on the block's own thread from now on."""
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)
            end_frames()

    def remove_block_listener(self, listener: Any) -> None:
        """Tells ``listener`` nothing from now on."""
        self._listeners = tuple(known for known in self._listeners if known is not listener)

    def _sample(self) -> bool:
        if len(self._recorder.events) > scopes.MAX_WAITING:
            self._shed.add()
            return False
        rate = self.config.sample_rate
        if rate >= 1.0:
            return True
        self._share += rate
        if self._share < 1.0:
            return False
        self._share -= 1.0
        return True

    def _opened(self, block: Block) -> None:
        recorder = self._recorder
        if recorder.armed:
            recorder.poke()
        if self._steps is not None:
            self._steps.opens(block)
        before = block.start_ns = time_ns()
        block._sampled = True
        marker, newest = recorder.marker, recorder.newest
        # What runs at each boundary stands here once more, instead of in a call: blocks of a framework's modules lie
        # between long stretches of its own code, and each function of ours is then slow to reach.
        if marker is not None and newest is not None and (corr := newest()) <= LAST_ID:
            self._append([OPEN, block.block_id, block.parent_id, block.thread, before, before, block.name, 0, corr])
        else:
            until = before + OPEN_ENDED_NS
            self._mark([OPEN, block.block_id, block.parent_id, block.thread, before, until, block.name, 0], marker)
        if self._listeners:
            for listener in self._listeners:
                self._tell(listener, "block_opened", block)

    def _mark(self, event: list[Any], marker: Callable[[int], Any] | None) -> None:
        """Leaves ``event`` in the queue, around a marker where one can be made."""
        if marker is None:
            self._append(event)
            return
        token = event[7] = (next(_tokens) - 1) % 0xFFFFFFFF + 1  # 32 bits, never 0
        self._append(event)  # before the call: its record may be read before it returns
        failed: Any = True
        try:
            failed = marker(token)
        finally:
            event[5] = time_ns()
            if failed:
                self._append(token)  # no record will come

    def _closed(self, block: Block) -> None:
        recorder = self._recorder
        leaf = self._steps.closes(block) if self._steps is not None else None
        thread = _get_ident()
        marker, newest = recorder.marker, recorder.newest
        end = time_ns()
        if marker is not None and newest is not None and (corr := newest()) <= LAST_ID:
            if not self._listeners:  # the usual case leaves one thing, of which gpusense's thread makes the record
                block.end_ns = end
                attributes = block.attributes
                if attributes is not None:
                    attributes = attributes.copy() if type(attributes) is dict else _owned(attributes)
                self._append((
                    block.block_id, leaf, thread, end, corr, block.name, block.parent_id, block.path, block.start_ns,
                    block.thread, attributes, block.error,
                ))  # fmt: skip
                return
            self._append([CLOSE, block.block_id, leaf, thread, end, end, "", 0, corr])
        else:
            event: list[Any] = [CLOSE, block.block_id, leaf, thread, end, end + OPEN_ENDED_NS, "", 0]
            self._mark(event, marker)
            if event[7]:
                end = int(event[5])
        block.end_ns = end
        if self._listeners:
            for listener in self._listeners:
                self._tell(listener, "block_closed", block)
        self._append(_record_of(block))

    def _switched(self, op: int, thread: int, leaf: int | None) -> bool:
        """Launches of ``thread`` belong to another block from now on; see :data:`Mark`."""
        if op == SWITCH and leaf is not None and len(self._recorder.events) > scopes.MAX_WAITING:
            return False
        recorder = self._recorder
        marker, newest = recorder.marker, recorder.newest
        event = _switch(op, thread, leaf)
        if marker is not None and newest is not None and (corr := newest()) <= LAST_ID:
            event[5] = event[4]
            event.append(corr)
            self._append(event)
        else:
            self._mark(event, marker)
        return True

    def _switched_unmarked(self, op: int, thread: int, leaf: int | None) -> bool:
        self._append(_switch(op, thread, leaf))
        return True

    def _follow_steps(self) -> bool:
        """Steps of tasks are followed as long as that is wanted and of use; once it is wanted, asked now and then."""
        if self._steps is None:
            if self.config.attribution != "exact":
                return True
            self._steps = Steps(self._switched)
            self._worker.add_watcher(self._follow_steps)
        if self.config.attribution == "exact" and self._recorder.tells_tasks:
            self._steps.on()
            end_frames()
        else:
            self._steps.off()
        return False

    def _end_steps(self) -> None:
        if self._steps is not None:
            self._steps.end(self._switched_unmarked)

    def _tell(self, listener: Any, method: str, block: Block) -> None:
        try:
            getattr(listener, method)(block)
        except Exception:  # noqa: BLE001 - a listener never reaches the program
            self.remove_block_listener(listener)
            log.exception(f"listener {listener!r}", "gpusense: a block listener raised and was removed")

    # --- sinks ------------------------------------------------------------------------------------------------------

    def add_sink(self, sink: Callable[[list[Record]], Any]) -> None:
        """``sink(records)`` on gpusense's thread from now on; a sink that raises is removed."""
        self._recorder.add_sink(sink)

    def remove_sink(self, sink: Callable[[list[Record]], Any]) -> None:
        """Gives ``sink`` nothing from now on."""
        self._recorder.remove_sink(sink)

    def add_source(self, source: Any) -> None:
        """Records from a :class:`RecordSource` from now on, which is asked to flush before results are read.

        A source that calls :meth:`record` itself needs no ``start`` and ``stop``.
        """
        if source not in self._recorder.sources:
            start = getattr(source, "start", None)
            if start is not None:
                start(self.record)
            self._recorder.sources = (*self._recorder.sources, source)

    def remove_source(self, source: Any) -> None:
        """Takes nothing from ``source`` and asks it nothing from now on."""
        if source in self._recorder.sources and hasattr(source, "stop"):
            source.stop()
        self._recorder.sources = tuple(known for known in self._recorder.sources if known is not source)

    def add_watcher(self, watcher: Callable[[], bool]) -> None:
        """``watcher()`` on gpusense's thread, about every 0.1 s, until it gives True or raises."""
        self._worker.add_watcher(watcher)

    # --- results ----------------------------------------------------------------------------------------------------

    def session(self) -> "Session":
        """A :class:`Session` of everything recorded so far (a snapshot, independent of what follows)."""
        self.flush()
        found: Session = self._recorder.session()
        return found

    def summary(self) -> "TraceSummary":
        """:class:`TraceSummary`: statistics of every block by name, with the GPU work launched inside."""
        from .summary import summarise

        return summarise(self.session())

    def bottlenecks(self, top_n: int = 5) -> "list[Bottleneck]":
        """The operations that took the most time, longest first, as :class:`Bottleneck`."""
        from .summary import bottlenecks

        return bottlenecks(self.session(), top_n)

    def print_summary(self, file: Any = None) -> None:
        """Prints :meth:`summary` as a table on ``file`` (standard output)."""
        from .summary import print_summary

        print_summary(self.session(), file)

    def print_bottlenecks(self, top_n: int = 5, file: Any = None) -> None:
        """Prints :meth:`bottlenecks`, one a line, on ``file`` (standard output)."""
        from .summary import print_bottlenecks

        print_bottlenecks(self.session(), top_n, file)

    @overload
    def export_json(self, path: None = None) -> str: ...

    @overload
    def export_json(self, path: "str | PathLike[str]") -> None: ...

    def export_json(self, path: Any = None) -> str | None:
        """The session as JSON (schema ``gpusense.report/1``): its text, or None where it was written to ``path``.

        To a path it is written piece by piece, so that a long session needs no more memory than it takes itself.
        """
        from .summary import export_json

        return export_json(self.session(), path)

    def status(self) -> dict[str, Any]:
        """What capture is doing, for people. ``state`` is "armed" (CUDA is not live yet), "running", "paused" (another
        profiler holds CUPTI), "resting" (out of the process for a while, to keep an overhead budget), "unavailable" or
        "stopped"; ``reason`` says why it is not running. ``boundaries`` is "read" where blocks are placed by what CUPTI
        has in its buffers, "marked" where each end makes a call. ``sync_lines``, where they are asked for, says the
        same of the lines of waits; ``unmarked`` says why capture runs and blocks get no GPU work, for want of memory
        for example."""
        return {**self._recorder.status(), **self._left_out()}

    def _left_out(self) -> dict[str, int]:
        failed, shed, ignored = self.failed_blocks, self._shed.total(), self.ignored_records
        return {"failed_blocks": failed, "shed_blocks": shed, "ignored_records": ignored}

    # --- life -------------------------------------------------------------------------------------------------------

    def enable(self) -> bool:
        """Goes on after :meth:`disable`; False under ``GPUSENSE=off``."""
        from .select import enable

        return enable()

    def disable(self) -> None:
        """Stops capture and makes ``trace()`` do nothing until :meth:`enable`; what was recorded stays readable."""
        from .select import disable

        disable()

    def detach(self, *, without_graphs: bool = False) -> Any:
        """Disables, and takes CUPTI out of the process; see :func:`gpusense.detach`."""
        from .select import detach

        return detach(without_graphs)

    def reconfigure(self, settings: Settings) -> None:
        """Goes on under other settings; what was recorded stays."""
        self.config = settings
        self._recorder.reconfigure(settings)
        self._follow_steps()

    def reset(self) -> None:
        """Forgets everything recorded so far."""
        self._recorder.reset()
        self._watched = self._recorder.pipeline.watched.blocks

    def flush(self, timeout_s: float = 1.0) -> bool:
        """Reads what the device has finished and hands it to the sinks; False where that took too long."""
        return self._recorder.flush(timeout_s)

    def close(self) -> None:
        """Ends capture for good; in two seconds at most, whatever the device, CUPTI or a sink does."""
        recorder, worker = self._recorder, self._worker
        self._end_steps()
        if not worker.finish(recorder.end_capture, END_CAPTURE_S):
            log.once("close", "gpusense: CUPTI or a source did not answer in time while capture ended")
            recorder.end_results(deliver=False)
        elif not worker.finish(recorder.end_results, END_RESULTS_S):
            log.once("close-results", "gpusense: a sink did not take the last records in time")
        end_frames()
        self._append = deque[Any](maxlen=0).append  # blocks of threads that still run end into nothing
        worker.end()

    def before_fork(self) -> None:
        self._worker.rest()

    def after_fork_in_parent(self) -> None:
        self._worker.go_on()

    def after_fork_in_child(self) -> None:
        self._worker.forget_in_child()
        end_frames()
        running.clear()
        self._end_steps()
        self._listeners = ()
        self._left_behind = True
        self._recorder.after_fork_in_child()
        self._append = self._recorder.events.append
        from .select import forget_in_child

        forget_in_child(self)

    def at_exit(self) -> None:
        if not self._left_behind:
            self.close()


def _record_of(block: Block) -> BlockRecord:
    """Of a block that was closed. A NamedTuple's own constructor is one function of Python more."""
    return tuple.__new__(
        BlockRecord,
        (
            block.name,
            block.block_id,
            block.parent_id,
            block.path,
            block.start_ns,
            block.end_ns,
            block.thread,
            None if block.attributes is None else _owned(block.attributes),
            block.error,
        ),
    )


def _owned(attributes: Any) -> dict[Any, Any] | None:
    """A copy for a record, because the program may go on with its own; None of what is no mapping, which is said."""
    try:
        return attributes_of(attributes)
    except Exception as error:  # noqa: BLE001 - the block itself is worth having
        log.once("attributes", "gpusense: attributes of a block are left out: %s: %s", type(error).__name__, error)
        return None


def _switch(op: int, thread: int, leaf: int | None) -> list[Any]:
    before = time_ns()
    return [op, 0, leaf, thread, before, before + OPEN_ENDED_NS, "", 0]


__all__ = ["Tracer"]
