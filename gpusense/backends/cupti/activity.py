"""Kernels, copies and memsets of this process, timed by the device, through CUPTI.

Nothing of CUPTI is loaded or called before the program itself has initialised CUDA: some releases crash then, others
give wrong answers. A libcupti that is in the process already is shared, because a second copy counts as another
profiler. Never calls cuInit, and cuptiFinalize only when the program asks to detach.
"""

import ctypes
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from ctypes import byref, c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any

from ..._capi import cstring
from ..._capi import cupti as capi
from ..._capi.binding import bind
from ..._capi.interpreter import FREE_THREADED
from ..._capi.libraries import CUDA, CUPTI
from ..._capi.loading import Loaded, load, locate
from ..._decode import layouts
from ..._records.protocols import Backend, OnBuffer, OnView
from ..._records.records import Unavailable
from ..._runtime import threads
from ..._runtime.errors import BackendError, BackendUnavailable
from .. import cuda
from . import broker, engine
from .other_profilers import busy, holder, running, torch_has_a_schedule
from .proton import attend
from .subscription import SUBSCRIPTION
from .sync_lines.reader import LineLog
from .watch import Heartbeat

DEFAULT_BUFFER_SIZE = 256 << 10
DEFAULT_BUFFERS = 128

_DOMAINS = {layouts.DRIVER: 1, layouts.RUNTIME: 2}  # of cuptiGetCallbackName
LAST_API = 1200  # beyond the newest function; unknown ids are refused without harm
_READ_ONLY = 0x100
SUBSCRIBED_FOR = "subscribed_for"  # in the shared state: what a copy of gpusense holds the subscription for
_ELSEWHERE = Unavailable("cupti", "GPU kernels can be recorded only on Linux so far; device metrics work here")


def open() -> Backend | Unavailable:
    """The backend; while CUDA is not live only what the file system says, and nothing is loaded."""
    if sys.platform != "linux":
        return _ELSEWHERE
    if threads.free_threaded():
        return FREE_THREADED
    if not cuda.SOURCE.is_live():
        driver, path = locate(CUDA), locate(CUPTI)
        if isinstance(driver, Unavailable):
            return Unavailable("cupti", f"needs the CUDA driver: {driver.reason}", driver.hint)
        return path if isinstance(path, Unavailable) else Backend("cupti", path, activity=CuptiActivity())
    activity = CuptiActivity()
    absent = activity.load()
    if absent is not None:
        return absent
    return Backend("cupti", activity.path, activity.version, activity=activity)


