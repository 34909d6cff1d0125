"""The live tracer: what the program calls. What runs at a boundary is in ``block``, its thread in ``_capture``."""

import sys
from collections.abc import Callable
from os import fspath
from typing import TYPE_CHECKING, Any

from .._attribution.open_blocks import end_frames, running
from .._capture.recorder import Owner, Recorder
from .._capture.worker import Worker
from .._records.records import Record
from .._runtime import log, package, process
from .._runtime.config import Settings
from .block import Block, Blocks, TimedBlock
from .caller import called_from
from .copies import Forwarded, Receiver, silent
from .manual import ManualRecords
from .results import Results
from .tasks import TaskSwitches

if TYPE_CHECKING:
    from os import PathLike

    from ..session import Session
    from .measure import Meter
    from .types import Switch

#: Without any progress, of ending capture and of handing out what is left; and with progress, of each: no exit takes
#: longer because of us.
END_CAPTURE_S, END_RESULTS_S, LONGEST_END_S = 1.2, 0.8, 30.0
#: In place of the second where a file is written, to a disk that may be slow; the end of a process by a signal waits
#: no longer than the first and this.
END_FILE_S = 3.0
END_THREAD_S = 0.5  # of a thread that has nothing left to do


class _Both(Forwarded, Block):
    """A block that another copy of gpusense records, too."""

    __slots__ = ("_enter", "_leave")

    def __init__(self, receiver: Receiver, tracer: "Tracer", name: Any, attributes: Any, links: Any) -> None:
        super().__init__(tracer, name, attributes, links)
        self._enter, self._leave = receiver["block"](called_from() if name is None else name, attributes)


