"""Which tracer is active: decided on first use, swapped as an instance, never asked about on the path of a block."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .. import _activate, _active_tracer, _Undecided
from .._records.records import NO_GPU, Unavailable
from .._runtime import config, log, package, process, threads
from .._runtime.config import Settings
from .._runtime.errors import ConfigurationError, GpuSenseError, wants_room
from .._runtime.interrupts import is_the_programs
from .copies import ASKED, WHOLE_PROCESS, Copies, silent
from .noop import DISABLED, OFF, DisabledTracer, NoopTracer

#: As the module ``run`` has it, which is imported where it is set.
_RUN = "GPUSENSE_RUN"


def possible() -> Unavailable | None:
    """None where a source of GPU work could be in this process; else why not. Loads nothing, starts nothing."""
    for name in ("GPUSENSE_LIBCUDA", "GPUSENSE_LIBCUPTI"):
        if os.environ.get(name):
            return None
    if sys.platform == "linux":
        if any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/proc/driver/nvidia")):
            return None
        from .._capi.handles import mapped_files
        from .._capi.libraries import CUDA

        if any(os.path.basename(path).startswith(CUDA.mapped) for path in mapped_files()):
            return None
        return Unavailable("cuda", NO_GPU)
    if sys.platform == "win32":
        root = os.environ.get("SYSTEMROOT", "C:/Windows")
        if os.path.exists(os.path.join(root, "System32", "nvcuda.dll")):
            return None
        return Unavailable("cuda", "nvcuda.dll is not installed")
    return Unavailable("cuda", f"there is no CUDA driver for {sys.platform}")


class Control:
    """The tracer of a process, on and off. Any thread may call; a signal handler or finaliser that interrupts the first
    decision on its own thread changes nothing.

    ``live``: the tracer that records, kept while disabled, None before there is one. ``followers`` are called with each
    one that is made, before its first block; a forked child makes one of its own. ``possible``: see there.
    ``waiting``: for the integrations in place of the active tracer, in a child of a run that has used neither CUDA nor
    gpusense itself: what other libraries do there is no reason to record it. Else None.
    """

    def __init__(self, possible: Callable[[], Unavailable | None] = possible) -> None:
        self.live: Any = None
        self.followers: list[Callable[[Any], None]] = []
        self._layers = config.Layers()
        self._possible = possible
        self._deciding = threads.rlock()
        self._forked = ""  # why capture is not possible in this process, where it was forked from one that captured
        self._sinks: list[Callable[..., Any]] = []  # that wait for a live tracer
        self._disabled = False  # before there was anything to disable
        self.waiting: NoopTracer | None = None
        self._copies = Copies()
        self._in_session = False  # a run: all that is recorded in this process is for one answer
        self._enabled = False  # by the program itself
        self._then: Callable[[], None] | None = None  # to do once the decision is made

    # --- the first decision -----------------------------------------------------------------------------------------

    def resolve(self) -> Any:
        """The tracer of this process, made on first use: a NoopTracer with the reason where that fails.

        None to a finaliser or signal handler that runs on this thread in the middle of the decision.
        """
        if threads.mine(self._deciding):
            return None
        with self._deciding:
            try:
                made = self.live if self.live is not None else self._decided()
            except Exception as error:
                if is_the_programs(error) or wants_room(error):
                    raise
                log.exception("resolve", "it could not start, and nothing is recorded")
                made = self._idle(f"gpusense could not start: {type(error).__name__}: {error}", Settings())
        self._meet(made)
        then, self._then = self._then, None
        if then is not None:
            then()
        return made

    def _decided(self) -> Any:
        wanted = self.settings()
        if wanted.mode == "off":
            return self._idle("gpusense is off (GPUSENSE=off)", wanted)
        if self._disabled:
            return self._idle(DISABLED, wanted)
        if _RUN in os.environ:
            made = self._of_a_run()
            if made is not None:
                return made
        absent = self._absent()
        if absent is not None and wanted.mode != "on":
            return self._idle(f"nothing to record: {absent.reason}", wanted)
        made = self._live(wanted, absent is None)
        if made.started:
            self.live = made
            return made
        return self._idle("no thread can be started to record with", wanted)

    def _of_a_run(self) -> Any:
        """A tracer that writes the session of this process of a run; None where this is none."""
        from . import run as runs

        run = runs.of_this_process()
        if run is None:
            return None
        self._layers.application.update({name: config.check(name, value) for name, value in run.settings.items()})
        made = self._made(self.settings()._replace(mode="on"), self._absent() is None, run.path())
        if not made.started:
            return None
        self.live, self.waiting = made, None
        self._in_session = True
        self._hand_sinks(made)
        self._then = lambda: runs.begun(run, made)
        return made

    def cuda_starts(self) -> None:
        """CUDA is being initialised in this process, by a thread that waits for this: a process of a run, and one under
        ``GPUSENSE=on``, is recorded from now on, and capture begins."""
        from . import run as runs

        def begin() -> None:
            if self.live is None and (self.settings().mode == "on" or runs.of_this_process() is not None):
                self._activate_decided()
            if self.live is not None:
                self.live.recorder.cuda_starts()

        runs.cuda_starts(begin)

    def _idle(self, reason: str, wanted: Settings) -> NoopTracer:
        return NoopTracer(reason, wanted, self)

    def _absent(self) -> Unavailable | None:
        return Unavailable("cupti", self._forked) if self._forked else self._possible()

    def _made(self, wanted: Settings, possible: bool, path: str | None = None) -> Any:
        """A live tracer; ``path``: of the session file that it writes."""
        from functools import partial

        from .._capture.attachment import Capture
        from .._capture.recorder import Recorder
        from .tracer import Tracer

        left_out = _left_out(wanted) if possible else ""
        blocks = possible and wanted.kernels == "blocks"
        capture = Capture(wanted) if possible and not left_out and not blocks else None
        if path is None:
            recorder = Recorder(wanted, capture)
        else:
            from .._capture.file_store import FileStore

            recorder = Recorder(wanted, capture, partial(FileStore, path))
        recorder.absent = self._forked or left_out or recorder.absent
        tracer = Tracer(wanted, recorder, self)
        if blocks:
            time_blocks(tracer)
        return tracer

    def _live(self, wanted: Settings, possible: bool) -> Any:
        """As :meth:`_made`, with the sinks and followers that wait for it."""
        tracer = self._made(wanted, possible)
        self._hand_sinks(tracer)
        for follower in self.followers:
            try:
                follower(tracer)
            except Exception as error:  # noqa: PERF203 - the tracer works without
                if is_the_programs(error):
                    raise
                log.exception(f"follower {follower!r}", "an integration could not follow a change of the tracer")
        return tracer

    def _hand_sinks(self, tracer: Any) -> None:
        while self._sinks:
            tracer.add_sink(self._sinks.pop(0))

    # --- settings ---------------------------------------------------------------------------------------------------

    def settings(self) -> Settings:
        """The settings in force, environment first."""
        resolved = self._layers.resolve()
        for problem in self._layers.problems:
            log.once(problem, "%s", problem)
        return resolved

    def configure(
        self, defaults: bool = False, sinks: Sequence[Callable[..., Any]] | None = None, **changes: Any
    ) -> Settings:
        """See :func:`gpusense.configure`."""
        checked = {name: config.check(name, value) for name, value in changes.items()}
        fresh = _checked_sinks(sinks)
        layer = self._layers.host if defaults else self._layers.application
        before = dict(layer)
        layer.update(checked)
        resolved = self.settings()
        if resolved.strict and resolved.backends is not None:
            try:
                _require(resolved.backends)
            except GpuSenseError:  # nothing has changed, or every later call would raise as well
                layer.clear()
                layer.update(before)
                raise
        self._sinks.extend(fresh)
        self._follow(resolved)
        return resolved if self.live is None else resolved._replace(kernels=self.live.config.kernels)

    def _follow(self, resolved: Settings) -> None:
        """The live tracer goes on with the new settings and keeps what it has; without one, one may be made now."""
        if resolved.mode == "off":
            if self.live is not None:
                self.disable()
            self._now(self._idle(OFF, resolved))
        elif self.live is not None:
            was_off = getattr(_active_tracer(), "reason", None) == OFF
            self.live.reconfigure(resolved)
            if was_off:
                self.enable()
        else:
            self._activate_decided()
        if self.live is not None:
            self._hand_sinks(self.live)

    def _now(self, tracer: Any) -> None:
        """``tracer`` is the active one."""
        _activate(tracer)
        self._meet(tracer)

    def _meet(self, tracer: Any) -> None:
        """Other copies of gpusense learn what this one does from now on."""
        self._copies.now(None if tracer.config.mode == "off" else tracer, self._rank(tracer))

    def _rank(self, tracer: Any) -> int | None:
        """With which the blocks of other copies come to ``tracer``; None: nobody asked for a record of this process."""
        if tracer is not self.live:
            return None
        if self._in_session:
            return WHOLE_PROCESS
        return ASKED if self._enabled or tracer.config.mode == "on" or "." not in package.NAME else None

    def ends(self, tracer: Any) -> None:
        """``tracer`` takes no more blocks, of no copy."""
        if tracer is self.live:
            self._copies.end()
            missing = silent() if self._in_session else []
            if missing:
                facts = tracer.recorder.facts
                facts["notes"] = [*facts.get("notes", ()), *missing]

    def is_in_session(self) -> bool:
        """Whether this process is recorded whole, by whichever copy of gpusense."""
        return self._copies.is_in_session()

    def leave(self) -> None:
        """This copy has recorded, its tracer has ended, and it is as if it had not been used."""
        self.live, self._in_session = None, False
        _activate(_Undecided())
        self._copies.now(None, None)

    def _activate_decided(self) -> None:
        made = self.resolve()
        if made is not None:  # else this interrupted the first decision, which goes on
            _activate(made)

    # --- on and off -------------------------------------------------------------------------------------------------

    def enable(self) -> bool:
        """The live tracer becomes the active one, also where no source is there; False under ``GPUSENSE=off``."""
        wanted = self.settings()
        if wanted.mode == "off":
            return False
        self._disabled = False
        if threads.mine(self._deciding):  # a signal handler or finaliser in the middle of the decision
            return False
        with self._deciding:  # while it is made, too: a second one would go on capturing beside the first
            if self.live is None:
                made = (_RUN in os.environ and self._of_a_run()) or self._live(wanted, self._absent() is None)
                if not made.started:
                    return False
                self.live = made
        self.live.recorder.resume_capture()
        self.live.follow_tasks()
        self.live.follow_counters()
        self._enabled = True
        self._now(self.live)
        return True

    def disable(self) -> None:
        """A NoopTracer becomes the active one; capture ends, what was recorded stays in the live tracer."""
        live = self.live
        if live is None:
            self._disabled = True  # the first use must not turn recording on
            self._activate_decided()
            return
        live.recorder.pause_capture()
        live.follow_tasks()
        self._enabled = False
        self._now(DisabledTracer(live, self))

    def detach(self, without_graphs: bool = False) -> Unavailable | None:
        """See :func:`gpusense.detach`."""
        live = self.live
        if live is None:
            return None
        capture = live.recorder.capture
        # Asked first: what follows interrupts it.
        reason = capture.keeps_cupti() if capture is not None and not without_graphs else ""
        if not live.recorder.synchronise(2.0):
            reason = "the device still works; CUPTI must not be taken away meanwhile"
        self.disable()
        if not live.end_counters():
            reason = reason or "the sampler of counters does not end"
        if capture is None:
            return None
        reason = reason or capture.detach()
        return Unavailable("detach", reason, "recording is disabled all the same") if reason else None

    def free_in_child(self) -> None:
        """After a fork the child decides, where another thread of the parent was about to."""
        self._deciding = threads.rlock()

    def forget_in_child(self, tracer: Any) -> None:
        """After a fork the tracer of the parent is useless in the child.

        Where the parent had no CUDA the child decides anew. Else it cannot use CUDA itself, and there is something to
        record only where blocks are wanted without a GPU.
        """
        if self.live is not tracer:
            return
        was_active, self.live = _active_tracer() is tracer, None
        self._in_session = self._enabled = False
        self._copies.end()
        recorder = tracer.recorder
        followed = _follows()
        if followed:
            self.waiting = NoopTracer("this process of a run has used neither CUDA nor gpusense", tracer.config, self)
        if recorder.store.mode == "file" and not followed:
            self._forked = "this process was forked from one that gpusense run records"
        elif recorder.capture is not None and recorder.capture.cuda_was_live:
            self._forked = "this process was forked from one that used CUDA, which does not work in it"
        if not was_active:
            return
        if self._forked and self.settings().mode != "on" and not followed:
            self._now(self._idle(self._forked, tracer.config))
        else:
            _activate(_Undecided())

    # --- a run ------------------------------------------------------------------------------------------------------

    def start_session(self, mode: str = "file", path: str | None = None, **changes: Any) -> "Recording":
        """For ``gpusense run``: an active tracer that records, with ``mode="file"`` into ``path``."""
        if mode == "file" and path is None:
            raise ValueError("a session file needs a path")
        self._layers.application.update({name: config.check(name, value) for name, value in changes.items()})
        wanted = self.settings()._replace(mode="on")
        file = path if mode == "file" else None
        tracer = self._made(wanted, self._possible() is None, file)
        if not tracer.started:
            raise GpuSenseError("no thread can be started to record with")
        self.live, self._in_session = tracer, True
        self._now(tracer)
        return Recording(tracer, file)


class Recording:
    """A session that is being recorded, by ``tracer``; ``path``: of its file, where it has one."""

    def __init__(self, tracer: Any, path: str | None) -> None:
        self.tracer = tracer
        self.path = path

    def end(self) -> None:
        """Nothing more is recorded, after a bounded wait for what the device still does."""
        self.tracer.recorder.synchronise(2.0)
        self.tracer.close()

    def finish(self, each_block: bool = False) -> Any:
        """The whole session, which has ended; ``each_block``: as for :func:`gpusense.session.load`."""
        self.end()
        return self.tracer.recorder.session(each_block)


def _follows() -> bool:
    """Whether this process is one that a run records beside its first."""
    if _RUN not in os.environ:
        return False
    from . import run as runs

    return runs.of_this_process() is not None


def time_blocks(tracer: Any) -> None:
    """The device times the blocks of ``tracer`` from now on, by events at their ends."""
    from .._attribution.boundaries import RECORD
    from ..backends.block_times.source import BlockTimes

    recorder = tracer.recorder
    times = recorder.block_times = BlockTimes()
    times.start(lambda records: recorder.events.extend([(RECORD, record) for record in records]))
    recorder.sources.add(times)
    tracer.add_block_listener(times)
    tracer.add_watcher(times.poll)


def _left_out(wanted: Settings) -> str:
    """Why kernels are not to be captured although they could be; empty where they are."""
    if wanted.backends is None or "cupti" in wanted.backends:
        return ""
    return f"the setting backends={','.join(wanted.backends) or '()'} leaves out cupti"


def _checked_sinks(sinks: Any) -> list[Callable[..., Any]]:
    found = list(sinks) if isinstance(sinks, (list, tuple, set)) else [] if sinks is None else [sinks]
    for sink in found:
        if not callable(sink):
            raise ConfigurationError(f"sinks must be callables that get lists of records, not {sink!r}")
    return found


def _require(names: Sequence[str]) -> None:
    from .._runtime.errors import BackendUnavailable
    from ..backends import open_backend

    for name in names:
        state = open_backend(name)
        if not state:
            raise BackendUnavailable(str(state))


#: Of this process.
control = Control()
process.after_forks(control.free_in_child)