class CuptiActivity:
    """The CUPTI activity interface for one receiver. Any thread may call; ``on_view`` is called from one at a time."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.version: str | None = None
        self.strides: dict[int, int] = {}
        self._how = ""
        self._api: Any = None
        self._shared: broker.Shared = {}
        self._leave: Callable[[], None] | None = None
        self._on_buffer: OnBuffer | None = None
        self.last_heartbeat: Heartbeat | None = None
        self.suspects = False  # whether a canary has not shown up yet: another look is to come soon
        self.canaries_in_pauses = False  # whether markers were seen to be recorded while work is not
        self.canary: Any = None  # what marks blocks, once there is something: ``call(token)``, ``idle()``
        self.was_held = False  # the subscription, when capture was paused
        self.lines: LineLog | None = None  # of synchronising calls, where they are asked for

    # --- library ----------------------------------------------------------------------------------------------------

    def load(self) -> Unavailable | None:
        """Finds and binds the library and measures its records; why not, or None. CUDA must be live."""
        if self._api is not None:
            return None
        if sys.platform != "linux":
            return _ELSEWHERE
        driver = cuda.SOURCE.driver_version()
        loaded = load(CUPTI, max_major=driver[0] if driver else None)
        if not isinstance(loaded, Loaded):
            return loaded
        api = bind(loaded.library, capi.PROTOTYPES, loaded.path)
        lacking = [name for name in capi.REQUIRED if not getattr(api, name)]
        if lacking:
            return Unavailable(
                "cupti", f"{loaded.path} lacks {', '.join(lacking)}", "it is not CUPTI of CUDA 11.7 or later"
            )
        try:
            number = engine.version(api)
            strides = engine.measure_strides(api)
        except BackendError as error:
            return Unavailable("cupti", f"{loaded.path}: {error}")
        if layouts.CONCURRENT_KERNEL not in strides:
            return Unavailable("cupti", f"{loaded.path}: its kernel records are of a size this version does not know")
        _keep_exit_possible()
        self.path, self._how, self.version = loaded.path, loaded.how, version_text(number)
        self.strides, self._api = strides, api
        return None

    # --- capture ----------------------------------------------------------------------------------------------------

    def start(
        self,
        kinds: Iterable[int],
        on_view: OnView,
        *,
        buffer_size: int = DEFAULT_BUFFER_SIZE,
        buffers: int = DEFAULT_BUFFERS,
        wants: dict[str, Any] | None = None,
    ) -> None:
        """Begins to show buffers with records of ``kinds``. The sizes count only for the first start in a process.

        ``wants``: what this receiver asks of other copies of gpusense, and tells them; see ``_sharing``.

        Raises :class:`BackendError` where CUPTI refuses, :class:`BackendUnavailable` where capture is not possible.
        """
        if self._leave is not None:
            self.stop()
        self.meet(buffer_size, buffers)
        more = (wants,) if wants is not None and "pauses" in self._shared else ()
        self._on_buffer = viewer(on_view)
        self._leave = self._shared["join"](self._known(kinds), self._on_buffer, *more)
        attend(self.path)

    def meet(
        self, buffer_size: int = DEFAULT_BUFFER_SIZE, buffers: int = DEFAULT_BUFFERS, hardware_events: bool = False
    ) -> None:
        """What :meth:`start` does before any buffer is shown: strides and :meth:`status` are known then. Raises as
        that does. Before the first start in a process: whether work is to be timed by hardware events."""
        if not cuda.SOURCE.is_live():
            raise BackendUnavailable("the program has not used CUDA yet, and gpusense does not start it")
        absent = self.load()
        if absent is None:
            shared = broker.meet(
                lambda: engine.Engine(
                    self._api, buffer_size, buffers, strides=self.strides, hardware_events=hardware_events
                )
            )
            if not isinstance(shared, Unavailable):
                self._shared = shared
                return
            absent = shared
        raise BackendUnavailable(str(absent))

    def _known(self, kinds: Iterable[int]) -> list[int]:
        return [kind for kind in kinds if kind in self.strides]

    @property
    def can_want(self) -> bool:
        """Whether :meth:`want` is of use: an older copy may have made the hub."""
        return "want" in self._shared

    def want(self, kinds: Iterable[int]) -> None:
        """After :meth:`start`: other kinds from now on. Raises :class:`BackendError` where CUPTI refuses."""
        if self._leave is not None and self.can_want:
            self._shared["want"](self._on_buffer, self._known(kinds))

    def flush(self, forced: bool = False) -> str:
        """Has everything that is finished shown before it returns; "" or why that was not done. ``forced`` also cuts
        off what still runs."""
        if self._leave is None:
            return "capture does not run"
        return self._shared["flush"](forced) or ""  # an older copy may have made the hub, which does not say

    def rouse(self) -> None:
        """Work may come: has the thread that reads rest no longer."""
        if self._leave is not None:
            self._shared.get("rouse", bool)()  # a copy of another version may have made it

    def stop(self) -> None:
        """Ends the showing; what is finished is still shown before it returns. More than once is fine."""
        self.end_lines("capture was stopped")
        leave, self._leave = self._leave, None
        if leave is not None:
            other = busy() if torch_has_a_schedule() else running()
            if other is not None:  # which nobody has noticed yet: the kinds are its own by now
                self.pause(f"another profiler, {other}, holds CUPTI")
            leave()

    def pause(self, reason: str) -> None:
        """No call to CUPTI until :meth:`resume`: another profiler is to have it."""
        self.end_lines(reason)
        if self._shared:
            self._shared["pause"](reason)

    def resume(self) -> None:
        """Takes capture up again, with our callbacks registered anew. Raises :class:`BackendError` if that fails."""
        if self._shared:
            self._shared["resume"]()
        self.begin_lines()

    def note_lines(self, packages: tuple[str, ...]) -> None:
        """Notes, while capture runs and the subscription can be had, from which lines synchronising calls are made.

        Lines in the installed ``packages`` count as the program's. ``lines.status()`` says how it goes.
        """
        self.lines = LineLog(self, packages)
        self.lines.begin()

    def begin_lines(self) -> None:
        """Tries again where lines are asked for and not noted."""
        if self.lines is not None:
            self.lines.begin()

    def end_lines(self, reason: str) -> None:
        """Gives the subscription back."""
        if self.lines is not None:
            self.lines.end(reason)

    @property
    def shared(self) -> broker.Shared:
        """What the copies of gpusense in this process share; empty before the first start."""
        return self._shared

    def newest(self) -> Callable[[], int] | None:
        """What gives the newest correlation id of all that was launched, see :attr:`Mailbox.newest`; None where that is
        not known. To be asked for anew after :meth:`resume`."""
        find = self._shared.get("newest")
        found: Callable[[], int] | None = find() if find is not None else None
        return found

    def forget_newest(self) -> None:
        """Another profiler took CUPTI out of the process: the ids that come begin anew."""
        forget = self._shared.get("forget_newest")
        if forget is not None:
            forget()

    def was_interrupted(self) -> bool:
        """Whether work of the device went unrecorded since CUPTI came into the process."""
        # An older copy may have made the hub, which does not say.
        return bool(self._shared) and bool(self._shared["status"]().get("interrupted", True))

    def detach(self) -> None:
        """After :meth:`stop`: takes CUPTI out of the process. Raises :class:`BackendError` where that is not safe."""
        if not self._shared:
            return
        detach = self._shared.get("detach")
        if detach is None:
            raise BackendError("cuptiFinalize", 7, "an older copy of gpusense holds CUPTI and shares it with nobody")
        detach()

    # --- what is known ----------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Library, callbacks, counters (``dropped``, ``missed``, ``foreign_buffers``), ``paused`` and ``reason``."""
        status: dict[str, Any] = {"library": self.path, "how": self._how, "version": self.version}
        if self._shared:
            status.update(self._shared["status"]())
        return status

    def heartbeat(self) -> Heartbeat:
        """Counters to compare with later ones: see ``watch.py``."""
        if not self._shared:
            return Heartbeat()
        status = self._shared["status"]()
        canaries = bool(status["per_thread_buffers"]) and self.canary is not None
        # An older copy may have made the hub, which does not say.
        paused = int(status.get("paused_since_ns") or 0)
        return Heartbeat(status["requested"], status["completed"], status["flushes"], canaries, paused)

    def torch_kept_subscription(self) -> bool:
        """Whether CUPTI refuses a subscriber although no profiler runs: torch's has run here and has ended."""
        return self.is_held() and not holder()

    def is_held(self) -> bool:
        """Whether CUPTI refuses a subscriber now."""
        return bool(self._api) and SUBSCRIPTION.ask(self._api) == capi.MULTIPLE_SUBSCRIBERS

    def timestamp_ns(self) -> int:
        """Now, by the clock of the records (wall-clock nanoseconds on Linux)."""
        return engine.timestamp_ns(self._api)

    def name(self, pointer: int) -> bytes:
        """The C string at an address from a record; empty where nothing can be read there."""
        return cstring.read(pointer)

    def glance(self, names: Mapping[int, bytes]) -> Callable[[], bool]:
        """What says whether names that were read are still at their addresses."""
        return cstring.Glance(names)

    def api_name(self, kind: int, cbid: int) -> str | None:
        """Name of a function by the id in a record of the DRIVER or RUNTIME kind."""
        name = c_char_p()
        code = self._api.cuptiGetCallbackName(_DOMAINS[kind], cbid, byref(name))
        return name.value.decode("utf-8", "replace") if code == 0 and name.value else None

    # --- on request -------------------------------------------------------------------------------------------------
    # Functions that the loaded library lacks raise MissingSymbol.

    def push_external(self, identifier: int) -> None:
        """Tags what this thread launches from now on, by records of the EXTERNAL_CORRELATION kind."""
        code = self._api.cuptiActivityPushExternalCorrelationId(layouts.EXTERNAL_CUSTOM2, identifier)
        capi.check("cuptiActivityPushExternalCorrelationId", code)

    def pop_external(self) -> int:
        """Ends the newest tag of this thread and returns it."""
        last = c_uint64()
        code = self._api.cuptiActivityPopExternalCorrelationId(layouts.EXTERNAL_CUSTOM2, byref(last))
        capi.check("cuptiActivityPopExternalCorrelationId", code)
        return last.value

    def can_select_api(self) -> bool:
        """Whether :meth:`select_api` works with the loaded library."""
        return bool(self._api.cuptiActivityEnableDriverApi)

    def stream_id(self, context: int, stream: int) -> int | None:
        """The id that records carry for a ``CUstream``; None where CUPTI does not say."""
        found = c_uint32()
        known = self._api.cuptiGetStreamIdEx and self._api.cuptiGetStreamIdEx(context, stream, 0, byref(found)) == 0
        return found.value if known else None

    def context_id(self, context: int) -> int | None:
        """The same for a ``CUcontext``."""
        found = c_uint32()
        known = self._api.cuptiGetContextId and self._api.cuptiGetContextId(context, byref(found)) == 0
        return found.value if known else None

    def select_api(self, kind: int, cbid: int, wanted: bool) -> bool:
        """Whether calls of one function give records while ``kind`` (DRIVER or RUNTIME) is enabled; False if refused.

        CUDA 12.5 and later. The kind must be enabled first: then every function is wanted.
        """
        call = {
            layouts.DRIVER: self._api.cuptiActivityEnableDriverApi,
            layouts.RUNTIME: self._api.cuptiActivityEnableRuntimeApi,
        }[kind]
        return bool(call(cbid, int(wanted)) == 0)

    def select_only(self, kind: int, wanted: Container[int]) -> None:
        """:meth:`select_api` for every function of ``kind``."""
        for cbid in range(1, LAST_API):
            if cbid not in wanted:
                self.select_api(kind, cbid, False)

    def latency_timestamps(self, wanted: bool) -> None:
        """Whether kernels say when they were queued and submitted."""
        code = self._api.cuptiActivityEnableLatencyTimestamps(int(wanted))
        capi.check("cuptiActivityEnableLatencyTimestamps", code)

    def graph_node_id(self, node: int) -> int:
        """The id that kernel records carry for a ``CUgraphNode``."""
        found = c_uint64()
        capi.check("cuptiGetGraphNodeId", self._api.cuptiGetGraphNodeId(c_void_p(node), byref(found)))
        return found.value

    def graph_id(self, graph: int) -> int:
        """The id of a ``CUgraph``."""
        found = c_uint32()
        capi.check("cuptiGetGraphId", self._api.cuptiGetGraphId(c_void_p(graph), byref(found)))
        return found.value

    def graph_node_id_function(self) -> int:
        """Address of cuptiGetGraphNodeId; 0 where the loaded library lacks it."""
        found = self._api.cuptiGetGraphNodeId if self._api is not None else None
        return ctypes.cast(found, c_void_p).value or 0 if found else 0

    def subscribe(
        self, callback: int, data: int | None, calls: Iterable[tuple[int, int]], purpose: str, *, some: bool = False
    ) -> Callable[[], None]:
        """Has the C function at ``callback`` called for ``calls``, each a domain and an id; returns what ends it.

        ``data`` is its first argument. ``purpose`` is what those read who find the subscription taken. With
        ``some`` calls that the loaded library does not know are left out. Takes the one subscriber of the process, so
        that a profiler that wants it gets a refusal; raises :class:`BackendError` where another has it.
        """
        try:
            subscriber, give_back = SUBSCRIPTION.take(self._api, callback, data)
        except BackendError as error:
            ours = self._shared.get(SUBSCRIBED_FOR)
            if error.code == capi.MULTIPLE_SUBSCRIBERS and ours:
                text = f"gpusense itself holds CUPTI's subscription, for {ours}"
                raise BackendError(error.call, error.code, text) from None
            raise
        codes = [self._api.cuptiEnableCallback(1, subscriber, domain, number) for domain, number in calls]
        refused = [code for code in codes if code]
        if refused and not (some and len(refused) < len(codes)):
            give_back()
            capi.check("cuptiEnableCallback", refused[0])
        self._shared[SUBSCRIBED_FOR] = purpose

        def end() -> None:
            self._shared.pop(SUBSCRIBED_FOR, None)
            give_back()

        return end


def _keep_exit_possible() -> None:
    """glibc opens libgcc_s when a thread first ends from outside, as daemon threads do when the interpreter ends, and
    aborts the process where that fails, for want of a descriptor for example."""
    try:
        ctypes.CDLL("libgcc_s.so.1")
    except OSError:
        pass


def version_text(number: int) -> str:
    """``13.0 (130001)``; before CUDA 13 the number says nothing of the release."""
    return f"{number // 10000}.{number // 100 % 100} ({number})" if number >= 130000 else f"API {number}"


def viewer(on_view: OnView) -> Callable[[int, int, int], None]:
    """``on_buffer`` of the broker for a receiver that wants a view. The view is released after the call."""
    view = ctypes.PyDLL(None)["PyMemoryView_FromMemory"]
    view.restype = ctypes.py_object
    view.argtypes = (c_void_p, ctypes.c_ssize_t, ctypes.c_int)

    def on_buffer(address: int, valid: int, thread: int) -> None:
        with view(address, valid, _READ_ONLY) as buffer:
            on_view(buffer, thread)

    return on_buffer
