"""Capture of CUDA activity: when to attach, what to enable, when to pause. No ctypes; the backends do the calls.

States: *armed* (CUDA is not live in this process yet), *running*, *paused* (another profiler holds CUPTI),
*detached* (CUPTI is out of the process for a while, to keep an overhead budget), *unavailable* (for good, with the
reason), *stopped*.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from .._aggregation.markers import Marker, OwnStream
from .._decode import layouts
from .._records.records import NOT_USED, DeviceInfo, GpuKernel, Unavailable, UnseenInterval
from .._runtime.clock import now_ns as time_ns
from .._runtime.config import Settings
from .._runtime.errors import GpuSenseError, NotYet
from ..backends.cupti.sharing import Sharing

OnView = Callable[[memoryview, int], None]
Follow = Callable[[bool, str], None]

#: Counters of unified memory come when they like, and belong to no block.
_READABLE = layouts.WRITTEN_BY_CALL | {layouts.UNIFIED_MEMORY_COUNTER}
RETRY_S = 1.0  # between two attempts while another profiler holds CUPTI
WATCH_S = 0.4  # between two looks whether our callbacks are still the registered ones
SUSPECT_S = 0.1  # the same once that is in doubt
INTERRUPTED = (
    "work went unrecorded since CUPTI came into the process, and CUDA graphs replayed then may fail once it is gone; "
    "call detach() while gpusense records, or detach(without_graphs=True) where the program has none"
)
#: What works where CUPTI does not.
INSTEAD = "kernels='blocks' has the device time blocks without CUPTI"
#: Reasons for the time before capture began, in which work may have been done unseen.
LATE, LATER = "work before capture was attached", "CUDA was in use before"
TAKEN_OVER_S = 1.0  # the same once a stranger has them: then a look asks CUPTI for a subscription, which takes 20 ms


class Capture:
    """One tracer's part in the CUPTI subscription of the process. Used by gpusense's own threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = "armed"
        self.reason = NOT_USED
        self.marker: Callable[[int], Any] | None = None
        self.newest: Callable[[], int] | None = None  # the newest correlation id, where that does without a marker
        self.marker_shape: Marker | None = None
        self.strides: dict[int, int] = {}
        self.layout: dict[str, Any] = {}
        self._activity: Any = None
        self._cuda: Any = None
        self._backend: Any = None
        self._plan: Any = None
        self._not_live_ns: int | None = None
        self._starting = False
        self._retry_at = 0.0
        self._watch_at = 0.0
        self._paused_ns: int | None = None
        self._refusal = ""  # of another profiler, while armed
        self._alive_ns = (0, 0)  # the last two times at which our callbacks were certainly ours
        self._detached = ""  # why nobody captured until now, where that was a pause of the budget
        self._losses_before: dict[str, int] | None = None
        self._limits: dict[int, Any] = {}
        self._cuda_live_ns: int | None = None
        self._kinds: set[int] = set()  # that the library can record
        self._opened = False  # whether work is recorded, too, and not markers alone
        self.kinds: frozenset[int] | None = None  # CUPTI's numbers for what was asked for, once capture has begun
        self.sharing = Sharing()
        self.epoch = 0  # times CUPTI was taken out of the process before: correlation ids begin anew with each
        self.per_thread: bool | None = None  # whether buffers say who launched; None before capture runs

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def waiting(self) -> bool:
        return self.state == "armed"

    @property
    def attached(self) -> bool:
        return self.state in ("running", "paused")

    @property
    def ended(self) -> bool:
        return self.state in ("stopped", "unavailable")

    @property
    def cuda_was_live(self) -> bool:
        return self._cuda_live_ns is not None

    @property
    def own_streams(self) -> frozenset[OwnStream]:
        """Where this copy marks blocks, and where others do."""
        shape = self.marker_shape
        own = {(shape.context, shape.stream)} if shape is not None and shape.stream is not None else ()
        return self.sharing.others_markers.union(own)

    @property
    def near(self) -> bool:
        """True while CUDA may become live any moment: its library is in the process already."""
        return not self._refusal and self._cuda is not None and self._cuda.api() is not None

    # --- attach -----------------------------------------------------------------------------------------------------

    def try_attach(self, on_view: OnView, joins: Callable[[], None], follow: Follow) -> UnseenInterval | None:
        """Begins capture if CUDA is live: the time in which work was not seen, else None. Only markers are recorded
        until :meth:`open`. ``joins`` is called before the first buffer is shown; ``follow`` as another copy of gpusense
        gives CUPTI up or takes it up again."""
        if self.state != "armed" or monotonic() < self._retry_at:
            return None
        if not self._is_live():
            self._not_live_ns = time_ns()
            return None
        if self._cuda_live_ns is None:
            self._cuda_live_ns = time_ns()
        from ..backends.cupti import activity as cupti

        backend = cupti.open()
        if isinstance(backend, Unavailable):
            self._refused(backend.reason, backend.hint)
            return None
        self._backend, self._activity = backend, backend.activity
        try:
            self._begin(on_view, joins, follow)
        except Exception as error:  # noqa: BLE001 - whatever the library did, the program goes on
            self._refused(str(error) or type(error).__name__, "")
            return None
        now = time_ns()
        reason = LATE if self._not_live_ns is not None else LATER
        if self._starting:
            reason = ""  # there was none
        unseen = UnseenInterval(self._not_live_ns or self._cuda_live_ns, now, self._refusal or self._detached or reason)
        self.state, self.reason, self._refusal, self._alive_ns = "running", "", "", (now, now)
        self._detached = ""
        if self._losses_before is None:
            self._losses_before = self._count_losses()
        return unseen

    @contextmanager
    def starting(self) -> Iterator[None]:
        """CUDA is being initialised on some thread, which waits: no launch comes before what is done in here."""
        from ..backends import cuda

        with cuda.SOURCE.starting():
            self._starting, self._retry_at = True, 0.0
            try:
                yield
            finally:
                self._starting = False

    def _is_live(self) -> bool:
        from ..backends import cuda

        if self._cuda is None:
            self._cuda = cuda.SOURCE
        return bool(self._cuda.is_live())

    def _begin(self, on_view: OnView, joins: Callable[[], None], follow: Follow) -> None:
        # All that is needed later: by then the program may have changed folders, limits or what can be imported.
        from .._capi import demangle  # noqa: F401
        from .._decode import names  # noqa: F401
        from .._records import occupancy  # noqa: F401
        from ..backends.cupti import markers, synchronize, watch  # noqa: F401

        kinds = set(layouts.chosen(self.settings.kinds))
        self.kinds = frozenset(kinds)
        activity = self._activity
        if self._plan is None:
            self._plan = markers.Memset(activity)
        self._plan.activity, self.marker = activity, None  # to be prepared anew: CUPTI may number streams anew
        if not activity.can_select_api():
            kinds.discard(layouts.DRIVER)
        size, buffers = self.settings.buffer_size, self.settings.buffers
        activity.meet(size, buffers, self.settings.kernels == "hardware")
        self.strides = dict(activity.strides)
        self.epoch = int(activity.status().get("detached") or 0)
        joins()
        wants = self.sharing.begin(kinds, size * buffers)
        wants["follow"] = follow
        self._kinds, self._opened = kinds, False
        first = {layouts.MEMSET} if activity.can_want else kinds
        activity.start(first, on_view, buffer_size=size, buffers=buffers, wants=wants)
        self.sharing.met(activity.shared)
        self.per_thread = bool(activity.status().get("per_thread_buffers"))

    def open(self) -> bool:
        """After :meth:`try_attach`, and after a pause: work is recorded from now on, if it is not yet. False where
        CUPTI refuses: capture has ended."""
        if self._opened or self.state != "running":
            return True
        try:
            self._activity.want(self._kinds)
            self._select_launches()
            if "sync_lines" in self.settings.kinds and self._activity.lines is None:
                self._activity.note_lines(self.settings.line_packages)
        except Exception as error:  # noqa: BLE001 - as in try_attach
            self.close()
            self._activity.stop()
            self.state = "armed"
            self._refused(str(error) or type(error).__name__, "")
            return False
        self._opened = True
        return True

    def close(self) -> None:
        """The opposite of :meth:`open`: only markers are recorded from now on. Before :meth:`stop`, so that all that
        was recorded has blocks around it that could be marked."""
        self._opened = False
        if self._activity is not None and self.state == "running":
            self._activity.want({layouts.MEMSET})

    def _select_launches(self) -> None:
        """Of the driver's functions only those that launch; enabling the kind wants them all."""
        if "launch" in self.settings.kinds and self._activity.can_select_api():
            self._activity.select_only(layouts.DRIVER, layouts.LAUNCH_CALLS)

    def prepare_marker(self) -> bool:
        """Whether blocks can be marked now: once the program has made a CUDA context. Raises where it never will."""
        if self.marker is None:
            try:
                self.marker, self.marker_shape = self._plan.prepare()
            except NotYet:
                return False
            self._activity.canary = self._plan
            shape = self.marker_shape
            self.sharing.marks(*(shape.context, shape.stream) if shape is not None else (None, None))
        if self.newest is None:
            self._read_instead()
        return True

    def _read_instead(self) -> None:
        """Where the call that a record is of writes it, for each kind that blocks get."""
        if self.kinds is not None and self.kinds <= _READABLE:
            self.newest = self._plan.reading()

    def markers_done(self) -> bool:
        """Whether the device has come to every marker so far."""
        return self.running and self.marker is not None and bool(self._plan.idle())

    def _refused(self, reason: str, hint: str) -> None:
        """Another profiler may go away: try again; anything else is for good."""
        self.reason = f"{reason} ({hint}; {INSTEAD})" if hint else f"{reason} ({INSTEAD})"
        if ("another" in reason and "profiler" in reason) or "tried again" in reason:
            self._refusal, self._retry_at = self.reason, monotonic() + RETRY_S
            return
        self.state = "unavailable"

    # --- while running ----------------------------------------------------------------------------------------------

    def watch(self) -> UnseenInterval | None:
        """Looks now and then whether capture was taken over by another profiler, and whether that has ended."""
        now = monotonic()
        if now < self._watch_at or self._activity is None or self.state not in ("running", "paused"):
            return None
        self._watch_at = now + WATCH_S
        from ..backends.cupti import watch

        verdict = watch.look(self._activity, paused=self.state == "paused")
        if (verdict or self.reason) == watch.TAKEN_OVER:
            self._watch_at = now + TAKEN_OVER_S
        if verdict is None:
            if self._activity.suspects:
                self._watch_at = now + SUSPECT_S
            elif self.state == "running":
                self._alive_ns = (self._alive_ns[1], time_ns())
            return None
        if self.state == "running":
            self.hold(verdict)
            return None
        return self.go_on()

    def hold(self, reason: str) -> None:
        """Another profiler has CUPTI."""
        if self.state == "running":
            self.state, self.reason, self._paused_ns = "paused", reason, self._alive_ns[0]
            self._opened = False
            self._activity.want({layouts.MEMSET})  # for when it goes on; :meth:`open` asks for the others

    def go_on(self) -> UnseenInterval | None:
        """CUPTI is ours again: the time in which it was not. None: it was all the time."""
        if self.state != "paused":
            return None
        self.newest = self._activity.last_heartbeat = None
        if self.marker is not None:
            self._read_instead()
        now = time_ns()
        unseen = UnseenInterval(self._paused_ns or now, now, self.reason)
        self.state, self.reason, self._paused_ns, self._alive_ns = "running", "", None, (now, now)
        return unseen

    def hold_lines(self, held: bool) -> None:
        """No lines of waits are noted while their records are off."""
        if self._activity is not None and self._activity.lines is not None and self.state == "running":
            self._activity.lines.hold(held)

    def node_log(self) -> Any:
        """What notes the nodes of CUDA graphs; None while capture does not run."""
        if self._activity is None or self.state != "running":
            return None
        from ..backends.cupti import graph_nodes

        return graph_nodes.NodeLog(self._activity)

    def unseen_now(self) -> UnseenInterval | None:
        """The time without capture that still lasts."""
        if self.state == "paused":
            return UnseenInterval(self._paused_ns or time_ns(), None, self.reason)
        if self._cuda_live_ns is not None and (self._refusal or self.state == "unavailable"):
            return UnseenInterval(self._not_live_ns or self._cuda_live_ns, None, self.reason)
        return None

    def give_up(self, reason: str) -> None:
        """Something failed that never should: capture is off, the program goes on."""
        if self.attached and self._activity is not None:
            try:
                self._activity.stop()
            except Exception as error:  # noqa: BLE001
                reason = f"{reason}; {error}"
        self.state, self.reason = "unavailable", reason

    def flush(self, forced: bool = False) -> str:
        """Has what is finished read; "" or why that was not done."""
        if self._activity is not None and self.state == "running":
            return self._activity.flush(forced) or ""
        return ""

    def rouse(self) -> None:
        """Has buffers looked at as often as while there is work."""
        if self._activity is not None:
            self._activity.rouse()

    def lines(self) -> list[tuple[int, str]]:
        """(correlation id, line of the program) of synchronising calls since the last time; none unless asked for."""
        noted = self._activity.lines if self._activity is not None else None
        return noted.take() if noted is not None else []

    def name(self, pointer: int) -> bytes:
        found: bytes = self._activity.name(pointer)
        return found

    def glance(self, names: Mapping[int, bytes]) -> Callable[[], bool]:
        """What says whether they are still at their addresses."""
        same: Callable[[], bool] = self._activity.glance(names)
        return same

    def synchronise(self, timeout_s: float, elsewhere: Callable[[Callable[[], None]], bool]) -> bool:
        """Waits for all work of this process on its devices, at most ``timeout_s``."""
        from ..backends.cupti import synchronize

        return synchronize.synchronise(timeout_s, elsewhere)

    def ask(self) -> Callable[[], bool]:
        """Begins to wait for all work; the result says whether it has ended."""
        from ..backends.cupti import synchronize

        return synchronize.ask()

    def occupancy(self, kernel: GpuKernel) -> float | None:
        """Theoretical occupancy from the device's limits."""
        if kernel.device is None:
            return None
        if kernel.device not in self._limits:
            self._limits[kernel.device] = self._cuda.limits(kernel.device) if self._cuda is not None else None
        from .._records.occupancy import of_kernel

        return of_kernel(kernel, self._limits[kernel.device])

    def missed(self) -> bool:
        """While armed: whether CUDA is live all the same, so that work was done unseen."""
        return self._is_live()

    def stop(self) -> None:
        if self._activity is not None and self.attached:
            self._activity.stop()
        self.newest = None
        if self.state != "unavailable":
            self.state, self.reason = "stopped", "capture was stopped"

    def keeps_cupti(self) -> str:
        """Before :meth:`stop`: why CUPTI must stay in the process, or ""."""
        return INTERRUPTED if self._activity is not None and self._activity.was_interrupted() else ""

    def detach(self) -> str:
        """After :meth:`stop`: takes CUPTI out of the process; "" or why not."""
        if self._activity is None:
            return ""
        try:
            self._activity.detach()
        except GpuSenseError as error:
            return str(error)
        return ""

    def pause_outside(self, reason: str) -> str:
        """Stops and takes CUPTI out of the process for a pause; "" or why it stayed. :meth:`rearm` ends the pause."""
        self.stop()
        refused = self.detach()
        self.state, self.reason = "detached", reason
        return refused

    def rearm(self, since_ns: int | None = None) -> bool:
        """After :meth:`stop`, or a pause that began at ``since_ns``: ready to attach again; False where capture is not
        possible."""
        if self.state not in ("stopped", "detached"):
            return False
        self._detached = self.reason if self.state == "detached" else ""
        self.state, self.reason, self._refusal = "armed", "", ""
        # What was done before is reported as unseen, or was seen.
        self._not_live_ns = (since_ns or time_ns()) if self._cuda_live_ns is not None else None
        return True

    def forget_in_child(self) -> None:
        """A forked child cannot use CUDA or CUPTI: no call, only the state."""
        self.state, self.reason = "unavailable", "this process was forked from one that used CUDA"
        self._activity = None

    # --- what is known ----------------------------------------------------------------------------------------------

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._cuda.devices() if self._cuda is not None and self._is_live() else ()

    def losses(self) -> dict[str, int]:
        """Counters that only the library and the mailbox know, since this tracer's capture began."""
        before = self._losses_before or {}
        return {name: count - before.get(name, 0) for name, count in self._count_losses().items()}

    def _count_losses(self) -> dict[str, int]:
        if self._activity is None:
            return {}
        status = self._activity.status()
        return {name: int(status.get(name) or 0) for name in ("dropped", "missed", "foreign_buffers")}

    def cuda_version(self) -> tuple[int, int] | None:
        """Of the newest CUDA that the driver supports; None before the program has loaded it."""
        return self._cuda.driver_version() if self._cuda is not None else None

    def versions(self) -> dict[str, str]:
        if self._backend is None:
            return {}
        return {"cupti": str(self._backend.version or "?")}

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = dict(self._activity.status()) if self._activity is not None else {}
        status.update(state="paused" if self._refusal else self.state, reason=self.reason)
        if self._activity is not None and self._activity.lines is not None:
            status["sync_lines"] = self._activity.lines.status()
        if self.marker_shape is not None:
            status["marker"] = list(self.marker_shape)
            status["boundaries"] = "read" if self.newest is not None else "marked"
        elif self.running and self._plan.lacking:
            status["unmarked"] = f"GPU work cannot be put into blocks yet: {self._plan.lacking}"
        if self.settings.kernels == "hardware" and self._kinds:
            status.setdefault("hardware_events", False)
            status.setdefault("hardware_events_reason", "CUPTI was in use in this process before")
        elif not status.get("hardware_events"):  # another asked for them in vain
            for name in ("hardware_events", "hardware_events_reason"):
                status.pop(name, None)
        # For how long CUDA has been live, as far as was seen.
        status["cuda_live_ns"] = time_ns() - self._cuda_live_ns if self._cuda_live_ns is not None else None
        return status