class Tracer(Blocks, ManualRecords, Results):
    """Records what this process does. All methods may be called from any thread and none raises into the program
    for a reason of gpusense's own. ``control`` turns recording off and on for the whole process."""

    active = True

    def __init__(self, settings: Settings, recorder: Recorder, control: "Switch | None" = None) -> None:
        super().__init__(settings, recorder)
        self._control = control
        self.metrics_source: Any = None
        self.ignored_records = 0
        self._ignored_for = {}
        self._left_behind = self._over = False
        self._elsewhere: Receiver | None = None
        self._meter: Meter | None = None  # once passes of blocks are to be counted exactly
        worker = self._worker = Worker(recorder)
        recorder.belong_to(
            Owner(
                *(worker.wake, worker.errand, worker.later, worker.is_current),
                *(self._metrics, self._left_out, self._reasons),
            )
        )
        process.register(self)
        worker.start()
        self.follow_tasks()
        self._counters: Any = None
        self.follow_counters()

    def __repr__(self) -> str:
        status = self.recorder.status()
        reason = status.get("reason")
        return f"<Tracer {status.get('state')}{f': {reason}' if reason else ''}>"

    def _metrics(self) -> Any:
        """The monitor whose samples belong to this session: the one that was set, or the one that runs."""
        module = sys.modules.get(f"{package.NAME}.monitor")
        return self.metrics_source or (module.current() if module is not None else None)

    # --- blocks -----------------------------------------------------------------------------------------------------

    def trace(self, name: Any = None, attributes: Any = None, links: Any = None) -> Block:
        """A block named ``name``; use it with ``with`` or as a decorator. See :func:`gpusense.trace`."""
        receiver = self._elsewhere
        if receiver is not None:
            return _Both(receiver, self, name, attributes, links)
        return Block(self, name, attributes, links)

    def named(self, name: str) -> Block:
        """As :meth:`trace` with a name alone."""
        receiver = self._elsewhere
        if receiver is not None:
            return _Both(receiver, self, name, None, None)
        return Block(self, name, None, None)

    def measure(self, name: Any = None, attributes: Any = None) -> Block:
        """A block whose passes are counted exactly; see :func:`gpusense.measure`."""
        if self._elsewhere is not None:
            return self.trace(name, attributes)
        from .measure import Measured

        self._with_meter()
        return Measured(self, name, attributes, None)

    def _with_meter(self) -> "Meter":
        if self._meter is None:
            from ..backends.cupti.counters.finder import Finder
            from .measure import Meter

            self._meter = Meter(self.record, Finder(self._worker.errand))
        self.add_block_listener(self._meter)
        return self._meter

    def compute_block(self, name: Any, elements: int | None = None, attributes: Any = None) -> TimedBlock:
        """CPU or SIMD work as a context manager; ``elements`` gives a throughput."""
        return TimedBlock(self._record_compute, name, elements, attributes)

    def _record_compute(self, name: Any, start_ns: int, end_ns: int, elements: int | None, *, attributes: Any) -> None:
        self.record_compute_block(name, start_ns, end_ns, elements, attributes=attributes)
        receiver = self._elsewhere
        if receiver is not None:
            receiver["compute"](name, start_ns, end_ns, elements, attributes)

    def follow_tasks(self) -> bool:
        """Tasks are followed as long as that is wanted and of use; once it is wanted, asked now and then."""
        if self._tasks is None:
            if self.config.attribution != "exact":
                return True
            self._tasks = TaskSwitches(self._switched)
            self._worker.add_watcher(self.follow_tasks)
        if self.config.attribution == "exact" and self.recorder.tells_tasks:
            self._tasks.on()
            end_frames()
        else:
            self._tasks.off()
        return False

    def follow_counters(self) -> None:
        """Hardware counters are sampled, whether kernels are recorded or not, or passes of blocks counted by turns, as
        the settings want it."""
        exact = self.config.counters == "exact"
        if exact or self._meter is not None:
            self._with_meter().by_turns = exact
        wanted = None if exact else self.config.counters
        counters = self._counters
        if counters is not None and counters.setting != wanted:
            self.end_counters()
        if wanted is not None and self._counters is None:
            from ..backends.cupti.counters.source import CounterSource

            recorder = self.recorder
            for before in [source for source in recorder.sources if source.name == CounterSource.name]:
                recorder.sources.remove(before)
            self._counters = CounterSource(
                wanted,
                recorder.take_counters,
                lambda: not recorder.disabled,
                self.config.devices,
                lambda: recorder.store.note(recorder),
            )
            self.add_source(self._counters)

    def end_counters(self) -> bool:
        """They are sampled no more, until :meth:`follow_counters`; False where CUPTI does not return."""
        counters, self._counters = self._counters, None
        if counters is None:
            return True
        ended: bool = counters.end(1.0)
        return ended  # what it was like is still told

    def _end_tasks(self) -> None:
        if self._tasks is not None:
            self._tasks.end(self._switched_unmarked)

    def go_to(self, receiver: Receiver | None) -> None:
        """Blocks that are made from now on are another copy's of gpusense, too; None: of no other."""
        self._elsewhere = receiver

    # --- sinks ------------------------------------------------------------------------------------------------------

    def add_sink(self, sink: Callable[[list[Record]], Any]) -> None:
        """``sink(records)`` on a thread for sinks from now on; one that raises is removed. While one does not return,
        200,000 records wait; what comes beyond is counted as ``unsent_records``."""
        self.recorder.sinks.add(sink)

    def remove_sink(self, sink: Callable[[list[Record]], Any]) -> None:
        """Gives ``sink`` nothing from now on."""
        self.recorder.sinks.remove(sink)

    def add_source(self, source: Any) -> None:
        """Records from a :class:`RecordSource` from now on, which is asked to flush before results are read.

        A source that calls :meth:`record` itself needs no ``start`` and ``stop``.
        """
        if source not in self.recorder.sources:
            start = getattr(source, "start", None)
            if start is not None:
                start(self.record)
            self.recorder.sources.add(source)

    def remove_source(self, source: Any) -> None:
        """Takes nothing from ``source`` and asks it nothing from now on."""
        if source in self.recorder.sources and hasattr(source, "stop"):
            source.stop()
        self.recorder.sources.remove(source)

    def add_watcher(self, watcher: Callable[[], bool]) -> None:
        """``watcher()`` on gpusense's thread, about every 0.1 s, until it gives True or raises."""
        self._worker.add_watcher(watcher)

    # --- results ----------------------------------------------------------------------------------------------------

    def session(self) -> "Session":
        """A :class:`Session` of everything recorded so far (a snapshot, independent of what follows)."""
        self.flush()
        found: Session = self.recorder.session()
        return found

    def status(self) -> dict[str, Any]:
        """What capture is doing, for people. ``state`` is "armed" (CUDA is not live yet), "running", "paused" (another
        profiler holds CUPTI), "detached" (out of the process for a while, to keep an overhead budget), "blocks" (blocks
        are timed, kernels not recorded), "unavailable" or "stopped"; ``reason`` says why it is not running.
        ``boundaries`` is "read" where blocks are placed by what CUPTI has in its buffers, "marked" where each end makes
        a call. ``sync_lines``, where they are asked for, says the same of the lines of waits; ``silent_copies`` names
        copies of gpusense in this process whose blocks cannot come to another's session; ``unmarked`` says why capture
        runs and blocks get no GPU work, for want of memory for example. ``flight_recorder``, where that is on, says
        what it has written, and why it has not. ``counters`` and ``measured``, where they are asked for, say how well
        counters are sampled and blocks measured, or why not."""
        found = {} if self._counters is None else {"counters": self._counters.status()}
        if self._meter is not None:
            found["measured"] = self._meter.status()
        return {**self.recorder.status(), **self._left_out(), "silent_copies": silent(), **found}

    def _left_out(self) -> dict[str, int]:
        failed, shed, ignored = self.failed_blocks, self._shed.total(), self.ignored_records
        return {"failed_blocks": failed, "shed_blocks": shed, "ignored_records": ignored}

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether there is a thread to record with."""
        return self._worker.started

    def enable(self) -> bool:
        """Goes on after :meth:`disable`; False under ``GPUSENSE=off``."""
        return self._control is not None and self._control.enable()

    def disable(self) -> None:
        """Stops capture and makes ``trace()`` do nothing until :meth:`enable`; what was recorded stays readable."""
        if self._control is not None:
            self._control.disable()

    def detach(self, *, without_graphs: bool = False) -> Any:
        """Disables, and takes CUPTI out of the process; see :func:`gpusense.detach`."""
        return self._control.detach(without_graphs) if self._control is not None else None

    def reconfigure(self, settings: Settings) -> None:
        """Goes on under other settings; what was recorded stays. ``config`` has those that are in force."""
        now = self.config.kernels
        if settings.kernels != now:
            text = "recording goes on with kernels=%r, with which it began; kernels=%r takes effect with the next one"
            log.once(f"kernels {settings.kernels}", text, now, settings.kernels)
            settings = settings._replace(kernels=now)
        self.config = settings
        self.recorder.reconfigure(settings)
        self.follow_tasks()
        self.follow_counters()

    def reset(self) -> None:
        """Forgets everything recorded so far."""
        self._ignored_for = {}
        self.recorder.reset()
        self.watched = self.recorder.store.watched.blocks

    def flush(self, timeout_s: float = 1.0) -> bool:
        """Reads what the device has finished and hands it to the sinks; False where that took too long."""
        return self.recorder.flush(timeout_s)

    def dump(self, path: "str | PathLike[str] | None" = None) -> str | None:
        """Writes the last seconds to a session file and gives its path; see :func:`gpusense.dump`."""
        return self.recorder.dump(None if path is None else fspath(path))

    def close(self) -> None:
        """Ends capture for good; in two and a half seconds at most, whatever the device, CUPTI or a sink does, or in
        five where a disk takes no file. What the program has left to be read is read, which may take longer after very
        many blocks.
        """
        recorder, worker = self.recorder, self._worker
        if self._over:  # what is left in the queue then was given up
            return
        if self._control is not None:
            self._control.ends(self)
        self._end_tasks()
        patience_s = END_FILE_S if recorder.store.mode == "file" else END_RESULTS_S
        in_time = worker.finish(recorder.end_capture, END_CAPTURE_S, LONGEST_END_S)
        try:
            left_open = self._end_open()
            if left_open:
                from ..session._unrecorded import open_at_end

                recorder.facts["notes"] = [*recorder.facts.get("notes", ()), open_at_end(left_open)]
            if not in_time:
                log.once("close", "CUPTI or a source did not answer in time while capture ended")
                recorder.end_results(deliver=False)
            elif not worker.finish(recorder.end_results, patience_s, LONGEST_END_S):
                in_time = False
                log.once("close-results", "the last records were not read in time")
                recorder.give_up_end()
            end_frames()
        finally:
            worker.end(END_THREAD_S if in_time else 0.0)
        self._over = True

    def before_fork(self) -> None:
        self._worker.before_fork()  # first: it would start the other anew
        self.recorder.sinks.before_fork()

    def after_fork_in_parent(self) -> None:
        self._worker.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        self._worker.after_fork_in_child()
        end_frames()
        running.clear()
        self._end_tasks()
        self._listeners = ()
        self._meter = None
        self._left_behind = True
        self.recorder.after_fork_in_child()
        self._append = self.recorder.events.append
        if self._control is not None:
            self._control.forget_in_child(self)

    def at_exit(self) -> None:
        if not self._left_behind:
            self.close()


__all__ = ["Tracer"]
